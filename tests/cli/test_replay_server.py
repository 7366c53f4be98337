"""`t2r_seq replay-server` as a real process, and what it refuses to do."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.replay import reverb

ROOT = pathlib.Path(__file__).resolve().parents[2]
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
def fixture_serve():
  """Starts the command; returns the process and the address that it prints."""
  processes = []

  def serve(*bindings):
    command = [sys.executable, "-m", "t2r_seq", "replay-server", "--gin_configs"]
    process = subprocess.Popen(
      [*command, "server.gin", "--gin_bindings", "ReplayServer.port = None", *bindings],
      env={**os.environ, "PYTHONPATH": str(ROOT)},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    processes.append(process)
    for line in process.stdout:
      if match := re.fullmatch(r"replay-server: at (localhost:\d+)\n", line):
        return process, match[1]
    raise AssertionError(f"it ended with status {process.wait()}")

  yield serve
  for process in processes:
    process.kill()
    process.communicate()


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
def test_it_goes_on_where_it_was_stopped(serve, number):
  folder = "ReplayServer.checkpoint_dir = 'replay'"
  process, address = serve(folder)
  write_episode(address, 5)
  process.send_signal(number)
  out, _ = process.communicate(timeout=60)
  assert process.returncode == 0, out
  assert out.endswith("replay-server: stopped\n")
  _, address = serve(folder)
  assert count_items(address) == 5


@needs_reverb
def test_it_writes_checkpoints_while_it_serves(serve, project):
  settings = ("checkpoint_dir = 'replay'", "checkpoint_secs = 0.05")
  process, address = serve(*(f"ReplayServer.{setting}" for setting in settings))
  write_episode(address, 3)
  before = {path.name for path in (project / "replay").rglob("2*")}
  for line in process.stdout:  # Reverb names each checkpoint that is whole.
    found = re.search(r"Stored checkpoint to (\S+)", line)
    if found and pathlib.Path(found[1]).name not in before:
      break
  process.kill()
  process.wait()
  _, address = serve(settings[0].join(["ReplayServer.", ""]))
  assert count_items(address) == 3


@needs_reverb
def test_a_port_in_use_is_refused(run_main):
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
def test_a_wrong_config_is_one_line(name, run_main):
  binding, want = WRONG[name]
  status, out, err = run_main(
    "replay-server", "--gin_configs", "server.gin", "--gin_bindings", binding
  )
  assert (status, out) == (1, "")
  assert want in err
  assert err.startswith("t2r_seq replay-server: ")
  assert err.count("\n") == 1


def test_nothing_configured_is_refused(run_main):
  status, _, err = run_main("replay-server")
  assert status == 1
  assert "nothing is configured. Name a gin file" in err


@pytest.mark.skipif(HAS_REVERB, reason="Reverb is installed")
def test_without_reverb_it_says_what_to_install(run_main):
  status, _, err = run_main("replay-server", "--gin_configs", "server.gin")
  assert status == 1
  assert "pip install 't2r_seq[reverb]'" in err
