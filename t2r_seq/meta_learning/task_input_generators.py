"""Input generators of tasks from record files, a store, or replays."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import data, errors, randomness, records, replay, specs, store, windows
from t2r_seq.data import joint
from t2r_seq.data.input_generator import BatchRequest
from t2r_seq.data.loaders import batches_in_order
from t2r_seq.data.plan import draw_seed, permute_positions
from t2r_seq.data.stores import DecodedColumns
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.episodes.splits import choose_episodes
from t2r_seq.meta_learning import meta_tfdata, preprocessors
from t2r_seq.records.files import files_of_split, get_data_format_and_filenames
from t2r_seq.specs import ModeKeys, TensorSpecStruct
from t2r_seq.store.columns import StoreColumns
from t2r_seq.store.episode_store import StoreWindows


class _TaskInputGenerator(data.AbstractInputGenerator):
  """Combines samples for a base model to meta-examples."""

  def __init__(
    self,
    batch_size: int,
    num_condition_samples_per_task: int,
    num_inference_samples_per_task: int,
    seed: int | None,
  ) -> None:
    super().__init__(batch_size)
    where = type(self).__name__
    self._num_samples = sum(
      errors.check_count(where, name, count)
      for name, count in (
        ("num_condition_samples_per_task", num_condition_samples_per_task),
        ("num_inference_samples_per_task", num_inference_samples_per_task),
      )
    )
    self._counts = num_condition_samples_per_task, num_inference_samples_per_task
    self._seed = seed
    self._base: Any = None

  def set_specification_from_model(self, t2r_model: Any, mode: str) -> None:
    """Takes specs and preprocessing from a model of tasks, such as a `MAMLModel`.

    Raises:
      SpecError: the model's preprocessor has no `create_meta_map_fn`.
    """
    preprocessor = t2r_model.preprocessor
    if not hasattr(preprocessor, "create_meta_map_fn"):
      raise errors.SpecError(
        f"{type(self).__name__}: model: expected one whose preprocessor is a "
        f"MAMLPreprocessorV2, got {type(preprocessor).__name__}."
      )
    super().set_specification_from_model(t2r_model, mode)
    self._base = preprocessor.base_preprocessor
    self._to_meta = preprocessor.create_meta_map_fn(*self._counts)

  def _sample_specs(self, mode: str) -> tuple[TensorSpecStruct, TensorSpecStruct]:
    """Returns the specs of a sample's features and labels."""
    return (
      specs.flatten_spec_structure(self._base.get_in_feature_specification(mode)),
      specs.flatten_spec_structure(self._base.get_in_label_specification(mode)),
    )

  def _drawing_seed(self, request: BatchRequest) -> int:
    seed = request.shuffle_seed(self._seed)
    return draw_seed() if seed is None else seed


@gin.configurable
class TaskRecordInputGenerator(_TaskInputGenerator):
  """Reads tasks from record files: each file is a task, each record a sample.

  The specs must not have time offsets. Consecutive elements are of different tasks.
  """

  def __init__(
    self,
    file_patterns: str | Sequence[str] = gin.REQUIRED,
    batch_size: int = 32,
    num_condition_samples_per_task: int = 1,
    num_inference_samples_per_task: int = 1,
    shuffle_buffer_size: int = 50,
    seed: int | None = None,
    split: str | None = None,
  ) -> None:
    """Creates the generator; creating a dataset opens the files.

    Args:
      file_patterns: patterns of TFRecord files, each with one task.
      batch_size: number of tasks in a batch.
      num_condition_samples_per_task: number of samples of the condition.
      num_inference_samples_per_task: number of samples of the inference.
      shuffle_buffer_size: size of the shuffle buffer of a file, in mode 'train'.
      seed: seed of the orders; None: random.
      split: split of the files to read, by their names; None for all.
    Raises:
      SpecError: a number is not an integer of at least 1.
    """
    super().__init__(
      batch_size, num_condition_samples_per_task, num_inference_samples_per_task, seed
    )
    self._file_patterns = file_patterns
    self._split = split
    self._shuffle_buffer_size = shuffle_buffer_size

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    mode, batch_size = request.mode, request.batch_size
    features, labels = self._sample_specs(mode)
    parse = records.create_parse_tf_example_fn(features, labels)
    is_train = mode == ModeKeys.TRAIN
    _, filenames = get_data_format_and_filenames(self._file_patterns)
    if self._split is not None:
      filenames = files_of_split(type(self).__name__, filenames, self._split)
    samples = meta_tfdata.parallel_read(
      filenames,
      lambda batches: batches.map(parse, tf.data.AUTOTUNE),
      shuffle_filenames=is_train,
      num_train_samples_per_task=self._counts[0],
      num_val_samples_per_task=self._counts[1],
      shuffle_buffer_size=self._shuffle_buffer_size,
      mode=mode,
      seed=self._drawing_seed(request) if request.is_train else 0,
    )
    if not is_train:
      samples = samples.take(len(filenames))  # Each task once.
    return samples.map(self._to_meta).batch(batch_size, drop_remainder=is_train)


@dataclasses.dataclass(frozen=True, eq=False)
class _TaskOrder:
  """The windows of every batch of tasks, as a function of its number; a `WindowOrder`.

  Each task is used once per epoch. Its samples are windows of different episodes,
  unless the condition shows whole episodes.

  Attributes:
    task_episodes: the episodes of each task; with several kinds, all tasks' episodes
      of the first kind, then those of the next.
    kinds: numbers of the kinds of the condition's episodes, then of the inference's.
    counts: number of windows of each episode, int64 [episodes].
    num_condition: number of samples of a task's condition.
    num_inference: number of samples of its inference.
    num_whole: number of episodes that the condition shows from start to end, or 0.
    num_tasks: number of tasks in a batch.
    is_shuffled: whether tasks, episodes and windows are random; otherwise each task has
      the first windows of its first episodes, or windows spread over whole ones.
    seed: seed of the random numbers.
  """

  task_episodes: tuple[np.ndarray, ...]
  kinds: tuple[int, ...]
  counts: np.ndarray
  num_condition: int
  num_inference: int
  num_whole: int
  num_tasks: int
  is_shuffled: bool
  seed: int

  @property
  def num_samples(self) -> int:
    return self.num_condition + self.num_inference

  @property
  def all_tasks(self) -> int:
    """Number of tasks in an epoch."""
    return len(self.task_episodes) // (max(self.kinds) + 1)

  @property
  def drop_remainder(self) -> bool:
    return self.is_shuffled

  @property
  def batch_size(self) -> int:
    return self.num_tasks * self.num_samples

  @property
  def batches_per_epoch(self) -> int:
    missing = 0 if self.drop_remainder else self.num_tasks - 1
    return (self.all_tasks + missing) // self.num_tasks

  def window_ids(self, batch: tf.Tensor, num_batches: int = 1) -> tf.Tensor:
    """Returns the windows of consecutive batches.

    Args:
      batch: number of the first batch, counted through all epochs, int64 scalar.
      num_batches: maximum number of batches; they end with the epoch.
    Returns:
      int64 [tasks * num_samples], ordered by task.
    """
    batch = tf.cast(batch, tf.int64)
    epoch, in_epoch = batch // self.batches_per_epoch, batch % self.batches_per_epoch
    total = self.all_tasks
    used = self.batches_per_epoch * self.num_tasks if self.drop_remainder else total
    first = in_epoch * self.num_tasks
    tasks = first + tf.range(min(num_batches * self.num_tasks, used), dtype=tf.int64)
    tasks = tasks[: used - first]
    if self.is_shuffled:
      tasks = permute_positions(tasks, tf.constant(total, tf.int64), self.seed, epoch)
    tasks = tf.repeat(tasks, self.num_samples)
    sizes = np.array([len(episodes) for episodes in self.task_episodes], np.int64)
    starts, counts = np.cumsum(sizes) - sizes, self.counts.astype(np.int64)
    sample = tf.range(tf.shape(tasks)[0], dtype=tf.int64) % self.num_samples
    key = epoch * total + tasks
    slot, kind = self._slots(sample)
    cell = kind * total + tasks
    size = tf.gather(tf.constant(sizes), cell)
    place = self._places(sample, slot, size)
    if self.is_shuffled:
      of_kind = randomness.RandomNumbers(key * (max(self.kinds) + 1) + kind, self.seed)
      place = of_kind.permute("episode", place, size)
    episodes = tf.gather(tf.constant(starts), cell) + place
    episodes = tf.gather(tf.constant(np.concatenate(self.task_episodes)), episodes)
    window = tf.zeros_like(episodes)
    many = tf.gather(tf.constant(counts), episodes)
    if self.is_shuffled:
      share = randomness.RandomNumbers(
        key * self.num_samples + sample, self.seed
      ).uniform("window")
      index = tf.cast(tf.cast(share, tf.float64) * tf.cast(many, tf.float64), tf.int64)
      window = tf.minimum(index, many - 1)
    if self.num_whole:
      each = self.num_condition // self.num_whole
      query = sample - self.num_condition
      if not self.is_shuffled:
        window = meta_tfdata.spread(query, self.num_inference, many)
      support = meta_tfdata.spread(sample % each, each, many)
      window = tf.where(query < 0, support, window)
    return tf.gather(tf.constant(np.cumsum(counts) - counts), episodes) + window

  def _slots(self, sample: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the number of the condition's episode for samples, and its kind.

    Samples of the inference have the number after the last one.
    """
    if not self.num_whole:
      return tf.zeros_like(sample), tf.zeros_like(sample)
    each = self.num_condition // self.num_whole
    slot = tf.minimum(sample // each, self.num_whole)
    return slot, tf.gather(tf.constant(self.kinds, tf.int64), slot)

  def _places(self, sample: tf.Tensor, slot: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the index of each sample's episode within its task and kind."""
    if not self.num_whole:
      return sample
    before = [self.kinds[:n].count(kind) for n, kind in enumerate(self.kinds)]
    shown, first = before[:-1], before[-1]
    others = (sample - self.num_condition) % tf.maximum(size - first, 1)
    place = tf.gather(tf.constant([*shown, 0], tf.int64), slot)
    return tf.where(sample < self.num_condition, place, first + others)


@gin.configurable
class TaskStoreInputGenerator(_TaskInputGenerator):
  """Reads tasks from a store with a column that names each episode's task.

  Samples of a task are windows of different episodes, or the condition shows whole
  episodes, such as demonstrations. Each task is used once per epoch. The order depends
  only on the seed; a resumed run continues with the next batch.
  """

  def __init__(
    self,
    store_path: str | os.PathLike[str] = gin.REQUIRED,
    task_key: str = "task",
    batch_size: int = 32,
    num_condition_samples_per_task: int = 1,
    num_inference_samples_per_task: int = 1,
    condition_episodes: int | Sequence[str] | None = None,
    seed: int | None = None,
    split: str | None = None,
    episodes: Episodes | None = None,
    kind_key: str | None = None,
    inference_kind: str = "",
    sequence_length: int | None = None,
  ) -> None:
    """Creates the generator; creating a dataset opens the store.

    Args:
      store_path: the store's folder.
      task_key: path of the column with each episode's task, a number or a string.
      batch_size: number of tasks in a batch.
      num_condition_samples_per_task: number of samples of the condition.
      num_inference_samples_per_task: number of samples of the inference.
      condition_episodes: the number of whole episodes that the condition shows by
        evenly spread windows, or the kind of each; the inference shows other episodes.
        None: each sample is a window of a different episode.
      seed: seed of the random numbers; None: random.
      split: split of the store; None for all. Tasks without episodes in it are skipped.
      episodes: numbers of the episodes to read, or a file with them; None for all.
      kind_key: path of a column with the kind of each episode, such as 'demo' or
        'trial'; None: there are no kinds.
      inference_kind: kind of the episodes of the inference; '' without kinds.
      sequence_length: steps of a sample, for specs with `is_sequence`; None for others.
    Raises:
      SpecError: a number is not an integer of at least 1, the condition's samples can't
        be divided among its episodes, or only some of `kind_key`, kinds in
        `condition_episodes` and `inference_kind` are given.
    """
    super().__init__(
      batch_size, num_condition_samples_per_task, num_inference_samples_per_task, seed
    )
    where, samples = type(self).__name__, self._counts[0]
    is_kinds = isinstance(condition_episodes, (list, tuple))
    kinds: Any = condition_episodes if is_kinds else ()
    self._kind_key, self._kinds = kind_key, (*kinds, inference_kind)
    if not bool(kind_key) == bool(kinds) == bool(inference_kind):
      raise errors.SpecError(
        f"{where}: expected kind_key, the kinds of condition_episodes and "
        "inference_kind, or none of them, got "
        f"{kind_key!r}, {condition_episodes!r} and {inference_kind!r}."
      )
    self._num_whole = len(kinds)
    if not kinds and condition_episodes is not None:
      self._num_whole = errors.check_count(
        where, "condition_episodes", condition_episodes
      )
    if self._num_whole and samples % self._num_whole:
      raise errors.SpecError(
        f"{where}: num_condition_samples_per_task: expected a multiple of the "
        f"{self._num_whole} episodes, got {samples}."
      )
    self._store_path = store_path
    self._split, self._episodes = split, episodes
    self._task_key = task_key
    self._sequence_length = sequence_length

  @property
  def position_options(self) -> dict[str, Any]:
    if self._seed is None:
      return {}
    samples = list(self._counts)
    return {"batch_size": self._batch_size, "seed": self._seed, "samples": samples}

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    mode, batch_size, is_train = request.mode, request.batch_size, request.is_train
    with tf.init_scope():
      opened = store.EpisodeStore(self._store_path)
      features, labels = self._sample_specs(mode)
      joined = joint.name_by_path(joint.join(features, labels), opened.spec)
      columns: Any = DecodedColumns(StoreColumns(opened), opened.spec)
      cut = windows.Cut(sequence_length=self._sequence_length, padding=self.padding)
      read = StoreWindows(columns, joined, cut)
      tasks = self._tasks(opened, read.counts)
    seed = request.seed if self._seed is None else self._seed
    order: Any = _TaskOrder(
      tasks,
      self._kind_numbers(),
      np.asarray(read.counts),
      *self._counts,
      self._num_whole,
      batch_size,
      is_train,
      draw_seed() if seed is None else seed,
    )
    if not order.batches_per_epoch:
      raise errors.SpecError(
        f"{type(self).__name__}: batch_size: expected at most the {order.all_tasks} "
        f"tasks of {opened.path}, got {batch_size}."
      )
    batches = batches_in_order(
      read.read,
      order,
      read.window_bytes * order.batch_size,
      None if is_train else 1,
      request.start_step if is_train else 0,
      read.held,
    )
    return batches.map(self._of_tasks)

  def _kind_numbers(self) -> tuple[int, ...]:
    """Returns the numbers of the kinds of the condition and the inference."""
    if self._kind_key is None:
      return (0,) * (self._num_whole + 1)
    names = list(dict.fromkeys(self._kinds))
    return tuple(names.index(kind) for kind in self._kinds)

  def _tasks(
    self, opened: store.EpisodeStore, counts: np.ndarray
  ) -> tuple[np.ndarray, ...]:
    """Returns the episodes of each task: of the first kind, then of the next."""
    where = f"{type(self).__name__}: {opened.path}"
    values = _of_episodes(where, opened, self._task_key)
    chosen = choose_episodes(
      where, len(opened), self._episodes, self._split, opened.splits
    )
    chosen = np.arange(len(opened)) if chosen is None else chosen
    usable = chosen[np.asarray(counts)[chosen] > 0]
    names = np.unique(values[chosen])
    if self._kind_key is None:
      minimum, what = self._num_samples, "for as many samples"
      if self._num_whole:
        minimum, what = self._num_whole + 1, "those of the condition and another"
      groups = [(usable, minimum, what)]
    else:
      kinds = _of_episodes(where, opened, self._kind_key)
      groups = [
        (usable[kinds[usable] == kind], self._kinds.count(kind), f"of kind '{kind}'")
        for kind in dict.fromkeys(self._kinds)
      ]
    tasks: list[np.ndarray] = []
    for among, minimum, what in groups:
      by_task = [among[values[among] == name] for name in names]
      small = [
        f"'{name}' has {len(episodes)}"
        for name, episodes in zip(names, by_task, strict=True)
        if len(episodes) < minimum
      ]
      if small:
        raise errors.SpecError(
          f"{where}: {self._task_key}: expected {minimum} episodes or more of each "
          f"task, {what}, got {errors.listing(small, limit=5)}."
        )
      tasks += by_task
    return tuple(tasks)

  def _of_tasks(self, batch: Any) -> tuple[TensorSpecStruct, TensorSpecStruct]:
    """Makes meta-examples [tasks, samples, ...] of windows [tasks * samples, ...]."""
    split = meta_tfdata.unflatten_batch_examples(batch, self._num_samples)
    features, labels = joint.split(split)
    first = self._counts[0]
    return preprocessors.split_samples(
      features, labels, lambda x: x[:, :first], lambda x: x[:, first:]
    )


def _of_episodes(where: str, opened: store.EpisodeStore, key: str) -> np.ndarray:
  """Returns a column of one value per episode, as strings."""
  spec = opened.spec
  if key not in spec or spec[key].is_sequence or spec[key].shape.num_elements() != 1:
    got, hint = "nothing", errors.nearest(key, spec)
    if key in spec:
      each = "of each step" if spec[key].is_sequence else "of each episode"
      got, hint = f"{errors.describe(spec[key])} {each}", ""
    mismatch = errors.Mismatch(key, "a number or a string for each episode", got, hint)
    raise errors.mismatch_error(where, [mismatch])
  column = opened.column(key)
  values = (column[i] for i in range(len(opened)))
  return np.array(
    [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]
  )


@gin.configurable
class TaskReplayInputGenerator(_TaskInputGenerator):
  """Reads tasks from live replays: each replay holds one task.

  Each sample is a sampled item of its replay. The dataset is endless in every mode.
  """

  def __init__(
    self,
    replays: Sequence[replay.replay.Replay] = gin.REQUIRED,
    batch_size: int = 32,
    num_condition_samples_per_task: int = 1,
    num_inference_samples_per_task: int = 1,
    seed: int | None = None,
  ) -> None:
    """Creates the generator.

    Args:
      replays: replay of each task, such as `ReplayBuffer`s; they are not closed.
      batch_size: number of tasks in a batch.
      num_condition_samples_per_task: number of samples of the condition.
      num_inference_samples_per_task: number of samples of the inference.
      seed: seed of the order of tasks; None: random. Replays have separate seeds.
    Raises:
      SpecError: `replays` is empty or contains something else, or a number is not an
        integer of at least 1.
    """
    super().__init__(
      batch_size, num_condition_samples_per_task, num_inference_samples_per_task, seed
    )
    self._tasks = [replay.ReplayInputGenerator(each) for each in replays]
    if not self._tasks:
      raise errors.SpecError(
        f"{type(self).__name__}: replays: expected one or more, got none."
      )

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
      for task in self._tasks:
        stack.enter_context(task.explain_failures())
      yield

  def watch(self) -> Callable[[], Any] | None:
    checks = [check for task in self._tasks if (check := task.watch()) is not None]

    def check_all() -> None:
      for check in checks:
        check()

    return check_all if checks else None

  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    mode, batch_size = request.mode, request.batch_size
    features, labels = self._sample_specs(mode)
    sampled = []
    for task in self._tasks:
      task.set_feature_specifications(features)
      task.set_label_specifications(labels)
      task.set_padding(self.padding)
      sampled.append(task.create_dataset(mode, batch_size=self._num_samples))
    seed = self._drawing_seed(request)
    # As with a store: every task is used once before the next epoch.
    turns = tf.data.Dataset.range(len(sampled)).shuffle(len(sampled), seed).repeat()
    tasks = tf.data.Dataset.choose_from_datasets(sampled, turns)
    return tasks.map(self._to_meta).batch(batch_size, drop_remainder=True)
