"""`StackedItems`: windows stacked before they are sent, for the sake of comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.replay.reverb.layout import (
  ItemLayout,
  Row,
  Rows,
  last_anchor,
  num_full_windows,
)
from t2r_seq.store.layout import Columns


class StackedItems(ItemLayout):
  """Items hold windows as they are learned from: nothing is left to do for a receiver.

  A row is what one anchor shows. Sequences share the rows of the anchors that they
  have in common, but two rows share nothing: a frame is stored in every stack that
  shows it.
  """

  def __init__(
    self,
    reader: windows.WindowReader,
    columns: Columns,
    spec_structure: specs.TensorSpecStruct,
  ) -> None:
    """Plans the columns.

    Args:
      reader: cuts windows from episodes; not flat.
      columns: what a step has.
      spec_structure: the specs of a window.
    """
    self.reader = reader
    self.columns = columns
    self._grid = reader.grid
    # What is not read is computed.
    self._masks = {
      path: path.removesuffix("_mask")
      for path in reader.window_spec
      if path not in reader.readings
    }
    self._offsets, self._is_sequence = {}, {}
    for path, reading in reader.readings.items():
      if reading.steps is not None:
        is_sequence = spec_structure[path].is_sequence
        anchor = 0 if is_sequence else last_anchor(self._grid)
        self._offsets[path] = (reading.steps[0] if is_sequence else reading.steps) - (
          anchor
        )
        self._is_sequence[path] = is_sequence
    self.signature = {
      path: tf.TensorSpec(spec.shape, spec.dtype, self._name(path))
      for path, spec in reader.window_spec.items()
    }
    self.full_shapes = {path: spec.shape for path, spec in self.signature.items()}
    self.num_rows_kept = self._grid.cut.num_stacks
    first, last = self._grid.span
    self.num_steps_kept = last - first + self._grid.cut.stride + 1

  def num_rows(self, num_steps: int, has_ended: bool) -> int:
    """Returns for how many anchors of the grid there is all that they show."""
    grid = self._grid
    if has_ended:
      count = int(grid.num_windows(num_steps))
      return (count - 1) * grid.cut.shift + grid.cut.num_stacks if count else 0
    anchors = windows.WindowGrid(
      grid.span, windows.Cut(stride=grid.cut.stride, padding=grid.cut.padding)
    )
    return num_full_windows(anchors, num_steps)

  def row(self, step: Callable[[int], Row], number: int, num_steps: int) -> Row:
    """Makes a row: the stacks of one anchor."""
    anchor = self._grid.first_anchor + number * self._grid.cut.stride
    row: dict[str, Any] = {}
    for path, offsets in self._offsets.items():
      source = self.reader.readings[path].source
      row[path] = self._stack(step, source, anchor + offsets, num_steps)
    for mask, path in self._masks.items():
      shown = anchor + self._offsets[path]
      row[mask] = (shown >= 0) & (shown < num_steps)
    if not number:
      row.update(self._context(step(0)))
    return row

  def num_items(self, num_rows: int) -> int:
    """Returns how many sequences the rows give."""
    return max((num_rows - self._grid.cut.num_stacks) // self._grid.cut.shift + 1, 0)

  def item(self, number: int, num_steps: int) -> dict[str, Rows]:
    """Returns the rows of a sequence; of paths without one, that of its end."""
    first = number * self._grid.cut.shift
    rows = range(first, first + self._grid.cut.num_stacks)
    item: dict[str, Rows] = {}
    for column in self.signature:
      path = self._masks.get(column, column)
      if path not in self._offsets:
        item[column] = column, None
      else:
        item[column] = column, rows if self._is_sequence[path] else rows[-1]
    return item

  def to_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Returns items as they are."""
    return specs.TensorSpecStruct((path, items[path]) for path in self.signature)

  def _stack(
    self, step: Callable[[int], Row], source: str, shown: np.ndarray, num_steps: int
  ) -> np.ndarray:
    """Stacks the values of the steps shown, padded."""
    values = np.stack(
      [
        self._value(step, source, int(number), num_steps)
        for number in np.reshape(shown, [-1])
      ]
    )
    return values.reshape(shown.shape + values.shape[1:])

  def _value(
    self, step: Callable[[int], Row], source: str, number: int, num_steps: int
  ) -> Any:
    nearest = min(max(number, 0), num_steps - 1)
    value = step(nearest)[source]
    if self._grid.cut.padding != "zero" or nearest == number:
      return value
    is_bytes = np.asarray(value).dtype.kind in "OS"
    return np.full_like(value, b"" if is_bytes else 0)

  def _context(self, step: Row) -> Row:
    return {
      path: step[reading.source]
      for path, reading in self.reader.readings.items()
      if reading.steps is None
    }

  def _name(self, path: str) -> str:
    """Says what a column shows: steps from an anchor, and how far anchors are apart."""
    path_of = self._masks.get(path, path)
    if path_of not in self._offsets:
      return f"{path}, per episode"
    stride = f", stride {self._grid.cut.stride}" if self._is_sequence[path_of] else ""
    return f"{path}, steps {self._offsets[path_of].tolist()}{stride}"
