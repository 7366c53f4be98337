"""The comparison of ready policies runs; a peer that is missing is named."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import bench_ready_policies, peer_policies
from t2r_seq import episodes
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


def test_state_of_the_pixel_task_has_no_angle(tmp_path):
  for package in _NEEDS:
    pytest.importorskip(package)
  env, path = peer_policies.PIXELS, tmp_path / "pixels.lerobot"
  bench_ready_policies.record(env, path, 1)
  recorded = episodes.open_episodes(path).read(0)
  with peer_policies.make_env(env, 0) as created:
    observation, _ = created.reset(seed=0)
  seen = peer_policies.split(env, observation)
  assert seen["observation.state"].tolist() == 2 * [observation["state"][2]]
  assert recorded["observation.images.front"].shape == (200, 50, 50, 3)
  for name in ("observation.state", "action"):
    assert recorded[name].shape == (200, 2)
    assert (recorded[name][:, 0] == recorded[name][:, 1]).all(), name
