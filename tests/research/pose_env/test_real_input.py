"""Tensor2Robot's own test data: parsed, checked, trained on by gin, and served."""

from __future__ import annotations

import pathlib

import gin
import numpy as np
import pytest
import tensorflow as tf

from research.pose_env import pose_env_models
from t2r_seq import data, policies, records, specs, training

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def examples(pose_env_data):
  """The parsed records, all paths in one batch."""
  spec = pose_env_models.image_specification(num_frames=None)
  for path, leaf in pose_env_models.label_specification(is_windowed=False).items():
    spec[path] = leaf
  spec["pose"] = specs.ExtendedTensorSpec((2,), tf.float32, name="pose")
  parse = records.create_parse_tf_example_fn(spec)
  parsed = [parse(record) for record in tf.data.TFRecordDataset(str(pose_env_data))]
  return {path: np.stack([example[path] for example in parsed]) for path in spec}


def test_all_records_parse(examples):
  shapes = {path: (value.shape, value.dtype) for path, value in examples.items()}
  assert shapes == {
    "state/image": ((100, 64, 64, 3), np.uint8),
    "target_pose": ((100, 2), np.float32),
    "reward": ((100, 1), np.float32),
    "pose": ((100, 2), np.float32),
  }
  spread = examples["state/image"].reshape(100, -1).std(axis=1)
  assert spread.min() > 5  # Pictures, not blank frames.


def test_reward_is_minus_the_distance(examples):
  distance = np.linalg.norm(examples["pose"] - examples["target_pose"], axis=1)
  np.testing.assert_allclose(examples["reward"][:, 0], -distance, atol=1e-6)


def test_trains_by_gin_exports_and_predicts(
  examples, pose_env_data, tmp_path, monkeypatch
):
  monkeypatch.chdir(ROOT)
  tf.keras.utils.set_random_seed(0)
  gin.parse_config_files_and_bindings(
    ["research/pose_env/configs/t2r_test_data.gin"],
    [
      f"TRAIN_DATA = {str(pose_env_data)!r}",
      f"train_eval_model.model_dir = {str(tmp_path)!r}",
    ],
  )
  metrics = training.train_eval_model()
  assert metrics["global_step"] == 300
  targets = examples["target_pose"]
  # What is reached without looking at the image.
  constant_loss = np.mean(np.square(targets - targets.mean(axis=0)))
  assert metrics["loss"] < 0.3 * constant_loss

  predictor = policies.ExportedSavedModelPredictor(
    str(tmp_path / "export" / "latest"), timeout=0.0
  )
  assert predictor.restore()
  assert predictor.global_step == 300
  features = {"state/image": examples["state/image"]}
  predicted = predictor.predict(features)["inference_output"]
  assert predicted.shape == (100, 2)
  loss = np.mean(np.square(predicted - targets))
  np.testing.assert_allclose(loss, metrics["loss"], rtol=1e-3)
  serialized = [r.numpy() for r in tf.data.TFRecordDataset(str(pose_env_data)).take(5)]
  from_records = predictor.predict_records(serialized)["inference_output"]
  np.testing.assert_allclose(from_records, predicted[:5], atol=1e-5)
  policy = policies.RegressionPolicy(predictor)
  action, _ = policy.sample_action({"state": {"image": examples["state/image"][0]}})
  np.testing.assert_allclose(action, predicted[0], atol=1e-5)


def test_critic_of_single_images_trains_and_values_poses(
  examples, pose_env_data, tmp_path
):
  training.train_eval_model(
    pose_env_models.PoseEnvContinuousMCModel(num_frames=None),
    data.DefaultRecordInputGenerator(str(pose_env_data), batch_size=8),
    max_train_steps=2,
    model_dir=str(tmp_path),
  )
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path / "export" / "latest"))
  assert predictor.restore()
  asked = {"state/image": examples["state/image"], "action/pose": examples["pose"]}
  assert predictor.predict(asked)["q_predicted"].shape == (100, 1)
