"""The status of runs that have finished, on a machine that is busy."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

_SCRIPT = pathlib.Path(__file__).with_name("exits.py")


def test_what_has_finished_or_was_stopped_ends_with_status_0():
  run = subprocess.run(
    [sys.executable, _SCRIPT, "--runs", "4", "--at_once", "4"],
    cwd=_SCRIPT.parents[2],
    env={**os.environ, "PYTHONPATH": str(_SCRIPT.parents[2])},
    capture_output=True,
    text=True,
    timeout=280,
    check=False,
  )
  assert run.returncode == 0, run.stdout
  assert run.stdout.count("1 x ") == 4
