"""Batches of windows from pools of episodes: each step read and decoded once."""

from __future__ import annotations

import abc
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.data.loaders.decoded_columns import DecodedColumns, LoadedRows
from t2r_seq.data.loaders.pool_order import (
  GATHERS_AT_ONCE,
  PoolOrder,
  PoolSize,
  fit_pools,
)
from t2r_seq.store import HeldTensor, StoreWindows, dataset_over

_as_it_is = tf.autograph.experimental.do_not_convert
_Pool = dict[str, Any]


class PoolRows(Protocol):
  """What pools ask of the rows that they hold; `DecodedColumns` tells of a store's."""

  episode_lengths: np.ndarray
  held: list[HeldTensor]

  def max_row_bytes(self, path: str) -> int:
    """Returns the memory of the largest row, in bytes."""

  def restore(self, path: str, state: tf.Tensor) -> LoadedRows:
    """Makes loaded rows of what `LoadedRows.state` gave."""


class PooledWindows(abc.ABC):
  """Reads the windows of a pool of episodes from memory.

  Attributes:
    counts: windows of each episode, int64 [episodes].
  """

  def __init__(
    self, rows: PoolRows, reader: windows.WindowReader, counts: np.ndarray
  ) -> None:
    """Prepares.

    Args:
      rows: what is known of them before they are read.
      reader: cuts windows from what was read.
      counts: windows of each episode, int64 [episodes].
    """
    self._rows = rows
    self._reader = reader
    self._grid = reader.grid
    self.counts = counts
    lengths = rows.episode_lengths
    self._lengths = HeldTensor.of(lengths)
    self._num_windows = HeldTensor.of(self.counts)
    self._held = [self._lengths, self._num_windows, *rows.held]
    self._step_paths = reader.timed_paths
    self._context_paths = [p for p in reader.paths if p not in self._step_paths]

  def fit(self, batch_size: int, memory_budget: int) -> PoolSize:
    """Finds how many batches a pool may have; see `pool_order.fit_pools`."""
    first, last = self._reader.steps_shown
    apart = self._grid.period
    extra = last - first + 1
    lengths = self._rows.episode_lengths
    steps = np.minimum(lengths, (self.counts - 1) * apart + extra)
    step_bytes = sum(map(self._rows.max_row_bytes, self._step_paths))
    return fit_pools(
      *(self.counts, steps, extra, step_bytes, self._reader.window_bytes),
      *(batch_size, memory_budget),
    )

  def dataset(
    self,
    order: PoolOrder,
    num_epochs: int | None,
    start_batch: int,
    is_portable: bool,
  ) -> tf.data.Dataset:
    """Creates the dataset of `batches`, over the tensors that these read from."""
    return dataset_over(
      self._held, lambda: self.batches(order, num_epochs, start_batch, is_portable)
    )

  def batches(
    self,
    order: PoolOrder,
    num_epochs: int | None,
    start_batch: int,
    is_portable: bool = True,
  ) -> tf.data.Dataset:
    """Creates the dataset of batches.

    Args:
      order: of the same windows.
      num_epochs: None for ever.
      start_batch: batches to leave out, over all epochs.
      is_portable: calls no Python.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
    """
    per_epoch = order.batches_per_epoch
    end = np.iinfo(np.int64).max if num_epochs is None else num_epochs
    first_epoch, in_epoch = divmod(start_batch, per_epoch)
    first_pool, in_pool = divmod(in_epoch, order.pool_batches)
    start = np.array([first_epoch, first_pool, in_pool])

    def batches(pool: _Pool) -> tf.data.Dataset:
      is_first = (pool["epoch"] == start[0]) & (pool["pool"] == start[1])
      num_windows = tf.size(pool["window"], tf.int64)
      count = (num_windows + (order.batch_size - 1)) // order.batch_size
      first = tf.where(is_first, start[2], np.int64(0))
      numbers = tf.data.Dataset.range(first, count)
      return numbers.map(_as_it_is(lambda batch: (pool, batch)))

    positions = self._positions(order, start, max(end, first_epoch))
    loaded = (
      positions.map(_as_it_is(lambda *position: self._load(order, *position)))
      # The next pool is read while batches are gathered from this one.
      .prefetch(1)
    )
    return loaded.flat_map(_as_it_is(batches)).map(
      _as_it_is(
        lambda pool, batch: self._gather(order, pool, batch * order.batch_size)
      ),
      num_parallel_calls=GATHERS_AT_ONCE,
      deterministic=True,
    )

  def _positions(
    self, order: PoolOrder, start: np.ndarray, end_epoch: int
  ) -> tf.data.Dataset:
    """Returns a dataset of epochs, pools, and what `PoolOrder.episodes` gives."""

    def pools(epoch: tf.Tensor) -> tf.data.Dataset:
      episodes = order.episodes(epoch)
      first = tf.where(epoch == start[0], start[1], np.int64(0))
      numbers = tf.data.Dataset.range(first, order.pools_per_epoch)
      return numbers.map(_as_it_is(lambda pool: (epoch, pool, *episodes)))

    return tf.data.Dataset.range(start[0], end_epoch).flat_map(_as_it_is(pools))

  def _load(
    self,
    order: PoolOrder,
    epoch: tf.Tensor,
    pool: tf.Tensor,
    permuted: tf.Tensor,
    ends: tf.Tensor,
  ) -> _Pool:
    """Reads the steps that the windows of a pool show."""
    first, end = order.bounds(pool)
    its_ends = tf.searchsorted(ends, tf.stack([first, end - 1]), "right")
    first_slot, last_slot = tf.unstack(its_ends)
    slots = tf.range(first_slot, last_slot + 1)
    episodes = tf.gather(permuted, slots)
    ends = tf.gather(ends, slots)
    lengths = tf.gather(self._lengths.read_value(), episodes)
    starts = ends - tf.gather(self._num_windows.read_value(), episodes)
    first_step, num_steps = self._steps(
      tf.maximum(first - starts, 0), tf.minimum(end, ends) - starts, lengths
    )
    steps, context = self._read_rows(episodes, first_step, num_steps)
    order_in_pool = order.shuffle(end - first, epoch, pool) + first
    slot = tf.searchsorted(ends, order_in_pool, "right")
    return {
      "epoch": epoch,
      "pool": pool,
      "steps": steps,
      "context": context,
      # By window, in the order of the batches.
      "slot": slot,
      "window": order_in_pool - tf.gather(starts, slot),
      # By episode: what to add to one of its steps to find the pool's row.
      "to_row": tf.cumsum(num_steps, exclusive=True) - first_step,
      "length": lengths,
    }

  @abc.abstractmethod
  def _read_rows(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> tuple[_Pool, _Pool]:
    """Returns the steps of episodes one after the other, and their context, by path."""

  def _steps(
    self, first_window: tf.Tensor, end_window: tf.Tensor, lengths: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first step and the number of steps that windows of episodes show."""
    first, last = self._reader.steps_shown
    first_step = tf.clip_by_value(
      self._grid.start(first_window) + first, 0, lengths - 1
    )
    last_step = tf.clip_by_value(
      self._grid.start(end_window - 1) + last, 0, lengths - 1
    )
    # An episode that is too short for a window may lie between two others.
    num_steps = tf.where(end_window > first_window, last_step - first_step + 1, 0)
    return first_step, num_steps

  def _gather(
    self, order: PoolOrder, pool: _Pool, first: tf.Tensor
  ) -> specs.TensorSpecStruct:
    slot = pool["slot"][first : first + order.batch_size]
    window = pool["window"][first : first + order.batch_size]
    if order.drop_remainder:
      slot.set_shape([order.batch_size])
      window.set_shape([order.batch_size])
    to_row = tf.gather(pool["to_row"], slot)

    def take(path: str, rows: tf.Tensor | None) -> tf.Tensor:
      if rows is None:
        return tf.gather(pool["context"][path], slot)
      return self._rows.restore(path, pool["steps"][path]).gather(rows)

    num_steps = tf.gather(pool["length"], slot)
    return self._reader.read_with(take, self._grid.start(window), num_steps, to_row)


class PooledColumns(PooledWindows):
  """Reads the windows of a pool of a store's episodes."""

  def __init__(self, columns: DecodedColumns, store_windows: StoreWindows) -> None:
    """Prepares.

    Args:
      columns: of the store.
      store_windows: the windows, cut from these columns.
    """
    super().__init__(columns, store_windows.reader, store_windows.counts)
    self._columns = columns
    lengths = columns.episode_lengths
    self._first_rows = HeldTensor.of(np.cumsum(lengths) - lengths)
    self._held.append(self._first_rows)

  def _read_rows(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> tuple[_Pool, _Pool]:
    first_rows = tf.gather(self._first_rows.read_value(), episodes) + first_step
    rows = tf.ragged.range(first_rows, first_rows + num_steps).flat_values
    return (
      {path: self._columns.load(path, rows).state for path in self._step_paths},
      {path: self._columns.take(path, episodes) for path in self._context_paths},
    )
