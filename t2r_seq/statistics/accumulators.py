"""Moments, quantile sketches and histograms of a path, in one pass over its values.

Each block gives its count, its mean and its sum of squared deviations; two of them are
merged by the formula of Chan, Golub and LeVeque (1983). Sums of squares are not
subtracted from each other, and each mean is stored as two floats. So an offset that is
a billion times the spread costs no digits.

Quantiles follow Munro and Paterson (1980) and Manku, Rajagopalan and Lindsay (1998):
level h has items of weight 2^h. A full level is sorted, and every other item moves to
the next level. That changes the rank of any value by at most 2^h: upwards if the items
at even indices move, downwards if those at odd indices do. The sketch adds up both
errors and chooses the smaller one: they bound the error for any values in any order.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2r_seq import specs
from t2r_seq.specs.extended_tensor_spec import is_video_spec
from t2r_seq.statistics import statistics
from t2r_seq.statistics.statistics import BYTES, UNSUPPORTED, PathStatistics

# Maximum number of elements with separate statistics.
MAX_ELEMENTS = 2048
ELEMENT, CHANNEL, TENSOR = "element", "channel", "tensor"


def _layout(row_shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
  """Returns the level and the shape of the statistics of a path.

  Scalars, vectors and matrices with at most `MAX_ELEMENTS` elements have statistics for
  each element. Others, such as images, have them for each index of the last axis, or
  for the whole tensor if that axis is longer. They broadcast against the values.
  """
  if len(row_shape) < 3 and math.prod(row_shape) <= MAX_ELEMENTS:
    return ELEMENT, row_shape
  is_small = row_shape[-1] <= MAX_ELEMENTS
  return (CHANNEL, row_shape[-1:]) if is_small else (TENSOR, ())


@dataclasses.dataclass
class Moments:
  """Count, mean and squared deviations of E elements.

  Attributes:
    count: number of values of each element, int64 [E].
    mean: float64 [E]; 0 without values.
    mean_rest: what rounding removed from the mean, float64 [E].
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
    """Computes the moments of the finite values of a block [rows, E]."""
    if not len(values):
      return cls.zeros(values.shape[1])
    # Elements first: numpy's accurate pairwise sum is along the last axis only.
    values = np.ascontiguousarray(values.T)
    finite = None if finite is None else np.ascontiguousarray(finite.T)
    if values.dtype.kind in "iu":
      pivot, rest, distance = _integer_distances(values)
    else:
      pivot, distance = _float_distances(values, finite)
      rest = np.zeros(len(pivot))
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
    # The second term removes what rounding of `shift` has added.
    drift = deviation.sum(axis=1)
    squares = np.square(deviation).sum(axis=1) - drift * drift / divisor
    mean, rest = _two_sum(pivot, rest + (shift + drift / divisor))
    return cls(count, mean, rest, np.maximum(squares, 0.0))

  def merge(self, other: Moments) -> None:
    """Adds the moments of other values of the same elements."""
    total = self.count + other.count
    divisor = np.maximum(total, 1)
    distance = (other.mean - self.mean) + (other.mean_rest - self.mean_rest)
    distance = np.where(other.count == 0, 0.0, distance)
    share = other.count / divisor
    squares = self.squares + other.squares + distance * distance * self.count * share
    mean, rest = _two_sum(self.mean, self.mean_rest + distance * share)
    # Without earlier values the result is `other`, rounding errors included.
    is_first = self.count == 0
    self.mean = np.where(is_first, other.mean, mean)
    self.mean_rest = np.where(is_first, other.mean_rest, rest)
    self.squares = np.where(is_first, other.squares, squares)
    self.count = total

  def std(self) -> np.ndarray:
    """Returns the standard deviation, numpy's `ddof=0`; NaN without values."""
    variance = self.squares / np.maximum(self.count, 1)
    return np.where(self.count > 0, np.sqrt(variance), np.nan)


def _float_distances(
  values: np.ndarray, finite: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns each row's first finite value, and the float64 differences from it.

  Args:
    values: floats, [elements, samples].
    finite: flags of finite values; None if all are finite.
  Returns:
    (float64 [elements], float64 [elements, samples]); non-finite values give 0.
  """
  values = values.astype(np.float64)
  if finite is None:
    pivot = values[:, 0].copy()
    return pivot, values - pivot[:, None]
  first = np.argmax(finite, axis=1)
  pivot = values[np.arange(len(values)), first]
  pivot = np.where(finite.any(axis=1), pivot, 0.0)
  return pivot, np.where(finite, values, pivot[:, None]) - pivot[:, None]


def _integer_distances(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns each row's minimum, its rounding error, and the differences from it."""
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
  """Adds exactly: the rounded sum and its rounding error (Knuth)."""
  total = high + low
  part = total - high
  return total, (high - (total - part)) + (low - part)


MAX_SIZE = 4096
MIN_SIZE = 256
# Values in the sketches of all elements of a path; 20 levels hold 10^9 values each.
_MEMORY_VALUES = 1 << 23
_LEVELS = 20


def sketch_size(num_elements: int) -> int:
  """Returns the capacity of a level for sketches of about `_MEMORY_VALUES` in all."""
  fair = _MEMORY_VALUES // (_LEVELS * max(num_elements, 1))
  size = 1 << max(fair, 1).bit_length() - 1
  return min(MAX_SIZE, max(MIN_SIZE, size))


class QuantileSketch:
  """Quantiles of one element.

  A compaction of level h takes more than `size` items, so that n values make fewer
  than n / (size * 2^h) of them; with L = log2(n / size) + 1 levels the rank of an
  answer is never wrong by more than n * L / size. `rank_error` is the bound that the
  sketch computes. It is about half of that, as compactions alternate their direction:
  0.11 % of n for 10^6 values and 0.23 % for 10^9, at the size of 4096. Quantiles of up
  to `size` values are exact.

  Attributes:
    count: the number of values.
  """

  def __init__(self, size: int = MAX_SIZE) -> None:
    """Creates an empty sketch; `size`, an even number, is the capacity of a level."""
    self._size = size
    self._levels: list[np.ndarray] = [np.zeros(0)]
    # Maximum change of any rank, upwards and downwards.
    self._up = 0
    self._down = 0
    self.count = 0

  @property
  def rank_error(self) -> int:
    """Maximum error of the rank of a quantile."""
    return max(self._up, self._down)

  def add(self, values: np.ndarray) -> None:
    """Adds finite values, float64 [n]."""
    self.count += len(values)
    self._levels[0] = np.concatenate([self._levels[0], values])
    self._compress()

  def merge(self, other: QuantileSketch) -> None:
    """Adds another sketch of the same size, which stays unchanged."""
    self.count += other.count
    self._up += other._up
    self._down += other._down
    for height, items in enumerate(other._levels):
      if height == len(self._levels):
        self._levels.append(np.zeros(0))
      self._levels[height] = np.concatenate([self._levels[height], items])
    self._compress()

  def quantiles(self, fractions: Sequence[float]) -> np.ndarray:
    """Returns the values of rank ceil(fraction * count), up to `rank_error`.

    They are added values, float64 [len(fractions)]; NaN without values.
    """
    if not self.count:
      return np.full(len(fractions), np.nan)
    items = np.concatenate(self._levels)
    weights = [
      np.full(len(level), 1 << height, np.int64)
      for height, level in enumerate(self._levels)
    ]
    order = np.argsort(items, kind="stable")
    ranks = np.cumsum(np.concatenate(weights)[order])
    targets = np.ceil(np.asarray(fractions) * self.count).clip(1, self.count)
    return items[order][np.searchsorted(ranks, targets)]

  def _compress(self) -> None:
    """Moves every other item of a full level to the next one."""
    height = 0
    while height < len(self._levels):
      if len(self._levels[height]) > self._size:
        items = np.sort(self._levels[height])
        rest = len(items) % 2
        self._levels[height] = items[len(items) - rest :]
        if height + 1 == len(self._levels):
          self._levels.append(np.zeros(0))
        is_up = self._up <= self._down
        kept = items[: len(items) - rest][0 if is_up else 1 :: 2]
        self._levels[height + 1] = np.concatenate([self._levels[height + 1], kept])
        if is_up:
          self._up += 1 << height
        else:
          self._down += 1 << height
      height += 1


class Accumulator:
  """Counts the rows of one path; subclasses also compute statistics of the values."""

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    """Creates an empty accumulator of rows of this spec."""
    self.spec = spec
    self.rows = 0

  def add(self, values: np.ndarray) -> None:
    """Adds values [rows, *shape]; they must not change afterwards."""
    self.rows += len(values)

  def flush(self) -> None:
    """Processes the buffered values."""

  def merge(self, other: Any) -> None:
    """Adds the rows of another accumulator of the same kind and spec."""
    self.rows += other.rows

  def finish(self) -> PathStatistics:
    """Returns the statistics."""
    is_image = specs.is_encoded_image_spec(self.spec) or is_video_spec(self.spec)
    is_bytes = self.spec.dtype.name == "string" or is_image
    return PathStatistics(self.spec, BYTES if is_bytes else UNSUPPORTED, self.rows)


# Values that are processed at a time: a few arrays of 8 MiB.
_CHUNK_VALUES = 1 << 20


class NumberAccumulator(Accumulator):
  """Base class for numbers; buffers rows, to process many small ones together."""

  method = ""

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    super().__init__(spec)
    self.per, self._shape = _layout(tuple(spec.shape.as_list()))
    self._size = math.prod(self._shape)  # Elements with separate statistics.
    self._pending: list[np.ndarray] = []
    self._num_pending = 0

  def add(self, values: np.ndarray) -> None:
    super().add(values)
    columns = np.zeros((0, 0), values.dtype)
    if self._size:
      columns = values.reshape(-1, self._size)
    step = max(1, _CHUNK_VALUES // max(self._size, 1))
    for start in range(0, len(columns), step):
      self._pending.append(columns[start : start + step])
      self._num_pending += self._pending[-1].size
      if self._num_pending >= _CHUNK_VALUES:
        self.flush()

  def flush(self) -> None:
    if self._pending:
      pending, self._pending, self._num_pending = self._pending, [], 0
      self._add_columns(np.concatenate(pending))

  def merge(self, other: Any) -> None:
    self.flush()
    other.flush()
    super().merge(other)

  def finish(self) -> PathStatistics:
    """Returns the statistics; NaN for elements without finite values."""
    self.flush()
    results = self._results()
    count, shape = results["count"], self._shape

    def or_nan(numbers: np.ndarray) -> np.ndarray:
      if np.all(count > 0):  # Integers stay integers.
        return numbers.reshape(shape)
      return np.where(count > 0, numbers, np.nan).reshape(shape)

    not_finite = results.get("not_finite", np.zeros((3, len(count)), np.int64))
    nan, posinf, neginf = (kind.reshape(shape) for kind in not_finite)
    return PathStatistics(
      spec=self.spec,
      kind=statistics.NUMBERS,
      rows=self.rows,
      per=self.per,
      count=count.reshape(shape),
      nan=nan,
      posinf=posinf,
      neginf=neginf,
      mean=or_nan(results["mean"]),
      std=or_nan(results["std"]),
      min=or_nan(results["min"]),
      max=or_nan(results["max"]),
      quantiles=dict(
        zip(statistics.QUANTILES, map(or_nan, results["quantiles"]), strict=True)
      ),
      method=self.method,
      rank_error=results.get("rank_error", 0.0),
    )

  def _add_columns(self, columns: np.ndarray) -> None:
    """Adds values [rows, elements]."""
    raise NotImplementedError

  def _results(self) -> dict[str, Any]:
    """Returns fields of `PathStatistics` by name, [E] each.

    'quantiles' has one array for each fraction. 'not_finite', [3, E], and 'rank_error'
    are optional.
    """
    raise NotImplementedError


class SketchAccumulator(NumberAccumulator):
  """Keeps moments, extremes and a quantile sketch of each element."""

  method = statistics.SKETCH

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    super().__init__(spec)
    size = self._size
    # NaNs, positive and negative infinities.
    self._not_finite = np.zeros((3, size), np.int64)
    self._moments = Moments.zeros(size)
    if spec.dtype.is_integer:  # Floats round integers above 2^53.
      lowest, highest = spec.dtype.min, spec.dtype.max
      dtype = spec.dtype.as_numpy_dtype
    else:
      lowest, highest, dtype = -np.inf, np.inf, np.float64
    self._low = np.full(size, highest, dtype)
    self._high = np.full(size, lowest, dtype)
    self._sketches = [QuantileSketch(sketch_size(size)) for _ in range(size)]

  def _add_columns(self, columns: np.ndarray) -> None:
    finite = None
    if self.spec.dtype.is_floating:
      finite = self._find_finite(columns)
    self._moments.merge(Moments.of_block(columns, finite))
    for index, sketch in enumerate(self._sketches):
      values = columns[:, index]
      values = values if finite is None else values[finite[:, index]]
      if len(values):
        self._low[index] = min(self._low[index], values.min())
        self._high[index] = max(self._high[index], values.max())
        sketch.add(values.astype(np.float64))

  def _find_finite(self, columns: np.ndarray) -> np.ndarray | None:
    """Returns flags of finite values, or None if all are; counts the others."""
    finite: np.ndarray = np.isfinite(columns)
    if finite.all():
      return None
    kinds = (np.isnan(columns), columns == np.inf, columns == -np.inf)
    self._not_finite += np.stack([kind.sum(axis=0) for kind in kinds])
    return finite

  def merge(self, other: SketchAccumulator) -> None:
    super().merge(other)
    self._not_finite += other._not_finite
    self._moments.merge(other._moments)
    self._low = np.minimum(self._low, other._low)
    self._high = np.maximum(self._high, other._high)
    for sketch, others in zip(self._sketches, other._sketches, strict=True):
      sketch.merge(others)

  def _results(self) -> dict[str, Any]:
    rows = [sketch.quantiles(statistics.QUANTILES) for sketch in self._sketches]
    quantiles = np.reshape(rows, (self._size, len(statistics.QUANTILES)))
    shares = [s.rank_error / s.count for s in self._sketches if s.count]
    return {
      "count": self._moments.count,
      "not_finite": self._not_finite,
      "mean": self._moments.mean,
      "std": self._moments.std(),
      "min": self._low,
      "max": self._high,
      "quantiles": quantiles.T,
      "rank_error": max(shares, default=0.0),
    }


# Maximum number of bins in the histograms of one path.
_MAX_BINS = 1 << 20
# Up to this many columns are counted one by one, which is twice as fast for images.
_MAX_SINGLE = 16


class HistogramAccumulator(NumberAccumulator):
  """Counts how often each value occurs: everything is exact."""

  method = statistics.HISTOGRAM

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    super().__init__(spec)
    is_bool = spec.dtype.is_bool
    low, high = (0, 1) if is_bool else (spec.dtype.min, spec.dtype.max)
    self._values = np.arange(low, high + 1)
    self._counts = np.zeros((self._size, len(self._values)), np.int64)

  def _add_columns(self, columns: np.ndarray) -> None:
    num_bins = len(self._values)
    if self._values[0]:
      columns = columns.astype(np.int64) - self._values[0]
    if self._size <= _MAX_SINGLE:
      for counts, column in zip(self._counts, columns.T, strict=True):
        counts += np.bincount(column, minlength=num_bins)
      return
    bins = columns.astype(np.int64) + np.arange(self._size) * num_bins
    added = np.bincount(bins.reshape(-1), minlength=self._counts.size)
    self._counts += added.reshape(self._counts.shape)

  def merge(self, other: HistogramAccumulator) -> None:
    super().merge(other)
    self._counts += other._counts

  def _results(self) -> dict[str, Any]:
    count = self._counts.sum(axis=1)
    divisor = np.maximum(count, 1)
    mean = self._counts @ self._values / divisor
    distances = np.square(self._values - mean[:, None])
    ranks = np.cumsum(self._counts, axis=1)

    def at_rank(fraction: float) -> np.ndarray:
      target = np.ceil(fraction * ranks[:, -1:]).clip(1)
      return self._values[np.argmax(ranks >= target, axis=1)]

    return {
      "count": count,
      "mean": mean,
      "std": np.sqrt((self._counts * distances).sum(axis=1) / divisor),
      "min": at_rank(0.0),
      "max": at_rank(1.0),
      "quantiles": [
        at_rank(fraction).astype(np.float64) for fraction in statistics.QUANTILES
      ],
    }


def create_accumulator(spec: specs.ExtendedTensorSpec, is_counted: bool) -> Accumulator:
  """Returns an empty accumulator for a spec; `is_counted`: rows are only counted."""
  dtype = spec.dtype
  if is_counted or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
    return Accumulator(spec)
  if dtype.is_integer or dtype.is_bool:
    bins = 2 if dtype.is_bool else 1 << 8 * dtype.size
    if bins * math.prod(_layout(tuple(spec.shape.as_list()))[1]) <= _MAX_BINS:
      return HistogramAccumulator(spec)
  return SketchAccumulator(spec)
