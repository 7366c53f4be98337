"""`Ring`: flat columns in memory, a row a step, written over again and again."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq.store.layout import Column

_HUGE_PAGE = 1 << 21


class Ring:
  """The rows of all columns with a value per step.

  With N writers row = slot * N + writer: what N environments that go in step append is
  one block. Numbers lie in arrays that never move, so that tensors can share them;
  byte strings are held as objects.

  Attributes:
    num_slots: rows of each writer.
    num_writers: N.
    columns: by path, [num_slots * N, ...].
  """

  def __init__(
    self, layout: Mapping[str, Column], num_slots: int, num_writers: int
  ) -> None:
    """Reserves the memory; it is taken as rows are written.

    Args:
      layout: the columns with a row per step.
      num_slots: rows of each writer.
      num_writers: N.
    """
    self.num_slots = num_slots
    self.num_writers = num_writers
    self.num_rows = num_slots * num_writers
    self.columns = {
      path: allocate((self.num_rows, *column.row_shape), column_dtype(column))
      for path, column in layout.items()
    }
    self._rows = list(self.columns.values())
    self._blocks = [
      rows.reshape(num_slots, num_writers, *rows.shape[1:]) for rows in self._rows
    ]

  @property
  def row_bytes(self) -> int:
    """Memory of a row; of byte strings, that of their references."""
    return sum(column[:1].nbytes for column in self._rows)

  def write(self, row: int, values: Sequence[Any]) -> None:
    """Writes one row; values in the order of the columns, which fit."""
    for column, value in zip(self._rows, values, strict=True):
      column[row] = value

  def write_block(self, slot: int, values: Sequence[Any]) -> None:
    """Writes the rows of all writers; values [N, ...]."""
    for block, value in zip(self._blocks, values, strict=True):
      block[slot] = value


def column_dtype(column: Column) -> np.dtype:
  """Returns the dtype of a column in memory; byte strings are objects."""
  return np.dtype(object) if column.is_bytes else column.dtype


def allocate(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns zeros that start on a page and take memory only where they are written.

  Args:
    shape: of the array.
    dtype: of it; objects are None.
  """
  dtype = np.dtype(dtype)
  if dtype.hasobject:
    return np.full(shape, None, object)
  size = math.prod(shape) * dtype.itemsize
  private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  memory = mmap.mmap(-1, max(1, size), private)
  if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
    # Rows are gathered from all over the ring: fewer pages, fewer misses.
    memory.madvise(mmap.MADV_HUGEPAGE)
  return np.ndarray(shape, dtype, memory)
