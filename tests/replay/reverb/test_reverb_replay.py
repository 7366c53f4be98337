"""The engine on a Reverb server: the contract of all engines."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.replay.reverb import ReverbReplay
from t2r_seq.specs import ExtendedTensorSpec as Spec
from tests.replay.engine_contract import EngineContract

_WINDOWS = ("sequence_length", "stride", "shift", "padding", "n_step")
_SERVER = ("sampler", "remover", "rate_limiter", "max_times_sampled", "max_size")
_IN_PROCESS = ("capacity_steps", "num_writers")


@pytest.fixture
def make_replay(serve):
  """Makes a server, and a replay of it."""
  made = []

  def make(spec_structure, **arguments):
    for name in _IN_PROCESS:
      arguments.pop(name, None)
    windows = {name: arguments.pop(name) for name in _WINDOWS if name in arguments}
    options = {name: arguments.pop(name) for name in _SERVER if name in arguments}
    address = serve(spec_structure, **windows, **options)
    made.append(ReverbReplay(spec_structure, address, **windows, **arguments))
    return made[-1]

  yield make
  for each in made:
    each.close()


def test_closing_reports_items_of_an_unfinished_batch(serve):
  spec = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  address = serve(spec, sampler=replay.Fifo(), max_times_sampled=1)
  client = ReverbReplay(spec, address, timeout=0.5)
  with client.writer() as writer:
    for x in range(4):
      writer.append({"x": x})
  with (
    pytest.raises(
      errors.ReplayTimeoutError, match=r"of the unfinished batch .* are lost"
    ),
    client.explain_failures(),
  ):
    next(iter(client.dataset(5)))
  assert client.counters.num_items == 0


def test_open_datasets_continue_after_close(serve):
  spec = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  address = serve(spec, sampler=replay.Fifo(), max_times_sampled=1)
  client = ReverbReplay(spec, address, timeout=20)
  writer, dataset = client.writer(), client.dataset(1)
  iterator = iter(dataset)
  client.close()
  with pytest.raises(errors.ReplayError, match=r"^counters: expected an open replay, "):
    client.counters  # noqa: B018
  for x in range(4):
    writer.append({"x": x})
  writer.end_episode()
  got = {int(next(iterator)["x"][0]) for _ in range(2)}
  assert got == {0, 1}
  writer.append({"x": 4})
  writer.close()
  with ReverbReplay(spec, address) as other:
    assert other.counters.num_inserts == 5


def test_reverb_writer_lead_does_not_warn(serve, capfd):
  spec = {"x": Spec((2, 16_384), tf.uint8, "x", time_offsets=(-1, 0))}
  frames = np.random.default_rng(0).integers(0, 256, (8, 16_384), np.uint8)
  client = ReverbReplay(spec, serve(spec))
  with client.writer() as writer:
    for t in range(2000):
      writer.append({"x": frames[t % 8]})
  assert "pending items" not in capfd.readouterr().err


class TestReverb(EngineContract):
  """The contract."""
