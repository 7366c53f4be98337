"""`GivenPriorities`: priorities of steps whose items are still to come."""

from __future__ import annotations

import numpy as np


class GivenPriorities:
  """Keeps the priority that came with a step until the step's item is there.

  A writer's step waits for `need` more, so that as many rows and one are enough: a row
  is taken, or cleared with the end of its episode, before a step wants it again. Calls
  need the buffer's lock.
  """

  def __init__(self, need: int, num_writers: int) -> None:
    """Creates rows without priorities.

    Args:
      need: steps that come after an anchor before it has an item.
      num_writers: N.
    """
    self._rows = np.full((need + 1, num_writers), np.nan)
    # Most replays are never given any: they pay nothing for it.
    self._are_any = False

  def put(self, lane: int, step: int, priority: float) -> None:
    """Keeps the priority of a writer's step."""
    self._rows[step % len(self._rows), lane] = priority
    self._are_any = True

  def put_all(self, step: int, priorities: np.ndarray, where: np.ndarray) -> None:
    """Keeps those of a step of each writer, [N], where a bool [N] says so."""
    np.copyto(self._rows[step % len(self._rows)], priorities, where=where)
    self._are_any = True

  def take(self, lane: int, step: int, default: float) -> float:
    """Returns a step's priority, and forgets it; or the default if it has none."""
    if not self._are_any:
      return default
    row = step % len(self._rows)
    found = self._rows.item(row, lane)
    if found != found:
      return default
    self._rows[row, lane] = np.nan
    return found

  def of_rows(self, step: int, rows: np.ndarray, default: float) -> float | np.ndarray:
    """Returns those of a step of some writers.

    Args:
      step: the same one of each.
      rows: of the ring, where the step is, int64 [n].
      default: for steps that have none.
    Returns:
      float64 [n]; or the default if none has one.
    """
    if not self._are_any:
      return default
    given = self._rows[step % len(self._rows)]
    found = given.take(rows % len(given))
    found[np.isnan(found)] = default
    return found

  def forget(self, step: int) -> None:
    """Forgets those of a step of all writers."""
    if self._are_any:
      self._rows[step % len(self._rows)] = np.nan

  def clear(self, lane: int) -> None:
    """Forgets those of an episode that has ended."""
    if self._are_any:
      self._rows[:, lane] = np.nan

  def of_writer(self, lane: int, count: int) -> list[tuple[int, float]]:
    """Returns steps and their priorities, ascending, for a checkpoint.

    Args:
      lane: the writer.
      count: its steps so far.
    """
    steps = range(max(0, count - len(self._rows)), count)
    kept = [(step, self._rows.item(step % len(self._rows), lane)) for step in steps]
    return [(step, priority) for step, priority in kept if priority == priority]
