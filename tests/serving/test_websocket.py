"""A policy behind a socket: the protocol, its clients' states, what goes wrong."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, serving
from t2r_seq.lite import lite_policy, policy_io
from t2r_seq.serving import websocket

msgpack = pytest.importorskip("msgpack")
sync_client = pytest.importorskip("websockets.sync.client")

SPEC = {"state/pos": lite_policy.Leaf("state_pos", (2,), np.dtype(np.float32))}


class SumPolicy:
  """Says the sum of an episode's positions, and the seed."""

  global_step, control_period = 7, None

  def step_specification(self):
    return SPEC

  def initial_state(self, seeds=(0,)):
    tensors = {"sum": np.zeros([1, 2], np.float32), "seed": np.zeros([1, 2], np.int32)}
    leaf = lite_policy.Leaf("seed", (2,), np.dtype(np.int32))
    return policy_io.PolicyState(tensors, {"seed": leaf})

  def step(self, observation, state, is_first=False):
    (position,) = observation["state/pos"]
    if position.shape != (2,):
      raise errors.SpecError(f"step: state/pos: expected (2,), got {position.shape}.")
    if position[0] < 0:
      raise RuntimeError("a broken motor")
    total = position if is_first else state.tensors["sum"][0] + position
    tensors = {**state.tensors, "sum": total[np.newaxis]}
    outputs = {"inference_output": tensors["sum"], "seed": tensors["seed"][:, 0]}
    return outputs, policy_io.PolicyState(tensors, state.leaves)


@pytest.fixture(name="server")
def fixture_server():
  with serving.PolicyServer(SumPolicy(), port=0) as server:
    yield server


def _health(server):
  place = f"http://127.0.0.1:{server.port}/healthz"
  with urllib.request.urlopen(place, timeout=30) as answer:
    return answer.read()


@contextlib.contextmanager
def _silent(port, count):
  """Connections that send nothing."""
  with contextlib.ExitStack() as stack:
    yield [
      stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
      for _ in range(count)
    ]


def _connect(server):
  return serving.PolicyClient(port=server.port)


def test_eight_clients_have_separate_states(server):
  def run(number):
    client = _connect(server)
    predicted = []
    for _ in range(2):
      client.reset()
      client.seed(number)
      for step in range(10):
        action, outputs = client.sample_action({"state": {"pos": [number, step]}})
        predicted.append(action.tolist())
        assert outputs["seed"] == number
        assert outputs["server_timing"]["infer_ms"] > 0
    client.close()
    return predicted

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
    predicted = msgpack.unpackb(raw.recv())["inference_output"]
  assert predicted == {**array, b"shape": [2]}
  assert _health(server) == b"OK\n"


def _openpi_pack(value):
  """openpi's encoding of arrays, written from its protocol."""

  def default(array):
    if isinstance(array, np.ndarray):
      return {
        b"__ndarray__": True,
        b"data": array.tobytes(),
        b"dtype": array.dtype.str,
        b"shape": array.shape,
      }
    return {b"__npgeneric__": True, b"data": array.item(), b"dtype": array.dtype.str}

  return msgpack.packb(value, default=default)


def _openpi_unpack(data):
  def decode(value):
    if b"__ndarray__" in value:
      dtype = np.dtype(value[b"dtype"])
      return np.ndarray(buffer=value[b"data"], dtype=dtype, shape=value[b"shape"])
    if b"__npgeneric__" in value:
      return np.dtype(value[b"dtype"]).type(value[b"data"])
    return value

  return msgpack.unpackb(data, object_hook=decode)


class OpenpiClient:
  """What openpi's client does: metadata first, then an answer for each observation."""

  def __init__(self, port):
    self._open = contextlib.ExitStack()
    self._connection = self._open.enter_context(
      sync_client.connect(f"ws://127.0.0.1:{port}", compression=None, max_size=None)
    )
    self.metadata = _openpi_unpack(self._connection.recv())

  def infer(self, observation):
    self._connection.send(_openpi_pack(observation))
    answer = self._connection.recv()
    if isinstance(answer, str):
      raise RuntimeError(answer)
    return _openpi_unpack(answer)

  def close(self):
    self._open.close()


def test_openpi_client_finds_its_names():
  rename = {"observation/state": "state/pos"}
  with serving.PolicyServer(
    SumPolicy(), port=0, rename=rename, output="actions"
  ) as server:
    client = OpenpiClient(server.port)
    assert client.metadata["observation"] == {
      "observation/state": {"shape": [2], "dtype": "float32"}
    }
    for t in range(1, 3):
      outputs = client.infer(
        {"observation/state": np.array([1.0, 2.0]), "prompt": "reach", "n": np.int64(3)}
      )
      assert outputs["actions"].tolist() == [[t, 2 * t]]
      assert outputs["inference_output"].tolist() == [t, 2 * t]
    nested = client.infer({"observation": {"state": np.array([1.0, 2.0])}})
    assert nested["actions"].tolist() == [[3, 6]]
    with pytest.raises(
      RuntimeError, match=r"state/pos: expected .* A client names .*'observation/state'"
    ):
      client.infer({"observation/image": np.zeros([2])})
    client.close()


def test_objects_that_are_no_texts_are_refused():
  spec = {"task": lite_policy.Leaf("task", (), np.dtype(object))}
  for value, got in ((None, "nothing"), ([["a", None]], "one with None")):
    with pytest.raises(errors.SpecError, match=f"task: expected .*, got {got}"):
      policy_io.pack({"task": value}, spec)
  assert policy_io.pack({"task": "reach"}, spec)["task"] == "reach"


class OpenpiServer:
  """What openpi's server does, for a policy of one state and a prompt."""

  def __init__(self, metadata):
    server = pytest.importorskip("websockets.sync.server")
    self._metadata = metadata
    self._server = server.serve(self._answer, "127.0.0.1", 0, compression=None)
    self.port = self._server.socket.getsockname()[1]
    self._thread = threading.Thread(target=self._server.serve_forever)

  def _answer(self, connection):
    greeting = self._metadata
    connection.send(greeting if isinstance(greeting, str) else _openpi_pack(greeting))
    for message in connection:
      observation = _openpi_unpack(message)
      if {*observation} != {"observation/state", "prompt"}:
        connection.send(f"Traceback (most recent call last): KeyError {[*observation]}")
        connection.close(1011)
        return
      actions = observation["observation/state"] + np.arange(3)[:, np.newaxis]
      timing = {"server_timing": {"infer_ms": 0.5}}
      connection.send(_openpi_pack({"actions": actions, **timing}))

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *error):
    self._server.shutdown()
    self._thread.join()


@pytest.mark.parametrize("metadata", [{}, {"reset_pose": [0.0, 1.0]}])
def test_client_acts_by_an_openpi_server(metadata):
  with OpenpiServer(metadata) as server:
    client = _connect(server)
    assert (client.metadata, client.global_step, client.control_period) == (
      metadata,
      0,
      None,
    )
    observation = {"observation/state": np.array([1.0, 2.0]), "prompt": "reach"}
    for _ in range(2):
      client.reset()
      client.seed(3)
      action, outputs = client.sample_action(observation)
      assert action.tolist() == [1, 2]
      assert outputs["actions"].shape == (3, 2)
    with pytest.raises(errors.SpecError, match="expected a dictionary by the server's"):
      client.step(np.zeros(2))
    with pytest.raises(errors.SpecError, match=r"policy server: Traceback .* KeyError"):
      client.step({"prompt": "reach"})
    client.close()


@pytest.mark.parametrize(
  ("greeting", "message"),
  [
    ([1, 2], "the metadata of a policy server, got list"),
    ("hello", "expected a policy server, got: unpack: expected a msgpack message"),
  ],
)
def test_server_that_sends_no_metadata_is_named(greeting, message):
  with (
    OpenpiServer(greeting) as server,
    pytest.raises(ConnectionError, match=message),
  ):
    _connect(server)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"rename": {"image": "state/pose"}}, r"image: expected one of \[state/pos\], got"),
    ({"rename": {"a": "state/pos", "b": "state/pos"}}, "expected one name for a path"),
  ],
)
def test_wrong_names_are_refused(options, message):
  with (
    pytest.raises(errors.SpecError, match=f"serve: rename: {message}"),
    serving.PolicyServer(SumPolicy(), port=0, **options),
  ):
    pass


def test_action_that_the_policy_lacks_is_named():
  output = "actions=inference_outputs"
  with serving.PolicyServer(SumPolicy(), port=0, output=output) as server:
    client = _connect(server)
    with pytest.raises(
      errors.SpecError,
      match=r"serve: output: expected one of \[inference_output, seed\], got "
      r"'inference_outputs'. Did you mean 'inference_output'\? Start the server with",
    ):
      client.step(np.ones(2))
    client.close()


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
  "a ragged seed": (
    {**_FITS, "seed": [[1], [2, 3]]},
    "seed: expected a bool or .* list",
  ),
  "a ragged flag": (
    {**_FITS, "inspect": [[1], []]},
    "inspect: expected a bool or .*list",
  ),
  "a ragged timestamp": (
    {**_FITS, "nested": 1, "timestamp": [[1.0], [2.0, 3.0]]},
    r"timestamp: expected seconds, .*, got list \[\[1.0\], \[2.0, 3.0\]\]",
  ),
  "a timestamp of text": ({**_FITS, "timestamp": "now"}, "timestamp: expected seconds"),
  "a timestamp of NaN": ({**_FITS, "timestamp": np.nan}, "timestamp: .* got float nan"),
  "a path is missing": ({"pos": np.zeros(2)}, "state/pos: expected .* got nothing"),
  "another shape": ({"state/pos": np.zeros(3)}, r"state/pos: expected \(2,\), got \(3"),
}


@pytest.mark.parametrize("case", BAD)
def test_episode_continues_after_an_invalid_observation(server, case):
  observation, message = BAD[case]
  client = _connect(server)
  client.step({"state/pos": np.ones(2)})
  with pytest.raises(errors.SpecError, match=f"policy (server|client): .*{message}"):
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
  "an array of msgpack_numpy": (
    {
      "x": {
        b"nd": True,
        b"type": "<f8",
        b"kind": b"",
        b"shape": [1],
        b"data": b"12345678",
      }
    },
    "Encode arrays as openpi_client.msgpack_numpy or t2r_seq.serving.websocket.pack",
  ),
  "a ragged is_first": (
    {"is_first": [[True], [False, True]]},
    "serve: is_first: expected a bool or an int32, got list [[True], [False, True]]",
  ),
  "a ragged timestamp": (
    {"state": {"pos": [0.0, 1.0]}, "timestamp": [[1.0], [2.0, 3.0]]},
    "timestamp: expected seconds, one number for each of 1 environments, got list [[1",
  ),
  "an infinite timestamp": (
    {"state": {"pos": [0.0, 1.0]}, "timestamp": float("inf")},
    "got float inf",
  ),
  "a timestamp that is a dictionary": (
    {"state": {"pos": [0.0, 1.0]}, "timestamp": {"seconds": 1}},
    "got dict {'seconds': 1}",
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
      if isinstance(sent, dict):
        is_whole = b"__ndarray__" not in sent
        sent = msgpack.packb(sent if is_whole else {"x": sent})
      raw.send(sent)
      assert message in raw.recv()


def test_broken_step_ends_its_connection_alone(server):
  client, other = _connect(server), _connect(server)
  with pytest.raises(errors.SpecError, match="policy server: RuntimeError: a broken m"):
    client.step(np.array([-1.0, 0.0]))
  with pytest.raises(ConnectionError, match="The server has gone"):
    client.step(np.zeros(2))
  assert other.step(np.ones(2))["inference_output"].tolist() == [1, 1]
  other.close()


def test_slow_step_keeps_nobody_out():
  taken, goes_on = threading.Event(), threading.Event()

  class SlowPolicy(SumPolicy):
    def step(self, *step):
      taken.set()
      goes_on.wait(60)
      return super().step(*step)

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


def test_server_refuses_excess_clients_large_messages_and_http():
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


def test_silent_connections_make_room_for_clients():
  with serving.PolicyServer(
    SumPolicy(), port=0, max_clients=2, max_connections=6
  ) as server:
    first = _connect(server)
    with _silent(server.port, 40) as silent:
      second = _connect(server)
      assert _health(server) == b"OK\n"
      for client in (first, second):
        assert client.step(np.ones(2))["inference_output"].tolist() == [1, 1]
      with pytest.raises(ConnectionError, match="all 2 clients are there"):
        _connect(server)
      silent[0].settimeout(5)  # A handshake alone times out after 10 s.
      assert silent[0].recv(1) == b""  # The oldest one was closed.
    server.check()


def test_health_has_the_last_place_beside_the_clients():
  with (
    serving.PolicyServer(
      SumPolicy(), port=0, max_clients=1, max_connections=2
    ) as server,
    contextlib.closing(_connect(server)),
  ):
    assert [_health(server) for _ in range(20)] == [b"OK\n"] * 20


_FEW_FILES = """
import os, resource, sys
sys.path[:0] = sys.argv[1:]
from t2r_seq import serving
from test_websocket import SumPolicy
with serving.PolicyServer(SumPolicy(), port=0, max_connections=200) as server:
  most = len(os.listdir("/proc/self/fd")) + 40
  resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
  print(server.port, flush=True)
  sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it counts files in /proc")
def test_server_without_free_files_still_serves():
  here = os.path.dirname(__file__)
  root = os.path.dirname(os.path.dirname(here))
  with subprocess.Popen(
    [sys.executable, "-c", _FEW_FILES, root, here],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    port = int(process.stdout.readline())
    with _silent(port, 60):
      client = serving.PolicyClient(port=port)
      assert client.step(np.ones(2))["inference_output"].tolist() == [1, 1]
      client.close()
    _, log = process.communicate(timeout=30)
  assert "The server waits to accept connections: [Errno 24]" in log
  assert process.returncode == 0


def test_server_stops_within_two_seconds_of_silent_clients(server):
  request = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
  )
  with _silent(server.port, 20) as silent:
    for each in silent[:12]:  # 4 of them are too many, and do not answer to that.
      each.sendall(request.encode())
    assert all(each.recv(12) == b"HTTP/1.1 101" for each in silent[:12])
    start = time.monotonic()
    server.close()
    assert time.monotonic() - start < 2


@pytest.mark.skipif(sys.platform != "linux", reason="it finds the socket in /proc")
def test_server_that_no_longer_listens_reports_it(server):
  for number in map(int, os.listdir("/proc/self/fd")):
    with (
      contextlib.suppress(OSError),
      socket.socket(fileno=os.dup(number)) as found,
    ):
      is_server = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
      if is_server and found.getsockname()[1] == server.port:
        found.shutdown(socket.SHUT_RDWR)
  with pytest.raises(urllib.error.URLError):
    _health(server)
  with pytest.raises(OSError, match=r"serve: port \d+: expected a server that listens"):
    server.check()


@pytest.mark.parametrize(
  ("clients", "connections", "message"),
  [
    (8, 8, "max_connections: expected more than the 8 of max_clients, got 8"),
    (1 << 20, None, r"max_connections: expected more than the 1048576 .*`ulimit -n`"),
    (8, 1 << 30, r"max_connections: expected an integer of at most .*`ulimit -n`"),
    (0, None, "max_clients: expected an integer of at least 1, got 0"),
  ],
)
def test_numbers_of_connections_are_checked(clients, connections, message):
  with (
    pytest.raises(errors.SpecError, match=f"serve: {message}"),
    serving.PolicyServer(SumPolicy(), "localhost", 0, clients, connections),
  ):
    pass


def test_server_that_stops_in_an_episode_is_an_error_of_its_clients(server):
  client = _connect(server)
  client.step(np.ones(2))
  server.close()
  with pytest.raises(ConnectionError, match="expected an answer at step 1 of the epis"):
    client.step(np.ones(2))
  with pytest.raises(ConnectionError, match="expected a policy server, got"):
    _connect(server)


def test_unsupported_values_and_addresses_are_errors(server):
  with pytest.raises(
    errors.SpecError, match=r"pack: expected .* got: an array of object"
  ):
    websocket.pack({"x": np.array([None])})
  with pytest.raises(errors.SpecError, match="serve: address: expected 'localhost'"):
    serving.PolicyServer(SumPolicy(), "nowhere", 0)
  with pytest.raises(errors.SpecError, match="serve: port: expected one of 0 to 65535"):
    serving.PolicyServer(SumPolicy(), port=99999)
  with pytest.raises(OSError, match="in use"):
    serving.PolicyServer(SumPolicy(), port=server.port)


SENT = {
  "bfloat16": (
    np.array([1.5, 2], tf.bfloat16.as_numpy_dtype),
    np.array([1.5, 2], np.float32),
  ),
  "texts": (np.array(["ö", b"b"], object), np.array(["ö".encode(), b"b"])),
}


@pytest.mark.parametrize("case", SENT)
def test_arrays_are_converted_to_be_sent(case):
  sent, want = SENT[case]
  got = websocket.unpack(websocket.pack({"x": sent}))["x"]
  assert got.dtype == want.dtype
  np.testing.assert_array_equal(got, want)
