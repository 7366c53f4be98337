"""The input generator that reads a part of the files."""

from __future__ import annotations

import fractions
import math
import numbers
from typing import Any

import gin

from t2r_seq import errors, specs
from t2r_seq.data import record_files
from t2r_seq.data.record_input_generator import DefaultRecordInputGenerator


@gin.configurable
class FractionalRecordInputGenerator(DefaultRecordInputGenerator):
  """Reads a fixed fraction of the files: how much does more data help?

  The first files of the sorted list, so that a smaller fraction is a part of a larger
  one, whatever the seed is. After Tensor2Robot's class of that name.
  """

  def __init__(self, file_fraction: float = 1.0, **record_arguments: Any) -> None:
    """Creates the generator.

    Args:
      file_fraction: above 0, and at most 1; the number of files is rounded down. Of
        several datasets the fraction of each is read.
      **record_arguments: of `DefaultRecordInputGenerator`, `file_patterns` too.
    Raises:
      SpecError: no fraction, or what the base refuses.
    """
    super().__init__(**record_arguments)
    is_number = isinstance(file_fraction, numbers.Real)
    if not is_number or isinstance(file_fraction, bool) or not 0 < file_fraction <= 1:
      raise errors.SpecError(
        "FractionalRecordInputGenerator: file_fraction: expected a number above 0 and "
        f"at most 1, got {file_fraction!r}."
      )
    self._file_fraction = file_fraction

  def _find_files(self, flat_specs: specs.TensorSpecStruct) -> record_files.FilesByKey:
    files = super()._find_files(flat_specs)
    # As it is written: the float 0.29 times 100 is a little less than 29.
    fraction = fractions.Fraction(repr(float(self._file_fraction)))
    kept = {
      key: names[: math.floor(fraction * len(names))] for key, names in files.items()
    }
    found = [
      errors.Mismatch(
        f"dataset_key '{key}'" if key else "file_fraction",
        "a fraction that leaves at least one file",
        f"{self._file_fraction} of {len(files[key])}",
      )
      for key, names in kept.items()
      if not names
    ]
    if found:
      raise errors.mismatch_error(self._where(), found)
    return kept
