"""`StoreWindowLoader`: batches of windows from an EpisodeStore, in any order."""

from __future__ import annotations

import copy
import dataclasses
import os
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.data.arguments import check_count
from t2r_seq.data.decoded_columns import DecodedColumns
from t2r_seq.data.numpy_batches import (
  NumpyBatches,
  check_start_batch,
  numpy_batches_in_order,
)
from t2r_seq.data.ordered_batches import batches_in_order, checkpoint_options
from t2r_seq.data.pool_order import PoolOrder, PoolSize
from t2r_seq.data.pooled_batches import PooledWindows
from t2r_seq.data.portable_windows import PortableWindows
from t2r_seq.data.window_order import STATELESS_ORDERS, WindowOrder
from t2r_seq.store import EpisodeStore, FileColumns, StoreColumns, StoreWindows

ORDERS = (*STATELESS_ORDERS, "quasi_random")


class StoreWindowLoader:
  """Loads batches of windows from a store.

  The batches are a function of the arguments: the same on every machine and for any
  number of threads. What to resume from is the number of the next batch.

  Attributes:
    num_windows: in the whole store.
    batches_per_epoch: of this shard.
    is_flat: whether steps are delivered once each, to be stacked later.
    pool_size: batches and bytes that go through memory together; None unless the order
      is 'quasi_random'.
  """

  def __init__(
    self,
    store: EpisodeStore | str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    batch_size: int,
    order: str = "global",
    seed: int = 0,
    num_epochs: int | None = 1,
    shard_index: int = 0,
    num_shards: int = 1,
    drop_remainder: bool = True,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    masks: bool = False,
    flat: bool = False,
    memory_budget: int = 2**30,
    decode_images: bool = True,
  ) -> None:
    """Plans the batches.

    Args:
      store: has episodes; or its path. One segment is fastest: `EpisodeStore.merge`.
      spec_structure: the specs of a window; see `StoreWindows`.
      batch_size: B.
      order: 'sequential'; 'global': every epoch another permutation of all windows,
        without a buffer; or 'quasi_random': the windows of a pool of episodes are
        permuted, and the episodes, so that each step is read, and each image decoded,
        once a pool. For encoded images, and for stores larger than memory.
      seed: of the permutations.
      num_epochs: how often every window is shown; None for ever.
      shard_index: which part of each epoch to show.
      num_shards: how many disjoint parts there are.
      drop_remainder: shows full batches only, equally many in every shard.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      masks: adds '<path>_mask' for every windowed path.
      flat: delivers every step that a window shows once, [B, F, ...], for
        `windows.stack_windows` in the step that trains.
      memory_budget: bytes that the pools may hold, decoded; the larger, the better
        'quasi_random' mixes. Other orders have no pools.
      decode_images: gives pixels; False gives the strings that are stored.
    Raises:
      SpecError: the store does not fit the specs, or is too small for one batch, or
        the budget is.
      StoreError: the store has no episodes.
    """
    _check(order, num_epochs)
    batch_size = check_count("store_windows", "batch_size", batch_size)
    memory_budget = check_count("store_windows", "memory_budget", memory_budget)
    if not isinstance(store, EpisodeStore):
      store = EpisodeStore(store)
    columns: Any = StoreColumns(store)
    if decode_images or order == "quasi_random":
      columns = DecodedColumns(columns, store.spec, decode_images)
    self._windows = StoreWindows(
      columns, spec_structure, sequence_length, stride, shift, padding, masks, flat
    )
    self.num_windows = self._windows.num_windows
    self.is_flat = flat
    if not self.num_windows:
      raise errors.SpecError(
        f"store_windows: {store.path}: expected an episode that is long enough for a "
        f"window, got {int(store.episode_lengths.max())} steps at most. Pad: "
        "padding='repeat'."
      )
    self._store = store
    self._decode_images = decode_images
    self._num_epochs = num_epochs
    self._batch_bytes = batch_size * self._windows.window_bytes
    self.pool_size: PoolSize | None = None
    split = (seed, shard_index, num_shards, drop_remainder)
    self._order: WindowOrder | PoolOrder
    if order == "quasi_random":
      self._pools = PooledWindows(columns, self._windows)
      self.pool_size = size = self._pools.fit(batch_size, memory_budget)
      self._order = PoolOrder(
        self._windows.counts, batch_size, size.num_batches, *split
      )
      logging.info(
        "%s: pools of %d batches hold at most %d bytes of the budget of %d.",
        store.path,
        *(size.num_batches, size.max_bytes, memory_budget),
      )
    else:
      self._order = WindowOrder(self.num_windows, batch_size, order, *split)
    self.batches_per_epoch = self._order.batches_per_epoch

  def dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Creates the dataset.

    Args:
      start_batch: batches to leave out, over all epochs. Costs nothing, but under
        'quasi_random' up to one pool.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
    Raises:
      SpecError: `start_batch` is negative.
    """
    check_start_batch("store_windows", start_batch)
    if isinstance(self._order, PoolOrder):
      batches = self._pools.batches(self._order, self._num_epochs, start_batch)
      return batches.with_options(checkpoint_options())
    return batches_in_order(
      self._windows.read, self._order, self._batch_bytes, self._num_epochs, start_batch
    )

  def portable_dataset(self) -> tf.data.Dataset:
    """Creates the dataset as a graph that other processes can run, for tf.data service.

    The graph opens the store's files, under the names that they have here, where it
    runs; see `FileColumns`. What a service splits are the pools.

    Returns:
      Dataset of the same batches as `dataset`; it cannot be checkpointed.
    Raises:
      SpecError: the order is not 'quasi_random'.
      StoreError: somebody is writing to the store.
    """
    if not isinstance(self._order, PoolOrder):
      raise errors.SpecError(
        f"portable_dataset: order: expected 'quasi_random', got '{self._order.order}'. "
        "Other orders read from memory of this process, wherever a window lies; pools "
        "are ranges of files."
      )
    columns = DecodedColumns(
      FileColumns(self._store), self._store.spec, self._decode_images
    )
    pools = PortableWindows(columns, self._windows)
    return pools.batches(self._order, self._num_epochs, 0)

  def numpy_batches(self, start_batch: int = 0, every: int = 1) -> NumpyBatches:
    """Creates an iterator of the same batches as dicts of numpy arrays, by path.

    For JAX, and for loops in Python: many small batches come from one read.

    Args:
      start_batch: batches to leave out, over all epochs.
      every: shows each of that many batches only, for processes that take turns. Under
        'quasi_random' 1: each of them would read all pools.
    Returns:
      The iterator, which knows its position.
    Raises:
      SpecError: `start_batch` is negative, or `every` does not go with the order.
    """
    if isinstance(self._order, PoolOrder):
      if every != 1:
        raise errors.SpecError(
          f"numpy_batches: every: expected 1 under 'quasi_random', got {every}. Pools "
          "are read and decoded by the threads of one process; give other processes "
          "shards of their own."
        )
      return NumpyBatches(self.dataset(start_batch), start_batch=start_batch)
    return numpy_batches_in_order(
      *(self._windows.read, self._order, self._batch_bytes),
      *(self._num_epochs, start_batch, every),
    )

  def for_input_context(self, context: tf.distribute.InputContext) -> StoreWindowLoader:
    """Returns the loader of one input pipeline of a strategy.

    The pipelines have disjoint shards; the replicas of one take turns at its batches.

    Args:
      context: what `strategy.distribute_datasets_from_function` gives.
    Returns:
      A loader whose batches are those of one replica: B / replicas.
    Raises:
      SpecError: this loader shows a shard already, or the shards are too small.
      ValueError: the replicas cannot share a batch equally.
    """
    order = self._order
    if order.num_shards != 1:
      raise errors.SpecError(
        "for_input_context: num_shards: expected 1, because the pipelines are the "
        f"shards, got {order.num_shards}."
      )
    changes: dict[str, Any] = {
      "batch_size": context.get_per_replica_batch_size(order.batch_size),
      "shard_index": context.input_pipeline_id,
      "num_shards": context.num_input_pipelines,
    }
    num_replicas = order.batch_size // changes["batch_size"]
    if isinstance(order, PoolOrder):
      changes["pool_batches"] = order.pool_batches * num_replicas
    loader = copy.copy(self)
    loader._order = dataclasses.replace(order, **changes)
    loader._batch_bytes = self._batch_bytes // num_replicas
    loader.batches_per_epoch = loader._order.batches_per_epoch
    return loader

  def distribute(
    self, strategy: tf.distribute.Strategy, start_step: int = 0
  ) -> tf.distribute.DistributedDataset:
    """Creates the dataset of a strategy, in which each input pipeline reads its shard.

    Args:
      strategy: its replicas share a batch of B.
      start_step: steps to leave out, over all epochs; a step is a batch for each
        replica.
    Returns:
      Distributed dataset of TensorSpecStructs, leaves [B / replicas, L, K, ...].
    Raises:
      SpecError: as `for_input_context`, or `start_step` is negative.
    """

    def create(context: tf.distribute.InputContext) -> tf.data.Dataset:
      per_pipeline = context.num_replicas_in_sync // context.num_input_pipelines
      return self.for_input_context(context).dataset(start_step * per_pipeline)

    return strategy.distribute_datasets_from_function(create)


def store_windows(
  store: EpisodeStore | str | os.PathLike[str],
  spec_structure: specs.SpecStructure,
  batch_size: int,
  order: str = "global",
  start_batch: int = 0,
  **options: Any,
) -> tf.data.Dataset:
  """Makes a dataset of batches of windows from a store, in one call.

  Args:
    store: has episodes; or its path.
    spec_structure: the specs of a window.
    batch_size: B.
    order: 'sequential', 'global' or 'quasi_random'.
    start_batch: batches to leave out, over all epochs.
    **options: further arguments of `StoreWindowLoader`.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the store does not fit the specs, or is too small for one batch.
    StoreError: the store has no episodes.
  """
  loader = StoreWindowLoader(store, spec_structure, batch_size, order, **options)
  return loader.dataset(start_batch)


def _check(order: str, num_epochs: int | None) -> None:
  if order not in ORDERS:
    raise errors.SpecError(
      f"store_windows: order: expected one of {', '.join(ORDERS)}, got {order!r}."
      f"{errors.nearest(str(order), ORDERS)}"
    )
  if num_epochs is not None:
    check_count("store_windows", "num_epochs", num_epochs, minimum=0)
