"""Pools of streamed episodes: closed before they exceed a budget of memory."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from t2r_seq import errors, windows
from t2r_seq.data import emptiness
from t2r_seq.data.loaders.pool_order import (
  BATCHES_ALIVE,
  POOLS_ALIVE,
  with_overhead,
)
from t2r_seq.data.streamed.episode_columns import EpisodeColumns
from t2r_seq.data.streamed.pool_rescue import PoolRescue
from t2r_seq.data.streamed.stream_report import StreamReport
from t2r_seq.windows.dataset import print_too_short

_as_it_is = tf.autograph.experimental.do_not_convert

# What an episode that is too large fails with: bytes needed, its steps, bytes given.
BUDGET = re.compile(
  r"\[memory_budget: expected at least\] \[(\d+)\] \[bytes [^]]*\] \[(\d+)\] "
  r"\[steps, got\] \[(\d+)\]"
)
# Episodes that are parsed at a time; no more, because their memory counts.
PARSES_AT_ONCE = 4
# Of an episode while it is parsed: the record, its strings, its values, and as much
# again that others have just freed in another arena, or that is held to be parsed again
# where bad records are left out. With 13 copies, episodes of 7 MB that were parsed took
# up to 1.35 of a budget of 266 MiB, and 1.45 where bad ones are left out.
PARSED_COPIES = 5 * PARSES_AT_ONCE


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
    rescue: PoolRescue | None = None,
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
      rescue: decodes images past bad ones; None: these are errors.
    """
    self._columns = columns
    self._lists = columns.lists
    self._batch_size = batch_size
    self._memory_budget = memory_budget
    self._seed = seed
    self._last_epoch = -1 if num_epochs is None else num_epochs - 1
    self._drop_remainder = drop_remainder
    self._report = report
    self._rescue = rescue
    self._grid = columns.reader.grid
    least = self._num_bytes(0, 0)
    if least > memory_budget:
      raise errors.SpecError(
        f"memory_budget: expected at least {least:,} bytes for {BATCHES_ALIVE} batches "
        f"of {batch_size} windows of {columns.reader.window_bytes:,} bytes, and more "
        f"for the episodes that they are from, got {memory_budget:,}."
      )

  def pools(self, episodes: tf.data.Dataset) -> tf.data.Dataset:
    """Creates the dataset of pools.

    Args:
      episodes: what `EpisodeColumns.select` gives, and `end` after each epoch.
    Returns:
      Dataset of the 'rows' that `EpisodeColumns.join` gives; 'windows', int64 [N, 4] in
      the order of the batches: number of the episode, first anchor in it, length of the
      episode, and its first row; 'left', the windows before that fill no batch; and
      'is_last' of all epochs.
    """
    zero = tf.constant(0, tf.int64)
    names = ("number", "epoch", "parsed", "largest", "windows", "pooled")
    start = {**dict.fromkeys(names, zero), "lists": self._lists.empty()}
    closed = episodes.scan(start, _as_it_is(self._step))
    closed = closed.filter(_as_it_is(lambda _, is_closed: is_closed))
    decode = None if self._rescue is None else self._rescue.decode

    def add(state: Any, closed: Any) -> tuple[Any, dict[str, Any]]:
      left, of_epoch = state
      joined = self._columns.join(closed[0]["lists"], decode)
      pool = self._permuted(closed[0], joined)
      num_windows = tf.shape(pool["windows"], tf.int64)[0]
      of_epoch += num_windows
      is_over = closed[0]["is_over"]
      with tf.control_dependencies([self._check_goes_on(is_over, of_epoch)]):
        left_after = (left + num_windows) % self._batch_size
      of_epoch = tf.where(is_over, zero, of_epoch)
      return (left_after, of_epoch), {**pool, "left": left}

    # A scan, because a map may be made parallel by later options, and keeps pools then.
    return closed.scan((zero, zero), _as_it_is(add))

  def _step(self, state: dict[str, Any], episode: dict[str, Any]) -> tuple[Any, Any]:
    """Appends an episode; closes the pool before it, or after it, if at all."""
    size, count, ends = episode["pooled"], episode["num_windows"], episode["is_end"]
    zero = tf.constant(0, tf.int64)
    parsed = tf.maximum(state["parsed"], episode["parsed"])
    largest = tf.maximum(state["largest"], size)
    with tf.control_dependencies([self._check_size(episode, parsed)]):
      is_late = ~self._fits(state["pooled"] + size, parsed)
    # The pool with the episode, which may be the next one.
    pooled = tf.where(is_late, zero, state["pooled"]) + size
    windows_of_both = state["windows"] + count
    is_full = ends | ~self._fits(pooled + largest, parsed)
    num_windows = tf.where(is_late, state["windows"], windows_of_both)
    is_last = ends & (state["epoch"] == self._last_epoch)
    flushes = is_last & (not self._drop_remainder)
    is_closed = (is_late | is_full) & ((num_windows > 0) | flushes)
    # Of epochs for ever the end always comes to where it is seen whether there was one.
    is_seen = is_closed | (ends & (self._last_epoch < 0))

    empty = self._lists.empty()
    before = _either(is_late, empty, state["lists"])
    lists = tf.cond(
      count > 0,
      _as_it_is(lambda: self._lists.append(before, episode["values"])),
      _as_it_is(lambda: same(before)),
    )
    is_over = is_full & ~is_late
    with tf.control_dependencies([self._note_episode(episode)]):
      number = tf.identity(state["number"])
    given = {
      "number": number,
      "lists": _either(is_late, state["lists"], lists),
      "num_bytes": self._num_bytes(tf.where(is_late, state["pooled"], pooled), parsed),
      "is_last": is_last,
      "is_over": ends,
    }
    kept = {
      "lists": _either(is_over, empty, lists),
      "windows": tf.where(is_over, zero, tf.where(is_late, count, windows_of_both)),
      "pooled": tf.where(is_over, zero, pooled),
      "number": state["number"] + tf.cast(is_closed, tf.int64),
      "epoch": state["epoch"] + tf.cast(ends, tf.int64),
      "parsed": parsed,
      "largest": largest,
    }
    return kept, (given, is_seen)

  def _fits(self, pooled: tf.Tensor, parsed: tf.Tensor) -> tf.Tensor:
    return self._num_bytes(pooled, parsed) <= self._memory_budget

  def _num_bytes(self, pooled: Any, parsed: Any) -> Any:
    """Returns what pools of a size take, with what is on its way to and from them."""
    batches = BATCHES_ALIVE * self._batch_size * self._columns.reader.window_bytes
    return with_overhead(POOLS_ALIVE * pooled + PARSED_COPIES * parsed + batches)

  def _permuted(self, pool: dict[str, Any], joined: dict[str, Any]) -> dict[str, Any]:
    """Adds the order of the windows to the tensors of a pool."""
    length, is_good = joined["length"], joined["is_good"]
    counts = self._grid.num_windows(length) * tf.cast(is_good, tf.int64)
    ends = tf.cumsum(counts)
    num_windows = tf.reduce_sum(counts)
    # After all that may fail: a pool is reported once.
    with tf.control_dependencies(tf.nest.flatten(joined["rows"])):
      noted = self._note_pool(num_windows, pool["num_bytes"])
      taken = self._take_back(length, is_good)
    with tf.control_dependencies([noted, taken]):
      window = self._permute(num_windows, pool["number"])
    slot = tf.searchsorted(ends, window, "right", tf.int64)
    start = self._grid.start(window - tf.gather(ends - counts, slot))
    of_episodes = tf.stack([length, tf.cumsum(length, exclusive=True)], 1)
    return {
      "rows": joined["rows"],
      "windows": tf.concat(
        [tf.stack([slot, start], 1), tf.gather(of_episodes, slot)], 1
      ),
      "is_last": pool["is_last"],
    }

  def _permute(self, num_windows: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    window = tf.range(num_windows)
    seed = tf.stack([tf.constant(self._seed % 2**32, tf.int64), number])
    return tf.cond(
      num_windows > 1,
      lambda: tf.random.experimental.index_shuffle(window, seed, num_windows - 1),
      lambda: window,
    )

  def _check_size(self, episode: Any, parsed: tf.Tensor) -> tf.Operation:
    needed = self._num_bytes(episode["pooled"], parsed)
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

  def _check_goes_on(self, is_over: tf.Tensor, num_windows: tf.Tensor) -> tf.Operation:
    """Checks that an epoch had a window, if another follows: better than no end."""
    if self._last_epoch >= 0:
      return tf.no_op()
    return tf.raw_ops.Assert(
      condition=~is_over | (num_windows > 0), data=[tf.constant(emptiness.NOTHING_LEFT)]
    )

  def _note_pool(self, num_windows: tf.Tensor, num_bytes: tf.Tensor) -> tf.Operation:
    """Reports a pool; one without windows is none."""
    if not isinstance(self._report, StreamReport):
      return tf.no_op()
    self._report.memory_budget = self._memory_budget
    is_one = tf.cast(num_windows > 0, tf.int64)
    return self._report.count_pool(num_bytes * is_one, is_one)

  def _take_back(self, length: tf.Tensor, is_good: tf.Tensor) -> tf.Operation:
    """Reports no longer those of some episodes that are not good."""
    if self._report is None:
      return tf.no_op()
    bad = tf.boolean_mask(length, ~is_good)
    num_windows = tf.reduce_sum(self._grid.num_windows(bad))
    return self._report.take_back(
      tf.reduce_sum(bad), num_windows, tf.size(bad, tf.int64)
    )

  def _note_episode(self, episode: Any) -> tf.Operation:
    """Reports an episode; the end of an epoch is none."""
    num_steps, count = episode["num_steps"], episode["num_windows"]
    if self._report is not None:
      is_one = tf.cast(~episode["is_end"], tf.int64)
      return self._report.count(num_steps, count, is_one)
    if self._grid.keeps_first:
      return tf.no_op()
    # Of one with a window nothing is printed.
    count = tf.where(episode["is_end"], tf.ones_like(count), count)
    return print_too_short(num_steps, count, self._grid.min_steps)


def _either(condition: tf.Tensor, first: Any, second: Any) -> Any:
  return tf.cond(condition, lambda: same(first), lambda: same(second))


def same(structure: Any) -> Any:
  """Returns a structure for a branch of `tf.cond`, which returns none of its inputs."""
  return tf.nest.map_structure(tf.identity, structure)
