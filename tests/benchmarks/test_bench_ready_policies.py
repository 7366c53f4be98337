"""The comparison of ready policies runs; a peer that is missing is named."""

from __future__ import annotations

import json
import sys

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
