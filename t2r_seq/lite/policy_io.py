"""What goes in and out of a policy at run time, in numpy: observations and states.

TensorFlow is not imported here: `t2r_seq.lite` works without it.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors

TIMESTAMP = "timestamp"
# A late step, or a doubled one, is no other rate: the median of some intervals is.
_NUM_INTERVALS = 6
_MOST_OFF = 0.1


class PolicyState(dict[str, np.ndarray]):
  """What a policy remembers, by path, with a row per environment, kept by the caller.

  Attributes:
    model_path: of the model that it belongs to.
  """

  def __init__(self, values: Mapping[str, Any], model_path: str = "") -> None:
    """Keeps the values."""
    super().__init__(values)
    self.model_path = model_path


@dataclasses.dataclass(frozen=True)
class Inspection:
  """What a step was about, as the policy itself tells it, `[N, ...]`.

  Attributes:
    seen: raw features by path: windows as the history gave them, and their masks.
    inputs: what the network was given after preprocessing, by
      `specs.signature_key(path)`; nothing where the policy cannot tell.
    said: what the network said, by name; of a chunk all of its actions. Nothing where
      the policy cannot tell.
  """

  seen: dict[str, np.ndarray]
  inputs: dict[str, np.ndarray]
  said: dict[str, np.ndarray]


class RateWatch:
  """Warns when observations come at another rate than the steps of training did.

  A policy that was trained at 20 Hz and is asked at 60 sees motion at a third of its
  speed, and nothing else tells. Each environment has a clock of its own.
  """

  def __init__(self, period: float | None, whose: str = "step") -> None:
    """Begins to watch.

    Args:
      period: seconds from a step of the training data to the next one; None: that is
        not known, and nothing is warned of.
      whose: begins the warning.
    """
    self._period = period
    self._whose = whose
    self._times: dict[int, collections.deque[float]] = {}
    self._warned: set[int] = set()

  def see(self, timestamps: Any, is_first: Any = False) -> None:
    """Takes the time of an observation; warns once, until the rate is right again.

    Args:
      timestamps: seconds, on any clock; a number, or one for each environment, [N].
      is_first: bool, or bool [N]; where an episode begins, whose time counts anew.
    Raises:
      SpecError: they are no numbers of seconds.
    """
    try:
      times: Any = np.asarray(timestamps)
    except ValueError:  # A ragged list.
      times = np.asarray(None)
    is_number = times.dtype.kind in "fiu" and errors.find_nonfinite(times) is None
    if not is_number or times.size not in (1, np.size(is_first)):
      raise errors.SpecError(
        f"{self._whose}: {TIMESTAMP}: expected seconds, one number for each of "
        f"{np.size(is_first)} environments, got {errors.describe(timestamps)}."
      )
    if self._period is None:
      return
    starts = np.ravel(is_first).tolist()
    clocks = np.broadcast_to(times.ravel(), [len(starts)]).tolist()
    for env, (time, begins) in enumerate(zip(clocks, starts, strict=True)):
      kept = self._times.setdefault(env, collections.deque(maxlen=_NUM_INTERVALS + 1))
      if begins:
        kept.clear()
      kept.append(float(time))
      if len(kept) > _NUM_INTERVALS:
        self._compare(env, list(kept), self._period)

  def _compare(self, env: int, times: list[float], period: float) -> None:
    intervals = sorted(b - a for a, b in itertools.pairwise(times))
    middle = _NUM_INTERVALS // 2
    interval = (intervals[middle - 1] + intervals[middle]) / 2
    if abs(interval / period - 1) <= _MOST_OFF:
      self._warned.discard(env)
    elif env not in self._warned:
      self._warned.add(env)
      what = f"{self._whose}: {TIMESTAMP}"
      logging.warning("%s", rate_warning(what, interval, period))


def timestamp_of(observation: Any, spec: Mapping[str, Any]) -> Any:
  """Returns the `timestamp` of an observation that is no feature; None without one."""
  if isinstance(observation, Mapping) and TIMESTAMP not in spec:
    return observation.get(TIMESTAMP)
  return None


def rate_warning(whose: str, interval: float, period: float) -> str:
  """Says that observations come at another rate than in training.

  Args:
    whose: begins the sentence.
    interval: seconds between observations.
    period: seconds between the steps of the training data.
  """
  got = f"{1e3 * interval:.4g} ms"
  if interval > 0:
    got += f" ({1 / interval:.4g} Hz)"
  return (
    f"{whose}: expected an observation every {1e3 * period:.4g} ms "
    f"({1 / period:.4g} Hz), as in training, got one every {got}. The policy sees "
    "other motion than it was trained on."
  )


def flatten_observation(
  observation: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
  """Flattens nested dictionaries to 'a/b' paths; anything else is a leaf."""
  flat: dict[str, Any] = {}
  for key, value in observation.items():
    if isinstance(value, Mapping):
      flat.update(flatten_observation(value, f"{prefix}{key}/"))
    else:
      flat[f"{prefix}{key}"] = value
  return flat


def pack(
  observation: Any,
  spec: Mapping[str, Any],
  context: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
  """Finds the value of every feature in an observation.

  Args:
    observation: a dictionary by path, nested or flat, more entries allowed; or one
      array, when a single feature is left to find.
    spec: what one step needs, by path: specs, or other things of a shape and dtype.
    context: values by path that come on top, e.g. a goal that holds for the episode.
  Returns:
    Arrays by path, see `to_spec_dtype`; shapes and dtypes are not checked here.
  Raises:
    SpecError: features are missing (all are named), or a list is ragged.
  """
  values = flatten_observation(context or {})
  open_paths = [path for path in spec if path not in values]
  if isinstance(observation, Mapping):
    values = {**flatten_observation(observation), **values}
  elif len(open_paths) == 1:
    values[open_paths[0]] = observation
  elif open_paths:
    raise errors.SpecError(
      f"pack observation: expected a dictionary with {errors.listing(open_paths)}, got "
      f"{errors.describe(observation)}. One array is enough only for one feature."
    )
  missing = [
    errors.Mismatch(
      path,
      errors.describe(leaf),
      "nothing",
      errors.nearest(path, values) or f"The observation has {errors.listing(values)}.",
    )
    for path, leaf in spec.items()
    if path not in values
  ]
  if missing:
    raise errors.mismatch_error("pack observation", missing)
  return {path: to_spec_dtype(path, values[path], leaf) for path, leaf in spec.items()}


def check_finite(
  operation: str, values: Mapping[str, Any], has_envs: bool = False
) -> None:
  """Checks that an observation has no NaN and no infinity.

  A policy that remembers would return NaN actions for the rest of the episode.

  Args:
    operation: for the error.
    values: arrays or eager tensors by path.
    has_envs: the first axis is that of environments.
  Raises:
    SpecError: with every path that has such a value, and where.
  """
  wrong = []
  for path, value in values.items():
    array = np.asarray(value)
    found = errors.find_nonfinite(array)
    if found is None:
      continue
    text, index = found
    where = f"{index}"
    if has_envs:
      where = f"{index[1:]}"
      if len(array) > 1:
        where += f" of environment {index[0]}"
    hint = "Repair or skip the observation, or let it in: allow_nan=True, --allow_nan."
    if text != "NaN":
      hint = f"Numbers beyond the range of {array.dtype} become infinite. {hint}"
    spec = errors.describe(array[0] if has_envs else array)
    wrong.append(errors.Mismatch(path, f"finite {spec}", f"{text} at {where}", hint))
  if wrong:
    raise errors.mismatch_error(operation, wrong)


def to_spec_dtype(path: str, value: Any, spec: Any) -> np.ndarray:
  """Converts numbers to a spec's dtype where that keeps their kind.

  NumPy and Gymnasium make float64 and int64 of nearly everything; what is converted is
  what `np.can_cast(..., casting="same_kind")` allows, so float64 becomes float32 and
  int64 int32 or float32, but floats never become integers. Unsigned integers never
  become floats: they are pixels, and nobody has scaled them.

  Args:
    path: where the value goes, for the error.
    value: an array, a number, or a list of numbers.
    spec: what is asked for.
  Returns:
    The array; of its own dtype where that cannot be converted.
  Raises:
    SpecError: a list is ragged, or a text is another object.
  """
  want_dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
  if type(value) is np.ndarray and value.dtype == want_dtype:
    return value
  try:
    array = np.asarray(value)
  except ValueError as error:
    want, got = errors.describe(spec), f"a {type(value).__name__} that is no array"
    mismatch = errors.Mismatch(path, want, got, f"NumPy says: {error}")
    raise errors.mismatch_error("pack observation", [mismatch]) from error
  kind, want_kind = _kind(array.dtype), _kind(want_dtype)
  if kind == want_kind == "O":
    _check_texts(path, value, array, spec)
  if kind not in "biuf" or want_kind not in "iuf":
    return array
  is_pixels_to_float = kind == "u" and want_kind == "f"
  if is_pixels_to_float or not np.can_cast(array.dtype, want_dtype, "same_kind"):
    return array
  # A number beyond the range becomes infinite, which `check_finite` reports.
  with np.errstate(over="ignore"):
    return array.astype(want_dtype, copy=False)


def _check_texts(path: str, value: Any, array: np.ndarray, spec: Any) -> None:
  """Checks that an array of objects has texts and byte strings only."""
  for item in array.ravel().tolist():
    if not isinstance(item, (str, bytes)):
      got = errors.describe(value) if item is value else f"one with {item!r}"[:80]
      mismatch = errors.Mismatch(path, errors.describe(spec), got)
      raise errors.mismatch_error("pack observation", [mismatch])


def list_stages(sources: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  """Returns stages of the input by source as a line.

  Args:
    sources: see `PolicyRecord.source_preprocessing`.
  """
  return "; ".join(
    f"{name and f'{name}: '}{', then '.join(map(_describe_stage, stages)) or 'nothing'}"
    for name, stages in sources.items()
  )


def _describe_stage(stage: Mapping[str, Any]) -> str:
  paths = [*stage.get("normalization", {}), *stage.get("resized", [])]
  paths += [f"{name} to {crop}" for name, crop in stage.get("crops", {}).items()]
  return f"{stage['stage']}{f' of {errors.listing(paths)}' if paths else ''}"


def _kind(dtype: np.dtype) -> str:
  """Returns the kind of a dtype; NumPy does not know that bfloat16 is a float."""
  return "f" if dtype.name == "bfloat16" else dtype.kind
