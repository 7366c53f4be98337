"""The episodes of a ring: which there are, to a store, and back into their rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from t2r_seq.replay.memory.contexts import Contexts
from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.ring import Ring
from t2r_seq.store import EpisodeStore, EpisodeWriter

# Steps are copied out of the ring in blocks of this size.
_BLOCK_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class HeldEpisode:
  """The part of an episode that is in a ring.

  Attributes:
    lane: whose it is.
    first: its oldest step that is held.
    end: the step after its newest.
  """

  lane: int
  first: int
  end: int


def held_episodes(
  counts: np.ndarray, all_ends: Sequence[Iterable[int]], num_slots: int
) -> list[HeldEpisode]:
  """Lists the episodes of which a step is held, by writer, the oldest first.

  Args:
    counts: steps of each writer so far.
    all_ends: of each writer, where its episodes ended.
    num_slots: steps of each writer that are held.
  """
  found = []
  for lane, (count, ends) in enumerate(zip(counts.tolist(), all_ends, strict=True)):
    first = max(0, count - num_slots)
    for end in (*ends, count):
      if end > first:
        found.append(HeldEpisode(lane, first, end))
        first = end
  return found


def write_episode(
  writer: EpisodeWriter,
  ring: Ring,
  contexts: Contexts,
  lanes: Lanes,
  episode: HeldEpisode,
) -> None:
  """Appends an episode to a store, in blocks."""
  rows = np.zeros(0, np.int64)
  for rows in _blocks_of_rows(ring, lanes, episode):
    writer.append_steps({p: column.take(rows, 0) for p, column in ring.columns.items()})
  last = rows[-1:]
  writer.end_episode({path: contexts.take(path, last)[0] for path in contexts.columns})


def read_episode(
  store: EpisodeStore,
  index: int,
  ring: Ring,
  contexts: Contexts,
  lanes: Lanes,
  episode: HeldEpisode,
) -> None:
  """Puts an episode of a store into the rows that it had."""
  values = store.episode(index)
  if contexts:
    contexts.begin(episode.lane, {path: values[path][()] for path in contexts.columns})
  start = 0
  for rows in _blocks_of_rows(ring, lanes, episode):
    for path, column in ring.columns.items():
      column[rows] = values[path][start : start + len(rows)]
    if contexts:
      for row in rows.tolist():
        contexts.add_step(episode.lane, row)
    start += len(rows)


def _blocks_of_rows(
  ring: Ring, lanes: Lanes, episode: HeldEpisode
) -> Iterator[np.ndarray]:
  """Yields the rows of an episode, int64 [n], some at a time."""
  size = max(1, _BLOCK_BYTES // ring.row_bytes)
  for first in range(episode.first, episode.end, size):
    steps = np.arange(first, min(first + size, episode.end))
    yield steps % lanes.num_slots * lanes.num_writers + episode.lane
