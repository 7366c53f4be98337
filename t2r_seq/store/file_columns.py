"""`FileColumns`: the rows of a store, read from its files wherever the graph runs."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from t2r_seq import errors
from t2r_seq.imports import tf
from t2r_seq.store import files
from t2r_seq.store.episode_store import EpisodeStore, StoreColumns
from t2r_seq.store.layout import Column
from t2r_seq.store.mapped import HeldTensor
from t2r_seq.windows.rows import take_strings

# What is read is decoded as a dtype of this size that `decode_raw` knows.
_DECODED_AS = {
  "bool": "uint8",
  "bfloat16": "uint16",
  "uint32": "int32",
  "uint64": "int64",
}


class FileColumns:
  """The columns of a store as a graph reads them that may run in another process.

  `StoreColumns` refers to memory of its own process. Here the graph has the names of
  the files and where in them the rows lie, and opens them in each read: rows that
  follow each other are one read. The files must be under the same names there, and must
  not change while they are read.

  Attributes:
    path: of the store.
    metadata: of the store.
    element_spec: as that of `StoreColumns`.
    episode_lengths: steps of each episode, int64 [episodes].
  """

  def __init__(self, store: EpisodeStore) -> None:
    """Looks where the files are, and how long.

    Args:
      store: has episodes.
    Raises:
      StoreError: the store has no episodes, or somebody is writing to it.
    """
    writing = [s.name for s in store.segments if files.is_locked(s.folder)]
    if writing:
      raise errors.StoreError(
        f"FileColumns: {store.path}: expected no writers, got one of each of "
        f"{errors.listing(writing)}. What other processes read must stay as it is: "
        "close the writers first."
      )
    columns = StoreColumns(store)
    if columns.videos:
      raise errors.StoreError(
        f"FileColumns: {store.path}: expected columns that a graph reads in another "
        f"process, got the videos {errors.listing(columns.videos)}, which Python "
        "decodes here. Convert them to pixels: t2r_seq convert --decode_images."
      )
    self.path, self.metadata = store.path, store.metadata
    self.absent = columns.absent
    self.held: list[HeldTensor] = []  # It reads files.
    self.element_spec = columns.element_spec
    self.episode_lengths = columns.episode_lengths
    self.max_row_bytes = columns.max_row_bytes
    self._columns = {
      path: Column.of(path, store.spec[path]) for path in self.element_spec
    }
    folders = [segment.folder for segment in store.segments]
    steps = np.cumsum([segment.num_steps for segment in store.segments])
    episodes = np.cumsum([len(segment) for segment in store.segments])
    self._files = {
      name: _Files.find([os.path.join(folder, name) for folder in folders])
      for column in self._columns.values()
      for name in column.files
    }
    self._row_ends = {True: steps, False: episodes}

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Reads rows of one column.

    Args:
      path: one of `element_spec`.
      rows: int64 of any shape: numbers of steps, or of episodes for a context feature.
    Returns:
      rows.shape + the shape of a row; byte strings and encoded images as strings.
    """
    column = self._columns[path]
    runs = _Runs.find(tf.reshape(rows, [-1]), self._row_ends[column.is_per_step])
    shape = list(column.row_shape)
    if column.is_bytes:
      values = self._take_bytes(column, runs)
    else:
      data = self._files[column.data_file].read(
        runs.times(column.items_per_row * column.dtype.itemsize)
      )
      values = _decode(data, column.spec.dtype)
    taken = tf.reshape(values, tf.concat([tf.shape(rows), shape], 0))
    return tf.ensure_shape(taken, rows.shape.concatenate(shape))

  def _take_bytes(self, column: Column, runs: _Runs) -> tf.Tensor:
    """Returns the byte strings of rows, [N * items of a row]."""
    if not column.items_per_row:
      return tf.zeros([0], tf.string)
    items = runs.times(column.items_per_row)
    offsets = self._files[column.offsets_file]
    starts = _decode(offsets.read(items.times(8)), tf.int64)
    ends = _decode(offsets.read(items.times(8).moved(8)), tf.int64)
    lasts = tf.cumsum(items.counts)
    firsts = tf.gather(starts, lasts - items.counts)
    spans = _Runs(items.segments, firsts, tf.gather(ends, lasts - 1) - firsts)
    data = tf.io.decode_raw(self._files[column.data_file].read(spans), tf.uint8)
    local = tf.concat([[0], tf.cumsum(ends - starts)], 0)
    return take_strings(data, local, tf.range(tf.size(starts, tf.int64)))


@dataclasses.dataclass(frozen=True)
class _Runs:
  """Ranges that follow each other in one file each.

  Attributes:
    segments: which segment's file, int64 [runs].
    starts: int64 [runs].
    counts: int64 [runs].
  """

  segments: tf.Tensor
  starts: tf.Tensor
  counts: tf.Tensor

  @classmethod
  def find(cls, rows: tf.Tensor, ends: np.ndarray) -> _Runs:
    """Finds the runs in rows, int64 [N], of segments with these ends."""
    segments = tf.searchsorted(tf.constant(ends, tf.int64), rows, "right", tf.int64)
    goes_on = (rows[1:] == rows[:-1] + 1) & (segments[1:] == segments[:-1])
    is_first = tf.concat([tf.fill(tf.minimum(tf.shape(rows), 1), True), ~goes_on], 0)
    firsts = tf.where(is_first)[:, 0]
    stops = tf.concat([firsts[1:], tf.shape(rows, tf.int64)], 0)
    segments = tf.gather(segments, firsts)
    offsets = tf.constant(np.concatenate([[0], ends[:-1]]), tf.int64)
    starts = tf.gather(rows, firsts) - tf.gather(offsets, segments)
    return cls(segments, starts, stops[: tf.size(firsts)] - firsts)

  def times(self, factor: int) -> _Runs:
    """Returns the runs in smaller units."""
    return _Runs(self.segments, self.starts * factor, self.counts * factor)

  def moved(self, offset: int) -> _Runs:
    """Returns the runs further on."""
    return _Runs(self.segments, self.starts + offset, self.counts)


@dataclasses.dataclass(frozen=True)
class _Files:
  """One file of each segment.

  Attributes:
    names: of the files.
    sizes: bytes of each.
  """

  names: list[str]
  sizes: list[int]

  @classmethod
  def find(cls, names: list[str]) -> _Files:
    """Looks how long the files are."""
    return cls(names, [os.path.getsize(name) for name in names])

  def read(self, runs: _Runs) -> tf.Tensor:
    """Reads runs of bytes to one string."""
    is_any = runs.counts > 0
    parts = [
      tf.boolean_mask(values, is_any)
      for values in (runs.segments, runs.starts, runs.counts)
    ]
    read = tf.data.Dataset.from_tensor_slices(tuple(parts)).map(
      tf.autograph.experimental.do_not_convert(self._read_one),
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True,
    )
    # With one part there is always a batch to get.
    read = tf.data.Dataset.from_tensors("").concatenate(read)
    all_parts = read.batch(tf.size(parts[0], tf.int64) + 1).get_single_element()
    return tf.strings.reduce_join(all_parts)

  def _read_one(
    self, segment: tf.Tensor, start: tf.Tensor, count: tf.Tensor
  ) -> tf.Tensor:
    size = tf.gather(tf.constant(self.sizes, tf.int64), segment)
    # A file of one record, between a header and a footer.
    return tf.data.FixedLengthRecordDataset(
      tf.gather(tf.constant(self.names), segment),
      record_bytes=count,
      header_bytes=start,
      footer_bytes=size - start - count,
    ).get_single_element()


def _decode(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  read_as = _DECODED_AS.get(dtype.name, dtype.name)
  decoded = tf.io.decode_raw(data, tf.as_dtype(read_as), little_endian=True)
  if dtype == tf.bool:
    return tf.cast(decoded, tf.bool)
  return decoded if read_as == dtype.name else tf.bitcast(decoded, dtype)
