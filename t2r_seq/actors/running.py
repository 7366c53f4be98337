"""Runs a policy in an environment, or over tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors
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
  episode_writer: Callable[[rollouts.Episode], Any] | None = None,
  episode_metrics_fn: rollouts.EpisodeMetricsFn | None = None,
  max_steps: int | None = None,
  sink: sinks.EpisodeSink | None = None,
  restore_policy: bool = True,
  stop: stopping.StopCondition | None = None,
) -> dict[str, float]:
  """Runs a policy in an environment and returns its metrics.

  Args:
    env: a Gymnasium environment or a `gymnasium.vector` one (left open), or a function
      without arguments that makes one (closed at the end).
    policy: an object with `reset()` and `sample_action(obs, explore_prob)`, for a
      vector environment `sample_actions`; restored first if it has `restore()`.
    num_episodes: number of episodes, >= 1.
    seed: makes the run repeatable: every policy then gets the same episodes.
    explore_prob: passed to the policy with each observation.
    episode_writer: called with the steps of each finished episode.
    episode_metrics_fn: maps an episode's steps to numbers; their means are returned.
    max_steps: steps after which an episode is truncated; None for no limit.
    sink: takes each step at once; is left open. Episodes in progress when the run ends
      early or fails are abandoned, see `EpisodeSink.abandon_episode`.
    restore_policy: whether the policy's newest model is loaded first.
    stop: checked after each step; ends the run without the episodes in progress.
  Returns:
    See `EpisodeTally.metrics`.
  Raises:
    ValueError: a count is below 1, or `env` is not a Gymnasium environment that the
      policy can act in.
    SpecError: a step does not match the sink's specs.
    policies.predictors.NoModelError: the policy has no model.
    ReplayTimeoutError: the sink waited too long for the replay's rate limiter.
  """
  if restore_policy:
    rollouts.restore_policy(policy)
  tally = rollouts.EpisodeTally(episode_metrics_fn)
  steps = rollouts.generate_steps(
    env, policy, num_episodes, seed, explore_prob, max_steps
  )
  episodes = rollouts.whole_episodes(_record_steps(steps, sink, stop))
  with contextlib.closing(episodes):
    for episode in episodes:
      tally.add(episode)
      if episode_writer is not None:
        episode_writer(episode)
      if tally.num_episodes % _LOG_EVERY_N_EPISODES == 0:
        reward = tally.metrics()["episode_reward"]
        logging.info("Ran %d episodes: mean reward %.4f.", tally.num_episodes, reward)
  return tally.metrics()


def _record_steps(
  steps: rollouts.Steps,
  sink: sinks.EpisodeSink | None,
  stop: stopping.StopCondition | None,
) -> rollouts.Steps:
  """Passes the steps to the sink as they come, until the stop condition holds."""
  running: set[int] = set()
  with contextlib.closing(steps), contextlib.ExitStack() as stack:
    if sink is not None:
      stack.callback(_abandon, sink, running)
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
  """Abandons the episodes in progress, so that the next run does not continue them."""
  with contextlib.ExitStack() as stack:
    for env in envs:
      stack.callback(sink.abandon_episode, env)


@gin.configurable
def run_meta_env(
  env: Any = gin.REQUIRED,
  policy: Any = gin.REQUIRED,
  demo_policy: Any = None,
  num_tasks: int = 10,
  num_adaptations_per_task: int = 2,
  num_episodes_per_adaptation: int = 1,
  num_demos: int = 1,
  seed: int | None = 0,
  episode_writer: Callable[[rollouts.Episode], Any] | None = None,
  reset_task_fn: Callable[[Any, int], Any] | None = None,
  restore_policy: bool = True,
  stop: stopping.StopCondition | None = None,
  **run_options: Any,
) -> dict[str, float]:
  """Adapts a policy to tasks, one after the other, and measures its gain.

  In each task the policy forgets the previous task (`reset_task`), and learns from
  `num_demos` demonstrations (`adapt`). Then it acts in `num_adaptations_per_task`
  rounds of episodes; before each round but the first it learns from all episodes of the
  task so far. It can be the `run_agent_fn` of `collect_eval_loop`.

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one.
    policy: see `meta_policies.MetaLearningPolicy`; without `adapt` it only acts.
    demo_policy: acts in demonstrations; None for no demonstrations.
    num_tasks: number of tasks.
    num_adaptations_per_task: rounds of a task.
    num_episodes_per_adaptation: episodes of each round.
    num_demos: demonstrations of each task.
    seed: seed of tasks, episodes and policies; None: random.
    episode_writer: called with each episode, demonstrations too.
    reset_task_fn: called with (environment, seed) to begin a task; None: the
      unwrapped environment's `reset_task(seed)`.
    restore_policy: whether the policy's newest model is loaded first.
    stop: checked after each step; ends the run without the task in progress.
    **run_options: explore_prob, max_steps and sink of `run_env`; ignores num_episodes.
  Returns:
    'num_episodes' and 'num_steps' of all episodes, demonstrations too. If a task was
    finished, 'step_<i>_reward', the mean return of round i, counted from 0, and
    'step_<i>_improvement' over the round before.
  Raises:
    SpecError: the environment has no tasks, or a count is not at least 1.
    ValueError: an argument of `run_env` is invalid.
    policies.predictors.NoModelError: the policy has no model.
  """
  num_episodes = num_episodes_per_adaptation
  errors.check_count("run_meta_env", "num_tasks", num_tasks)
  for name, count in (
    ("num_adaptations_per_task", num_adaptations_per_task),
    ("num_episodes_per_adaptation", num_episodes),
  ):
    errors.check_count("run_meta_env", name, count)
  run_options = {**run_options, "stop": stop, "restore_policy": False}
  run_options.pop("num_episodes", None)
  if restore_policy:
    rollouts.restore_policy(policy)
  if seed is None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
  tally = rollouts.EpisodeTally()
  made, is_ours = rollouts.make_env(env)

  def run(actor: Any, count: int, run_seed: int) -> list[rollouts.Episode]:
    episodes: list[rollouts.Episode] = []
    run_env(made, actor, count, run_seed, episode_writer=episodes.append, **run_options)
    for episode in episodes:
      tally.add(episode)
      if episode_writer is not None:
        episode_writer(episode)
    if stop is not None and stop.is_set():
      raise stopping.Stopped
    return episodes

  rewards: list[list[float]] = []
  try:
    for task in range(num_tasks):
      task_seed = rollouts.episode_seed(seed, task, stream=2)
      (reset_task_fn or _reset_task)(made, task_seed)
      if hasattr(policy, "reset_task"):
        policy.reset_task()
      seen: list[rollouts.Episode] = []
      if demo_policy is not None and num_demos:
        seen += run(demo_policy, num_demos, task_seed)
      of_task = []
      for step in range(num_adaptations_per_task):
        if seen and hasattr(policy, "adapt"):
          policy.adapt(list(seen))
        step_seed = rollouts.episode_seed(task_seed, 1 + step)
        episodes = run(policy, num_episodes, step_seed)
        returns = [sum(step["reward"] for step in each) for each in episodes]
        of_task.append(float(np.mean(returns)))
        seen += episodes
      rewards.append(of_task)
      logging.info("Task %d: rewards %s.", task, np.round(of_task, 4))
  except stopping.Stopped:
    logging.info("Stopped after %d tasks.", len(rewards))
  finally:
    if is_ours:
      made.close()
  return _meta_metrics(tally, rewards)


def _meta_metrics(
  tally: rollouts.EpisodeTally, rewards: list[list[float]]
) -> dict[str, float]:
  counted = tally.metrics()
  metrics = {name: counted[name] for name in ("num_episodes", "num_steps")}
  if rewards:
    means = np.mean(rewards, axis=0)
    metrics |= {f"step_{i}_reward": float(mean) for i, mean in enumerate(means)}
    for i, gain in enumerate(np.diff(means), start=1):
      metrics[f"step_{i}_improvement"] = float(gain)
  return metrics


def _reset_task(env: Any, seed: int) -> None:
  inner = getattr(env, "unwrapped", env)
  if not hasattr(inner, "reset_task"):
    raise errors.SpecError(
      f"run_meta_env: env: expected an environment with reset_task(seed), got "
      f"{type(inner).__name__}. Give it one, or a reset_task_fn."
    )
  inner.reset_task(seed)
