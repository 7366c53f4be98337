"""Episodes of a policy in one Gymnasium environment, or in several at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypedDict

import numpy as np
import tensorflow as tf

from t2r_seq.actors import environments


class EpisodeStep(TypedDict):
  """One step of an episode: what was seen, what was done, what came of it.

  `info` came with `observation` (from `env.reset` or the step before), `next_info`
  with `next_observation`, so that a target that is only known with the first
  observation, or only afterwards, can be found in either.
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

  Because no state is carried over, episode 7 starts the same way whatever happened in
  the episodes before it: two policies can be compared on the very same episodes.

  Args:
    seed: of the run, >= 0.
    episode: its number, from 0.
    stream: whose randomness: 0 the environment's, 1 the policy's. One seed for both
      would tie a policy's noise to the episode that it acts in.
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
  """Runs the policy for whole episodes; gives each step as soon as it is taken.

  The episodes of a seed are the same however many environments share them: each takes
  the next one as it becomes free, and all that were started are finished, so that short
  ones are not favoured.

  Args:
    env: a Gymnasium environment, a `gymnasium.vector` one with disabled autoreset, or a
      function without arguments that makes one (which is then closed at the end).
    policy: acts; is reset (and, with a seed, seeded) before each episode.
    num_episodes: how many episodes, >= 1.
    seed: makes the run repeatable; None leaves the randomness to the environment.
    explore_prob: is handed to the policy with each observation.
    max_steps: an episode that reaches it is cut off there, as truncated.
  Returns:
    A generator of the environment's number and an `EpisodeStep`; the last one of an
    episode is terminated or truncated.
  Raises:
    ValueError: num_episodes or max_steps is below 1, or the environment isn't a
      Gymnasium environment.
  """
  if num_episodes < 1:
    raise ValueError(f"run episodes: num_episodes must be >= 1, got {num_episodes}.")
  if max_steps is not None and max_steps < 1:
    raise ValueError(f"run episodes: max_steps must be >= 1, got {max_steps}.")
  # Not a generator itself: wrong arguments fail here, before the first episode.
  return _steps(env, policy, num_episodes, seed, explore_prob, max_steps)


def generate_episodes(
  env: Any,
  policy: Any,
  num_episodes: int,
  seed: int | None = None,
  explore_prob: float = 0.0,
  max_steps: int | None = None,
) -> Episodes:
  """Runs the policy for whole episodes; gives each, when it ends, as a list of steps.

  Args and Raises: see `generate_steps`.
  Returns:
    A generator of one list of `EpisodeStep`s an episode, of length >= 1; those of
    several environments in the order in which they end.
  """
  return whole_episodes(
    generate_steps(env, policy, num_episodes, seed, explore_prob, max_steps)
  )


def is_last(step: EpisodeStep) -> bool:
  """Whether the episode ends with this step."""
  return step["terminated"] or step["truncated"]


def last_observation(step: EpisodeStep) -> EpisodeStep:
  """Returns the step that would follow the last one: what was seen, and nothing done.

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
  """Gathers the steps of each environment into episodes.

  Args:
    steps: as from `generate_steps`; is closed at the end.
  Returns:
    A generator of the episodes as they end.
  """
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
  """Yields the steps."""
  env, is_ours = environments.make_env(env)
  try:
    is_vector = hasattr(env, "num_envs")
    face = (
      environments.VectorEnvironments if is_vector else (environments.SingleEnvironment)
    )
    run = _Run(face(env), policy, num_episodes, seed)
    run.start(range(run.envs.num_envs))
    while run.is_going:
      yield from run.step(explore_prob, max_steps)
      run.start([number for number, step in run.latest.items() if is_last(step)])
  finally:
    if is_ours:
      env.close()


class _Run:
  """Which environment is in which episode, and what it was seen in last."""

  def __init__(
    self, envs: environments.Environments, policy: Any, num_episodes: int, seed: Any
  ) -> None:
    self.envs = envs
    self.latest: dict[int, EpisodeStep] = {}
    self._policy = policy
    self._num_episodes = num_episodes
    self._seed = seed
    self._num_started = 0
    # Per environment: its episode's number, steps so far, and what it sees now.
    self._episodes = [0] * envs.num_envs
    self._lengths = [0] * envs.num_envs
    self._seen: dict[int, tuple[Any, dict[str, Any]]] = {}

  @property
  def is_going(self) -> bool:
    """Whether an episode that was asked for is in progress."""
    return min(self._episodes) < self._num_episodes

  def start(self, numbers: Iterable[int]) -> None:
    """Gives environments their next episodes; the surplus ones are never reported."""
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
    """Takes one step everywhere; returns those of the episodes that were asked for."""
    is_first = np.array(self._lengths) == 0
    actions, debugs = self.envs.act(self._policy, is_first, explore_prob)
    for env, move in enumerate(self.envs.step(actions)):
      self._lengths[env] += 1
      is_cut = self._lengths[env] == max_steps
      self.latest[env] = self._make_step(env, actions[env], debugs[env], move, is_cut)
      self._seen[env] = (move.observation, move.info)
    return [
      (env, step)
      for env, step in self.latest.items()
      if self._episodes[env] < self._num_episodes
    ]

  def _make_step(
    self, env: int, action: Any, debug: Any, move: environments.Move, is_cut: bool
  ) -> EpisodeStep:
    observation, info = self._seen[env]
    return EpisodeStep(
      observation=observation,
      info=info,
      action=action,
      debug=debug,
      reward=float(move.reward),
      terminated=bool(move.terminated),
      truncated=bool(move.truncated) or is_cut,
      next_observation=move.observation,
      next_info=move.info,
    )

  def _seeds(self, envs: list[int], stream: int) -> dict[int, int | None]:
    if self._seed is None:
      return dict.fromkeys(envs)
    return {env: episode_seed(self._seed, self._episodes[env], stream) for env in envs}


EpisodeMetricsFn = Callable[[Episode], Mapping[str, float]]


class EpisodeTally:
  """Counts episodes and their rewards, lengths and the user's own measures."""

  def __init__(self, episode_metrics_fn: EpisodeMetricsFn | None = None) -> None:
    """Starts at nothing.

    Args:
      episode_metrics_fn: steps -> numbers; the run's metrics have their means.
    """
    self._episode_metrics_fn = episode_metrics_fn
    self._rewards: list[float] = []
    self._lengths: list[int] = []
    self._extras: dict[str, list[float]] = {}

  @property
  def num_episodes(self) -> int:
    """How many episodes were added."""
    return len(self._rewards)

  def add(self, steps: Episode) -> None:
    """Adds one finished episode."""
    self._rewards.append(sum(step["reward"] for step in steps))
    self._lengths.append(len(steps))
    if self._episode_metrics_fn is not None:
      for name, value in self._episode_metrics_fn(steps).items():
        self._extras.setdefault(name, []).append(float(value))

  def metrics(self) -> dict[str, float]:
    """Returns the run's numbers.

    Returns:
      'num_episodes', 'num_steps', 'episode_reward' (mean of the sums of rewards),
      'episode_reward_std', 'episode_reward_min', 'episode_reward_max',
      'episode_length' (mean), and the means of the user's own measures. Without an
      episode there are only the two counts.
    """
    counts: dict[str, float] = {
      "num_episodes": len(self._rewards),
      "num_steps": sum(self._lengths),
    }
    if not self._rewards:
      return counts
    rewards = np.asarray(self._rewards, np.float64)
    numbers = {
      **counts,
      "episode_reward": float(rewards.mean()),
      "episode_reward_std": float(rewards.std()),
      "episode_reward_min": float(rewards.min()),
      "episode_reward_max": float(rewards.max()),
      "episode_length": float(np.mean(self._lengths)),
    }
    extras = {name: float(np.mean(values)) for name, values in self._extras.items()}
    return {**numbers, **extras}


def restore_policy(policy: Any) -> None:
  """Loads the policy's newest parameters, where it has any to load."""
  restore = getattr(policy, "restore", None)
  if callable(restore):
    restore()
