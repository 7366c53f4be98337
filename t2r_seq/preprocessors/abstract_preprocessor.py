"""The base classes of preprocessors, and chains of preprocessors."""

from __future__ import annotations

import abc
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.specs.names import check_mode
from t2r_seq.specs.structures import assert_valid_spec_structure

SpecificationFn = Callable[[str], Any]


@tf.autograph.experimental.do_not_convert
def call_specification_fn(
  specification_fn: SpecificationFn | None, mode: str
) -> specs.TensorSpecStruct:
  """Returns a flat copy of the specs for a mode; None is the empty structure."""
  structure = None if specification_fn is None else specification_fn(mode)
  if structure is None:
    return specs.TensorSpecStruct()
  return specs.flatten_spec_structure(structure)


def find_mismatches(
  preprocessor: AbstractPreprocessor,
  feature_fn: SpecificationFn | None,
  label_fn: SpecificationFn | None,
) -> list[errors.Mismatch]:
  """Finds mismatches between a stage's out specs and its successor's in specs.

  Args:
    preprocessor: the stage.
    feature_fn: the in feature specs of the next stage, or the model's, by mode.
    label_fn: its label specs.
  Returns:
    One mismatch for each path and problem, with the modes that have it.
  """
  modes_of: dict[tuple[str, str, str, str], list[str]] = {}
  for prefix, expected_fn, given_fn in (
    ("features", feature_fn, preprocessor.get_out_feature_specification),
    ("labels", label_fn, preprocessor.get_out_label_specification),
  ):
    for mode in specs.ModeKeys.ALL:
      given = call_specification_fn(given_fn, mode)
      for path, expected in call_specification_fn(expected_fn, mode).items():
        problem = _compare(path, expected, given)
        if problem is not None:
          modes_of.setdefault((f"{prefix}/{path}", *problem), []).append(mode)
  return [
    errors.Mismatch(f"{path} (mode {', '.join(modes)})", expected, got, hint)
    for (path, expected, got, hint), modes in modes_of.items()
  ]


def specs_of_all_modes(
  specification_fn: SpecificationFn | None,
) -> dict[str, Any]:
  """Returns the specs of all modes by path."""
  by_path: dict[str, Any] = {}
  for mode in specs.ModeKeys.ALL:
    by_path.update(call_specification_fn(specification_fn, mode).items())
  return by_path


def _compare(
  path: str, expected: Any, given_specs: specs.TensorSpecStruct
) -> tuple[str, str, str] | None:
  if path not in given_specs:
    if getattr(expected, "is_optional", False):
      return None
    return _describe(expected), "nothing", errors.nearest(path, given_specs).strip()
  given = given_specs[path]
  if (
    expected.dtype != given.dtype
    or not expected.shape.is_compatible_with(given.shape)
    or _flag(expected, "is_sequence") != _flag(given, "is_sequence")
  ):
    return _describe(expected), _describe(given), ""
  if _flag(given, "is_optional") and not _flag(expected, "is_optional"):
    return f"required {_describe(expected)}", f"optional {_describe(given)}", ""
  return None


def _flag(spec: Any, field: str) -> bool:
  return bool(getattr(spec, field, False))


def _describe(spec: Any) -> str:
  return f"{errors.describe(spec)}{' sequence' if _flag(spec, 'is_sequence') else ''}"


_SPECIFICATIONS = (
  "get_in_feature_specification",
  "get_in_label_specification",
  "get_out_feature_specification",
  "get_out_label_specification",
)


class _CheckedOnceBuilt(abc.ABCMeta):
  """Checks an instance after the `__init__` of its subclass.

  The specs of a subclass may depend on attributes set after `super().__init__`.
  """

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    preprocessor = super().__call__(*args, **kwargs)
    preprocessor.check_specifications()
    given = (*args, *kwargs.values())
    if not any(isinstance(value, _StageSpecification) for value in given):
      preprocessor.check_inputs(dict)  # There are no earlier stages.
    return preprocessor


class _StageSpecification:
  """Marks the specification functions of a stage, whose inputs its chain checks."""

  def __init__(self, specification_fn: SpecificationFn) -> None:
    self._specification_fn = specification_fn

  def __call__(self, mode: str) -> Any:
    return self._specification_fn(mode)


Representations = Mapping[str, str | None]
"""Preprocessors that changed the values, by 'features/<path>' and 'labels/<path>'.

Names of classes, 'Relative > Clip'; '' or no entry for stored values; None: unknown.
"""


class AbstractPreprocessor(metaclass=_CheckedOnceBuilt):
  """Converts stored batches to the model's batches.

  Subclasses declare their in and out specs for every mode and implement
  `_preprocess_fn`; `preprocess` validates before and after it. Construction checks the
  specs, and that the out specs have everything the model requires. `preprocess` runs
  in `tf.data` and in the exported SavedModel: use TensorFlow ops only.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
  ) -> None:
    """Creates the preprocessor.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
    Raises:
      SpecError: the specs of a mode are invalid, or the out specs lack what the model
        requires.
    """
    self._model_feature_specification_fn = model_feature_specification_fn
    self._model_label_specification_fn = model_label_specification_fn

  @abc.abstractmethod
  def get_in_feature_specification(self, mode: str) -> Any:
    """Returns the specs of the features that `preprocess` takes."""

  @abc.abstractmethod
  def get_in_label_specification(self, mode: str) -> Any:
    """Returns the specs of the labels that `preprocess` takes."""

  @abc.abstractmethod
  def get_out_feature_specification(self, mode: str) -> Any:
    """Returns the specs of the features that `preprocess` returns."""

  @abc.abstractmethod
  def get_out_label_specification(self, mode: str) -> Any:
    """Returns the specs of the labels that `preprocess` returns."""

  @abc.abstractmethod
  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    """Transforms one batch.

    Args:
      features: packed as the in specs, leaves [B, ...]; absent optionals are None. It
        may be changed and returned.
      labels: labels by path, or None.
      mode: value of `specs.ModeKeys`.
    Returns:
      Features and labels with at least the required out specs.
    """

  def preprocess(
    self, features: Any, labels: Any, mode: str
  ) -> tuple[specs.TensorSpecStruct, specs.TensorSpecStruct | None]:
    """Validates a batch, transforms it, and validates the result.

    Args:
      features: raw features by path, leaves [B, ...]; other paths are dropped.
      labels: labels of the in label specs; or None.
      mode: value of `specs.ModeKeys`.
    Returns:
      Features and labels by path: the out specs', and others that the hook adds; labels
      are None if none are given.
    Raises:
      SpecError: the mode is unknown, the batch does not match the in specs, or the
        result does not match the out specs.
    """
    check_mode(type(self).__name__, mode)
    has_labels = labels is not None
    features, labels = self._pack(features, labels, mode)
    features, labels = self._preprocess_fn(features, labels, mode)
    if not has_labels:
      labels = None
    elif labels is None:
      labels = specs.TensorSpecStruct()
    return self._flatten(features, labels, mode)

  def receive(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    """Converts, on the device, the output of `preprocess` to the model's input.

    By default it is unchanged.
    """
    del mode
    return features, labels

  def representations(self, before: Representations | None = None) -> Representations:
    """Finds the paths that this preprocessor changes in 'eval'; else in 'train'.

    Args:
      before: earlier stages that changed the input; None for stored values.
    Returns:
      The stages that changed the output, this one included.
    """
    before = before or {}
    name = type(self).__name__
    representations: dict[str, str | None] = {}
    for key, source in _trace_sources(self).items():
      if source == _UNKNOWN:
        representations[key] = None
      elif source is not None:
        representations[key] = before.get(source, "")
      else:
        earlier = before.get(key, "")
        representations[key] = f"{earlier} > {name}" if earlier else name
    return representations

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    """Checks that the input has the representation that this preprocessor expects.

    Called at construction; for a stage of a chain when all stages are built.

    Args:
      find: returns which earlier stages changed the input, by tracing them.
    Raises:
      SpecError: the input has another representation.
    """

  @property
  def input_hint(self) -> str:
    """Hint for errors when an earlier stage does not match the in specs."""
    return ""

  def before_normalization(self) -> AbstractPreprocessor:
    """Returns the stages before normalization; all if none normalizes."""
    return self

  def describe_stages(self) -> list[dict[str, Any]]:
    """Returns the stages of `preprocess` as JSON, with the class name as 'stage'.

    An export records those that it does not contain; see
    `AbstractInputGenerator.source_preprocessing`.
    """
    return [{"stage": type(self).__name__}]

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
    """Checks the specs of all modes, at construction.

    Raises:
      SpecError: a structure is invalid, or required paths of the model are missing or
        different.
    """
    for mode in specs.ModeKeys.ALL:
      for getter in _SPECIFICATIONS:
        self._check_structure(getter, mode)
    mismatches = find_mismatches(
      self, self._model_feature_specification_fn, self._model_label_specification_fn
    )
    if mismatches:
      raise errors.mismatch_error(
        f"{type(self).__name__}: the out specs do not meet the model's", mismatches
      )

  def _check_structure(self, getter: str, mode: str) -> None:
    try:
      assert_valid_spec_structure(getattr(self, getter)(mode))
    except errors.SpecError as e:
      raise errors.SpecError(f"{type(self).__name__}: {getter}({mode!r}): {e}") from e


_BRANCHES = ("features", "labels")
_UNKNOWN = "unknown"
# Ops that return the values of their first input.
_PASSING_OPS = (
  "EnsureShape",
  "ExpandDims",
  "Identity",
  "PreventGradient",
  "Reshape",
  "Squeeze",
  "StopGradient",
)


def _trace_sources(preprocessor: AbstractPreprocessor) -> dict[str, str | None]:
  """Finds, for each path of the output, the input path whose values it has.

  Returns:
    By 'features/<path>' and 'labels/<path>'; None for computed values, and `_UNKNOWN`
    if the preprocessor can't be traced without data.
  """
  sources: dict[str, str | None] = {}
  for mode in (specs.ModeKeys.EVAL, specs.ModeKeys.TRAIN):
    expected = _joined_specs(
      preprocessor.get_out_feature_specification,
      preprocessor.get_out_label_specification,
      mode,
    )
    missing = [key for key in expected if key not in sources]
    if missing:
      try:
        traced = _trace_mode(preprocessor, mode)
      except Exception as error:
        logging.warning(
          "%s: its inputs can't be compared with statistics, as it can't be traced in "
          "mode '%s': %s", type(preprocessor).__name__, mode, error,
        )  # fmt: skip
        traced = {}
      sources |= {key: traced.get(key, _UNKNOWN) for key in missing}
  return sources


def _trace_mode(preprocessor: AbstractPreprocessor, mode: str) -> dict[str, str | None]:
  given = _joined_specs(
    preprocessor.get_in_feature_specification,
    preprocessor.get_in_label_specification,
    mode,
  )
  signature = [
    tf.TensorSpec([None, *[None] * _flag(s, "is_sequence"), *s.shape], s.dtype)
    for s in given.values()
  ]

  def run(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    batch: dict[str, specs.TensorSpecStruct] = {
      branch: specs.TensorSpecStruct() for branch in _BRANCHES
    }
    for key, tensor in zip(given, tensors, strict=True):
      branch, _, path = key.partition("/")
      batch[branch][path] = tensor
    results = preprocessor.preprocess(batch["features"], batch["labels"], mode)
    return {
      f"{branch}/{path}": value
      for branch, result in zip(_BRANCHES, results, strict=True)
      for path, value in (result or {}).items()
    }

  graph = tf.function(run).get_concrete_function(*signature).graph
  # `strict=False`: captured tensors follow the arguments.
  inputs = {t.op: key for t, key in zip(graph.inputs, given, strict=False)}
  sources: dict[str, str | None] = {}
  for key, tensor in graph.structured_outputs.items():
    if isinstance(tensor, tf.Tensor):
      op = tensor.op
      while op.type in _PASSING_OPS:
        op = op.inputs[0].op
      sources[key] = inputs.get(op)
  return sources


def _joined_specs(
  feature_fn: SpecificationFn, label_fn: SpecificationFn, mode: str
) -> dict[str, Any]:
  return {
    f"{branch}/{path}": spec
    for branch, specification_fn in zip(_BRANCHES, (feature_fn, label_fn), strict=True)
    for path, spec in call_specification_fn(specification_fn, mode).items()
  }


class SpecTransformationPreprocessor(AbstractPreprocessor):
  """Derives the in specs from the model's by a hook; the out specs are the model's.

  Override `_transform_in_feature_specification` (or the labels'), call `update_spec`
  in it for each path that differs, and undo the difference in `_preprocess_fn`.
  """

  def get_in_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    out = self.get_out_feature_specification(mode)
    return self._transform_in_feature_specification(out)

  def get_in_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    out = self.get_out_label_specification(mode)
    return self._transform_in_label_specification(out)

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    return call_specification_fn(self._model_feature_specification_fn, mode)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    return call_specification_fn(self._model_label_specification_fn, mode)

  def _transform_in_feature_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Changes a copy of the model's feature specs to the in specs."""
    return tensor_spec_struct

  def _transform_in_label_specification(
    self, tensor_spec_struct: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Changes a copy of the model's label specs to the in specs."""
    return tensor_spec_struct

  def update_spec(
    self, tensor_spec_struct: specs.TensorSpecStruct, key: str, **fields: Any
  ) -> specs.TensorSpecStruct:
    """Replaces fields of one spec of a structure, in place.

    Args:
      tensor_spec_struct: specs by path.
      key: path of the spec.
      **fields: arguments of `ExtendedTensorSpec.from_spec`.
    Returns:
      The structure.
    Raises:
      SpecError: the path is missing, or the fields contradict each other.
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


@gin.configurable
class NoOpPreprocessor(SpecTransformationPreprocessor):
  """Validates batches and returns them unchanged.

  For records with the model's dtypes and shapes.
  """

  def describe_stages(self) -> list[dict[str, Any]]:
    """Returns no stage, unless a subclass has another `_preprocess_fn`."""
    is_own = type(self)._preprocess_fn is not NoOpPreprocessor._preprocess_fn
    return super().describe_stages() if is_own else []

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    del mode
    return features, labels


PreprocessorFactory = Callable[..., AbstractPreprocessor]


def create_preprocessor(
  factory: PreprocessorFactory,
  feature_fn: SpecificationFn | None,
  label_fn: SpecificationFn | None,
) -> AbstractPreprocessor:
  """Creates a preprocessor from the specification functions of its successor.

  They are passed by keyword, as in Tensor2Robot, so that a class may have options:
  `__init__(self, crop_size=..., **kwargs)`. A function with other argument names, such
  as a lambda of two, gets them by position.

  Raises:
    SpecError: `factory` is an instance, or the specs do not fit the preprocessor.
  """
  if isinstance(factory, AbstractPreprocessor):
    name = type(factory).__name__
    raise errors.SpecError(
      "preprocessor: expected a class, or a function that creates a preprocessor from "
      f"two specification functions, got an instance of {name}. Give {name} itself, "
      f"with its options by functools.partial({name}, ...)."
    )
  functions = {
    "model_feature_specification_fn": feature_fn,
    "model_label_specification_fn": label_fn,
  }
  try:
    inspect.signature(factory).bind(**functions)
  except TypeError:
    return factory(feature_fn, label_fn)
  return factory(**functions)


@gin.configurable
class ComposedPreprocessor(AbstractPreprocessor):
  """Runs preprocessors in order, from the stored data to the model.

  Each is built with the in specs of its successor as its "model", the last one with
  the model's specs, so that mismatches fail at construction.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
    preprocessor_classes: Sequence[PreprocessorFactory] = (),
  ) -> None:
    """Creates the chain.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      preprocessor_classes: classes, or functions that create preprocessors, one or
        more, from the stored data to the model.
    Raises:
      SpecError: the list is empty, or a stage does not match its successor.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    if not preprocessor_classes:
      raise errors.SpecError(
        "ComposedPreprocessor: preprocessor_classes: expected at least one, got none."
      )
    stages: list[AbstractPreprocessor] = []
    feature_fn, label_fn = model_feature_specification_fn, model_label_specification_fn
    for index in reversed(range(len(preprocessor_classes))):
      successor = stages[0] if stages else None
      stage = _create_stage(
        preprocessor_classes, index, feature_fn, label_fn, successor
      )
      feature_fn = stage.get_in_feature_specification
      label_fn = stage.get_in_label_specification
      stages.insert(0, stage)
    self._stages = tuple(stages)

  @classmethod
  def of_stages(cls, stages: Sequence[AbstractPreprocessor]) -> ComposedPreprocessor:
    """Makes a chain of one or more built stages."""
    last = stages[-1]
    factories = [lambda stage=stage, **_: stage for stage in stages]
    return ComposedPreprocessor(
      last.get_out_feature_specification, last.get_out_label_specification, factories
    )

  @property
  def stages(self) -> tuple[AbstractPreprocessor, ...]:
    """The preprocessors in order."""
    return self._stages

  def describe_stages(self) -> list[dict[str, Any]]:
    return [each for stage in self._stages for each in stage.describe_stages()]

  def get_in_feature_specification(self, mode: str) -> Any:
    return self._stages[0].get_in_feature_specification(mode)

  def get_in_label_specification(self, mode: str) -> Any:
    return self._stages[0].get_in_label_specification(mode)

  def get_out_feature_specification(self, mode: str) -> Any:
    return self._stages[-1].get_out_feature_specification(mode)

  def get_out_label_specification(self, mode: str) -> Any:
    return self._stages[-1].get_out_label_specification(mode)

  def representations(self, before: Representations | None = None) -> Representations:
    representations: Representations = before or {}
    for stage in self._stages:
      representations = stage.representations(representations)
    return representations

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    for stage in self._stages:
      stage.check_inputs(find)
      find = functools.cache(
        lambda stage=stage, before=find: stage.representations(before())
      )

  def before_normalization(self) -> AbstractPreprocessor:
    """Returns the stages before the last one that normalises."""
    for index in reversed(range(len(self._stages))):
      stage = self._stages[index]
      before = stage.before_normalization()
      if before is not stage:
        return self.of_stages([*self._stages[:index], before])
    return self

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    for stage in self._stages:
      features, labels = stage.preprocess(features, labels, mode)
    return features, labels


def _create_stage(
  preprocessor_classes: Sequence[PreprocessorFactory],
  index: int,
  feature_fn: SpecificationFn | None,
  label_fn: SpecificationFn | None,
  successor: AbstractPreprocessor | None,
) -> AbstractPreprocessor:
  """Builds a stage, and checks it against its successor."""
  hint = "" if successor is None else successor.input_hint
  factory = preprocessor_classes[index]
  where = f"ComposedPreprocessor: stage {index + 1} of {len(preprocessor_classes)}"
  try:
    stage = create_preprocessor(
      factory,
      feature_fn and _StageSpecification(feature_fn),
      label_fn and _StageSpecification(label_fn),
    )
  except errors.SpecError as e:
    raise errors.SpecError(f"{where}: {e}{hint}") from e
  mismatches = find_mismatches(stage, feature_fn, label_fn)
  if mismatches:
    name = type(stage).__name__
    if type(stage).receive is not AbstractPreprocessor.receive:
      hint += (
        f" What {name} sends is received by the model alone: wrap the whole chain, "
        f"{name}(preprocessor_cls=...), in place of a stage."
      )
    text = f"{where}: {name}: the out specs do not meet its successor's"
    error: errors.SpecError = errors.mismatch_error(text, mismatches)
    raise errors.SpecError(f"{error}{hint}") if hint else error
  return stage
