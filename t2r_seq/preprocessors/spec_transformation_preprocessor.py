"""A base for preprocessors whose in specs are the model's with a few changes."""

from __future__ import annotations

from typing import Any

from t2r_seq import errors, specs
from t2r_seq.preprocessors import abstract_preprocessor, seams


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
    return seams.call_specification_fn(self._model_feature_specification_fn, mode)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs, by path."""
    return seams.call_specification_fn(self._model_label_specification_fn, mode)

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
