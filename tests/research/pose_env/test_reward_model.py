"""Learning from rewards alone: the specs, the loss, and that the peak is found."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from research.pose_env import pose_env_models, reward_model
from t2r_seq import specs, windows
from t2r_seq.training.trainer import Trainer


def test_labels_are_poses_and_rewards():
  model = reward_model.PoseEnvRewardModel()
  flat = windows.flat_specs(model.get_label_specification("train"))
  assert sorted(flat) == ["pose", "reward"]
  recorded = pose_env_models.episode_specification()
  for path, spec in flat.items():
    assert recorded[path].is_identical_to(spec), path
  image = model.get_feature_specification("train")["state/image"]
  assert image.time_offsets == (-3, -2, -1, 0)


LOSSES = {
  # name: (predicted, tried, reward, loss, error)
  "right": ([0.3, 0.4], [0.0, 0.0], -0.5, 0.0, 0.0),
  "anywhere on the circle": ([-0.5, 0.0], [0.0, 0.0], -0.5, 0.0, 0.0),
  "too near": ([0.1, 0.0], [0.0, 0.0], -0.5, 0.16, 0.4),
  "too far": ([1.0, 0.0], [0.0, 0.0], -0.5, 0.25, 0.5),
  "the tried one": ([0.2, 0.2], [0.2, 0.2], 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_the_squared_error_of_the_reward(name):
  predicted, tried, reward, want_loss, want_error = LOSSES[name]
  model = reward_model.PoseEnvRewardModel()
  output = tf.constant([predicted])
  labels = specs.TensorSpecStruct(
    pose=tf.constant([tried]), reward=tf.constant([[reward]])
  )
  with tf.GradientTape() as tape:
    tape.watch(output)
    loss, scalars = model.model_train_fn(
      specs.TensorSpecStruct(), labels, {"inference_output": output}, "train"
    )
  assert float(loss) == pytest.approx(want_loss, abs=1e-4)
  assert float(scalars["reward_error"]) == pytest.approx(want_error, abs=2e-3)
  assert np.isfinite(tape.gradient(loss, output)).all()


def test_many_tries_tell_where_the_target_is():
  random = np.random.RandomState(0)
  tf.keras.utils.set_random_seed(0)
  model = reward_model.PoseEnvRewardModel(
    num_frames=1, create_optimizer_fn=lambda: tf.keras.optimizers.Adam(3e-3)
  )
  trainer = Trainer(model, tf.distribute.get_strategy())
  # A white square; the target is its place.
  places = random.uniform(-0.6, 0.6, (64, 2)).astype(np.float32)
  images = np.zeros((64, 1, 64, 64, 3), np.float32)
  for image, (x, y) in zip(images, places, strict=True):
    row, column = int(32 + 32 * y), int(32 + 32 * x)
    image[0, row - 3 : row + 4, column - 3 : column + 4] = 1.0
  features = specs.TensorSpecStruct({"state/image": tf.constant(images)})
  for _ in range(100):
    tried = random.uniform(-1, 1, (64, 2)).astype(np.float32)
    reward = -np.linalg.norm(tried - places, axis=1, keepdims=True)
    labels = specs.TensorSpecStruct(pose=tf.constant(tried), reward=tf.constant(reward))
    trainer.train_step(features, labels)
  action = model.a_func(features, "infer")["inference_output"].numpy()
  distance = np.linalg.norm(action - places, axis=1).mean()
  assert distance < 0.2 * np.linalg.norm(places, axis=1).mean()
