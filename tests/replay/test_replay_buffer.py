"""The in-process engine: the contract of all engines, and what is its own."""

from __future__ import annotations

import pytest

from t2r_seq import replay
from tests.replay.engine_contract import EngineContract


@pytest.fixture
def make_replay():
  made = []

  def make(spec_structure, **arguments):
    arguments.setdefault("capacity_steps", 200)
    made.append(replay.ReplayBuffer(spec_structure, seed=1, **arguments))
    return made[-1]

  yield make
  for buffer in made:
    buffer.close()


class TestReplayBuffer(EngineContract):
  """The contract."""
