"""`StoreColumns`: the rows of a store, gathered in graph ops from the mapped files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.store.held_tensors import HeldTensor

if TYPE_CHECKING:
  from t2r_seq.store.episode_store import EpisodeStore

# A tensor's string of more than 22 bytes is a header and a block of memory.
_STRING_BYTES = 24

_Take = Callable[[tf.Tensor], tf.Tensor]


class StoreColumns:
  """The columns of a store as what datasets can read from: rows by number.

  Rows are counted through the segments. One segment is read at the speed of a copy;
  of several, each gives its part and a second copy puts them together.

  Attributes:
    path: of the store.
    element_spec: an episode as `windows.WindowReader` takes it, leaves [None, ...] per
      step, and context features; encoded images are strings. Optional paths that some
      episode lacks are left out.
    episode_lengths: steps of each episode, int64 [episodes].
    absent: the optional paths that are left out, and which episodes lack them.
    held: the tensors that are read from; see `dataset_over`.
  """

  def __init__(self, store: EpisodeStore) -> None:
    """Maps the columns.

    Args:
      store: has episodes.
    Raises:
      StoreError: the store has no episodes.
    """
    self.path = store.path
    if not len(store):
      raise errors.StoreError(
        f"EpisodeStore: {store.path}: expected episodes, got none. Append some; what "
        "was not committed does not count."
      )
    self.absent = _absent(store)
    self.element_spec = _element_spec(store, self.absent)
    self.episode_lengths = store.episode_lengths
    segments = self._segments = store.segments
    self._step_ends = np.cumsum([segment.num_steps for segment in segments])
    self._context_ends = np.cumsum([len(segment) for segment in segments])
    self._spec = store.spec
    self._bytes = {
      path: [tuple(map(HeldTensor, each.bytes_tensors(path))) for each in segments]
      for path, element in self.element_spec.items()
      if element.dtype == tf.string
    }
    self._numbers = {
      path: [HeldTensor(segment.tensor(path)) for segment in segments]
      for path in self.element_spec
      if path not in self._bytes
    }
    self.held = [
      *(held for column in self._numbers.values() for held in column),
      *(held for column in self._bytes.values() for pair in column for held in pair),
    ]
    self._takers = {
      path: self._bytes_takers(path)
      if path in self._bytes
      else [_make_taker(column, store.spec[path]) for column in self._numbers[path]]
      for path in self.element_spec
    }

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Gathers rows of one column.

    Args:
      path: one of `element_spec`.
      rows: int64 of any shape: numbers of steps, or of episodes for a context feature.
    Returns:
      rows.shape + the shape of a row; byte strings and encoded images as strings.
    """
    takers = self._takers[path]
    if len(takers) == 1:
      return takers[0](rows)
    is_per_step = self._spec[path].is_sequence
    ends = self._step_ends if is_per_step else self._context_ends
    return _take_from_parts(takers, ends, rows)

  def strings(self, path: str, rows: tf.Tensor) -> windows.StringRows:
    """Returns the byte strings of rows, to be made where they are used.

    Args:
      path: one of `element_spec`, of strings or encoded images.
      rows: int64 [N].
    Returns:
      N times as many strings as a row has.
    """
    if len(self._segments) > 1:
      return windows.StringRows.of(tf.reshape(self.take(path, rows), [-1]))
    data, offsets = (held.read_value() for held in self._bytes[path][0])
    items = _items(rows, self._row_shape(path))
    return windows.StringRows.of_bytes(data, offsets, items)

  def max_row_bytes(self, path: str) -> int:
    """Returns the memory of the largest row, in bytes; strings with their headers."""
    element = self.element_spec[path]
    count = int(np.prod(self._row_shape(path), dtype=np.int64))
    if element.dtype != tf.string:
      return count * element.dtype.size
    return count * _STRING_BYTES + max(
      int(np.diff(segment.bytes_column(path).offsets[::count]).max(initial=0))
      for segment in self._segments
    )

  def _row_shape(self, path: str) -> list[int]:
    shape = self.element_spec[path].shape
    return (shape[1:] if self._spec[path].is_sequence else shape).as_list()

  def _bytes_takers(self, path: str) -> list[_Take]:
    shape = self._row_shape(path)

    def make(data: HeldTensor, offsets: HeldTensor) -> _Take:
      return lambda rows: take_strings(
        data.read_value(), offsets.read_value(), shape, rows
      )

    return [make(*held) for held in self._bytes[path]]


def _absent(store: EpisodeStore) -> dict[str, str]:
  found = {}
  for path, spec in store.spec.items():
    if not spec.is_optional:
      continue
    lacking = np.flatnonzero(~store.is_present(path))
    if len(lacking):
      found[path] = (
        f"none in {len(lacking)} of {len(store)} episodes, such as {lacking[0]}"
      )
  return found


def _element_spec(
  store: EpisodeStore, absent: Mapping[str, str]
) -> specs.TensorSpecStruct:
  element = specs.TensorSpecStruct()
  for path, spec in store.spec.items():
    if path in absent:
      continue
    shape, dtype = spec.shape, spec.dtype
    if specs.is_encoded_image_spec(spec):
      shape, dtype = shape[:-3], tf.string
    if spec.is_sequence:
      shape = tf.TensorShape([None]).concatenate(shape)
    element[path] = tf.TensorSpec(shape, dtype)
  return element


def _take_from_parts(
  takers: list[_Take], ends: np.ndarray, rows: tf.Tensor
) -> tf.Tensor:
  flat = tf.reshape(rows, [-1])
  part = tf.searchsorted(tf.constant(ends, tf.int64), flat, "right")
  local = flat - tf.gather(tf.constant(np.r_[0, ends[:-1]], tf.int64), part)
  places = tf.dynamic_partition(tf.range(tf.size(flat)), part, len(takers))
  locals_ = tf.dynamic_partition(local, part, len(takers))
  values = [take(those) for take, those in zip(takers, locals_, strict=True)]
  stitched = tf.dynamic_stitch(places, values)
  row_shape = values[0].shape[1:]
  full = tf.concat([tf.shape(rows), tf.shape(values[0])[1:]], 0)
  return tf.ensure_shape(tf.reshape(stitched, full), rows.shape.concatenate(row_shape))


def _make_taker(column: HeldTensor, spec: specs.ExtendedTensorSpec) -> _Take:
  """Returns a function from row numbers of any shape to the rows."""

  def take(rows: tf.Tensor) -> tf.Tensor:
    taken = tf.gather(column.read_value(), rows)
    return tf.cast(taken, tf.bool) if spec.dtype == tf.bool else taken

  return take


def take_strings(
  all_bytes: tf.Tensor, all_offsets: tf.Tensor, shape: list[int], rows: tf.Tensor
) -> tf.Tensor:
  """Takes rows of byte strings out of their bytes.

  Args:
    all_bytes: uint8 [n].
    all_offsets: where each string starts, and the end, int64 [items + 1].
    shape: of a row.
    rows: int64 of any shape.
  Returns:
    Strings, rows.shape + shape.
  """
  strings = windows.StringRows.of_bytes(all_bytes, all_offsets, _items(rows, shape))
  full_shape = tf.concat([tf.shape(rows), tf.constant(shape, tf.int32)], 0)
  return tf.ensure_shape(
    tf.reshape(strings.to_tensor(), full_shape), rows.shape.concatenate(shape)
  )


def _items(rows: tf.Tensor, shape: list[int]) -> tf.Tensor:
  """Returns which strings are in rows of this shape, int64 [N]."""
  count = int(np.prod(shape, dtype=np.int64))
  items = rows[..., tf.newaxis] * count + tf.range(count, dtype=tf.int64)
  return tf.reshape(items, [-1])
