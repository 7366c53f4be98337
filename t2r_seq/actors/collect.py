"""Collects a number of episodes, or rounds of episodes by the newest policy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import gin
from absl import logging

from t2r_seq import errors, records, training, windows
from t2r_seq.actors import rollouts, running, sinks
from t2r_seq.policies.predictors import NoModelError
from t2r_seq.records.files import other_shards, shard_paths
from t2r_seq.training import stopping
from t2r_seq.training.callbacks import Run
from t2r_seq.training.summaries import SummaryWriter


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
  """Runs a policy, and writes its episodes to record files or to a sink.

  A record is an episode, with each step once. A file appears only when it is complete,
  even if the collection is killed. Equal seeds write equal episodes, for any
  `episodes_per_file`.

  Args:
    env: a Gymnasium environment or a `gymnasium.vector` one, or a function without
      arguments that makes one.
    policy: an object with `reset()` and `sample_action(obs, explore_prob)`, for a
      vector environment `sample_actions`; restored first if it has `restore()`.
    spec: spec structure of the stored episode, or a function without arguments that
      returns it; for windowed specs, the flat specs are stored. No effect with a sink.
    num_episodes: number of episodes, >= 1.
    output_path: the file to write. With `episodes_per_file`, 'a/train.tfrecord' becomes
      'a/train-00000-of-00004.tfrecord' and so on. A suffix '.gz' compresses.
    seed: seed of the run; makes environment and policy repeatable.
    episodes_per_file: None writes one file.
    episode_to_features_fn: steps -> numpy structure that matches `spec`; None looks
      each path up in the steps, see `sinks.make_step_to_features`.
    explore_prob: passed to the policy with each observation.
    max_steps: steps after which an episode is truncated; None for no limit.
    sink: takes the steps in place of record files, e.g. a `StoreSink`; is closed.
    stop: e.g. a `threading.Event`; checked after each step, ends the collection as
      SIGTERM does.
  Returns:
    The metrics of `run_env`, and 'files': the paths written.
  Raises:
    ValueError: a count is below 1; both or neither of `output_path` and `sink` are
      given; `spec` is missing; `output_path` was collected before into another number
      of files; or `env` is not a Gymnasium environment that the policy can act in.
    SpecError: an episode doesn't match the specs.
    policies.predictors.NoModelError: there is no export for the policy.
    ReplayTimeoutError: a `ReplaySink` waited too long for the replay's rate limiter.
    training.stopping.Stopped: it was stopped before all episodes were collected. The
      file in progress is dropped, a sink has been closed.
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
      sink.stop_with(signal)
      _restore(policy, signal)
      metrics = running.run_env(sink=sink, restore_policy=False, stop=signal, **run)
      if metrics["num_episodes"] < num_episodes:
        raise stopping.Stopped
      return {**metrics, "files": list(getattr(sink, "files", []))}
  if output_path is None or sink is not None or spec is None:
    raise ValueError(
      "collect episodes: expected an output_path and a spec, or a sink, got "
      f"output_path {output_path!r}, {'a' if spec is not None else 'no'} spec and "
      f"{'a' if sink is not None else 'no'} sink."
    )
  flat_spec = windows.flat_specs(spec() if callable(spec) else spec)
  to_features = episode_to_features_fn or sinks.make_episode_to_features(flat_spec)
  files = _output_files(output_path, num_episodes, episodes_per_file)
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


def _restore(policy: Any, signal: stopping.StopSignal) -> None:
  """Loads the newest model; a stop ends the wait for a first one."""
  with signal.waiting():
    rollouts.restore_policy(policy)


def _until_stopped(
  steps: rollouts.Steps, signal: stopping.StopSignal
) -> rollouts.Steps:
  """Raises Stopped between steps: the environment could swallow a handler's error."""
  with contextlib.closing(steps):
    for step in steps:
      yield step
      signal.check()


def _output_files(
  output_path: str, num: int, episodes_per_file: int | None
) -> list[str]:
  """Returns the paths to write.

  Raises:
    ValueError: episodes_per_file is below 1; or files of an earlier collection would
      stay, and a pattern would read them along with the new ones.
  """
  files = [output_path]
  if episodes_per_file is not None:
    if episodes_per_file < 1:
      raise ValueError(
        f"collect episodes: episodes_per_file must be >= 1, got {episodes_per_file}."
      )
    files = shard_paths(output_path, math.ceil(num / episodes_per_file))
  if old := other_shards(output_path, files):
    raise ValueError(
      f"collect episodes: output_path: {output_path}: expected no files but those that "
      f"are replaced, got {len(old)} of an earlier collection, "
      f"{errors.listing(old, limit=6)}, which would be read along with the new ones. "
      "Delete them, or choose another output_path."
    )
  return files


def _take(
  episodes: Iterator[rollouts.Episode],
  count: int,
  tally: rollouts.EpisodeTally,
  to_features: Callable[[rollouts.Episode], Any],
) -> Iterator[Any]:
  """Yields the features of the next `count` episodes, and adds them to the tally."""
  for _, steps in zip(range(count), episodes, strict=False):
    tally.add(steps)
    yield to_features(steps)


_LOG_EVERY_SECONDS = 60.0
# How long a `CollectThread` waits on exit for the current step of its loop.
_JOIN_SECONDS = 30.0


class _NewestPolicy:
  """A policy that is restored between rounds.

  Attributes:
    policy: the acting policy: the initial one until there is an export.
    global_step: its training step; 0 for a policy without one.
    is_initial: whether the initial policy acts.
    is_new: whether its training step is later than that of the last round.
  """

  def __init__(self, policy: Any, initial_policy_class: Any = None) -> None:
    self._policy = policy
    self._initial = initial_policy_class() if initial_policy_class else None
    self.is_initial = self._initial is not None
    self.policy = self._initial if self.is_initial else policy
    self.global_step = 0
    self.is_new = True
    self._last_step = -2  # Below an ensemble's step, which is -1.
    self._logged = time.monotonic()

  def restore(self) -> None:
    """Loads the newest model; NoModelError without a model and an initial policy."""
    try:
      rollouts.restore_policy(self._policy)
    except NoModelError:
      if not self.is_initial:
        raise
      return
    self.global_step = int(getattr(self._policy, "global_step", 0))
    self.policy, self.is_initial = self._policy, False
    self.is_new = self.global_step > self._last_step

  def end_round(self) -> None:
    """Records that the policy has acted, so that it is no longer new."""
    if not self.is_initial:
      self._last_step = self.global_step
      self.is_new = False

  def log_wait(self) -> None:
    """Logs once per minute that no newer model has come."""
    if time.monotonic() - self._logged >= _LOG_EVERY_SECONDS:
      self._logged = time.monotonic()
      logging.info("Waiting for a policy newer than that of step %d.", self.global_step)


@dataclasses.dataclass(frozen=True)
class Rounds:
  """Options of the rounds of `collect_eval_loop`.

  Attributes:
    num_collect: episodes per round. With 1 and `wait_for_new_policy=False` every
      episode has the newest policy.
    num_eval: episodes to evaluate each new policy in.
    continuous: repeats rounds until one with a policy of at least `max_steps`; False
      ends after one round.
    min_collect_eval_step: training step that a policy needs, except the initial one.
    max_steps: training step that ends a continuous loop; None: only a stop ends it.
    wait_for_new_policy: waits for a new policy before each round, as in Tensor2Robot;
      False continues to collect with the same policy.
    poll_interval: seconds between two checks for a newer policy.
    pre_collect_eval_fn: called once, before the first round; e.g. fills a replay.
    record_eval_env_video: records the first evaluated episode of each policy by
      Gymnasium's `RecordVideo`; the environment needs `render_mode="rgb_array"`.
  """

  num_collect: int = 2000
  num_eval: int = 100
  continuous: bool = False
  min_collect_eval_step: int = 0
  max_steps: int | None = 1
  wait_for_new_policy: bool = True
  poll_interval: float = 10.0
  pre_collect_eval_fn: Callable[[], Any] | None = None
  record_eval_env_video: bool = False


# Folders of the summaries, by the run's tag; the names are Tensor2Robot's.
_FOLDERS = {"collect": "policy_collect", "eval": "eval"}


@gin.configurable
def collect_eval_loop(
  collect_env: Any = None,
  eval_env: Any = None,
  policy_class: Callable[[], Any] = gin.REQUIRED,
  run_agent_fn: Callable[..., dict[str, float]] = running.run_env,
  root_dir: str = "",
  sink: sinks.EpisodeSink | None = None,
  initial_policy_class: Callable[[], Any] | None = None,
  eval_policy_class: Callable[[], Any] | None = None,
  seed: int | None = None,
  stop: stopping.StopCondition | None = None,
  **rounds: Any,
) -> dict[str, float]:
  """Collects episodes with the newest policy, evaluates it, and waits for the next.

  Tensor2Robot's loop: a learner in another process trains and exports, this one acts.
  The policy is restored between two rounds, never within an episode. SIGTERM ends the
  loop between two steps: the sink and the environments are closed, and it returns.

  Args:
    collect_env: a Gymnasium environment or a `gymnasium.vector` one, or a function that
      makes one; None collects nothing.
    eval_env: environment to evaluate in, as `collect_env`; None evaluates nothing.
    policy_class: makes the policy.
    run_agent_fn: runs the policy; is called with arguments of `run_env`, by name, in
      the gin scopes 'collect' and 'eval': `collect/run_env.explore_prob = 0.1`.
    root_dir: folder of the summaries, in 'policy_collect' and 'eval', and of the
      videos, in 'videos/<step>'; '' writes no summaries.
    sink: sink for the collected steps; is closed at the end.
    initial_policy_class: makes the policy that collects until there is an export, e.g.
      a scripted one; give the predictor `timeout=0` then. None waits for an export as
      long as the predictor does.
    eval_policy_class: makes the policy to evaluate, e.g. one that does not explore;
      None evaluates the collecting policy.
    seed: makes the rounds repeatable, with different episodes in each; give each actor
      another one. All policies are evaluated in the same episodes. None: random.
    stop: e.g. a `threading.Event`; ends the loop as SIGTERM does.
    **rounds: fields of `Rounds`: num_collect, num_eval, continuous, max_steps, ...
  Returns:
    'global_step' of the last policy, 'num_rounds', 'num_episodes' and 'num_steps'
    collected in all, 'was_stopped', and the metrics of the last runs as
    'collect/episode_reward', 'eval/episode_reward' and so on.
  Raises:
    ValueError: there is neither environment; videos have no `eval_env` or `root_dir`; a
      count is below 1; or an environment is not one that the policy can act in.
    TypeError: `rounds` has an unknown field.
    SpecError: a step does not match the sink's specs.
    policies.predictors.NoModelError: there is no export and no initial policy.
    ReplayTimeoutError: the sink waited too long for the replay's rate limiter.
  """
  plan = Rounds(**rounds)
  _check_environments(collect_env, eval_env, root_dir, plan.record_eval_env_video)
  with contextlib.ExitStack() as stack:
    signal = stack.enter_context(stopping.StopSignal(stop))
    if plan.pre_collect_eval_fn is not None:
      plan.pre_collect_eval_fn()
    if sink is not None:
      sink.stop_with(signal)
      stack.push(functools.partial(_close, sink, signal))
    runner = _Runner(run_agent_fn, root_dir, seed, signal, stack)
    collector = _NewestPolicy(policy_class(), initial_policy_class)
    evaluator = _NewestPolicy(eval_policy_class()) if eval_policy_class else collector
    collect_env, eval_env = _open(collect_env, stack), _open(eval_env, stack)
    with contextlib.suppress(stopping.Stopped):
      while not signal.is_set():
        runner.restore(collector)
        is_waiting = plan.wait_for_new_policy and not collector.is_new
        is_early = collector.global_step < plan.min_collect_eval_step
        if not collector.is_initial and (is_waiting or is_early):
          collector.log_wait()
          signal.wait(plan.poll_interval)
          continue
        if collect_env is not None:
          runner.collect(collector, collect_env, plan, sink)
        if eval_env is not None and not collector.is_initial:
          if evaluator is not collector:
            runner.restore(evaluator)
          runner.evaluate(evaluator, eval_env, plan)
        collector.end_round()
        most = math.inf if plan.max_steps is None else plan.max_steps
        is_last = collector.global_step >= most
        if not plan.continuous or (is_last and not collector.is_initial):
          break
    was_stopped = signal.is_set()
  step = collector.global_step
  return {**runner.result, "global_step": step, "was_stopped": was_stopped}


class _Runner:
  """Runs policies; writes their metrics, and keeps the last ones."""

  def __init__(
    self,
    run_agent_fn: Callable[..., dict[str, float]],
    root_dir: str,
    seed: int | None,
    signal: stopping.StopSignal,
    stack: contextlib.ExitStack,
  ) -> None:
    self._run_agent_fn = run_agent_fn
    self._root_dir, self._seed, self._signal = root_dir, seed, signal
    totals = ("num_rounds", "num_episodes", "num_steps")
    self.result: dict[str, float] = dict.fromkeys(totals, 0)
    self._writers = {}
    for tag, folder in _FOLDERS.items() if root_dir else ():
      self._writers[tag] = SummaryWriter(os.path.join(root_dir, folder))
      stack.callback(self._writers[tag].close)

  def restore(self, actor: _NewestPolicy) -> None:
    with self._signal.waiting():
      actor.restore()

  def collect(
    self, actor: _NewestPolicy, env: Any, plan: Rounds, sink: sinks.EpisodeSink | None
  ) -> None:
    run_seed = self._run_seed(int(self.result["num_rounds"]), stream=2)
    with stopping.given_up(self._signal):
      metrics = self._run("collect", actor, env, plan.num_collect, run_seed, sink)
    self.result["num_rounds"] += 1
    for name in ("num_episodes", "num_steps"):
      self.result[name] += metrics[name]

  def evaluate(self, actor: _NewestPolicy, env: Any, plan: Rounds) -> None:
    """Evaluates a policy unless it has been evaluated, or the loop is stopped."""
    if self._signal.is_set() or not actor.is_new:
      return
    is_recorded = plan.record_eval_env_video
    if is_recorded:
      folder = os.path.join(self._root_dir, "videos", str(actor.global_step))
      env = _record_first_episode(env, folder)
    self._run("eval", actor, env, plan.num_eval, self._run_seed(0, stream=3), None)
    if is_recorded and env.recording:  # The episode was truncated.
      env.stop_recording()
    actor.end_round()

  def _run(
    self,
    tag: str,
    actor: _NewestPolicy,
    env: Any,
    num_episodes: int,
    seed: int | None,
    sink: sinks.EpisodeSink | None,
  ) -> dict[str, float]:
    with gin.config_scope(tag):
      metrics = self._run_agent_fn(
        env=env,
        policy=actor.policy,
        num_episodes=num_episodes,
        seed=seed,
        sink=sink,
        restore_policy=False,
        stop=self._signal,
      )
    named = {f"{tag}/{name}": value for name, value in metrics.items()}
    self.result.update(named)
    if tag in self._writers and metrics["num_episodes"]:
      self._writers[tag].scalars(named, actor.global_step)
    logging.info(
      "%s, policy of step %d: %d episodes, %d steps, mean reward %s.",
      tag, actor.global_step, metrics["num_episodes"], metrics["num_steps"],
      metrics.get("episode_reward", "unknown"),
    )  # fmt: skip
    return metrics

  def _run_seed(self, run: int, stream: int) -> int | None:
    return (
      None if self._seed is None else rollouts.episode_seed(self._seed, run, stream)
    )


def _check_environments(
  collect_env: Any, eval_env: Any, root_dir: str, is_recorded: bool
) -> None:
  if collect_env is None and eval_env is None:
    raise ValueError(
      "collect_eval_loop: expected a collect_env, an eval_env or both, got neither."
    )
  if is_recorded and (eval_env is None or not root_dir):
    raise ValueError(
      "collect_eval_loop: record_eval_env_video: expected an eval_env to record and a "
      f"root_dir for the videos, got {'an' if eval_env else 'no'} eval_env and "
      f"root_dir {root_dir!r}."
    )


def _record_first_episode(env: Any, folder: str) -> Any:
  """Wraps an environment to record the next episode; of several, the first one's."""
  from gymnasium import wrappers

  def is_first(episode: int) -> bool:
    return episode == 0

  if hasattr(env, "num_envs"):
    return wrappers.vector.RecordVideo(
      env, folder, record_first_only=True, episode_trigger=is_first
    )
  return wrappers.RecordVideo(env, folder, episode_trigger=is_first)


def _open(env: Any, stack: contextlib.ExitStack) -> Any:
  """Returns the environment; closes it at the end if it is created here."""
  if env is None:
    return None
  env, is_ours = rollouts.make_env(env)
  if is_ours:
    stack.callback(env.close)
  return env


def _close(
  sink: sinks.EpisodeSink,
  signal: stopping.StopSignal,
  exc_type: type[BaseException] | None,
  error: BaseException | None,
  traceback: types.TracebackType | None,
) -> None:
  """Closes the sink; after a stop, logs a timeout of its last writes."""
  try:
    sink.__exit__(exc_type, error, traceback)
  except errors.ReplayTimeoutError as error:
    if not signal.is_set():
      raise
    logging.info("Stopped before all was written: %s", error)


class CollectThread:
  """Runs `collect_eval_loop` in a thread, next to a learner that trains on its steps.

  A context manager. On exit it stops the loop and waits up to 30 s. If the loop fails,
  it closes the replay, so that a learner that waits for steps fails, too. Leaving the
  block then raises RuntimeError, caused by the loop's error. If the loop ends by
  itself, a waiting learner gets a ReplayError.
  """

  def __init__(self, replay: Any, **kwargs: Any) -> None:
    """Creates the thread.

    Args:
      replay: the `Replay` that the learner samples from.
      **kwargs: arguments of `collect_eval_loop` except `stop`.
    """
    self._replay = replay
    self._kwargs = kwargs
    self._stop = threading.Event()
    self._error: BaseException | None = None
    # A daemon: an environment that hangs must not keep the process from ending.
    self._thread = threading.Thread(target=self._run, name="collect", daemon=True)

  def __enter__(self) -> CollectThread:
    """Starts the thread."""
    self._thread.start()
    return self

  def __exit__(self, *exc_info: object) -> None:
    """Stops the loop, and waits up to 30 s; raises RuntimeError if the loop failed."""
    self._stop.set()
    self._thread.join(_JOIN_SECONDS)
    if self._thread.is_alive():
      logging.warning(
        "CollectThread: the loop has not ended within %g s, and is left running: it "
        "waits for the environment, or for a first export.", _JOIN_SECONDS
      )  # fmt: skip
    if self._error is not None:
      error = self._error
      raise RuntimeError(
        f"CollectThread: expected to collect until the learner is done, got "
        f"{type(error).__name__}: {error}"
      ) from error

  def _run(self) -> None:
    try:
      collect_eval_loop(**self._kwargs, stop=self._stop)
    except BaseException as error:  # Otherwise a learner that waits for steps hangs.
      self._error = error
      logging.error("CollectThread: the loop failed, the replay is closed: %r", error)
      self._replay.close()
      return
    if not self._stop.is_set():
      hint = "To keep collecting, set continuous=True and max_steps=None."
      ended = errors.ReplayError(f"CollectThread: the loop ended by itself. {hint}")
      self._replay.fail_waiting(ended)


@gin.configurable
class CollectByExport(training.Callback):
  """Collects episodes after each export, while the training waits.

  Collects as `collect_eval_loop` does, in the learner's thread and without evaluation.
  The learner's input generator reads the replay that the sink fills. The first round,
  before the first train step, fills the replay.
  """

  def __init__(
    self,
    env: Any = gin.REQUIRED,
    policy_class: Callable[[], Any] = gin.REQUIRED,
    sink: sinks.EpisodeSink = gin.REQUIRED,
    num_episodes: int = 50,
    initial_policy_class: Callable[[], Any] = gin.REQUIRED,
    seed: int = 0,
    max_steps: int | None = None,
  ) -> None:
    """Creates the callback.

    Args:
      env: environment as for `run_env`.
      policy_class: makes the policy, which restores the newest export of the training.
      sink: receives the steps; is closed at the end.
      num_episodes: episodes of each round.
      initial_policy_class: makes the policy that collects until there is an export.
        With the predictor's `timeout=0` a resumed run does not wait for a first export.
      seed: seed of the rounds, which have different episodes.
      max_steps: steps after which an episode is truncated; None for no limit.
    Raises:
      SpecError: num_episodes is not an integer of at least 1.
    """
    errors.check_count("CollectByExport", "num_episodes", num_episodes)
    self._env, self._sink = env, sink
    self._collector = _NewestPolicy(policy_class(), initial_policy_class)
    self._options = {"num_episodes": num_episodes, "max_steps": max_steps}
    self._seed, self._num_rounds = seed, 0
    self._open = contextlib.ExitStack()

  def on_begin(self, run: Run) -> None:
    """See the base class: the first round."""
    self._env = _open(self._env, self._open)
    self._open.enter_context(self._sink)
    if run.step > 0:  # A new run has no export, and `restore` would wait for one.
      self._collector.restore()
    self._collect(run)

  def after_export(self, run: Run, name: str, path: str) -> None:
    """See the base class: a round by the new export."""
    del name, path
    self._collector.restore()
    self._collect(run)

  def on_end(self, run: Run) -> None:
    """See the base class."""
    del run
    self._open.close()

  def _collect(self, run: Run) -> None:
    # The step is part of the seed, so that a resumed run collects other episodes.
    seed = rollouts.episode_seed(self._seed + run.step, self._num_rounds, 2)
    self._num_rounds += 1
    metrics = running.run_env(
      self._env,
      self._collector.policy,
      seed=seed,
      sink=self._sink,
      restore_policy=False,
      **self._options,
    )
    run.write_scalars({f"collect/{name}": value for name, value in metrics.items()})
    logging.info(
      "Step %d: %d episodes, mean reward %.4f.",
      run.step, metrics["num_episodes"], metrics["episode_reward"],
    )  # fmt: skip
