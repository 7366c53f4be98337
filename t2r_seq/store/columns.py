"""Columns of a store as tensors: rows by number, mapped, decoded or read from files."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.process import PythonCalls
from t2r_seq.store import files
from t2r_seq.store.layout import Column
from t2r_seq.store.mapped import HeldTensor, empty_array, to_tensor
from t2r_seq.windows.rows import take_strings

# Size of a string's header in a tensor; more than 22 bytes are in a separate block.
_STRING_BYTES = 24
# Number of videos that are decoded at a time.
_DECODED_AT_ONCE = 4
# Dtypes that `decode_raw` lacks, and one of the same size that it has.
_DECODED_AS = {
  "bool": "uint8",
  "bfloat16": "uint16",
  "uint32": "int32",
  "uint64": "int64",
}

_Take = Callable[["tf.Tensor"], "tf.Tensor"]


class StoreColumns:
  """The columns of a store as datasets read them: rows by number, from mapped files.

  Row numbers continue from one segment to the next. Rows of a store of one segment are
  copied once; those of several segments twice, to join them.

  Attributes:
    path: path of the store.
    metadata: metadata of the store.
    clocks: clocks of the store; see `EpisodeStore.clocks`.
    element_spec: an episode as `WindowReader` takes it: leaves [None, ...] per step or
      value, and context features; encoded images are strings. Optional paths that some
      episode lacks are left out.
    episode_lengths: steps of each episode, int64 [episodes].
    absent: for each optional path that is left out, which episodes lack it, as text.
    held: the tensors that are read from; see `dataset_over`.
    videos: the frames of columns of videos, by path.
    failures: errors of frames that could not be read in a graph.
    row_ends: for columns on other clocks than the steps, the row after each episode's
      last one, int64 [episodes] by path.
  """

  def __init__(self, store: Any) -> None:
    """Maps the columns of an `EpisodeStore`; StoreError if it has no episodes."""
    self.path, self.metadata, self.clocks = store.path, store.metadata, store.clocks
    if not len(store):
      raise errors.StoreError(
        f"EpisodeStore: {store.path}: expected episodes, got none. Append "
        "some; uncommitted ones do not count."
      )
    self.absent: dict[str, str] = {}
    self.element_spec = specs.TensorSpecStruct()
    for path, spec in store.spec.items():
      lacking = np.zeros(0, np.int64)
      if spec.is_optional:
        lacking = np.flatnonzero(~store.is_present(path))
      if len(lacking):
        self.absent[path] = (
          f"none in {len(lacking)} of {len(store)} episodes, such as {lacking[0]}"
        )
      else:
        self.element_spec[path] = _element_spec(spec)
    self.episode_lengths = store.episode_lengths
    self._segments = store.segments
    self._columns = {path: store.columns[path] for path in self.element_spec}
    steps = np.cumsum([segment.num_steps for segment in self._segments])
    episodes = np.cumsum([len(segment) for segment in self._segments])
    # The row after the last one of each segment; True: of steps, False: of episodes.
    self._row_ends: dict[Any, np.ndarray] = {True: steps, False: episodes}
    self.failures: list[Exception] = []
    self.videos = {
      path: VideoFrames(column, self.episode_lengths, self._decode(path), self.failures)
      for path, column in self._columns.items()
      if column.is_video
    }
    self.held: list[HeldTensor] = []
    self.row_ends: dict[str, np.ndarray] = {}
    for path, column in self._columns.items():
      if column.is_ragged:
        ends = [segment.ragged_rows(path)[2] for segment in self._segments]
        starts = np.cumsum([0, *(each[-1] for each in ends)])
        bounds = zip(starts[:-1], ends, strict=True)
        self.row_ends[path] = np.concatenate([start + each for start, each in bounds])
        self._row_ends[path] = starts[1:]
    self._open()

  def _open(self) -> None:
    self._takers = {
      path: [self._taker(column, segment) for segment in self._segments]
      for path, column in self._columns.items()
      if not column.is_video
    }

  def _taker(self, column: Column, segment: Any) -> _Take:
    """Returns a function from row numbers of any shape to rows of a segment."""
    if column.is_ragged:
      return self._ragged_taker(column.as_steps, segment.ragged_rows(column.path))
    tensors = segment.bytes_tensors if column.is_bytes else segment.tensor
    tensor = tensors(column.path)
    held = [HeldTensor(each) for each in (tensor if column.is_bytes else [tensor])]
    self.held += held

    def take(rows: tf.Tensor) -> tf.Tensor:
      values = [each.read_value() for each in held]
      if column.is_bytes:
        return _take_strings(values[0], values[1], list(column.row_shape), rows)
      gathered = tf.gather(values[0], rows)
      return tf.cast(gathered, tf.bool) if column.dtype_name == "bool" else gathered

    return take

  def _ragged_taker(
    self, column: Column, rows: tuple[Any, np.ndarray, np.ndarray]
  ) -> _Take:
    """Returns a function from row numbers on another clock to these values."""
    values, offsets, ends = rows
    arrays = [values, offsets, ends] if column.is_bytes else [values]
    tensors = [HeldTensor(to_tensor(each)) for each in arrays]
    self.held += tensors

    def take(rows: tf.Tensor) -> tf.Tensor:
      values, *places = [each.read_value() for each in tensors]
      if column.is_bytes:  # Before the strings of each episode is its header.
        flat, shape = tf.reshape(rows, [-1]), list(column.row_shape)
        before = tf.searchsorted(places[1], flat, "right", tf.int64) + 1
        items = _items(flat, shape) + tf.repeat(before, column.items_per_row)
        gathered = tf.reshape(
          take_strings(values, places[0], items), tf.concat([tf.shape(rows), shape], 0)
        )
        return tf.ensure_shape(gathered, rows.shape.concatenate(shape))
      gathered = tf.gather(values, rows)
      return tf.cast(gathered, tf.bool) if column.dtype_name == "bool" else gathered

    return take

  def _decode(self, path: str) -> Callable[..., Any]:
    ends = np.cumsum([len(segment) for segment in self._segments])

    def decode(episode: int, *args: Any) -> None:
      place = int(np.searchsorted(ends, episode, "right"))
      segment = self._segments[place]
      segment.frames(path, episode - int(ends[place]) + len(segment), *args)

    return decode

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Gathers rows of one column.

    Args:
      path: path in `element_spec`.
      rows: int64 of any shape: numbers of steps, or of episodes for a context feature.
    Returns:
      rows.shape + the shape of a row; byte strings and encoded images as strings.
    """
    if path in self.videos:
      return self.videos[path].take(rows)
    takers = self._takers[path]
    if len(takers) == 1:
      return takers[0](rows)
    ends = self._row_ends.get(path, self._row_ends[self._columns[path].is_timed])
    return _take_from_parts(takers, ends, rows)

  def max_row_bytes(self, path: str) -> int:
    """Returns the memory of the largest row, in bytes; strings with their headers."""
    element = self.element_spec[path]
    is_timed = self._columns[path].is_timed
    shape = element.shape[1:] if is_timed else element.shape
    count = int(np.prod(shape.as_list(), dtype=np.int64))
    if element.dtype != tf.string:
      return count * element.dtype.size
    return count * _STRING_BYTES + max(
      int(np.diff(segment.bytes_column(path).offsets[::count]).max(initial=0))
      for segment in self._segments
    )


def _element_spec(spec: specs.ExtendedTensorSpec) -> tf.TensorSpec:
  shape, dtype = spec.shape, spec.dtype
  if specs.is_encoded_image_spec(spec):
    shape, dtype = shape[:-3], tf.string
  if spec.is_sequence:
    shape = tf.TensorShape([None]).concatenate(shape)
  # RLDS flags keep their meaning under another path; see `move_state_flags`.
  return tf.TensorSpec(shape, dtype, spec.name)


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


def _take_strings(
  all_bytes: tf.Tensor, all_offsets: tf.Tensor, shape: list[int], rows: tf.Tensor
) -> tf.Tensor:
  """Returns rows of byte strings, each row of this shape."""
  strings = take_strings(all_bytes, all_offsets, _items(rows, shape))
  full_shape = tf.concat([tf.shape(rows), tf.constant(shape, tf.int32)], 0)
  return tf.ensure_shape(tf.reshape(strings, full_shape), rows.shape.concatenate(shape))


def _items(rows: tf.Tensor, shape: list[int]) -> tf.Tensor:
  """Returns the indices of the strings in rows of this shape, int64 [N]."""
  count = int(np.prod(shape, dtype=np.int64))
  items = rows[..., tf.newaxis] * count + tf.range(count, dtype=tf.int64)
  return tf.reshape(items, [-1])


class VideoFrames:
  """The frames of a column of videos, by the number of their step in the store.

  Step i of an episode is the frame at i / fps, by its time stamp in the file.
  """

  def __init__(
    self,
    column: Column,
    lengths: np.ndarray,
    decode: Callable[..., Any],
    failures: list[Exception],
  ) -> None:
    """Prepares to decode a column's frames.

    Args:
      column: the video column.
      lengths: steps of each episode, int64 [episodes].
      decode: see `Segment.frames`; called with an episode of the store.
      failures: collects exceptions raised inside tf.data graphs.
    """
    self._failures, self._calls = failures, PythonCalls()
    self._column = column
    self._decode = decode
    self._ends = np.cumsum(lengths)

  def take(self, rows: tf.Tensor) -> tf.Tensor:
    if tf.executing_eagerly():
      return tf.constant(self.read(rows.numpy()))
    spec = self._column.spec
    frames = tf.numpy_function(self._read_and_record, [rows], spec.dtype)
    return tf.ensure_shape(frames, rows.shape.concatenate(spec.shape))

  def _read_and_record(self, rows: np.ndarray) -> np.ndarray:
    with self._calls.active():
      try:
        return self.read(rows)
      except Exception as error:
        self._failures.append(error)
        raise

  def read(self, rows: np.ndarray) -> np.ndarray:
    """Decodes the frames of steps, int64 of any shape; each distinct one once."""
    flat = rows.ravel()
    distinct, places = np.unique(flat, return_inverse=True)
    # If no step is repeated, frames are decoded in the given order, to their places.
    requested = distinct if len(distinct) < len(flat) else flat
    column = self._column
    out = empty_array((len(requested), *column.shape), column.spec.dtype.as_numpy_dtype)
    of_episode = np.searchsorted(self._ends, requested, "right")
    is_new = (np.diff(of_episode) != 0) | (np.diff(requested) < 0)
    bounds = np.r_[0, np.flatnonzero(is_new) + 1, len(requested)]
    parts = [(a, b) for a, b in itertools.pairwise(bounds) if a < b]

    def read_part(part: tuple[int, int]) -> None:
      self._calls.check()
      episode = int(of_episode[part[0]])
      first = int(self._ends[episode - 1]) if episode else 0
      steps, target = requested[slice(*part)] - first, out[slice(*part)]
      self._decode(episode, steps, target, 1 if len(parts) > 1 else None)

    if len(parts) == 1:
      read_part(parts[0])
    else:
      with futures.ThreadPoolExecutor(_DECODED_AT_ONCE) as executor:
        list(executor.map(read_part, parts))
    if requested is distinct:
      out = out[places]
    return out.reshape((*rows.shape, *out.shape[1:]))


class FileColumns(StoreColumns):
  """The columns of a store, read by a graph that may run in another process.

  `StoreColumns` refers to memory of one process. Here the graph has the names of the
  files and the places of the rows. It opens the files for each read; consecutive rows
  are one read. The files must have the same names in that process, and must not change
  while they are read.
  """

  def __init__(self, store: Any) -> None:
    """Finds the files; StoreError for writers, videos, other clocks or no episodes."""
    writing = [s.name for s in store.segments if files.is_locked(s.folder)]
    if writing:
      raise errors.StoreError(
        f"FileColumns: {store.path}: expected no writers, got one of each of "
        f"{errors.listing(writing)}. The files that other processes read must not "
        "change: close the writers first."
      )
    super().__init__(store)
    if self.clocks:
      raise errors.StoreError(
        f"FileColumns: {store.path}: expected columns with a row for each step, got "
        f"{errors.listing(self.clocks)} on other clocks. Read them in one process."
      )
    if self.videos:
      raise errors.StoreError(
        f"FileColumns: {store.path}: expected columns that a graph reads in another "
        f"process, got the videos {errors.listing(self.videos)}, which Python "
        "decodes here. Convert them to pixels: t2r_seq convert --decode_images."
      )

  def _open(self) -> None:
    folders = [segment.folder for segment in self._segments]
    self._files = {
      name: _Files([os.path.join(folder, name) for folder in folders])
      for column in self._columns.values()
      for name in column.files
    }

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Reads rows of one column; see `StoreColumns.take`."""
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
    rows_of_files = tf.reshape(values, tf.concat([tf.shape(rows), shape], 0))
    return tf.ensure_shape(rows_of_files, rows.shape.concatenate(shape))

  def _take_bytes(self, column: Column, runs: _Runs) -> tf.Tensor:
    """Returns the byte strings of rows, [N * items_per_row]."""
    if not column.items_per_row:
      return tf.zeros([0], tf.string)
    items = runs.times(column.items_per_row)
    offsets = self._files[column.offsets_file]
    starts = _decode(offsets.read(items.times(8)), tf.int64)
    ends = _decode(offsets.read(items.times(8).shift(8)), tf.int64)
    lasts = tf.cumsum(items.counts)
    firsts = tf.gather(starts, lasts - items.counts)
    spans = _Runs(items.segments, firsts, tf.gather(ends, lasts - 1) - firsts)
    data = tf.io.decode_raw(self._files[column.data_file].read(spans), tf.uint8)
    local = tf.concat([[0], tf.cumsum(ends - starts)], 0)
    return take_strings(data, local, tf.range(tf.size(starts, tf.int64)))


@dataclasses.dataclass(frozen=True)
class _Runs:
  """Ranges of consecutive rows or bytes, each in one segment.

  Attributes:
    segments: index of each run's segment, int64 [runs].
    starts: first row or byte of each run in its segment, int64 [runs].
    counts: number of rows or bytes of each run, int64 [runs].
  """

  segments: tf.Tensor
  starts: tf.Tensor
  counts: tf.Tensor

  @classmethod
  def find(cls, rows: tf.Tensor, ends: np.ndarray) -> _Runs:
    """Finds the runs in rows, int64 [N]; `ends` has the row after each segment."""
    segments = tf.searchsorted(tf.constant(ends, tf.int64), rows, "right", tf.int64)
    is_next = (rows[1:] == rows[:-1] + 1) & (segments[1:] == segments[:-1])
    is_first = tf.concat([tf.fill(tf.minimum(tf.shape(rows), 1), True), ~is_next], 0)
    firsts = tf.where(is_first)[:, 0]
    stops = tf.concat([firsts[1:], tf.shape(rows, tf.int64)], 0)
    segments = tf.gather(segments, firsts)
    offsets = tf.constant(np.concatenate([[0], ends[:-1]]), tf.int64)
    starts = tf.gather(rows, firsts) - tf.gather(offsets, segments)
    return cls(segments, starts, stops[: tf.size(firsts)] - firsts)

  def times(self, factor: int) -> _Runs:
    """Returns the runs in units that are smaller by a factor."""
    return _Runs(self.segments, self.starts * factor, self.counts * factor)

  def shift(self, offset: int) -> _Runs:
    """Returns the runs, moved by an offset."""
    return _Runs(self.segments, self.starts + offset, self.counts)


class _Files:
  """One file of each segment."""

  def __init__(self, names: list[str]) -> None:
    self.names = names
    self.sizes = [os.path.getsize(name) for name in names]

  def read(self, runs: _Runs) -> tf.Tensor:
    """Reads runs of bytes into one string."""
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
    # The empty string makes a batch, even if there are no parts.
    read = tf.data.Dataset.from_tensors("").concatenate(read)
    all_parts = read.batch(tf.size(parts[0], tf.int64) + 1).get_single_element()
    return tf.strings.reduce_join(all_parts)

  def _read_one(
    self, segment: tf.Tensor, start: tf.Tensor, count: tf.Tensor
  ) -> tf.Tensor:
    size = tf.gather(tf.constant(self.sizes, tf.int64), segment)
    # The bytes are the only record of the file, between a header and a footer.
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
