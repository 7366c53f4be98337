"""The contract of preprocessors: in specs, out specs, and validation around a hook."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.preprocessors import seams

_SPECIFICATIONS = (
  "get_in_feature_specification",
  "get_in_label_specification",
  "get_out_feature_specification",
  "get_out_label_specification",
)


class _CheckedOnceBuilt(abc.ABCMeta):
  """Checks an instance after the last `__init__` of its class has run.

  A check in the base's `__init__` would come too early: the specs of a subclass may
  depend on what it stores after `super().__init__`.
  """

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    preprocessor = super().__call__(*args, **kwargs)
    preprocessor.check_specifications()
    return preprocessor


class AbstractPreprocessor(metaclass=_CheckedOnceBuilt):
  """Turns batches as they are stored into batches as the model takes them.

  Subclasses declare their in and out specs for every mode and implement
  `_preprocess_fn`; `preprocess` validates before and after it. All specs are checked
  at construction, and so is that the out specs hold whatever the model requires.
  `preprocess` runs in `tf.data` and again inside the exported SavedModel, so use
  TensorFlow ops only. After Tensor2Robot's class of that name.
  """

  def __init__(
    self,
    model_feature_specification_fn: seams.SpecificationFn | None = None,
    model_label_specification_fn: seams.SpecificationFn | None = None,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the spec structure of the
        features that the model takes. None: the model takes none, or it is not known.
      model_label_specification_fn: the same for the labels.
    Raises:
      SpecError: the specs of some mode are no valid structure, or the out specs lack
        what the model requires; names modes and paths.
    """
    self._model_feature_specification_fn = model_feature_specification_fn
    self._model_label_specification_fn = model_label_specification_fn

  @abc.abstractmethod
  def get_in_feature_specification(self, mode: str) -> Any:
    """Returns the spec structure of the features that `preprocess` takes."""

  @abc.abstractmethod
  def get_in_label_specification(self, mode: str) -> Any:
    """Returns the spec structure of the labels that `preprocess` takes."""

  @abc.abstractmethod
  def get_out_feature_specification(self, mode: str) -> Any:
    """Returns the spec structure of the features that `preprocess` gives."""

  @abc.abstractmethod
  def get_out_label_specification(self, mode: str) -> Any:
    """Returns the spec structure of the labels that `preprocess` gives."""

  @abc.abstractmethod
  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    """Transforms one batch.

    Args:
      features: packed as the in specs, leaves [B, ...]; absent optionals are None. A
        structure of its own: it may be changed and returned.
      labels: the same, or None.
      mode: one of `specs.ModeKeys`.
    Returns:
      Features and labels that hold at least what the out specs require.
    """

  def preprocess(
    self, features: Any, labels: Any, mode: str
  ) -> tuple[specs.TensorSpecStruct, specs.TensorSpecStruct | None]:
    """Validates a batch, transforms it, and validates the outcome.

    Args:
      features: a batch that fits the in feature specs, leaves [B, ...]; more paths
        than the specs name are dropped.
      labels: the same for the labels; None where there are none.
      mode: one of `specs.ModeKeys`.
    Returns:
      Features and labels by path: those of the out specs, and whatever the hook adds.
      Labels are None if they were None.
    Raises:
      SpecError: the batch does not fit the in specs, or the outcome the out specs.
    """
    specs.check_mode(type(self).__name__, mode)
    has_labels = labels is not None
    features, labels = self._pack(features, labels, mode)
    features, labels = self._preprocess_fn(features, labels, mode)
    if not has_labels:
      labels = None
    elif labels is None:
      labels = specs.TensorSpecStruct()
    return self._flatten(features, labels, mode)

  # AutoGraph is for the hook: here it would cost time and warn about users' lambdas.
  @tf.autograph.experimental.do_not_convert
  def _pack(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    in_spec = self.get_in_feature_specification(mode)
    features = specs.validate_and_pack(in_spec, features, ignore_batch=True)
    if labels is not None:
      in_spec = self.get_in_label_specification(mode)
      labels = specs.validate_and_pack(in_spec, labels, ignore_batch=True)
    return features, labels

  @tf.autograph.experimental.do_not_convert
  def _flatten(
    self, features: Any, labels: Any, mode: str
  ) -> tuple[specs.TensorSpecStruct, specs.TensorSpecStruct | None]:
    out_spec = self.get_out_feature_specification(mode)
    features = specs.validate_and_flatten(out_spec, features, ignore_batch=True)
    if labels is not None:
      out_spec = self.get_out_label_specification(mode)
      labels = specs.validate_and_flatten(out_spec, labels, ignore_batch=True)
    return features, labels

  def check_specifications(self) -> None:
    """Checks the specs of all modes, and that they meet the model's.

    Called at construction.

    Raises:
      SpecError: a structure is not valid, or required paths of the model are missing
        or different; all of them are named.
    """
    for mode in specs.ModeKeys.ALL:
      for getter in _SPECIFICATIONS:
        self._check_structure(getter, mode)
    mismatches = seams.find_mismatches(
      "features",
      self._model_feature_specification_fn,
      self.get_out_feature_specification,
    ) + seams.find_mismatches(
      "labels", self._model_label_specification_fn, self.get_out_label_specification
    )
    if mismatches:
      raise errors.mismatch_error(
        f"{type(self).__name__}: the out specs do not meet the model's", mismatches
      )

  def _check_structure(self, getter: str, mode: str) -> None:
    try:
      specs.assert_valid_spec_structure(getattr(self, getter)(mode))
    except errors.SpecError as e:
      raise errors.SpecError(f"{type(self).__name__}: {getter}({mode!r}): {e}") from e
