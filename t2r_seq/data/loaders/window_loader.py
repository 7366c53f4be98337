"""`WindowLoader`: batches in any order, for TensorFlow, numpy and strategies."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.data.arguments import check_count, check_flag
from t2r_seq.data.dataset_options import checkpoint_options, positions_kept
from t2r_seq.data.loaders.numpy_batches import (
  NumpyBatches,
  check_start_batch,
  numpy_batches_in_order,
)
from t2r_seq.data.loaders.ordered_batches import batches_in_order
from t2r_seq.data.loaders.pool_order import PoolOrder, PoolSize
from t2r_seq.data.loaders.pooled_batches import PooledWindows
from t2r_seq.data.loaders.window_order import STATELESS_ORDERS, WindowOrder
from t2r_seq.store import HeldTensor

ORDERS = (*STATELESS_ORDERS, "quasi_random")

_Loader = TypeVar("_Loader", bound="WindowLoader")


class WindowLoader:
  """Loads batches of windows, by number or by pools; what from, subclasses know.

  The batches are a function of the arguments: the same on every machine and for any
  number of threads. What to resume from is the number of the next batch.

  Attributes:
    num_windows: in all data.
    batches_per_epoch: of this shard.
    pool_size: batches and bytes that go through memory together; None unless the order
      is 'quasi_random'.
  """

  def __init__(
    self,
    where: str,
    read: Callable[[Any], specs.TensorSpecStruct],
    num_windows: int,
    window_bytes: int,
    make_pools: Callable[[], PooledWindows],
    batch_size: int,
    order: str,
    seed: int,
    num_epochs: int | None,
    shard_index: int,
    num_shards: int,
    drop_remainder: bool,
    memory_budget: int,
    locate: Callable[[tf.Tensor], Any] | None = None,
    held: Sequence[HeldTensor] = (),
  ) -> None:
    """Plans the batches.

    Args:
      where: who loads what, for messages.
      read: maps window numbers, int64 [N], to windows by path, [N, ...].
      num_windows: N >= 1.
      window_bytes: memory of a window, about.
      make_pools: called where the order has pools.
      batch_size: B.
      order: one of `ORDERS`.
      seed: of the permutations.
      num_epochs: how often every window is shown; None for ever.
      shard_index: which part of each epoch to show.
      num_shards: how many disjoint parts there are.
      drop_remainder: shows full batches only, equally many in every shard.
      memory_budget: bytes that the pools may hold.
      locate: maps window numbers to what `read` then takes in their place; see
        `batches_in_order`.
      held: the tensors that both of them read from.
    Raises:
      SpecError: the data is too small for one batch, or the budget is.
    """
    self._where = where
    self._read = read
    self._locate = locate
    self._held = held
    self.num_windows = num_windows
    self._num_epochs = num_epochs
    self._batch_bytes = batch_size * window_bytes
    self.pool_size: PoolSize | None = None
    split = (seed, shard_index, num_shards, drop_remainder)
    self._order: WindowOrder | PoolOrder
    if order == "quasi_random":
      self._pools = make_pools()
      self.pool_size = size = self._pools.fit(batch_size, memory_budget)
      self._order = PoolOrder(self._pools.counts, batch_size, size.num_batches, *split)
      logging.info(
        "%s: pools of %d batches hold at most %d bytes of the budget of %d.",
        where,
        *(size.num_batches, size.max_bytes, memory_budget),
      )
    else:
      self._order = WindowOrder(num_windows, batch_size, order, *split)
    self.batches_per_epoch = self._order.batches_per_epoch

  def dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Creates the dataset.

    Args:
      start_batch: batches to leave out, over all epochs. Costs nothing, but under
        'quasi_random' up to one pool.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
    Raises:
      SpecError: `start_batch` is negative, or beyond the last batch.
    """
    return self._make(start_batch, is_portable=False)

  def _make(self, start_batch: int, is_portable: bool) -> tf.data.Dataset:
    self._check_start(start_batch)
    if isinstance(self._order, PoolOrder):
      batches = self._pools.dataset(
        self._order, self._num_epochs, start_batch, is_portable
      )
      return batches.with_options(checkpoint_options())
    return batches_in_order(
      *(self._read, self._order, self._batch_bytes, self._num_epochs, start_batch),
      locate=self._locate,
      held=self._held,
    )

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
      SpecError: `start_batch` is negative, or beyond the last batch, or `every` does
        not go with the order.
    """
    self._check_start(start_batch, every)
    if isinstance(self._order, PoolOrder):
      if every != 1:
        raise errors.SpecError(
          f"numpy_batches: every: expected 1 under 'quasi_random', got {every}. Pools "
          "are read and decoded by the threads of one process; give other processes "
          "shards of their own."
        )
      with positions_kept(False):
        return NumpyBatches(self.dataset(start_batch), start_batch=start_batch)
    return numpy_batches_in_order(
      *(self._read, self._order, self._batch_bytes),
      *(self._num_epochs, start_batch, every),
      locate=self._locate,
      held=self._held,
    )

  def _check_start(self, start_batch: int, every: int = 1) -> None:
    check_start_batch(self._where, start_batch)
    if self._num_epochs is None:
      return
    num_batches = self._num_epochs * self.batches_per_epoch
    # Of those that take turns, the last may begin after the end.
    if start_batch > num_batches + every - 1:
      raise errors.SpecError(
        f"{self._where}: start_batch: expected at most {num_batches}, the batches of "
        f"num_epochs={self._num_epochs}, got {start_batch}."
      )

  def for_input_context(self: _Loader, context: tf.distribute.InputContext) -> _Loader:
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


def check_plan(
  where: str,
  batch_size: Any,
  order: str,
  num_epochs: Any,
  memory_budget: Any,
  drop_remainder: Any,
) -> None:
  """Checks what a loader is given, before anything is opened.

  Raises:
    SpecError: there is no such order, or a number or flag makes no sense.
  """
  if order not in ORDERS:
    raise errors.SpecError(
      f"{where}: order: expected one of {', '.join(ORDERS)}, got {order!r}."
      f"{errors.nearest(str(order), ORDERS)}"
    )
  check_count(where, "batch_size", batch_size)
  check_count(where, "memory_budget", memory_budget)
  check_flag(where, "drop_remainder", drop_remainder)
  if num_epochs is not None:
    check_count(where, "num_epochs", num_epochs, minimum=0)
