"""What all accumulators of numbers share: rows are buffered, figures are named."""

from __future__ import annotations

import abc

import numpy as np

from t2r_seq import specs
from t2r_seq.statistics.accumulator import Accumulator
from t2r_seq.statistics.layout import FigureLayout

# Values that are worked on at a time: a few arrays of 8 MiB.
_CHUNK_VALUES = 1 << 20


class NumberAccumulator(Accumulator):
  """Buffers rows, so that small ones are worked on together."""

  def __init__(self, spec: specs.ExtendedTensorSpec) -> None:
    """Creates an empty one; see the base class."""
    super().__init__(spec)
    self.layout = FigureLayout(tuple(spec.shape.as_list()))
    self._pending: list[np.ndarray] = []
    self._num_pending = 0

  def add(self, values: np.ndarray) -> None:
    """See the base class."""
    self.rows += len(values)
    columns = self.layout.to_columns(values)
    step = max(1, _CHUNK_VALUES // max(self.layout.size, 1))
    for start in range(0, len(columns), step):
      self._pending.append(columns[start : start + step])
      self._num_pending += self._pending[-1].size
      if self._num_pending >= _CHUNK_VALUES:
        self.flush()

  def flush(self) -> None:
    """Works on what is buffered."""
    if self._pending:
      pending, self._pending, self._num_pending = self._pending, [], 0
      self._add_columns(np.concatenate(pending))

  @abc.abstractmethod
  def _add_columns(self, columns: np.ndarray) -> None:
    """Takes in values [rows, figures]."""

  def _shape(self, numbers: np.ndarray) -> np.ndarray:
    return numbers.reshape(self.layout.shape)

  def _measure(self, numbers: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Shapes figures; those of no values are NaN."""
    return self._shape(np.where(count > 0, numbers, np.nan))
