"""Inserts and samples of items, paced by the rate limiter."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors
from t2r_seq.replay import options
from t2r_seq.replay.rate_limiters import StopFn, make_rate_limiter
from t2r_seq.replay.replay import SampleInfo, check_open
from t2r_seq.replay.ring import Contexts, Ring, RingIndex, allocate
from t2r_seq.replay.selectors import make_selector

# Items that wait for the selectors: one bulk update is faster than many.
_MAX_PENDING = 4096
# If fewer than one in this number of rows has an item, sampling lists the items.
_MAX_MISSES = 32


class Draw(NamedTuple):
  """Sampled items, and where their steps are.

  Attributes:
    rows: rows of the anchors, int64 [B].
    marks: marks of these rows; see `RingIndex`.
    ages: steps of the episodes before them; None if no front is padded.
    seen: for each joined draw, its rows and the writers' step counts then, int64 [N].
      Rows are reused, so only both together identify a step.
  """

  rows: np.ndarray
  marks: np.ndarray
  ages: np.ndarray | None
  seen: tuple[tuple[np.ndarray, np.ndarray], ...]

  @classmethod
  def join(cls, draws: Sequence[Draw]) -> Draw:
    """Concatenates draws."""
    ages = [draw.ages for draw in draws if draw.ages is not None]
    return cls(
      np.concatenate([draw.rows for draw in draws]),
      np.concatenate([draw.marks for draw in draws]),
      np.concatenate(ages) if ages else None,
      tuple(seen for draw in draws for seen in draw.seen),
    )

  def part(self, start: int, stop: int | None) -> Draw:
    """Returns a range of the items; for draws that were not joined."""
    some = slice(start, stop)
    ages = None if self.ages is None else self.ages[some]
    (rows, counts) = self.seen[0]
    return Draw(self.rows[some], self.marks[some], ages, ((rows[some], counts),))


Drawn = tuple[Draw, SampleInfo | None]
Probabilities = float | np.ndarray


class Items:
  """The items of a buffer, by the rows of their anchors; callers hold its lock.

  Uniform draws try rows until one has an item; if fewer than one row in 32 has one,
  they list all items. Otherwise selectors choose. Inserts and removals are batched
  until the next draw: one by one they would dominate the time of an append.

  Attributes:
    times_sampled: number of times that each row's item was sampled, int32; None if not
      counted.
    greatest: largest priority of any item so far, at least 1.
  """

  def __init__(self, index: RingIndex, table_options: options.TableOptions) -> None:
    num_rows = len(index.marks)
    self._index = index
    self._sampler = make_selector(table_options.sampler, num_rows)
    self._remover = None
    if table_options.max_size is not None:
      self._remover = make_selector(table_options.remover, num_rows)
    # The names are those in a checkpoint: a saved order fits the same class only.
    self._selectors = {
      f"{use}_{type(selector).__name__}": selector
      for use, selector in (("sampler", self._sampler), ("remover", self._remover))
      if selector is not None
    }
    # Rows whose item is still to come have the priority of their step, NaN for none.
    self._priorities: np.ndarray | None = None
    if self._selectors:
      self._priorities = allocate((num_rows,), np.float32)
    self._initial = table_options.initial_priority
    self.greatest = 1.0
    self._new: dict[int, None] = {}
    self._gone: list[int] = []
    self.times_sampled: np.ndarray | None = None
    if table_options.max_times_sampled:
      self.count_samples()

  def count_samples(self) -> None:
    """Starts to count samples of items."""
    if self.times_sampled is None:
      self.times_sampled = allocate(self._index.marks.shape, np.int32)

  def set_pending_priority(self, row: int, priority: float | None) -> None:
    """Stores the priority of a step, or None, for its item."""
    if self._priorities is not None:
      self._priorities[row] = np.nan if priority is None else priority

  def pending_priorities(self, writer: int) -> list[tuple[int, float]]:
    """Returns (step, priority) of a writer's steps whose item is still to come."""
    index, priorities = self._index, self._priorities
    if priorities is None:
      return []
    start, count = index.starts.item(writer), index.counts.item(writer)
    steps = range(max(start, count - index.rule.num_after_growing), count)
    pending = [(step, priorities.item(index.row(writer, step))) for step in steps]
    return [(step, each) for step, each in pending if each == each]

  def insert(self, row: int) -> None:
    """Inserts an item that was just marked in the index."""
    if self.times_sampled is not None:
      self.times_sampled[row] = 0
    if self._priorities is None:
      return
    priority = self._priorities.item(row)
    if priority == priority:
      self.greatest = max(self.greatest, priority)
    else:
      default = self.greatest if self._initial is None else self._initial
      self._priorities[row] = default
    self._new[row] = None
    if len(self._new) + len(self._gone) >= _MAX_PENDING:
      self._flush()

  def remove(self, rows: list[int]) -> None:
    """Removes items that were unmarked in the index."""
    if not self._selectors:
      return
    if not self._new.keys().isdisjoint(rows):
      self._flush()
    self._gone += rows

  def draw(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, float | np.ndarray]:
    """Draws items with replacement; there must be at least one.

    Returns:
      Rows, int64 [B], and their probabilities: float64 [B], or one float for all.
    """
    if self._sampler is None:
      return self._draw_uniform(count, rng), 1.0 / self._index.num_items
    self._flush()
    return self._sampler.sample(count, rng)

  def choose_surplus(self, rng: np.random.Generator) -> np.ndarray:
    """Returns the row of the item to remove, int64 [1]."""
    if self._remover is None:
      return self._draw_uniform(1, rng)
    self._flush()
    return self._remover.sample(1, rng)[0]

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of items; for a repeated row, the last one counts."""
    self.greatest = max(self.greatest, float(priorities.max(initial=0)))
    if self._priorities is not None:
      self._flush()
      self._priorities[rows] = priorities
    for selector in self._selectors.values():
      selector.update(rows, priorities)

  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, float64 [B]; ones if no selector uses any."""
    if self._priorities is None:
      return np.ones(len(rows))
    return self._priorities.take(rows).astype(np.float64)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns arrays for `load`; after that, draws continue as without saving."""
    self._flush()
    arrays = {"times_sampled": self.times_sampled, "priorities": self._priorities}
    orders = {name: selector.rows() for name, selector in self._selectors.items()}
    return {name: a for name, a in arrays.items() if a is not None} | orders

  def load(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Restores the items of the marked rows; `arrays` may be of other selectors."""
    if "times_sampled" in arrays:
      self.count_samples()
    if self.times_sampled is not None:
      self.times_sampled[:] = arrays.get("times_sampled", 0)
    if self._priorities is None:
      return
    index = self._index
    marked = index.marks.nonzero()[0]
    self._priorities[:] = np.nan
    saved = arrays.get("priorities")
    self._priorities[marked] = 1.0 if saved is None else saved[marked]
    ages = index.steps_of(marked, index.counts)[0]
    by_age = marked[np.argsort(ages, kind="stable")]
    for name, selector in self._selectors.items():
      rows = arrays.get(name, by_age)
      selector.insert(rows, self._priorities[rows])

  def _draw_uniform(self, count: int, rng: np.random.Generator) -> np.ndarray:
    index = self._index
    counts = index.counts
    newest = counts.item(0) if len(counts) == 1 else int(counts.max())
    slots = min(newest, index.num_slots)
    num_rows, num_items = slots * index.num_writers, index.num_items
    if num_items * _MAX_MISSES < num_rows:
      listed = index.marks[:num_rows].nonzero()[0]
      return listed[rng.integers(0, num_items, count)]
    tries = int(count * num_rows / num_items * 1.05) + 8
    rows = np.zeros(0, np.int64)
    while len(rows) < count:
      # Below num_rows, as `random` is below 1; takes half the time of `integers`.
      candidates = (rng.random(tries) * num_rows).astype(np.int64)
      hits = candidates[index.marks.take(candidates) != 0]
      rows = np.concatenate([rows, hits]) if len(rows) else hits
    return rows[:count]

  def _flush(self) -> None:
    """Applies pending removals and inserts to the selectors."""
    if not self._gone and not self._new:
      return
    gone = np.fromiter(self._gone, np.int64, len(self._gone))
    new = np.fromiter(self._new, np.int64, len(self._new))
    self._gone.clear()
    self._new.clear()
    for selector in self._selectors.values():
      if len(gone):
        selector.remove(gone)
      if len(new):
        assert self._priorities is not None
        selector.insert(new, self._priorities[new])


def item_bytes(table_options: options.TableOptions) -> int:
  """Returns the memory of an item in bytes, including the selectors'."""
  counts, priority = 4, 4
  chosen = [table_options.sampler]
  if table_options.max_size is not None:
    chosen.append(table_options.remover)
  selectors = [make_selector(option, 1) for option in chosen]
  sizes = [selector.row_bytes for selector in selectors if selector is not None]
  return counts + (priority + sum(sizes) if sizes else 0)


class Table:
  """The state of a buffer that writers and samplers share; guarded by one lock.

  Attributes:
    lock: lock of all attributes.
    ring: the steps.
    contexts: the context features of episodes.
    index: steps of the writers, and rows that have items.
    items: draws and removes items.
    limiter: makes inserts and samples wait.
    rng: generator of all random numbers.
    num_ignored_updates: number of priorities for items that were removed already.
    is_closed: whether the buffer is closed.
  """

  def __init__(
    self,
    ring: Ring,
    contexts: Contexts,
    index: RingIndex,
    items: Items,
    table_options: options.TableOptions,
    rng: np.random.Generator,
  ) -> None:
    self.lock = threading.RLock()
    self.ring = ring
    self.contexts = contexts
    self.index = index
    self.items = items
    self.limiter = make_rate_limiter(table_options.rate_limiter, self.lock)
    self.rng = rng
    self.num_ignored_updates = 0
    self.is_closed = False
    # Draws for batches that were incomplete when the wait for the rest ended.
    self._partial: list[tuple[Draw, Probabilities]] = []
    self._options = table_options
    # Also at the exit of the interpreter, which waits for TensorFlow's threads.
    weakref.finalize(self, self.limiter.close_for_good)

  @property
  def consumes(self) -> bool:
    """Whether sampling removes items."""
    return self._options.max_times_sampled > 0

  @property
  def draws_alike(self) -> bool:
    """Whether draws do not depend on each other, and never wait for a part."""
    choices = self._options
    return (
      isinstance(choices.sampler, options.Uniform)
      and choices.max_size is None
      and isinstance(choices.rate_limiter, options.MinSize)
      and not self.consumes
    )

  def check_open(self, operation: str) -> None:
    check_open(operation, self.is_closed)

  def append(
    self,
    writer: int,
    values: list[Any],
    context: Mapping[str, np.ndarray],
    priority: float | None,
    should_stop: StopFn | None = None,
  ) -> None:
    """Appends a valid step; waits first if it completes an item."""
    index = self.index
    anchor = index.next_anchor(writer)
    if anchor >= 0:
      self.limiter.await_insert(1, self._options.timeout, should_stop)
    step = index.counts.item(writer)
    row = index.row(writer, step)
    self._remove(index.make_room(writer))
    if self.contexts:
      self._store_context(writer, row, context)
    self.ring.write(row, values)
    index.add_step(writer)
    self.items.set_pending_priority(row, priority)
    if anchor >= 0:
      self._insert(index.row(writer, anchor), index.rule.num_after_growing)

  def end_episode(self, writer: int, should_stop: StopFn | None = None) -> None:
    """Ends an episode; its last windows become items, one by one.

    Raises:
      ReplayTimeoutError: the episode has ended, without the remaining items.
    """
    index = self.index
    end, flag = index.counts.item(writer), index.rule.reader.end_flag
    is_set = False
    if flag is not None and end > index.starts.item(writer):
      is_set = bool(np.any(self.ring.columns[flag][index.row(writer, end - 1)]))
    try:
      for anchor in index.ended_anchors(writer, is_set).tolist():
        self.limiter.await_insert(1, self._options.timeout, should_stop)
        self._insert(index.row(writer, anchor), end - 1 - anchor)
    finally:
      index.end_episode(writer)

  def draw(self, count: int, began: float | None = None) -> Drawn:
    """Waits until items can be sampled, draws and counts them.

    Args:
      count: B.
      began: see `RateLimiter.await_sample`, which raises `NotYet` if it is given.
    Returns:
      The items, and their `SampleInfo` if samples are counted.
    """
    parts: list[tuple[Draw, Probabilities]] = []
    infos: list[SampleInfo | None] = []
    try:
      while count:
        if self._partial:
          parts.append(self._take_partial(count))
        else:
          parts.append(self._draw_part(count, began))
          began = began and time.monotonic()  # The next wait begins now.
        draw, probabilities = parts[-1]
        infos.append(self._info(draw.rows, probabilities))
        count -= len(draw.rows)
    finally:
      if count:
        self._partial = parts + self._partial
    if len(parts) == 1:
      return draw, infos[0]
    present = [info for info in infos if info is not None]
    info = join_infos(present) if len(present) == len(infos) else None
    return Draw.join([draw for draw, _ in parts]), info

  def redraw(self, count: int) -> Drawn | None:
    """Draws again, in place of items that were overwritten before they were read.

    Returns:
      The result as of `draw`, which has counted it; None if no items are left, and the
      first draw no longer counts.
    """
    if not self.index.num_items:
      self.limiter.did_sample(-count)
      return None
    rows, probabilities = self.items.draw(count, self.rng)
    return self.locate(rows), self._info(rows, probabilities)

  def consume(self, began: float | None = None) -> Drawn:
    """Draws one item, and removes it after `max_times_sampled`; see `draw`.

    Its steps are not overwritten before the caller releases the lock.
    """
    draw, info = self.draw(1, began)
    rows = draw.rows
    times = self.items.times_sampled
    if times is not None and times[rows[0]] >= self._options.max_times_sampled:
      self.index.unmark(rows)
      self._remove(rows.tolist())
    return draw, info

  def locate(self, rows: np.ndarray) -> Draw:
    """Returns the draw of the items at `rows`."""
    index = self.index
    ages = None if index.ages is None else index.ages.take(rows)
    return Draw(rows, index.marks.take(rows), ages, ((rows, index.counts.copy()),))

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
    """Sets the priorities of the items that still exist; returns how many."""
    rows, are_there = self.index.find(keys)
    num_there = int(np.count_nonzero(are_there))
    if num_there < len(keys):
      self.num_ignored_updates += len(keys) - num_there
      rows, priorities = rows[are_there], priorities[are_there]
    self.items.update(rows, priorities)
    return num_there

  def remove_surplus(self) -> None:
    """Removes items until there are at most `max_size`."""
    most = self._options.max_size
    while most is not None and self.index.num_items > most:
      surplus = self.items.choose_surplus(self.rng)
      self.index.unmark(surplus)
      self._remove(surplus.tolist())

  def close(self) -> None:
    """Ends all waits."""
    with self.lock:
      self.is_closed = True
      self.limiter.close()

  def _store_context(
    self, writer: int, row: int, context: Mapping[str, np.ndarray]
  ) -> None:
    index, step = self.index, self.index.counts.item(writer)
    if step == index.starts.item(writer):
      self.contexts.keep(writer, len(index.ends[writer]))
      self.contexts.begin(writer, context)
    else:
      self.contexts.keep(writer, len(index.ends[writer]) + 1)
    self.contexts.add_step(writer, row)

  def _insert(self, row: int, left: int) -> None:
    """Makes an item of a row that has `left` steps of its episode after it."""
    self.index.mark(row, left)
    self.items.insert(row)
    self.limiter.did_insert()
    self.remove_surplus()

  def _remove(self, rows: list[int]) -> None:
    if rows:
      self.items.remove(rows)
      self.limiter.did_delete(len(rows))

  def _take_partial(self, count: int) -> tuple[Draw, Probabilities]:
    """Returns at most `count` items that were drawn for another batch."""
    draw, probabilities = self._partial.pop(0)
    if len(draw.rows) <= count:
      return draw, probabilities
    each = np.broadcast_to(probabilities, draw.rows.shape)
    self._partial.insert(0, (draw.part(count, None), each[count:]))
    return draw.part(0, count), each[:count]

  def _draw_part(self, count: int, began: float | None) -> tuple[Draw, Probabilities]:
    """Waits until at least one item can be sampled; draws and counts what can."""
    allowed = self._await_samples(count, began)
    rows, probabilities = self.items.draw(allowed, self.rng)
    self.limiter.did_sample(allowed)
    if self.items.times_sampled is not None:
      # int32 as the array is: another dtype takes ten times as long.
      np.add.at(self.items.times_sampled, rows, np.int32(1))
    # Now, since writers may overwrite these rows during the next wait.
    return self.locate(rows), probabilities

  def _await_samples(self, count: int, began: float | None) -> int:
    """Waits until an item can be sampled; returns how many can."""
    try:
      return self.limiter.await_sample(count, self._options.timeout, began)
    except errors.ReplayTimeoutError as error:
      if self.index.num_items:
        raise
      # There may be steps in episodes that are too short for an item.
      rule = self.index.rule
      raise errors.ReplayTimeoutError(
        f"{error} There are {self.index.num_steps} steps, and the first item takes "
        f"{rule.grid.first_anchor + rule.num_after_growing + 1} of one episode."
      ) from None

  def _info(self, rows: np.ndarray, probabilities: Probabilities) -> SampleInfo | None:
    times = self.items.times_sampled
    if times is None:
      return None
    return SampleInfo(
      self.index.keys(rows),
      np.full(len(rows), probabilities),
      np.full(len(rows), self.index.num_items),
      self.items.priorities(rows),
      times.take(rows),
    )


def join_infos(infos: Sequence[SampleInfo]) -> SampleInfo:
  """Concatenates the infos of several batches."""
  return SampleInfo(*map(np.concatenate, zip(*infos, strict=True)))
