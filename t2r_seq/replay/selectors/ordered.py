"""First in, first out, or last in, first out."""

from __future__ import annotations

import numpy as np

from t2r_seq.replay.selectors.selector import Selector


class OrderedSelector(Selector):
  """The item that was inserted first, or last; all in O(1) for each item."""

  def __init__(self, capacity: int, takes_last: bool) -> None:
    """Creates a selector without items; see `make_selector`.

    Args:
      capacity: rows are in range(capacity).
      takes_last: LIFO, not FIFO.
    """
    super().__init__()
    self._takes_last = takes_last
    # Rows as they came, between head and tail; an item's place tells whether an entry
    # is still that of its row.
    self._log = np.zeros(2 * capacity, np.int64)
    self._places = np.full(capacity, -1)
    self._head = self._tail = 0

  @property
  def num_bytes(self) -> int:
    """Memory that is taken."""
    return self._log.nbytes + self._places.nbytes

  @staticmethod
  def bytes_for(capacity: int) -> int:
    """Returns the `num_bytes` of a selector of so many rows."""
    return 24 * capacity

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Takes items in; their priorities do not matter."""
    if self._tail + len(rows) > len(self._log):
      kept = self.rows()
      self._head = self._tail = 0
      self._append(kept)
    self._append(rows)
    self._count += len(rows)

  def remove(self, rows: np.ndarray) -> None:
    """Lets go of items."""
    self._places[rows] = -1
    self._count -= len(rows)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: priorities do not matter."""

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Chooses the same item every time."""
    self.check_not_empty()
    if self._takes_last:
      while self._is_gone(self._tail - 1):
        self._tail -= 1
    else:
      while self._is_gone(self._head):
        self._head += 1
    row = self._log[self._tail - 1 if self._takes_last else self._head]
    return np.full(count, row), np.ones(count)

  def rows(self) -> np.ndarray:
    """Returns all items' rows, in the order that they were inserted in."""
    entries = self._log[self._head : self._tail]
    return entries[self._places[entries] == np.arange(self._head, self._tail)]

  def _append(self, rows: np.ndarray) -> None:
    end = self._tail + len(rows)
    self._log[self._tail : end] = rows
    self._places[rows] = np.arange(self._tail, end)
    self._tail = end

  def _is_gone(self, place: int) -> bool:
    return bool(self._places[self._log[place]] != place)
