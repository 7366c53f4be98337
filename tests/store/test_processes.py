"""Stores survive writers that are killed, limited, or many; see the script."""

from __future__ import annotations

import pytest

SCENARIOS = {
  "kill_points": "killed at",
  "kill_random": "25 kills",
  "merge_points": "killed at",
  "many_writers": "80 episodes",
  "other_writer": "refused",
  "full_disk": "refused",
  "read_only": "refused",
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario, in_processes, tmp_path):
  assert SCENARIOS[scenario] in in_processes(scenario, tmp_path)
