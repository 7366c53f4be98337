"""Continuous evaluation: a job of its own beside the training, on its checkpoints."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files
from t2r_seq.data import AbstractInputGenerator
from t2r_seq.models import T2RModel
from t2r_seq.policies import exported_feature_specs
from t2r_seq.training import arguments, checkpoints, exports, stopping, workers
from t2r_seq.training.callbacks import Callback, Run
from t2r_seq.training.evaluation import ModelEvaluation
from t2r_seq.training.trainer import Trainer

_EVALUATED = "evaluated.json"


@gin.configurable
def continuous_eval(
  t2r_model: T2RModel = gin.REQUIRED,
  input_generator_eval: AbstractInputGenerator = gin.REQUIRED,
  model_dir: str = gin.REQUIRED,
  name: str = "continuous_eval",
  eval_steps: int | None = 100,
  max_train_steps: int | None = None,
  timeout_secs: float | None = 3600.0,
  poll_secs: float = 10.0,
  create_exporters_fn: Callable[[], list[exports.Exporter]] | None = None,
  strategy: tf.distribute.Strategy | None = None,
  callbacks: Sequence[Callback] | None = None,
) -> dict[str, float]:
  """Evaluates the checkpoints of a training run as they come, each once.

  The oldest that is not evaluated is next. A checkpoint is copied (linked, where the
  file system can) before it is read, so that the training may delete it meanwhile; one
  that is gone before its turn is passed over. What the job writes is in
  `<model_dir>/<name>`: event files, exports, and `evaluated.json`, the metrics of each
  step, by which a job that is started again knows what is done. It ends when the
  training has ended and its last checkpoint is evaluated, or at SIGTERM.

  Args:
    t2r_model: as it is trained, optimizer and all.
    input_generator_eval: gives eval batches.
    model_dir: folder of the training run; may be empty still.
    name: of the job's own folder in it, and of another job beside this one.
    eval_steps: batches per evaluation at most; None for the whole eval set.
    max_train_steps: a checkpoint of at least this step is the last; None leaves that
      to the training.
    timeout_secs: seconds without a new checkpoint after which it ends; None for never.
    poll_secs: seconds between two looks into the folder.
    create_exporters_fn: gives exporters that are asked after each evaluation.
    strategy: a `tf.distribute` strategy of one process; by default the current one.
    callbacks: are told of evaluations and exports; `run.stop()` ends the job.
  Returns:
    The last evaluation's metrics, 'global_step' and 'was_stopped'.
  Raises:
    SpecError: a checkpoint is of another model, the data is bad, or another job of
      that name evaluates the run.
  """
  if not isinstance(input_generator_eval, AbstractInputGenerator):
    raise errors.SpecError(
      "continuous_eval: input_generator_eval: expected a generator, got "
      f"{errors.describe(input_generator_eval)}."
    )
  exported_feature_specs(t2r_model)
  arguments.follow_sources(t2r_model, None, input_generator_eval)
  folder = os.path.join(model_dir, name)
  files.make_folders(folder)
  trainer = Trainer(t2r_model, strategy or tf.distribute.get_strategy())
  with workers.own_folder(trainer.strategy, folder) as write_dir:
    exports.remove_unfinished_exports(os.path.join(write_dir, "export"))
    run = Run(trainer, model_dir, write_dir, callbacks or ())
    exporters = create_exporters_fn() if create_exporters_fn else []
    exports.check_exportable(t2r_model, exporters)
    evaluation = ModelEvaluation(
      trainer,
      input_generator_eval,
      write_dir,
      eval_steps,
      0.0,
      exporters,
      tell=run.tell,
      own_names=run.eval_metric_names,
      own_metrics=run.evaluate,
    )
    names = evaluation.metric_names()
    for exporter in exporters:
      exporter.check(names)
    done = _Evaluated(os.path.join(folder, _EVALUATED))
    run.tell("on_begin")
    is_stopped = False
    try:
      with stopping.StopSignal() as signal:
        found = time.monotonic()
        while not run.is_stopped and not done.reaches(max_train_steps):
          # Asked first: the last checkpoint is there before the training has ended.
          is_last = checkpoints.is_finished(model_dir)
          step = done.next_step(model_dir)
          if step is not None:
            found = time.monotonic()
            with signal.waiting():
              if _evaluate(trainer, evaluation, model_dir, folder, step, done):
                continue
          elif is_last:
            logging.info("The training has ended, and so does its evaluation.")
            break
          elif timeout_secs is not None and time.monotonic() - found >= timeout_secs:
            logging.warning(
              "No new checkpoint in %s for %g s.", model_dir, timeout_secs
            )
            break
          signal.wait(poll_secs)
    except stopping.Stopped:
      is_stopped = True
    run.tell("on_end")
    arguments.warn_of_unread_bindings()
  return {**done.metrics, "global_step": done.step, "was_stopped": is_stopped}


def _evaluate(
  trainer: Trainer,
  evaluation: ModelEvaluation,
  model_dir: str,
  folder: str,
  step: int,
  done: _Evaluated,
) -> bool:
  """Evaluates a checkpoint, of a copy; returns False if it was deleted before that."""
  with tempfile.TemporaryDirectory(prefix="backup-", dir=folder) as place:
    try:
      if not checkpoints.back_up(model_dir, step, place):
        logging.warning("The checkpoint of step %d was deleted before its turn.", step)
        return False
    except checkpoints.DAMAGE as e:
      logging.warning("The checkpoint of step %d is damaged, and left out: %s", step, e)
      done.add(step, place, None)
      return True
    checkpoints.Checkpoints(trainer, place, 1).load(step)
    done.add(step, place, evaluation.run())
  return True


class _Evaluated:
  """Which checkpoints a job has evaluated, in a file that outlives it."""

  def __init__(self, path: str) -> None:
    """Reads the file, if it is there."""
    self._path = path
    self._steps: dict[int, dict[str, Any]] = {}
    if os.path.exists(path):
      try:
        with open(path, encoding="utf-8") as f:
          self._steps = {int(step): dict(of) for step, of in json.load(f).items()}
        for about in self._steps.values():
          dict(about["metrics"] or {})
      except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.SpecError(
          f"continuous_eval: {path}: expected metrics by step as JSON, got {error}. "
          "Delete the file: the checkpoints that are there are evaluated again then."
        ) from error

  @property
  def step(self) -> int:
    """The newest step that was evaluated; 0 for none."""
    return max((s for s, about in self._steps.items() if about["metrics"]), default=0)

  @property
  def metrics(self) -> dict[str, float]:
    """Of that step."""
    return self._steps[self.step]["metrics"] if self.step in self._steps else {}

  def reaches(self, max_train_steps: int | None) -> bool:
    """Whether that step is the last that there will be."""
    return max_train_steps is not None and self.step >= max_train_steps

  def next_step(self, model_dir: str) -> int | None:
    """Returns the oldest step with a checkpoint that was not evaluated, if any.

    A checkpoint of the same step and other contents, of a training that went back, is
    another one.
    """
    for step in checkpoints.steps(model_dir):
      identity = checkpoints.identity(model_dir, step)
      if identity and self._steps.get(step, {}).get("checkpoint") != identity:
        return step
    return None

  def add(self, step: int, folder: str, metrics: dict[str, float] | None) -> None:
    """Notes an evaluation, on the disk; None for what could not be read.

    Args:
      step: of the checkpoint.
      folder: where it is.
      metrics: of the evaluation.
    """
    identity = checkpoints.identity(folder, step)
    self._steps[step] = {"checkpoint": identity, "metrics": metrics}
    files.replace_file(self._path, json.dumps(self._steps, indent=1).encode())
