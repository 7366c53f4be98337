"""Killed conversions go on and give what one run gives; see the script."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
SCENARIOS = (
  "store_to_store",
  "store_to_records",
  "records_to_store",
  "store_to_zarr",
  "zarr_to_store",
  "store_to_hdf5",
  "hdf5_to_store",
  "steps_killed_from_outside",
)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario, tmp_path):
  root = str(HERE.parent.parent)
  paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
  done = subprocess.run(
    [sys.executable, str(HERE / "killed_processes.py"), scenario, str(tmp_path)],
    env={**os.environ, "PYTHONPATH": paths, "TF_CPP_MIN_LOG_LEVEL": "3"},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=280,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  assert "killed" in done.stdout
