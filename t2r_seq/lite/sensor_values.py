"""Several values of a sensor in one step: all of them enter a policy's history.

A force at 1 kHz brings 50 values to a step at 20 Hz. The step takes the last one; the
others are sorted into the state before it, by their time stamps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.lite.policy_io import (
  AGE,
  STAMPS,
  PolicyState,
  check_finite,
  check_is_first,
  flatten_observation,
)
from t2r_seq.stamps import to_nanoseconds

# The stamp of a slot without a value: before all times.
EMPTY = -(2**62)
_HISTORY = "history"


def push_values(
  observation: Any,
  state: PolicyState,
  spec: Mapping[str, Any],
  time_paths: Sequence[str],
  is_first: Any,
  allow_nan: bool = False,
) -> tuple[Any, PolicyState]:
  """Adds all values but one of each sensor to the state.

  Args:
    observation: arrays by path. A sensor with M values has [N, M, ...], and stamps
      [N, M], which may be out of order; M may be 0.
    state: state of N environments.
    spec: specs of one value by path.
    time_paths: the paths of times that the policy takes.
    is_first: bool, or bool [N]; true if an episode starts. Of its first step only the
      newest value of each sensor counts.
    allow_nan: accepts values with NaN or infinity.
  Returns:
    (the observation with one value of each sensor, the state).
  Raises:
    SpecError: values or stamps do not fit, values have NaN or infinity, or a sensor has
      no value at an episode's first step.
  """
  if not time_paths or not isinstance(observation, Mapping):
    return observation, state
  paths = [p.partition("/")[2] for p in time_paths if p.startswith(f"{STAMPS}/")]
  frames = {path: tuple(spec[path].shape) for path in paths}
  given = flatten_observation(observation)
  several = [path for path in paths if _is_several(given.get(path), frames[path])]
  if not several:
    return observation, state
  if not allow_nan:
    check_finite("step", {path: given[path] for path in several}, has_envs=True)
  ages = state[AGE]
  begins = (ages == 0) | np.broadcast_to(
    check_is_first(is_first, len(ages)), ages.shape
  )
  parts: dict[str, np.ndarray] = {}
  for path in several:
    names = f"{_HISTORY}/{path}", f"{STAMPS}/{path}"
    stamps, frame = _stamps(path, given, len(ages)), frames[path]
    values = np.asarray(given[path])
    if values.size and values.shape[2:] != frame:
      want, got = f"{frame} for each of several values", errors.describe(values[0])
      raise errors.mismatch_error("step", [errors.Mismatch(path, want, got)])
    values = values.reshape([*stamps.shape, *frame])
    kept = state[names[1]]
    is_event = names[0] not in state.leaves  # Only their stamps are kept.
    zeros = np.zeros([*kept.shape, *frame], values.dtype)
    past = zeros if is_event else state[names[0]]
    rows = [*_merge(path, [past, kept], [values, stamps], begins, is_event)]
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    parts |= {n: c for n, c in zip(names, columns, strict=False) if n in state.leaves}
    given[path], given[names[1]] = columns[2:]
  return given, state.replace(parts)


def _is_several(value: Any, frame: tuple[int, ...]) -> bool:
  is_empty = np.size(value) == 0 and 0 not in frame
  return value is not None and (np.ndim(value) == len(frame) + 2 or is_empty)


def _stamps(path: str, given: Mapping[str, Any], num_envs: int) -> np.ndarray:
  """Returns the stamps of several values, int64 [N, M] nanoseconds."""
  values, name = np.asarray(given[path]), f"{STAMPS}/{path}"
  if not values.size:
    return np.zeros([num_envs, 0], np.int64)
  count = values.shape[1]
  try:
    stamps: Any = np.asarray(given.get(name))
  except ValueError:  # A ragged list.
    stamps = np.asarray(None)
  is_number = stamps.dtype.kind in "fiu" and errors.find_nonfinite(stamps) is None
  shapes = [(num_envs, count)] + [(count,)] * (num_envs == 1)
  if not is_number or stamps.shape not in shapes or len(values) != num_envs:
    raise errors.SpecError(
      f"step: {name}: expected seconds, one for each of {count} values in "
      f"{num_envs} environments, got {errors.describe(given.get(name))}."
    )
  return to_nanoseconds(stamps).reshape([num_envs, count])


def _merge(
  path: str,
  held: list[np.ndarray],
  new: list[np.ndarray],
  begins: np.ndarray,
  is_event: bool,
) -> Iterator[tuple[Any, ...]]:
  """Yields, by environment, values and stamps to keep, and one of each for the step.

  Args:
    path: path of the sensor, for errors.
    held: values and stamps of the state, [N, depth, ...].
    new: values and stamps of the step, [N, M, ...].
    begins: bool [N]; where an episode starts.
    is_event: whether an episode may start without a value.
  """
  for env, is_first in enumerate(begins):
    (values, stamps), (new_values, times) = (
      [each[env] for each in both] for both in (held, new)
    )
    if not len(times):
      is_empty = is_first or stamps[-1] == EMPTY
      if is_empty and not is_event:
        raise errors.SpecError(
          f"step: {path}: expected a value at the first step of an episode, got none. "
          "Wait for the first one of each sensor."
        )
      # A repeated last value changes nothing. Without one, the stamp of an event is
      # before all intervals.
      yield values, stamps, values[-1], EMPTY + 1 if is_empty else stamps[-1]
      continue
    last = len(times) - 1
    if is_first:  # A policy has no history before its first step.
      last -= int(np.argmax(times[::-1]))
      yield values, stamps, new_values[last], times[last]
      continue
    every = np.concatenate([stamps, times[:-1]])
    order = np.argsort(every, kind="stable")
    ordered = every[order]
    # Of equal stamps the last value is kept. The oldest values are dropped.
    is_kept = np.append(ordered[1:] != ordered[:-1], True) | (ordered == EMPTY)
    rows = order[is_kept][-len(stamps) :]
    joined = np.concatenate([values, new_values[:-1].astype(values.dtype, copy=False)])
    yield joined[rows], every[rows], new_values[last], times[last]
