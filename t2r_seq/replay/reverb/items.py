"""Items of a Reverb table: their columns, and how windows become items and back.

Reverb stores, sends and unpacks every row of every column separately. Rows of one step
cost about 10 us each, in server and client together (dm-reverb 0.14): a window of 4
steps of 28 KB took 370 us of processor time as 4 columns, and 260 us as one.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import platform
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.replay.replay import element_spec, flat_replay_specs, make_columns
from t2r_seq.store.layout import Columns
from t2r_seq.windows.cut import Anchors
from t2r_seq.windows.reader import WindowReader


@dataclasses.dataclass(frozen=True)
class Bundle:
  """A column of several paths that an item shows at the same steps.

  Attributes:
    first: first step of the window, relative to its first anchor.
    last: last step of the window.
    fields: specs of a step by path, in the order of their bytes; no strings.
  """

  first: int
  last: int
  fields: Mapping[str, tf.TensorSpec]

  @property
  def column(self) -> str:
    """The name of the column."""
    return f"@steps {self.first} to {self.last}"

  def spec(self, length: int | None) -> tf.TensorSpec:
    """Returns the spec of an item's column; its name describes the paths."""
    text = "; ".join(
      f"{path}: {errors.describe(tf.TensorSpec([length, *field.shape], field.dtype))} "
      f"(steps {self.first} to {self.last})"
      for path, field in self.fields.items()
    )
    num_bytes = sum(_num_bytes(field) for field in self.fields.values())
    return tf.TensorSpec([length, num_bytes], tf.uint8, f"{self.column}, {text}")

  def pack(self, row: dict[str, Any]) -> None:
    """Replaces the values of the paths in a row by that of the column."""
    parts = [np.ravel(row.pop(path)).view(np.uint8) for path in self.fields]
    row[self.column] = np.concatenate(parts)

  def unpack(self, values: tf.Tensor) -> dict[str, tf.Tensor]:
    """Converts the column, uint8 [B, F, bytes], to the paths, [B, F, ...]."""
    sizes = [_num_bytes(field) for field in self.fields.values()]
    parts = tf.split(values, sizes, axis=2)
    return {
      path: _of_bytes(part, field)
      for (path, field), part in zip(self.fields.items(), parts, strict=True)
    }


def make_bundles(
  spans: Mapping[str, tuple[int, int]], steps: Mapping[str, tf.TensorSpec]
) -> list[Bundle]:
  """Bundles paths that are shown at the same steps; a single path stays alone."""
  groups: dict[tuple[int, int], dict[str, tf.TensorSpec]] = {}
  for path in sorted(spans):
    if steps[path].dtype != tf.string:
      groups.setdefault(spans[path], {})[path] = steps[path]
  return [Bundle(*span, fields) for span, fields in groups.items() if len(fields) > 1]


def describe_columns(signature: Mapping[str, tf.TensorSpec]) -> dict[str, str]:
  """Describes a table's columns by path, with a text for each path in a bundle."""
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
  if field.dtype == tf.bool:  # tf.bitcast rejects bool.
    return tf.cast(tf.reshape(values, shape), tf.bool)
  if field.dtype.size > 1:
    return tf.bitcast(tf.reshape(values, [*shape, field.dtype.size]), field.dtype)
  return tf.bitcast(tf.reshape(values, shape), field.dtype)


# A column of the table, and the rows of it in an item: a range; one row, without a time
# axis; or None for the value of the episode.
Rows = tuple[str, range | int | None]


# The position of an item in its episode, which padding needs. The last two are columns
# of an item, which refer to the table's column of step numbers, the first.
STEP = "@step"
FIRST_ANCHOR = "@first_anchor"
LAST_STEP = "@last_step"


class ItemLayout:
  """The columns of one item; every window is one item.

  An item has the steps of each path from the first to the last that its window shows;
  paths that are shown at the same steps are one column (`Bundle`). A writer appends
  rows of one step, and makes items of ranges of them: steps that two items share are
  stored once. Ranges have no gaps and no repetitions, as Reverb's writer requires.

  At the ends of an episode an item has fewer steps. The receiver pads them, and joins
  n-step transitions, by the item's position in the episode.

  Attributes:
    reader: cuts windows from episodes; flat or not.
    columns: columns of a step.
    signature: specs of an item's columns, fully defined except for time axes. Their
      names describe the steps, to distinguish windows of the same shape.
    full_shapes: shapes of an item's columns inside an episode.
    num_rows_kept: number of the newest rows that the next item may refer to.
  """

  def __init__(self, reader: WindowReader, columns: Columns) -> None:
    self.reader = reader
    self.columns = columns
    self._grid = reader.grid
    self._spans = _spans(reader)
    self._context = tuple(path for path in reader.paths if path not in self._spans)
    cut = reader.cut
    self._has_edges = cut.pads_front or cut.pads_end or reader.n_step is not None
    element = element_spec(columns)
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
    if reader.n_step is not None:
      last = reader.num_growing
    self._before, self._after = max(-first, 0), max(last, 0)
    self.num_rows_kept = self._before + self._after + 1

  def row(self, step: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Converts a step to a row, with its number if items may have fewer steps."""
    row = dict(step)
    if self._has_edges:
      row[STEP] = np.int64(number)
    for bundle in self._bundles:
      bundle.pack(row)
    return row

  def num_items(self, num_steps: int, has_ended: bool, last_flag: bool = False) -> int:
    """Returns how many items the steps of an episode complete.

    Args:
      num_steps: number of steps of the episode so far.
      has_ended: whether no step follows.
      last_flag: value of the reader's `end_flag` in the last step.
    """
    if has_ended:
      return int(self._grid.num_windows(self.reader.num_rows(num_steps, last_flag)))
    return self._grid.num_complete(num_steps, self.reader.num_growing)

  def first_anchor(self, number: int) -> int:
    """Returns the first anchor of an item, whose priority is the item's."""
    return self._grid.start(number)

  def item(self, number: int, num_steps: int) -> dict[str, Rows]:
    """Returns the rows of an item by column.

    Args:
      number: number of the item in its episode.
      num_steps: number of steps of the episode so far.
    """
    start, end = self._grid.start(number), num_steps - 1
    rows: dict[str, Rows] = {path: (path, None) for path in self._context}
    spans = {bundle.column: (bundle.first, bundle.last) for bundle in self._bundles}
    spans |= {p: span for p, span in self._spans.items() if p not in self._bundled}
    for column, (first, last) in spans.items():
      steps = range(_clip(start + first, end), _clip(start + last, end) + 1)
      rows[column] = column, steps
    if self._has_edges:
      rows[FIRST_ANCHOR] = STEP, start
      rows[LAST_STEP] = STEP, _clip(start + self._after, end)
    return rows

  def to_windows(self, items: Mapping[str, tf.Tensor]) -> specs.TensorSpecStruct:
    """Converts the columns of items, [B, ...], to windows by path, [B, L, K, ...].

    Columns of shorter items have to be padded at their ends.
    """
    items = dict(items)
    for bundle in self._bundles:
      items.update(bundle.unpack(items.pop(bundle.column)))
    size = tf.shape(next(iter(items.values())), tf.int64)[0]
    if self._has_edges:
      before = tf.minimum(items[FIRST_ANCHOR], self._before)
      after = items[LAST_STEP] - items[FIRST_ANCHOR]
    else:
      before, after = (
        tf.fill([size], np.int64(n)) for n in (self._before, self._after)
      )
    # Row numbers as if all items had the maximum length.
    length = self.num_rows_kept
    first_rows = tf.range(size) * length

    def take(path: str, rows: tf.Tensor | None) -> tf.Tensor:
      if rows is None:
        return items[path]
      first = tf.clip_by_value(before + self._spans[path][0], 0, before + after)
      number, step = rows // length, rows % length
      count = tf.shape(items[path], tf.int64)[1]
      index = number * count + step - tf.gather(first, number)
      values = tf.reshape(items[path], [-1, *items[path].shape[2:]])
      return tf.gather(values, index)

    anchors = Anchors(first_rows + before, before, after)
    return specs.TensorSpecStruct(self.reader.read_at(take, anchors))

  def _signature(self, has_edges: bool) -> dict[str, tf.TensorSpec]:
    signature = {}
    element = element_spec(self.columns)
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


def _spans(reader: WindowReader) -> dict[str, tuple[int, int]]:
  """Returns the first and last step that an item shows of each path with steps."""
  spans: dict[str, tuple[int, int]] = {}
  for path, (first, last) in reader.spans.items():
    source = reader.readings[path].source
    low, high = spans.get(source, (first, last))
    spans[source] = min(first, low), max(last, high)
  return spans


def _clip(step: int, end: int) -> int:
  return min(max(step, 0), end)


def make_layout(
  operation: str,
  spec_structure: specs.SpecStructure,
  cut: windows.Cut,
  flat: bool = False,
) -> ItemLayout:
  """Returns the layout of items.

  Args:
    operation: name for error messages.
    spec_structure: see `ReverbReplay`.
    cut: see `ReverbReplay`.
    flat: see `WindowReader`.
  """
  structure = specs.flatten_spec_structure(spec_structure)
  flat_spec = flat_replay_specs(operation, structure, cut.n_step)
  columns = make_columns(operation, flat_spec)
  element = element_spec(columns)
  reader = WindowReader(element, structure, cut, flat)
  if reader.clocks:
    raise errors.SpecError(
      f"{operation}: clock: expected the period of a regular clock, clock=0.05, got "
      f"{errors.listing(reader.clocks)}. Time stamps need a ReplayBuffer."
    )
  return ItemLayout(reader, columns)


TABLE = "replay"


def import_reverb() -> types.ModuleType:
  """Imports Reverb.

  Raises:
    ImportError: Reverb is not installed, or not with the TensorFlow and Python that its
      newest wheel is built for; names the command to install it.
  """
  # gRPC reconnects only when it polls. With its default of 5 s it notices a restarted
  # server after 10 s, with this value after 1 s.
  os.environ.setdefault("GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS", "200")
  try:
    return importlib.import_module("reverb")
  except (ImportError, tf.errors.OpError) as error:
    raise ImportError(
      "reverb: expected dm-reverb 0.14.0 with TensorFlow 2.15 on CPython 3.10 or 3.11, "
      f"got TensorFlow {tf.__version__} on CPython {platform.python_version()}, and: "
      f"{error}. Make an environment for it: python3.11 -m venv reverb-env && "
      "reverb-env/bin/pip install 't2r_seq[reverb]'"
    ) from error


_BITS = {tf.bfloat16: tf.uint16}


def wire_signature(signature: Mapping[str, tf.TensorSpec]) -> dict[str, tf.TensorSpec]:
  """Returns the specs that Reverb gets: bfloat16 as uint16."""
  return {
    name: tf.TensorSpec(spec.shape, _BITS.get(spec.dtype, spec.dtype), spec.name)
    for name, spec in signature.items()
  }


def to_wire(value: Any, dtype: np.dtype) -> np.ndarray:
  """Converts one value of a dtype (object for strings) for Reverb."""
  # A copy: the caller may overwrite it before the row is complete.
  array = np.array(value, dtype)
  return array.view(np.uint16) if dtype.kind == "V" else array


def from_wire(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
  """Converts values from Reverb, without a copy."""
  return values if values.dtype == dtype else tf.bitcast(values, dtype)


# Separates the description of a column from that of the windows.
_WINDOWS = "; windows: "


def make_signature(layout: ItemLayout) -> dict[str, tf.TensorSpec]:
  """Returns the signature of a layout's table.

  Two layouts may have the same columns, but different windows. A table can describe
  these only in the names of its specs, so the first name ends with the description.
  """
  signature = wire_signature(layout.signature)
  cut, first = layout.reader.cut, min(signature)
  described: dict[str, Any] = {
    "padding": cut.padding,
    "sequence_length": cut.num_stacks,
    "shift": cut.shift,
    "stride": cut.stride,
  }
  if cut.n_step is not None:
    described["n_step"] = cut.n_step.n
  spec = signature[first]
  name = f"{spec.name}{_WINDOWS}{json.dumps(described)}"
  signature[first] = tf.TensorSpec(spec.shape, spec.dtype, name)
  return signature


def check_signature(
  operation: str, expected: Mapping[str, tf.TensorSpec], actual: Any
) -> None:
  """Raises SpecError with every difference of a table from the expected signature."""
  if not isinstance(actual, Mapping):
    raise errors.SpecError(
      f"{operation}: the table: expected the signature that t2r_seq makes of the "
      f"specs, got {errors.describe(actual)}. Start the server by ReplayServer."
    )
  want, got = _describe_table(expected), _describe_table(actual)
  mismatches = [
    errors.Mismatch(
      path, want.get(path, "nothing"), f"{got.get(path, 'nothing')} on the server"
    )
    for path in sorted({*want, *got})
    if want.get(path) != got.get(path)
  ]
  if mismatches:
    hint = "Server and clients need the same specs and window arguments."
    mismatches[-1] = dataclasses.replace(mismatches[-1], hint=hint)
    raise errors.mismatch_error(operation, mismatches)


def _describe_table(signature: Mapping[str, tf.TensorSpec]) -> dict[str, str]:
  """Describes the columns and the windows of a table, by path and by argument."""
  columns: dict[str, tf.TensorSpec] = {}
  described: dict[str, Any] = {}
  for name, spec in signature.items():
    steps, separator, text = (spec.name or "").partition(_WINDOWS)
    columns[name] = tf.TensorSpec(spec.shape, spec.dtype, steps)
    described.update(json.loads(text) if separator else {})
  texts = {f"the windows' {name}": str(value) for name, value in described.items()}
  return {**describe_columns(columns), **texts}
