"""Grasps from end to end, on next to no data: logged, learned from, exported, acted."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research import runs
from research.qtopt import grasp_env, grasp_models, grasp_policies
from t2r_seq import actors, policies, store, training

ROOT = pathlib.Path(__file__).resolve().parents[3]
CONFIGS = "research/qtopt/configs"


def test_logged_grasps_train_a_critic_whose_export_grasps(tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  logs, model_dir = str(tmp_path / "logs"), str(tmp_path / "run")
  collecting = (f"STORE_DIR = {logs!r}", "collect_episodes.num_episodes = 8")
  with runs.configured(f"{CONFIGS}/collect_grasps.gin", *collecting):
    assert actors.collect_episodes()["num_episodes"] == 8
  episode = store.EpisodeStore(logs).episode(0)
  # One observation more than actions; what is behind the last action is zeros.
  assert not episode["action/vertical_rotation"][-1].any()
  assert np.abs(episode["action/vertical_rotation"][:-1]).max(axis=1).min() > 0
  training_it = (
    f"STORE_DIR = {logs!r}",
    f"train_eval_model.model_dir = {model_dir!r}",
    "NUM_TRAIN_STEPS = 1",
    "StoreInputGenerator.batch_size = 4",
    "act/CrossEntropySearch.num_iterations = 1",
  )
  with runs.configured(f"{CONFIGS}/train_grasp_qlearner.gin", *training_it):
    metrics = training.train_eval_model(seed=0)
  assert 0 < metrics["q_target"] < 1
  policy = grasp_policies.GraspPolicy(
    policies.ExportedSavedModelPredictor(f"{model_dir}/export/latest", timeout=0.0),
    script_prob=0.5,
    stddev=0.01,
  )
  env = grasp_env.GraspEnv(max_steps=2)
  seen: list[actors.Episode] = []
  actors.run_env(env, policy, num_episodes=1, seed=0, episode_writer=seen.append)
  env.close()
  assert set(seen[0][0]["action"]) == set(grasp_models.ACTION_KEY)
  assert env.action_space.contains(seen[0][0]["action"])
