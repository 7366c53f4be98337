"""Episodes of a policy in a Gymnasium environment, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypedDict

import numpy as np


class Step(TypedDict):
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


Episode = list[Step]


class ActingPolicy(Protocol):
  """What an actor needs of a policy; `t2r_seq.policies.Policy` has it.

  A policy with a method `seed(int)` is seeded before each episode, one with a method
  `restore()` is restored once before the first.
  """

  def reset(self) -> None:
    """Forgets the episode before."""

  def sample_action(self, obs: Any, explore_prob: float) -> tuple[Any, Any]:
    """Returns the action for `obs` and anything worth keeping beside it."""


def make_env(env: Any) -> tuple[Any, bool]:
  """Returns the environment and whether it was made here (and is ours to close).

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one.
  """
  if isinstance(env, type) or not hasattr(env, "reset"):
    return env(), True
  return env, False


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


def generate_episodes(
  env: Any,
  policy: ActingPolicy,
  num_episodes: int,
  seed: int | None = None,
  explore_prob: float = 0.0,
  max_steps: int | None = None,
) -> Generator[Episode, None, None]:
  """Runs the policy for whole episodes; gives each as a list of steps.

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one
      (which is then closed at the end).
    policy: acts; is reset (and, with a seed, seeded) before each episode.
    num_episodes: how many episodes, >= 1.
    seed: makes the run repeatable; None leaves the randomness to the environment.
    explore_prob: is handed to the policy with each observation.
    max_steps: an episode that reaches it is cut off there, as truncated.
  Returns:
    A generator of one list of `Step`s an episode, of length >= 1.
  Raises:
    ValueError: num_episodes or max_steps is below 1, or the environment isn't a
      Gymnasium environment.
  """
  if num_episodes < 1:
    raise ValueError(f"run episodes: num_episodes must be >= 1, got {num_episodes}.")
  if max_steps is not None and max_steps < 1:
    raise ValueError(f"run episodes: max_steps must be >= 1, got {max_steps}.")
  # Not a generator itself: wrong arguments fail here, before the first episode.
  return _episodes(env, policy, num_episodes, seed, explore_prob, max_steps)


def _episodes(
  env: Any,
  policy: ActingPolicy,
  num_episodes: int,
  seed: int | None,
  explore_prob: float,
  max_steps: int | None,
) -> Generator[Episode, None, None]:
  """Yields the episodes."""
  env, is_ours = make_env(env)
  try:
    for episode in range(num_episodes):
      reset_args: dict[str, int] = {}
      if seed is not None:
        reset_args["seed"] = episode_seed(seed, episode)
        _seed_policy(policy, episode_seed(seed, episode, stream=1))
      policy.reset()
      yield _run_episode(env, policy, reset_args, explore_prob, max_steps)
  finally:
    if is_ours:
      env.close()


def _seed_policy(policy: ActingPolicy, seed: int) -> None:
  """Seeds the policy, if it can be seeded."""
  seed_fn: Callable[[int], Any] | None = getattr(policy, "seed", None)
  if callable(seed_fn):
    seed_fn(seed)


def _run_episode(
  env: Any,
  policy: ActingPolicy,
  reset_args: dict[str, int],
  explore_prob: float,
  max_steps: int | None,
) -> Episode:
  """Runs one episode to its end."""
  observation, info = _check_length("reset", env.reset(**reset_args), 2)
  steps: Episode = []
  done = False
  while not done:
    action, debug = policy.sample_action(observation, explore_prob)
    next_observation, reward, terminated, truncated, next_info = _check_length(
      "step", env.step(action), 5
    )
    truncated = bool(truncated) or len(steps) + 1 == max_steps
    steps.append(
      Step(
        observation=observation,
        info=info,
        action=action,
        debug=debug,
        reward=float(reward),
        terminated=bool(terminated),
        truncated=truncated,
        next_observation=next_observation,
        next_info=next_info,
      )
    )
    observation, info = next_observation, next_info
    done = bool(terminated) or truncated
  return steps


def _check_length(method: str, result: Any, length: int) -> Any:
  """Returns the result, after a check that it is a tuple as Gymnasium has it."""
  if isinstance(result, tuple) and len(result) == length:
    return result
  got = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
  raise ValueError(
    f"run episodes: env.{method}() must return {length} values as in Gymnasium, got "
    f"{got}. Wrap environments of the older Gym API first."
  )
