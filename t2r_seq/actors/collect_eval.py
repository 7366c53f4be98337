"""Collecting and evaluating with the newest export, round after round."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import gin
from absl import logging

from t2r_seq import errors, policies, training
from t2r_seq.actors import collect, environments, rollouts, sinks
from t2r_seq.training import stopping

_LOG_EVERY_SECONDS = 60.0
# How long the end of a `CollectThread` waits for the step that its loop is in.
_JOIN_SECONDS = 30.0


class NewestPolicy:
  """Restores a policy between rounds, and knows whether that changed it.

  Attributes:
    policy: acts now.
    global_step: its training step; 0 for a policy that has none.
    is_initial: whether it acts in want of an export.
    is_new: whether its training step is later than that of the last round.
  """

  def __init__(
    self, policy: Any, initial_policy_class: Callable[[], Any] | None = None
  ) -> None:
    """Creates it; nothing is loaded yet.

    Args:
      policy: is restored, if it has `restore()`.
      initial_policy_class: makes the policy that acts until there is an export.
    """
    self.policy = policy
    self.global_step = 0
    self.is_initial = False
    self.is_new = True
    self._policy = policy
    self._initial = initial_policy_class() if initial_policy_class else None
    self._last_step = -2  # That of an ensemble is -1.
    self._logged = time.monotonic()

  def restore(self) -> None:
    """Loads the newest model.

    Raises:
      NoModelError: there is none, and no initial policy.
    """
    try:
      rollouts.restore_policy(self._policy)
    except policies.NoModelError:
      if self._initial is None:
        raise
      self.policy, self.is_initial = self._initial, True
      return
    self.global_step = int(getattr(self._policy, "global_step", 0))
    self.policy, self.is_initial = self._policy, False
    self.is_new = self.global_step > self._last_step

  def end_round(self) -> None:
    """Remembers which policy acted."""
    if not self.is_initial:
      self._last_step = self.global_step
      self.is_new = False

  def log_wait(self) -> None:
    """Says, now and then, that there is nothing newer yet."""
    if time.monotonic() - self._logged >= _LOG_EVERY_SECONDS:
      self._logged = time.monotonic()
      logging.info("Waiting for a policy newer than that of step %d.", self.global_step)


# Of the summaries, by the tag of the run; the names are Tensor2Robot's.
_FOLDERS = {"collect": "policy_collect", "eval": "eval"}
_TOTALS = ("num_rounds", "num_episodes", "num_steps")


@gin.configurable
def collect_eval_loop(
  collect_env: Any = None,
  eval_env: Any = None,
  policy_class: Callable[[], Any] = gin.REQUIRED,
  num_collect: int = 2000,
  num_eval: int = 100,
  run_agent_fn: Callable[..., dict[str, float]] = collect.run_env,
  root_dir: str = "",
  continuous: bool = False,
  min_collect_eval_step: int = 0,
  max_steps: int | None = 1,
  pre_collect_eval_fn: Callable[[], Any] | None = None,
  record_eval_env_video: bool = False,
  sink: sinks.EpisodeSink | None = None,
  initial_policy_class: Callable[[], Any] | None = None,
  eval_policy_class: Callable[[], Any] | None = None,
  wait_for_new_policy: bool = True,
  poll_interval: float = 10.0,
  seed: int | None = None,
  stop: stopping.StopCondition | None = None,
) -> dict[str, float]:
  """Collects episodes with the newest policy, evaluates it, and waits for the next.

  Tensor2Robot's loop: a learner in another process trains and exports, this one acts.
  The policy is restored between two rounds, never within an episode. SIGTERM ends the
  loop between two steps: the sink is closed, the environments too, and it returns.

  Args:
    collect_env: a Gymnasium environment or a `gymnasium.vector` one, or a function that
      makes one; None collects nothing.
    eval_env: likewise, to evaluate in; None evaluates nothing.
    policy_class: makes the policy.
    num_collect: episodes a round. With 1 and `wait_for_new_policy=False` every episode
      has the newest policy.
    num_eval: episodes that each new policy is evaluated in.
    run_agent_fn: runs the policy; is called with arguments of `run_env`, by name, in
      the gin scopes 'collect' and 'eval': `collect/run_env.explore_prob = 0.1`.
    root_dir: summaries go to 'policy_collect' and 'eval' in it, videos to
      'videos/<step>'; '' writes neither.
    continuous: goes on with the next policy, until `max_steps`; False ends after one
      round.
    min_collect_eval_step: policies of earlier training steps are waited out.
    max_steps: the round of a policy of at least this training step is the last; None
      goes on until it is stopped.
    pre_collect_eval_fn: is called once, first; e.g. fills a replay.
    record_eval_env_video: records the first evaluated episode of each policy by
      Gymnasium's `RecordVideo`; the environment needs `render_mode="rgb_array"`.
    sink: gets the collected steps; is closed at the end.
    initial_policy_class: makes the policy that collects as long as there is no export,
      e.g. a scripted one; give the predictor `timeout=0` then. None waits for an export
      as long as the predictor does.
    eval_policy_class: makes the policy that is evaluated, e.g. one that does not
      explore; None evaluates the one that collects.
    wait_for_new_policy: one round a policy, as in Tensor2Robot; False collects on with
      the policy that there is.
    poll_interval: seconds between two looks for a newer policy.
    seed: makes the rounds repeatable, each other's episodes not; give each actor its
      own. All policies are evaluated in the same episodes. None takes what comes.
    stop: e.g. a `threading.Event`; ends the loop as SIGTERM does.
  Returns:
    'global_step' of the last policy, 'num_rounds', 'num_episodes' and 'num_steps'
    collected in all, 'was_stopped', and the last round's metrics as
    'collect/episode_reward' and so on.
  Raises:
    ValueError: there is neither environment, or videos have no `root_dir`.
    NoModelError: there is no export and no initial policy.
  """
  _check_environments(collect_env, eval_env, root_dir, record_eval_env_video)
  with contextlib.ExitStack() as stack:
    signal = stack.enter_context(stopping.StopSignal(stop))
    if pre_collect_eval_fn is not None:
      pre_collect_eval_fn()
    if sink is not None:
      sink.stop_with(signal)
      stack.push(functools.partial(_close, sink, signal))
    rounds = _Rounds(run_agent_fn, root_dir, seed, signal, stack)
    collector = NewestPolicy(policy_class(), initial_policy_class)
    evaluator = NewestPolicy(eval_policy_class()) if eval_policy_class else collector
    collect_env, eval_env = _open(collect_env, stack), _open(eval_env, stack)
    with contextlib.suppress(stopping.Stopped):
      while not signal.is_set():
        rounds.restore(collector)
        is_waiting = wait_for_new_policy and not collector.is_new
        is_early = collector.global_step < min_collect_eval_step
        if not collector.is_initial and (is_waiting or is_early):
          collector.log_wait()
          signal.wait(poll_interval)
          continue
        if collect_env is not None:
          rounds.collect(collector, collect_env, num_collect, sink)
        if eval_env is not None and not collector.is_initial:
          if evaluator is not collector:
            rounds.restore(evaluator)
          rounds.evaluate(evaluator, eval_env, num_eval, record_eval_env_video)
        collector.end_round()
        is_last = max_steps is not None and collector.global_step >= max_steps
        if not continuous or (is_last and not collector.is_initial):
          break
    return rounds.result(collector.global_step)


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


class CollectThread:
  """Runs `collect_eval_loop` in a thread, beside a learner of what it collects.

  A context manager: its end stops the loop, and waits for it for half a minute. If the
  loop fails, it closes the replay, so that a learner that waits for steps is told and
  does not wait for ever; the end of the block then raises what the loop raised. If the
  loop ends by itself, a learner that waits is told as well.
  """

  def __init__(self, replay: Any, **kwargs: Any) -> None:
    """Creates the thread.

    Args:
      replay: a `Replay`, what the learner samples from.
      **kwargs: of `collect_eval_loop`, but for `stop`.
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

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    exc_traceback: types.TracebackType | None,
  ) -> None:
    """Stops the loop, and waits for it.

    Raises:
      RuntimeError: the loop failed; from its error.
    """
    self._stop.set()
    self._thread.join(_JOIN_SECONDS)
    if self._thread.is_alive():
      logging.warning(
        "CollectThread: the loop has not ended within %g s, and is left to itself: it "
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
    except BaseException as error:  # Whoever waits for steps has to hear of anything.
      self._error = error
      logging.error("CollectThread: the loop failed, the replay is closed: %r", error)
      self._replay.close()
      return
    if not self._stop.is_set():
      hint = "it goes on with continuous=True and max_steps=None"
      ended = errors.ReplayError(f"CollectThread: the loop ended by itself: {hint}")
      self._replay.give_up(ended)


@gin.configurable
class CollectByExport(training.Callback):
  """Collects episodes by each export, while the training that exports it waits.

  What `collect_eval_loop` does in a process or thread of its own, in one and the same:
  of a learner whose input generator reads the replay that the sink fills. A first round
  is before the first step, so that there is something to learn from.
  """

  def __init__(
    self,
    env: Any = gin.REQUIRED,
    policy_class: Callable[[], Any] = gin.REQUIRED,
    sink: sinks.EpisodeSink = gin.REQUIRED,
    num_episodes: int = 50,
    initial_policy_class: Callable[[], Any] | None = None,
    seed: int = 0,
    max_steps: int | None = None,
  ) -> None:
    """Creates the callback.

    Args:
      env: as for `run_env`.
      policy_class: makes the policy, which restores the newest export of the training.
      sink: gets the steps; is closed at the end.
      num_episodes: of each round.
      initial_policy_class: makes the policy that collects as long as there is no
        export; give the predictor `timeout=0` then.
      seed: of the rounds, each of which has episodes of its own.
      max_steps: episodes are cut off there.
    """
    errors.check_count("CollectByExport", "num_episodes", num_episodes)
    self._env, self._sink = env, sink
    self._collector = NewestPolicy(policy_class(), initial_policy_class)
    self._options = {"num_episodes": num_episodes, "max_steps": max_steps}
    self._seed, self._num_rounds = seed, 0
    self._open = contextlib.ExitStack()

  def on_begin(self, run: training.Run) -> None:
    """See the base class: the first round."""
    self._env = _open(self._env, self._open)
    self._open.enter_context(self._sink)
    self._collect(run)

  def after_export(self, run: training.Run, name: str, path: str) -> None:
    """See the base class: a round by what was exported."""
    del name, path
    self._collect(run)

  def on_end(self, run: training.Run) -> None:
    """See the base class."""
    del run
    self._open.close()

  def _collect(self, run: training.Run) -> None:
    self._collector.restore()
    # By the step, too: a run that resumes goes on with episodes that it has not seen.
    seed = rollouts.episode_seed(self._seed + run.step, self._num_rounds, 2)
    self._num_rounds += 1
    metrics = collect.run_env(
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


def _open(env: Any, stack: contextlib.ExitStack) -> Any:
  """Returns the environment; one that is made here is closed at the end."""
  if env is None:
    return None
  env, is_ours = environments.make_env(env)
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
  """Closes the sink; one that cannot empty itself is no failure of being stopped."""
  try:
    sink.__exit__(exc_type, error, traceback)
  except errors.ReplayTimeoutError as error:
    if not signal.is_set():
      raise
    logging.info("Stopped before all was written: %s", error)


class _Rounds:
  """Runs the policies, and keeps the figures."""

  def __init__(
    self,
    run_agent_fn: Callable[..., dict[str, float]],
    root_dir: str,
    seed: int | None,
    signal: stopping.StopSignal,
    stack: contextlib.ExitStack,
  ) -> None:
    self._run_agent_fn = run_agent_fn
    self._root_dir = root_dir
    self._seed = seed
    self._signal = signal
    self._writers = {
      tag: _summary_writer(root_dir, folder, stack) for tag, folder in _FOLDERS.items()
    }
    self._result: dict[str, float] = dict.fromkeys(_TOTALS, 0)

  def restore(self, actor: NewestPolicy) -> None:
    """Loads the newest policy, and waits for a first one no longer than needed."""
    with self._signal.waiting():
      actor.restore()

  def collect(
    self,
    actor: NewestPolicy,
    env: Any,
    num_episodes: int,
    sink: sinks.EpisodeSink | None,
  ) -> None:
    """Collects a round of episodes."""
    seed = self._run_seed(int(self._result["num_rounds"]), stream=2)
    with stopping.given_up(self._signal):
      metrics = self._run(actor, env, num_episodes, "collect", seed, sink)
    self._result["num_rounds"] += 1
    for name in ("num_episodes", "num_steps"):
      self._result[name] += metrics[name]

  def evaluate(
    self, actor: NewestPolicy, env: Any, num_episodes: int, is_recorded: bool
  ) -> None:
    """Evaluates a policy that has not been evaluated yet."""
    if self._signal.is_set() or not actor.is_new:
      return
    if is_recorded:
      folder = os.path.join(self._root_dir, "videos", str(actor.global_step))
      env = _record_first_episode(env, folder)
    seed = self._run_seed(0, stream=3)
    self._run(actor, env, num_episodes, "eval", seed, None)
    if is_recorded and env.recording:  # The episode was cut off.
      env.stop_recording()
    actor.end_round()

  def result(self, global_step: int) -> dict[str, float]:
    """Returns what the loop returns."""
    was_stopped = self._signal.is_set()
    return {**self._result, "global_step": global_step, "was_stopped": was_stopped}

  def _run(
    self,
    actor: NewestPolicy,
    env: Any,
    num_episodes: int,
    tag: str,
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
        summary_writer=self._writers[tag],
        global_step=actor.global_step,
        tag=tag,
        restore_policy=False,
        stop=self._signal,
      )
    self._result.update({f"{tag}/{name}": value for name, value in metrics.items()})
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


def _record_first_episode(env: Any, folder: str) -> Any:
  """Wraps an environment, or several, to record the next episode of the first one."""
  from gymnasium import wrappers

  def is_first(episode: int) -> bool:
    return episode == 0

  if hasattr(env, "num_envs"):
    return wrappers.vector.RecordVideo(
      env, folder, record_first_only=True, episode_trigger=is_first
    )
  return wrappers.RecordVideo(env, folder, episode_trigger=is_first)


def _summary_writer(
  root_dir: str, folder: str, stack: contextlib.ExitStack
) -> training.SummaryWriter | None:
  """Returns the writer of one kind of run; '' for the root writes none."""
  if not root_dir:
    return None
  writer = training.SummaryWriter(os.path.join(root_dir, folder))
  stack.callback(writer.close)
  return writer
