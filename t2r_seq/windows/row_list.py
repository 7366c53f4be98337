"""`RowList`: rows computed one by one, kept apart, and gathered in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    make_row: Callable[..., tf.Tensor],
    inputs: Sequence[tf.Tensor],
    shape: tf.TensorShape,
    dtype: tf.DType,
    check_shapes: Callable[[tf.Tensor], tf.Operation | None] | None = None,
  ) -> RowList:
    """Computes N rows, several in parallel.

    Args:
      make_row: maps one part of each input to a row of `shape`.
      inputs: tensors [N, ...].
      shape: of a row; fully defined.
      dtype: of the rows.
      check_shapes: for rows whose shape is only known when they are there: given their
        shapes, int32 [N, rank], checks them all at once. An assertion in the loop costs
        10 us of processor time an image, this nothing.
    Returns:
      A list of N rows.
    """
    count = tf.shape(inputs[0])[0]
    num_full = count // _ROWS_AT_ONCE * _ROWS_AT_ONCE
    unknown = tf.TensorShape([None] * shape.rank)
    lists = [_reserve(count, unknown if check_shapes else shape, dtype)]
    if check_shapes is not None:
      lists.append(_reserve(count, tf.TensorShape([shape.rank]), tf.int32))

    def add(start: tf.Tensor, lists: list[tf.Tensor], num_rows: int) -> list[Any]:
      parts = [tf.unstack(_slice_rows(values, start, num_rows)) for values in inputs]
      places = tf.unstack(start + tf.range(num_rows))
      for place, *values in zip(places, *parts, strict=True):
        row = make_row(*values)
        items = [row] if check_shapes is None else [row, tf.shape(row)]
        lists = [
          tf.raw_ops.TensorListSetItem(input_handle=handle, index=place, item=item)
          for handle, item in zip(lists, items, strict=True)
        ]
      return [start + num_rows, lists]

    most = inputs[0].shape[0]
    for end, num_rows in ((num_full, _ROWS_AT_ONCE), (count, 1)):
      if most is not None and most < num_rows:
        continue  # Never as many: the graph is smaller without.
      start = tf.constant(0) if num_rows > 1 else num_full
      _, lists = tf.while_loop(
        lambda i, _, end=end: i < end,
        lambda i, lists, num_rows=num_rows: add(i, lists, num_rows),
        [start, lists],
      )
    handle = lists[0]
    if check_shapes is not None:
      shapes = cls(lists[1], tf.TensorShape([shape.rank]), tf.int32).stack()
      check = check_shapes(shapes)
      with tf.control_dependencies([] if check is None else [check]):
        handle = tf.identity(handle)
    return cls(handle, shape, dtype)

  @classmethod
  def of_tensors(
    cls, tensors: tf.Tensor, count: tf.Tensor, shape: tf.TensorShape, dtype: tf.DType
  ) -> RowList:
    """Takes the rows of tensors one after the other, without copying them.

    A row whose bytes are no multiple of 64 is copied: TensorFlow shares the memory of
    aligned parts only.

    Args:
      tensors: a list of them, [T, ...] each; a variant scalar.
      count: rows of all tensors, int32 scalar.
      shape: of a row; fully defined.
      dtype: of the rows.
    Returns:
      A list of all rows.
    """
    all_shape = tf.constant([-1, *shape.as_list()], tf.int32)

    def add(
      rows: tf.Tensor, start: tf.Tensor, first: tf.Tensor, handle: tf.Tensor, num: int
    ) -> list[tf.Tensor]:
      part = tf.ensure_shape(rows[start : start + num], [num, *shape])
      for i, row in enumerate(tf.unstack(part)):
        handle = tf.raw_ops.TensorListSetItem(
          input_handle=handle, index=first + start + i, item=row
        )
      return [start + num, handle]

    def add_tensor(number: tf.Tensor, first: tf.Tensor, handle: tf.Tensor) -> list[Any]:
      rows = tf.raw_ops.TensorListGetItem(
        input_handle=tensors, index=number, element_shape=all_shape, element_dtype=dtype
      )
      size = tf.shape(rows)[0]
      start = tf.constant(0)
      for end, num in (
        (size // _ROWS_AT_ONCE * _ROWS_AT_ONCE, _ROWS_AT_ONCE),
        (size, 1),
      ):
        start, handle = tf.while_loop(
          lambda i, _, end=end: i < end,
          lambda i, handle, num=num: add(rows, i, first, handle, num),
          [start, handle],
        )
      return [number + 1, first + size, handle]

    num_tensors = tf.raw_ops.TensorListLength(input_handle=tensors)
    zero = tf.constant(0)
    _, _, handle = tf.while_loop(
      lambda number, *_: number < num_tensors,
      add_tensor,
      [zero, zero, _reserve(count, shape, dtype)],
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


def _slice_rows(values: tf.Tensor, start: tf.Tensor, num_rows: int) -> tf.Tensor:
  # Fewer ops than values[start : start + num_rows], and its shape is static.
  sizes = [-1 if size is None else size for size in values.shape[1:].as_list()]
  return tf.slice(values, [start, *[0] * len(sizes)], [num_rows, *sizes])


def _reserve(count: tf.Tensor, shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
  sizes = [-1 if size is None else size for size in shape.as_list()]
  return tf.raw_ops.TensorListReserve(
    element_shape=tf.constant(sizes, tf.int32), num_elements=count, element_dtype=dtype
  )
