"""Reports of damage and mistakes, for data sets of any format."""

from t2r_seq.checks.check import check

__all__ = ["check"]
