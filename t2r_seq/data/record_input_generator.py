"""Input generators over TFRecord files: all, a fraction, RLDS, several evaluations."""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import json
import math
import numbers
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.data import arguments, joint, record_files, skipping
from t2r_seq.data.episode_pools import EpisodePools
from t2r_seq.data.input_generator import (
  AbstractInputGenerator,
  BatchRequest,
  DatasetInputGenerator,
)
from t2r_seq.data.loaders import WindowLoader, raises_read_errors
from t2r_seq.data.plan import Plan
from t2r_seq.data.streams import StreamReport
from t2r_seq.formats.records import (
  RecordEpisodes,
  check_index_option,
  find_index,
  splits_of,
)
from t2r_seq.process import PythonCalls
from t2r_seq.records.index import RecordIndex
from t2r_seq.windows.cut import WindowGrid
from t2r_seq.windows.dataset import WindowReport

FilePatterns = str | Sequence[str] | Mapping[str, str | Sequence[str]]

_MAX_SHOWN = 200


@gin.configurable
class DefaultRecordInputGenerator(DatasetInputGenerator):
  """Reads records, or windows of episode records, from TFRecord files.

  Without time offsets in the specs a record is an example: serialized records are
  shuffled, and parsed in batches. With them a record is a flat episode: it is parsed
  once, each frame decoded once, features and labels together. The windows of a pool of
  episodes, which a memory budget limits, are shuffled, and gathered after that.

  Mode 'train' shuffles files, episodes and examples in every epoch, without an end. The
  other modes are one pass, in the order of the sorted files. The same seed gives the
  same batches, for any `num_parallel_calls`.

  With an index (`t2r_seq index`) the files have random access: batches are a function
  of the seed and their number, workers read disjoint shards, and with a seed a resumed
  run continues with exactly the next batch.

  >>> import numpy as np
  >>> from t2r_seq import data, records, specs
  >>> pair = specs.ExtendedTensorSpec((2, 3), "float32", "state", time_offsets=(-1, 0))
  >>> step = specs.ExtendedTensorSpec((3,), "float32", "state", is_sequence=True)
  >>> episode = {"state": np.zeros((5, 3), np.float32)}
  >>> records.write_records("demo.tfrecord", {"state": step}, [episode, episode])
  2
  >>> generator = data.DefaultRecordInputGenerator("demo.tfrecord", batch_size=4)
  >>> generator.set_feature_specifications({"state": pair})
  >>> generator.set_label_specifications({})
  >>> next(iter(generator.create_dataset("train")))[0].state.shape
  TensorShape([4, 2, 3])

  """

  def __init__(
    self,
    file_patterns: FilePatterns,
    batch_size: int = 32,
    shuffle_buffer_size: int = 1000,
    cycle_length: int = 8,
    num_parallel_calls: int | None = tf.data.AUTOTUNE,
    index: str | None = None,
    on_bad_record: str = "raise",
    max_bad_records: int = 100,
    **options: Any,
  ) -> None:
    """Creates the generator; it looks for files when a dataset is created.

    Args:
      file_patterns: a pattern, a comma-separated string or a list of them; or a map
        of dataset_key to these: then record i of one goes with record i of the others.
      batch_size: examples in a batch, over all replicas together.
      shuffle_buffer_size: records to shuffle among in mode 'train'; windows of episodes
        are shuffled in pools instead. 0: no shuffle of files, records or windows.
      cycle_length: files that mode 'train' reads in turns, if it shuffles.
      num_parallel_calls: number of parallel parse calls, None for one at a time; does
        not change the order.
      index: 'require': reads by the files' index, and raises without one; 'auto': by
        the index if all files have one. Both raise if it is stale. None: ignores it.
      on_bad_record: 'raise' stops at a record that cannot be read or parsed; 'skip'
        leaves it out, logs it and counts it in the report.
      max_bad_records: limit of bad records to leave out; one more is an error.
      **options: options of `DatasetInputGenerator`: seed, sequence_length,
        memory_budget, image_decoding, episodes, split, ... To choose episodes without
        an index, the files are read once more to count them.
    Raises:
      SpecError: a size or length is too small, or an option is invalid.
    """
    super().__init__(batch_size, **options)
    where = type(self).__name__
    self._file_patterns = arguments.check_file_patterns(where, file_patterns)
    self._shuffle_buffer_size = self._check_count(
      "shuffle_buffer_size", shuffle_buffer_size, minimum=0
    )
    self._cycle_length = self._check_count("cycle_length", cycle_length)
    self._num_parallel_calls = arguments.check_parallel_calls(where, num_parallel_calls)
    self._index = check_index_option(where, index)
    self._on_bad_record = record_files.check_policy(
      where, on_bad_record, index, self._episodes is not None
    )
    self._max_bad_records = self._check_count("max_bad_records", max_bad_records, 0)
    self._reading = record_files.RecordReading()
    self._failures: list[Exception] = []
    self._parsed_spec: Any = None  # A TensorSpecStruct, once there are specs.
    self._counted: dict[str, int] = {}
    self._files: record_files.FilesByKey = {}

  @property
  def reads_shards(self) -> bool:
    """Whether each worker reads its own part: if there is an index."""
    return bool(self._index and self.has_specifications and self._has_numbers())

  @property
  def num_examples(self) -> int | None:
    """Examples of one pass; None before `count_examples` for the current specs."""
    return self._counted.get(self._counted_as()) if self.has_specifications else None

  @tf.autograph.experimental.do_not_convert
  def count_examples(self) -> int | None:
    """Returns the examples of one pass, counted once; None without specs.

    Without an index, it reads all files, but decodes no images.

    Raises:
      SpecError: a file is missing or cannot be read, or an option does not fit it.
    """
    if self.num_examples is None and self.has_specifications:
      joined, cut = (
        joint.join(self._feature_spec, self._label_spec),
        self._cut_for_mode("train"),
      )
      self._parsed_spec = flat = windows.flat_specs(joined, cut.n_step)
      self._files = files = self._find_files(flat)
      # A count leaves no bad record out, even if training does.
      with tf.init_scope(), self._explain_failures(are_skipped=False):
        index, is_windowed = self._find_index(files), windows.is_windowed(joined)
        if index is not None:
          numbers = self._choose_records(index)
          count = len(numbers)
          if is_windowed:
            pools = self._pools(index, numbers, joined, cut)
            count = int(pools.counts.sum())
        else:
          chosen = self._chosen_records(files)
          files = record_files.choose_files(self._where(), files, self._split)
          if is_windowed:
            count = record_files.count_windows(files, flat, joined, cut, chosen)
          else:
            count = chosen.count if chosen else record_files.count_records(files)
        self._counted[self._counted_as()] = count
    return self.num_examples

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Raises an error that names the file, record and feature at fault."""
    with self._explain_failures(self._on_bad_record == "skip"):
      yield

  @contextlib.contextmanager
  def _explain_failures(self, are_skipped: bool) -> Iterator[None]:
    try:
      yield
    except (tf.errors.OpError, UnicodeDecodeError) as e:
      where, cause = self._where(), self._reading.failure
      cause = cause or record_files.find_cause(where, self._files, e)
      if cause is not None:
        raise cause from e
      # Checked only now: the block may have created the dataset, which sets the specs.
      if self._parsed_spec is None or are_skipped:
        raise
      with raises_read_errors(lambda: self._failures):
        features, labels = joint.split(self._parsed_spec)
        decoding = self._decode_images
        with records.explain_failures(self._files, features, labels, decoding):
          raise

  def _has_numbers(self) -> bool:
    if not super()._has_numbers():
      return False
    joined = joint.join(self._feature_spec, self._label_spec)
    flat = windows.flat_specs(joined, self.n_step)
    with tf.init_scope():
      files = self._find_files(flat)
      return self._find_index(files) is not None

  def _position_order(self) -> str:
    return "quasi_random" if self._shuffle_buffer_size > 0 else "sequential"

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    mode, batch_size = request.mode, request.batch_size
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    is_windowed = windows.is_windowed(joined)
    cut = self._cut_for_mode(mode)
    if not is_windowed:
      arguments.check_no_windows(self._where(), cut)
    self._parsed_spec = windows.flat_specs(joined, cut.n_step)
    self._files = files = self._find_files(self._parsed_spec)
    is_train = request.is_train
    shuffle = is_train and self._shuffle_buffer_size > 0
    plan = dataclasses.replace(
      self._plan,
      batch_size=batch_size,
      order="quasi_random" if shuffle else "sequential",
      seed=request.shuffle_seed(self._plan.seed),
      num_epochs=None if is_train else 1,
    )
    num_needed = 1  # Repeated data fills a batch.
    if plan.drops and not is_train:
      num_needed = batch_size
    with tf.init_scope():
      index = None if request.is_portable else self._find_index(files)
      if index is not None:
        plan, start = self._numbered_plan(request)
        order = "quasi_random" if shuffle else "sequential"
        plan = dataclasses.replace(plan, order=order, where=self._where())
        return self._index_batches(index, joined, cut, plan, start)
    # Datasets may be created while a graph is built; files are read outside of it.
    with tf.init_scope(), self.explain_failures():
      chosen = self._chosen_records(files)
      self._files = files = record_files.choose_files(self._where(), files, self._split)
      if self._on_bad_record == "skip":
        self._reading = skipping.SkippingReading(
          files, self._max_bad_records, self._where(), self._decode_images
        )
      else:
        self._reading = record_files.RecordReading(self._decode_images, chosen)
      first = self._reading.first_record(files, self._where())
      self._parsed_spec = record_files.leave_out_absent(self._parsed_spec, first)
      if is_windowed:
        self._parsed_spec = record_files.add_flags(self._parsed_spec, first)
        record_files.check_whole(
          self._where(),
          self._reading.texts(files)
          .take(record_files.NUM_LOOKED_AT)
          .as_numpy_iterator(),
          self._parsed_spec,
        )
      grid = WindowGrid.of(joined, cut)
      if not is_windowed or not record_files.fills_a_batch(
        first, self._parsed_spec, grid, num_needed, self._decode_images
      ):
        self._check_not_empty(joined, cut, num_needed)
    report = None
    if is_windowed and not request.is_portable:
      report = StreamReport() if shuffle else WindowReport()
    self._report = self._reading.report(report)
    self._reads_ahead = is_windowed
    batches = self._batches(joined, cut, plan, report)
    if is_windowed or not is_train or request.is_portable:
      return batches  # A service would also split the dataset that `never_ending` adds.
    return record_files.never_ending(batches)

  def _find_files(self, flat_specs: specs.TensorSpecStruct) -> record_files.FilesByKey:
    return record_files.find_files(self._file_patterns, flat_specs)

  def _find_index(self, files: record_files.FilesByKey) -> RecordIndex | None:
    """Returns the index of the files; None if they are read in order."""
    if len(files) > 1 and self._index == "require":
      raise errors.SpecError(
        f"{self._where()}: index: expected files of one dataset, got those of "
        f"{errors.listing(files)}. Zipped datasets are read in order: index=None."
      )
    (names, *others) = files.values()
    index = None if others else find_index(self._where(), self._index, names)
    if self._index == "auto" and index is None:
      logging.info("%s: read in order, not by an index.", self._where())
    return index

  def _choose_records(self, index: RecordIndex) -> np.ndarray:
    """Returns the numbers of the records to read."""
    if not len(index):
      raise errors.RecordError(
        f"{self._where()}: expected records, got none in {len(index.filenames)} "
        "file(s)."
      )
    chosen = self._choose(self._where(), len(index), lambda: splits_of(index))
    return np.arange(len(index)) if chosen is None else chosen

  def _index_batches(
    self,
    index: RecordIndex,
    joined: specs.TensorSpecStruct,
    cut: windows.Cut,
    plan: Plan,
    start: int,
  ) -> tf.data.Dataset:
    """Creates the batches of records that can be read in any order."""
    numbers = self._choose_records(index)
    if windows.is_windowed(joined):
      pools = self._pools(index, numbers, joined, cut)
      self._report, self._reads_ahead = pools.report(), True
      return pools.loader(plan.with_seed()).dataset(start)
    self._report = None
    self._leave_out_absent(index)
    loader = _example_loader(
      index, numbers, self._parsed_spec, plan, self._decode_images, self._failures
    )
    return loader.dataset(start)

  def _pools(
    self,
    index: RecordIndex,
    numbers: np.ndarray,
    joined: specs.TensorSpecStruct,
    cut: windows.Cut,
  ) -> EpisodePools:
    """Plans the windows of indexed episodes."""
    first = self._leave_out_absent(index)
    record_files.check_whole(
      self._where(),
      index.read_many(range(min(record_files.NUM_LOOKED_AT, len(index)))),
      record_files.add_flags(self._parsed_spec, first),
    )
    episodes = RecordEpisodes(list(index.filenames), self._parsed_spec, index=index)
    chosen = np.flatnonzero(np.isin(episodes.records, numbers))
    return EpisodePools(
      episodes, joined, cut, chosen, self._decode_images, self._failures
    )

  def _leave_out_absent(self, index: RecordIndex) -> tf.Tensor:
    """Drops optional features that the first record lacks; returns it."""
    first = tf.constant(index.read(0))
    self._parsed_spec = record_files.leave_out_absent(self._parsed_spec, first)
    return first

  def _chosen_records(
    self, files: record_files.FilesByKey
  ) -> record_files.ChosenRecords | None:
    """Finds the records to read, if these are not all."""
    if self._episodes is None:
      return None
    return record_files.ChosenRecords(self._where(), files, self._episodes, self._split)

  def _counted_as(self) -> str:
    """Key of a cached count."""
    joined = joint.join(self._feature_spec, self._label_spec)
    grid = WindowGrid.of(joined, self._cut_for_mode("train"))
    return f"{windows.is_windowed(joined)} {grid} {self._split} {self._episodes}"

  def _batches(
    self,
    joined: specs.TensorSpecStruct,
    cut: windows.Cut,
    plan: Plan,
    report: WindowReport | None,
  ) -> tf.data.Dataset:
    """Creates a dataset of batches of records, or of windows, joined."""
    shuffle = plan.order != "sequential"
    cycle_length = self._cycle_length if shuffle else 1
    if windows.is_windowed(joined):
      return record_files.stream_records(
        self._reading,
        self._files,
        self._parsed_spec,
        joined,
        cut,
        plan,
        cycle_length=cycle_length,
        num_parallel_calls=self._num_parallel_calls,
        report=report,
      )
    file_seed, example_seed = plan.seed, plan.seed
    if plan.seed is not None:
      file_seed, example_seed = (
        np.random.SeedSequence(plan.seed).generate_state(2).tolist()
      )
    serialized = self._reading.read(
      self._files, cycle_length, shuffle, file_seed, check=False
    )
    if shuffle:
      serialized = serialized.shuffle(self._shuffle_buffer_size, example_seed)
    return self._reading.parse_batches(
      serialized.repeat(plan.num_epochs),
      self._parsed_spec,
      plan.batch_size,
      plan.drops,
      self._num_parallel_calls,
    )

  def _check_not_empty(
    self, joined: specs.TensorSpecStruct, cut: windows.Cut, num_needed: int
  ) -> None:
    """Raises if there are too few examples for a batch: training would hang."""
    is_windowed = windows.is_windowed(joined)
    if not is_windowed and num_needed == 1 and self._on_bad_record == "raise":
      return
    report = WindowReport() if is_windowed else None
    plan = Plan(num_needed, "sequential", drop_remainder=False)
    num_examples = 0
    for batch in self._batches(joined, cut, plan, report).take(1):
      num_examples = len(next(iter(batch.values())))
    min_steps = WindowGrid.of(joined, cut).min_steps
    left_out = self._reading.report(None)
    record_files.check_enough(
      self._where(), num_needed, num_examples, min_steps, report, left_out
    )

  def _where(self) -> str:
    patterns = str(self._file_patterns)
    text = patterns if len(patterns) <= _MAX_SHOWN else f"{patterns[:_MAX_SHOWN]}..."
    return f"{type(self).__name__}: {text}"


def _example_loader(
  index: RecordIndex,
  numbers: np.ndarray,
  flat_specs: specs.TensorSpecStruct,
  plan: Plan,
  decode_images: Any,
  failures: list[Exception],
) -> WindowLoader:
  """Returns the loader of records that are examples: a global shuffle needs no pool."""
  parse_fn = records.create_parse_tf_example_fn(flat_specs, decode_images=decode_images)
  calls = PythonCalls()

  def read(places: np.ndarray) -> np.ndarray:
    with calls.active():
      try:
        return np.array(index.read_many(numbers[places]), object)
      except Exception as error:
        failures.append(error)
        raise

  @tf.autograph.experimental.do_not_convert
  def parse(places: tf.Tensor) -> Any:
    texts = tf.numpy_function(read, [places], tf.string, stateful=True)
    return parse_fn(tf.ensure_shape(texts, [None]))

  sizes = {}
  if not any(spec.is_sequence for spec in flat_specs.values()):
    # Sequences are padded to the longest of a batch, so batches are parsed separately.
    decoded = (
      s.dtype.size * (s.shape.num_elements() or 0) for s in flat_specs.values()
    )
    sizes["window_bytes"] = int(index.lengths.mean()) + sum(decoded)
  if plan.order != "sequential":
    plan = dataclasses.replace(plan, order="global")
  return WindowLoader(plan, parse, len(numbers), **sizes)


@gin.configurable
class FractionalRecordInputGenerator(DefaultRecordInputGenerator):
  """Reads a fixed fraction of the files, to see how much more data helps.

  It reads the first files of the sorted list, so that a smaller fraction is a part of a
  larger one, for any seed. After Tensor2Robot's class.
  """

  def __init__(self, file_fraction: float = 1.0, **record_arguments: Any) -> None:
    """Creates the generator.

    Args:
      file_fraction: above 0, and at most 1; the number of files is rounded down. With
        several datasets, it is the fraction of the files of each.
      **record_arguments: `DefaultRecordInputGenerator`'s, with `file_patterns`.
    Raises:
      SpecError: the fraction, or an argument of the base class, is invalid.
    """
    super().__init__(**record_arguments)
    is_number = isinstance(file_fraction, numbers.Real)
    if not is_number or isinstance(file_fraction, bool) or not 0 < file_fraction <= 1:
      raise errors.SpecError(
        "FractionalRecordInputGenerator: file_fraction: expected a number above 0 and "
        f"at most 1, got {file_fraction!r}."
      )
    self._file_fraction = file_fraction

  def _find_files(self, flat_specs: specs.TensorSpecStruct) -> record_files.FilesByKey:
    files = super()._find_files(flat_specs)
    # As a decimal: the float 0.29 times 100 is a little less than 29.
    fraction = fractions.Fraction(repr(float(self._file_fraction)))
    kept = {
      key: names[: math.floor(fraction * len(names))] for key, names in files.items()
    }
    mismatches = [
      errors.Mismatch(
        f"dataset_key '{key}'" if key else "file_fraction",
        "a fraction that leaves at least one file",
        f"{self._file_fraction} of {len(files[key])}",
      )
      for key, names in kept.items()
      if not names
    ]
    if mismatches:
      raise errors.mismatch_error(self._where(), mismatches)
    return kept


@gin.configurable
class RldsInputGenerator(DefaultRecordInputGenerator):
  """Feeds RLDS episodes to models whose specs do not mention RLDS.

  It reads the TFRecord files without TFDS. Names get the prefix 'steps/': see
  `records.rlds_specs`. Everything else, windows, shuffle, index, bad records, is as in
  `DefaultRecordInputGenerator`, which also reads specs with `is_concatenated`.
  """

  def set_feature_specifications(
    self, feature_spec: Any, out_feature_spec: Any = None
  ) -> None:
    """Sets the specs of the features, read from RLDS episodes; see the base class."""
    rlds_spec = records.rlds_specs(feature_spec)
    super().set_feature_specifications(rlds_spec, out_feature_spec)

  def set_label_specifications(
    self, label_spec: Any, out_label_spec: Any = None
  ) -> None:
    """Sets the specs of the labels, read from RLDS episodes; see the base class."""
    super().set_label_specifications(records.rlds_specs(label_spec), out_label_spec)


def get_multi_eval_name() -> str | None:
  """Returns the 'multi_eval_name' of the environment variable TF_CONFIG, or None.

  With it, Tensor2Robot gives each of several evaluating jobs its own dataset.

  Raises:
    ValueError: TF_CONFIG is not JSON.
  """
  return json.loads(os.environ.get("TF_CONFIG") or "{}").get("multi_eval_name")


@gin.configurable
class MultiEvalInputGenerator(AbstractInputGenerator):
  """Holds one input generator for each named evaluation.

  `train_eval_model` evaluates on each of them, and logs '<name>/<metric>'; the metric
  without a name is the mean over the names.
  """

  def __init__(
    self, evals: Mapping[str, AbstractInputGenerator], eval_name: str | None = None
  ) -> None:
    """Creates the generator.

    Args:
      evals: input generators by name.
      eval_name: the only one to evaluate on; None: see `get_multi_eval_name`, and
        without that name all.
    Raises:
      SpecError: `evals` is not a map or is empty, a value is not an input generator, a
        name cannot be a folder's, or there is no eval called `eval_name`.
      ValueError: TF_CONFIG is not JSON.
    """
    super().__init__()
    self._check_map("evals", "input generators", evals)
    self._evals = dict(evals)
    self._check_evals()
    name = get_multi_eval_name() if eval_name is None else eval_name
    if name is not None and name not in self._evals:
      raise errors.SpecError(
        f"{type(self).__name__}: eval_name: expected one of "
        f"{errors.listing(self._evals)}, got {name!r}."
        f"{errors.nearest(str(name), self._evals)}"
      )
    if name is not None:
      self._evals = {name: self._evals[name]}

  def named_evals(self) -> dict[str, AbstractInputGenerator]:
    """Returns the generators to evaluate with, by name."""
    return dict(self._evals)

  def _check_map(self, name: str, values: str, given: Any) -> None:
    if not isinstance(given, Mapping):
      raise errors.SpecError(
        f"{type(self).__name__}: {name}: expected a map of names to {values}, got "
        f"{given!r}."
      )

  def _check_evals(self) -> None:
    mismatches = [
      errors.Mismatch(f"evals: {name}", "an input generator", errors.describe(value))
      for name, value in self._evals.items()
      if not isinstance(value, AbstractInputGenerator)
    ]
    mismatches += [
      errors.Mismatch(f"evals: {name!r}", "a name that a folder can have", f"{name!r}")
      for name in self._evals
      if not isinstance(name, str) or not name or os.path.basename(name) != name
    ]
    if not self._evals:
      mismatches = [errors.Mismatch("evals", "at least one", "none")]
    if mismatches:
      raise errors.mismatch_error(type(self).__name__, mismatches)

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    raise errors.SpecError(
      f"{type(self).__name__}: expected one of its evaluations, "
      f"{errors.listing(self._evals)}, got a call for all at once. Use "
      "named_evals()[name]."
    )


@gin.configurable
class MultiEvalRecordInputGenerator(MultiEvalInputGenerator):
  """Evaluates on several sets of TFRecord files. After Tensor2Robot's class."""

  def __init__(
    self,
    eval_map: Mapping[str, FilePatterns],
    eval_name: str | None = None,
    **record_arguments: Any,
  ) -> None:
    """Creates the generator.

    Args:
      eval_map: file patterns by the evaluation's name.
      eval_name: see the base class.
      **record_arguments: arguments of `DefaultRecordInputGenerator`, for all of them.
    Raises:
      SpecError: see the base class; or `eval_map` or an argument is invalid.
      ValueError: TF_CONFIG is not JSON.
    """
    self._check_map("eval_map", "file patterns", eval_map)
    where = type(self).__name__
    checked = {
      name: arguments.check_file_patterns(where, patterns, f"eval_map[{name!r}]")
      for name, patterns in eval_map.items()
    }
    evals = {
      name: DefaultRecordInputGenerator(patterns, **record_arguments)
      for name, patterns in checked.items()
    }
    super().__init__(evals, eval_name)
