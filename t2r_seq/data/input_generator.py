"""The contract of input generators: specs in, batches for the model out.

A presence mask is a bool spec '<path>_mask' without a name, of shape (), for an
optional spec without time offsets. It is true for examples that have the feature, and
false for those that show zeros. For a path with time offsets, it is a mask of real
steps instead (`mask_paths`).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from t2r_seq import errors, randomness, records, specs, windows
from t2r_seq.data import arguments, joint
from t2r_seq.data.arguments import flat_specs
from t2r_seq.data.data_service import DataService
from t2r_seq.data.explain import InputExplanation, explain_pipeline
from t2r_seq.data.plan import Plan, dataset_options
from t2r_seq.episodes.rates import default_clock
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.episodes.splits import Splits, choose_episodes
from t2r_seq.specs.converter import check_declared
from t2r_seq.specs.names import check_mode
from t2r_seq.specs.structures import stored_specs
from t2r_seq.windows.cut import Padding, WindowGrid, has_seconds, mask_paths
from t2r_seq.windows.n_step import integer_rewards

PreprocessFn = Callable[[Any, Any], tuple[Any, Any]]
Stages = list[dict[str, Any]]
"""Stages that change values, in order: each with its name, and its options as JSON."""

_MASK_SUFFIX = "_mask"

# Names of the specs for the key and the weight of a replay item. Key 0: no item.
SAMPLE_KEY, SAMPLE_WEIGHT = "sample/key", "sample/weight"


@dataclasses.dataclass(frozen=True)
class BatchRequest:
  """Arguments of `create_dataset`, with defaults resolved.

  Attributes:
    mode: value of `specs.ModeKeys`.
    batch_size: examples in a batch, over all replicas together.
    start_step: the step at which a resumed run continues.
    seed: seed for a generator without one.
    input_context: the input pipeline of a strategy to create; None reads all data.
    is_portable: whether the pipeline may be sent to other processes.
  """

  mode: str
  batch_size: int
  start_step: int = 0
  seed: int | None = None
  input_context: tf.distribute.InputContext | None = None
  is_portable: bool = False

  @property
  def is_train(self) -> bool:
    """Whether batches are shuffled and repeated."""
    return self.mode == specs.ModeKeys.TRAIN

  def pipeline(self) -> tuple[int, int, int, int]:
    """Returns the part of the batches that this input pipeline has, one for a replica.

    Returns:
      (batch size, number of the first batch, pipeline's index, number of pipelines).
    """
    context = self.input_context
    if context is None:
      return self.batch_size, self.start_step, 0, 1
    num_pipelines = context.num_input_pipelines
    return (
      context.get_per_replica_batch_size(self.batch_size),
      self.start_step * (context.num_replicas_in_sync // num_pipelines),
      context.input_pipeline_id,
      num_pipelines,
    )

  def shuffle_seed(self, seed: int | None) -> int | None:
    """Returns the seed of a dataset's order, another one for each `start_step`.

    Args:
      seed: seed of the generator; None: the request's, which may be None, too.
    """
    seed = self.seed if seed is None else seed
    if seed is None or not self.start_step:
      return seed
    return int(np.random.SeedSequence([seed, self.start_step]).generate_state(1)[0])


class InputReport(Protocol):
  """Counts of the data that a dataset has read; as text, a line for the log."""

  @property
  def too_short(self) -> int:
    """Episodes without a window, because they are too short."""

  def __str__(self) -> str:
    """Returns the counts as text."""


class AbstractInputGenerator(abc.ABC):
  """Creates the datasets that feed training and evaluation.

  The specs come from a model (`set_specification_from_model`), and the generator
  creates a dataset of preprocessed batches. Elements are pairs `(features, labels)` of
  `TensorSpecStruct`s by path with leaves [B, ...]; labels are empty without label
  specs, and in mode 'infer'.

  Mode 'train' repeats without an end; 'eval' and 'infer' are one pass in a fixed order
  (except for synthetic data, which never ends). After Tensor2Robot's class.
  """

  _chooses_episodes = False  # Whether episodes have fixed numbers to choose them by.
  _casts = True  # Whether batches have stored dtypes, which `_finish` casts.

  def __init__(
    self,
    batch_size: int = 32,
    seed: int | None = None,
    drop_remainder: bool | None = None,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    n_step: windows.NStep | tuple[int, float] | None = None,
    clock: str | float | None = None,
  ) -> None:
    """Creates the generator.

    Args:
      batch_size: examples in a batch, over all replicas of a strategy together.
      seed: seed of all shuffles; None: another order in every run.
      drop_remainder: whether to leave out batches that are not full, so that the batch
        axis is static; None: in mode 'train' only.
      sequence_length: stacks in a sequence, for is_sequence; None: single windows.
      stride: steps between the stacks of a sequence.
      shift: stacks between the starts of two sequences.
      n_step: (n, gamma), or a `windows.NStep`, if the specs are one-step transitions:
        joins them while reading, as a replay does. None joins none.
      clock: for time offsets in seconds: the path of the steps' time stamps, or seconds
        per step; see `windows.Cut`. None: the data's only path of time stamps, or else
        its control period.
    Raises:
      SpecError: a size is too small, or an option is invalid.
    """
    where = type(self).__name__
    self._batch_size = arguments.check_batch_size(where, batch_size)
    self._plan = Plan(seed=seed, drop_remainder=drop_remainder, where=where)
    # `set_specification_from_model` sets the model's padding.
    self._cut = windows.Cut(
      sequence_length, stride, shift, n_step=windows.NStep.of(n_step), clock=clock
    )
    self._feature_spec: specs.TensorSpecStruct | None = None
    self._label_spec: specs.TensorSpecStruct | None = None
    self._feature_masks: dict[str, str] = {}
    self._label_masks: dict[str, str] = {}
    self._dtypes: dict[str, dict[str, tf.DType]] = {"feature": {}, "label": {}}
    self._out_feature_spec: specs.TensorSpecStruct | None = None
    self._out_label_spec: specs.TensorSpecStruct | None = None
    self._preprocess_fn: PreprocessFn | None = None
    self._has_own_preprocess_fn = False  # Set by a user, not by a model or a mixture.
    self._device_fn: PreprocessFn | None = None
    self._mode: str | None = None
    self._model: Any = None  # The model that set the specs.
    self._report: InputReport | None = None
    self._episodes: Episodes | None = None
    self._split: str | None = None
    self._data_service = DataService()
    self._reads_ahead = False  # Whether `_create_batches` prefetches by itself.

  @property
  def batch_size(self) -> int:
    """Examples in a batch, over all replicas together."""
    return self._batch_size

  @property
  def padding(self) -> Padding:
    """Padding of windows beyond their episode; see `windows.Cut`."""
    return self._cut.padding

  @property
  def n_step(self) -> windows.NStep | None:
    """Options of n-step transitions, or None."""
    return self._cut.n_step

  @property
  def cut(self) -> windows.Cut:
    """How episodes are cut to windows."""
    return self._cut

  @property
  def report(self) -> InputReport | None:
    """Counts of the newest dataset's reads; None if the generator does not count."""
    return self._report

  @property
  def device_fn(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
    """Function for the train step to apply to the newest dataset's batches, or None."""
    return self._device_fn

  @property
  def reads_shards(self) -> bool:
    """Whether `create_dataset(input_context=...)` reads only one worker's part."""
    return False

  @property
  def has_specifications(self) -> bool:
    """Whether the specs have been set."""
    return self._feature_spec is not None and self._label_spec is not None

  @property
  def num_examples(self) -> int | None:
    """Examples of one pass, if known without reading, otherwise None."""
    return None

  def count_examples(self) -> int | None:
    """Returns the examples of one pass, counted by reading if necessary, or None."""
    return self.num_examples

  @property
  def num_episodes(self) -> int | None:
    """Number of the episodes to read; None if unknown."""
    return None

  def set_memory_budget(self, memory_budget: int) -> None:
    """Sets the bytes for episode buffers; raises SpecError unless it is positive."""
    self._plan = dataclasses.replace(self._plan, memory_budget=memory_budget)

  @property
  def position_options(self) -> dict[str, Any]:
    """The options that determine the order of training samples, as JSON values.

    Empty if a resumed run does not continue the order of the one before.
    """
    return {}

  def describe(self) -> str:
    """Describes the data, without reading it."""
    num_examples = self.num_examples
    count = "" if num_examples is None else f"{num_examples:,} examples, "
    return f"{type(self).__name__}: {count}batches of {self.batch_size}"

  def describe_sources(self) -> list[str]:
    """Returns a line about each source of a mixture, such as its share of a batch."""
    return []

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the data to the next one; None if unknown."""
    return None

  @property
  def value_periods(self) -> Mapping[str, float]:
    """Seconds between values on other clocks than the steps', by path; may be empty."""
    return {}

  def named_evals(self) -> dict[str, AbstractInputGenerator]:
    """Returns the generators to evaluate with, by name; {'': self} for a single one."""
    return {"": self}

  def set_feature_specifications(
    self, feature_spec: Any, out_feature_spec: Any = None
  ) -> None:
    """Sets the specs of the features.

    Args:
      feature_spec: input specs of the preprocess_fn.
      out_feature_spec: output specs of the preprocess_fn; None: unknown, unchecked.
    Raises:
      SpecError: one of the two is not a valid spec structure.
    """
    flat, out = flat_specs(feature_spec), out_feature_spec
    self._feature_spec, self._feature_masks = split_masks(
      self._to_stored("feature", flat)
    )
    self._out_feature_spec = None if out is None else flat_specs(out)

  def set_label_specifications(
    self, label_spec: Any, out_label_spec: Any = None
  ) -> None:
    """Sets the specs of the labels; see `set_feature_specifications`."""
    flat, out = flat_specs(label_spec), out_label_spec
    self._label_spec, self._label_masks = split_masks(self._to_stored("label", flat))
    self._out_label_spec = None if out is None else flat_specs(out)

  def _to_stored(
    self, kind: str, flat: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Returns the specs with their stored dtypes; records which dtypes to cast to."""
    if not self._casts:
      return flat
    cast = {p: s.dtype for p, s in flat.items() if s.stored_dtype is not None}
    self._dtypes[kind] = cast
    return stored_specs(flat)

  def set_preprocess_fn(self, preprocess_fn: PreprocessFn | None) -> None:
    """Sets the function that is mapped over the batches.

    Args:
      preprocess_fn: called as `preprocess_fn(features, labels)`; the mode must be
        bound, as in `functools.partial(preprocessor.preprocess, mode='train')`. None
        delivers the batches unchanged.
    Raises:
      SpecError: the mode is not bound.
    """
    if preprocess_fn is not None:
      arguments.check_mode_is_bound(preprocess_fn)
    self._preprocess_fn = preprocess_fn
    self._has_own_preprocess_fn = preprocess_fn is not None

  def keep_specifications(self) -> None:
    """Makes the current preprocess_fn the generator's own, even if a model set it."""
    self._has_own_preprocess_fn = self._preprocess_fn is not None
    self._model = None

  def follow_preprocess_fn(self, preprocess_fn: PreprocessFn | None) -> None:
    """Sets the preprocess_fn of the model, or mixture, that this generator feeds.

    Args:
      preprocess_fn: function as for `set_preprocess_fn`; None: the generator's own, if
        it has one, and otherwise none.
    Raises:
      SpecError: the generator has its own preprocess_fn, and the two are not methods of
        one object.
    """
    if self._has_own_preprocess_fn:
      if preprocess_fn is None:
        return
      arguments.check_replaces(type(self).__name__, self._preprocess_fn, preprocess_fn)
    self._preprocess_fn, self._has_own_preprocess_fn = preprocess_fn, False

  def source_preprocessing(self, mode: str) -> dict[str, Stages]:
    """Returns the stages between stored values and the model's own preprocessor.

    An export has the model's preprocessor and no other stage of the input. So training
    warns of the stages that this returns, the `PolicyRecord` of an export lists them,
    and `verify` compares them or reports that they are not in the export.

    Args:
      mode: value of `specs.ModeKeys`, for which the specs have been set.
    Returns:
      Stages by source; the name of a generator that is not a mixture is ''.
    """
    del mode
    return {"": self._own_stages()}

  def _own_stages(self) -> Stages:
    """Returns the stages of this generator itself."""
    if not self._has_own_preprocess_fn:
      return []
    return arguments.describe_preprocess_fn(self._preprocess_fn)

  def set_padding(self, padding: Padding) -> None:
    """Sets the padding of windows that leave their episode.

    Args:
      padding: 'drop', 'repeat' or 'zero', or two of them, (front, end).
    Raises:
      SpecError: the padding is invalid.
    """
    self._cut = dataclasses.replace(self._cut, padding=padding)

  def set_episodes(
    self, episodes: Episodes | None = None, split: str | None = None
  ) -> None:
    """Sets which episodes are read; existing datasets are unchanged.

    Args:
      episodes: their numbers in the dataset, or a file that lists them, one per line;
        None for all.
      split: split of the dataset, such as 'train'; None for all. With both, the listed
        episodes of that split.
    Raises:
      SpecError: episodes or a split are given, but episodes have no fixed numbers.
    """
    if not self._chooses_episodes and (episodes is not None or split is not None):
      raise errors.SpecError(
        f"{type(self).__name__}: episodes and split: expected a generator that reads "
        "a dataset, got one whose episodes change, or are generated."
      )
    self._episodes, self._split = episodes, split

  def _choose(
    self, where: str, num_episodes: int, splits: Callable[[], Splits]
  ) -> np.ndarray | None:
    """Returns the numbers of the episodes to read; None for all."""
    all_splits = splits() if self._split is not None else None
    return choose_episodes(where, num_episodes, self._episodes, self._split, all_splits)

  def set_data_service(self, data_service: DataService) -> None:
    """Sets where pipelines of mode 'train' run; by default gin's `DataService`."""
    self._data_service = data_service

  def set_specification_from_model(self, t2r_model: Any, mode: str) -> None:
    """Takes specs, preprocessing and padding from a model.

    Args:
      t2r_model: model with a `preprocessor` and a `padding`.
      mode: value of `specs.ModeKeys`; datasets can be created for this mode only.
    Raises:
      SpecError: the mode is unknown, the model's specs or padding are invalid, or its
        preprocessor would replace a preprocess_fn of the generator.
    """
    check_mode(type(self).__name__, mode)
    preprocessor = t2r_model.preprocessor
    self.set_feature_specifications(
      preprocessor.get_in_feature_specification(mode),
      preprocessor.get_out_feature_specification(mode),
    )
    self.set_label_specifications(
      preprocessor.get_in_label_specification(mode),
      preprocessor.get_out_label_specification(mode),
    )
    base = AbstractInputGenerator.set_specification_from_model
    if self._mode is not None and type(self).set_specification_from_model is not base:
      # An override that set a preprocess_fn after the first call sets it again.
      self._has_own_preprocess_fn = False
    self.follow_preprocess_fn(functools.partial(preprocessor.preprocess, mode=mode))
    self.set_padding(t2r_model.padding)
    self._mode, self._model = mode, t2r_model

  def create_dataset_input_fn(self, mode: str) -> Callable[..., tf.data.Dataset]:
    """Returns `input_fn(params=None)`, which creates the dataset of a mode.

    Raises:
      SpecError: the mode is unknown, or the specs are not set or for another mode.
    """
    self._check_ready(mode)

    def input_fn(params: Mapping[str, Any] | None = None) -> tf.data.Dataset:
      return self.create_dataset(mode, params)

    return input_fn

  def create_dataset(
    self,
    mode: str,
    params: Mapping[str, Any] | None = None,
    *,
    batch_size: int | None = None,
    start_step: int = 0,
    seed: int | None = None,
    input_context: tf.distribute.InputContext | None = None,
    is_portable: bool | None = None,
    is_flat: bool = False,
  ) -> tf.data.Dataset:
    """Creates the dataset of preprocessed batches.

    Args:
      mode: value of `specs.ModeKeys`.
      params: params of an Estimator, as Tensor2Robot passes them; only
        `params['batch_size']` is read.
      batch_size: replaces the generator's and that of `params`.
      start_step: the step at which a resumed run continues: it does not read its first
        batches again.
      seed: seed for a generator without one.
      input_context: the input pipeline of a strategy to create, which reads its own
        part of the data; for generators whose `reads_shards` is True.
      is_portable: True: the caller may send the pipeline to other processes. False: it
        stays in this process. None: in mode 'train' the generator's `DataService` runs
        it, if that has an address.
      is_flat: makes each element one struct, features and labels below 'features/' and
        'labels/'. Split it by `joint.split` inside a `tf.function`: passing one struct
        halves TensorFlow's Python overhead per batch.
    Returns:
      Dataset of (features, labels); see the class.
    Raises:
      SpecError: the specs are not set or for another mode, the data does not fit them,
        or an argument is invalid.
      ValueError: the replicas of `input_context` cannot share a batch equally.
    """
    self._check_ready(mode)
    where = type(self).__name__
    if mode == specs.ModeKeys.TRAIN and hasattr(
      self._model, "follow_source_preprocessing"
    ):
      self._model.follow_source_preprocessing(self.source_preprocessing(mode))
    if batch_size is None:
      batch_size = arguments.params_batch_size(where, params)
    if batch_size is None:
      batch_size = self._batch_size
    batch_size = arguments.check_batch_size(where, batch_size)
    start_step = errors.check_count(where, "start_step", start_step, minimum=0)
    seed = arguments.check_seed(where, seed)
    if input_context is not None and input_context.num_input_pipelines > 1:
      self._check_shards(input_context)
    is_sent = mode == specs.ModeKeys.TRAIN and self._data_service.address is not None
    is_sent &= is_portable is None
    if is_portable is not None:
      is_portable = arguments.check_flag(where, "is_portable", is_portable)
    is_flat = arguments.check_flag(where, "is_flat", is_flat)
    request = BatchRequest(
      mode, batch_size, start_step, seed, input_context, bool(is_sent or is_portable)
    )
    dataset = self._finish_all(self._create_batches(request), request, is_flat)
    dataset = dataset.with_options(dataset_options())
    if is_sent:
      dataset = self._data_service.distribute(dataset, where)
    elif self._preprocess_fn is None and self._reads_ahead:
      return dataset  # More prefetching evicts batches from the CPU cache.
    return dataset.prefetch(2)  # AUTOTUNE holds more batches after each pause.

  def explain(
    self, mode: str = specs.ModeKeys.TRAIN, num_batches: int = 50
  ) -> InputExplanation:
    """Reads some batches; returns the time of the pipeline's stages, and advice.

    Args:
      mode: value of `specs.ModeKeys`, for which the specs have been set.
      num_batches: batches to time at most, with and without preprocessing; at least 1.
    Returns:
      The description; `print` it.
    Raises:
      SpecError: the specs are not set or for another mode, the data does not fit them
        or is empty, or `num_batches` is below 1.
    """
    self._check_ready(mode)
    stored = joint.join(self._feature_spec, self._label_spec_for(mode))
    batches, dataset = None, self.create_dataset(mode)
    if self._preprocess_fn is not None:
      batches = self._create_batches(BatchRequest(mode, self._batch_size))
    with self.explain_failures():
      return explain_pipeline(self, stored, batches, dataset, num_batches)

  def _check_shards(self, context: tf.distribute.InputContext) -> None:
    """Raises SpecError if each of several pipelines would read all of the data."""
    if not self.reads_shards:
      raise errors.SpecError(
        f"{type(self).__name__}: input_context: expected a generator that "
        f"reads shards, for pipeline {context.input_pipeline_id} of "
        f"{context.num_input_pipelines}, got one that reads all data in each. Give "
        "the strategy the whole dataset, strategy.experimental_distribute_dataset("
        "create_dataset(mode)), or read a store."
      )

  @contextlib.contextmanager
  def explain_failures(self) -> Any:
    """Turns TensorFlow's errors while batches are read into clear errors."""
    yield

  def watch(self) -> Callable[[], Any] | None:
    """Starts to watch a wait for a batch; returns a check to call every second.

    The check raises if no batch will come. None if the dataset itself raises then.
    """
    return None

  def _cut_for_mode(self, mode: str) -> windows.Cut:
    """Returns how windows of features and labels are cut in a mode.

    In 'infer' transitions are not joined, because there are no labels with rewards.

    Raises:
      SpecError: rewards are integers, but n-step returns are floats.
    """
    n_step = self.n_step if mode != specs.ModeKeys.INFER else None
    if n_step is not None:
      n_step = dataclasses.replace(n_step, branches=joint.BRANCHES)
      joined = joint.join(self._feature_spec, self._label_spec)
      if integers := integer_rewards(joined, n_step):
        raise errors.mismatch_error(type(self).__name__, integers)
    cut = dataclasses.replace(self._cut, n_step=n_step)
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    if cut.clock is None and has_seconds(joined):
      cut = dataclasses.replace(cut, clock=self._find_clock(mode))
    return cut

  def _find_clock(self, mode: str) -> str | float | None:
    """Returns the clock of the data's steps; see `Cut.clock`."""
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    return default_clock({}, joined)

  @abc.abstractmethod
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    """Creates a dataset of batches before preprocessing.

    Args:
      request: the requested batches.
    Returns:
      Dataset of flat structs, features and labels joined (`joint.join`), or of pairs of
      the two, that fit the specs; without labels in mode 'infer'.
    """

  def _label_spec_for(self, mode: str) -> specs.TensorSpecStruct:
    if mode == specs.ModeKeys.INFER or self._label_spec is None:
      return specs.TensorSpecStruct()
    return self._label_spec

  def _finish(
    self, features: Any, labels: Any, has_labels: bool
  ) -> tuple[specs.TensorSpecStruct, specs.TensorSpecStruct]:
    feature_dtypes, label_dtypes = self._dtypes["feature"], self._dtypes["label"]
    features = _cast(add_masks(features, self._feature_masks), feature_dtypes)
    labels = _cast(add_masks(labels, self._label_masks), label_dtypes)
    if self._preprocess_fn is not None:
      features, labels = self._preprocess_fn(features, labels if has_labels else None)
    feature_spec = _cast(self._feature_spec, feature_dtypes)
    features = self._validate(features, feature_spec, self._out_feature_spec)
    if not has_labels:
      return features, specs.TensorSpecStruct()
    labels = specs.TensorSpecStruct() if labels is None else labels
    label_spec = _cast(self._label_spec, label_dtypes)
    return features, self._validate(labels, label_spec, self._out_label_spec)

  def _finish_all(
    self, batches: tf.data.Dataset, request: BatchRequest, is_flat: bool
  ) -> tf.data.Dataset:
    """Casts, masks, preprocesses and validates batches; splits joined ones."""
    has_labels = request.mode != specs.ModeKeys.INFER
    if isinstance(batches.element_spec, tuple):
      batches = batches.map(tf.autograph.experimental.do_not_convert(joint.join))

    @tf.autograph.experimental.do_not_convert
    def finish(batch: Any) -> Any:
      features, labels = joint.split(batch)
      features, labels = self._finish(features, labels, has_labels)
      return joint.join(features, labels) if is_flat else (features, labels)

    if self._preprocess_fn is None:
      return batches.map(finish)  # Not parallel: it copies no tensor.
    if not request.is_train:
      return batches.map(finish, tf.data.AUTOTUNE)
    batch_size, start, pipeline, num_pipelines = request.pipeline()

    @tf.autograph.experimental.do_not_convert
    def finish_numbered(number: tf.Tensor, batch: Any) -> Any:
      first = next(iter(batch.values()))
      numbers = number * batch_size + tf.range(tf.shape(first)[0], dtype=tf.int64)
      # Pipelines take turns at the numbers, as they do in the order of a store. The
      # random numbers of preprocessing are a function of the seed and these numbers.
      numbers = numbers * num_pipelines + pipeline
      with randomness.sample_number_scope(numbers, on_host=True):
        return finish(batch)

    return batches.enumerate(start).map(finish_numbered, tf.data.AUTOTUNE)

  @tf.autograph.experimental.do_not_convert
  def _validate(
    self, batch: Any, in_spec: Any, out_spec: Any
  ) -> specs.TensorSpecStruct:
    if out_spec is None:
      # Without out specs, the output of a preprocess_fn can't be checked.
      out_spec = in_spec if self._preprocess_fn is None else {}
    return specs.validate_and_flatten(out_spec, batch, ignore_batch=True)

  def _check_count(self, name: str, count: Any, minimum: int = 1) -> int:
    return errors.check_count(type(self).__name__, name, count, minimum)

  def _check_ready(self, mode: str) -> None:
    given = {"feature": self._feature_spec, "label": self._label_spec}
    arguments.check_specifications(type(self).__name__, given, self._mode, mode)


class DatasetInputGenerator(AbstractInputGenerator):
  """Reads a dataset of numbered episodes, through pools within a memory budget."""

  _chooses_episodes = True

  def __init__(
    self,
    batch_size: int = 32,
    memory_budget: int = 2**30,
    image_decoding: records.ImageDecoding | None = None,
    episodes: Episodes | None = None,
    split: str | None = None,
    **options: Any,
  ) -> None:
    """Creates the generator.

    Args:
      batch_size: examples in a batch, over all replicas of a strategy together.
      memory_budget: bytes for pools, with decoded images.
      image_decoding: how encoded images are decoded; None: by TensorFlow's defaults.
      episodes: numbers of the episodes to read, or a file that lists them; None for
        all. In record files they are counted through all files, in order.
      split: split of the dataset, such as 'train'; None for all. For record files, the
        prefix of TFDS's names: bridge-train.tfrecord-00000-of-00010.
      **options: options of the base class: seed, sequence_length, ...
    Raises:
      SpecError: a size is too small, or an option is invalid.
    """
    super().__init__(batch_size, **options)
    self.set_memory_budget(memory_budget)
    self._decode_images = arguments.check_image_decoding(
      self._plan.where, image_decoding
    )
    self.set_episodes(episodes, split)

  @property
  def position_options(self) -> dict[str, Any]:
    """The plan; empty without a seed or numbers of batches; see the base class."""
    if self._plan.seed is None or not self._has_numbers():
      return {}
    return {
      "batch_size": self._batch_size,
      "seed": int(self._plan.seed),
      "order": self._position_order(),
      "drop_remainder": bool(self._plan.drop_remainder in (None, True)),
      "examples": self.num_examples,
    }

  def _has_numbers(self) -> bool:
    """Whether a resumed run continues at the number of a batch."""
    return self._data_service.address is None

  def _position_order(self) -> str | None:
    """The order of the training batches; None if it depends on the data."""
    return self._plan.order

  def _own_stages(self) -> Stages:
    decoding, stages = self._decode_images, super()._own_stages()
    if isinstance(decoding, records.ImageDecoding) and decoding.changes_size:
      stages.insert(0, decoding.to_stage())
    return stages

  def _numbered_plan(self, request: BatchRequest) -> tuple[Plan, int]:
    """Returns the plan of numbered batches, and the number of the first one.

    A resumed run continues the previous run's order. A portable pipeline has no
    position, so that its resumed run has another order.
    """
    is_train = request.is_train
    seed = request.seed if self._plan.seed is None else self._plan.seed
    plan = dataclasses.replace(
      self._plan,
      batch_size=request.batch_size,
      order=self._plan.order if is_train else "sequential",
      seed=request.shuffle_seed(seed) if request.is_portable else seed,
      num_epochs=None if is_train else 1,
    )
    start = request.start_step if is_train else 0
    if request.input_context is None:
      return plan, start
    return plan.of_worker(request.input_context, request.batch_size, start)

  def _named_specs(self, stored: Mapping[str, Any], mode: str) -> Any:
    """Returns the joined specs, each with the name of its stored feature."""
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    named = joint.name_by_path(joined, stored)
    check_declared(type(self).__name__, named, stored)
    return named

  def _count_windows(self, stored: Mapping[str, Any], lengths: np.ndarray) -> int:
    """Returns the windows of one pass over episodes of these lengths."""
    mode = specs.ModeKeys.EVAL
    grid = WindowGrid.of(self._named_specs(stored, mode), self._cut_for_mode(mode))
    return int(np.sum(grid.num_windows(lengths)))


def presence_masks(spec_structure: specs.SpecStructure) -> dict[str, str]:
  """Maps the path of every declared presence mask to the path that it masks.

  Args:
    spec_structure: specs, some of which may be masks.
  Returns:
    Mask paths to masked paths; without the masks of windows.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return {
    path: path.removesuffix(_MASK_SUFFIX)
    for path, spec in flat.items()
    if path.endswith(_MASK_SUFFIX)
    and getattr(spec, "name", None) is None
    and spec.dtype == tf.bool
    and spec.shape.rank == 0
    and not getattr(spec, "is_sequence", False)
    and _may_be_absent(flat.get(path.removesuffix(_MASK_SUFFIX)))
  }


def add_presence_specs(
  spec_structure: specs.SpecStructure, paths: Iterable[str] | None = None
) -> specs.TensorSpecStruct:
  """Declares masks that are true where an example has an optional feature.

  Args:
    spec_structure: specs, some of them optional.
    paths: paths that get a mask; by default all optional ones. Those with time offsets
      get the mask of their steps, as from `windows.add_mask_specs`.
  Returns:
    Flat specs with the masks.
  Raises:
    SpecError: a path is not that of an optional spec.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  masks = {**mask_paths(flat), **presence_masks(flat)}
  optional = [
    path
    for path, spec in flat.items()
    if getattr(spec, "is_optional", False) and path not in masks
  ]
  chosen = optional if paths is None else list(paths)
  for path in chosen:
    if path not in optional:
      raise errors.SpecError(
        f"add_presence_specs: {path}: expected an optional spec."
        f"{errors.nearest(path, optional)} There is {errors.listing(optional)}."
      )
  windowed = [path for path in chosen if windows.is_windowed({path: flat[path]})]
  flat = windows.add_mask_specs(flat, windowed)
  for path in set(chosen).difference(windowed):
    flat[path + _MASK_SUFFIX] = _mask_spec()
  return flat


def split_masks(
  flat: specs.TensorSpecStruct,
) -> tuple[specs.TensorSpecStruct, dict[str, str]]:
  """Splits specs into those without presence masks, and mask paths to masked paths."""
  masks = presence_masks(flat)
  kept = ((path, spec) for path, spec in flat.items() if path not in masks)
  return specs.TensorSpecStruct(kept), masks


def join_masks(
  flat: specs.TensorSpecStruct | None, masks: Iterable[str]
) -> specs.TensorSpecStruct:
  """Undoes `split_masks`: returns the specs, if there are any, with these masks."""
  joined = specs.TensorSpecStruct(() if flat is None else flat.items())
  for mask in masks:
    joined[mask] = _mask_spec()
  return joined


def add_masks(batch: Any, masks: Mapping[str, str]) -> Any:
  """Adds the masks of a batch whose examples all have the same paths.

  Args:
    batch: tensors by path, [B, ...].
    masks: mask paths to masked paths; existing masks are kept.
  Returns:
    The batch with a mask for every path that it has, bool [B], all true.
  """
  missing = {
    mask: path for mask, path in masks.items() if path in batch and mask not in batch
  }
  if not missing:
    return batch
  added = specs.TensorSpecStruct(batch.items())
  for mask, path in missing.items():
    added[mask] = tf.fill(tf.shape(batch[path])[:1], True)
  return added


def _cast(values: Any, dtypes: Mapping[str, tf.DType]) -> Any:
  """Casts tensors, or their specs, to the declared dtypes."""
  if not dtypes:
    return values
  cast = specs.TensorSpecStruct(values.items())
  for path in dtypes:
    if path in cast and isinstance(cast[path], tf.TensorSpec):
      cast[path] = specs.ExtendedTensorSpec.from_spec(cast[path], dtype=dtypes[path])
    elif path in cast:
      cast[path] = tf.cast(cast[path], dtypes[path])
  return cast


def _mask_spec() -> specs.ExtendedTensorSpec:
  return specs.ExtendedTensorSpec((), tf.bool, is_optional=True)


def _may_be_absent(spec: Any) -> bool:
  return getattr(spec, "is_optional", False) and spec.time_offsets is None
