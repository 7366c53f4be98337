"""Statistics of stored data, in one pass; the same for any number of workers."""

from t2r_seq.statistics.compute import compute_statistics
from t2r_seq.statistics.figures import PathStatistics
from t2r_seq.statistics.lengths import LengthStatistics
from t2r_seq.statistics.moments import Moments
from t2r_seq.statistics.opening import check_statistics
from t2r_seq.statistics.sketch import QuantileSketch
from t2r_seq.statistics.statistics import Statistics, load_statistics

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
