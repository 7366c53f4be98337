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
  """Sends what another preprocessor returns as bfloat16, without optional tensors.

  float32 features leave the host as bfloat16 and are float32 again where the model
  receives them, rounded to 8 bits of precision. Specs of bfloat16 are parsed and
  preprocessed as float32. Optional tensors are left out in every mode, so that training
  and exports see the same. Exports, in mode 'infer', do not round float32. After
  Tensor2Robot's class of that name.
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
      preprocessor: the wrapped preprocessor itself, in place of the first three.
    Raises:
      SpecError: the wrapped preprocessor does not give what the model takes, or a class
        is given for an instance.
    """
    if isinstance(preprocessor, type):
      raise errors.SpecError(
        "TPUPreprocessorWrapper: preprocessor: expected an instance, got the class "
        f"{preprocessor.__name__}. Give it as preprocessor_cls."
      )
    # The wrapped preprocessor meets the model's specs; what is sent does not.
    super().__init__()
    self._preprocessor = preprocessor or create_preprocessor(
      preprocessor_cls, model_feature_specification_fn, model_label_specification_fn
    )
    self._cast_labels = cast_labels

  @property
  def preprocessor(self) -> AbstractPreprocessor:
    """The preprocessor that is wrapped."""
    return self._preprocessor

  def get_in_feature_specification(self, mode: str) -> Any:
    """Returns those of the wrapped preprocessor, with float32 for bfloat16."""
    return _parsed(self._preprocessor.get_in_feature_specification(mode))

  def get_in_label_specification(self, mode: str) -> Any:
    """Returns those of the wrapped preprocessor, with float32 for bfloat16."""
    return _parsed(self._preprocessor.get_in_label_specification(mode))

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the required ones of the wrapped preprocessor, bfloat16 for float32."""
    given = self._preprocessor.get_out_feature_specification(mode)
    return _sent(given, mode != specs.ModeKeys.INFER)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the required ones of the wrapped preprocessor, cast if `cast_labels`."""
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

  def representations(self, before: Representations | None = None) -> Representations:
    """Returns those of the other preprocessor: what travels is cast back."""
    return self._preprocessor.representations(before)

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    """Checks those of the other preprocessor; see the base class."""
    self._preprocessor.check_inputs(find)

  def describe_stages(self) -> list[dict[str, Any]]:
    """Returns those of the other preprocessor, and itself."""
    return [*self._preprocessor.describe_stages(), *super().describe_stages()]

  def before_normalization(self) -> AbstractPreprocessor:
    """Returns that of the other preprocessor; see the base class."""
    before = self._preprocessor.before_normalization()
    return self if before is self._preprocessor else before

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    # Skips the wrapped preprocessor's checks: it computes in float32 where its specs
    # declare bfloat16. The wrapper checks its input and its output.
    features, labels = self._preprocessor._preprocess_fn(features, labels, mode)
    features = _cast(features, self.get_out_feature_specification(mode))
    if labels is not None:
      labels = _cast(labels, self.get_out_label_specification(mode))
    return features, labels


def _parsed(structure: Any) -> specs.TensorSpecStruct:
  flat = specs.TensorSpecStruct(specs.flatten_spec_structure(structure).items())
  return replace_dtype(flat, tf.bfloat16, tf.float32)


def _sent(structure: Any, is_cast: bool) -> specs.TensorSpecStruct:
  flat = filter_required_flat_tensor_spec(specs.flatten_spec_structure(structure))
  return replace_dtype(flat, tf.float32, tf.bfloat16) if is_cast else flat


@tf.autograph.experimental.do_not_convert
def _cast(batch: Any, out_spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the tensors of `out_spec`, cast to bfloat16 where it declares that."""
  flat = specs.flatten_spec_structure(batch)
  sent = specs.TensorSpecStruct({path: flat[path] for path in out_spec if path in flat})
  return cast_float32_to_bfloat16(sent, out_spec)


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
