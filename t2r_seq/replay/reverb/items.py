"""What one item of a Reverb table holds, and how a window becomes one.

Reverb stores, sends and unpacks every row of every column by itself. With rows of one
step that costs some 10 us each, server and client together (dm-reverb 0.14): a window
of 4 steps of 28 KB took 370 us of processor time as 4 columns, and 260 us as one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.replay import sizing
from t2r_seq.replay.sizing import flat_replay_specs
from t2r_seq.store.layout import Columns
from t2r_seq.windows.cut import Anchors


@dataclasses.dataclass(frozen=True)
class Bundle:
  """Paths that an item shows at the same steps; their bytes in the order of paths.

  Attributes:
    first: the first step that is shown.
    last: the last one.
    fields: what a step has, by path: fully defined, no strings.
  """

  first: int
  last: int
  fields: Mapping[str, tf.TensorSpec]

  @property
  def column(self) -> str:
    """The name of the column."""
    return f"@steps {self.first} to {self.last}"

  def spec(self, length: int | None) -> tf.TensorSpec:
    """Returns the spec of an item's column; its name tells of the paths in it.

    Args:
      length: of the time axis.
    """
    text = "; ".join(
      f"{path}: {errors.describe(tf.TensorSpec([length, *field.shape], field.dtype))} "
      f"(steps {self.first} to {self.last})"
      for path, field in self.fields.items()
    )
    num_bytes = sum(_num_bytes(field) for field in self.fields.values())
    return tf.TensorSpec([length, num_bytes], tf.uint8, f"{self.column}, {text}")

  def pack(self, row: dict[str, Any]) -> None:
    """Replaces the paths of a row by the column."""
    parts = [np.ravel(row.pop(path)).view(np.uint8) for path in self.fields]
    row[self.column] = np.concatenate(parts)

  def unpack(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
    """Makes the paths, [B, F, ...], of the column, uint8 [B, F, bytes]."""
    sizes = [_num_bytes(field) for field in self.fields.values()]
    parts = tf.split(values, sizes, axis=2)
    return {
      path: _of_bytes(part, field)
      for (path, field), part in zip(self.fields.items(), parts, strict=True)
    }


def make_bundles(
  spans: Mapping[str, tuple[int, int]], steps: Mapping[str, tf.TensorSpec]
) -> list[Bundle]:
  """Bundles the paths that are shown at the same steps; a single one stays alone.

  Args:
    spans: the first and the last step that is shown of each path.
    steps: what a step has, by path.
  """
  shown: dict[tuple[int, int], dict[str, tf.TensorSpec]] = {}
  for path in sorted(spans):
    if steps[path].dtype != tf.string:
      shown.setdefault(spans[path], {})[path] = steps[path]
  return [Bundle(*span, fields) for span, fields in shown.items() if len(fields) > 1]


def describe_columns(signature: Mapping[str, tf.TensorSpec]) -> dict[str, str]:
  """Describes a table's columns by path, those of bundles one by one."""
  return dict(
    field for name, spec in signature.items() for field in _describe(name, spec)
  )


def _describe(name: str, spec: tf.TensorSpec) -> Iterator[tuple[str, str]]:
  text = (spec.name or "").partition(", ")[2]
  if name.startswith("@steps "):
    for field in text.split("; "):
      path, _, description = field.partition(": ")
      yield path, description
  else:
    yield name, errors.describe(spec) + (f" ({text})" if text else "")


def _num_bytes(field: tf.TensorSpec) -> int:
  return field.dtype.size * field.shape.num_elements()


def _of_bytes(values: tf.Tensor, field: tf.TensorSpec) -> tf.Tensor:
  """Converts bytes [B, F, n] to values [B, F, ...]."""
  shape = [-1, values.shape[1], *field.shape]
  if field.dtype == tf.bool:  # Which has no bits, says TensorFlow.
    return tf.cast(tf.reshape(values, shape), tf.bool)
  if field.dtype.size > 1:
    return tf.bitcast(tf.reshape(values, [*shape, field.dtype.size]), field.dtype)
  return tf.bitcast(tf.reshape(values, shape), field.dtype)


# Of what column an item has which rows: a range; one row, without a time axis; or the
# value of the episode, None.
Rows = tuple[str, range | int | None]


# Where an item is in its episode: what a receiver has to know to pad. Both refer to
# the one column that numbers the steps.
STEP = "@step"
FIRST_ANCHOR = "@first_anchor"
LAST_STEP = "@last_step"


class ItemLayout:
  """What one item of a table holds: every window is one item.

  Of each path an item has the steps from the first to the last that its window shows;
  paths that are shown at the same steps are one column (`Bundle`). A writer appends
  rows of one step, and makes items of ranges of them: what two items share is stored
  once. Ranges have no gaps and no repetitions: Reverb's writer takes it for granted
  that neighbours in an item are neighbours in their chunk.

  At the edges of an episode an item has fewer steps; its place in the episode is then
  all that a receiver needs to pad it, and to join as many steps as there are.

  Attributes:
    reader: cuts windows from episodes; flat or not.
    columns: what a step has.
    signature: specs of an item's columns, fully defined but for time axes. Their names
      say which steps they show, so that two programs that mean different windows of
      the same shape are told apart.
    full_shapes: shapes of the columns of an item that no edge of an episode shortens.
    num_rows_kept: how many of the newest rows the next item may refer to.
  """

  def __init__(self, reader: windows.WindowReader, columns: Columns) -> None:
    """Plans the columns.

    Args:
      reader: cuts windows from episodes.
      columns: what a step has.
    """
    self.reader = reader
    self.columns = columns
    self._grid = reader.grid
    self._spans = _spans(reader)
    self._context = tuple(path for path in reader.paths if path not in self._spans)
    cut = reader.cut
    self._has_edges = cut.pads_front or cut.pads_end or reader.joining is not None
    element = sizing.element_spec(columns)
    self._bundles = make_bundles(
      self._spans,
      {path: tf.TensorSpec(s.shape[1:], s.dtype) for path, s in element.items()},
    )
    self._bundled = {path for bundle in self._bundles for path in bundle.fields}
    self.signature = self._signature(self._has_edges)
    self.full_shapes = {
      name: spec.shape for name, spec in self._signature(has_edges=False).items()
    }
    first, last = reader.steps_shown
    if reader.joining is not None:
      last = reader.num_growing  # It tells how many steps are joined.
    self._before, self._after = max(-first, 0), max(last, 0)
    self.num_rows_kept = self._before + self._after + 1

  def row(self, step: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Makes a row of a step; numbers it where items may be shorter."""
    row = dict(step)
    if self._has_edges:
      row[STEP] = np.int64(number)
    for bundle in self._bundles:
      bundle.pack(row)
    return row

  def num_items(self, num_steps: int, has_ended: bool, last_flag: bool = False) -> int:
    """Returns how many items the steps of an episode give by now.

    Args:
      num_steps: of the episode.
      has_ended: whether no step follows.
      last_flag: whether its last step has the reader's `end_flag`.
    """
    if has_ended:
      return int(self._grid.num_windows(self.reader.num_rows(num_steps, last_flag)))
    return self._grid.num_complete(num_steps, self.reader.num_growing)

  def first_anchor(self, number: int) -> int:
    """Returns the step of the first anchor of an item; its priority is the item's."""
    return self._grid.start(number)

  def item(self, number: int, num_steps: int) -> dict[str, Rows]:
    """Returns which rows an item refers to.

    Args:
      number: of the item in its episode.
      num_steps: that the episode has by now.
    Returns:
      Rows by the item's columns.
    """
    start, end = self._grid.start(number), num_steps - 1
    rows: dict[str, Rows] = {path: (path, None) for path in self._context}
    shown = {bundle.column: (bundle.first, bundle.last) for bundle in self._bundles}
    shown |= {p: span for p, span in self._spans.items() if p not in self._bundled}
    for column, (first, last) in shown.items():
      steps = range(_clip(start + first, end), _clip(start + last, end) + 1)
      rows[column] = column, steps
    if self._has_edges:
      rows[FIRST_ANCHOR] = STEP, start
      rows[LAST_STEP] = STEP, _clip(start + self._after, end)
    return rows

  def to_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Makes a batch of windows of a batch of items.

    Args:
      items: columns, [B, ...]; what is shorter than others is padded at its end.
    Returns:
      Windows by path, leaves [B, L, K, ...].
    """
    items = dict(items)
    for bundle in self._bundles:
      items.update(bundle.unpack(items.pop(bundle.column)))
    size = tf.shape(next(iter(items.values())), tf.int64)[0]
    if self._has_edges:  # There an item is shorter.
      before = tf.minimum(items[FIRST_ANCHOR], self._before)
      after = items[LAST_STEP] - items[FIRST_ANCHOR]
    else:
      before, after = (
        tf.fill([size], np.int64(n)) for n in (self._before, self._after)
      )
    # Rows of a table that has an episode after the other, all of them equally long.
    length = self.num_rows_kept
    first_rows = tf.range(size) * length

    def take(path: str, rows: tf.Tensor | None) -> tf.Tensor:
      if rows is None:
        return items[path]
      first = tf.clip_by_value(before + self._spans[path][0], 0, before + after)
      number, step = rows // length, rows % length
      held = tf.shape(items[path], tf.int64)[1]
      index = number * held + step - tf.gather(first, number)
      values = tf.reshape(items[path], [-1, *items[path].shape[2:]])
      return tf.gather(values, index)

    anchors = Anchors(first_rows + before, before, after)
    return specs.TensorSpecStruct(self.reader.read_at(take, anchors))

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
    if self._has_edges:
      for path in (FIRST_ANCHOR, LAST_STEP):
        signature[path] = tf.TensorSpec([], tf.int64, path)
    return signature


def _spans(reader: windows.WindowReader) -> dict[str, tuple[int, int]]:
  """Returns the first and last step that an item shows of each path with steps."""
  shown: dict[str, tuple[int, int]] = {}
  for path, (first, last) in reader.spans.items():
    source = reader.readings[path].source
    low, high = shown.get(source, (first, last))
    shown[source] = min(first, low), max(last, high)
  return shown


def _clip(step: int, end: int) -> int:
  return min(max(step, 0), end)


def make_layout(
  operation: str,
  spec_structure: specs.SpecStructure,
  cut: windows.Cut,
  flat: bool = False,
) -> ItemLayout:
  """Plans items; see `ReverbReplay` for the arguments.

  Raises:
    SpecError: the specs do not go together.
  """
  structure = specs.flatten_spec_structure(spec_structure)
  flat_spec = flat_replay_specs(operation, structure, cut.n_step)
  columns = sizing.make_columns(operation, flat_spec)
  element = sizing.element_spec(columns)
  return ItemLayout(windows.WindowReader(element, structure, cut, flat), columns)
