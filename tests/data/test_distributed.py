from __future__ import annotations

import pathlib

from tests import warm_python

HERE = pathlib.Path(__file__).parent


def test_every_generator_feeds_a_mirrored_strategy(tmp_path):
  done = warm_python.run(HERE / "distributed_reading.py", tmp_path)
  assert done.returncode == 0, done.stderr[-4000:]
  assert done.stdout.strip().endswith("all read")
