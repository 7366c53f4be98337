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
  dataset_options,
  draw_seed,
  permute_positions,
  plan_and_cut,
)
from t2r_seq.data.pool import Pool, PoolColumns
from t2r_seq.records.images import DecodeImages
from t2r_seq.windows.dataset import WindowReport, print_too_short
from t2r_seq.windows.rows import RowList

_no_autograph = tf.autograph.experimental.do_not_convert
MakeDataset = Callable[[tf.Tensor], tf.data.Dataset]

# The first pool has windows for this number of batches, the next for twice as many, and
# so on: the first batch comes soon, and pools are soon as large as the budget allows.
# Without a shuffle, pools need not be large.
_FIRST_POOL_BATCHES, _MAX_DOUBLED, _MAX_DOUBLED_IN_ORDER = 4, 20, 3
# More windows mix no better.
_MAX_WINDOWS = 2**20
# A limit, because the list of a pool's episodes is copied with each chunk.
_MAX_EPISODES = 2**13


class StreamReport(WindowReport):
  """Counts episodes, steps and windows, and the memory of pools.

  Attributes:
    memory_budget: bytes that the pools may take; None before a dataset is created.
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
      num_bytes: bytes of the pools in memory, and of the episodes parsed for the next,
        at most, int64 scalar.
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
    """Maximum bytes of pools, and of the episodes parsed for the next, together."""
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
  report: WindowReport | None = None,
  decode_images: DecodeImages = True,
  max_windows: int = _MAX_WINDOWS,
  **fields: Any,
) -> tf.data.Dataset:
  """Creates batches of the shuffled windows of a stream of episodes.

  Consecutive episodes fill a pool, until another would exceed the budget. Each image is
  decoded once, the windows of a pool are permuted, and batches are gathered from it.
  The next pool is filled meanwhile; the first ones are small, so that the first batch
  comes soon. Every window comes once per epoch; windows that fill no batch join those
  of the next pool. The order depends on the seed only.

  Args:
    episodes: dataset of episodes by path, leaves [T, ...] and context features,
      preferably with encoded images; or a function that makes it, given the epoch,
      int64 scalar. The budget allows for four that are parsed at a time.
    spec_structure: the specs of a window.
    batch_size: B; None: the plan's.
    plan: plan of the batches; None for one epoch with all windows, in another order in
      every run. In the order 'sequential' nothing is shuffled. Its shard is ignored:
      pass the episodes of one shard. Its memory_budget is for two pools, the episodes
      parsed for the next, some batches, and TensorFlow's memory for them. An episode
      that needs more is still used, and a warning on stderr gives the bytes.
    cut: how episodes become windows; None for `Cut()`.
    report: counts the episodes; a `StreamReport` also the memory of pools. None: only a
      warning of episodes that are too short for a window.
    decode_images: whether to decode images, or the `records.ImageDecoding` to use;
      False: strings.
    max_windows: maximum windows of a pool, at least a batch, for slow episodes.
    **fields: fields of the plan and the cut, which they replace: seed=1, ...
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the episodes do not fit the specs, or an argument is invalid.
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
    # tf.data passes the parts of a tuple as separate arguments.
    return columns.keep(columns.select(episode[0] if len(episode) == 1 else episode))

  return shuffled_windows(
    lambda epoch: make(epoch).map(_no_autograph(keep)).batch(1),
    columns,
    plan,
    report,
    max_windows,
  )


def shuffled_windows(
  make_chunks: MakeDataset,
  columns: PoolColumns,
  plan: Plan,
  report: WindowReport | None,
  max_windows: int = _MAX_WINDOWS,
) -> tf.data.Dataset:
  """Does the same as `streamed_windows`, from chunks of a few consecutive episodes.

  Args:
    make_chunks: makes the dataset of the chunks of an epoch, given its number, int64
      scalar: non-empty batches of results of `columns.keep`.
    columns: columns of the episodes.
    plan: plan of the batches.
    report: as in `streamed_windows`.
    max_windows: maximum windows of a pool.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  """
  seed = draw_seed() if plan.seed is None else plan.seed
  if isinstance(report, StreamReport):
    report.memory_budget = plan.memory_budget
  filler = _Filler(columns, plan, report, max_windows)

  def epoch(number: tf.Tensor) -> tf.data.Dataset:
    end = tf.data.Dataset.from_tensors(number).map(_no_autograph(_end_of_epoch))
    chunks = make_chunks(number).map(
      _no_autograph(lambda chunk: {**chunk, "epoch": number, "is_end": False})
    )
    return chunks.concatenate(end)

  def join(filled: dict[str, tf.Tensor]) -> Pool:
    lengths, counts = tf.unstack(filled["lengths"], axis=1)
    ends = tf.cumsum(counts)
    order = tf.range(ends[-1])
    if plan.order != "sequential":
      order = permute_positions(order, ends[-1], seed, filled["number"])
    first_rows = tf.cumsum(lengths, exclusive=True)
    return {
      "rows": columns.join(filled["kept"]),
      "ends": ends,
      "episodes": tf.stack([ends - counts, lengths, first_rows], 1),
      "order": order,
      "start": tf.constant(0, tf.int64),
      "is_last": tf.equal(filled["epoch"], plan.last_epoch - 1) & filled["is_end"],
    }

  def carry(rest: Any, filled: Pool) -> tuple[Any, Pool]:
    """Carries windows that fill no batch over to the next pool."""
    num_rest, size = map(pool.num_windows, (rest, filled["order"]))
    total = num_rest + size
    stop = total // plan.batch_size * plan.batch_size
    if not plan.drops:
      stop = tf.where(filled["is_last"], total, stop)
    left = columns.gather(filled, tf.maximum(stop - num_rest, 0), size)
    new_rest = pool.concatenate(
      tf.nest.map_structure(lambda leaf: leaf[stop:], rest), left
    )
    return new_rest, {**filled, "rest": rest, "stop": stop}

  def batches() -> tf.data.Dataset:
    with tf.device("CPU:0"):
      chunks = tf.data.Dataset.range(plan.last_epoch).flat_map(_no_autograph(epoch))
      pools = filler.fill(chunks).map(_no_autograph(join))
      no_windows = tf.nest.map_structure(
        lambda leaf: tf.zeros([0, *(n or 0 for n in leaf.shape)], leaf.dtype),
        columns.reader.window_spec,
      )
      # The next pool is filled while batches are gathered from this one.
      pools = pools.scan(no_windows, _no_autograph(carry)).prefetch(1)
      return pool.gather_batches(pools, columns, plan)

  # In a tf.function: eagerly, TensorFlow adds the functions of a `scan` to its global
  # graph and never removes them, 11 MB for each dataset.
  made = tf.function(batches, autograph=False).get_concrete_function()()
  return made.with_options(dataset_options())


class _Filler:
  """Fills pools with consecutive chunks of episodes.

  A pool is closed when the next chunk would exceed the budget, or the maximum of
  windows or episodes, and at the end of an epoch. A single chunk that exceeds the
  budget fills a whole pool, with a warning.
  """

  def __init__(
    self,
    columns: PoolColumns,
    plan: Plan,
    report: WindowReport | None,
    max_windows: int,
  ) -> None:
    self._batch_size = plan.batch_size
    self._max_windows = max(max_windows, plan.batch_size)
    at_once = pool.batches_at_once(plan, columns.reader)
    self._gathered_bytes = at_once * plan.batch_size * columns.reader.window_bytes
    self._memory_budget = plan.memory_budget
    self._is_endless = plan.num_epochs is None
    in_order = plan.order == "sequential"
    self._max_doubled = _MAX_DOUBLED_IN_ORDER if in_order else _MAX_DOUBLED
    self._report = report
    self._reader = columns.reader

  def fill(self, chunks: tf.data.Dataset) -> tf.data.Dataset:
    """Creates the dataset of filled pools.

    Args:
      chunks: dataset of the chunks of all epochs, each ended by `_end_of_epoch`.
    Returns:
      Dataset of 'kept', a list of episodes; their 'lengths' in steps and in windows,
      int64 [n, 2]; the 'number' of the pool; its 'epoch'; and 'is_end', whether it is
      the last one of the epoch.
    """
    names = ("number", "windows", "pooled", "largest", "parsed", "in_epoch")
    start: dict[str, Any] = dict.fromkeys(names, tf.constant(0, tf.int64))
    start["kept"] = RowList.empty(tf.TensorShape([]), tf.variant).handle
    # Unknown length: if a step changes a shape, `scan` traces it once more.
    start["lengths"] = tf.raw_ops.PlaceholderWithDefault(
      input=tf.zeros([0, 2], tf.int64), shape=[None, 2]
    )
    filled = chunks.scan(start, _no_autograph(self._step))
    filled = filled.filter(_no_autograph(lambda _, is_closed: is_closed))
    return filled.map(_no_autograph(lambda pool, _: pool))

  def _step(self, state: dict[str, Any], chunk: dict[str, Any]) -> tuple[Any, Any]:
    """Appends a chunk; returns the state, and the last pool with whether it is full."""
    lengths, counts, sizes, parsed_sizes = tf.unstack(chunk["numbers"], axis=1)
    zero = tf.constant(0, tf.int64)
    is_end = chunk["is_end"]
    new_windows = tf.reduce_sum(counts)
    # A chunk without windows is left out. As the only one after a full pool, it would
    # be the last pool of the epoch, and a pool without windows is never closed.
    num_new = tf.where(new_windows > 0, tf.size(lengths, tf.int64), 0)
    size = tf.reduce_sum(sizes[:num_new])
    # reduce_max of an empty tensor is int64.min.
    parsed = tf.maximum(state["parsed"], tf.reduce_max(parsed_sizes))
    largest = tf.maximum(state["largest"], size)
    in_epoch = state["in_epoch"] + new_windows
    num_episodes = tf.shape(state["lengths"], tf.int64)[0]
    is_full = self._num_bytes(state["pooled"] + size, parsed) > self._memory_budget
    is_full |= state["windows"] + new_windows > self._most_windows(state["number"])
    is_full |= num_episodes + num_new > _MAX_EPISODES
    is_full &= num_new > 0
    is_closed = (is_full | is_end) & (state["windows"] > 0)
    checks = [
      self._count_episodes(lengths, counts),
      self._count_pool(is_closed, state["pooled"], parsed),
      self._warn(state, largest, parsed, lengths),
      self._check_epoch(is_end, in_epoch),
    ]
    with tf.control_dependencies(checks):
      number = tf.identity(state["number"])
    filled = {
      "kept": state["kept"],
      "lengths": state["lengths"],
      "number": number,
      "epoch": chunk["epoch"],
      "is_end": is_end,
    }
    is_new = is_full | is_end  # The chunk begins a pool.
    kept = tf.cond(
      is_new,
      _no_autograph(lambda: RowList.empty(tf.TensorShape([]), tf.variant).handle),
      _no_autograph(lambda: tf.identity(state["kept"])),
    )
    after = {
      "kept": tf.raw_ops.TensorListConcatLists(
        input_a=kept,
        input_b=tf.raw_ops.TensorListFromTensor(
          tensor=chunk["kept"][:num_new], element_shape=tf.constant([], tf.int32)
        ),
        element_dtype=tf.variant,
      ),
      "lengths": tf.concat(
        [
          state["lengths"][: tf.where(is_new, zero, num_episodes)],
          chunk["numbers"][:num_new, :2],
        ],
        0,
      ),
      "number": number + tf.cast(is_closed, tf.int64),
      "windows": tf.where(is_new, zero, state["windows"]) + new_windows,
      "pooled": tf.where(is_new, zero, state["pooled"]) + size,
      "largest": largest,
      "parsed": parsed,
      "in_epoch": tf.where(is_end, zero, in_epoch),
    }
    return after, (filled, is_closed)

  def _most_windows(self, number: tf.Tensor) -> tf.Tensor:
    first = tf.constant(_FIRST_POOL_BATCHES * self._batch_size, tf.int64)
    doubled = tf.bitwise.left_shift(first, tf.minimum(number, self._max_doubled))
    return tf.minimum(doubled, self._max_windows)

  def _num_bytes(self, pooled: Any, parsed: Any) -> Any:
    return pool.num_bytes_alive(pooled, parsed, self._gathered_bytes)

  def _warn(
    self, state: Any, largest: tf.Tensor, parsed: tf.Tensor, lengths: tf.Tensor
  ) -> tf.Operation:
    """Warns of an episode that exceeds the budget, if it needs more than any before."""
    min_bytes = self._num_bytes(largest, parsed)
    before = self._num_bytes(state["largest"], state["parsed"])
    is_new = (min_bytes > self._memory_budget) & (min_bytes > before)

    def warn() -> tf.Operation:
      return tf.print(
        "memory_budget: expected at least",
        min_bytes,
        "bytes, for pools that hold an episode of",
        tf.reduce_max(lengths),
        "steps, got",
        tf.constant(self._memory_budget, tf.int64),
        "bytes. It is used all the same; give more, or write shorter episodes.",
        output_stream=sys.stderr,
      )

    return tf.cond(is_new, _no_autograph(warn), tf.no_op)

  def _check_epoch(self, is_end: tf.Tensor, num_windows: tf.Tensor) -> tf.Operation:
    """Raises if an epoch had no window and epochs have no end: reading would hang."""
    if not self._is_endless:
      return tf.no_op()
    return tf.raw_ops.Assert(
      condition=~is_end | (num_windows > 0), data=[tf.constant(pool.NOTHING_LEFT)]
    )

  def _count_pool(
    self, is_closed: tf.Tensor, pooled: tf.Tensor, parsed: tf.Tensor
  ) -> tf.Operation:
    if not isinstance(self._report, StreamReport):
      return tf.no_op()
    num_bytes = self._num_bytes(pooled, parsed)
    count = self._report.count_pool
    return tf.cond(is_closed, _no_autograph(lambda: count(num_bytes)), tf.no_op)

  def _count_episodes(self, lengths: tf.Tensor, counts: tf.Tensor) -> tf.Operation:
    if self._report is not None:
      return self._report.count(lengths, counts)
    if self._reader.grid.cut.pads_end:
      return tf.no_op()

    def report() -> tf.Operation:
      shortest = tf.reduce_min(lengths)
      return print_too_short(shortest, tf.reduce_min(counts), self._reader.min_steps)

    return tf.cond(tf.reduce_any(counts < 1), _no_autograph(report), tf.no_op)


def _end_of_epoch(number: tf.Tensor) -> dict[str, tf.Tensor]:
  """Returns the mark of the end of an epoch: a chunk without an episode."""
  # The raw op returns a bare variant, as the raw ops on lists take it.
  nothing = tf.raw_ops.OptionalNone()[tf.newaxis][:0]
  numbers = tf.zeros([0, 4], tf.int64)
  return {"kept": nothing, "numbers": numbers, "epoch": number, "is_end": True}
