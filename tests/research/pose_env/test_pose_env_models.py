"""The models: specs, networks of 1 and 4 frames, loss, learning, the gin files."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from research.pose_env import pose_env_models
from t2r_seq import specs, windows
from t2r_seq.training.trainer import Trainer

ROOT = pathlib.Path(__file__).resolve().parents[3]

FRAMES = {
  "a single image": (None, (), None),
  "one frame": (1, (1,), (0,)),
  "four frames": (4, (4,), (-3, -2, -1, 0)),
}


@pytest.mark.parametrize("name", FRAMES)
def test_specs_follow_from_the_number_of_frames(name):
  num_frames, stack, offsets = FRAMES[name]
  model = pose_env_models.PoseEnvRegressionModel(num_frames=num_frames)
  for mode in specs.ModeKeys.ALL:
    image = model.get_feature_specification(mode)["state/image"]
    stored = model.preprocessor.get_in_feature_specification(mode)["state/image"]
    assert image.dtype == tf.float32
    assert stored.dtype == tf.uint8
    for spec in (image, stored):
      assert tuple(spec.shape) == (*stack, 64, 64, 3)
      assert (spec.name, spec.data_format) == ("state/image", "jpeg")
      assert spec.time_offsets == offsets
    labels = model.get_label_specification(mode)
    assert sorted(labels) == ["reward", "target_pose"]
    for spec in labels.values():
      assert spec.time_offsets == (None if num_frames is None else 0)


def test_episode_holds_the_labels_and_frames_of_every_model():
  record = pose_env_models.episode_specification()
  assert sorted(record) == ["pose", "reward", "state/image", "target_pose"]
  for num_frames in (1, 4):
    model = pose_env_models.PoseEnvRegressionModel(num_frames=num_frames)
    for want in (
      model.preprocessor.get_in_feature_specification("train"),
      model.preprocessor.get_in_label_specification("train"),
    ):
      for path, spec in windows.flat_specs(want).items():
        assert record[path].is_identical_to(spec), path


def random_batch(model, batch_size=3):
  """Returns preprocessed features and labels of random data."""
  features = specs.make_random_numpy(
    model.preprocessor.get_in_feature_specification("train"), batch_size=batch_size
  )
  labels = specs.make_random_numpy(
    model.preprocessor.get_in_label_specification("train"), batch_size=batch_size
  )
  features, labels = (
    specs.map_leaves(tf.constant, values) for values in (features, labels)
  )
  return model.preprocessor.preprocess(features, labels, "train")


@pytest.mark.parametrize("name", FRAMES)
def test_model_builds_and_its_loss_is_the_squared_distance(name):
  model = pose_env_models.PoseEnvRegressionModel(num_frames=FRAMES[name][0])
  model.build()
  features, labels = random_batch(model)
  outputs = model.inference_network_fn(features, labels, "train")
  action = outputs["inference_output"]
  assert action.shape == (3, 2)
  loss, scalars = model.train_loss(features, labels)
  difference = action - labels["target_pose"]
  np.testing.assert_allclose(loss, np.mean(np.square(difference)), rtol=1e-5)
  distance = np.linalg.norm(difference, axis=1).mean()
  np.testing.assert_allclose(scalars["distance"], distance, rtol=1e-5)


def test_every_frame_of_the_stack_matters():
  model = pose_env_models.PoseEnvRegressionModel(num_frames=4)
  model.build()
  features, _ = random_batch(model, batch_size=1)
  image = features["state/image"]
  for frame in range(4):
    with tf.GradientTape() as tape:
      tape.watch(image)
      features["state/image"] = image
      action = model.a_func(features, "train")["inference_output"]
    gradient = tape.gradient(action, image)
    assert float(tf.reduce_max(tf.abs(gradient[0, frame]))) > 0


@pytest.mark.parametrize("num_frames", [0, -1])
def test_stack_has_frames(num_frames):
  with pytest.raises(ValueError, match=f"expected >= 1 or None, got {num_frames}"):
    pose_env_models.PoseEnvRegressionModel(num_frames=num_frames)


def moving_dots(num_examples, seed):
  """Returns stacks of a sliding white square, and where it is two steps later."""
  random = np.random.RandomState(seed)
  start = random.uniform(24, 40, (num_examples, 2))
  velocity = random.uniform(-3, 3, (num_examples, 2))
  images = np.zeros((num_examples, 4, 64, 64, 3), np.float32)
  for example in range(num_examples):
    for step in range(4):
      row, column = (start[example] + step * velocity[example]).astype(int)
      images[example, step, row - 3 : row + 4, column - 3 : column + 4] = 1.0
  target = (start + 5 * velocity)[:, ::-1] / 32 - 1
  return images, target.astype(np.float32)


def test_stack_learns_motion_that_one_frame_does_not_show():
  images, targets = moving_dots(32, seed=0)
  losses = {}
  for num_frames in (1, 4):
    tf.keras.utils.set_random_seed(0)
    model = pose_env_models.PoseEnvRegressionModel(
      num_frames=num_frames,
      create_optimizer_fn=lambda: tf.keras.optimizers.Adam(3e-3),
    )
    trainer = Trainer(model, tf.distribute.get_strategy())
    features = specs.TensorSpecStruct(
      {"state/image": tf.constant(images[:, 4 - num_frames :])}
    )
    labels = specs.TensorSpecStruct(
      target_pose=tf.constant(targets), reward=tf.zeros((32, 1))
    )
    for _ in range(36):
      scalars = trainer.train_step(features, labels)
    losses[num_frames] = float(scalars["loss"])
  assert losses[4] < 0.5 * losses[1]
