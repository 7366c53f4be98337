"""What a run tells: the progress line, and event files for TensorBoard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.models import summaries
from t2r_seq.specs import TensorSpecStruct


class SummaryWriter:
  """Writes the event file of one folder.

  What models write while it is `recording` goes there, too: `t2r_seq.models.summaries`.
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

  def markdown(self, name: str, text: str, step: int) -> None:
    """Writes text in Markdown."""
    with self._writer.as_default(step=step):
      summaries.text(name, text)
    self._writer.flush()

  def images(
    self, images: Mapping[str, Any], step: int, labels: Mapping[str, str] | None = None
  ) -> None:
    """Writes the first images of batches by name, with what is said of them."""
    with self._writer.as_default(step=step):
      for name, tensor in images.items():
        summaries.image(name, tensor, (labels or {}).get(name, ""))
    self._writer.flush()

  def seen(
    self,
    features: TensorSpecStruct,
    labels: TensorSpecStruct | None,
    step: int,
    offsets: Mapping[str, Sequence[int]],
  ) -> None:
    """Writes the first samples of a batch as the model sees them.

    Images lie at 'seen/<path>', one a sample, and the table 'seen/samples' has all the
    other values of the same samples, and the labels.

    Args:
      features: that the model takes, [B, ...].
      labels: likewise, if there are any.
      step: of the batch.
      offsets: which steps a path's stack shows.
    """
    images, said = {}, {}
    for path, tensor in features.items():
      if summaries.image_strip(tensor) is not None:
        images[f"seen/{path}"] = tensor
        shown = ", ".join(_step_name(k) for k in offsets.get(path, ()))
        said[f"seen/{path}"] = (
          f"{path}: {tensor.dtype.name} {tuple(tensor.shape[1:])}, one picture a sample"
          + (f"; frames from left to right: {shown}" if shown else "")
        )
    self.images(images, step, said)
    rest = {p: t for p, t in features.items() if f"seen/{p}" not in images}
    given = {f"label {path}": t for path, t in (labels or {}).items()}
    table = summaries.samples_table({**rest, **given})
    if table:
      self.markdown("seen/samples", table, step)

  @contextlib.contextmanager
  def recording(self, step: tf.Tensor, is_due: tf.Tensor) -> Iterator[None]:
    """Makes `tf.summary` calls inside write to this file at `step`, where it is due."""
    with self._writer.as_default(step=step), tf.summary.record_if(is_due):
      yield

  def close(self) -> None:
    """Writes what is pending and closes the file."""
    self._writer.close()


def _step_name(offset: int) -> str:
  return f"t{offset:+d}" if offset else "t"


class ProgressLog:
  """Measures steps and the time that `next` takes, between two log lines."""

  def __init__(self, max_train_steps: int, is_quiet: bool = False) -> None:
    """Starts the clock.

    Args:
      max_train_steps: shown beside the step.
      is_quiet: writes no line, because a bar says the same.
    """
    self._is_quiet = is_quiet
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
    if not self._is_quiet:
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
