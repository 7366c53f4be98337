"""`Selector`: which item is sampled next, or removed next."""

from __future__ import annotations

import abc

import numpy as np

from t2r_seq import errors


class Selector(abc.ABC):
  """Items by row, of which it chooses some; each kind in its own way.

  Calls that change it trust their arguments: rows that are inserted are not there,
  all others are, none comes twice in one call, but to `update`, where the last
  priority counts; and priorities are finite and at least 0. Whoever has several threads
  has a lock.

  Attributes:
    compares: whether it matters which of two priorities is greater, however near they
      are; then they are to be held as float64.
  """

  compares = False

  def __init__(self) -> None:
    """Creates a selector without items."""
    self._count = 0

  def __len__(self) -> int:
    return self._count

  @property
  @abc.abstractmethod
  def num_bytes(self) -> int:
    """Memory that is taken, or will be when there is an item in every row."""

  @staticmethod
  @abc.abstractmethod
  def bytes_for(capacity: int) -> int:
    """Returns the `num_bytes` of a selector of so many rows."""

  @abc.abstractmethod
  def insert(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Takes items in, one after the other.

    Args:
      rows: int64 [N].
      priorities: float64 [N].
    """

  @abc.abstractmethod
  def remove(self, rows: np.ndarray) -> None:
    """Lets go of items.

    Args:
      rows: int64 [N].
    """

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
    """Chooses items, each time out of all.

    Args:
      count: how many, B.
      rng: what draws at random draws from it.
    Returns:
      Rows, int64 [B], and the probability that each had, float64 [B].
    Raises:
      SpecError: there are no items.
    """

  @abc.abstractmethod
  def rows(self) -> np.ndarray:
    """Returns all items' rows, int64 [N].

    Inserted in this order, with the priorities that they have, they make a selector
    that chooses just as this one does.
    """

  def check_not_empty(self) -> None:
    """Raises SpecError where there are no items to sample."""
    if not self._count:
      raise errors.SpecError(f"{type(self).__name__}.sample: expected items, got none.")
