"""One segment's files, appended to; the commit is what makes episodes count."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from concurrent import futures

import numpy as np

from t2r_seq.files import sync_folder
from t2r_seq.store import checks, files, layout, lock
from t2r_seq.store.layout import Column, Columns
from t2r_seq.store.manifest import Commit
from t2r_seq.store.values import Rows

_ZEROS = np.zeros(1 << 20, np.uint8)
_PARALLEL_BYTES = 1 << 18
_ZERO_OFFSET = b"\0" * 8


class SegmentWriter:
  """Appends rows and episodes to the files of a segment that it alone holds."""

  def __init__(self, folder: str, columns: Columns) -> None:
    """Takes the segment's lock and cuts its files to what is committed.

    Args:
      folder: of the segment; it is made if there is none.
      columns: of the store.
    Raises:
      StoreError: another writer holds it, or committed bytes are missing.
    """
    self.folder = folder
    self._columns = columns
    self._files: dict[str, files.AppendFile] = {}
    # It starts its thread with the first large write.
    self._executor = futures.ThreadPoolExecutor(1, "t2r_seq_checksum")
    os.makedirs(folder, exist_ok=True)
    self._lock = lock.lock_segment(folder)
    try:
      self.commit = Commit.read(folder)
      checks.check_segment(folder, columns, self.commit)
      names = [*layout.file_names(columns), *layout.INDEX_FILES]
      for name in names:
        path, size = os.path.join(folder, name), self.commit.sizes.get(name, 0)
        self._files[name] = files.AppendFile(path, size)
      self._resume()
      for name_folder in (folder, os.path.dirname(folder)):
        sync_folder(name_folder)
      if self.commit == Commit():
        # Before any data, so that data without a commit tells of one that was lost.
        self.commit.write(folder)
    except BaseException:
      self.close()
      raise

  @property
  def num_episodes(self) -> int:
    """Whole episodes so far, those not yet committed too."""
    return self._episodes

  @property
  def has_rows(self) -> bool:
    """Whether an episode has begun."""
    return bool(self._counts)

  def append(self, path: str, rows: Rows) -> None:
    """Appends rows to the episode that is being written."""
    column = self._columns[path]
    self._put(column.data_file, rows.data)
    if rows.lengths is not None:
      ends = np.cumsum(rows.lengths) + self._ends_of_bytes[path]
      self._put(column.offsets_file, files.as_bytes(ends.astype(np.int64)))
      if len(ends):
        self._ends_of_bytes[path] = int(ends[-1])
    self._counts[path] = self._counts.get(path, 0) + rows.count

  def checksum(self, name: str) -> int:
    """Returns the CRC-32 of what the episode in progress has put into a file."""
    return self._crc32[name]

  def end_episode(self, num_steps: int) -> None:
    """Ends the episode; it counts when it is committed."""
    for column in self._columns.values():
      is_present = column.path in self._counts
      if column.spec.is_optional:
        self._put(column.present_file, np.full(1, is_present, np.uint8))
      if not is_present:
        self._append_absent(column, num_steps if column.is_per_step else 1)
    ends = np.asarray([self._steps + num_steps], "<i8")
    self._put_index(layout.ENDS, ends)
    checksums = [self._crc32[name] for name in layout.file_names(self._columns)]
    self._put_index(layout.CHECKSUMS, np.asarray(checksums, "<u4"))
    self._episodes += 1
    self._steps += num_steps
    self._begin()

  def roll_back(self) -> None:
    """Drops the rows of the episode that is being written."""
    for name, size in self._start_sizes.items():
      self._files[name].truncate(size)
    self._index_crc32 = self._start_index_crc32
    self._begin()

  def write_commit(self, replaces: Iterable[str] | None = None) -> None:
    """Puts the data on the disk, then makes the whole episodes count.

    Args:
      replaces: segments whose episodes are from now on here; None changes nothing.
    """
    replaces = self.commit.replaces if replaces is None else tuple(replaces)
    if self._episodes == self.commit.episodes and replaces == self.commit.replaces:
      return
    commit = Commit(
      self._episodes,
      self._steps,
      dict(self._start_sizes),
      dict(self._start_index_crc32),
      replaces,
    )
    try:
      for file in self._files.values():
        file.sync()
      commit.write(self.folder)
    except BaseException:
      # Not to be tried again: a sync that failed once may have lost the pages.
      self.cut()
      raise
    self.commit = commit

  def cut(self) -> None:
    """Drops all that is not committed."""
    # A commit may have failed in its very last step: what is on the disk counts.
    self.commit = Commit.read(self.folder)
    for name, file in self._files.items():
      file.truncate(self.commit.sizes.get(name, 0))
    self._resume()

  def close(self) -> None:
    """Lets go of the files and the lock; commits nothing."""
    for file in self._files.values():
      file.close()
    self._executor.shutdown()
    self._lock.release()

  def _begin(self) -> None:
    """Notes where the next episode starts."""
    self._counts: dict[str, int] = {}
    self._crc32 = dict.fromkeys(layout.file_names(self._columns), 0)
    self._start_sizes = {name: file.size for name, file in self._files.items()}
    self._start_index_crc32: dict[str, int] = dict(self._index_crc32)
    self._ends_of_bytes = {
      path: self._files[column.data_file].size
      for path, column in self._columns.items()
      if column.is_bytes
    }

  def _resume(self) -> None:
    """Goes on from the commit, to which the files have been cut."""
    self._episodes, self._steps = self.commit.episodes, self.commit.steps
    self._index_crc32 = dict(self.commit.index_crc32)
    for column in self._columns.values():
      if column.is_bytes and not self._files[column.offsets_file].size:
        self._files[column.offsets_file].append(_ZERO_OFFSET)
    self._begin()

  def _put(self, name: str, data: np.ndarray) -> None:
    before = self._crc32[name]
    if data.nbytes < _PARALLEL_BYTES:
      self._files[name].append(data)
      self._crc32[name] = zlib.crc32(data.data, before)
      return
    # Both let go of the GIL: the sum is made while the bytes are written, which
    # brings appending from half the speed of ndarray.tofile to nearly all of it.
    checksum = self._executor.submit(zlib.crc32, data.data, before)
    try:
      self._files[name].append(data)
    finally:
      self._crc32[name] = checksum.result()

  def _put_index(self, name: str, values: np.ndarray) -> None:
    data = files.as_bytes(values)
    self._files[name].append(data)
    self._index_crc32[name] = zlib.crc32(data.data, self._index_crc32.get(name, 0))

  def _append_absent(self, column: Column, num_rows: int) -> None:
    """Keeps the rows in step: zeros, or empty strings, for an absent optional."""
    num_items = num_rows * column.items_per_row
    if column.is_bytes:
      none = np.zeros(0, np.uint8)
      self.append(column.path, Rows(num_rows, none, np.zeros(num_items, np.int64)))
      return
    num_bytes = num_items * column.dtype.itemsize
    for start in range(0, num_bytes, len(_ZEROS)):
      self._put(column.data_file, _ZEROS[: num_bytes - start])
