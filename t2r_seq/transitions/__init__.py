"""Transitions on disk, each observation once, and n-step returns made on reading."""

from t2r_seq.transitions.cpprb import import_cpprb
from t2r_seq.transitions.loading import Transitions, load_transitions
from t2r_seq.transitions.metadata import NStep
from t2r_seq.transitions.n_step import NStepTransitions
from t2r_seq.transitions.reading import TransitionReading
from t2r_seq.transitions.saving import save_transitions

__all__ = [
  "NStep",
  "NStepTransitions",
  "TransitionReading",
  "Transitions",
  "import_cpprb",
  "load_transitions",
  "save_transitions",
]
