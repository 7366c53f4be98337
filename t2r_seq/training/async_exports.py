"""Exports in a thread beside the training, of the weights that were evaluated."""

from __future__ import annotations

import dataclasses
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq.models import T2RModel
from t2r_seq.training.exports import Exporter, Metrics


@dataclasses.dataclass(frozen=True)
class _Job:
  """An export that is due: of which weights, and what was measured of them."""

  weights: dict[str, np.ndarray]
  model_dir: str
  step: int
  metrics: Metrics


class AsyncExports:
  """Exports with a second network, which is given the weights of each export.

  One export is made at a time. Of each exporter one more may wait, and a newer one
  takes its place: for those that export the best, a better one. A context manager: at
  its end the export that is being made is waited for, and those that wait are dropped;
  `join` makes these, too.
  """

  def __init__(
    self, model: T2RModel, tell: Callable[..., None] = lambda event, *arguments: None
  ) -> None:
    """Builds the second network, and starts the thread.

    Args:
      model: a built model.
      tell: tells callbacks of an event, in the caller's thread; see `Run.tell`.
    """
    self._model = model
    self._twin = model.twin()
    self._tell = tell
    self._changed = threading.Condition()
    self._waiting: dict[Exporter, _Job] = {}
    self._current: tuple[Exporter, _Job] | None = None
    self._done: list[tuple[str, str]] = []
    self._error: BaseException | None = None
    self._is_closed = False
    self._thread = threading.Thread(target=self._work, name="exports", daemon=True)
    self._thread.start()

  def submit(
    self, exporters: list[Exporter], model_dir: str, step: int, metrics: Metrics
  ) -> None:
    """Exports the present weights, in the thread, with each exporter that is due.

    Args:
      exporters: are asked in their order.
      model_dir: folder of the training run.
      step: of the weights.
      metrics: of their evaluation.
    Raises:
      Exception: by which an export before has failed.
    """
    self._report()
    with self._changed:
      due = [e for e in exporters if self._is_due(e, model_dir, metrics)]
      if not due:
        return
      # Copied now: the next step changes them.
      names = self._model.named_variables
      weights = {k: tf.convert_to_tensor(v).numpy() for k, v in names.items()}
      job = _Job(weights, model_dir, step, metrics)
    for exporter in due:
      self._tell("before_export", exporter.name)
    with self._changed:
      for exporter in due:
        if exporter in self._waiting:
          passed = self._waiting.pop(exporter).step
          logging.info(
            "The export '%s' of step %d is passed over.", exporter.name, passed
          )
        self._waiting[exporter] = job
      self._changed.notify_all()

  def _is_due(self, exporter: Exporter, model_dir: str, metrics: Metrics) -> bool:
    """Whether it is, beside what is on its way."""
    on_its_way = [job.metrics for e, job in self._jobs() if e is exporter]
    return exporter.is_due(model_dir, metrics) and all(
      exporter.replaces(metrics, other) for other in on_its_way
    )

  def _jobs(self) -> list[tuple[Exporter, _Job]]:
    current = [] if self._current is None else [self._current]
    return [*current, *self._waiting.items()]

  def join(self) -> None:
    """Waits until all exports that are on their way have been made.

    Raises:
      Exception: by which one has failed.
    """
    with self._changed:
      self._changed.wait_for(lambda: self._error is not None or not self._jobs())
    self._report()

  def _report(self) -> None:
    """Tells callbacks what was made, and raises what went wrong."""
    with self._changed:
      done, self._done = self._done, []
      error, self._error = self._error, None
    for name, path in done:
      self._tell("after_export", name, path)
    if error is not None:
      raise error

  def _work(self) -> None:
    saved: tuple[int, str] | None = None
    while True:
      with self._changed:
        self._current = None
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._waiting or self._is_closed)
        if self._is_closed:
          return
        exporter = next(iter(self._waiting))
        job = self._waiting.pop(exporter)
        self._current = exporter, job
      try:
        path = self._export(exporter, job, saved)
      except BaseException as error:
        with self._changed:
          self._error, self._waiting = error, {}
        continue
      if type(exporter).export is Exporter.export:
        saved = job.step, path
      with self._changed:
        self._done.append((exporter.name, path))

  def _export(
    self, exporter: Exporter, job: _Job, saved: tuple[int, str] | None
  ) -> str:
    self._twin.take_weights(job.weights, job.step)
    arguments: list[Any] = [self._twin, job.model_dir, job.step, job.metrics]
    if type(exporter).export is Exporter.export and saved and saved[0] == job.step:
      arguments.append(saved[1])
    return exporter.export(*arguments)

  def __enter__(self) -> AsyncExports:
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    exc_traceback: types.TracebackType | None,
  ) -> None:
    with self._changed:
      self._is_closed, self._waiting = True, {}
      self._changed.notify_all()
    self._thread.join()
