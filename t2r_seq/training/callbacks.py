"""Callbacks: user code around steps, checkpoints, evaluations and exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.models import T2RModel
from t2r_seq.training import workers
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.trainer import Trainer


class Run:
  """The training run, as callbacks see it.

  Attributes:
    trainer: runs the steps; has the optimizer.
    model_dir: folder of the run.
    write_dir: folder that this process writes to: `model_dir`, a temporary folder on
      workers other than the chief, or the folder of a `continuous_eval`.
    is_stopped: whether a callback has called `stop`.
  """

  def __init__(
    self, trainer: Trainer, model_dir: str, write_dir: str, callbacks: Sequence[Any]
  ) -> None:
    """Creates the run.

    Args:
      trainer: runs the steps.
      model_dir: folder of the run.
      write_dir: folder that this process writes to.
      callbacks: callbacks in the order of their calls.
    Raises:
      SpecError: one of `callbacks` is not a `Callback`.
    """
    for callback in callbacks:
      if not isinstance(callback, Callback):
        raise errors.SpecError(
          f"train_eval_model: callbacks: expected training.Callbacks, got {callback!r}."
          " In gin, make them: @EarlyStopping(), with the parentheses."
        )
    self.trainer = trainer
    self.model_dir = model_dir
    self.write_dir = write_dir
    self.is_stopped = False
    self._callbacks = tuple(callbacks)
    self._writer: SummaryWriter | None = None

  @property
  def model(self) -> T2RModel:
    """The model that is trained."""
    return self.trainer.model

  @property
  def step(self) -> int:
    """Training steps done, over all runs in the folder."""
    return self.trainer.global_step

  @property
  def outputs(self) -> dict[str, np.ndarray]:
    """The model's outputs for each example of the last step, by name.

    They are those of all replicas of this worker; see `T2RModel.model_train_fn`.
    Reading them waits for the device.
    """
    local = self.trainer.strategy.experimental_local_results
    return {
      name: np.concatenate([part.numpy() for part in local(value)])
      for name, value in self.trainer.outputs.items()
    }

  @property
  def is_chief(self) -> bool:
    """Whether this worker writes the run's files; True without other workers."""
    return workers.is_chief(self.trainer.strategy)

  def stop(self) -> None:
    """Ends the training after this step, with a checkpoint and an evaluation.

    With several workers, all must call it at the same step.
    """
    self.is_stopped = True

  def write_scalars(self, scalars: Mapping[str, Any]) -> None:
    """Writes scalars by name to the training's event file; no effect before it."""
    if self._writer is not None:
      self._writer.scalars(scalars, self.step)

  def write_images(self, images: Mapping[str, Any]) -> None:
    """Writes the first images of batches, as `write_scalars`; see `summaries.image`."""
    if self._writer is not None:
      self._writer.images(images, self.step)

  def write_text(self, name: str, text: str) -> None:
    """Writes text in Markdown, as `write_scalars`."""
    if self._writer is not None:
      self._writer.markdown(name, text, self.step)

  @property
  def eval_metric_names(self) -> list[str]:
    """Names of the metrics that callbacks add to evaluations."""
    return [name for c in self._callbacks for name in c.eval_metric_names]

  def evaluate(self) -> dict[str, float]:
    """Returns the callbacks' own metrics of an evaluation."""
    metrics: dict[str, float] = {}
    for callback in self._callbacks:
      metrics.update(callback.evaluate(self))
    return metrics

  def write_to(self, writer: SummaryWriter | None) -> None:
    """Sets the writer of `write_scalars`; None writes nothing."""
    self._writer = writer

  @property
  def step_intervals(self) -> list[int]:
    """The `step_interval` of each callback that has one."""
    return [i for i in (c.step_interval for c in self._callbacks) if i]

  def notify(self, event: str, *arguments: Any) -> None:
    """Calls a method, by its name, of all callbacks in order."""
    for callback in self._callbacks:
      getattr(callback, event)(self, *arguments)


class Callback:
  """Base class of callbacks; every method does nothing by default.

  Subclass it, and list instances as `callbacks` of `train_eval_model`. They replace
  Tensor2Robot's hooks and hook builders. Each worker has its own callbacks, which
  should write only if `run.is_chief`.
  """

  @property
  def step_interval(self) -> int:
    """The callback needs `before_step` and `after_step` at multiples of this step.

    0 if at no step. By default 1 if it overrides one of the two. Steps in between may
    run in one call; see `steps_per_loop` of `RunConfig`. Read before each call.
    """
    cls = type(self)
    sees_steps = (
      cls.before_step is not Callback.before_step
      or cls.after_step is not Callback.after_step
    )
    return int(sees_steps)

  @property
  def eval_metric_names(self) -> Sequence[str]:
    """Names of the metrics of `evaluate`; exporters read them before training."""
    return ()

  def evaluate(self, run: Run) -> Mapping[str, float]:
    """Called in each evaluation if any callback has `eval_metric_names`.

    The result is added to the metrics, also for exporters. Averaged weights, if the
    model has them, are in place.
    """
    del run
    return {}

  def on_begin(self, run: Run) -> None:
    """Called before the first step, when the weights are restored or initialized."""

  def before_step(self, run: Run) -> None:
    """Called before a step, or several (see `step_interval`), after reading batches.

    `run.step` counts the steps that are done.
    """

  def after_step(self, run: Run, scalars: Mapping[str, tf.Tensor]) -> None:
    """Called after a step, or several (see `step_interval`).

    Args:
      run: the run; its `step` counts these steps.
      scalars: scalars of the last step, with 'loss'; reading one waits for the device.
    """

  def after_log(self, run: Run, scalars: Mapping[str, float]) -> None:
    """Called with scalars every `log_every_n_steps`, and at the last step."""

  def before_checkpoint(self, run: Run) -> None:
    """Called before a checkpoint is saved."""

  def after_checkpoint(self, run: Run, path: str) -> None:
    """Called after a checkpoint was saved; `path` is its prefix."""

  def before_evaluation(self, run: Run) -> None:
    """Called before an evaluation; averaged weights, if any, are in place."""

  def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> None:
    """Called with the metrics, before the exports."""

  def before_export(self, run: Run, name: str) -> None:
    """Called before an exporter exports, with its name."""

  def after_export(self, run: Run, name: str, path: str) -> None:
    """Called after an exporter has exported to the folder `path`, with its name."""

  def on_end(self, run: Run) -> None:
    """Called at the end of the run, except after an error."""
