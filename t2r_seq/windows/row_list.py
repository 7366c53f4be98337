"""`RowList`: rows computed one by one, kept apart, and gathered in any order."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

# Decoding 128x128 JPEGs by eights takes 71 us of processor time an image, one by one
# 82: the rest is the loop's own.
_ROWS_AT_ONCE = 8


class RowList:
  """Rows of one shape and dtype, each in memory of its own.

  What a loop computes is not copied to one tensor before it is gathered: a row is
  written once and copied once for every place that shows it. The list is a variant
  tensor, so an element of a dataset may hold it and pass it on by reference.

  Attributes:
    handle: the list, a variant scalar.
    shape: static shape of a row.
    dtype: of the rows.
  """

  def __init__(self, handle: tf.Tensor, shape: tf.TensorShape, dtype: tf.DType) -> None:
    """Creates the list; see the attributes."""
    self.handle = handle
    self.shape = shape
    self.dtype = dtype

  @classmethod
  def compute(
    cls,
    make_row: Callable[[tf.Tensor], tf.Tensor],
    inputs: tf.Tensor,
    shape: tf.TensorShape,
    dtype: tf.DType,
  ) -> RowList:
    """Computes a row from each input, several in parallel.

    Args:
      make_row: maps one input to a row of `shape`.
      inputs: [N, ...].
      shape: of a row; fully defined.
      dtype: of the rows.
    Returns:
      A list of N rows.
    """
    count = tf.shape(inputs)[0]
    row_shape = tf.constant(shape.as_list(), tf.int32)
    handle = tf.raw_ops.TensorListReserve(
      element_shape=row_shape, num_elements=count, element_dtype=dtype
    )
    num_full = count // _ROWS_AT_ONCE * _ROWS_AT_ONCE

    def add(start: tf.Tensor, handle: tf.Tensor, num_rows: int) -> list[tf.Tensor]:
      part = tf.ensure_shape(
        inputs[start : start + num_rows], [num_rows, *inputs.shape[1:]]
      )
      rows = [make_row(value) for value in tf.unstack(part)]
      for i, row in enumerate(rows):
        handle = tf.raw_ops.TensorListSetItem(
          input_handle=handle, index=start + i, item=row
        )
      return [start + num_rows, handle]

    for end, num_rows in ((num_full, _ROWS_AT_ONCE), (count, 1)):
      start = tf.constant(0) if num_rows > 1 else num_full
      _, handle = tf.while_loop(
        lambda i, _, end=end: i < end,
        lambda i, rows, num_rows=num_rows: add(i, rows, num_rows),
        [start, handle],
      )
    return cls(handle, shape, dtype)

  def gather(self, index: tf.Tensor) -> tf.Tensor:
    """Returns rows.

    Args:
      index: int [...].
    Returns:
      index.shape + shape, of `dtype`.
    """
    rows = tf.raw_ops.TensorListGather(
      input_handle=self.handle,
      indices=tf.reshape(tf.cast(index, tf.int32), [-1]),
      element_shape=tf.constant(self.shape.as_list(), tf.int32),
      element_dtype=self.dtype,
    )
    full_shape = tf.concat([tf.shape(index), self.shape.as_list()], 0)
    return tf.ensure_shape(
      tf.reshape(rows, full_shape), index.shape.concatenate(self.shape)
    )

  def stack(self) -> tf.Tensor:
    """Returns all rows in one tensor, [N] + shape."""
    return tf.raw_ops.TensorListStack(
      input_handle=self.handle,
      element_shape=tf.constant(self.shape.as_list(), tf.int32),
      element_dtype=self.dtype,
    )
