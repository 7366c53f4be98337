"""What a buffer's table knows besides its steps, as JSON values and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.table import Table


def to_state(table: Table) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
  """Returns JSON values and arrays; some of these are the table's own."""
  limiter, lanes = table.limiter, table.lanes
  values = {
    "num_inserts": limiter.num_inserts,
    "num_samples": limiter.num_samples,
    "num_deletes": limiter.num_deletes,
    "num_ignored_updates": table.num_ignored_updates,
    "greatest_priority": table.given.greatest,
    "given": [
      table.given.of_writer(lane, count)
      for lane, count in enumerate(lanes.counts.tolist())
    ],
    "rng": table.rng.bit_generator.state,
  }
  arrays = {
    "counts": lanes.counts,
    "starts": lanes.starts,
    "ends": np.array([end for ends in lanes.ends for end in ends], np.int64),
    "num_ends": np.array([len(ends) for ends in lanes.ends]),
    "marks": lanes.marks,
    **table.items.arrays(),
  }
  if lanes.ages is not None:
    arrays["ages"] = lanes.ages
  return values, arrays


def split_ends(arrays: Mapping[str, np.ndarray]) -> list[list[int]]:
  """Returns where the episodes of each writer ended.

  Args:
    arrays: of `to_state`.
  """
  stops = np.cumsum(arrays["num_ends"])[:-1]
  return [ends.tolist() for ends in np.split(arrays["ends"], stops)]


def load_lanes(lanes: Lanes, arrays: Mapping[str, np.ndarray]) -> None:
  """Sets which steps and items there are.

  Args:
    lanes: without steps.
    arrays: of `to_state`.
  """
  lanes.counts[:] = arrays["counts"]
  lanes.starts[:] = arrays["starts"]
  lanes.dead[:] = np.maximum(lanes.counts - lanes.num_slots, 0)
  for ends, saved in zip(lanes.ends, split_ends(arrays), strict=True):
    ends.extend(saved)
  lanes.marks[:] = arrays["marks"]
  lanes.num_items = int(np.count_nonzero(lanes.marks))
  if lanes.ages is not None:
    lanes.ages[:] = arrays["ages"]


def load_items(
  table: Table, values: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
  """Sets everything else; items go if there are more than there may be now.

  Args:
    table: whose lanes are set.
    values: of `to_state`.
    arrays: of `to_state`.
  """
  limiter = table.limiter
  limiter.num_inserts = values["num_inserts"]
  limiter.num_samples = values["num_samples"]
  limiter.num_deletes = values["num_deletes"]
  table.num_ignored_updates = values["num_ignored_updates"]
  table.given.greatest = values["greatest_priority"]
  for lane, saved in enumerate(values["given"]):
    for step, priority in saved:
      table.given.put(lane, step, priority)
  table.rng.bit_generator.state = values["rng"]
  table.items.load(arrays)
  table.remove_surplus()
