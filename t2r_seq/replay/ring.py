"""Ring buffer in memory: columns of steps, context features, index of the items."""

from __future__ import annotations

import collections
import dataclasses
import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq.store.layout import Column
from t2r_seq.windows.cut import WindowGrid
from t2r_seq.windows.reader import WindowReader


@dataclasses.dataclass(frozen=True)
class AnchorRule:
  """Decides which anchors have an item while steps arrive and episodes end.

  An item is one window. An anchor has one once `num_after_growing` more steps have
  arrived; or once its episode has ended, if `grid` has the anchor for its length.

  Attributes:
    reader: reader of the windows.
    grid: the anchors of whole episodes.
    num_before: steps of a window before its anchor.
    num_after_growing: steps after the anchor that a running episode must have. With
      n-step: n if a next observation is read, n - 1 otherwise.
  """

  reader: WindowReader
  grid: WindowGrid
  num_before: int
  num_after_growing: int

  @classmethod
  def of(cls, reader: WindowReader) -> AnchorRule:
    """Derives the rule from a reader."""
    return cls(reader, reader.grid, max(0, -reader.steps_shown[0]), reader.num_growing)

  @property
  def has_ages(self) -> bool:
    """Whether padding depends on the number of steps before an anchor."""
    return self.grid.cut.pads_front and self.num_before > 0

  @property
  def min_steps(self) -> int:
    """The minimum number of steps in a ring with one item."""
    return self.num_before + self.num_after_growing + 1

  def most_items(self, num_slots: int) -> int:
    """Returns the maximum number of items among the steps of a writer."""
    grid = self.grid
    if grid.cut.pads_end:  # Episodes of one step each.
      return num_slots
    num_after = self.reader.min_steps - 1 - grid.first_anchor
    anchors = num_slots - min(grid.first_anchor, self.num_before) - num_after
    return -(-anchors // min(grid.period, grid.first_anchor + num_after + 1))

  def most_queued(self, num_slots: int) -> int:
    """Returns the maximum number of items of one episode in a queue.

    With that many, the next step, which waits for a sample, overwrites no step of them.
    """
    return (num_slots - self.num_before - self.num_after_growing) // self.grid.period

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the rule for checkpoints."""
    return {
      "first": self.grid.first_anchor,
      "period": self.grid.period,
      "back": self.num_before,
      "need": self.num_after_growing,
      "need_ended": self.grid.num_after,
      "keeps_start": self.grid.cut.pads_end,
      "is_padded": self.grid.cut.pads_front,
    }


# Linux' transparent huge pages have 2 MiB.
_HUGE_PAGE = 1 << 21


class Ring:
  """The rows of all columns with a value per step.

  With N writers row = slot * N + writer. Arrays of numbers never move, so that tensors
  can share them; byte strings are objects.

  Attributes:
    num_slots: rows of each writer.
    num_writers: N.
    columns: by path, [num_slots * N, ...].
  """

  def __init__(
    self, layout: Mapping[str, Column], num_slots: int, num_writers: int
  ) -> None:
    """Reserves address space; pages are allocated when rows are written."""
    self.num_slots = num_slots
    self.num_writers = num_writers
    self.num_rows = num_slots * num_writers
    self.columns = {
      path: allocate((self.num_rows, *column.row_shape), column_dtype(column))
      for path, column in layout.items()
    }
    self._rows = list(self.columns.values())

  @property
  def row_bytes(self) -> int:
    """Memory of a row; for byte strings, of their references."""
    return sum(column[:1].nbytes for column in self._rows)

  def write(self, row: int, values: Sequence[Any]) -> None:
    """Writes one row; values in the order of the columns, which fit."""
    for column, value in zip(self._rows, values, strict=True):
      column[row] = value


def column_dtype(column: Column) -> np.dtype:
  """Returns the dtype of a column in memory; byte strings are objects."""
  return np.dtype(object) if column.is_bytes else column.dtype


def allocate(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  """Returns zeros in pages that are allocated when written; objects are None."""
  dtype = np.dtype(dtype)
  if dtype.hasobject:
    return np.full(shape, None, object)
  size = math.prod(shape) * dtype.itemsize
  private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  memory = mmap.mmap(-1, max(1, size), private)
  if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
    # Random rows of a large ring miss the TLB; huge pages make that rarer.
    memory.madvise(mmap.MADV_HUGEPAGE)
  return np.ndarray(shape, dtype, memory)


class Contexts:
  """Context features: a row per episode, reused when the episode has left the ring.

  Attributes:
    columns: arrays by path, one row per episode.
  """

  def __init__(
    self, layout: Mapping[str, Column], num_rows: int, num_writers: int
  ) -> None:
    """Reserves address space; pages are allocated when rows are written."""
    # At most one episode per step, and per writer one that has no step yet.
    size = num_rows + num_writers if layout else 0
    self.columns = {
      path: allocate((size, *column.row_shape), column_dtype(column))
      for path, column in layout.items()
    }
    self._used = 0
    self._free: list[int] = []
    self._rows_of = allocate((num_rows if layout else 0,), np.int64)
    self._held: list[collections.deque[int]] = [
      collections.deque() for _ in range(num_writers)
    ]

  def __bool__(self) -> bool:
    return bool(self.columns)

  def begin(self, writer: int, values: Mapping[str, np.ndarray]) -> None:
    """Stores the features of a writer's new episode."""
    if self._free:
      row = self._free.pop()
    else:
      row, self._used = self._used, self._used + 1
    for path, column in self.columns.items():
      column[row] = values[path]
    self._held[writer].append(row)

  def add_step(self, writer: int, row: int) -> None:
    """Assigns a new row of the ring to the writer's newest episode."""
    self._rows_of[row] = self._held[writer][-1]

  def keep(self, writer: int, num_episodes: int) -> None:
    """Frees the features of all but a writer's newest episodes."""
    held = self._held[writer]
    while len(held) > num_episodes:
      self._free.append(held.popleft())

  def take(self, path: str, rows: np.ndarray) -> np.ndarray:
    """Returns the features of the episodes at rows of the ring, [B, ...]."""
    return self.columns[path].take(self._rows_of.take(rows), 0)

  def of_newest(self, writer: int) -> dict[str, np.ndarray]:
    """Returns the features of a writer's newest episode."""
    row = self._held[writer][-1]
    return {path: column[row] for path, column in self.columns.items()}

  @property
  def num_bytes(self) -> int:
    """Memory of all rows that were used."""
    return self._used * sum(column[:1].nbytes for column in self.columns.values())


class RingIndex:
  """Counts the steps of each writer, and marks the rows that have items.

  A writer's steps are counted from 0; step c is in the slot c % num_slots. A step is
  marked dead just before its row is overwritten. Readers gather rows without the lock,
  then check `dead` under it, and sample again if one of their steps has died.

  An item is removed when the step `rule.num_before` before its anchor dies. Changes
  need the lock of the buffer.

  Attributes:
    counts: steps of each writer so far, int64 [N].
    dead: steps of each writer below this one are dead, int64 [N].
    starts: the first step of each writer's running episode, int64 [N].
    ends: for each writer, the step after the last one of each ended episode that has
      steps in the ring.
    marks: for each row, 0 without an item, or else 1 + how many steps of its episode
      come after it, `rule.num_after_growing` at most.
    ages: for each row, the steps of its episode before it, `rule.num_before` at most;
      None if no window is padded.
    num_items: number of marked items.
  """

  def __init__(self, rule: AnchorRule, num_slots: int, num_writers: int) -> None:
    self.rule = rule
    self.num_slots = num_slots
    self.num_writers = num_writers
    self.counts = allocate((num_writers,), np.int64)
    self.dead = allocate((num_writers,), np.int64)
    self.starts = allocate((num_writers,), np.int64)
    self.ends: list[collections.deque[int]] = [
      collections.deque() for _ in range(num_writers)
    ]
    num_rows = num_slots * num_writers
    self.marks = allocate((num_rows,), np.min_scalar_type(rule.num_after_growing + 1))
    self.ages = None
    if rule.has_ages:
      self.ages = allocate((num_rows,), np.min_scalar_type(rule.num_before))
    self.num_items = 0

  @property
  def num_steps(self) -> int:
    """Steps in the ring."""
    return int(np.minimum(self.counts, self.num_slots).sum())

  @property
  def num_episodes(self) -> int:
    """Episodes with steps in the ring."""
    return sum(map(len, self.ends)) + int((self.counts > self.starts).sum())

  def row(self, writer: int, step: int) -> int:
    """Returns the row of a step."""
    return step % self.num_slots * self.num_writers + writer

  def next_anchor(self, writer: int) -> int:
    """Returns the anchor whose item the next step completes, or -1."""
    anchor = self.counts.item(writer) - self.rule.num_after_growing
    age = anchor - self.starts.item(writer)
    return anchor if self.rule.grid.is_anchor(age) else -1

  def make_room(self, writer: int) -> list[int]:
    """Marks the step in the next row dead; returns the rows whose items it removes."""
    dead = self.counts.item(writer) + 1 - self.num_slots
    if dead <= 0:
      return []
    # Must precede the write to the row: readers check `dead` after they read.
    self.dead[writer] = dead
    self._forget_episodes(writer, dead)
    # Items whose window starts before the first step that is still alive.
    first = 0 if dead == 1 else dead - 1 + self.rule.num_before
    rows = [
      self.row(writer, anchor) for anchor in range(first, dead + self.rule.num_before)
    ]
    lost = [row for row in rows if self.marks.item(row)]
    for row in lost:
      self.marks[row] = 0
    self.num_items -= len(lost)
    return lost

  def add_step(self, writer: int) -> None:
    """Counts a step whose row has been written."""
    count = self.counts.item(writer)
    if self.ages is not None:
      age = min(count - self.starts.item(writer), self.rule.num_before)
      self.ages[self.row(writer, count)] = age
    self.counts[writer] = count + 1

  def mark(self, row: int, left: int) -> None:
    """Adds an item: the row of its anchor, and the steps of the episode after it."""
    self.marks[row] = left + 1
    self.num_items += 1

  def unmark(self, rows: np.ndarray) -> None:
    """Removes the items of different rows, [n]."""
    self.marks[rows] = 0
    self.num_items -= len(rows)

  def ended_anchors(self, writer: int, last_flag: bool = False) -> np.ndarray:
    """Returns the anchors that become items if the episode ends now, ascending."""
    start, count = self.starts.item(writer), self.counts.item(writer)
    grid, num_steps = self.rule.grid, count - start
    first = grid.num_complete(num_steps, self.rule.num_after_growing)
    num_rows = self.rule.reader.num_rows(num_steps, last_flag)
    anchors = start + grid.start(np.arange(first, grid.num_windows(num_rows)))
    dead = self.dead.item(writer)
    return anchors[anchors >= (dead + self.rule.num_before if dead else 0)]

  def end_episode(self, writer: int) -> None:
    """Ends the running episode, if it has steps."""
    count = self.counts.item(writer)
    if count > self.starts.item(writer):
      self.ends[writer].append(count)
      self.starts[writer] = count

  def steps_of(
    self, rows: np.ndarray, counts: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps in rows when `counts` were current, and writers; int64 [B]."""
    if self.num_writers > 1:
      slots, writers = np.divmod(rows, self.num_writers)
      newest = counts[writers] - 1
      return newest - (newest - slots) % self.num_slots, writers
    # One writer: the same without gathers, in a third of the time.
    rounds, newest = divmod(counts.item(0) - 1, self.num_slots)
    steps = rows + rounds * self.num_slots
    steps[rows > newest] -= self.num_slots
    return steps, np.zeros_like(rows)

  def keys(self, rows: np.ndarray) -> np.ndarray:
    """Returns the keys of the items that rows have now, uint64 [B]."""
    steps, writers = self.steps_of(rows, self.counts)
    if self.num_writers > 1:
      steps *= self.num_writers
      steps += writers
    return steps.view(np.uint64)

  def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds items by key, int64 [n], step * N + writer.

    Returns:
      Rows, int64 [n], and flags of rows that have the item of that key, bool [n].
    """
    if self.num_writers == 1:
      steps, counts = keys, self.counts
    else:
      steps, writers = np.divmod(keys, self.num_writers)
      counts = self.counts[writers]
    rows = keys % len(self.marks)
    is_held = (steps < counts) & (steps >= counts - self.num_slots)
    return rows, is_held & (self.marks.take(rows) > 0)

  def are_alive(self, rows: np.ndarray, counts: np.ndarray) -> bool:
    """Whether no step of the windows at `rows`, drawn at `counts`, has died."""
    if self.num_writers == 1:
      have_died = self.dead.item(0) > counts.item(0) - self.num_slots
    else:
      have_died = (self.dead > counts - self.num_slots).any()
    if not have_died:
      return True
    steps, writers = self.steps_of(rows, counts)
    dead = self.dead[writers]
    return bool((steps >= np.where(dead > 0, dead + self.rule.num_before, 0)).all())

  def _forget_episodes(self, writer: int, dead: int) -> None:
    ends = self.ends[writer]
    while ends and ends[0] <= dead:
      ends.popleft()
