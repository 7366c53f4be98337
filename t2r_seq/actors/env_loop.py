"""Episodes for evaluation, or for a writer, with the run's metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
from absl import logging

from t2r_seq.actors import metrics as metrics_lib
from t2r_seq.actors import rollouts

_LOG_EVERY_N_EPISODES = 10


@gin.configurable
def run_env(
  env: Any = gin.REQUIRED,
  policy: Any = gin.REQUIRED,
  num_episodes: int = 100,
  seed: int | None = None,
  explore_prob: float = 0.0,
  episode_writer: Callable[[Any], Any] | None = None,
  episode_to_features_fn: Callable[[rollouts.Episode], Any] | None = None,
  episode_metrics_fn: metrics_lib.EpisodeMetricsFn | None = None,
  max_steps: int | None = None,
) -> dict[str, float]:
  """Runs a policy in an environment and returns what it achieved.

  Args:
    env: a Gymnasium environment (left open), or a function without arguments that
      makes one (closed at the end).
    policy: an object with `reset()` and `sample_action(obs, explore_prob)`; restored
      first if it has `restore()`.
    num_episodes: how many episodes, >= 1.
    seed: makes the run repeatable: every policy then meets the same episodes.
    explore_prob: is handed to the policy with each observation.
    episode_writer: called with every finished episode; its `close()`, if it has one,
      is called after the last episode, and not when the run fails.
    episode_to_features_fn: turns an episode's steps into what the writer gets; None
      hands it the steps.
    episode_metrics_fn: steps -> numbers of one episode; their means are returned.
    max_steps: cuts an episode off.
  Returns:
    See `EpisodeTally.metrics`.
  Raises:
    ValueError: a count is below 1, or the environment isn't a Gymnasium environment.
  """
  metrics_lib.restore_policy(policy)
  tally = metrics_lib.EpisodeTally(episode_metrics_fn)
  for steps in rollouts.generate_episodes(
    env, policy, num_episodes, seed, explore_prob, max_steps
  ):
    tally.add(steps)
    if episode_writer is not None:
      episode_writer(episode_to_features_fn(steps) if episode_to_features_fn else steps)
    if tally.num_episodes % _LOG_EVERY_N_EPISODES == 0:
      logging.info(
        "Ran %d episodes: mean reward %.4f.",
        tally.num_episodes,
        tally.metrics()["episode_reward"],
      )
  close = getattr(episode_writer, "close", None)
  if callable(close):
    close()
  return tally.metrics()
