"""Statistics of stored data, in one pass; the same for any number of workers."""

from t2r_seq.statistics.compute import check_statistics, compute_statistics
from t2r_seq.statistics.pooling import pool_statistics
from t2r_seq.statistics.statistics import Statistics, load_statistics

__all__ = [
  "Statistics",
  "check_statistics",
  "compute_statistics",
  "load_statistics",
  "pool_statistics",
]
