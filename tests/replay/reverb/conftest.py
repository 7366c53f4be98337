"""Servers for the tests, in one process of their own: starting one takes seconds.

In this process they would not be the real thing: Reverb's clients read the tables of
their own process directly, without gRPC.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from t2r_seq import errors

# This folder is for the environment with Reverb; elsewhere only what needs none.
if importlib.util.find_spec("reverb") is None:
  collect_ignore_glob = ["test_reverb_*.py"]


def host_servers(connection: Any) -> None:
  """Makes and closes servers as it is told."""
  os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
  from t2r_seq.replay.reverb import ReplayServer

  servers: dict[str, Any] = {}
  while True:
    request = connection.recv()
    try:
      if request is None:
        break
      if isinstance(request, str):
        servers.pop(request).close()
        connection.send(None)
      else:
        spec_structure, arguments = request
        server = ReplayServer(spec_structure, **arguments)
        servers[server.address] = server
        connection.send(server.address)
    except Exception as error:
      connection.send(error)
  for server in servers.values():
    server.close()


class ServerHost:
  """Makes servers in another process."""

  def __init__(self, context: Any) -> None:
    self._connection, theirs = context.Pipe()
    self._process = context.Process(target=host_servers, args=(theirs,), daemon=True)
    self._process.start()

  def ask(self, request: Any) -> Any:
    """Passes a request on; raises what it raises there."""
    self._connection.send(request)
    answer = self._connection.recv()
    if isinstance(answer, Exception):
      raise answer
    return answer

  def close(self) -> None:
    """Ends the process."""
    self._connection.send(None)
    self._process.join(20)


@pytest.fixture(scope="session")
def server_host(fork_context: Any) -> Iterator[ServerHost]:
  """The process."""
  host = ServerHost(fork_context)
  yield host
  host.close()


@pytest.fixture
def serve(server_host: ServerHost) -> Iterator[Callable[..., str]]:
  """Returns a function of `ReplayServer`'s arguments that returns an address."""
  addresses = []

  def make(spec_structure: Any, **arguments: Any) -> str:
    addresses.append(server_host.ask((spec_structure, arguments)))
    return addresses[-1]

  yield make
  for address in addresses:
    server_host.ask(address)


def serve_until_killed(spec_structure: Any, arguments: Any, connection: Any) -> None:
  """Serves; tells the address, and writes a checkpoint whenever it is asked to."""
  from t2r_seq.replay.reverb import ReplayServer

  with ReplayServer(spec_structure, **arguments) as server:
    connection.send(server.address)
    while connection.recv():
      try:
        connection.send(server.checkpoint())
      except errors.ReplayError as error:
        connection.send(error)


class KillableServer:
  """A server in a process of its own, which comes back at the same port.

  Attributes:
    address: of the server.
  """

  def __init__(self, context: Any, spec_structure: Any, **arguments: Any) -> None:
    self._context = context
    self._spec = spec_structure
    self._arguments = {"port": None, **arguments}
    self.start()

  def start(self, spec_structure: Any = None) -> None:
    """Starts it; of the same specs, or others."""
    self._connection, theirs = self._context.Pipe()
    arguments = (spec_structure or self._spec, self._arguments, theirs)
    self._process = self._context.Process(
      target=serve_until_killed, args=arguments, daemon=True
    )
    self._process.start()
    theirs.close()
    self.address = self._connection.recv()
    self._arguments["port"] = int(self.address.rpartition(":")[2])

  def checkpoint(self) -> str:
    """Has it write a checkpoint; raises what it raises there."""
    self._connection.send(True)
    answer = self._connection.recv()
    if isinstance(answer, Exception):
      raise answer
    return answer

  @property
  def pid(self) -> int:
    """The process."""
    return self._process.pid

  def kill(self) -> None:
    """Kills it at once, as no server expects it."""
    self._process.kill()
    self._process.join()


@pytest.fixture(scope="session")
def fork_context() -> Any:
  """Starts processes that have imported the library by then: in no time."""
  context = multiprocessing.get_context("forkserver")
  context.set_forkserver_preload(["t2r_seq.replay.reverb"])
  return context


@pytest.fixture
def make_killable(fork_context: Any) -> Iterator[Callable[..., KillableServer]]:
  """Returns a function of `ReplayServer`'s arguments that returns a server."""
  servers = []

  def make(spec_structure: Any, **arguments: Any) -> KillableServer:
    servers.append(KillableServer(fork_context, spec_structure, **arguments))
    return servers[-1]

  yield make
  for server in servers:
    server.kill()
