"""`Sampling`: batches of windows that are whole, whatever writers do meanwhile."""

from __future__ import annotations

import collections
from collections.abc import Container

import numpy as np

from t2r_seq.replay.memory.gathering import Batch, Gathering
from t2r_seq.replay.memory.table import Table
from t2r_seq.replay.memory.window_plan import Draw
from t2r_seq.replay.replay import SampleInfo


class Sampling:
  """Draws items under the lock of a table, and gathers their windows without it."""

  def __init__(self, table: Table, gathering: Gathering) -> None:
    """Puts the two together."""
    self._table = table
    self.gathering = gathering
    # Items that are gone from the table, of batches that never got full.
    self._taken: collections.deque[tuple[SampleInfo | None, Batch]] = (
      collections.deque()
    )

  @property
  def consumes(self) -> bool:
    """Whether sampling takes items away."""
    return self._table.consumes

  @property
  def draws_alike(self) -> bool:
    """Whether it does not matter if several batches are drawn at once."""
    return self._table.draws_alike

  def sample(self, count: int) -> tuple[SampleInfo | None, Batch]:
    """Returns a batch, and what is known of its items if that is counted."""
    if self._table.consumes:
      return self._consume(count)
    info, draw, batch = self.begin(count)
    return (info, batch) if self.is_whole(draw) else self.sample_again(count)

  def begin(
    self, count: int, leave_out: Container[str] = ()
  ) -> tuple[SampleInfo | None, Draw, Batch]:
    """Draws a batch and gathers its windows, which `is_whole` has to look at."""
    table = self._table
    with table.lock:
      table.check_open("sample")
      draw, info = table.draw(count)
    return info, draw, self.gathering.gather(draw, leave_out)

  def is_whole(self, draw: Draw) -> bool:
    """Whether no step had died when the windows of a draw had been gathered.

    It takes the lock, under which steps die and are written over. So what a writer does
    after this look cannot have been gathered before it, and what it did before is seen,
    in whatever order the processor shows writes to other threads.
    """
    lanes = self._table.lanes
    with self._table.lock:
      return all(lanes.are_alive(rows, counts) for rows, counts in draw.seen)

  def sample_again(self, count: int) -> tuple[SampleInfo | None, Batch]:
    """Returns another batch in place of one that was not whole; it is not counted.

    Nobody writes meanwhile: where writers are as fast as to overtake a gathering, they
    would overtake the next one, too.
    """
    with self._table.lock:
      self._table.check_open("sample")
      draw, info = self._table.redraw(count)
      return info, self.gathering.gather(draw)

  def _consume(self, count: int) -> tuple[SampleInfo | None, Batch]:
    taken: list[tuple[SampleInfo | None, Batch]] = []
    try:
      while len(taken) < count:
        with self._table.lock:
          self._table.check_open("sample")
          taken.append(self._take_one())
    except BaseException:
      with self._table.lock:
        self._taken.extendleft(reversed(taken))
      raise
    infos, batches = zip(*taken, strict=True)
    joined = SampleInfo(*map(np.concatenate, zip(*infos, strict=True)))
    return joined, {
      path: np.concatenate([batch[path] for batch in batches]) for path in batches[0]
    }

  def _take_one(self) -> tuple[SampleInfo | None, Batch]:
    """Takes an item away; first those that nobody got."""
    if self._taken:
      return self._taken.popleft()
    draw, info = self._table.consume()
    return info, self.gathering.gather(draw)
