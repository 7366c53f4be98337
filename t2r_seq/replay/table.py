"""`Table`: inserts and samples of items, paced by the rate limiter."""

from __future__ import annotations

import abc
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors
from t2r_seq.replay import options
from t2r_seq.replay.rate_limiters import StopFn, make_rate_limiter
from t2r_seq.replay.replay import SampleInfo, check_open
from t2r_seq.replay.ring import Contexts, Lanes, Ring, allocate
from t2r_seq.replay.selectors import Selector, make_selector


class GivenPriorities:
  """Keeps the priority that came with a step until the step's item is there.

  A writer's step waits for `need` more, so that as many rows and one are enough: a row
  is taken, or cleared with the end of its episode, before a step wants it again. Calls
  need the buffer's lock.

  Attributes:
    greatest: priority that an item has had so far, and at least 1.
  """

  def __init__(self, need: int, num_writers: int, initial: float | None) -> None:
    """Creates rows without priorities.

    Args:
      need: steps that come after an anchor before it has an item.
      num_writers: N.
      initial: of items whose step came without one; None for the greatest so far.
    """
    self.greatest = 1.0
    self._initial = initial
    self._rows = np.full((need + 1, num_writers), np.nan)
    # Most replays are never given any: they pay nothing for it.
    self._are_any = False

  def put(self, lane: int, step: int, priority: float) -> None:
    """Keeps the priority of a writer's step."""
    self._rows[step % len(self._rows), lane] = priority
    self._are_any = True

  def put_all(self, step: int, priorities: np.ndarray, where: np.ndarray) -> None:
    """Keeps those of a step of each writer, [N], where a bool [N] says so."""
    np.copyto(self._rows[step % len(self._rows)], priorities, where=where)
    self._are_any = True

  @property
  def initial(self) -> float:
    """Of items whose step came without one."""
    return self.greatest if self._initial is None else self._initial

  def note(self, priorities: np.ndarray) -> None:
    """Takes note of priorities that items have now."""
    if len(priorities):
      self.greatest = max(self.greatest, float(priorities.max()))

  def take(self, lane: int, step: int) -> float:
    """Returns the priority of a step's item, and forgets it."""
    if not self._are_any:
      return self.initial
    row = step % len(self._rows)
    found = self._rows.item(row, lane)
    if found != found:
      return self.initial
    self._rows[row, lane] = np.nan
    self.greatest = max(self.greatest, found)
    return found

  def of_rows(self, step: int, rows: np.ndarray) -> float | np.ndarray:
    """Returns those of the items of a step of some writers.

    Args:
      step: the same one of each.
      rows: of the ring, where the step is, int64 [n].
    Returns:
      float64 [n]; or one for all if none came with a step.
    """
    if not self._are_any:
      return self.initial
    given = self._rows[step % len(self._rows)]
    found = given.take(rows % len(given))
    is_given = ~np.isnan(found)
    found[~is_given] = self.initial
    self.note(found[is_given])
    return found

  def forget(self, step: int) -> None:
    """Forgets those of a step of all writers."""
    if self._are_any:
      self._rows[step % len(self._rows)] = np.nan

  def clear(self, lane: int) -> None:
    """Forgets those of an episode that has ended."""
    if self._are_any:
      self._rows[:, lane] = np.nan

  def of_writer(self, lane: int, count: int) -> list[tuple[int, float]]:
    """Returns steps and their priorities, ascending, for a checkpoint.

    Args:
      lane: the writer.
      count: its steps so far.
    """
    steps = range(max(0, count - len(self._rows)), count)
    kept = [(step, self._rows.item(step % len(self._rows), lane)) for step in steps]
    return [(step, priority) for step, priority in kept if priority == priority]


_MAX_PENDING = 4096
# With fewer items among the rows than one in so many, they are listed to draw from.
_MAX_MISSES = 32


class Draw(NamedTuple):
  """Items that were drawn, and where their steps are.

  Attributes:
    rows: of the anchors, int64 [B].
    marks: of these rows: 1 + the steps of their episodes after the anchors.
    ages: the steps before them; None where no front is padded.
    seen: rows that were drawn at one time, and the steps of each writer then, int64
      [N]; together they tell which steps were in the rows.
  """

  rows: np.ndarray
  marks: np.ndarray
  ages: np.ndarray | None
  seen: tuple[tuple[np.ndarray, np.ndarray], ...]

  @classmethod
  def join(cls, draws: Sequence[Draw]) -> Draw:
    """Makes one draw of several."""
    ages = [draw.ages for draw in draws if draw.ages is not None]
    return cls(
      np.concatenate([draw.rows for draw in draws]),
      np.concatenate([draw.marks for draw in draws]),
      np.concatenate(ages) if ages else None,
      tuple(seen for draw in draws for seen in draw.seen),
    )


class Items(abc.ABC):
  """The items of a buffer, by the rows of their anchors; calls need its lock.

  Attributes:
    times_sampled: of each row's item, int32; None until somebody wants to know.
  """

  def __init__(self, lanes: Lanes) -> None:
    """Creates items of marked rows."""
    self._lanes = lanes
    self.times_sampled: np.ndarray | None = None

  def count_samples(self) -> None:
    """Counts how often items are sampled, from now on."""
    if self.times_sampled is None:
      self.times_sampled = allocate(self._lanes.marks.shape, np.int32)

  def insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    """Takes items in that were just marked; rows int64 [n]."""
    if self.times_sampled is not None:
      self.times_sampled[rows] = 0
    self._insert(rows, priorities)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns what `load` needs to make items that are drawn just as these are."""
    return {} if self.times_sampled is None else {"times_sampled": self.times_sampled}

  def load(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes in the marked rows, of a buffer that was saved, into items without any.

    Args:
      arrays: as `arrays` gave them there; the items may have been of another kind.
    """
    if "times_sampled" in arrays:
      self.count_samples()
    if self.times_sampled is not None:
      self.times_sampled[:] = arrays.get("times_sampled", 0)

  @property
  def wants_rows(self) -> bool:
    """Whether it matters here which items come and go, and not only their marks."""
    return self.times_sampled is not None

  @property
  @abc.abstractmethod
  def row_bytes(self) -> float:
    """Memory that a row takes here."""

  @abc.abstractmethod
  def remove(self, rows: list[int]) -> None:
    """Lets go of items whose marks are gone."""

  @abc.abstractmethod
  def draw(
    self, count: int, rng: np.random.Generator
  ) -> tuple[np.ndarray, float | np.ndarray]:
    """Draws items, of which there are some.

    Returns:
      Rows, int64 [B], and with which probability each was drawn, float64 [B]; or one
      for all.
    """

  @abc.abstractmethod
  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of items; of a row that is there twice, the last counts."""

  @abc.abstractmethod
  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, float64 [B]."""

  @abc.abstractmethod
  def _insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    pass


class UniformItems(Items):
  """Draws any marked row, in O(1) and without memory: rows are tried until one is."""

  row_bytes = 0.0

  def remove(self, rows: list[int]) -> None:
    """Does nothing: their marks are gone."""

  def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Draws items, with replacement."""
    lanes = self._lanes
    counts = lanes.counts
    newest = counts.item(0) if len(counts) == 1 else int(counts.max())
    slots = min(newest, lanes.num_slots)
    num_rows, num_items = slots * lanes.num_writers, lanes.num_items
    probability = 1.0 / num_items
    if num_items * _MAX_MISSES < num_rows:
      listed = lanes.marks[:num_rows].nonzero()[0]
      return listed[rng.integers(0, num_items, count)], probability
    tries = int(count * num_rows / num_items * 1.05) + 8
    rows = np.zeros(0, np.int64)
    while len(rows) < count:
      # Never num_rows itself; half as long as `integers`.
      tried = (rng.random(tries) * num_rows).astype(np.int64)
      hits = tried[lanes.marks.take(tried) != 0]
      rows = np.concatenate([rows, hits]) if len(rows) else hits
    return rows[:count], probability

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Does nothing: priorities do not matter."""

  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns ones: priorities do not matter."""
    return np.ones(len(rows))

  def _insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    pass


class SelectedItems(Items):
  """Leaves the choice to selectors.

  They are told of inserts and removals before the next draw, of many at once: for one
  by one they would take most of the time of an append.
  """

  def __init__(
    self,
    lanes: Lanes,
    sampler: options.SelectorOption,
    remover: options.SelectorOption | None,
  ) -> None:
    """Creates the selectors.

    Args:
      lanes: whose marked rows are items.
      sampler: chooses what is sampled.
      remover: chooses what goes where there are too many; None: there never are.
    """
    super().__init__(lanes)
    num_rows = len(lanes.marks)
    self._sampler = make_selector(sampler, num_rows)
    self._selectors: list[Selector] = [self._sampler]
    if remover is not None:
      self._selectors.append(make_selector(remover, num_rows))
    # Where they only weigh, half the memory is as good.
    is_exact = any(selector.compares for selector in self._selectors)
    self._priorities = allocate((num_rows,), np.float64 if is_exact else np.float32)
    self._new: dict[int, None] = {}
    self._gone: list[int] = []

  @property
  def wants_rows(self) -> bool:
    """True: selectors are told what comes and goes."""
    return True

  @property
  def row_bytes(self) -> float:
    """Memory that a row takes here: its priority, and what selectors know of it."""
    known = sum(selector.num_bytes for selector in self._selectors)
    return self._priorities.itemsize + known / len(self._priorities)

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns what `load` needs; see `Items.arrays`."""
    self.flush()
    orders = {name: selector.rows() for name, selector in self._named()}
    return {**super().arrays(), "priorities": self._priorities, **orders}

  def load(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Takes in the marked rows; see `Items.load`."""
    super().load(arrays)
    marked = self._lanes.marks.nonzero()[0]
    self._priorities[:] = arrays.get("priorities", 1.0)
    by_age = marked[
      np.argsort(self._lanes.steps_of(marked, self._lanes.counts)[0], kind="stable")
    ]
    for name, selector in self._named():
      rows = arrays.get(name, by_age)
      selector.insert(rows, self._priorities[rows])

  def _named(self) -> Iterator[tuple[str, Selector]]:
    """Yields the selectors, and names for the order of their items."""
    # The order of one kind of selector says nothing to another.
    for use, selector in zip(("sampler", "remover"), self._selectors, strict=False):
      yield f"{use}_{type(selector).__name__}", selector

  def remove(self, rows: list[int]) -> None:
    """Lets go of items whose marks are gone."""
    if not self._new.keys().isdisjoint(rows):
      self.flush()
    self._gone += rows

  def flush(self) -> None:
    """Tells the selectors what has come and gone."""
    if not self._gone and not self._new:
      return
    gone = np.fromiter(self._gone, np.int64, len(self._gone))
    new = np.fromiter(self._new, np.int64, len(self._new))
    self._gone.clear()
    self._new.clear()
    for selector in self._selectors:
      if len(gone):
        selector.remove(gone)
      if len(new):
        selector.insert(new, self._priorities[new])

  def draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws items; see `Items.draw`."""
    self.flush()
    return self._sampler.sample(count, rng)

  def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
    """Sets the priorities of items."""
    self.flush()
    self._priorities[rows] = priorities
    for selector in self._selectors:
      selector.update(rows, priorities)

  def priorities(self, rows: np.ndarray) -> np.ndarray:
    """Returns the priorities of items, float64 [B]."""
    return self._priorities.take(rows).astype(np.float64)

  def choose_surplus(self, rng: np.random.Generator) -> int:
    """Returns the row of the item that the remover lets go."""
    self.flush()
    rows, _ = self._selectors[-1].sample(1, rng)
    return int(rows[0])

  def _insert(self, rows: np.ndarray, priorities: float | np.ndarray) -> None:
    self._priorities[rows] = priorities
    self._new.update(dict.fromkeys(rows.tolist()))
    if len(self._new) + len(self._gone) >= _MAX_PENDING:
      self.flush()


def make_items(lanes: Lanes, how: options.TableOptions) -> Items:
  """Makes items that are sampled and removed as told."""
  items: Items
  if how.is_plain:
    items = UniformItems(lanes)
  else:
    items = SelectedItems(
      lanes, how.sampler, None if how.max_size is None else how.remover
    )
  if how.max_times_sampled:
    items.count_samples()
  return items


def items_bytes(how: options.TableOptions, num_rows: int) -> int:
  """Returns the memory that `make_items`' take with an item in each of so many rows."""
  counts = 4 * num_rows  # From when somebody first asks for them.
  if how.is_plain:
    return counts
  chosen = [how.sampler] if how.max_size is None else [how.sampler, how.remover]
  selectors = [make_selector(option, 1) for option in chosen]
  size = 8 if any(selector.compares for selector in selectors) else 4
  known = sum(selector.bytes_for(num_rows) for selector in selectors)
  return counts + size * num_rows + known


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
    how: options.TableOptions,
    rng: np.random.Generator,
  ) -> None:
    """Puts the parts together; see the attributes, and how items are sampled."""
    self.lock = threading.RLock()
    self.ring = ring
    self.contexts = contexts
    self.lanes = lanes
    self.items = items
    self.limiter = make_rate_limiter(how.rate_limiter, self.lock)
    self.rng = rng
    self.num_ignored_updates = 0
    self.is_closed = False
    self._how = how
    initial = None if how.initial_priority is None else float(how.initial_priority)
    self.given = GivenPriorities(lanes.rule.need, lanes.num_writers, initial)
    # At the latest when the interpreter exits, which waits for TensorFlow's threads.
    weakref.finalize(self, self.limiter.close_for_good)

  @property
  def consumes(self) -> bool:
    """Whether sampling takes items away."""
    return self._how.max_times_sampled > 0

  @property
  def draws_alike(self) -> bool:
    """Whether draws know nothing of each other, and never wait in the middle."""
    return self._how.is_plain and self._how.never_waits and not self.consumes

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
    self.limiter.await_sample(1, self._how.timeout)
    drawn = self.items.draw(count, self.rng)
    return self.locate(drawn[0]), self._info(*drawn)

  def consume(self) -> tuple[Draw, SampleInfo | None]:
    """Draws one item, which goes if it has been sampled often enough.

    Its steps are there until the lock is let go.
    """
    draw, info = next(self._draw_parts(1))
    rows = draw.rows
    times = self.items.times_sampled
    if times is not None and times[rows[0]] >= self._how.max_times_sampled:
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
    most = self._how.max_size
    while most is not None and self.lanes.num_items > most:
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
    return count and self.limiter.await_insert(count, self._how.timeout, should_stop)

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
      return self.limiter.await_sample(count, self._how.timeout)
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
