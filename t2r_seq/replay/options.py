"""Options of sampling, removal and pacing, for either engine of a replay.

An item is the window of one anchor.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import threading
import typing
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Uniform:
  """Samples every item with the same probability."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Fifo:
  """Chooses the oldest item; as a sampler with `max_times_sampled=1`, a queue."""


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Prioritized:
  """Samples an item of priority p with probability p^priority_exponent / sum of all.

  Prioritized experience replay (Schaul et al. 2016). Items of priority 0 are sampled
  only if all have priority 0.

  Attributes:
    priority_exponent: at least 0; 0 makes it uniform. The paper's alpha.
  """

  priority_exponent: float = 0.6

  def __post_init__(self) -> None:
    _check_number("Prioritized", "priority_exponent", self.priority_exponent, 0)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class MinSize:
  """Samples wait for a number of items; inserts never wait.

  Attributes:
    min_size_to_sample: required number of items, at least 1.
  """

  min_size_to_sample: int = 1

  def __post_init__(self) -> None:
    errors.check_count("MinSize", "min_size_to_sample", self.min_size_to_sample)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class SampleToInsertRatio:
  """Keeps the ratio of samples to inserts, within a tolerance.

  Attributes:
    samples_per_insert: the average ratio, above 0.
    min_size_to_sample: items before the first sample, at least 1.
    error_buffer: how far `inserts * samples_per_insert - samples` may differ from
      `samples_per_insert * min_size_to_sample` in either direction; or the pair of its
      bounds, (min_diff, max_diff).
  """

  samples_per_insert: float
  min_size_to_sample: int
  error_buffer: float | tuple[float, float]

  def __post_init__(self) -> None:
    """Raises SpecError if a number is invalid, or `error_buffer` too small."""
    where = "SampleToInsertRatio"
    errors.check_count(where, "min_size_to_sample", self.min_size_to_sample)
    ratio = self.samples_per_insert
    _check_number(where, "samples_per_insert", ratio, 0, is_above=True)
    buffer: Any = self.error_buffer
    is_pair = isinstance(buffer, (tuple, list)) and len(buffer) == 2
    if not all(map(_is_number, buffer if is_pair else [buffer])):
      raise errors.SpecError(
        f"{where}: error_buffer: expected a number, or a pair of bounds, got "
        f"{buffer!r}."
      )
    low, high = self.bounds
    # If neither an insert nor a sample fits, both sides would wait without end.
    if not high - low >= 2 * max(1.0, ratio):
      raise errors.SpecError(
        f"{where}: error_buffer: expected at least {max(1.0, ratio):g}, or a pair of "
        f"bounds {2 * max(1.0, ratio):g} apart, got {self.error_buffer!r}. With less, "
        "inserts and samples come to wait for each other."
      )

  @property
  def bounds(self) -> tuple[float, float]:
    """Bounds of `inserts * samples_per_insert - samples`."""
    if isinstance(self.error_buffer, (tuple, list)):
      low, high = self.error_buffer
      return float(low), float(high)
    offset = self.samples_per_insert * self.min_size_to_sample
    return offset - self.error_buffer, offset + self.error_buffer


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Queue:
  """Inserts wait while the queue is full, samples while it is empty.

  For the sampler `Fifo` with `max_times_sampled=1`.

  Attributes:
    size: maximum number of items, at least 1.
  """

  size: int

  def __post_init__(self) -> None:
    errors.check_count("Queue", "size", self.size)


SelectorOption = Uniform | Fifo | Prioritized
RateLimiterOption = MinSize | SampleToInsertRatio | Queue


def _check_number(
  where: str, name: str, value: Any, least: float, is_above: bool = False
) -> None:
  fits = _is_number(value) and math.isfinite(value) and value >= least
  if not fits or (is_above and value == least):
    bound = f"{'above' if is_above else 'of at least'} {least:g}"
    raise errors.SpecError(
      f"{where}: {name}: expected a number {bound}, got {value!r}."
    )


def _is_number(value: Any) -> bool:
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class TableOptions:
  """Options of a table: sampling, removal, pacing.

  Attributes:
    operation: for errors.
    sampler: chooses the item to sample.
    remover: chooses the item to remove if there are more than `max_size`.
    rate_limiter: how inserts and samples wait for each other. It counts items, of
      which there may be fewer than steps.
    max_size: maximum number of items; None: limited only by the capacity.
    max_times_sampled: number of samples after which an item is removed; 0: no limit.
    initial_priority: priority of items whose step has none; None for the greatest
      priority so far, as in prioritized experience replay.
    timeout: maximum seconds that an insert or a sample waits; None for no limit.
  """

  operation: str
  sampler: SelectorOption = Uniform()
  remover: SelectorOption = Fifo()
  rate_limiter: RateLimiterOption = MinSize()
  max_size: int | None = None
  max_times_sampled: int = 0
  initial_priority: float | None = 1.0
  timeout: float | None = None

  def __post_init__(self) -> None:
    """Raises SpecError if an option is invalid."""
    mismatches = []
    for name, choice, usual in (
      ("sampler", SelectorOption, Uniform),
      ("remover", SelectorOption, Fifo),
      ("rate_limiter", RateLimiterOption, MinSize),
    ):
      option, kinds = getattr(self, name), typing.get_args(choice)
      if isinstance(option, kinds):
        continue
      hint = f"Such as replay.{usual.__name__}()."
      if isinstance(option, type) and option in kinds:
        made = f"replay.{option.__name__}(...), or @{option.__name__}() in gin"
        hint = f"Make one: {made}."
      expected = f"one of {errors.listing(kind.__name__ for kind in kinds)}"
      mismatches.append(errors.Mismatch(name, expected, errors.describe(option), hint))
    if mismatches:
      raise errors.mismatch_error(self.operation, mismatches)
    if self.max_size is not None:
      errors.check_count(self.operation, "max_size", self.max_size)
    errors.check_count(self.operation, "max_times_sampled", self.max_times_sampled, 0)
    check_seconds(self.operation, "timeout", self.timeout)
    if self.initial_priority is not None:
      to_priority(self.operation, self.initial_priority, "initial_priority")


def split_fields(
  operation: str, fields: dict[str, Any], without: Sequence[str] = ()
) -> tuple[TableOptions, dict[str, Any]]:
  """Splits keyword arguments into table options, except for `without`, and the rest."""
  names = {each.name for each in dataclasses.fields(TableOptions)}
  names -= {"operation", *without}
  given = {name: value for name, value in fields.items() if name in names}
  others = {name: value for name, value in fields.items() if name not in names}
  return TableOptions(operation, **given), others


def check_seconds(
  operation: str, name: str, seconds: Any, is_above: bool = False
) -> None:
  """Raises SpecError unless `seconds` is None or a valid number of seconds."""
  if seconds is None:
    return
  fits = _is_number(seconds) and 0 <= seconds <= threading.TIMEOUT_MAX
  if not fits or (is_above and not seconds):
    raise errors.SpecError(
      f"{operation}: {name}: expected a number of seconds "
      f"{'above' if is_above else 'of at least'} 0, or None, got {seconds!r}."
    )


def check_path(operation: str, name: str, path: Any, hint: str) -> str:
  """Returns a local path as text; raises SpecError with the hint for other values."""
  try:
    text = os.fspath(path)
  except TypeError:
    text = None
  # A path like a URL would become a folder of that name.
  if not isinstance(text, str) or not text or "\0" in text or "://" in text:
    mismatch = errors.Mismatch(name, "a path on this machine", repr(path), hint)
    raise errors.mismatch_error(operation, [mismatch])
  return text


def check_checkpoint_dir(operation: str, path: Any) -> str | None:
  """Returns a folder for checkpoints, which may not exist yet, as text; or None.

  Raises:
    SpecError: the value is not a path, or no folder can be created there.
    ReplayError: the folder is not writable.
  """
  if path is None:
    return None
  hint = "Name a folder; None keeps no checkpoints."
  folder = check_path(operation, "checkpoint_dir", path, hint)
  place = os.path.abspath(folder)
  while not os.path.lexists(place):
    place = os.path.dirname(place)
  if not os.path.isdir(place):
    error = bad_checkpoint_dir(operation, path, f"{place} is not a folder")
    raise errors.SpecError(str(error))
  if not os.access(place, os.W_OK | os.X_OK):
    raise bad_checkpoint_dir(operation, path, f"{place} may not be written to")
  return folder


def bad_checkpoint_dir(operation: str, path: Any, why: str) -> errors.ReplayError:
  """Returns the error for a folder of checkpoints that cannot be used."""
  return errors.ReplayError(
    f"{operation}: checkpoint_dir: expected a folder that it may write to, or a place "
    f"for a new one, got {path!r}. {why}: name another place."
  )


_GREATEST = float(np.finfo(np.float32).max)


def to_priority(operation: str, value: Any, name: str = "priority") -> float:
  """Returns a priority; raises SpecError if it is invalid."""
  if value.__class__ is float and 0 <= value <= _GREATEST:
    return value  # The usual case.
  return float(to_priorities(operation, value, (), name))


def to_priorities(
  operation: str, values: Any, shape: tuple[int, ...], name: str = "priorities"
) -> np.ndarray:
  """Returns priorities as float64.

  Raises:
    SpecError: the values are not finite numbers, have another shape, are negative, or
      exceed float32.
  """
  try:
    given = np.asarray(values)
    is_usual = given.shape == shape and given.dtype.kind not in "cmMOSU"
    priorities = given.astype(np.float64, copy=False) if is_usual else None
  except (TypeError, ValueError):  # Such as a ragged list.
    priorities = None
  if priorities is None:
    want = f"numbers of shape {shape}" if shape else "a number"
    raise errors.SpecError(
      f"{operation}: {name}: expected {want}, got {errors.describe(values)}."
    )
  fits = (priorities >= 0) & (priorities <= _GREATEST)
  if not fits.all():
    raise errors.SpecError(
      f"{operation}: {name}: expected finite numbers of at least 0, as float32, got "
      f"{priorities[~fits].ravel()[0]:g}."
    )
  return priorities


def to_updates(keys: Any, priorities: Any) -> tuple[np.ndarray, np.ndarray]:
  """Returns the checked arguments of `Replay.update_priorities`.

  Returns:
    Keys, integers [n], and priorities, float64 [n].
  Raises:
    SpecError: keys or priorities are invalid, or their lengths differ.
  """
  keys = np.asarray(keys)
  are_keys = keys.dtype.kind == "u" or (keys.dtype.kind == "i" and (keys >= 0).all())
  if keys.ndim != 1 or (keys.size and not are_keys):
    raise errors.SpecError(
      "update_priorities: keys: expected integers [n] of at least 0, got "
      f"{errors.describe(keys)}: {str(keys.tolist())[:60]}."
    )
  return keys, to_priorities("update_priorities", priorities, keys.shape)
