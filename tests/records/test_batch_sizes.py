"""Large records are read a few at a time, by whoever reads a whole file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Prints how many MiB each takes, of a file of 200 MB.
_READERS = """
import os, sys
import tensorflow as tf
from t2r_seq.data import record_files as counting
from t2r_seq.data import skipping
path = os.path.join(sys.argv[1], "a.tfrecord")
def memory(field):
  with open("/proc/self/status") as status:
    (line,) = [line for line in status if line.startswith(field)]
  return int(line.split()[1]) / 1024
with tf.io.TFRecordWriter(path) as writer:
  for i in range(50):
    value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(4 << 20)]))
    features = tf.train.Features(feature={"x": value})
    writer.write(tf.train.Example(features=features).SerializeToString())
def take(function):
  before = memory("VmRSS")
  found = function()
  print(round(memory("VmHWM") - before))
  return found
assert take(lambda: skipping.readable_runs(path)) == ([(0, 0, -1)], [])
assert take(lambda: counting.count_records({"": [path]})) == 50
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for its memory")
def test_files_of_large_records_are_streamed(tmp_path):
  printed = subprocess.run(
    [sys.executable, "-c", _READERS, str(tmp_path)],
    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split()
  assert len(printed) == 2
  assert all(int(taken) < 100 for taken in printed)
