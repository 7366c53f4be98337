"""Policies that adapt to a task by its episodes."""

from __future__ import annotations

import abc
import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, policies, specs
from t2r_seq.lite.policy_io import flatten_observation, to_spec_dtype
from t2r_seq.meta_learning import meta_tfdata
from t2r_seq.policies.policy import pack_observation

Episode = Sequence[Mapping[str, Any]]
"""Steps as `t2r_seq.actors` gives them: 'observation', 'action', 'reward', ..."""

PackConditionFn = Callable[..., Any]
"""Called with episodes and specs, and with `time_offsets` if the model stacks steps."""


class MetaLearningPolicy(policies.Policy):
  """A policy that adapts to a task."""

  def reset_task(self) -> None:
    """Forgets the previous task; by default does nothing."""

  @abc.abstractmethod
  def adapt(self, episode_data: Sequence[Episode]) -> None:
    """Adapts to the episodes of a task."""


@gin.configurable
def pack_condition(
  episode_data: Sequence[Episode],
  spec: specs.TensorSpecStruct,
  num_samples: int | None = None,
  num_episodes: int | None = None,
  time_offsets: Mapping[str, Sequence[int]] | None = None,
) -> specs.TensorSpecStruct:
  """Packs the steps of episodes as the condition of a task.

  Args:
    episode_data: episodes of the task; the newest last.
    spec: result of `get_adaptation_specification`. 'condition/features' are read from
      observations, and from the action if they are below 'action'. 'condition/labels'
      are read from the step or its info; the only label, or 'target', is the action if
      neither has it.
    num_samples: number of samples; None: as many as the specs have, or all steps.
    num_episodes: number of the newest episodes, whose samples are spread evenly from
      start to end, as with `condition_episodes` of `TaskStoreInputGenerator`. None: the
      samples are the newest steps.
    time_offsets: steps of a sample, relative to its own, by path; the first and the
      last step are repeated beyond the ends of an episode.
  Returns:
    Arrays by path, [samples, ...].
  Raises:
    SpecError: there is no step or too few episodes, `num_samples` is not a multiple of
      `num_episodes`, or a step lacks a path; all are named.
  """
  num_samples = num_samples or next(iter(spec.values())).shape[0]
  samples = _samples(episode_data, num_samples, num_episodes)
  labels = [path for path in spec if path.startswith("condition/labels/")]
  condition, missing = specs.TensorSpecStruct(), []
  for path, leaf in spec.items():
    offsets = (time_offsets or {}).get(path)
    shape = leaf.shape[1 if offsets is None else 2 :]
    frame = specs.ExtendedTensorSpec(shape, leaf.dtype)
    is_action = len(labels) == 1 or path == "condition/labels/target"
    values = [
      _find(steps[min(max(t + offset, 0), len(steps) - 1)], path, is_action)
      for steps, t in samples
      for offset in (offsets or (0,))
    ]
    if any(value is None for value in values):
      missing.append(errors.Mismatch(path, errors.describe(frame), "nothing"))
      continue
    packed = np.stack([_to_frame(path, value, frame) for value in values])
    if offsets is not None:
      packed = packed.reshape(len(samples), len(offsets), *packed.shape[1:])
    condition[path] = packed
  if missing:
    raise errors.mismatch_error("adapt: episode_data", missing)
  return condition


def _samples(
  episode_data: Sequence[Episode], num_samples: int | None, num_episodes: int | None
) -> list[tuple[Episode, int]]:
  """Returns the episode and the index of the step of each sample."""
  episodes = [steps for steps in episode_data if len(steps)]
  if not episodes:
    raise errors.SpecError("adapt: episode_data: expected steps, got none.")
  if num_episodes is None:
    samples = [(steps, t) for steps in episodes for t in range(len(steps))]
    return samples[-num_samples:] if num_samples else samples
  if not num_samples or num_samples % num_episodes:
    raise errors.SpecError(
      f"adapt: num_samples: expected a multiple of the {num_episodes} episodes, got "
      f"{num_samples}."
    )
  if len(episodes) < num_episodes:
    raise errors.SpecError(
      f"adapt: episode_data: expected {num_episodes} episodes, got {len(episodes)}."
    )
  each = num_samples // num_episodes
  return [
    (steps, meta_tfdata.spread(i, each, len(steps)))
    for steps in episodes[-num_episodes:]
    for i in range(each)
  ]


def _to_frame(path: str, value: Any, frame: specs.ExtendedTensorSpec) -> np.ndarray:
  """Converts a value; a scalar, such as a reward, becomes (1,) if its spec is."""
  array = to_spec_dtype(path, value, frame)
  is_of_one = frame.shape.rank == 1 and frame.shape.is_compatible_with([1])
  return array.reshape(1) if array.ndim == 0 and is_of_one else array


def _find(step: Mapping[str, Any], path: str, is_action: bool) -> Any:
  _, branch, name = path.split("/", 2)
  if branch == "features":
    observation = step["observation"]
    is_named = isinstance(observation, Mapping)
    named = {"action": step.get("action"), **(observation if is_named else {})}
    flat = flatten_observation(named)
    if name in flat or name.startswith("action/"):
      return flat.get(name, flat.get("action"))
    return None if is_named else observation
  if name in step:
    return step[name]
  info = flatten_observation(step.get("info") or {})
  return info.get(name, step.get("action") if is_action else None)


def _pack(
  predictor: Any, pack_condition_fn: PackConditionFn, episode_data: Sequence[Episode]
) -> Any:
  """Packs episodes for the predictor's `adapt`."""
  record = predictor.get_policy_record()
  offsets = None if record is None else record.adaptation_offsets
  windows = {"time_offsets": offsets} if offsets else {}
  spec = predictor.get_adaptation_specification()
  stacked = _stack_specs(spec, predictor.get_step_specification())
  packed = pack_condition_fn(episode_data, stacked or spec, **windows)
  if stacked is None:
    return packed
  return specs.TensorSpecStruct(
    (f"{path}/{number}", sample)
    for path, samples in packed.items()
    for number, sample in enumerate(samples)
  )


def _stack_specs(
  spec: specs.TensorSpecStruct, step_spec: specs.TensorSpecStruct
) -> specs.TensorSpecStruct | None:
  """Stacks the specs of samples '<path>/0', ...; None if the specs are of stacks."""
  counts = collections.Counter(path.rpartition("/")[0] for path in spec)
  seen = {path.removeprefix("condition/features/") for path in spec}
  if seen & set(step_spec) or any(f"{path}/0" not in spec for path in counts):
    return None
  return specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec.from_spec(spec[f"{path}/0"], batch_size=count))
    for path, count in counts.items()
  )


class _AdaptingPolicy(MetaLearningPolicy):
  """Mixin: adapts the model inside the export."""

  _predictor: Any

  def __init__(
    self, *args: Any, pack_condition_fn: PackConditionFn = pack_condition, **kwargs: Any
  ) -> None:
    """Creates the policy; nothing is loaded yet.

    Args:
      *args: arguments of the base policy, such as `RegressionPolicy`.
      pack_condition_fn: packs episodes as the condition; see `PackConditionFn`.
      **kwargs: arguments of the base policy.
    """
    super().__init__(*args, **kwargs)
    self._pack_condition_fn = pack_condition_fn

  def reset_task(self) -> None:
    self._predictor.reset()

  def adapt(self, episode_data: Sequence[Episode]) -> None:
    """Adapts the model to the episodes of a task; without episodes, forgets the task.

    Raises:
      SpecError: the model cannot adapt, or a step lacks a path of the condition.
    """
    if not episode_data:
      self.reset_task()
      return
    packed = _pack(self._predictor, self._pack_condition_fn, episode_data)
    self._predictor.adapt(packed)


@gin.configurable
class MAMLRegressionPolicy(_AdaptingPolicy, policies.RegressionPolicy):
  """A `RegressionPolicy` of a `MAMLModel`, with the weights of the current task.

  `adapt` is called once per task: steps cost as much as the base model's.
  """


@gin.configurable
class ScheduledExplorationMAMLRegressionPolicy(
  _AdaptingPolicy, policies.ScheduledExplorationRegressionPolicy
):
  """A `MAMLRegressionPolicy` that adds scheduled noise to its actions."""


@gin.configurable
class MAMLCEMPolicy(_AdaptingPolicy, policies.CEMPolicy):
  """Searches for the action with the highest value of a critic in a `MAMLModel`.

  Each `predict` evaluates many actions, given the condition of the task.
  """

  _condition: Any = None

  def reset_task(self) -> None:
    self._condition = None

  def adapt(self, episode_data: Sequence[Episode]) -> None:
    """Packs the condition of a task; without episodes, forgets the task."""
    self.reset_task()
    if episode_data:
      self._condition = _pack(self._predictor, self._pack_condition_fn, episode_data)

  def _evaluator(
    self, state: Any, context: Any, timestep: int | None
  ) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Returns a function from actions to values; these are 0 before the first task."""
    if self._condition is None:
      return lambda samples: {"q_predicted": np.zeros(len(samples), np.float32)}
    spec = self._predictor.get_feature_specification()
    prefix = "inference/features/"
    frames = specs.TensorSpecStruct(
      (path.removeprefix(prefix), specs.ExtendedTensorSpec(leaf.shape[1:], leaf.dtype))
      for path, leaf in spec.items()
      if path.startswith(prefix)
    )
    actions = [p for p in frames if p == "action" or p.startswith("action/")]
    if len(actions) != 1:
      raise errors.SpecError(
        "MAMLCEMPolicy: expected a critic with one feature below 'action', got "
        f"{errors.listing(actions)}."
      )
    (action,) = actions
    rest = specs.TensorSpecStruct((p, f) for p, f in frames.items() if p != action)
    packed = pack_observation(state, rest, context)
    dtype = frames[action].dtype.as_numpy_dtype
    condition = {p: x[np.newaxis] for p, x in self._condition.items()}

    def evaluate(samples: np.ndarray) -> dict[str, np.ndarray]:
      features = {
        f"{prefix}{p}": np.repeat(x[np.newaxis, np.newaxis], len(samples), axis=1)
        for p, x in packed.items()
      }
      shape = [1, len(samples), *frames[action].shape]
      features[f"{prefix}{action}"] = samples.reshape(shape).astype(dtype)
      values = self._predictor.predict({**features, **condition})["q_predicted"]
      return {"q_predicted": values.reshape(len(samples))}

    return evaluate


@gin.configurable
class FixedLengthSequentialRegressionPolicy(MetaLearningPolicy):
  """Acts by a model that outputs the actions of all steps of an episode at once."""

  def __init__(
    self,
    t2r_model: Any = gin.REQUIRED,
    predictor: policies.AbstractPredictor = gin.REQUIRED,
    action_key: str = "inference_output",
  ) -> None:
    """Creates the policy; nothing is loaded yet.

    Args:
      t2r_model: has `pack_features(state, prev_episode_data, current_episode_data,
        timestep)`, which returns the predictor's input for one task and the current
        episode so far.
      predictor: returns the actions, [1, 1, steps, action_size].
      action_key: name of the output that has the actions.
    """
    super().__init__(predictor)
    self._sequence_predictor: Any = predictor
    self._t2r_model = t2r_model
    self._action_key = action_key
    self.reset_task()
    self.reset()

  def reset_task(self) -> None:
    self._prev_episode_data: Any = None

  def adapt(self, episode_data: Sequence[Episode]) -> None:
    """Keeps the episodes of the condition, such as a demonstration."""
    self._prev_episode_data = episode_data

  def reset(self) -> None:
    """Starts an episode."""
    self._current_episode_data: Any = None
    self._timestep = 0

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> np.ndarray:
    """Selects the action for one observation.

    Raises:
      SpecError: the model's output has another rank, or the episode is longer than it.
    """
    del context, timestep
    features = self._t2r_model.pack_features(
      state, self._prev_episode_data, self._current_episode_data, self._timestep
    )
    actions = self._sequence_predictor.predict(features)[self._action_key]
    if actions.ndim != 4 or self._timestep >= actions.shape[2]:
      raise errors.SpecError(
        f"select action: {self._action_key}: expected actions (1, 1, more than "
        f"{self._timestep} steps, action_size), got {errors.describe(actions)}."
      )
    action = actions[0, 0, self._timestep]
    self._current_episode_data = features
    self._timestep += 1
    return action


@gin.configurable
class WatchTryLearnPolicy(MetaLearningPolicy):
  """Acts by one policy after demonstrations, and by another after trials.

  The reward of a trial resolves ambiguities of demonstrations. Zhou et al., 'Watch,
  Try, Learn', 2019, https://arxiv.org/abs/1906.03352. With an expert as the second
  policy, it collects the data that trains the second policy.
  """

  def __init__(
    self,
    trial_policy: policies.Policy = gin.REQUIRED,
    retrial_policy: policies.Policy = gin.REQUIRED,
    num_demos: int = 1,
  ) -> None:
    """Creates the policy.

    Args:
      trial_policy: adapts to demonstrations, if it has `adapt`.
      retrial_policy: adapts to demonstrations and trials, if it has `adapt`.
      num_demos: number of demonstrations of a task, as in `actors.run_meta_env`;
        further episodes are trials.
    Raises:
      SpecError: `num_demos` is negative.
    """
    super().__init__()
    if num_demos < 0:
      raise errors.SpecError(
        f"WatchTryLearnPolicy: num_demos: expected 0 or more, got {num_demos}."
      )
    self._policies = trial_policy, retrial_policy
    self._num_demos = num_demos
    self._acting = trial_policy

  def reset_task(self) -> None:
    """Forgets the task; the first policy acts again."""
    self._acting = self._policies[0]
    for each in self._policies:
      if hasattr(each, "reset_task"):
        each.reset_task()

  def adapt(self, episode_data: Sequence[Episode]) -> None:
    """Selects the policy by the number of episodes, and adapts it to all of them."""
    self._acting = self._policies[len(episode_data) > self._num_demos]
    if hasattr(self._acting, "adapt"):
      self._acting.adapt(episode_data)

  def reset(self) -> None:
    """Starts an episode."""
    self._acting.reset()

  def seed(self, seed: int, env: int = 0) -> None:
    which = (env,) if env else ()
    for each in self._policies:
      each.seed(seed, *which)

  def init_randomly(self) -> None:
    for each in self._policies:
      each.init_randomly()

  def restore(self) -> bool:
    """Loads the newest models; returns whether both are in use, as `Policy.restore`."""
    return all([each.restore() for each in self._policies])

  @property
  def global_step(self) -> int:
    """The training step of the second policy."""
    return self._policies[1].global_step

  @property
  def model_path(self) -> str:
    """The model path of the second policy."""
    return self._policies[1].model_path

  @property
  def control_period(self) -> float | None:
    """The control period of the current policy."""
    return self._acting.control_period

  @property
  def is_timed(self) -> bool:
    """Whether the current policy's history is by time stamps."""
    return self._acting.is_timed

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> Any:
    return self._acting.SelectAction(state, context, timestep)

  def sample_action(self, obs: Any, explore_prob: float = 0.0) -> tuple[Any, Any]:
    return self._acting.sample_action(obs, explore_prob)
