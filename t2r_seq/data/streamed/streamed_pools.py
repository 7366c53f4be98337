"""Pools of streamed episodes: closed before they exceed a budget of memory."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from t2r_seq import windows
from t2r_seq.data.loaders.pool_order import (
  BATCHES_ALIVE,
  POOLS_ALIVE,
  WINDOW_BYTES,
  with_overhead,
)
from t2r_seq.data.streamed.episode_columns import EpisodeColumns, Lists
from t2r_seq.data.streamed.stream_report import StreamReport
from t2r_seq.windows.report import print_too_short

_as_it_is = tf.autograph.experimental.do_not_convert

# What an episode that is too large fails with: bytes needed, its steps, bytes given.
BUDGET = re.compile(
  r"\[memory_budget: expected at least\] \[(\d+)\] \[bytes [^]]*\] \[(\d+)\] "
  r"\[steps, got\] \[(\d+)\]"
)
# Episodes that are parsed at a time; no more, because their memory counts.
PARSES_AT_ONCE = 4
# Of an episode while it is parsed: the record, its strings, and its values. One more
# is on its way to a pool.
_PARSED_COPIES = 3 * PARSES_AT_ONCE + 1


class PoolFiller:
  """Fills pools with episodes that follow each other.

  A pool is closed as soon as another episode as large as any before may find no room,
  so that nothing of it stays behind: the state that a checkpoint saves is a few numbers
  then. Only one that is larger comes too late to be foreseen; it begins the next pool,
  and is part of the state.
  """

  def __init__(
    self,
    columns: EpisodeColumns,
    batch_size: int,
    memory_budget: int,
    seed: int,
    num_epochs: int | None,
    drop_remainder: bool,
    report: windows.WindowReport | None,
  ) -> None:
    """Creates the filler.

    Args:
      columns: of the episodes.
      batch_size: of the batches that windows are for.
      memory_budget: bytes.
      seed: of the order of the windows in a pool.
      num_epochs: None for ever.
      drop_remainder: whether windows that fill no batch are left out at the end.
      report: counts episodes and pools.
    """
    self._columns = columns
    self._batch_size = batch_size
    self._memory_budget = memory_budget
    self._seed = seed
    self._last_epoch = -1 if num_epochs is None else num_epochs - 1
    self._drop_remainder = drop_remainder
    self._report = report
    self._grid = columns.reader.grid

  def pools(self, episodes: tf.data.Dataset) -> tf.data.Dataset:
    """Creates the dataset of pools.

    Args:
      episodes: pairs of what `EpisodeColumns.select` gives, and whether an epoch ends
        here instead.
    Returns:
      Dataset of what `EpisodeColumns.join` gives, with 'left', the windows before that
      fill no batch, and 'is_last' of all epochs; 'slot', the episode, and 'start', the
      first anchor, of each window in the order of the batches; 'first_row' of each
      episode.
    """
    zero = tf.constant(0, tf.int64)
    names = ("number", "left", "epoch", "parsed", "largest")
    start = {**dict.fromkeys(names, zero), "pool": self._empty()}
    closed = episodes.scan(start, _as_it_is(self._step))
    closed = closed.filter(_as_it_is(lambda _, is_closed: is_closed))
    # A scan, because tf.data makes a map parallel, and then keeps its results.
    return closed.scan(
      zero, _as_it_is(lambda state, closed: (state, self._join(closed[0])))
    )

  def _step(self, state: dict[str, Any], shown: tuple[Any, ...]) -> tuple[Any, Any]:
    """Appends an episode; closes the pool before it, or after it, if at all."""
    episode, ends = shown
    count = self._count_windows(episode, ends)
    # One that is too short for a window takes no room.
    size = tf.where(count > 0, episode["pooled"], 0) + WINDOW_BYTES * count
    parsed = tf.maximum(state["parsed"], episode["parsed"])
    largest = tf.maximum(state["largest"], size)
    with tf.control_dependencies([self._check_size(episode, size, parsed)]):
      is_late = ~self._fits(state["pool"]["pooled"] + size, parsed)
    pool = _either(is_late, self._empty(), state["pool"])
    pool = {
      "lists": self._append(pool["lists"], episode, count),
      "windows": pool["windows"] + count,
      "pooled": pool["pooled"] + size,
    }
    is_full = ends | ~self._fits(pool["pooled"] + largest, parsed)
    closed = _either(is_late, state["pool"], pool)
    is_last = ends & (state["epoch"] == self._last_epoch)
    flushes = is_last & (state["left"] > 0) & (not self._drop_remainder)
    is_closed = (is_late | is_full) & ((closed["windows"] > 0) | flushes)
    left = (state["left"] + closed["windows"]) % self._batch_size
    with tf.control_dependencies([self._note_pool(closed, parsed, is_closed)]):
      given = {name: tf.identity(state[name]) for name in ("number", "left")}
    kept = {
      "pool": _either(is_full & ~is_late, self._empty(), pool),
      "number": state["number"] + tf.cast(is_closed, tf.int64),
      "left": tf.where(is_closed, left, state["left"]),
      "epoch": state["epoch"] + tf.cast(ends, tf.int64),
      "parsed": parsed,
      "largest": largest,
    }
    return kept, ({**given, "lists": closed["lists"], "is_last": is_last}, is_closed)

  def _empty(self) -> dict[str, Any]:
    zero = tf.constant(0, tf.int64)
    return {"lists": self._columns.empty(), "windows": zero, "pooled": zero}

  def _fits(self, pooled: tf.Tensor, parsed: tf.Tensor) -> tf.Tensor:
    return self._num_bytes(pooled, parsed) <= self._memory_budget

  def _num_bytes(self, pooled: tf.Tensor, parsed: tf.Tensor) -> tf.Tensor:
    """Returns what pools of a size take, with what is on its way to and from them."""
    batches = BATCHES_ALIVE * self._batch_size * self._columns.reader.window_bytes
    return with_overhead(POOLS_ALIVE * pooled + _PARSED_COPIES * parsed + batches)

  def _count_windows(self, episode: Any, ends: tf.Tensor) -> tf.Tensor:
    """Counts the windows of an episode, and reports it; the end of an epoch is none."""
    num_steps = episode["num_steps"]
    count = tf.where(ends, tf.zeros_like(num_steps), self._grid.num_windows(num_steps))
    noted = tf.cond(
      ends, lambda: False, _as_it_is(lambda: self._note_episode(num_steps, count))
    )
    with tf.control_dependencies([noted]):
      return tf.identity(count)

  def _append(self, lists: Lists, episode: Any, count: tf.Tensor) -> Lists:
    return tf.cond(
      count > 0,
      _as_it_is(
        lambda: self._columns.append(lists, episode["values"], episode["num_steps"])
      ),
      _as_it_is(lambda: _same(lists)),
    )

  def _join(self, pool: dict[str, Any]) -> dict[str, Any]:
    """Makes tensors of the lists, and permutes their windows."""
    joined = self._columns.join(pool["lists"])
    counts = self._grid.num_windows(joined["length"])
    ends = tf.cumsum(counts)
    window = self._permute(tf.reduce_sum(counts), pool["number"])
    slot = tf.searchsorted(ends, window, "right")
    return {
      **joined,
      **{name: pool[name] for name in ("left", "is_last")},
      # By window.
      "slot": slot,
      "start": self._grid.start(window - tf.gather(ends - counts, slot)),
      # By episode.
      "first_row": tf.cumsum(joined["length"], exclusive=True),
    }

  def _permute(self, num_windows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    window = tf.range(num_windows)
    seed = tf.stack([tf.constant(self._seed % 2**32, tf.int64), number])
    return tf.cond(
      num_windows > 1,
      lambda: tf.random.experimental.index_shuffle(window, seed, num_windows - 1),
      lambda: window,
    )

  def _check_size(
    self, episode: Any, size: tf.Tensor, parsed: tf.Tensor
  ) -> tf.Operation:
    needed = self._num_bytes(size, parsed)
    return tf.raw_ops.Assert(
      condition=needed <= self._memory_budget,
      data=[
        "memory_budget: expected at least",
        needed,
        "bytes for pools that hold an episode of",
        episode["num_steps"],
        "steps, got",
        tf.constant(self._memory_budget, tf.int64),
        "bytes. Give more, or write shorter episodes.",
      ],
      summarize=8,
    )

  def _note_pool(self, pool: Any, parsed: tf.Tensor, is_closed: tf.Tensor) -> Any:
    report = self._report
    if not isinstance(report, StreamReport):
      return tf.no_op()
    report.memory_budget = self._memory_budget
    num_bytes = self._num_bytes(pool["pooled"], parsed)
    return tf.cond(
      is_closed,
      _as_it_is(lambda: _then(report.count_pool(num_bytes))),
      lambda: False,
    )

  def _note_episode(self, num_steps: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    if self._report is not None:
      return _then(self._report.count(num_steps, count))
    if self._grid.padding != "drop":
      return tf.constant(True)
    min_steps = self._grid.min_steps
    return _then(print_too_short(num_steps, count, min_steps))


def _either(condition: tf.Tensor, first: Any, second: Any) -> Any:
  return tf.cond(condition, lambda: _same(first), lambda: _same(second))


def _then(operation: Any) -> tf.Tensor:
  with tf.control_dependencies([operation]):
    return tf.constant(True)


def _same(structure: Any) -> Any:
  return tf.nest.map_structure(tf.identity, structure)
