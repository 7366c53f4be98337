"""Output of a run: a progress bar on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import logging as python_logging
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.data import AbstractInputGenerator
from t2r_seq.progress import bar_text, duration_text
from t2r_seq.training.callbacks import Callback

if TYPE_CHECKING:
  from t2r_seq.training.callbacks import Run

_DRAW_SECONDS = 0.1


def metrics_text(metrics: Mapping[str, float]) -> str:
  """Formats metrics as one line, the loss first."""
  names = sorted(metrics, key=lambda name: (name != "loss", name))
  return ", ".join(f"{name} {metrics[name]:.5g}" for name in names)


class Screen(Callback):
  """Writes start, progress and end of a run to stderr.

  Writes no lines, only the bar, if absl logs INFO: the log has them.
  """

  def __init__(
    self, max_train_steps: int, is_shown: bool = True, stream: TextIO | None = None
  ) -> None:
    """Creates the screen.

    Args:
      max_train_steps: the global step at which training ends.
      is_shown: whether to write anything.
      stream: text stream; None: the current stderr.
    """
    self._stream = sys.stderr if stream is None else stream
    self._last_step = max_train_steps
    self.has_bar = is_shown and self._stream.isatty()
    log = logging.get_absl_logger()
    self._has_lines = is_shown and not log.isEnabledFor(python_logging.INFO)
    self._is_drawn = False
    self._begin: tuple[int, float] | None = None
    self._drawn_at = 0.0
    self._loss = ""
    self._exports: list[str] = []
    self._metrics: Mapping[str, float] | None = None

  def say(self, text: str) -> None:
    """Removes the bar, and writes a line."""
    self.clear()
    if self._has_lines:
      print(text, file=self._stream, flush=True)

  def summary(
    self,
    run: Run,
    train: AbstractInputGenerator | None,
    evaluated: AbstractInputGenerator | None,
  ) -> None:
    """Prints and logs the model, its data and devices."""
    model, strategy = run.model, run.trainer.strategy
    trained = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    total = sum(int(np.prod(v.shape)) for v in model.variables)
    lines = [
      f"{type(model).__name__}: {total:,} parameters, {trained:,} of them trained, on "
      f"{_devices(strategy)}; step {run.step:,} of {self._last_step:,} in "
      f"{run.model_dir}"
    ]
    lines += [] if train is None else [f"trains on {train.describe()}"]
    if evaluated is not None:
      for name, one in evaluated.named_evals().items():
        lines.append(f"evaluates {f'{name} ' if name else ''}on {one.describe()}")
    for line in lines:
      logging.info(line)
      self.say(line)

  def advance(self, step: int) -> None:
    """Updates the bar, at most every `_DRAW_SECONDS`."""
    now = time.perf_counter()
    if self._begin is None:  # Timing leaves out the first call, which traces the step.
      self._begin = step, now
    if self.has_bar and now - self._drawn_at >= _DRAW_SECONDS:
      self._drawn_at = now
      self._draw(step, now)

  def seconds_left(self, step: int, steps_per_second: float) -> float:
    """Returns the seconds that the remaining steps take at a rate."""
    return (self._last_step - step) / max(steps_per_second, 1e-9)

  def after_log(self, run: Run, scalars: Mapping[str, float]) -> None:
    """See the base class."""
    self._loss = f" loss {scalars['loss']:.4g},"
    if self.has_bar:
      self._draw(run.step, time.perf_counter())
      return
    rate = scalars["steps_per_second"]
    left = duration_text(self.seconds_left(run.step, rate))
    self.say(
      f"step {run.step}/{self._last_step}:{self._loss} {rate:.1f} steps/s, waiting for "
      f"input {100 * scalars['input_wait']:.0f}%, {left} left"
    )

  def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> None:
    """See the base class."""
    self._metrics = metrics
    self.say(f"eval at step {run.step}: {metrics_text(metrics)}")

  def after_export(self, run: Run, name: str, path: str) -> None:
    """See the base class."""
    del run, name
    self._exports.append(path)

  def end(self, step: int, scalars: Mapping[str, float], was_stopped: bool) -> None:
    """Prints the result: metrics, their kind, and the newest export of each exporter.

    Args:
      step: last step.
      scalars: scalars of the last train step, printed if there was no evaluation.
      was_stopped: whether a signal stopped the run.
    """
    if was_stopped:
      self.say(
        f"stopped by a signal at step {step}, saved: the same command resumes there"
      )
      return
    line = f"at step {step}"
    if self._metrics:
      line += f": eval {metrics_text(self._metrics)}"
    elif scalars:
      line += f": train {metrics_text(scalars)}"
    newest = {path.rpartition("/")[0]: path for path in self._exports}
    if newest:
      line += f"; exports: {', '.join(newest.values())}"
    self.say(f"done {line}")

  def clear(self) -> None:
    """Removes the bar."""
    if self._is_drawn:
      self._is_drawn = False
      self._stream.write("\r\x1b[K")
      self._stream.flush()

  def _draw(self, step: int, now: float) -> None:
    first, then = self._begin or (step, now)
    rate = (step - first) / (now - then) if step > first and now > then else 0.0
    left = duration_text(self.seconds_left(step, rate)) if rate else "?"
    bar = bar_text(step / max(self._last_step, 1))
    # The last \r moves the cursor to the start: other output overwrites the bar.
    self._stream.write(
      f"\r\x1b[K{bar} {step}/{self._last_step},{self._loss} {rate:.1f} steps/s, ETA "
      f"{left}\r"
    )
    self._stream.flush()
    self._is_drawn = True


def _devices(strategy: tf.distribute.Strategy) -> str:
  """Returns 'CPU:0' or 'GPU:0' for one replica, 'GPU:0, GPU:1' for several."""
  if strategy.num_replicas_in_sync == 1:
    devices = [
      d.name for kind in ("TPU", "GPU") for d in tf.config.list_logical_devices(kind)
    ]
    names = devices[:1] or ["CPU:0"]
  else:
    names = list(strategy.extended.worker_devices)
  return ", ".join(name.rpartition("device:")[2] for name in names)


class ProgressLog:
  """Measures the rate of steps and the wait for input between two log lines."""

  def __init__(self, max_train_steps: int, is_quiet: bool = False) -> None:
    """Starts the clock.

    Args:
      max_train_steps: the global step at which training ends.
      is_quiet: whether to log no lines, as a bar shows the progress.
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
    """Logs the line and restarts the measurement.

    Args:
      step: global step.
      loss: loss of that step.
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
  def pause(self) -> Iterator[None]:
    """Excludes the block, such as an evaluation, from the measurement."""
    start = time.perf_counter()
    yield
    self._start += time.perf_counter() - start
