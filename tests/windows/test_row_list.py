"""Rows that are kept apart: taken from tensors, and gathered."""

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.windows.rows import RowList

CASES = {
  "rows that are shared": ((11, 3, 40), (16, 4), tf.float32),
  "rows that are copied": ((1, 8, 9), (5,), tf.uint8),
  "an empty tensor": ((2, 0, 17), (64,), tf.uint8),
  "one tensor": ((39,), (64,), tf.uint8),
  "none": ((), (64,), tf.uint8),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_of_tensors_one_after_the_other(case):
  lengths, shape, dtype = case
  rng = np.random.default_rng(3)
  parts = [rng.integers(100, size=(n, *shape)) for n in lengths]
  want = np.concatenate([np.zeros((0, *shape)), *parts]).astype(dtype.as_numpy_dtype)

  @tf.function
  def gather(index):
    rows = RowList.empty(tf.TensorShape(shape), dtype)
    for part in parts:
      rows = rows.concat(RowList.of_tensor(tf.constant(part, dtype)).handle)
    return rows.gather(index)

  index = rng.integers(max(len(want), 1), size=(6, 2)) if len(want) else [[]]
  got = gather(tf.constant(index, tf.int64))
  np.testing.assert_array_equal(got, want[np.asarray(index, int)])
  assert got.dtype == dtype


@pytest.mark.parametrize("unknown", [(0,), (0, 1)], ids=["one", "two"])
def test_rows_for_an_index_of_unknown_sizes(unknown):
  rows = tf.range(40 * 16)[:, tf.newaxis] + tf.range(16)
  sizes = [None if axis in unknown else size for axis, size in enumerate((6, 2))]

  @tf.function(input_signature=[tf.TensorSpec(sizes, tf.int64)])
  def gather(index):
    got = RowList.of_tensor(rows).gather(index)
    assert got.shape.as_list() == [*sizes, 16]
    return got

  index = np.random.default_rng(3).integers(len(rows), size=(6, 2))
  np.testing.assert_array_equal(gather(index), rows.numpy()[index])
