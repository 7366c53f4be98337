"""`GivenPriorities`: of steps whose items are still to come, and of those without."""

from __future__ import annotations

import numpy as np


class GivenPriorities:
  """Keeps the priority that came with a step until the step's item is there.

  A writer's step waits for `need` more, so that as many rows and one are enough: a row
  is taken, or cleared with the end of its episode, before a step wants it again. Calls
  need the buffer's lock.

  Attributes:
    greatest: priority that an item has had so far, and at least 1.
  """

  def __init__(self, need: int, num_writers: int, initial: float | None) -> None:
    """Creates rows without priorities.

    Args:
      need: steps that come after an anchor before it has an item.
      num_writers: N.
      initial: of items whose step came without one; None for the greatest so far.
    """
    self.greatest = 1.0
    self._initial = initial
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

  @property
  def initial(self) -> float:
    """Of items whose step came without one."""
    return self.greatest if self._initial is None else self._initial

  def note(self, priorities: np.ndarray) -> None:
    """Takes note of priorities that items have now."""
    if len(priorities):
      self.greatest = max(self.greatest, float(priorities.max()))

  def take(self, lane: int, step: int) -> float:
    """Returns the priority of a step's item, and forgets it."""
    if not self._are_any:
      return self.initial
    row = step % len(self._rows)
    found = self._rows.item(row, lane)
    if found != found:
      return self.initial
    self._rows[row, lane] = np.nan
    self.greatest = max(self.greatest, found)
    return found

  def of_rows(self, step: int, rows: np.ndarray) -> float | np.ndarray:
    """Returns those of the items of a step of some writers.

    Args:
      step: the same one of each.
      rows: of the ring, where the step is, int64 [n].
    Returns:
      float64 [n]; or one for all if none came with a step.
    """
    if not self._are_any:
      return self.initial
    given = self._rows[step % len(self._rows)]
    found = given.take(rows % len(given))
    is_given = ~np.isnan(found)
    found[~is_given] = self.initial
    self.note(found[is_given])
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
