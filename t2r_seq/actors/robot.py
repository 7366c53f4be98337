"""A policy on a robot: one step after the other, at a fixed rate of the wall clock."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal as signals
import time
from collections.abc import Callable
from typing import Any

import gin
from absl import logging

from t2r_seq import errors
from t2r_seq.lite import policy_io
from t2r_seq.training import stopping


@dataclasses.dataclass(frozen=True)
class RobotRun:
  """What came of an episode on a robot.

  Attributes:
    num_steps: actions that were executed.
    num_late: steps that were not done when the next one was due.
    num_missed: steps that were left out, because one before took that long.
    max_seconds: of the longest step, from the observation to the action's end.
    was_stopped: by a signal or by `stop`, and not by an end of its own.
  """

  num_steps: int
  num_late: int
  num_missed: int
  max_seconds: float
  was_stopped: bool


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
) -> RobotRun:
  """Runs an episode of a policy on a robot.

  Step k is due `k / rate_hz` seconds after the first. One that is not done in time is
  counted, and those whose time has passed meanwhile are left out: the loop never makes
  up for lost time by a burst of actions. SIGINT, SIGTERM and `stop` end it between two
  steps.

  Args:
    policy: has `reset()` and `sample_action(observation)`, e.g. a `lite.LitePolicy`.
    observe: gives an observation; None ends the episode.
    act: executes an action.
    rate_hz: steps a second; that of the training data, or the policy sees other motion:
      there is a warning where the policy knows that of its data.
    max_steps: ends the episode; None goes on.
    halt: is called at the end, whatever the end is: an error, too. Makes the robot
      stand still.
    stop: e.g. a `threading.Event`.
    clock: gives seconds.
    wait: waits for some seconds; None also listens for signals meanwhile.
  Returns:
    What came of it.
  Raises:
    SpecError: the rate or max_steps is no positive number.
  """
  if not (rate_hz > 0 and math.isfinite(rate_hz)):
    raise errors.SpecError(f"run_robot: rate_hz: expected a number > 0, got {rate_hz}.")
  if max_steps is not None and max_steps < 1:
    raise errors.SpecError(f"run_robot: max_steps: expected >= 1, got {max_steps}.")
  period = getattr(policy, "control_period", None)
  if period is not None and not 0.9 <= period * rate_hz <= 1.1:
    logging.warning(policy_io.rate_warning("run_robot: rate_hz", 1 / rate_hz, period))
  numbers = (signals.SIGINT, signals.SIGTERM, signals.SIGHUP)
  num_steps = num_late = num_missed = 0
  longest = 0.0
  with contextlib.ExitStack() as stack:
    signal = stack.enter_context(stopping.StopSignal(stop, numbers))
    if halt is not None:
      stack.callback(halt)
    wait = wait or signal.wait
    policy.reset()
    begun, tick = clock(), 0
    with contextlib.suppress(stopping.Stopped):
      while max_steps is None or num_steps < max_steps:
        signal.check()
        started = clock()
        observation = observe()
        if observation is None:
          break
        act(policy.sample_action(observation)[0])
        ended = clock()
        num_steps += 1
        longest = max(longest, ended - started)
        due = begun + (tick + 1) / rate_hz
        if ended <= due:
          tick += 1
          wait(due - ended)
          continue
        num_late += 1
        # The next one whose time is yet to come, but for the one that is due now.
        passed = math.floor((ended - begun) * rate_hz)
        num_missed += passed - tick - 1
        tick = passed
    was_stopped = signal.is_set()
  return RobotRun(num_steps, num_late, num_missed, longest, was_stopped)
