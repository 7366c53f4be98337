"""Proof that a deployed policy sees what training saw."""

from t2r_seq.verification.replay import Replay
from t2r_seq.verification.verify import verify

__all__ = ["Replay", "verify"]
