"""`Contexts`: features of whole episodes, held as long as a step of the episode is."""

from __future__ import annotations

import collections
from collections.abc import Mapping

import numpy as np

from t2r_seq.replay.memory.ring import allocate, column_dtype
from t2r_seq.store.layout import Column


class Contexts:
  """A row for each episode, which is used again when the episode has gone.

  Attributes:
    columns: by path, a row an episode.
  """

  def __init__(
    self, layout: Mapping[str, Column], num_rows: int, num_writers: int
  ) -> None:
    """Reserves the memory; it is taken as rows are written.

    Args:
      layout: the columns with a row per episode; there may be none.
      num_rows: of the ring.
      num_writers: N; rows of the ring are those of the writers in turn.
    """
    # As many episodes as steps, and running ones whose first step is to come.
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

  def begin(self, lane: int, values: Mapping[str, np.ndarray]) -> None:
    """Holds the features of a writer's new episode."""
    if self._free:
      row = self._free.pop()
    else:
      row, self._used = self._used, self._used + 1
    for path, column in self.columns.items():
      column[row] = values[path]
    self._held[lane].append(row)

  def add_step(self, lane: int, row: int) -> None:
    """Notes that a row of the ring is of the writer's newest episode."""
    self._rows_of[row] = self._held[lane][-1]

  def keep(self, lane: int, num_episodes: int) -> None:
    """Lets the features of all but a writer's newest episodes go."""
    held = self._held[lane]
    while len(held) > num_episodes:
      self._free.append(held.popleft())

  def take(self, path: str, rows: np.ndarray) -> np.ndarray:
    """Returns the features of the episodes that rows of the ring are of, [B, ...]."""
    return self.columns[path].take(self._rows_of.take(rows), 0)

  def of_newest(self, lane: int) -> dict[str, np.ndarray]:
    """Returns the features of a writer's newest episode."""
    row = self._held[lane][-1]
    return {path: column[row] for path, column in self.columns.items()}

  @property
  def step_bytes(self) -> int:
    """Memory that a row of the ring takes here."""
    return self._rows_of.itemsize if self.columns else 0

  @property
  def num_bytes(self) -> int:
    """Memory that episodes take."""
    return self._used * sum(column[:1].nbytes for column in self.columns.values())
