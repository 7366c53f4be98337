"""Saving a buffer: its episodes as a store, and beside it everything else."""

from __future__ import annotations

import os
import shutil
from typing import Any

from t2r_seq import errors, specs
from t2r_seq.replay.checkpoints import (
  publishing,
  reading,
  state_file,
  table_state,
)
from t2r_seq.replay.checkpoints.held_episodes import held_episodes, write_episode
from t2r_seq.replay.memory.table import Table
from t2r_seq.store import EpisodeStore
from t2r_seq.store.layout import Columns


def save(
  table: Table, columns: Columns, identity: dict[str, Any], folder: str, keep: int
) -> str:
  """Saves a buffer; writers and samplers wait meanwhile, as at a Reverb server.

  Args:
    table: of the buffer.
    columns: of a step and of an episode.
    identity: JSON values that a buffer must have to be restored from this.
    folder: of checkpoints.
    keep: how many whole ones to keep.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: the buffer is closed, or another one is being saved there.
    OSError: the disk is full or failed; the former checkpoints are as they were.
  """

  def write(place: str) -> None:
    with table.lock:
      table.check_open("checkpoint")
      export(table, columns, os.path.join(place, reading.EPISODES))
      values, arrays = table_state.to_state(table)
      state_file.write(place, {**values, "identity": identity}, arrays)

  # Former ones, of which damaged ones are found out, keep nobody waiting.
  return publishing.publish(os.path.abspath(folder), write, keep, reading.is_whole)


def export(table: Table, columns: Columns, path: str) -> int:
  """Writes the episodes that are held to a new store, each step once.

  Args:
    table: of the buffer.
    columns: of a step and of an episode.
    path: of the store.
  Returns:
    The number of episodes.
  Raises:
    StoreError: there is something at the path already.
    OSError: the disk is full or failed; nothing is left of the store.
  """
  flat = specs.TensorSpecStruct((p, column.spec) for p, column in columns.items())
  with table.lock:
    table.check_open("to_store")
    lanes = table.lanes
    episodes = held_episodes(lanes.counts, lanes.ends, lanes.num_slots)
    was_empty, is_new = _is_empty_folder(path), not os.path.lexists(path)
    try:
      with EpisodeStore.create(
        path, flat, commit_every=len(episodes) + 1, allow_nan=True
      ) as writer:
        for episode in episodes:
          write_episode(writer, table.ring, table.contexts, lanes, episode)
    except errors.StoreError:
      raise  # Something was there already.
    except BaseException:
      # An empty store would be in the way of another try.
      if is_new or was_empty:
        _remove(path, keep=was_empty)
      raise
  return len(episodes)


def _is_empty_folder(path: str) -> bool:
  return os.path.isdir(path) and not os.listdir(path)


def _remove(path: str, keep: bool) -> None:
  """Removes what was begun; keeps the folder itself if it was there before."""
  names = [path]
  if keep:
    names = [os.path.join(path, name) for name in os.listdir(path)]
  for name in names:
    if os.path.isdir(name):
      shutil.rmtree(name, ignore_errors=True)
    elif os.path.lexists(name):
      os.remove(name)
