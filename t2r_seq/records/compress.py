"""JPEG compression of image tensors inside a pipeline, for caches and the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import images

_Convert = Callable[[str, specs.ExtendedTensorSpec, tf.Tensor], tf.Tensor]


def create_compress_fn(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  quality: int = 90,
) -> Callable[..., tuple[Any, Any]]:
  """Creates a function for `Dataset.map` that encodes images as JPEG.

  Args:
    feature_spec: its specs of data_format 'jpeg' say which leaves to encode.
    label_spec: the same for labels, or None.
    quality: from 0 to 100.
  Returns:
    A function of features and labels, or features alone, that gives both as
    TensorSpecStructs (labels None where there are none); images [..., h, w, c],
    integer or float in [0, 1], become strings [...]. It raises SpecError for images of
    another size than the spec's, which would be cut up otherwise.
  """

  def compress(path: str, spec: specs.ExtendedTensorSpec, image: tf.Tensor) -> Any:
    image = tf.convert_to_tensor(image)
    _check_image(path, spec, image)
    pixels = tf.image.convert_image_dtype(image, tf.uint8, saturate=True)
    encoded = tf.map_fn(
      lambda single: tf.io.encode_jpeg(single, quality=quality),
      tf.reshape(pixels, [-1, *spec.shape[-3:]]),
      fn_output_signature=tf.TensorSpec((), tf.string),
    )
    encoded = tf.reshape(encoded, tf.shape(image)[:-3])
    return tf.ensure_shape(encoded, image.shape[:-3])

  return _create_fn(feature_spec, label_spec, compress)


def create_decompress_fn(
  feature_spec: specs.SpecStructure, label_spec: specs.SpecStructure | None = None
) -> Callable[..., tuple[Any, Any]]:
  """Creates the inverse of `create_compress_fn`'s function; the dtype is the spec's.

  Args:
    feature_spec: its specs of data_format 'jpeg' say which leaves to decode.
    label_spec: the same for labels, or None.
  Returns:
    A function of features and labels, or features alone; strings [...] become images
    [..., h, w, c]. Floats are in [0, 1].
  """

  def decompress(path: str, spec: specs.ExtendedTensorSpec, image: tf.Tensor) -> Any:
    pixel_spec = specs.ExtendedTensorSpec.from_spec(spec, dtype=tf.uint8)
    pixels = images.decode_images(image, pixel_spec, path)
    return tf.image.convert_image_dtype(pixels, spec.dtype)

  return _create_fn(feature_spec, label_spec, decompress)


def _check_image(path: str, spec: specs.ExtendedTensorSpec, image: tf.Tensor) -> None:
  has_rank = (image.shape.rank or 0) >= 3
  if not has_rank or not image.shape[-3:].is_compatible_with(spec.shape[-3:]):
    want = f"images of {tuple(spec.shape[-3:])}"
    found = [errors.Mismatch(path, want, errors.describe(image))]
    raise errors.mismatch_error("compress", found)


def _create_fn(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  convert: _Convert,
) -> Callable[..., tuple[Any, Any]]:
  def convert_fn(features: Any, labels: Any = None) -> tuple[Any, Any]:
    converted = _convert_all(feature_spec, features, convert)
    if labels is None or label_spec is None:
      return converted, labels
    return converted, _convert_all(label_spec, labels, convert)

  return convert_fn


def _convert_all(
  spec_structure: specs.SpecStructure, tensors: Any, convert: _Convert
) -> specs.TensorSpecStruct:
  flat = specs.flatten_spec_structure(tensors)
  for path, spec in specs.flatten_spec_structure(spec_structure).items():
    data_format = getattr(spec, "data_format", None) or ""
    if path in flat and data_format.lower() == "jpeg":
      flat[path] = convert(path, spec, flat[path])
  return flat
