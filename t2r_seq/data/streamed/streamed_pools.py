"""Pools of streamed episodes: closed before they exceed a budget of memory."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from t2r_seq import windows
from t2r_seq.data.streamed.episode_columns import EpisodeColumns
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
# waits for room in a pool.
_PARSED_COPIES = 3 * PARSES_AT_ONCE + 1
# One that batches are gathered from, one that is being filled.
_POOLS_ALIVE = 2


class PoolFiller:
  """Fills pools with episodes that follow each other.

  Each episode is shown twice: first its size, so that a pool that has no room for it is
  closed, then its values. Nothing of a closed pool stays behind: between two pools, the
  state that a checkpoint saves is a few numbers.
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
    shown = episodes.flat_map(_as_it_is(_show_twice))
    zero = tf.constant(0, tf.int64)
    start = {
      **{name: zero for name in ("number", "left", "epoch", "windows")},
      **{name: zero for name in ("pooled", "parsed")},
      "lists": self._columns.empty(),
    }
    closed = shown.scan(start, _as_it_is(self._step))
    closed = closed.filter(_as_it_is(lambda _, is_closed: is_closed))
    # A scan, because tf.data makes a map parallel, and then keeps its results.
    return closed.scan(
      zero, _as_it_is(lambda state, closed: (state, self._join(closed[0])))
    )

  def _step(self, state: dict[str, Any], shown: tuple[Any, ...]) -> tuple[Any, Any]:
    (episode, ends), turn = shown
    return tf.cond(
      turn < 1,
      _as_it_is(lambda: self._make_room(state, episode, ends)),
      _as_it_is(lambda: self._fill(state, episode, ends)),
    )

  def _make_room(
    self, state: dict[str, Any], episode: Any, ends: Any
  ) -> tuple[Any, Any]:
    """Closes the pool if it has no room for the episode, or if the epoch ends."""
    parsed = tf.maximum(state["parsed"], episode["parsed"])
    pooled = state["pooled"] + episode["pooled"]
    with tf.control_dependencies([self._check_size(episode, parsed)]):
      is_full = _POOLS_ALIVE * pooled + _PARSED_COPIES * parsed > self._memory_budget
    is_last = ends & (state["epoch"] == self._last_epoch)
    flushes = is_last & (state["left"] > 0) & (not self._drop_remainder)
    closes = ends | is_full
    is_closed = closes & ((state["windows"] > 0) | flushes)
    with tf.control_dependencies([self._note_pool(state, is_closed)]):
      pool = {name: state[name] for name in ("lists", "number", "left")}
      pool = {**tf.nest.map_structure(tf.identity, pool), "is_last": is_last}
    zero = tf.constant(0, tf.int64)
    left = (state["left"] + state["windows"]) % self._batch_size
    kept = {
      "number": state["number"] + tf.cast(is_closed, tf.int64),
      "left": tf.where(is_closed, left, state["left"]),
      "epoch": state["epoch"] + tf.cast(ends, tf.int64),
      "windows": tf.where(closes, zero, state["windows"]),
      "pooled": tf.where(closes, zero, state["pooled"]),
      "parsed": parsed,
      "lists": tf.cond(closes, self._columns.empty, lambda: _same(state["lists"])),
    }
    return kept, (pool, is_closed)

  def _fill(self, state: dict[str, Any], episode: Any, ends: Any) -> tuple[Any, Any]:
    """Appends the episode; one that is too short for a window is only counted."""
    num_steps = episode["num_steps"]
    none = tf.constant(0, tf.int64)
    count = tf.where(ends, none, self._grid.num_windows(num_steps))
    lists = tf.cond(
      count > 0,
      _as_it_is(
        lambda: self._columns.append(state["lists"], episode["values"], num_steps)
      ),
      _as_it_is(lambda: _same(state["lists"])),
    )
    noted = tf.cond(
      ends, lambda: False, _as_it_is(lambda: self._note_episode(num_steps, count))
    )
    with tf.control_dependencies([noted]):
      count = tf.identity(count)
    pooled = tf.where(count > 0, episode["pooled"], none)
    kept = {
      **state,
      "windows": state["windows"] + count,
      "pooled": state["pooled"] + pooled,
      "lists": lists,
    }
    pool = {name: state[name] for name in ("number", "left")}
    nothing = {**pool, "lists": self._columns.empty(), "is_last": tf.constant(False)}
    return kept, (nothing, tf.constant(False))

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

  def _check_size(self, episode: Any, parsed: tf.Tensor) -> tf.Operation:
    needed = _POOLS_ALIVE * episode["pooled"] + _PARSED_COPIES * parsed
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

  def _note_pool(self, state: dict[str, Any], is_closed: tf.Tensor) -> Any:
    report = self._report
    if not isinstance(report, StreamReport):
      return tf.no_op()
    report.memory_budget = self._memory_budget
    num_bytes = _POOLS_ALIVE * state["pooled"] + _PARSED_COPIES * state["parsed"]
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


def _show_twice(episode: Any, ends: tf.Tensor) -> tf.data.Dataset:
  """Returns a dataset of an episode's size and of the episode."""
  # To map a function here costs half a millisecond an episode.
  once = tf.data.Dataset.from_tensors((episode, ends))
  return tf.data.Dataset.zip((once.repeat(2), tf.data.Dataset.range(2)))


def _then(operation: Any) -> tf.Tensor:
  with tf.control_dependencies([operation]):
    return tf.constant(True)


def _same(lists: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  return {path: tf.identity(handle) for path, handle in lists.items()}
