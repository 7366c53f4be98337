"""Selects the steps of a sample: index and tensor arithmetic on specs."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from t2r_seq import imports as _imports

if _TYPE_CHECKING:
  from t2r_seq.windows.cut import (
    Cut,
    NStep,
    WindowGrid,
    add_mask_specs,
    flat_length,
    flat_specs,
    history_length,
    is_windowed,
    time_span,
  )
  from t2r_seq.windows.dataset import WindowReport, gather_windows, windows
  from t2r_seq.windows.reader import (
    WindowReader,
    stack_windows,
  )
  from t2r_seq.windows.subsample import (
    boundary_indices,
    gather_steps,
    random_indices,
    random_span_indices,
    uniform_indices,
  )

__all__ = [
  "Cut",
  "NStep",
  "WindowGrid",
  "WindowReader",
  "WindowReport",
  "add_mask_specs",
  "boundary_indices",
  "flat_length",
  "flat_specs",
  "gather_steps",
  "gather_windows",
  "history_length",
  "is_windowed",
  "random_indices",
  "random_span_indices",
  "stack_windows",
  "time_span",
  "uniform_indices",
  "windows",
]

# Loaded on first use: what a store holds is read without TensorFlow.
__getattr__, __dir__ = _imports.exports(
  __name__, "cut", "dataset", "reader", "subsample"
)
