"""One writer per segment, enforced by the operating system."""

from __future__ import annotations

import fcntl
import os
import socket

from t2r_seq import errors
from t2r_seq.store import layout


class SegmentLock:
  """Holds a segment for one writer; a process that dies lets go of it."""

  def __init__(self, folder: str) -> None:
    """Takes the lock.

    Args:
      folder: of the segment, which exists.
    Raises:
      StoreError: another writer holds it.
    """
    self._path = os.path.join(folder, layout.LOCK)
    self._descriptor = -1
    while self._descriptor < 0:
      self._descriptor = self._take()

  def release(self) -> None:
    """Lets go; does nothing the second time."""
    if self._descriptor >= 0:
      # Closing is not enough where a forked process has the descriptor, too.
      fcntl.flock(self._descriptor, fcntl.LOCK_UN)
      os.close(self._descriptor)
      self._descriptor = -1

  def _take(self) -> int:
    """Returns the descriptor; -1 where a merge removed the file in the meantime."""
    os.makedirs(os.path.dirname(self._path), exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(self._path, flags, 0o666)
    try:
      # flock, not lockf: two writers of one process exclude each other as well.
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if _is_same_file(descriptor, self._path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
        return descriptor
    except BlockingIOError:
      owner = os.pread(descriptor, 256, 0).decode(errors="replace").split()
      os.close(descriptor)
      raise errors.StoreError(self._message(owner)) from None
    except BaseException:
      os.close(descriptor)
      raise
    os.close(descriptor)
    return -1

  def _message(self, owner: list[str]) -> str:
    folder = os.path.dirname(self._path)
    holder = f"process {owner[1]} on {owner[0]}" if len(owner) == 2 else "another"
    return (
      f"EpisodeStore: {folder}: expected no other writer, got {holder}. Close that "
      "one, or write beside it: EpisodeStore.append(path, segment='another-name')."
    )


def is_locked(folder: str) -> bool:
  """Whether a writer holds the segment just now."""
  try:
    descriptor = os.open(os.path.join(folder, layout.LOCK), os.O_RDONLY)
  except FileNotFoundError:
    return False
  try:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return False
  except BlockingIOError:
    return True
  finally:
    os.close(descriptor)


def _is_same_file(descriptor: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False
