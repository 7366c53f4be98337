"""Frames to videos; what is read back is tried where stores and LeRobot use it."""

from __future__ import annotations

import io
import os
import sys

import numpy as np
import pytest

from t2r_seq.store import videos


@pytest.mark.skipif(sys.platform != "linux", reason="scheduling policies of Linux")
def test_encoding_leaves_all_threads_as_they_were():
  def policies():
    threads = map(int, os.listdir("/proc/self/task"))
    return {
      (os.sched_getscheduler(t), os.sched_getparam(t).sched_priority) for t in threads
    }

  before = policies()
  writer = videos.FrameWriter(io.BytesIO(), 10.0, videos.VideoEncoding("libsvtav1"))
  for value in range(3):
    writer.write(np.full((64, 64, 3), value, np.uint8))
    assert policies() == before  # Also of the encoder's own threads.
  writer.close()
  assert policies() == before
