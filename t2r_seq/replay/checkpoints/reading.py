"""Reading a checkpoint back from the disk, checked to its last byte."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.replay.checkpoints import state_file, table_state
from t2r_seq.replay.checkpoints.held_episodes import HeldEpisode, held_episodes
from t2r_seq.store import EpisodeStore, verify_store

EPISODES = "episodes"
# What a checkpoint says of the part of the ring that each writer had.
NUM_SLOTS = "steps for each writer"


@dataclasses.dataclass(frozen=True)
class Saved:
  """A whole checkpoint.

  Attributes:
    path: of it.
    values: of `table_state.to_state`, and the buffer's identity.
    arrays: of `table_state.to_state`.
    episodes: that were held.
    store: of the same episodes.
  """

  path: str
  values: dict[str, Any]
  arrays: dict[str, np.ndarray]
  episodes: list[HeldEpisode]
  store: EpisodeStore


def read(checkpoint: str) -> Saved:
  """Reads a checkpoint.

  Args:
    checkpoint: its path.
  Raises:
    ReplayError: it is damaged.
  """
  values, arrays = state_file.read(checkpoint)
  store = _open_episodes(checkpoint)
  ends = table_state.split_ends(arrays)
  num_slots = values["identity"][NUM_SLOTS]
  episodes = held_episodes(arrays["counts"], ends, num_slots)
  _check_lengths(store, [episode.end - episode.first for episode in episodes])
  return Saved(checkpoint, values, arrays, episodes, store)


def is_whole(checkpoint: str) -> bool:
  """Whether a checkpoint can be read."""
  try:
    read(checkpoint)
  except errors.ReplayError:
    return False
  return True


def _open_episodes(checkpoint: str) -> EpisodeStore:
  """Opens the store of a checkpoint, whose bytes are those that were saved."""
  try:
    store = EpisodeStore(os.path.join(checkpoint, EPISODES))
    found = [str(problem) for problem in verify_store(store.path).problems]
  except errors.SpecError as error:
    raise errors.ReplayError(
      f"restore: {checkpoint}: expected the episodes that were saved, got damaged ones "
      f"or none: {error} Restore a former checkpoint."
    ) from error
  if found:
    raise errors.ReplayError(
      f"restore: {store.path}: expected the bytes that were saved, got\n  "
      + "\n  ".join(found)
      + "\nRestore a former checkpoint."
    )
  return store


def _check_lengths(store: EpisodeStore, lengths: list[int]) -> None:
  if store.episode_lengths.tolist() != lengths:
    raise errors.ReplayError(
      f"restore: {store.path}: expected episodes of {sum(lengths)} steps, as the state "
      f"beside it says, got {len(store)} episodes of {store.num_steps} steps. The "
      "checkpoint was changed: restore another one."
    )
