"""`CheckpointFolder`: what a server has saved, and which of it can be restored."""

from __future__ import annotations

import os
import shutil
import threading
import zlib

from absl import logging

from t2r_seq import errors, files
from t2r_seq.replay.arguments import bad_checkpoint_dir

INCOMING = "incoming"
_DONE = "DONE"
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord")
_READ_BYTES = 1 << 16


class CheckpointFolder:
  """The folder of one server's checkpoints.

  Reverb marks a checkpoint as done, and removes the former one, without having looked
  whether the last kilobytes of its files found room on the disk. So it writes to a
  folder of its own; what is whole is moved beside that, and only then the former one
  goes. Nothing else is ever restored.

  A client's `checkpoint` has Reverb write without a word to the server's own code: the
  server looks for such ones, and takes them in before Reverb removes them for others.

  Attributes:
    path: of the folder; each whole checkpoint is a folder in it.
    incoming: where Reverb writes.
    lock: to be held by whoever has Reverb write, until it is taken in.
  """

  def __init__(self, path: str) -> None:
    """Creates the folder if there is none; raises ReplayError if it cannot."""
    self.path = path
    self.incoming = os.path.join(path, INCOMING)
    self.lock = threading.Lock()
    self._seen: set[str] = set()
    try:
      os.makedirs(self.incoming, exist_ok=True)
    except OSError as error:
      raise bad_checkpoint_dir("ReplayServer", path, str(error)) from error

  def newest(self) -> str | None:
    """Returns the newest whole checkpoint, and clears away what never became one.

    Raises:
      ReplayError: there are checkpoints, and all of them are damaged.
    """
    done = [*_done(self.path), *_done(self.incoming)]
    damaged: list[str] = []
    for path in sorted(done, key=os.path.basename, reverse=True):
      if is_whole(path):
        if damaged:
          names = errors.listing(damaged)
          logging.error("ReplayServer: %s: damaged; restored is %s", names, path)
        kept = self._keep(path)
        for other in _done(self.incoming):
          shutil.rmtree(other, ignore_errors=True)
        self.clear()
        return kept
      damaged.append(path)
    if damaged:
      raise errors.ReplayError(
        f"ReplayServer: checkpoint: {damaged[0]}: expected whole files, got damaged "
        "ones, and no other checkpoint. Move it away, or use another folder."
      )
    self.clear()
    return None

  def take_in(self, path: str) -> str:
    """Takes in what Reverb has written; the former checkpoint goes.

    Args:
      path: of the checkpoint.
    Returns:
      Its path from now on.
    Raises:
      ReplayError: it is not whole, or the disk failed; the former one stays.
    """
    if not is_whole(path):
      shutil.rmtree(path, ignore_errors=True)
      raise not_whole(self.path)
    try:
      kept = self._keep(path)
    except OSError as error:
      shutil.rmtree(path, ignore_errors=True)
      raise errors.ReplayError(
        f"ReplayServer: checkpoint: {self.path}: expected a disk that takes it, got: "
        f"{error}. The former checkpoint stays."
      ) from error
    self.clear()
    return kept

  def take_in_those_of_clients(self) -> None:
    """Takes in what Reverb has written for clients; says so where it is not whole.

    Only what an earlier look has seen, too: Reverb has turned to something else by now.
    """
    with self.lock:
      seen, self._seen = self._seen, set(_done(self.incoming))
      for path in sorted(self._seen & seen):
        if not is_whole(path):
          shutil.rmtree(path, ignore_errors=True)
          logging.error("%s", not_whole(self.path))
        elif is_kept(kept_path(path)):  # There is a later one.
          shutil.rmtree(path, ignore_errors=True)
        else:
          self._keep(path)

  def clear(self) -> None:
    """Removes what Reverb began to write: on a full disk it would take the room."""
    done = _done(self.incoming)
    for name in os.listdir(self.incoming):
      if (path := os.path.join(self.incoming, name)) not in done:
        shutil.rmtree(path, ignore_errors=True)

  def _keep(self, path: str) -> str:
    kept = os.path.join(self.path, os.path.basename(path))
    if path != kept:
      _sync(path)
      os.rename(path, kept)
      files.sync_folder(self.path)
    for other in _done(self.path):
      if other != kept:
        shutil.rmtree(other, ignore_errors=True)
    return kept


def kept_path(path: str) -> str:
  """Returns where a checkpoint that a client was told of is kept, if it is whole."""
  folder, name = os.path.split(path)
  parent, last = os.path.split(folder)
  return os.path.join(parent, name) if last == INCOMING else path


def is_kept(path: str) -> bool:
  """Returns whether there is a checkpoint, or a later one that took its place."""
  folder, name = os.path.split(path)
  return any(os.path.basename(other) >= name for other in _done(folder))


def not_whole(path: str) -> errors.ReplayError:
  """Returns the error for a checkpoint that found no room in a folder."""
  return errors.ReplayError(
    f"ReplayServer: checkpoint: {path}: expected a folder with room for it, got files "
    "without their ends. Free some of the disk. The former checkpoint stays."
  )


def is_whole(path: str) -> bool:
  """Returns whether all files of a checkpoint are there to their ends."""
  return all(_has_end(os.path.join(path, name)) for name in _FILES)


def _has_end(path: str) -> bool:
  """Returns whether the compressed data of a file end, with the right checksum."""
  stream = zlib.decompressobj()
  try:
    with open(path, "rb") as file:
      while not stream.eof and (data := file.read(_READ_BYTES)):
        stream.decompress(data)
  except (OSError, zlib.error):
    return False
  return stream.eof


def _sync(path: str) -> None:
  """Returns when a checkpoint is on the disk: Reverb leaves that to the system."""
  for name in (*_FILES, _DONE):
    with open(os.path.join(path, name), "rb") as file:
      os.fsync(file.fileno())
  files.sync_folder(path)


def _done(folder: str) -> list[str]:
  """Returns the checkpoints of a folder that Reverb calls done."""
  paths = (os.path.join(folder, name) for name in os.listdir(folder))
  return [path for path in paths if os.path.exists(os.path.join(path, _DONE))]
