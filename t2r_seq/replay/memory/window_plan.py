"""`WindowPlan`: which rows of a ring windows show; all that is computed of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from t2r_seq import windows
from t2r_seq.replay.memory.lanes import Lanes


class Draw(NamedTuple):
  """Items that were drawn, and where their steps are.

  Attributes:
    rows: of the anchors, int64 [B].
    marks: of these rows: 1 + the steps of their episodes after the anchors.
    ages: the steps before them; None where no window is padded.
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


@dataclasses.dataclass(frozen=True)
class Fetch:
  """Some paths that show the same steps.

  Attributes:
    paths: from a path of the windows to the column that it reads.
    offsets: of the steps, relative to the anchor; int64 of shape [], [K], [L], [L, K].
    is_later: relative to the last of n joined steps instead.
  """

  paths: dict[str, str]
  offsets: np.ndarray
  is_later: bool = False


class WindowPlan:
  """Turns drawn items into rows to gather; the same windows as `WindowReader`'s.

  Attributes:
    lanes: of the ring.
    fetches: what is read of steps.
    contexts: what is read of episodes: from a path of the windows to the column.
  """

  def __init__(
    self,
    reader: windows.WindowReader,
    lanes: Lanes,
    later: frozenset[str] = frozenset(),
    leave_out: frozenset[str] = frozenset(),
  ) -> None:
    """Plans the rows.

    Args:
      reader: of the windows.
      lanes: of the ring.
      later: paths that are read at the last of the joined steps.
      leave_out: paths that are not read here.
    """
    self.lanes = lanes
    self._padding = reader.cut.padding
    self.fetches: list[Fetch] = []
    self.contexts: dict[str, str] = {}
    for path, reading in reader.readings.items():
      if reading.steps is None:
        self.contexts[path] = reading.source
      elif path not in leave_out:
        self._add(path, reading, path in later)

  def _add(self, path: str, reading: windows.Reading, is_later: bool) -> None:
    steps = np.asarray(reading.steps, np.int64)
    for fetch in self.fetches:
      if fetch.is_later == is_later and np.array_equal(fetch.offsets, steps):
        fetch.paths[path] = reading.source
        return
    self.fetches.append(Fetch({path: reading.source}, steps, is_later))

  def rows(
    self, fetch: Fetch, draw: Draw, shift: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the rows of one fetch.

    Args:
      fetch: of this plan.
      draw: the items.
      shift: steps from each anchor to the last joined one, int64 [B].
    Returns:
      Rows, int64 [B] + the shape of the offsets, before they are wrapped around the
      ring; and under padding which of them are steps of the episode, bool of that
      shape.
    """
    offsets = fetch.offsets
    axes = (slice(None), *[None] * offsets.ndim)
    if fetch.is_later and shift is not None:
      offsets = offsets + shift[axes]
    elif offsets.ndim == 0 and offsets == 0:
      return draw.rows, None
    real = None
    if self._padding != "drop":
      low = 0 if draw.ages is None else -draw.ages[axes].astype(np.int64)
      clipped = np.clip(offsets, low, draw.marks[axes].astype(np.int64) - 1)
      real = clipped == offsets
      offsets = clipped
    return self.rows_at(draw, offsets, axes), real

  def rows_at(
    self, draw: Draw, offsets: np.ndarray, axes: tuple[slice | None, ...]
  ) -> np.ndarray:
    """Returns the rows of steps relative to the anchors, not wrapped."""
    # A step on is N rows on.
    num_writers = self.lanes.num_writers
    return draw.rows[axes] + (offsets if num_writers == 1 else offsets * num_writers)
