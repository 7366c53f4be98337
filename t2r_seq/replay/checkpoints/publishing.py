"""Folders that appear whole or not at all; the newest few are kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator

from t2r_seq import errors, files
from t2r_seq.replay.checkpoints import state_file

_NAME = "checkpoint-{:08d}"
_PUBLISHED = re.compile(r"checkpoint-(\d{8,})")
_UNPUBLISHED = re.compile(r"\.checkpoint-\d{8,}\.tmp")


def publish(
  folder: str,
  write: Callable[[str], None],
  keep: int,
  is_whole: Callable[[str], bool],
) -> str:
  """Makes a new checkpoint, and then removes those that are too old.

  A process that is killed at any moment leaves the former checkpoints as they were,
  and perhaps the beginning of one that nobody takes for a checkpoint; the next one
  to be published removes it.

  Args:
    folder: of the checkpoints; it is made if there is none.
    write: called with a new folder, puts the checkpoint into it and onto the disk.
    keep: how many whole ones to keep, this one included.
    is_whole: whether a checkpoint could be restored, given its path.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: another process is writing one there.
    OSError: the disk is full or failed; the former checkpoints are as they were.
  """
  try:
    os.makedirs(folder, exist_ok=True)
    with _held(folder):
      return _publish(folder, write, keep, is_whole)
  except OSError as error:
    raise _explain(error, folder) from error


def find(path: str) -> list[str]:
  """Returns the paths of checkpoints, the newest first.

  Args:
    path: of a checkpoint itself, or of a folder of them.
  Raises:
    ReplayError: there is none.
  """
  if state_file.is_in(path):
    return [path]
  published = _list(path)
  if published:
    return [os.path.join(path, name) for name in reversed(published)]
  got = "nothing" if not os.path.exists(path) else "a file"
  if os.path.isdir(path):
    got = errors.listing(os.listdir(path), limit=5)
  raise errors.ReplayError(
    f"replay: {path}: expected a checkpoint or a folder of them, got {got}. One that "
    "was not finished is none; `checkpoint()` makes one."
  )


def _publish(
  folder: str,
  write: Callable[[str], None],
  keep: int,
  is_whole: Callable[[str], bool],
) -> str:
  for name in filter(_UNPUBLISHED.fullmatch, os.listdir(folder)):
    shutil.rmtree(os.path.join(folder, name))
  name = _NAME.format(_next_number(folder))
  unpublished, path = _unpublished(folder, name), os.path.join(folder, name)
  try:
    os.mkdir(unpublished)
    write(unpublished)
    files.sync_folder(unpublished)
    os.rename(unpublished, path)
    files.sync_folder(folder)
  except BaseException:
    shutil.rmtree(unpublished, ignore_errors=True)
    raise
  num_whole = 1
  for old in reversed(_list(folder)[:-1]):
    if num_whole < keep:
      num_whole += is_whole(os.path.join(folder, old))
      continue
    # Renamed first: a half-removed one must not look like a checkpoint.
    os.rename(os.path.join(folder, old), _unpublished(folder, old))
    shutil.rmtree(_unpublished(folder, old))
  return path


def _list(folder: str) -> list[str]:
  """Lists the names of what is published, the oldest first."""
  names = os.listdir(folder) if os.path.isdir(folder) else []
  return sorted(filter(_PUBLISHED.fullmatch, names), key=_number)


def _next_number(folder: str) -> int:
  return max(map(_number, _list(folder)), default=0) + 1


def _number(name: str) -> int:
  return int(name.partition("-")[2])


def _unpublished(folder: str, name: str) -> str:
  return os.path.join(folder, f".{name}.tmp")


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
  """Holds a folder for one writer; a process that dies lets go of it."""
  descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
  try:
    _lock(descriptor, folder)
    yield
  finally:
    os.close(descriptor)


def _lock(descriptor: int, folder: str) -> None:
  try:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    raise errors.ReplayError(
      f"replay: {folder}: expected nobody else to write a checkpoint there, got "
      "another writer. Give each replay a folder of its own."
    ) from None


def _explain(error: OSError, folder: str) -> OSError:
  published = _list(folder)
  former = "There is no former checkpoint."
  if published:
    former = f"The former checkpoint, {published[-1]}, is kept."
  # What it says itself is of a file in a folder that is gone by now.
  reason = os.strerror(error.errno) if error.errno else str(error)
  return OSError(
    error.errno,
    f"checkpoint: {folder}: expected a folder that it may write to, with room on the "
    f"disk, got: {reason}. {former} Make room, or give another checkpoint_dir, and "
    "call checkpoint() again.",
  )
