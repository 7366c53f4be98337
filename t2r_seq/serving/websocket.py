"""Server and client of a policy for robots on another machine: websocket and msgpack.

The protocol is that of openpi (Physical Intelligence): the server sends its metadata;
then it answers each observation with outputs by name, or with a text if it fails.
TensorFlow is not imported here: a robot does not need it, and a server of a lite policy
only needs the interpreter.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import http
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from types import TracebackType
from typing import Any

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.lite import policy_io
from t2r_seq.serving import listening

IS_FIRST, SEED, INSPECT = "is_first", "seed", "inspect"
# A request for a chunk, while the client still executes the last one: observations
# since the last request, and the prefix of actions that the chunk continues.
OVERLAP, OBSERVATIONS, PREFIX = "overlap", "observations", "prefix"
PORT = 8000
ACTION = "inference_output"
# The output of openpi's servers: a chunk of actions, [steps, size].
_OPENPI_ACTIONS = "actions"
_NAME = "t2r_seq"
# Close codes of the websocket protocol.
_INTERNAL, _TRY_AGAIN = 1011, 1013
# Time for a client to confirm the end of its connection.
_CLOSE_SECONDS = 1.0
_SLACK_BYTES = 1 << 20
_LOG_EVERY_SECONDS = 60.0
# Faster steps run in the event loop: a thread would delay other clients more.
_FAST_SECONDS = 0.01


def make_packer() -> Any:
  """Returns an encoder for one thread; making one allocates a buffer, about 80 us."""
  return _msgpack().Packer(default=_encode)


def pack(value: Any, packer: Any = None) -> bytes:
  """Encodes dictionaries, lists, texts, numbers and arrays.

  Args:
    value: the message.
    packer: packer from `make_packer`; None for a new one.
  Returns:
    The message as bytes; see `unpack`.
  Raises:
    SpecError: the message has other objects.
  """
  try:
    return (packer or make_packer()).pack(value)
  except (OverflowError, TypeError, ValueError) as error:
    raise errors.SpecError(
      f"pack: expected texts, numbers and arrays of numbers, got: {error}"
    ) from error


def unpack(data: bytes) -> Any:
  """Decodes a message of `pack` or of openpi; arrays are read-only.

  Raises:
    SpecError: the data is not a message of `pack` or of openpi.
  """
  try:
    return _msgpack().unpackb(data, object_hook=_decode)
  except Exception as error:  # Damaged data raises nearly anything.
    raise errors.SpecError(
      f"unpack: expected a msgpack message, got {len(data)} bytes that cannot be read: "
      f"{error!r}"
    ) from error


def _encode(value: Any) -> Any:
  if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind not in "biufSU":
    value = _plain(value)
    if value.dtype.kind not in "biufSU":
      raise TypeError(f"an array of {value.dtype}")
  if isinstance(value, np.ndarray):
    return {
      b"__ndarray__": True,
      b"data": value.tobytes(),
      b"dtype": value.dtype.str,
      b"shape": value.shape,
    }
  if isinstance(value, np.generic):
    return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
  raise TypeError(f"a {type(value).__name__}")


def _plain(value: Any) -> Any:
  """Returns bfloat16 as float32, and arrays of text objects as bytes in UTF-8."""
  if value.dtype.name == "bfloat16":
    return value.astype(np.float32)
  if isinstance(value, np.ndarray) and value.dtype == object:
    texts = value.ravel().tolist()
    if texts and all(isinstance(text, (str, bytes)) for text in texts):
      encoded = [text.encode() if isinstance(text, str) else text for text in texts]
      return np.array(encoded).reshape(value.shape)
  return value


def _decode(value: dict[Any, Any]) -> Any:
  if b"__ndarray__" in value:
    return np.ndarray(value[b"shape"], _dtype(value), value[b"data"])
  if b"__npgeneric__" in value:
    return _dtype(value).type(value[b"data"])
  if b"nd" in value:
    raise ValueError(
      "an array in the format of the package msgpack_numpy. Encode arrays as "
      "openpi_client.msgpack_numpy or t2r_seq.serving.websocket.pack does"
    )
  return value


def _dtype(value: Mapping[Any, Any]) -> np.dtype:
  dtype = np.dtype(value[b"dtype"])
  # An array of objects would take its bytes for memory addresses.
  if dtype.kind not in "biufSU":
    raise ValueError(f"an array of {dtype}")
  return dtype


@functools.cache
def _msgpack() -> Any:
  return imports.load_extra("msgpack", "serve")


class PolicyServer:
  """Serves a policy: each connection is an environment with a separate state.

  An episode starts with a connection, and at each observation with `is_first`. A `seed`
  in an observation seeds the random numbers from this step on. If observations have a
  `timestamp`, in seconds, a warning in the log reports a rate unlike that of training.
  With `inspect`, the outputs include `inspection`; see `policy_io.Inspection`. A
  message `overlap` requests a whole chunk; see `lite.OverlappedPolicy`. A message that
  does not fit is answered with a text, and the episode continues.

  One event loop, in a thread, serves all connections. A policy whose last step took
  less than 10 ms steps inside of it; a slower one steps in another thread.

  Attributes:
    port: port that it listens at.
  """

  def __init__(
    self,
    policy: Any,
    address: str = listening.LOOPBACK,
    port: int = PORT,
    max_clients: int = 8,
    max_connections: int | None = None,
    rename: Mapping[str, str] | None = None,
    output: str = "",
  ) -> None:
    """Starts the server.

    Args:
      policy: a predictor with a model, a `lite.LitePolicy`, or another
        `policy_io.PurePolicy`, whose `describe()` and `inspect(...)` are optional.
      address: 'localhost' for clients on this machine only; one of the machine's
        addresses; or '0.0.0.0' for all of them. There is no authentication.
      port: port to listen at; 0 for any free one.
      max_clients: clients at the same time; further ones are refused.
      max_connections: open connections, including silent ones; the oldest silent one
        is closed for a new one. None: 64 more than clients, or fewer if the limit of
        open files requires it.
      rename: the policy's paths by the names that clients use for them.
      output: second name of the action in the answers: 'NAME', or 'NAME=OUTPUT' if the
        action is not 'inference_output'; '' for none. There the action has an axis of
        steps, [steps, size], as 'actions' of openpi's servers.
    Raises:
      SpecError: the address, the port, a name in `rename` or a number of clients or
        connections is invalid.
      OSError: the address is in use, or is not this machine's.
      ImportError: a package is missing; names the extra.
    """
    _msgpack()
    self._websockets = imports.load_extra("websockets.asyncio.server", "serve")
    self._closed = imports.load_extra("websockets.exceptions", "serve").ConnectionClosed
    listening.check_address("serve: address", address)
    listening.check_port("serve: port", port)
    self._max_connections = listening.check_max_connections(
      "serve", max_clients, max_connections
    )
    self._max_clients = max_clients
    self._policy = policy = getattr(policy, "pure", policy)
    spec = policy.step_specification()
    stamps = {
      f"{policy_io.STAMPS}/{name}": f"{policy_io.STAMPS}/{path}"
      for name, path in (rename or {}).items()
      if f"{policy_io.STAMPS}/{path}" in spec
    }
    self._rename = _check_rename({**stamps, **(rename or {})}, spec)
    self._output, _, action = output.partition("=")
    self._action = action or ACTION
    names = {path: name for name, path in self._rename.items()}
    leaves = {
      names.get(path, path): (leaf.shape, np.dtype(_numpy(leaf.dtype)))
      for path, leaf in spec.items()
    }
    description = policy.describe() if hasattr(policy, "describe") else {}
    self._metadata = pack(
      {
        "server": _NAME,
        "global_step": policy.global_step,
        "observation": {
          name: {"shape": list(shape), "dtype": dtype.name}
          for name, (shape, dtype) in leaves.items()
        },
        **description,
      }
    )
    # Clients may send wider dtypes, such as float64, unneeded entries, and observations
    # of a whole history at once.
    num_bytes = sum(np.prod(shape) * dtype.itemsize for shape, dtype in leaves.values())
    depth = policy_io.history_depth(description.get("record"))
    self._max_size = _SLACK_BYTES + 4 * depth * int(num_bytes)
    host = "127.0.0.1" if address == listening.LOOPBACK else address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    self._socket = socket.create_server((host, port), family=family)
    self.port: int = self._socket.getsockname()[1]
    # Whether a connection is a client, the oldest first. Others may be closed.
    self._is_client: dict[Any, bool] = {}
    self._is_fast, self._logged = False, -_LOG_EVERY_SECONDS
    started: futures.Future[None] = futures.Future()
    self._thread = threading.Thread(
      target=lambda: asyncio.run(self._serve(started)), name="serve"
    )
    self._thread.start()
    started.result()

  def check(self) -> None:
    """Checks that clients can connect.

    Raises:
      OSError: the server has stopped listening because of an error.
    """
    if not self._is_listening():
      raise OSError(
        f"serve: port {self.port}: expected a server that listens, got a socket that "
        "does not. Start it again."
      )

  def close(self) -> None:
    """Stops listening, and closes all connections; waits for steps in progress."""
    with contextlib.suppress(RuntimeError):  # The loop is closed already.
      self._loop.call_soon_threadsafe(self._stop.set)
    self._thread.join()

  def __enter__(self) -> PolicyServer:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
  ) -> None:
    self.close()

  async def _serve(self, started: futures.Future[None]) -> None:
    """Serves until `close`; sets `started` when clients can connect."""
    server, base = self, self._websockets.ServerConnection

    class Connection(base):  # type: ignore[misc, valid-type]
      """Reports when it opens, before the handshake, and when it is closed."""

      def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        server._admit(self)

      def connection_lost(self, error: Exception | None) -> None:
        server._is_client.pop(self, None)
        super().connection_lost(error)

    self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
    self._step_lock = asyncio.Lock()
    self._loop.set_exception_handler(self._on_loop_error)
    try:
      listener = await self._websockets.serve(
        self._serve_client,
        sock=self._socket,
        create_connection=Connection,
        origins=[None],  # A web page must not be able to move a robot.
        compression=None,
        max_size=self._max_size,
        max_queue=1,
        close_timeout=_CLOSE_SECONDS,
        process_request=_healthz,
        server_header=None,
      )
    except BaseException as error:
      started.set_exception(error)
      return
    started.set_result(None)
    await self._stop.wait()
    self._abort_idle(len(self._is_client))
    listener.close()
    await listener.wait_closed()

  def _admit(self, connection: Any) -> None:
    """Counts a new connection; closes the oldest idle one if there are too many."""
    self._is_client[connection] = False
    if self._stop.is_set():
      connection.transport.abort()
    elif len(self._is_client) > self._max_connections:
      self._abort_idle(1)

  def _abort_idle(self, count: int) -> None:
    """Closes the oldest connections that are not clients."""
    idle = [each for each, is_client in self._is_client.items() if not is_client]
    for connection in idle[:count]:
      del self._is_client[connection]
      connection.transport.abort()

  def _is_listening(self) -> bool:
    try:
      return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
      return False

  def _on_loop_error(
    self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
  ) -> None:
    """Closes connections if the system accepts no more; asyncio retries in a second."""
    if not self._is_listening():
      loop.remove_reader(self._socket)  # Otherwise the error repeats at once.
    if "socket" not in context:
      loop.default_exception_handler(context)
      return
    if time.monotonic() - self._logged >= _LOG_EVERY_SECONDS:
      self._logged = time.monotonic()
      logging.warning(
        "The server waits to accept connections: %s.", context.get("exception")
      )
    self._abort_idle(1 + len(self._is_client) // 2)

  async def _serve_client(self, connection: Any) -> None:
    if sum(self._is_client.values()) >= self._max_clients:
      await connection.close(_TRY_AGAIN, f"all {self._max_clients} clients are there")
      return
    self._is_client[connection] = True
    name = f"serve: {connection.remote_address}"
    policy, packer = policy_io.StatefulPolicy(self._policy, name), make_packer()
    latest: list[Any] = []  # The arguments of `plan_one`, at most one item.
    try:
      await connection.send(self._metadata)
      async for message in connection:
        await connection.send(await self._answer(policy, message, packer, latest))
    except self._closed:
      pass  # Clients may disconnect at any time.
    except Exception as error:
      logging.exception("A step of a served policy failed.")
      await connection.send(f"{type(error).__name__}: {error}")
      await connection.close(_INTERNAL)
    finally:
      if connection in self._is_client:
        self._is_client[connection] = False

  async def _answer(
    self,
    policy: policy_io.StatefulPolicy,
    message: str | bytes,
    packer: Any,
    latest: list[Any],
  ) -> str | bytes:
    """Returns the outputs of a step or a plan, or the text of an error."""
    try:
      request = _observation(message)
      if OVERLAP in request:
        return await self._plan(policy, _overlap(request[OVERLAP]), packer, latest)
      observation = self._rename_paths(request)
      is_first = bool(_number(observation, IS_FIRST))
      seed = _number(observation, SEED, None)
      inspects = bool(_number(observation, INSPECT))
      if seed is not None:
        policy.seed(seed)
      extra: dict[str, Any] = {}
      if inspects:
        if not hasattr(self._policy, "inspect"):
          raise errors.SpecError(
            f"serve: {INSPECT}: expected a policy with `inspect`, got a "
            f"{type(self._policy).__name__}."
          )
        inspection, _ = await self._call(policy.inspect_one, observation, is_first)
        extra["inspection"] = dataclasses.asdict(inspection)
      outputs, seconds = await self._call(policy.step_one, observation, is_first)
      extra["server_timing"] = {"infer_ms": 1000 * seconds}
      return pack({**self._with_actions(outputs), **extra}, packer)
    except errors.SpecError as error:
      return f"{error}{self._hint(str(error))}"

  async def _plan(
    self,
    policy: policy_io.StatefulPolicy,
    request: dict[str, Any],
    packer: Any,
    latest: list[Any],
  ) -> bytes:
    """Adds observations to the history, and returns the chunk of the last one."""
    for each in request[OBSERVATIONS]:
      observation = self._rename_paths(each)
      is_first = bool(_number(observation, IS_FIRST))
      seed = _number(observation, SEED, None)
      if seed is not None:
        policy.seed(seed)
      arguments, _ = await self._call(policy.observe_one, observation, is_first)
      latest[:] = [arguments]
    if not latest:
      raise errors.SpecError(
        f"serve: {OVERLAP}: expected an observation in the first request, got none."
      )
    prefix = request[PREFIX]
    if prefix is not None:
      prefix = policy_io.Prefix(**prefix)
    outputs, seconds = await self._call(policy.plan_one, latest[0], prefix)
    timing = {"server_timing": {"infer_ms": 1000 * seconds}}
    return pack({**self._with_actions(outputs), **timing}, packer)

  async def _call(self, function: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """Calls the policy, one call at a time; returns the result and its seconds."""
    started = time.perf_counter()
    if self._is_fast and not self._step_lock.locked():
      result = function(*args)
    else:
      async with self._step_lock:
        started = time.perf_counter()
        result = await self._loop.run_in_executor(None, function, *args)
    seconds = time.perf_counter() - started
    self._is_fast = seconds < _FAST_SECONDS
    return result, seconds

  def _rename_paths(self, observation: dict[str, Any]) -> dict[str, Any]:
    """Returns an observation by the policy's paths, from one by clients' names."""
    if not self._rename:
      return observation
    flat = policy_io.flatten_observation(observation)
    return {self._rename.get(name, name): value for name, value in flat.items()}

  def _hint(self, message: str) -> str:
    """Returns sentences with the clients' names of the paths in an error message."""
    renamed = [
      f" A client names {path} '{name}'."
      for name, path in self._rename.items()
      if f"{path}: expected" in message
    ]
    return "".join(renamed)

  def _with_actions(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns outputs, with the action also under its second name."""
    if not self._output:
      return outputs
    if self._action not in outputs:
      raise errors.SpecError(
        f"serve: output: expected one of {errors.listing(outputs)}, got "
        f"'{self._action}'.{errors.nearest(self._action, outputs)} Start the server "
        f"with output='{self._output}=OUTPUT'."
      )
    return {**outputs, self._output: np.atleast_2d(outputs[self._action])}


class PolicyClient:
  """A policy whose steps run in a server; `t2r_seq.actors` take it like any other.

  The server is a `PolicyServer`, or one of openpi, whose names of observations differ,
  and whose outputs are chunks, [steps, size]: `sample_action` returns the first action.

  Attributes:
    metadata: the server's description of itself and its policy.
  """

  def __init__(
    self,
    host: str = listening.LOOPBACK,
    port: int = PORT,
    action_key: str | None = None,
    timeout: float = 10.0,
  ) -> None:
    """Connects.

    Args:
      host: host name of the server.
      port: port of the server.
      action_key: the output that `sample_action` returns; None for 'inference_output',
        or for 'actions' of an openpi server.
      timeout: seconds to wait for a connection, and for each answer.
    Raises:
      ConnectionError: there is no policy server, or it is full.
      ImportError: a package is missing; names the extra.
    """
    _msgpack()
    client = imports.load_extra("websockets.sync.client", "serve")
    closed = imports.load_extra("websockets.exceptions", "serve").WebSocketException
    self._failures = (closed, OSError, EOFError)  # A TimeoutError is an OSError.
    self._place = f"ws://{host}:{port}"
    self._packer = make_packer()
    self._timeout = timeout
    self._is_first, self._num_steps = True, 0
    self._seed: int | None = None
    self._watch = policy_io.RateWatch(None)
    self._num_observed = self._num_sent = 0
    self._failure = ""
    self._open = contextlib.ExitStack()
    try:
      self._connection = self._open.enter_context(
        client.connect(
          self._place, open_timeout=timeout, compression=None, max_size=None
        )
      )
      self.metadata = unpack(self._connection.recv(timeout))
    except (*self._failures, errors.SpecError) as error:
      self.close()
      raise ConnectionError(
        f"policy client: {self._place}: expected a policy server, got: {error}. Is "
        "`t2r_seq serve` running, and has it room?"
      ) from error
    if not isinstance(self.metadata, dict):
      self.close()
      raise ConnectionError(
        f"policy client: {self._place}: expected the metadata of a policy server, got "
        f"{errors.describe(self.metadata)}."
      )
    self._is_t2r_seq = self.metadata.get("server") == _NAME
    depth = policy_io.history_depth(self.metadata.get("record"))
    self._latest: collections.deque[Any] = collections.deque(maxlen=depth)
    self._action_key = action_key or (ACTION if self._is_t2r_seq else _OPENPI_ACTIONS)
    self._watch = policy_io.RateWatch(
      self.control_period, f"policy client: {self._place}"
    )

  @property
  def global_step(self) -> int:
    """The training step of the model; 0 if the server does not send it."""
    return int(self.metadata.get("global_step", 0))

  @property
  def model_path(self) -> str:
    """The address of the server."""
    return self._place

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if known."""
    return (self.metadata.get("record") or {}).get("control_period")

  @property
  def is_timed(self) -> bool:
    """Whether the policy finds its history by time stamps, so that any rate fits."""
    return policy_io.has_stamps(self.metadata.get("observation", {}))

  def step(self, observation: Any) -> dict[str, np.ndarray]:
    """Sends an observation by path; returns outputs by name.

    If it has a `timestamp`, in seconds, a rate unlike that of training gives a warning.

    Raises:
      SpecError: the observation does not fit the server's policy.
      ConnectionError: the server does not answer; the episode is lost.
    """
    outputs = self._ask(self._message(observation))
    self._is_first, self._seed = False, None
    self._num_steps += 1
    return outputs

  def _ask(self, message: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sends a message; returns the answer."""
    if self._failure:
      raise ConnectionError(self._failure)
    try:
      self._connection.send(pack(message, self._packer))
      answer = self._connection.recv(self._timeout)
    except self._failures as error:
      # A late answer would be taken for that of the next request.
      self._failure = (
        f"policy client: {self._place}: expected an answer at step {self._num_steps} "
        f"of the episode, got: {error}. The server has gone, and the state of the "
        "episode, too: connect again, and start an episode."
      )
      raise ConnectionError(self._failure) from error
    if isinstance(answer, str):
      raise errors.SpecError(f"policy server: {answer}")
    return unpack(answer)

  def describe(self) -> dict[str, Any]:
    """Returns the server's description of its policy."""
    return self.metadata

  def start_episode(self) -> None:
    """Starts an episode; see `reset`."""
    self.reset()

  def observe_one(self, observation: Any) -> list[tuple[int, dict[str, Any]]]:
    """Keeps an observation for the next request; for an `OverlappedPolicy`.

    Returns:
      The arguments of `plan_one`: (number, message) of the latest observations, as many
      as the policy's history has.
    """
    message = {
      path: np.array(value) if isinstance(value, np.ndarray) else value
      for path, value in self._message(observation).items()
    }
    self._is_first, self._seed = False, None
    self._num_observed += 1
    self._num_steps += 1
    self._latest.append((self._num_observed, message))
    return list(self._latest)

  def plan_one(
    self, arguments: Any, prefix: policy_io.Prefix | None = None
  ) -> dict[str, np.ndarray]:
    """Sends observations since the last request; returns a whole chunk.

    Raises as `step` does.

    Args:
      arguments: what `observe_one` returned last.
      prefix: what the chunk continues, or None; see `policy_io.PurePolicy.plan`.
    """
    new = [message for number, message in arguments if number > self._num_sent]
    continued = None if prefix is None else prefix._asdict()
    outputs = self._ask({OVERLAP: {OBSERVATIONS: new, PREFIX: continued}})
    self._num_sent = arguments[-1][0]
    return outputs

  def _message(self, observation: Any) -> dict[str, Any]:
    """Returns the message for an observation."""
    spec = self.metadata.get("observation", {})
    if not isinstance(observation, Mapping):
      if not spec:
        raise errors.SpecError(
          f"policy client: {self._place}: expected a dictionary by the server's names, "
          f"got {errors.describe(observation)}. A server that is not t2r_seq's does "
          "not list them."
        )
      observation = {next(iter(spec)): observation}
    message = dict(observation)
    if policy_io.timestamp_of(observation, spec) is not None:
      self._watch.see(message.pop(policy_io.TIMESTAMP), self._is_first)
    if self._is_t2r_seq:
      message[IS_FIRST] = self._is_first
      if self._seed is not None:
        message[SEED] = self._seed
    return message

  def reset(self) -> None:
    """Starts an episode: the next observation is its first."""
    self._is_first, self._num_steps = True, 0
    self._latest.clear()

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the policy's random numbers repeatable from the next step on."""
    del env
    self._seed = seed

  def sample_action(
    self, obs: Any, explore_prob: float = 0.0
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns the action for an observation, and all outputs; raises as `step` does."""
    del explore_prob
    outputs = self.step(obs)
    if self._action_key not in outputs:
      raise errors.SpecError(
        f"policy client: action_key: expected one of {errors.listing(outputs)}, got "
        f"'{self._action_key}'."
      )
    action = outputs[self._action_key]
    if not self._is_t2r_seq and np.ndim(action) > 1:
      action = action[0]
    return action, outputs

  def sample_actions(
    self, observations: Any, is_first: Any, explore_prob: float = 0.0
  ) -> tuple[list[np.ndarray], list[dict[str, np.ndarray]]]:
    """Returns the action and the outputs for a batch of one environment.

    Raises:
      SpecError: there are several environments, which need a connection each.
      ConnectionError: see `step`.
    """
    if np.size(is_first) != 1:
      raise errors.SpecError(
        f"policy client: {self._place}: expected one environment, got "
        f"{np.size(is_first)}. A connection is one: make a client for each."
      )
    if np.all(is_first):
      self.reset()
    if isinstance(observations, Mapping):
      flat = policy_io.flatten_observation(observations)
      alone: Any = {path: value[0] for path, value in flat.items()}
    else:
      alone = observations[0]
    action, outputs = self.sample_action(alone, explore_prob)
    return [action], [outputs]

  def restore(self) -> bool:
    """Returns True: the server chooses the model."""
    return True

  def close(self) -> None:
    """Ends the connection."""
    self._open.close()


def _observation(message: str | bytes) -> dict[str, Any]:
  """Decodes a client's message; raises SpecError if it is not a dictionary by path."""
  if isinstance(message, str):
    raise errors.SpecError(
      "serve: expected an observation as msgpack, got a text. Send bytes."
    )
  observation = unpack(message)
  if not isinstance(observation, dict) or not all(
    isinstance(path, str) for path in observation
  ):
    raise errors.SpecError(
      f"serve: expected a dictionary by path, got {type(observation).__name__}."
    )
  return observation


def _overlap(request: Any) -> dict[str, Any]:
  """Returns a request for a chunk; raises SpecError if its form is wrong."""
  names = {OBSERVATIONS, PREFIX}
  if not isinstance(request, dict) or request.keys() != names:
    got = f"one of {[*request]}" if isinstance(request, dict) else repr(request)
    raise errors.SpecError(
      f"serve: {OVERLAP}: expected a dictionary of {errors.listing(names)}, got {got}."
    )
  observations, prefix = request[OBSERVATIONS], request[PREFIX]
  if not isinstance(observations, list) or not all(
    isinstance(each, dict) and all(isinstance(path, str) for path in each)
    for each in observations
  ):
    raise errors.SpecError(
      f"serve: {OBSERVATIONS}: expected a list of dictionaries by path, got "
      f"{type(observations).__name__}."
    )
  fields = policy_io.Prefix._fields
  if prefix is not None and (not isinstance(prefix, dict) or {*prefix} != {*fields}):
    raise errors.SpecError(
      f"serve: {PREFIX}: expected nil, or a dictionary of {errors.listing(fields)}, "
      f"got {type(prefix).__name__}."
    )
  return request


def _check_rename(rename: dict[str, str], spec: Mapping[str, Any]) -> dict[str, str]:
  """Returns the policy's paths by clients' names.

  Raises:
    SpecError: a path is unknown, or has two names.
  """
  for name, path in rename.items():
    if path not in spec:
      raise errors.SpecError(
        f"serve: rename: {name}: expected one of {errors.listing(spec)}, got '{path}'."
        f"{errors.nearest(path, spec)}"
      )
  if len({*rename.values()}) < len(rename):
    raise errors.SpecError(
      f"serve: rename: expected one name for a path, got {rename}."
    )
  return rename


def _number(observation: dict[str, Any], name: str, default: int | None = 0) -> Any:
  """Removes an integer or a bool from an observation, and returns it.

  Raises:
    SpecError: the value is neither an integer nor a bool.
  """
  given = observation.pop(name, default)
  if given is None or given is default or isinstance(given, bool):
    return given
  try:
    value: Any = np.asarray(given)
  except ValueError:  # A ragged list.
    value = np.asarray(None)
  if value.size != 1 or value.dtype.kind not in "biu" or abs(value.item()) >= 1 << 31:
    raise errors.SpecError(
      f"serve: {name}: expected a bool or an int32, got "
      f"{errors.describe(value if value.dtype != object else given)}."
    )
  return int(value.item())


def _numpy(dtype: Any) -> Any:
  return getattr(dtype, "as_numpy_dtype", dtype)


def _healthz(connection: Any, request: Any) -> Any:
  """Answers health checks."""
  if request.path == "/healthz":
    return connection.respond(http.HTTPStatus.OK, "OK\n")
  return None
