"""One face for the environments that an actor steps: one, or several at once."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class ActingPolicy(Protocol):
  """What an actor needs of a policy; `t2r_seq.policies.Policy` has it.

  A policy with a method `seed(int)` is seeded before each episode, one with a method
  `restore()` is restored once before the first. To act in several environments at
  once it needs `sample_actions`, see `t2r_seq.policies.Policy`, instead.
  """

  def reset(self) -> None:
    """Forgets the episode before."""

  def sample_action(self, obs: Any, explore_prob: float) -> tuple[Any, Any]:
    """Returns the action for `obs` and anything worth keeping beside it."""


class Move(NamedTuple):
  """What came of an action in one environment, in the order of Gymnasium's `step`."""

  observation: Any
  reward: float
  terminated: bool
  truncated: bool
  info: dict[str, Any]


class Environments(abc.ABC):
  """N environments that are stepped together, each with episodes of its own.

  Attributes:
    num_envs: N.
  """

  num_envs: int

  @abc.abstractmethod
  def start(
    self,
    policy: Any,
    env_seeds: Mapping[int, int | None],
    policy_seeds: Mapping[int, int | None],
  ) -> dict[int, tuple[Any, dict[str, Any]]]:
    """Starts an episode in some of the environments.

    Args:
      policy: acts in them; is seeded, where there are seeds, and reset.
      env_seeds: by the numbers of the environments; None leaves the randomness to it.
      policy_seeds: likewise, for the policy's own randomness.
    Returns:
      Observation and info by the environment's number.
    """

  @abc.abstractmethod
  def act(
    self, policy: Any, is_first: np.ndarray, explore_prob: float
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    """Asks the policy for an action in every environment.

    Args:
      policy: acts on the latest observations.
      is_first: bool [N]; where an episode starts.
      explore_prob: is handed on.
    Returns:
      N actions, and N objects that the policy keeps beside them.
    """

  @abc.abstractmethod
  def step(self, actions: Sequence[Any]) -> list[Move]:
    """Takes one action in every environment."""

  @abc.abstractmethod
  def close(self) -> None:
    """Closes the environments."""


class SingleEnvironment(Environments):
  """One Gymnasium environment; it may write its next observation over the last one."""

  num_envs = 1

  def __init__(self, env: Any) -> None:
    """Wraps an environment with Gymnasium's `reset`, `step` and `close`."""
    self._env = env
    self._observation: Any = None

  def start(
    self,
    policy: Any,
    env_seeds: Mapping[int, int | None],
    policy_seeds: Mapping[int, int | None],
  ) -> dict[int, tuple[Any, dict[str, Any]]]:
    """Starts an episode; see `Environments.start`."""
    seed, policy_seed = env_seeds[0], policy_seeds[0]
    if policy_seed is not None and callable(getattr(policy, "seed", None)):
      policy.seed(policy_seed)
    policy.reset()
    result = self._env.reset() if seed is None else self._env.reset(seed=seed)
    self._observation, info = _copied(check_length("reset", result, 2))
    return {0: (self._observation, info)}

  def act(
    self, policy: Any, is_first: np.ndarray, explore_prob: float
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    """Asks the policy; `is_first` is what its `reset` was called for."""
    action, debug = policy.sample_action(self._observation, explore_prob)
    return [action], [debug]

  def step(self, actions: Sequence[Any]) -> list[Move]:
    """Takes the action."""
    move = Move(*_copied(check_length("step", self._env.step(actions[0]), 5)))
    self._observation = move.observation
    return [move]

  def close(self) -> None:
    """Closes the environment."""
    self._env.close()


def make_env(env: Any) -> tuple[Any, bool]:
  """Returns the environment and whether it was made here (and is ours to close).

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one.
  """
  if isinstance(env, type) or not hasattr(env, "reset"):
    return env(), True
  return env, False


def check_length(method: str, result: Any, length: int) -> Any:
  """Returns the result, after a check that it is a tuple as Gymnasium has it."""
  if isinstance(result, tuple) and len(result) == length:
    return result
  got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
  raise ValueError(
    f"run episodes: env.{method}() must return {length} values as in Gymnasium, got "
    f"{got}. Wrap environments of the older Gym API first."
  )


def _copied(value: Any) -> Any:
  """Copies the arrays of what an environment returned; the rest stays what it is."""
  if isinstance(value, np.ndarray):
    return value.copy()
  if isinstance(value, dict):
    copied = copy.copy(value)
    copied.update((key, _copied(item)) for key, item in value.items())
    return copied
  if type(value) in (tuple, list):
    return type(value)(_copied(item) for item in value)
  return value
