"""Observations and states of policies at run time, in numpy.

TensorFlow is not imported here: `t2r_seq.lite` works without it.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors
from t2r_seq.stamps import precision, to_nanoseconds

TIMESTAMP, STAMPS = "timestamp", "stamps"
AGE, SEED = "age", "seed"
_PAST = "history/"
# The median of some intervals ignores single late or repeated steps.
_NUM_INTERVALS = 6
# The largest relative error of that median without a warning.
_MOST_OFF = 0.1


@dataclasses.dataclass(frozen=True)
class Leaf:
  """A value of one environment, and the argument of a step that holds it.

  Attributes:
    argument: the name of the step's argument, [N, ...].
    shape: without the axis of environments.
    dtype: dtype of numpy.
    start: the first column of the value, if an argument [N, size] holds several.
  """

  argument: str
  shape: tuple[int, ...]
  dtype: np.dtype
  start: int = 0

  def to_json(self) -> dict[str, Any]:
    """Returns the input of `from_json`."""
    return {
      "argument": self.argument,
      "shape": list(self.shape),
      "dtype": self.dtype.name,
      "start": self.start,
    }

  @classmethod
  def from_json(cls, value: Mapping[str, Any]) -> Leaf:
    """Reads the output of `to_json`."""
    shape, dtype = tuple(value["shape"]), np.dtype(value["dtype"])
    return cls(value["argument"], shape, dtype, value.get("start", 0))


class PolicyState:
  """The state of a policy in N environments.

  Attributes:
    tensors: values by argument of the step, [N, ...]: arrays, or tensors, which stay on
      their device.
    leaves: place of each part of the state, by path; empty if unknown.
    model_path: identifies the model that the state belongs to.
  """

  __slots__ = ("leaves", "model_path", "tensors")

  def __init__(
    self,
    tensors: Mapping[str, Any],
    leaves: Mapping[str, Leaf] | None = None,
    model_path: str = "",
  ) -> None:
    """See the attributes."""
    self.tensors = tensors
    self.leaves = leaves or {}
    self.model_path = model_path

  def __getitem__(self, path: str) -> np.ndarray:
    """Returns a part of the state, [N, *shape]."""
    leaf = self.leaves[path]
    rows = np.asarray(self.tensors[leaf.argument])
    rows = rows.reshape([len(rows), -1])[:, leaf.start :]
    return rows[:, : math.prod(leaf.shape)].reshape([-1, *leaf.shape])

  def replace(self, parts: Mapping[str, np.ndarray]) -> PolicyState:
    """Returns the state with other parts, [N, *shape] by path."""
    tensors = dict(self.tensors)
    for path, value in parts.items():
      leaf = self.leaves[path]
      rows = np.array(tensors[leaf.argument], order="C")
      size = math.prod(leaf.shape)
      columns = rows.reshape([len(rows), -1])[:, leaf.start : leaf.start + size]
      columns[...] = value.reshape([len(rows), size])
      tensors[leaf.argument] = rows
    return PolicyState(tensors, self.leaves, self.model_path)

  def with_seeds(self, seeds: Mapping[int, int]) -> PolicyState:
    """Returns the state with other seeds, by environment; unchanged if it has none."""
    if SEED not in self.leaves:
      return self
    rows = np.array(self[SEED])
    for env, seed in seeds.items():
      rows[env] = as_int32(seed), 0
    return self.replace({SEED: rows})


def as_int32(seed: int) -> int:
  """Keeps the lowest 32 bits of a seed."""
  return int(np.uint32(seed & 0xFFFFFFFF).view(np.int32))


class Prefix(NamedTuple):
  """Planned actions that the next chunk continues.

  Attributes:
    actions: [1, n, ...], in the units of the outputs; ignored after `num_known`.
    num_frozen: int32 [1]; actions that will have been executed when the chunk arrives.
    num_known: int32 [1]; actions that the previous chunk has planned.
  """

  actions: Any
  num_frozen: Any
  num_known: Any


class PurePolicy(abc.ABC):
  """A policy as functions: a state goes in, and the next state comes out.

  Many callers can share one, each with its own states.

  Attributes:
    global_step: the training step of the model.
    control_period: seconds from a step of the training data to the next one, if known.
    time_paths: paths of the times that a step takes, if the model's time offsets are
      `Seconds`: its `timestamp`, and the `stamps` of observations.
  """

  global_step: int
  control_period: float | None
  time_paths: Sequence[str] = ()

  @abc.abstractmethod
  def step_specification(self) -> Mapping[str, Any]:
    """Returns the shape and dtype of an observation, by path, of one environment."""

  @abc.abstractmethod
  def initial_state(self, seeds: Sequence[int] = (0,)) -> PolicyState:
    """Returns the state before a first step, with a seed for each environment."""

  @abc.abstractmethod
  def step(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """Takes a step in every environment.

    Args:
      observation: arrays by path, [N, ...].
      state: state from `initial_state`, or from the previous step.
      is_first: bool, or bool [N]; true if an episode starts.
      timestamp: time of the step, needed if the model's time offsets are `Seconds`:
        floats of seconds or integers of nanoseconds, one or [N]. It may be in the
        observation instead.
      stamps: measurement times by path; default: `timestamp`. Unlike stored stamps,
        they may be late, repeated or out of order. A sensor with M values since the
        last step has [N, M, ...] in the observation, and stamps [N, M]; M may be 0.
    Returns:
      (outputs by name, [N, ...]; the next state).
    Raises:
      SpecError: the policy has no step, the arguments do not fit, the observation has
        NaN or infinity, or the state is of another model.
    """

  def observe(
    self, observation: Any, state: PolicyState, is_first: Any = False
  ) -> PolicyState:
    """Adds an observation to the state; the network does not run.

    The arguments are as for `step`.

    Raises:
      SpecError: as for `step`, or the export has no 'observe'.
    """
    raise self._lacks("observe")

  def plan(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    prefix: Prefix | None = None,
  ) -> dict[str, np.ndarray]:
    """Runs the network as this step does; returns outputs with whole chunks.

    The other arguments are as for `step`.

    Args:
      prefix: actions that the chunk continues, in one environment, or None.
    Raises:
      SpecError: as for `step`, or the export has no 'plan', or 'replan' for a prefix.
    """
    raise self._lacks("plan" if prefix is None else "replan")

  def describe(self) -> dict[str, Any]:
    """Returns 'model', 'record' and 'specs' of the policy, for JSON; {} if unknown."""
    return {}

  def _lacks(self, signature: str) -> errors.SpecError:
    model = self.describe().get("model", type(self).__name__)
    return errors.SpecError(
      f"overlap: {model}: expected an export with '{signature}', got one without. "
      "The model must execute chunks, and have no recurrent state; for 'replan' also a "
      "prefix_mode. Write a lite folder with `t2r_seq export --lite --overlap`."
    )


def check_state(state: Any, model_path: str) -> None:
  """Raises a SpecError unless a state is of the model."""
  got = getattr(state, "model_path", None)
  if got != model_path:
    raise errors.SpecError(
      f"step: state: expected one of the model {model_path}, got "
      f"{errors.describe(state) if got is None else f'one of {got}'}. Start an episode "
      "with initial_state()."
    )


def check_prefix(prefix: Prefix, shape: Sequence[int]) -> Prefix:
  """Returns a prefix in the dtypes of the export.

  Args:
    prefix: actions and counts of any numeric dtype.
    shape: shape of the actions, [1, n, ...].
  Raises:
    SpecError: shapes, dtypes or counts do not fit.
  """
  actions, shape = np.asarray(prefix.actions), tuple(int(n) for n in shape)
  counts = [np.asarray(each) for each in prefix[1:]]
  fits = actions.shape == shape and actions.dtype.kind in "fiu"
  fits &= all(each.shape == actions.shape[:1] for each in counts)
  fits &= all(each.dtype.kind in "iu" for each in counts)
  if fits:
    frozen, num_known = counts
    fits = bool(
      np.all((frozen >= 0) & (frozen <= num_known) & (num_known <= actions.shape[1]))
    )
  if not fits:
    raise errors.SpecError(
      f"plan: prefix: expected actions {shape}, and 0 <= num_frozen <= "
      "num_known <= their steps, int32 (1,), got "
      f"{errors.describe(actions)}, {counts[0].tolist()} and {counts[1].tolist()}."
    )
  return Prefix(actions.astype(np.float32), *(each.astype(np.int32) for each in counts))


def check_is_first(is_first: Any, num_envs: int) -> Any:
  """Returns a bool if all environments have the same, otherwise bool [N].

  Raises:
    SpecError: it is neither one bool nor one for each environment.
  """
  if is_first is None or isinstance(is_first, (bool, np.bool_)):
    return bool(is_first)
  starts = np.asarray(is_first, bool)
  if starts.shape not in ((), (num_envs,)):
    raise errors.SpecError(
      f"step: is_first: expected ({num_envs},) bool, one per environment, got "
      f"{errors.describe(starts)}."
    )
  if starts.size == 1 or starts.all() or not starts.any():
    return bool(starts.flat[0])
  return starts


@dataclasses.dataclass(frozen=True)
class Inspection:
  """Inputs and outputs of the network at a step, `[N, ...]`.

  Attributes:
    seen: raw features by path, with windows and masks.
    inputs: the network's inputs after preprocessing, by `signature_key(path)`;
      empty if unknown.
    outputs: the network's outputs by name, with whole chunks; empty if unknown.
  """

  seen: dict[str, np.ndarray]
  inputs: dict[str, np.ndarray]
  outputs: dict[str, np.ndarray]


def with_times(
  observation: Any, timestamp: Any, stamps: Mapping[str, Any] | None
) -> Any:
  """Adds the step's `timestamp` and the sensors' `stamps` to an observation."""
  if timestamp is None and stamps is None:
    return observation
  times = {} if timestamp is None else {TIMESTAMP: timestamp}
  times |= {f"{STAMPS}/{path}": value for path, value in (stamps or {}).items()}
  return {**observation, **times}


def take_times(
  observation: Any, time_paths: Sequence[str], num_envs: int
) -> dict[str, np.ndarray]:
  """Returns the times in an observation, in the form that a step requires.

  Args:
    observation: a mapping by path, nested or flat.
    time_paths: the paths of times that the policy reads.
    num_envs: N.
  Returns:
    By path int64 nanoseconds, [N]; those of the step with their precision, [N, 2].
  Raises:
    SpecError: the time of the step is missing, a time is not one finite number for each
      environment, or a stamp has an unknown path.
  """
  given = observation if isinstance(observation, Mapping) else {}
  if isinstance(given.get(STAMPS), Mapping):
    given = flatten_observation(given)
  if given.get(TIMESTAMP) is None:
    raise errors.SpecError(
      f"step: {TIMESTAMP}: expected the time of the step in seconds, as the policy's "
      "history is by time, got nothing. Add it to the observation, or pass "
      f"{TIMESTAMP}=time.monotonic()."
    )
  for path in given:
    if path.startswith(f"{STAMPS}/") and path not in time_paths:
      near = errors.nearest(path, time_paths)
      want = f"one of {errors.listing(time_paths)}"
      raise errors.SpecError(f"step: {path}: expected {want}, got another path.{near}")
  seconds = {}
  for path in time_paths:
    try:
      times: Any = np.asarray(given.get(path, given[TIMESTAMP]))
    except ValueError:  # A ragged list.
      times = np.asarray(None)
    is_number = times.dtype.kind in "fiu" and errors.find_nonfinite(times) is None
    if not is_number or times.size not in (1, num_envs):
      raise errors.SpecError(
        f"step: {path}: expected seconds, one number for each of {num_envs} "
        f"environments, got {errors.describe(given.get(path))}."
      )
    seconds[path] = np.broadcast_to(to_nanoseconds(times).ravel(), [num_envs])
    if path == TIMESTAMP:
      slack = precision(times.dtype.name, np.abs(seconds[path]))
      seconds[path] = np.stack([seconds[path], slack], -1)
  return seconds


def has_stamps(spec: Mapping[str, Any]) -> bool:
  """Whether a policy's inputs have stamps: its history by time is right at any rate."""
  return any(path.startswith(f"{STAMPS}/") for path in spec)


class RateWatch:
  """Warns when observations come at another rate than in training.

  A policy that was trained at 20 Hz and runs at 60 sees motion at a third of its speed.
  """

  def __init__(self, period: float | None, whose: str = "step") -> None:
    """Creates the watch.

    Args:
      period: seconds from a step of the training data to the next one; None never
        warns.
      whose: begins warnings and errors.
    """
    self._period = period
    self._whose = whose
    self._times: dict[int, collections.deque[float]] = {}
    self._warned: set[int] = set()

  def see(self, timestamps: Any, is_first: Any = False) -> None:
    """Adds the time of an observation; warns once, until the rate is right again.

    Args:
      timestamps: seconds, on any clock; a number, or one for each environment, [N].
      is_first: bool, or bool [N]; where an episode starts.
    Raises:
      SpecError: the timestamps are not one finite number, or one for each environment.
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


class StatefulPolicy:
  """Keeps the state of N environments for the caller of a `PurePolicy`.

  A failed step leaves the state unchanged: the next good observation is right.
  """

  def __init__(self, policy: Any = None, operation: str = "step") -> None:
    """Starts with one environment.

    Args:
      policy: a `PurePolicy`; None until `use` is called.
      operation: begins the warning about the rate of observations.
    """
    self._operation = operation
    self._seeds: dict[int, int] = {}  # Not yet part of the state.
    self.num_envs = 1
    self.use(policy)

  def use(self, policy: Any) -> None:
    """Acts with another policy; all episodes start again."""
    self._policy = policy
    period = None if policy is None else policy.control_period
    self._watch = RateWatch(period, self._operation)
    self.reset(self.num_envs)

  def reset(self, num_envs: int = 1) -> None:
    """Starts an episode in each of `num_envs` environments, with initial states.

    Raises:
      SpecError: `num_envs` is not an integer >= 1.
    """
    if not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
      raise errors.SpecError(
        f"reset: num_envs: expected an integer >= 1, got {num_envs!r}."
      )
    self.num_envs = int(num_envs)
    self._seeds = {env: s for env, s in self._seeds.items() if env < num_envs}
    self._state: PolicyState | None = None
    self._is_fresh = True

  def start_episode(self) -> None:
    """Makes the next step an episode's first; keeps seeds and learned tasks."""
    self._is_fresh = True

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the policy's random numbers repeatable from the next step on."""
    self._seeds[env] = seed

  @property
  def state(self) -> PolicyState:
    """The state before the next step."""
    if self._state is None:
      self._state = self._policy.initial_state(range(self.num_envs))
    if self._seeds:
      self._state = self._state.with_seeds(self._seeds)
      self._seeds = {}
    return self._state

  def step(
    self,
    observation: Any,
    is_first: Any = None,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> dict[str, np.ndarray]:
    """Takes a step in every environment.

    Args:
      observation: arrays by path, [N, ...].
      is_first: bool, or bool [N]; true if an episode starts. All start at the first
        step after `reset`.
      timestamp: seconds, one number or [N]. There is a warning if observations come at
        another rate than in training, unless the history is by time.
      stamps: the times of observations, by path; see `PurePolicy.step`.
    Returns:
      Outputs by name, [N, ...].
    Raises:
      SpecError: the arguments do not fit; no step is taken.
    """
    starts = self._starts(is_first)
    if getattr(self._policy, "time_paths", ()):
      observation = with_times(observation, timestamp, stamps)
    elif timestamp is not None:
      self._watch.see(timestamp, np.broadcast_to(starts, [self.num_envs]))
    outputs, self._state = self._policy.step(observation, self.state, starts)
    self._is_fresh = False
    return outputs

  def _starts(self, is_first: Any) -> Any:
    """Returns where an episode starts: a bool for all, or bool [N]."""
    starts = check_is_first(is_first, self.num_envs)
    return True if self._is_fresh else starts

  def step_one(self, observation: Any, is_first: bool = False) -> dict[str, np.ndarray]:
    """Takes a step in the only environment.

    Args:
      observation: see `pack`; with a `timestamp`, its rate is watched.
      is_first: whether an episode starts.
    Returns:
      Outputs by name, without the axis of environments.
    """
    spec = self._policy.step_specification()
    packed = pack(observation, spec)
    batched = {path: value[np.newaxis] for path, value in packed.items()}
    outputs = self.step(batched, is_first, timestamp_of(observation, spec))
    return {name: value[0] for name, value in outputs.items()}

  def observe_one(self, observation: Any, is_first: bool = False) -> Any:
    """Adds an observation to the history of the only environment; runs no network.

    Args:
      observation: observation of `step_one`.
      is_first: flag of the first step, as in `step_one`.
    Returns:
      The arguments of `plan_one` for the chunk that begins with this observation.
    """
    spec = self._policy.step_specification()
    packed = pack(observation, spec)
    # A robot's driver may reuse the memory while the network runs.
    batched = {path: np.array(value)[np.newaxis] for path, value in packed.items()}
    starts, timestamp = self._starts(is_first), timestamp_of(observation, spec)
    if timestamp is not None:
      self._watch.see(timestamp, np.broadcast_to(starts, [1]))
    arguments = (batched, self.state, starts)
    self._state = self._policy.observe(*arguments)
    self._is_fresh = False
    return arguments

  def plan_one(
    self, arguments: Any, prefix: Prefix | None = None
  ) -> dict[str, np.ndarray]:
    """Runs the network, perhaps in another thread; see `PurePolicy.plan`.

    Returns:
      Outputs by name, without the axis of environments.
    """
    outputs = self._policy.plan(*arguments, prefix)
    return {name: value[0] for name, value in outputs.items()}

  def inspect(self, observation: Any, is_first: Any = None) -> Inspection:
    """Returns inputs and outputs of the network at this step; takes no step."""
    starts = self._starts(is_first)
    return self._policy.inspect(observation, self.state, starts)

  def inspect_one(self, observation: Any, is_first: bool = False) -> Inspection:
    """Inspects a step of the only environment; see `inspect` and `step_one`."""
    packed = pack(observation, self._policy.step_specification())
    return self.inspect({p: value[np.newaxis] for p, value in packed.items()}, is_first)

  def adapt(self, features: Any, env: int = 0) -> None:
    """Learns a task in one environment; `reset` forgets it.

    Args:
      features: by path, [1, samples, ...].
      env: the number of the environment.
    Raises:
      SpecError: the policy learns no tasks, or the arguments do not fit.
    """
    if not 0 <= env < self.num_envs:
      raise errors.SpecError(
        f"adapt: env: expected one of {self.num_envs}, got {env}. Call "
        "reset(num_envs) first."
      )
    self._state = self._policy.adapt(features, self.state, [env])


def history_depth(record: Mapping[str, Any] | None) -> int:
  """Returns the number of observations that a policy keeps, the newest included.

  Args:
    record: the fields of `PolicyRecord`, if known.
  """
  state = (record or {}).get("state") or {}
  depths = [leaf["shape"][0] for path, leaf in state.items() if path.startswith(_PAST)]
  return max(depths, default=1)


def timestamp_of(observation: Any, spec: Mapping[str, Any]) -> Any:
  """Returns an observation's `timestamp`; None without one, or if it is a feature."""
  if isinstance(observation, Mapping) and TIMESTAMP not in spec:
    return observation.get(TIMESTAMP)
  return None


def rate_warning(whose: str, interval: float, period: float) -> str:
  """Returns a warning that observations come at another rate than in training."""
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
  """Returns the array of every feature in an observation, see `to_spec_dtype`.

  Args:
    observation: a dictionary by path, nested or flat, which may have other entries; or
      one array for a single feature.
    spec: specs by path, or other objects with shape and dtype.
    context: further values by path, e.g. a goal that holds for the episode.
  Raises:
    SpecError: features are missing (all are named), a list is ragged, a text is
      neither str nor bytes, or the observation is no dictionary.
  """
  if type(observation) is dict and not context:
    # Flattening takes longer than a small network.
    given = {path: observation.get(path) for path in spec}
    if all(type(value) is np.ndarray for value in given.values()):
      return {path: to_spec_dtype(path, given[path], spec[path]) for path in given}
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
  times = [path for path in spec if path.startswith(f"{STAMPS}/")]
  if times and TIMESTAMP in values:
    values = {**dict.fromkeys(times, values[TIMESTAMP]), **values}
    times.append(TIMESTAMP)
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
  return {
    # Integers of nanoseconds keep their precision.
    path: np.asarray(values[path])
    if path in times
    else to_spec_dtype(path, values[path], leaf)
    for path, leaf in spec.items()
  }


def check_finite(
  operation: str, values: Mapping[str, Any], has_envs: bool = False
) -> None:
  """Raises a SpecError with the places of NaN and infinity in an observation.

  A policy with a state would return NaN actions for the rest of the episode.

  Args:
    operation: for the error.
    values: arrays or eager tensors by path.
    has_envs: whether the first axis is the environments.
  """
  wrong = []
  for path, value in values.items():
    array = np.asarray(value)
    nonfinite = errors.find_nonfinite(array)
    if nonfinite is None:
      continue
    text, index = nonfinite
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
  """Converts numbers to a spec's dtype of the same kind; else keeps their dtype.

  float64 becomes float32, and int64 int32 or float32, as
  `np.can_cast(..., casting="same_kind")` allows. Floats never become integers; unsigned
  integers, which are unscaled pixels, never become floats.

  Args:
    path: for the error.
    value: an array, a number, or a list of numbers.
    spec: has the dtype.
  Raises:
    SpecError: a list is ragged, or an item of a text feature is neither str nor bytes.
  """
  want_dtype = spec.dtype
  if type(value) is np.ndarray and value.dtype is want_dtype:
    return value
  want_dtype = np.dtype(getattr(want_dtype, "as_numpy_dtype", want_dtype))
  try:
    array = np.asarray(value)
  except ValueError as error:
    want, got = errors.describe(spec), f"a {type(value).__name__} that is not an array"
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
  """Raises a SpecError unless an array of objects has only str and bytes."""
  for item in array.ravel().tolist():
    if not isinstance(item, (str, bytes)):
      got = errors.describe(value) if item is value else f"one with {item!r}"[:80]
      mismatch = errors.Mismatch(path, errors.describe(spec), got)
      raise errors.mismatch_error("pack observation", [mismatch])


def list_stages(sources: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
  """Describes stages of the input by source; see `PolicyRecord`."""
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
