"""A small model on real images and a state, and the episodes that it trains on.

Run as a script it trains: `python reach_model.py MODEL_DIR RECORDS MAX_STEPS`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from t2r_seq import data, models, preprocessors, records, specs, training, windows

SIZE = 8
SPEC = specs.ExtendedTensorSpec


class ReachModel(models.RegressionModel):
  """Regresses `target` from a stack of three frames and the present state."""

  def __init__(self, learning_rate: float = 1e-2, **kwargs):
    kwargs.setdefault(
      "create_optimizer_fn", lambda: tf.keras.optimizers.Adam(learning_rate)
    )
    super().__init__(**kwargs)

  @property
  def default_preprocessor_cls(self):
    return preprocessors.ImageToFloatPreprocessor

  def get_feature_specification(self, mode: str):
    return specs.TensorSpecStruct(
      {
        "state/image": SPEC(
          (3, SIZE, SIZE, 3),
          tf.float32,
          "image",
          data_format="png",
          time_offsets=(-2, -1, 0),
        ),
        "state/velocity": SPEC((2,), tf.float32, "velocity", time_offsets=0),
        "task": SPEC((1,), tf.float32, "task"),
      }
    )

  def get_label_specification(self, mode: str):
    return specs.TensorSpecStruct(
      target=SPEC((2,), tf.float32, "target", time_offsets=0)
    )

  def create_network(self):
    return {
      "norm": tf.keras.layers.BatchNormalization(),
      "out": tf.keras.layers.Dense(
        2, kernel_regularizer=tf.keras.regularizers.L2(1e-4)
      ),
    }

  def a_func(self, features, mode):
    pixels = tf.reshape(features.state.image, [-1, 3 * SIZE * SIZE * 3])
    joined = tf.concat([pixels, features.state.velocity, features.task], axis=1)
    # What users write may branch on tensors, in a train step and in an export.
    if tf.reduce_any(tf.math.is_nan(joined)):
      joined = tf.zeros_like(joined)
    normed = self.network["norm"](joined, training=mode == specs.ModeKeys.TRAIN)
    return {"inference_output": self.network["out"](normed), "normed": normed}


class LinearReachModel(ReachModel):
  """Without batch statistics, which are a replica's own: for runs to be compared."""

  def create_network(self):
    return {
      "norm": tf.keras.layers.Activation("linear"),
      "out": tf.keras.layers.Dense(2),
    }


def episode_spec(model: models.T2RModel) -> specs.TensorSpecStruct:
  """Returns what a record of the model's features and labels holds."""
  features = model.preprocessor.get_in_feature_specification("train")
  labels = model.preprocessor.get_in_label_specification("train")
  return windows.flat_specs({"features": features, "labels": labels})


def episodes(lengths=(7, 3, 1, 9), seed: int = 0) -> Iterator[specs.TensorSpecStruct]:
  """Yields flat episodes; the target is twice the velocity."""
  rng = np.random.default_rng(seed)
  for num_steps in lengths:
    velocity = rng.random((num_steps, 2), dtype=np.float32)
    yield specs.TensorSpecStruct(
      {
        "features/state/image": rng.integers(
          0, 255, (num_steps, SIZE, SIZE, 3), dtype=np.uint8
        ),
        "features/state/velocity": velocity,
        "features/task": np.ones(1, np.float32),
        "labels/target": 2 * velocity,
      }
    )


def write_episodes(path: str, **kwargs) -> str:
  """Writes the episodes to a record file; returns its path."""
  records.write_records(path, episode_spec(ReachModel()), episodes(**kwargs))
  return path


def examples() -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
  """Yields the windows of the episodes, without what reads them from a file."""
  for episode in episodes():
    images = episode["features/state/image"]
    for t, target in enumerate(episode["labels/target"]):
      features = {
        "state/image": images[np.maximum(t + np.arange(-2, 1), 0)],
        "state/velocity": episode["features/state/velocity"][t],
        "task": episode["features/task"],
      }
      yield features, {"target": target}


def _generator(path: str | None, **kwargs) -> data.AbstractInputGenerator:
  if path is None:
    return data.GeneratorInputGenerator(examples, batch_size=8)
  return data.DefaultRecordInputGenerator(path, batch_size=8, **kwargs)


def train(
  model_dir: str, path: str | None, max_train_steps: int, **kwargs
) -> dict[str, float]:
  """Trains on a record file with settings that suit a test.

  None for the file trains on its windows all the same: the pipelines of two record
  generators are half of what a run of some steps costs.
  """
  kwargs.setdefault("t2r_model", ReachModel())
  config = {"save_checkpoints_steps": 10, "log_every_n_steps": 10, "seed": 3}
  for field in dataclasses.fields(training.RunConfig):
    if field.name in kwargs:
      config[field.name] = kwargs.pop(field.name)
  if "input_generator_eval" not in kwargs:
    kwargs["input_generator_eval"] = _generator(path)
  if "input_generator_train" not in kwargs:
    kwargs["input_generator_train"] = _generator(path, seed=1)
  return training.train_eval_model(
    max_train_steps=max_train_steps,
    model_dir=model_dir,
    run_config=training.RunConfig(**config),
    **kwargs,
  )


if __name__ == "__main__":
  train(sys.argv[1], sys.argv[2], int(sys.argv[3]), create_exporters_fn=lambda: [])
