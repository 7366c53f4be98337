"""Policies: choose actions, by a model or without one, and explore."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.lite import policy_io
from t2r_seq.policies import predictors


class Policy(abc.ABC):
  """Chooses actions, with a predictor or without one.

  `SelectAction` keeps its Tensor2Robot name. The loops of `t2r_seq.actors` call
  `sample_action`.
  """

  def __init__(self, predictor: predictors.AbstractPredictor | None = None) -> None:
    """Creates the policy; predictor is None for a policy without a model."""
    self._predictor = predictor

  @abc.abstractmethod
  def SelectAction(self, state: Any, context: Any, timestep: int | None) -> Any:
    """Returns an action; changes neither the state nor the context.

    Args:
      state: the observation.
      context: further features that hold for the episode, or None.
      timestep: the number of the step in its episode, from 0, or None.
    """

  def sample_action(self, obs: Any, explore_prob: float = 0.0) -> tuple[Any, Any]:
    """Selects an action; returns it, and an object to record with it, or None.

    Args:
      obs: the observation.
      explore_prob: the probability of an exploring action; the policies of this package
        ignore it.
    """
    del explore_prob
    return self.SelectAction(obs, None, None), None

  def sample_actions(
    self, observations: Any, is_first: Any, explore_prob: float = 0.0
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    """Selects an action in each of N environments that are stepped together.

    Args:
      observations: the batch of observations of a `gymnasium.vector` environment.
      is_first: bool `[N]`; True where an episode starts, in place of `reset`.
      explore_prob: probability of exploring, as in `sample_action`.
    Returns:
      N actions, and N objects to record with them.
    Raises:
      NotImplementedError: this policy acts in one environment at a time.
    """
    del observations, is_first, explore_prob
    raise NotImplementedError(
      f"{type(self).__name__} acts in one environment at a time. Give it "
      "sample_actions(observations, is_first, explore_prob) to act in several at once, "
      "or run a single environment."
    )

  def reset(self) -> None:  # noqa: B027
    """Starts an episode."""

  def seed(self, seed: int, env: int = 0) -> None:  # noqa: B027
    """Makes the policy's random numbers in an environment repeatable."""

  def restore(self) -> bool:
    """Loads the newest model; called between episodes.

    Returns:
      Whether the newest model is in use; False if it is broken and an older one acts.
    Raises:
      predictors.NoModelError: no model was found.
    """
    if self._predictor is None:
      return True
    is_newest = self._predictor.restore()
    self._predictor.assert_is_loaded()
    return is_newest

  def init_randomly(self) -> None:
    """Gives the model random weights; ValueError if the predictor cannot."""
    if self._predictor is not None:
      self._predictor.init_randomly()

  @property
  def global_step(self) -> int:
    """The training step of the model; -1 before it is loaded, 0 without one."""
    return 0 if self._predictor is None else self._predictor.global_step

  @property
  def model_path(self) -> str:
    """The path of the model in use."""
    return "" if self._predictor is None else self._predictor.model_path

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if known."""
    return None if self._predictor is None else self._predictor.control_period

  @property
  def is_timed(self) -> bool:
    """Whether the history is by time stamps, which makes it right at any rate."""
    predictor = self._predictor
    return predictor is not None and policy_io.has_stamps(
      predictor.get_step_specification()
    )


def pack_observation(
  observation: Any,
  spec: specs.TensorSpecStruct,
  context: Mapping[str, Any] | None = None,
) -> specs.TensorSpecStruct:
  """Returns the value of every feature in an observation; see `policy_io.pack`."""
  packed = policy_io.pack(observation, spec, context)
  return specs.TensorSpecStruct(packed.items())


@gin.configurable
class RegressionPolicy(Policy):
  """Returns the model's action for single observations.

  The predictor keeps the frames that the model stacks: the caller gives one frame per
  step, for a stack of 1 as for one of 16.

  >>> import numpy as np
  >>> from t2r_seq import policies, testing
  >>> model = testing.MockT2RModel()
  >>> model.build()
  >>> predictor = policies.ModelPredictor(model)
  >>> predictor.restore()
  True
  >>> policy = policies.RegressionPolicy(predictor, action_key="a_predicted")
  >>> policy.reset()
  >>> action, outputs = policy.sample_action({"x": np.zeros(3)}, explore_prob=0.0)
  >>> action.shape
  (1,)

  """

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str | Mapping[str, str] = "inference_output",
  ) -> None:
    """Creates the policy; nothing is loaded yet.

    Args:
      predictor: has `step`.
      action_key: the model's output that is the action; for an action of several parts,
        the output of each part, by the part's name.
    """
    super().__init__(predictor)
    self._steps: predictors.AbstractPredictor = predictor
    self._action_key = action_key
    self._is_first = True
    self._num_envs = 1

  def reset(self) -> None:
    """Starts an episode: the next observation is its first."""
    self._is_first = True

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the model's random numbers in an environment repeatable."""
    self._steps.seed(seed, env)

  def restore(self) -> bool:
    """See the base class; the next observation starts an episode."""
    is_newest = super().restore()
    self._is_first = True
    return is_newest

  def SelectAction(
    self, state: Any, context: Any = None, timestep: int | None = None
  ) -> Any:
    """Returns the action for one observation, without a batch axis.

    Args:
      state: the observation: a dictionary by path, or one array for one feature. With a
        `timestamp`, in seconds, another rate than in training logs a warning.
      context: further features by path, or None.
      timestep: 0 starts an episode, as `reset` does.
    Raises:
      SpecError: the observation does not fit, or the model has no output `action_key`.
      predictors.NoModelError: no model is loaded.
    """
    return self._act(state, context, timestep)[0]

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[Any, dict[str, np.ndarray]]:
    """Selects the action, and also returns all outputs of the model."""
    del explore_prob
    return self._act(obs, None, None)

  def sample_actions(
    self, observations: Any, is_first: np.ndarray, explore_prob: float = 0.0
  ) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Selects the actions of N environments with one call of the model.

    Args:
      observations: a dictionary by path of arrays `[N, *frame_shape]`, or one array
        for one feature.
      is_first: bool `[N]`; where an episode starts.
      explore_prob: not used.
    Returns:
      N actions, and all outputs of the model for each.
    """
    del explore_prob
    spec = self._steps.get_step_specification()
    features = pack_observation(observations, spec)
    timestamp = policy_io.timestamp_of(observations, spec)
    return self._act_all(features, np.asarray(is_first), timestamp)

  def start_episode(self, env: int = 0) -> None:
    """Resets the exploration of an environment; does nothing by default."""

  def explore(self, action: Any, env: int = 0) -> Any:
    """Returns the action to execute in an environment; by default the model's."""
    del env
    return action

  def _act(
    self, state: Any, context: Any, timestep: int | None
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    spec = self._steps.get_step_specification()
    features = pack_observation(state, spec, context)
    batched = {path: value[np.newaxis] for path, value in features.items()}
    is_first = np.array([self._is_first or timestep == 0])
    timestamp = policy_io.timestamp_of(state, spec)
    actions, outputs = self._act_all(batched, is_first, timestamp)
    self._is_first = False
    return actions[0], outputs[0]

  def _act_all(
    self, features: Any, is_first: np.ndarray, timestamp: Any
  ) -> tuple[list[Any], list[dict[str, np.ndarray]]]:
    num_envs = len(is_first)
    if num_envs != self._num_envs:
      self._steps.reset(num_envs)
      self._num_envs = num_envs
    # `step` of a user's predictor may lack the argument.
    timed = {} if timestamp is None else {policy_io.TIMESTAMP: timestamp}
    outputs = self._steps.step(features, is_first, **timed)
    key = self._action_key
    keys = key if isinstance(key, Mapping) else {"": key}
    for each in keys.values():
      if each not in outputs:
        raise errors.SpecError(
          f"select action: the model has no output '{each}', only "
          f"{errors.listing(outputs)}. Set action_key."
        )
    for first in np.flatnonzero(is_first):
      self.start_episode(int(first))
    actions = []
    for env in range(num_envs):
      parts = {name: outputs[each][env] for name, each in keys.items()}
      action = parts if isinstance(key, Mapping) else parts[""]
      actions.append(self.explore(action, env))
    rows = [
      {name: value[env] for name, value in outputs.items()} for env in range(num_envs)
    ]
    return actions, rows


class Generators:
  """Independent random generators, one per environment."""

  def __init__(self, seed: int | None) -> None:
    self._seed = seed
    self._by_env: dict[int, np.random.Generator] = {}

  def seed(self, seed: int, env: int) -> None:
    """Restarts an environment's generator."""
    self._by_env[env] = np.random.default_rng(seed)

  def __getitem__(self, env: int) -> np.random.Generator:
    if env not in self._by_env:
      seeds = None if self._seed is None else [self._seed, env] if env else self._seed
      self._by_env[env] = np.random.default_rng(seeds)
    return self._by_env[env]


class _ExploringPolicy(RegressionPolicy):
  """A `RegressionPolicy` with random numbers for each environment."""

  def __init__(
    self, predictor: predictors.AbstractPredictor, action_key: str, seed: int | None
  ) -> None:
    super().__init__(predictor, action_key)
    self._rngs = Generators(seed)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes model and exploration in an environment repeatable."""
    super().seed(seed, env)
    self._rngs.seed(seed, env)


@gin.configurable
class OUExploreRegressionPolicy(_ExploringPolicy):
  """Adds noise of an Ornstein-Uhlenbeck process, which is correlated between steps."""

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str = "inference_output",
    theta: float = 0.2,
    sigma: float = 0.15,
    use_noise: bool = True,
    seed: int | None = None,
  ) -> None:
    """Creates the policy.

    Args:
      predictor: has `step`.
      action_key: the model's output that is the action.
      theta: the share of the noise that decays each step, in [0, 1].
      sigma: the standard deviation of the noise added each step, in units of the
        action.
      use_noise: False executes the model's action.
      seed: seed of the noise; None for other noise in each run.
    """
    super().__init__(predictor, action_key, seed)
    self._theta, self._sigma, self._use_noise = theta, sigma, use_noise
    self._noise: dict[int, Any] = {}

  def reset(self) -> None:
    """Starts an episode, without noise."""
    super().reset()
    self._noise.clear()

  def start_episode(self, env: int = 0) -> None:
    """Starts an environment's episode, without noise."""
    self._noise.pop(env, None)

  def explore(self, action: np.ndarray, env: int = 0) -> np.ndarray:
    """Adds the noise of this step."""
    if not self._use_noise:
      return action
    kick = self._sigma * self._rngs[env].standard_normal(action.shape)
    self._noise[env] = (1.0 - self._theta) * self._noise.get(env, 0.0) + kick
    return (action + self._noise[env]).astype(action.dtype)


@gin.configurable
class ScheduledExplorationRegressionPolicy(_ExploringPolicy):
  """Adds Gaussian noise; its standard deviation is linear in the training step."""

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str = "inference_output",
    stddev_0: float = 0.2,
    slope: float = 0.0,
    seed: int | None = None,
  ) -> None:
    """Creates the policy.

    Args:
      predictor: has `step`, and a `global_step`.
      action_key: the model's output that is the action.
      stddev_0: the standard deviation at step 0, in units of the action.
      slope: its change each training step; negative to explore less over time.
      seed: seed of the noise; None for other noise in each run.
    """
    super().__init__(predictor, action_key, seed)
    self._stddev_0, self._slope = stddev_0, slope

  @property
  def stddev(self) -> float:
    """The standard deviation at the model's training step, never below 0."""
    return max(self._stddev_0 + self._slope * self.global_step, 0.0)

  def explore(self, action: np.ndarray, env: int = 0) -> np.ndarray:
    """Adds the noise of this step."""
    noise = self.stddev * self._rngs[env].standard_normal(action.shape)
    return (action + noise).astype(action.dtype)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class LinearSchedule:
  """A number that changes linearly from `initial` to `final`.

  Attributes:
    initial: value at step 0.
    final: value from step `num_steps` on.
    num_steps: > 0, in the unit of the steps; may be a fraction of training.

  Raises:
    SpecError: `num_steps` is not above 0.
  """

  initial: float = 1.0
  final: float = 0.05
  num_steps: float = 10000

  def __post_init__(self) -> None:
    if not self.num_steps > 0:
      raise errors.SpecError(
        f"LinearSchedule: num_steps: expected more than 0, got {self.num_steps}."
      )

  def __call__(self, step: float) -> float:
    """Returns the value at a step, in the unit of `num_steps`."""
    done = min(max(step, 0) / self.num_steps, 1.0)
    return self.initial + done * (self.final - self.initial)


@gin.configurable
class EpsilonGreedyPolicy(_ExploringPolicy):
  """Chooses the action of the highest score; with probability epsilon a random one.

  For models with one score for each of a few actions, e.g. 'q_predicted' or
  'a_predicted', [B, num_actions]. The action is its index, an int64.
  """

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str = "q_predicted",
    epsilon: float | Callable[[int], float] = 0.0,
    seed: int | None = None,
  ) -> None:
    """Creates the policy, which is greedy by default.

    Args:
      predictor: has `step`.
      action_key: the model's output that scores the actions.
      epsilon: the probability of a random action, or a function of the training step,
        such as a `LinearSchedule`.
      seed: seed of the random actions; None for others in each run.
    """
    super().__init__(predictor, action_key, seed)
    self._epsilon = epsilon

  @property
  def epsilon(self) -> float:
    """The probability of a random action at the model's training step."""
    if callable(self._epsilon):
      return float(self._epsilon(self.global_step))
    return self._epsilon

  def explore(self, action: np.ndarray, env: int = 0) -> Any:
    """Returns the index of an action; SpecError if its scores are not a vector."""
    if action.ndim != 1:
      raise errors.SpecError(
        f"EpsilonGreedyPolicy: {self._action_key}: expected one score for each action, "
        f"(batch, num_actions), got {errors.describe(action)} of one environment."
      )
    rng = self._rngs[env]
    # Both are always drawn, so that epsilon does not change later random numbers.
    is_random, random_action = rng.random() < self.epsilon, rng.integers(len(action))
    return np.int64(random_action if is_random else np.argmax(action))


@gin.configurable
class PerEpisodeSwitchPolicy(Policy):
  """Chooses at random, each episode, between an exploring and a greedy policy.

  E.g. a scripted policy whose successes are learned from, and a learned one.
  """

  def __init__(
    self,
    explore_policy_class: Callable[[], Policy] = gin.REQUIRED,
    greedy_policy_class: Callable[[], Policy] = gin.REQUIRED,
    explore_prob: float = gin.REQUIRED,
    seed: int | None = None,
  ) -> None:
    """Creates both policies.

    Args:
      explore_policy_class: makes the exploring policy.
      greedy_policy_class: makes the greedy policy.
      explore_prob: the probability of an exploring episode, in [0, 1].
      seed: seed of the choice; None for another choice in each run.
    Raises:
      ValueError: explore_prob is not a probability.
    """
    super().__init__()
    if not 0.0 <= explore_prob <= 1.0:
      raise ValueError(
        "PerEpisodeSwitchPolicy: explore_prob must be between 0 and 1, got "
        f"{explore_prob}."
      )
    self._explore_policy = explore_policy_class()
    self._greedy_policy = greedy_policy_class()
    self._explore_prob = explore_prob
    self._rngs = Generators(seed)
    self._is_exploring: dict[int, bool] = {}

  def reset(self) -> None:
    """Starts an episode and chooses its policy."""
    self._choose_policy(0)
    self._active_policy.reset()

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the choice and both policies repeatable."""
    # With the same seed the choice would depend on the noise.
    coin, explore, greedy = np.random.SeedSequence(seed).generate_state(3)
    self._rngs.seed(int(coin), env)
    # A policy for one environment may have no argument `env`.
    which = (env,) if env else ()
    self._explore_policy.seed(int(explore), *which)
    self._greedy_policy.seed(int(greedy), *which)

  def init_randomly(self) -> None:
    """Gives both policies' models random weights."""
    self._explore_policy.init_randomly()
    self._greedy_policy.init_randomly()

  def restore(self) -> bool:
    """Loads the newest models of both policies; returns whether both use these."""
    restored = [self._explore_policy.restore(), self._greedy_policy.restore()]
    return all(restored)

  @property
  def global_step(self) -> int:
    """The training step of the greedy policy."""
    return self._greedy_policy.global_step

  @property
  def model_path(self) -> str:
    """The path of the greedy policy's model."""
    return self._greedy_policy.model_path

  @property
  def control_period(self) -> float | None:
    """The control period of the greedy policy."""
    return self._greedy_policy.control_period

  @property
  def is_timed(self) -> bool:
    """Whether the greedy policy's history is by time stamps."""
    return self._greedy_policy.is_timed

  def SelectAction(self, state: Any, context: Any, timestep: int | None) -> Any:
    """Selects the active policy's action."""
    return self._active_policy.SelectAction(state, context, timestep)

  def sample_action(self, obs: Any, explore_prob: float = 0.0) -> tuple[Any, Any]:
    """Selects the active policy's action."""
    return self._active_policy.sample_action(obs, explore_prob)

  def sample_actions(
    self, observations: Any, is_first: Any, explore_prob: float = 0.0
  ) -> tuple[list[Any], list[Any]]:
    """Selects the active policy's action in each of N environments.

    Both policies are called, so that each has the history of every environment.
    """
    for env in np.flatnonzero(is_first):
      self._choose_policy(int(env))
    args = (observations, is_first, explore_prob)
    explored = self._explore_policy.sample_actions(*args)
    greedy = self._greedy_policy.sample_actions(*args)
    chosen = [
      explored if self._is_exploring[env] else greedy for env in range(len(is_first))
    ]
    return (
      [actions[env] for env, (actions, _) in enumerate(chosen)],
      [records[env] for env, (_, records) in enumerate(chosen)],
    )

  @property
  def _active_policy(self) -> Policy:
    is_exploring = self._is_exploring.get(0, False)
    return self._explore_policy if is_exploring else self._greedy_policy

  def _choose_policy(self, env: int) -> None:
    self._is_exploring[env] = self._rngs[env].random() < self._explore_prob
