"""The contract of preprocessors, the one that does nothing, and chains of them."""

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
  """Flattens what a specification function gives for a mode.

  Args:
    specification_fn: takes a mode and returns a spec structure; None, or a function
      that returns None, stands for the empty structure.
    mode: one of `specs.ModeKeys`.
  Returns:
    A struct of its own; changing it does not change the function's.
  """
  structure = None if specification_fn is None else specification_fn(mode)
  if structure is None:
    return specs.TensorSpecStruct()
  return specs.flatten_spec_structure(structure)


def find_mismatches(
  prefix: str, wanted_fn: SpecificationFn | None, given_fn: SpecificationFn
) -> list[errors.Mismatch]:
  """Finds what the later stage wants and the earlier one does not give.

  Args:
    prefix: 'features' or 'labels'; starts the reported paths.
    wanted_fn: the in (or model) specs of the later stage, by mode.
    given_fn: the out specs of the earlier stage, by mode.
  Returns:
    One mismatch for each path and kind, naming its modes; empty when they meet.
  """
  found: dict[tuple[str, str, str, str], list[str]] = {}
  for mode in specs.ModeKeys.ALL:
    given = call_specification_fn(given_fn, mode)
    for path, wanted in call_specification_fn(wanted_fn, mode).items():
      problem = _compare(path, wanted, given)
      if problem is not None:
        found.setdefault((path, *problem), []).append(mode)
  return [
    errors.Mismatch(f"{prefix}/{path} (mode {', '.join(modes)})", expected, got, hint)
    for (path, expected, got, hint), modes in found.items()
  ]


def _compare(
  path: str, wanted: Any, given_specs: specs.TensorSpecStruct
) -> tuple[str, str, str] | None:
  if path not in given_specs:
    if getattr(wanted, "is_optional", False):
      return None
    return _describe(wanted), "nothing", errors.nearest(path, given_specs).strip()
  given = given_specs[path]
  if (
    wanted.dtype != given.dtype
    or not wanted.shape.is_compatible_with(given.shape)
    or _flag(wanted, "is_sequence") != _flag(given, "is_sequence")
  ):
    return _describe(wanted), _describe(given), ""
  if _flag(given, "is_optional") and not _flag(wanted, "is_optional"):
    return f"required {_describe(wanted)}", f"optional {_describe(given)}", ""
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
  """Checks an instance after the last `__init__` of its class has run.

  A check in the base's `__init__` would come too early: the specs of a subclass may
  depend on what it stores after `super().__init__`.
  """

  def __call__(cls, *args: Any, **kwargs: Any) -> Any:
    preprocessor = super().__call__(*args, **kwargs)
    preprocessor.check_specifications()
    given = (*args, *kwargs.values())
    if not any(isinstance(value, _StageSpecification) for value in given):
      preprocessor.check_inputs(dict)
    return preprocessor


class _StageSpecification:
  """The specification function of a stage, which gets other values than are stored.

  The chain checks them, once all of its stages are built.
  """

  def __init__(self, specification_fn: SpecificationFn) -> None:
    self._specification_fn = specification_fn

  def __call__(self, mode: str) -> Any:
    return self._specification_fn(mode)


Representations = Mapping[str, str | None]
"""Which preprocessors changed the values, by 'features/<path>' and 'labels/<path>'.

Names of classes, 'Relative > Clip'; '' (or no entry) for values as they are stored, and
None where it is unknown.
"""


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
    model_feature_specification_fn: SpecificationFn | None = None,
    model_label_specification_fn: SpecificationFn | None = None,
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
    """Undoes, on the device, what was done for the way to it; by default nothing.

    Args:
      features: as `preprocess` gives them, leaves [B, ...].
      labels: the same, or None.
      mode: one of `specs.ModeKeys`.
    Returns:
      Features and labels as the model takes them.
    """
    del mode
    return features, labels

  def representations(self, before: Representations | None = None) -> Representations:
    """Finds which paths this preprocessor changes.

    That is what mode 'eval' computes: distortions of mode 'train' alone don't count.

    Args:
      before: which stages have changed the input; None for values as they are stored.
    Returns:
      The same for the output.
    """
    before = before or {}
    name = type(self).__name__
    found: dict[str, str | None] = {}
    for key, source in _trace_sources(self).items():
      if source == _UNKNOWN:
        found[key] = None
      elif source is not None:
        found[key] = before.get(source, "")
      else:
        earlier = before.get(key, "")
        found[key] = f"{earlier} > {name}" if earlier else name
    return found

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    """Checks that the input is of the representation that this preprocessor expects.

    Called at construction; for a stage of a chain when all stages are built.

    Args:
      find: returns which earlier stages changed the input; costs a trace of each.
    Raises:
      SpecError: the input is of another representation.
    """

  @property
  def input_hint(self) -> str:
    """What to do if an earlier stage does not meet the in specs, for errors."""
    return ""

  def before_normalization(self) -> AbstractPreprocessor:
    """Returns what runs before `Normalize`: the input of its statistics."""
    return self

  def describe_stages(self) -> list[dict[str, Any]]:
    """Returns what `preprocess` does, stage by stage, as JSON.

    For the record of an export, if the stages are not in it; see
    `AbstractInputGenerator.source_preprocessing`.

    Returns:
      For each stage its class name as 'stage', and what else is known of it.
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
    """Checks the specs of all modes, and that they meet the model's.

    Called at construction.

    Raises:
      SpecError: a structure is not valid, or required paths of the model are missing
        or different; all of them are named.
    """
    for mode in specs.ModeKeys.ALL:
      for getter in _SPECIFICATIONS:
        self._check_structure(getter, mode)
    mismatches = find_mismatches(
      "features",
      self._model_feature_specification_fn,
      self.get_out_feature_specification,
    ) + find_mismatches(
      "labels", self._model_label_specification_fn, self.get_out_label_specification
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
# These give the values of their first input.
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
  """Finds the path of the input whose values each path of the output has.

  Returns:
    By 'features/<path>' and 'labels/<path>'; None for values that are computed, and
    `_UNKNOWN` where the preprocessor can't be traced without data.
  """
  found: dict[str, str | None] = {}
  out = {
    mode: _joined_specs(
      preprocessor.get_out_feature_specification,
      preprocessor.get_out_label_specification,
      mode,
    )
    for mode in (specs.ModeKeys.EVAL, specs.ModeKeys.TRAIN)
  }
  for mode, expected in out.items():
    missing = [key for key in expected if key not in found]
    if missing:
      try:
        traced = _trace_mode(preprocessor, mode)
      except Exception as error:
        logging.warning(
          "%s: its inputs can't be compared with statistics, as it can't be traced in "
          "mode '%s': %s", type(preprocessor).__name__, mode, error,
        )  # fmt: skip
        traced = {}
      found |= {key: traced.get(key, _UNKNOWN) for key in missing}
  return found


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
  inputs = {t.op: key for t, key in zip(graph.inputs, given, strict=False)}
  found: dict[str, str | None] = {}
  for key, tensor in graph.structured_outputs.items():
    if isinstance(tensor, tf.Tensor):
      op = tensor.op
      while op.type in _PASSING_OPS:
        op = op.inputs[0].op
      found[key] = inputs.get(op)
  return found


def _joined_specs(
  feature_fn: SpecificationFn, label_fn: SpecificationFn, mode: str
) -> dict[str, Any]:
  return {
    f"{branch}/{path}": spec
    for branch, specification_fn in zip(_BRANCHES, (feature_fn, label_fn), strict=True)
    for path, spec in call_specification_fn(specification_fn, mode).items()
  }


@gin.configurable
class NoOpPreprocessor(AbstractPreprocessor):
  """Takes and gives just what the model takes.

  Use it when the records already hold the model's dtypes and shapes; the batches are
  still validated.
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
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)

  def get_in_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's feature specs, by path."""
    return call_specification_fn(self._model_feature_specification_fn, mode)

  def get_in_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs, by path."""
    return call_specification_fn(self._model_label_specification_fn, mode)

  def get_out_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's feature specs, by path."""
    return call_specification_fn(self._model_feature_specification_fn, mode)

  def get_out_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the model's label specs, by path."""
    return call_specification_fn(self._model_label_specification_fn, mode)

  def describe_stages(self) -> list[dict[str, Any]]:
    """See the base class; nothing, unless a subclass does something."""
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
  """Creates a preprocessor from the specification functions of what follows it.

  They are passed by keyword, as in Tensor2Robot: a class may take options of its own
  first and pass the rest on, `__init__(self, crop_size=..., **kwargs)`. A function with
  other argument names, such as a lambda of two, gets them by position.

  Raises:
    SpecError: it is a preprocessor already.
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
  """Runs preprocessors one after the other, in the order of the list.

  The first of the list takes the data as stored, the last gives what the model
  takes. Each is built with the in specs of its successor as its "model", the last one
  with the model's own specs, so that what does not meet fails at construction.
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
      preprocessor_classes: one or more, from the stored data to the model.
    Raises:
      SpecError: the list is empty, or a stage does not give what its successor takes;
        names the stage and every path.
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
    """Builds a chain of one or more stages that are built already."""
    last = stages[-1]
    factories = [lambda stage=stage, **_: stage for stage in stages]
    return ComposedPreprocessor(
      last.get_out_feature_specification, last.get_out_label_specification, factories
    )

  @property
  def stages(self) -> tuple[AbstractPreprocessor, ...]:
    """The preprocessors, in the order in which they run."""
    return self._stages

  def describe_stages(self) -> list[dict[str, Any]]:
    """Returns those of all stages, in the order in which they run."""
    return [each for stage in self._stages for each in stage.describe_stages()]

  def get_in_feature_specification(self, mode: str) -> Any:
    """Returns the in feature specs of the first stage."""
    return self._stages[0].get_in_feature_specification(mode)

  def get_in_label_specification(self, mode: str) -> Any:
    """Returns the in label specs of the first stage."""
    return self._stages[0].get_in_label_specification(mode)

  def get_out_feature_specification(self, mode: str) -> Any:
    """Returns the out feature specs of the last stage."""
    return self._stages[-1].get_out_feature_specification(mode)

  def get_out_label_specification(self, mode: str) -> Any:
    """Returns the out label specs of the last stage."""
    return self._stages[-1].get_out_label_specification(mode)

  def representations(self, before: Representations | None = None) -> Representations:
    """Follows the paths through the stages; see the base class."""
    found: Representations = before or {}
    for stage in self._stages:
      found = stage.representations(found)
    return found

  def check_inputs(self, find: Callable[[], Representations]) -> None:
    """Checks the input of each stage; see the base class."""
    for stage in self._stages:
      stage.check_inputs(find)
      find = functools.cache(functools.partial(_find_after, stage, find))

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


def _find_after(
  stage: AbstractPreprocessor, find: Callable[[], Representations]
) -> Representations:
  return stage.representations(find())


def _create_stage(
  preprocessor_classes: Sequence[PreprocessorFactory],
  index: int,
  feature_fn: SpecificationFn | None,
  label_fn: SpecificationFn | None,
  successor: AbstractPreprocessor | None,
) -> AbstractPreprocessor:
  """Builds a stage; checks it even if it did not tell its base of its successor."""
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
  mismatches = find_mismatches(
    "features", feature_fn, stage.get_out_feature_specification
  ) + find_mismatches("labels", label_fn, stage.get_out_label_specification)
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
