"""Preprocessors that change a few specs of the model's: images to floats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.preprocessors import abstract_preprocessor
from t2r_seq.specs.names import IMAGE_FORMATS


class SpecTransformationPreprocessor(abstract_preprocessor.AbstractPreprocessor):
  """Derives the in specs from the model's by a hook; the out specs are the model's.

  Override `_transform_in_feature_specification` (or the labels'), call `update_spec`
  in it for each path that differs, and undo the difference in `_preprocess_fn`. All
  other fields, names and time offsets among them, stay as the model has them.
  """

  def get_in_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the transformed feature specs of the model, by path."""
    return self._transform_in_feature_specification(
      self.get_out_feature_specification(mode)
    )

  def get_in_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the transformed label specs of the model, by path."""
    return self._transform_in_label_specification(
      self.get_out_label_specification(mode)
    )

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's feature specs, by path."""
    return abstract_preprocessor.call_specification_fn(
      self._model_feature_specification_fn, mode
    )

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs, by path."""
    return abstract_preprocessor.call_specification_fn(
      self._model_label_specification_fn, mode
    )

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Changes the model's feature specs, a copy, into the in specs; by default none."""
    return tensor_spec_struct

  def _transform_in_label_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Changes the model's label specs, a copy, into the in specs; by default none."""
    return tensor_spec_struct

  def update_spec(
    self, tensor_spec_struct: specs.TensorSpecStruct, key: str, **fields: Any
  ) -> specs.TensorSpecStruct:
    """Replaces fields of one spec of a structure.

    Args:
      tensor_spec_struct: specs by path; changed in place.
      key: path of the spec.
      **fields: fields to replace, see `ExtendedTensorSpec.from_spec`.
    Returns:
      The structure.
    Raises:
      SpecError: there is no such path.
    """
    if key not in tensor_spec_struct:
      raise errors.SpecError(
        f"{type(self).__name__}: {key}: expected one of "
        f"{errors.listing(tensor_spec_struct)}, got an unknown path."
        f"{errors.nearest(key, tensor_spec_struct)}"
      )
    tensor_spec_struct[key] = specs.ExtendedTensorSpec.from_spec(
      tensor_spec_struct[key], **fields
    )
    return tensor_spec_struct


_STORED_DTYPES = (tf.uint8, tf.uint16)


@gin.configurable
class ImageToFloatPreprocessor(SpecTransformationPreprocessor):
  """Converts the images among the features from integers to floats in [0, 1].

  The model declares floating point images; the in specs are the same with an integer
  dtype, so that records, shuffle buffers and robots handle bytes.
  """

  def __init__(
    self,
    model_feature_specification_fn: abstract_preprocessor.SpecificationFn | None = None,
    model_label_specification_fn: abstract_preprocessor.SpecificationFn | None = None,
    image_paths: Iterable[str] | None = None,
    stored_dtype: Any = tf.uint8,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      image_paths: paths of the features to convert; None takes those that are
        floating point and have the data_format of an image.
      stored_dtype: dtype of the stored images: uint8, or uint16 (png).
    Raises:
      SpecError: no feature is to be converted, or one named is absent in all modes or
        not floating point.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    self._image_paths = None if image_paths is None else tuple(image_paths)
    self._stored_dtype = tf.as_dtype(stored_dtype)
    if self._stored_dtype not in _STORED_DTYPES:
      raise errors.SpecError(
        "ImageToFloatPreprocessor: stored_dtype: expected uint8 or uint16, got "
        f"{self._stored_dtype.name}."
      )

  def check_specifications(self) -> None:
    """Checks also that there are images to convert, and that they are floats."""
    features: dict[str, Any] = {}
    for mode in specs.ModeKeys.ALL:
      features.update(self.get_out_feature_specification(mode).items())
    if self._image_paths is not None:
      self._check_image_paths(features)
    if not any(self._is_converted(path, spec) for path, spec in features.items()):
      raise errors.SpecError(
        "ImageToFloatPreprocessor: features: expected a floating point image with a "
        f"data_format of {errors.listing(IMAGE_FORMATS)}, got "
        f"{errors.listing(features)}. Name the image_paths, or use NoOpPreprocessor."
      )
    super().check_specifications()

  def _check_image_paths(self, features: dict[str, Any]) -> None:
    mismatches = []
    for path in self._image_paths or ():
      spec = features.get(path)
      if spec is None:
        hint = errors.nearest(path, features).strip()
        mismatches.append(errors.Mismatch(path, "a feature", "nothing", hint))
      elif not spec.dtype.is_floating:
        got = errors.describe(spec)
        mismatches.append(errors.Mismatch(path, "a floating point dtype", got))
    if mismatches:
      raise errors.mismatch_error("ImageToFloatPreprocessor: image_paths", mismatches)

  def _is_converted(self, path: str, spec: Any) -> bool:
    if self._image_paths is not None:
      return path in self._image_paths
    return spec.dtype.is_floating and specs.is_encoded_image_spec(spec)

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    for path, spec in list(tensor_spec_struct.items()):
      if self._is_converted(path, spec):
        self.update_spec(tensor_spec_struct, path, dtype=self._stored_dtype)
    return tensor_spec_struct

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    for path, spec in self.get_out_feature_specification(mode).items():
      if self._is_converted(path, spec) and features.get(path) is not None:
        features[path] = tf.image.convert_image_dtype(features[path], spec.dtype)
    return features, labels
