"""Scripted collection: what is written is the episode, each frame once."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research.pose_env import collect, pose_env, pose_env_models, reward_model
from t2r_seq import actors, models, records, windows
from t2r_seq.actors.rollouts import generate_episodes

ROOT = pathlib.Path(__file__).resolve().parents[3]
NUM_STEPS = 5
# JPEG at 64x64: the mean difference of a frame's bytes stays far below this.
JPEG_TOLERANCE = 6.0


@pytest.fixture
def env():
  made = pose_env.MovingPoseEnv(num_steps=NUM_STEPS)
  yield made
  made.close()


def collect_moving(env, path, num_episodes=3, seed=0):
  return actors.collect_episodes(
    env=env,
    policy=collect.PoseEnvExpertPolicy(env, noise=0.2),
    spec=pose_env_models.episode_specification,
    num_episodes=num_episodes,
    output_path=str(path),
    seed=seed,
    episode_to_features_fn=collect.pose_episode_to_features,
  )


def read_episodes(path):
  parse = records.create_parse_tf_example_fn(pose_env_models.episode_specification())
  return [
    {name: value.numpy() for name, value in parse(serialized).items()}
    for serialized in tf.data.TFRecordDataset(str(path))
  ]


def test_writing_and_parsing_gives_back_the_episodes(env, tmp_path):
  path = tmp_path / "moving.tfrecord"
  collect_moving(env, path)
  found = read_episodes(path)
  assert len(found) == 3
  policy = collect.PoseEnvExpertPolicy(env, noise=0.2)
  for got, steps in zip(found, generate_episodes(env, policy, 3, seed=0), strict=True):
    want = collect.pose_episode_to_features(steps)
    assert sorted(got) == sorted(want)
    for name in ("pose", "target_pose", "reward"):
      assert got[name].dtype == np.float32
      np.testing.assert_array_equal(got[name], want[name])
    images, seen = got["state/image"], want["state/image"]
    assert images.shape == (NUM_STEPS, 64, 64, 3)
    assert images.dtype == np.uint8
    assert np.abs(images.astype(int) - seen).mean() < JPEG_TOLERANCE


def test_each_frame_stands_in_the_record_once(env, tmp_path):
  path = tmp_path / "moving.tfrecord"
  collect_moving(env, path, num_episodes=1)
  (serialized,) = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
  example = tf.train.SequenceExample.FromString(serialized)
  assert not example.context.feature
  lists = example.feature_lists.feature_list
  assert {name: len(values.feature) for name, values in lists.items()} == {
    "state/image": NUM_STEPS,
    "pose": NUM_STEPS,
    "target_pose": NUM_STEPS,
    "reward": NUM_STEPS,
  }
  frames = [value.bytes_list.value for value in lists["state/image"].feature]
  assert [len(frame) for frame in frames] == [1] * NUM_STEPS
  assert len({frame[0] for frame in frames}) == NUM_STEPS


def test_recorded_reward_is_minus_the_distance(env, tmp_path):
  path = tmp_path / "moving.tfrecord"
  collect_moving(env, path)
  for episode in read_episodes(path):
    distance = np.linalg.norm(episode["pose"] - episode["target_pose"], axis=1)
    np.testing.assert_allclose(episode["reward"][:, 0], -distance, atol=1e-6)
    assert distance.min() > 0


def test_same_seed_writes_same_bytes(env, tmp_path):
  paths = [tmp_path / f"{i}.tfrecord" for i in range(3)]
  for path, seed in zip(paths, (1, 1, 2), strict=True):
    collect_moving(env, path, num_episodes=2, seed=seed)
  first, again, other = (path.read_bytes() for path in paths)
  assert first == again
  assert first != other


@pytest.mark.parametrize("task", ["still", "moving"])
def test_gin_files_collect(task, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  gin.parse_config_files_and_bindings(
    [f"research/pose_env/configs/collect_{task}.gin"],
    [
      f"collect_episodes.output_path = '{tmp_path / 'data.tfrecord'}'",
      "collect_episodes.num_episodes = 2",
    ],
  )
  metrics = actors.collect_episodes()
  assert metrics["num_episodes"] == 2
  assert -0.6 < metrics["episode_reward"] / metrics["episode_length"] < -0.01
  episodes = read_episodes(tmp_path / "data.tfrecord")
  assert [len(e["pose"]) for e in episodes] == [1 if task == "still" else 16] * 2


EXPERTS = {
  "knows the velocity": (dict(), 0.0),
  "knows the position": (dict(knows_velocity=False), 6 * 0.05),
  "is noisy": (dict(noise=0.1), 0.1 * np.sqrt(np.pi / 2)),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_expert(name):
  arguments, want = EXPERTS[name]
  env = pose_env.MovingPoseEnv(min_speed=0.05, max_speed=0.05)
  metrics = actors.run_env(
    env=env,
    policy=collect.PoseEnvExpertPolicy(env, **arguments),
    num_episodes=10,
    seed=0,
    episode_metrics_fn=collect.pose_error,
  )
  env.close()
  assert metrics["pose_error"] == pytest.approx(want, rel=0.15, abs=1e-6)
  assert metrics["episode_reward"] == pytest.approx(
    -16 * metrics["pose_error"], abs=1e-4
  )


def test_random_policy_is_repeatable_and_stays_in_bounds():
  policy = collect.PoseEnvRandomPolicy()
  policy.seed(3)
  actions = np.stack([policy.sample_action(None, 0.0)[0] for _ in range(100)])
  policy.seed(3)
  np.testing.assert_array_equal(policy.sample_action(None, 0.0)[0], actions[0])
  assert np.abs(actions).max() <= 1.0
  assert actions.std() > 0.4


def test_replay_step_matches_specs_without_the_target(env):
  (steps,) = generate_episodes(env, collect.PoseEnvRandomPolicy(), 1, seed=0)
  model = reward_model.PoseEnvRewardModel()
  flat = windows.flat_specs(models.training_specification(model))
  assert sorted(flat) == ["pose", "reward", "state/image"]
  for step in steps:
    features = collect.pose_step_to_features(step)
    assert {path: (value.shape, value.dtype) for path, value in features.items()} == {
      path: (tuple(spec.frame_shape), spec.dtype) for path, spec in flat.items()
    }
    distance = np.linalg.norm(step["action"] - step["info"]["target_pose"])
    np.testing.assert_allclose(features["reward"], [-distance], rtol=1e-5)
