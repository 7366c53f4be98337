"""Selectors: which item is sampled next, or removed next."""

from __future__ import annotations

import abc
import heapq
import itertools

import numpy as np

from t2r_seq import errors
from t2r_seq.replay import options


class Selector(abc.ABC):
  """Items by row, of which it chooses some; each kind in its own way.

  Calls that change it trust their arguments: rows that are inserted are not there,
  all others are, none comes twice in one call, but to `update`, where the last
  priority counts; and priorities are finite and at least 0. Whoever has several threads
  has a lock.

  Attributes:
    compares: whether it matters which of two priorities is greater, however near they
      are; then they are to be held as float64.
    row_bytes: memory that a row takes, with an item in it.
  """

  compares = False
  row_bytes = 0

  def __init__(self) -> None:
    """Creates a selector without items."""
    self._count = 0

  def __len__(self) -> int:
    return self._count

  @abc.abstractmethod
  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Takes items in, one after the other.

    Args:
      rows: int64 [N].
      priorities: float64 [N].
    """

  @abc.abstractmethod
  def remove(self, rows: np.ndarray) -> None:
    """Lets go of items; rows int64 [N]."""

  @abc.abstractmethod
  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Gives items other priorities, one after the other.

    Args:
      rows: int64 [N].
      priorities: float64 [N].
    """

  @abc.abstractmethod
  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    """Chooses items, each time out of all, of which there are some.

    Args:
      count: how many, B.
      rng: what draws at random draws from it.
    Returns:
      Rows, int64 [B], and the probability that each had, float64 [B].
    """

  @abc.abstractmethod
  def rows(self) -> np.ndarray:
    """Returns all items' rows, int64 [N].

    Inserted in this order, with the priorities that they have, they make a selector
    that chooses just as this one does.
    """


class OrderedSelector(Selector):
  """The item that was inserted first, or last; all in O(1) for each item."""

  row_bytes = 24

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

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    if self._tail + len(rows) > len(self._log):
      kept = self.rows()
      self._head = self._tail = 0
      self._append(kept)
    self._append(rows)
    self._count += len(rows)

  def remove(self, rows: np.ndarray) -> None:
    self._places[rows] = -1
    self._count -= len(rows)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: priorities do not matter."""

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    if self._takes_last:
      while self._is_gone(self._tail - 1):
        self._tail -= 1
    else:
      while self._is_gone(self._head):
        self._head += 1
    row = self._log[self._tail - 1 if self._takes_last else self._head]
    return np.full(count, row), np.ones(count)

  def rows(self) -> np.ndarray:
    entries = self._log[self._head : self._tail]
    return entries[self._places[entries] == np.arange(self._head, self._tail)]

  def _append(self, rows: np.ndarray) -> None:
    end = self._tail + len(rows)
    self._log[self._tail : end] = rows
    self._places[rows] = np.arange(self._tail, end)
    self._tail = end

  def _is_gone(self, place: int) -> bool:
    return bool(self._places[self._log[place]] != place)


# A heap is made anew where it has more than this besides its items.
_MAX_STALE = 1024


class HeapSelector(Selector):
  """The item of the least, or the greatest, priority; in O(log n) each.

  Of several that have it, it is the one that was inserted or updated first.
  """

  compares = True
  # A number, and a tuple of a float and two integers in a list.
  row_bytes = 8 + 152

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

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    self._count += len(rows)
    self.update(rows, priorities)

  def remove(self, rows: np.ndarray) -> None:
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
    while self._is_gone(self._heap[0]):
      heapq.heappop(self._heap)
    return np.full(count, self._heap[0][2]), np.ones(count)

  def rows(self) -> np.ndarray:
    rows = np.flatnonzero(self._numbers >= 0)
    return rows[np.argsort(self._numbers[rows])]

  def _is_gone(self, entry: tuple[float, int, int]) -> bool:
    return bool(self._numbers[entry[2]] != entry[1])


# Of 6 to 64 children, and tops of 1024 to 32768 nodes, these were the fastest together
# for 20,000 to a million values: most of a draw is to add up the children of a node.
_FANOUT = 8
_MAX_TOP = 4096


class SumTree:
  """Values by row, of which rows are drawn with probability value / total.

  Values are held as float32: half the memory, and draws that are as exact. Inner nodes
  are float64 sums of their children, made anew from them and never from differences, so
  that rounding does not build up. They are brought up to date when something is drawn.
  A row of value 0 is never drawn.

  Not safe to be used by several threads at once.
  """

  def __init__(self, capacity: int) -> None:
    """Creates a tree of zeros.

    Args:
      capacity: number of rows.
    """
    self._capacity = capacity
    leaves, *above = _sizes(capacity)
    self._levels: list[np.ndarray] = [np.zeros(leaves, np.float32)]
    self._levels += [np.zeros(size, np.float64) for size in above]
    self._blocks = [level.reshape(-1, _FANOUT) for level in self._levels]
    # Nodes above values that were set; some may be there twice.
    self._stale: list[np.ndarray] = []
    self._num_stale = 0
    # What is to the left of each node of the top, and at the end the total.
    self._running = np.zeros(len(self._levels[-1]) + 1)

  def __len__(self) -> int:
    return self._capacity

  @property
  def total(self) -> float:
    """Sum of all values."""
    self._refresh()
    return self._running.item(-1)

  @property
  def values(self) -> np.ndarray:
    """All values, float32 [capacity]; not to be written to."""
    return self._levels[0][: self._capacity]

  def set(self, rows: np.ndarray, values: np.ndarray | float) -> None:
    """Sets values.

    Args:
      rows: int64 [N]; of a row that is there twice, the last value counts.
      values: [N], at least 0 and finite as float32.
    """
    self._levels[0][rows] = values
    self._stale.append(rows // _FANOUT)
    self._num_stale += len(rows)
    if self._num_stale > len(self._levels[0]):
      self._refresh()

  def get(self, rows: np.ndarray) -> np.ndarray:
    """Returns the values of rows, float32 [N]."""
    return self._levels[0].take(rows)

  def sample(self, fractions: np.ndarray) -> np.ndarray:
    """Returns the rows at which the running sum of the values passes some of its total.

    Args:
      fractions: float64 [B] in [0, 1), of the total; uniform ones draw each row with
        the probability value / total.
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
    # What is to the left of each child, [_FANOUT + 1, B].
    sums = np.zeros((_FANOUT + 1, len(rest)))
    places = np.arange(len(rest))
    for blocks in self._blocks[-2::-1]:
      children = _transposed(blocks.take(nodes, 0))
      for child in range(_FANOUT):
        np.add(sums[child], children[child], sums[child + 1])
      # What is left may be more than the parent's sum by a rounding.
      np.minimum(rest, np.nextafter(sums[-1], 0), out=rest)
      chosen = np.add.reduce(sums[1:] <= rest, 0, np.intp)
      nodes *= _FANOUT
      nodes += chosen
      chosen *= len(rest)
      chosen += places
      rest -= sums.take(chosen)
    return nodes

  def _refresh(self) -> None:
    """Makes the sums anew above the values that were set."""
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
  return np.add.reduce(_transposed(blocks), 0)


def _transposed(blocks: np.ndarray) -> np.ndarray:
  """Returns a child a row, float64: numpy adds long rows of one dtype fast."""
  return blocks.T.astype(np.float64, "C")


def _sizes(capacity: int) -> list[int]:
  """Returns the sizes of all levels, whole blocks of them; that of the values first."""
  sizes = [-(-capacity // _FANOUT) * _FANOUT]
  while sizes[-1] > _MAX_TOP:
    sizes.append(-(-(sizes[-1] // _FANOUT) // _FANOUT) * _FANOUT)
  return sizes


_LIMITS = np.finfo(np.float32)


class PrioritizedSelector(Selector):
  """Draws items with probability priority ** exponent / sum; in O(log n) each.

  As Reverb does, an item of priority 0 is never drawn, whatever the exponent, unless
  all are: then each is as likely as every other, and drawing costs O(n).
  """

  # The tree's, which takes up to 12 of the first 4096 rows.
  row_bytes = 6

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

  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    self._count += len(rows)
    self.update(rows, priorities)

  def remove(self, rows: np.ndarray) -> None:
    self._count -= len(rows)
    self._weights.set(rows, 0.0)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    self._weights.set(rows, self._to_weights(priorities))

  def sample(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray]:
    total = self._weights.total
    if not total:
      rows = self.rows()[rng.integers(0, self._count, count)]
      return rows, np.full(count, 1 / self._count)
    rows = self._weights.sample(rng.random(count))
    return rows, np.divide(self._weights.get(rows), total, dtype=np.float64)

  def rows(self) -> np.ndarray:
    weights = self._weights.values
    return ((weights != 0) | np.signbit(weights)).nonzero()[0]

  def _to_weights(self, priorities: np.ndarray) -> np.ndarray:
    weights = np.power(priorities, self._exponent, dtype=np.float64)
    # However small, they can be drawn, and however large, others can.
    np.maximum(weights, _LIMITS.tiny, out=weights)
    np.minimum(weights, _LIMITS.max, out=weights)
    weights[priorities == 0] = -0.0  # 0 ** 0 would be 1.
    return weights


def make_selector(option: options.SelectorOption, capacity: int) -> Selector | None:
  """Makes what an option describes.

  Args:
    option: one of `options`' selectors.
    capacity: rows are in range(capacity).
  Returns:
    A selector without items; None for `Uniform`, which needs to know nothing but which
    rows have items.
  """
  match option:
    case options.Fifo() | options.Lifo():
      return OrderedSelector(capacity, isinstance(option, options.Lifo))
    case options.Prioritized():
      return PrioritizedSelector(capacity, option.priority_exponent)
    case options.MinHeap() | options.MaxHeap():
      return HeapSelector(capacity, isinstance(option, options.MaxHeap))
  return None
