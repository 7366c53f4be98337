"""`Drawing`: what of sampled batches is drawn, and gathered, in Python."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.memory.sampling import Sampling
from t2r_seq.replay.memory.window_plan import Fetch
from t2r_seq.replay.replay import SampleInfo


class Drawing:
  """Draws batches for a graph; refers to no buffer, see `call_weakly`."""

  def __init__(
    self,
    fetches: Sequence[Fetch],
    small: Sequence[str],
    large: frozenset[str],
    with_info: bool,
  ) -> None:
    """Says what is drawn.

    Args:
      fetches: those with paths that the graph gathers.
      small: paths that are gathered here.
      large: paths that the graph gathers.
      with_info: tells what is known of the items.
    """
    self._fetches = fetches
    self._small = small
    self._large = large
    self._with_info = with_info

  def draw(self, sampling: Sampling, count: int) -> list[Any]:
    """Draws items, and gathers what is small of their windows.

    Returns:
      What is known of the items, if that is told, and the small paths. Then, if there
      are large ones, steps and writers of all rows that were seen, int64 [N], and for
      each fetch the rows in the ring, and whether they are steps of the episode.
    """
    if not self._large:
      return self._whole(*sampling.sample(count), self._small)
    info, draw, batch = sampling.begin(count, self._large)
    gathering = sampling.gathering
    shift = gathering.shift(draw)
    lanes = gathering.plan.lanes
    seen = [lanes.steps_of(rows, counts) for rows, counts in draw.seen]
    places: list[Any] = list(map(np.concatenate, zip(*seen, strict=True)))
    for fetch in self._fetches:
      rows, real = gathering.plan.rows(fetch, draw, shift)
      places.append(rows % len(lanes.marks))
      places.append(np.ones(rows.shape, bool) if real is None else real)
    return [*self._whole(info, batch, self._small), *places]

  def draw_again(
    self, sampling: Sampling, count: int, paths: Sequence[str]
  ) -> list[Any]:
    """Returns a batch in place of one that was not whole: information and all paths."""
    return self._whole(*sampling.sample_again(count), paths)

  def _whole(
    self, info: SampleInfo | None, batch: dict[str, np.ndarray], paths: Sequence[str]
  ) -> list[Any]:
    known = () if info is None or not self._with_info else info
    return [*known, *(batch[path] for path in paths)]


def call_weakly(
  function: Callable[[Sampling], list[Any]], sampling: Sampling, dtypes: list[tf.DType]
) -> list[tf.Tensor]:
  """Calls a function from a graph, which does not keep the buffer in memory.

  TensorFlow keeps each function of Python that a graph calls until the process ends,
  and what it refers to: that would be the ring of every buffer that had a dataset.

  Args:
    function: refers to no buffer.
    sampling: its argument; the caller has to hold it.
    dtypes: of what it returns.
  """
  reference = weakref.ref(sampling)

  def in_python() -> list[Any]:
    held = reference()
    if held is None:
      raise errors.ReplayError(
        "replay: dataset: expected the buffer, got none: it was deleted. Keep a "
        "reference to the buffer, or to the dataset."
      )
    return function(held)

  return tf.numpy_function(in_python, [], dtypes)
