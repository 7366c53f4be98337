"""A policy behind a socket: the protocol, its clients' states, what goes wrong."""

from __future__ import annotations

import concurrent.futures
import threading
import urllib.request

import numpy as np
import pytest

from t2r_seq import acting, errors, lite, serving

msgpack = pytest.importorskip("msgpack")
sync_client = pytest.importorskip("websockets.sync.client")

SPEC = {"state/pos": lite.Leaf("state_pos", (2,), np.dtype(np.float32))}


class SumPolicy:
  """Says the sum of an episode's positions, and the seed."""

  global_step = 7

  def step_specification(self):
    return SPEC

  def initial_state(self, seed=0):
    return acting.PolicyState(
      {"sum": np.zeros([2], np.float32), "seed": np.int32(seed)}
    )

  def stateless_step(self, observation, state, is_first=False):
    position = acting.pack(observation, SPEC)["state/pos"]
    if position.shape != (2,):
      raise errors.SpecError(f"step: state/pos: expected (2,), got {position.shape}.")
    if position[0] < 0:
      raise RuntimeError("a broken motor")
    total = position if is_first else state["sum"] + position
    state = acting.PolicyState({**state, "sum": total})
    return {"inference_output": total, "seed": state["seed"]}, state


@pytest.fixture(name="server")
def fixture_server():
  with serving.PolicyServer(SumPolicy(), port=0) as server:
    yield server


def _connect(server):
  return serving.PolicyClient(port=server.port)


def test_eight_clients_at_once_have_states_of_their_own(server):
  def run(number):
    client = _connect(server)
    said = []
    for _ in range(2):
      client.reset()
      client.seed(number)
      for step in range(10):
        action, outputs = client.sample_action({"state": {"pos": [number, step]}})
        said.append(action.tolist())
        assert outputs["seed"] == number
        assert outputs["server_timing"]["infer_ms"] > 0
    client.close()
    return said

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    got = list(pool.map(run, range(8)))
  want = [
    [[number * (t + 1), t * (t + 1) / 2] for t in range(10)] * 2 for number in range(8)
  ]
  assert got == want


def test_clients_of_openpi_are_understood(server):
  """Their encoding by hand, as their client has it."""
  with sync_client.connect(f"ws://127.0.0.1:{server.port}", compression=None) as raw:
    assert msgpack.unpackb(raw.recv()) == {
      "server": "t2r_seq",
      "global_step": 7,
      "observation": {"state/pos": {"shape": [2], "dtype": "float32"}},
    }
    array = {
      b"__ndarray__": True,
      b"data": np.array([1, 2], "<f4").tobytes(),
      b"dtype": "<f4",
      b"shape": (2,),
    }
    raw.send(msgpack.packb({"state/pos": array, "prompt": "reach"}))
    said = msgpack.unpackb(raw.recv())["inference_output"]
  assert said == {**array, b"shape": [2]}
  with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz") as answer:
    assert answer.read() == b"OK\n"


_FITS = {"state/pos": np.zeros(2)}
BAD = {
  "a seed of text": ({**_FITS, "seed": "7"}, "seed: expected a bool or an int32, got"),
  "a large seed": ({**_FITS, "seed": 1 << 40}, "seed: expected a bool or an int32"),
  "a large seed in a list": ({**_FITS, "seed": [1 << 40]}, "seed: expected a bool or"),
  "a flag of text": ({**_FITS, "inspect": "no"}, "inspect: expected a bool or an int"),
  "flags": (
    {**_FITS, "inspect": [True] * 2},
    r"inspect: expected a .*\(2,\) bool",
  ),
  "a path is missing": ({"pos": np.zeros(2)}, "state/pos: expected .* got nothing"),
  "another shape": ({"state/pos": np.zeros(3)}, r"state/pos: expected \(2,\), got \(3"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_said_and_the_episode_goes_on(server, case):
  observation, message = BAD[case]
  client = _connect(server)
  client.step({"state/pos": np.ones(2)})
  with pytest.raises(errors.SpecError, match=f"policy server: .*{message}"):
    client.step(observation)
  assert client.step({"state/pos": np.ones(2)})["inference_output"].tolist() == [2, 2]
  client.close()


RAW = {
  "a text": ("hello", "expected an observation as msgpack, got a text"),
  "no msgpack": (b"\xc1", "expected a msgpack message, got 1 bytes"),
  "no dictionary": (b"\x90", "expected a dictionary by path, got list"),
  "objects": (
    {b"__ndarray__": True, b"data": b"12345678", b"dtype": "|O", b"shape": [1]},
    "an array of object",
  ),
  "too little": (
    {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f8", b"shape": [9]},
    "buffer is too small",
  ),
}


def test_messages_that_are_none_are_refused(server):
  with sync_client.connect(f"ws://127.0.0.1:{server.port}", compression=None) as raw:
    raw.recv()
    for sent, message in RAW.values():
      raw.send(msgpack.packb({"x": sent}) if isinstance(sent, dict) else sent)
      assert message in raw.recv()


def test_a_broken_step_ends_its_connection_alone(server):
  client, other = _connect(server), _connect(server)
  with pytest.raises(errors.SpecError, match="policy server: RuntimeError: a broken m"):
    client.step(np.array([-1.0, 0.0]))
  with pytest.raises(ConnectionError, match="The server has gone"):
    client.step(np.zeros(2))
  assert other.step(np.ones(2))["inference_output"].tolist() == [1, 1]
  other.close()


def test_a_slow_step_keeps_nobody_out():
  taken, goes_on = threading.Event(), threading.Event()

  class SlowPolicy(SumPolicy):
    def stateless_step(self, *step):
      taken.set()
      goes_on.wait(60)
      return super().stateless_step(*step)

  with (
    serving.PolicyServer(SlowPolicy(), port=0) as server,
    concurrent.futures.ThreadPoolExecutor() as pool,
  ):
    step = pool.submit(_connect(server).step, np.ones(2))
    try:
      assert taken.wait(30)
      assert _connect(server).global_step == 7
      assert not step.done()
    finally:
      goes_on.set()
    assert step.result(30)["inference_output"].tolist() == [1, 1]


def test_a_full_server_a_large_message_and_a_page_of_a_browser_are_refused():
  with serving.PolicyServer(SumPolicy(), port=0, max_clients=1) as server:
    first = _connect(server)
    with pytest.raises(ConnectionError, match="all 1 clients are there"):
      _connect(server)
    with pytest.raises(ConnectionError, match="1009"):
      first.step({"state/pos": np.zeros(2), "more": np.zeros(1 << 20)})
    place, page = f"ws://127.0.0.1:{server.port}", "http://a.page"
    with (
      pytest.raises(Exception, match="HTTP 403"),
      sync_client.connect(place, origin=page),
    ):
      pass


def test_a_server_that_stops_in_an_episode_is_an_error_of_its_clients(server):
  client = _connect(server)
  client.step(np.ones(2))
  server.close()
  with pytest.raises(ConnectionError, match="expected an answer at step 1 of the epis"):
    client.step(np.ones(2))
  with pytest.raises(ConnectionError, match="expected a policy server, got"):
    _connect(server)


def test_what_cannot_be_sent_and_where_nobody_can_listen(server):
  with pytest.raises(
    errors.SpecError, match=r"pack: expected .* got: an array of object"
  ):
    serving.pack({"x": np.array([None])})
  with pytest.raises(errors.SpecError, match="serve: address: expected 'localhost'"):
    serving.PolicyServer(SumPolicy(), "nowhere", 0)
  with pytest.raises(OSError, match="in use"):
    serving.PolicyServer(SumPolicy(), port=server.port)
