"""`FlatItems`: every step once; windows are stacked by whoever receives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.replay.memory import sizing
from t2r_seq.replay.reverb.bundles import make_bundles
from t2r_seq.replay.reverb.layout import (
  ItemLayout,
  Row,
  Rows,
  num_full_windows,
)
from t2r_seq.store.layout import Columns

# Where an item is in its episode: what a receiver has to know to pad. Both refer to
# the one column that numbers the steps.
STEP = "@step"
FIRST_ANCHOR = "@first_anchor"
LAST_STEP = "@last_step"


class FlatItems(ItemLayout):
  """Items hold, of each path, the steps from the first to the last that they show.

  Paths that are shown at the same steps are one column (`Bundle`).

  At the edges of an episode an item has fewer; its place in the episode is then all
  that a receiver needs to pad it.
  """

  def __init__(self, reader: windows.WindowReader, columns: Columns) -> None:
    """Plans the columns.

    Args:
      reader: cuts windows from episodes; flat or not.
      columns: what a step has.
    """
    self.reader = reader
    self.columns = columns
    self._grid = reader.grid
    self._spans = _spans(reader)
    self._context = tuple(path for path in reader.paths if path not in self._spans)
    self._is_padded = self._grid.cut.padding != "drop"
    element = sizing.element_spec(columns)
    self._bundles = make_bundles(
      self._spans,
      {path: tf.TensorSpec(s.shape[1:], s.dtype) for path, s in element.items()},
    )
    self._bundled = {path for bundle in self._bundles for path in bundle.fields}
    self.signature = self._signature(self._is_padded)
    self.full_shapes = {
      name: spec.shape for name, spec in self._signature(has_edges=False).items()
    }
    first, last = reader.steps_shown
    self._before, self._after = max(-first, 0), max(last, 0)
    self.num_rows_kept = self._before + self._after + 1
    self.num_steps_kept = 1

  def num_rows(self, num_steps: int, has_ended: bool) -> int:
    """Returns how many rows the steps give: as many."""
    return num_steps

  def row(self, step: Callable[[int], Row], number: int, num_steps: int) -> Row:
    """Makes a row: the step and, where there is padding, its number."""
    row = dict(step(number))
    for path in self._context if number else ():
      row.pop(path, None)
    if self._is_padded:
      row[STEP] = np.int64(number)
    for bundle in self._bundles:
      bundle.pack(row)
    return row

  def num_items(self, num_rows: int) -> int:
    """Returns how many windows are complete."""
    return num_full_windows(self._grid, num_rows)

  def item(self, number: int, num_steps: int) -> dict[str, Rows]:
    """Returns which rows a window shows."""
    start, end = self._grid.start(number), num_steps - 1
    rows: dict[str, Rows] = {path: (path, None) for path in self._context}
    shown = {bundle.column: (bundle.first, bundle.last) for bundle in self._bundles}
    shown |= {p: span for p, span in self._spans.items() if p not in self._bundled}
    for column, (first, last) in shown.items():
      steps = range(_clip(start + first, end), _clip(start + last, end) + 1)
      rows[column] = column, steps
    if self._is_padded:
      rows[FIRST_ANCHOR] = STEP, start
      rows[LAST_STEP] = STEP, _clip(start + self._after, end)
    return rows

  def to_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Stacks a batch of items."""
    items = dict(items)
    for bundle in self._bundles:
      items.update(bundle.unpack(items.pop(bundle.column)))
    if self._is_padded:
      return self._padded_windows(items)
    size = tf.shape(next(iter(items.values())))[0]
    window = specs.TensorSpecStruct()
    for path, reading in self.reader.readings.items():
      values = items[reading.source]
      if reading.steps is not None:
        values = _take(values, reading.steps - self._spans[reading.source][0])
      window[path] = values
    for path, spec in self.reader.window_spec.items():
      if path not in window:
        window[path] = tf.ones(tf.concat([[size], spec.shape], 0), tf.bool)
    return window

  def _padded_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Reads items as the episodes that they would be if nothing else were there."""
    starts = tf.minimum(items[FIRST_ANCHOR], self._before)
    num_steps = starts + items[LAST_STEP] - items[FIRST_ANCHOR] + 1

    def take(path: str, index: tf.Tensor | None) -> tf.Tensor:
      if index is None:
        return items[path]
      first = tf.clip_by_value(starts + self._spans[path][0], 0, num_steps - 1)
      shape = [-1] + [1] * (index.shape.rank - 1)
      return tf.gather(items[path], index - tf.reshape(first, shape), batch_dims=1)

    return self.reader.read_with(take, starts, num_steps)

  def _signature(self, has_edges: bool) -> dict[str, tf.TensorSpec]:
    signature = {}
    element = sizing.element_spec(self.columns)
    for bundle in self._bundles:
      length = None if has_edges else bundle.last - bundle.first + 1
      signature[bundle.column] = bundle.spec(length)
    for path in self.reader.paths:
      if path in self._bundled:
        continue
      shape, dtype = element[path].shape, element[path].dtype
      if path not in self._spans:
        signature[path] = tf.TensorSpec(shape, dtype, f"{path}, per episode")
        continue
      first, last = self._spans[path]
      length = None if has_edges else last - first + 1
      shape = tf.TensorShape([length]).concatenate(shape[1:])
      signature[path] = tf.TensorSpec(shape, dtype, f"{path}, steps {first} to {last}")
    if self._is_padded:
      for path in (FIRST_ANCHOR, LAST_STEP):
        signature[path] = tf.TensorSpec([], tf.int64, path)
    return signature


def _spans(reader: windows.WindowReader) -> dict[str, tuple[int, int]]:
  """Returns the first and last step that an item shows of each path with steps."""
  steps: dict[str, list[int]] = {}
  for reading in reader.readings.values():
    if reading.steps is not None:
      shown = [int(reading.steps.min()), int(reading.steps.max())]
      steps.setdefault(reading.source, []).extend(shown)
  return {path: (min(shown), max(shown)) for path, shown in steps.items()}


def _clip(step: int, end: int) -> int:
  return min(max(step, 0), end)


def _take(values: tf.Tensor, steps: np.ndarray) -> tf.Tensor:
  """Gathers steps, [B, F, ...] to [B] + steps.shape + [...]; all of them for free."""
  if steps.shape == values.shape[1:2] and (np.diff(steps) == 1).all():
    return values
  return tf.gather(values, steps, axis=1)
