"""`Table`: inserts and samples of items, paced by the rate limiter."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.replay.failures import check_open
from t2r_seq.replay.memory.contexts import Contexts
from t2r_seq.replay.memory.given_priorities import GivenPriorities
from t2r_seq.replay.memory.items import Items, SelectedItems, UniformItems
from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.ring import Ring
from t2r_seq.replay.memory.window_plan import Draw
from t2r_seq.replay.rate_limiters import RateLimiter, StopFn
from t2r_seq.replay.replay import SampleInfo


class Table:
  """The state of a buffer that writers and samplers share; guarded by one lock.

  Attributes:
    lock: of everything here.
    ring: the steps.
    contexts: the features of episodes.
    lanes: which steps and items there are.
    items: which of them are drawn.
    limiter: who has to wait.
    rng: what draws at random draws from it.
    given: priorities of new items, and of those that are still to come.
    num_ignored_updates: priorities for items that had gone.
    is_closed: nothing can be done any more.
  """

  def __init__(
    self,
    ring: Ring,
    contexts: Contexts,
    lanes: Lanes,
    items: Items,
    limiter: RateLimiter,
    lock: threading.RLock,
    rng: np.random.Generator,
    max_size: int | None,
    max_times_sampled: int,
    initial_priority: float | None,
    timeout: float | None,
    is_unlimited: bool,
  ) -> None:
    """Puts the parts together; see `ReplayBuffer` for the options."""
    self.lock = lock
    self.ring = ring
    self.contexts = contexts
    self.lanes = lanes
    self.items = items
    self.limiter = limiter
    self.rng = rng
    self.num_ignored_updates = 0
    self.is_closed = False
    self._max_size = max_size
    self._max_times_sampled = max_times_sampled
    self._timeout = timeout
    self._is_unlimited = is_unlimited
    num_writers = lanes.num_writers
    self.given = GivenPriorities(lanes.rule.need, num_writers, initial_priority)
    # At the latest when the interpreter exits, which waits for TensorFlow's threads.
    weakref.finalize(self, limiter.close_for_good)

  @property
  def consumes(self) -> bool:
    """Whether sampling takes items away."""
    return self._max_times_sampled > 0

  @property
  def draws_alike(self) -> bool:
    """Whether draws know nothing of each other, and never wait in the middle."""
    return isinstance(self.items, UniformItems) and self._is_unlimited

  def check_open(self, operation: str) -> None:
    """Raises ReplayError once the buffer is closed."""
    check_open(operation, self.is_closed)

  def append(
    self,
    lane: int,
    values: list[Any],
    context: Mapping[str, np.ndarray],
    priority: float | None,
    should_stop: StopFn | None = None,
  ) -> None:
    """Appends a step that fits; waits first if it gives an item."""
    lanes = self.lanes
    anchor = lanes.next_anchor(lane)
    self._await_inserts(int(anchor >= 0), should_stop)
    step = lanes.counts.item(lane)
    row = lanes.row(lane, step)
    self._remove(lanes.make_room(lane))
    if self.contexts:
      self._note_context(lane, row, context)
    self.ring.write(row, values)
    lanes.add_step(lane)
    if priority is not None and lanes.rule.is_anchor(step - lanes.starts.item(lane)):
      self.given.put(lane, step, priority)
    if anchor >= 0:
      self._insert(lane, anchor, lanes.rule.need)

  def append_to_all(self, values: list[Any], priorities: np.ndarray | None) -> None:
    """Appends a step of each writer, which are in step, in one block."""
    lanes = self.lanes
    rows = lanes.next_anchors()
    allowed = self._await_inserts(len(rows))
    step = lanes.counts.item(0)
    lost = lanes.make_room_for_all()
    if len(lost):
      if self.items.wants_rows:
        self.items.remove(lost.tolist())
      self.limiter.did_delete(len(lost))
    self.ring.write_block(step % lanes.num_slots, values)
    lanes.add_step_to_all()
    if priorities is not None:
      self.given.put_all(step, priorities, lanes.rule.is_anchor(step - lanes.starts))
    anchor = step - lanes.rule.need
    try:
      while len(rows):
        self._insert_full(anchor, rows[:allowed])
        rows = rows[allowed:]
        allowed = self._await_inserts(len(rows))
    except errors.ReplayTimeoutError as error:
      error.num_appended = lanes.num_writers
      raise
    finally:
      self.given.forget(anchor)

  def end_episode(self, lane: int, should_stop: StopFn | None = None) -> None:
    """Ends an episode; its last windows become items, one by one.

    Raises:
      ReplayTimeoutError: it has ended, without the items that were not let in.
    """
    lanes = self.lanes
    end = lanes.counts.item(lane)
    try:
      for anchor in lanes.ended_anchors(lane).tolist():
        self._await_inserts(1, should_stop)
        self._insert(lane, anchor, end - 1 - anchor)
    finally:
      self.given.clear(lane)
      lanes.end_episode(lane)

  def draw(self, count: int) -> tuple[Draw, SampleInfo | None]:
    """Waits for samples, draws and counts them.

    Args:
      count: B.
    Returns:
      The items, and what is known of them if that is counted.
    """
    parts = list(self._draw_parts(count))
    if len(parts) == 1:
      return parts[0]
    draws, infos = zip(*parts, strict=True)
    known = [info for info in infos if info is not None]
    return Draw.join(draws), _join(known) if len(known) == len(parts) else None

  def redraw(self, count: int) -> tuple[Draw, SampleInfo | None]:
    """Draws once more, in place of items that died before they were read."""
    self.limiter.await_sample(1, self._timeout)
    drawn = self.items.draw(count, self.rng)
    return self.locate(drawn[0]), self._info(*drawn)

  def consume(self) -> tuple[Draw, SampleInfo | None]:
    """Draws one item, which goes if it has been sampled often enough.

    Its steps are there until the lock is let go.
    """
    draw, info = next(self._draw_parts(1))
    rows = draw.rows
    times = self.items.times_sampled
    if times is not None and times[rows[0]] >= self._max_times_sampled:
      self.lanes.unmark(rows)
      self._remove(rows.tolist())
    return draw, info

  def locate(self, rows: np.ndarray) -> Draw:
    """Says where the steps of items are."""
    lanes = self.lanes
    ages = None if lanes.ages is None else lanes.ages.take(rows)
    return Draw(rows, lanes.marks.take(rows), ages, ((rows, lanes.counts.copy()),))

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
    """Sets the priorities of the items that are still there; returns how many."""
    rows, are_there = self.lanes.find(keys)
    num_there = int(np.count_nonzero(are_there))
    if num_there < len(keys):
      self.num_ignored_updates += len(keys) - num_there
      rows, priorities = rows[are_there], priorities[are_there]
    self.given.note(priorities)
    self.items.update(rows, priorities)
    return num_there

  def remove_surplus(self) -> None:
    """Lets items go, as the remover chooses, until there are no more than may be."""
    while self._max_size is not None and self.lanes.num_items > self._max_size:
      assert isinstance(self.items, SelectedItems)
      surplus = np.array([self.items.choose_surplus(self.rng)])
      self.lanes.unmark(surplus)
      self._remove(surplus.tolist())

  def close(self) -> None:
    """Ends all waiting."""
    with self.lock:
      self.is_closed = True
      self.limiter.close()

  def _await_inserts(self, count: int, should_stop: StopFn | None = None) -> int:
    """Waits until an item can be inserted; returns how many of them can be."""
    return count and self.limiter.await_insert(count, self._timeout, should_stop)

  def _note_context(
    self, lane: int, row: int, context: Mapping[str, np.ndarray]
  ) -> None:
    lanes, step = self.lanes, self.lanes.counts.item(lane)
    if step == lanes.starts.item(lane):
      self.contexts.keep(lane, len(lanes.ends[lane]))
      self.contexts.begin(lane, context)
    else:
      self.contexts.keep(lane, len(lanes.ends[lane]) + 1)
    self.contexts.add_step(lane, row)

  def _insert(self, lane: int, anchor: int, left: int) -> None:
    row = self.lanes.row(lane, anchor)
    self.lanes.mark(row, left)
    self._take_in(np.array([row]), self.given.take(lane, anchor))

  def _insert_full(self, anchor: int, rows: np.ndarray) -> None:
    self.lanes.mark_all(rows)
    if not self.items.wants_rows:
      self.limiter.did_insert(len(rows))
      return
    self._take_in(rows, self.given.of_rows(anchor, rows))

  def _take_in(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    self.items.insert(rows, priorities)
    self.limiter.did_insert(len(rows))
    self.remove_surplus()

  def _remove(self, rows: list[int]) -> None:
    if rows:
      self.items.remove(rows)
      self.limiter.did_delete(len(rows))

  def _draw_parts(self, count: int) -> Iterator[tuple[Draw, SampleInfo | None]]:
    while count:
      allowed = self._await_samples(count)
      rows, probabilities = self.items.draw(allowed, self.rng)
      self.limiter.did_sample(allowed)
      if self.items.times_sampled is not None:
        # Of the same dtype: with another one it takes ten times as long.
        np.add.at(self.items.times_sampled, rows, np.int32(1))
      # Now: what is waited for next may write over these rows.
      yield self.locate(rows), self._info(rows, probabilities)
      count -= allowed

  def _await_samples(self, count: int) -> int:
    """Waits until an item can be sampled; returns how many of them can be."""
    try:
      return self.limiter.await_sample(count, self._timeout)
    except errors.ReplayTimeoutError as error:
      if self.lanes.num_items:
        raise
      # Steps may be there, and in episodes too short for any item.
      raise errors.ReplayTimeoutError(
        f"{error} There are {self.lanes.num_steps} steps, and the first item takes "
        f"{self.lanes.rule.first + self.lanes.rule.need + 1} of one episode."
      ) from None

  def _info(
    self, rows: np.ndarray, probabilities: float | np.ndarray
  ) -> SampleInfo | None:
    times = self.items.times_sampled
    if times is None:
      return None
    return SampleInfo(
      self.lanes.keys(rows),
      np.full(len(rows), probabilities),
      np.full(len(rows), self.lanes.num_items),
      self.items.priorities(rows),
      times.take(rows),
    )


def _join(infos: list[SampleInfo]) -> SampleInfo:
  return SampleInfo(*map(np.concatenate, zip(*infos, strict=True)))
