"""A process that ends while datasets call Python."""

import subprocess
import sys

import pytest

# A dataset whose calls of Python follow each other without a pause, read ahead.
_PROCESS = """
import sys, time
import tensorflow as tf
from t2r_seq.data.python_calls import call_of_python

def slowly(number):
  with call_of_python():
    time.sleep(0.002)
  return number

dataset = tf.data.Dataset.range(10**9).map(
  lambda number: tf.numpy_function(slowly, [number], tf.int64, stateful=False),
  num_parallel_calls=4,
).prefetch(1000)
iterator = iter(dataset)
for _ in range(int(sys.argv[1])):
  next(iterator)
print("read")
"""


@pytest.mark.parametrize("num_read", [1, 5])
def test_the_process_ends(num_read):
  ended = subprocess.run(
    [sys.executable, "-c", _PROCESS, str(num_read)],
    capture_output=True,
    text=True,
    timeout=100,
    check=False,
  )
  assert ended.stdout.strip() == "read"
  assert ended.returncode == 0, ended.stderr[-2000:]
