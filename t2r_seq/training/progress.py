"""The progress line: loss, speed, and the share of time spent waiting for input."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from absl import logging

from t2r_seq import errors


class Progress:
  """Measures steps and the time that `next` takes, between two log lines."""

  def __init__(self, max_train_steps: int) -> None:
    """Starts the clock.

    Args:
      max_train_steps: shown beside the step.
    """
    self._max_train_steps = max_train_steps
    self._restart()

  def _restart(self) -> None:
    self._start = time.perf_counter()
    self._input_seconds = 0.0
    self._steps = 0

  def next_batch(self, iterator: Iterator[Any]) -> Any:
    """Takes the next batch and counts the seconds it took.

    Raises:
      SpecError: the input has ended.
    """
    start = time.perf_counter()
    batch = next(iterator, None)
    if batch is None:
      raise errors.SpecError(
        f"train_eval_model: input_generator_train: expected batches for "
        f"{self._max_train_steps} steps, got an end of the data. Repeat it in mode "
        "'train'."
      )
    self._input_seconds += time.perf_counter() - start
    self._steps += 1
    return batch

  def log(self, step: int, loss: float) -> dict[str, float]:
    """Prints the line and starts anew.

    Args:
      step: global step.
      loss: of that step.
    Returns:
      'steps_per_second' and 'input_wait', the share of time in [0, 1].
    """
    seconds = max(time.perf_counter() - self._start, 1e-9)
    scalars = {
      "steps_per_second": self._steps / seconds,
      "input_wait": self._input_seconds / seconds,
    }
    logging.info(
      "step %d/%d: loss %.5g, %.1f steps/s, waiting for input %.0f%%",
      step,
      self._max_train_steps,
      loss,
      scalars["steps_per_second"],
      100 * scalars["input_wait"],
    )
    self._restart()
    return scalars

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Leaves what happens inside, such as an evaluation, out of the measurement."""
    start = time.perf_counter()
    yield
    self._start += time.perf_counter() - start
