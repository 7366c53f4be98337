"""Writers of a `ReplayBuffer`: for one environment, and for all in step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.replay.memory.step_packing import StepPacking
from t2r_seq.replay.memory.table import Table
from t2r_seq.replay.priorities import to_priorities, to_priority
from t2r_seq.replay.replay import ReplayVectorWriter, ReplayWriter
from t2r_seq.replay.vector_writer import (
  appended_before,
  check_is_last,
  check_vector,
  close_writers,
)
from t2r_seq.store import values as store_values
from t2r_seq.store.layout import Columns

# Values in the order of the ring's columns, and context features by path.
Packed = tuple[list[Any], dict[str, np.ndarray]]


class MemoryWriter(ReplayWriter):
  """Appends the steps of one environment."""

  def __init__(
    self, table: Table, columns: Columns, lane: int, free: Callable[[int], None]
  ) -> None:
    """Opens a writer; `ReplayBuffer.writer` does so.

    Args:
      table: to write to.
      columns: of a step and of an episode.
      lane: which of the writers it is.
      free: called with it when the writer is closed.
    """
    self._table = table
    self._packing = StepPacking(columns)
    self._lane = lane
    self._free: Callable[[int], None] | None = free

  def append(self, step: Any, priority: float | None = None) -> None:
    """Appends one step; see `ReplayWriter.append`."""
    if priority is not None:
      priority = to_priority("append", priority)
    self.append_packed(*self.pack(step), priority)

  def pack(self, step: Any) -> Packed:
    """Checks a step that comes next; appends nothing."""
    table, lane = self._table, self._lane
    context = None
    if table.contexts and table.lanes.counts.item(lane) > table.lanes.starts.item(lane):
      context = table.contexts.of_newest(lane)
    return self._packing.pack(step, context)

  def append_packed(
    self,
    values: list[Any],
    context: Mapping[str, np.ndarray],
    priority: float | None,
  ) -> None:
    """Appends a step that was packed."""
    with self._table.lock:
      self.check_open("append")
      self._table.append(self._lane, values, context, priority, self.should_stop)

  def end_episode(self) -> None:
    """Ends the episode; see `ReplayWriter.end_episode`."""
    with self._table.lock:
      self.check_open("end_episode")
      self._table.end_episode(self._lane, self.should_stop)

  def close(self) -> None:
    """Ends the episode and gives the writer's part of the ring back.

    Raises:
      ReplayTimeoutError: as `end_episode`; it is closed all the same.
    """
    with self._table.lock:
      if self._free is None:
        return
      try:
        if not self._table.is_closed:
          self._table.end_episode(self._lane, self.should_stop)
      finally:
        self._free(self._lane)
        self._free = None

  def check_open(self, operation: str) -> None:
    """Raises ReplayError once the writer, or the replay, is closed."""
    self._table.check_open(operation)
    if self._free is None:
      raise errors.ReplayError(
        f"{operation}: expected an open writer, got a closed one. Ask the replay for "
        "another writer()."
      )


class MemoryVectorWriter(ReplayVectorWriter):
  """Appends the steps of all environments: a block of rows, where they are in step."""

  def __init__(self, writers: list[MemoryWriter], table: Table, columns: Columns):
    """Opens the writer; `ReplayBuffer.vector_writer` does so.

    Args:
      writers: one for each of the table's writers, in their order.
      table: to write to.
      columns: of a step and of an episode.
    """
    self._writers = writers
    self._table = table
    self._columns = columns
    self._packing = StepPacking(columns)

  def append(self, steps: Any, priorities: Any = None) -> None:
    """Appends one step to each episode; see `ReplayVectorWriter.append`.

    Raises:
      ReplayTimeoutError: nothing is appended where none of the items was let in. Where
        some were, the steps of `num_appended` environments have been, all of them if
        no part of the ring is ahead of another; items not let in are left out.
    """
    num, table = len(self._writers), self._table
    flat: Mapping[str, Any] = steps
    if steps.__class__ is not dict or steps.keys() != self._columns.keys():
      flat = dict(store_values.leaves(steps, self._columns))
    if priorities is not None:
      priorities = to_priorities("append", priorities, (num,))
    if table.contexts or not table.lanes.are_in_step():
      self._append_each(flat, priorities)
      return
    values = self._packing.pack_many(flat, num)
    with table.lock:
      self._writers[0].check_open("append")
      table.append_to_all(values, priorities)

  def _append_each(
    self, flat: Mapping[str, Any], priorities: np.ndarray | None
  ) -> None:
    check_vector("append", flat, len(self._writers))
    # All of them first: where one does not fit, none is appended.
    packed = [
      writer.pack({path: value[lane] for path, value in flat.items()})
      for lane, writer in enumerate(self._writers)
    ]
    for lane, (writer, step) in enumerate(zip(self._writers, packed, strict=True)):
      priority = None if priorities is None else priorities.item(lane)
      with appended_before(lane):
        writer.append_packed(*step, priority)

  def end_episodes(self, is_last: Any = None) -> None:
    """Ends episodes; see `ReplayVectorWriter.end_episodes`."""
    for lane in np.flatnonzero(check_is_last(is_last, len(self._writers))):
      self._writers[lane].end_episode()

  def close(self) -> None:
    """Ends the episodes and gives all parts of the ring back."""
    close_writers(self._writers)
