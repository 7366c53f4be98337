"""How large a buffer is, and what one step of it has."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs, windows
from t2r_seq.replay import options
from t2r_seq.replay.ring import AnchorRule, column_dtype
from t2r_seq.replay.table import Table, item_bytes
from t2r_seq.store import layout
from t2r_seq.store.layout import Column, Columns
from t2r_seq.windows.cut import appended_specs, invented_paths


def flat_replay_specs(
  operation: str,
  spec_structure: specs.SpecStructure,
  n_step: windows.NStep | None = None,
) -> specs.TensorSpecStruct:
  """Derives what is appended for a step: `appended_specs`, of shapes that are known.

  Args:
    operation: for the error.
    spec_structure: the specs of a window.
    n_step: how transitions are joined, if they are.
  Returns:
    Flat specs by path; with `is_sequence=True` there is a value for each step,
    without it one for each episode.
  Raises:
    SpecError: no path has a value per step, or shapes are not fully defined; all are
      named.
  """
  kept = appended_specs(spec_structure, n_step)
  found = [
    errors.Mismatch(path, "a fully defined shape", f"shape {spec.shape}")
    for path, spec in kept.items()
    if not spec.shape.is_fully_defined()
  ]
  found += [
    errors.Mismatch(
      path,
      "steps around the anchor",
      "time_offsets='last'",
      "A replay samples episodes before their end. Drop time_offsets: the writer gives "
      "the goal of each episode, as a context feature.",
    )
    for path, spec in specs.flatten_spec_structure(spec_structure).items()
    if getattr(spec, "time_offsets", None) == "last"
  ]
  if found:
    raise errors.mismatch_error(operation, found)
  if not any(spec.is_sequence for spec in kept.values()):
    raise errors.SpecError(
      f"{operation}: the specs: expected at least one path with a time axis, got none. "
      "Give the specs time_offsets; 0 is the anchor's own step."
    )
  return kept


def warn_of_invented_steps(
  operation: str, spec_structure: specs.SpecStructure, cut: windows.Cut
) -> None:
  """Logs which paths would be sampled with invented steps after an episode's end."""
  if paths := invented_paths(spec_structure, cut):
    logging.warning(
      "%s: %s look ahead and are padded (%r) at the end of every episode, which "
      "shows invented steps. Pad the front only, ('repeat', 'drop'), or declare "
      "masks (windows.add_mask_specs).",
      operation,
      errors.listing(paths),
      cut.padding,
    )


# Of an episode's end.
_END_BYTES = 8


def make_rng(operation: str, seed: Any) -> np.random.Generator:
  """Makes what random draws come from; raises SpecError where no seed is given."""
  try:
    return np.random.default_rng(seed)
  except (TypeError, ValueError):
    raise errors.SpecError(
      f"{operation}: seed: expected an integer of at least 0, or None, got {seed!r}."
    ) from None


def check_batch_size(batch_size: Any) -> int:
  """Returns it as an int; raises SpecError unless it is an integer of at least 1."""
  if batch_size.__class__ is int and batch_size > 0:
    return batch_size  # The usual case.
  return errors.check_count("sample", "batch_size", batch_size)


def make_columns(operation: str, flat_spec: specs.TensorSpecStruct) -> Columns:
  """Lays out columns; optional paths are held as all others are."""
  required = specs.map_leaves(
    lambda spec: specs.ExtendedTensorSpec.from_spec(
      specs.frame_spec(spec), is_optional=False
    ),
    flat_spec,
  )
  return layout.make_columns(operation, required)


def element_spec(columns: Columns) -> specs.TensorSpecStruct:
  """Returns an episode as `windows.WindowReader` takes it."""
  element = specs.TensorSpecStruct()
  for path, column in columns.items():
    shape = tf.TensorShape(column.row_shape)
    if column.is_per_step:
      shape = tf.TensorShape([None]).concatenate(shape)
    dtype = tf.string if column.is_bytes else column.spec.dtype
    element[path] = tf.TensorSpec(shape, dtype, column.spec.name)
  return element


@dataclasses.dataclass(frozen=True)
class Capacity:
  """How many steps a buffer holds, and which argument says so.

  Attributes:
    argument: 'capacity_steps' or 'capacity_bytes'.
    num_slots: steps of each writer.
    num_writers: N.
    row_bytes: of memory, that a step and its item take.
  """

  argument: str
  num_slots: int
  num_writers: int
  row_bytes: int

  def num_bytes(self, table: Table) -> int:
    """Returns the memory that the held steps take, with all that belongs to them."""
    strings = sum(
      len(item) + 33
      for column in table.ring.columns.values()
      if column.dtype == object
      for item in column.flat
      if item is not None
    )
    ends = _END_BYTES * sum(map(len, table.lanes.ends))
    steps = table.lanes.num_steps * self.row_bytes
    return steps + strings + ends + table.contexts.num_bytes

  @contextlib.contextmanager
  def memory_for(self, operation: str) -> Iterator[None]:
    """Names the argument where there is not memory enough for so many steps."""
    try:
      yield
    except errors.SpecError:
      raise
    except (MemoryError, OSError, OverflowError, ValueError) as error:
      raise errors.SpecError(
        f"{operation}: {self.argument}: expected as much as the memory has room for, "
        f"got {self.num_slots * self.num_writers} steps: {error}. Lower "
        f"{self.argument}."
      ) from error


def plan_capacity(
  columns: Columns,
  rule: AnchorRule,
  how: options.TableOptions,
  num_writers: Any,
  capacity_steps: Any,
  capacity_bytes: Any,
) -> Capacity:
  """Returns how many steps there is room for.

  Args:
    columns: of a step and of an episode.
    rule: which steps have items.
    how: items are sampled, removed and paced.
    num_writers: N, as given.
    capacity_steps: as given.
    capacity_bytes: as given.
  Raises:
    SpecError: not one capacity but none or two, one of bytes for byte strings, or one
      that no window fits in, or not the items that the rate limiter waits for.
  """
  num_writers = errors.check_count(how.operation, "num_writers", num_writers)
  name, capacity = _check_capacity(
    how.operation, columns, capacity_steps, capacity_bytes
  )
  row_bytes, step_size = _row_bytes(columns, rule, how), 1
  if name == "capacity_bytes":  # Each step may be an episode of its own.
    features = sum(_value_bytes(c) for c in columns.values() if not c.is_per_step)
    step_size = row_bytes + features + _END_BYTES
  slots = capacity // (step_size * num_writers)
  if slots < rule.min_steps:
    raise errors.SpecError(
      f"{how.operation}: {name}: expected at least {rule.min_steps} steps for each "
      f"writer, the length of a window, got {slots}. Raise it from {capacity} to "
      f"{rule.min_steps * step_size * num_writers} or more."
    )
  found = Capacity(name, slots, num_writers, row_bytes)
  _check_rate_limiter(how, rule, found)
  return found


def _check_capacity(
  operation: str, columns: Columns, capacity_steps: Any, capacity_bytes: Any
) -> tuple[str, int]:
  """Returns the name of the capacity that is given, and its value."""
  if (capacity_steps is None) == (capacity_bytes is None):
    raise errors.SpecError(
      f"{operation}: expected either capacity_steps or capacity_bytes, got "
      f"{capacity_steps!r} and {capacity_bytes!r}. Give one of the two."
    )
  if capacity_steps is not None:
    return "capacity_steps", errors.check_count(
      operation, "capacity_steps", capacity_steps
    )
  strings = [path for path, column in columns.items() if column.is_bytes]
  if strings:
    raise errors.SpecError(
      f"{operation}: capacity_bytes: expected None with byte strings, whose sizes "
      f"nobody knows before they come, as in {errors.listing(strings)}, got "
      f"{capacity_bytes!r}. Give capacity_steps."
    )
  return "capacity_bytes", errors.check_count(
    operation, "capacity_bytes", capacity_bytes
  )


def _check_rate_limiter(
  how: options.TableOptions, rule: AnchorRule, capacity: Capacity
) -> None:
  """Checks that there is room for the items that a rate limiter wants.

  Raises:
    SpecError: samples would wait for ever, or a full queue would lose items.
  """
  option, argument = how.rate_limiter, capacity.argument
  num_writers, num_slots = capacity.num_writers, capacity.num_slots
  match option:
    case options.MinSize() | options.SampleToInsertRatio():
      name, got = "min_size_to_sample", option.min_size_to_sample
      most = num_writers * rule.most_items(num_slots)
      room = f"{num_writers} x {num_slots} steps have"
      why = "Samples would wait for ever"
    case options.Queue() if how.max_times_sampled == 1:
      name, got = "size", option.size
      most = rule.most_queued(num_slots)
      room = f"{num_slots} steps, the part of a writer, keep while others come"
      why = "Items would go before they are sampled"
    case _:
      return
  if how.max_size is not None and how.max_size < most:
    most, room, argument = how.max_size, "max_size lets in", "max_size"
  if got > most:
    raise errors.SpecError(
      f"{how.operation}: rate_limiter: expected {name} of at most {most}, the items "
      f"that {room}, got {got}. {why}: raise {argument}, or ask for less."
    )


def _row_bytes(columns: Columns, rule: AnchorRule, how: options.TableOptions) -> int:
  """Returns the memory of a step and its item, without what its episode takes."""
  values = sum(_value_bytes(c) for c in columns.values() if c.is_per_step)
  marks = np.min_scalar_type(rule.need + 1).itemsize
  ages = np.min_scalar_type(rule.back).itemsize if rule.has_ages else 0
  # Where its episode's features are.
  episode = 0 if all(column.is_per_step for column in columns.values()) else 8
  return values + marks + ages + episode + item_bytes(how)


def _value_bytes(column: Column) -> int:
  return math.prod(column.row_shape) * column_dtype(column).itemsize
