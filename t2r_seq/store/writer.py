"""`EpisodeWriter`, which appends to stores; creates, opens and merges stores."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.files import Closing, left_behind, make_folders, sync_folder
from t2r_seq.store import files, layout, manifest, segments, values
from t2r_seq.store.files import lock_segment
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit, StoreManifest, check_spec
from t2r_seq.store.segments import BytesColumn, Segment, SegmentWriter, check_codecs
from t2r_seq.store.values import Rows


class EpisodeWriter(Closing):
  """Appends episodes to one segment of a store; a context manager.

  Episodes count once they are committed. A commit syncs the data, and then replaces one
  small file atomically. A process that is killed loses only uncommitted episodes, and
  the next writer continues after the committed ones.

  >>> import numpy as np
  >>> from t2r_seq import specs, store
  >>> state = specs.ExtendedTensorSpec((2,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"state": state}) as writer:
  ...   for _ in range(3):
  ...     writer.append_step({"state": np.zeros(2, np.float32)})
  ...   _ = writer.end_episode()
  >>> store.EpisodeStore("demo").episode_lengths.tolist()
  [3]

  Attributes:
    num_left_out: number of episodes without a step, which were not appended.
  """

  def __init__(
    self,
    folder: str,
    manifest: StoreManifest,
    commit_every: int = 1,
    allow_nan: bool = False,
  ) -> None:
    """Locks the segment; see `EpisodeStore.create` and `EpisodeStore.append`."""
    errors.check_count("EpisodeStore", "commit_every", commit_every)
    columns = manifest.columns
    self._steps_columns = {p: c for p, c in columns.items() if c.is_timed}
    self._context_columns = {p: c for p, c in columns.items() if not c.is_timed}
    self._columns, self._clocks = columns, manifest.clocks
    self._commit_every = commit_every
    self._allow_nan = allow_nan
    self._folder = folder
    self._num_steps = self.num_left_out = 0
    self._packer = values.RowPacker(self._steps_columns, allow_nan)
    self._step_paths: tuple[str, ...] = ()
    self._episode_or_nothing = _EpisodeOrNothing(self._drop_episode)
    try:
      self._segment: SegmentWriter | None = SegmentWriter(folder, columns)
    except OSError as error:
      hint = "A writer needs a folder that it may write to, with room on the disk."
      raise files.explain(error, folder, hint) from error

  @property
  def num_episodes(self) -> int:
    """Number of whole episodes in this segment, uncommitted ones included."""
    return self._open_segment().num_episodes

  @property
  def num_committed(self) -> int:
    """Number of committed episodes in this segment, which survive a crash."""
    return self._open_segment().commit.episodes

  def append_episode(self, structure: Any) -> None:
    """Appends one whole episode; one without a step is only counted.

    Args:
      structure: values [T, ...] for the paths with a time axis, and context features,
        packed or flat: arrays or tensors of the spec's dtype, Python numbers, lists and
        byte strings; None for an absent optional. A video column takes frames, or a
        video of them as a byte string, which is stored unchanged.
    Raises:
      SpecError: the structure does not fit the spec, an episode is in progress, or the
        writer is closed; nothing is appended.
      OSError: the disk is full or failed; this episode is not appended. If the commit
        failed, all episodes after the last commit are dropped.
    """
    segment = self._open_segment()
    self._check_no_steps("append_episode")
    rows = values.collect(
      "append_episode", self._columns, structure, True, self._allow_nan
    )
    values.check_clocks("append_episode", self._clocks, rows)
    steps = [r.count for p, r in rows.items() if self._columns[p].is_timed]
    if not steps:
      raise errors.SpecError(
        "append_episode: expected at least one path with a time axis, got "
        f"{errors.listing(rows)}."
      )
    if not steps[0]:
      self.num_left_out += 1
      logging.log_first_n(
        logging.WARNING,
        "EpisodeStore: %s: episodes without a step are left out.",
        1,
        self._folder,
      )
      return
    with self._episode_or_nothing:
      self._append_rows(rows)
      segment.end_episode(steps[0])
    self._commit_if_due()

  def append_step(self, structure: Any) -> None:
    """Appends one step to the episode in progress.

    It is written at once, so episodes of any length need little memory. Only encoded
    videos stay in memory until the episode ends.

    Args:
      structure: the values of one step for the paths with a time axis. Optional paths
        are in every step of an episode or in none.
    Raises:
      SpecError: the step does not fit the spec, or the writer is closed; it is not
        appended, the episode continues.
      OSError: the disk is full or failed; the whole episode in progress is dropped.
    """
    row = self._packer.pack(structure)
    if row is None:
      self._append_steps("append_step", structure, False)
      return
    segment, paths = self._open_segment(), tuple(row)
    self._check_same_paths("append_step", paths)
    with self._episode_or_nothing:
      segment.append_row(row)
    self._step_paths = paths
    self._num_steps += 1

  def append_steps(self, structure: Any) -> None:
    """Appends several steps, [k, ...], to the episode in progress; see `append_step`.

    With it, an episode that is too large for the memory can be written in parts.
    """
    self._append_steps("append_steps", structure, True)

  def end_episode(self, context: Mapping[str, Any] | None = None) -> None:
    """Ends the episode in progress; `context` has the values without a time axis.

    Raises:
      SpecError: there are no steps, or the context does not fit, and the episode
        continues; or the writer is closed.
      OSError: the disk is full or failed; the episode is dropped. If a commit failed,
        all episodes after the last commit are.
    """
    segment = self._open_segment()
    if not self._num_steps:
      raise errors.SpecError("end_episode: expected steps, got none. Append some.")
    rows = values.collect(
      "end_episode", self._context_columns, context or {}, False, self._allow_nan
    )
    values.check_clocks("end_episode", self._clocks, rows)
    with self._episode_or_nothing:
      self._append_rows(rows)
      segment.end_episode(self._num_steps)
    self._num_steps = 0
    self._commit_if_due()

  def discard_episode(self) -> None:
    """Drops the steps of the episode in progress."""
    self._open_segment().roll_back()
    self._num_steps = 0

  def flush(self) -> None:
    """Commits all whole episodes to the disk.

    Raises:
      OSError: the disk is full or failed; uncommitted episodes are dropped.
    """
    segment = self._open_segment()
    try:
      segment.write_commit()
    except OSError as error:
      self._num_steps = 0
      raise files.explain(error, self._folder, self._safe()) from error

  def close(self) -> None:
    """Commits all whole episodes and releases the segment.

    Raises:
      SpecError: an episode is in progress; it is dropped, the others are committed.
      OSError: the disk is full or failed; earlier commits are safe.
    """
    if self._segment is None:
      return
    num_steps = self._num_steps
    try:
      self.discard_episode()
      self.flush()
    finally:
      self._segment.close()
      self._segment = None
    if num_steps:
      raise errors.SpecError(
        f"EpisodeStore: {self._folder}: expected end_episode() before close(), got an "
        f"episode of {num_steps} steps in progress. It was dropped."
      )

  def close_after(self, error: BaseException) -> None:
    """Commits the whole episodes also after an error, and drops the one in progress."""
    try:
      self.close()
    except (OSError, errors.SpecError) as another:
      logging.warning("%s", another)

  def _open_segment(self) -> SegmentWriter:
    if self._segment is None:
      raise errors.SpecError(
        f"EpisodeStore: {self._folder}: expected an open writer, got a closed one. "
        "EpisodeStore.append opens another."
      )
    return self._segment

  def _append_steps(self, operation: str, structure: Any, has_steps: bool) -> None:
    self._open_segment()
    rows = values.collect(
      operation, self._steps_columns, structure, has_steps, self._allow_nan
    )
    if has_steps and (none := [path for path, row in rows.items() if not row.count]):
      mismatches = [errors.Mismatch(none[0], "at least one step", "none")]
      raise errors.mismatch_error(operation, mismatches)
    self._check_same_paths(operation, tuple(rows))
    with self._episode_or_nothing:
      self._append_rows(rows)
    self._step_paths = tuple(rows)
    self._num_steps += next(iter(rows.values())).count if rows else 1

  def _append_rows(self, rows: Mapping[str, values.Rows]) -> None:
    segment = self._open_segment()
    for path, path_rows in rows.items():
      segment.append(path, path_rows)

  def _commit_if_due(self) -> None:
    if self.num_episodes - self.num_committed >= self._commit_every:
      self.flush()

  def _drop_episode(self, error: BaseException) -> None:
    """Cuts the files back to the last whole episode after an append that failed."""
    self.discard_episode()
    if isinstance(error, OSError):
      raise files.explain(error, self._folder, self._safe()) from error

  def _safe(self) -> str:
    return (
      f"The {self.num_committed} committed episodes of segment "
      f"'{os.path.basename(self._folder)}' are safe, and "
      f"{self.num_episodes - self.num_committed} more are still to be committed; what "
      "came after them was dropped. Make room and continue."
    )

  def _check_no_steps(self, operation: str) -> None:
    if self._num_steps:
      raise errors.SpecError(
        f"{operation}: expected no episode in progress, got one of {self._num_steps} "
        "steps. Call end_episode() or discard_episode() first."
      )

  def _check_same_paths(self, operation: str, paths: tuple[str, ...]) -> None:
    if not self._num_steps or paths == self._step_paths:
      return
    mismatches = [
      errors.Mismatch(
        path,
        "in every step of an episode or in none",
        f"{'one' if path in paths else 'nothing'} at step {self._num_steps}",
      )
      for path in {*paths} ^ {*self._step_paths}
    ]
    raise errors.mismatch_error(operation, mismatches)


class _EpisodeOrNothing:
  """Drops the episode in progress if an append fails; faster than a generator."""

  def __init__(self, drop: Callable[[BaseException], None]) -> None:
    self._drop = drop

  def __enter__(self) -> None:
    pass

  def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
    if error is not None:
      self._drop(error)


_REMOVED = ".removed."


def merge(folder: str) -> int:
  """Merges all segments into the first; see `EpisodeStore.merge`.

  The episodes are appended to the first segment. Its commit names the segments that it
  replaces, so in one step their episodes count in this segment, and no longer there.
  """
  columns = StoreManifest.read(folder).columns
  names = segments.segment_names(folder)
  if not names:
    return 0
  target, *others = names
  try:
    finish(folder, target)
    with contextlib.ExitStack() as stack:
      writer = SegmentWriter(layout.segment_folder(folder, target), columns)
      stack.callback(writer.close)
      for name in others:
        stack.callback(lock_segment(layout.segment_folder(folder, name)).release)
      _check_still_there(folder, names)
      _renew_splits(folder, names)
      try:
        for name in others:
          _take_over(writer, layout.segment_folder(folder, name), columns)
        writer.write_commit(replaces=others)
      except BaseException:
        writer.cut()
        raise
      _remove(folder, others)
      writer.write_commit(replaces=())
      return writer.num_episodes
  except OSError as error:
    hint = (
      "Every committed episode is still there, once; a merge needs a folder that it "
      "may write to, with room on the disk."
    )
    raise files.explain(error, folder, hint) from error


def _renew_splits(folder: str, names: list[str]) -> None:
  """Writes the splits with the present numbers, which the merged episodes keep."""
  commits = [Commit.read(layout.segment_folder(folder, name)) for name in names]
  counts = {n: commit.episodes for n, commit in zip(names, commits, strict=True)}
  splits = manifest.read_splits(folder, counts)
  if splits:
    manifest.write_splits(folder, splits, counts)


def finish(folder: str, segment: str) -> None:
  """Removes leftovers of an interrupted merge into a segment, or of this segment."""
  for name, commit in segments.read_commits(folder).items():
    if not commit.replaces or segment not in (name, *commit.replaces):
      continue
    lock = lock_segment(layout.segment_folder(folder, name))
    try:
      commit = Commit.read(layout.segment_folder(folder, name))
      _remove(folder, list(commit.replaces))
      values = {**vars(commit), "replaces": ()}
      Commit(**values).write(layout.segment_folder(folder, name))
    finally:
      lock.release()


def is_replaced(folder: str, segment: str) -> bool:
  """Whether a merge took over the segment and has not finished."""
  commits = segments.read_commits(folder).values()
  return any(segment in commit.replaces for commit in commits)


def _check_still_there(folder: str, names: list[str]) -> None:
  """Raises StoreError if another merge replaced the segments first."""
  if any(is_replaced(folder, name) for name in names):
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected no other merge, got one that was quicker. "
      "Merge again."
    )


def _remove(folder: str, names: list[str]) -> None:
  """Removes segments: hides each by one rename, then deletes it."""
  for name in names:
    if os.path.isdir(layout.segment_folder(folder, name)):
      hidden = f"{_REMOVED}{name}.{uuid.uuid4().hex}"
      os.rename(
        layout.segment_folder(folder, name), layout.segment_folder(folder, hidden)
      )
  # Sync the renames first: a power cut while deleting must not leave half a segment.
  segments = os.path.join(folder, layout.SEGMENTS)
  sync_folder(segments)
  for name in os.listdir(segments):
    if name.startswith(_REMOVED):
      shutil.rmtree(layout.segment_folder(folder, name), ignore_errors=True)


def _take_over(writer: SegmentWriter, folder: str, columns: Columns) -> None:
  """Appends the episodes of a segment, and compares their checksums."""
  commit = Commit.read(folder)
  if not commit.episodes:
    return
  segment = Segment(folder, columns, commit)
  names = layout.file_names(columns)
  checksums = np.fromfile(
    os.path.join(folder, layout.CHECKSUMS), "<u4", len(segment) * len(names)
  ).reshape(len(segment), len(names))
  sums = {name: checksums[:, index] for index, name in enumerate(names)}
  present = {path: segment.is_present(path) for path in columns}
  starts = np.concatenate([np.zeros(1, np.int64), segment.episode_ends])
  for index in range(len(segment)):
    steps = (int(starts[index]), int(starts[index + 1]))
    for path, column in columns.items():
      if not present[path][index]:
        continue
      bounds = steps if column.is_per_step else (index, index + 1)
      writer.append(path, _rows(segment, column, *bounds))
      want, got = int(sums[column.data_file][index]), writer.checksum(column.data_file)
      if got != want:
        raise errors.StoreError(
          f"EpisodeStore: {folder}/{column.data_file}: expected the checksum {want} "
          f"for episode {index}, got {got}. The file is damaged; nothing was merged."
        )
    writer.end_episode(steps[1] - steps[0])


def _rows(segment: Segment, column: Column, start: int, stop: int) -> Rows:
  values = segment.column(column.path)
  if not isinstance(values, BytesColumn):
    return Rows(stop - start, files.as_bytes(values[start:stop]))
  count = column.items_per_row
  offsets = np.asarray(values.offsets[start * count : stop * count + 1])
  data = values.data[offsets[0] : offsets[-1]]
  return Rows(stop - start, np.asarray(data), np.diff(offsets))


DEFAULT_SEGMENT = "main"


def create(
  folder: str,
  spec: specs.SpecStructure,
  metadata: Mapping[str, Any] | None,
  segment: str,
  commit_every: int,
  allow_nan: bool,
  videos: layout.Videos = None,
  clocks: Mapping[str, str] | None = None,
) -> EpisodeWriter:
  """Makes a new store; see `EpisodeStore.create`."""
  clocks = dict(clocks or {})
  columns = layout.make_columns("EpisodeStore.create", spec, videos, clocks)
  check_codecs(columns)
  checked = manifest.check_metadata(metadata)
  created = manifest.StoreManifest(columns, checked, clocks)
  _check_segment_name(segment)
  errors.check_count("EpisodeStore", "commit_every", commit_every)
  _check_vacant(folder)
  try:
    make_folders(os.path.join(folder, layout.SEGMENTS))
    created.write(folder)
    sync_folder(os.path.dirname(folder))
  except OSError as error:
    hint = "A store needs a folder that it may write to, with room on the disk."
    raise files.explain(error, folder, hint) from error
  return EpisodeWriter(
    layout.segment_folder(folder, segment), created, commit_every, allow_nan
  )


def append(
  folder: str,
  segment: str | None,
  spec: specs.SpecStructure | None,
  commit_every: int,
  allow_nan: bool,
) -> EpisodeWriter:
  """Opens a store for writing; see `EpisodeStore.append`."""
  errors.check_count("EpisodeStore", "commit_every", commit_every)
  store = manifest.StoreManifest.read(folder)
  if spec is not None:
    check_spec(f"EpisodeStore: {folder}", spec, store.columns, True)
  if segment is None:
    segment = _only_segment(folder)
  _check_segment_name(segment)
  while True:
    finish(folder, segment)
    place = layout.segment_folder(folder, segment)
    writer = EpisodeWriter(place, store, commit_every, allow_nan)
    if not is_replaced(folder, segment):
      return writer
    writer.close()  # A merge took the segment over before this writer held it.


def _check_segment_name(segment: str) -> None:
  if not isinstance(segment, str) or not layout.SEGMENT_NAME.fullmatch(segment):
    raise errors.SpecError(
      "EpisodeStore: segment: expected a name of at most 100 ASCII letters, digits, "
      f"'.', '_' and '-', the first of them a letter or a digit, got {segment!r}."
    )


def _check_vacant(folder: str) -> None:
  """Raises StoreError if a folder has more than leftovers of a crashed `create`."""
  if not os.path.lexists(folder):
    return
  names = set(os.listdir(folder)) if os.path.isdir(folder) else {"a file"}
  allowed = {layout.SEGMENTS}
  if os.path.isdir(folder):
    # A create that runs at the same time is not detected: the last manifest counts.
    temporaries = left_behind(os.path.join(folder, layout.MANIFEST))
    allowed |= {os.path.basename(path) for path in temporaries}
  segments = os.path.join(folder, layout.SEGMENTS)
  has_data = os.path.isdir(segments) and bool(os.listdir(segments))
  if has_data or not names <= allowed:
    hint = "Choose another folder, or continue a store with EpisodeStore.append."
    raise errors.StoreError(
      f"EpisodeStore.create: {folder}: expected nothing there or an empty folder, got "
      f"{errors.listing(names, limit=5)}. {hint}"
    )


def _only_segment(folder: str) -> str:
  names = segments.segment_names(folder)
  if len(names) > 1:
    raise errors.StoreError(
      f"EpisodeStore: {folder}: expected one segment to append to, got "
      f"{errors.listing(names)}. Name one: EpisodeStore.append(path, segment=...)."
    )
  return names[0] if names else DEFAULT_SEGMENT
