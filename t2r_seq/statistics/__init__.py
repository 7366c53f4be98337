"""Statistics of stored data, in one pass; the same for any number of workers."""

from t2r_seq.statistics.accumulators import Moments, QuantileSketch
from t2r_seq.statistics.compute import compute_statistics
from t2r_seq.statistics.sources import check_statistics
from t2r_seq.statistics.statistics import (
  LengthStatistics,
  PathStatistics,
  Statistics,
  load_statistics,
)

__all__ = [
  "LengthStatistics",
  "Moments",
  "PathStatistics",
  "QuantileSketch",
  "Statistics",
  "check_statistics",
  "compute_statistics",
  "load_statistics",
]
