"""One face for the environments that an actor steps: one, or several at once."""

from __future__ import annotations

import abc
import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors


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


_OPERATION = "run episodes"


class VectorEnvironments(Environments):
  """A `gymnasium.vector` environment whose episodes the actor itself resets."""

  def __init__(self, env: Any) -> None:
    """Wraps a vector environment.

    Args:
      env: made with `autoreset_mode=AutoresetMode.DISABLED`.
    Raises:
      ValueError: it resets itself: its episodes could not be seeded one by one.
    """
    mode = env.metadata.get("autoreset_mode")
    if getattr(mode, "name", None) != "DISABLED":
      raise ValueError(
        f"{_OPERATION}: a vector environment's autoreset_mode: expected DISABLED, so "
        f"that every episode can be given its own seed, got {mode}. Make it with "
        "autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED."
      )
    self._env = env
    self.num_envs = env.num_envs
    self._observations: Any = None

  def start(
    self,
    policy: Any,
    env_seeds: Mapping[int, int | None],
    policy_seeds: Mapping[int, int | None],
  ) -> dict[int, tuple[Any, dict[str, Any]]]:
    """Starts episodes; see `Environments.start`."""
    for env, seed in policy_seeds.items():
      if seed is not None and callable(getattr(policy, "seed", None)):
        policy.seed(seed, env)
    numbers = range(self.num_envs)
    mask = np.array([env in env_seeds for env in numbers])
    self._observations, infos = check_length(
      "reset",
      self._env.reset(
        seed=[env_seeds.get(env) for env in numbers], options={"reset_mask": mask}
      ),
      2,
    )
    observations = self._split()
    return {env: (observations[env], info_of(infos, env)) for env in env_seeds}

  def act(
    self, policy: Any, is_first: np.ndarray, explore_prob: float
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    """Asks the policy once, for all environments."""
    if not callable(getattr(policy, "sample_actions", None)):
      raise ValueError(
        f"{_OPERATION}: {type(policy).__name__}: expected a method sample_actions("
        "observations, is_first, explore_prob) to act in several environments at once, "
        "got none. Write it, or run a single environment."
      )
    return policy.sample_actions(self._observations, is_first, explore_prob)

  def step(self, actions: Sequence[Any]) -> list[Move]:
    """Takes the actions.

    Raises:
      ValueError: they are not of the environment's action space.
    """
    result = check_length("step", self._env.step(self._join(actions)), 5)
    self._observations, rewards, terminated, truncated, infos = result
    observations = self._split()
    return [
      Move(
        observations[env],
        rewards[env],
        terminated[env],
        truncated[env],
        info_of(infos, env),
      )
      for env in range(self.num_envs)
    ]

  def close(self) -> None:
    """Closes the environments."""
    self._env.close()

  def _join(self, actions: Sequence[Any]) -> Any:
    """Returns the actions as the space has them: arrays, or a dict or tuple of such."""
    from gymnasium.vector import utils

    space = self._env.single_action_space
    empty: Any = utils.create_empty_array(space, self.num_envs)
    try:
      return utils.concatenate(space, actions, empty)
    except (KeyError, IndexError, TypeError, ValueError) as error:
      got = tf.nest.map_structure(errors.describe, actions[0])
      raise ValueError(
        f"{_OPERATION}: the policy's actions: expected one of {space} for each "
        f"environment, got {got} for the first ({type(error).__name__}: {error})."
      ) from error

  def _split(self) -> list[Any]:
    """Returns the latest observation of every environment."""
    # Whoever has a vector environment has Gymnasium.
    from gymnasium.vector import utils

    return list(utils.iterate(self._env.observation_space, self._observations))


def info_of(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
  """Returns one environment's `info`.

  Gymnasium keeps arrays with an entry per environment under each key, and under the
  key with a leading '_' which of the entries were given.

  Args:
    infos: of a vector environment's `reset` or `step`.
    env: the environment's number.
  """
  info = {}
  for key, value in infos.items():
    if key.startswith("_") and key[1:] in infos:
      continue
    given = infos.get(f"_{key}")
    if given is None:
      info[key] = value  # not by environment
    elif given[env]:
      info[key] = info_of(value, env) if isinstance(value, Mapping) else value[env]
  return info
