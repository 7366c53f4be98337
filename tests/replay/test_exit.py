"""A process ends, although a dataset waits for items that nobody will append."""

from __future__ import annotations

import subprocess
import sys

# One sample is let through, and the next one waits.
PROGRAM = """
import time
import numpy as np
import tensorflow as tf
from t2r_seq import replay, specs

spec = {"x": specs.ExtendedTensorSpec((), tf.int64, "x", time_offsets=0)}
limiter = replay.SampleToInsertRatio(1.0, 1, (0.0, 1000.0))
buffer = replay.ReplayBuffer(spec, 10, rate_limiter=limiter)
with buffer.writer() as writer:
  writer.append({"x": np.int64(0)})
batches = iter(buffer.dataset(1))
next(batches)
while not buffer._table.limiter._num_waiting:
  time.sleep(0.01)
print("waits")
"""


def test_exit_while_a_dataset_waits():
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
  )
  assert (done.returncode, done.stdout) == (0, "waits\n"), done.stderr
