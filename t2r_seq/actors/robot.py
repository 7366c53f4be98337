"""Runs an episode of a policy on a robot: fixed rate, watchdog and limits."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import signal as signals
import time
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors
from t2r_seq.lite import overlap, policy_io
from t2r_seq.training import stopping

# Number of steps whose times are kept, the latest: a robot may run for days.
_NUM_TIMED = 100_000
_Numbers = float | Sequence[float] | None
_EXPECTED = {
  "stale_after": "a number > 0",
  "max_rate": "numbers > 0",
  "low": "numbers",
  "high": "numbers",
}


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Safety:
  """Limits that `run_robot` checks at every step; none by default.

  An action with NaN ends the episode if `low`, `high` or `max_rate` is given.

  Attributes:
    stale_after: seconds without a new action of the network, or without its server,
      after which `on_stale` acts; None for no watchdog.
    on_stale: 'hold' repeats the last action, 'stop' ends the episode; or a function of
      the observation that returns the action to execute.
    low: least action, a number or one for each component; None for no limit.
    high: greatest action, as `low`.
    max_rate: largest change of an action per second, as `low`.
    on_excess: 'clip' executes the nearest allowed action, 'stop' ends the episode.
  """

  stale_after: float | None = None
  on_stale: str | Callable[[Any], Any] = "hold"
  low: _Numbers = None
  high: _Numbers = None
  max_rate: _Numbers = None
  on_excess: str = "clip"

  def __post_init__(self) -> None:
    """Checks the options.

    Raises:
      SpecError: an option is unknown or out of range.
    """
    for name, expected in _EXPECTED.items():
      value = getattr(self, name)
      try:
        numbers = np.asarray(0.5 if value is None else value, np.float64)
      except (TypeError, ValueError):
        numbers = np.asarray(np.nan)
      fits = numbers > 0 if "> 0" in expected else ~np.isnan(numbers)
      if not fits.all() or (expected.startswith("a ") and numbers.ndim):
        raise errors.SpecError(f"Safety: {name}: expected {expected}, got {value!r}.")
    if not callable(self.on_stale) and self.on_stale not in ("hold", "stop"):
      raise errors.SpecError(
        "Safety: on_stale: expected one of [hold, stop] or a function, got "
        f"{self.on_stale!r}."
      )
    if self.on_excess not in ("clip", "stop"):
      raise errors.SpecError(
        f"Safety: on_excess: expected one of [clip, stop], got {self.on_excess!r}."
      )
    has_both = self.low is not None and self.high is not None
    if has_both and not np.all(np.asarray(self.low) <= np.asarray(self.high)):
      raise errors.SpecError(
        f"Safety: low: expected at most high={self.high}, got {self.low}."
      )


class _Unsafe(Exception):
  """Ends an episode; its text is the check of `Safety` that failed."""


class _Checks:
  """Applies a `Safety` to the actions of an episode."""

  def __init__(self, safety: Safety, rate_hz: float) -> None:
    self._safety, self._rate = safety, rate_hz
    self._fresh_at: float | None = None
    self._before: np.ndarray | None = None
    self.num_stale = self.num_clipped = 0

  def apply(self, observation: Any, action: Any, is_held: bool, now: float) -> Any:
    """Returns the action to execute; raises `_Unsafe` to end the episode."""
    safety = self._safety
    if not is_held or self._fresh_at is None:
      self._fresh_at = now
    elif safety.stale_after is not None and now - self._fresh_at > safety.stale_after:
      self.num_stale += 1
      if safety.on_stale == "stop":
        raise _Unsafe("stale")
      if callable(safety.on_stale):
        action = safety.on_stale(observation)
    return self._within_limits(action)

  def _within_limits(self, action: Any) -> Any:
    safety = self._safety
    if safety.low is None and safety.high is None and safety.max_rate is None:
      return action
    raw = np.asarray(action)
    if raw.dtype.kind not in "fiu":
      raise errors.SpecError(
        f"run_robot: action: expected an array of numbers for the limits, got "
        f"{errors.describe(action)}."
      )
    limits = (safety.low, safety.high, safety.max_rate)
    shapes = [np.shape(limit) for limit in limits if limit is not None]
    if any(shape not in ((), raw.shape) for shape in shapes):
      raise errors.SpecError(
        f"run_robot: action: expected limits that are a number or of its shape, "
        f"{raw.shape}, got {errors.listing(map(str, shapes))}."
      )
    allowed = raw.astype(np.float64)
    if safety.max_rate is not None and self._before is not None:
      most = np.asarray(safety.max_rate) / self._rate
      allowed = np.clip(allowed, self._before - most, self._before + most)
    low = -np.inf if safety.low is None else safety.low
    allowed = np.clip(allowed, low, np.inf if safety.high is None else safety.high)
    # A robot cannot execute NaN, and clipping keeps it.
    if not np.isfinite(allowed).all():
      raise _Unsafe("limits")
    if not np.array_equal(allowed, raw):
      if safety.on_excess == "stop":
        raise _Unsafe("limits")
      self.num_clipped += 1
    self._before = allowed
    return allowed.astype(raw.dtype)


@dataclasses.dataclass(frozen=True)
class RobotRun:
  """Result of an episode on a robot.

  Attributes:
    num_steps: number of executed actions.
    num_late: steps that were not done when the next one was due.
    num_missed: steps that were left out because an earlier one took too long.
    max_seconds: duration of the longest step, from the observation to the action's end.
    was_stopped: whether a signal or `stop` ended it.
    stopped_by: 'signal' for a signal or `stop`; 'stale' or 'limits' for a check of
      `Safety`; '' otherwise.
    p99_seconds: 99th percentile of the policy's computing time per step, over the last
      100,000 steps.
    num_held: steps without a new action of the network.
    num_stale: steps at which the watchdog acted.
    num_clipped: number of clipped actions.
  """

  num_steps: int
  num_late: int
  num_missed: int
  max_seconds: float
  was_stopped: bool
  stopped_by: str = ""
  p99_seconds: float = 0.0
  num_held: int = 0
  num_stale: int = 0
  num_clipped: int = 0

  def __str__(self) -> str:
    """Returns a summary."""
    end = f", stopped by {self.stopped_by}" if self.stopped_by else ""
    return (
      f"{self.num_steps:,} steps: {self.num_late:,} late, {self.num_missed:,} missed, "
      f"{self.num_held:,} held, {self.num_stale:,} stale, "
      f"{self.num_clipped:,} clipped; longest {1e3 * self.max_seconds:.1f} ms, 99 % of "
      f"the policy's work within {1e3 * self.p99_seconds:.1f} ms{end}"
    )


def _check_options(policy: Any, rate_hz: float, max_steps: int | None) -> None:
  """Raises SpecError for bad options; warns if the rate is over 10 % off training's."""
  if not (rate_hz > 0 and math.isfinite(rate_hz)):
    raise errors.SpecError(f"run_robot: rate_hz: expected a number > 0, got {rate_hz}.")
  if max_steps is not None and max_steps < 1:
    raise errors.SpecError(f"run_robot: max_steps: expected >= 1, got {max_steps}.")
  period = getattr(policy, "control_period", None)
  if getattr(policy, "is_timed", False):
    return  # Its history is by time stamps, so any rate will do.
  if period is not None and not 0.9 <= period * rate_hz <= 1.1:
    logging.warning(policy_io.rate_warning("run_robot: rate_hz", 1 / rate_hz, period))


def _sample_action(
  policy: Any, observation: Any, previous: Any, safety: Safety
) -> tuple[Any, Any]:
  """Returns an action; the previous one if a watchdog is set and the server is gone."""
  try:
    return policy.sample_action(observation)
  except ConnectionError as error:
    if previous is None or safety.stale_after is None:
      raise
    logging.log_every_n_seconds(logging.ERROR, "run_robot: %s", 10, error)
    return previous, {overlap.IS_HELD: True}


@gin.configurable(denylist=["policy", "observe", "act"])
def run_robot(
  policy: Any,
  observe: Callable[[], Any],
  act: Callable[[Any], Any],
  rate_hz: float = gin.REQUIRED,
  max_steps: int | None = None,
  halt: Callable[[], Any] | None = None,
  stop: stopping.StopCondition | None = None,
  clock: Callable[[], float] = time.monotonic,
  wait: Callable[[float], Any] | None = None,
  safety: Safety = Safety(),
) -> RobotRun:
  """Runs an episode of a policy on a robot.

  Step k is due `k / rate_hz` seconds after the first. Late steps are counted, and steps
  whose time has passed meanwhile are left out: the loop never makes up for lost time by
  a burst of actions. SIGINT, SIGTERM, SIGHUP and `stop` end it between two steps. A
  network that is slower than a step needs an `OverlappedPolicy`: the clock starts when
  its first chunk is ready, and then no step waits for the network.

  Args:
    policy: has `reset()` and `sample_action(observation)`, e.g. a `lite.LitePolicy`.
    observe: returns an observation; None ends the episode.
    act: executes an action.
    rate_hz: steps per second; warns if it is over 10 % off that of the training data.
    max_steps: steps after which the episode ends; None for no limit.
    halt: called at the end, after an error, too. Makes the robot stand still.
    stop: e.g. a `threading.Event`; None for signals alone.
    clock: returns seconds.
    wait: waits for some seconds; None sleeps, and a signal ends the sleep.
    safety: watchdog and limits.
  Returns:
    Counts and times of the run.
  Raises:
    SpecError: the rate or max_steps is not positive, or a value does not fit.
    ConnectionError: the server is gone, and there is no watchdog or no action yet.
  """
  _check_options(policy, rate_hz, max_steps)
  numbers = (signals.SIGINT, signals.SIGTERM, signals.SIGHUP)
  num_steps = num_late = num_missed = num_held = 0
  longest, stopped_by, action = 0.0, "", None
  work: collections.deque[float] = collections.deque(maxlen=_NUM_TIMED)
  checks = _Checks(safety, rate_hz)
  waits_at_start = isinstance(policy, overlap.OverlappedPolicy)
  with contextlib.ExitStack() as stack:
    signal = stack.enter_context(stopping.StopSignal(stop, numbers))
    if halt is not None:
      stack.callback(halt)
    wait = wait or signal.wait
    policy.reset()
    start, tick = clock(), 0
    with contextlib.suppress(stopping.Stopped):
      while max_steps is None or num_steps < max_steps:
        signal.check()
        started = clock()
        observation = observe()
        if observation is None:
          break
        observed = clock()
        action, outputs = _sample_action(policy, observation, action, safety)
        if waits_at_start and not num_steps:
          start = started = observed = clock()
        now = clock()
        is_held = isinstance(outputs, dict) and bool(outputs.get(overlap.IS_HELD))
        try:
          act(checks.apply(observation, action, is_held, now))
        except _Unsafe as unsafe:
          stopped_by = str(unsafe)
          break
        ended = clock()
        work.append(now - observed)
        num_steps, num_held = num_steps + 1, num_held + is_held
        longest = max(longest, ended - started)
        due = start + (tick + 1) / rate_hz
        if ended <= due:
          tick += 1
          wait(due - ended)
          continue
        num_late += 1
        # Continue with the latest step that is due; those before it are missed.
        passed = math.floor((ended - start) * rate_hz)
        num_missed += passed - tick - 1
        if waits_at_start:
          policy.skip(passed - tick - 1)
        tick = passed
    was_stopped = signal.is_set()
  run = RobotRun(
    num_steps,
    num_late,
    num_missed,
    longest,
    was_stopped,
    stopped_by or ("signal" if was_stopped else ""),
    float(np.percentile(np.array(work), 99)) if work else 0.0,
    num_held,
    checks.num_stale,
    checks.num_clipped,
  )
  logging.info("run_robot: %s.", run)
  return run
