"""Paths without figures: their rows are counted."""

from __future__ import annotations

import numpy as np

from t2r_seq import specs
from t2r_seq.statistics.accumulator import Accumulator, Arrays
from t2r_seq.statistics.figures import BYTES, UNSUPPORTED, PathStatistics


class RowCounter(Accumulator):
  """Counts rows: of bytes, and of numbers that have no order."""

  def add(self, values: np.ndarray) -> None:
    """See the base class."""
    self.add_rows(len(values))

  def merge(self, other: RowCounter) -> None:
    """See the base class."""
    self.rows += other.rows

  def finish(self) -> PathStatistics:
    """See the base class."""
    is_bytes = self.spec.dtype.name == "string" or specs.is_encoded_image_spec(
      self.spec
    )
    return PathStatistics(self.spec, BYTES if is_bytes else UNSUPPORTED, self.rows)

  def to_arrays(self) -> Arrays:
    """See the base class."""
    return {"rows": np.asarray(self.rows)}

  def restore(self, arrays: Arrays) -> None:
    """See the base class."""
    self.rows = int(arrays["rows"])
