"""Collection of a number of episodes, and episodes for evaluation."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import gin
from absl import logging

from t2r_seq import errors, records, training, windows
from t2r_seq.actors import rollouts, sinks
from t2r_seq.records.files import other_shards, shard_paths
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
    episode_writer: is called with the steps of each finished episode.
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
    rollouts.restore_policy(policy)
  tally = rollouts.EpisodeTally(episode_metrics_fn)
  steps = rollouts.generate_steps(
    env, policy, num_episodes, seed, explore_prob, max_steps
  )
  episodes = rollouts.whole_episodes(_recorded(steps, sink, stop))
  with contextlib.closing(episodes):
    for episode in episodes:
      tally.add(episode)
      if episode_writer is not None:
        episode_writer(episode)
      if tally.num_episodes % _LOG_EVERY_N_EPISODES == 0:
        reward = tally.metrics()["episode_reward"]
        logging.info("Ran %d episodes: mean reward %.4f.", tally.num_episodes, reward)
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


@gin.configurable
def collect_episodes(
  env: Any = gin.REQUIRED,
  policy: Any = gin.REQUIRED,
  spec: Any = None,
  num_episodes: int = gin.REQUIRED,
  output_path: str | None = None,
  seed: int = 0,
  episodes_per_file: int | None = None,
  episode_to_features_fn: Callable[[rollouts.Episode], Any] | None = None,
  explore_prob: float = 0.0,
  max_steps: int | None = None,
  sink: sinks.EpisodeSink | None = None,
  stop: stopping.StopCondition | None = None,
) -> dict[str, Any]:
  """Runs a policy and writes its episodes, flat: one record an episode, or to a sink.

  Each record file appears only when it is complete, so a killed collection leaves whole
  files or none. The same seed writes the same episodes, whatever `episodes_per_file`.

  Args:
    env: a Gymnasium environment or a `gymnasium.vector` one, or a function without
      arguments that makes one.
    policy: an object with `reset()` and `sample_action(obs, explore_prob)`; restored
      first if it has `restore()`.
    spec: what is stored: a spec structure (or a function without arguments that
      returns one); of windowed specs, the flat specs are stored. A sink has its own.
    num_episodes: how many episodes, >= 1.
    output_path: the file to write. With `episodes_per_file`, 'a/train.tfrecord' becomes
      'a/train-00000-of-00004.tfrecord' and so on. A suffix '.gz' compresses.
    seed: of the run; makes environment and policy repeatable.
    episodes_per_file: None writes one file.
    episode_to_features_fn: steps -> numpy structure that matches `spec`; None takes
      `episode_to_features`.
    explore_prob: is handed to the policy with each observation.
    max_steps: cuts an episode off.
    sink: takes the steps in place of record files, e.g. a `StoreSink`; is closed.
    stop: e.g. a `threading.Event`; is asked after each step, and ends the collection as
      SIGTERM does.
  Returns:
    The metrics of `run_env`, and 'files': the paths written.
  Raises:
    ValueError: a count is below 1, there are both or neither of `output_path` and
      `sink`, or `output_path` was collected before into another number of files;
      nothing is run.
    SpecError: an episode doesn't match the specs.
    Stopped: it was told to stop before all episodes were collected. The file in
      progress is dropped, a sink has been closed.
  """
  run = {
    "env": env,
    "policy": policy,
    "num_episodes": num_episodes,
    "seed": seed,
    "explore_prob": explore_prob,
    "max_steps": max_steps,
  }
  if sink is not None and output_path is None:
    with stopping.StopSignal(stop) as signal, stopping.given_up(signal), sink:
      return _collect_to_sink(sink, run, signal)
  if output_path is None or sink is not None or spec is None:
    raise ValueError(
      "collect episodes: expected an output_path and a spec, or a sink, got "
      f"output_path {output_path!r}, {'a' if spec is not None else 'no'} spec and "
      f"{'a' if sink is not None else 'no'} sink."
    )
  if episodes_per_file is not None and episodes_per_file < 1:
    raise ValueError(
      f"collect episodes: episodes_per_file must be >= 1, got {episodes_per_file}."
    )
  flat_spec = windows.flat_specs(spec() if callable(spec) else spec)
  to_features = episode_to_features_fn or functools.partial(
    sinks.episode_to_features, spec=flat_spec
  )
  files = [output_path]
  if episodes_per_file is not None:
    files = shard_paths(output_path, math.ceil(num_episodes / episodes_per_file))
  _check_no_other_shards(output_path, files)
  tally = rollouts.EpisodeTally()
  with stopping.StopSignal(stop) as signal:
    _restore(policy, signal)
    steps = _until_stopped(rollouts.generate_steps(**run), signal)
    with contextlib.closing(rollouts.whole_episodes(steps)) as episodes:
      for path in files:
        shard = _take(episodes, episodes_per_file or num_episodes, tally, to_features)
        records.write_records(path, flat_spec, shard)
        logging.info("Collected %d episodes; wrote %s.", tally.num_episodes, path)
  return {**tally.metrics(), "files": files}


def _collect_to_sink(
  sink: sinks.EpisodeSink, run: dict[str, Any], signal: stopping.StopSignal
) -> dict[str, Any]:
  """Runs the policy with the arguments of `run_env`."""
  sink.stop_with(signal)
  _restore(run["policy"], signal)
  metrics = run_env(sink=sink, restore_policy=False, stop=signal, **run)
  if metrics["num_episodes"] < run["num_episodes"]:
    raise stopping.Stopped
  return {**metrics, "files": list(getattr(sink, "files", []))}


def _restore(policy: Any, signal: stopping.StopSignal) -> None:
  """Loads the newest policy; the wait for a first one ends when it is told to stop."""
  with signal.waiting():
    rollouts.restore_policy(policy)


def _until_stopped(
  steps: rollouts.Steps, signal: stopping.StopSignal
) -> rollouts.Steps:
  """Asks after each step: an exception of a signal may be lost in whatever is run."""
  with contextlib.closing(steps):
    for step in steps:
      yield step
      signal.check()


def _check_no_other_shards(output_path: str, files: list[str]) -> None:
  """Refuses to leave files of an earlier run beside the new ones.

  A pattern that means one collection would read both.
  """
  old = other_shards(output_path, files)
  if old:
    raise ValueError(
      f"collect episodes: output_path: {output_path}: expected no files but those that "
      f"are replaced, got {len(old)} of an earlier collection, "
      f"{errors.listing(old, limit=6)}, which would be read along with the new ones. "
      "Delete them, or choose another output_path."
    )


def _take(
  episodes: Iterator[rollouts.Episode],
  count: int,
  tally: rollouts.EpisodeTally,
  to_features: Callable[[rollouts.Episode], Any],
) -> Iterator[Any]:
  """Yields the records of the next `count` episodes."""
  for _, steps in zip(range(count), episodes, strict=False):
    tally.add(steps)
    yield to_features(steps)
