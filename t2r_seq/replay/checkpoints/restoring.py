"""Restoring a buffer from a checkpoint: it goes on as the one that was saved."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping
from typing import Any

from t2r_seq import errors
from t2r_seq.replay.checkpoints import publishing, state_file, table_state
from t2r_seq.replay.checkpoints.held_episodes import held_episodes, read_episode
from t2r_seq.replay.checkpoints.loading import nothing_waits
from t2r_seq.replay.checkpoints.saving import EPISODES
from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.table import Table
from t2r_seq.store import EpisodeStore, verify_store

# What a checkpoint says of a buffer's windows.
ANCHORS = "the windows' anchors"


def restore(
  table: Table, identity: dict[str, Any], path: str, free_lanes: Container[int]
) -> str:
  """Restores a buffer that nothing has been appended to.

  Args:
    table: of the buffer.
    identity: JSON values that the buffer was saved with, if it is of this kind.
    path: of a checkpoint, or of a folder of them: then it is the newest.
    free_lanes: that no writer has; one who asks for them ends what goes on there.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: there is no checkpoint, it is damaged or of another kind of buffer,
      or this buffer has steps already.
  """
  checkpoint = publishing.find(os.path.abspath(path))
  values, arrays = state_file.read(checkpoint)
  _check_identity(checkpoint, identity, values.pop("identity"))
  store = _open_episodes(checkpoint)
  with table.lock:
    table.check_open("restore")
    _check_empty(table.lanes)
    ends = table_state.split_ends(arrays)
    episodes = held_episodes(arrays["counts"], ends, table.lanes.num_slots)
    _check_lengths(store, [episode.end - episode.first for episode in episodes])
    for index, episode in enumerate(episodes):
      read_episode(store, index, table.ring, table.contexts, table.lanes, episode)
    table_state.load_lanes(table.lanes, arrays)
    table_state.load_items(table, values, arrays)
    with nothing_waits(table):
      for lane in range(table.lanes.num_writers):
        if lane not in free_lanes:
          table.end_episode(lane)
  return checkpoint


def _check_identity(
  checkpoint: str, want: Mapping[str, Any], got: Mapping[str, Any]
) -> None:
  found = [
    errors.Mismatch(name, _text(want.get(name)), _text(got.get(name)), _hint(name))
    for name in {**want, **got}
    if _text(want.get(name)) != _text(got.get(name))
  ]
  if found:
    raise errors.mismatch_error(
      f"restore: {checkpoint}, which is of another replay (expected is what this "
      "buffer has)",
      found,
      errors.ReplayError,
    )


def _hint(name: str) -> str:
  if name != ANCHORS:
    return ""
  return "They follow from padding, sequence_length, stride, shift and n_step."


def _text(value: Any) -> str:
  return "nothing" if value is None else json.dumps(value, sort_keys=True)


def _check_empty(lanes: Lanes) -> None:
  if lanes.counts.any():
    raise errors.ReplayError(
      f"restore: expected a buffer without steps, got one of {lanes.num_steps}. "
      "Restore before anything is appended."
    )


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
