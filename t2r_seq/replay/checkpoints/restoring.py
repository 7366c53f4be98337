"""Restoring a buffer from a checkpoint: it goes on as the one that was saved."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Mapping
from typing import Any

from absl import logging

from t2r_seq import errors
from t2r_seq.replay.checkpoints import publishing, reading, table_state
from t2r_seq.replay.checkpoints.held_episodes import read_episode
from t2r_seq.replay.checkpoints.loading import nothing_waits
from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.table import Table

# What a checkpoint says of a buffer's windows.
ANCHORS = "the windows' anchors"


def restore(
  table: Table, identity: dict[str, Any], path: str, free_lanes: Container[int]
) -> str:
  """Restores a buffer that nothing has been appended to.

  Args:
    table: of the buffer.
    identity: JSON values that the buffer was saved with, if it is of this kind.
    path: of a checkpoint, or of a folder of them: then it is the newest whole one.
    free_lanes: that no writer has; one who asks for them ends what goes on there.
  Returns:
    The path of the checkpoint.
  Raises:
    ReplayError: there is no checkpoint, all are damaged, it is of another kind of
      buffer, or this buffer has steps already.
  """
  saved = _newest_whole(os.path.abspath(path))
  values, arrays = saved.values, saved.arrays
  _check_identity(saved.path, identity, values["identity"])
  with table.lock:
    table.check_open("restore")
    _check_empty(table.lanes)
    for index, episode in enumerate(saved.episodes):
      read_episode(saved.store, index, table.ring, table.contexts, table.lanes, episode)
    table_state.load_lanes(table.lanes, arrays)
    table_state.load_items(table, values, arrays)
    with nothing_waits(table):
      for lane in range(table.lanes.num_writers):
        if lane not in free_lanes:
          table.end_episode(lane)
  return saved.path


def _newest_whole(path: str) -> reading.Saved:
  """Reads the newest checkpoint that is not damaged; says which ones are.

  Raises:
    ReplayError: there is none; all damaged ones are named.
  """
  damaged: list[errors.ReplayError] = []
  for checkpoint in publishing.find(path):
    try:
      saved = reading.read(checkpoint)
    except errors.ReplayError as error:
      damaged.append(error)
      continue
    for why in damaged:
      logging.warning("Passed over for %s: %s", checkpoint, why)
    return saved
  if len(damaged) == 1:
    raise damaged[0]
  raise errors.ReplayError(
    f"restore: {path}: expected a whole checkpoint, got {len(damaged)} damaged ones:\n"
    + "\n".join(f"  {why}" for why in damaged)
  )


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
