"""Which windows are in which batch under 'quasi_random': pools of episodes."""

from __future__ import annotations

import bisect
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.data.loaders.window_order import check_split

# One that batches are gathered from, one that is being read.
POOLS_ALIVE = 2
# Of a window in the order of its pool, while that is permuted.
WINDOW_BYTES = 32
# One part in so many of what is counted: what TensorFlow takes beside it, for functions
# and threads, and what its allocator keeps. A budget of 1 GiB took 1.1 GiB without.
_PARTS_BESIDE = 7
# At most. A constant, not a number of cores: on every machine a budget makes the same
# batches.
GATHERS_AT_ONCE = 3
# Those that are being gathered or wait, and the one that is handed over.
BATCHES_ALIVE = GATHERS_AT_ONCE + 1
# Tells the seeds of windows in pools from those of episodes in epochs.
_POOL_STREAM = 0x9E3779B9


def with_overhead(num_bytes: Any) -> Any:
  """Adds to what pools and batches hold what TensorFlow takes beside them."""
  return num_bytes + num_bytes // _PARTS_BESIDE


@dataclasses.dataclass(frozen=True)
class PoolSize:
  """How many windows go through memory together.

  Attributes:
    num_batches: batches of a pool, at least 1.
    max_bytes: what pools and batches that are alive take at most.
  """

  num_batches: int
  max_bytes: int


def fit_pools(
  counts: np.ndarray,
  steps: np.ndarray,
  extra_steps: int,
  step_bytes: int,
  window_bytes: int,
  batch_size: int,
  memory_budget: int,
) -> PoolSize:
  """Finds the largest pools that keep within the budget, whatever the episodes' order.

  The windows of a pool are consecutive ones of permuted episodes. At worst these are
  the episodes with the most steps to read for each window.

  Args:
    counts: windows of each episode, int64 [episodes].
    steps: steps that these windows show, int64 [episodes].
    extra_steps: steps of one window: what an episode costs more where it is parted.
    step_bytes: memory of one step.
    window_bytes: memory of one window.
    batch_size: windows in a batch.
    memory_budget: bytes.
  Returns:
    The size.
  Raises:
    SpecError: not even a pool of one batch keeps within the budget.
  """
  has_windows = counts > 0
  counts, steps = counts[has_windows], steps[has_windows]
  worst_first = np.argsort(-(steps / counts), kind="stable")
  all_windows = np.cumsum(counts[worst_first])
  all_steps = np.cumsum(steps[worst_first])
  x = np.r_[0, all_windows].astype(np.float64)
  y = np.r_[0, all_steps].astype(np.float64)

  def num_bytes(num_windows: int) -> int:
    # Parted at both ends of the pool, and where the bound parts the last one.
    most = min(np.interp(num_windows, x, y) + 3 * extra_steps, y[-1])
    pool = step_bytes * int(np.ceil(most)) + WINDOW_BYTES * num_windows
    batches = BATCHES_ALIVE * batch_size * window_bytes
    return with_overhead(POOLS_ALIVE * pool + batches)

  # The bound grows with the windows, so the largest size is found by halving.
  sizes = range(1, -(-int(x[-1]) // batch_size) + 1)
  num_batches = bisect.bisect_right(
    sizes, memory_budget, key=lambda size: num_bytes(size * batch_size)
  )
  if not num_batches:
    raise errors.SpecError(
      f"memory_budget: expected at least {num_bytes(batch_size):,} bytes, which "
      f"{POOLS_ALIVE} pools of one batch of {batch_size} windows and {BATCHES_ALIVE} "
      f"batches may take, got {memory_budget:,}."
    )
  return PoolSize(num_batches, num_bytes(num_batches * batch_size))


@dataclasses.dataclass(frozen=True, eq=False)
class PoolOrder:
  """The windows of every pool of every epoch, computed and not drawn.

  An epoch is a permutation of the episodes; their windows, one after the other, are cut
  into equal parts for the shards, and those into pools. Within a pool the windows are
  permuted. A resume point is one integer, the number of the batch.

  Attributes:
    counts: windows of each episode, int64 [episodes].
    batch_size: B >= 1.
    pool_batches: batches of a pool.
    seed: of the permutations; its lower 32 bits count.
    shard_index: which part of each epoch is meant.
    num_shards: how many parts there are, equal but for one window.
    drop_remainder: all batches are full, and all shards have equally many.
  """

  counts: np.ndarray
  batch_size: int
  pool_batches: int
  seed: int = 0
  shard_index: int = 0
  num_shards: int = 1
  drop_remainder: bool = True

  def __post_init__(self) -> None:
    check_split("batches", self)

  @property
  def num_windows(self) -> int:
    """Windows of all episodes."""
    return int(self.counts.sum())

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""
    if self.drop_remainder:
      return self.num_shard_windows // self.batch_size
    return -(-self.num_shard_windows // self.batch_size)

  @property
  def pools_per_epoch(self) -> int:
    """Pools of this shard in each epoch."""
    return -(-self.batches_per_epoch // self.pool_batches)

  def episodes(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the order of the episodes, and where the windows of each end.

    Args:
      epoch: int64 scalar.
    Returns:
      int64 [episodes] each.
    """
    number = tf.constant(len(self.counts), tf.int64)
    order = _shuffle(number, self.seed, epoch)
    counts = tf.gather(tf.constant(self.counts, tf.int64), order)
    return order, tf.cumsum(counts)

  def bounds(self, pool: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first window of a pool, and the one after its last.

    Args:
      pool: of an epoch, int64 scalar.
    Returns:
      int64 scalars, counted through the episodes in the order of the epoch.
    """
    first = self._first_window + pool * (self.pool_batches * self.batch_size)
    used = self.num_shard_windows
    if self.drop_remainder:
      used = self.batches_per_epoch * self.batch_size
    end = tf.constant(self._first_window + used, tf.int64)
    return first, tf.minimum(first + self.pool_batches * self.batch_size, end)

  def shuffle(
    self, num_windows: tf.Tensor, epoch: tf.Tensor, pool: tf.Tensor
  ) -> tf.Tensor:
    """Returns a permutation of the windows of a pool, int64 [num_windows]."""
    number = epoch * self.pools_per_epoch + pool
    return _shuffle(num_windows, self.seed ^ _POOL_STREAM, number)

  @property
  def _first_window(self) -> int:
    if self.drop_remainder:
      return self.shard_index * self.num_shard_windows
    return self.shard_index * self.num_windows // self.num_shards

  @property
  def num_shard_windows(self) -> int:
    """Windows of this shard in each epoch."""
    if self.drop_remainder:
      return self.num_windows // self.num_shards
    end = (self.shard_index + 1) * self.num_windows // self.num_shards
    return end - self._first_window


def _shuffle(size: tf.Tensor, seed: int, number: tf.Tensor) -> tf.Tensor:
  """Returns a permutation of range(size)."""
  index = tf.range(size)
  both = tf.stack([tf.constant(seed % 2**32, tf.int64), number])
  # It takes no range of a single number; that one stays where it is.
  last = tf.maximum(size - 1, 1)
  shuffled = tf.random.experimental.index_shuffle(index, both, last)
  return tf.minimum(shuffled, size - 1)
