"""Tests of servers: other specs, options, ports; and no server at all."""

from __future__ import annotations

import re
import textwrap
import threading
import time

import gin
import numpy as np
import pytest
import reverb
import tensorflow as tf

from t2r_seq import actors, errors, replay, specs
from t2r_seq.replay.reverb import server as server_lib
from t2r_seq.specs import ExtendedTensorSpec as Spec
from tests.replay.reverb.full_windows import ReplayServer, ReverbReplay
from tests.replay.reverb.image_steps import make_spec, write
from tests.serving.test_listening import answers, own_address

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
    [
      "4 mismatches",
      "@first_anchor",
      "@last_step",
      r"image: expected \(None, 2, 2\)",
      "the windows' padding: expected repeat, got drop on the server",
    ],
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
}


@pytest.mark.parametrize("name", OTHER)
def test_other_specs_are_found_on_connecting(name, serve):
  spec, arguments, messages = OTHER[name]
  address = serve(make_spec(), padding="drop")
  with pytest.raises(errors.SpecError) as caught:
    ReverbReplay(spec, address, **arguments)
  for message in [*messages, "Server and clients need the same specs"]:
    caught.match(message)


# What is asked for: whether the server answers at the loopback, and at an address of
# this machine that others see.
LISTENING = {None: (True, False), "own": (False, True), "0.0.0.0": (True, True)}


@pytest.mark.parametrize("listen", LISTENING)
def test_server_listens_on_the_given_address_only(listen, serve):
  own = own_address()
  asked = {None: {}, "own": {"listen": own}}.get(listen, {"listen": listen})
  address = serve(make_spec(), padding="drop", **asked)
  host, _, port = address.rpartition(":")
  assert host == (own if listen == "own" else "localhost")
  assert (answers("127.0.0.1", port), answers(own, port)) == LISTENING[listen]
  assert ReverbReplay(make_spec(), address).counters.num_items == 0


N_STEP = specs.TensorSpecStruct(
  image=Spec((2, 2), tf.uint8, "image", time_offsets=0),
  rew=Spec((), tf.float32, "rew", time_offsets=0),
  done=Spec((), tf.bool, "done", time_offsets=0),
  next_image=Spec((2, 2), tf.uint8, "image", time_offsets=1),
)
# Tables of other windows that have the same columns.
SAME_COLUMNS = {
  "flat": (make_spec(), {}, {"shift": 3, "stride": 2}),
  "flat, padded": (make_spec(), {"padding": "repeat"}, {"padding": "zero"}),
  "n_step": (N_STEP, {"n_step": (2, 0.9)}, {"padding": "repeat"}),
}


@pytest.mark.parametrize("name", SAME_COLUMNS)
def test_other_windows_of_the_same_columns_are_found_on_connecting(name, serve):
  spec, arguments, others = SAME_COLUMNS[name]
  address = serve(spec, **{"padding": "drop", **arguments})
  ReverbReplay(spec, address, **arguments)
  with pytest.raises(errors.SpecError) as caught:
    ReverbReplay(spec, address, **{**arguments, **others})
  found = re.findall(r"the windows' (\w+): expected (\w+), got", str(caught.value))
  assert found == sorted((name, str(value)) for name, value in others.items())
  assert str(caught.value).count("expected") == len(others)


def test_server_without_the_table():
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
  address = server_host.ask((make_spec(), {"padding": "drop"}))
  client = ReverbReplay(make_spec(), address, server_timeout=1)
  write(client, 5)
  server_host.ask(address)
  with pytest.raises(
    errors.ReplayTimeoutError, match=r"(insert|writer): .* got no answer"
  ):
    write(client, 5)
  with pytest.raises(errors.ReplayTimeoutError, match=r"update_priorities: .* no"):
    client.update_priorities([1], [1.0])


def test_stop_ends_the_wait_for_a_server(server_host):
  address = server_host.ask((make_spec(), {"padding": "drop"}))
  client = ReverbReplay(make_spec(), address)
  server_host.ask(address)
  sink, stop = actors.ReplaySink(client), threading.Event()
  sink.stop_with(stop)
  stopper = threading.Timer(0.5, stop.set)
  stopper.start()
  began = time.monotonic()
  with pytest.raises(errors.ReplayTimeoutError) as caught:
    sink.append({"observation": {"image": np.zeros((2, 2), np.uint8)}})
  assert time.monotonic() - began < 10
  caught.match(rf"^replay: writer: stopped while {address} gives no answer; ")
  sink.close()
  stopper.join()


def test_port_in_use():
  with (
    ReplayServer(make_spec()) as server,
    pytest.raises(errors.ReplayError, match="port: expected a free port, got"),
  ):
    ReplayServer(make_spec(), port=server.port)


BAD_ARGUMENTS = {
  "no port": ({"port": "a"}, "port: expected an integer of at least 1, got 'a'"),
  "port": ({"port": 65536}, "port: expected an integer of at most 65,535, got 65536"),
  "max_size": ({"max_size": 0}, "max_size: expected an integer of at least 1, got 0"),
  "sampler": ({"sampler": 3}, "ReplayServer: sampler: expected one of .*, got int 3"),
  "rate limiter": (
    {"rate_limiter": 3},
    "ReplayServer: rate_limiter: expected one of .*, got int 3",
  ),
  "never enough": (
    {"max_size": 10, "rate_limiter": replay.MinSize(20)},
    "rate_limiter: expected a min_size_to_sample of at most 10, the max_size, got 20"
    ". Nothing could ever be sampled: raise max_size, or lower min_size_to_sample",
  ),
  "folder": (
    {"checkpoint_dir": 5},
    "checkpoint_dir: expected a path on this machine, got 5. Name a folder; None keeps",
  ),
  "bytes": (
    {"checkpoint_dir": b"x"},
    "checkpoint_dir: expected a path on this machine, got b'x'",
  ),
  "no folder": (
    {"checkpoint_dir": ""},
    "checkpoint_dir: expected a path on this machine, got ''",
  ),
  **{
    f"{wrong!r} seconds": (
      {"checkpoint_secs": wrong},
      "^ReplayServer: checkpoint_secs: expected a number of seconds above 0, or None, "
      f"got {wrong!r}",
    )
    for wrong in (0, -1, "a", float("nan"), float("inf"), True)
  },
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments(name):
  arguments, message = BAD_ARGUMENTS[name]
  with pytest.raises(errors.SpecError, match=message):
    ReplayServer(make_spec(), **arguments)


# Where there is a file 'f'; and what is wrong with them.
BAD_FOLDERS = {
  "file": ("{}/f", errors.SpecError, "{}/f is not a folder"),
  "below a file": ("{}/f/a/b", errors.SpecError, "{}/f is not a folder"),
  "impossible": ("/proc/nowhere", errors.ReplayError, ".*(/proc|No such file).*"),
}


@pytest.mark.parametrize("name", BAD_FOLDERS)
def test_bad_checkpoint_dirs(name, tmp_path, monkeypatch):
  monkeypatch.setattr(reverb, "Server", None)  # None is started.
  (tmp_path / "f").touch()
  path, error_cls, why = BAD_FOLDERS[name]
  with pytest.raises(error_cls) as caught:
    ReplayServer(make_spec(), checkpoint_dir=path.format(tmp_path))
  caught.match(
    "^ReplayServer: checkpoint_dir: expected a folder that it may write to, or a place "
    f"for a new one, got '{path.format(tmp_path)}'. {why.format(tmp_path)}: name anoth"
  )


GIN = {
  "Uniform": ("sampler", "@Uniform()", "", {"sampler": "uniform"}),
  "Fifo": ("sampler", "@Fifo()", "", {"sampler": "fifo"}),
  "Prioritized": (
    *("sampler", "@Prioritized()", "Prioritized.priority_exponent = 0.5"),
    {"sampler": "prioritized { priority_exponent: 0.5 }"},
  ),
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
}


@pytest.mark.parametrize("name", GIN)
def test_options_by_gin(name):
  parameter, value, bindings, want = GIN[name]
  gin.parse_config(f"ReplayServer.{parameter} = {value}")
  gin.parse_config(textwrap.dedent(bindings))
  with ReplayServer(make_spec()) as server:
    client = reverb.Client(server.address)
    found = server_lib.describe_options(client.server_info()["replay"])
  for option, text in want.items():
    assert found[option].startswith(text)
