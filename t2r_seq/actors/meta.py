"""Policies that learn tasks, in environments that have many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, training
from t2r_seq.actors import collect, rollouts, sinks
from t2r_seq.training import stopping


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
  explore_prob: float = 0.0,
  max_steps: int | None = None,
  episode_writer: Callable[[rollouts.Episode], Any] | None = None,
  reset_task_fn: Callable[[Any, int], Any] | None = None,
  summary_writer: training.SummaryWriter | None = None,
  global_step: int = 0,
  tag: str = "collect",
  num_episodes: int | None = None,
  sink: sinks.EpisodeSink | None = None,
  restore_policy: bool = True,
  stop: stopping.StopCondition | None = None,
) -> dict[str, float]:
  """Has a policy learn tasks, one after the other, and measures what it gains by that.

  In each task the policy forgets the one before (`reset_task`), and learns from
  `num_demos` demonstrations (`adapt`). Then it acts, `num_adaptations_per_task` times
  some episodes, and before each time but the first it learns from all that the task has
  shown so far. After Tensor2Robot's function of that name; it can be the `run_agent_fn`
  of `collect_eval_loop`.

  Args:
    env: a Gymnasium environment, or a function without arguments that makes one.
    policy: see `meta_learning.MetaLearningPolicy`; a policy without `adapt` is run
      just so.
    demo_policy: acts in demonstrations; None, for no demonstrations.
    num_tasks: tasks.
    num_adaptations_per_task: times that the policy acts in a task, between learning.
    num_episodes_per_adaptation: episodes of each time.
    num_demos: demonstrations of a task.
    seed: of tasks, episodes and policies; two policies meet the same ones. None takes
      what comes.
    explore_prob: is handed to the policy with each observation.
    max_steps: cuts an episode off.
    episode_writer: is called with each episode, demonstrations too.
    reset_task_fn: called with (environment, seed) to begin a task; None: the
      environment's `reset_task(seed)`, called on what is inside of wrappers.
    summary_writer: gets the metrics, as '<tag>/step_0_reward' and so on.
    global_step: of the policy; the summaries' step.
    tag: names the run in the summaries.
    num_episodes: of `collect_eval_loop`; has no effect, as tasks are counted.
    sink: gets every step, of demonstrations too; see `run_env`.
    restore_policy: whether the policy's newest parameters are loaded first.
    stop: is asked after each step; ends the run without the task in progress.
  Returns:
    'num_episodes' and 'num_steps' of all, demonstrations too; of tasks, where there was
    one, 'step_<i>_reward', the mean reward of an episode after learning i times (of
    demonstrations, where there are some, already before the first), and
    'step_<i>_improvement' over the time before.
  Raises:
    SpecError: the environment has no tasks, or a number is too small.
  """
  where, num_episodes = "run_meta_env", num_episodes_per_adaptation
  errors.check_count(where, "num_tasks", num_tasks)
  errors.check_count(where, "num_adaptations_per_task", num_adaptations_per_task)
  errors.check_count(where, "num_episodes_per_adaptation", num_episodes)
  made = env() if callable(env) and not hasattr(env, "step") else env
  if restore_policy:
    rollouts.restore_policy(policy)
  if seed is None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
  options = {"explore_prob": explore_prob, "max_steps": max_steps, "sink": sink}
  runner = _Runner(made, options, episode_writer, stop)
  rewards: list[list[float]] = []
  try:
    for task in range(num_tasks):
      task_seed = rollouts.episode_seed(seed, task, stream=2)
      _begin_task(made, policy, task_seed, reset_task_fn)
      seen: list[rollouts.Episode] = []
      if demo_policy is not None and num_demos:
        seen += runner.run(demo_policy, num_demos, task_seed)
        _adapt(policy, seen)
      of_task = []
      for step in range(num_adaptations_per_task):
        if step:
          _adapt(policy, seen)
        step_seed = rollouts.episode_seed(task_seed, 1 + step)
        episodes = runner.run(policy, num_episodes, step_seed)
        of_task.append(_mean_return(episodes))
        seen += episodes
      rewards.append(of_task)
      logging.info("Task %d: rewards %s.", task, np.round(of_task, 4))
  except _TaskCutOffError:
    logging.info("Stopped after %d tasks.", len(rewards))
  finally:
    if made is not env:
      made.close()
  metrics = _metrics(runner.tally, rewards)
  if summary_writer is not None:
    named = {f"{tag}/{name}": value for name, value in metrics.items()}
    summary_writer.scalars(named, global_step)
  return metrics


class _Runner:
  """Runs policies in one environment and counts their episodes."""

  def __init__(
    self,
    env: Any,
    options: dict[str, Any],
    episode_writer: Callable[[rollouts.Episode], Any] | None,
    stop: stopping.StopCondition | None,
  ) -> None:
    self.tally = rollouts.EpisodeTally()
    self._env, self._options = env, options
    self._episode_writer, self._stop = episode_writer, stop

  def run(self, policy: Any, num_episodes: int, seed: int) -> list[rollouts.Episode]:
    """Returns the episodes; raises if they were cut off by `stop`."""
    episodes: list[rollouts.Episode] = []
    collect.run_env(
      self._env,
      policy,
      num_episodes,
      seed,
      episode_writer=episodes.append,
      restore_policy=False,
      stop=self._stop,
      **self._options,
    )
    for episode in episodes:
      self.tally.add(episode)
      if self._episode_writer is not None:
        self._episode_writer(episode)
    if self._stop is not None and self._stop.is_set():
      raise _TaskCutOffError
    return episodes


def _metrics(
  tally: rollouts.EpisodeTally, rewards: list[list[float]]
) -> dict[str, float]:
  """Returns the counts, and the mean reward and its gain after each adaptation."""
  counted = tally.metrics()
  metrics = {name: counted[name] for name in ("num_episodes", "num_steps")}
  if rewards:
    means = np.mean(rewards, axis=0)
    metrics |= {f"step_{i}_reward": float(mean) for i, mean in enumerate(means)}
    for i, gain in enumerate(np.diff(means), start=1):
      metrics[f"step_{i}_improvement"] = float(gain)
  return metrics


def _mean_return(episodes: Sequence[rollouts.Episode]) -> float:
  return float(np.mean([sum(step["reward"] for step in each) for each in episodes]))


class _TaskCutOffError(Exception):
  """The run is to stop, in the middle of a task."""


def _adapt(policy: Any, episodes: Sequence[rollouts.Episode]) -> None:
  if hasattr(policy, "adapt"):
    policy.adapt(list(episodes))


def _begin_task(
  env: Any, policy: Any, seed: int, reset_task_fn: Callable[[Any, int], Any] | None
) -> None:
  (reset_task_fn or _reset_task)(env, seed)
  if hasattr(policy, "reset_task"):
    policy.reset_task()


def _reset_task(env: Any, seed: int) -> None:
  inner = getattr(env, "unwrapped", env)
  if not hasattr(inner, "reset_task"):
    raise errors.SpecError(
      f"run_meta_env: env: expected an environment with reset_task(seed), got "
      f"{type(inner).__name__}. Give it one, or a reset_task_fn."
    )
  inner.reset_task(seed)
