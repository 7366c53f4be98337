"""The interface of both replay engines, and the checks of their arguments."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, specs, windows
from t2r_seq.replay.options import to_priority
from t2r_seq.specs import packing
from t2r_seq.specs.extended_tensor_spec import frame_spec
from t2r_seq.stamps import NANOSECONDS, to_nanoseconds
from t2r_seq.store import layout
from t2r_seq.store import values as store_values
from t2r_seq.store.layout import Column, Columns
from t2r_seq.windows.cut import appended_specs, invented_paths
from t2r_seq.windows.reader import WindowReader

_ERRORS = {
  "ReplayTimeoutError": errors.ReplayTimeoutError,
  "ReplayError": errors.ReplayError,
  "SpecError": errors.SpecError,
}


def check_open(operation: str, is_closed: bool) -> None:
  """Raises ReplayError if a replay is closed."""
  if is_closed:
    raise errors.ReplayError(f"{operation}: expected an open replay, got a closed one.")


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
  """Raises the errors of a replay instead of the TensorFlow errors that wrap them."""
  try:
    yield
  except tf.errors.OpError as error:
    for name, error_cls in _ERRORS.items():
      match = re.search(rf"\b{name}: (.+?)\s*(Traceback|$)", error.message, re.S)
      if match:
        raise error_cls(match[1]) from error
    raise


class SampleInfo(NamedTuple):
  """Information on each sampled item; arrays or tensors [B].

  Attributes:
    key: identifies the item for `update_priorities`, uint64; never reused.
    probability: probability of being sampled, float64.
    table_size: number of items at that time, int64.
    priority: priority of the item, float64.
    times_sampled: number of its samples, including this one, int32.
  """

  key: Any
  probability: Any
  table_size: Any
  priority: Any
  times_sampled: Any


@dataclasses.dataclass(frozen=True)
class ReplayCounters:
  """Counts of a replay; None if an engine does not count it.

  Attributes:
    num_episodes: number of episodes with a step in the replay, running ones too.
    num_steps: number of steps in the replay.
    num_items: number of items in the replay.
    num_inserts: number of items inserted since the beginning.
    num_samples: number of items sampled since the beginning.
    num_deletes: number of items deleted since the beginning.
    num_ignored_updates: number of priorities for items that were deleted already.
    num_bytes: memory of the steps, their items and episodes.
  """

  num_episodes: int
  num_steps: int | None
  num_items: int
  num_inserts: int
  num_samples: int
  num_deletes: int
  num_ignored_updates: int | None
  num_bytes: int | None

  @property
  def samples_per_insert(self) -> float:
    """Samples for each insert since the beginning; 0 before the first insert."""
    return self.num_samples / self.num_inserts if self.num_inserts else 0.0


class ReplayWriter(files.Closing):
  """Appends the steps of one environment, in the order of time; for one thread.

  The window of an anchor can be sampled as soon as all its steps have arrived, while
  the episode is running. If the writer is closed or its process dies, the episode ends
  at the last step that arrived.

  Attributes:
    should_stop: called about once per second while the writer waits for a server or a
      rate limiter; True ends the wait with a ReplayTimeoutError.
  """

  should_stop: Callable[[], bool] | None = None
  _is_closed = False

  def append(self, step: Any, priority: float | None = None) -> None:
    """Appends one step.

    Args:
      step: a value for every path of `Replay.flat_spec`, packed or by path, without a
        time axis. The first step of an episode has its context features (specs without
        `is_sequence`); the next ones may leave them out or repeat them.
      priority: priority of the item whose anchor this step is (for a sequence, its
        first anchor); None for the replay's initial priority.
    Raises:
      SpecError: the step (every path is named) or the priority does not fit; nothing is
        appended.
      ReplayError: the writer or its `ReplayBuffer` is closed, or a server refuses.
      ReplayTimeoutError: the rate limiter timed out, or `should_stop` ended the wait;
        nothing is appended.
    """
    if priority is not None:
      priority = to_priority("append", priority)
    self._append(step, priority)

  @abc.abstractmethod
  def end_episode(self) -> None:
    """Ends the episode; the next step begins another. Without steps, nothing happens.

    Raises:
      ReplayError: the writer or its `ReplayBuffer` is closed, or a server refuses.
      ReplayTimeoutError: the rate limiter timed out, or `should_stop` ended the wait.
        The episode has ended, and its last items may be lost.
    """

  @abc.abstractmethod
  def _append(self, step: Any, priority: float | None) -> None:
    """Checks a step and appends it."""

  def _check_open(self, operation: str) -> None:
    if self._is_closed:
      raise errors.ReplayError(
        f"{operation}: expected an open writer, got a closed one. Ask the replay for "
        "another writer()."
      )


class Replay(files.Closing):
  """Experience that arrives while it is learned from, under one spec structure.

  Steps are stored once each; stacks, sequences and next observations are gathered when
  they are sampled, and never cross episodes. Windows are those that
  `windows.reader.WindowReader` cuts from whole episodes.
  """

  @property
  @abc.abstractmethod
  def spec_structure(self) -> specs.TensorSpecStruct:
    """The specs of one window for the learner, by path."""

  @property
  @abc.abstractmethod
  def cut(self) -> windows.Cut:
    """The cut of episodes to windows, with n-step."""

  @property
  @abc.abstractmethod
  def flat_spec(self) -> specs.TensorSpecStruct:
    """The specs of one `append`, by path; see `flat_replay_specs`."""

  @abc.abstractmethod
  def writer(self, should_stop: Callable[[], bool] | None = None) -> ReplayWriter:
    """Returns a writer for one environment.

    Args:
      should_stop: see `ReplayWriter`; it also ends this call's waits.
    Raises:
      ReplayError: the replay is closed, or has no more writers (`num_writers`).
      ReplayTimeoutError: no server answers in time, or `should_stop` ended the wait.
    """

  @abc.abstractmethod
  def dataset(self, batch_size: int, with_info: bool = False) -> tf.data.Dataset:
    """Returns an endless dataset of batches of sampled windows.

    Args:
      batch_size: B.
      with_info: yields pairs (SampleInfo, windows).
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, ...]. A rate limiter's timeout is
      an error of TensorFlow, and inside `explain_failures` a ReplayTimeoutError.
    Raises:
      SpecError: `batch_size` is not an integer of at least 1.
      ReplayError: the replay is closed.
      ReplayTimeoutError: no server answers.
    """

  def fail_waiting(self, error: BaseException) -> None:
    """Fails waiting samplers with this error if no writer remains.

    By default it does nothing: other clients of a server may append.
    """
    del error

  def explain_failures(self) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which a `dataset` raises the errors of the replay."""
    return explain_errors()

  def watch(self) -> Callable[[], Any] | None:
    """Returns a check for a wait for a batch; see `AbstractInputGenerator.watch`."""
    return None

  @abc.abstractmethod
  def update_priorities(self, keys: Any, priorities: Any) -> int | None:
    """Sets the priorities of items.

    Args:
      keys: uint64 [n], from `SampleInfo`.
      priorities: [n], at least 0 and at most the maximum of float32.
    Returns:
      How many of the items still existed (an item may be deleted while the learner
      computes its priority), or None if the engine does not count them.
    Raises:
      SpecError: keys are not integers [n], a priority is out of range, or the lengths
        differ.
      ReplayError: the replay is closed, or a server refuses.
      ReplayTimeoutError: no server answers.
    """

  @property
  @abc.abstractmethod
  def counters(self) -> ReplayCounters:
    """The counts of this replay."""

  @abc.abstractmethod
  def checkpoint(self) -> str:
    """Saves the whole replay; returns the path of the checkpoint."""


def importance_weights(info: SampleInfo, beta: float | tf.Tensor | tf.Variable) -> Any:
  """Returns the weight of each sample's loss.

  Prioritized sampling shows some items more often than others. The weights
  `(table_size * probability) ** -beta`, divided by the largest of the batch, correct
  for this (Schaul et al. 2016).

  Args:
    info: info of a batch, arrays or tensors.
    beta: from 0, no correction, to 1, a full one; or a scalar tensor or variable, whose
      value is not checked.
  Returns:
    float32 [B], in (0, 1]; an array or a tensor like `info`.
  Raises:
    SpecError: `info` is not a SampleInfo, or `beta` is neither in [0, 1] nor a scalar
      tensor.
  """
  if not isinstance(info, SampleInfo):
    raise errors.SpecError(
      f"importance_weights: info: expected a SampleInfo, got {errors.describe(info)}. "
      "It comes from dataset(batch_size, with_info=True)."
    )
  beta = check_exponent(beta)
  if not isinstance(info.probability, np.ndarray):  # Quicker than tf.is_tensor.
    size = tf.cast(info.table_size, tf.float64)
    weights = tf.pow(size * tf.cast(info.probability, tf.float64), -beta)
    return tf.cast(weights / tf.reduce_max(weights), tf.float32)
  sizes = np.asarray(info.table_size, np.float64)
  weights = (sizes * np.asarray(info.probability, np.float64)) ** -float(beta)
  return (weights / weights.max()).astype(np.float32)


def check_exponent(beta: Any) -> Any:
  """Returns the beta of `importance_weights`; raises SpecError if it is invalid."""
  if tf.is_tensor(beta):
    if beta.shape.rank in (0, None) and (
      beta.dtype.is_floating or beta.dtype.is_integer
    ):
      return tf.cast(beta, tf.float64)
  elif isinstance(beta, numbers.Real) and not isinstance(beta, bool):
    number = float(beta)
    if 0 <= number <= 1:
      return number
  raise errors.SpecError(
    "importance_weights: beta: expected a number from 0 to 1, or a scalar tensor, got "
    f"{beta!r}. 0 corrects nothing, 1 everything."
  )


def flat_replay_specs(
  operation: str,
  spec_structure: specs.SpecStructure,
  n_step: windows.NStep | None = None,
) -> specs.TensorSpecStruct:
  """Derives the specs of an appended step by `appended_specs`, and checks them.

  Returns:
    Flat specs by path; with `is_sequence=True` there is a value for each step,
    without it one for each episode.
  Raises:
    SpecError: no path has a value per step, a shape is not fully defined, or time
      offsets are 'last'.
  """
  kept = appended_specs(spec_structure, n_step)
  mismatches = [
    errors.Mismatch(path, "a fully defined shape", f"shape {spec.shape}")
    for path, spec in kept.items()
    if not spec.shape.is_fully_defined()
  ]
  mismatches += [
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
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)
  if not any(spec.is_sequence for spec in kept.values()):
    raise errors.SpecError(
      f"{operation}: the specs: expected at least one path with a time axis, got none. "
      "Give the specs time_offsets; 0 is the anchor's own step."
    )
  return kept


def warn_of_invented_steps(
  operation: str, spec_structure: specs.SpecStructure, cut: windows.Cut
) -> None:
  """Warns of paths that would show invented steps after an episode's end."""
  if paths := invented_paths(spec_structure, cut):
    logging.warning(
      "%s: %s look ahead and are padded (%r) at the end of every episode, which "
      "shows invented steps. Pad the front only, ('repeat', 'drop'), or declare "
      "masks (windows.add_mask_specs).",
      operation,
      errors.listing(paths),
      cut.padding,
    )


def check_batch_size(batch_size: Any) -> int:
  """Returns the batch size as an int; raises SpecError unless it is at least 1."""
  if batch_size.__class__ is int and batch_size > 0:
    return batch_size  # The usual case.
  return errors.check_count("sample", "batch_size", batch_size)


def make_columns(operation: str, flat_spec: specs.TensorSpecStruct) -> Columns:
  """Lays out columns; optional paths become required."""
  required = specs.map_leaves(
    lambda spec: specs.ExtendedTensorSpec.from_spec(
      frame_spec(spec), is_optional=False
    ),
    flat_spec,
  )
  return layout.make_columns(operation, required)


def element_spec(columns: Columns) -> specs.TensorSpecStruct:
  """Returns the specs of a stored episode for `windows.reader.WindowReader`."""
  element = specs.TensorSpecStruct()
  for path, column in columns.items():
    shape = tf.TensorShape(column.row_shape)
    if column.is_per_step:
      shape = tf.TensorShape([None]).concatenate(shape)
    dtype = tf.string if column.is_bytes else column.spec.dtype
    element[path] = tf.TensorSpec(shape, dtype, column.spec.name)
  return element


class StampCheck:
  """Checks the time stamps of the steps of an episode as they arrive.

  In a ring, a window in seconds reaches a fixed number of steps, which is enough only
  up to `Cut.max_rate` steps per second.
  """

  def __init__(self, reader: WindowReader, columns: Columns) -> None:
    """Locates the stamps among the values of `StepPacking.pack`."""
    steps = [path for path, column in columns.items() if column.is_per_step]
    self._rate = reader.cut.max_rate
    self._indices = {path: steps.index(path) for path in reader.clocks}
    self._counts = {abs(n) for n in reader.steps_shown if abs(n) > 1}
    size = max(self._counts, default=1)
    self._previous: dict[str, collections.deque[int]] = {
      path: collections.deque(maxlen=size) for path in self._indices
    }

  def see(self, values: Sequence[Any]) -> dict[str, int]:
    """Returns the stamps of a step, to `add` when it is appended.

    Raises:
      SpecError: a stamp is before the last one, is not finite, or exceeds `max_rate`.
    """
    stamps = {}
    for path, index in self._indices.items():
      previous, is_finite = self._previous[path], bool(np.isfinite(values[index]).all())
      stamp = int(to_nanoseconds(values[index]).ravel()[0]) if is_finite else 0
      if not is_finite or (previous and stamp < previous[-1]):
        raise errors.SpecError(
          f"append: {path}: expected a finite time stamp, not before that of the last "
          f"step, got {values[index]}. End the episode before its clock starts again."
        )
      for count in self._counts if self._rate else ():
        least = (count - 2) / self._rate if self._rate else 0.0
        if count - 1 <= len(previous):
          passed = (stamp - previous[1 - count]) / NANOSECONDS
          if passed < least - 1e-6:
            raise errors.SpecError(
              f"append: {path}: expected at most {self._rate:g} steps per second, got "
              f"{count - 1} in {passed:.4g} s. Raise max_rate."
            )
      stamps[path] = stamp
    return stamps

  def add(self, stamps: Mapping[str, int]) -> None:
    """Records the stamps of an appended step."""
    for path, stamp in stamps.items():
      self._previous[path].append(stamp)

  def end_episode(self) -> None:
    """Forgets the stamps."""
    for previous in self._previous.values():
      previous.clear()


class StepPacking:
  """Checks steps: quickly if their arrays fit exactly, else by the store's rules."""

  def __init__(self, columns: Columns, allow_nan: bool) -> None:
    """Prepares the checks for columns per step and per episode."""
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
      context: context features of the running episode; None before its first step.
    Returns:
      Values in the order of the columns per step; and, for the first step of an
      episode, the context features by path, otherwise {}.
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
    """Returns the values; None if one needs the full check."""
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
    rows = store_values.collect("append", columns, step, False, self._allow_nan)
    return {p: _to_values(columns[p], rows[p], columns[p].row_shape) for p in rows}

  def _without_context(self, step: Any, context: Mapping[str, Any]) -> dict[str, Any]:
    """Removes repeated context features from a step; raises if they differ."""
    flat = dict(packing.leaves(step, self._columns))
    given = {
      path: flat.pop(path) for path in self._contexts if flat.get(path) is not None
    }
    repeated = self._collect({p: self._contexts[p] for p in given}, given)
    mismatches = [
      errors.Mismatch(
        path,
        "the value of the episode's first step, because its spec has no time axis",
        "another",
        "Declare it with time_offsets=0 to read the anchor's own step.",
      )
      for path, value in repeated.items()
      if not np.array_equal(value, context[path])
    ]
    if mismatches:
      raise errors.mismatch_error("append", mismatches)
    return flat


def _is_finite(value: Any, shape: tuple[int, ...]) -> bool:
  # `all` of a small array takes longer than all other checks of a step.
  if shape:
    return b"\0" not in np.isfinite(value).tobytes()
  return math.isfinite(value)


def _python_numbers(column: Column) -> tuple[type, Any, Any]:
  """Returns the Python numbers that fit a column: class, minimum and maximum."""
  dtype = column.spec.dtype
  if dtype.is_floating:
    return float, -float(dtype.max), float(dtype.max)
  if dtype.is_integer:
    return int, int(dtype.min), int(dtype.max)
  return bool, False, True


def _to_values(
  column: Column, rows: store_values.Rows, shape: tuple[int, ...]
) -> np.ndarray:
  """Converts stored bytes to values."""
  if rows.lengths is None:
    return rows.data.view(column.dtype).reshape(shape)
  ends = np.cumsum(rows.lengths)
  data = rows.data.tobytes()
  items = np.empty(len(ends), object)
  items[:] = [data[e - n : e] for e, n in zip(ends, rows.lengths, strict=True)]
  return items.reshape(shape)[()]  # Unwraps a scalar.
