"""Rows that are kept apart, and gathered."""

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.windows.rows import RowList


@pytest.mark.parametrize("unknown", [(0,), (0, 1)], ids=["one", "two"])
def test_rows_for_an_index_of_unknown_sizes(unknown):
  rows = tf.range(40 * 16)[:, tf.newaxis] + tf.range(16)
  sizes = [None if axis in unknown else size for axis, size in enumerate((6, 2))]

  @tf.function(input_signature=[tf.TensorSpec(sizes, tf.int64)])
  def gather(index):
    listed = RowList.compute(tf.identity, [rows], rows.shape[1:], rows.dtype)
    got = listed.gather(index)
    assert got.shape.as_list() == [*sizes, 16]
    return got

  index = np.random.default_rng(3).integers(len(rows), size=(6, 2))
  np.testing.assert_array_equal(gather(index), rows.numpy()[index])
