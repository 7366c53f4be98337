"""Windows by number, for loaders in Python that read columns by `np.memmap`."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.store.works import Work
from t2r_seq.store import EpisodeStore

Batch = dict[str, Any]


class MappedWindows:
  """Windows by number, from columns that are mapped once a process.

  Attributes:
    columns: by field, [steps of all episodes, ...].
  """

  def __init__(self, work: Work) -> None:
    """Opens the columns."""
    store = EpisodeStore(work.store_path)
    # Not as np.memmap, whose slices cost more to make than a window to copy.
    self.columns = {name: np.asarray(store.column(name)) for name in work.fields}
    self._work = work
    self._steps = np.arange(work.num_frames)

  def __len__(self) -> int:
    return self._work.num_windows

  def first_rows(self, window_ids: np.ndarray) -> np.ndarray:
    """Returns the row at which each window starts."""
    episodes, starts = np.divmod(window_ids, self._work.windows_per_episode)
    return episodes * self._work.num_steps + starts

  def rows(self, window_ids: np.ndarray) -> np.ndarray:
    """Returns the rows of windows, [B, K]."""
    return self.first_rows(window_ids)[:, None] + self._steps

  def view(self, window_id: int) -> Batch:
    """Returns one window, without a copy: its rows are neighbours in the file."""
    row = int(self.first_rows(np.asarray(window_id)))
    stop = row + self._work.num_frames
    return {name: column[row:stop] for name, column in self.columns.items()}

  def gather(self, window_ids: np.ndarray) -> Batch:
    """Returns a batch of windows, one copy."""
    rows = self.rows(window_ids)
    return {name: column.take(rows, 0) for name, column in self.columns.items()}
