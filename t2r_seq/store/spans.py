"""Where in each file of a segment the bytes of each episode lie."""

from __future__ import annotations

import dataclasses

import numpy as np

from t2r_seq.store.layout import Column


@dataclasses.dataclass(frozen=True)
class Spans:
  """One range per episode, of rows or of bytes.

  Attributes:
    starts: int64 [episodes].
    stops: int64 [episodes]; the range ends before it.
    is_known: bool [episodes]; False where a damaged index does not tell.
  """

  starts: np.ndarray
  stops: np.ndarray
  is_known: np.ndarray

  def __len__(self) -> int:
    return len(self.starts)

  def scaled(self, factor: int, offset: int = 0) -> Spans:
    """Returns the ranges in smaller units."""
    return Spans(
      offset + self.starts * factor, offset + self.stops * factor, self.is_known
    )


def step_spans(ends: np.ndarray, num_episodes: int, num_steps: int) -> Spans:
  """Returns the steps of each episode.

  Args:
    ends: of the index, int64 [n]; they may be too few, or damaged.
    num_episodes: how many there should be.
    num_steps: of all of them.
  Returns:
    Ranges of steps; an episode whose end is missing or impossible is not known.
  """
  padded = np.full(num_episodes, -1, np.int64)
  padded[: len(ends)] = ends[:num_episodes]
  starts = np.concatenate([np.zeros(1, np.int64), padded[:-1]])[:num_episodes]
  is_known = (starts >= 0) & (padded > starts) & (padded <= num_steps)
  return Spans(starts, padded, is_known)


def episode_spans(num_episodes: int) -> Spans:
  """Returns the one row that each episode has in a column of context features."""
  numbers = np.arange(num_episodes, dtype=np.int64)
  return Spans(numbers, numbers + 1, np.ones(num_episodes, bool))


def file_spans(column: Column, name: str, rows: Spans, offsets: np.ndarray) -> Spans:
  """Returns the bytes of each episode in one file of a column.

  Args:
    column: of the store.
    name: of the file.
    rows: those of each episode in the column.
    offsets: of byte strings, int64, as many as the file has; else of no matter.
  Returns:
    Ranges of bytes.
  """
  if name == column.present_file:
    return episode_spans(len(rows))
  if name == column.offsets_file:
    return rows.scaled(8 * column.items_per_row, 8)
  if not column.is_bytes:
    return rows.scaled(column.items_per_row * column.dtype.itemsize)
  items = rows.scaled(column.items_per_row)
  is_known = items.is_known & (items.stops < len(offsets))
  starts, stops = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
  starts[is_known] = offsets[items.starts[is_known]]
  stops[is_known] = offsets[items.stops[is_known]]
  return Spans(starts, stops, is_known & (starts >= 0) & (stops >= starts))
