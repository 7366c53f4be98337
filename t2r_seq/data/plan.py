"""The plan: which windows are in which batch, a function of a seed and a number.

`Plan` is what users say. `WindowOrder` computes the windows of a batch where any window
can be read at once, `PoolOrder` those of a pool of episodes. Nothing is drawn and
nothing is buffered: every machine comes to the same batches, a shuffle of any size
starts at once, and what to resume from is the number of the next batch.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, windows
from t2r_seq.data.arguments import MAX_BATCH_SIZE

STATELESS_ORDERS = ("sequential", "global")
ORDERS = (*STATELESS_ORDERS, "quasi_random")
MAX_SEED = 2**32
# Tells the seeds of windows in pools from those of episodes in epochs.
_POOL_STREAM = 0x9E3779B9


def permutation(size: tf.Tensor, seed: int, number: tf.Tensor) -> tf.Tensor:
  """Returns a permutation of range(size), a function of two numbers.

  Args:
    size: int64 scalar, 0 and 1 included.
    seed: its lower 32 bits count.
    number: which of the seed's permutations, int64 scalar.
  Returns:
    int64 [size].
  """
  return permuted(tf.range(size), size, seed, number)


def permuted(
  index: tf.Tensor, size: tf.Tensor, seed: int, number: tf.Tensor
) -> tf.Tensor:
  """Returns where a permutation of range(size) takes some places; see `permutation`."""
  both = tf.stack([tf.constant(seed % MAX_SEED, tf.int64), number])
  # The op takes no range of a single number; that one stays where it is.
  shuffled = tf.random.experimental.index_shuffle(index, both, tf.maximum(size - 1, 1))
  return tf.minimum(shuffled, tf.maximum(size - 1, 0))


def draw_seed() -> int:
  """Returns a seed that no other run has."""
  return int(np.random.SeedSequence().generate_state(1)[0])


@gin.register
@dataclasses.dataclass(frozen=True)
class Plan:
  """Which windows come in which batches: checked once, and handed on as one value.

  Attributes:
    batch_size: B.
    order: 'sequential'; 'global': every epoch another permutation of all windows;
      'quasi_random': of the episodes, and of the windows of a pool of them that the
      memory budget bounds. None: the one that suits what is read.
    seed: of the permutations, of 32 bits; None: another order in every run.
    num_epochs: how often every window is shown; None for ever.
    shard_index: which part of each epoch to show; parts are disjoint.
    num_shards: how many there are.
    drop_remainder: shows full batches only, equally many in every shard; None: where
      epochs follow each other for ever.
    memory_budget: bytes for pools and what TensorFlow takes beside them.
    where: whose plan it is, for messages.
  """

  batch_size: int = 32
  order: str | None = None
  seed: int | None = 0
  num_epochs: int | None = 1
  shard_index: int = 0
  num_shards: int = 1
  drop_remainder: bool | None = True
  memory_budget: int = 2**30
  where: str = dataclasses.field(default="Plan", repr=False, compare=False)

  def __post_init__(self) -> None:
    """Raises SpecError with all that is wrong."""
    found = [*_wrong_counts(self)]
    if self.order not in (None, *ORDERS):
      near = errors.nearest(str(self.order), ORDERS)
      want = f"one of {', '.join(ORDERS)}"
      found.append(errors.Mismatch("order", want, repr(self.order), near))
    if not isinstance(self.drop_remainder, (bool, np.bool_, type(None))):
      got = repr(self.drop_remainder)
      found.append(errors.Mismatch("drop_remainder", "True, False or None", got))
    if not found and self.batch_size > MAX_BATCH_SIZE:
      want = f"at most {MAX_BATCH_SIZE:,} examples"
      found.append(errors.Mismatch("batch_size", want, f"{self.batch_size:,}"))
    if found:
      raise errors.mismatch_error(self.where, found)

  @property
  def drops(self) -> bool:
    """Whether batches that are not full are left out."""
    if self.drop_remainder is None:
      return self.num_epochs is None
    return bool(self.drop_remainder)

  @property
  def last_epoch(self) -> int:
    """Epochs in all; for ever is a number, too."""
    return np.iinfo(np.int64).max if self.num_epochs is None else self.num_epochs

  def seeded(self, order: str | None = None) -> Plan:
    """Returns the plan with a seed, and with an order if it had none."""
    seed = draw_seed() if self.seed is None else self.seed
    return dataclasses.replace(self, seed=seed, order=self.order or order)

  def split(self) -> dict[str, Any]:
    """Returns what an order is told, by the names of its arguments."""
    return {
      "batch_size": self.batch_size,
      "seed": self.seed,
      "shard_index": self.shard_index,
      "num_shards": self.num_shards,
      "drop_remainder": self.drops,
    }


def plan_and_cut(
  where: str, plan: Plan | None, cut: windows.Cut | None, fields: Mapping[str, Any]
) -> tuple[Plan, windows.Cut]:
  """Makes a plan and a cut of what users write: values, their fields, or changes.

  Args:
    where: who was given it, for messages.
    plan: None for `Plan()`.
    cut: None for `windows.Cut()`.
    fields: that are other ones, by name. A batch_size or order of None changes no plan.
  Returns:
    Both.
  Raises:
    SpecError: no plan or no cut, a field that neither has, or a value that it may not
      have.
  """
  names = [field.name for field in dataclasses.fields(Plan) if field.name != "where"]
  own = {name: value for name, value in fields.items() if name in names}
  others = {name: value for name, value in fields.items() if name not in names}
  cut_names = [field.name for field in dataclasses.fields(windows.Cut)]
  for name in others:
    if name not in cut_names:
      raise errors.SpecError(
        f"{where}: {name}: expected an argument that it has, got an unexpected one."
        f"{errors.nearest(name, names + cut_names)}"
      )
  if plan is None:
    plan = Plan(**own, where=where)
  elif isinstance(plan, Plan):
    for name in ("batch_size", "order"):
      if own.get(name, plan) is None:
        del own[name]
    plan = dataclasses.replace(plan, **own, where=where)
  else:
    raise errors.SpecError(
      f"{where}: plan: expected a Plan, got {plan!r}. Name its fields, or make one: "
      "data.Plan(batch_size=32, seed=1)."
    )
  return plan, windows.Cut.of(where, cut, others)


@dataclasses.dataclass(frozen=True)
class WindowOrder:
  """The windows of every batch of every epoch, computed and not drawn.

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
    _check_split(self)

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""
    return _num_batches(self)

  @property
  def num_shard_windows(self) -> int:
    """Windows of this shard in each epoch."""
    if self.drop_remainder:
      return self.num_windows // self.num_shards
    return -(-(self.num_windows - self.shard_index) // self.num_shards)

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
    if self.order == "sequential":
      return positions
    size = tf.constant(self.num_windows, tf.int64)
    return permuted(positions, size, self.seed, epoch)


@dataclasses.dataclass(frozen=True, eq=False)
class PoolOrder:
  """The windows of every pool of every epoch, computed and not drawn.

  An epoch is a permutation of the episodes; their windows, one after the other, are cut
  into equal parts for the shards, and those into pools. Within a pool the windows are
  permuted.

  Attributes:
    counts: windows of each episode, int64 [episodes].
    pool_batches: batches of a pool.
    batch_size: B >= 1.
    seed: of the permutations.
    shard_index: which part of each epoch is meant.
    num_shards: how many parts there are, equal but for one window.
    drop_remainder: all batches are full, and all shards have equally many.
  """

  counts: np.ndarray
  pool_batches: int
  batch_size: int
  seed: int = 0
  shard_index: int = 0
  num_shards: int = 1
  drop_remainder: bool = True

  def __post_init__(self) -> None:
    _check_split(self)

  @property
  def num_windows(self) -> int:
    """Windows of all episodes."""
    return int(self.counts.sum())

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""
    return _num_batches(self)

  @property
  def pools_per_epoch(self) -> int:
    """Pools of this shard in each epoch."""
    return -(-self.batches_per_epoch // self.pool_batches)

  @property
  def num_shard_windows(self) -> int:
    """Windows of this shard in each epoch."""
    if self.drop_remainder:
      return self.num_windows // self.num_shards
    end = (self.shard_index + 1) * self.num_windows // self.num_shards
    return end - self._first_window

  def episodes(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the order of the episodes, and where the windows of each end.

    Args:
      epoch: int64 scalar.
    Returns:
      int64 [episodes] each.
    """
    number = tf.constant(len(self.counts), tf.int64)
    order = permutation(number, self.seed, epoch)
    counts = tf.gather(tf.constant(self.counts, tf.int64), order)
    return order, tf.cumsum(counts)

  def bounds(self, pool: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first window of a pool, and the one after its last.

    Args:
      pool: of an epoch, int64 scalar.
    Returns:
      int64 scalars, counted through the episodes in the order of the epoch.
    """
    size = self.pool_batches * self.batch_size
    first = self._first_window + pool * size
    used = self.num_shard_windows
    if self.drop_remainder:
      used = self.batches_per_epoch * self.batch_size
    end = tf.constant(self._first_window + used, tf.int64)
    return first, tf.minimum(first + size, end)

  def shuffle(
    self, num_windows: tf.Tensor, epoch: tf.Tensor, pool: tf.Tensor
  ) -> tf.Tensor:
    """Returns a permutation of the windows of a pool, int64 [num_windows]."""
    number = epoch * self.pools_per_epoch + pool
    return permutation(num_windows, self.seed ^ _POOL_STREAM, number)

  @property
  def _first_window(self) -> int:
    if self.drop_remainder:
      return self.shard_index * self.num_shard_windows
    return self.shard_index * self.num_windows // self.num_shards


def _num_batches(order: Any) -> int:
  if order.drop_remainder:
    return order.num_shard_windows // order.batch_size
  return -(-order.num_shard_windows // order.batch_size)


def _wrong_counts(plan: Any) -> Iterator[errors.Mismatch]:
  """Yields what is no integer, or too small or large, of a plan or an order."""
  least = {"num_windows": 1, "batch_size": 1, "num_shards": 1, "memory_budget": 1}
  least |= {"shard_index": 0, "seed": 0, "num_epochs": 0}
  is_wrong = False
  for name, minimum in least.items():
    value = getattr(plan, name, minimum)
    if value is None and isinstance(plan, Plan) and name in ("seed", "num_epochs"):
      continue
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum:
      is_wrong = True
      want = f"an integer of at least {minimum}"
      yield errors.Mismatch(name, want, repr(value))
  if is_wrong:
    return
  if (plan.seed or 0) >= MAX_SEED:  # Beyond it two seeds would give one order.
    yield errors.Mismatch("seed", f"an integer below {MAX_SEED:,}", repr(plan.seed))
  if plan.shard_index >= plan.num_shards:
    want = f"an index below num_shards = {plan.num_shards}"
    yield errors.Mismatch("shard_index", want, str(plan.shard_index))


def _check_split(order: Any) -> None:
  """Raises SpecError unless sizes and numbers make sense and give a batch."""
  found = [*_wrong_counts(order)]
  if not found and order.num_shards > order.num_windows:
    want = f"at most the {order.num_windows} windows that there are"
    found.append(errors.Mismatch("num_shards", want, str(order.num_shards)))
  if not found and not order.batches_per_epoch:
    found.append(
      errors.Mismatch(
        "batch_size",
        f"at most the {order.num_shard_windows} windows of a shard",
        str(order.batch_size),
        "Make batches smaller, or keep them: drop_remainder=False.",
      )
    )
  if found:
    raise errors.mismatch_error("batches", found)
