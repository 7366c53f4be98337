"""Grasps from end to end, on next to no data: logged, learned from, exported, acted."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")

from research.qtopt import grasp_env, grasp_models, study
from t2r_seq import actors, errors, store

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_grasps_are_logged_learned_collected_and_shown(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  sizes = "--episodes 20 --steps 1 --rounds 1 --round_steps 1 --round_episodes 1"
  options = f"{sizes} --fresh 1 --no_critic --gin_bindings".split()
  bindings = ["act/CrossEntropySearch.num_iterations = 1"]
  bindings.append("MixtureInputGenerator.batch_size = 4")
  status = study.main(["--out", str(tmp_path), *options, *bindings])
  episode = store.EpisodeStore(str(tmp_path / "logs")).episode(0)
  # One observation more than actions; what is behind the last action is zeros.
  assert not episode["action/vertical_rotation"][-1].any()
  assert np.abs(episode["action/vertical_rotation"][:-1]).max(axis=1).min() > 0
  table = (tmp_path / "table.md").read_text()
  assert [row.split("|")[1].strip() for row in table.splitlines()[2:]] == [
    "the script that collected the logs, blind",
    "Bellman targets, the logs alone",
    "Bellman targets, the logs and what its exports collect",
  ]
  assert status == int("hardly beats the script" in capsys.readouterr().err)
  assert (tmp_path / "grasp.png").stat().st_size > 10_000
  with pytest.raises(errors.SpecError, match="up to step 1, got one up to 2"):
    study.main(["--out", str(tmp_path), *options, *bindings])
  policy = study.load(tmp_path, "qlearner", 0, script_prob=0.5, stddev=0.01)
  env = grasp_env.GraspEnv(max_steps=2)
  seen: list[actors.rollouts.Episode] = []
  actors.run_env(env, policy, num_episodes=1, seed=0, episode_writer=seen.append)
  env.close()
  assert set(seen[0][0]["action"]) == set(grasp_models.ACTION_KEY)
  assert env.action_space.contains(seen[0][0]["action"])
