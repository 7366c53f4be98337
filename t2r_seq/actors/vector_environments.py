"""Several environments at once: `gymnasium.vector` behind the actors' face."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.actors import environments

_OPERATION = "run episodes"


@gin.configurable
def make_vector_env(
  env: Callable[[], Any] = gin.REQUIRED,
  num_envs: int = gin.REQUIRED,
  processes: bool = False,
) -> Any:
  """Makes a `gymnasium.vector` environment that the actors' loops can run.

  Args:
    env: a function without arguments that makes one environment.
    num_envs: how many, >= 1.
    processes: steps each in a process of its own, which pays where a step costs more
      than about a millisecond.
  Returns:
    The vector environment; its episodes are reset by the loops, one by one, so that
    each has its own seed.
  Raises:
    ValueError: num_envs is below 1.
    ImportError: there is no Gymnasium of at least 1.1.
  """
  if num_envs < 1:
    raise ValueError(f"make vector env: num_envs must be >= 1, got {num_envs}.")
  try:
    from gymnasium import vector

    disabled = vector.AutoresetMode.DISABLED
  except (ImportError, AttributeError) as error:
    raise errors.missing_extra("gymnasium>=1.1", "envs") from error
  make = vector.AsyncVectorEnv if processes else vector.SyncVectorEnv
  return make([env] * num_envs, autoreset_mode=disabled)


class VectorEnvironments(environments.Environments):
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
        "t2r_seq.actors.make_vector_env, or with autoreset_mode="
        "gymnasium.vector.AutoresetMode.DISABLED."
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
    self._observations, infos = environments.check_length(
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

  def step(self, actions: Sequence[Any]) -> list[environments.Move]:
    """Takes the actions.

    Raises:
      ValueError: they are not of the environment's action space.
    """
    result = environments.check_length("step", self._env.step(self._join(actions)), 5)
    self._observations, rewards, terminated, truncated, infos = result
    observations = self._split()
    return [
      environments.Move(
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
