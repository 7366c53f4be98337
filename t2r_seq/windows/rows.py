"""`RowList`: rows that a loop computes, in one buffer each, gathered in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from t2r_seq.imports import tf

# No element of a dataset can hold a tf.TensorArray. The raw ops that it is made of work
# on a variant tensor, which an element holds, also of rows of unknown shapes.

# Decoding 128x128 JPEGs by eights takes 71 us of processor time an image, one by one
# 82: the loop itself costs the difference.
_ROWS_AT_ONCE = 8


class RowList:
  """Rows of one shape and dtype, each in its own buffer.

  What a loop computes is not copied to one tensor before it is gathered: a row is
  written once and copied once for every place that shows it. The list is a variant
  tensor, so an element of a dataset may hold it and pass it on by reference.

  Attributes:
    handle: the list, a variant scalar.
    shape: static shape of a row.
    dtype: dtype of the rows.
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
      shape: shape of a row; fully defined.
      dtype: dtype of the rows.
      check_shapes: checks the shapes of all rows at once, int32 [N, rank], if they are
        unknown before they are computed; returns an op, or None. An assertion in the
        loop would cost 10 us of processor time an image, and this costs nothing.
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
        continue  # There are never so many rows; the graph is smaller without the loop.
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
  def empty(cls, shape: tf.TensorShape, dtype: tf.DType) -> RowList:
    """Returns a list of no rows; only its `handle` is valid if a size is unknown."""
    sizes = [-1 if size is None else size for size in shape]
    handle = tf.raw_ops.EmptyTensorList(
      element_shape=tf.constant(sizes, tf.int32),
      max_num_elements=-1,
      element_dtype=dtype,
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
    shape = index.shape.concatenate(self.shape)
    sizes = [-1 if size is None else size for size in shape]
    if sizes.count(-1) > 1:
      sizes = tf.concat([tf.shape(index), self.shape.as_list()], 0)
    return tf.ensure_shape(tf.reshape(rows, sizes), shape)

  def item(self, number: tf.Tensor) -> tf.Tensor:
    """Returns one row, without copying it."""
    return tf.raw_ops.TensorListGetItem(
      input_handle=self.handle,
      index=number,
      element_shape=tf.constant(self.shape.as_list(), tf.int32),
      element_dtype=self.dtype,
    )

  def stack(self) -> tf.Tensor:
    """Returns all rows in one tensor, [N] + shape."""
    return tf.raw_ops.TensorListStack(
      input_handle=self.handle,
      element_shape=tf.constant(self.shape.as_list(), tf.int32),
      element_dtype=self.dtype,
    )


def take_strings(
  all_bytes: tf.Tensor, all_offsets: tf.Tensor, items: tf.Tensor
) -> tf.Tensor:
  """Takes byte strings out of concatenated bytes.

  Args:
    all_bytes: uint8 [n].
    all_offsets: start of each string, and the end of the last, int64 [strings + 1].
    items: indices of strings, int64 [N].
  Returns:
    Strings, [N].
  """
  starts, ends = tf.gather(all_offsets, items), tf.gather(all_offsets, items + 1)
  sizes = ends - starts
  lengths = tf.cast(sizes, tf.int32)

  def make(
    start: tf.Tensor, size: tf.Tensor, from_end: tf.Tensor, length: tf.Tensor
  ) -> tf.Tensor:
    part = tf.slice(all_bytes, start, size)
    # A string is the end of the serialized tensor of its bytes.
    return tf.strings.substr(tf.io.serialize_tensor(part), from_end, length)

  inputs = (starts[:, tf.newaxis], sizes[:, tf.newaxis], -lengths, lengths)
  return RowList.compute(make, inputs, tf.TensorShape([]), tf.string).stack()


def _slice_rows(values: tf.Tensor, start: tf.Tensor, num_rows: int) -> tf.Tensor:
  # Fewer ops than values[start : start + num_rows], and its shape is static.
  sizes = [-1 if size is None else size for size in values.shape[1:].as_list()]
  return tf.slice(values, [start, *[0] * len(sizes)], [num_rows, *sizes])


def _reserve(count: tf.Tensor, shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
  sizes = [-1 if size is None else size for size in shape.as_list()]
  return tf.raw_ops.TensorListReserve(
    element_shape=tf.constant(sizes, tf.int32), num_elements=count, element_dtype=dtype
  )
