"""A policy at a fixed rate, on a clock of the test's own."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from t2r_seq import actors, errors


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


def test_an_episode_ends_where_there_is_no_observation():
  assert Robot(num_observations=3).run().num_steps == 3


def test_a_stop_ends_it_between_two_steps():
  robot, stop = Robot(), threading.Event()
  act = robot.act
  robot.act = lambda action: (act(action), stop.set() if action == 20 else None)
  run = robot.run(stop=stop)
  assert (run.num_steps, run.was_stopped, robot.log[-1]) == (3, True, "halt")


def test_a_signal_ends_a_wait_and_the_handler_is_restored(monkeypatch):
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


def test_a_robot_is_halted_after_an_error():
  robot = Robot()
  robot.act = lambda action: 1 / 0
  with pytest.raises(ZeroDivisionError):
    robot.run()
  assert robot.log == ["reset", "halt"]


@pytest.mark.parametrize(
  ("options", "message"),
  [({"rate_hz": 0}, "rate_hz: expected"), ({"max_steps": 0}, "max_steps: expected")],
)
def test_options_are_checked(options, message):
  robot = Robot()
  options = {"rate_hz": 1.0, **options}
  with pytest.raises(errors.SpecError, match=f"run_robot: {message}"):
    actors.run_robot(robot, robot.observe, robot.act, **options)
