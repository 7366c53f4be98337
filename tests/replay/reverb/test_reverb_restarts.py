"""A server that is killed in the middle: readers and writers wait, and go on."""

from __future__ import annotations

import re
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs
from t2r_seq.replay.reverb import client as client_lib
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.training.stopping import Interruptible
from tests.replay.reverb.full_windows import ReverbReplay

# Each step is (episode, t), and a window shows three.
SPEC = specs.TensorSpecStruct(
  x=Spec((3, 2), tf.int64, "x", time_offsets=(-2, -1, 0)),
)
OTHER = specs.TensorSpecStruct(
  x=Spec((2, 2), tf.int64, "x", time_offsets=(-1, 0)),
)
EPISODE = 6


def step(episode, t):
  return {"x": np.array([episode, t], np.int64)}


def check_windows(x):
  """Whole windows, of one episode each."""
  assert x.shape[1:] == (3, 2)
  assert (np.diff(x, axis=1) == [0, 1]).all()


class Actor(threading.Thread):
  """Writes an episode for each permission, from its own thread."""

  def __init__(self, client):
    super().__init__(daemon=True)
    self.episodes = 0
    self.error = None
    self._client = client
    self._permissions = threading.Semaphore(4)
    self._is_stopping = False
    self.start()

  def permit(self):
    self._permissions.release()

  def stop(self):
    self._is_stopping = True
    self.permit()
    self.join(60)
    assert not self.is_alive()
    assert self.error is None

  def run(self):
    try:
      with self._client.writer() as writer:
        while self._permissions.acquire() and not self._is_stopping:
          for t in range(EPISODE):
            writer.append(step(self.episodes, t))
          writer.end_episode()
          self.episodes += 1
    except Exception as error:
      self.error = error


def test_reader_and_writer_continue_after_two_kills(make_killable, tmp_path):
  server = make_killable(
    SPEC, padding="drop", checkpoint_dir=str(tmp_path), max_size=200
  )
  client = ReverbReplay(SPEC, server.address, server_timeout=60)
  actor = Actor(client)
  batches = iter(client.dataset(4))

  def read_until(episode):
    while True:
      x = next(batches)["x"].numpy()
      check_windows(x)
      actor.permit()
      if x[:, 0, 0].max() >= episode:
        return

  read_until(3)
  for _ in range(2):
    inserts = client.counters.num_inserts
    client.checkpoint()
    server.kill()
    newest = actor.episodes
    server.start()
    assert client.counters.num_inserts >= inserts  # Begins at 0 without its past.
    read_until(newest + 2)
  actor.stop()


def test_restart_restores_checkpointed_items(make_killable, tmp_path):
  server = make_killable(
    SPEC,
    padding="drop",
    checkpoint_dir=str(tmp_path),
    sampler=replay.Fifo(),
    max_times_sampled=1,
  )
  client = ReverbReplay(SPEC, server.address, server_timeout=60, timeout=20)

  with client.writer() as writer:
    for t in range(5):
      writer.append(step(0, t))
    writer._flush("insert", 0)
    client.checkpoint()
    writer.append(step(0, 5))
    # The server has it, and its checkpoint has not. What a server has not confirmed
    # would be sent again to the next one.
    writer._flush("insert", 0)
    server.kill()
    writer.append(step(0, 6))  # While there is none, items wait here.
    server.start()
    writer.append(step(0, 7))
    writer.end_episode()
  x = np.concatenate([batch["x"].numpy() for batch in client.dataset(1).take(5)])
  check_windows(x)
  assert sorted(x[:, -1, 1].tolist()) == [2, 3, 4, 6, 7]


def test_lost_server_is_an_error(make_killable, monkeypatch):
  told = []
  monkeypatch.setattr(client_lib, "LOG_SECS", 0.5)
  monkeypatch.setattr(
    client_lib.logging, "warning", lambda text, *args: told.append(text % args)
  )
  server = make_killable(SPEC, padding="drop")
  client = ReverbReplay(SPEC, server.address, server_timeout=4)
  writer = client.writer()
  server.kill()
  for t in range(EPISODE):
    writer.append(step(0, t))
  began = time.monotonic()
  with pytest.raises(errors.ReplayTimeoutError) as caught:
    writer.end_episode()
  assert time.monotonic() - began < 20
  where = re.escape(server.address)
  caught.match(
    rf"^replay: insert: {where}: expected a Reverb server with the table replay, got "
    r"no answer for \d s\. Start it \(t2r_seq replay-server\), check the address, or "
    r"allow more time: server_timeout\.$"
  )
  assert any(re.search(rf"insert: waiting for {where}: no answer", t) for t in told)
  with pytest.raises(errors.ReplayTimeoutError, match=r"sample: .* no answer"):
    client.dataset(4)
  with pytest.raises(errors.ReplayTimeoutError, match=r"writer: .* no answer"):
    client.writer()


CALLS = {
  "checkpoint": lambda client: client.checkpoint(),
  "counters": lambda client: client.counters,
  "update_priorities": lambda client: client.update_priorities([1], [1.0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_wait_for_a_server_that_is_away(name, make_killable, tmp_path):
  server = make_killable(SPEC, padding="drop", checkpoint_dir=str(tmp_path))
  client = ReverbReplay(SPEC, server.address, server_timeout=60)
  CALLS[name](client)
  server.kill()
  back = threading.Timer(2, server.start)
  back.start()
  began = time.monotonic()
  CALLS[name](client)
  assert time.monotonic() - began > 1.5
  back.join()
  server.kill()
  client._connection.server_timeout = 2
  with pytest.raises(errors.ReplayTimeoutError, match=f"^replay: {name}: .* no answer"):
    CALLS[name](client)


def test_training_does_not_wait_for_ever(make_killable):
  server = make_killable(SPEC, padding="drop")
  client = ReverbReplay(SPEC, server.address, server_timeout=3)
  with client.writer() as writer:
    for t in range(EPISODE):
      writer.append(step(0, t))
    writer.end_episode()
  generator = replay.ReplayInputGenerator(client, batch_size=2)
  generator.set_feature_specifications(SPEC)
  generator.set_label_specifications({})
  dataset = generator.create_dataset("train")
  with Interruptible(dataset, generator.watch) as batches:
    features, _ = next(batches)
    check_windows(features["x"].numpy())
    server.kill()
    where = re.escape(server.address)
    with pytest.raises(
      errors.ReplayTimeoutError, match=rf"sample: {where}: .* no answ"
    ):
      while True:
        next(batches)


def test_server_restarted_with_other_specs_is_an_error(make_killable):
  server = make_killable(SPEC, padding="drop")
  client = ReverbReplay(SPEC, server.address, server_timeout=60)
  server.kill()
  server.start(OTHER)
  with pytest.raises(errors.SpecError, match=r"x: expected \(3, 2\) int64 .*\(2, 2\)"):
    client.dataset(4)
