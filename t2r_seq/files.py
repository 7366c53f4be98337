"""Files and folders that survive a crash, and locks that die with their process.

Contents are synced before a name points to them, and names before a function returns.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import types
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

try:
  import fcntl
except ImportError as error:
  raise ImportError(
    f"t2r_seq: expected Linux or macOS, got {sys.platform}, which lacks the file locks "
    "of fcntl. On Windows, use WSL."
  ) from error

_Self = TypeVar("_Self", bound="Closing")


class Closing(abc.ABC):
  """A context manager with a `close`."""

  @abc.abstractmethod
  def close(self) -> None:
    """Releases everything; closing twice is not an error."""

  def close_after(self, error: BaseException) -> None:
    """Closes when the block has ended by an error, which is raised again."""
    del error
    self.close()

  def __enter__(self: _Self) -> _Self:
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    if exc_value is None:
      self.close()
    else:
      self.close_after(exc_value)


_HEAD_BYTES = 4096
# Temporary files of large folders, and how many replacements may use each list.
_listed: dict[str, tuple[int, list[str]]] = {}
_DESCRIPTOR = re.compile(r"(?:/dev/std|/dev/fd/|/proc/self/fd/)(out|err|\d+)")


def check_output(
  operation: str,
  path: str | os.PathLike[str],
  kind: str = "a file",
  start: bytes = b"",
  hint: str = "Name another file.",
) -> None:
  """Checks, before any work, that a user's output file may be written.

  A mistyped name must not overwrite the data that the command reads.

  Args:
    operation: the operation, and the option if there is one.
    path: path of the file, which may be missing.
    kind: kind of the file, as text.
    start: a regular expression that the first bytes of such a file match.
    hint: instruction for the user.
  Raises:
    OSError: the path is a folder, a socket or a block device, a file of another kind,
      or cannot be read.
  """
  try:
    mode = os.stat(path).st_mode
  except FileNotFoundError:
    return
  is_stream = stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)
  if not stat.S_ISREG(mode) and not is_stream:
    raise FileExistsError(
      f"{operation}: {os.fspath(path)}: expected {kind}, got {_kind_of(mode)}. {hint}"
    )
  if not stat.S_ISREG(mode) or _DESCRIPTOR.fullmatch(os.path.abspath(path)):
    return  # What is written there is appended.
  with open(path, "rb") as file:
    head = file.read(_HEAD_BYTES)
  if head and not re.match(start, head, re.DOTALL):
    raise FileExistsError(
      f"{operation}: {os.fspath(path)}: expected no file there, or {kind} to be "
      f"replaced, got another one. {hint}"
    )


@contextlib.contextmanager
def writing_output(path: str | os.PathLike[str]) -> Iterator[str]:
  """Yields the path of an empty file, which becomes a user's output after the block.

  A regular file is replaced in one step; a link stays, and its target is replaced. A
  FIFO or a character device, such as /dev/stdout, gets the bytes.

  Raises:
    OSError: the file cannot be written; a regular file still has its old contents.
  """
  place = os.path.realpath(path)
  # /dev/stdout may stand for a file, which the shell has opened and still writes.
  is_open = _DESCRIPTOR.fullmatch(os.path.abspath(path))
  if not is_open and (os.path.isfile(place) or not os.path.exists(place)):
    with replacing(place) as temporary:
      yield temporary
    return
  check_output("write", path)
  with tempfile.TemporaryDirectory() as folder:
    temporary = os.path.join(folder, os.path.basename(path))
    open(temporary, "wb").close()
    yield temporary
    sys.stdout.flush()
    # Without O_CREAT and O_TRUNC: it must exist, and earlier output stays.
    if is_open:
      target = os.dup({"out": 1, "err": 2}.get(is_open[1]) or int(is_open[1]))
    else:
      target = os.open(path, os.O_WRONLY)
    with open(temporary, "rb") as source, open(target, "wb") as out:
      shutil.copyfileobj(source, out)


def write_output(path: str | os.PathLike[str], data: bytes) -> None:
  """Writes a user's output file; see `writing_output`."""
  with writing_output(path) as temporary, open(temporary, "wb") as file:
    file.write(data)


def _kind_of(mode: int) -> str:
  kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
  return kinds.get(stat.S_IFMT(mode), "a device")


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
  """Replaces a small file in one step: readers see the old or the new, never a part.

  When it returns, the new contents are on the disk.

  Raises:
    OSError: the file cannot be written; the old contents are still there.
  """
  with replacing(path) as temporary:
    descriptor = open_own(temporary, os.O_WRONLY)
    try:
      while data:
        data = data[os.write(descriptor, data) :]
    finally:
      os.close(descriptor)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
  """Yields the path of an empty file, which replaces another if the block succeeds.

  Raises:
    OSError: the file cannot be written; the old contents are still there.
  """
  _remove_abandoned(path)
  descriptor, temporary = _held_file(path)
  try:
    yield temporary
    publish(temporary, path)
  except BaseException:
    with contextlib.suppress(OSError):
      os.unlink(temporary)
    raise
  finally:
    os.close(descriptor)


def _held_file(path: str | os.PathLike[str]) -> tuple[int, str]:
  """Makes a temporary file, which this process holds by a lock until it is closed."""
  while True:
    temporary = new_file(path)
    descriptor = open_own(temporary, os.O_WRONLY)
    with contextlib.suppress(OSError):  # Some file systems have no locks.
      fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.fstat(descriptor).st_nlink:
      return descriptor, temporary
    os.close(descriptor)  # Another process took it for abandoned before it was held.


def _remove_abandoned(path: str | os.PathLike[str]) -> None:
  """Removes temporary files of killed processes that were replacing a file."""
  folder = os.path.dirname(os.path.abspath(path))
  # To list a large folder for each of its files would take quadratic time.
  num_uses, names = _listed.pop(folder, (0, []))
  if not num_uses:
    names = os.listdir(folder)
    num_uses, names = len(names) // 64, [n for n in names if n.endswith(".tmp")]
  if num_uses:
    _listed[folder] = num_uses - 1, names
  for name in _temporaries_of(os.fspath(path), names):
    with contextlib.suppress(OSError):
      descriptor = open_own(name, os.O_WRONLY)
      try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name)
      finally:
        os.close(descriptor)


def new_file(path: str | os.PathLike[str]) -> str:
  """Creates an empty file beside a path, to be written and then published there.

  Its name is `.<name>.<random>.tmp`, so no link can have that name already.
  """
  temporary = _temporary_name(path)
  os.close(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
  return temporary


def publish(temporary: str, path: str | os.PathLike[str]) -> None:
  """Gives a file or folder its name, once everything in it is on the disk.

  Args:
    temporary: a file, which replaces another, or a folder; see `new_file`.
    path: its name, in this folder or another one of the same file system.
  Raises:
    OSError: the path is a device, a FIFO or a socket, or the renaming fails.
  """
  with contextlib.suppress(FileNotFoundError):
    mode = os.lstat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
      raise FileExistsError(
        f"write: {os.fspath(path)}: expected a regular file to replace, got "
        f"{_kind_of(mode)}. Name another file."
      )
  # The contents first: after a power cut the new name must not show an empty file. Then
  # the folders, without which the rename itself may be lost.
  if os.path.isdir(temporary):
    sync_tree(temporary)
  else:
    sync_file(temporary)
  os.replace(temporary, path)
  for folder in {os.path.dirname(temporary), os.path.dirname(path)}:
    sync_folder(folder or ".")


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[str]:
  """Yields a folder to fill, which appears at the path only if the block succeeds.

  The path must be missing or an empty folder. Missing parents are made.

  Raises:
    OSError: the folder cannot be written; its files are removed.
  """
  make_folders(os.path.dirname(os.path.abspath(path)))
  temporary = _temporary_name(path)
  os.mkdir(temporary)
  try:
    yield temporary
    publish(temporary, path)
  except BaseException:
    shutil.rmtree(temporary, ignore_errors=True)
    raise


def remove_folder(path: str) -> None:
  """Removes a folder; renames it first, so that no reader finds a part of it."""
  temporary = _temporary_name(path)
  os.rename(path, temporary)
  shutil.rmtree(temporary)


def open_own(path: str | os.PathLike[str], flags: int) -> int:
  """Opens a file to write, but not through a link, which could lead anywhere.

  Args:
    path: path of the file.
    flags: flags of `os.open`.
  Returns:
    The descriptor, which child processes don't inherit.
  """
  try:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
  except OSError as error:
    if error.errno == errno.ELOOP and os.path.islink(path):
      reason = "expected a file to write to, got a link, which is not followed"
      raise OSError(error.errno, reason, os.fspath(path)) from error
    raise


def _temporary_name(path: str | os.PathLike[str]) -> str:
  folder, name = os.path.split(path)
  return os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")


def left_behind(path: str) -> list[str]:
  """Lists temporary files and folders of writers that were killed, or still write."""
  return _temporaries_of(path, os.listdir(os.path.dirname(path) or "."))


def _temporaries_of(path: str, names: Iterable[str]) -> list[str]:
  folder, name = os.path.split(path)
  pattern = re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{32}}\.tmp")
  return sorted(os.path.join(folder, n) for n in names if pattern.fullmatch(n))


def make_folders(path: str | os.PathLike[str]) -> None:
  """Makes a folder and its missing parents, and syncs their names.

  Syncing only the last folder is not enough: after a power cut, a parent may be
  missing.
  """
  folder = os.path.abspath(path)
  made = []
  while not os.path.isdir(folder):
    made.append(folder)
    folder = os.path.dirname(folder)
  os.makedirs(path, exist_ok=True)
  for each in (*made, folder) if made else ():
    sync_folder(each)


def check_vacant(operation: str, path: str, error_cls: type[Exception]) -> None:
  """Raises an error if something is at the path of a new folder."""
  if os.path.lexists(path):
    kind = "folder" if os.path.isdir(path) else "file"
    raise error_cls(
      f"{operation}: {path}: expected nothing there, got a {kind}. Name a new folder."
    )


def sync_file(path: str | os.PathLike[str]) -> None:
  """Syncs the contents of a file; its name may not be on the disk."""
  descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def sync_folder(path: str | os.PathLike[str]) -> None:
  """Syncs the names of a folder's files."""
  sync_file(path)


def sync_tree(folder: str) -> None:
  """Syncs everything in a folder, at any depth."""
  for place, _, names in os.walk(folder):
    for name in names:
      sync_file(os.path.join(place, name))
    sync_folder(place)


class FileLock:
  """Holds a file for one owner, by a lock of the operating system.

  Released when the process exits, however it exits, even if processes that it forked
  live on. Two owners in one process exclude each other as well.
  """

  def __init__(self, path: str, refusal: Callable[[str], Exception]) -> None:
    """Takes the lock.

    Args:
      path: path of the file, made if it is missing; its folder exists. It holds the
        name of the owner and stays when the lock is released.
      refusal: makes the error to raise for the owner, 'process 12 on a-host'.
    Raises:
      Exception: result of `refusal`, if another owner holds the lock.
      OSError: the file cannot be opened, or its file system has no locks.
    """
    self._descriptor = -1
    while self._descriptor < 0:
      self._descriptor = _take(path, refusal)
    _held.add(self)

  def release(self) -> None:
    """Releases the lock; does nothing the second time."""
    if self._descriptor >= 0:
      _held.discard(self)
      # Closing is not enough if a process that is being forked has the descriptor, too.
      fcntl.flock(self._descriptor, fcntl.LOCK_UN)
      self._forget()

  def _forget(self) -> None:
    os.close(self._descriptor)
    self._descriptor = -1


def is_locked(path: str) -> bool:
  """Whether an owner holds the lock of a file."""
  try:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
  except FileNotFoundError:
    return False
  try:
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return False
  except BlockingIOError:
    return True
  finally:
    os.close(descriptor)


# A forked process would keep its parent's locks beyond the parent's death.
_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _forget_all() -> None:
  for lock in list(_held):
    lock._forget()
  _held.clear()


os.register_at_fork(after_in_child=_forget_all)


def _take(path: str, refusal: Callable[[str], Exception]) -> int:
  """Returns the descriptor; -1 if another process removed the file in the meantime."""
  descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
  try:
    # flock, not lockf: two owners in one process exclude each other as well.
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if _is_same_file(descriptor, path):
      os.ftruncate(descriptor, 0)
      os.pwrite(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode(), 0)
      return descriptor
  except BlockingIOError:
    owner = os.pread(descriptor, 256, 0).decode(errors="replace").split()
    os.close(descriptor)
    holder = f"process {owner[1]} on {owner[0]}" if len(owner) == 2 else "another"
    raise refusal(holder) from None
  except BaseException:
    os.close(descriptor)
    raise
  os.close(descriptor)
  return -1


def _is_same_file(descriptor: int, path: str) -> bool:
  try:
    return os.path.samestat(os.fstat(descriptor), os.stat(path))
  except FileNotFoundError:
    return False
