"""Tests of servers: other specs, options, checkpoints, ports; and no server at all."""

from __future__ import annotations

import os
import resource
import textwrap

import gin
import numpy as np
import pytest
import reverb
import tensorflow as tf

from t2r_seq import errors, replay, specs
from t2r_seq.replay.reverb import ReplayServer, ReverbReplay, restored
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
  "several paths at once": (
    specs.TensorSpecStruct(
      image=Spec((3, 2, 2), tf.uint16, "image", time_offsets=(-2, -1, 0)),
      action=Spec((2,), tf.float32, "action", time_offsets=0),
      goal=Spec((1,), tf.int64, "goal"),
    ),
    {},
    [
      "3 mismatches",
      r"action: expected \(1, 2\) float32 \(steps 0 to 0\), got nothing on the server",
      r"goal: expected \(1,\) int64 \(per episode\), got nothing on the server",
      r"image: expected \(3, 2, 2\) uint16 .*, got \(3, 2, 2\) uint8 ",
    ],
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


def test_a_server_without_the_table():
  tables = [reverb.Table.queue(name, 10) for name in ("frames", "episodes")]
  server = reverb.Server(tables)
  try:
    with pytest.raises(errors.SpecError) as caught:
      ReverbReplay(make_spec(), f"localhost:{server.port}")
  finally:
    server.stop()
  caught.match(r"replay: expected a table of this name, got \[episodes, frames\]")


def test_no_server():
  with pytest.raises(errors.ReplayTimeoutError) as caught:
    ReverbReplay(make_spec(), "localhost:1", server_timeout=1)
  caught.match(r"connect: localhost:1: expected a Reverb server .*no answer for 1 s")


def test_server_that_goes_away(server_host):
  address = server_host.ask((make_spec(), {}))
  client = ReverbReplay(make_spec(), address, server_timeout=1)
  write(client, 5)
  server_host.ask(address)
  with pytest.raises(
    errors.ReplayTimeoutError, match=r"(insert|writer): .* got no answer"
  ):
    write(client, 5)
  with pytest.raises(errors.ReplayTimeoutError, match=r"update_priorities: .* no"):
    client.update_priorities([1], [1.0])


def test_checkpoint_is_restored(serve, server_host, tmp_path):
  folder = str(tmp_path)
  address = server_host.ask((make_spec(), {"checkpoint_dir": folder}))
  client = ReverbReplay(make_spec(), address)
  write(client, 9)
  path = client.checkpoint()
  assert os.path.dirname(path) == os.path.join(folder, "incoming")
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
  "n-step stacked": (
    {"store": "stacked", "n_step": (2, 0.9)},
    "store: expected 'flat' with n_step, got 'stacked'",
  ),
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


GIN = {
  "Uniform": ("sampler", "@Uniform()", "", {"sampler": "uniform"}),
  "Fifo": ("sampler", "@Fifo()", "", {"sampler": "fifo"}),
  "Lifo": ("remover", "@Lifo()", "", {"remover": "lifo"}),
  "Prioritized": (
    *("sampler", "@Prioritized()", "Prioritized.priority_exponent = 0.5"),
    {"sampler": "prioritized { priority_exponent: 0.5 }"},
  ),
  "MaxHeap": ("sampler", "@MaxHeap()", "", {"sampler": "heap { }"}),
  "MinHeap": ("remover", "@MinHeap()", "", {"remover": "heap { min_heap }"}),
  "MinSize": (
    *("rate_limiter", "@MinSize()", "MinSize.min_size_to_sample = 7"),
    {"rate_limiter": "min_size_to_sample 7, samples per insert 1 within -1.79769e+308"},
  ),
  "SampleToInsertRatio": (
    *("rate_limiter", "@SampleToInsertRatio()"),
    """
    SampleToInsertRatio.samples_per_insert = 4.0
    SampleToInsertRatio.min_size_to_sample = 3
    SampleToInsertRatio.error_buffer = 5.0
    """,
    {"rate_limiter": "min_size_to_sample 3, samples per insert 4 within 7 to 17"},
  ),
  "Queue": (
    *("rate_limiter", "@Queue()", "Queue.size = 5"),
    {"rate_limiter": "min_size_to_sample 1, samples per insert 1 within 0 to 5"},
  ),
  "Stack": (
    *("rate_limiter", "@Stack()", "Stack.size = 6"),
    {"rate_limiter": "min_size_to_sample 1, samples per insert 1 within 0 to 6"},
  ),
}


@pytest.mark.parametrize("name", GIN)
def test_options_by_gin(name):
  parameter, value, bindings, want = GIN[name]
  gin.parse_config(f"ReplayServer.{parameter} = {value}")
  gin.parse_config(textwrap.dedent(bindings))
  with ReplayServer(make_spec()) as server:
    client = reverb.Client(server.address)
    found = restored.describe_options(client.server_info()["replay"])
  for option, text in want.items():
    assert found[option].startswith(text)


# How much of what the last checkpoint took there is room for. A second checkpoint of
# the same steps takes some bytes more or fewer: Reverb's chunks come in any order, and
# compressed. 100 bytes less than the first is too little for any of them.
ROOM = {"for half of it": 0.5, "for all but the last bytes": 1.0}


@pytest.mark.parametrize("room", ROOM)
def test_a_full_disk_at_a_checkpoint(room, make_killable, tmp_path):
  spec = specs.TensorSpecStruct(
    image=Spec((2, 64, 64), tf.uint8, "image", time_offsets=(-1, 0))
  )
  random = np.random.default_rng(0)
  server = make_killable(spec, checkpoint_dir=str(tmp_path))
  client = ReverbReplay(spec, server.address, timeout=20)

  def write_noise(num_steps):
    with client.writer() as writer:
      for _ in range(num_steps):
        writer.append({"image": random.integers(0, 256, (64, 64), np.uint8)})

  write_noise(9)
  former = server.checkpoint()
  size = os.path.getsize(os.path.join(former, "chunks.tfrecord"))
  write_noise(2 if ROOM[room] < 1 else 0)
  # Files of the process end here, as on a disk without room for more.
  limit = int(size * ROOM[room]) - 100
  resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
  with pytest.raises(errors.ReplayError, match="expected a folder with room for it"):
    server.checkpoint()
  assert os.listdir(tmp_path / "incoming") == []
  if ROOM[room] == 1:
    client.checkpoint()  # Reverb calls this one whole.
  write_noise(3)  # It serves on.
  assert next(iter(client.dataset(4)))["image"].shape == (4, 2, 64, 64)
  server.kill()
  server.start()
  assert client.counters.num_items == 8
  write_noise(2)
  newest = server.checkpoint()
  assert sorted(os.listdir(tmp_path)) == sorted(["incoming", os.path.basename(newest)])
