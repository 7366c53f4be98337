"""Windows of one episode alone: what every loader must show of it, in this order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import specs, windows
from t2r_seq.windows.cut import WindowGrid, time_span


def episode_windows(
  episode: Mapping[str, Any],
  num_steps: int,
  spec_structure: specs.SpecStructure,
  padding: str,
  sequence_length: int | None = None,
  stride: int = 1,
  shift: int = 1,
  masks: bool = False,
) -> list[specs.TensorSpecStruct]:
  """Returns a batch of all windows; none where the episode is too short for one.

  Args:
    episode: values by path.
    num_steps: T of it.
    spec_structure: of a window; the rest is as for `windows.gather_windows`.
    padding: what stands where a window leaves the episode.
    sequence_length: L, stacks in a sequence.
    stride: steps between them.
    shift: stacks between the starts of two sequences.
    masks: whether windows have masks.
  """
  span = time_span(spec_structure)
  cut = windows.Cut(sequence_length, stride, shift, padding, masks)
  grid = WindowGrid(span, cut)
  starts = grid.start(np.arange(grid.num_windows(num_steps)))
  if not len(starts):
    return []
  return [windows.gather_windows(episode, starts, spec_structure, cut)]
