"""`EpisodeStore`: every step once on disk; rows, episodes and windows by number."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, specs, windows
from t2r_seq.episodes.splits import Splits, check_splits
from t2r_seq.imports import tf
from t2r_seq.specs.names import source_path
from t2r_seq.store import manifest, segments, writer
from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.layout import Columns, Videos
from t2r_seq.store.manifest import check_spec
from t2r_seq.store.mapped import HeldTensor
from t2r_seq.store.segments import BytesColumn, Segment
from t2r_seq.store.writer import EpisodeWriter
from t2r_seq.windows.cut import check_one_step
from t2r_seq.windows.times import clock_rows


class StoreWindows:
  """The windows that specs cut from a store, numbered through all of its episodes.

  Columns are read from memory-mapped files.

  Attributes:
    columns: columns of the store.
    reader: cuts windows from one episode.
    counts: number of windows of each episode, int64 [episodes].
    num_windows: number of windows of all episodes.
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
      columns: columns of the store.
      spec_structure: the specs of a window. A path without time offsets is the anchor's
        own step if the store has a row per step for it, otherwise a context feature.
        Optional paths that some episode lacks are left out.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: whether windows have each step once; see `windows.stack_windows`.
      chosen: numbers of the episodes to cut windows from; None for all.
    Raises:
      SpecError: the store does not fit the specs (every path is named) or the cut.
    """
    self.columns = columns
    _check_optionals(columns, spec_structure)
    element = columns.element_spec
    cut = dataclasses.replace(cut or windows.Cut(), clocks=columns.clocks)
    self.reader = reader = windows.reader.WindowReader(
      element, spec_structure, cut, flat
    )
    where = f"EpisodeStore: {columns.path}"
    check_one_step(where, columns.metadata, reader.cut.n_step)
    _check_context(reader, element)
    lengths = columns.episode_lengths
    num_rows = reader.num_rows(lengths, self._last_flags())
    self.counts: np.ndarray = np.asarray(reader.grid.num_windows(num_rows))
    # For each clock that is read at the steps: the row of its value at each step.
    self._clock_rows: dict[str, HeldTensor] = {}
    if reader.clocks:
      self._survey_stamps(reader)
    if chosen is not None:
      self.counts = np.where(np.isin(np.arange(len(lengths)), chosen), self.counts, 0)
    window_ends = np.cumsum(self.counts)
    self.num_windows = int(window_ends[-1])
    # By episode: number of its first window, row of its first step, number of steps.
    by_episode = [window_ends - self.counts, np.cumsum(lengths) - lengths, lengths]
    self._window_ends = HeldTensor.of(window_ends)
    self._episodes = HeldTensor.of(np.stack(by_episode, 1))
    self.held = [*columns.held, self._window_ends, self._episodes]
    self.held += self._clock_rows.values()

  def __len__(self) -> int:
    return self.num_windows

  def __getitem__(self, index: int) -> specs.TensorSpecStruct:
    """Returns one window as arrays by path, [L, K, ...]; negative ones from the end."""
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
      window_ids: int [B], below num_windows, in any order; graphs do not check them.
    Returns:
      Windows by path, [B, L, K, ...]; byte strings and encoded images as strings.
    Raises:
      IndexError: there is no such window (only if executed eagerly).
    """
    window_ids = self._check_ids(tf.cast(window_ids, tf.int64))
    window_ends = self._window_ends.read_value()
    episodes = tf.searchsorted(window_ends, window_ids, "right", out_type=tf.int64)
    places = tf.gather(self._episodes.read_value(), episodes)
    first_windows, first_rows, num_steps = tf.unstack(places, axis=1)

    def take(path: str, rows: tf.Tensor | None) -> tf.Tensor:
      if (tensor := self._clock_rows.get(path)) is not None:
        return tf.gather(tensor.read_value(), rows)
      return self.columns.take(path, episodes if rows is None else rows)

    return self.reader.read_with(
      take, self.reader.grid.start(window_ids - first_windows), num_steps, first_rows
    )

  def _survey_stamps(self, reader: windows.reader.WindowReader) -> None:
    """Checks the time stamps; see `WindowReader.survey_stamps`."""
    steps = np.cumsum(self.columns.episode_lengths)
    ends = {path: self.columns.row_ends.get(path, steps) for path in reader.clocks}
    stamps = {}
    with tf.init_scope():  # Reads eagerly, even while a graph is built.
      for path, last in ends.items():
        rows = tf.range(int(last[-1]), dtype=tf.int64)
        parts = np.split(self.columns.take(path, rows).numpy(), last[:-1])
        stamps[path] = parts
    reader.survey_stamps(
      (
        f"{self.columns.path}: episode {number}",
        {path: parts[number] for path, parts in stamps.items()},
      )
      for number in range(len(steps))
    )
    for path, clock in reader.rows_paths.items():
      step_stamps = next(stamps[each] for each in stamps if reader.has_steps(each))
      starts = np.concatenate([np.zeros(1, np.int64), ends[clock][:-1]])
      surveys = map(clock_rows, step_stamps, stamps[clock], starts)
      self._clock_rows[path] = HeldTensor.of(np.concatenate([*surveys]))

  def _last_flags(self) -> np.ndarray | None:
    """Returns in which episodes the terminal flag is set in the last row; or None."""
    flag, lengths = self.reader.end_flag, self.columns.episode_lengths
    if flag is None:
      return None
    is_set = np.zeros(len(lengths), bool)
    last_rows = (np.cumsum(lengths) - 1)[lengths > 0]
    with tf.init_scope():  # Reads eagerly, even while a graph is built.
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
  reader: windows.reader.WindowReader, element_spec: specs.TensorSpecStruct
) -> None:
  """Raises SpecError if all steps of a path would be read as one value."""
  mismatches = [
    errors.Mismatch(
      path,
      "a value for each episode",
      f"{errors.describe(element_spec[path])}, one for each step",
      "Set which steps to read: time_offsets=(...).",
    )
    for path in reader.paths
    # The number of steps differs by episode; other axes are static.
    if path not in reader.timed_paths and None in element_spec[path].shape.as_list()
  ]
  if mismatches:
    raise errors.mismatch_error("windows", mismatches)


def _check_optionals(
  columns: StoreColumns, spec_structure: specs.SpecStructure
) -> None:
  """Raises SpecError if some episode lacks a required path."""
  flat = specs.flatten_spec_structure(spec_structure)
  sources = {
    path: source_path(path, spec, columns.absent)
    for path, spec in flat.items()
    if path not in columns.element_spec and not getattr(spec, "is_optional", False)
  }
  mismatches = [
    errors.Mismatch(
      path,
      "it in every episode",
      columns.absent[source],
      "Make the spec optional to leave it out, or the store without those episodes.",
    )
    for path, source in sources.items()
    if source in columns.absent
  ]
  if mismatches:
    raise errors.mismatch_error("windows", mismatches)


class EpisodeStore:
  """A folder of flat columns, each step once, read as memory-mapped arrays.

  Opening reads a few bytes per episode, however large the columns are. While a store is
  being written, readers see the episodes that were committed at their last `refresh`.

  >>> import numpy as np
  >>> from t2r_seq import specs, store
  >>> state = specs.ExtendedTensorSpec((2,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"state": state}) as writer:
  ...   _ = writer.append_episode({"state": np.zeros((5, 2), np.float32)})
  >>> demo = store.EpisodeStore("demo")
  >>> len(demo), demo.column("state").shape, demo.episode(0).state.shape
  (1, (5, 2), (5, 2))

  """

  def __init__(
    self, path: str | os.PathLike[str], spec: specs.SpecStructure | None = None
  ) -> None:
    """Opens a store for reading, which must have the flat specs and may have more.

    Raises:
      StoreError: no store, or a damaged or newer one; names the file.
      SpecError: the store lacks specs of `spec`, or has different ones; lists all.
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
    clocks: Mapping[str, str] | None = None,
  ) -> EpisodeWriter:
    """Makes a new store; returns its writer, a context manager.

    Args:
      path: path of the folder; it must be missing, or empty.
      spec: specs without time offsets (see `windows.flat_specs`); with
        `is_sequence=True` a path has a value per step, without it one per episode.
      metadata: JSON values of the user, by key.
      segment: part of the store that this writer appends to.
      commit_every: number of episodes per commit; a commit waits for the disk.
      allow_nan: accepts NaN and infinity, which are otherwise an error.
      videos: codec and frame rate of specs with `data_format` 'mp4' or 'mkv' (always
        FFV1): a `VideoOptions`, or one by path. None for `VideoOptions()`.
      clocks: for each column on another clock than the steps, the path of its time
        stamps. Both have the shape (None, ...); the stamps are mapped to themselves.
    Raises:
      ImportError: videos need the extra `video`.
      SpecError: specs cannot be stored (lists all), or another argument is invalid.
      StoreError: something is at the path.
      OSError: the folder cannot be written.
    """
    errors.check_local("EpisodeStore.create", path)
    folder = os.path.abspath(os.fspath(path))
    return writer.create(
      folder, spec, metadata, segment, commit_every, allow_nan, videos, clocks
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
    """Opens a store to append episodes; returns the writer, a context manager.

    Several processes can write at once, each to its own segment.

    Args:
      path: path of the folder.
      segment: part of the store to append to; created if it is missing. None for the
        store's only one.
      spec: flat specs that the store must have, these and no others; None for any.
      commit_every: see `create`.
      allow_nan: see `create`.
    Raises:
      SpecError: `spec` differs from the store's (all differences are listed), or an
        argument is invalid.
      StoreError: no store, a damaged one, or one whose segment is being written or
        merged; or `segment` is None and there are several.
      OSError: the folder cannot be written.
    """
    return writer.append(
      os.path.abspath(os.fspath(path)), segment, spec, commit_every, allow_nan
    )

  @staticmethod
  def merge(path: str | os.PathLike[str]) -> int:
    """Merges all segments into one, in order; returns the number of episodes.

    Crash-safe: at any moment the store has every committed episode exactly once. Open
    readers keep their mapped files.

    Raises:
      StoreError: no store; or a segment is being written or merged, or is damaged.
      OSError: the disk is full or failed.
    """
    return writer.merge(os.path.abspath(os.fspath(path)))

  @staticmethod
  def write_splits(path: str | os.PathLike[str], splits_by_name: Splits) -> None:
    """Replaces the splits: numbers of episodes by name, as from `make_splits`.

    They may overlap. Episodes that are appended later are in no split.

    Raises:
      StoreError: no store, or a damaged one.
      SpecError: a number that no episode has.
    """
    store = EpisodeStore(path)
    where = f"EpisodeStore: {store.path}"
    checked = check_splits(where, splits_by_name, len(store))
    manifest.write_splits(store.path, checked, store._counts())

  @property
  def splits(self) -> dict[str, list[int]]:
    """Numbers of episodes by split; StoreError if damaged. See `write_splits`."""
    return manifest.read_splits(self._path, self._counts())

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
    """The columns by path: their files, and how videos are stored."""
    return dict(self._manifest.columns)

  @property
  def metadata(self) -> dict[str, Any]:
    """The metadata that the store was created with."""
    return manifest.check_metadata(self._manifest.metadata)

  @property
  def clocks(self) -> dict[str, str]:
    """The path of the time stamps, by the path of each column on another clock."""
    return dict(self._manifest.clocks)

  @property
  def segments(self) -> tuple[Segment, ...]:
    """The segments that have episodes, by name: the order of the store's episodes."""
    return self._segments

  @property
  def num_steps(self) -> int:
    """Number of steps of all episodes."""
    return sum(s.num_steps for s in self._segments)

  @property
  def episode_ends(self) -> np.ndarray:
    """Row after each episode's last step, int64 [episodes]."""
    return np.cumsum(self.episode_lengths)

  @property
  def episode_lengths(self) -> np.ndarray:
    """Number of steps of each episode, int64 [episodes]."""
    lengths = [np.diff(s.episode_ends, prepend=0) for s in self._segments]
    return np.concatenate([np.zeros(0, np.int64), *lengths])

  def __len__(self) -> int:
    return sum(len(segment) for segment in self._segments)

  def refresh(self) -> int:
    """Adds newly committed episodes, and returns their number.

    Episodes keep their numbers within a segment; if several segments grow, the numbers
    of later segments move up.

    Raises:
      StoreError: the store was removed or replaced by another, or is damaged.
    """
    before = len(self)
    newest = segments.read_segments(self._path, self._manifest.columns, self._segments)
    segments.check_identity(self._path, self._identity)
    self._segments = newest
    return len(self) - before

  def episode(self, index: int) -> specs.TensorSpecStruct:
    """Returns the values of an episode by path, [T, ...] and context features.

    They are read-only views of the files; byte strings are copied to arrays of bytes
    objects, videos decoded. Absent optionals are left out. Negative indices count from
    the end.

    Raises:
      IndexError: there is no such episode.
      StoreError: a video cannot be decoded.
    """
    segment, place = self.find_episode(index)
    return specs.TensorSpecStruct(segment.episode(place))

  def find_episode(self, index: int) -> tuple[Segment, int]:
    """Returns the segment that has an episode, and its number there; or IndexError."""
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
      flat: whether windows have each step once; see `windows.stack_windows`.
      **fields: replace fields of `cut`, such as sequence_length, padding or n_step.
    Raises:
      SpecError: the store does not fit the specs (every path is named) or the cut.
      StoreError: the store has no episodes.
    """
    cut = windows.Cut.of("windows", cut, fields)
    return StoreWindows(StoreColumns(self), spec_structure, cut, flat)

  def window(
    self, index: int, spec_structure: specs.SpecStructure, **options: Any
  ) -> specs.TensorSpecStruct:
    """Returns one window as arrays; `windows(...)[index]` for several is faster."""
    return self.windows(spec_structure, **options)[index]

  def column(self, path: str) -> np.ndarray | BytesColumn:
    """Returns all rows of a path: every episode's, one after the other.

    Returns:
      A read-only `np.memmap` [steps or episodes, ...], or a `BytesColumn`: for videos a
      file for each episode, for values on another clock a byte string for each. Rows of
      absent optionals are zeros or empty; see `is_present`.
    Raises:
      UnknownPathError: the store has no such path.
      StoreError: the rows are in several segments, or missing.
    """
    return self._single(path).column(path)

  def tensor(self, path: str) -> tf.Tensor:
    """Returns all rows of numbers as a tensor of the file's memory, without a copy.

    A dataset copies a tensor that its functions capture; see `dataset_over`. Bool
    becomes uint8. Raises as `column` does, and StoreError for byte strings.
    """
    return self._single(path).tensor(path)

  def bytes_tensors(self, path: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the byte strings of a path as two tensors of the files' memory.

    The bytes are uint8 [n], and the offsets int64 [items + 1]: item i is
    `data[offsets[i]:offsets[i + 1]]`. Raises as `column`, and StoreError for numbers.
    """
    return self._single(path).bytes_tensors(path)

  def is_present(self, path: str) -> np.ndarray:
    """Returns which episodes have an optional path, bool [episodes]."""
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
        f"EpisodeStore: {self._path}: expected episodes, got none. Append "
        "some; uncommitted ones do not count."
      )
    names = errors.listing(segment.name for segment in self._segments)
    raise errors.StoreError(
      f"EpisodeStore: {self._path}: expected one segment to map a column from, got "
      f"{names}. Run EpisodeStore.merge(path) once no process writes, or map those of "
      "each of store.segments."
    )
