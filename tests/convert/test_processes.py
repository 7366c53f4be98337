"""Killed conversions go on and give what one run gives; see the script."""

from __future__ import annotations

import pathlib

import pytest

from tests import warm_python

SCRIPT = pathlib.Path(__file__).with_name("killed_processes.py")
SCENARIOS = (
  "store_to_store",
  "store_to_records",
  "records_to_store",
  "steps_killed_from_outside",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario, tmp_path):
  done = warm_python.run(SCRIPT, scenario, tmp_path, timeout=280)
  assert done.returncode == 0, done.stderr[-4000:]
  assert "killed" in done.stdout
