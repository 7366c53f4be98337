"""Which windows are in which batch: a function of the batch's number."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Protocol

import tensorflow as tf

from t2r_seq import errors

MAX_SEED = 2**32
STATELESS_ORDERS = ("sequential", "global")


@dataclasses.dataclass(frozen=True)
class WindowOrder:
  """The windows of every batch of every epoch, computed and not drawn.

  Nothing is buffered, so a shuffle of any size starts at once, every machine comes to
  the same batches, and a resume point is one integer, the number of the batch.

  Attributes:
    num_windows: N >= 1, in the whole dataset.
    batch_size: B >= 1.
    order: 'sequential', or 'global': every epoch another permutation of all windows.
    seed: of the permutations, of 32 bits.
    shard_index: which part of each epoch is meant; parts are disjoint.
    num_shards: how many parts there are.
    drop_remainder: all batches are full, and all shards have equally many; the windows
      that are left over are others in every epoch under 'global'. False shows every
      window once per epoch, in exactly one shard.
  """

  num_windows: int
  batch_size: int
  order: str = "global"
  seed: int = 0
  shard_index: int = 0
  num_shards: int = 1
  drop_remainder: bool = True

  def __post_init__(self) -> None:
    if self.order not in STATELESS_ORDERS:
      raise errors.SpecError(
        f"batches: order: expected one of {', '.join(STATELESS_ORDERS)}, got "
        f"{self.order!r}.{errors.nearest(str(self.order), STATELESS_ORDERS)}"
      )
    check_split("batches", self)

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""
    if self.drop_remainder:
      return self.num_shard_windows // self.batch_size
    return -(-self.num_shard_windows // self.batch_size)

  def window_ids(self, batch: tf.Tensor, num_batches: int = 1) -> tf.Tensor:
    """Returns the windows of a batch, or of several that follow each other.

    Args:
      batch: its number, counted from 0 through all epochs, int64 scalar.
      num_batches: how many at most; an epoch's last batch is the last one.
    Returns:
      int64 [num_batches * B], in range(num_windows); fewer at the end of an epoch.
    """
    batch = tf.cast(batch, tf.int64)
    epoch, in_epoch = batch // self.batches_per_epoch, batch % self.batches_per_epoch
    # No more than there are, however large batches are.
    size = min(num_batches * self.batch_size, self.num_shard_windows)
    places = in_epoch * self.batch_size + tf.range(size, dtype=tf.int64)
    if num_batches > 1 or not self.drop_remainder:
      used = self.num_shard_windows
      if self.drop_remainder:
        used = self.batches_per_epoch * self.batch_size
      places = places[: used - in_epoch * self.batch_size]
    # The shards take turns, so that each sees an even part of a sequential order.
    positions = places * self.num_shards + self.shard_index
    if self.order == "sequential" or self.num_windows == 1:
      return positions
    seed = tf.stack([tf.constant(self.seed % 2**32, tf.int64), epoch])
    last = tf.constant(self.num_windows - 1, tf.int64)
    return tf.random.experimental.index_shuffle(positions, seed, last)

  @property
  def num_shard_windows(self) -> int:
    """Windows of this shard in each epoch."""
    if self.drop_remainder:
      return self.num_windows // self.num_shards
    return -(-(self.num_windows - self.shard_index) // self.num_shards)


class Split(Protocol):
  """What every order has: batches, parts of an epoch for shards, a seed."""

  @property
  def num_windows(self) -> int:
    """All windows of an epoch."""

  @property
  def batch_size(self) -> int:
    """Windows in a batch."""

  @property
  def seed(self) -> int:
    """Of the order, >= 0."""

  @property
  def shard_index(self) -> int:
    """Which shard this is, from 0."""

  @property
  def num_shards(self) -> int:
    """How many shards share an epoch."""

  @property
  def num_shard_windows(self) -> int:
    """Windows of this shard in each epoch."""

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""


def check_split(operation: str, split: Split) -> None:
  """Raises SpecError unless sizes and numbers make sense and give a batch."""
  found = [
    errors.Mismatch(name, f"an integer of at least {least}", repr(value))
    for name, least in (
      *(("num_windows", 1), ("batch_size", 1), ("num_shards", 1)),
      *(("shard_index", 0), ("seed", 0)),
    )
    if not _is_integer(value := getattr(split, name)) or value < least
  ]
  if not found and split.seed >= MAX_SEED:
    # Beyond it two seeds would give one order.
    want = f"an integer below {MAX_SEED:,}"
    found.append(errors.Mismatch("seed", want, repr(split.seed)))
  if not found and split.shard_index >= split.num_shards:
    want = f"an index below num_shards = {split.num_shards}"
    found.append(errors.Mismatch("shard_index", want, str(split.shard_index)))
  if not found and split.num_shards > split.num_windows:
    want = f"at most the {split.num_windows} windows that there are"
    found.append(errors.Mismatch("num_shards", want, str(split.num_shards)))
  if not found and not split.batches_per_epoch:
    found.append(
      errors.Mismatch(
        "batch_size",
        f"at most the {split.num_shard_windows} windows of a shard",
        str(split.batch_size),
        "Make batches smaller, or keep them: drop_remainder=False.",
      )
    )
  if found:
    raise errors.mismatch_error(operation, found)


def _is_integer(value: object) -> bool:
  return isinstance(value, numbers.Integral) and not isinstance(value, bool)
