"""The regression, the critic and MAML from end to end, on next to no data."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research import runs
from research.pose_env import pose_env, study


def test_study_writes_its_table(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  arguments = ["--episodes", "64", "--steps", "1", "--fresh", "2", "--out", "out"]
  assert study.main(arguments) == 1  # Nothing is learned in one step.
  rows = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()[2:]
  policies = [
    "regression on",
    "critic of",
    "regression that",
    "MAML before",
    "MAML aft",
  ]
  assert len(rows) == len(policies)
  for row, policy in zip(rows, policies, strict=True):
    assert f"| {policy}" in row
    assert 0 < float(row.split("|")[3]) < 3


def test_offset_is_of_the_task_and_in_no_frame():
  env = pose_env.PoseEnv(hidden_offset=0.4)
  frames, offsets = [], []
  for task in (1, 2, 1):
    env.reset_task(task)
    observation, info = env.reset(seed=0)
    frames.append(observation["state"]["image"])
    offsets.append(info["target_pose"] - info["object_pose"][:2])
  env.close()
  np.testing.assert_array_equal(frames[0], frames[1])
  np.testing.assert_array_equal(offsets[0], offsets[2])
  assert np.abs(offsets[0] - offsets[1]).max() > 0.05


def test_interval_of_a_mean():
  assert runs.mean_and_interval([0.5]) == "0.500"
  assert runs.mean_and_interval([0.1, 0.2, 0.3]) == "0.200 ± 0.248"  # 4.303 x 0.0577.
