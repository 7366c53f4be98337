"""Numbers of any kind: moments, extremes, and a sketch for the quantiles."""

from __future__ import annotations

import numpy as np

from t2r_seq import specs
from t2r_seq.statistics import figures
from t2r_seq.statistics.accumulator import Arrays
from t2r_seq.statistics.moments import Moments
from t2r_seq.statistics.number_accumulator import NumberAccumulator
from t2r_seq.statistics.sketch import (
  QuantileSketch,
  pack_sketches,
  sketch_size,
  unpack_sketches,
)


class SketchAccumulator(NumberAccumulator):
  """Keeps moments, extremes and a quantile sketch of each element."""

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    """Creates an empty one; see the base class."""
    super().__init__(spec)
    size = self.layout.size
    # NaNs, positive and negative infinities.
    self._not_finite = np.zeros((3, size), np.int64)
    self._moments = Moments.zeros(size)
    self._low = np.full(size, np.inf)
    self._high = np.full(size, -np.inf)
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
        values = values.astype(np.float64)
        self._low[index] = min(self._low[index], values.min())
        self._high[index] = max(self._high[index], values.max())
        sketch.add(values)

  def _find_finite(self, columns: np.ndarray) -> np.ndarray | None:
    """Counts what is not finite; None if all is."""
    finite: np.ndarray = np.isfinite(columns)
    if finite.all():
      return None
    kinds = (np.isnan(columns), columns == np.inf, columns == -np.inf)
    self._not_finite += np.stack([kind.sum(axis=0) for kind in kinds])
    return finite

  def merge(self, other: SketchAccumulator) -> None:
    """See the base class."""
    self.flush()
    other.flush()
    self.rows += other.rows
    self._not_finite += other._not_finite
    self._moments.merge(other._moments)
    self._low = np.minimum(self._low, other._low)
    self._high = np.maximum(self._high, other._high)
    for sketch, others in zip(self._sketches, other._sketches, strict=True):
      sketch.merge(others)

  def finish(self) -> figures.PathStatistics:
    """See the base class."""
    self.flush()
    count = self._moments.count
    nan, posinf, neginf = (self._shape(kind) for kind in self._not_finite)
    found = [sketch.quantiles(figures.QUANTILES) for sketch in self._sketches]
    quantiles = np.reshape(found, (self.layout.size, len(figures.QUANTILES)))
    shares = [s.rank_error / s.count for s in self._sketches if s.count]
    return figures.PathStatistics(
      spec=self.spec,
      kind=figures.NUMBERS,
      rows=self.rows,
      per=self.layout.per,
      count=self._shape(count),
      nan=nan,
      posinf=posinf,
      neginf=neginf,
      mean=self._measure(self._moments.mean, count),
      std=self._measure(self._moments.std(), count),
      min=self._measure(self._low, count),
      max=self._measure(self._high, count),
      quantiles={
        q: self._measure(quantiles[:, i], count)
        for i, q in enumerate(figures.QUANTILES)
      },
      method=figures.SKETCH,
      rank_error=max(shares, default=0.0),
    )

  def to_arrays(self) -> Arrays:
    """See the base class."""
    self.flush()
    arrays = {
      "rows": np.asarray(self.rows),
      "not_finite": self._not_finite,
      "low": self._low,
      "high": self._high,
    }
    arrays |= self._moments.to_arrays()
    return arrays | pack_sketches(self._sketches)

  def restore(self, arrays: Arrays) -> None:
    """See the base class."""
    self.rows = int(arrays["rows"])
    self._not_finite = arrays["not_finite"]
    self._low, self._high = arrays["low"], arrays["high"]
    self._moments = Moments.from_arrays(arrays)
    self._sketches = unpack_sketches(arrays)
