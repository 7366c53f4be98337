"""Policies that explore around a model's action, or instead of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import numpy as np

from t2r_seq import errors
from t2r_seq.policies import policy, predictors


@gin.configurable
class OUExploreRegressionPolicy(policy.RegressionPolicy):
  """Adds the noise of an Ornstein-Uhlenbeck process: it drifts from step to step."""

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
      theta: the share of the noise that is taken back each step, in [0, 1].
      sigma: the standard deviation of what is added each step, in units of the action.
      use_noise: False acts as the model says.
      seed: of the noise.
    """
    super().__init__(predictor, action_key)
    self._theta, self._sigma, self._use_noise = theta, sigma, use_noise
    self._rngs = Generators(seed)
    self._noise: dict[int, Any] = {}

  def reset(self) -> None:
    """Starts an episode, without noise."""
    super().reset()
    self._noise.clear()

  def start_episode(self, env: int = 0) -> None:
    """Starts an environment's episode, without noise."""
    self._noise.pop(env, None)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the noise in an environment repeatable from here on."""
    super().seed(seed, env)
    self._rngs.seed(seed, env)

  def explore(self, action: np.ndarray, env: int = 0) -> np.ndarray:
    """Adds the noise of this step."""
    if not self._use_noise:
      return action
    kick = self._sigma * self._rngs[env].standard_normal(action.shape)
    self._noise[env] = (1.0 - self._theta) * self._noise.get(env, 0.0) + kick
    return (action + self._noise[env]).astype(action.dtype)


@gin.configurable
class ScheduledExplorationRegressionPolicy(policy.RegressionPolicy):
  """Adds Gaussian noise whose standard deviation is linear in the training step."""

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
      predictor: has `step`, and knows its model's training step.
      action_key: the model's output that is the action.
      stddev_0: the standard deviation at step 0, in units of the action.
      slope: what is added to it each training step; negative to explore less and less.
      seed: of the noise.
    """
    super().__init__(predictor, action_key)
    self._stddev_0, self._slope = stddev_0, slope
    self._rngs = Generators(seed)

  @property
  def stddev(self) -> float:
    """The standard deviation at the model's training step, never below 0."""
    return max(self._stddev_0 + self._slope * self.global_step, 0.0)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the noise in an environment repeatable from here on."""
    super().seed(seed, env)
    self._rngs.seed(seed, env)

  def explore(self, action: np.ndarray, env: int = 0) -> np.ndarray:
    """Adds the noise of this step."""
    noise = self.stddev * self._rngs[env].standard_normal(action.shape)
    return (action + noise).astype(action.dtype)


@gin.configurable
class PerEpisodeSwitchPolicy(policy.Policy):
  """Tosses a coin each episode: the exploring policy or the greedy one.

  E.g. a scripted policy, for some successes to learn from, and a learned one.
  """

  def __init__(
    self,
    explore_policy_class: Callable[[], policy.Policy] = gin.REQUIRED,
    greedy_policy_class: Callable[[], policy.Policy] = gin.REQUIRED,
    explore_prob: float = gin.REQUIRED,
    seed: int | None = None,
  ) -> None:
    """Creates both policies.

    Args:
      explore_policy_class: makes the exploring policy.
      greedy_policy_class: makes the greedy policy.
      explore_prob: the probability of an exploring episode, in [0, 1].
      seed: of the coin.
    Raises:
      ValueError: explore_prob is no probability.
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
    """Starts an episode and chooses who acts in it."""
    self._toss(0)
    self._active_policy.reset()

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the coin and both policies repeatable from here on."""
    # Streams of their own: the same one would tie the coin to the noise after it.
    coin, explore, greedy = np.random.SeedSequence(seed).generate_state(3)
    self._rngs.seed(int(coin), env)
    # A policy for one environment need not know that there are others.
    which = (env,) if env else ()
    self._explore_policy.seed(int(explore), *which)
    self._greedy_policy.seed(int(greedy), *which)

  def init_randomly(self) -> None:
    """Gives both policies' models random weights."""
    self._explore_policy.init_randomly()
    self._greedy_policy.init_randomly()

  def restore(self) -> bool:
    """Loads the newest models of both policies.

    Returns:
      Whether both are the newest.
    """
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

  def SelectAction(self, state: Any, context: Any, timestep: int | None) -> Any:
    """Selects the active policy's action."""
    return self._active_policy.SelectAction(state, context, timestep)

  def sample_action(self, obs: Any, explore_prob: float = 0.0) -> tuple[Any, Any]:
    """Selects the active policy's action, with what it keeps beside it."""
    return self._active_policy.sample_action(obs, explore_prob)

  def sample_actions(
    self, observations: Any, is_first: Any, explore_prob: float = 0.0
  ) -> tuple[list[Any], list[Any]]:
    """Selects the active policy's action in each of N environments.

    Both policies are asked, so that each has the history of every environment.
    """
    for env in np.flatnonzero(is_first):
      self._toss(int(env))
    explored, explored_debug = self._explore_policy.sample_actions(
      observations, is_first, explore_prob
    )
    greedy, greedy_debug = self._greedy_policy.sample_actions(
      observations, is_first, explore_prob
    )
    chosen = [
      (explored[env], explored_debug[env])
      if self._is_exploring[env]
      else (greedy[env], greedy_debug[env])
      for env in range(len(is_first))
    ]
    return [action for action, _ in chosen], [debug for _, debug in chosen]

  @property
  def _active_policy(self) -> policy.Policy:
    is_exploring = self._is_exploring.get(0, False)
    return self._explore_policy if is_exploring else self._greedy_policy

  def _toss(self, env: int) -> None:
    self._is_exploring[env] = self._rngs[env].random() < self._explore_prob


@gin.configurable
@dataclasses.dataclass(frozen=True)
class LinearSchedule:
  """A number that moves from one to another during training, and stays there.

  Attributes:
    initial: at step 0.
    final: from `num_steps` on.
    num_steps: training steps in between.
  """

  initial: float = 1.0
  final: float = 0.05
  num_steps: int = 10000

  def __call__(self, step: int) -> float:
    """Returns the number at a training step."""
    done = min(max(step, 0) / self.num_steps, 1.0)
    return self.initial + done * (self.final - self.initial)


@gin.configurable
class EpsilonGreedyPolicy(policy.RegressionPolicy):
  """Chooses the action of the highest score; with the probability epsilon, any.

  For models that give one score for each of a few actions, e.g. 'q_predicted' or
  'a_predicted', [B, num_actions]. The action is its number.
  """

  def __init__(
    self,
    predictor: predictors.AbstractPredictor = gin.REQUIRED,
    action_key: str = "q_predicted",
    epsilon: float | Callable[[int], float] = 0.0,
    seed: int | None = None,
  ) -> None:
    """Creates the policy; by default a greedy one.

    Args:
      predictor: has `step`.
      action_key: the model's output that scores the actions.
      epsilon: the probability of a random action, or a function of the training step,
        such as a `LinearSchedule`.
      seed: of the random actions.
    """
    super().__init__(predictor, action_key)
    self._epsilon = epsilon
    self._rngs = Generators(seed)

  @property
  def epsilon(self) -> float:
    """The probability of a random action at the model's training step."""
    if callable(self._epsilon):
      return float(self._epsilon(self.global_step))
    return self._epsilon

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the random actions in an environment repeatable from here on."""
    super().seed(seed, env)
    self._rngs.seed(seed, env)

  def explore(self, action: np.ndarray, env: int = 0) -> Any:
    """Chooses by the scores, [num_actions]."""
    if action.ndim != 1:
      raise errors.SpecError(
        f"EpsilonGreedyPolicy: {self._action_key}: expected one score for each action, "
        f"(batch, num_actions), got {errors.describe(action)} of one environment."
      )
    rng = self._rngs[env]
    # Both are drawn always: a schedule doesn't shift what comes after.
    is_random, anyone = rng.random() < self.epsilon, rng.integers(len(action))
    return np.int64(anyone if is_random else np.argmax(action))


class Generators:
  """Random generators, one an environment, that do not follow each other."""

  def __init__(self, seed: int | None) -> None:
    self._seed = seed
    self._by_env: dict[int, np.random.Generator] = {}

  def seed(self, seed: int, env: int) -> None:
    """Starts an environment's generator anew."""
    self._by_env[env] = np.random.default_rng(seed)

  def __getitem__(self, env: int) -> np.random.Generator:
    if env not in self._by_env:
      seeds = None if self._seed is None else [self._seed, env] if env else self._seed
      self._by_env[env] = np.random.default_rng(seeds)
    return self._by_env[env]
