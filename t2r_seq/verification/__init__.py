"""Proof that a deployed policy sees what training saw."""

from t2r_seq.verification.verify import verify

__all__ = ["verify"]
