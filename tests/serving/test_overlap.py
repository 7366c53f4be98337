"""A client that keeps the control rate while the server computes chunks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from t2r_seq import errors, lite, serving
from t2r_seq.lite import overlap, policy_io
from t2r_seq.serving import websocket

pytest.importorskip("websockets")

DEPTH, LENGTH = 3, 6
LEAF = policy_io.Leaf("x", (1,), np.dtype(np.float32))
STATE = policy_io.Leaf("state", (DEPTH, 1), np.dtype(np.float32))


class HistoryPolicy(policy_io.PurePolicy):
  """Action i of a chunk is (the sum of the last three observations, i)."""

  global_step, control_period = 3, None

  def __init__(self, overlaps=True):
    self.overlaps, self.requests = overlaps, []

  def describe(self):
    if not self.overlaps:
      return {"model": "runs/plain"}
    execution = {"num_executed": 2, "ensemble_decay": None}
    state = {"history/x": STATE.to_json()}
    record = {"state": state, "prefix_mode": "real_time", "control_period": None}
    execution["outputs"] = ["inference_output"]
    return {"model": "runs/history", "record": {**record, "execution": execution}}

  def step_specification(self):
    return {"x": LEAF}

  def initial_state(self, seeds=(0,)):
    return policy_io.PolicyState({"state": np.zeros([1, DEPTH, 1], "f")})

  def step(self, observation, state, is_first=False):
    return {"inference_output": np.zeros([1, 2])}, state

  def observe(self, observation, state, is_first=False):
    if not self.overlaps:
      return super().observe(observation, state, is_first)
    past = state.tensors["state"]
    if is_first:
      past = np.repeat(observation["x"][:, np.newaxis], DEPTH, axis=1)
    new = np.concatenate([past[:, 1:], observation["x"][:, np.newaxis]], axis=1)
    return policy_io.PolicyState({"state": new})

  def plan(self, observation, state, is_first=False, prefix=None):
    new = self.observe(observation, state, is_first).tensors["state"]
    self.requests.append((new.ravel().tolist(), prefix))
    rows = [(new.sum(), place) for place in range(LENGTH)]
    return {"inference_output": np.array([rows], np.float32)}


@pytest.fixture(name="policy")
def fixture_policy():
  return HistoryPolicy()


@pytest.fixture(name="client")
def fixture_client(policy):
  with serving.PolicyServer(policy, port=0) as server:
    client = serving.PolicyClient(port=server.port)
    yield client
    client.close()


def test_request_has_new_observations_and_the_prefix(policy, client):
  planner = overlap.SimulatedLatency(2.0)
  overlapped = lite.OverlappedPolicy(client, "real_time", planner=planner)
  for start in (0, 100):  # Two episodes.
    overlapped.reset()
    actions = [
      overlapped.sample_action({"x": np.float32([start + tick])})[0].tolist()
      for tick in range(8)
    ]
    seen = [requested for requested, _ in policy.requests]
    # Ticks 0, 2, 4 and 6: at each the policy sees three observations in a row.
    want = [[0, 0, 0], [0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert seen == [[start + value for value in window] for window in want]
    first, second, *_ = (prefix for _, prefix in policy.requests)
    assert first is None and second.num_frozen.tolist() == [2]
    assert second.actions[0, :4, 1].tolist() == [2, 3, 4, 5]
    sums = [sum(window) + 3 * start for window in want]
    assert [action[0] for action in actions] == [
      *[sums[0]] * 4,
      *[sums[1]] * 2,
      *[sums[2]] * 2,
    ]
    policy.requests.clear()


def test_thread_of_the_client_waits_for_the_server(policy, client):
  overlapped = lite.OverlappedPolicy(client, "asynchronous")
  overlapped.sample_action({"x": np.float32([1])})
  for tick in range(3):
    overlapped.sample_action({"x": np.float32([tick])})
  overlapped.close()
  assert policy.requests[-1][0] == [1, 0, 1]
  # A step of the same connection still works.
  assert client.step({"x": np.float32([1])})["inference_output"].shape == (2,)


def test_late_answer_is_not_that_of_the_next_request(policy):
  is_free = threading.Event()
  policy.step = lambda observation, state, is_first: (
    is_free.wait(30) and {"inference_output": observation["x"]},
    state,
  )
  with serving.PolicyServer(policy, port=0) as server:
    client = serving.PolicyClient(port=server.port)
    client._timeout = 0.05  # Connecting may take longer.
    with pytest.raises(ConnectionError, match=r"timed out.* The server has gone"):
      client.step({"x": np.float32([1])})
    is_free.set()
    client.reset()
    with pytest.raises(ConnectionError, match="connect again, and start an episode"):
      client.step({"x": np.float32([2])})
    client.close()


MESSAGES = {
  "no dictionary": (7, r"serve: overlap: expected a dictionary of .*, got 7"),
  "other names": (
    {"observation": []},
    r"overlap: expected .*, got one of \['observation'\]",
  ),
  "no list": (
    {"observations": {}, "prefix": None},
    r"serve: observations: expected a list of dictionaries by path, got dict",
  ),
  "nothing observed": (
    {"observations": [], "prefix": None},
    r"serve: overlap: expected an observation in the first request",
  ),
  "prefix": (
    {"observations": [], "prefix": {"actions": [1]}},
    r"serve: prefix: expected nil, or a dictionary of .*num_frozen",
  ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_wrong_requests_are_explained(client, case):
  message, expected = MESSAGES[case]
  with pytest.raises(errors.SpecError, match=expected):
    client._ask({websocket.OVERLAP: message})
  assert client.step({"x": np.float32([1])})["inference_output"].shape == (2,)


def test_policy_without_halves_is_refused():
  with serving.PolicyServer(HistoryPolicy(overlaps=False), port=0) as server:
    client = serving.PolicyClient(port=server.port)
    with pytest.raises(errors.SpecError, match="expected a policy that executes its"):
      lite.OverlappedPolicy(client)
    with pytest.raises(errors.SpecError, match=r"runs/plain: expected an export with"):
      client.plan_one(client.observe_one({"x": np.float32([1])}))
    client.close()
