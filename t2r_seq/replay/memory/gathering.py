"""`Gathering`: from drawn items to batches of windows, as numpy arrays."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from t2r_seq import windows
from t2r_seq.replay.memory.contexts import Contexts
from t2r_seq.replay.memory.lanes import Lanes
from t2r_seq.replay.memory.n_step import NStepReading
from t2r_seq.replay.memory.ring import Ring
from t2r_seq.replay.memory.window_plan import Draw, Fetch, WindowPlan

Batch = dict[str, np.ndarray]


class Gathering:
  """Gathers windows; all calls work without the buffer's lock.

  Attributes:
    plan: which rows windows show.
    columns: of the ring, by path.
    is_zero_padded: whether there are zeros where there is no step.
  """

  def __init__(
    self,
    ring: Ring,
    lanes: Lanes,
    contexts: Contexts,
    reader: windows.WindowReader,
    n_step: NStepReading | None,
  ) -> None:
    """Plans what is gathered.

    Args:
      ring: the rows.
      lanes: where items are in them.
      contexts: the features of episodes.
      reader: of the windows.
      n_step: how transitions are joined, if they are.
    """
    self._contexts = contexts
    self._n_step = n_step
    self._masks = reader.masks
    if n_step is None:
      self.plan = WindowPlan(reader, lanes)
    else:
      rewards = frozenset(n_step.rewards)
      self.plan = WindowPlan(reader, lanes, n_step.later, rewards)
    self.columns = ring.columns
    self.is_zero_padded = reader.cut.padding == "zero"

  def shift(self, draw: Draw) -> np.ndarray | None:
    """Returns the steps from each anchor to the last one that is joined, int64 [B]."""
    return None if self._n_step is None else self._n_step.shift(draw)

  def gather(self, draw: Draw, leave_out: Container[str] = ()) -> Batch:
    """Gathers windows.

    Args:
      draw: the items.
      leave_out: paths that are not wanted.
    Returns:
      Arrays [B, ...] by path; byte strings are objects.
    """
    shift, columns = self.shift(draw), self.columns
    batch: Batch = {}
    for fetch in self.plan.fetches:
      rows, real = self.plan.rows(fetch, draw, shift)
      for path, source in fetch.paths.items():
        if path not in leave_out:
          batch[path] = self.pad(columns[source].take(rows, 0, mode="wrap"), real)
      self._add_masks(batch, fetch, rows.shape, real)
    for path, source in self.plan.contexts.items():
      batch[path] = self._contexts.take(source, draw.rows)
    if self._n_step is not None and shift is not None:
      offsets = self._n_step.reward_offsets(shift)
      rows = self.plan.rows_at(draw, offsets, (None,))
      rewards = {
        path: columns[source].take(rows, 0, mode="wrap")
        for path, source in self._n_step.rewards.items()
      }
      self._n_step.join(batch, rewards, shift)
    return batch

  def pad(self, values: np.ndarray, real: np.ndarray | None) -> np.ndarray:
    """Puts zeros, or empty strings, where there is no step, if that is the padding."""
    if self.is_zero_padded and real is not None:
      values[~real] = b"" if values.dtype == object else 0
    return values

  def _add_masks(
    self, batch: Batch, fetch: Fetch, shape: tuple[int, ...], real: np.ndarray | None
  ) -> None:
    for mask, path in self._masks.items():
      if path in fetch.paths:
        batch[mask] = np.ones(shape, bool) if real is None else real.copy()
