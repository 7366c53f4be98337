"""Which steps make a sample: index and tensor arithmetic on specs."""

from t2r_seq.windows.dataset import windows
from t2r_seq.windows.flat_specs import (
  add_mask_specs,
  flat_length,
  flat_specs,
  history_length,
  is_windowed,
  mask_paths,
  time_span,
)
from t2r_seq.windows.gather import gather_windows
from t2r_seq.windows.grid import PADDINGS, WindowGrid, check_padding
from t2r_seq.windows.masking import masked_mean
from t2r_seq.windows.readings import Reading
from t2r_seq.windows.report import WindowReport
from t2r_seq.windows.row_list import RowList
from t2r_seq.windows.stacking import stack_windows
from t2r_seq.windows.string_rows import StringRows
from t2r_seq.windows.subsample import (
  boundary_indices,
  gather_steps,
  random_indices,
  random_span_indices,
  uniform_indices,
)
from t2r_seq.windows.window_reader import WindowReader

__all__ = [
  "PADDINGS",
  "Reading",
  "RowList",
  "StringRows",
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
