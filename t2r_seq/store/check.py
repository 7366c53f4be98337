"""Verifies the lengths, offsets and checksums of a store, and reports damage."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.errors import FRAME, Mismatch, Problem, Report
from t2r_seq.store import layout, mapped, segments
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit, NewerVersionError, StoreManifest, check_spec

_MAX_LOOKS = 3


def verify_store(
  path: str | os.PathLike[str], spec: specs.SpecStructure | None = None
) -> Report:
  """Verifies the lengths, offsets and checksums of a store.

  Args:
    path: path of the folder.
    spec: the flat specs that the store was created with, which are needed if its
      `store.json` is damaged. An undamaged store must have them; it may have more.
  Returns:
    The problems, each with the episodes that it breaks. Episodes without a valid
    checksum are in the notes.
  Raises:
    StoreError: no store, or one of a newer version.
    SpecError: the store lacks specs or has different ones; all are named.
    OSError: the folder cannot be read.
  """
  return examine(os.path.abspath(os.fspath(path)), spec)[0]


Findings = tuple[Report, StoreManifest | None, tuple["SegmentCheck", ...]]


def examine(folder: str, spec: specs.SpecStructure | None) -> Findings:
  """Examines a store; see `verify_store`.

  Returns:
    The report, and what `salvage_store` needs: the manifest, its substitute from the
    specs, or None; and the segments in the order of their episodes.
  """
  for _ in range(_MAX_LOOKS):
    findings = _examine_once(folder, spec)
    # Look again if segments changed: a merge may have removed the missing files.
    is_same = _read_commits(folder)[0].keys() == findings[0].counts.keys()
    if findings[0].is_good or is_same:
      break
  return findings


def _examine_once(folder: str, spec: specs.SpecStructure | None) -> Findings:
  store, problem = _read_manifest(folder, spec)
  commits, broken_commits = _read_commits(folder)
  if store is not None and problem is not None:
    store = _fit_to_commits(store, commits)
    if store is None:
      problem = dataclasses.replace(problem, hint=_OTHER_SPECS)
  segments = []
  for name, commit in commits.items():
    segment = layout.segment_folder(folder, name)
    if store is None:
      segments.append(SegmentCheck(segment, None, commit))
      continue
    if name in broken_commits:
      commit = _commit_of_index(segment, store.columns)
    segments.append(SegmentCheck(segment, store.columns, commit))
    segments[-1].run()
  problems = [_problem("", problem)] if problem else []
  problems += [_problem(name, misfit) for name, misfit in broken_commits.items()]
  report = Report(
    path=folder,
    counts={segment.name: segment.commit.episodes for segment in segments},
    problems=(*problems, *(p for segment in segments for p in segment.problems)),
    notes=tuple(note for segment in segments for note in segment.notes()),
    num_bytes=sum(segment.num_bytes for segment in segments),
  )
  return report, store, tuple(segments)


def _problem(
  segment: str, mismatch: Mismatch, episodes: Collection[int] = ()
) -> Problem:
  place = f"{segment}/{mismatch.path}".lstrip("/")
  broken = tuple(sorted(episodes))
  return Problem(
    place, mismatch.finding, FRAME, mismatch.path, segment, episodes=broken
  )


_NO_MANIFEST = (
  "Nothing else can be checked without it: give the specs that the store was created "
  "with (--spec of `t2r_seq doctor`)."
)
_AS_GIVEN = "The rest is checked with the specs that were given."
_OTHER_SPECS = (
  "The specs that were given are not those of the segments' files, so nothing else was "
  "checked."
)
_NO_COMMIT = (
  "How much of the segment was committed is lost; the rest is checked by its index."
)


def _read_manifest(
  folder: str, spec: specs.SpecStructure | None
) -> tuple[StoreManifest | None, Mismatch | None]:
  """Returns the manifest of a store, and a mismatch if it is damaged.

  If it is damaged, the specs replace it; without specs it is None.
  """
  try:
    store = StoreManifest.read(folder)
  except NewerVersionError:
    raise
  except errors.StoreError as error:
    if not os.path.isdir(os.path.join(folder, layout.SEGMENTS)):
      raise  # This is no store.
    substitute, hint = None, _NO_MANIFEST
    if spec is not None:
      columns = layout.make_columns(f"EpisodeStore: {folder}", spec)
      substitute, hint = StoreManifest(columns, {}), _AS_GIVEN
    if not os.path.exists(os.path.join(folder, layout.MANIFEST)):
      return substitute, Mismatch(layout.MANIFEST, "a manifest", "no such file", hint)
    return substitute, _to_mismatch(layout.MANIFEST, error, hint)
  if spec is not None:
    check_spec(f"EpisodeStore: {folder}", spec, store.columns, False)
  return store, None


def _fit_to_commits(
  store: StoreManifest, commits: dict[str, Commit]
) -> StoreManifest | None:
  """Sorts the columns of a substitute by the order of the files in the commits.

  Checksums are stored in that order. Returns None if the commits have other files.
  """
  sizes = next((commit.sizes for commit in commits.values() if commit.sizes), None)
  if sizes is None:
    return store
  if {*layout.file_names(store.columns), *layout.INDEX_FILES} != {*sizes}:
    return None
  places = {name: place for place, name in enumerate(sizes)}
  order = sorted(store.columns.items(), key=lambda item: places[item[1].data_file])
  return StoreManifest(dict(order), store.metadata)


def _read_commits(folder: str) -> tuple[dict[str, Commit], dict[str, Mismatch]]:
  """Returns the commits by segment, empty if damaged, and the damage by segment."""
  try:
    return segments.read_commits(folder), {}
  except NewerVersionError:
    raise
  except errors.StoreError:
    pass
  commits: dict[str, Commit] = {}
  broken: dict[str, Mismatch] = {}
  for name in segments.list_segments(folder):
    try:
      commits[name] = Commit.read(layout.segment_folder(folder, name))
    except errors.StoreError as error:
      commits[name] = Commit()
      broken[name] = _to_mismatch(layout.COMMIT, error, _NO_COMMIT)
  replaced = {name for commit in commits.values() for name in commit.replaces}
  commits = {name: c for name, c in commits.items() if name not in replaced}
  return commits, {name: each for name, each in broken.items() if name in commits}


def _commit_of_index(folder: str, columns: Columns) -> Commit:
  """Makes a commit of all episodes in the index, to replace a lost one."""
  names = layout.file_names(columns)
  paths = {n: os.path.join(folder, n) for n in (*names, *layout.INDEX_FILES)}
  sizes = {n: os.path.getsize(p) if os.path.exists(p) else 0 for n, p in paths.items()}
  count = min(sizes[layout.ENDS] // 8, sizes[layout.CHECKSUMS] // (4 * len(names)))
  if not count:
    return Commit()
  ends = np.fromfile(paths[layout.ENDS], "<i8", count)
  # Damaged ends can have any value: the sizes of the files limit the number of steps.
  most = max(_most_steps(column, sizes) for column in columns.values())
  return Commit(count, min(max(int(ends.max()), 0), most), sizes)


def _most_steps(column: Column, sizes: Mapping[str, int]) -> int:
  """Returns how many steps fit a column's file; 0 if that is unknown."""
  if column.is_video:
    return sizes[column.data_file]  # A frame has at least one byte.
  if not column.is_per_step or not column.items_per_row:
    return 0
  if column.is_bytes:
    return sizes[column.offsets_file] // 8 // column.items_per_row
  return sizes[column.data_file] // (column.items_per_row * column.dtype.itemsize)


def _to_mismatch(name: str, error: errors.StoreError, hint: str) -> Mismatch:
  text = str(error).partition(": expected ")[2] or f"a whole file, got {error}"
  expected, _, got = text.partition(", got ")
  return Mismatch(name, expected, got.split("\n")[0].rstrip("."), hint)


@dataclasses.dataclass(frozen=True)
class Spans:
  """One range per episode, of rows or of bytes.

  Attributes:
    starts: int64 [episodes].
    stops: int64 [episodes]; the range ends before it.
    is_known: bool [episodes]; False if the index is damaged there.
  """

  starts: np.ndarray
  stops: np.ndarray
  is_known: np.ndarray

  def __len__(self) -> int:
    return len(self.starts)

  def scale(self, factor: int, offset: int = 0) -> Spans:
    """Returns the ranges in units smaller by a factor, moved by an offset."""
    return Spans(
      offset + self.starts * factor, offset + self.stops * factor, self.is_known
    )


def _step_spans(ends: np.ndarray, num_episodes: int, num_steps: int) -> Spans:
  """Returns the steps of each episode; `ends` may be too few, or damaged."""
  padded = np.full(num_episodes, -1, np.int64)
  padded[: len(ends)] = ends[:num_episodes]
  starts = np.concatenate([np.zeros(1, np.int64), padded[:-1]])[:num_episodes]
  is_known = (starts >= 0) & (padded > starts) & (padded <= num_steps)
  return Spans(starts, padded, is_known)


def _episode_spans(num_episodes: int) -> Spans:
  """Returns the row of each episode in a column with one row per episode."""
  numbers = np.arange(num_episodes, dtype=np.int64)
  return Spans(numbers, numbers + 1, np.ones(num_episodes, bool))


def _file_spans(column: Column, name: str, rows: Spans, offsets: np.ndarray) -> Spans:
  """Returns the bytes of each episode in one file of a column.

  Args:
    column: column of the store.
    name: name of the file.
    rows: rows of each episode in the column.
    offsets: int64 offsets of all byte strings, for the data file of such a column.
  """
  if name == column.present_file:
    return _episode_spans(len(rows))
  if name == column.offsets_file:
    return rows.scale(8 * column.items_per_row, 8)
  if not column.is_bytes:
    return rows.scale(column.items_per_row * column.dtype.itemsize)
  items = rows.scale(column.items_per_row)
  is_known = items.is_known & (items.stops < len(offsets))
  starts, stops = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
  starts[is_known] = offsets[items.starts[is_known]]
  stops[is_known] = offsets[items.stops[is_known]]
  return Spans(starts, stops, is_known & (starts >= 0) & (stops >= starts))


@dataclasses.dataclass
class _FileFailures:
  """The episodes whose bytes in a file are missing or changed.

  Attributes:
    lost: why the bytes cannot be read, by episode.
    changed: which bytes have another checksum, by episode.
    num_bytes: number of compared bytes.
  """

  lost: dict[int, str] = dataclasses.field(default_factory=dict)
  changed: dict[int, str] = dataclasses.field(default_factory=dict)
  num_bytes: int = 0


_CHUNK = 1 << 22


def _check_file(path: str, size: int, spans: Spans, sums: np.ndarray) -> _FileFailures:
  """Compares the bytes of each episode in a file with their checksums.

  The file is read, not mapped: a failing disk then raises an error, instead of killing
  the process.

  Args:
    path: path of the file.
    size: number of its bytes that are committed and exist; -1 if it is missing.
    spans: the bytes of each episode.
    sums: CRC-32 of the bytes of the first n episodes, uint32 [n].
  """
  failures = _FileFailures()
  if size < 0:
    failures.lost = dict.fromkeys(range(len(spans)), "the file is missing")
    return failures
  buffer = memoryview(bytearray(_CHUNK))
  each = zip(
    spans.starts.tolist(), spans.stops.tolist(), spans.is_known.tolist(), strict=True
  )
  try:
    with open(path, "rb", buffering=1 << 20) as file:
      for episode, (start, stop, is_known) in enumerate(each):
        if not is_known:
          failures.lost[episode] = "its place is not known"
        elif stop > size:
          failures.lost[episode] = f"it ends at byte {stop:,}"
        elif episode < len(sums):
          got, want = _checksum(file, start, stop, buffer), int(sums[episode])
          failures.num_bytes += stop - start
          if got != want:
            where = f"bytes {start:,} to {stop - 1:,}" if stop > start else "no bytes"
            failures.changed[episode] = f"{where}: CRC-32 {got:08x}, not {want:08x}"
  except OSError as error:
    reason = f"the file cannot be read: {error.strerror or error}"
    rest = {*range(len(spans))} - {*failures.lost, *failures.changed}
    failures.lost.update(dict.fromkeys(sorted(rest), reason))
  return failures


def _checksum(file: Any, start: int, stop: int, buffer: memoryview) -> int:
  file.seek(start)
  checksum = 0
  while start < stop:
    count = file.readinto(buffer[: stop - start])
    if not count:
      raise OSError(None, "it became shorter meanwhile")
    checksum = zlib.crc32(buffer[:count], checksum)
    start += count
  return checksum


_CHANGED_HINT = "They changed after they were written; restore the file from a copy."
_SHOWN = 4


def _listing(episodes: Collection[int]) -> str:
  word = "episode" if len(episodes) == 1 else "episodes"
  return f"{word} {errors.ranges(episodes)}"


class SegmentCheck:
  """Checks every file of a segment that can be read.

  Attributes:
    folder: folder of the segment.
    name: name of the segment.
    commit: commit of the segment; without `index_crc32` if the real one was lost.
    problems: the problems.
    unverified: numbers of episodes without a valid checksum.
    file_spans: the bytes of each episode, by column file.
    steps: the rows of each episode in columns with a row per step.
    sums: CRC-32 of the bytes of the first n episodes, uint32 [n] by column file.
    num_bytes: number of bytes that were compared with checksums.
  """

  def __init__(self, folder: str, columns: Columns | None, commit: Commit) -> None:
    """Creates the check; without columns, no episode can be verified."""
    self.folder, self.name, self.commit = folder, os.path.basename(folder), commit
    self.problems: list[Problem] = []
    self.unverified: set[int] = set()
    self.file_spans: dict[str, Spans] = {}
    self.steps = _episode_spans(0)
    self.sums: dict[str, np.ndarray] = {}
    self.num_bytes = 0
    self._columns = columns or {}
    self._sizes: dict[str, int] = {}
    if columns is None:
      self.unverified |= {*range(commit.episodes)}

  def run(self) -> None:
    """Checks lengths, then the index, then the bytes."""
    for name in (*layout.file_names(self._columns), *layout.INDEX_FILES):
      self._sizes[name] = self._usable_size(name)
    if self.commit.episodes:
      ends = self._read_index(layout.ENDS, "<i8")
      self.steps = _step_spans(ends, self.commit.episodes, self.commit.steps)
      has_sums = self._read_sums()
      self._check_files(self._is_damaged(ends), not has_sums)

  def notes(self) -> Iterator[str]:
    """Yields a note on episodes that could not be compared, if there are any."""
    broken = {episode for problem in self.problems for episode in problem.episodes}
    unknown = self.unverified - broken
    if unknown:
      yield f"{self.name}: {_listing(unknown)} not compared with a checksum"

  def _path(self, name: str) -> str:
    return os.path.join(self.folder, name)

  def _usable_size(self, name: str) -> int:
    """Returns how many committed bytes of a file exist; -1 if it is missing."""
    committed = self.commit.sizes.get(name)
    if self.commit.episodes:
      problem = segments.size_problem(self.folder, name, committed)
      if problem:
        self._add(problem)  # `_blame` adds its episodes.
    try:
      size = os.stat(self._path(name)).st_size
    except FileNotFoundError:
      return -1
    # Offsets start with a zero even before the first commit.
    return min(size, committed or (8 if name.endswith(".offsets") else 0))

  def _read_index(self, name: str, dtype: str) -> np.ndarray:
    if self._sizes[name] < 0:
      return np.zeros(0, dtype)
    count = self._sizes[name] // np.dtype(dtype).itemsize
    return np.fromfile(self._path(name), dtype, count)

  def _is_damaged(self, ends: np.ndarray) -> bool:
    """Whether an end is wrong; a file that is too short was reported before."""
    if len(ends) != self.commit.episodes:
      return False
    want = self.commit.index_crc32.get(layout.ENDS)
    is_whole = want in (None, zlib.crc32(ends.tobytes()))
    is_rising = bool((np.diff(ends, prepend=0) > 0).all())
    return not is_whole or not is_rising or int(ends[-1]) != self.commit.steps

  def _read_sums(self) -> bool:
    """Reads the checksums of each episode's bytes; returns False if one is wrong."""
    names = layout.file_names(self._columns)
    sums = self._read_index(layout.CHECKSUMS, "<u4")
    count = min(len(sums) // len(names), self.commit.episodes)
    table = sums[: count * len(names)].reshape(count, len(names))
    self.sums = {name: table[:, i] for i, name in enumerate(names)}
    self.unverified |= {*range(count, self.commit.episodes)}
    want = self.commit.index_crc32.get(layout.CHECKSUMS)
    is_complete = count == self.commit.episodes
    return not is_complete or want in (None, zlib.crc32(sums.tobytes()))

  def _check_files(self, is_index_damaged: bool, are_sums_damaged: bool) -> None:
    for column, name in self._files():
      self.file_spans[name] = self._spans(column, name)

    def check(name: str) -> _FileFailures:
      spans, sums = self.file_spans[name], self.sums[name]
      return _check_file(self._path(name), self._sizes[name], spans, sums)

    names = layout.file_names(self._columns)
    with futures.ThreadPoolExecutor(os.cpu_count()) as executor:
      failures = dict(zip(names, executor.map(check, names), strict=True))
    self.num_bytes = sum(each.num_bytes for each in failures.values())
    if are_sums_damaged:
      self._blame_sums(failures)
    if is_index_damaged:
      self._blame_index(failures)
    for column, name in self._files():
      causes = [name, *([column.offsets_file] if column.is_bytes else []), layout.ENDS]
      self._add_failures(name, failures[name], causes, self._rows(column, name))

  def _files(self) -> Iterator[tuple[Column, str]]:
    for column in self._columns.values():
      for name in column.files:
        yield column, name

  def _spans(self, column: Column, name: str) -> Spans:
    """Finds the bytes of each episode; reports impossible offsets."""
    rows = self._rows(column, name)
    offsets = np.zeros(0, np.int64)
    if column.is_bytes and name == column.data_file:
      count = max(self._sizes[column.offsets_file], 0) // 8
      path = self._path(column.offsets_file)
      offsets = mapped.map_file(path, np.dtype("<i8"), (count,))
      self._check_offsets(column, rows.scale(column.items_per_row), offsets)
    return _file_spans(column, name, rows, offsets)

  def _rows(self, column: Column, name: str) -> Spans:
    if column.is_per_step and name != column.present_file:
      return self.steps
    return _episode_spans(self.commit.episodes)

  def _check_offsets(self, column: Column, items: Spans, offsets: np.ndarray) -> None:
    """Reports offsets that do not rise from 0 to the end of the data."""
    size = self.commit.sizes.get(column.data_file, 0)
    is_committed = bool(self.commit.index_crc32)
    bad = []
    for episode in np.flatnonzero(items.is_known & (items.stops < len(offsets))):
      part = offsets[items.starts[episode] : items.stops[episode] + 1]
      is_last = is_committed and episode == len(items) - 1
      is_bound = part[0] == 0 if episode == 0 else part[0] >= 0
      is_bound &= part[-1] == size if is_last else part[-1] <= size
      if not is_bound or (np.diff(part) < 0).any():
        bad.append(int(episode))
    if bad:
      want, got = f"offsets that rise from 0 to {size}", f"others in {_listing(bad)}"
      self._add(Mismatch(column.offsets_file, want, got), bad)

  def _blame_sums(self, failures: dict[str, _FileFailures]) -> None:
    """Reports damaged checksums; bytes with other checksums may be right."""
    doubtful = {episode for failed in failures.values() for episode in failed.changed}
    for failed in failures.values():
      failed.changed.clear()
    self.unverified |= doubtful
    want = self.commit.index_crc32[layout.CHECKSUMS]
    names = _listing(doubtful) if doubtful else "no episode"
    got = f"others, which differ from those of the bytes for {names}"
    hint = "The checksums are damaged; the data itself may be right."
    want_text = f"checksums with the CRC-32 {want:08x}"
    self._add(Mismatch(layout.CHECKSUMS, want_text, got, hint))

  def _blame_index(self, failures: dict[str, _FileFailures]) -> None:
    """Reports a damaged index: it misplaces the episodes that fail in every file."""
    lost = set(range(self.commit.episodes))
    per_step = [
      failures[name]
      for column, name in self._files()
      if column.is_per_step and name != column.present_file
    ]
    if per_step:
      lost = set.intersection(*({*failed.lost, *failed.changed} for failed in per_step))
      for failed in per_step:
        for episode in lost:
          failed.lost.pop(episode, None)
          failed.changed.pop(episode, None)
    mismatch = Mismatch(
      layout.ENDS,
      f"{self.commit.episodes} ends that rise to {self.commit.steps}, with a "
      "fitting checksum",
      f"others, which misplace {_listing(lost)}" if lost else "others",
      "The index is damaged: restore it from a copy.",
    )
    self.problems.insert(0, _problem(self.name, mismatch, lost))

  def _add(self, mismatch: Mismatch, episodes: Collection[int] = ()) -> None:
    self.problems.append(_problem(self.name, mismatch, episodes))

  def _add_failures(
    self, name: str, failures: _FileFailures, causes: Collection[str], rows: Spans
  ) -> None:
    """Adds the problems of a file's failures.

    Args:
      name: name of the file.
      failures: the failures.
      causes: files whose problems explain lost bytes.
      rows: rows of each episode in the file's column.
    """
    if failures.lost and not self._blame(causes, {*failures.lost}):
      got = f"less for {_listing(failures.lost)}: {next(iter(failures.lost.values()))}"
      self._add(Mismatch(name, "the bytes of every episode", got), failures.lost)
    if failures.changed:
      shown = ", ".join(
        f"episode {e} (rows {rows.starts[e]:,} to {rows.stops[e] - 1:,}, {text})"
        for e, text in [*failures.changed.items()][:_SHOWN]
      )
      rest = len(failures.changed) - _SHOWN
      got = f"others for {len(failures.changed)} of {self.commit.episodes}: {shown}"
      got += f" and {rest} more" if rest > 0 else ""
      want = "the checksums of every episode"
      self._add(Mismatch(name, want, got, _CHANGED_HINT), failures.changed)

  def _blame(self, causes: Collection[str], episodes: set[int]) -> bool:
    """Adds episodes to the problem that explains them, if one does."""
    for index, problem in enumerate(self.problems):
      if problem.path in causes:
        merged = tuple(sorted({*problem.episodes, *episodes}))
        self.problems[index] = dataclasses.replace(problem, episodes=merged)
        return True
    return False
