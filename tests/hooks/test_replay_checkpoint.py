"""A training that is run again goes on with the replay that it had."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models, replay, specs, training
from t2r_seq.hooks.callbacks import ReplayCheckpoint
from t2r_seq.specs import ExtendedTensorSpec as Spec

FEATURES = specs.TensorSpecStruct(x=Spec((1,), tf.float32, "x", time_offsets=0))
LABELS = specs.TensorSpecStruct(y=Spec((1,), tf.float32, "y", time_offsets=0))


class Line(models.RegressionModel):
  """Draws a line."""

  def get_feature_specification(self, mode):
    return FEATURES

  def get_label_specification(self, mode):
    return LABELS

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def a_func(self, features, mode):
    return {"inference_output": self.network(features.x)}

  def model_train_fn(self, features, labels, inference_outputs, mode):
    error = inference_outputs["inference_output"] - labels.y
    return tf.reduce_mean(tf.square(error))


def make_buffer(folder=None):
  both = specs.TensorSpecStruct(x=FEATURES.x, y=LABELS.y)
  return replay.ReplayBuffer(both, 50, seed=0, checkpoint_dir=folder)


def train(buffer, callback, folder, max_train_steps):
  training.train_eval_model(
    Line(),
    input_generator_train=replay.ReplayInputGenerator(buffer, 4),
    max_train_steps=max_train_steps,
    run_config=training.RunConfig(save_checkpoints_steps=2),
    model_dir=str(folder),
    create_exporters_fn=None,
    callbacks=[callback],
  )


def append(buffer, num_steps):
  with buffer.writer() as writer:
    for t in range(num_steps):
      value = np.full(1, t, np.float32)
      writer.append({"x": value, "y": value})
    writer.end_episode()


def test_replay_is_saved_and_restored(tmp_path):
  run, saved = tmp_path / "run", tmp_path / "replay"
  # What a process leaves that was killed while it saved for the first time.
  (saved / f".checkpoint-00000001.{'0' * 32}.tmp").mkdir(parents=True)
  (saved / ".lock").touch()
  with make_buffer(saved) as buffer:
    callback = ReplayCheckpoint(buffer)
    append(buffer, 7)
    train(buffer, callback, run, 2)
  with make_buffer(saved) as buffer:
    callback = ReplayCheckpoint(buffer)
    assert buffer.counters.num_items == 7
    append(buffer, 5)
    train(buffer, callback, run, 4)
  with make_buffer(saved) as buffer:
    append(buffer, 1)
    with pytest.raises(errors.ReplayError, match="expected a buffer without steps"):
      ReplayCheckpoint(buffer)
  with make_buffer(saved) as buffer:
    ReplayCheckpoint(buffer)
    assert buffer.counters.num_items == 12
  want = "resume: expected a buffer with a checkpoint_dir, got one without"
  with make_buffer() as buffer, pytest.raises(errors.ReplayError, match=want):
    ReplayCheckpoint(buffer)
