"""Transitions on disk, with each observation once and n-step returns on reading."""

from t2r_seq.transitions.loading import load_transitions
from t2r_seq.transitions.saving import (
  frames_of_stacks,
  import_cpprb,
  save_transitions,
)

__all__ = [
  "frames_of_stacks",
  "import_cpprb",
  "load_transitions",
  "save_transitions",
]
