from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, preprocessors, specs


def spec(shape, dtype, name, **fields):
  return specs.ExtendedTensorSpec(shape, dtype, name, **fields)


def feature_spec(mode):
  del mode
  return {
    "image": spec((8, 8, 3), tf.float32, "img", data_format="JPEG"),
    "stack": spec(
      (2, 8, 8, 1), tf.float32, "s", data_format="png", time_offsets=(-1, 0)
    ),
    "maybe": spec((8, 8, 3), tf.float32, "m", data_format="png", is_optional=True),
    "sequence": spec((4, 4, 3), tf.bfloat16, "q", data_format="png", is_sequence=True),
    "state": spec((2,), tf.float32, "state", time_offsets=1),
    "bytes": spec((8, 8, 3), tf.uint8, "bytes", data_format="png"),
  }


def features(batch_size=2):
  rng = np.random.default_rng(0)
  return {
    "image": rng.integers(0, 256, (batch_size, 8, 8, 3), np.uint8),
    "stack": rng.integers(0, 256, (batch_size, 2, 8, 8, 1), np.uint8),
    "sequence": rng.integers(0, 256, (batch_size, 5, 4, 4, 3), np.uint8),
    "state": np.ones((batch_size, 2), np.float32),
    "bytes": rng.integers(0, 256, (batch_size, 8, 8, 3), np.uint8),
  }


def test_in_specs_differ_in_dtype_only():
  preprocessor = preprocessors.ImageToFloatPreprocessor(feature_spec)
  converted = {"image", "stack", "maybe", "sequence"}
  for mode in specs.ModeKeys.ALL:
    got = preprocessor.get_in_feature_specification(mode)
    assert set(got) == set(feature_spec(mode))
    for path, want in feature_spec(mode).items():
      dtype = tf.uint8 if path in converted else want.dtype
      assert got[path].fields() == {**want.fields(), "dtype": dtype}, path


def test_converts_and_scales():
  preprocessor = preprocessors.ImageToFloatPreprocessor(feature_spec)
  given = features()
  got, _ = preprocessor.preprocess(given, None, "train")
  assert set(got) == set(given)
  np.testing.assert_allclose(got["image"], given["image"] / np.float32(255), rtol=1e-6)
  np.testing.assert_allclose(got["stack"], given["stack"] / np.float32(255), rtol=1e-6)
  assert got["sequence"].dtype == tf.bfloat16
  np.testing.assert_array_equal(got["bytes"], given["bytes"])
  np.testing.assert_array_equal(got["state"], given["state"])


def test_optional_image_is_converted_when_given():
  preprocessor = preprocessors.ImageToFloatPreprocessor(feature_spec)
  given = {**features(), "maybe": np.full((2, 8, 8, 3), 255, np.uint8)}
  got, _ = preprocessor.preprocess(given, None, "eval")
  np.testing.assert_array_equal(got["maybe"], np.ones((2, 8, 8, 3), np.float32))


def test_explicit_paths_and_uint16():
  def plain(mode):
    del mode
    return {
      "depth": spec((4,), tf.float32, "depth"),
      "image": spec((8, 8, 3), tf.float32, "image", data_format="png"),
    }

  preprocessor = preprocessors.ImageToFloatPreprocessor(
    plain, image_paths=["depth"], stored_dtype="uint16"
  )
  got = preprocessor.get_in_feature_specification("train")
  assert (got.depth.dtype, got.image.dtype) == (tf.uint16, tf.float32)
  given = {
    "depth": np.full((1, 4), 65535, np.uint16),
    "image": np.ones((1, 8, 8, 3), np.float32),
  }
  got, _ = preprocessor.preprocess(given, None, "train")
  np.testing.assert_array_equal(got["depth"], np.ones((1, 4), np.float32))


@pytest.mark.parametrize(
  ("kwargs", "want"),
  [
    ({"image_paths": ["imag"]}, r"imag: .*got nothing. Did you mean 'image'"),
    ({"image_paths": ["bytes"]}, r"bytes: expected a floating point dtype, got"),
    (
      {"image_paths": ["bytes", "nowhere"]},
      r"(?s)2 mismatches.*bytes.*nowhere: expected a feature",
    ),
    ({"image_paths": []}, "NoOpPreprocessor"),
    ({"stored_dtype": tf.int32}, "expected uint8 or uint16, got int32"),
  ],
)
def test_bad_arguments(kwargs, want):
  with pytest.raises(errors.SpecError, match=want):
    preprocessors.ImageToFloatPreprocessor(feature_spec, **kwargs)


def test_refuses_when_nothing_matches():
  def no_images(mode):
    return {"state": feature_spec(mode)["state"], "bytes": feature_spec(mode)["bytes"]}

  with pytest.raises(errors.SpecError, match=r"got \[bytes, state\]. Name the image_"):
    preprocessors.ImageToFloatPreprocessor(no_images)


def test_update_spec_names_the_nearest_path():
  preprocessor = preprocessors.ImageToFloatPreprocessor(feature_spec)
  struct = specs.TensorSpecStruct(feature_spec("train"))
  with pytest.raises(errors.SpecError, match=r"imgae: .*Did you mean 'image'"):
    preprocessor.update_spec(struct, "imgae", dtype=tf.uint8)
