"""Chains of preprocessors, and the one that changes nothing."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, specs

IMAGE = specs.ExtendedTensorSpec(
  (2, 4, 4, 3), tf.float32, "img", data_format="png", time_offsets=(-1, 0)
)


def feature_spec(mode):
  del mode
  return {"image": IMAGE}


class AddOne(preprocessors.NoOpPreprocessor):
  def _preprocess_fn(self, features, labels, mode):
    features["image"] = features["image"] + 1.0
    return features, labels


class Double(preprocessors.NoOpPreprocessor):
  def _preprocess_fn(self, features, labels, mode):
    features["image"] = features["image"] * 2.0
    return features, labels


class Crop(preprocessors.SpecTransformationPreprocessor):
  """Takes images two pixels larger."""

  def _transform_in_feature_specification(self, tensor_spec_struct):
    stack, height, width, depth = tensor_spec_struct.image.shape
    shape = (stack, height + 2, width + 2, depth)
    return self.update_spec(tensor_spec_struct, "image", shape=shape)

  def _preprocess_fn(self, features, labels, mode):
    features["image"] = features["image"][:, :, 1:-1, 1:-1]
    return features, labels


class Fixed(preprocessors.AbstractPreprocessor):
  """Knows nothing of the model: its specs are its own."""

  def __init__(
    self, model_feature_specification_fn=None, model_label_specification_fn=None
  ):
    super().__init__()

  def get_in_feature_specification(self, mode):
    return {"a": IMAGE, "picture": IMAGE}

  get_out_feature_specification = get_in_feature_specification

  def get_in_label_specification(self, mode):
    return {}

  get_out_label_specification = get_in_label_specification

  def _preprocess_fn(self, features, labels, mode):
    return features, labels


def compose(*classes):
  return preprocessors.ComposedPreprocessor(
    feature_spec, None, preprocessor_classes=classes
  )


@pytest.mark.parametrize(
  ("classes", "want"), [((AddOne, Double), 4.0), ((Double, AddOne), 3.0)]
)
def test_runs_in_the_order_of_the_list(classes, want):
  given = {"image": np.ones((1, 2, 4, 4, 3), np.float32)}
  got, labels = compose(*classes).preprocess(given, None, "train")
  np.testing.assert_array_equal(got["image"], np.full((1, 2, 4, 4, 3), want))
  assert labels is None


def test_specs_go_backwards_through_the_chain():
  composed = compose(Crop, preprocessors.ImageToFloatPreprocessor)
  got = composed.get_in_feature_specification("train")["image"]
  want = {**IMAGE.fields(), "dtype": tf.uint8, "shape": tf.TensorShape((2, 6, 6, 3))}
  assert got.fields() == want
  assert composed.get_out_feature_specification("eval")["image"].is_identical_to(IMAGE)
  assert [type(stage) for stage in composed.stages] == [
    Crop,
    preprocessors.ImageToFloatPreprocessor,
  ]
  given = np.arange(2 * 36 * 3, dtype=np.uint8).reshape(1, 2, 6, 6, 3)
  features, _ = composed.preprocess({"image": given}, None, "train")
  want_image = given[:, :, 1:-1, 1:-1] / np.float32(255)
  np.testing.assert_allclose(features["image"], want_image, rtol=1e-6)


@pytest.mark.parametrize(
  ("classes", "want"),
  [
    ((), "expected at least one, got none"),
    ((Double, Fixed), r"stage 2 of 2: Fixed: .*features/image \(mode train, eval, inf"),
    ((Fixed, Double), r"stage 1 of 2: Fixed: .*got nothing"),
    (
      (preprocessors.ImageToFloatPreprocessor, preprocessors.ImageToFloatPreprocessor),
      "stage 1 of 2: ImageToFloatPreprocessor: .*expected a floating point image",
    ),
  ],
)
def test_stages_that_do_not_meet_fail_at_construction(classes, want):
  with pytest.raises(errors.SpecError, match=want):
    compose(*classes)


def test_chain_is_configured_by_gin():
  gin.clear_config()
  gin.parse_config(
    "ComposedPreprocessor.preprocessor_classes = "
    "[@ImageToFloatPreprocessor, @NoOpPreprocessor]"
  )
  try:
    composed = preprocessors.ComposedPreprocessor(feature_spec, None)
  finally:
    gin.clear_config()
  assert composed.get_in_feature_specification("infer")["image"].dtype == tf.uint8
  assert len(composed.stages) == 2


def windowed_spec(mode):
  shape = (4, 2) if mode == "train" else (2,)
  offsets = (-3, -2, -1, 0) if mode == "train" else 0
  return {
    "state": specs.ExtendedTensorSpec(shape, tf.float32, "s", time_offsets=offsets),
    "extra": specs.ExtendedTensorSpec((), tf.int64, "extra", is_optional=True),
  }


def test_noop_keeps_the_specs_of_the_model():
  preprocessor = preprocessors.NoOpPreprocessor(windowed_spec, windowed_spec)
  for mode in specs.ModeKeys.ALL:
    for got in (
      preprocessor.get_in_feature_specification(mode),
      preprocessor.get_out_feature_specification(mode),
      preprocessor.get_in_label_specification(mode),
      preprocessor.get_out_label_specification(mode),
    ):
      want = windowed_spec(mode)
      assert set(got) == set(want)
      assert all(got[path].is_identical_to(want[path]) for path in want)


def test_noop_passes_batches_unchanged():
  preprocessor = preprocessors.NoOpPreprocessor(windowed_spec)
  state = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
  features, labels = preprocessor.preprocess({"state": state}, None, "train")
  assert list(features) == ["state"]
  np.testing.assert_array_equal(features.state, state)
  assert labels is None


def test_noop_without_label_specs_has_no_labels():
  preprocessor = preprocessors.NoOpPreprocessor(windowed_spec, lambda mode: None)
  assert len(preprocessor.get_in_label_specification("train")) == 0
  state = np.zeros((2, 2), np.float32)
  _, labels = preprocessor.preprocess({"state": state}, {}, "eval")
  assert len(labels) == 0
