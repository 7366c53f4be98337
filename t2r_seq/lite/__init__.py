"""Policies without TensorFlow: numpy, and LiteRT for the network."""

from t2r_seq.lite.lite_policy import LitePolicy

__all__ = ["LitePolicy"]
