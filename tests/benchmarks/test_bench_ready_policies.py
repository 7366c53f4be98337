"""The comparison of ready policies runs; a peer that is missing is named."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import bench_ready_policies, peer_policies
from tests import warm_python

_NEEDS = ("Box2D", "pyarrow", "matplotlib")
_PEERS = {
  "act": ("lerobot", "lerobot"),
  "sac": ("stable_baselines3", "stable-baselines3"),
}


def test_quick_run_has_a_row_for_each_policy(tmp_path, monkeypatch):
  for package in _NEEDS:
    pytest.importorskip(package)
  argv = ["--quick", "--seeds", "1", "--out", str(tmp_path), "--policies", "dqn"]
  with (
    warm_python.programs(tmp_path / "programs") as programs,
    monkeypatch.context() as patched,
  ):
    patched.setattr(sys, "executable", f"{programs}/python")
    _, _, *rows = bench_ready_policies.main(argv).splitlines()
  cells = [row.strip("| ").split(" | ") for row in rows]
  assert [row[:3] for row in cells] == [["dqn", "ours", "1"]]
  assert (tmp_path / "curves.png").exists()
  # What is done is kept.
  path = tmp_path / "dqn-ours-0.json"
  path.write_text(json.dumps({**json.loads(path.read_text()), "returns": [250.0]}))
  assert "| 250 |" in bench_ready_policies.main(argv)


@pytest.mark.parametrize("policy", _PEERS)
def test_missing_peer_is_named(policy, monkeypatch):
  module, package = _PEERS[policy]
  monkeypatch.setitem(sys.modules, module, None)
  spec = {"env": bench_ready_policies.POLICIES[policy][0]}
  with pytest.raises(ImportError, match=f"pip install .*{package}=="):
    peer_policies.main([json.dumps(spec)])


def test_reacher_expert_turns_to_the_nearer_solution():
  expert, rng = bench_ready_policies.ReacherExpert(), np.random.default_rng(0)
  for shoulder, elbow in rng.uniform([-3, 0.5], [3, 2.5], (20, 2)):
    tip = shoulder + elbow
    target = 0.1 * np.array([np.cos(shoulder), np.sin(shoulder)])
    target += 0.11 * np.array([np.cos(tip), np.sin(tip)])
    angles = np.array([shoulder + 0.3, elbow - 0.2])
    numbers = [np.cos(angles), np.sin(angles), target, (1.0, -1.0), np.zeros(2)]
    torques = expert.SelectAction(np.concatenate(numbers), None, 0)
    np.testing.assert_allclose(
      torques, [-0.1 * 0.3 - 0.03, 0.1 * 0.2 + 0.03], atol=1e-6
    )


def test_only_the_image_shows_the_target():
  arm, target = np.array([0.0, 1.0, 1.0, 0.0]), np.array([-0.1, 0.05])
  tip = np.array([0.0, 0.21])  # Both links point up.
  numbers = np.concatenate([arm, target, (3.0, 4.0), tip - target])
  parts = peer_policies.split(peer_policies.PIXELS, numbers)
  assert parts["observation.state"].tolist() == [0, 1, 1, 0, 3, 4]
  image = parts["observation.images.front"].astype(int)
  assert image.shape == (48, 48, 3)
  rows, columns = np.nonzero(image[..., 0] > image[..., 2] + 50)  # Red.
  center = np.mean([columns, rows], axis=1) * 0.48 / 47 - 0.24
  np.testing.assert_allclose(center * [1, -1], target, atol=0.005)
