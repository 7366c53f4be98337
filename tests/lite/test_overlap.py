"""Which action of which chunk is executed at each tick, under latency."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from t2r_seq import errors, lite, policies
from t2r_seq.lite import overlap

RATE = 20.0


class CountingSource:
  """A model whose action i of the chunk of tick t is (t, i), [n, 2]."""

  control_period = None
  prefix_mode: str | None = None
  max_delay: int | None = None

  def __init__(self, length=6, num_executed=3, ensemble_decay=None):
    self.length, self.seen, self.prefixes = length, [], []
    self.gate = None
    self._execution = {
      "num_executed": num_executed,
      "ensemble_decay": ensemble_decay,
      "outputs": ["inference_output"],
    }

  def describe(self):
    fields = {"prefix_mode": self.prefix_mode, "max_delay": self.max_delay}
    return {"record": {"execution": self._execution, **fields}}

  def start_episode(self):
    self.seen = []

  def seed(self, seed):
    pass

  def observe_one(self, observation):
    self.seen.append(observation)
    return observation

  def plan_one(self, observation, prefix=None):
    self.prefixes.append(prefix)
    if self.gate is not None and len(self.prefixes) > 1:
      self.gate.wait()
    rows = [(observation, place) for place in range(self.length)]
    return {"inference_output": np.array(rows, np.float32)}


def run(source, mode, latency, num_ticks=14, jitter=0.0):
  planner = overlap.SimulatedLatency(latency, jitter, RATE)
  policy = overlap.OverlappedPolicy(source, mode, planner=planner)
  found = [policy.sample_action(tick) for tick in range(num_ticks)]
  assert source.seen == list(range(num_ticks))  # Every tick is in the history.
  actions = [action.astype(int).tolist() for action, _ in found]
  return actions, [outputs["is_held"] for _, outputs in found], policy


# By mode and latency in ticks: (asked, place) of ticks 0 to 13. The first chunk is
# waited for.
EXECUTED = {
  ("synchronous", 0): [(t - t % 3, t % 3) for t in range(14)],
  ("asynchronous", 0): [(t - t % 3, t % 3) for t in range(14)],
  # Waits two ticks for each chunk, and repeats the last action meanwhile.
  ("synchronous", 2): [
    *[(0, 0), (0, 1), (0, 2), (0, 2), (0, 2), (3, 0), (3, 1), (3, 2), (3, 2), (3, 2)],
    *[(8, 0), (8, 1), (8, 2), (8, 2)],
  ],
  # Switches when a chunk is ready, and skips its first two actions.
  ("asynchronous", 2): [
    *[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (3, 2), (3, 3), (3, 4), (6, 2), (6, 3)],
    *[(6, 4), (9, 2), (9, 3), (9, 4)],
  ],
  # Five ticks: after the first the network is asked as soon as it is free. A chunk ends
  # before the next one arrives: the last action is held.
  ("asynchronous", 5): [
    *[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 5), (1, 5), (1, 5), (1, 5)],
    *[(1, 5), (6, 5), (6, 5), (6, 5)],
  ],
}


@pytest.mark.parametrize("case", EXECUTED)
def test_executed_actions_under_latency(case):
  mode, ticks = case
  actions, is_held, policy = run(CountingSource(), mode, ticks / RATE)
  assert [*map(tuple, actions)] == EXECUTED[case]
  held = [a == b for a, b in itertools.pairwise(actions)]
  assert is_held == [False, *held]
  assert policy.num_held == sum(held)


@pytest.mark.parametrize(("seconds", "ticks"), [(0.12, 3), (0.15, 3), (0.151, 4)])
def test_latency_ends_at_the_next_tick(seconds, ticks):
  _, _, policy = run(CountingSource(), "asynchronous", seconds)
  assert {*policy.delays} == {ticks}


def test_jitter_is_repeatable():
  found = [run(CountingSource(9), "asynchronous", 0.1, 40, 0.1) for _ in range(2)]
  assert found[0][0] == found[1][0]
  assert len({*found[0][2].delays}) > 1 and max(found[0][2].delays) <= 4


def test_temporal_ensembling_averages_the_chunks_that_have_arrived():
  source = CountingSource(6, 2, ensemble_decay=0.5)
  # Tick 4: the chunks of ticks 0 and 2 have arrived; the older has the weight 1.
  weight = 1 / (1 + np.exp(-0.5))
  planner = overlap.SimulatedLatency(2 / RATE, 0.0, RATE)
  policy = overlap.OverlappedPolicy(source, "asynchronous", planner=planner)
  found = [policy.sample_action(tick)[0] for tick in range(5)]
  np.testing.assert_allclose(
    found[4], weight * np.array([0, 4]) + (1 - weight) * np.array([2, 2]), rtol=1e-6
  )


def test_request_has_the_actions_that_will_be_executed():
  source = CountingSource(6, 3)
  source.prefix_mode = "real_time"
  run(source, "real_time", 2 / RATE, 9)
  first, second, third = source.prefixes
  assert first is None
  # Asked at tick 3: three actions of the first chunk are left, two will be executed.
  assert second.actions[0].tolist() == [[0, 3], [0, 4], [0, 5], [0, 0], [0, 0], [0, 0]]
  assert (second.num_frozen.tolist(), second.num_known.tolist()) == ([2], [3])
  assert third.actions[0, :3].tolist() == [[3, 3], [3, 4], [3, 5]]


def test_frozen_prefix_is_no_longer_than_what_was_trained():
  source = CountingSource(8, 2)
  source.prefix_mode, source.max_delay = "trained", 1
  run(source, "trained", 3 / RATE, 9)
  assert {int(each.num_frozen[0]) for each in source.prefixes[1:]} == {1}


def test_thread_computes_while_actions_are_executed():
  source = CountingSource()
  source.gate = threading.Event()
  policy = overlap.OverlappedPolicy(source, "asynchronous")
  actions = [policy.sample_action(tick)[0].tolist() for tick in range(5)]
  assert actions == [[0, place] for place in range(5)]
  source.gate.set()
  policy.close()  # Waits for the thread.
  assert policy.sample_action(5)[0].tolist() == [3, 2]


def test_error_of_the_thread_is_raised_at_a_tick():
  source = CountingSource(num_executed=1)
  policy = overlap.OverlappedPolicy(source, "asynchronous")
  policy.sample_action(0)
  source.plan_one = lambda *_: 1 / 0
  policy.sample_action(1)
  policy.close()
  with pytest.raises(ZeroDivisionError):
    policy.sample_action(2)


def test_episode_forgets_the_request_of_the_one_before():
  source = CountingSource()
  planner = overlap.SimulatedLatency(2 / RATE, 0.0, RATE)
  policy = overlap.OverlappedPolicy(source, "asynchronous", planner=planner)
  for tick in range(4):
    policy.sample_action(tick)
  policy.reset()
  actions = [policy.sample_action(tick)[0].tolist() for tick in (70, 71, 72)]
  assert actions == [[70, 0], [70, 1], [70, 2]]
  assert policy.num_requests == 1


MISTAKES = {
  "mode": (
    lambda: policies.ChunkExecution(4, overlap="fast"),
    r"ChunkExecution: overlap: expected one of .*asynchronous.*, got 'fast'",
  ),
  "ensembling of prefixes": (
    lambda: policies.ChunkExecution(4, 0.1, overlap="real_time"),
    r"ensemble_decay: expected None with overlap='real_time'.*got 0.1",
  ),
  "latency": (
    lambda: overlap.SimulatedLatency(-0.1, 0, 20),
    r"SimulatedLatency: latency: expected seconds >= 0, got -0.1",
  ),
  "not a number": (
    lambda: overlap.SimulatedLatency(float("nan"), 0, 20),
    r"SimulatedLatency: latency: expected seconds >= 0, got nan",
  ),
  "jitter": (
    lambda: overlap.SimulatedLatency(0.1, 0.2, 20),
    r"Latency: jitter: expected seconds between 0 and the latency, 0.1, got 0.2",
  ),
  "rate": (
    lambda: overlap.SimulatedLatency(0.1, 0, 0),
    r"SimulatedLatency: control_rate: expected ticks per second, > 0, got 0",
  ),
  "no inpainting": (
    lambda: lite.OverlappedPolicy(CountingSource(), "real_time"),
    r"overlap: expected one of .*asynchronous.*, as this model can do, got "
    r"'real_time'\. Inpainting needs a flow or diffusion head",
  ),
  "no chunks": (
    lambda: lite.OverlappedPolicy(CountingSource(), action_key="pose"),
    r"overlap: pose: expected a policy that executes its chunks, got .*inference_o",
  ),
  "executed": (
    lambda: lite.OverlappedPolicy(CountingSource(), num_executed=0),
    r"overlap: num_executed: expected an integer of at least 1, got 0",
  ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_explained(case):
  make, message = MISTAKES[case]
  with pytest.raises(errors.SpecError, match=message):
    make()
