"""Half the bytes on the way to the device."""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.preprocessors.abstract_preprocessor import (
  AbstractPreprocessor,
  NoOpPreprocessor,
  PreprocessorFactory,
  SpecificationFn,
)
from t2r_seq.specs.structures import cast_float32_to_bfloat16, replace_dtype


@gin.configurable
class TPUPreprocessorWrapper(AbstractPreprocessor):
  """Sends the float32 of another preprocessor as bfloat16.

  They leave the host so, and are float32 again where the model takes them, rounded to 8
  bits of precision. Exports, in mode 'infer', are as without it. After Tensor2Robot's
  class of that name.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    preprocessor_cls: PreprocessorFactory = NoOpPreprocessor,
    cast_labels: bool = False,
  ) -> None:
    """Creates the wrapper.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      preprocessor_cls: creates the other preprocessor.
      cast_labels: whether labels travel in bfloat16, too.
    Raises:
      SpecError: the other preprocessor does not give what the model takes.
    """
    # The other one meets the model's specs; what travels does not.
    super().__init__()
    self._preprocessor = preprocessor_cls(
      model_feature_specification_fn, model_label_specification_fn
    )
    self._cast_labels = cast_labels

  @property
  def preprocessor(self) -> AbstractPreprocessor:
    """The preprocessor that is wrapped."""
    return self._preprocessor

  def get_in_feature_specification(self, mode: str) -> Any:
    """Returns those of the other preprocessor."""
    return self._preprocessor.get_in_feature_specification(mode)

  def get_in_label_specification(self, mode: str) -> Any:
    """Returns those of the other preprocessor."""
    return self._preprocessor.get_in_label_specification(mode)

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns those of the other preprocessor, with bfloat16 for float32."""
    given = self._preprocessor.get_out_feature_specification(mode)
    return _sent(given, mode != specs.ModeKeys.INFER)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns those of the other preprocessor, cast as it was told."""
    given = self._preprocessor.get_out_label_specification(mode)
    return _sent(given, self._cast_labels and mode != specs.ModeKeys.INFER)

  def receive(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    """Casts back what was cast; see the base class."""
    wanted = self._preprocessor.get_out_feature_specification(mode)
    features = _received(features, wanted)
    if labels is not None:
      wanted = self._preprocessor.get_out_label_specification(mode)
      labels = _received(labels, wanted)
    return self._preprocessor.receive(features, labels, mode)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    features, labels = self._preprocessor.preprocess(features, labels, mode)
    wanted = self.get_out_feature_specification(mode)
    features = cast_float32_to_bfloat16(features, wanted)
    if labels is not None:
      wanted = self.get_out_label_specification(mode)
      labels = cast_float32_to_bfloat16(labels, wanted)
    return features, labels


def _sent(structure: Any, is_cast: bool) -> specs.TensorSpecStruct:
  flat = specs.TensorSpecStruct(specs.flatten_spec_structure(structure).items())
  return replace_dtype(flat, tf.float32, tf.bfloat16) if is_cast else flat


@tf.autograph.experimental.do_not_convert
def _received(batch: Any, structure: Any) -> specs.TensorSpecStruct:
  wanted = specs.flatten_spec_structure(structure)
  received = specs.TensorSpecStruct()
  for path, tensor in specs.flatten_spec_structure(batch).items():
    is_wide = path in wanted and wanted[path].dtype == tf.float32
    if tensor is not None and is_wide and tensor.dtype == tf.bfloat16:
      tensor = tf.cast(tensor, tf.float32)
    received[path] = tensor
  return received
