"""`EpisodeStore`: every step once on disk, any rows and any window by number."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs, windows
from t2r_seq.episodes.splits import Splits, check_splits
from t2r_seq.imports import tf
from t2r_seq.specs.names import source_path
from t2r_seq.store import manifest, segments, splits, writer
from t2r_seq.store.frames import VideoFrames
from t2r_seq.store.layout import Column, Columns, Videos
from t2r_seq.store.manifest import check_spec
from t2r_seq.store.mapped import HeldTensor
from t2r_seq.store.segments import BytesColumn, Segment
from t2r_seq.store.writer import EpisodeWriter
from t2r_seq.windows.cut import check_one_step
from t2r_seq.windows.rows import take_strings

# A tensor's string of more than 22 bytes is a header and a block of memory.
_STRING_BYTES = 24

_Take = Callable[["tf.Tensor"], "tf.Tensor"]


class StoreColumns:
  """The columns of a store as what datasets can read from: rows by number.

  Rows are counted through the segments. One segment is read at the speed of a copy;
  of several, each gives its part and a second copy puts them together.

  Attributes:
    path: of the store.
    metadata: of the store.
    element_spec: an episode as `windows.WindowReader` takes it, leaves [None, ...] per
      step, and context features; encoded images are strings. Optional paths that some
      episode lacks are left out.
    episode_lengths: steps of each episode, int64 [episodes].
    absent: the optional paths that are left out, and which episodes lack them.
    held: the tensors that are read from; see `dataset_over`.
    videos: the frames of columns of videos, by path.
    failures: what was raised of frames that could not be read in a graph.
  """

  def __init__(self, store: EpisodeStore) -> None:
    """Maps the columns.

    Args:
      store: has episodes.
    Raises:
      StoreError: the store has no episodes.
    """
    self.path, self.metadata = store.path, store.metadata
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
    self.failures: list[Exception] = []
    self.videos = {
      path: self._video_frames(store.columns[path])
      for path in self.element_spec
      if store.columns[path].is_video
    }
    self._numbers = {
      path: [HeldTensor(segment.tensor(path)) for segment in segments]
      for path in self.element_spec
      if path not in self._bytes and path not in self.videos
    }
    self.held = [
      *(held for column in self._numbers.values() for held in column),
      *(held for column in self._bytes.values() for pair in column for held in pair),
    ]
    self._takers = {
      path: self._bytes_takers(path)
      if path in self._bytes
      else [_make_taker(column, store.spec[path]) for column in self._numbers[path]]
      for path in (*self._bytes, *self._numbers)
    }

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Gathers rows of one column.

    Args:
      path: one of `element_spec`.
      rows: int64 of any shape: numbers of steps, or of episodes for a context feature.
    Returns:
      rows.shape + the shape of a row; byte strings and encoded images as strings.
    """
    if path in self.videos:
      return self.videos[path].take(rows)
    takers = self._takers[path]
    if len(takers) == 1:
      return takers[0](rows)
    is_per_step = self._spec[path].is_sequence
    ends = self._step_ends if is_per_step else self._context_ends
    return _take_from_parts(takers, ends, rows)

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

  def _video_frames(self, column: Column) -> VideoFrames:
    ends = self._context_ends

    def decode(episode: int, *args: Any) -> None:
      place = int(np.searchsorted(ends, episode, "right"))
      segment = self._segments[place]
      segment.frames(column.path, episode - int(ends[place]) + len(segment), *args)

    return VideoFrames(column, self.episode_lengths, decode, self.failures)

  def _row_shape(self, path: str) -> list[int]:
    shape = self.element_spec[path].shape
    return (shape[1:] if self._spec[path].is_sequence else shape).as_list()

  def _bytes_takers(self, path: str) -> list[_Take]:
    shape = self._row_shape(path)

    def make(data: HeldTensor, offsets: HeldTensor) -> _Take:
      return lambda rows: _take_strings(
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
    # RLDS flags keep their meaning under another path; see `move_state_flags`.
    element[path] = tf.TensorSpec(shape, dtype, spec.name)
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


def _take_strings(
  all_bytes: tf.Tensor, all_offsets: tf.Tensor, shape: list[int], rows: tf.Tensor
) -> tf.Tensor:
  """Takes rows of this shape, of byte strings, out of their bytes."""
  strings = take_strings(all_bytes, all_offsets, _items(rows, shape))
  full_shape = tf.concat([tf.shape(rows), tf.constant(shape, tf.int32)], 0)
  return tf.ensure_shape(tf.reshape(strings, full_shape), rows.shape.concatenate(shape))


def _items(rows: tf.Tensor, shape: list[int]) -> tf.Tensor:
  """Returns which strings are in rows of this shape, int64 [N]."""
  count = int(np.prod(shape, dtype=np.int64))
  items = rows[..., tf.newaxis] * count + tf.range(count, dtype=tf.int64)
  return tf.reshape(items, [-1])


class StoreWindows:
  """The windows that a spec structure cuts from a store, counted through its episodes.

  Columns are read where they lie, in pages of the files that the kernel keeps; a batch
  costs one copy of what it delivers.

  Attributes:
    columns: what is read from.
    reader: cuts windows from one episode.
    counts: windows of each episode, int64 [episodes].
    num_windows: of all episodes.
    held: the tensors that are read from; see `dataset_over`.
  """

  def __init__(
    self,
    columns: StoreColumns,
    spec_structure: specs.SpecStructure,
    cut: windows.Cut | None = None,
    flat: bool = False,
    chosen: np.ndarray | None = None,
  ) -> None:
    """Plans the windows.

    Args:
      columns: of the store.
      spec_structure: the specs of a window. A path without time offsets is the anchor's
        own step where the store has a row per step for it, and else a context feature.
        Optional paths that some episode lacks are left out.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: gives every step that a window shows once; see `windows.stack_windows`.
      chosen: numbers of the episodes that have windows; None for all.
    Raises:
      SpecError: the store does not fit the specs; every path is named.
    """
    self.columns = columns
    _check_optionals(columns, spec_structure)
    self.reader = reader = windows.WindowReader(
      columns.element_spec,
      spec_structure,
      cut,
      flat,
    )
    where = f"EpisodeStore: {columns.path}"
    check_one_step(where, columns.metadata, reader.cut.n_step)
    _check_context(reader, columns.element_spec)
    lengths = columns.episode_lengths
    num_rows = reader.num_rows(lengths, self._last_flags())
    self.counts: np.ndarray = np.asarray(reader.grid.num_windows(num_rows))
    if chosen is not None:
      self.counts = np.where(np.isin(np.arange(len(lengths)), chosen), self.counts, 0)
    window_ends = np.cumsum(self.counts)
    self.num_windows = int(window_ends[-1])
    # By episode: its first window, the row of its first step, its steps.
    by_episode = [window_ends - self.counts, np.cumsum(lengths) - lengths, lengths]
    self._window_ends = HeldTensor.of(window_ends)
    self._episodes = HeldTensor.of(np.stack(by_episode, 1))
    self.held = [*columns.held, self._window_ends, self._episodes]

  def __len__(self) -> int:
    return self.num_windows

  def __getitem__(self, index: int) -> specs.TensorSpecStruct:
    """Returns one window as arrays by path, [L, K, ...]; negative ones from the end.

    Raises:
      IndexError: there is no such window.
      SpecError: the index is no integer.
    """
    if not isinstance(index, (int, np.integer)):
      raise errors.SpecError(
        f"EpisodeStore: {self.columns.path}: window: expected an integer, got "
        f"{errors.describe(index)}."
      )
    if not -len(self) <= index < len(self):
      raise IndexError(
        f"EpisodeStore: {self.columns.path}: expected a window below {len(self)}, got "
        f"{index}."
      )
    window = self.read(tf.constant([index % len(self)], tf.int64))
    return specs.map_leaves(lambda values: values.numpy()[0], window)

  @property
  def window_bytes(self) -> int:
    """Memory of a window's numbers, in bytes."""
    return self.reader.window_bytes

  def read(self, window_ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers windows.

    Args:
      window_ids: int [B], in range(num_windows), in any order. A number that is not
        is an error here where tensors are eager, and in graphs not looked for.
    Returns:
      Windows by path, [B, L, K, ...]; byte strings and encoded images as strings.
    Raises:
      IndexError: there is no such window.
    """
    window_ids = self._check_ids(tf.cast(window_ids, tf.int64))
    window_ends = self._window_ends.read_value()
    episodes = tf.searchsorted(window_ends, window_ids, "right", out_type=tf.int64)
    found = tf.gather(self._episodes.read_value(), episodes)
    first_windows, first_rows, num_steps = tf.unstack(found, axis=1)
    return self.reader.read_with(
      lambda path, rows: self.columns.take(path, episodes if rows is None else rows),
      self.reader.grid.start(window_ids - first_windows),
      num_steps,
      first_rows,
    )

  def _last_flags(self) -> np.ndarray | None:
    """Returns in which episodes the flag of terminals is set in the last row."""
    flag, lengths = self.reader.end_flag, self.columns.episode_lengths
    if flag is None:
      return None
    is_set = np.zeros(len(lengths), bool)
    last_rows = (np.cumsum(lengths) - 1)[lengths > 0]
    with tf.init_scope():  # Also while a graph is built.
      flags = self.columns.take(flag, tf.constant(last_rows, tf.int64)).numpy()
    is_set[lengths > 0] = flags.reshape(len(last_rows)).astype(bool)
    return is_set

  def _check_ids(self, window_ids: tf.Tensor) -> tf.Tensor:
    if not tf.executing_eagerly() or not tf.size(window_ids):
      return window_ids
    first, last = int(tf.reduce_min(window_ids)), int(tf.reduce_max(window_ids))
    if window_ids.shape.rank != 1 or first < 0 or last >= len(self):
      raise IndexError(
        f"EpisodeStore: {self.columns.path}: expected window numbers [B] from 0 to "
        f"{len(self) - 1}, got {errors.describe(window_ids)} from {first} to {last}."
      )
    return window_ids


def _check_context(
  reader: windows.WindowReader, element_spec: specs.TensorSpecStruct
) -> None:
  """Raises SpecError where steps would be read as a value of the episode."""
  found = [
    errors.Mismatch(
      path,
      "a value for each episode",
      f"{errors.describe(element_spec[path])}, one for each step",
      "Say which steps: time_offsets=(...).",
    )
    for path in reader.paths
    # Rows have a static shape; steps are counted, episode by episode.
    if path not in reader.timed_paths and None in element_spec[path].shape.as_list()
  ]
  if found:
    raise errors.mismatch_error("windows", found)


def _check_optionals(
  columns: StoreColumns, spec_structure: specs.SpecStructure
) -> None:
  """Raises SpecError where a spec needs what some episodes lack."""
  flat = specs.flatten_spec_structure(spec_structure)
  sources = {
    path: source_path(path, spec, columns.absent)
    for path, spec in flat.items()
    if path not in columns.element_spec and not getattr(spec, "is_optional", False)
  }
  found = [
    errors.Mismatch(
      path,
      "it in every episode",
      columns.absent[source],
      "Make the spec optional to leave it out, or the store without those episodes.",
    )
    for path, source in sources.items()
    if source in columns.absent
  ]
  if found:
    raise errors.mismatch_error("windows", found)


class EpisodeStore:
  """A folder of flat columns, each step once, read as memory-mapped arrays.

  Opening costs a few bytes per episode, however large the columns are. A store that
  is being written shows what was committed when it was opened or refreshed.
  """

  def __init__(
    self, path: str | os.PathLike[str], spec: specs.SpecStructure | None = None
  ) -> None:
    """Opens a store for reading.

    Args:
      path: of the folder.
      spec: flat specs that the store must have; it may have more.
    Raises:
      StoreError: no store, or a damaged or newer one; says which file.
      SpecError: with every difference between `spec` and the store's.
    """
    self._path = os.path.abspath(os.fspath(path))
    self._manifest = manifest.StoreManifest.read(self._path)
    if spec is not None:
      check_spec(f"EpisodeStore: {self._path}", spec, self._manifest.columns, False)
    self._identity = segments.identity(self._path)
    self._segments: tuple[Segment, ...] = ()
    self.refresh()

  @classmethod
  def create(
    cls,
    path: str | os.PathLike[str],
    spec: specs.SpecStructure,
    metadata: Mapping[str, Any] | None = None,
    segment: str = writer.DEFAULT_SEGMENT,
    commit_every: int = 1,
    allow_nan: bool = False,
    videos: Videos = None,
  ) -> EpisodeWriter:
    """Makes a new store and opens it for writing.

    Args:
      path: of the folder; it must not be there, or be empty.
      spec: specs without time offsets (see `windows.flat_specs`); with
        `is_sequence=True` a path has a value per step, without it one per episode.
      metadata: JSON values of the user's own.
      segment: which part of the store this writer appends to.
      commit_every: episodes between two commits; a commit waits for the disk.
      allow_nan: accepts NaN and infinity, which are otherwise an error.
      videos: how the frames of specs with `data_format` 'mp4' are encoded, and how
        many a second has: a `VideoOptions`, or one by path.
    Returns:
      The writer, a context manager.
    Raises:
      ImportError: videos need the extra `video`.
      SpecError: a spec that cannot be stored; all are named.
      StoreError: there is something at the path already.
      OSError: the folder cannot be written.
    """
    errors.check_local("EpisodeStore.create", path)
    folder = os.path.abspath(os.fspath(path))
    return writer.create(
      folder, spec, metadata, segment, commit_every, allow_nan, videos
    )

  @classmethod
  def append(
    cls,
    path: str | os.PathLike[str],
    segment: str | None = None,
    spec: specs.SpecStructure | None = None,
    commit_every: int = 1,
    allow_nan: bool = False,
  ) -> EpisodeWriter:
    """Opens a store to append episodes to it.

    Several processes can write at once, each to a segment of its own.

    Args:
      path: of the folder.
      segment: which part to append to; it is made if there is none. By default the
        store's only one.
      spec: flat specs that the store must have, these and no others.
      commit_every: episodes between two commits, which wait for the disk.
      allow_nan: accepts NaN and infinity, which are otherwise an error.
    Returns:
      The writer, a context manager.
    Raises:
      SpecError: with every difference between `spec` and the store's.
      StoreError: no store, a damaged one, or one whose segment is being written; or
        there are several and none is named.
      OSError: the folder cannot be written.
    """
    return writer.append(
      os.path.abspath(os.fspath(path)), segment, spec, commit_every, allow_nan
    )

  @staticmethod
  def merge(path: str | os.PathLike[str]) -> int:
    """Makes one segment of all; the order of the episodes stays.

    Crash-safe: at any moment the store has every committed episode exactly once.
    Readers that are open go on reading what they have mapped.

    Args:
      path: of the folder.
    Returns:
      The number of episodes.
    Raises:
      StoreError: a segment is being written, or is damaged; nothing has changed.
      OSError: the disk is full or failed; nothing has changed.
    """
    return writer.merge(os.path.abspath(os.fspath(path)))

  @staticmethod
  def write_splits(path: str | os.PathLike[str], splits_by_name: Splits) -> None:
    """Names lists of episodes, in place of those that there were.

    Args:
      path: of the folder.
      splits_by_name: numbers of episodes, such as `make_splits` gives; they may
        overlap. Episodes that are appended later are in none.
    Raises:
      StoreError: no store.
      SpecError: a number is none of an episode.
    """
    store = EpisodeStore(path)
    where = f"EpisodeStore: {store.path}"
    checked = check_splits(where, splits_by_name, len(store))
    splits.write_splits(store.path, checked, store._counts())

  @property
  def splits(self) -> dict[str, list[int]]:
    """Numbers of episodes, by the name of a split; see `write_splits`."""
    return splits.read_splits(self._path, self._counts())

  def _counts(self) -> dict[str, int]:
    return {segment.name: len(segment) for segment in self._segments}

  @property
  def path(self) -> str:
    """The folder."""
    return self._path

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The flat specs of the episodes, by path."""
    return self._manifest.spec.copy()

  @property
  def columns(self) -> Columns:
    """The columns, by path: which files they are, and how videos are kept."""
    return dict(self._manifest.columns)

  @property
  def metadata(self) -> dict[str, Any]:
    """What the user gave when the store was created."""
    return manifest.check_metadata(self._manifest.metadata)

  @property
  def segments(self) -> tuple[Segment, ...]:
    """The segments that have episodes, by name; one after the other is the store."""
    return self._segments

  @property
  def num_steps(self) -> int:
    """Steps of all episodes."""
    return sum(s.num_steps for s in self._segments)

  @property
  def episode_ends(self) -> np.ndarray:
    """The step after each episode's last one, counted through, int64 [episodes]."""
    return np.cumsum(self.episode_lengths)

  @property
  def episode_lengths(self) -> np.ndarray:
    """Steps of each episode, int64 [episodes]."""
    lengths = [np.diff(s.episode_ends, prepend=0) for s in self._segments]
    return np.concatenate([np.zeros(0, np.int64), *lengths])

  def __len__(self) -> int:
    return sum(len(segment) for segment in self._segments)

  def refresh(self) -> int:
    """Takes in what was committed since the store was opened or refreshed.

    Episodes keep their numbers within a segment; in a store of several that grow,
    those of later segments move up.

    Returns:
      How many episodes more there are.
    Raises:
      StoreError: the store is gone, or another one is in its place.
    """
    before = len(self)
    found = segments.read_segments(self._path, self._manifest.columns, self._segments)
    segments.check_identity(self._path, self._identity)
    self._segments = found
    return len(self) - before

  def episode(self, index: int) -> specs.TensorSpecStruct:
    """Returns one episode.

    Args:
      index: of the episode; negative ones count from the end.
    Returns:
      Values by path, [T, ...] and context features: read-only views of the files;
      byte strings are copied to arrays of bytes objects, videos decoded. Absent
      optionals are left out.
    Raises:
      IndexError: there is no such episode.
    """
    segment, place = self.find_episode(index)
    return specs.TensorSpecStruct(segment.episode(place))

  def find_episode(self, index: int) -> tuple[Segment, int]:
    """Returns the segment that has an episode, and its number there.

    Raises:
      IndexError: there is no such episode.
    """
    if not -len(self) <= index < len(self):
      raise IndexError(
        f"EpisodeStore: {self._path}: expected an episode below {len(self)}, got "
        f"{index}."
      )
    rest = index % len(self)
    for segment in self._segments:
      if rest < len(segment):
        break
      rest -= len(segment)
    return segment, rest

  def windows(
    self,
    spec_structure: specs.SpecStructure,
    cut: windows.Cut | None = None,
    flat: bool = False,
    **fields: Any,
  ) -> StoreWindows:
    """Returns all windows that specs cut from the episodes, by number.

    Args:
      spec_structure: the specs of a window.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: gives every step that a window shows once; see `windows.stack_windows`.
      **fields: or fields of the cut: sequence_length, padding, n_step, ...
    Raises:
      SpecError: the store does not fit the specs; every path is named.
      StoreError: the store has no episodes.
    """
    cut = windows.Cut.of("windows", cut, fields)
    return StoreWindows(StoreColumns(self), spec_structure, cut, flat)

  def window(
    self, index: int, spec_structure: specs.SpecStructure, **options: Any
  ) -> specs.TensorSpecStruct:
    """Returns one window as arrays; of many, ask `windows(...)` instead."""
    return self.windows(spec_structure, **options)[index]

  def column(self, path: str) -> np.ndarray | BytesColumn:
    """Returns all rows of a path: every episode's, one after the other.

    Args:
      path: of the spec.
    Returns:
      A read-only `np.memmap` [steps or episodes, ...], or a `BytesColumn`: of videos a
      file for each episode. Rows of absent optionals are zeros or empty; `is_present`
      tells.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows lie in several segments.
    """
    return self._single(path).column(path)

  def tensor(self, path: str) -> tf.Tensor:
    """Returns all rows of a path as a tensor of the file's memory: nothing is copied.

    `StoreColumns` gathers rows in datasets; a tensor that these capture is copied.

    Args:
      path: of a spec of numbers.
    Returns:
      Tensor [steps or episodes, ...] on the CPU; bool as uint8, which can be shared.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows lie in several segments, or are byte strings.
    """
    return self._single(path).tensor(path)

  def bytes_tensors(self, path: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the byte strings of a path as two tensors of the files' memory.

    Args:
      path: of a spec of strings or encoded images.
    Returns:
      The bytes, uint8 [n], and the offsets, int64 [items + 1]: item i is
      `data[offsets[i]:offsets[i + 1]]`.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows lie in several segments, or are numbers.
    """
    return self._single(path).bytes_tensors(path)

  def is_present(self, path: str) -> np.ndarray:
    """Returns which episodes have a path, bool [episodes]; for optionals."""
    self._check_path(path)
    present = [s.is_present(path) for s in self._segments]
    return np.concatenate([np.zeros(0, bool), *present])

  def _check_path(self, path: str) -> None:
    if path not in self._manifest.columns:
      raise errors.UnknownPathError(
        f"EpisodeStore: {path}: no such column."
        f"{errors.nearest(path, self._manifest.columns)} There is "
        f"{errors.listing(self._manifest.columns)}."
      )

  def _single(self, path: str) -> Segment:
    self._check_path(path)
    if len(self._segments) == 1:
      return self._segments[0]
    if not self._segments:
      raise errors.StoreError(
        f"EpisodeStore: {self._path}: expected episodes, got none. Append some; what "
        "was not committed does not count."
      )
    names = errors.listing(segment.name for segment in self._segments)
    raise errors.StoreError(
      f"EpisodeStore: {self._path}: expected one segment to map a column from, got "
      f"{names}. Run EpisodeStore.merge(path) once nobody writes, or map those of each "
      "of store.segments."
    )
