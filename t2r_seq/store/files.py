"""Files that are appended to, replaced and locked: all survive a crash."""

from __future__ import annotations

import os
import zlib
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors, files
from t2r_seq.store import layout

# Small rows are collected into writes of this size; larger rows are written at once.
_BUFFER_BYTES = 1 << 20


class AppendFile:
  """A file that grows at its end, and can be cut back to any earlier length.

  Only `sync` guarantees that bytes are on the disk.
  """

  def __init__(self, path: str, size: int, executor: futures.Executor) -> None:
    """Opens the file, or makes it, and cuts it to `size` bytes.

    Args:
      path: path of the file.
      size: number of committed bytes; later ones are dropped.
      executor: computes checksums while bytes are written.
    """
    self.path = path
    self._executor = executor
    self._pending = bytearray()
    # The checksum does not yet cover the pending bytes from `_num_summed` on.
    self._crc32 = self._num_summed = 0
    self._is_dirty = False
    self._descriptor = files.open_own(path, os.O_RDWR | os.O_CREAT)
    self._written = size
    if os.fstat(self._descriptor).st_size != size:
      os.ftruncate(self._descriptor, size)
      self._is_dirty = True

  @property
  def size(self) -> int:
    """Bytes so far, including buffered ones."""
    return self._written + len(self._pending)

  def append(self, data: Any) -> None:
    """Appends bytes, or a contiguous uint8 array."""
    if len(self._pending) + len(data) < _BUFFER_BYTES:
      self._pending.extend(data)
      return
    self._spill()
    if len(data) < _BUFFER_BYTES:
      self._pending.extend(data)
    else:
      self._write(memoryview(data))

  def checksum(self) -> int:
    """Returns the CRC-32 of the bytes since the last `start_checksum`."""
    if self._num_summed < len(self._pending):
      with memoryview(self._pending) as view:
        self._crc32 = zlib.crc32(view[self._num_summed :], self._crc32)
      self._num_summed = len(self._pending)
    return self._crc32

  def start_checksum(self) -> None:
    """Starts another checksum."""
    self._crc32, self._num_summed = 0, len(self._pending)

  def truncate(self, size: int) -> None:
    """Cuts the file to `size` bytes; `start_checksum` must follow."""
    if size >= self._written:
      del self._pending[size - self._written :]
      return
    self._pending.clear()
    self._written = size
    self._is_dirty = True
    os.ftruncate(self._descriptor, size)

  def sync(self) -> None:
    """Waits until all bytes are on the disk."""
    self._spill()
    if self._is_dirty:
      os.fsync(self._descriptor)
      self._is_dirty = False

  def close(self) -> None:
    """Closes the file; unsynced bytes may be lost."""
    if self._descriptor >= 0:
      os.close(self._descriptor)
      self._descriptor = -1

  def _spill(self) -> None:
    if self._pending:
      pending, self._pending = self._pending, bytearray()
      try:
        self._write(memoryview(pending))
      except OSError:
        # Unwritten bytes stay pending, so that `size` and `truncate` are right.
        self._pending = pending[len(pending) - self._unwritten :]
        self._num_summed = len(self._pending)
        raise

  def _write(self, view: memoryview) -> None:
    self._is_dirty = True
    self._unwritten = view.nbytes
    rest = view[self._num_summed :]
    self._num_summed = 0
    checksum = self._executor.submit(zlib.crc32, rest, self._crc32) if rest else None
    try:
      while self._unwritten:
        rest = view[view.nbytes - self._unwritten :]
        count = os.pwrite(self._descriptor, rest, self._written)
        self._written += count
        self._unwritten -= count
    finally:
      # Both release the GIL, and run in parallel.
      self._crc32 = checksum.result() if checksum else self._crc32


def as_bytes(array: np.ndarray) -> np.ndarray:
  """Returns an array's little-endian bytes, [n] uint8: a view if that is its form."""
  array = np.ascontiguousarray(array)
  array = array.astype(array.dtype.newbyteorder("<"), copy=False)
  return array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)


def explain(error: OSError, place: str, hint: str) -> OSError:
  """Returns an OSError like `error`, with a place and a hint in its message."""
  reason = error.strerror or str(error)
  return OSError(error.errno, f"EpisodeStore: {place}: {reason}. {hint}")


def lock_segment(folder: str) -> files.FileLock:
  """Locks the folder of a segment for one writer, until it or its process ends.

  The folder is made if it is missing. StoreError if another writer has the lock.
  """

  def refusal(holder: str) -> errors.StoreError:
    return errors.StoreError(
      f"EpisodeStore: {folder}: expected no other writer, got {holder}. Close that "
      "one, or write beside it: EpisodeStore.append(path, segment='another-name')."
    )

  while True:
    os.makedirs(folder, exist_ok=True)
    try:
      return files.FileLock(os.path.join(folder, layout.LOCK), refusal)
    except FileNotFoundError:
      continue  # A merge removed the folder.


def is_locked(folder: str) -> bool:
  """Whether a writer has locked the segment."""
  return files.is_locked(os.path.join(folder, layout.LOCK))
