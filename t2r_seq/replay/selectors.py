"""Selectors: which item is sampled next, or removed next."""

from __future__ import annotations

import abc

import numpy as np

from t2r_seq import errors
from t2r_seq.replay import options


class Selector(abc.ABC):
  """Rows that have items, with priorities; chooses some of them.

  `insert` requires rows without an item, `remove` and `update` rows with one. No row
  occurs twice in a call, except in `update`, where the last priority counts. Not
  thread-safe.

  Attributes:
    row_bytes: memory per row of the selector.
  """

  row_bytes = 0

  @abc.abstractmethod
  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Inserts items in this order: rows int64 [N], priorities [N]."""

  @abc.abstractmethod
  def remove(self, rows: np.ndarray) -> None:
    """Removes items: rows int64 [N]."""

  @abc.abstractmethod
  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of items."""

  @abc.abstractmethod
  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Chooses items with replacement; there must be at least one.

    Returns:
      Rows, int64 [B], and their probabilities, float64 [B].
    """

  @abc.abstractmethod
  def rows(self) -> np.ndarray:
    """Returns the rows of all items, int64 [N], in an order for `insert`."""


class OrderedSelector(Selector):
  """Chooses the item that was inserted first; O(1) per item."""

  row_bytes = 24

  def __init__(self, capacity: int) -> None:
    """Creates a selector without items; rows are in range(capacity)."""
    # Rows in the order of insertion, between head and tail. `_places` has the index of
    # a row's valid entry in the log, -1 without an item.
    self._log = np.zeros(2 * capacity, np.int64)
    self._places = np.full(capacity, -1)
    self._head = self._tail = 0

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    if self._tail + len(rows) > len(self._log):
      kept = self.rows()
      self._head = self._tail = 0
      self._append(kept)
    self._append(rows)

  def remove(self, rows: np.ndarray) -> None:
    self._places[rows] = -1

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: priorities do not matter."""

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    while self._places[self._log[self._head]] != self._head:
      self._head += 1
    return np.full(count, self._log[self._head]), np.ones(count)

  def rows(self) -> np.ndarray:
    entries = self._log[self._head : self._tail]
    return entries[self._places[entries] == np.arange(self._head, self._tail)]

  def _append(self, rows: np.ndarray) -> None:
    end = self._tail + len(rows)
    self._log[self._tail : end] = rows
    self._places[rows] = np.arange(self._tail, end)
    self._tail = end


# Children of a node, and most nodes of the top level. The fastest pair of 6 to 64 and
# 1024 to 32768, for 20,000 to a million values: a draw mostly adds up children.
_FANOUT = 8
_MAX_TOP = 4096


class SumTree:
  """Values by row; draws rows with probability value / total.

  Values are float32: half the memory of float64, without a loss for draws. Inner nodes
  are float64 sums, computed from their children and never from differences, so that
  rounding errors do not accumulate. They are updated before a draw. A row of value 0 is
  never drawn. Not thread-safe.
  """

  def __init__(self, capacity: int) -> None:
    """Creates a tree of zeros; rows are in range(capacity)."""
    self._capacity = capacity
    sizes = [-(-capacity // _FANOUT) * _FANOUT]
    while sizes[-1] > _MAX_TOP:
      sizes.append(-(-(sizes[-1] // _FANOUT) // _FANOUT) * _FANOUT)
    self._levels: list[np.ndarray] = [np.zeros(sizes[0], np.float32)]
    self._levels += [np.zeros(size, np.float64) for size in sizes[1:]]
    self._blocks = [level.reshape(-1, _FANOUT) for level in self._levels]
    # Parents of values that were set since the last refresh, with repetitions.
    self._stale: list[np.ndarray] = []
    self._num_stale = 0
    # The sum to the left of each top node, and at the end the total.
    self._running = np.zeros(len(self._levels[-1]) + 1)

  @property
  def total(self) -> float:
    """Sum of all values."""
    self._refresh()
    return self._running.item(-1)

  @property
  def values(self) -> np.ndarray:
    """All values, float32 [capacity]; read-only."""
    return self._levels[0][: self._capacity]

  def set(self, rows: np.ndarray, values: np.ndarray | float) -> None:
    """Sets values, finite and at least 0; for a repeated row, the last value counts."""
    self._levels[0][rows] = values
    self._stale.append(rows // _FANOUT)
    self._num_stale += len(rows)
    if self._num_stale > len(self._levels[0]):
      self._refresh()

  def sample(self, fractions: np.ndarray) -> np.ndarray:
    """Returns the rows at which the running sum exceeds fractions of the total.

    Args:
      fractions: float64 [B] in [0, 1); uniform ones draw each row with the probability
        value / total.
    Returns:
      Rows, int64 [B], whose values are above 0.
    Raises:
      SpecError: all values are 0.
    """
    total = self.total
    if not total:
      raise errors.SpecError("SumTree.sample: expected values above 0, got only 0.")
    rest = np.minimum(fractions * total, np.nextafter(total, 0))
    nodes = self._running.searchsorted(rest, "right") - 1
    rest -= self._running.take(nodes)
    # The sum to the left of each child, [_FANOUT + 1, B].
    sums = np.zeros((_FANOUT + 1, len(rest)))
    places = np.arange(len(rest))
    for blocks in self._blocks[-2::-1]:
      children = _transpose(blocks.take(nodes, 0))
      for child in range(_FANOUT):
        np.add(sums[child], children[child], sums[child + 1])
      # The rest may exceed the parent's sum by a rounding error.
      np.minimum(rest, np.nextafter(sums[-1], 0), out=rest)
      chosen = np.add.reduce(sums[1:] <= rest, 0, np.intp)
      nodes *= _FANOUT
      nodes += chosen
      chosen *= len(rest)
      chosen += places
      rest -= sums.take(chosen)
    return nodes

  def _refresh(self) -> None:
    """Recomputes the sums above values that were set."""
    if not self._num_stale:
      return
    nodes = np.concatenate(self._stale)
    self._stale.clear()
    self._num_stale = 0
    for blocks, parents in zip(self._blocks, self._levels[1:], strict=False):
      if len(nodes) < len(parents):
        parents[nodes] = _sums(blocks.take(nodes, 0))
        nodes //= _FANOUT
      else:
        parents[: len(blocks)] = _sums(blocks)
    np.add.accumulate(self._levels[-1], out=self._running[1:])


def _sums(blocks: np.ndarray) -> np.ndarray:
  return np.add.reduce(_transpose(blocks), 0)


def _transpose(blocks: np.ndarray) -> np.ndarray:
  """Returns one row per child, float64: numpy adds long rows of one dtype fast."""
  return blocks.T.astype(np.float64, "C")


_LIMITS = np.finfo(np.float32)


class PrioritizedSelector(Selector):
  """Draws items with probability priority ** exponent / sum; in O(log n) each.

  As in Reverb, an item of priority 0 is never sampled, for any exponent, unless all are
  0: then all are equally likely, and drawing costs O(n).
  """

  # Of the tree: 4 for a value, the others for sums; 12 in trees of at most 4096 rows.
  row_bytes = 6

  def __init__(self, capacity: int, priority_exponent: float) -> None:
    """Creates a selector without items; rows are in range(capacity)."""
    self._exponent = priority_exponent
    # An item of priority 0 has the weight -0.0, and a row without an item 0.0.
    self._weights = SumTree(capacity)

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    self.update(rows, priorities)

  def remove(self, rows: np.ndarray) -> None:
    self._weights.set(rows, 0.0)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    weights = np.power(priorities, self._exponent, dtype=np.float64)
    # So tiny weights are not 0, and no weight is infinite.
    weights = weights.clip(_LIMITS.tiny, _LIMITS.max)
    weights[priorities == 0] = -0.0  # 0 ** 0 would be 1.
    self._weights.set(rows, weights)

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    total = self._weights.total
    if not total:
      candidates = self.rows()
      rows = candidates[rng.integers(0, len(candidates), count)]
      return rows, np.full(count, 1 / len(candidates))
    rows = self._weights.sample(rng.random(count))
    return rows, np.divide(self._weights.values.take(rows), total, dtype=np.float64)

  def rows(self) -> np.ndarray:
    weights = self._weights.values
    return ((weights != 0) | np.signbit(weights)).nonzero()[0]


def make_selector(option: options.SelectorOption, capacity: int) -> Selector | None:
  """Returns the selector of an option; None for `Uniform`, which needs none."""
  match option:
    case options.Fifo():
      return OrderedSelector(capacity)
    case options.Prioritized():
      return PrioritizedSelector(capacity, option.priority_exponent)
  return None
