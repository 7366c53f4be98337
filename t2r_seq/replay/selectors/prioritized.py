"""Items of greater priority are more likely."""

from __future__ import annotations

import numpy as np

from t2r_seq.replay.selectors.selector import Selector
from t2r_seq.replay.selectors.sum_tree import SumTree

_LIMITS = np.finfo(np.float32)


class PrioritizedSelector(Selector):
  """Draws items with probability priority ** exponent / sum; in O(log n) each.

  As Reverb does, an item of priority 0 is never drawn, whatever the exponent, unless
  all are: then each is as likely as every other, and drawing costs O(n).
  """

  def __init__(self, capacity: int, priority_exponent: float) -> None:
    """Creates a selector without items; see `make_selector`.

    Args:
      capacity: rows are in range(capacity).
      priority_exponent: at least 0.
    """
    super().__init__()
    self._exponent = priority_exponent
    # An item that is never drawn has the weight -0.0, and what is no item 0.0.
    self._weights = SumTree(capacity)

  @property
  def num_bytes(self) -> int:
    """Memory that is taken."""
    return self._weights.num_bytes

  @staticmethod
  def bytes_for(capacity: int) -> int:
    """Returns the `num_bytes` of a selector of so many rows."""
    return SumTree.bytes_for(capacity)

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Takes items in."""
    self._count += len(rows)
    self.update(rows, priorities)

  def remove(self, rows: np.ndarray) -> None:
    """Lets go of items."""
    self._count -= len(rows)
    self._weights.set(rows, 0.0)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Gives items other priorities."""
    self._weights.set(rows, self._to_weights(priorities))

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Draws items, with replacement."""
    self.check_not_empty()
    total = self._weights.total
    if not total:
      rows = self.rows()[rng.integers(0, self._count, count)]
      return rows, np.full(count, 1 / self._count)
    rows = self._weights.sample(rng.random(count))
    return rows, np.divide(self._weights.get(rows), total, dtype=np.float64)

  def rows(self) -> np.ndarray:
    """Returns all items' rows, in ascending order."""
    weights = self._weights.values
    return ((weights != 0) | np.signbit(weights)).nonzero()[0]

  def _to_weights(self, priorities: np.ndarray) -> np.ndarray:
    weights = np.power(priorities, self._exponent, dtype=np.float64)
    # However small, they can be drawn, and however large, others can.
    np.maximum(weights, _LIMITS.tiny, out=weights)
    np.minimum(weights, _LIMITS.max, out=weights)
    weights[priorities == 0] = -0.0  # 0 ** 0 would be 1.
    return weights
