"""The plan: which windows are in which batch, a function of a seed and a number.

`Plan` holds a user's options. `WindowOrder` computes the windows of a batch if windows
have random access, `PoolOrder` those of a pool of episodes. There is no shuffle buffer:
all machines compute the same batches, a shuffle of any size starts at once, and a run
resumes from the number of its next batch.
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
MAX_SEED = 2**32  # `index_shuffle` takes seeds of uint32.
# Makes the seeds of windows in pools different from those of episodes in epochs.
_POOL_STREAM = 0x9E3779B9


def permute_positions(
  places: tf.Tensor, size: tf.Tensor, seed: int | None, number: tf.Tensor
) -> tf.Tensor:
  """Returns the values of a permutation of range(size) at some places.

  Args:
    places: int64 [N], in range(size); may be empty.
    size: int64 scalar, at least 0.
    seed: seed of the permutation; its lower 32 bits count. None: 0.
    number: number of the seed's permutation, int64 scalar.
  Returns:
    int64 [N].
  """
  both = tf.stack([tf.constant((seed or 0) % MAX_SEED, tf.int64), number])
  # The op takes neither an empty vector nor a range of a single number.
  padded = tf.concat([tf.zeros([1], tf.int64), places], 0)
  shuffled = tf.random.experimental.index_shuffle(padded, both, tf.maximum(size - 1, 1))
  return tf.minimum(shuffled[1:], tf.maximum(size - 1, 0))


def draw_seed() -> int:
  """Returns a random seed of 32 bits, from the operating system."""
  return int(np.random.SeedSequence().generate_state(1)[0])


@gin.register
@dataclasses.dataclass(frozen=True)
class Plan:
  """Assigns windows to batches; checked at construction.

  Attributes:
    batch_size: B.
    order: 'sequential'; 'global': every epoch another permutation of all windows;
      'quasi_random': every epoch another permutation of the episodes, and of the
      windows of each pool of them, whose size the memory budget limits. None: the
      reader's default.
    seed: seed of the permutations, below 2**32; None: another order in every run.
    num_epochs: number of times that each window is read; None: no end.
    shard_index: index of the part of each epoch to read; parts are disjoint.
    num_shards: number of parts.
    drop_remainder: reads full batches only, equally many in every shard; None: if
      epochs repeat without an end.
    memory_budget: bytes for pools, with the memory that TensorFlow needs for them.
    where: name of the generator, for messages.
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
    """Raises SpecError, which lists all invalid fields."""
    mismatches = [*_wrong_counts(self)]
    if self.order not in (None, *ORDERS):
      near = errors.nearest(str(self.order), ORDERS)
      want = f"one of {', '.join(ORDERS)}"
      mismatches.append(errors.Mismatch("order", want, repr(self.order), near))
    if not isinstance(self.drop_remainder, (bool, np.bool_, type(None))):
      got = repr(self.drop_remainder)
      mismatches.append(errors.Mismatch("drop_remainder", "True, False or None", got))
    if not mismatches and self.batch_size > MAX_BATCH_SIZE:
      want = f"at most {MAX_BATCH_SIZE:,} examples"
      mismatches.append(errors.Mismatch("batch_size", want, f"{self.batch_size:,}"))
    if mismatches:
      raise errors.mismatch_error(self.where, mismatches)

  @property
  def drops(self) -> bool:
    """Whether batches that are not full are left out."""
    if self.drop_remainder is None:
      return self.num_epochs is None
    return bool(self.drop_remainder)

  @property
  def last_epoch(self) -> int:
    """Number of epochs; the largest int64 if they repeat without an end."""
    return np.iinfo(np.int64).max if self.num_epochs is None else self.num_epochs

  def with_seed(self, order: str | None = None) -> Plan:
    """Returns the plan with a random seed, and a default order, if it has none."""
    seed = draw_seed() if self.seed is None else self.seed
    return dataclasses.replace(self, seed=seed, order=self.order or order)

  def of_worker(
    self, context: tf.distribute.InputContext, batch_size: int, start_step: int = 0
  ) -> tuple[Plan, int]:
    """Returns the plan of one input pipeline of a strategy.

    The pipelines have disjoint shards; the replicas of one take turns at its batches.

    Args:
      context: context of the pipeline.
      batch_size: B, of all replicas together.
      start_step: steps to leave out; a step is a batch for each replica.
    Returns:
      The plan of batches of one replica, and the number of batches to leave out.
    Raises:
      ValueError: the replicas cannot share a batch equally.
    """
    num_shards = context.num_input_pipelines
    plan = dataclasses.replace(
      self,
      batch_size=context.get_per_replica_batch_size(batch_size),
      shard_index=context.input_pipeline_id,
      num_shards=num_shards,
    )
    return plan, start_step * (context.num_replicas_in_sync // num_shards)


def plan_and_cut(
  where: str, plan: Plan | None, cut: windows.Cut | None, fields: Mapping[str, Any]
) -> tuple[Plan, windows.Cut]:
  """Makes a plan and a cut from a user's values, and fields to replace in them.

  Args:
    where: name of the function, for messages.
    plan: plan to change; None for `Plan()`.
    cut: cut to change; None for `windows.Cut()`.
    fields: fields to replace, by name. If a batch_size or order is None, that of `plan`
      stays; without `plan`, a batch_size of None is an error.
  Returns:
    The plan and the cut.
  Raises:
    SpecError: `plan` or `cut` has another type, neither has a field, or its value is
      invalid.
  """
  names = [field.name for field in dataclasses.fields(Plan) if field.name != "where"]
  plan_fields = {name: value for name, value in fields.items() if name in names}
  others = {name: value for name, value in fields.items() if name not in names}
  cut_names = [field.name for field in dataclasses.fields(windows.Cut)]
  for name in others:
    if name not in cut_names:
      raise errors.SpecError(
        f"{where}: {name}: expected an argument that it has, got an unexpected one."
        f"{errors.nearest(name, names + cut_names)}"
      )
  if plan is None:
    plan = Plan(**plan_fields, where=where)
  elif isinstance(plan, Plan):
    for name in ("batch_size", "order"):
      if plan_fields.get(name, plan) is None:
        del plan_fields[name]
    plan = dataclasses.replace(plan, **plan_fields, where=where)
  else:
    raise errors.SpecError(
      f"{where}: plan: expected a Plan, got {plan!r}. Name its fields, or make one: "
      "data.plan.Plan(batch_size=32, seed=1)."
    )
  return plan, windows.Cut.of(where, cut, others)


class Order:
  """The windows of every batch of every epoch, as a function of seed and number.

  Attributes:
    num_windows: number of windows in the whole dataset, N >= 1.
    plan: plan of the batches, with a seed. If it drops remainders, all batches are full
      and all shards have equally many; otherwise every window comes once per epoch, in
      exactly one shard.
  """

  def __init__(self, num_windows: int, plan: Plan) -> None:
    """Creates the order; see the attributes.

    Raises:
      SpecError: there are more shards than windows, or there is no batch.
    """
    self.num_windows = num_windows
    self.plan = plan
    if plan.num_shards > num_windows:
      want = f"at most the {num_windows} windows that there are"
      mismatch = errors.Mismatch("num_shards", want, str(plan.num_shards))
      raise errors.mismatch_error("batches", [mismatch])
    if not self.batches_per_epoch:
      want = f"at most the {self.num_shard_windows} windows of a shard"
      hint = "Make batches smaller, or keep them: drop_remainder=False."
      mismatch = errors.Mismatch("batch_size", want, str(plan.batch_size), hint)
      raise errors.mismatch_error("batches", [mismatch])

  @property
  def batch_size(self) -> int:
    """B."""
    return self.plan.batch_size

  @property
  def drop_remainder(self) -> bool:
    """Whether all batches are full."""
    return self.plan.drops

  @property
  def num_shard_windows(self) -> int:
    """Windows of this shard in each epoch, also those that are dropped."""
    if self.drop_remainder:
      return self.num_windows // self.plan.num_shards
    return -(-(self.num_windows - self.plan.shard_index) // self.plan.num_shards)

  @property
  def num_used(self) -> int:
    """Windows of this shard in each epoch that are in batches."""
    used = self.num_shard_windows
    return used - used % self.batch_size if self.drop_remainder else used

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""
    return -(-self.num_used // self.batch_size)


class WindowOrder(Order):
  """The order of windows that have random access, 'sequential' or 'global'."""

  def __init__(self, num_windows: int, plan: Plan) -> None:
    """Creates the order; raises SpecError if the plan has another, or no batch."""
    if plan.order not in STATELESS_ORDERS:
      raise errors.SpecError(
        f"batches: order: expected one of {', '.join(STATELESS_ORDERS)}, got "
        f"{plan.order!r}."
      )
    super().__init__(num_windows, plan)

  def window_ids(self, batch: tf.Tensor, num_batches: int = 1) -> tf.Tensor:
    """Returns the windows of a batch, or of several that follow each other.

    Args:
      batch: its number, counted from 0 through all epochs, int64 scalar.
      num_batches: maximum number of batches; all are of one epoch.
    Returns:
      int64 [num_batches * B], in range(num_windows); fewer at the end of an epoch.
    """
    batch = tf.cast(batch, tf.int64)
    epoch, in_epoch = batch // self.batches_per_epoch, batch % self.batches_per_epoch
    # `num_batches * batch_size` may be much larger than a shard.
    size = min(num_batches * self.batch_size, self.num_shard_windows)
    places = in_epoch * self.batch_size + tf.range(size, dtype=tf.int64)
    if num_batches > 1 or not self.drop_remainder:
      places = places[: self.num_used - in_epoch * self.batch_size]
    # The shards take turns, so that each sees an even part of a sequential order.
    positions = places * self.plan.num_shards + self.plan.shard_index
    if self.plan.order == "sequential":
      return positions
    size = tf.constant(self.num_windows, tf.int64)
    return permute_positions(positions, size, self.plan.seed, epoch)


class PoolOrder(Order):
  """The order of windows that are read through pools.

  An epoch is a permutation of the episodes. Their windows, one after the other, are cut
  into equal parts for the shards, and each part into pools. Within a pool the windows
  are permuted. The order 'sequential' permutes neither.

  Attributes:
    counts: windows of each episode, int64 [episodes].
    pool_batches: batches of a pool.
  """

  def __init__(self, counts: np.ndarray, pool_batches: int, plan: Plan) -> None:
    """Creates the order; see the attributes, and the base class for errors."""
    super().__init__(int(counts.sum()), plan)
    self.counts = counts
    self.pool_batches = pool_batches

  @property
  def pools_per_epoch(self) -> int:
    """Pools of this shard in each epoch."""
    return -(-self.batches_per_epoch // self.pool_batches)

  def episodes(self, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the order of the episodes, and the windows up to the end of each.

    Args:
      epoch: number of the epoch, int64 scalar.
    Returns:
      int64 [episodes] each.
    """
    number = tf.constant(len(self.counts), tf.int64)
    order = tf.range(number)
    if self.plan.order != "sequential":
      order = permute_positions(order, number, self.plan.seed, epoch)
    counts = tf.gather(tf.constant(self.counts, tf.int64), order)
    return order, tf.cumsum(counts)

  def bounds(self, pool: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first window of a pool, and the window after its last.

    Args:
      pool: number of the pool in an epoch, int64 scalar.
    Returns:
      int64 scalars, counted through the episodes in the order of the epoch.
    """
    size = self.pool_batches * self.batch_size
    index, shard_size = self.plan.shard_index, self.num_windows // self.plan.num_shards
    first_of_shard = index * shard_size
    if not self.drop_remainder:  # The first shards have one more.
      first_of_shard += min(index, self.num_windows % self.plan.num_shards)
    first = first_of_shard + pool * size
    end = tf.constant(first_of_shard + self.num_used, tf.int64)
    return first, tf.minimum(first + size, end)

  def windows(
    self, num_windows: tf.Tensor, epoch: tf.Tensor, pool: tf.Tensor
  ) -> tf.Tensor:
    """Returns the order of the windows of a pool, int64 [num_windows]."""
    order = tf.range(num_windows)
    if self.plan.order == "sequential":
      return order
    number = epoch * self.pools_per_epoch + pool
    seed = (self.plan.seed or 0) ^ _POOL_STREAM
    return permute_positions(order, num_windows, seed, number)


def _wrong_counts(plan: Plan) -> Iterator[errors.Mismatch]:
  """Yields the fields of a plan that must be integers and are not, or out of range."""
  least = {"batch_size": 1, "num_shards": 1, "memory_budget": 1}
  least |= {"shard_index": 0, "seed": 0, "num_epochs": 0}
  is_wrong = False
  for name, minimum in least.items():
    value = getattr(plan, name)
    if value is None and name in ("seed", "num_epochs"):
      continue
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum:
      is_wrong = True
      want = f"an integer of at least {minimum}"
      yield errors.Mismatch(name, want, repr(value))
  if is_wrong:
    return
  if (plan.seed or 0) >= MAX_SEED:  # Only the lower 32 bits would count.
    yield errors.Mismatch("seed", f"an integer below {MAX_SEED:,}", repr(plan.seed))
  if plan.shard_index >= plan.num_shards:
    want = f"an index below num_shards = {plan.num_shards}"
    yield errors.Mismatch("shard_index", want, str(plan.shard_index))


def dataset_options() -> tf.data.Options:
  """Returns the options of every dataset: no buffers beyond the planned ones.

  By default TensorFlow ends each pipeline with a buffer that doubles whenever a
  consumer has paused and then empties it: with batches of 7 MB, 3.5 GB after six
  pauses. It also makes each `map` a parallel one, which costs 5 % of the rate of
  streamed windows. Its other rewrites change nothing here, and take 0.9 of the 1.4 s
  that creating the iterator of a stream takes.
  """
  options = tf.data.Options()
  options.deterministic = True
  options.experimental_optimization.apply_default_optimizations = False
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.map_parallelization = False
  # TensorFlow would warn of state, such as a report's counts, when it saves iterators.
  options.experimental_external_state_policy = (
    tf.data.experimental.ExternalStatePolicy.IGNORE
  )
  return options
