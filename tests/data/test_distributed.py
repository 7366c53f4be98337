from __future__ import annotations

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def test_every_generator_feeds_a_mirrored_strategy(tmp_path):
  root = str(HERE.parent.parent)
  path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
  done = subprocess.run(
    [sys.executable, str(HERE / "distributed_reading.py"), str(tmp_path)],
    env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"},
    capture_output=True,
    text=True,
    timeout=240,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-4000:]
  assert done.stdout.strip().endswith("all read")
