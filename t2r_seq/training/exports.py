"""Exports: when they are written, how, and which are kept.

They are versioned SavedModel folders, which appear whole or not at all.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, specs
from t2r_seq.models import T2RModel
from t2r_seq.policies import export_lite
from t2r_seq.policies.policy_model import OPERATIVE_CONFIG, PolicyRecord
from t2r_seq.policies.policy_module import (
  EMBEDDED_STEP,
  PolicyFunctions,
  exported_feature_specs,
  stored_feature_specs,
  write_warmup_requests,
)
from t2r_seq.preprocessors.convert_conventions import stages_of
from t2r_seq.preprocessors.normalize import Normalize
from t2r_seq.preprocessors.text_preprocessor import embedded_texts
from t2r_seq.specs import ModeKeys
from t2r_seq.specs.assets import (
  POLICY_RECORD,
  T2R_ASSETS_FILENAME,
  create_t2r_assets,
  robot_assets,
  robot_signature,
  write_t2r_assets_to_file,
)

_UNFINISHED = re.compile(r"partial-\d+|\.\d+\.[0-9a-f]{32}\.tmp")

Metrics = Mapping[str, float]
LITE_FOLDER = "lite"


class Exporter(abc.ABC):
  """Decides after an evaluation whether an export is due, and writes it.

  Attributes:
    lite: whether each export is also written for LiteRT.
  """

  lite = False

  def __init__(self, name: str, exports_to_keep: int = 5, lite: bool = False) -> None:
    """Creates the exporter.

    Args:
      name: folder below `<model_dir>/export`.
      exports_to_keep: number of newest exports to keep.
      lite: whether to write each export also for LiteRT, to its folder `lite`, like
        `t2r_seq export --lite`. `check_exportable` tries this before training.
    Raises:
      SpecError: `exports_to_keep` is below 1.
    """
    if exports_to_keep < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: exports_to_keep: expected at least 1, got "
        f"{exports_to_keep}."
      )
    self._name = name
    self._exports_to_keep = exports_to_keep
    self.lite = lite

  @property
  def name(self) -> str:
    """Name of the exporter's folder below `<model_dir>/export`."""
    return self._name

  def export(
    self,
    model: T2RModel,
    model_dir: str,
    global_step: int,
    metrics: Metrics,
    saved: str | None = None,
  ) -> str:
    """Exports the model, and deletes old exports.

    Args:
      model: a built model.
      model_dir: folder of the training run.
      global_step: step of the weights.
      metrics: metrics of the evaluation; empty if there was none.
      saved: folder of an export of this step to copy; None exports the model.
    Returns:
      The new export's folder.
    """
    export_dir = self._export_dir(model_dir)
    if saved is None:
      path = export_saved_model(model, export_dir, global_step)
    else:
      path = copy_export(saved, export_dir)
    folder = os.path.join(path, LITE_FOLDER)
    if self.lite and not os.path.exists(folder):
      export_lite(path, folder)
    self._remember_export(export_dir, metrics)
    remove_old_exports(export_dir, self._exports_to_keep)
    return path

  def check(self, metric_names: Collection[str]) -> None:
    """Called before training with the names of eval metrics, if there are any.

    Raises:
      SpecError: this exporter needs another metric; by default it needs none.
    """
    del metric_names

  @abc.abstractmethod
  def is_due(self, model_dir: str, metrics: Metrics) -> bool:
    """Whether to export after an evaluation with these metrics."""

  def replaces(self, metrics: Metrics, other: Metrics) -> bool:
    """Whether an export of these metrics may replace a waiting one.

    Args:
      metrics: metrics of the export that is due now.
      other: metrics of an earlier one that is not yet written; see `AsyncExports`.
    Returns:
      By default True: the newest wins.
    """
    del metrics, other
    return True

  def _export_dir(self, model_dir: str) -> str:
    return os.path.join(model_dir, "export", self._name)

  def _remember_export(self, export_dir: str, metrics: Metrics) -> None:
    """Called after an export; by default does nothing."""
    del export_dir, metrics


@gin.configurable
class LatestExporter(Exporter):
  """Exports after every evaluation."""

  def __init__(
    self, name: str = "latest", exports_to_keep: int = 5, lite: bool = False
  ) -> None:
    """See the base class."""
    super().__init__(name, exports_to_keep, lite)

  def is_due(self, model_dir: str, metrics: Metrics) -> bool:
    """See the base class: always."""
    return True


@gin.configurable
class BestExporter(Exporter):
  """Exports when an eval metric is better than at every earlier export.

  The best value is in a file beside the exports, so that it survives a restart.
  """

  def __init__(
    self,
    name: str = "best",
    exports_to_keep: int = 1,
    metric: str = "loss",
    larger_is_better: bool = False,
    lite: bool = False,
  ) -> None:
    """Creates the exporter.

    Args:
      name: folder below `<model_dir>/export`.
      exports_to_keep: number of newest exports to keep.
      metric: name of the eval metric.
      larger_is_better: whether larger values are better; False for losses.
      lite: see the base class.
    Raises:
      SpecError: `exports_to_keep` is below 1.
    """
    super().__init__(name, exports_to_keep, lite)
    self._metric = metric
    self._larger_is_better = larger_is_better

  def check(self, metric_names: Collection[str]) -> None:
    """Raises SpecError if evaluations lack the metric."""
    if self._metric not in metric_names:
      raise errors.SpecError(
        f"BestExporter: metric: expected one of {errors.listing(metric_names)}, got "
        f"'{self._metric}'.{errors.nearest(self._metric, metric_names)}"
      )

  def is_due(self, model_dir: str, metrics: Metrics) -> bool:
    """Whether the metric is finite, and better than at the best export.

    False without an evaluation.

    Raises:
      SpecError: the evaluation lacks the metric, or `best.json` is damaged.
    """
    if not metrics:
      return False
    self.check(metrics)
    best = self._best(model_dir)
    if best is None:
      return math.isfinite(metrics[self._metric])
    return self.replaces(metrics, {self._metric: best})

  def replaces(self, metrics: Metrics, other: Metrics) -> bool:
    """Whether the metric is finite, and better than the other."""
    value, best = metrics[self._metric], other[self._metric]
    if not math.isfinite(value):
      return False
    return value > best if self._larger_is_better else value < best

  def _best(self, model_dir: str) -> float | None:
    """Returns the best value so far, of the same metric, or None."""
    filename = _best_filename(self._export_dir(model_dir))
    if not os.path.exists(filename):
      return None
    try:
      with open(filename, encoding="utf-8") as f:
        best = json.load(f).get(self._metric)
      return None if best is None else float(best)
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
      raise errors.SpecError(
        f"export: {filename}: expected metrics as JSON, got {error}. Delete the file: "
        "the next evaluation counts as the best then."
      ) from error

  def _remember_export(self, export_dir: str, metrics: Metrics) -> None:
    filename = _best_filename(export_dir)
    best = json.dumps({self._metric: metrics[self._metric]})
    files.replace_file(filename, best.encode())


@gin.configurable
def create_default_exporters(
  exporter_fns: list[Callable[[], Exporter]] | None = None,
  exports_to_keep: int | None = None,
) -> list[Exporter]:
  """Creates the exporters of a training run: the latest and the best eval loss.

  Args:
    exporter_fns: create other exporters instead.
    exports_to_keep: number of the latest exports to keep; None: the default of
      `LatestExporter`. Ignored with `exporter_fns`.
  Returns:
    The exporters, in order.
  Raises:
    SpecError: `exports_to_keep` is below 1.
  """
  if exporter_fns:
    return [create() for create in exporter_fns]
  kept: dict[str, Any] = {}
  if exports_to_keep is not None:
    kept["exports_to_keep"] = exports_to_keep
  return [LatestExporter(**kept), BestExporter()]


def _best_filename(export_dir: str) -> str:
  return os.path.join(export_dir, "best.json")


def export_saved_model(
  model: T2RModel,
  export_dir: str,
  global_step: int,
  warmup_batch_sizes: Sequence[int] = (1,),
) -> str:
  """Exports a built model as a SavedModel with its policy signatures and specs.

  Uses the averaged weights, if the model has them.

  Args:
    model: a built model.
    export_dir: folder of all versions; made if it is missing.
    global_step: step of the weights, for the assets.
    warmup_batch_sizes: batch sizes of the requests that warm up TensorFlow Serving.
  Returns:
    The new version's folder, `<export_dir>/<version>`; the version is the time in
    seconds, or one more than the newest version if that is larger.
  Raises:
    SpecError: a feature looks into the future, or its path is another argument's name.
    OSError: the export cannot be written.
  """
  exported_feature_specs(model)
  with _new_version(export_dir) as (partial, path), model.averaged_weights():
    _outside_strategies(_save, model, partial, global_step, warmup_batch_sizes)
  logging.info("Exported step %d to %s", global_step, path)
  return path


def copy_export(saved: str, export_dir: str) -> str:
  """Copies an export to a folder of versions as a new version; returns its folder."""
  with _new_version(export_dir) as (partial, path):
    shutil.copytree(saved, partial, dirs_exist_ok=True)
  logging.info("Copied the export %s to %s", saved, path)
  return path


@contextlib.contextmanager
def _new_version(export_dir: str) -> Iterator[tuple[str, str]]:
  """Yields the temporary folder to write a new version to, and its final path.

  Readers take folders whose names are numbers, so they ignore the temporary one.
  """
  versions = export_versions(export_dir)
  version = max([int(time.time()), *(v + 1 for v in versions)])
  path = os.path.join(export_dir, str(version))
  try:
    with files.new_folder(path) as partial:
      yield partial, path
  except (OSError, tf.errors.OpError) as error:
    raise errors.unwritten(
      f"export: {path}: expected to write an export",
      error,
      "Nothing is left of it; others are as they were. Make room, or mend the disk.",
    ) from error


def remove_unfinished_exports(folder: str) -> None:
  """Removes unfinished exports of killed runs.

  Args:
    folder: folder with exports at any depth, which no process writes to; it may be
      missing.
  """
  for place, names, _ in os.walk(folder):
    for name in list(filter(_UNFINISHED.fullmatch, names)):
      names.remove(name)
      shutil.rmtree(os.path.join(place, name))


def check_exportable(model: T2RModel, exporters: Sequence[Exporter]) -> None:
  """Traces the functions of an export, so that a run doesn't fail after training.

  Args:
    model: a built model.
    exporters: exporters of the run; without any, nothing is checked.
  Raises:
    SpecError: see `exported_feature_specs`; the model's functions fail in mode 'infer',
      which has no labels and no optional features, or use lookup tables; or an exporter
      writes for LiteRT, which cannot run the model.
    ImportError: an exporter writes for LiteRT, whose interpreter is missing.
  """
  if not exporters:
    return
  in_spec = model.preprocessor.get_in_feature_specification(ModeKeys.INFER)
  flat = specs.flatten_spec_structure(in_spec)
  optional = [path for path in flat if path not in exported_feature_specs(model)]
  if optional:
    logging.warning(
      "The exported policy is not given the optional features %s, even if the model "
      "is trained with them.",
      optional,
    )
  try:
    _outside_strategies(_check, model)
  except errors.SpecError:
    raise
  except Exception as e:
    raise errors.SpecError(
      f"export: {type(model).__name__}: expected a model that runs in mode 'infer', "
      f"with labels and optional features None, got {type(e).__name__}: {e}"
    ) from e
  if any(exporter.lite for exporter in exporters):
    with tempfile.TemporaryDirectory() as folder:
      path = export_saved_model(model, folder, 0)
      export_lite(path, os.path.join(path, LITE_FOLDER))


def _outside_strategies(function: Callable[..., None], *arguments: Any) -> None:
  """Calls a function in a new thread, outside of any strategy's scope.

  Functions with mirrored variables cannot be saved in a scope.
  """
  with futures.ThreadPoolExecutor(1) as executor:
    executor.submit(function, *arguments).result()


def _check(model: T2RModel) -> None:
  for policy, functions, signatures, record in _policies(model).values():
    for name, function in signatures.items():
      concrete = function.get_concrete_function()
      _check_tracked(model, functions.module, name, concrete)
    with tempfile.TemporaryDirectory() as folder:
      _write_records(policy, robot_assets(folder), 0, record)
      _write_rest(folder, signatures, (1,))


def _check_tracked(
  model: T2RModel, module: tf.Module, name: str, function: Any
) -> None:
  """Checks that a function's only resources are variables: others are not saved."""
  variables = {
    id(each.handle)
    for variable in module.variables
    for each in getattr(variable, "values", (variable,))  # One for each replica.
  }
  others = [
    tensor.name
    for handle, tensor in function.graph.captures
    if tensor.dtype == tf.resource and id(handle) not in variables
  ]
  if others:
    raise errors.SpecError(
      f"export: {type(model).__name__}: expected a '{name}' that uses the variables of "
      f"create_network only, got {errors.listing(others)}. Lookup tables are not "
      "exported."
    )


def _save(
  model: T2RModel, path: str, global_step: int, warmup_batch_sizes: Sequence[int]
) -> None:
  policies = _policies(model)
  signatures = {
    robot_signature(name, robot): function
    for robot, (_, _, by_name, _) in policies.items()
    for name, function in by_name.items()
  }
  _, functions, _, record = next(iter(policies.values()))
  tf.saved_model.save(functions.module, path, signatures=signatures)
  for robot, (own_model, _, _, own_record) in policies.items():
    _write_records(own_model, robot_assets(path, robot), global_step, own_record)
  if None not in policies:
    record = PolicyRecord.of(model)
    _write_records(model, robot_assets(path), global_step, record)
  _write_rest(path, signatures, warmup_batch_sizes)


_Policy = tuple[T2RModel, PolicyFunctions, dict[str, Any], PolicyRecord]


def _policies(model: T2RModel) -> dict[str | None, _Policy]:
  """Returns the policy of each robot by name, or {None: policy} for one robot."""
  if not model.embodiments:
    return {None: _policy(model)}
  return {name: _policy(model.as_robot(name)) for name in model.embodiments}


def _policy(model: Any) -> _Policy:
  functions = PolicyFunctions(model)
  signatures, record = functions.signatures(), functions.record
  embedded_step, changes = _embedded_step(model)
  if embedded_step is not None:
    signatures[EMBEDDED_STEP] = embedded_step
  return model, functions, signatures, dataclasses.replace(record, **changes)


def _embedded_step(model: T2RModel) -> tuple[Any, dict[str, Any]]:
  """Creates the step that takes vectors in place of texts.

  Returns:
    (the function, or None without texts; the fields of the record that describe it).
  """
  stored = exported_feature_specs(model.step_model)
  with embedded_texts() as embedded:
    observed = exported_feature_specs(model.step_model)
    texts = {
      path: words
      for path, spec in observed.items()
      for suffix, words in embedded.items()
      # Meta-learning adds a prefix to the paths of its base model.
      if f"/{path}".endswith(f"/{suffix}") and spec.dtype != stored[path].dtype
    }
    if not texts:
      return None, {}
    functions = PolicyFunctions(model)
    step = functions.signatures().get("step")
  if step is None:
    return None, {}

  @tf.function(input_signature=step.input_signature, autograph=False)
  def embedded_step(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    with embedded_texts():  # Saving traces the function again.
      return step.python_function(*tensors)

  try:
    embedded_step.get_concrete_function()
  except Exception as error:  # Another stage may need the texts.
    logging.warning(
      "The export has no '%s', and no lite form: %s", EMBEDDED_STEP, error
    )
    return None, {}
  return embedded_step, {"texts": texts, "embedded_state": functions.record.state}


def _write_records(
  model: T2RModel, folder: str, global_step: int, record: PolicyRecord
) -> None:
  os.makedirs(folder, exist_ok=True)
  assets = create_t2r_assets(
    stored_feature_specs(model),
    model.preprocessor.get_in_label_specification(ModeKeys.TRAIN),
    global_step,
  )
  write_t2r_assets_to_file(assets, os.path.join(folder, T2R_ASSETS_FILENAME))
  constants = {
    path: each
    for stage in stages_of(model.preprocessor, Normalize)
    for path, each in stage.constants().items()
  }
  record = dataclasses.replace(record, normalization=constants or None)
  with open(os.path.join(folder, POLICY_RECORD), "w", encoding="utf-8") as f:
    f.write(record.to_json())


def _write_rest(
  path: str, signatures: Mapping[str, Any], warmup_batch_sizes: Sequence[int]
) -> None:
  """Writes the other files beside the SavedModel: config and warm-up requests."""
  if config := gin.operative_config_str().strip():
    name = os.path.join(robot_assets(path), OPERATIVE_CONFIG)
    with open(name, "w", encoding="utf-8") as f:
      f.write(f"{config}\n")
  write_warmup_requests(path, signatures, warmup_batch_sizes)


def export_versions(export_dir: str) -> list[int]:
  """Returns the versions of the complete exports in a folder, oldest first."""
  names = os.listdir(export_dir) if os.path.isdir(export_dir) else []
  return sorted(int(name) for name in names if name.isdigit())


def remove_old_exports(export_dir: str, exports_to_keep: int) -> None:
  """Deletes all but the newest exports of a folder; `exports_to_keep` >= 1."""
  for version in export_versions(export_dir)[:-exports_to_keep]:
    with contextlib.suppress(FileNotFoundError):
      shutil.rmtree(os.path.join(export_dir, str(version)))


@dataclasses.dataclass(frozen=True)
class _Job:
  """An export to write: weights, and the metrics of their evaluation."""

  weights: dict[str, np.ndarray]
  model_dir: str
  step: int
  metrics: Metrics


class AsyncExports:
  """Exports in a thread, from a copy of the network, while training continues.

  One export runs at a time. One more per exporter may wait; it is replaced by a newer
  one, or for `BestExporter` by a better one. A context manager: its exit waits for the
  running export and drops waiting ones; `join` waits for all.
  """

  def __init__(
    self, model: T2RModel, tell: Callable[..., None] = lambda event, *arguments: None
  ) -> None:
    """Copies the network, so that training can continue, and starts the export thread.

    Args:
      model: a built model.
      tell: calls the callbacks of an event, see `Run.notify`; called in the threads
        that call `submit` and `join`.
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
    """Copies the weights, and lets the thread export them by each exporter that is due.

    Args:
      exporters: exporters in the order of their exports.
      model_dir: folder of the training run.
      step: step of the weights.
      metrics: metrics of their evaluation.
    Raises:
      Exception: the error of an earlier export.
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
    """Whether the export is due, and may replace those that are not yet written."""
    unwritten = [job.metrics for e, job in self._jobs() if e is exporter]
    return exporter.is_due(model_dir, metrics) and all(
      exporter.replaces(metrics, other) for other in unwritten
    )

  def _jobs(self) -> list[tuple[Exporter, _Job]]:
    current = [] if self._current is None else [self._current]
    return [*current, *self._waiting.items()]

  def join(self) -> None:
    """Waits until all submitted exports are written.

    Raises:
      Exception: the error of a failed export.
    """
    with self._changed:
      self._changed.wait_for(lambda: self._error is not None or not self._jobs())
    self._report()

  def _report(self) -> None:
    """Calls the callbacks for finished exports; raises the error of a failed one."""
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
