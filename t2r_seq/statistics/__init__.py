"""Statistics of stored data, in one pass; the same for any number of workers."""

from t2r_seq.statistics.compute import compute_statistics
from t2r_seq.statistics.statistics import load_statistics

__all__ = ["compute_statistics", "load_statistics"]
