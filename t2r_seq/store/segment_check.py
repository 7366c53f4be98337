"""One segment, looked at file by file and episode by episode."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from concurrent import futures

import numpy as np

from t2r_seq import errors
from t2r_seq.store import checks, layout, lock, mapped, spans
from t2r_seq.store.file_check import FileFailures, check_file
from t2r_seq.store.findings import SegmentFindings, listing
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit

_EXTENDED_HINT = (
  "What lies past the commit is ignored: the rest of a writer that was killed, or "
  "another program's bytes. The next EpisodeStore.append cuts it off."
)
_NO_SUMS = np.zeros(0, np.uint32)


def check_segment(
  folder: str, columns: Columns, commit: Commit, checksums: bool = True
) -> SegmentFindings:
  """Looks at every file of a segment that can be looked at.

  Args:
    folder: of the segment.
    columns: of the store.
    commit: of the segment; without `index_crc32` where the real one was lost.
    checksums: reads every byte; False looks at lengths and the index only.
  Returns:
    What was found.
  """
  return _Check(folder, columns, commit, checksums).run()


class _Check:
  def __init__(
    self, folder: str, columns: Columns, commit: Commit, checksums: bool
  ) -> None:
    self._columns = columns
    self._commit = commit
    self._checksums = checksums
    self._found = SegmentFindings(folder, commit)
    self._sizes: dict[str, int] = {}

  def run(self) -> SegmentFindings:
    """Checks lengths, then the index, then the bytes."""
    is_written = lock.is_locked(self._found.folder)
    for name in (*layout.file_names(self._columns), *layout.INDEX_FILES):
      self._sizes[name] = self._usable_size(name, is_written)
    if self._commit.episodes:
      ends = self._read_index(layout.ENDS, "<i8")
      self._found.steps = spans.step_spans(
        ends, self._commit.episodes, self._commit.steps
      )
      has_sums = self._read_sums()
      self._check_files(self._is_damaged(ends), not has_sums)
    return self._found

  def _path(self, name: str) -> str:
    return os.path.join(self._found.folder, name)

  def _usable_size(self, name: str, is_written: bool) -> int:
    """Returns how many bytes of a file count and are there; -1 where it is missing."""
    committed = self._commit.sizes.get(name)
    if self._commit.episodes:
      problem = checks.size_problem(self._found.folder, name, committed)
      if problem:
        self._found.add(problem)  # Its episodes follow, where they are known.
    try:
      size = os.stat(self._path(name)).st_size
    except FileNotFoundError:
      return -1
    # Offsets start with a zero even before the first commit.
    limit = committed or (8 if name.endswith(".offsets") else 0)
    if size > limit and not is_written:
      want, got = f"{limit:,} committed bytes", f"{size:,} bytes"
      self._found.add_leftover(errors.Mismatch(name, want, got, _EXTENDED_HINT))
    return min(size, limit)

  def _read_index(self, name: str, dtype: str) -> np.ndarray:
    if self._sizes[name] < 0:
      return np.zeros(0, dtype)
    count = self._sizes[name] // np.dtype(dtype).itemsize
    return np.fromfile(self._path(name), dtype, count)

  def _is_damaged(self, ends: np.ndarray) -> bool:
    """Whether some end is wrong; too few have been reported as such."""
    if len(ends) != self._commit.episodes:
      return False
    want = self._commit.index_crc32.get(layout.ENDS)
    is_whole = want in (None, zlib.crc32(ends.tobytes()))
    is_rising = bool((np.diff(ends, prepend=0) > 0).all())
    return not is_whole or not is_rising or int(ends[-1]) != self._commit.steps

  def _read_sums(self) -> bool:
    """Reads what the bytes of each episode should give; False if it is damaged."""
    names = layout.file_names(self._columns)
    sums = self._read_index(layout.CHECKSUMS, "<u4")
    count = min(len(sums) // len(names), self._commit.episodes)
    table = sums[: count * len(names)].reshape(count, len(names))
    self._found.sums = {name: table[:, i] for i, name in enumerate(names)}
    if self._checksums:
      self._found.unverified |= {*range(count, self._commit.episodes)}
    want = self._commit.index_crc32.get(layout.CHECKSUMS)
    is_complete = count == self._commit.episodes
    return not is_complete or want in (None, zlib.crc32(sums.tobytes()))

  def _check_files(self, is_index_damaged: bool, are_sums_damaged: bool) -> None:
    for column, name in self._files():
      self._found.file_spans[name] = self._spans(column, name)
    names = layout.file_names(self._columns)
    with futures.ThreadPoolExecutor(os.cpu_count()) as executor:
      failures = dict(zip(names, executor.map(self._check_file, names), strict=True))
    self._found.num_bytes = sum(found.num_bytes for found in failures.values())
    if are_sums_damaged:
      self._blame_sums(failures)
    if is_index_damaged:
      self._blame_index(failures)
    for column, name in self._files():
      causes = [name, *([column.offsets_file] if column.is_bytes else []), layout.ENDS]
      self._found.add_failures(name, failures[name], causes, self._rows(column, name))

  def _files(self) -> Iterator[tuple[Column, str]]:
    for column in self._columns.values():
      for name in column.files:
        yield column, name

  def _check_file(self, name: str) -> FileFailures:
    sums = self._found.sums[name] if self._checksums else _NO_SUMS
    spans_of_file = self._found.file_spans[name]
    return check_file(self._path(name), self._sizes[name], spans_of_file, sums)

  def _spans(self, column: Column, name: str) -> spans.Spans:
    """Finds the bytes of each episode; reports offsets that make no sense."""
    rows = self._rows(column, name)
    offsets = np.zeros(0, np.int64)
    if column.is_bytes and name == column.data_file:
      count = max(self._sizes[column.offsets_file], 0) // 8
      path = self._path(column.offsets_file)
      offsets = mapped.map_file(path, np.dtype("<i8"), (count,))
      self._check_offsets(column, rows.scaled(column.items_per_row), offsets)
    return spans.file_spans(column, name, rows, offsets)

  def _rows(self, column: Column, name: str) -> spans.Spans:
    if column.is_per_step and name != column.present_file:
      return self._found.steps
    return spans.episode_spans(self._commit.episodes)

  def _check_offsets(
    self, column: Column, items: spans.Spans, offsets: np.ndarray
  ) -> None:
    """Reports offsets that do not rise from 0 to the end of the data."""
    size = self._commit.sizes.get(column.data_file, 0)
    is_committed = bool(self._commit.index_crc32)
    bad = []
    for episode in np.flatnonzero(items.is_known & (items.stops < len(offsets))):
      part = offsets[items.starts[episode] : items.stops[episode] + 1]
      is_last = is_committed and episode == len(items) - 1
      is_bound = part[0] == 0 if episode == 0 else part[0] >= 0
      is_bound &= part[-1] == size if is_last else part[-1] <= size
      if not is_bound or (np.diff(part) < 0).any():
        bad.append(int(episode))
    if bad:
      want, got = f"offsets that rise from 0 to {size}", f"others in {listing(bad)}"
      self._found.add(errors.Mismatch(column.offsets_file, want, got), bad)

  def _blame_sums(self, failures: dict[str, FileFailures]) -> None:
    """Bytes that do not fit damaged checksums may be right: nobody knows."""
    doubtful = {episode for found in failures.values() for episode in found.changed}
    for found in failures.values():
      found.changed.clear()
    self._found.unverified |= doubtful
    want = self._commit.index_crc32[layout.CHECKSUMS]
    got = "others"
    if self._checksums:
      names = listing(doubtful) if doubtful else "no episode"
      got += f", which differ from those of the bytes for {names}"
    hint = "The checksums are damaged; the data itself may be right."
    wanted = f"checksums with the CRC-32 {want:08x}"
    self._found.add(errors.Mismatch(layout.CHECKSUMS, wanted, got, hint))

  def _blame_index(self, failures: dict[str, FileFailures]) -> None:
    """An episode that no file has where the index says is not where it says."""
    lost = set(range(self._commit.episodes))
    if self._checksums:
      per_step = [
        failures[name]
        for column, name in self._files()
        if column.is_per_step and name != column.present_file
      ]
      lost = set.intersection(*(found.episodes for found in per_step))
      for found in per_step:
        found.forgive(lost)
    mismatch = errors.Mismatch(
      layout.ENDS,
      f"{self._commit.episodes} ends that rise to {self._commit.steps}, with a "
      "fitting checksum",
      f"others: {listing(lost)} cannot be found by them" if lost else "others",
      "The index is damaged: restore it from a copy.",
    )
    self._found.add(mismatch, lost, first=True)
