"""What a run tells: the progress line, and event files for TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, summaries
from t2r_seq.specs import TensorSpecStruct


class SummaryWriter:
  """Writes the event file of one folder.

  What models write while it is `recording` goes there, too; see `t2r_seq.summaries`.
  """

  def __init__(self, logdir: str) -> None:
    """Creates the writer; the file appears with the first summary."""
    self._writer = tf.summary.create_file_writer(logdir)

  def scalars(self, scalars: Mapping[str, Any], step: int) -> None:
    """Writes scalars by name."""
    with self._writer.as_default(step=step):
      for name, value in scalars.items():
        summaries.scalar(name, value)
    self._writer.flush()

  def text(self, name: str, text: str, step: int) -> None:
    """Writes text, shown as code."""
    indented = "\n".join(f"    {line}" for line in text.splitlines())
    with self._writer.as_default(step=step):
      summaries.text(name, indented)
    self._writer.flush()

  def seen_images(self, features: TensorSpecStruct, step: int) -> None:
    """Writes the first images of a batch as the model sees them."""
    with self._writer.as_default(step=step):
      for path, tensor in features.items():
        if summaries.image_strip(tensor) is not None:
          summaries.image(f"seen/{path}", tensor)
    self._writer.flush()

  @contextlib.contextmanager
  def recording(self, step: tf.Tensor, is_due: tf.Tensor) -> Iterator[None]:
    """Makes `tf.summary` calls inside write to this file at `step`, where it is due."""
    with self._writer.as_default(step=step), tf.summary.record_if(is_due):
      yield

  def close(self) -> None:
    """Writes what is pending and closes the file."""
    self._writer.close()


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
