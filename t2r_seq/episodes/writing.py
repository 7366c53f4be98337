"""The staging folder of a new data set, and the copy of episodes to a writer."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import NamedTuple

from t2r_seq import errors, files
from t2r_seq.episodes.episodes import EpisodeWriter, num_bytes, num_steps
from t2r_seq.episodes.views import Episodes
from t2r_seq.progress import Progress

_COMMIT_EPISODES = 100
_COMMIT_BYTES = 1 << 26


class Staging:
  """The folder `<path>.partial` of a data set that is not yet complete.

  It has one writer at a time, and is empty at first: leftovers of a killed writer are
  removed.
  """

  def __init__(self, path: str) -> None:
    """Makes and locks the folder; ConversionError if another writer has it."""
    self._path = os.path.normpath(path)
    self._folder = f"{self._path}.partial"
    files.make_folders(self._folder)
    self._lock = files.FileLock(
      self.place("lock"),
      lambda owner: errors.ConversionError(
        f"write: {path}: expected no other writer of it, got {owner}. Wait for it to "
        "end."
      ),
    )
    for entry in os.scandir(self._folder):
      if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
      elif entry.name != "lock":
        os.remove(entry.path)

  def place(self, name: str) -> str:
    """Returns the path of a file or folder in the folder."""
    return os.path.join(self._folder, name)

  def publish(self, name: str) -> None:
    """Moves a complete file or folder to the path of the data set."""
    files.publish(self.place(name), self._path)
    self.close()

  def close(self) -> None:
    """Removes the folder, and releases the lock."""
    shutil.rmtree(self._folder, ignore_errors=True)
    self._lock.release()


class Copied(NamedTuple):
  """The numbers of copied episodes, steps and bytes."""

  num_episodes: int
  num_steps: int
  num_bytes: int


def copy_episodes(
  operation: str,
  episodes: Episodes,
  writer: EpisodeWriter,
  progress: Progress | None = None,
) -> Copied:
  """Writes the episodes that a writer has not yet committed; completes the data set.

  If it fails, whole episodes stay committed, as far as the format allows.

  Raises:
    ConversionError: an episode does not fit the format, or no episode exists.
  """
  # Writers that copy videos without re-encoding read their own view of the episodes.
  source = episodes if writer.episodes is None else writer.episodes
  start = writer.num_committed
  count = steps = copied_bytes = uncommitted = uncommitted_bytes = 0
  if progress:
    progress.start("converting", start, source.num_episodes)
  try:
    for number, episode in enumerate(source.iterate(start), start):
      try:
        writer.append(episode.values)
      except errors.SpecError as error:
        raise errors.ConversionError(
          f"{operation}: episode {number} ({episode.place}): {error}"
        ) from error
      episode_bytes = num_bytes(episode.values)
      count, copied_bytes = count + 1, copied_bytes + episode_bytes
      steps += num_steps(episode.values, source.spec)
      uncommitted += 1
      uncommitted_bytes += episode_bytes
      if uncommitted == _COMMIT_EPISODES or uncommitted_bytes >= _COMMIT_BYTES:
        writer.commit()
        uncommitted = uncommitted_bytes = 0
      if progress:
        progress.advance(episode_bytes, episode.fraction_done)
    if not start + count:
      raise errors.ConversionError(
        f"{operation}: {episodes.path}: expected at least one episode, got none."
      )
    writer.finish()
  except BaseException:
    with contextlib.suppress(OSError, errors.SpecError):
      writer.commit()
    with contextlib.suppress(OSError, errors.SpecError):
      writer.close()
    raise
  writer.close()
  return Copied(count, steps, copied_bytes)
