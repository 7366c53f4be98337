"""Is every length, offset and checksum of a store right? Says what is not."""

from __future__ import annotations

import dataclasses
import itertools
import os
import zlib

import numpy as np

from t2r_seq import errors
from t2r_seq.store import layout, lock, mapped, scanning
from t2r_seq.store.checks import read_index, size_problem
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit, StoreManifest

_EXTENDED_HINT = (
  "What lies past the commit is ignored: the rest of a writer that was killed, or "
  "another program's bytes. The next EpisodeStore.append cuts it off."
)


@dataclasses.dataclass(frozen=True)
class StoreProblem:
  """One thing that is wrong with a store.

  Attributes:
    segment: its name.
    mismatch: which file, what was expected, what is there, what to do.
    episodes: the episodes of the segment that are not as they were written.
  """

  segment: str
  mismatch: errors.Mismatch
  episodes: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class StoreReport:
  """What `verify_store` found.

  Attributes:
    num_episodes: committed episodes by segment.
    problems: empty where all is right.
  """

  num_episodes: dict[str, int]
  problems: tuple[StoreProblem, ...]

  @property
  def is_whole(self) -> bool:
    """Whether nothing is wrong."""
    return not self.problems

  def broken_episodes(self, segment: str) -> list[int]:
    """Lists the episodes of a segment that are not as they were written."""
    found = [p.episodes for p in self.problems if p.segment == segment]
    return sorted({episode for episodes in found for episode in episodes})

  def check(self) -> None:
    """Raises StoreError with every problem, if there is one."""
    if self.problems:
      found = [
        dataclasses.replace(p.mismatch, path=f"{p.segment}/{p.mismatch.path}")
        for p in self.problems
      ]
      raise errors.mismatch_error("verify_store", found, errors.StoreError)


def verify_store(path: str | os.PathLike[str], checksums: bool = True) -> StoreReport:
  """Checks the lengths, offsets and checksums of a store.

  Args:
    path: of the folder.
    checksums: reads every byte; False looks at lengths and the index only.
  Returns:
    What is wrong, and which episodes that concerns.
  Raises:
    StoreError: no store, or its manifest or a commit cannot be read.
  """
  folder = os.path.abspath(os.fspath(path))
  columns = StoreManifest.read(folder).columns
  commits = scanning.read_commits(folder)
  problems = []
  for name, commit in commits.items():
    segment = layout.segment_folder(folder, name)
    problems += _SegmentCheck(segment, columns, commit).run(checksums)
  counts = {name: commit.episodes for name, commit in commits.items()}
  return StoreReport(counts, tuple(problems))


class _SegmentCheck:
  """Checks one segment; every file that can be looked at is."""

  def __init__(self, folder: str, columns: Columns, commit: Commit) -> None:
    self._folder = folder
    self._columns = columns
    self._commit = commit
    self._problems: list[StoreProblem] = []

  def run(self, checksums: bool) -> list[StoreProblem]:
    """Lists what is wrong."""
    names = [*layout.file_names(self._columns), *layout.INDEX_FILES]
    is_written = lock.is_locked(self._folder)
    readable = [name for name in names if self._check_size(name, is_written)]
    if not self._commit.episodes or not {*layout.INDEX_FILES} <= {*readable}:
      return self._problems
    try:
      ends = read_index(self._folder, self._commit)
    except errors.StoreError as error:
      self._add(layout.ENDS, "a whole index", str(error), range(self._commit.episodes))
      return self._problems
    sums = self._read_checksums()
    owners = {
      name: column for column in self._columns.values() for name in column.files
    }
    for index, name in enumerate(layout.file_names(self._columns)):
      column = owners[name]
      if name in readable:
        bounds = self._bounds(column, name, ends, readable)
        if bounds is not None and checksums and sums is not None:
          self._check_sums(name, bounds, sums[:, index])
    return self._problems

  def _add(
    self, name: str, want: str, got: str, episodes: range | list[int], hint: str = ""
  ) -> None:
    mismatch = errors.Mismatch(name, want, got, hint)
    segment = os.path.basename(self._folder)
    self._problems.append(StoreProblem(segment, mismatch, tuple(episodes)))

  def _check_size(self, name: str, is_written: bool) -> bool:
    """Whether a file has all of its committed bytes."""
    path, episodes = os.path.join(self._folder, name), range(self._commit.episodes)
    size = self._commit.sizes.get(name)
    if self._commit.episodes:
      problem = size_problem(self._folder, name, size)
      if problem:
        self._add(name, problem.expected, problem.got, episodes, problem.hint)
        return False
    # Offsets start with a zero even before the first commit.
    size = size or (8 if name.endswith(".offsets") else 0)
    got = os.stat(path).st_size if os.path.exists(path) else 0
    if got > size and not is_written:
      self._add(name, f"{size} committed bytes", f"{got} bytes", [], _EXTENDED_HINT)
    return True

  def _read_checksums(self) -> np.ndarray | None:
    num_files = len(layout.file_names(self._columns))
    path = os.path.join(self._folder, layout.CHECKSUMS)
    sums = np.fromfile(path, "<u4", self._commit.episodes * num_files)
    want = self._commit.index_crc32.get(layout.CHECKSUMS)
    got = zlib.crc32(sums.tobytes())
    if got != want:
      hint = "The checksums are damaged; the data itself may be right."
      self._add(layout.CHECKSUMS, f"the checksum {want}", str(got), [], hint)
      return None
    return sums.reshape(self._commit.episodes, num_files)

  def _bounds(
    self, column: Column, name: str, ends: np.ndarray, readable: list[str]
  ) -> np.ndarray | None:
    """Returns where in a file each episode starts, and the end, [episodes + 1]."""
    rows = np.arange(1, len(ends) + 1)
    if column.is_per_step and name != column.present_file:
      rows = ends
    rows = np.concatenate([np.zeros(1, np.int64), rows])
    if name == column.present_file:
      bounds = rows
    elif not column.is_bytes:
      bounds = rows * (column.items_per_row * column.dtype.itemsize)
    elif name == column.offsets_file:
      bounds = 8 + rows * (column.items_per_row * 8)
    elif column.offsets_file in readable:
      return self._bounds_of_bytes(column, rows * column.items_per_row)
    else:
      return None
    if bounds[-1] != self._commit.sizes[name]:
      want, got = f"{bounds[-1]} bytes", f"{self._commit.sizes[name]} committed"
      self._add(name, want, got, range(len(ends)))
      return None
    return bounds

  def _bounds_of_bytes(self, column: Column, items: np.ndarray) -> np.ndarray | None:
    """Reads the bounds from the offsets, which must rise from 0 to the data's end."""
    path = os.path.join(self._folder, column.offsets_file)
    if self._commit.sizes[column.offsets_file] != 8 * (int(items[-1]) + 1):
      return None  # Reported with the offsets themselves.
    offsets = np.asarray(mapped.map_file(path, np.dtype("<i8"), (int(items[-1]) + 1,)))
    if len(offsets) < 2:
      return np.asarray(offsets[items])
    size = self._commit.sizes[column.data_file]
    is_bad = (np.diff(offsets) < 0) | (offsets[1:] > size) | (offsets[:-1] < 0)
    is_bad[0] |= offsets[0] != 0
    is_bad[-1] |= offsets[-1] != size
    bad = np.flatnonzero(is_bad)
    if len(bad):
      episodes = np.unique(np.searchsorted(items, bad, "right") - 1).tolist()
      got = f"others at {len(bad)} items"
      self._add(
        column.offsets_file, f"offsets that rise from 0 to {size}", got, episodes
      )
    return np.clip(offsets[items], 0, size)

  def _check_sums(self, name: str, bounds: np.ndarray, want: np.ndarray) -> None:
    size = self._commit.sizes[name]
    path = os.path.join(self._folder, name)
    data = mapped.map_file(path, np.dtype(np.uint8), (size,))
    limits = bounds.tolist()
    got = [
      zlib.crc32(data[start:stop].data) for start, stop in itertools.pairwise(limits)
    ]
    broken = np.flatnonzero(np.asarray(got, np.uint32) != want).tolist()
    if broken:
      text = f"others for {len(broken)} of {len(want)} episodes: "
      hint = "Their bytes changed after they were written; restore the file."
      self._add(
        name,
        "the checksums of every episode",
        text + errors.listing(map(str, broken), limit=8),
        broken,
        hint,
      )
