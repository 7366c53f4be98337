"""Power cuts: what the disk may hold at any moment, as far as nothing was synced.

Calls that change names, and those that sync, are watched. A file's contents are on the
disk as they were when it was last synced, and the names of a folder as they were when
that was. What came later may be there or not, each for itself: a written file whole, in
part or as zeros, a name with or without it. `PowerCuts.image` makes such a disk, out of
the present one; what a program promised before has to be found on it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

_CALLS = (
  "open",
  "mkdir",
  "fsync",
  "replace",
  "rename",
  "unlink",
  "rmdir",
  "pwrite",
  "write",
)


class PowerCuts:
  """Watches the files below a folder, and cuts the power at random calls.

  A context manager. Files that were there before are on the disk.
  """

  def __init__(
    self,
    root: str,
    rng: random.Random,
    on_cut: Callable[[PowerCuts], None],
    share: float = 0.1,
  ) -> None:
    """Begins to watch only when it is entered.

    Args:
      root: the folder, which is there.
      rng: draws the moments, and what is lost.
      on_cut: is called at each cut, between two calls; may make an `image`.
      share: of the calls that a cut comes before.
    """
    self._root = os.path.realpath(root)
    self._rng = rng
    self._on_cut = on_cut
    self._share = share
    self._is_busy = False
    self._originals: dict[str, Any] = {}
    # By inode: contents of files, and names of folders with their inodes.
    self._contents: dict[int, bytes] = {}
    self._names: dict[int, dict[str, int]] = {}
    self._folders: set[int] = set()

  def __enter__(self) -> PowerCuts:
    self._start()
    for name in _CALLS:
      self._originals[name] = getattr(os, name)
      setattr(os, name, self._watched(name))
    return self

  def __exit__(self, *unused: object) -> None:
    for name, original in self._originals.items():
      setattr(os, name, original)

  def _start(self) -> None:
    for place, folders, names in os.walk(self._root):
      self._sync_folder(place)
      for name in names:
        self._sync_file(os.path.join(place, name))
      self._folders.update(os.stat(os.path.join(place, n)).st_ino for n in folders)
    self._folders.add(os.stat(self._root).st_ino)

  def _watched(self, name: str) -> Callable[..., Any]:
    original = self._originals[name]

    def call(*args: Any, **kwargs: Any) -> Any:
      if self._is_busy:
        return original(*args, **kwargs)
      self._is_busy = True
      try:
        if self._rng.random() < self._share:
          self._on_cut(self)
        is_new = name in ("mkdir", "open") and not os.path.lexists(args[0])
        result = original(*args, **kwargs)
        if name == "fsync":
          self._synced(args[0])
        elif is_new and os.path.realpath(args[0]).startswith(self._root):
          self._made(os.lstat(args[0]).st_ino, name == "mkdir")
        return result
      finally:
        self._is_busy = False

    return call

  def _made(self, inode: int, is_folder: bool) -> None:
    """A number that is used anew belongs to something that is on no disk yet."""
    self._contents.pop(inode, None)
    self._names.pop(inode, None)
    self._folders.discard(inode)
    if is_folder:
      self._folders.add(inode)

  def _synced(self, descriptor: int) -> None:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    if os.path.isdir(path):
      self._sync_folder(path)
    elif os.path.isfile(path):
      self._sync_file(path)

  def _sync_file(self, path: str) -> None:
    with open(path, "rb") as file:
      self._contents[os.stat(path).st_ino] = file.read()

  def _sync_folder(self, path: str) -> None:
    inode = os.stat(path).st_ino
    self._folders.add(inode)
    self._names[inode] = _list(path)

  def image(self, target: str) -> None:
    """Makes what the disk may hold now.

    Args:
      target: a folder, which is made.
    """
    live: dict[int, str] = {os.stat(self._root).st_ino: self._root}
    for place, folders, names in os.walk(self._root):
      for name in (*folders, *names):
        path = os.path.join(place, name)
        live[os.lstat(path).st_ino] = path
    kept: dict[int, dict[str, int]] = {}
    for inode in {*self._names, *live} & (self._folders | {*self._names}):
      before = self._names.get(inode, {})
      now = _list(live[inode]) if inode in live else {}
      kept[inode] = self._some(before, now)
    # A name that moved is at one of the two places, if it was on the disk.
    for inode, before in self._names.items():
      for name, child in before.items():
        is_lost = not any(child in names.values() for names in kept.values())
        if is_lost and (child in live or self._rng.random() < 0.5):
          kept.setdefault(inode, {}).setdefault(name, child)
    self._write(os.stat(self._root).st_ino, target, kept, live)

  def _some(self, before: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    found = {}
    for name in sorted({*before, *now}):
      choice = self._rng.choice([before, now])
      if name in choice:
        found[name] = choice[name]
    return found

  def _write(
    self,
    inode: int,
    target: str,
    kept: dict[int, dict[str, int]],
    live: dict[int, str],
  ) -> None:
    os.mkdir(target)
    for name, child in sorted(kept.get(inode, {}).items()):
      path = os.path.join(target, name)
      if child in self._folders:
        self._write(child, path, kept, live)
      else:
        with open(path, "wb") as file:
          file.write(self._content(child, live))

  def _content(self, inode: int, live: dict[int, str]) -> bytes:
    synced = self._contents.get(inode, b"")
    if inode not in live:
      return synced
    with open(live[inode], "rb") as file:
      now = file.read()
    if now == synced:
      return now
    kind = self._rng.choice(["synced", "now", "cut", "zeros"])
    if kind == "synced":
      return synced
    if kind == "now":
      return now
    # What was synced and is unchanged stays: only what is new can be lost.
    same = next(
      (i for i, (a, b) in enumerate(zip(synced, now, strict=False)) if a != b),
      min(len(synced), len(now)),
    )
    place = self._rng.randint(same, len(now))
    return now[:place] + (bytes(len(now) - place) if kind == "zeros" else b"")


def _list(folder: str) -> dict[str, int]:
  return {entry.name: entry.inode() for entry in os.scandir(folder)}
