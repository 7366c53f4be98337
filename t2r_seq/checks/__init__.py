"""Reports of damage, over the episodes of any format."""

from t2r_seq.checks.check import Problem, check_episodes

__all__ = ["Problem", "check_episodes"]
