"""Episodes for evaluation, or for a writer, with the run's metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gin
from absl import logging

from t2r_seq import training
from t2r_seq.actors import metrics as metrics_lib
from t2r_seq.actors import rollouts, sinks
from t2r_seq.training import stopping

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
  sink: sinks.EpisodeSink | None = None,
  summary_writer: training.SummaryWriter | None = None,
  global_step: int = 0,
  tag: str = "eval",
  restore_policy: bool = True,
  stop: stopping.StopCondition | None = None,
) -> dict[str, float]:
  """Runs a policy in an environment and returns what it achieved.

  Args:
    env: a Gymnasium environment or a `gymnasium.vector` one (left open), or a function
      without arguments that makes one (closed at the end).
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
    sink: gets every step as it is taken; is left open. Episodes in progress when the
      run ends early or fails are abandoned, see `EpisodeSink.abandon_episode`.
    summary_writer: gets the run's metrics, as '<tag>/episode_reward' and so on.
    global_step: of the policy; the summaries' step.
    tag: names the run in the summaries.
    restore_policy: whether the policy's newest parameters are loaded first.
    stop: is asked after each step; ends the run without the episodes in progress.
  Returns:
    See `EpisodeTally.metrics`.
  Raises:
    ValueError: a count is below 1, or the environment isn't a Gymnasium environment.
  """
  if restore_policy:
    metrics_lib.restore_policy(policy)
  tally = metrics_lib.EpisodeTally(episode_metrics_fn)
  steps = rollouts.generate_steps(
    env, policy, num_episodes, seed, explore_prob, max_steps
  )
  episodes = rollouts.whole_episodes(_recorded(steps, sink, stop))
  with contextlib.closing(episodes):
    for episode in episodes:
      tally.add(episode)
      if episode_writer is not None:
        episode_writer(
          episode_to_features_fn(episode) if episode_to_features_fn else episode
        )
      if tally.num_episodes % _LOG_EVERY_N_EPISODES == 0:
        reward = tally.metrics()["episode_reward"]
        logging.info("Ran %d episodes: mean reward %.4f.", tally.num_episodes, reward)
  close = getattr(episode_writer, "close", None)
  if callable(close):
    close()
  metrics = tally.metrics()
  if summary_writer is not None and tally.num_episodes:
    named = {f"{tag}/{name}": value for name, value in metrics.items()}
    summary_writer.scalars(named, global_step)
  return metrics


def _recorded(
  steps: rollouts.Steps,
  sink: sinks.EpisodeSink | None,
  stop: stopping.StopCondition | None,
) -> rollouts.Steps:
  """Hands the steps to the sink as they come, until it is time to stop."""
  with contextlib.closing(steps), contextlib.ExitStack() as abandoning:
    running: set[int] = set()
    if sink is not None:
      abandoning.callback(_abandon, sink, running)
    for env, step in steps:
      if sink is not None:
        running.add(env)
        sink.add(step, env)
        if rollouts.is_last(step):
          running.remove(env)
      yield env, step
      if stop is not None and stop.is_set():
        return


def _abandon(sink: sinks.EpisodeSink, envs: set[int]) -> None:
  """Abandons the episodes in progress: the next run's would continue them."""
  with contextlib.ExitStack() as stack:
    for env in envs:
      stack.callback(sink.abandon_episode, env)
