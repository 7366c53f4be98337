from __future__ import annotations

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import preprocessors, specs


def feature_spec(mode):
  shape = (4, 2) if mode == "train" else (2,)
  offsets = (-3, -2, -1, 0) if mode == "train" else 0
  return {
    "state": specs.ExtendedTensorSpec(shape, tf.float32, "s", time_offsets=offsets),
    "extra": specs.ExtendedTensorSpec((), tf.int64, "extra", is_optional=True),
  }


def test_specs_are_the_models_in_every_field():
  preprocessor = preprocessors.NoOpPreprocessor(feature_spec, feature_spec)
  for mode in specs.ModeKeys.ALL:
    for got in (
      preprocessor.get_in_feature_specification(mode),
      preprocessor.get_out_feature_specification(mode),
      preprocessor.get_in_label_specification(mode),
      preprocessor.get_out_label_specification(mode),
    ):
      want = feature_spec(mode)
      assert set(got) == set(want)
      assert all(got[path].is_identical_to(want[path]) for path in want)


def test_batches_pass_unchanged_and_absent_optionals_stay_absent():
  preprocessor = preprocessors.NoOpPreprocessor(feature_spec)
  state = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
  features, labels = preprocessor.preprocess({"state": state}, None, "train")
  assert list(features) == ["state"]
  np.testing.assert_array_equal(features.state, state)
  assert labels is None


def test_without_label_specs_labels_are_empty():
  preprocessor = preprocessors.NoOpPreprocessor(feature_spec, lambda mode: None)
  assert len(preprocessor.get_in_label_specification("train")) == 0
  state = np.zeros((2, 2), np.float32)
  _, labels = preprocessor.preprocess({"state": state}, {}, "eval")
  assert len(labels) == 0


def test_is_gin_configurable():
  gin.clear_config()
  gin.parse_config("ComposedPreprocessor.preprocessor_classes = [@NoOpPreprocessor]")
  try:
    (cls,) = gin.query_parameter("ComposedPreprocessor.preprocessor_classes")
    preprocessor = cls.scoped_configurable_fn(feature_spec)
  finally:
    gin.clear_config()
  assert isinstance(preprocessor, preprocessors.NoOpPreprocessor)
  assert len(preprocessor.get_in_label_specification("train")) == 0
