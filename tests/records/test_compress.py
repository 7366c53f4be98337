"""JPEG in a pipeline: what comes back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, specs, tfdata

Spec = specs.ExtendedTensorSpec

# Leading axes of the tensors, the spec, and a value that all pixels have.
CASES = {
  "one image": ((), Spec((8, 6, 3), tf.uint8, data_format="jpeg"), 100),
  "a batch": ((4,), Spec((8, 6, 3), tf.uint8, data_format="JPEG"), 100),
  "gray": ((4,), Spec((8, 6, 1), tf.uint8, data_format="jpeg"), 7),
  "floats": ((4,), Spec((8, 6, 3), tf.float32, data_format="jpeg"), 0.25),
  "a stack": ((4,), Spec((2, 8, 6, 3), tf.uint8, data_format="jpeg"), 100),
  "sequences": (
    (4, 5),
    Spec((2, 8, 6, 3), tf.uint8, data_format="jpeg", is_sequence=True),
    100,
  ),
  "none": ((0,), Spec((8, 6, 3), tf.uint8, data_format="jpeg"), 100),
}


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
  leading, spec, value = CASES[name]
  image = np.full((*leading, *spec.shape), value, spec.dtype.as_numpy_dtype)
  given = {"image": image, "pose": np.ones(3, np.float32)}
  structure = {"image": spec, "pose": Spec((3,), tf.float32)}
  dataset = tf.data.Dataset.from_tensors(given)
  compressed = dataset.map(tfdata.create_compress_fn(structure, quality=100))
  assert compressed.element_spec[0]["image"] == tf.TensorSpec(
    image.shape[:-3], tf.string
  )
  decompress_fn = tfdata.create_decompress_fn(structure)
  ((restored, labels),) = compressed.map(decompress_fn)
  assert labels is None
  eager, _ = decompress_fn(tfdata.create_compress_fn(structure, quality=100)(given)[0])
  np.testing.assert_array_equal(eager["image"], restored["image"])
  assert restored["image"].dtype == spec.dtype
  tolerance = 0.01 if spec.dtype.is_floating else 1
  np.testing.assert_allclose(restored["image"], image, atol=tolerance)
  np.testing.assert_array_equal(restored["pose"], given["pose"])


def test_other_formats_and_absent_images_stay() -> None:
  structure = {
    "png": Spec((8, 6, 3), tf.uint8, data_format="png"),
    "jpeg": Spec((8, 6, 3), tf.uint8, data_format="jpeg", is_optional=True),
  }
  image = np.full((8, 6, 3), 3, np.uint8)
  got, _ = tfdata.create_compress_fn(structure)({"png": image})
  assert list(got) == ["png"]
  np.testing.assert_array_equal(got["png"], image)


SIZES = {"turned": (4, 6, 8, 3), "flat": (144,), "gray": (4, 8, 6, 1)}


@pytest.mark.parametrize("name", SIZES)
def test_other_sizes_are_refused(name: str) -> None:
  structure = {"image": Spec((8, 6, 3), tf.uint8, data_format="jpeg")}
  compress = tfdata.create_compress_fn(structure)
  with pytest.raises(
    errors.SpecError, match=r"compress: image: expected images of \(8"
  ):
    compress({"image": np.zeros(SIZES[name], np.uint8)})


def test_compress_rejects_other_images_with_the_path() -> None:
  structure = {"image": Spec((8, 6, 3), tf.uint8, data_format="jpeg")}
  other = tf.io.encode_jpeg(np.zeros((6, 8, 3), np.uint8))
  with pytest.raises(tf.errors.InvalidArgumentError, match="image"):
    tfdata.create_decompress_fn(structure)({"image": tf.stack([other])})
