"""Integers of few values: how often each of them occurs."""

from __future__ import annotations

import numpy as np

from t2r_seq import specs
from t2r_seq.statistics import figures
from t2r_seq.statistics.accumulator import Arrays
from t2r_seq.statistics.layout import FigureLayout
from t2r_seq.statistics.number_accumulator import NumberAccumulator

# Histograms of one path may have so many bins.
_MAX_BINS = 1 << 20
# Up to so many columns are counted one by one; measured twice as fast on images.
_MAX_SINGLE = 16


def has_histogram(spec: specs.ExtendedTensorSpec) -> bool:
  """Whether the values of a path are few enough to be counted one by one."""
  dtype = spec.dtype
  if not (dtype.is_integer or dtype.is_bool):
    return False
  bins = 2 if dtype.is_bool else 1 << 8 * dtype.size
  return bins * FigureLayout(tuple(spec.shape.as_list())).size <= _MAX_BINS


class HistogramAccumulator(NumberAccumulator):
  """Counts how often each value occurs: everything is exact."""

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    """Creates an empty one; see the base class."""
    super().__init__(spec)
    is_bool = spec.dtype.is_bool
    low, high = (0, 1) if is_bool else (spec.dtype.min, spec.dtype.max)
    self._values = np.arange(low, high + 1)
    self._counts = np.zeros((self.layout.size, len(self._values)), np.int64)

  def _add_columns(self, columns: np.ndarray) -> None:
    num_bins = len(self._values)
    if self._values[0]:
      columns = columns.astype(np.int64) - self._values[0]
    if self.layout.size <= _MAX_SINGLE:
      for counts, column in zip(self._counts, columns.T, strict=True):
        counts += np.bincount(column, minlength=num_bins)
      return
    bins = columns.astype(np.int64) + np.arange(self.layout.size) * num_bins
    found = np.bincount(bins.reshape(-1), minlength=self._counts.size)
    self._counts += found.reshape(self._counts.shape)

  def merge(self, other: HistogramAccumulator) -> None:
    """See the base class."""
    self.flush()
    other.flush()
    self.rows += other.rows
    self._counts += other._counts

  def finish(self) -> figures.PathStatistics:
    """See the base class."""
    self.flush()
    counts = self._counts
    total = counts.sum(axis=1)
    divisor = np.maximum(total, 1)
    mean = counts @ self._values / divisor
    distances = np.square(self._values - mean[:, None])
    variance = (counts * distances).sum(axis=1) / divisor
    ranks = np.cumsum(counts, axis=1)
    none = np.zeros(self.layout.shape, np.int64)
    quantiles = {
      q: self._measure(self._at_rank(ranks, q), total) for q in figures.QUANTILES
    }
    return figures.PathStatistics(
      spec=self.spec,
      kind=figures.NUMBERS,
      rows=self.rows,
      per=self.layout.per,
      count=self._shape(total),
      nan=none,
      posinf=none,
      neginf=none,
      mean=self._measure(mean, total),
      std=self._measure(np.sqrt(variance), total),
      min=self._measure(self._at_rank(ranks, 0.0), total),
      max=self._measure(self._at_rank(ranks, 1.0), total),
      quantiles=quantiles,
      method=figures.HISTOGRAM,
    )

  def _at_rank(self, ranks: np.ndarray, fraction: float) -> np.ndarray:
    wanted = np.ceil(fraction * ranks[:, -1:]).clip(1)
    return self._values[np.argmax(ranks >= wanted, axis=1)].astype(np.float64)

  def to_arrays(self) -> Arrays:
    """See the base class."""
    self.flush()
    return {"rows": np.asarray(self.rows), "counts": self._counts}

  def restore(self, arrays: Arrays) -> None:
    """See the base class."""
    self.rows = int(arrays["rows"])
    self._counts = arrays["counts"].astype(np.int64)
