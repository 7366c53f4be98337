"""The study of two arms from end to end, on next to no data."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research.two_arms import arms, study
from t2r_seq.episodes import open_episodes


@pytest.mark.parametrize("arm, size", [("kuka", 7), ("xarm", 6)])
def test_expert_reaches_the_ball(tmp_path, arm, size):
  assert arms.record(arm, str(tmp_path / arm), 5, seed=0) == 1.0
  found = open_episodes(tmp_path / arm)
  assert found.spec[arms.ACTION].shape == (size,)
  names = {path: spec.convention.names for path, spec in found.spec.items()}
  assert names[arms.STATE][6:] == names[arms.ACTION]
  assert found.lengths.max() < arms.MAX_STEPS


def test_study_compares_one_policy_of_both_with_one_of_each(tmp_path, capsys):
  argv = ["--seeds", "1", "--demos", "3", "--steps", "1", "--episodes", "1"]
  argv += ["--gin_bindings", "MLPModel.hidden_sizes = (8, 8)"]
  study.main(["--out", str(tmp_path / "out"), *argv])
  out = capsys.readouterr().out
  for line in (
    "together: xarm: success 0%",
    "apart_kuka: kuka: success 0%",
    "| trained | kuka, % | xarm, % |\n| --- | ---: | ---: |\n| apart | 0 | 0 |",
  ):
    assert line in out, out
  found = json.loads((tmp_path / "out/results.json").read_text())
  assert found == {way: {"kuka": [0], "xarm": [0]} for way in ("apart", "together")}
