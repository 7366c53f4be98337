"""`AnchorRule`: which anchors of a growing episode have an item, and from when on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from t2r_seq import windows


@dataclasses.dataclass(frozen=True)
class AnchorRule:
  """Which anchors have an item; pure arithmetic, for ints and arrays.

  An anchor `age` steps after its episode's start has an item once `need` steps have
  come after it. Where the episode has ended with fewer, `need_ended` are enough.

  Attributes:
    first: the least age.
    period: ages between two anchors.
    back: steps before the anchor that its window shows.
    need: steps after it that must be there while the episode goes on.
    need_ended: steps after it that must be there at the episode's end.
    keeps_start: the first anchor has an item whenever the episode has ended.
  """

  first: int
  period: int
  back: int
  need: int
  need_ended: int
  keeps_start: bool

  @classmethod
  def of(cls, reader: windows.WindowReader, n: int | None = None) -> AnchorRule:
    """Derives the rule.

    Args:
      reader: of the windows.
      n: steps that are joined, of n-step transitions: as many are waited for while the
        episode goes on, and the last one's next observation is never made up.
    Returns:
      The anchors that the reader's grid gives whole episodes.
    """
    grid = reader.grid
    first_shown, last_shown = reader.steps_shown
    back = max(0, -first_shown)
    if n is not None:
      after = grid.span[1]
      return cls(grid.first_anchor, grid.period, back, n - 1 + after, after, False)
    need = max(grid.num_after, last_shown, 0)
    rest = (grid.num_after, grid.keeps_first)
    return cls(grid.first_anchor, grid.period, back, need, *rest)

  @property
  def min_steps(self) -> int:
    """The fewest steps that a ring must hold for an item to live."""
    return self.back + self.need + 1

  def most_items(self, num_slots: int) -> int:
    """Returns how many items the steps of a writer have at most, however they end."""
    if self.keeps_start:  # Episodes of one step each.
      return num_slots
    anchors = num_slots - min(self.first, self.back) - self.need_ended
    return -(-anchors // min(self.period, self.first + self.need_ended + 1))

  def most_queued(self, num_slots: int) -> int:
    """Returns how many items of one episode live on while further steps come.

    With as many, the step that gives one more item writes over none of them, if it
    waits until one of them has been taken; nor do those before it, which give none.
    """
    return (num_slots - self.back - self.need) // self.period

  def is_anchor(self, age: Any) -> Any:
    """Whether windows start at steps of this age, as far as that decides."""
    if self.period == 1:
      return age >= self.first
    return (age >= self.first) & ((age - self.first) % self.period == 0)

  def ended_anchors(self, start: int, first: int, end: int) -> np.ndarray:
    """Returns the anchors that become items because their episode ends.

    Args:
      start: the episode's first step.
      first: the oldest step that is still there.
      end: the step after the last one.
    Returns:
      int64 [n], ascending.
    """
    if self.need_ended == self.need and not self.keeps_start:
      return np.zeros(0, np.int64)
    anchors = np.arange(max(start, first, end - self.need), end)
    ages, left = anchors - start, end - 1 - anchors
    fits = (left >= self.need_ended) | (self.keeps_start & (ages == self.first))
    return anchors[self.is_anchor(ages) & fits]
