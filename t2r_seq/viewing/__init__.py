"""Episodes to look at: a page with frames, curves, windows, and outliers."""

from t2r_seq.viewing.view import view

__all__ = [
  "view",
]
