"""Episodes of a policy in one Gymnasium environment, or in several at once."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import tensorflow as tf

from t2r_seq import errors


class EpisodeStep(TypedDict):
  """One step of an episode: the observation, the action and its result.

  `info` came with `observation` (from `env.reset` or the step before), `next_info`
  with `next_observation`.
  """

  observation: Any
  info: dict[str, Any]
  action: Any
  debug: Any
  reward: float
  terminated: bool
  truncated: bool
  next_observation: Any
  next_info: dict[str, Any]


Episode = list[EpisodeStep]
Steps = Generator[tuple[int, EpisodeStep], None, None]
Episodes = Generator[Episode, None, None]


def episode_seed(seed: int, episode: int, stream: int = 0) -> int:
  """Returns the seed of one episode: a function of the run's seed and its number.

  No state is carried over, so two policies can be compared on the same episodes.

  Args:
    seed: seed of the run, >= 0.
    episode: its number, from 0.
    stream: 0 for the environment, 1 for the policy; others for runs and tasks. With one
      seed for both the policy's noise would depend on the episode.
  """
  return int(np.random.SeedSequence([seed, episode, stream]).generate_state(1)[0])


def generate_steps(
  env: Any,
  policy: Any,
  num_episodes: int,
  seed: int | None = None,
  explore_prob: float = 0.0,
  max_steps: int | None = None,
) -> Steps:
  """Runs the policy for whole episodes; yields each step as soon as it is taken.

  The episodes of a seed do not depend on the number of environments: each takes the
  next one when it is free. All that were started are finished, so that short ones are
  not favoured.

  Args:
    env: a Gymnasium environment, a `gymnasium.vector` one with disabled autoreset, or a
      function without arguments that makes one (which is then closed at the end).
    policy: acts; is reset (and, with a seed, seeded) before each episode.
    num_episodes: number of episodes, >= 1.
    seed: makes the run repeatable; None seeds neither environment nor policy.
    explore_prob: passed to the policy with each observation.
    max_steps: steps after which an episode is truncated; None for no limit.
  Returns:
    A generator of the environment's number and an `EpisodeStep`; the last one of an
    episode is terminated or truncated.
  Raises:
    ValueError: a count is below 1. Later, from the generator: `env` is not a Gymnasium
      environment, or is a vector one with autoreset or for a policy without
      `sample_actions`.
  """
  for name, count in (("num_episodes", num_episodes), ("max_steps", max_steps)):
    if count is not None and count < 1:
      raise ValueError(f"run episodes: {name} must be >= 1, got {count}.")
  # Not a generator itself: wrong arguments fail here, before the first episode.
  return _steps(env, policy, num_episodes, seed, explore_prob, max_steps)


def generate_episodes(*args: Any, **kwargs: Any) -> Episodes:
  """Yields whole episodes as lists of steps; takes arguments of `generate_steps`."""
  return whole_episodes(generate_steps(*args, **kwargs))


def is_last(step: EpisodeStep) -> bool:
  """Whether the episode ends with this step."""
  return step["terminated"] or step["truncated"]


def last_observation(step: EpisodeStep) -> EpisodeStep:
  """Returns a step with the observation after the last step.

  Its action and reward are zeros and its flags False, as in the last row of a chain of
  transitions.
  """
  return EpisodeStep(
    observation=step["next_observation"],
    info=step["next_info"],
    action=tf.nest.map_structure(np.zeros_like, step["action"]),
    debug=None,
    reward=0.0,
    terminated=False,
    truncated=False,
    next_observation=step["next_observation"],
    next_info=step["next_info"],
  )


def whole_episodes(steps: Steps) -> Episodes:
  """Gathers the steps of each environment into episodes; closes `steps` at the end."""
  running: dict[int, Episode] = {}
  with contextlib.closing(steps):
    for env, step in steps:
      running.setdefault(env, []).append(step)
      if is_last(step):
        yield running.pop(env)


def _steps(
  env: Any,
  policy: Any,
  num_episodes: int,
  seed: int | None,
  explore_prob: float,
  max_steps: int | None,
) -> Steps:
  env, is_ours = make_env(env)
  try:
    is_vector = hasattr(env, "num_envs")
    envs = _VectorEnvironments(env) if is_vector else _SingleEnvironment(env)
    run = _Run(envs, policy, num_episodes, seed)
    run.start(range(run.envs.num_envs))
    while run.is_going:
      yield from run.step(explore_prob, max_steps)
      run.start([number for number, step in run.latest.items() if is_last(step)])
  finally:
    if is_ours:
      env.close()


class _Run:
  """The episode, length and latest observation of each environment."""

  def __init__(self, envs: Any, policy: Any, num_episodes: int, seed: Any) -> None:
    self.envs = envs
    self.latest: dict[int, EpisodeStep] = {}
    self._policy = policy
    self._num_episodes = num_episodes
    self._seed = seed
    self._num_started = 0
    self._episodes = [0] * envs.num_envs
    self._lengths = [0] * envs.num_envs
    self._seen: dict[int, tuple[Any, dict[str, Any]]] = {}

  @property
  def is_going(self) -> bool:
    """Whether a requested episode is in progress."""
    return min(self._episodes) < self._num_episodes

  def start(self, numbers: Iterable[int]) -> None:
    """Starts the next episodes; `step` returns none beyond `num_episodes`."""
    starting = list(numbers)
    for env in starting:
      self._episodes[env], self._lengths[env] = self._num_started, 0
      self._num_started += 1
    if starting and self.is_going:
      seeds, policy_seeds = self._seeds(starting, 0), self._seeds(starting, 1)
      self._seen.update(self.envs.start(self._policy, seeds, policy_seeds))

  def step(
    self, explore_prob: float, max_steps: int | None
  ) -> list[tuple[int, EpisodeStep]]:
    """Takes one step everywhere; returns the steps of the requested episodes."""
    is_first = np.array(self._lengths) == 0
    actions, debugs = self.envs.act(self._policy, is_first, explore_prob)
    for env, result in enumerate(self.envs.step(actions)):
      self._lengths[env] += 1
      observation, info = self._seen[env]
      self.latest[env] = EpisodeStep(
        observation=observation,
        info=info,
        action=actions[env],
        debug=debugs[env],
        reward=float(result.reward),
        terminated=bool(result.terminated),
        truncated=bool(result.truncated) or self._lengths[env] == max_steps,
        next_observation=result.observation,
        next_info=result.info,
      )
      self._seen[env] = (result.observation, result.info)
    return [
      (env, step)
      for env, step in self.latest.items()
      if self._episodes[env] < self._num_episodes
    ]

  def _seeds(self, envs: list[int], stream: int) -> dict[int, int | None]:
    if self._seed is None:
      return dict.fromkeys(envs)
    return {env: episode_seed(self._seed, self._episodes[env], stream) for env in envs}


def make_env(env: Any) -> tuple[Any, bool]:
  """Returns the environment, and whether it was made here and must be closed."""
  if isinstance(env, type) or not hasattr(env, "reset"):
    return env(), True
  return env, False


class StepResult(NamedTuple):
  """Result of one environment step, in the order of Gymnasium's `step`."""

  observation: Any
  reward: float
  terminated: bool
  truncated: bool
  info: dict[str, Any]


class _SingleEnvironment:
  """One Gymnasium environment; it may write its next observation over the last one."""

  num_envs = 1

  def __init__(self, env: Any) -> None:
    self._env = env
    self._observation: Any = None

  def start(
    self,
    policy: Any,
    env_seeds: Mapping[int, int | None],
    policy_seeds: Mapping[int, int | None],
  ) -> dict[int, tuple[Any, dict[str, Any]]]:
    """Starts an episode; returns observation and info by the environment's number."""
    seed, policy_seed = env_seeds[0], policy_seeds[0]
    if policy_seed is not None and callable(getattr(policy, "seed", None)):
      policy.seed(policy_seed)
    policy.reset()
    result = self._env.reset() if seed is None else self._env.reset(seed=seed)
    self._observation, info = _copy_arrays(_check_length("reset", result, 2))
    return {0: (self._observation, info)}

  def act(
    self, policy: Any, is_first: np.ndarray, explore_prob: float
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    """Returns one action, and the policy's object to record with it."""
    action, debug = policy.sample_action(self._observation, explore_prob)
    return [action], [debug]

  def step(self, actions: Sequence[Any]) -> list[StepResult]:
    values = _check_length("step", self._env.step(actions[0]), 5)
    result = StepResult(*_copy_arrays(values))
    self._observation = result.observation
    return [result]


class _VectorEnvironments:
  """A `gymnasium.vector` environment whose episodes are reset here."""

  def __init__(self, env: Any) -> None:
    mode = env.metadata.get("autoreset_mode")
    if getattr(mode, "name", None) != "DISABLED":
      raise ValueError(
        "run episodes: a vector environment's autoreset_mode: expected DISABLED, so "
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
    for env, seed in policy_seeds.items():
      if seed is not None and callable(getattr(policy, "seed", None)):
        policy.seed(seed, env)
    numbers = range(self.num_envs)
    mask = np.array([env in env_seeds for env in numbers])
    result = self._env.reset(
      seed=[env_seeds.get(env) for env in numbers], options={"reset_mask": mask}
    )
    self._observations, infos = _check_length("reset", result, 2)
    observations = self._split()
    return {env: (observations[env], _info_of(infos, env)) for env in env_seeds}

  def act(
    self, policy: Any, is_first: np.ndarray, explore_prob: float
  ) -> tuple[Sequence[Any], Sequence[Any]]:
    if not callable(getattr(policy, "sample_actions", None)):
      raise ValueError(
        f"run episodes: {type(policy).__name__}: expected a method sample_actions("
        "observations, is_first, explore_prob) to act in several environments at once, "
        "got none. Write it, or run a single environment."
      )
    return policy.sample_actions(self._observations, is_first, explore_prob)

  def step(self, actions: Sequence[Any]) -> list[StepResult]:
    """Takes the actions; ValueError if they do not fit the action space."""
    result = _check_length("step", self._env.step(self._join(actions)), 5)
    self._observations, rewards, terminated, truncated, infos = result
    infos_by_env = [_info_of(infos, env) for env in range(self.num_envs)]
    parts = (self._split(), rewards, terminated, truncated, infos_by_env)
    return [StepResult(*values) for values in zip(*parts, strict=True)]

  def _join(self, actions: Sequence[Any]) -> Any:
    from gymnasium.vector import utils

    space = self._env.single_action_space
    empty: Any = utils.create_empty_array(space, self.num_envs)
    try:
      return utils.concatenate(space, actions, empty)
    except (KeyError, IndexError, TypeError, ValueError) as error:
      got = tf.nest.map_structure(errors.describe, actions[0])
      raise ValueError(
        f"run episodes: the policy's actions: expected one of {space} for each "
        f"environment, got {got} for the first ({type(error).__name__}: {error})."
      ) from error

  def _split(self) -> list[Any]:
    """Returns the latest observation of every environment."""
    from gymnasium.vector import utils

    return list(utils.iterate(self._env.observation_space, self._observations))


def _check_length(method: str, result: Any, length: int) -> Any:
  """Returns the result of an environment; ValueError if Gymnasium's has other parts."""
  if isinstance(result, tuple) and len(result) == length:
    return result
  got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
  raise ValueError(
    f"run episodes: env.{method}() must return {length} values as in Gymnasium, got "
    f"{got}. Wrap environments of the older Gym API first."
  )


def _copy_arrays(value: Any) -> Any:
  """Copies the arrays of an environment's result; the rest stays unchanged."""
  if isinstance(value, np.ndarray):
    return value.copy()
  if isinstance(value, dict):
    copied = copy.copy(value)
    copied.update((key, _copy_arrays(item)) for key, item in value.items())
    return copied
  if type(value) in (tuple, list):
    return type(value)(_copy_arrays(item) for item in value)
  return value


def _info_of(infos: Mapping[str, Any], env: int) -> dict[str, Any]:
  """Returns the `info` of one environment from that of a vector environment.

  Gymnasium has an array with an entry per environment under each key, and flags of the
  valid entries under the key with a leading '_'.
  """
  info = {}
  for key, value in infos.items():
    if key.startswith("_") and key[1:] in infos:
      continue
    flags = infos.get(f"_{key}")
    if flags is None:
      info[key] = value  # The same for all environments.
    elif flags[env]:
      info[key] = _info_of(value, env) if isinstance(value, Mapping) else value[env]
  return info


EpisodeMetricsFn = Callable[[Episode], Mapping[str, float]]


class EpisodeTally:
  """Counts episodes and their rewards, lengths and user-defined metrics."""

  def __init__(self, episode_metrics_fn: EpisodeMetricsFn | None = None) -> None:
    """Creates an empty tally.

    Args:
      episode_metrics_fn: maps an episode's steps to numbers; `metrics` has the means.
    """
    self._episode_metrics_fn = episode_metrics_fn
    self._rewards: list[float] = []
    self._lengths: list[int] = []
    self._extras: dict[str, list[float]] = {}

  @property
  def num_episodes(self) -> int:
    """Number of episodes added."""
    return len(self._rewards)

  def add(self, steps: Episode) -> None:
    """Adds one finished episode."""
    self._rewards.append(sum(step["reward"] for step in steps))
    self._lengths.append(len(steps))
    if self._episode_metrics_fn is not None:
      for name, value in self._episode_metrics_fn(steps).items():
        self._extras.setdefault(name, []).append(float(value))

  def metrics(self) -> dict[str, float]:
    """Returns the metrics by name.

    Returns:
      'num_episodes', 'num_steps', 'episode_reward' (mean sum of an episode's rewards),
      'episode_reward_std', 'episode_reward_min', 'episode_reward_max',
      'episode_length' (mean), and the means of the user's metrics. Without an episode
      only the two counts.
    """
    metrics: dict[str, float] = {
      "num_episodes": len(self._rewards),
      "num_steps": sum(self._lengths),
    }
    if self._rewards:
      rewards = np.asarray(self._rewards, np.float64)
      metrics |= {
        "episode_reward": float(rewards.mean()),
        "episode_reward_std": float(rewards.std()),
        "episode_reward_min": float(rewards.min()),
        "episode_reward_max": float(rewards.max()),
        "episode_length": float(np.mean(self._lengths)),
      }
      metrics |= {name: float(np.mean(each)) for name, each in self._extras.items()}
    return metrics


def restore_policy(policy: Any) -> None:
  """Loads the policy's newest model, if it has `restore()`."""
  restore = getattr(policy, "restore", None)
  if callable(restore):
    restore()
