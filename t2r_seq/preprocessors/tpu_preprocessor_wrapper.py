"""Sends batches to accelerators as bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.preprocessors.abstract_preprocessor import (
  AbstractPreprocessor,
  NoOpPreprocessor,
  PreprocessorFactory,
  Representations,
  SpecificationFn,
  create_preprocessor,
)
from t2r_seq.specs.structures import (
  cast_float32_to_bfloat16,
  filter_required_flat_tensor_spec,
  replace_dtype,
)


@gin.configurable
class TPUPreprocessorWrapper(AbstractPreprocessor):
  """Sends the output of another preprocessor as bfloat16, without optional tensors.

  float32 features leave the host as bfloat16, and `receive` casts them back: their
  precision is 8 bits. bfloat16 specs are parsed and preprocessed as float32. Optional
  tensors are left out in every mode, so that training and exports have the same ones.
  Exports, in mode 'infer', do not round float32.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    preprocessor_cls: PreprocessorFactory = NoOpPreprocessor,
    cast_labels: bool = False,
    preprocessor: AbstractPreprocessor | None = None,
  ) -> None:
    """Creates the wrapper.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      preprocessor_cls: creates the wrapped preprocessor from the two functions.
      cast_labels: whether float32 labels are sent as bfloat16, too.
      preprocessor: the wrapped preprocessor, instead of the first three.
    Raises:
      SpecError: the wrapped preprocessor does not match the model, or `preprocessor` is
        a class.
    """
    if isinstance(preprocessor, type):
      raise errors.SpecError(
        "TPUPreprocessorWrapper: preprocessor: expected an instance, got the class "
        f"{preprocessor.__name__}. Give it as preprocessor_cls."
      )
    # No model's specs to check: the wrapped preprocessor meets them, bfloat16 does not.
    super().__init__()
    self._preprocessor = preprocessor or create_preprocessor(
      preprocessor_cls, model_feature_specification_fn, model_label_specification_fn
    )
    self._cast_labels = cast_labels

  @property
  def preprocessor(self) -> AbstractPreprocessor:
    """The wrapped preprocessor."""
    return self._preprocessor

  def get_in_feature_specification(self, mode: str) -> Any:
    return _parsed_specs(self._preprocessor.get_in_feature_specification(mode))

  def get_in_label_specification(self, mode: str) -> Any:
    return _parsed_specs(self._preprocessor.get_in_label_specification(mode))

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    given = self._preprocessor.get_out_feature_specification(mode)
    return _tpu_spec(given, mode != specs.ModeKeys.INFER)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    given = self._preprocessor.get_out_label_specification(mode)
    return _tpu_spec(given, self._cast_labels and mode != specs.ModeKeys.INFER)

  def receive(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    """Casts bfloat16 back to float32."""
    expected = self._preprocessor.get_out_feature_specification(mode)
    features = _widen(features, expected)
    if labels is not None:
      expected = self._preprocessor.get_out_label_specification(mode)
      labels = _widen(labels, expected)
    return self._preprocessor.receive(features, labels, mode)

  def representations(self, before: Representations | None = None) -> Representations:
    return self._preprocessor.representations(before)

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    self._preprocessor.check_inputs(find)

  def describe_stages(self) -> list[dict[str, Any]]:
    return [*self._preprocessor.describe_stages(), *super().describe_stages()]

  def before_normalization(self) -> AbstractPreprocessor:
    before = self._preprocessor.before_normalization()
    return self if before is self._preprocessor else before

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    # Without the checks of `preprocess`: values are float32 where the specs of the
    # wrapped preprocessor are bfloat16. The wrapper checks its own input and output.
    features, labels = self._preprocessor._preprocess_fn(features, labels, mode)
    features = _cast(features, self.get_out_feature_specification(mode))
    if labels is not None:
      labels = _cast(labels, self.get_out_label_specification(mode))
    return features, labels


def _parsed_specs(structure: Any) -> specs.TensorSpecStruct:
  """Returns specs with float32 for bfloat16."""
  flat = specs.TensorSpecStruct(specs.flatten_spec_structure(structure).items())
  return replace_dtype(flat, tf.bfloat16, tf.float32)


def _tpu_spec(structure: Any, is_cast: bool) -> specs.TensorSpecStruct:
  """Returns the required specs, with bfloat16 for float32 if they are cast."""
  flat = filter_required_flat_tensor_spec(specs.flatten_spec_structure(structure))
  return replace_dtype(flat, tf.float32, tf.bfloat16) if is_cast else flat


@tf.autograph.experimental.do_not_convert
def _cast(batch: Any, out_spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the tensors of `out_spec`, cast to bfloat16 if it declares that."""
  flat = specs.flatten_spec_structure(batch)
  tpu_spec = specs.TensorSpecStruct(
    {path: flat[path] for path in out_spec if path in flat}
  )
  return cast_float32_to_bfloat16(tpu_spec, out_spec)


@tf.autograph.experimental.do_not_convert
def _widen(batch: Any, structure: Any) -> specs.TensorSpecStruct:
  """Returns a batch with bfloat16 cast to float32 if the specs declare that."""
  expected = specs.flatten_spec_structure(structure)
  received = specs.TensorSpecStruct()
  for path, tensor in specs.flatten_spec_structure(batch).items():
    is_wide = path in expected and expected[path].dtype == tf.float32
    if tensor is not None and is_wide and tensor.dtype == tf.bfloat16:
      tensor = tf.cast(tensor, tf.float32)
    received[path] = tensor
  return received
