"""The item of the least, or the greatest, priority."""

from __future__ import annotations

import heapq
import itertools

import numpy as np

from t2r_seq.replay.selectors.selector import Selector

# A heap is made anew where it has more than this besides its items.
_MAX_STALE = 1024
# A tuple of a float and two integers, and where the heap has it.
_ENTRY_BYTES = 152


class HeapSelector(Selector):
  """The item of the least, or the greatest, priority; in O(log n) each.

  Of several that have it, it is the one that was inserted or updated first.
  """

  compares = True

  def __init__(self, capacity: int, takes_greatest: bool) -> None:
    """Creates a selector without items; see `make_selector`.

    Args:
      capacity: rows are in range(capacity).
      takes_greatest: a heap of the greatest, not the least.
    """
    super().__init__()
    self._sign = -1 if takes_greatest else 1
    # Entries (signed priority, number, row). A row's number tells its entry from
    # those of the priorities, and of the items, that it had before.
    self._heap: list[tuple[float, int, int]] = []
    self._numbers = np.full(capacity, -1)
    self._next = itertools.count()

  @property
  def num_bytes(self) -> int:
    """Memory that is taken with an entry for each row."""
    return self._numbers.nbytes + _ENTRY_BYTES * len(self._numbers)

  @staticmethod
  def bytes_for(capacity: int) -> int:
    """Returns the `num_bytes` of a selector of so many rows."""
    return (8 + _ENTRY_BYTES) * capacity

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Takes items in."""
    self._count += len(rows)
    self.update(rows, priorities)

  def remove(self, rows: np.ndarray) -> None:
    """Lets go of items."""
    self._numbers[rows] = -1
    self._count -= len(rows)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Gives items other priorities; of equal ones, they come last now."""
    signed = (self._sign * priorities).tolist()
    for row, priority in zip(rows.tolist(), signed, strict=True):
      number = next(self._next)
      self._numbers[row] = number
      heapq.heappush(self._heap, (priority, number, row))
    if len(self._heap) > 2 * self._count + _MAX_STALE:
      self._heap = [entry for entry in self._heap if not self._is_gone(entry)]
      heapq.heapify(self._heap)

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the same item every time."""
    self.check_not_empty()
    while self._is_gone(self._heap[0]):
      heapq.heappop(self._heap)
    return np.full(count, self._heap[0][2]), np.ones(count)

  def rows(self) -> np.ndarray:
    """Returns all items' rows, in the order that they were inserted or updated in."""
    rows = np.flatnonzero(self._numbers >= 0)
    return rows[np.argsort(self._numbers[rows])]

  def _is_gone(self, entry: tuple[float, int, int]) -> bool:
    return bool(self._numbers[entry[2]] != entry[1])
