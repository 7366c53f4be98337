"""The input generator that reads an EpisodeStore."""

from __future__ import annotations

import os
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import draws, errors, records, specs, windows
from t2r_seq.data import arguments, joint
from t2r_seq.data.abstract_input_generator import AbstractInputGenerator
from t2r_seq.data.loaders.store_loader import StoreWindowLoader
from t2r_seq.data.loaders.window_loader import ORDERS
from t2r_seq.store import EpisodeStore

# Path of what travels beside the features of batches that the device preprocesses.
_NUMBERS = "sample_number"


@gin.configurable
class StoreInputGenerator(AbstractInputGenerator):
  """Reads windows from an EpisodeStore.

  A spec reads the column of its path, or else the one that is its name. Specs without
  time offsets read the anchor's own step, or the episode's context feature.

  Mode 'train' shuffles, anew in every epoch, and repeats for ever; a resumed run goes
  on with exactly the next batch. The other modes are one pass, in the order of the
  store. The same seed gives the same batches on every machine.
  """

  def __init__(
    self,
    store_path: str | os.PathLike[str],
    batch_size: int = 32,
    order: str | None = None,
    seed: int | None = None,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    n_step: windows.NStep | tuple[int, float] | None = None,
    shard_index: int = 0,
    num_shards: int = 1,
    memory_budget: int = 2**30,
    drop_remainder: bool | None = None,
    stack_on_device: bool = False,
    image_decoding: records.ImageDecoding | None = None,
  ) -> None:
    """Creates the generator; the store is opened when a dataset is created.

    Args:
      store_path: the store's folder.
      batch_size: examples in a batch, over all replicas together.
      order: of mode 'train', as `StoreWindowLoader` has them; None: 'quasi_random'
        where images have to be decoded, 'global' otherwise.
      seed: of the order; None: another order in every run.
      sequence_length: stacks in a sequence, for specs with is_sequence and windows.
      stride: steps between the stacks of a sequence.
      shift: stacks between the starts of two sequences.
      n_step: (n, gamma), or a `windows.NStep`, where the specs are those of one-step
        transitions: joins them as they are read, as a replay does.
      shard_index: which part of each epoch to read.
      num_shards: how many disjoint parts there are.
      memory_budget: bytes that the pools of 'quasi_random' may hold, decoded.
      drop_remainder: whether the last, smaller batch is left out, so that the batch
        axis is static; None: in mode 'train' only.
      stack_on_device: in mode 'train' batches travel flat, each step once; the train
        step stacks and preprocesses them, see `device_fn`. For long sequences of
        stacks, where the host's copies are what limits training.
      image_decoding: how encoded images are decoded, and which part of them.
    Raises:
      SpecError: a size is too small, or an option is none of these.
    """
    cut = windows.Cut(sequence_length, stride, shift, n_step=windows.NStep.of(n_step))
    super().__init__(batch_size, cut)
    where = type(self).__name__
    if order is not None and order not in ORDERS:
      raise errors.SpecError(
        f"{where}: order: expected None or one of {', '.join(ORDERS)}, got "
        f"{order!r}.{errors.nearest(str(order), ORDERS)}"
      )
    self._store_path = store_path
    self._order = order
    self._seed = arguments.check_seed(where, seed)
    self._shard_index = shard_index
    self._num_shards = self._check_count("num_shards", num_shards)
    self._memory_budget = self._check_count("memory_budget", memory_budget)
    self._drop_remainder = arguments.check_drop_remainder(where, drop_remainder)
    self._stack_on_device = arguments.check_flag(
      where, "stack_on_device", stack_on_device
    )
    self._decode_images = arguments.check_image_decoding(where, image_decoding)

  @property
  def reads_shards(self) -> bool:
    """Whether workers read their own parts: unless it shows a part already."""
    return self._num_shards == 1

  @property
  def num_examples(self) -> int | None:
    """Windows of one pass; counted from the episodes' lengths."""
    if not self.has_specifications:
      return None
    with tf.init_scope():
      store = EpisodeStore(self._store_path)
      mode = specs.ModeKeys.EVAL
      span = windows.time_span(self._joined(store, mode))
      grid = windows.WindowGrid(span, self._cut(mode))
      return int(np.sum(grid.num_windows(store.episode_lengths)))

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    is_train = mode == specs.ModeKeys.TRAIN
    drop = is_train if self._drop_remainder is None else self._drop_remainder
    shard, start = (self._shard_index, self._num_shards), self._start_step
    if (context := self._input_context) is not None:
      batch_size = context.get_per_replica_batch_size(batch_size)
      shard = (context.input_pipeline_id, context.num_input_pipelines)
      start *= context.num_replicas_in_sync // context.num_input_pipelines
    # A dataset may be created while a graph is built; the store is opened outside.
    with tf.init_scope():
      store = EpisodeStore(self._store_path)
      joined = self._joined(store, mode)
      loader = StoreWindowLoader(
        store,
        joined,
        batch_size,
        self._train_order(store, joined) if is_train else "sequential",
        seed=self._used_seed(),
        num_epochs=None if is_train else 1,
        shard_index=shard[0],
        num_shards=shard[1],
        drop_remainder=drop,
        cut=self._cut(mode),
        memory_budget=self._memory_budget,
        flat=is_train and self._stack_on_device,
        decode_images=self._decode_images,
      )
    self._report, self._reads_ahead = loader.report(), True
    self._device_fn = self._stack_and_finish if loader.is_flat else None
    if self._is_portable:
      return loader.portable_dataset().map(joint.split)
    return loader.dataset(start if is_train else 0).map(joint.split)

  def _finish(self, features: Any, labels: Any, has_labels: bool) -> joint.Pair:
    if self._device_fn is not None:
      if (numbers := draws.sample_numbers()) is not None:
        features = specs.TensorSpecStruct({**features, _NUMBERS: numbers})
      return features, labels
    return super()._finish(features, labels, has_labels)

  def _stack_and_finish(self, features: Any, labels: Any) -> joint.Pair:
    features = specs.TensorSpecStruct(features)
    with draws.numbered(features.pop(_NUMBERS, None)):
      return self._stack(features, labels)

  def _stack(self, features: Any, labels: Any) -> joint.Pair:
    stacked = windows.stack_windows(
      joint.join(features, labels),
      joint.join(self._feature_spec, self._label_spec),
      self._unpadded_cut,
    )
    features, labels = joint.split(stacked)
    return super()._finish(features, labels, has_labels=True)

  def _joined(self, store: EpisodeStore, mode: str) -> specs.TensorSpecStruct:
    """Joins the specs; each names the column that it reads."""
    joined = joint.join(self._feature_spec, self._label_spec_for(mode))
    columns = store.spec
    for path, spec in joined.items():
      own_path = path.partition("/")[2]
      if own_path in columns:
        spec = specs.ExtendedTensorSpec.from_spec(spec, name=own_path)
      joined[path] = spec
    return joined

  def _train_order(self, store: EpisodeStore, joined: specs.TensorSpecStruct) -> str:
    if self._order is not None:
      return self._order
    if self._is_portable:
      return "quasi_random"
    stored = store.spec
    has_images = any(
      specs.is_encoded_image_spec(stored[spec.name])
      for spec in joined.values()
      if spec.name in stored
    )
    return "quasi_random" if has_images else "global"

  def _used_seed(self) -> int:
    seed = self._params_seed if self._seed is None else self._seed
    if seed is None:
      return int(np.random.SeedSequence().generate_state(1)[0])
    if self._is_portable and self._start_step:
      # A service has no position: a resumed run goes on in another order.
      return int(np.random.SeedSequence([seed, self._start_step]).generate_state(1)[0])
    return seed
