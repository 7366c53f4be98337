"""The writer of a `ReplayBuffer`, and the checks of steps that both engines share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.replay.replay import ReplayWriter
from t2r_seq.replay.table import Table
from t2r_seq.specs import packing
from t2r_seq.store import values as store_values
from t2r_seq.store.layout import Column, Columns

_OPERATION = "append"


class StepPacking:
  """Checks steps. Those that fit as they are cost little; the rest are looked at."""

  def __init__(self, columns: Columns, allow_nan: bool) -> None:
    """Plans the checks.

    Args:
      columns: of one step, in the order of the ring's; and those of an episode.
      allow_nan: accepts NaN and infinity.
    """
    self._columns = columns
    self._allow_nan = allow_nan
    self._steps = {path: c for path, c in columns.items() if c.is_per_step}
    self._contexts = {path: c for path, c in columns.items() if not c.is_per_step}
    self._quick = [
      (
        path,
        column.dtype,
        column.row_shape,
        *_python_numbers(column),
        not allow_nan and column.dtype.kind in "fV",  # bfloat16 is of kind 'V'.
      )
      for path, column in self._steps.items()
      if not column.is_bytes
    ]
    self._is_quick = len(self._quick) == len(columns)

  def pack(
    self, step: Any, context: Mapping[str, Any] | None
  ) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Checks one step.

    Args:
      step: values, packed or by path.
      context: the features of the running episode; None before its first step.
    Returns:
      Values in the order of the ring's columns; and the context features, by path.
    Raises:
      SpecError: the step does not fit; every path is named.
    """
    if self._is_quick and step.__class__ is dict and len(step) == len(self._quick):
      quick = self._pack_quickly(step)
      if quick is not None:
        return quick, {}
    if context is None:
      rows = self._collect(self._columns, step)
    else:
      rows = self._collect(self._steps, self._without_context(step, context))
    packed = [rows[path] for path in self._steps]
    if context is not None:
      return packed, {}
    return packed, {path: rows[path] for path in self._contexts}

  def _pack_quickly(self, step: dict[str, Any]) -> list[Any] | None:
    """Returns the values; None where there is one that needs a closer look."""
    packed = []
    for path, dtype, shape, kind, low, high, needs_finite in self._quick:
      value = step.get(path)
      if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype != dtype or value.shape != shape:
          return None
        if needs_finite and not _is_finite(value, shape):
          return None
      elif value.__class__ is not kind or shape or not low <= value <= high:
        return None
      packed.append(value)
    return packed

  def _collect(self, columns: Columns, step: Any) -> dict[str, np.ndarray]:
    rows = store_values.collect(_OPERATION, columns, step, False, self._allow_nan)
    return {p: _to_values(columns[p], rows[p], columns[p].row_shape) for p in rows}

  def _without_context(self, step: Any, context: Mapping[str, Any]) -> dict[str, Any]:
    """Takes repeated context features out of a step; raises where they differ."""
    flat = dict(packing.leaves(step, self._columns))
    given = {
      path: flat.pop(path) for path in self._contexts if flat.get(path) is not None
    }
    repeated = self._collect({p: self._contexts[p] for p in given}, given)
    found = [
      errors.Mismatch(
        path,
        "the value of the episode's first step, because its spec has no time axis",
        "another",
        "Declare it with time_offsets=0 to read the anchor's own step.",
      )
      for path, value in repeated.items()
      if not np.array_equal(value, context[path])
    ]
    if found:
      raise errors.mismatch_error(_OPERATION, found)
    return flat


def _is_finite(value: Any, shape: tuple[int, ...]) -> bool:
  # `all` of a small array takes longer than all other checks of a step.
  if shape:
    return b"\0" not in np.isfinite(value).tobytes()
  return math.isfinite(value)


def _python_numbers(column: Column) -> tuple[type, Any, Any]:
  """Returns which Python numbers a column takes: their class, least and greatest."""
  dtype = column.spec.dtype
  if dtype.is_floating:
    return float, -float(dtype.max), float(dtype.max)
  if dtype.is_integer:
    return int, int(dtype.min), int(dtype.max)
  return bool, False, True


def _to_values(
  column: Column, rows: store_values.Rows, shape: tuple[int, ...]
) -> np.ndarray:
  """Turns bytes back into values."""
  if rows.lengths is None:
    return rows.data.view(column.dtype).reshape(shape)
  ends = np.cumsum(rows.lengths)
  data = rows.data.tobytes()
  items = np.empty(len(ends), object)
  items[:] = [data[e - n : e] for e, n in zip(ends, rows.lengths, strict=True)]
  return items.reshape(shape)[()]  # Not an array around a single one.


class MemoryWriter(ReplayWriter):
  """Appends the steps of one environment."""

  def __init__(
    self,
    table: Table,
    columns: Columns,
    lane: int,
    free: Callable[[int], None],
    allow_nan: bool,
  ) -> None:
    """Opens a writer; `ReplayBuffer.writer` does so.

    Args:
      table: to write to.
      columns: of a step and of an episode.
      lane: which of the writers it is.
      free: called with it when the writer is closed.
      allow_nan: accepts NaN and infinity.
    """
    self._table = table
    self._packing = StepPacking(columns, allow_nan)
    self._lane = lane
    self._free = free

  def _append(self, step: Any, priority: float | None) -> None:
    table, lane = self._table, self._lane
    context = None
    if table.contexts and table.lanes.counts.item(lane) > table.lanes.starts.item(lane):
      context = table.contexts.of_newest(lane)
    packed = self._packing.pack(step, context)
    with table.lock:
      self._check_open("append")
      table.append(lane, *packed, priority, self.should_stop)

  def end_episode(self) -> None:
    """Ends the episode; see `ReplayWriter.end_episode`."""
    with self._table.lock:
      self._check_open("end_episode")
      self._table.end_episode(self._lane, self.should_stop)

  def close(self) -> None:
    """Ends the episode and gives the writer's part of the ring back.

    Raises:
      ReplayTimeoutError: as `end_episode`; it is closed all the same.
    """
    with self._table.lock:
      if self._is_closed:
        return
      try:
        if not self._table.is_closed:
          self._table.end_episode(self._lane, self.should_stop)
      finally:
        self._free(self._lane)
        self._is_closed = True

  def _check_open(self, operation: str) -> None:
    self._table.check_open(operation)
    super()._check_open(operation)
