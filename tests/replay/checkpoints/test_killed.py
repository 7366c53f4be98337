"""A process that is killed while it saves leaves a checkpoint that can be used."""

from __future__ import annotations

import pathlib

import pytest

from tests import warm_python

SCRIPT = pathlib.Path(__file__).with_name("killed_processes.py")
SCENARIOS = {"kill_points": "killed at", "kill_random": "10 kills"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed(scenario, tmp_path):
  done = warm_python.run(SCRIPT, scenario, tmp_path)
  assert done.returncode == 0, done.stderr[-4000:]
  assert SCENARIOS[scenario] in done.stdout
