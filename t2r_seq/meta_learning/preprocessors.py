"""Meta-examples: their records, their specs, and their preprocessors.

    condition/features, condition/labels    the support set of a task
    inference/features, and the labels      its query set

Every leaf has an axis of tasks and one of samples: [tasks, samples, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, randomness, specs
from t2r_seq.meta_learning import meta_tfdata
from t2r_seq.preprocessors import AbstractPreprocessor
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, SpecStructure, TensorSpecStruct

# Maximum number of samples of a task: keeps the numbers that seed augmentation apart.
_MAX_SAMPLES = 2**16

MetaMapFn = Callable[[Any, Any], tuple[TensorSpecStruct, TensorSpecStruct]]

Example = Any  # A tf.train.Example or a tf.train.SequenceExample.


def make_meta_example(
  condition_examples: Sequence[Example], inference_examples: Sequence[Example]
) -> Example:
  """Joins the records of a task's episodes into one.

  Args:
    condition_examples: the support set, at least one.
    inference_examples: the query set; of the same kind of record.
  Returns:
    A record for `FixedLenMetaExamplePreprocessor`; its features are named
    'condition_ep0/<name>', 'inference_ep0/<name>', and so on.
  Raises:
    SpecError: there is no condition record, or records are of different kinds.
  """
  examples = [*condition_examples, *inference_examples]
  kinds = {type(example) for example in examples}
  if len(kinds) != 1 or not condition_examples:
    got = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
    raise errors.SpecError(
      "make_meta_example: condition_examples: expected records, all Examples or all "
      f"SequenceExamples, got {len(condition_examples)} of {len(examples)}: {got}."
    )
  (kind,) = kinds
  meta_example = kind()
  append = append_example if kind is tf.train.Example else append_sequence_example
  for branch, episodes in (
    ("condition", condition_examples),
    ("inference", inference_examples),
  ):
    for number, episode in enumerate(episodes):
      append(meta_example, episode, f"{branch}_ep{number}")
  return meta_example


def append_example(
  example: tf.train.Example, ep_example: tf.train.Example, prefix: str
) -> None:
  """Adds the features of `ep_example` as '<prefix>/<name>'."""
  for key, feature in ep_example.features.feature.items():
    example.features.feature[f"{prefix}/{key}"].CopyFrom(feature)


def append_sequence_example(
  meta_example: tf.train.SequenceExample,
  ep_example: tf.train.SequenceExample,
  prefix: str,
) -> None:
  """Adds the features and lists of `ep_example` as '<prefix>/<name>'."""
  for key, feature in ep_example.context.feature.items():
    meta_example.context.feature[f"{prefix}/{key}"].CopyFrom(feature)
  for key, features in ep_example.feature_lists.feature_list.items():
    meta_example.feature_lists.feature_list[f"{prefix}/{key}"].CopyFrom(features)


def condition_mode(mode: str) -> str:
  """Returns the mode of the condition: never 'infer', since its loss needs labels."""
  return ModeKeys.EVAL if mode == ModeKeys.INFER else mode


def create_maml_feature_spec(
  feature_spec: SpecStructure,
  label_spec: SpecStructure,
  inference_spec: SpecStructure | None = None,
) -> TensorSpecStruct:
  """Derives the feature specs of a meta-example.

  Args:
    feature_spec: feature specs of the base model.
    label_spec: label specs of the base model.
    inference_spec: feature specs of the inference if they differ, as with the candidate
      actions of a search; None: `feature_spec`.
  Returns:
    Specs below 'condition/features', 'condition/labels' and 'inference/features',
    [samples, ...].
  """
  inferred = feature_spec if inference_spec is None else inference_spec
  return TensorSpecStruct(
    {
      **_below("condition/features", _with_samples(feature_spec, "condition_features")),
      **_below("condition/labels", _with_samples(label_spec, "condition_labels")),
      **_below("inference/features", _with_samples(inferred, "inference_features")),
    }
  )


def maml_feature_spec(
  feature_fn: Callable[[str], SpecStructure],
  label_fn: Callable[[str], SpecStructure],
  mode: str,
) -> TensorSpecStruct:
  """Returns `create_maml_feature_spec` in a mode, of functions from modes to specs."""
  learned = condition_mode(mode)
  return create_maml_feature_spec(
    feature_fn(learned), label_fn(learned), feature_fn(mode)
  )


def create_maml_label_spec(label_spec: SpecStructure) -> TensorSpecStruct:
  """Derives the label specs of a meta-example: those of the inference."""
  return _with_samples(label_spec, "meta_labels")


def _with_samples(spec_structure: SpecStructure, prefix: str) -> TensorSpecStruct:
  """Prepends an axis of samples to specs, and a prefix to their names.

  The samples are windows: stacks keep their axis, sequences have one of any length.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return TensorSpecStruct(
    (
      path,
      ExtendedTensorSpec.from_spec(
        spec,
        shape=[None, *([None] if spec.is_sequence else []), *spec.shape],
        name=f"{prefix}/{spec.name or ''}",
        is_sequence=False,
        time_offsets=None,
      ),
    )
    for path, spec in flat.items()
  )


@gin.configurable
class MAMLPreprocessorV2(AbstractPreprocessor):
  """Applies a base model's preprocessor to every sample of meta-examples."""

  def __init__(self, base_preprocessor: AbstractPreprocessor) -> None:
    """Creates the preprocessor.

    Args:
      base_preprocessor: preprocessor of the base model.
    """
    super().__init__()
    self._base_preprocessor = base_preprocessor

  @property
  def base_preprocessor(self) -> AbstractPreprocessor:
    """The preprocessor of the base model."""
    return self._base_preprocessor

  def get_in_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns `create_maml_feature_spec` of the base preprocessor's in specs."""
    base = self._base_preprocessor
    return maml_feature_spec(
      base.get_in_feature_specification, base.get_in_label_specification, mode
    )

  def get_in_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns `create_maml_label_spec` of the base preprocessor's in specs."""
    base = self._base_preprocessor
    return create_maml_label_spec(base.get_in_label_specification(mode))

  def get_out_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns `create_maml_feature_spec` of the base preprocessor's out specs."""
    base = self._base_preprocessor
    return maml_feature_spec(
      base.get_out_feature_specification, base.get_out_label_specification, mode
    )

  def get_out_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns `create_maml_label_spec` of the base preprocessor's out specs."""
    base = self._base_preprocessor
    return create_maml_label_spec(base.get_out_label_specification(mode))

  def create_meta_map_fn(
    self,
    num_condition_samples_per_task: int,
    num_inference_samples_per_task: int,
  ) -> MetaMapFn:
    """Creates the function that splits a batch into condition and inference.

    Args:
      num_condition_samples_per_task: number of condition samples, the first of the
        batch.
      num_inference_samples_per_task: number of inference samples, the others.
    Returns:
      A function for `Dataset.map`: from (features, labels) of the base preprocessor's
      in specs, [samples, ...], to those of a meta-example, without the axis of tasks.
    Raises:
      SpecError: a number is not an integer of at least 1. The returned function raises
        it if a batch does not have as many samples as both numbers together.
    """
    counts = {
      "num_condition_samples_per_task": num_condition_samples_per_task,
      "num_inference_samples_per_task": num_inference_samples_per_task,
    }
    for name, count in counts.items():
      errors.check_count(type(self).__name__, name, count)
    first, total = num_condition_samples_per_task, sum(counts.values())

    @tf.autograph.experimental.do_not_convert
    def to_meta(
      features: SpecStructure, labels: SpecStructure
    ) -> tuple[TensorSpecStruct, TensorSpecStruct]:
      features = specs.flatten_spec_structure(features)
      labels = specs.flatten_spec_structure(labels)
      mismatches = [
        errors.Mismatch(path, f"{total} samples", errors.describe(tensor))
        for path, tensor in [*features.items(), *labels.items()]
        if tf.TensorShape(tensor.shape)[0] != total
      ]
      if mismatches:
        raise errors.mismatch_error("meta map", mismatches)
      return split_samples(features, labels, lambda x: x[:first], lambda x: x[first:])

    return to_meta

  @tf.autograph.experimental.do_not_convert
  def preprocess_condition(
    self, raw_features: SpecStructure, mode: str
  ) -> TensorSpecStruct:
    """Preprocesses only the condition.

    Args:
      raw_features: fits the in feature specs below 'condition/', with an axis of tasks.
      mode: value of `specs.ModeKeys`.
    Returns:
      A flat struct of 'features/...' and 'labels/...', [tasks, samples, ...].
    Raises:
      SpecError: the features do not fit the in specs.
    """
    in_spec = condition_of(self.get_in_feature_specification(mode))
    given = specs.validate_and_flatten(in_spec, raw_features, ignore_batch=True)
    condition = self._stacked_condition(TensorSpecStruct(given).condition)
    features, labels = self._preprocess_samples(
      condition.features, condition.labels, condition_mode(mode), 0
    )
    return TensorSpecStruct(
      {**_below("features", features), **_below("labels", labels)}
    )

  def _stacked_condition(self, condition: Any) -> Any:
    """Converts the condition of the in specs to leaves [tasks, samples, ...]."""
    return condition

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    condition, inference = features.condition, features.inference
    condition_features, condition_labels = self._preprocess_samples(
      condition.features, condition.labels, condition_mode(mode), 0
    )
    inference_features, labels = self._preprocess_samples(
      inference.features, labels, mode, _MAX_SAMPLES
    )
    features = TensorSpecStruct(
      {
        **_below("condition/features", condition_features),
        **_below("condition/labels", condition_labels),
        **_below("inference/features", inference_features),
      }
    )
    return features, labels

  def _preprocess_samples(
    self, features: Any, labels: Any, mode: str, first_number: int
  ) -> tuple[TensorSpecStruct, TensorSpecStruct | None]:
    """Preprocesses tensors [tasks, samples, ...] as one batch.

    For random numbers, the samples of each task are numbered from `first_number`.
    """
    given = specs.flatten_spec_structure(features)
    sizes = meta_tfdata.batch_sizes(given, 2)
    merged = [
      None if part is None else meta_tfdata.flatten_batch_examples(part)
      for part in (given, labels and specs.flatten_spec_structure(labels))
    ]
    numbers = randomness.sample_numbers()
    if numbers is not None:
      of_task = first_number + tf.range(sizes[1], dtype=tf.int64)
      numbers = numbers[:, tf.newaxis] * (2 * _MAX_SAMPLES) + of_task
      numbers = tf.reshape(numbers, [-1])
    with randomness.sample_number_scope(numbers, randomness.is_on_host()):
      features, labels = self._base_preprocessor.preprocess(merged[0], merged[1], mode)
    split: list[Any] = [
      part and TensorSpecStruct(meta_tfdata.expand_batch_dims(part.to_dict(), sizes))
      for part in (features, labels)
    ]
    return split[0], split[1]


def create_metaexample_spec(
  model_spec: SpecStructure, num_samples_per_task: int, prefix: str
) -> TensorSpecStruct:
  """Derives the specs of a record of several episodes.

  A spec named 's' at 'state' becomes '<prefix>_ep0/s' at 'state/0', and so on.

  Args:
    model_spec: specs of one episode.
    num_samples_per_task: number of episodes.
    prefix: prefix of the names.
  """
  return TensorSpecStruct(
    (
      f"{path}/{number}",
      ExtendedTensorSpec.from_spec(spec, name=f"{prefix}_ep{number}/{spec.name}"),
    )
    for path, spec in specs.flatten_spec_structure(model_spec).items()
    for number in range(num_samples_per_task)
  )


def stack_intra_task_episodes(
  in_tensors: SpecStructure, num_samples_per_task: int
) -> TensorSpecStruct:
  """Stacks 'state/0', ..., [tasks, ...], to 'state', [tasks, samples, ...]."""
  flat = specs.flatten_spec_structure(in_tensors)
  paths = dict.fromkeys(path.rpartition("/")[0] for path in flat)
  return TensorSpecStruct(
    (path, tf.stack([flat[f"{path}/{n}"] for n in range(num_samples_per_task)], axis=1))
    for path in paths
  )


@gin.configurable
class FixedLenMetaExamplePreprocessor(MAMLPreprocessorV2):
  """Preprocesses records of `make_meta_example`: each has all episodes of a task.

  Any generator that reads records can read them.
  """

  def __init__(
    self,
    base_preprocessor: AbstractPreprocessor,
    num_condition_samples_per_task: int = 1,
    num_inference_samples_per_task: int = 1,
  ) -> None:
    """Creates the preprocessor.

    Args:
      base_preprocessor: preprocessor of the base model.
      num_condition_samples_per_task: number of episodes of the condition.
      num_inference_samples_per_task: number of episodes of the inference.
    """
    self._num_condition_samples_per_task = num_condition_samples_per_task
    self._num_inference_samples_per_task = num_inference_samples_per_task
    super().__init__(base_preprocessor)

  def get_in_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the specs of the records, by 'condition/features/<path>/<number>'."""
    base, learned = self._base_preprocessor, condition_mode(mode)
    condition = {
      "features": base.get_in_feature_specification(learned),
      "labels": base.get_in_label_specification(learned),
    }
    inference = {"features": base.get_in_feature_specification(mode)}
    counts = self._num_condition_samples_per_task, self._num_inference_samples_per_task
    return TensorSpecStruct(
      condition=create_metaexample_spec(condition, counts[0], "condition"),
      inference=create_metaexample_spec(inference, counts[1], "inference"),
    )

  def get_in_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the label specs of the inference, by '<path>/<number>'."""
    return create_metaexample_spec(
      self._base_preprocessor.get_in_label_specification(mode),
      self._num_inference_samples_per_task,
      "inference",
    )

  def _stacked_condition(self, condition: Any) -> TensorSpecStruct:
    return stack_intra_task_episodes(condition, self._num_condition_samples_per_task)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    num_inference = self._num_inference_samples_per_task
    stacked = TensorSpecStruct(
      condition=self._stacked_condition(features.condition),
      inference=stack_intra_task_episodes(features.inference, num_inference),
    )
    if labels is not None:
      labels = stack_intra_task_episodes(labels, num_inference)
    return super()._preprocess_fn(stacked, labels, mode)


def split_samples(
  features: Any, labels: Any, condition_fn: Callable, inference_fn: Callable
) -> tuple[TensorSpecStruct, TensorSpecStruct]:
  """Splits samples into (features, labels) of a meta-example.

  Args:
    features: values by path.
    labels: values by path.
    condition_fn: returns the condition's part of a value.
    inference_fn: returns the inference's part of a value.
  """

  def take(fn: Callable, given: Any) -> dict[str, Any]:
    return {path: fn(value) for path, value in given.items()}

  meta = TensorSpecStruct(
    {
      **_below("condition/features", take(condition_fn, features)),
      **_below("condition/labels", take(condition_fn, labels)),
      **_below("inference/features", take(inference_fn, features)),
    }
  )
  return meta, TensorSpecStruct(take(inference_fn, labels))


def condition_of(features: SpecStructure) -> TensorSpecStruct:
  """Returns the features of a meta-example below 'condition/'."""
  return TensorSpecStruct(
    (path, leaf)
    for path, leaf in specs.flatten_spec_structure(features).items()
    if path.startswith("condition/")
  )


def _below(branch: str, leaves: Any) -> dict[str, Any]:
  return {f"{branch}/{path}": leaf for path, leaf in leaves.items()}
