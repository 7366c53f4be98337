"""Tensors of mapped files: the same memory, not a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import store
from t2r_seq.store import mapped
from tests import warm_python

DTYPES = [
  *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
  *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]


def address(tensor):
  return np.asarray(tensor._numpy()).ctypes.data


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_memory(dtype, tmp_path):
  dtype = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
  values = np.arange(24).reshape(4, 6).astype(dtype)
  (tmp_path / "file").write_bytes(values.tobytes())
  array = mapped.map_file(str(tmp_path / "file"), dtype, (4, 6))
  tensor = mapped.to_tensor(array)
  assert address(tensor) == array.ctypes.data
  assert tensor.dtype == (tf.uint8 if dtype == np.bool_ else tf.as_dtype(dtype))
  np.testing.assert_array_equal(tensor.numpy().astype(dtype), values)
  with tf.device("CPU:0"):
    variable = tf.Variable(tensor, trainable=False)
  assert address(variable.read_value()) == array.ctypes.data


def test_empty(tmp_path):
  (tmp_path / "file").write_bytes(b"")
  array = mapped.map_file(str(tmp_path / "file"), np.dtype("<f4"), (3, 0))
  assert array.shape == (3, 0) and not array.flags.writeable
  assert mapped.to_tensor(array).shape == (3, 0)
  empty = mapped.to_tensor(np.zeros(0, bool))
  assert empty.dtype == tf.uint8


def test_array_that_is_not_aligned_is_copied():
  values = np.arange(100, dtype=np.uint8)
  start = 1 if values.ctypes.data % 64 != 63 else 2
  tensor = mapped.to_tensor(values[start:])
  np.testing.assert_array_equal(tf.cast(tensor, tf.int32) + 1, values[start:] + 1)


def test_tensor_keeps_the_mapping(path, episode):
  opened = store.EpisodeStore(path)
  tensor = opened.tensor("obs/image")
  data, offsets = opened.bytes_tensors("obs/jpeg")
  del opened
  gc.collect()
  want = episode(0, 5)
  np.testing.assert_array_equal(tensor[:5].numpy(), want["obs/image"])
  start, end = offsets[1:3].numpy()
  assert data[start:end].numpy().tobytes() == want["obs/jpeg"][1]


def test_gathering_strings_for_decoding(path, episode):
  data, offsets = store.EpisodeStore(path).bytes_tensors("words")
  part = data[offsets[3] : offsets[4]]
  # The string of a slice of bytes: the end of its serialized tensor.
  text = tf.strings.substr(tf.io.serialize_tensor(part), -tf.size(part), tf.size(part))
  assert text.numpy() == episode(0, 5)["words"][1, 1]


SCRIPT = """
import os, sys
import numpy as np, tensorflow as tf
from t2r_seq.store import mapped

def private():
  with open("/proc/self/status") as file:
    lines = dict(line.split(":", 1) for line in file)
  return int(lines["RssAnon"].split()[0]) << 10

steps, row = 1 << 10, 1 << 20
os.truncate(sys.argv[1], steps * row)
warm = tf.data.Dataset.range(4).batch(2)
print(list(warm.map(lambda index: tf.reduce_max(tf.gather([1, 2, 3, 4], index)))))
before = private()
array = mapped.map_file(sys.argv[1], np.dtype(np.uint8), (steps, row))
with tf.device("CPU:0"):
  rows = tf.Variable(mapped.to_tensor(array), trainable=False)
dataset = tf.data.Dataset.range(0, steps, steps // 8).batch(2)
dataset = dataset.map(lambda index: tf.reduce_max(tf.gather(rows.read_value(), index)))
print([int(x) for x in dataset], (private() - before) >> 20)
"""


def test_large_file_costs_no_memory(tmp_path):
  (tmp_path / "file").write_bytes(b"\7")
  done = warm_python.run("-c", SCRIPT, tmp_path / "file")
  assert done.returncode == 0, done.stderr[-2000:]
  values, megabytes = done.stdout.strip().splitlines()[-1].rsplit(" ", 1)
  assert values == "[7, 0, 0, 0]"
  assert int(megabytes) < 200, "private memory for a file of 1 GB"
