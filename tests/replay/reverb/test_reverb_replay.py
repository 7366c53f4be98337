"""The engine on a Reverb server: the contract of all engines, in both ways to store."""

from __future__ import annotations

import pytest

pytest.importorskip("reverb")

from t2r_seq.replay.reverb import ReplayServer, ReverbReplay
from tests.replay.engine_contract import EngineContract

_WINDOWS = ("sequence_length", "stride", "shift", "padding")
_SERVER = ("sampler", "remover", "rate_limiter", "max_times_sampled", "max_size")
_ENGINE = ("capacity_steps", "num_writers")


@pytest.fixture
def make_replay(request):
  """Makes a server in this process, and a replay of it."""
  store = getattr(request.cls, "store", "flat")
  made = []

  def make(spec_structure, **arguments):
    for name in _ENGINE:
      arguments.pop(name, None)
    windows = {name: arguments.pop(name) for name in _WINDOWS if name in arguments}
    options = {name: arguments.pop(name) for name in _SERVER if name in arguments}
    server = ReplayServer(spec_structure, store=store, **windows, **options)
    made.append(server)
    replay = ReverbReplay(
      spec_structure, server.address, store=store, **windows, **arguments
    )
    made.append(replay)
    return replay

  yield make
  for one in reversed(made):
    one.close()


class TestFlat(EngineContract):
  """The contract, with every step stored once."""


class TestStacked(EngineContract):
  """The contract, with windows stacked before they are sent."""

  store = "stacked"
