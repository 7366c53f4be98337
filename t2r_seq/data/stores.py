"""Batches of windows of an EpisodeStore in any order, and its input generator."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, randomness, records, specs, windows
from t2r_seq.data import arguments, following, joint
from t2r_seq.data.following import Follow
from t2r_seq.data.input_generator import BatchRequest, DatasetInputGenerator
from t2r_seq.data.loaders import PoolReader, WindowLoader, raises_read_errors
from t2r_seq.data.plan import Plan, PoolOrder, dataset_options, plan_and_cut
from t2r_seq.data.pool import PoolRows, has_images, parts_of_rows
from t2r_seq.episodes import open_episodes
from t2r_seq.episodes.episodes import steps_spec
from t2r_seq.episodes.rates import default_clock, measured_period, value_periods
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.episodes.splits import choose_episodes
from t2r_seq.records.images import DecodeImages, decode_to_list
from t2r_seq.specs.extended_tensor_spec import is_video_spec
from t2r_seq.store import EpisodeStore
from t2r_seq.store.columns import FileColumns, StoreColumns
from t2r_seq.store.episode_store import StoreWindows
from t2r_seq.windows.cut import too_short_error
from t2r_seq.windows.dataset import WindowReport
from t2r_seq.windows.reader import present_path
from t2r_seq.windows.rows import RowList

# Path of the sample numbers among the features of batches that the device preprocesses.
_NUMBERS = "sample_number"


class DecodedColumns:
  """A store's columns, with their encoded images decoded.

  Attributes:
    path: path of the store.
    metadata: metadata of the store.
    clocks: the time stamps of columns on other clocks than the steps', by path.
    row_ends: end rows of these episodes; see `StoreColumns`.
    absent: the optional paths that are left out, and which episodes lack them.
    element_spec: specs of an episode as `WindowReader` takes them, images decoded.
    episode_lengths: steps of each episode, int64 [episodes].
    held: the tensors that `take` reads; see `dataset_over`.
    images: the specs of images that are decoded, by path.
  """

  def __init__(
    self,
    columns: StoreColumns | FileColumns,
    spec: specs.TensorSpecStruct,
    decode_images: DecodeImages = True,
  ) -> None:
    """Wraps columns.

    Args:
      columns: columns of the store.
      spec: spec of the store.
      decode_images: whether to decode images, or the `records.ImageDecoding` to use.
    Raises:
      SpecError: a name in `decode_images` is not that of an image of the store.
    """
    self.path, self.metadata = columns.path, columns.metadata
    self.clocks, self.row_ends = columns.clocks, columns.row_ends
    self.absent = columns.absent
    self.episode_lengths = columns.episode_lengths
    self.held = columns.held
    self._columns = columns
    self._decode_images = decode_images
    if isinstance(decode_images, records.ImageDecoding):
      spec = decode_images.crop_specs(f"StoreWindowLoader: {columns.path}", spec)
    self.images: Mapping[str, specs.ExtendedTensorSpec] = {
      path: steps_spec(spec[path]) if path in columns.clocks else spec[path]
      for path in columns.element_spec
      if decode_images and specs.is_encoded_image_spec(spec[path])
    }
    self.element_spec = columns.element_spec.copy()
    self._present: dict[str, str] = {}
    for path, image in self.images.items():
      shape = image.shape
      if image.is_sequence:
        shape = tf.TensorShape([None]).concatenate(shape)
        present = present_path(path)
        self._present[present] = path
        self.element_spec[present] = tf.TensorSpec([None], tf.bool)
      self.element_spec[path] = tf.TensorSpec(shape, image.dtype)

  def take(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    """Gathers rows of one column; repeated images are decoded once.

    Args:
      path: path in `element_spec`.
      rows: int64 of any shape.
    Returns:
      rows.shape + the shape of a row.
    """
    if path in self._present:
      encoded = self._columns.take(self._present[path], tf.reshape(rows, [-1]))
      return tf.reshape(has_images(encoded), tf.shape(rows))
    if path not in self.images:
      return self._columns.take(path, rows)
    distinct, places = tf.unique(tf.reshape(rows, [-1]))
    places = tf.reshape(places, tf.shape(rows))
    of_row = self.images[path].shape[:-3]
    return self.decode(path, distinct).gather(parts_of_rows(places, of_row))

  def decode(self, path: str, rows: tf.Tensor) -> RowList:
    """Decodes the images of rows, int64 [N]; a row may have several."""
    strings = tf.reshape(self._columns.take(path, rows), [-1])
    return decode_to_list(strings, self.images[path], path, self._decode_images)

  def max_row_bytes(self, path: str) -> int:
    """Returns the memory of the largest row in a pool, in bytes.

    For images: the pixels, and half of the encoded bytes, because only one of two
    pools, the one that is being filled, holds these.
    """
    if path in self._present:
      return 1
    stored = self._columns.max_row_bytes(path)
    if path not in self.images:
      return stored
    spec = self.images[path]
    pixels = int(np.prod(spec.shape.as_list(), dtype=np.int64)) * spec.dtype.size
    return pixels + (stored + 1) // 2


class _StorePools(PoolReader):
  """Reads pools of a store's episodes."""

  def __init__(self, columns: DecodedColumns, store_windows: StoreWindows) -> None:
    reader = store_windows.reader
    if reader.rows_paths:
      raise errors.SpecError(
        f"StoreWindowLoader: {columns.path}: order: expected 'global' or 'sequential' "
        f"for values on other clocks, {errors.listing(reader.rows_paths.values())}, "
        "got pools. Or read the store by data.EpisodesInputGenerator, which has pools."
      )
    lengths = columns.episode_lengths
    super().__init__(
      PoolRows(reader, columns.element_spec, columns.images),
      store_windows.counts,
      lengths,
      step_bytes=sum(map(columns.max_row_bytes, reader.timed_paths)),
      held=columns.held,
    )
    self._columns = columns
    self._first_rows = np.cumsum(lengths) - lengths

  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    first_rows = tf.gather(tf.constant(self._first_rows, tf.int64), episodes)
    first_rows += first_step
    steps = tf.ragged.range(first_rows, first_rows + num_steps).flat_values
    reader, columns = self._rows.reader, self._columns
    rows = {}
    for path in reader.paths:
      if path not in reader.timed_paths:
        rows[path] = columns.take(path, episodes)
      elif path in columns.images:
        rows[path] = columns.decode(path, steps).handle
      else:
        rows[path] = columns.take(path, steps)
    return rows


class StoreWindowLoader(WindowLoader):
  """Loads batches of windows from a store; see `WindowLoader`.

  >>> import numpy as np
  >>> from t2r_seq import specs, store
  >>> state = specs.ExtendedTensorSpec((2,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"state": state}) as writer:
  ...   for num_steps in (5, 3):
  ...     _ = writer.append_episode({"state": np.zeros((num_steps, 2), np.float32)})
  >>> pair = specs.ExtendedTensorSpec((2, 2), "float32", "state", time_offsets=(-1, 0))
  >>> from t2r_seq import data
  >>> loader = data.StoreWindowLoader("demo", {"state": pair}, batch_size=4, seed=0)
  >>> loader.batches_per_epoch, next(iter(loader.dataset(start_batch=1))).state.shape
  (2, TensorShape([4, 2, 2]))

  Attributes:
    is_flat: whether steps are delivered once each, to be stacked later.
    failures: errors of videos that could not be read.
  """

  def __init__(
    self,
    store: EpisodeStore | str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    batch_size: int | None = None,
    order: str | None = None,
    plan: Plan | None = None,
    cut: windows.Cut | None = None,
    flat: bool = False,
    decode_images: DecodeImages = True,
    episodes: Episodes | None = None,
    split: str | None = None,
    **fields: Any,
  ) -> None:
    """Plans the batches.

    Args:
      store: a store with episodes, or its path. One with a single segment is read
        fastest: `EpisodeStore.merge`.
      spec_structure: the specs of a window; see `StoreWindows`.
      batch_size: B; None: that of `plan`, which must be given then.
      order: 'sequential'; 'global': every epoch another permutation of all windows,
        without a buffer; 'quasi_random': permutes the episodes, and the windows of a
        pool of them, so that each step is read, and each image or video frame decoded,
        once a pool. It suits images, videos, and stores larger than memory. None: the
        plan's, or else 'global'.
      plan: plan of the batches; None for `Plan()`.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: delivers every step that a window shows once, [B, F, ...], for
        `windows.stack_windows` in the train step.
      decode_images: whether to decode images, or the `records.ImageDecoding` to use;
        False gives the stored strings.
      episodes: numbers of the episodes to read, or a file that lists them; None for
        all.
      split: split of the store, such as 'train'; None for all.
      **fields: fields of the plan and the cut, which they replace: seed=1, ...
    Raises:
      SpecError: the store does not fit the specs, a shard is too small for a batch,
        there is no such split or episode, or an argument is invalid.
      RecordError: all episodes are too short for a window.
      StoreError: the store cannot be opened, or has no episodes.
    """
    fields = {"batch_size": batch_size, "order": order, **fields}
    plan, cut = plan_and_cut("StoreWindowLoader", plan, cut, fields)
    if not isinstance(store, EpisodeStore):
      store = EpisodeStore(store)
    plan = dataclasses.replace(
      plan.with_seed("global"), where=f"{plan.where}: {store.path}"
    )
    columns: Any = StoreColumns(store)
    self.failures = columns.failures
    if decode_images or plan.order == "quasi_random":
      columns = DecodedColumns(columns, store.spec, decode_images)
    splits = None if split is None else store.splits
    chosen = choose_episodes(plan.where, len(store), episodes, split, splits)
    self._windows = StoreWindows(columns, spec_structure, cut, flat, chosen)
    self._chosen = slice(None) if chosen is None else chosen
    if not self._windows.num_windows:
      lengths = store.episode_lengths[self._chosen]
      min_steps = self._windows.reader.min_steps
      raise too_short_error(plan.where, min_steps, len(lengths), int(lengths.max()))
    self.is_flat = flat
    self._store = store
    self._decode_images = decode_images
    super().__init__(
      plan,
      self._windows.read,
      self._windows.num_windows,
      self._windows.window_bytes,
      lambda: _StorePools(columns, self._windows),
      self._windows.held,
    )

  def report(self) -> WindowReport:
    """Returns the counts of one epoch, over all shards."""
    return WindowReport.of_episodes(
      self._store.episode_lengths[self._chosen], self._windows.counts[self._chosen]
    )

  def portable_dataset(self) -> tf.data.Dataset:
    """Creates the dataset as a graph that other processes can run, for tf.data service.

    The graph opens the store's files on the machine where it runs, under the names that
    they have here; see `FileColumns`. A service splits the dataset by pools.

    Returns:
      Dataset of the same batches as `dataset`; it cannot be checkpointed.
    Raises:
      SpecError: the order is not 'quasi_random'.
      StoreError: a writer has the store open, or the store has videos or values on
        other clocks.
    """
    if not isinstance(self._order, PoolOrder):
      raise errors.SpecError(
        f"portable_dataset: order: expected 'quasi_random', got '{self.plan.order}'. "
        "Other orders read from memory of this process, wherever a window lies; pools "
        "are ranges of files."
      )
    columns = DecodedColumns(
      FileColumns(self._store), self._store.spec, self._decode_images
    )
    pools = _StorePools(columns, self._windows)
    batches = pools.batches(self._order, self.plan.last_epoch, 0, is_portable=True)
    return batches.with_options(dataset_options())


@gin.configurable
class StoreInputGenerator(DatasetInputGenerator):
  """Reads windows from an EpisodeStore.

  A spec reads the column of its path, or else the column of its name. Specs without
  time offsets read the anchor's own step, or the episode's context feature.

  >>> generator = data.StoreInputGenerator("demo", batch_size=4, seed=0)
  >>> generator.set_feature_specifications({"state": pair})
  >>> generator.set_label_specifications({})
  >>> next(iter(generator.create_dataset("train")))[0].state.shape
  TensorShape([4, 2, 2])

  Mode 'train' shuffles every epoch, and repeats without an end. With a seed, batches
  are the same on every machine, and a resumed run continues with exactly the next one.
  The other modes are one pass, in the order of the store.
  """

  def __init__(
    self,
    store_path: str | os.PathLike[str],
    batch_size: int = 32,
    order: str | None = None,
    shard_index: int = 0,
    num_shards: int = 1,
    stack_on_device: bool = False,
    follow: bool | Follow = False,
    **options: Any,
  ) -> None:
    """Creates the generator; the store is opened when a dataset is created.

    Args:
      store_path: the store's folder.
      batch_size: examples in a batch, over all replicas together.
      order: order of mode 'train', as in `StoreWindowLoader`; None: 'quasi_random' if
        images or videos have to be decoded (and the store has a single clock), or for a
        data service; otherwise 'global'.
      shard_index: index of the part of each epoch to read.
      num_shards: number of disjoint parts.
      stack_on_device: in mode 'train', batches have each step once, and the train step
        stacks and preprocesses them; see `device_fn`. It pays for long sequences of
        stacks, if the host's copies limit the speed.
      follow: whether mode 'train' also reads episodes that actors append to the store
        during training, or a `Follow` with the options of doing so. It also waits until
        the store exists. Windows are sampled at random, without an order or shards.
      **options: options of `DatasetInputGenerator`: seed, sequence_length,
        memory_budget, image_decoding, episodes, split, ...
    Raises:
      SpecError: a size is too small, or an option is invalid.
    """
    super().__init__(batch_size, **options)
    self._failures: list[Exception] = []
    self._follow = follow if isinstance(follow, Follow) else None
    expected = "True, False or a Follow"
    if self._follow is None and arguments.check_flag(
      self._plan.where, "follow", follow, expected
    ):
      self._follow = Follow()
    self._store_path = store_path
    self._plan = dataclasses.replace(
      self._plan, order=order, shard_index=shard_index, num_shards=num_shards
    )
    self._stack_on_device = arguments.check_flag(
      self._plan.where, "stack_on_device", stack_on_device
    )

  @property
  def reads_shards(self) -> bool:
    """Whether each worker reads its own part; False for a shard or a followed store."""
    return self._plan.num_shards == 1 and self._follow is None

  @property
  def control_period(self) -> float | None:
    """Seconds from a step to the next one, from the store's metadata or time stamps."""
    if self._follow is not None:
      return None  # The store need not exist yet.
    return measured_period(open_episodes(os.fspath(self._store_path), "store"))

  @property
  def value_periods(self) -> Mapping[str, float]:
    """See the base class."""
    if self._follow is not None:
      return {}
    return value_periods(open_episodes(os.fspath(self._store_path), "store"))

  def _find_clock(self, mode: str) -> str | float | None:
    """See the base class."""
    del mode
    store = EpisodeStore(self._store_path)
    return default_clock(store.metadata, store.spec)

  def describe(self) -> str:
    """See the base class."""
    batches = f"batches of {self.batch_size}"
    if self._follow is not None:
      return f"{type(self).__name__}: {self._store_path} as it grows, {batches}"
    store = EpisodeStore(self._store_path)
    where = f"{type(self).__name__}: {store.path}"
    chosen = self._choose(where, len(store), lambda: store.splits)
    num = len(store if chosen is None else chosen)
    windowed = f"{self.num_examples:,} windows of {num:,} episodes"
    return f"{type(self).__name__}: {windowed} in {self._store_path}, {batches}"

  @property
  def num_episodes(self) -> int | None:
    """See the base class."""
    with tf.init_scope():
      store = EpisodeStore(self._store_path)
      where = f"{type(self).__name__}: {store.path}"
      chosen = self._choose(where, len(store), lambda: store.splits)
    return len(store) if chosen is None else len(chosen)

  @property
  def num_examples(self) -> int | None:
    """Windows of one pass, by lengths and terminal flags; None without specs."""
    if not self.has_specifications:
      return None
    with tf.init_scope():
      store = EpisodeStore(self._store_path)
      where = f"{type(self).__name__}: {store.path}"
      chosen = self._choose(where, len(store), lambda: store.splits)
      if self.n_step is not None:  # A terminal flag in the last row adds a window.
        joined, cut = self._named_specs(store.spec, "eval"), self._cut_for_mode("eval")
        columns = StoreColumns(store)
        return StoreWindows(columns, joined, cut, chosen=chosen).num_windows
      lengths = store.episode_lengths
      lengths = lengths if chosen is None else lengths[chosen]
      return self._count_windows(store.spec, lengths)

  def _has_numbers(self) -> bool:
    return super()._has_numbers() and self._follow is None

  def _position_order(self) -> str | None:
    if self._plan.order is not None:
      return self._plan.order
    with tf.init_scope():
      store = EpisodeStore(self._store_path)
      joined = self._named_specs(store.spec, specs.ModeKeys.TRAIN)
      return self._train_order(store, joined)

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, request: BatchRequest) -> tf.data.Dataset:
    mode, is_train = request.mode, request.is_train
    plan, start = self._numbered_plan(request)
    if is_train and self._follow is not None:
      return self._follow_batches(self._follow, plan, start, request.is_portable)
    # A dataset may be created while a graph is built; the store is opened outside.
    with tf.init_scope():
      store = EpisodeStore(self._store_path)
      joined = self._named_specs(store.spec, mode)
      if plan.order is None:
        order = self._train_order(store, joined, request.is_portable)
        plan = dataclasses.replace(plan, order=order)
      loader = StoreWindowLoader(
        store,
        joined,
        plan=plan,
        cut=self._cut_for_mode(mode),
        flat=is_train and self._stack_on_device,
        decode_images=self._decode_images,
        episodes=self._episodes,
        split=self._split,
      )
    self._failures = loader.failures
    self._report, self._reads_ahead = loader.report(), True
    self._device_fn = self._stack_and_finish if loader.is_flat else None
    if request.is_portable:
      return loader.portable_dataset()
    return loader.dataset(start)

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Raises the errors of reading or following a store, instead of TensorFlow's."""
    with following.explain_errors(), raises_read_errors(lambda: self._failures):
      yield

  def _follow_batches(
    self, follow: Follow, plan: Plan, start_batch: int, is_portable: bool
  ) -> tf.data.Dataset:
    """Creates the dataset of a store that grows."""
    others = {
      "num_shards": self._plan.num_shards > 1,
      "order": self._plan.order is not None,
      "stack_on_device": self._stack_on_device,
      "a data service": is_portable,
      "episodes": self._episodes is not None,
      "split": self._split is not None,
    }
    if any(others.values()):
      got = errors.listing(name for name, is_on in others.items() if is_on)
      raise errors.SpecError(
        f"{type(self).__name__}: follow: expected none of {errors.listing(others)}, "
        f"got {got}. Windows of a growing store are sampled at random from all of its "
        "episodes."
      )

    def columns(store: EpisodeStore) -> DecodedColumns:
      columns = StoreColumns(store)
      self._failures = columns.failures
      return DecodedColumns(columns, store.spec, self._decode_images)

    with tf.init_scope():
      store = following.wait_for_store(self._store_path, follow)
      mode = specs.ModeKeys.TRAIN
      joined, cut = self._named_specs(store.spec, mode), self._cut_for_mode(mode)
      follower = following.StoreFollower(
        store, joined, plan.batch_size, follow, cut, plan.seed, columns
      )
      return follower.dataset(start_batch)

  def _finish(self, features: Any, labels: Any, has_labels: bool) -> joint.Pair:
    if self._device_fn is not None:
      numbers = randomness.sample_numbers()  # AutoGraph converts no walrus.
      if numbers is not None:
        features = specs.TensorSpecStruct({**features, _NUMBERS: numbers})
      return features, labels
    return super()._finish(features, labels, has_labels)

  def _stack_and_finish(self, features: Any, labels: Any) -> joint.Pair:
    features = specs.TensorSpecStruct(features)
    with randomness.sample_number_scope(features.pop(_NUMBERS, None)):
      return self._stack(features, labels)

  def _stack(self, features: Any, labels: Any) -> joint.Pair:
    stacked = windows.stack_windows(
      joint.join(features, labels),
      joint.join(self._feature_spec, self._label_spec),
      self._cut,
    )
    features, labels = joint.split(stacked)
    return super()._finish(features, labels, has_labels=True)

  def _train_order(
    self,
    store: EpisodeStore,
    joined: specs.TensorSpecStruct,
    is_portable: bool = False,
  ) -> str:
    if is_portable:
      return "quasi_random"
    if store.clocks:
      return "global"
    stored = store.spec
    names = (path if path in stored else spec.name for path, spec in joined.items())
    read = [stored[name] for name in names if name in stored]
    is_decoded = any(
      specs.is_encoded_image_spec(spec) or is_video_spec(spec) for spec in read
    )
    return "quasi_random" if is_decoded else "global"
