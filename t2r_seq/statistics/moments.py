"""Mean and variance of many blocks, as exact as those of one array.

Each block gives its count, its mean and its sum of squared deviations; two of them are
merged by the formula of Chan, Golub and LeVeque (1983). No sum of squares is ever
subtracted from another, and means are kept as two floats each, so an offset that is a
billion times the spread costs no digits.
"""

from __future__ import annotations

import dataclasses

import numpy as np

_FIELDS = ("count", "mean", "mean_rest", "squares")


@dataclasses.dataclass
class Moments:
  """Count, mean and squared deviations of E elements.

  Attributes:
    count: values of each element, int64 [E].
    mean: float64 [E]; 0 where there is no value.
    mean_rest: what rounding cuts off of the mean, float64 [E].
    squares: sum of the squared deviations from the mean, float64 [E].
  """

  count: np.ndarray
  mean: np.ndarray
  mean_rest: np.ndarray
  squares: np.ndarray

  @classmethod
  def zeros(cls, size: int) -> Moments:
    """Returns the moments of no values of `size` elements."""
    return cls(np.zeros(size, np.int64), *(np.zeros(size) for _ in range(3)))

  @classmethod
  def of_block(cls, values: np.ndarray, finite: np.ndarray | None = None) -> Moments:
    """Computes the moments of a block.

    Args:
      values: floats or integers, [rows, E].
      finite: which values count, bool [rows, E]; None for all of them.
    Returns:
      The moments.
    """
    if not len(values):
      return cls.zeros(values.shape[1])
    # Elements first: numpy adds pairwise along the last axis only.
    values = np.ascontiguousarray(values.T)
    finite = None if finite is None else np.ascontiguousarray(finite.T)
    if values.dtype.kind in "iu":
      pivot, rest, distance = _integer_distances(values)
    else:
      pivot, distance = _float_distances(values, finite)
      rest = np.zeros(len(pivot))
    return cls._of_distances(pivot, rest, distance, finite)

  @classmethod
  def _of_distances(
    cls,
    pivot: np.ndarray,
    pivot_rest: np.ndarray,
    distance: np.ndarray,
    finite: np.ndarray | None,
  ) -> Moments:
    """Takes distances from the pivots, [E, rows]."""
    if finite is None:
      count = np.full(len(distance), distance.shape[1], np.int64)
    else:
      count = finite.sum(axis=1, dtype=np.int64)
      distance = np.where(finite, distance, 0.0)
    divisor = np.maximum(count, 1)
    shift = distance.sum(axis=1) / divisor
    deviation = distance - shift[:, None]
    if finite is not None:
      deviation = np.where(finite, deviation, 0.0)
    # The second term takes off what rounding of `shift` has added.
    drift = deviation.sum(axis=1)
    squares = np.square(deviation).sum(axis=1) - drift * drift / divisor
    mean, rest = _two_sum(pivot, pivot_rest + (shift + drift / divisor))
    return cls(count, mean, rest, np.maximum(squares, 0.0))

  def merge(self, other: Moments) -> None:
    """Takes in the moments of other values of the same elements."""
    total = self.count + other.count
    divisor = np.maximum(total, 1)
    distance = (other.mean - self.mean) + (other.mean_rest - self.mean_rest)
    distance = np.where(other.count == 0, 0.0, distance)
    share = other.count / divisor
    squares = self.squares + other.squares + distance * distance * self.count * share
    mean, rest = _two_sum(self.mean, self.mean_rest + distance * share)
    # An empty side has no mean: the other's counts, rest and all.
    is_first = self.count == 0
    self.mean = np.where(is_first, other.mean, mean)
    self.mean_rest = np.where(is_first, other.mean_rest, rest)
    self.squares = np.where(is_first, other.squares, squares)
    self.count = total

  def std(self) -> np.ndarray:
    """Returns the standard deviation of the values, numpy's `ddof=0`; NaN of none."""
    variance = self.squares / np.maximum(self.count, 1)
    return np.where(self.count > 0, np.sqrt(variance), np.nan)

  def to_arrays(self) -> dict[str, np.ndarray]:
    """Returns the state by name."""
    return {name: getattr(self, name) for name in _FIELDS}

  @classmethod
  def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Moments:
    """Restores what `to_arrays` gave."""
    return cls(*(arrays[name] for name in _FIELDS))


def _float_distances(
  values: np.ndarray, finite: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Measures from a value of each element: close values differ exactly."""
  values = values.astype(np.float64)
  if finite is None:
    pivot = values[:, 0].copy()
    return pivot, values - pivot[:, None]
  first = np.argmax(finite, axis=1)
  pivot = values[np.arange(len(values)), first]
  pivot = np.where(finite.any(axis=1), pivot, 0.0)
  return pivot, np.where(finite, values, pivot[:, None]) - pivot[:, None]


def _integer_distances(
  values: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Measures from the smallest integer of each element, before rounding to floats."""
  wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
  low = wide.min(axis=1)
  # Modulo 2^64 the difference is right even where int64 would overflow.
  distance = (wide.view(np.uint64) - low.view(np.uint64)[:, None]).astype(np.float64)
  pivot = low.astype(np.float64)
  rest = [
    float(int(exact) - int(rounded)) for exact, rounded in zip(low, pivot, strict=True)
  ]
  return pivot, np.asarray(rest), distance


def _two_sum(high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Adds exactly: the rounded sum and what rounding cut off (Knuth)."""
  total = high + low
  part = total - high
  return total, (high - (total - part)) + (low - part)
