"""Policies that learn tasks, in environments that have many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, training
from t2r_seq.actors import collect, rollouts


@gin.configurable
def run_meta_env(
  env: Any = gin.REQUIRED,
  policy: Any = gin.REQUIRED,
  demo_policy: Any = None,
  num_tasks: int = 10,
  num_adaptations_per_task: int = 2,
  num_episodes_per_adaptation: int = 1,
  num_demos: int = 1,
  seed: int = 0,
  explore_prob: float = 0.0,
  max_steps: int | None = None,
  episode_writer: Callable[[rollouts.Episode], Any] | None = None,
  reset_task_fn: Callable[[Any, int], Any] | None = None,
  summary_writer: training.SummaryWriter | None = None,
  global_step: int = 0,
  tag: str = "collect",
) -> dict[str, float]:
  """Has a policy learn tasks, one after the other, and measures what it gains by that.

  In each task the policy forgets the one before (`reset_task`), and learns from
  `num_demos` demonstrations (`adapt`). Then it acts, `num_adaptations_per_task` times
  some episodes, and before each time but the first it learns from all that the task has
  shown so far. After Tensor2Robot's function of that name.

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one.
    policy: see `meta_learning.MetaLearningPolicy`; a policy without `adapt` is run
      just so.
    demo_policy: acts in demonstrations; None, for no demonstrations.
    num_tasks: tasks.
    num_adaptations_per_task: times that the policy acts in a task, between learning.
    num_episodes_per_adaptation: episodes of each time.
    num_demos: demonstrations of a task.
    seed: of tasks, episodes and policies; two policies meet the same ones.
    explore_prob: is handed to the policy with each observation.
    max_steps: cuts an episode off.
    episode_writer: is called with each episode, demonstrations too.
    reset_task_fn: called with (environment, seed) to begin a task; None: the
      environment's `reset_task(seed)`, called on what is inside of wrappers.
    summary_writer: gets the metrics, as '<tag>/step_0_reward' and so on.
    global_step: of the policy; the summaries' step.
    tag: names the run in the summaries.
  Returns:
    'step_<i>_reward', the mean reward of an episode after learning i times (of
    demonstrations, where there are some, already before the first), and
    'step_<i>_improvement' over the time before.
  Raises:
    SpecError: the environment has no tasks, or a number is too small.
  """
  counts = {
    "num_tasks": num_tasks,
    "num_adaptations_per_task": num_adaptations_per_task,
    "num_episodes_per_adaptation": num_episodes_per_adaptation,
  }
  for name, count in counts.items():
    if count < 1:
      raise errors.SpecError(f"run_meta_env: {name}: expected at least 1, got {count}.")
  made = env() if callable(env) and not hasattr(env, "step") else env
  begin = reset_task_fn or _reset_task
  rollouts.restore_policy(policy)
  rewards = np.zeros([num_tasks, num_adaptations_per_task])
  try:
    for task in range(num_tasks):
      task_seed = rollouts.episode_seed(seed, task, stream=2)
      begin(made, task_seed)
      if hasattr(policy, "reset_task"):
        policy.reset_task()
      run = {
        "env": made,
        "explore_prob": explore_prob,
        "max_steps": max_steps,
        "episode_writer": episode_writer,
      }
      seen: list[rollouts.Episode] = []
      if demo_policy is not None and num_demos:
        seen += _run(demo_policy, num_demos, task_seed, **run)[0]
        _adapt(policy, seen)
      for step in range(num_adaptations_per_task):
        if step:
          _adapt(policy, seen)
        episodes, rewards[task, step] = _run(
          policy,
          num_episodes_per_adaptation,
          rollouts.episode_seed(task_seed, 1 + step),
          **run,
        )
        seen += episodes
      logging.info("Task %d: rewards %s.", task, rewards[task].round(4))
  finally:
    if made is not env:
      made.close()
  means = rewards.mean(axis=0)
  metrics = {f"step_{i}_reward": float(mean) for i, mean in enumerate(means)}
  for i, gain in enumerate(np.diff(means), start=1):
    metrics[f"step_{i}_improvement"] = float(gain)
  if summary_writer is not None:
    named = {f"{tag}/{name}": value for name, value in metrics.items()}
    summary_writer.scalars(named, global_step)
  return metrics


def _run(
  policy: Any,
  num_episodes: int,
  seed: int,
  episode_writer: Callable[[rollouts.Episode], Any] | None,
  **run: Any,
) -> tuple[list[rollouts.Episode], float]:
  """Runs episodes; returns them, and their mean reward."""
  episodes: list[rollouts.Episode] = []
  metrics = collect.run_env(
    policy=policy,
    num_episodes=num_episodes,
    seed=seed,
    episode_writer=episodes.append,
    restore_policy=False,
    **run,
  )
  if episode_writer is not None:
    for episode in episodes:
      episode_writer(episode)
  return episodes, metrics["episode_reward"]


def _adapt(policy: Any, episodes: Sequence[rollouts.Episode]) -> None:
  if hasattr(policy, "adapt"):
    policy.adapt(list(episodes))


def _reset_task(env: Any, seed: int) -> None:
  inner = getattr(env, "unwrapped", env)
  if not hasattr(inner, "reset_task"):
    raise errors.SpecError(
      f"run_meta_env: env: expected an environment with reset_task(seed), got "
      f"{type(inner).__name__}. Give it one, or a reset_task_fn."
    )
  inner.reset_task(seed)
