"""Evaluations: metrics averaged over an eval set, and exports after them.

`ModelEvaluation` runs within the training; `continuous_eval` is a separate job.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files
from t2r_seq.data import AbstractInputGenerator
from t2r_seq.models import T2RModel
from t2r_seq.policies.policy_module import exported_feature_specs
from t2r_seq.specs import ModeKeys
from t2r_seq.training import arguments, checkpoints, exports, stopping, workers
from t2r_seq.training.callbacks import Callback, Run
from t2r_seq.training.exports import AsyncExports, Exporter
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.trainer import Trainer

# The file with the metrics of each step that a continuous evaluation has evaluated.
_EVALUATED = "evaluated.json"


def evaluate(
  trainer: Trainer, batches: Iterable[Any], eval_steps: int | None
) -> dict[str, float]:
  """Averages the eval metrics over batches, weighted by their sizes.

  Uses the averaged weights, if the model has them.

  Args:
    trainer: runs the steps.
    batches: (features, labels) pairs, distributed.
    eval_steps: maximum number of batches; None for all.
  Returns:
    Means by name, and the metrics of the model's `eval_results_fn`.
  Raises:
    SpecError: there was no example.
  """
  totals: dict[str, float] = {}
  tallies: dict[str, np.ndarray] = {}
  num_examples = 0.0
  with trainer.model.averaged_weights():
    for index, (features, labels) in enumerate(batches):
      sums, counts, count = trainer.eval_step(features, labels)
      for name, value in sums.items():
        totals[name] = totals.get(name, 0.0) + float(value)
      for name, tally in counts.items():
        tallies[name] = tallies.get(name, 0.0) + tally.numpy().astype(np.float64)
      num_examples += float(count)
      if eval_steps is not None and index + 1 >= eval_steps:
        break
  if not num_examples:
    raise errors.SpecError(
      "train_eval_model: eval: expected at least one batch, got none. Are there fewer "
      "examples than a batch?"
    )
  means = {name: total / num_examples for name, total in totals.items()}
  return {**means, **trainer.model.eval_results_fn(tallies)}


class _EvalSet:
  """A named set of batches to evaluate on; an only one has the name ''."""

  def __init__(
    self, name: str, generator: AbstractInputGenerator, trainer: Trainer, folder: str
  ) -> None:
    self.name = name
    self._generator = generator
    self._trainer = trainer
    folder = os.path.join(folder, f"eval_{name}" if name else "eval")
    self._writer = SummaryWriter(folder)
    generator.set_specification_from_model(trainer.model, ModeKeys.EVAL)
    with generator.explain_failures():
      dataset = generator.create_dataset(ModeKeys.EVAL)
    self._batches = trainer.distribute(dataset)

  def run(self, eval_steps: int | None) -> dict[str, float]:
    """Evaluates, and writes the metrics to the set's own folder."""
    with self._generator.explain_failures():
      metrics = evaluate(self._trainer, self._batches, eval_steps)
    self._writer.scalars(metrics, self._trainer.global_step)
    report = self._generator.report
    if report is not None and report.too_short:
      logging.warning("Eval input%s: %s.", f" {self.name}" if self.name else "", report)
    return metrics


def _merge_metrics(by_eval: dict[str, dict[str, float]]) -> dict[str, float]:
  """Returns '<name>/<metric>' of each eval set, and '<metric>', the mean over sets."""
  if list(by_eval) == [""]:
    return by_eval[""]
  metrics = {
    f"{name}/{metric}": value
    for name, eval_metrics in by_eval.items()
    for metric, value in eval_metrics.items()
  }
  sums: dict[str, list[float]] = {}
  for eval_metrics in by_eval.values():
    for metric, value in eval_metrics.items():
      sums.setdefault(metric, []).append(value)
  return {**{metric: sum(v) / len(v) for metric, v in sums.items()}, **metrics}


class ModelEvaluation:
  """Evaluates and exports within a training, or for `continuous_eval`."""

  def __init__(
    self,
    run: Run,
    input_generator: AbstractInputGenerator | None,
    eval_steps: int | None,
    throttle_secs: float,
    exporters: list[Exporter],
    async_exports: AsyncExports | None = None,
  ) -> None:
    """Creates the evaluation; the first is due `throttle_secs` from now.

    Args:
      run: the trainer, the folder to write to, and callbacks with their own metrics.
      input_generator: eval batches, of one or several named sets; None evaluates by
        callbacks only.
      eval_steps: maximum batches of each set; None for all.
      throttle_secs: minimum seconds between two evaluations, for `run_if_due`.
      exporters: exporters that run after each evaluation.
      async_exports: exports in a thread; None exports before `run` returns.
    Raises:
      SpecError: an exporter needs a metric that evaluations do not have.
    """
    self._run, self._trainer = run, run.trainer
    self._eval_steps, self._throttle_secs = eval_steps, throttle_secs
    self._exporters, self._async_exports = exporters, async_exports
    self._own_names = run.eval_metric_names
    self._own_writer: SummaryWriter | None = None
    self._last = time.monotonic()
    self.input_generator = input_generator
    named = {} if input_generator is None else input_generator.named_evals()
    self._evals = [
      _EvalSet(name, g, run.trainer, run.write_dir) for name, g in named.items()
    ]
    names = self._metric_names()
    for exporter in exporters if names else ():
      exporter.check(names)

  def run_if_due(self) -> None:
    """Calls `run` if the last one ended at least `throttle_secs` ago."""
    is_due = time.monotonic() - self._last >= self._throttle_secs
    if workers.chief_says(self._trainer.strategy, is_due):
      self.run()

  def _metric_names(self) -> list[str]:
    """Returns the names of the metrics that `run` returns."""
    if not self._evals:
      return self._own_names
    names = self._trainer.model.eval_metric_names()
    sets = [e.name for e in self._evals if e.name]
    by_set = (f"{name}/{metric}" for name in sets for metric in names)
    return [*names, *by_set, *self._own_names]

  def run(self) -> dict[str, float]:
    """Evaluates and exports the (averaged) weights; returns the metrics."""
    with self._trainer.model.averaged_weights():
      return self._evaluate_and_export()

  def _evaluate_and_export(self) -> dict[str, float]:
    step = self._trainer.global_step
    metrics: dict[str, float] = {}
    if self._evals or self._own_names:
      self._run.notify("before_evaluation")
      if self._evals:
        by_eval = {each.name: each.run(self._eval_steps) for each in self._evals}
        metrics = _merge_metrics(by_eval)
      if self._own_names:
        run_metrics = self._run.evaluate()
        if self._own_writer is None:
          folder = os.path.join(self._run.write_dir, "eval_callbacks")
          self._own_writer = SummaryWriter(folder)
        self._own_writer.scalars(run_metrics, step)
        metrics = {**metrics, **run_metrics}
      text = ", ".join(f"{name} {value:.5g}" for name, value in metrics.items())
      logging.info("eval at step %d: %s", step, text)
      self._run.notify("after_evaluation", metrics)
    self._export(step, metrics)
    self._last = time.monotonic()
    return metrics

  def _export(self, step: int, metrics: dict[str, float]) -> None:
    if self._async_exports is not None:
      exporters, place = self._exporters, self._run.write_dir
      self._async_exports.submit(exporters, place, step, metrics)
      return
    saved = None
    for exporter in self._exporters:
      is_due = exporter.is_due(self._run.write_dir, metrics)
      if workers.chief_says(self._trainer.strategy, is_due):
        arguments = (self._trainer.model, self._run.write_dir, step, metrics)
        self._run.notify("before_export", exporter.name)
        if type(exporter).export is Exporter.export:
          path = saved = exporter.export(*arguments, saved)
        else:  # An overridden `export` may write other files, so it is not copied.
          path = exporter.export(*arguments)
        self._run.notify("after_export", exporter.name, path)


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
  create_exporters_fn: Callable[[], list[Exporter]] | None = None,
  strategy: tf.distribute.Strategy | None = None,
  callbacks: Sequence[Callback] | None = None,
) -> dict[str, float]:
  """Evaluates each checkpoint of a concurrent training job once.

  Evaluates the oldest pending checkpoint next. A checkpoint is first copied (linked if
  the file system can), so that the training may delete it. Checkpoints that are deleted
  before their turn are skipped. The job writes to `<model_dir>/<name>`: event files,
  exports, and `evaluated.json` with the metrics of each step, from which a restarted
  job resumes. It ends when the training has ended and its last checkpoint is
  evaluated, after `timeout_secs`, or at SIGTERM or SIGHUP.

  Args:
    t2r_model: the model of the training job, with the same optimizer.
    input_generator_eval: generator of eval batches.
    model_dir: folder of the training run; may still be empty.
    name: folder of this job in `model_dir`. Parallel jobs need different names.
    eval_steps: maximum batches per evaluation; None for the whole eval set.
    max_train_steps: the job also ends after evaluating a checkpoint of at least this
      step; None: no such end.
    timeout_secs: seconds without a new checkpoint after which it ends; None for never.
    poll_secs: seconds between two searches for checkpoints.
    create_exporters_fn: creates exporters that run after each evaluation; None exports
      nothing.
    strategy: a `tf.distribute` strategy of one process; by default the current one.
    callbacks: called at evaluations and exports; `run.stop()` ends the job.
  Returns:
    The metrics of the newest evaluated step, 'global_step' and 'was_stopped'.
  Raises:
    SpecError: an argument is invalid, the model cannot be exported, a checkpoint is of
      another model, the data is bad, or another job with this name is running.
    OSError: a file cannot be read or written.
  """
  if not isinstance(input_generator_eval, AbstractInputGenerator):
    raise errors.SpecError(
      "continuous_eval: input_generator_eval: expected a generator, got "
      f"{errors.describe(input_generator_eval)}."
    )
  exported_feature_specs(t2r_model)  # Raises early if it cannot be exported.
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
      run, input_generator_eval, eval_steps, throttle_secs=0.0, exporters=exporters
    )
    history = _EvaluationLog(os.path.join(folder, _EVALUATED))
    run.notify("on_begin")
    is_stopped = False
    try:
      with stopping.StopSignal() as signal:
        last_checkpoint_at = time.monotonic()
        while not run.is_stopped and not history.reaches(max_train_steps):
          # Read first: training writes its last checkpoint before it marks the end.
          is_last = checkpoints.is_finished(model_dir)
          step = history.next_step(model_dir)
          if step is not None:
            last_checkpoint_at = time.monotonic()
            with signal.waiting():
              if _evaluate(trainer, evaluation, model_dir, folder, step, history):
                continue
          elif is_last:
            logging.info("The training has ended, and so does its evaluation.")
            break
          elif (
            timeout_secs is not None
            and time.monotonic() - last_checkpoint_at >= timeout_secs
          ):
            logging.warning(
              "No new checkpoint in %s for %g s.", model_dir, timeout_secs
            )
            break
          signal.wait(poll_secs)
    except stopping.Stopped:
      is_stopped = True
    run.notify("on_end")
    arguments.warn_of_unread_bindings()
  return {**history.metrics, "global_step": history.step, "was_stopped": is_stopped}


def _evaluate(
  trainer: Trainer,
  evaluation: ModelEvaluation,
  model_dir: str,
  folder: str,
  step: int,
  history: _EvaluationLog,
) -> bool:
  """Evaluates a copy of a checkpoint; returns False if it was already deleted."""
  with tempfile.TemporaryDirectory(prefix="backup-", dir=folder) as place:
    try:
      if not checkpoints.back_up(model_dir, step, place):
        logging.warning("The checkpoint of step %d was deleted before its turn.", step)
        return False
    except checkpoints.DAMAGE as e:
      logging.warning("The checkpoint of step %d is damaged, and left out: %s", step, e)
      history.add(step, place, None)
      return True
    checkpoints.Checkpoints(trainer, place, 1).load(step)
    history.add(step, place, evaluation.run())
  return True


class _EvaluationLog:
  """The metrics of evaluated checkpoints, kept in a file."""

  def __init__(self, path: str) -> None:
    """Reads the file, if it exists; raises SpecError if it is damaged."""
    self._path = path
    self._steps: dict[int, dict[str, Any]] = {}
    if os.path.exists(path):
      try:
        with open(path, encoding="utf-8") as f:
          records = json.load(f).items()
        self._steps = {int(step): dict(record) for step, record in records}
        for record in self._steps.values():
          dict(record["metrics"] or {})  # Raises if they are missing or no mapping.
      except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.SpecError(
          f"continuous_eval: {path}: expected metrics by step as JSON, got {error}. "
          "Delete the file: the checkpoints that are there are evaluated again then."
        ) from error

  @property
  def step(self) -> int:
    """The newest evaluated step; 0 before the first."""
    return max((s for s, each in self._steps.items() if each["metrics"]), default=0)

  @property
  def metrics(self) -> dict[str, float]:
    """Metrics of the newest evaluated step."""
    return self._steps[self.step]["metrics"] if self.step in self._steps else {}

  def reaches(self, max_train_steps: int | None) -> bool:
    """Whether the newest evaluated step is at least `max_train_steps`."""
    return max_train_steps is not None and self.step >= max_train_steps

  def next_step(self, model_dir: str) -> int | None:
    """Returns the oldest step with a checkpoint that was not evaluated, if any.

    If a training resumed at an earlier step, it may write other contents for a step:
    that checkpoint counts as new.
    """
    for step in checkpoints.steps(model_dir):
      identity = checkpoints.identity(model_dir, step)
      if identity and self._steps.get(step, {}).get("checkpoint") != identity:
        return step
    return None

  def add(self, step: int, folder: str, metrics: dict[str, float] | None) -> None:
    """Records an evaluation on disk.

    Args:
      step: step of the checkpoint.
      folder: folder of the checkpoint.
      metrics: metrics of the evaluation; None for a damaged checkpoint.
    """
    identity = checkpoints.identity(folder, step)
    self._steps[step] = {"checkpoint": identity, "metrics": metrics}
    files.replace_file(self._path, json.dumps(self._steps, indent=1).encode())
