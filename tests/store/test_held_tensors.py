"""What datasets read from: not copied, not a state, and never captured unnoticed."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.store.mapped import HeldTensor, dataset_over


def reading(*tensors, held):
  """A dataset of the rows of some tensors, one after the other."""

  def make():
    rows = tf.data.Dataset.range(2)
    return rows.map(lambda i: [tf.gather(t.read_value(), i) for t in tensors])

  return dataset_over(held, make)


def most_resident_bytes():
  status = pathlib.Path("/proc/self/status").read_text()
  (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
  return int(line.split()[1]) << 10


def test_dataset_reads_held_tensors():
  first = HeldTensor.of(np.arange(3, dtype=np.int32))
  word = HeldTensor.of(np.array([b"a", b"b"], object))
  assert first.read_value() is first.tensor and first.tensor.dtype == tf.int64
  got = list(reading(first, word, held=[first, word]).as_numpy_iterator())
  assert got == [(0, b"a"), (1, b"b")]


def test_held_tensors_can_be_nested():
  first, second = (HeldTensor.of(np.array([i, i + 5])) for i in (1, 2))
  made = dataset_over(
    [first], lambda: reading(second, first, held=[second]).map(tf.add)
  )
  assert list(made.as_numpy_iterator()) == [3, 13]


def test_tensors_that_are_not_held_are_an_error():
  first, second = (HeldTensor.of(np.array([i, i + 5])) for i in (1, 2))
  with pytest.raises(
    ValueError,
    match=r"read_value: int64\[2\]: expected one of the tensors that dataset_over was "
    r"given, got another. Add it to `held`.",
  ):
    reading(first, second, held=[first])
  assert second.read_value() is second.tensor


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is resident")
def test_iterators_take_no_memory_for_it():
  large = HeldTensor.of(np.ones(1 << 25, np.int64))
  dataset = reading(large, held=[large])
  pathlib.Path("/proc/self/clear_refs").write_text("5")  # The most counts from here.
  before = most_resident_bytes()
  iterators = [iter(dataset) for _ in range(8)]
  assert all(next(each)[0] == 1 for each in iterators)
  assert most_resident_bytes() - before < (8 << 25) // 4
