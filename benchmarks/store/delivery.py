"""Runs that read batches from Python."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.measure import Round, Run


def deliver(
  pipeline: Callable[[Any], Iterable[Any]],
  work: Any,
  share: float = 1.0,
  from_start: bool = False,
  units_per_item: int = 1,
) -> Run:
  """Makes the run that reads batches of windows, one after the other.

  The clock starts when the first batch has come: shuffle buffers are full by then, and
  what is measured is the rate that training sees after its first step.

  Args:
    pipeline: makes an iterable of batches that goes on for ever.
    work: with its `num_batches` and `batch_size`.
    share: of the work's batches to read; slow candidates read fewer.
    from_start: counts the first batch, too; for pipelines that work ahead by so much
      that a round would get a part of its work for nothing.
    units_per_item: what an item of a batch counts.
  Returns:
    The run.
  """
  num_batches = max(1, round(work.num_batches * share))
  # Made once: some fill a buffer in memory before the first batch.
  batches_for_ever = pipeline(work)

  def run() -> Round:
    batches = iter(batches_for_ever)
    if not from_start:
      next(batches)

    def do_round() -> int:
      # Runs in C, and drops each batch when the next one has come.
      collections.deque(itertools.islice(batches, num_batches), maxlen=1)
      return num_batches * work.batch_size * units_per_item

    return do_round

  return run
