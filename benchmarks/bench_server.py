"""A policy server beside openpi's loop: one policy in numpy, clients in a process.

Run it as `python -m benchmarks.bench_server [--rounds N] [--quick]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import msgpack
import numpy as np

from t2r_seq import serving
from t2r_seq.lite import policy_io
from t2r_seq.serving import websocket

OBSERVATIONS = {
  "image 224x224x3": ((224, 224, 3), np.dtype(np.uint8)),
  "8 floats": ((8,), np.dtype(np.float32)),
}
_SERVERS = ("openpi's loop", "PolicyServer")
_NUM_CLIENTS = (1, 8)


def _act(observation: np.ndarray) -> np.ndarray:
  return observation.ravel()[:8].astype(np.float32)


class Policy(policy_io.PurePolicy):
  """Returns the first eight numbers."""

  global_step, control_period = 0, None

  def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Creates the policy for one feature, 'x'."""
    self._spec = {"x": policy_io.Leaf("x", shape, dtype)}

  def step_specification(self) -> dict[str, policy_io.Leaf]:
    """Returns the spec of the feature."""
    return self._spec

  def initial_state(self, seeds: Sequence[int] = (0,)) -> policy_io.PolicyState:
    """Returns an empty state."""
    return policy_io.PolicyState({})

  def step(
    self, observation: Any, state: policy_io.PolicyState, is_first: Any = False
  ) -> tuple[dict[str, np.ndarray], policy_io.PolicyState]:
    """Returns the action."""
    return {"actions": _act(observation["x"])[np.newaxis]}, state


async def _serve_as_openpi() -> None:
  """Serves as openpi's `WebsocketPolicyServer`: one loop, which calls the policy."""
  from websockets.asyncio import server

  async def handle(connection: Any) -> None:
    packer = msgpack.Packer(default=websocket._encode)
    await connection.send(packer.pack({}))
    async for message in connection:
      observation = msgpack.unpackb(message, object_hook=websocket._decode)
      started = time.monotonic()
      outputs: dict[str, Any] = {"actions": _act(observation["x"])}
      milliseconds = 1000 * (time.monotonic() - started)
      outputs["server_timing"] = {"infer_ms": milliseconds}
      await connection.send(packer.pack(outputs))

  async with server.serve(
    handle, "127.0.0.1", 0, compression=None, max_size=None
  ) as listener:
    print(next(iter(listener.sockets)).getsockname()[1], flush=True)
    await listener.serve_forever()


def serve(name: str, observation: str) -> None:
  """Serves until the process is killed; prints the port."""
  if name == _SERVERS[0]:
    asyncio.run(_serve_as_openpi())
  with serving.PolicyServer(Policy(*OBSERVATIONS[observation]), port=0) as server:
    print(server.port, flush=True)
    sys.stdin.read()


def measure(port: int, observation: str, num_clients: int, num_steps: int) -> float:
  """Returns steps a second of all clients, which speak as openpi's."""
  from websockets.sync import client

  shape, dtype = OBSERVATIONS[observation]
  message = websocket.pack({"x": np.zeros(shape, dtype)})

  def run(_: int) -> None:
    with client.connect(
      f"ws://127.0.0.1:{port}", compression=None, max_size=None
    ) as connection:
      connection.recv()
      for _ in range(num_steps):
        connection.send(message)
        websocket.unpack(connection.recv())

  with futures.ThreadPoolExecutor(num_clients) as pool:
    list(pool.map(run, range(num_clients)))  # Warms up.
    started = time.perf_counter()
    list(pool.map(run, range(num_clients)))
  return num_clients * num_steps / (time.perf_counter() - started)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--quick", action="store_true", help="few steps")
  parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
  parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
  args = parser.parse_args(argv)
  if args.serve:
    serve(*args.serve)
    return ""
  if args.measure:
    port, observation, num_clients, num_steps = args.measure
    rate = measure(int(port), observation, int(num_clients), int(num_steps))
    print(json.dumps(rate))
    return ""
  lines = [
    f"| observation, clients | {_SERVERS[0]} | {_SERVERS[1]} | ratio |",
    "| --- | ---: | ---: | ---: |",
  ]
  for observation in OBSERVATIONS:
    for num_clients in _NUM_CLIENTS:
      num_steps = 20 if args.quick else 2000 // num_clients
      rates: dict[str, list[float]] = {name: [] for name in _SERVERS}
      for _ in range(1 if args.quick else args.rounds):
        for name in _SERVERS:
          rates[name].append(_run(name, observation, num_clients, num_steps))
      theirs, ours = (float(np.median(rates[name])) for name in _SERVERS)
      lines.append(
        f"| {observation}, {num_clients} | {theirs:,.0f} | {ours:,.0f} | "
        f"{ours / theirs:.2f} |"
      )
      print(lines[-1], flush=True)
  return "\n".join(lines)


def _run(name: str, observation: str, num_clients: int, num_steps: int) -> float:
  """Measures one server; server and clients are separate processes."""
  command = [sys.executable, "-m", "benchmarks.bench_server"]
  with subprocess.Popen(
    [*command, "--serve", name, observation],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as server:
    assert server.stdout is not None
    port = server.stdout.readline().strip()
    done = subprocess.run(
      [*command, "--measure", port, observation, str(num_clients), str(num_steps)],
      stdout=subprocess.PIPE,
      text=True,
      check=True,
    )
    server.kill()
  return float(json.loads(done.stdout))


if __name__ == "__main__":
  main()
