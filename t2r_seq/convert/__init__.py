"""Conversions between the formats that robot data comes in."""

from t2r_seq.convert.conversion import convert

__all__ = [
  "convert",
]
