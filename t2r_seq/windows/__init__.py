"""Selects the steps of a sample: index and tensor arithmetic on specs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from t2r_seq import imports as _imports

if _TYPE_CHECKING:
  from t2r_seq.windows.cut import Cut, NStep, add_mask_specs, flat_specs, is_windowed
  from t2r_seq.windows.dataset import gather_windows, windows
  from t2r_seq.windows.reader import stack_windows

__all__ = [
  "Cut",
  "NStep",
  "add_mask_specs",
  "flat_specs",
  "gather_windows",
  "is_windowed",
  "stack_windows",
  "windows",
]

# Loaded on first use: what a store holds is read without TensorFlow.
__getattr__, __dir__ = _imports.exports(
  __name__, "cut", "dataset", "reader", "subsample"
)
