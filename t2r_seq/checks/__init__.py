"""Reports of damage, over the episodes of any format."""

from t2r_seq.checks.check import check_episodes

__all__ = ["check_episodes"]
