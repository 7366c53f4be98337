"""Rows that are kept apart: taken from tensors, and gathered."""

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import windows

CASES = {
  "rows that are shared": ((11, 3, 20), (16, 4), tf.float32),
  "rows that are copied": ((1, 8, 9), (5,), tf.uint8),
  "an empty tensor": ((2, 0, 17), (64,), tf.uint8),
  "one tensor": ((8,), (64,), tf.uint8),
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
    handle = tf.raw_ops.EmptyTensorList(
      element_shape=tf.constant([-1, *shape]), max_num_elements=-1, element_dtype=dtype
    )
    for part in parts:
      handle = tf.raw_ops.TensorListPushBack(
        input_handle=handle, tensor=tf.constant(part, dtype)
      )
    rows = windows.RowList.of_tensors(
      handle, tf.constant(len(want)), tf.TensorShape(shape), dtype
    )
    return rows.gather(index)

  index = rng.integers(max(len(want), 1), size=(6, 2)) if len(want) else [[]]
  got = gather(tf.constant(index, tf.int64))
  np.testing.assert_array_equal(got, want[np.asarray(index, int)])
  assert got.dtype == dtype
