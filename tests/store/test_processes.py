"""Stores survive writers that are killed, limited, or many; see the script."""

from __future__ import annotations

import pathlib

import pytest

from tests import warm_python

SCRIPT = pathlib.Path(__file__).with_name("writing_processes.py")
SCENARIOS = {
  "kill_points": "killed at",
  "merge_points": "killed at",
  "many_writers": "80 episodes",
  "other_writer": "refused",
  "full_disk": "refused",
  "read_only": "refused",
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario, tmp_path):
  done = warm_python.run(SCRIPT, scenario, tmp_path)
  assert done.returncode == 0, done.stderr[-4000:]
  assert SCENARIOS[scenario] in done.stdout
