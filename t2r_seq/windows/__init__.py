"""Which steps make a sample: index and tensor arithmetic on specs."""

from t2r_seq.windows.cut import (
  PADDINGS,
  Anchors,
  Cut,
  NStep,
  Padding,
  WindowGrid,
  add_mask_specs,
  check_padding,
  flat_length,
  flat_specs,
  history_length,
  is_windowed,
  mask_paths,
  masked_mean,
  time_span,
)
from t2r_seq.windows.dataset import WindowReport, gather_windows, windows
from t2r_seq.windows.n_step import TransitionFields
from t2r_seq.windows.reader import (
  Reading,
  WindowReader,
  stack_windows,
)
from t2r_seq.windows.rows import RowList, StringRows
from t2r_seq.windows.subsample import (
  boundary_indices,
  gather_steps,
  random_indices,
  random_span_indices,
  uniform_indices,
)

__all__ = [
  "PADDINGS",
  "Anchors",
  "Cut",
  "NStep",
  "Padding",
  "Reading",
  "RowList",
  "StringRows",
  "TransitionFields",
  "WindowGrid",
  "WindowReader",
  "WindowReport",
  "add_mask_specs",
  "boundary_indices",
  "check_padding",
  "flat_length",
  "flat_specs",
  "gather_steps",
  "gather_windows",
  "history_length",
  "is_windowed",
  "mask_paths",
  "masked_mean",
  "random_indices",
  "random_span_indices",
  "stack_windows",
  "time_span",
  "uniform_indices",
  "windows",
]
