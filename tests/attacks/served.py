"""Policies at run time: silent and rude clients, NaN and infinity, flipped bits."""

from __future__ import annotations

import os
import random
import shutil
import socket
import time
import urllib.request
from typing import Any

import numpy as np

from t2r_seq import errors, lite, serving
from t2r_seq.lite import lite_policy, policy_io
from tests.attacks.cases import Attack

_MAX_STOP_SECONDS = 5.0  # Two, on a machine that is not busy.
_SPEC = {"pos": lite_policy.Leaf("pos", (2,), np.dtype(np.float32))}
_HANDSHAKE = (
  b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
  b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _packed(state: np.ndarray, spec: Any) -> dict[str, np.ndarray]:
  """Returns an observation of one environment in the dtypes of the policy."""
  return policy_io.pack({"state": state[np.newaxis]}, spec)


class _Sum:
  """Returns the sum of an episode's positions."""

  global_step, control_period = 0, None

  def step_specification(self) -> dict[str, lite_policy.Leaf]:
    return _SPEC

  def initial_state(self, seeds: Any = (0,)) -> policy_io.PolicyState:
    return policy_io.PolicyState({"sum": np.zeros([1, 2], np.float32)})

  def step(self, observation: Any, state: Any, is_first: bool = False) -> Any:
    given = observation["pos"]
    total = given if is_first else state.tensors["sum"] + given
    return {"inference_output": total}, policy_io.PolicyState({"sum": total})


class ConnectionAttack(Attack):
  """Connects and is silent, or rude, while a client acts."""

  kind = "connections"

  def _attack(self, rng: random.Random) -> list[str]:
    wrong = []
    max_clients = rng.randrange(1, 5)
    server = serving.PolicyServer(
      _Sum(),
      port=0,
      max_clients=max_clients,
      max_connections=max_clients + rng.randrange(2, 12),
    )
    others = []
    client = serving.PolicyClient(port=server.port)
    try:
      for step in range(1, 5):
        for _ in range(rng.randrange(15)):
          others.append(self._connect(server.port, rng))
        got = client.step({"pos": np.ones(2)})["inference_output"].tolist()
        if got != [step, step]:
          wrong.append(f"expected the sum {step}, got {got}")
      with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz") as answer:
        if answer.status != 200:
          wrong.append(f"healthz: {answer.status}")
      server.check()
    except (OSError, errors.SpecError) as error:
      wrong.append(f"the client: {error}")
    start = time.monotonic()
    server.close()
    if (took := time.monotonic() - start) > _MAX_STOP_SECONDS:
      wrong.append(f"stopping took {took:.1f} s")
    client.close()
    for each in others:
      each.close()
    self.counts["servers"] += 1
    self.counts["connections"] += len(others)
    return wrong

  def _connect(self, port: int, rng: random.Random) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    sent = rng.choice(
      [
        b"",
        _HANDSHAKE[: rng.randrange(len(_HANDSHAKE))],
        rng.randbytes(rng.randrange(200)),
        _HANDSHAKE,
        _HANDSHAKE + rng.randbytes(rng.randrange(200)),
      ]
    )
    try:
      connection.sendall(sent)
    except OSError:  # It was closed to make room.
      self.counts["closed"] += 1
    return connection


class _ExportAttack(Attack):
  """Has a small policy with a history, as an export and as a lite folder."""

  def __init__(self, *args: Any) -> None:
    super().__init__(*args)
    self._exports = os.path.join(self._folder, "exports")
    self._lite = os.path.join(self._folder, "lite")

  def run(self, number: int, count: int) -> None:
    """Runs so many cases."""
    if not os.path.exists(self._lite):
      self._say("at", "the export")
      from tests.attacks import trainers

      trainers.export(self._exports, self._lite)
    super().run(number, count)

  def _episode(self, rng: random.Random) -> np.ndarray:
    return np.random.default_rng(rng.randrange(1 << 30)).normal(size=(6, 2))


class NanAttack(_ExportAttack):
  """Gives steps that are not finite: they are refused, and the good ones are right."""

  kind = "nan"

  def __init__(self, *args: Any) -> None:
    super().__init__(*args)
    self._policies: dict[str, Any] = {}

  def _attack(self, rng: random.Random) -> list[str]:
    wrong = []
    if not self._policies:
      from t2r_seq import policies

      predictor = policies.ExportedSavedModelPredictor(self._exports, timeout=0)
      predictor.restore()
      self._policies["SavedModel"] = predictor.pure
      self._policies["LiteRT"] = lite.LitePolicy(self._lite).pure
    states = self._episode(rng)
    for name, policy in self._policies.items():
      state = clean = policy.initial_state()
      spec = policy.step_specification()
      for t, good in enumerate(states):
        if rng.random() < 0.5:
          bad = good.copy()
          bad[rng.randrange(2)] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e39])
          try:
            _, state = policy.step(_packed(bad, spec), state, t == 0)
            wrong.append(f"{name}: {bad} was taken at step {t}")
          except errors.SpecError as error:
            self.counts["refused"] += 1
            if "state: expected finite (2,) float32" not in str(error):
              wrong.append(f"{name}: {error}")
        got, state = policy.step(_packed(good, spec), state, t == 0)
        want, clean = policy.step(_packed(good, spec), clean, t == 0)
        if not np.array_equal(got["inference_output"], want["inference_output"]):
          wrong.append(f"{name}: another action at step {t}")
        self.counts["steps"] += 1
    return wrong


class BitAttack(_ExportAttack):
  """Flips bits of a lite folder: what loads acts as before."""

  kind = "bits"

  def _attack(self, rng: random.Random) -> list[str]:
    folder = os.path.join(self._folder, "flipped")
    shutil.copytree(self._lite, folder)
    name = rng.choice(sorted(os.listdir(folder)))
    path = os.path.join(folder, name)
    with open(path, "r+b") as f:
      data = bytearray(f.read())
      for _ in range(rng.choice([1, 1, 2, 8])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
      f.seek(0)
      f.write(data)
    try:
      states = self._episode(rng)
      got, want = (
        [policy.step({"state": state})["inference_output"] for state in states]
        for policy in (lite.LitePolicy(folder), lite.LitePolicy(self._lite))
      )
      self.counts["loaded"] += 1
      return [] if np.array_equal(got, want) else [f"{name}: other actions"]
    except errors.SpecError:
      self.counts["found"] += 1
      return []
    except Exception as error:
      return [f"{name}: {error!r}"]
    finally:
      shutil.rmtree(folder)
