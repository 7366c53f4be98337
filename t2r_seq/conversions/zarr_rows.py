"""Rows of a zarr array, read one after the other: each chunk is decoded once."""

from __future__ import annotations

from typing import Any

import numpy as np


class ZarrRows:
  """Reads rows of an array; keeps the last chunk, in which the next rows begin.

  An array may have one chunk for thousands of episodes, and zarr decodes all of it for
  any row.
  """

  def __init__(self, array: Any) -> None:
    """Reads nothing yet.

    Args:
      array: a zarr array [rows, ...].
    """
    self._array = array
    self._chunk = max(int(array.chunks[0]), 1)
    self._start = 0
    self._kept: np.ndarray | None = None

  def read(self, start: int, stop: int) -> np.ndarray:
    """Returns rows start to stop.

    Args:
      start: the first row.
      stop: the row after the last one; at most the number of rows.
    """
    kept = self._kept
    if kept is None or not self._start <= start < self._start + len(kept):
      self._start = start // self._chunk * self._chunk
      kept = None
    parts = [] if kept is None else [kept]
    first = self._start + (0 if kept is None else len(kept))
    if first < stop:
      end = min(-(-stop // self._chunk) * self._chunk, self._array.shape[0])
      parts.append(np.asarray(self._array[first:end]))
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    found = rows[start - self._start : stop - self._start]
    last = (self._start + len(rows) - 1) // self._chunk * self._chunk
    # A copy, so that the chunks before it can go.
    self._kept = rows[last - self._start :].copy() if last > self._start else rows
    self._start = max(last, self._start)
    return found
