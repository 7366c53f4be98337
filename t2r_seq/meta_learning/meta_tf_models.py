"""Models that take (train, val) pairs and learn a task within their network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, models, specs
from t2r_seq.meta_learning import meta_tfdata
from t2r_seq.meta_learning.meta_tfdata import TrainValPair
from t2r_seq.preprocessors import AbstractPreprocessor
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct


def select_mode(
  val_mode: tf.Tensor, train: SpecStructure, val: SpecStructure
) -> TensorSpecStruct:
  """Returns `val` where `val_mode`, bool [B, 1, ...], is True, else `train`; flat."""
  train, val = specs.flatten_spec_structure(train), specs.flatten_spec_structure(val)
  chosen = TensorSpecStruct()
  for path, tensor in val.items():
    missing = max(tensor.shape.rank - val_mode.shape.rank, 0)
    shape = tf.concat([tf.shape(val_mode), [1] * missing], axis=0)
    chosen[path] = tf.where(tf.reshape(val_mode, shape), tensor, train[path])
  return chosen


def _create_meta_spec(
  tensor_spec: SpecStructure, kind: str, num_train: int, num_val: int
) -> TensorSpecStruct:
  """Derives the required specs of a pair: 'train/...', 'val/...' and 'val_mode'."""
  required = specs.map_leaves(
    lambda spec: ExtendedTensorSpec.from_spec(spec, is_optional=False),
    specs.flatten_spec_structure(tensor_spec),
  )
  train = specs.copy_tensorspec(required, "train", num_train)
  val = specs.copy_tensorspec(required, "val", num_val)
  val_mode = ExtendedTensorSpec((1,), tf.bool, name=f"val_mode/{kind}")
  return specs.flatten_spec_structure(TrainValPair(train, val, val_mode))


@gin.configurable
class MetaPreprocessor(AbstractPreprocessor):
  """Applies a base model's preprocessor to both parts of pairs of samples."""

  def __init__(
    self,
    base_preprocessor: AbstractPreprocessor,
    num_train_samples_per_task: int,
    num_val_samples_per_task: int,
  ) -> None:
    """Creates the preprocessor.

    Args:
      base_preprocessor: preprocessor of the base model.
      num_train_samples_per_task: number of samples in `train`.
      num_val_samples_per_task: number of samples in `val`.
    """
    super().__init__()
    self._base_preprocessor = base_preprocessor
    self._counts = num_train_samples_per_task, num_val_samples_per_task

  @property
  def base_preprocessor(self) -> AbstractPreprocessor:
    """The preprocessor of the base model."""
    return self._base_preprocessor

  def get_in_feature_specification(self, mode: str) -> TensorSpecStruct:
    base = self._base_preprocessor.get_in_feature_specification(mode)
    return _create_meta_spec(base, "features", *self._counts)

  def get_in_label_specification(self, mode: str) -> TensorSpecStruct:
    base = self._base_preprocessor.get_in_label_specification(mode)
    return _create_meta_spec(base, "labels", *self._counts)

  def get_out_feature_specification(self, mode: str) -> TensorSpecStruct:
    base = self._base_preprocessor.get_out_feature_specification(mode)
    return _create_meta_spec(base, "features", *self._counts)

  def get_out_label_specification(self, mode: str) -> TensorSpecStruct:
    base = self._base_preprocessor.get_out_label_specification(mode)
    return _create_meta_spec(base, "labels", *self._counts)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    new_features = TensorSpecStruct(val_mode=features.val_mode)
    new_labels = None if labels is None else TensorSpecStruct(val_mode=labels.val_mode)
    for part, count in zip(("train", "val"), self._counts, strict=True):
      given = [
        None if pair is None else meta_tfdata.flatten_batch_examples(pair[part])
        for pair in (features, labels)
      ]
      made = self._base_preprocessor.preprocess(given[0], given[1], mode)
      unflatten = meta_tfdata.unflatten_batch_examples
      new_features[part] = unflatten(made[0], count)
      if new_labels is not None:
        new_labels[part] = unflatten(made[1], count)
    return new_features, new_labels


class MetalearningModel(models.T2RModel):
  """A model that learns a task within its network, such as RL^2, SNAIL or TEC.

  A subclass implements `create_network`, `inference_network_fn` and `model_train_fn`.
  Features and labels are pairs: 'train/...' and 'val/...', [tasks, samples, ...], and
  'val_mode'.
  """

  def __init__(
    self,
    base_model: models.T2RModel,
    num_train_samples_per_task: int,
    num_val_samples_per_task: int,
    preprocessor_cls: Callable[..., AbstractPreprocessor] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      base_model: defines the specs and the preprocessor of a sample.
      num_train_samples_per_task: number of samples in `train`.
      num_val_samples_per_task: number of samples in `val`.
      preprocessor_cls: called with the base model's preprocessor and the two numbers;
        by default `MetaPreprocessor`.
      **kwargs: arguments of `T2RModel`.
    Raises:
      SpecError: a number is below 1, or an argument of `T2RModel` is invalid.
    """
    counts = num_train_samples_per_task, num_val_samples_per_task
    if min(counts) < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: num_train_samples_per_task, num_val_samples_per_task: "
        f"expected at least 1, got {counts}."
      )
    super().__init__(preprocessor_cls=preprocessor_cls, **kwargs)
    self._base_model = base_model
    self._counts = counts

  @property
  def base_model(self) -> models.T2RModel:
    """The model that defines the specs of a sample."""
    return self._base_model

  @property
  def default_preprocessor_cls(self) -> Any:
    """`MetaPreprocessor`, which applies the base model's preprocessor to both parts."""
    return MetaPreprocessor

  @property
  def preprocessor(self) -> Any:
    """The preprocessor, which wraps the base model's."""
    if self._preprocessor is None:
      preprocessor_cls = self._preprocessor_cls or self.default_preprocessor_cls
      self._preprocessor = preprocessor_cls(
        self._base_model.preprocessor, *self._counts
      )
    return self._preprocessor

  def get_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's specs, as pairs."""
    base = self._base_model.get_feature_specification(mode)
    return _create_meta_spec(base, "features", *self._counts)

  def get_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's label specs, as pairs."""
    base = self._base_model.get_label_specification(mode)
    return _create_meta_spec(base, "labels", *self._counts)
