"""A process that is killed while it saves leaves a checkpoint that can be used."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("killed_processes.py")
ROOT = SCRIPT.parents[3]
SCENARIOS = {"kill_points": "killed at", "kill_random": "10 kills"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed(scenario, tmp_path):
  done = subprocess.run(
    [sys.executable, str(SCRIPT), scenario, str(tmp_path)],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "2"},
    timeout=240,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  assert SCENARIOS[scenario] in done.stdout
