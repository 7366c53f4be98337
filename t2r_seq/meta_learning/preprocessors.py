"""Specs of meta-examples, derived from a base model's, and their preprocessors.

    condition/features, condition/labels    what a task is learned from
    inference/features, and the labels      what that is tried on

Every leaf has an axis of tasks and one of samples: [tasks, samples, ...].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, randomness, specs
from t2r_seq.meta_learning import meta_tfdata
from t2r_seq.preprocessors import AbstractPreprocessor
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, SpecStructure, TensorSpecStruct

# Of a task, for the numbers that augmentation draws by.
_MOST_SAMPLES = 2**16

MetaMapFn = Callable[[Any, Any], tuple[TensorSpecStruct, TensorSpecStruct]]


def condition_mode(mode: str) -> str:
  """Returns the mode of what a task is learned from: its loss is asked for in each."""
  return ModeKeys.EVAL if mode == ModeKeys.INFER else mode


def create_maml_feature_spec(
  feature_spec: SpecStructure,
  label_spec: SpecStructure,
  inference_spec: SpecStructure | None = None,
) -> TensorSpecStruct:
  """Derives the feature specs of a meta-example.

  Args:
    feature_spec: of the base model.
    label_spec: of the base model.
    inference_spec: of the inference's features, where the base model sees others there,
      such as the candidates of a search; None: the same.
  Returns:
    Specs below 'condition/features', 'condition/labels' and 'inference/features', with
    an axis of samples, of any number, in front.
  """
  inferred = feature_spec if inference_spec is None else inference_spec
  return TensorSpecStruct(
    {
      **_below("condition/features", with_samples(feature_spec, "condition_features")),
      **_below("condition/labels", with_samples(label_spec, "condition_labels")),
      **_below("inference/features", with_samples(inferred, "inference_features")),
    }
  )


def create_maml_label_spec(label_spec: SpecStructure) -> TensorSpecStruct:
  """Derives the label specs of a meta-example: those of the inference."""
  return with_samples(label_spec, "meta_labels")


def with_samples(
  spec_structure: SpecStructure, prefix: str, num_samples: int | None = None
) -> TensorSpecStruct:
  """Gives specs an axis of samples in front, and their names a prefix.

  Windows and sequences have been cut by then: what has time offsets keeps its stack
  axis, and a sequence becomes an axis of any length.

  Args:
    spec_structure: of a base model.
    prefix: put before every name with a '/'.
    num_samples: None for any number.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return TensorSpecStruct(
    (
      path,
      ExtendedTensorSpec.from_spec(
        spec,
        shape=[num_samples, *([None] if spec.is_sequence else []), *spec.shape],
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
      base_preprocessor: of the base model.
    """
    super().__init__()
    self._base_preprocessor = base_preprocessor

  @property
  def base_preprocessor(self) -> AbstractPreprocessor:
    """The preprocessor of the base model."""
    return self._base_preprocessor

  def get_in_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns those of `create_maml_feature_spec`, of the base's in specs."""
    base, learned = self._base_preprocessor, condition_mode(mode)
    return create_maml_feature_spec(
      base.get_in_feature_specification(learned),
      base.get_in_label_specification(learned),
      base.get_in_feature_specification(mode),
    )

  def get_in_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns those of `create_maml_label_spec`, of the base's in specs."""
    base = self._base_preprocessor
    return create_maml_label_spec(base.get_in_label_specification(mode))

  def get_out_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns those of `create_maml_feature_spec`, of the base's out specs."""
    base, learned = self._base_preprocessor, condition_mode(mode)
    return create_maml_feature_spec(
      base.get_out_feature_specification(learned),
      base.get_out_label_specification(learned),
      base.get_out_feature_specification(mode),
    )

  def get_out_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns those of `create_maml_label_spec`, of the base's out specs."""
    base = self._base_preprocessor
    return create_maml_label_spec(base.get_out_label_specification(mode))

  def create_meta_map_fn(
    self,
    num_condition_samples_per_task: int,
    num_inference_samples_per_task: int,
  ) -> MetaMapFn:
    """Creates the function that makes a task of a batch of its samples.

    Args:
      num_condition_samples_per_task: the first of the batch.
      num_inference_samples_per_task: the others.
    Returns:
      A function for `Dataset.map`, of (features, labels) of the base's in specs, whose
      batch axis is known; it gives (features, labels) of a meta-example, without the
      axis of tasks.
    Raises:
      SpecError: a number is not positive; or, by the function, the batch has another
        size.
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
      found = [
        errors.Mismatch(path, f"{total} samples", errors.describe(tensor))
        for path, tensor in [*features.items(), *labels.items()]
        if tf.TensorShape(tensor.shape)[0] != total
      ]
      if found:
        raise errors.mismatch_error("meta map", found)
      meta = TensorSpecStruct(
        {
          **_below("condition/features", {p: v[:first] for p, v in features.items()}),
          **_below("condition/labels", {p: v[:first] for p, v in labels.items()}),
          **_below("inference/features", {p: v[first:] for p, v in features.items()}),
        }
      )
      return meta, TensorSpecStruct({p: v[first:] for p, v in labels.items()})

    return to_meta

  @tf.autograph.experimental.do_not_convert
  def preprocess_condition(
    self, raw_features: SpecStructure, mode: str
  ) -> TensorSpecStruct:
    """Preprocesses what a task is learned from, without what that is tried on.

    Args:
      raw_features: those of the in feature specs below 'condition/'.
      mode: one of `ModeKeys`.
    Returns:
      A struct of 'features' and 'labels', [tasks, samples, ...].
    Raises:
      SpecError: they do not fit the in specs.
    """
    in_spec = specs.flatten_spec_structure(self.get_in_feature_specification(mode))
    wanted = TensorSpecStruct(
      (path, spec) for path, spec in in_spec.items() if path.startswith("condition/")
    )
    given = specs.validate_and_flatten(wanted, raw_features, ignore_batch=True)
    condition = self._stacked_condition(TensorSpecStruct(given).condition)
    features, labels = self._preprocess_samples(
      condition.features, condition.labels, condition_mode(mode), 0
    )
    return TensorSpecStruct(
      {**_below("features", features), **_below("labels", labels)}
    )

  def _stacked_condition(self, condition: Any) -> Any:
    """Brings the condition of the in specs to [tasks, samples, ...]."""
    return condition

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    condition, inference = features.condition, features.inference
    condition_features, condition_labels = self._preprocess_samples(
      condition.features, condition.labels, condition_mode(mode), 0
    )
    inference_features, labels = self._preprocess_samples(
      inference.features, labels, mode, _MOST_SAMPLES
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

    Its samples count from `first_number` in each task, for what is drawn.
    """
    first = next(iter(specs.flatten_spec_structure(features).values()))
    known = first.shape[:2]
    sizes = known if known.is_fully_defined() else tf.shape(first)[:2]
    merged = [
      None
      if part is None
      else TensorSpecStruct(
        meta_tfdata.merge_first_n_dims(
          dict(specs.flatten_spec_structure(part).items()), 2
        )
      )
      for part in (features, labels)
    ]
    numbers = randomness.sample_numbers()
    if numbers is not None:
      of_task = first_number + tf.range(sizes[1], dtype=tf.int64)
      numbers = numbers[:, tf.newaxis] * (2 * _MOST_SAMPLES) + of_task
      numbers = tf.reshape(numbers, [-1])
    with randomness.numbered(numbers, randomness.is_on_host()):
      features, labels = self._base_preprocessor.preprocess(merged[0], merged[1], mode)
    split: list[Any] = [
      None
      if part is None
      else TensorSpecStruct(meta_tfdata.expand_batch_dims(dict(part.items()), sizes))
      for part in (features, labels)
    ]
    return split[0], split[1]


def create_metaexample_spec(
  model_spec: SpecStructure, num_samples_per_task: int, prefix: str
) -> TensorSpecStruct:
  """Derives the specs of a record that holds several episodes, by their numbers.

  Args:
    model_spec: of one episode.
    num_samples_per_task: episodes.
    prefix: of the names: a spec at 'state' of the name 's' gives those at 'state/0',
      of the name '<prefix>_ep0/s', and so on.
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
  """Stacks what `create_metaexample_spec` lists: 'state/0', ... to 'state'.

  Args:
    in_tensors: tensors [tasks, ...].
    num_samples_per_task: episodes.
  Returns:
    A flat struct, [tasks, samples, ...].
  """
  flat = specs.flatten_spec_structure(in_tensors)
  paths = dict.fromkeys(path.rpartition("/")[0] for path in flat)
  return TensorSpecStruct(
    (path, tf.stack([flat[f"{path}/{n}"] for n in range(num_samples_per_task)], axis=1))
    for path in paths
  )


@gin.configurable
class FixedLenMetaExamplePreprocessor(MAMLPreprocessorV2):
  """Takes records of `make_meta_example`: each is a task, with all of its episodes.

  Any record generator reads them: its specs are those of the records.
  """

  def __init__(
    self,
    base_preprocessor: AbstractPreprocessor,
    num_condition_samples_per_task: int = 1,
    num_inference_samples_per_task: int = 1,
  ) -> None:
    """Creates the preprocessor.

    Args:
      base_preprocessor: of the base model.
      num_condition_samples_per_task: episodes that a task is learned from.
      num_inference_samples_per_task: episodes that this is tried on.
    """
    self._num_condition_samples_per_task = num_condition_samples_per_task
    self._num_inference_samples_per_task = num_inference_samples_per_task
    super().__init__(base_preprocessor)

  @property
  def num_condition_samples_per_task(self) -> int:
    """Episodes that a task is learned from."""
    return self._num_condition_samples_per_task

  @property
  def num_inference_samples_per_task(self) -> int:
    """Episodes that this is tried on."""
    return self._num_inference_samples_per_task

  def get_in_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the specs of the records, by 'condition/features/<path>/<number>'."""
    base, learned = self._base_preprocessor, condition_mode(mode)
    features, labels, inferred = map(
      specs.flatten_spec_structure,
      (
        base.get_in_feature_specification(learned),
        base.get_in_label_specification(learned),
        base.get_in_feature_specification(mode),
      ),
    )
    condition = {**_below("features", features), **_below("labels", labels)}
    return TensorSpecStruct(
      {
        **_below(
          "condition",
          create_metaexample_spec(
            condition, self._num_condition_samples_per_task, "condition"
          ),
        ),
        **_below(
          "inference",
          create_metaexample_spec(
            _below("features", inferred),
            self._num_inference_samples_per_task,
            "inference",
          ),
        ),
      }
    )

  def get_in_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the specs of the inference's labels, by '<path>/<number>'."""
    return create_metaexample_spec(
      self._base_preprocessor.get_in_label_specification(mode),
      self._num_inference_samples_per_task,
      "inference",
    )

  def _stacked_condition(self, condition: Any) -> TensorSpecStruct:
    return stack_intra_task_episodes(condition, self._num_condition_samples_per_task)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    num_inference = self._num_inference_samples_per_task
    condition = self._stacked_condition(features.condition)
    inference = stack_intra_task_episodes(features.inference, num_inference)
    stacked = TensorSpecStruct(
      {**_below("condition", condition), **_below("inference", inference)}
    )
    if labels is not None:
      labels = stack_intra_task_episodes(labels, num_inference)
    return super()._preprocess_fn(stacked, labels, mode)


def _below(branch: str, leaves: Any) -> dict[str, Any]:
  return {f"{branch}/{path}": leaf for path, leaf in leaves.items()}
