"""`ReverbWriter`: steps to items whose chunks are shared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.replay.memory.step_packing import StepPacking
from t2r_seq.replay.priorities import check_priorities
from t2r_seq.replay.replay import ReplayWriter
from t2r_seq.replay.reverb.connection import Connection
from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.layout import ItemLayout
from t2r_seq.replay.reverb.server import TABLE
from t2r_seq.replay.reverb.waiting import LOOK_SECS
from t2r_seq.replay.reverb.wire import to_wire


class ReverbWriter(ReplayWriter):
  """Writes every window as an item as soon as the last step that it shows is there.

  While the server is away, items wait here, and their steps with them; they are sent
  when it is back.
  """

  def __init__(
    self,
    connection: Connection,
    layout: ItemLayout,
    initial_priority: float = 1.0,
    chunk_length: int = 1,
    max_in_flight_items: int = 48,
    should_stop: Callable[[], bool] | None = None,
  ) -> None:
    """Opens the writer.

    Args:
      connection: to the server.
      layout: what items hold.
      initial_priority: of items that are written without one.
      chunk_length: rows that are compressed and stored together.
      max_in_flight_items: written items that the server may not have taken yet.
      should_stop: see `ReplayWriter`.
    Raises:
      ReplayTimeoutError: no server answers for too long, or until it is told to stop.
    """
    self.should_stop = should_stop
    self._connection = connection
    self._layout = layout
    self._packing = StepPacking(layout.columns)
    self._dtypes = {
      path: np.dtype(object) if column.is_bytes else column.dtype
      for path, column in layout.columns.items()
    }
    self._step_paths = [p for p, column in layout.columns.items() if column.is_per_step]
    self._given: dict[str, Any] = {}
    self._initial_priority = initial_priority
    self._max_in_flight_items = max_in_flight_items
    self._reverb = import_reverb()
    self._column = self._reverb.TrajectoryColumn
    # Without a server Reverb crashes in the next call.
    connection.tables("writer", should_stop)
    # A chunk is kept as long as one of its rows is.
    kept = layout.num_rows_kept + chunk_length
    self._writer = connection.client.trajectory_writer(num_keep_alive_refs=kept)
    for name in sorted({column for column, _ in layout.item(0, 1).values()}):
      self._writer.configure(
        (name,), num_keep_alive_refs=kept, max_chunk_length=chunk_length
      )
    self._is_closed = False
    self._begin_episode()

  def append(self, step: Any, priority: float | None = None) -> None:
    """Appends one step; see `ReplayWriter.append`."""
    self._check_open("append")
    if self._is_ending:
      self._end()  # It was interrupted by a timeout.
    values, context = self._packing.pack(step, self._given or None)
    weight = np.asarray(self._initial_priority if priority is None else priority, float)
    check_priorities("append", weight)
    self._flush("insert", self._max_in_flight_items)
    self._given = self._given or context
    given = {**dict(zip(self._step_paths, values, strict=True)), **context}
    self._steps.append({p: to_wire(given[p], self._dtypes[p]) for p in given})
    self._priorities.append(float(weight))
    self._num_steps += 1
    self._write_rows(has_ended=False)

  def end_episode(self) -> None:
    """Ends the episode; see `ReplayWriter.end_episode`."""
    self._check_open("end_episode")
    self._end()

  def close(self) -> None:
    """Ends the episode, and waits until the server has taken all items.

    Raises:
      ReplayTimeoutError: it does not; what it has not taken is lost.
    """
    if self._is_closed:
      return
    self._is_closed = True
    try:
      self._end()
    finally:
      self._writer.close()

  def _end(self) -> None:
    if not self._num_steps:
      return
    self._is_ending = True
    self._write_rows(has_ended=True)
    self._flush("insert", 0)
    self._writer.end_episode(timeout_ms=1000 * LOOK_SECS)
    self._begin_episode()

  def _begin_episode(self) -> None:
    self._num_steps = self._num_rows = self._num_items = 0
    self._steps: deque[dict[str, Any]] = deque(maxlen=self._layout.num_steps_kept)
    self._rows: deque[dict[str, Any]] = deque(maxlen=self._layout.num_rows_kept)
    self._given = {}
    self._context: dict[str, Any] = {}
    self._priorities: list[float] = []
    self._is_ending = False

  def _write_rows(self, has_ended: bool) -> None:
    """Appends the rows that are complete, and the items of complete rows."""
    layout = self._layout
    for number in range(self._num_rows, layout.num_rows(self._num_steps, has_ended)):
      row = layout.row(self._step, number, self._num_steps)
      self._writer.append(row)
      history = self._writer.history
      references = {name: next(iter(history[name][-1:])) for name in row}
      self._context = self._context or references
      self._rows.append(references)
      self._num_rows += 1
      self._write_items(layout.num_items(self._num_rows))
    if has_ended:
      self._write_items(layout.num_items_at_end(self._num_steps))

  def _write_items(self, count: int) -> None:
    for number in range(self._num_items, count):
      rows = self._layout.item(number, self._num_steps)
      item = {name: self._references(*of) for name, of in rows.items()}
      priority = self._priorities[self._layout.first_anchor(number)]
      self._writer.create_item(TABLE, priority, item)
      self._num_items += 1

  def _references(self, name: str, rows: range | int | None) -> Any:
    if rows is None:
      return self._column([self._context[name]], squeeze=True)
    first = self._num_rows - len(self._rows)
    if isinstance(rows, int):
      return self._column([self._rows[rows - first][name]], squeeze=True)
    return self._column([self._rows[row - first][name] for row in rows])

  def _step(self, number: int) -> dict[str, Any]:
    return self._steps[number - self._num_steps + len(self._steps)]

  def _flush(self, operation: str, num_items: int) -> None:
    """Waits until the server has taken all but the last items."""
    waiting, patience = None, self._connection.timeout
    seconds = LOOK_SECS if patience is None else min(LOOK_SECS, patience)
    milliseconds = max(int(1000 * seconds), 1)
    while True:
      try:
        return self._writer.flush(num_items, timeout_ms=milliseconds)
      except self._reverb.DeadlineExceededError:
        waiting = waiting or self._connection.waiting(operation, self.should_stop)
        waiting.look_at_table()
      except RuntimeError as error:
        raise self._connection.refusal(operation, error) from error

  def _check_open(self, operation: str) -> None:
    if self._is_closed:
      raise errors.ReplayError(
        f"{operation}: expected an open writer, got a closed one. Ask the replay for "
        "another."
      )
