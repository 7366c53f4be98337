"""`SumTree`: draws rows in proportion to their values, a whole batch at a time."""

from __future__ import annotations

import numpy as np

from t2r_seq import errors

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

  @property
  def num_bytes(self) -> int:
    """Memory of the values and all sums."""
    return sum(level.nbytes for level in (*self._levels, self._running))

  @staticmethod
  def bytes_for(capacity: int) -> int:
    """Returns the `num_bytes` of a tree of so many rows."""
    leaves, *above = _sizes(capacity)
    return 4 * leaves + 8 * sum(above) + 8 * ([leaves, *above][-1] + 1)

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
