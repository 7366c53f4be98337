"""Tests of servers: other specs, options, checkpoints, ports; and no server at all."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs
from t2r_seq.replay.reverb import ReplayServer, ReverbReplay
from t2r_seq.specs import ExtendedTensorSpec as Spec


def make_spec(num_frames=3, **leaves):
  offsets = tuple(range(1 - num_frames, 1))
  return specs.TensorSpecStruct(
    image=Spec((num_frames, 2, 2), tf.uint8, "image", time_offsets=offsets),
    **leaves,
  )


def write(client, num_steps):
  with client.writer() as writer:
    for t in range(num_steps):
      writer.append({"image": np.full((2, 2), t, np.uint8)})


OTHER = {
  "more frames": (
    make_spec(4),
    {},
    [r"image: expected \(4, 2, 2\) uint8 \(steps -3 to 0\), got \(3, 2, 2\) uint8 "],
  ),
  "other steps of as many": (
    specs.TensorSpecStruct(
      image=Spec((3, 2, 2), tf.uint8, "image", time_offsets=(0, 1, 2))
    ),
    {},
    [r"\(steps 0 to 2\), got \(3, 2, 2\) uint8 \(steps -2 to 0\) on the server"],
  ),
  "one more path": (
    make_spec(state=Spec((2,), tf.float32, "state", time_offsets=0)),
    {},
    [r"state: expected \(1, 2\) float32 \(steps 0 to 0\), got nothing on the server"],
  ),
  "padding": (
    make_spec(),
    {"padding": "repeat"},
    ["3 mismatches", "@first_anchor", "@last_step", r"image: expected \(None, 2, 2\)"],
  ),
  "stacked": (make_spec(), {"store": "stacked"}, [r"\(steps \[-2, -1, 0\]\), got "]),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_specs_are_found_on_connecting(name, serve):
  spec, arguments, messages = OTHER[name]
  address = serve(make_spec())
  with pytest.raises(errors.SpecError) as caught:
    ReverbReplay(spec, address, **arguments)
  for message in [*messages, "Server and clients want the same specs"]:
    caught.match(message)


def test_no_server():
  with pytest.raises(errors.ReplayTimeoutError) as caught:
    ReverbReplay(make_spec(), "localhost:1", server_timeout=1)
  caught.match(r"connect: 127.0.0.1:1: expected a Reverb server, got no answer for 1 s")


def test_server_that_goes_away(server_host):
  address = server_host.ask((make_spec(), {}))
  client = ReverbReplay(make_spec(), address, server_timeout=1)
  write(client, 5)
  server_host.ask(address)
  with pytest.raises(errors.ReplayTimeoutError, match=r"insert: .* got no answer"):
    write(client, 5)
  with pytest.raises(errors.ReplayTimeoutError, match=r"update_priorities: .* no"):
    client.update_priorities([1], [1.0])


def test_checkpoint_is_restored(serve, server_host, tmp_path):
  folder = str(tmp_path)
  address = server_host.ask((make_spec(), {"checkpoint_dir": folder}))
  client = ReverbReplay(make_spec(), address)
  write(client, 9)
  path = client.checkpoint()
  assert os.path.dirname(path) == folder
  server_host.ask(address)
  again = ReverbReplay(make_spec(), serve(make_spec(), checkpoint_dir=folder))
  assert again.counters.num_items == 7
  window = next(iter(again.dataset(1)))["image"].numpy()[0, :, 0, 0]
  assert (np.diff(window) == 1).all()


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


def test_port_in_use():
  with (
    ReplayServer(make_spec()) as server,
    pytest.raises(errors.ReplayError, match="port: expected a free port, got"),
  ):
    ReplayServer(make_spec(), port=server.port)


BAD_ARGUMENTS = {
  "store": ({"store": "stakced"}, "store: expected one of flat, stacked.*'stacked'"),
  "max_size": ({"max_size": 0}, "max_size: expected an integer of at least 1, got 0"),
  "sampler": ({"sampler": 3}, "expected a selector"),
  "rate limiter": ({"rate_limiter": 3}, "expected a rate limiter"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name):
  arguments, message = BAD_ARGUMENTS[name]
  with pytest.raises(errors.SpecError, match=message):
    ReplayServer(make_spec(), **arguments)


def test_checkpoint_without_a_folder():
  with (
    ReplayServer(make_spec()) as server,
    pytest.raises(errors.ReplayError, match="expected a checkpoint_dir, got None"),
  ):
    server.checkpoint()
