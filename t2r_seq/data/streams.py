"""Batches of windows from a stream of episodes, shuffled within a memory budget."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import specs, windows
from t2r_seq.data import pool
from t2r_seq.data.plan import (
  Plan,
  checkpoint_options,
  draw_seed,
  permutation,
  plan_and_cut,
)
from t2r_seq.data.pool import PoolColumns
from t2r_seq.records.images import DecodeImages
from t2r_seq.windows.dataset import print_too_short
from t2r_seq.windows.rows import RowList

_as_it_is = tf.autograph.experimental.do_not_convert
MakeDataset = Callable[[tf.Tensor], tf.data.Dataset]

# The first pool has windows for so many batches, the next for twice as many, and so on:
# the first batch waits for little, and pools are soon as large as the budget allows.
# Where nothing is permuted they need not be.
_FIRST_POOL_BATCHES, _MAX_DOUBLED, _MAX_DOUBLED_IN_ORDER = 4, 20, 3
# More windows mix no better, and to permute them takes time.
_MAX_WINDOWS = 2**20
# What a pool is filled with is listed, and that is copied with each slab.
_MAX_EPISODES = 2**13
_SLAB_SPEC = {
  "kept": tf.TensorSpec([None], tf.variant),
  "numbers": tf.TensorSpec([None, 4], tf.int64),
}


class StreamReport(windows.WindowReport):
  """Counts episodes, steps and windows, and what the pools took of their budget.

  Attributes:
    memory_budget: bytes that the pools may take; None before there are any.
  """

  memory_budget: int | None = None

  def __init__(self) -> None:
    """Creates a report with all counts zero."""
    super().__init__()
    with tf.init_scope(), tf.device("cpu:0"):
      self._pools = tf.Variable(0, trainable=False, dtype=tf.int64, name="pools")
      self._bytes = tf.Variable(0, trainable=False, dtype=tf.int64, name="pool_bytes")

  def count_pool(self, num_bytes: tf.Tensor) -> tf.Operation:
    """Adds one pool; called inside the input pipeline.

    Args:
      num_bytes: what the pools that are alive, and episodes on their way to the next,
        take at most, int64 scalar.
    Returns:
      The op that counts.
    """
    return tf.group(
      self._pools.assign_add(1), self._bytes.assign(tf.maximum(self._bytes, num_bytes))
    )

  @property
  def pools(self) -> int:
    """Pools that were filled."""
    return int(self._pools.numpy())

  @property
  def pool_bytes(self) -> int:
    """The most bytes that pools and episodes on their way to them took together."""
    return int(self._bytes.numpy())

  def __str__(self) -> str:
    line = super().__str__()
    if self.memory_budget is None:
      return line
    return (
      f"{line}; {self.pools} pools, {self.pool_bytes:,} of {self.memory_budget:,} bytes"
    )


def streamed_windows(
  episodes: tf.data.Dataset | MakeDataset,
  spec_structure: specs.SpecStructure,
  batch_size: int | None = None,
  plan: Plan | None = None,
  cut: windows.Cut | None = None,
  *,
  report: windows.WindowReport | None = None,
  decode_images: DecodeImages = True,
  **fields: Any,
) -> tf.data.Dataset:
  """Shuffles the windows of episodes that come one after the other, and batches them.

  Episodes that follow each other fill a pool, until another might exceed the budget.
  Each image is decoded once, the windows of a pool are permuted, and a batch is
  gathered at once. The next pool is filled meanwhile; the first ones are small, so that
  the first batch comes soon. Every window comes once an epoch; windows that fill no
  batch wait for those of the next pool. The order depends on the seed only.

  A checkpoint of the iterator holds a position and no frames, if the dataset of
  episodes can be saved as one. A restored iterator reads its pool again, and goes on
  with the next batch.

  Args:
    episodes: dataset of episodes by path, leaves [T, ...] and context features, images
      best still encoded; or a function that makes it, given the epoch, int64 scalar.
      Parse at most four at a time: their memory is counted.
    spec_structure: the specs of a window.
    batch_size: B.
    plan: of the batches; None for one epoch in another order in every run, with all
      windows. In the order 'sequential' nothing is shuffled. Its memory_budget is for
      two pools, the episodes on their way to them, some batches, and what TensorFlow
      takes beside them. An episode that needs more is used all the same, and a line on
      stderr says how much it needs.
    cut: how episodes become windows; None for `Cut()`.
    report: counts; a `StreamReport` also what the pools take.
    decode_images: gives pixels where episodes hold encoded images, perhaps in a way of
      its own: a `records.ImageDecoding`; False: strings.
    **fields: or fields of the plan and the cut: seed=1, padding='repeat', ...
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the episodes do not fit the specs, or a number is too small.
  """
  if batch_size is not None:
    fields["batch_size"] = batch_size
  if plan is None:
    fields = {"seed": None, "drop_remainder": False, **fields}
  plan, cut = plan_and_cut("streamed_windows", plan, cut, fields)
  make: Any = episodes if callable(episodes) else lambda _: episodes
  columns = PoolColumns(
    make(tf.constant(0, tf.int64)).element_spec,
    spec_structure,
    cut,
    decode_images,
  )

  def keep(*episode: Any) -> Any:
    # tf.data calls with each part of a tuple, and else with one.
    return columns.keep(columns.select(episode[0] if len(episode) == 1 else episode))

  return shuffled_windows(
    lambda epoch: make(epoch).map(_as_it_is(keep)).batch(1),
    columns,
    plan,
    report,
  )


def shuffled_windows(
  make_slabs: MakeDataset,
  columns: PoolColumns,
  plan: Plan,
  report: windows.WindowReport | None,
) -> tf.data.Dataset:
  """Does `streamed_windows` for slabs: some episodes that follow each other.

  Args:
    make_slabs: makes the dataset of the slabs of an epoch, given that, int64 scalar:
      batches of what `columns.keep` gives, none of them empty.
    columns: of the episodes.
    plan: of the batches.
    report: counts.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  """
  seed = draw_seed() if plan.seed is None else plan.seed
  if isinstance(report, StreamReport):
    report.memory_budget = plan.memory_budget
  filler = _Filler(columns, plan, report)

  def epoch(number: tf.Tensor) -> tf.data.Dataset:
    end = tf.data.Dataset.from_tensors(0).map(_as_it_is(lambda _: _end()))
    return pool.followed_by(lambda: make_slabs(number), end, _SLAB_SPEC)

  def join(filled: dict[str, tf.Tensor]) -> pool.Pool:
    lengths, counts = tf.unstack(filled["lengths"], axis=1)
    total = tf.reduce_sum(counts)
    if plan.order == "sequential":
      numbers = tf.range(total)
    else:
      numbers = permutation(total, seed, filled["number"])
    return {
      "rows": columns.join(filled["kept"]),
      "windows": pool.place_windows(
        columns.reader.grid,
        numbers,
        counts,
        tf.cumsum(counts),
        lengths,
        tf.cumsum(lengths, exclusive=True),
      ),
      "left": filled["left"],
    }

  def batches() -> tf.data.Dataset:
    with tf.device("CPU:0"):
      slabs = tf.data.Dataset.range(plan.last_epoch).flat_map(_as_it_is(epoch))
      # The next pool is filled while batches are gathered from this one.
      pools = filler.fill(slabs).map(_as_it_is(join)).prefetch(1)
      gathered = pool.gather_batches(pools, columns, plan.batch_size)
      return pool.join_batches(gathered, plan.batch_size, plan.drops)

  # Made in a function: outside of any, TensorFlow adds what a `scan` calls to its
  # global graph and never takes it out again, 11 MB for each dataset.
  made = tf.function(batches, autograph=False).get_concrete_function()()
  return made.with_options(checkpoint_options())


class _Filler:
  """Fills pools with slabs of episodes that follow each other.

  A pool is closed as soon as another slab as large as any before may find no room, so
  that nothing of it stays behind: the state that a checkpoint saves is a few numbers
  then. A slab that is larger than any before may exceed the budget, once.
  """

  def __init__(
    self, columns: PoolColumns, plan: Plan, report: windows.WindowReport | None
  ) -> None:
    self._batch_size = plan.batch_size
    self._batch_bytes = plan.batch_size * columns.reader.window_bytes
    self._memory_budget = plan.memory_budget
    self._is_endless = plan.num_epochs is None
    in_order = plan.order == "sequential"
    self._max_doubled = _MAX_DOUBLED_IN_ORDER if in_order else _MAX_DOUBLED
    self._report = report
    self._reader = columns.reader

  def fill(self, slabs: tf.data.Dataset) -> tf.data.Dataset:
    """Creates the dataset of filled pools.

    Args:
      slabs: of all epochs, with `_end` after each.
    Returns:
      Dataset of 'kept', a list of episodes; their 'lengths' in steps and in windows,
      int64 [n, 2]; the 'number' of the pool; and 'left', the windows before that fill
      no batch.
    """
    names = ("number", "windows", "pooled", "slab", "parsed", "in_epoch", "left")
    zero = tf.constant(0, tf.int64)
    start = {**dict.fromkeys(names, zero), "kept": _no_episodes()}
    # Of unknown length: where a step changes a shape, `scan` traces it once more.
    start["lengths"] = tf.raw_ops.PlaceholderWithDefault(
      input=tf.zeros([0, 2], tf.int64), shape=[None, 2]
    )
    filled = slabs.scan(start, _as_it_is(self._step))
    filled = filled.filter(_as_it_is(lambda _, is_closed: is_closed))
    return filled.map(_as_it_is(lambda pool, _: pool))

  def _step(self, state: dict[str, Any], slab: dict[str, Any]) -> tuple[Any, Any]:
    """Appends a slab; closes the pool after it, or not."""
    lengths, counts, sizes, parsed_sizes = tf.unstack(slab["numbers"], axis=1)
    zero = tf.constant(0, tf.int64)
    is_end = tf.equal(tf.size(lengths), 0)
    new_windows, size = tf.reduce_sum(counts), tf.reduce_sum(sizes)
    # Of none the maximum is the least integer.
    parsed = tf.maximum(state["parsed"], tf.reduce_max(parsed_sizes))
    largest = tf.maximum(state["slab"], size)
    pooled = state["pooled"] + size
    num_windows = state["windows"] + new_windows
    in_epoch = state["in_epoch"] + new_windows
    noted = [
      self._note_episodes(lengths, counts),
      self._warn(state, largest, parsed, lengths),
      self._check_goes_on(is_end, in_epoch),
    ]
    with tf.control_dependencies(noted):
      all_lengths = tf.concat([state["lengths"], slab["numbers"][:, :2]], 0)
    kept = tf.raw_ops.TensorListConcatLists(
      input_a=state["kept"],
      input_b=tf.raw_ops.TensorListFromTensor(
        tensor=slab["kept"], element_shape=tf.constant([], tf.int32)
      ),
      element_dtype=tf.variant,
    )
    is_full = self._num_bytes(pooled + largest, parsed) > self._memory_budget
    is_full |= num_windows >= self._most_windows(state["number"])
    is_full |= tf.shape(all_lengths)[0] >= _MAX_EPISODES
    is_closed = (is_full | is_end) & (num_windows > 0)
    with tf.control_dependencies([self._note_pool(is_closed, pooled, parsed)]):
      number = tf.identity(state["number"])
    left = tf.where(is_closed, (state["left"] + num_windows) % self._batch_size, zero)
    filled = {
      "kept": kept,
      "lengths": all_lengths,
      "number": number,
      "left": state["left"],
    }
    after = {
      "kept": tf.cond(is_closed, _no_episodes, lambda: tf.identity(kept)),
      "lengths": all_lengths[: tf.where(is_closed, 0, tf.shape(all_lengths)[0])],
      "number": number + tf.cast(is_closed, tf.int64),
      "windows": tf.where(is_closed, zero, num_windows),
      "pooled": tf.where(is_closed, zero, pooled),
      "slab": largest,
      "parsed": parsed,
      "in_epoch": tf.where(is_end, zero, in_epoch),
      "left": tf.where(is_closed, left, state["left"]),
    }
    return after, (filled, is_closed)

  def _most_windows(self, number: tf.Tensor) -> tf.Tensor:
    first = tf.constant(_FIRST_POOL_BATCHES * self._batch_size, tf.int64)
    doubled = tf.bitwise.left_shift(first, tf.minimum(number, self._max_doubled))
    return tf.minimum(doubled, max(_MAX_WINDOWS, self._batch_size))

  def _num_bytes(self, pooled: Any, parsed: Any) -> Any:
    return pool.num_bytes_alive(pooled, parsed, self._batch_bytes)

  def _warn(
    self, state: Any, largest: tf.Tensor, parsed: tf.Tensor, lengths: tf.Tensor
  ) -> tf.Operation:
    """Says how much an episode needs that exceeds the budget, unless one did before."""
    needed = self._num_bytes(largest, parsed)
    before = self._num_bytes(state["slab"], state["parsed"])
    is_news = (needed > self._memory_budget) & (needed > before)

    def warn() -> tf.Operation:
      return tf.print(
        "memory_budget: expected at least",
        needed,
        "bytes, for pools that hold an episode of",
        tf.reduce_max(lengths),
        "steps, got",
        tf.constant(self._memory_budget, tf.int64),
        "bytes. It is used all the same; give more, or write shorter episodes.",
        output_stream=sys.stderr,
      )

    return tf.cond(is_news, _as_it_is(warn), tf.no_op)

  def _check_goes_on(self, is_end: tf.Tensor, num_windows: tf.Tensor) -> tf.Operation:
    """Checks that an epoch had a window, if another follows: better than no end."""
    if not self._is_endless:
      return tf.no_op()
    return tf.raw_ops.Assert(
      condition=~is_end | (num_windows > 0), data=[tf.constant(pool.NOTHING_LEFT)]
    )

  def _note_pool(
    self, is_closed: tf.Tensor, pooled: tf.Tensor, parsed: tf.Tensor
  ) -> tf.Operation:
    if not isinstance(self._report, StreamReport):
      return tf.no_op()
    num_bytes = self._num_bytes(pooled, parsed)
    count = self._report.count_pool
    return tf.cond(is_closed, _as_it_is(lambda: count(num_bytes)), tf.no_op)

  def _note_episodes(self, lengths: tf.Tensor, counts: tf.Tensor) -> tf.Operation:
    if self._report is not None:
      return self._report.count(lengths, counts)
    if self._reader.grid.keeps_first:
      return tf.no_op()

    def tell() -> tf.Operation:
      shortest = tf.reduce_min(lengths)
      return print_too_short(shortest, tf.reduce_min(counts), self._reader.min_steps)

    return tf.cond(tf.reduce_any(counts < 1), _as_it_is(tell), tf.no_op)


def _end() -> dict[str, tf.Tensor]:
  """Returns what stands at the end of an epoch: a slab without an episode."""
  nothing = tf.raw_ops.OptionalNone()[tf.newaxis][:0]
  return {"kept": nothing, "numbers": tf.zeros([0, 4], tf.int64)}


def _no_episodes() -> tf.Tensor:
  return RowList.empty(tf.TensorShape([]), tf.variant).handle
