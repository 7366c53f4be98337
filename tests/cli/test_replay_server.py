"""`t2r_seq replay-server` as a real process, and what it refuses to do."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import socket

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.replay import reverb
from tests import warm_python

PROJECT = """
import gin
import tensorflow as tf
from t2r_seq import specs


@gin.configurable
def point_spec():
  return specs.TensorSpecStruct(
    obs=specs.ExtendedTensorSpec((2, 3), tf.float32, "obs", time_offsets=(-1, 0))
  )
"""
GIN = """
import replay_points
ReplayServer.spec_structure = @point_spec()
ReplayServer.padding = 'repeat'
"""
SPEC = specs.TensorSpecStruct(
  obs=specs.ExtendedTensorSpec((2, 3), tf.float32, "obs", time_offsets=(-1, 0))
)
HAS_REVERB = importlib.util.find_spec("reverb") is not None
needs_reverb = pytest.mark.skipif(not HAS_REVERB, reason="Reverb is not installed")


@pytest.fixture(name="project", autouse=True)
def fixture_project(tmp_path, monkeypatch):
  """A folder with a project's module and gin file, as the current one."""
  (tmp_path / "replay_points.py").write_text(PROJECT)
  (tmp_path / "server.gin").write_text(GIN)
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.fixture(name="serve")
def fixture_serve(project):
  """Starts the command; returns the process, its output, and the printed address."""
  with contextlib.ExitStack() as stack:

    def serve(*bindings):
      command = ["-m", "t2r_seq", "replay-server", "--gin_configs", "server.gin"]
      command += ["--gin_bindings", "ReplayServer.port = None", *bindings]
      reading, writing = os.pipe()
      output = stack.enter_context(os.fdopen(reading))
      with os.fdopen(writing, "wb") as log:
        process = warm_python.start(*command, cwd=project, log=log)
      stack.callback(process.kill)
      for line in output:
        if match := re.fullmatch(r"replay-server: at (localhost:\d+)\n", line):
          return process, output, match[1]
      process.wait()
      raise AssertionError(f"it ended with status {process.returncode}")

    yield serve


def write_episode(address, num_steps):
  replay = reverb.ReverbReplay(SPEC, address, padding="repeat")
  with replay, replay.writer() as writer:
    for step in range(num_steps):
      writer.append({"obs": np.full(3, step, np.float32)})
    writer.end_episode()


def count_items(address):
  with reverb.ReverbReplay(SPEC, address, padding="repeat") as replay:
    return replay.counters.num_items


@needs_reverb
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_server_resumes(serve, number):
  folder = "ReplayServer.checkpoint_dir = 'replay'"
  process, output, address = serve(folder)
  write_episode(address, 5)
  process.send_signal(number)
  process.wait(timeout=60)
  printed = output.read()
  assert process.returncode == 0, printed
  assert printed.endswith("replay-server: stopped\n")
  _, _, address = serve(folder)
  assert count_items(address) == 5


@needs_reverb
def test_replay_server_writes_checkpoints_while_serving(serve, project):
  settings = ("checkpoint_dir = 'replay'", "checkpoint_secs = 0.05")
  process, output, address = serve(*(f"ReplayServer.{setting}" for setting in settings))
  write_episode(address, 3)
  before = {path.name for path in (project / "replay").rglob("2*")}
  for line in output:  # Reverb names each checkpoint that is whole.
    found = re.search(r"Stored checkpoint to (\S+)", line)
    if found and pathlib.Path(found[1]).name not in before:
      break
  process.kill()
  process.wait()
  _, _, address = serve(settings[0].join(["ReplayServer.", ""]))
  assert count_items(address) == 3


@needs_reverb
def test_port_in_use_is_refused(run_main):
  with socket.socket() as other:
    other.bind(("", 0))
    other.listen()
    port = other.getsockname()[1]
    status, out, err = run_main(
      *("replay-server", "--gin_configs", "server.gin"),
      *("--gin_bindings", f"ReplayServer.port = {port}"),
    )
  assert (status, out) == (1, "")
  assert f"port: expected a free port, got {port}: Address already in use" in err


WRONG = {
  "unknown parameter": ("ReplayServer.prot = 1", "prot: expected an argument that it"),
  "unknown part": ("ReplayServer.sampler = @Unifrom()", "No configurable matching"),
  "wrong value": ("ReplayServer.max_size = 0", "max_size: expected an integer of at l"),
  "no specs": ("ReplayServer.spec_structure = None", "spec structure: the root: expec"),
}


@needs_reverb
@pytest.mark.parametrize("name", WRONG)
def test_wrong_config_is_one_line(name, run_main):
  binding, want = WRONG[name]
  status, out, err = run_main(
    "replay-server", "--gin_configs", "server.gin", "--gin_bindings", binding
  )
  assert (status, out) == (1, "")
  assert want in err
  assert err.startswith("t2r_seq replay-server: ")
  assert err.count("\n") == 1


def test_replay_server_without_config_is_an_error(run_main):
  status, _, err = run_main("replay-server")
  assert status == 1
  assert "nothing is configured. Name a gin file" in err


@pytest.mark.skipif(HAS_REVERB, reason="Reverb is installed")
def test_missing_reverb_names_the_extra(run_main):
  status, _, err = run_main("replay-server", "--gin_configs", "server.gin")
  assert status == 1
  assert "pip install 't2r_seq[reverb]'" in err
