"""Every item is as likely as every other."""

from __future__ import annotations

import numpy as np

from t2r_seq.replay.selectors.selector import Selector


class UniformSelector(Selector):
  """Every item is as likely as every other; all in O(1) for each item."""

  def __init__(self, capacity: int) -> None:
    """Creates a selector without items; see `make_selector`."""
    super().__init__()
    self._rows = np.zeros(capacity, np.int64)
    self._places = np.zeros(capacity, np.int64)

  @property
  def num_bytes(self) -> int:
    """Memory that is taken."""
    return self._rows.nbytes + self._places.nbytes

  @staticmethod
  def bytes_for(capacity: int) -> int:
    """Returns the `num_bytes` of a selector of so many rows."""
    return 16 * capacity

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Takes items in; their priorities do not matter."""
    end = self._count + len(rows)
    self._rows[self._count : end] = rows
    self._places[rows] = np.arange(self._count, end)
    self._count = end

  def remove(self, rows: np.ndarray) -> None:
    """Lets go of items; the last ones move to the places that they leave."""
    self._count -= len(rows)
    places = self._places[rows]
    is_kept = np.ones(len(rows), bool)
    is_kept[places[places >= self._count] - self._count] = False
    moved = self._rows[self._count : self._count + len(rows)][is_kept]
    holes = places[places < self._count]
    self._rows[holes] = moved
    self._places[moved] = holes

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: priorities do not matter."""

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws items, with replacement."""
    self.check_not_empty()
    rows = self._rows[rng.integers(0, self._count, count)]
    return rows, np.full(count, 1 / self._count)

  def rows(self) -> np.ndarray:
    """Returns all items' rows, in the order that they are numbered in."""
    return self._rows[: self._count].copy()
