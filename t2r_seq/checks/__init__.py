"""Reports of damage, over the episodes of any format."""

from t2r_seq.checks.check import check_episodes
from t2r_seq.errors import Problem

__all__ = ["Problem", "check_episodes"]
