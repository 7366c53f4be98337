"""A policy at a fixed rate, on a clock of the test's own."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from t2r_seq import actors, errors, lite
from t2r_seq.lite import overlap


class Robot:
  """Counts; its steps take as long as it is told, on its own clock."""

  def __init__(self, seconds=(), num_observations=100):
    self.now = 5.0
    self.seen, self.done, self.begun, self.log = [], [], [], []
    self._seconds = dict(enumerate(seconds))
    self._num_observations = num_observations

  def clock(self):
    return self.now

  def wait(self, seconds):
    self.now += seconds

  def observe(self):
    step = len(self.done)
    self.begun.append(round(self.now - 5, 3))
    return None if step == self._num_observations else step

  def act(self, action):
    self.now += self._seconds.get(len(self.done), 0.01)
    self.done.append(action)

  def halt(self):
    self.log.append("halt")

  def reset(self):
    self.log.append("reset")

  def sample_action(self, observation):
    return 10 * observation, None

  def run(self, **kwargs):
    kwargs = {"wait": self.wait, "max_steps": 5, **kwargs}
    return actors.run_robot(
      self, self.observe, self.act, 10.0, halt=self.halt, clock=self.clock, **kwargs
    )


RUNS = {
  "in time": ((), (5, 0, 0), [0, 0.1, 0.2, 0.3, 0.4]),
  "late once": ((0.01, 0.12), (5, 1, 0), [0, 0.1, 0.22, 0.3, 0.4]),
  "two left out": ((0.01, 0.35), (5, 1, 2), [0, 0.1, 0.45, 0.5, 0.6]),
  "always late": ((0.15,) * 9, (5, 5, 2), [0, 0.15, 0.3, 0.45, 0.6]),
}


@pytest.mark.parametrize("case", RUNS)
def test_steps_are_due_by_the_clock(case):
  seconds, want, begun = RUNS[case]
  robot = Robot(seconds)
  run = robot.run()
  assert (run.num_steps, run.num_late, run.num_missed) == want
  assert robot.begun == begun
  assert robot.done == [0, 10, 20, 30, 40]
  assert robot.log == ["reset", "halt"]
  assert run.max_seconds == pytest.approx(max([0.01, *seconds]))
  assert not run.was_stopped


@pytest.mark.parametrize(("period", "num_warnings"), [(0.1, 0), (0.05, 1), (None, 0)])
def test_another_rate_than_the_datas_is_warned_of(period, num_warnings, caplog):
  robot = Robot()
  robot.control_period = period
  robot.run()
  found = [
    x for x in caplog.messages if "run_robot: rate_hz: expected an observation" in x
  ]
  assert len(found) == num_warnings


def test_episode_ends_where_there_is_no_observation():
  assert Robot(num_observations=3).run().num_steps == 3


def test_stop_ends_it_between_two_steps():
  robot, stop = Robot(), threading.Event()
  act = robot.act
  robot.act = lambda action: (act(action), stop.set() if action == 20 else None)
  run = robot.run(stop=stop)
  assert (run.num_steps, run.was_stopped, robot.log[-1]) == (3, True, "halt")


def test_signal_ends_a_wait_and_the_handler_is_restored(monkeypatch):
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    robot = Robot()
    robot.wait = lambda seconds: os.kill(os.getpid(), signal.SIGINT)
    run = robot.run()
    assert (run.num_steps, run.was_stopped, robot.log[-1]) == (1, True, "halt")
    os.kill(os.getpid(), signal.SIGINT)  # A repeat, which is ignored.
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 1)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  finally:
    signal.signal(signal.SIGINT, before)


def test_robot_is_halted_after_an_error():
  robot = Robot()
  robot.act = lambda action: 1 / 0
  with pytest.raises(ZeroDivisionError):
    robot.run()
  assert robot.log == ["reset", "halt"]


SAFETY = {
  "nothing": (actors.Safety(), [0, 10, 20, 30, 40], "", (0, 0)),
  "limits": (actors.Safety(low=5, high=25), [5, 10, 20, 25, 25], "", (0, 3)),
  "rate": (actors.Safety(max_rate=60), [0, 6, 12, 18, 24], "", (0, 4)),
  "stop at a limit": (
    actors.Safety(high=25, on_excess="stop"), [0, 10, 20], "limits", (0, 0)
  ),
  # Steps 2 and 3 are held; at 0.15 s without a new action the watchdog acts.
  "hold": (actors.Safety(stale_after=0.15), [0, 10, 20, 30, 40], "", (1, 0)),
  "stop": (actors.Safety(0.15, "stop"), [0, 10, 20], "stale", (1, 0)),
  "function": (
    actors.Safety(0.15, lambda seen: -seen), [0, 10, 20, -3, 40], "", (1, 0)
  ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAFETY)
def test_safety(case):
  safety, done, stopped_by, counts = SAFETY[case]
  robot = Robot()
  act = robot.sample_action
  robot.sample_action = lambda seen: (act(seen)[0], {"is_held": seen in (2, 3)})
  run = robot.run(safety=safety)
  assert robot.done == done and robot.log[-1] == "halt"
  assert (run.stopped_by, run.num_stale, run.num_clipped) == (stopped_by, *counts)
  assert run.num_held == len([x for x in range(len(done)) if x in (2, 3)])
  assert f"{len(done)} steps: 0 late" in str(run)


LOST = {
  "no watchdog": (actors.Safety(), [0, 10], None),
  # The server is lost at step 2, at 0.2 s.
  "hold": (actors.Safety(0.15), [0, 10, 10, 10, 10], ""),
  "stop": (actors.Safety(0.15, "stop"), [0, 10, 10], "stale"),
  "function": (actors.Safety(0.15, lambda seen: -seen), [0, 10, 10, -3, -4], ""),
}


@pytest.mark.parametrize("case", LOST)
def test_watchdog_acts_if_the_server_is_lost(case, caplog):
  safety, done, stopped_by = LOST[case]
  robot = Robot()

  def sample_action(seen):
    if seen > 1:
      raise ConnectionError("policy client: the server has gone")
    return 10 * seen, {}

  robot.sample_action = sample_action
  if stopped_by is None:
    with pytest.raises(ConnectionError, match="the server has gone"):
      robot.run(safety=safety)
  else:
    run = robot.run(safety=safety)
    assert run.stopped_by == stopped_by and run.num_held == len(done) - 2
  assert robot.done == done and robot.log[-1] == "halt"


def test_server_lost_before_the_first_action_ends_the_episode():
  robot = Robot()
  robot.sample_action = lambda seen: exec("raise ConnectionError('gone')")
  with pytest.raises(ConnectionError, match="gone"):
    robot.run(safety=actors.Safety(0.15))


def test_action_that_is_nan_ends_an_episode_with_limits():
  robot = Robot()
  robot.sample_action = lambda seen: (float("nan"), None)
  run = robot.run(safety=actors.Safety(low=-1, high=1))
  assert (run.num_steps, run.stopped_by) == (0, "limits")


@pytest.mark.parametrize("limits", [{"low": [0, 0]}, {"max_rate": [1, 1, 1]}])
def test_limits_of_another_shape_end_an_episode(limits):
  robot = Robot()
  robot.sample_action = lambda seen: (np.zeros(4), None)
  with pytest.raises(errors.SpecError, match=r"action: expected limits .*\(4,\), got"):
    robot.run(safety=actors.Safety(**limits))
  assert robot.log == ["reset", "halt"]


MISTAKES = {
  "stale_after": ({"stale_after": 0}, "stale_after: expected a number > 0, got 0"),
  "NaN": ({"stale_after": np.nan}, "stale_after: expected a number > 0, got nan"),
  "several": ({"stale_after": [1, 2]}, r"stale_after: expected a number > 0, got \["),
  "a text": ({"max_rate": "fast"}, "max_rate: expected numbers > 0, got 'fast'"),
  "limit": ({"low": [0, np.nan]}, r"low: expected numbers, got \[0, nan\]"),
  "max_rate": ({"max_rate": [1, -1]}, "max_rate: expected numbers > 0"),
  "on_stale": ({"on_stale": "wait"}, "on_stale: expected one of .* or a function"),
  "on_excess": ({"on_excess": "hold"}, "on_excess: expected one of .*got 'hold'"),
  "limits": ({"low": [0, 2], "high": 1}, "low: expected at most high=1"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_options_of_safety_are_checked(case):
  options, message = MISTAKES[case]
  with pytest.raises(errors.SpecError, match=f"Safety: {message}"):
    actors.Safety(**options)


class SleepingClock:
  """A clock of several threads; when all of them sleep, it is the first one's time."""

  def __init__(self):
    self.now, self._num_threads, self._wakes = 0.0, 1, []
    self._condition = threading.Condition()

  def add_threads(self, count):
    with self._condition:
      self._num_threads += count
      self._condition.notify_all()

  def sleep(self, seconds):
    with self._condition:
      until = self.now + seconds
      self._wakes.append(until)
      self._condition.notify_all()
      while self.now < until:
        if len(self._wakes) == self._num_threads and min(self._wakes) > self.now:
          self.now = min(self._wakes)
          self._condition.notify_all()
        else:
          self._condition.wait()
      self._wakes.remove(until)


class SlowNetwork:
  """A model whose network takes six control periods, in a real thread."""

  control_period = 0.05

  def __init__(self, clock):
    self.clock, self.history = clock, []

  def describe(self):
    execution = {"num_executed": 7, "ensemble_decay": None}
    return {"record": {"execution": {**execution, "outputs": ["inference_output"]}}}

  def start_episode(self):
    self.history = []

  def observe_one(self, observation):
    self.history.append(observation)
    return observation

  def plan_one(self, observation, prefix=None):
    del prefix
    self.clock.sleep(6 * self.control_period)
    return {"inference_output": observation + np.arange(16.0)}


class CountedPlanner(overlap.ThreadedPlanner):
  """Tells the clock whether the network's thread works."""

  def __init__(self, clock):
    super().__init__()
    self._clock = clock

  def ask(self, plan, tick):
    def counted():
      try:
        return plan()
      finally:
        self._clock.add_threads(-1)

    self._clock.add_threads(1)
    super().ask(counted, tick)


def test_network_of_six_periods_makes_no_tick_late():
  clock, done = SleepingClock(), []
  network = SlowNetwork(clock)
  policy = lite.OverlappedPolicy(network, "asynchronous", planner=CountedPlanner(clock))
  run = actors.run_robot(
    policy,
    observe=lambda: float(len(done)),
    act=done.append,
    rate_hz=20.0,
    max_steps=10_000,
    clock=lambda: clock.now,
    wait=clock.sleep,
  )
  clock.add_threads(-1)  # The robot's; the network may still work.
  policy.close()
  assert (run.num_steps, run.num_late, run.num_missed) == (10_000, 0, 0)
  assert run.num_held == 0 and policy.num_requests > 1_000
  # Each action is that of its tick: a chunk goes on where the one before ends.
  np.testing.assert_array_equal(done, np.arange(10_000))
  assert network.history == list(range(10_000))


@pytest.mark.parametrize(
  ("options", "message"),
  [({"rate_hz": 0}, "rate_hz: expected"), ({"max_steps": 0}, "max_steps: expected")],
)
def test_options_are_checked(options, message):
  robot = Robot()
  options = {"rate_hz": 1.0, **options}
  with pytest.raises(errors.SpecError, match=f"run_robot: {message}"):
    actors.run_robot(robot, robot.observe, robot.act, **options)
