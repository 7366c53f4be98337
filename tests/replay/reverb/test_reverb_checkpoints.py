"""Checkpoints of servers: restored, damaged, on a full disk; asked for by clients."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs
from t2r_seq.replay.reverb import server as server_lib
from t2r_seq.specs import ExtendedTensorSpec as Spec
from tests.replay.reverb.full_windows import ReplayServer, ReverbReplay
from tests.replay.reverb.image_steps import make_spec, write


def test_checkpoint_is_restored(serve, server_host, tmp_path):
  folder = str(tmp_path)
  options = {"checkpoint_dir": folder, "padding": "drop"}
  address = server_host.ask((make_spec(), options))
  client = ReverbReplay(make_spec(), address)
  write(client, 9)
  path = client.checkpoint()
  assert os.path.dirname(path) == folder
  assert os.listdir(os.path.join(folder, "incoming")) == []
  server_host.ask(address)
  again = ReverbReplay(make_spec(), serve(make_spec(), **options))
  assert again.counters.num_items == 7
  window = next(iter(again.dataset(1)))["image"].numpy()[0, :, 0, 0]
  assert (np.diff(window) == 1).all()


def test_folder_may_be_a_path_that_is_not_there(tmp_path):
  folder = tmp_path / "a" / "b"
  with ReplayServer(make_spec(), checkpoint_dir=folder, checkpoint_secs=1) as server:
    path = server.checkpoint()
  assert os.path.dirname(path) == str(folder)
  with ReplayServer(make_spec(), checkpoint_dir=folder, checkpoint_secs=None):
    pass


def test_checkpoint_of_other_specs_or_options(server_host, tmp_path):
  folder = str(tmp_path)
  with ReplayServer(make_spec(), checkpoint_dir=folder) as server:
    server.checkpoint()
  with pytest.raises(errors.SpecError, match=r"image: expected \(4, 2, 2\)"):
    ReplayServer(make_spec(4), checkpoint_dir=folder)
  with pytest.raises(errors.SpecError) as caught:
    ReplayServer(
      make_spec(), checkpoint_dir=folder, max_size=5, sampler=replay.Prioritized(0.5)
    )
  caught.match("max_size: expected 5, got 1000000 in the checkpoint")
  caught.match("sampler: expected prioritized .* 0.5 .*, got uniform in the checkpoint")


def test_checkpoint_that_does_not_say_which_windows(tmp_path, monkeypatch):
  folder = str(tmp_path)
  with monkeypatch.context() as patch:
    patch.setattr(server_lib, "make_signature", lambda layout: dict(layout.signature))
    with ReplayServer(make_spec(), checkpoint_dir=folder) as server:
      server.checkpoint()
  with pytest.raises(errors.SpecError) as caught:
    ReplayServer(make_spec(), checkpoint_dir=folder)
  caught.match("the windows' padding: expected drop, got nothing on the server")


def test_damaged_and_half_written_checkpoints(tmp_path):
  folder = str(tmp_path)
  with ReplayServer(make_spec(), checkpoint_dir=folder) as server:
    path = server.checkpoint()
  half = os.path.join(folder, "9999-01-01T00:00:00+00:00")
  os.mkdir(half)
  with open(os.path.join(half, "tables.tfrecord"), "wb") as file:
    file.write(b"half")
  with ReplayServer(make_spec(), checkpoint_dir=folder):
    pass
  with open(os.path.join(path, "tables.tfrecord"), "wb") as file:
    file.write(b"damaged" * 9)
  with pytest.raises(errors.ReplayError, match="Move it away, or use another folder"):
    ReplayServer(make_spec(), checkpoint_dir=folder)


def test_checkpoint_without_a_folder():
  with (
    ReplayServer(make_spec()) as server,
    pytest.raises(errors.ReplayError, match="expected a checkpoint_dir, got None"),
  ):
    server.checkpoint()


def test_checkpoint_of_a_server_without_a_folder_is_an_error(serve):
  client = ReverbReplay(make_spec(), serve(make_spec(), padding="drop"))
  with pytest.raises(errors.ReplayError) as caught:
    client.checkpoint()
  caught.match(
    r"^ReverbReplay: checkpoint: localhost:\d+: expected a server with a "
    r"checkpoint_dir, got None\. Start it with one\.$"
  )


def test_checkpoints_of_clients_that_do_not_see_the_disk(
  make_killable, tmp_path, monkeypatch
):
  monkeypatch.setattr(os.path, "isdir", lambda path: False)
  server = make_killable(make_spec(), padding="drop", checkpoint_dir=str(tmp_path))
  client = ReverbReplay(make_spec(), server.address, timeout=20)
  write(client, 9)
  for _ in range(2):
    path = client.checkpoint()
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(path), "incoming"]
    assert os.listdir(tmp_path / "incoming") == []


# How much of what the last checkpoint took there is room for. A second checkpoint of
# the same steps takes some bytes more or fewer: Reverb's chunks come in any order, and
# compressed. 100 bytes less than the first is too little for any of them.
ROOM = {"for half of it": 0.5, "for all but the last bytes": 1.0}


@pytest.mark.parametrize("room", ROOM)
def test_full_disk_at_a_checkpoint(room, make_killable, tmp_path):
  spec = specs.TensorSpecStruct(
    image=Spec((2, 64, 64), tf.uint8, "image", time_offsets=(-1, 0))
  )
  random = np.random.default_rng(0)
  server = make_killable(spec, padding="drop", checkpoint_dir=str(tmp_path))
  client = ReverbReplay(spec, server.address, timeout=20)

  def write_noise(num_steps):
    with client.writer() as writer:
      for _ in range(num_steps):
        writer.append({"image": random.integers(0, 256, (64, 64), np.uint8)})

  write_noise(9)
  former = client.checkpoint() if ROOM[room] == 1 else server.checkpoint()
  size = os.path.getsize(os.path.join(former, "chunks.tfrecord"))
  write_noise(2 if ROOM[room] < 1 else 0)
  # Files of the process end here, as on a disk without room for more.
  limit = int(size * ROOM[room]) - 100
  resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
  with pytest.raises(errors.ReplayError, match="expected a folder with room for it"):
    server.checkpoint()
  assert os.listdir(tmp_path / "incoming") == []
  if ROOM[room] == 1:  # Reverb calls this one whole.
    with pytest.raises(errors.ReplayError, match="expected a folder with room for it"):
      client.checkpoint()
    assert os.path.exists(former)
  write_noise(3)  # It serves on.
  assert next(iter(client.dataset(4)))["image"].shape == (4, 2, 64, 64)
  server.kill()
  server.start()
  assert client.counters.num_items == 8
  write_noise(2)
  newest = server.checkpoint()
  assert sorted(os.listdir(tmp_path)) == sorted(["incoming", os.path.basename(newest)])
