"""A preprocessor that changes nothing."""

from __future__ import annotations

from typing import Any

import gin

from t2r_seq import specs
from t2r_seq.preprocessors import abstract_preprocessor, seams


@gin.configurable
class NoOpPreprocessor(abstract_preprocessor.AbstractPreprocessor):
  """Takes and gives just what the model takes.

  Use it when the records already hold the model's dtypes and shapes; the batches are
  still validated.
  """

  def __init__(
    self,
    model_feature_specification_fn: seams.SpecificationFn | None = None,
    model_label_specification_fn: seams.SpecificationFn | None = None,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)

  def get_in_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's feature specs, by path."""
    return seams.call_specification_fn(self._model_feature_specification_fn, mode)

  def get_in_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs, by path."""
    return seams.call_specification_fn(self._model_label_specification_fn, mode)

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's feature specs, by path."""
    return seams.call_specification_fn(self._model_feature_specification_fn, mode)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs, by path."""
    return seams.call_specification_fn(self._model_label_specification_fn, mode)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    del mode
    return features, labels
