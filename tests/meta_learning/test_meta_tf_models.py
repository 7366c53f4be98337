"""Pairs of what a task is learned from and what that is tried on, and their models."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import (
  data,
  errors,
  models,
  policies,
  preprocessors,
  training,
)
from t2r_seq.meta_learning import meta_tf_models
from t2r_seq.meta_learning.meta_tf_models import MetalearningModel, MetaPreprocessor
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct, make_random_numpy


class SumModel(models.RegressionModel):
  """Gives the specs of a sample."""

  def get_feature_specification(self, mode):
    return TensorSpecStruct(
      x=ExtendedTensorSpec((2,), tf.float32, "x"),
      hint=ExtendedTensorSpec((1,), tf.float32, "hint", is_optional=True),
    )

  def get_label_specification(self, mode):
    return TensorSpecStruct(target=ExtendedTensorSpec((1,), tf.float32, "y"))

  def create_network(self):
    return {}

  def a_func(self, features, mode):
    return {"inference_output": tf.reduce_sum(features.x, -1, keepdims=True)}


class MeanModel(MetalearningModel):
  """Adds the mean of what the task is learned from."""

  def create_network(self):
    return tf.keras.layers.Dense(1)

  def inference_network_fn(self, features, labels, mode):
    seen = tf.reduce_mean(features.train.x, axis=1, keepdims=True)
    return {"inference_output": self.network(features.val.x + seen)}

  def model_train_fn(self, features, labels, inference_outputs, mode):
    error = inference_outputs["inference_output"] - labels.val.target
    return tf.reduce_mean(tf.square(error))


class NegatingPreprocessor(preprocessors.NoOpPreprocessor):
  def _preprocess_fn(self, features, labels, mode):
    features.x = -features.x
    return features, labels


def test_pair_specs_are_required():
  model = MeanModel(SumModel(action_size=1), 2, 3)
  for kind, want in {
    "feature": {"train/x", "train/hint", "val/x", "val/hint", "val_mode"},
    "label": {"train/target", "val/target", "val_mode"},
  }.items():
    of_model = getattr(model, f"get_{kind}_specification")("train")
    stored = getattr(model.preprocessor, f"get_in_{kind}_specification")("train")
    assert set(of_model) == set(stored) == want
    assert not any(spec.is_optional for spec in stored.values())
  features = model.preprocessor.get_in_feature_specification("train")
  assert features["train/x"].shape == (2, 2) and features["val/x"].shape == (3, 2)
  assert features["val/x"].name == "val/x"
  assert features["val_mode"].name == "val_mode/features"
  with pytest.raises(errors.SpecError, match="expected at least 1, got \\(2, 0\\)"):
    MeanModel(SumModel(action_size=1), 2, 0)


@pytest.mark.parametrize("has_labels", [True, False])
def test_both_parts_are_preprocessed(has_labels):
  base = SumModel(action_size=1, preprocessor_cls=NegatingPreprocessor)
  preprocessor = MetaPreprocessor(base.preprocessor, 2, 3)
  spec = preprocessor.get_in_feature_specification("train")
  given = make_random_numpy(spec, batch_size=4, seed=0)
  labels = None
  if has_labels:
    spec = preprocessor.get_in_label_specification("train")
    labels = make_random_numpy(spec, batch_size=4, seed=0)
  done, done_labels = preprocessor.preprocess(given, labels, "train")
  for part in ("train", "val"):
    np.testing.assert_array_equal(done[f"{part}/x"], -given[f"{part}/x"])
    np.testing.assert_array_equal(done[f"{part}/hint"], given[f"{part}/hint"])
    if has_labels:
      got = done_labels[f"{part}/target"]
      np.testing.assert_array_equal(got, labels[f"{part}/target"])
  assert has_labels or done_labels is None


def test_model_of_pairs_trains_and_exports(tmp_path):
  model = MeanModel(SumModel(action_size=1), 2, 3)
  training.train_eval_model(
    model,
    data.DefaultRandomInputGenerator(batch_size=4, seed=0),
    data.DefaultRandomInputGenerator(batch_size=4, seed=1),
    max_train_steps=2,
    eval_steps=1,
    model_dir=str(tmp_path),
  )
  predictor = policies.ExportedSavedModelPredictor(str(tmp_path / "export" / "latest"))
  predictor.restore()
  given = make_random_numpy(predictor.get_feature_specification(), 4, seed=2)
  mean = given["train/x"].mean(axis=1, keepdims=True)
  want = model.network(given["val/x"] + mean)
  predicted = predictor.predict(given)["inference_output"]
  np.testing.assert_allclose(predicted, want, rtol=1e-5)


def test_select_mode():
  train = {"a": tf.zeros([3, 2, 4])}
  is_val = tf.constant([[True], [False], [True]])
  chosen = meta_tf_models.select_mode(is_val, train, {"a": train["a"] + 1})
  assert chosen.a.shape == (3, 2, 4)
  np.testing.assert_array_equal(chosen.a[:, 1, 3], [1, 0, 1])
