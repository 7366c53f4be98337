"""Policies without TensorFlow: numpy, and LiteRT for the network."""

from t2r_seq.lite.lite_policy import LitePolicy
from t2r_seq.lite.overlap import OverlappedPolicy

__all__ = ["LitePolicy", "OverlappedPolicy"]
