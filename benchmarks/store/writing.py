"""Writing: the store's writer against `ndarray.tofile` of the same arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks.measure import Candidate, Round, Run
from benchmarks.store import works
from benchmarks.store.floors import Floor
from benchmarks.store.works import Episode, Work
from t2r_seq import windows
from t2r_seq.store import EpisodeStore


@dataclasses.dataclass(frozen=True)
class WritingWork:
  """Episodes to write, again and again, to an empty folder.

  Attributes:
    episodes: what they look like; a few of them are held in memory and go in turns.
    sync_every: episodes between two syncs to the disk; the last one is followed by one.
    num_held: episodes in memory.
  """

  episodes: Work
  sync_every: int = 20
  num_held: int = 10


def store(work: WritingWork) -> Run:
  """Makes the run that appends to a store; units are megabytes."""
  flat = windows.flat_specs(works.window_specs(work.episodes))

  def write(folder: str, episodes: list[Episode]) -> None:
    path = os.path.join(folder, "store")
    with EpisodeStore.create(path, flat, commit_every=work.sync_every) as writer:
      for episode in episodes:
        writer.append_episode(episode)

  return _write_all(work, write)


def tofile(work: WritingWork, sync: bool = True) -> Run:
  """Makes the run of `ndarray.tofile`, a file a field; units are megabytes.

  Args:
    work: to do.
    sync: calls fsync on every file as often as the store commits; otherwise never.
  Returns:
    The run.
  """

  def write(folder: str, episodes: list[Episode]) -> None:
    targets = {
      name: open(os.path.join(folder, name), "wb")  # noqa: SIM115
      for name in work.episodes.fields
    }
    for number, episode in enumerate(episodes, 1):
      for name, target in targets.items():
        episode[name].tofile(target)
        if sync and (number % work.sync_every == 0 or number == len(episodes)):
          target.flush()
          os.fsync(target.fileno())
    for target in targets.values():
      target.close()

  return _write_all(work, write)


def _write_all(work: WritingWork, write: Callable[[str, list[Episode]], None]) -> Run:
  held = list(itertools.islice(works.make_episodes(work.episodes), work.num_held))
  episodes = [held[i % len(held)] for i in range(work.episodes.num_episodes)]
  num_bytes = sum(values.nbytes for e in episodes for values in e.values())
  folders = []

  def run() -> Round:
    # The last round's files go before this one is timed, and leave no dirty pages.
    for folder in folders:
      shutil.rmtree(folder)
    folders[:] = [tempfile.mkdtemp(dir=work.episodes.folder)]
    os.sync()

    def do_round() -> int:
      write(folders[0], episodes)
      return max(1, num_bytes // 10**6)

    return do_round

  return run


def unique_bytes(episodes: list[Episode]) -> int:
  """Returns the bytes of all values of the episodes."""
  return sum(
    sum(map(len, values.tolist())) if values.dtype == np.object_ else values.nbytes
    for episode in episodes
    for values in episode.values()
  )


CANDIDATES = [
  Candidate("EpisodeWriter", "ours", store),
  Candidate("ndarray.tofile, synced as often", "peer", tofile),
  Candidate(
    "ndarray.tofile, never synced", "limit", functools.partial(tofile, sync=False)
  ),
]

FLOORS = [
  Floor(
    "EpisodeWriter",
    *(("ndarray.tofile, synced as often",), 0.7, "writing: ndarray.tofile, synced"),
  )
]
