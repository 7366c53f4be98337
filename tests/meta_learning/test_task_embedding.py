"""Models that embed a task: learning by gin-able parts, adaptation in the export."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, meta_learning, models, policies, training
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.training.trainer import Trainer


class DirectionModel(models.RegressionModel):
  """y = w . x, of a w that the embedding has to tell."""

  def __init__(self, size=4, **kwargs):
    super().__init__(action_size=1, **kwargs)
    self._size = size

  def get_feature_specification(self, mode):
    del mode
    spec = TensorSpecStruct(x=ExtendedTensorSpec((2,), tf.float32, name="x"))
    if self._size:
      spec.task_embedding = ExtendedTensorSpec((self._size,), tf.float32)
    return spec

  def get_label_specification(self, mode):
    del mode
    return TensorSpecStruct(target=ExtendedTensorSpec((1,), tf.float32, name="y"))

  def create_network(self):
    return tf.keras.Sequential(
      [tf.keras.layers.Dense(32, activation="relu"), tf.keras.layers.Dense(1)]
    )

  def a_func(self, features, mode):
    del mode
    inputs = tf.concat([features.x, features.task_embedding], axis=-1)
    return {"inference_output": self.network(inputs)}


def make_tasks(rng, num_tasks=32, num_condition=3, num_inference=2):
  """Returns features and labels of tasks y = w . x, with w of norm 1."""
  x = rng.normal(size=[num_tasks, num_condition + num_inference, 2]).astype("float32")
  angle = rng.uniform(-np.pi, np.pi, size=num_tasks)
  w = np.stack([np.cos(angle), np.sin(angle)], -1)[:, :, None]
  y = (x @ w).astype("float32")
  n = num_condition
  features = {
    "condition/features/x": x[:, :n],
    "condition/labels/target": y[:, :n],
    "inference/features/x": x[:, n:],
  }
  struct = TensorSpecStruct((p, tf.constant(v)) for p, v in features.items())
  return struct, TensorSpecStruct(target=tf.constant(y[:, n:]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns the losses of a training, and a predictor of its export."""
  tf.keras.utils.set_random_seed(0)
  model = meta_learning.TaskEmbeddingModel(
    DirectionModel(),
    contrastive_weight=0.01,
    create_optimizer_fn=lambda: tf.keras.optimizers.Adam(3e-3),
  )
  trainer = Trainer(model, tf.distribute.get_strategy())
  rng, losses = np.random.default_rng(0), []
  for _ in range(300):
    scalars = trainer.train_step(*make_tasks(rng))
    losses.append(float(scalars["loss"]))
  assert "contrastive_loss" in scalars
  folder = str(tmp_path_factory.mktemp("export"))
  training.export_saved_model(model, folder, 300)
  predictor = policies.ExportedSavedModelPredictor(folder, timeout=0.0)
  assert predictor.restore()
  return losses, predictor


def test_task_embedding_learns_tasks(trained):
  losses, _ = trained
  assert np.mean(losses[:10]) > 0.7  # The variance of y is 1.
  assert np.mean(losses[-20:]) < 0.4


def test_export_step_uses_the_adapted_task(trained):
  _, predictor = trained
  features, labels = make_tasks(np.random.default_rng(1), num_tasks=2)
  assert list(predictor.get_step_specification()) == ["x"]
  want = predictor.predict({p: x.numpy() for p, x in features.items()})
  assert want["inference_output"].shape == labels["target"].shape
  x = features["inference/features/x"].numpy()
  condition = {
    path: value.numpy() for path, value in features.items() if "condition" in path
  }
  pure = predictor.pure
  state = pure.adapt(condition, pure.initial_state([0, 1]))
  predicted, state = pure.step({"x": x[:, 0]}, state, [True, True])
  np.testing.assert_allclose(
    predicted["inference_output"], want["inference_output"][:, 0], rtol=1e-4, atol=1e-5
  )
  # Another episode of the task; and what is known before any.
  again, _ = pure.step({"x": x[:, 0]}, state, [True, True])
  np.testing.assert_array_equal(
    again["inference_output"], predicted["inference_output"]
  )
  fresh, _ = pure.step({"x": x[:, 0]}, pure.initial_state([0, 1]), [True, True])
  assert np.abs(fresh["inference_output"] - predicted["inference_output"]).max() > 1e-2


def test_sequence_embedding_depends_on_order():
  """The label is whether x rises or falls over the condition, which no mean tells."""
  rng = np.random.default_rng(0)

  def tasks(num_tasks=64):
    sign = rng.choice([-1.0, 1.0], [num_tasks, 1, 1]).astype("float32")
    steps = np.linspace(-1, 1, 4, dtype="float32")[:, None] * np.ones(2, "float32")
    features = {
      "condition/features/x": sign * steps,
      "condition/labels/target": np.zeros([num_tasks, 4, 1], "float32"),
      "inference/features/x": np.zeros([num_tasks, 1, 2], "float32"),
    }
    return TensorSpecStruct(features), TensorSpecStruct(target=sign)

  last = {}
  for create in (None, meta_learning.task_embedding_model.SequenceEmbedding):
    tf.keras.utils.set_random_seed(0)
    model = meta_learning.TaskEmbeddingModel(
      DirectionModel(),
      create_sequence_fn=create and (lambda size, make=create: make(size, 4)),
      create_optimizer_fn=lambda: tf.keras.optimizers.Adam(1e-2),
    )
    trainer = Trainer(model, tf.distribute.get_strategy())
    losses = [float(trainer.train_step(*tasks())["loss"]) for _ in range(40)]
    last[create] = np.mean(losses[-5:])
  assert last[None] > 0.7
  assert last[meta_learning.task_embedding_model.SequenceEmbedding] < 0.1


def test_images_are_embedded_by_a_tower():
  layer = meta_learning.task_embedding_model.SampleEmbedding(5)
  sample = {
    "features/image": tf.random.normal([3, 2, 32, 32, 3]),
    "labels/pose": tf.random.normal([3, 2]),
  }
  assert layer(sample).shape == (3, 5)


def test_base_model_requires_task_embedding():
  want = r"TaskEmbeddingModel: base_model: expected a feature 'task_embedding' float32"
  with pytest.raises(errors.SpecError, match=want):
    meta_learning.TaskEmbeddingModel(DirectionModel(size=0))
