"""Batches of windows by number: for TensorFlow, for numpy, and for strategies.

    order ─► window numbers ─► `read`                     'global'
    order ─► pool numbers ─► `PoolReader` ─► `gather`     'quasi_random', 'sequential'

`WindowLoader` does both for data with random access: a store, indexed records, a
LeRobot dataset. A store's windows are read by number in the order 'sequential', too.
"""

from __future__ import annotations

import abc
import bisect
import contextlib
import copy
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.data import pool as pool_lib
from t2r_seq.data.plan import Plan, PoolOrder, WindowOrder, dataset_options
from t2r_seq.store.mapped import HeldTensor, dataset_over
from t2r_seq.windows.times import stamps_error

Batch = dict[str, np.ndarray]
Read = Callable[[Any], Any]

_no_autograph = tf.autograph.experimental.do_not_convert
_Loader = TypeVar("_Loader", bound="WindowLoader")

# The 30 or so small ops of a read cost little compared with a copy of this size.
_READ_BYTES = 2**22
_MAX_BATCHES = 64
# Bytes that parallel reads hold, at most; there are at least two reads. tf.data's
# autotuner uses fewer than cores; with one more, copies of 7 MB are 4% faster.
_PARALLEL_BYTES = 2**28
_NOT_IN_BUFFERS = (tf.string, tf.bfloat16)
# Stands for the bytes of a window if reads are slow: no batches are read together.
_LARGE_WINDOW = 2**30


def batches_in_order(
  read: Read,
  order: WindowOrder,
  batch_bytes: int,
  num_epochs: int | None = 1,
  start_batch: int = 0,
  held: Sequence[HeldTensor] = (),
) -> tf.data.Dataset:
  """Makes a dataset of the batches of an order.

  Small batches are read several at once: otherwise the fixed cost of a read would
  exceed the cost of the copy.

  Args:
    read: maps window numbers, int64 [N], to a structure with leaves [N, ...].
    order: order of windows and batches.
    batch_bytes: memory of a batch, about; decides how many are read at once.
    num_epochs: number of epochs; None: no end.
    start_batch: batches to leave out, over all epochs; costs nothing.
    held: the tensors that `read` reads; see `dataset_over`.
  Returns:
    Dataset of structures with leaves [B, ...].
  """
  reads = _Reads(read, order, batch_bytes, num_epochs, start_batch)
  at_once = reads.best_at_once if order.drop_remainder else 1
  dataset = dataset_over(held, lambda: reads.batches(at_once))
  return dataset.with_options(dataset_options())


@dataclasses.dataclass(frozen=True)
class _Reads:
  """The reads of an order's batches; see `batches_in_order` for the attributes."""

  read: Read
  order: WindowOrder
  batch_bytes: int
  num_epochs: int | None
  start_batch: int

  @property
  def best_at_once(self) -> int:
    """Best number of batches to read at once."""
    most = min(_MAX_BATCHES, self.order.batches_per_epoch)
    return max(1, min(most, _READ_BYTES // max(1, self.batch_bytes)))

  def batches(self, at_once: int) -> tf.data.Dataset:
    """Returns a dataset of batches; `at_once` > 1 requires that all are full."""
    if at_once == 1:
      return self.dataset(1)
    size = self.order.batch_size

    def split(values: tf.Tensor) -> tf.Tensor:
      shape = tf.concat([[-1, size], tf.shape(values)[1:]], 0)
      return tf.ensure_shape(tf.reshape(values, shape), [None, size, *values.shape[1:]])

    def read_and_split(window_ids: tf.Tensor) -> Any:
      return tf.nest.map_structure(split, self.read(window_ids))

    reads = dataclasses.replace(self, read=read_and_split)
    # This costs a sixth less than `unbatch`.
    return reads.dataset(at_once).flat_map(tf.data.Dataset.from_tensor_slices)

  def dataset(self, at_once: int) -> tf.data.Dataset:
    """Returns a dataset of reads, each of several batches that follow each other.

    Args:
      at_once: batches of a read; an epoch's last read may have fewer.
    Returns:
      Dataset of structures with leaves [at_once * B, ...] at most.
    """
    order, per_epoch = self.order, self.order.batches_per_epoch
    reads_per_epoch = -(-per_epoch // at_once)
    epoch, in_epoch = divmod(self.start_batch, per_epoch)
    start = epoch * reads_per_epoch + in_epoch // at_once
    left_out = in_epoch % at_once * order.batch_size

    def read_batches(number: tf.Tensor) -> Any:
      first = number // reads_per_epoch * per_epoch + number % reads_per_epoch * at_once
      ids = order.window_ids(first, at_once)
      if left_out:
        # Not by `skip`: after a restore TensorFlow 2.15 skips as many once more.
        ids = ids[tf.where(number == start, left_out, 0) :]
      return self.read(ids)

    numbers = tf.data.Dataset.range(start, max(start, self._end(reads_per_epoch)))
    return _map(numbers, read_batches, parallel_reads(at_once * self.batch_bytes))

  def _end(self, per_epoch: int) -> int:
    if self.num_epochs is None:
      return np.iinfo(np.int64).max
    return self.num_epochs * per_epoch


def parallel_reads(read_bytes: int) -> int:
  """Returns how many reads are best done in parallel.

  Args:
    read_bytes: approximate memory of one read's result.
  """
  is_linux = hasattr(os, "sched_getaffinity")
  cores = len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
  return max(2, min(cores + 1, _PARALLEL_BYTES // max(1, read_bytes)))


def _map(dataset: tf.data.Dataset, function: Read, num_calls: int) -> tf.data.Dataset:
  return dataset.map(
    _no_autograph(function), num_parallel_calls=num_calls, deterministic=True
  )


class NumpyBatches(Iterator[Batch]):
  """The batches of a dataset as dicts of numpy arrays, by path; can be read once.

  Arrays share the memory of TensorFlow's tensors: there is no copy, and they may be
  written to. Small batches are parts of one read, which stays in memory as long as any
  of them. bfloat16 (of ml_dtypes) and strings (bytes objects) are copied.

  Attributes:
    next_batch: number of the next batch, over all epochs: resume from it.
  """

  def __init__(
    self, reads: tf.data.Dataset, batch_size: int | None = None, start_batch: int = 0
  ) -> None:
    """Creates the iterator; nothing is read yet.

    Args:
      reads: reads of mappings by path, leaves [N, ...]; one batch, or several
        consecutive ones. Elements share no memory.
      batch_size: B; None if each element is a batch.
      start_batch: number of the first batch that comes.
    """
    self.next_batch = start_batch
    self._batches = self._cut(reads, batch_size)

  def __iter__(self) -> Iterator[Batch]:
    # The same batches, without a call of `__next__` for each.
    return self._batches

  def __next__(self) -> Batch:
    return next(self._batches)

  def _cut(self, reads: tf.data.Dataset, batch_size: int | None) -> Iterator[Batch]:
    for read in reads:
      arrays = list(as_arrays(read).items())
      size = len(arrays[0][1])
      step = batch_size or size
      for start in range(0, size, step):
        stop = start + step
        self.next_batch += 1
        yield {path: array[start:stop] for path, array in arrays}


def as_arrays(tensors: Mapping[str, tf.Tensor]) -> Batch:
  """Returns the memory of tensors as arrays that can be written to.

  Args:
    tensors: on the CPU, by path, with memory that nothing else reads. Two of them may
      share it, because TensorFlow merges equal ops: the second is copied then.
  Returns:
    Arrays by path; strings and bfloat16, which have no buffer interface, are copied.
  """
  arrays, addresses = {}, set()
  for path, tensor in tensors.items():
    if tensor.dtype in _NOT_IN_BUFFERS:
      arrays[path] = tensor.numpy()
      continue
    writable = _Writable(np.asarray(tensor))
    is_shared = writable.address in addresses
    addresses.add(writable.address)
    array = np.asarray(writable)
    arrays[path] = array.copy() if is_shared else array
  return arrays


class _Writable:
  """Exports a read-only array as writable."""

  def __init__(self, array: np.ndarray) -> None:
    self._array = array  # The exported array keeps it alive.
    interface: dict[str, Any] = dict(array.__array_interface__)
    self.address = interface["data"][0]
    interface["data"] = (self.address, False)
    self.__array_interface__ = interface


@dataclasses.dataclass(frozen=True)
class PoolSize:
  """Size of the pools of a loader.

  Attributes:
    num_batches: batches of a pool, at least 1.
    max_bytes: maximum bytes of the pools and batches in memory.
  """

  num_batches: int
  max_bytes: int


@contextlib.contextmanager
def raises_read_errors(failures: Callable[[], Iterable[Exception]]) -> Iterator[None]:
  """Raises Python's read errors in place of TensorFlow's version of them.

  Args:
    failures: returns the raised errors; called when there is an error.
  """
  try:
    yield
  except tf.errors.OpError as error:
    # Reads run in parallel and several may fail; TensorFlow reports the first in order.
    for failure in failures():
      if str(failure) in str(error):
        raise failure from error
    if (cause := stamps_error(error)) is not None:
      raise cause from error
    raise


class PoolReader(abc.ABC):
  """Makes pools from episodes with random access.

  Attributes:
    counts: windows of each episode, int64 [episodes].
    held: the tensors that pools are read from; see `dataset_over`.
  """

  def __init__(
    self,
    rows: pool_lib.PoolRows,
    counts: np.ndarray,
    lengths: np.ndarray,
    step_bytes: int,
    parsed_bytes: int = 0,
    held: Sequence[HeldTensor] = (),
  ) -> None:
    """Creates the reader.

    Args:
      rows: gathers windows from the rows of the pools.
      counts: windows of each episode, int64 [episodes].
      lengths: steps of each episode, int64 [episodes].
      step_bytes: memory of the largest step in a pool.
      parsed_bytes: bytes of the largest parsed episode; 0 if none is parsed.
      held: the tensors that pools are read from.
    """
    self._rows = rows
    self.counts = counts
    self._lengths = lengths
    # By episode: its windows, the windows up to its end, its steps.
    by_episode = [counts, np.cumsum(counts), lengths]
    self._episodes = HeldTensor.of(np.stack(by_episode))
    self.held = [*held, self._episodes]
    self._step_bytes = step_bytes
    self._parsed_bytes = parsed_bytes

  @abc.abstractmethod
  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Reads consecutive steps of each of some episodes; returns the 'rows' of a pool.

    Args:
      episodes: numbers of the episodes, int64 [n].
      first_step: first step of each episode, int64 [n].
      num_steps: number of steps from it on, int64 [n]; may be 0.
    """

  def fit(self, plan: Plan) -> PoolSize:
    """Finds the largest pools that keep within a plan's budget for any episode order.

    A pool has consecutive windows of permuted episodes. In the worst case these are the
    episodes with the most steps to read per window. If even a pool of one batch exceeds
    the budget, it is used, with a warning.
    """
    first, last = self._rows.reader.steps_shown
    has_windows = self.counts > 0
    counts, lengths = self.counts[has_windows], self._lengths[has_windows]
    # Steps that both parts of an episode read if it is split between two pools.
    extra = min(last - first + 1, int(lengths.max(initial=1)))
    steps = np.minimum(lengths, (counts - 1) * self._rows.reader.grid.period + extra)
    worst_first = np.argsort(-(steps / counts), kind="stable")
    all_windows = np.r_[0.0, np.cumsum(counts[worst_first])]
    all_steps = np.r_[0.0, np.cumsum(steps[worst_first])]

    at_once = pool_lib.batches_at_once(plan, self._rows.reader)
    gathered_bytes = at_once * plan.batch_size * self._rows.reader.window_bytes

    def num_bytes(num_batches: int) -> int:
      num_windows = num_batches * plan.batch_size
      # A pool may split an episode at each end, and the interpolation splits another.
      bound = np.interp(num_windows, all_windows, all_steps) + 3 * extra
      most = int(np.ceil(min(bound, all_steps[-1])))
      return pool_lib.num_bytes_alive(
        self._step_bytes * most, self._parsed_bytes, gathered_bytes
      )

    # The bound grows with the windows, so the largest size is found by halving.
    sizes = range(1, -(-int(all_windows[-1]) // plan.batch_size) + 1)
    size = bisect.bisect_right(sizes, plan.memory_budget, key=num_bytes)
    if not size:
      logging.warning(
        "%s: memory_budget: expected at least %d bytes, which pools of one batch of %d "
        "windows may take, got %d. They are used all the same; give more, or make "
        "batches smaller.",
        plan.where,
        num_bytes(1),
        plan.batch_size,
        plan.memory_budget,
      )
    return PoolSize(max(size, 1), num_bytes(max(size, 1)))

  def batches(
    self, order: PoolOrder, last_epoch: int, start_batch: int, is_portable: bool = False
  ) -> tf.data.Dataset:
    """Creates the dataset of batches.

    Args:
      order: order of the same windows.
      last_epoch: number of epochs.
      start_batch: batches to leave out, over all epochs.
      is_portable: whether a service runs the dataset, and splits it by its pools.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
    """
    per_epoch = order.pools_per_epoch
    epoch, in_epoch = divmod(start_batch, order.batches_per_epoch)
    pool, in_pool = divmod(in_epoch, order.pool_batches)
    start = epoch * per_epoch + pool
    end = max(min(last_epoch, np.iinfo(np.int64).max // per_epoch) * per_epoch, start)

    def load(number: tf.Tensor) -> pool_lib.Pool:
      return begin(self._load(order, number // per_epoch, number % per_epoch), number)

    def begin(pool: pool_lib.Pool, number: tf.Tensor) -> pool_lib.Pool:
      left_out = tf.where(number == start, in_pool * order.batch_size, 0)
      size = pool_lib.num_windows(pool["order"])
      return {**pool, "start": tf.cast(left_out, tf.int64), "stop": size}

    def reorder(pool: pool_lib.Pool) -> tf.data.Dataset:
      return tf.data.Dataset.range(start, end).map(
        _no_autograph(lambda n: begin({**pool, "order": self._reorder(order, n)}, n))
      )

    if per_epoch == order.plan.num_shards == 1 and end > start + 1 and not is_portable:
      # All episodes fit into one pool, which is read once and kept for all epochs.
      whole = tf.data.Dataset.from_tensors(0).map(
        _no_autograph(lambda _: self._whole())
      )
      pools = whole.flat_map(_no_autograph(reorder))
    else:
      # A single range through all epochs: a service splits it between its workers.
      pools = tf.data.Dataset.range(start, end).map(_no_autograph(load))
    # The next pool is read while batches are gathered from this one.
    return pool_lib.gather_batches(pools.prefetch(1), self._rows, order.plan)

  def read(self, window_ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Reads some windows, through a pool that is made for them.

    Args:
      window_ids: numbers of windows, counted through all episodes, int64 [B], in any
        order.
    Returns:
      Windows by path, [B, L, K, ...].
    """
    counts, ends, _ = tf.unstack(self._episodes.read_value())
    numbers = tf.searchsorted(ends, window_ids, "right", tf.int64)
    in_episode = window_ids - tf.gather(ends - counts, numbers)
    episodes, slots = tf.unique(numbers, tf.int64)
    size = tf.size(episodes)
    pool = self._pool(
      episodes,
      tf.cumsum(tf.gather(counts, episodes)),
      tf.math.unsorted_segment_min(in_episode, slots, size),
      tf.math.unsorted_segment_max(in_episode, slots, size) + 1,
    )
    anchors = self._rows.reader.grid.start(in_episode)
    of_episode = tf.gather(pool["episodes"], slots)[:, 1:]
    chosen = tf.concat([tf.stack([slots, anchors], 1), of_episode], 1)
    chosen = tf.ensure_shape(chosen, [*window_ids.shape, 4])
    return self._rows.read(pool["rows"], chosen)

  def _load(self, order: PoolOrder, epoch: tf.Tensor, pool: tf.Tensor) -> pool_lib.Pool:
    """Reads the steps that the windows of a pool show."""
    permuted, ends = order.episodes(epoch)
    first, end = order.bounds(pool)
    bounds = tf.searchsorted(ends, tf.stack([first, end - 1]), "right")
    slots = tf.range(bounds[0], bounds[1] + 1)
    episodes, ends = tf.gather(permuted, slots), tf.gather(ends, slots)
    starts = ends - tf.gather(self._episodes.read_value()[0], episodes)
    first_window = tf.maximum(first - starts, 0)
    loaded = self._pool(episodes, ends, first_window, tf.minimum(end, ends) - starts)
    return {**loaded, "order": first + order.windows(end - first, epoch, pool)}

  def _whole(self) -> pool_lib.Pool:
    """Returns the pool of all windows, without its 'order'."""
    counts, ends, _ = tf.unstack(self._episodes.read_value())
    episodes = tf.range(tf.size(counts, tf.int64))
    return self._pool(episodes, ends, tf.zeros_like(counts), counts)

  def _reorder(self, order: PoolOrder, epoch: tf.Tensor) -> tf.Tensor:
    """Returns the 'order' of an epoch for the pool of all windows."""
    permuted, ends = order.episodes(epoch)
    first, end = order.bounds(tf.constant(0, tf.int64))
    numbers = first + order.windows(end - first, epoch, tf.constant(0, tf.int64))
    slots = tf.searchsorted(ends, numbers, "right", tf.int64)
    own_ends = tf.gather(self._episodes.read_value()[1], permuted)
    return numbers + tf.gather(own_ends - ends, slots)

  def _pool(
    self,
    episodes: tf.Tensor,
    ends: tf.Tensor,
    first_window: tf.Tensor,
    end_window: tf.Tensor,
  ) -> pool_lib.Pool:
    """Reads, for some episodes, the steps that a range of their windows shows.

    Args:
      episodes: numbers of the episodes, int64 [n].
      ends: the number after the last window of each, counted through all of them.
      first_window: first window to show of each, counted in its episode.
      end_window: the window after the last one to show.
    Returns:
      The 'rows', 'ends' and 'episodes' of a `Pool`.
    """
    rows = tf.gather(self._episodes.read_value(), episodes, axis=1)
    counts, _, lengths = tf.unstack(rows)
    grid, (first, last) = self._rows.reader.grid, self._rows.reader.steps_shown
    first_step = tf.clip_by_value(grid.start(first_window) + first, 0, lengths - 1)
    last_step = tf.clip_by_value(grid.start(end_window - 1) + last, 0, lengths - 1)
    # An episode that is too short for a window may lie between two others.
    num_steps = tf.where(end_window > first_window, last_step - first_step + 1, 0)
    first_rows = tf.cumsum(num_steps, exclusive=True) - first_step
    return {
      "rows": self._read(episodes, first_step, num_steps),
      "ends": ends,
      "episodes": tf.stack([ends - counts, lengths, first_rows], 1),
    }


class WindowLoader:
  """Loads batches of windows, by number or by pools; subclasses define the source.

  The batches are a function of the arguments: the same on every machine and for any
  number of threads. A run resumes from the number of its next batch.

  Attributes:
    plan: plan of the batches.
    num_windows: number of windows in all data.
    batches_per_epoch: number of batches per epoch of this shard.
    pool_size: size of the pools; None if batches are read by the numbers of windows.
  """

  def __init__(
    self,
    plan: Plan,
    read: Read | None,
    num_windows: int,
    window_bytes: int = _LARGE_WINDOW,
    make_pools: Callable[[], PoolReader] | None = None,
    held: Sequence[HeldTensor] = (),
  ) -> None:
    """Plans the batches.

    Args:
      plan: plan of the batches. Its default order is 'global', or 'quasi_random'
        without `read`.
      read: maps window numbers, int64 [N], to windows by path, [N, ...], for orders
        without pools; None: windows are read by pools in every order.
      num_windows: N >= 1.
      window_bytes: memory of a window, about; by default so large, for slow reads, that
        no batches are read together.
      make_pools: makes the reader of pools, for 'quasi_random' and without `read`; None
        if there are no pools.
      held: the tensors that `read` reads.
    Raises:
      SpecError: a shard is too small for a batch, or there are no pools for the order.
    """
    self.plan = plan = plan.with_seed("global" if read else "quasi_random")
    self.num_windows = num_windows
    self._window_bytes = window_bytes
    self.pool_size: PoolSize | None = None
    self._order: WindowOrder | PoolOrder
    has_pools = make_pools is not None and (plan.order == "quasi_random" or not read)
    if has_pools and make_pools is not None:
      self._pools = make_pools()
      read, held = self._pools.read, self._pools.held
    self._read: Any = read
    self._held = held
    if has_pools and plan.order != "global":
      self.pool_size = size = self._pools.fit(plan)
      self._order = PoolOrder(self._pools.counts, size.num_batches, plan)
      logging.info(
        "%s: pools of %d batches hold at most %d bytes of the budget of %d.",
        plan.where,
        size.num_batches,
        size.max_bytes,
        plan.memory_budget,
      )
    else:
      self._order = WindowOrder(num_windows, plan)
    self.batches_per_epoch = self._order.batches_per_epoch

  def dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Creates the dataset.

    Args:
      start_batch: batches to leave out, over all epochs. Costs at most the reading of
        one pool.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
    Raises:
      SpecError: `start_batch` is no integer, negative, or beyond the last batch.
    """
    self._check_start(start_batch)
    order = self._order
    if isinstance(order, PoolOrder):
      pools = self._pools
      batches = dataset_over(
        pools.held, lambda: pools.batches(order, self.plan.last_epoch, start_batch)
      )
      return batches.with_options(dataset_options())
    return batches_in_order(
      self._read,
      order,
      self._batch_bytes,
      self.plan.num_epochs,
      start_batch,
      self._held,
    )

  def numpy_batches(self, start_batch: int = 0) -> NumpyBatches:
    """Creates an iterator of the same batches as dicts of numpy arrays, by path.

    For JAX, and for loops in Python: many small batches come from one read.

    Args:
      start_batch: batches to leave out, over all epochs.
    Returns:
      The iterator; its `next_batch` is the position to resume from.
    Raises:
      SpecError: `start_batch` is no integer, negative, or beyond the last batch.
    """
    self._check_start(start_batch)
    if isinstance(self._order, PoolOrder):
      return NumpyBatches(self.dataset(start_batch), start_batch=start_batch)
    reads = _Reads(
      self._read, self._order, self._batch_bytes, self.plan.num_epochs, start_batch
    )
    together = dataset_over(self._held, lambda: reads.dataset(reads.best_at_once))
    together = together.with_options(dataset_options())
    return NumpyBatches(together, self._order.batch_size, start_batch)

  @property
  def _batch_bytes(self) -> int:
    return self._order.batch_size * self._window_bytes

  def _check_start(self, start_batch: int) -> None:
    errors.check_count(self.plan.where, "start_batch", start_batch, minimum=0)
    if self.plan.num_epochs is None:
      return
    num_batches = self.plan.num_epochs * self.batches_per_epoch
    if start_batch > num_batches:
      raise errors.SpecError(
        f"{self.plan.where}: start_batch: expected at most {num_batches}, the batches "
        f"of num_epochs={self.plan.num_epochs}, got {start_batch}."
      )

  def for_input_context(self: _Loader, context: tf.distribute.InputContext) -> _Loader:
    """Returns the loader of one input pipeline of a strategy.

    The pipelines have disjoint shards; the replicas of one take turns at its batches.

    Args:
      context: context from `strategy.distribute_datasets_from_function`.
    Returns:
      A loader of one replica's batches: B / replicas.
    Raises:
      SpecError: this loader reads a shard already, or a shard is too small for a batch.
      ValueError: the replicas cannot share a batch equally.
    """
    order = self._order
    if self.plan.num_shards != 1:
      raise errors.SpecError(
        "for_input_context: num_shards: expected 1, because the pipelines are the "
        f"shards, got {self.plan.num_shards}."
      )
    loader = copy.copy(self)
    loader.plan, _ = self.plan.of_worker(context, self.plan.batch_size)
    if isinstance(order, PoolOrder):
      num_replicas = order.batch_size // loader.plan.batch_size
      num_batches = order.pool_batches * num_replicas
      loader._order = PoolOrder(order.counts, num_batches, loader.plan)
    else:
      loader._order = WindowOrder(self.num_windows, loader.plan)
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
      SpecError: `start_step` is invalid, or as in `for_input_context`.
      ValueError: the replicas cannot share a batch equally.
    """

    def create(context: tf.distribute.InputContext) -> tf.data.Dataset:
      per_pipeline = context.num_replicas_in_sync // context.num_input_pipelines
      return self.for_input_context(context).dataset(start_step * per_pipeline)

    return strategy.distribute_datasets_from_function(create)
