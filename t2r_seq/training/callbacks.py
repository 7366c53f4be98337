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
    write_dir: folder that this worker writes to: the chief's is `model_dir`.
    is_stopped: whether a callback has requested the end.
  """

  def __init__(
    self, trainer: Trainer, model_dir: str, write_dir: str, callbacks: Sequence[Any]
  ) -> None:
    """Creates the run.

    Args:
      trainer: runs the steps.
      model_dir: folder of the run.
      write_dir: folder that this worker writes to.
      callbacks: called in this order.
    Raises:
      SpecError: something else than a `Callback` is among them.
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

    Of this worker's replicas together; see `T2RModel.model_train_fn`. To read them
    waits for the device.
    """
    local = self.trainer.strategy.experimental_local_results
    return {
      name: np.concatenate([part.numpy() for part in local(value)])
      for name, value in self.trainer.outputs.items()
    }

  @property
  def is_chief(self) -> bool:
    """Whether this worker writes; always so without others."""
    return workers.is_chief(self.trainer.strategy)

  def stop(self) -> None:
    """Ends the training after this step, with a checkpoint and an evaluation.

    Of several workers all must call it at the same step.
    """
    self.is_stopped = True

  def write_scalars(self, scalars: Mapping[str, Any]) -> None:
    """Writes scalars by name to the run's event file."""
    if self._writer is not None:
      self._writer.scalars(scalars, self.step)

  def write_images(self, images: Mapping[str, Any]) -> None:
    """Writes the first images of batches by name; see `summaries.image`."""
    if self._writer is not None:
      self._writer.images(images, self.step)

  def write_text(self, name: str, text: str) -> None:
    """Writes text, in Markdown, to the run's event file."""
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
    """Sets where `write_scalars` writes; None for nowhere, as after the training."""
    self._writer = writer

  @property
  def step_intervals(self) -> list[int]:
    """Steps between two that a callback must see, of each that must see any."""
    return [i for i in (c.step_interval for c in self._callbacks) if i]

  def notify(self, event: str, *arguments: Any) -> None:
    """Calls that method of all callbacks, in their order."""
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
    """Number of steps between two calls for this callback; 0 for none.

    By default 1 if it overrides `before_step` or `after_step`. Steps in between may run
    in one call, see `steps_per_loop` of `RunConfig`; read before each call.
    """
    cls = type(self)
    is_told = (
      cls.before_step is not Callback.before_step
      or cls.after_step is not Callback.after_step
    )
    return int(is_told)

  @property
  def eval_metric_names(self) -> Sequence[str]:
    """Names of the metrics of `evaluate`; exporters read them before training."""
    return ()

  def evaluate(self, run: Run) -> Mapping[str, float]:
    """Called in each evaluation; its result joins the metrics, for exporters too.

    Runs with the evaluated (averaged) weights.
    """
    del run
    return {}

  def on_begin(self, run: Run) -> None:
    """Called when the weights are there, resumed or new, before the first step."""

  def before_step(self, run: Run) -> None:
    """Called before each step, with its batch at hand; `run.step` are done.

    And before several, where no callback must see each; see `step_interval`.
    """

  def after_step(self, run: Run, scalars: Mapping[str, tf.Tensor]) -> None:
    """Called after each step, or several, see `before_step`.

    Args:
      run: its `step` counts this one.
      scalars: scalars of the step, with 'loss'; reading one waits for the device.
    """

  def after_log(self, run: Run, scalars: Mapping[str, float]) -> None:
    """Called with the logged scalars, every `log_every_n_steps`."""

  def before_checkpoint(self, run: Run) -> None:
    """Called before a checkpoint is saved."""

  def after_checkpoint(self, run: Run, path: str) -> None:
    """Called after a checkpoint was saved; `path` is its prefix."""

  def before_evaluation(self, run: Run) -> None:
    """Called before an evaluation; averaged weights are in place."""

  def after_evaluation(self, run: Run, metrics: Mapping[str, float]) -> None:
    """Called with the metrics, before the exports."""

  def before_export(self, run: Run, name: str) -> None:
    """Called before an exporter exports, with its name."""

  def after_export(self, run: Run, name: str, path: str) -> None:
    """Called after an exporter has exported to the folder `path`, with its name."""

  def on_end(self, run: Run) -> None:
    """Called at the end, unless an error is the end."""
