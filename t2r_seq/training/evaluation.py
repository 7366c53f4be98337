"""Evaluations: metrics averaged over an eval set, and the exports that follow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors
from t2r_seq.data import AbstractInputGenerator
from t2r_seq.specs import ModeKeys
from t2r_seq.training import workers
from t2r_seq.training.async_exports import AsyncExports
from t2r_seq.training.exports import Exporter
from t2r_seq.training.summaries import SummaryWriter
from t2r_seq.training.trainer import Trainer


def evaluate(
  trainer: Trainer, batches: Iterable[Any], eval_steps: int | None
) -> dict[str, float]:
  """Averages the eval metrics over batches, weighted by their sizes.

  With the averaged weights, where the model is trained with any.

  Args:
    trainer: runs the steps.
    batches: (features, labels) pairs, distributed.
    eval_steps: batches at most; None for all.
  Returns:
    Means by name, and the model's `eval_results_fn` of all batches' tallies.
  Raises:
    SpecError: there was no batch at all.
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
  """One named set of batches to evaluate on; the only one has the name ''."""

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


def _by_name(found: dict[str, dict[str, float]]) -> dict[str, float]:
  """Puts metrics together: '<name>/<metric>' of each set, and their means."""
  if list(found) == [""]:
    return found[""]
  metrics = {
    f"{name}/{metric}": value
    for name, own in found.items()
    for metric, value in own.items()
  }
  sums: dict[str, list[float]] = {}
  for own in found.values():
    for metric, value in own.items():
      sums.setdefault(metric, []).append(value)
  return {**{metric: sum(v) / len(v) for metric, v in sums.items()}, **metrics}


class ModelEvaluation:
  """Evaluates and exports, not too often."""

  def __init__(
    self,
    trainer: Trainer,
    input_generator: AbstractInputGenerator | None,
    model_dir: str,
    eval_steps: int | None,
    throttle_secs: float,
    exporters: list[Exporter],
    write_dir: str | None = None,
    tell: Callable[..., None] = lambda event, *arguments: None,
    async_exports: AsyncExports | None = None,
    own_names: Sequence[str] = (),
    own_metrics: Callable[[], Mapping[str, float]] = dict,
  ) -> None:
    """Creates the evaluation; the first is due `throttle_secs` from now.

    Args:
      trainer: runs the steps.
      input_generator: gives eval batches, of one or several named sets; None exports
        only.
      model_dir: folder of the training run.
      eval_steps: batches at most; None for all.
      throttle_secs: seconds between two evaluations at least.
      exporters: asked after each evaluation.
      write_dir: folder that this worker writes to, if it is another one.
      tell: tells callbacks of an event, by its name; see `Run.tell`.
      async_exports: exports in a thread; None exports before `run` returns.
      own_names: of the metrics that callbacks add.
      own_metrics: gives them.
    """
    self._own_names, self._own_metrics = list(own_names), own_metrics
    self._own_writer: SummaryWriter | None = None
    self._async_exports = async_exports
    self._trainer = trainer
    self._tell = tell
    self._model_dir = model_dir
    self._write_dir = write_dir or model_dir
    self._eval_steps = eval_steps
    self._throttle_secs = throttle_secs
    self._exporters = exporters
    self._last = time.monotonic()
    self.input_generator = input_generator
    named = {} if input_generator is None else input_generator.named_evals()
    self._evals = [
      _EvalSet(name, g, trainer, self._write_dir) for name, g in named.items()
    ]

  def run_if_due(self) -> None:
    """Evaluates and exports, unless the last time was too short ago."""
    is_due = time.monotonic() - self._last >= self._throttle_secs
    if workers.chief_says(self._trainer.strategy, is_due):
      self.run()

  def metric_names(self) -> list[str]:
    """Returns the names of what `run` gives, without running it; [] without a set."""
    if not self._evals:
      return self._own_names
    names = self._trainer.model.eval_metric_names()
    sets = [e.name for e in self._evals if e.name]
    by_set = (f"{name}/{metric}" for name in sets for metric in names)
    return [*names, *by_set, *self._own_names]

  def run(self) -> dict[str, float]:
    """Evaluates and exports the present weights; returns the metrics.

    That is their averages, where the model is trained with any.
    """
    with self._trainer.model.averaged_weights():
      return self._run()

  def _run(self) -> dict[str, float]:
    step = self._trainer.global_step
    metrics: dict[str, float] = {}
    if self._evals or self._own_names:
      self._tell("before_evaluation")
      if self._evals:
        metrics = _by_name({e.name: e.run(self._eval_steps) for e in self._evals})
      if self._own_names:
        own = self._own_metrics()
        if self._own_writer is None:
          folder = os.path.join(self._write_dir, "eval_callbacks")
          self._own_writer = SummaryWriter(folder)
        self._own_writer.scalars(own, step)
        metrics = {**metrics, **own}
      shown = ", ".join(f"{name} {value:.5g}" for name, value in metrics.items())
      logging.info("eval at step %d: %s", step, shown)
      self._tell("after_evaluation", metrics)
    self._export(step, metrics)
    self._last = time.monotonic()
    return metrics

  def _export(self, step: int, metrics: dict[str, float]) -> None:
    if self._async_exports is not None:
      exporters, place = self._exporters, self._write_dir
      self._async_exports.submit(exporters, place, step, metrics)
      return
    saved = None
    for exporter in self._exporters:
      is_due = exporter.is_due(self._model_dir, metrics)
      if workers.chief_says(self._trainer.strategy, is_due):
        arguments = (self._trainer.model, self._write_dir, step, metrics)
        self._tell("before_export", exporter.name)
        if type(exporter).export is Exporter.export:
          path = saved = exporter.export(*arguments, saved)
        else:  # It exports in a way of its own: nothing for others to copy.
          path = exporter.export(*arguments)
        self._tell("after_export", exporter.name, path)
