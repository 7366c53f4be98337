"""Exports: when they are made, how, and which are kept.

Versioned SavedModel folders that appear whole or not at all.
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
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, specs
from t2r_seq.models import T2RModel
from t2r_seq.policies import PolicyFunctions, PolicyRecord, exported_feature_specs
from t2r_seq.policies.policy_module import stored_feature_specs
from t2r_seq.policies.policy_record import OPERATIVE_CONFIG, POLICY_RECORD
from t2r_seq.policies.warmup import write_warmup_requests
from t2r_seq.preprocessors.normalize import normalizing_stages
from t2r_seq.specs import ModeKeys
from t2r_seq.specs.assets import EXTRA_ASSETS_DIRECTORY, T2R_ASSETS_FILENAME

_UNFINISHED = re.compile(r"partial-\d+|\.\d+\.[0-9a-f]{32}\.tmp")

Metrics = Mapping[str, float]


class Exporter(abc.ABC):
  """Says after an evaluation whether an export is due, and makes it."""

  def __init__(self, name: str, exports_to_keep: int = 5) -> None:
    """Creates the exporter.

    Args:
      name: folder below `<model_dir>/export`.
      exports_to_keep: older ones are deleted.
    Raises:
      SpecError: none are to be kept.
    """
    if exports_to_keep < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: exports_to_keep: expected at least 1, got "
        f"{exports_to_keep}."
      )
    self._name = name
    self._exports_to_keep = exports_to_keep

  @property
  def name(self) -> str:
    """Its folder below `<model_dir>/export`."""
    return self._name

  def export(
    self,
    model: T2RModel,
    model_dir: str,
    global_step: int,
    metrics: Metrics,
    saved: str | None = None,
  ) -> str:
    """Exports the model, and deletes what is too old.

    Args:
      model: a built model.
      model_dir: folder of the training run.
      global_step: of the weights.
      metrics: of the evaluation; empty where there was none.
      saved: an export of this step, which is copied.
    Returns:
      The new export's folder.
    """
    export_dir = self._export_dir(model_dir)
    if saved is None:
      path = export_saved_model(model, export_dir, global_step)
    else:
      path = copy_export(saved, export_dir)
    self._exported(export_dir, metrics)
    remove_old_exports(export_dir, self._exports_to_keep)
    return path

  def check(self, metric_names: Collection[str]) -> None:
    """Called before training with the metrics that evaluations will give, if any.

    Raises:
      SpecError: they are not what this exporter needs; by default it needs none.
    """
    del metric_names

  @abc.abstractmethod
  def is_due(self, model_dir: str, metrics: Metrics) -> bool:
    """Whether these metrics of the run in `model_dir` deserve an export."""

  def replaces(self, metrics: Metrics, other: Metrics) -> bool:
    """Whether an export of these metrics may take the place of one that waits.

    Args:
      metrics: of what is due now.
      other: of an earlier one, which is not made yet; see `AsyncExports`.
    Returns:
      By default True: the newest wins.
    """
    del metrics, other
    return True

  def _export_dir(self, model_dir: str) -> str:
    return os.path.join(model_dir, "export", self._name)

  def _exported(self, export_dir: str, metrics: Metrics) -> None:
    """Called after an export; by default there is nothing to remember."""
    del export_dir, metrics


@gin.configurable
class LatestExporter(Exporter):
  """Exports every time."""

  def __init__(self, name: str = "latest", exports_to_keep: int = 5) -> None:
    """See the base class."""
    super().__init__(name, exports_to_keep)

  def is_due(self, model_dir: str, metrics: Metrics) -> bool:
    """Always."""
    return True


@gin.configurable
class BestExporter(Exporter):
  """Exports when an eval metric is better than at every export before.

  The best value is kept beside the exports, so that it survives a restart.
  """

  def __init__(
    self,
    name: str = "best",
    exports_to_keep: int = 1,
    metric: str = "loss",
    larger_is_better: bool = False,
  ) -> None:
    """Creates the exporter.

    Args:
      name: folder below `<model_dir>/export`.
      exports_to_keep: older ones are deleted.
      metric: name of the eval metric.
      larger_is_better: False for losses.
    """
    super().__init__(name, exports_to_keep)
    self._metric = metric
    self._larger_is_better = larger_is_better

  def check(self, metric_names: Collection[str]) -> None:
    """Refuses to wait for a metric that no evaluation gives."""
    if self._metric not in metric_names:
      raise errors.SpecError(
        f"BestExporter: metric: expected one of {errors.listing(metric_names)}, got "
        f"'{self._metric}'.{errors.nearest(self._metric, metric_names)}"
      )

  def is_due(self, model_dir: str, metrics: Metrics) -> bool:
    """Whether the metric is finite, and better than at the best export.

    Without an evaluation nothing is due.

    Raises:
      SpecError: the evaluation has no such metric.
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
    """Returns the best value so far; none of another metric counts."""
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

  def _exported(self, export_dir: str, metrics: Metrics) -> None:
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
    exporter_fns: replaces the two.
    exports_to_keep: how many of the latest are kept; None takes `LatestExporter` as it
      is configured. Ignored with `exporter_fns`.
  Returns:
    The exporters, in order.
  """
  if exporter_fns:
    return [create() for create in exporter_fns]
  kept = {} if exports_to_keep is None else {"exports_to_keep": exports_to_keep}
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

  With the averaged weights, where the model is trained with any.

  Args:
    model: a built model.
    export_dir: folder of all versions; made if it is missing.
    global_step: written to the assets.
    warmup_batch_sizes: of the requests that TensorFlow Serving warms it up with.
  Returns:
    The new version's folder, `<export_dir>/<version>`; the version is the time in
    seconds, or the next free number.
  Raises:
    SpecError: see `exported_feature_specs`.
  """
  assets = specs.create_t2r_assets(
    stored_feature_specs(model),
    model.preprocessor.get_in_label_specification(ModeKeys.TRAIN),
    global_step,
  )
  with _new_version(export_dir) as (partial, path):
    with model.averaged_weights(), futures.ThreadPoolExecutor(1) as executor:
      # A thread of its own is in no strategy's scope, where the functions of mirrored
      # variables can't be saved; the caller may be in one.
      executor.submit(_save, model, partial, warmup_batch_sizes).result()
    extra = os.path.join(partial, EXTRA_ASSETS_DIRECTORY)
    os.makedirs(extra, exist_ok=True)
    filename = os.path.join(extra, T2R_ASSETS_FILENAME)
    specs.write_t2r_assets_to_file(assets, filename)
    figures = {
      path: each
      for stage in normalizing_stages(model.preprocessor)
      for path, each in stage.figures().items()
    }
    record = dataclasses.replace(PolicyRecord.of(model), normalization=figures or None)
    notes = {POLICY_RECORD: record.to_json()}
    if config := gin.operative_config_str().strip():
      notes[OPERATIVE_CONFIG] = f"{config}\n"
    for name, text in notes.items():
      with open(os.path.join(extra, name), "w", encoding="utf-8") as f:
        f.write(text)
  logging.info("Exported step %d to %s", global_step, path)
  return path


def copy_export(saved: str, export_dir: str) -> str:
  """Copies an export to a folder of versions, as a new one; returns its folder."""
  with _new_version(export_dir) as (partial, path):
    shutil.copytree(saved, partial, dirs_exist_ok=True)
  logging.info("Copied the export %s to %s", saved, path)
  return path


@contextlib.contextmanager
def _new_version(export_dir: str) -> Iterator[tuple[str, str]]:
  """Gives the folder to write a new version to, and that which it becomes.

  Readers take folders whose names are numbers: the first one's is none.
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
  """Removes what killed runs have left of exports that were not finished.

  Args:
    folder: with exports at any depth, which nobody exports to; may be missing.
  """
  for place, names, _ in os.walk(folder):
    for name in list(filter(_UNFINISHED.fullmatch, names)):
      names.remove(name)
      shutil.rmtree(os.path.join(place, name))


def check_exportable(model: T2RModel) -> None:
  """Traces all that an export holds, so that a run doesn't fail after training.

  Args:
    model: a built model.
  Raises:
    SpecError: see `exported_feature_specs`; or the model's functions fail in mode
      'infer', where there are no labels and no optional features.
  """
  in_spec = model.preprocessor.get_in_feature_specification(ModeKeys.INFER)
  flat = specs.flatten_spec_structure(in_spec)
  optional = [path for path in flat if path not in exported_feature_specs(model)]
  if optional:
    logging.warning(
      "The exported policy is not given the optional features %s, even if the model "
      "is trained with them.",
      optional,
    )
  with futures.ThreadPoolExecutor(1) as executor:
    try:
      executor.submit(_trace, model).result()
    except errors.SpecError:
      raise
    except Exception as e:
      raise errors.SpecError(
        f"export: {type(model).__name__}: expected a model that runs in mode 'infer', "
        f"with labels and optional features None, got {type(e).__name__}: {e}"
      ) from e


def _trace(model: T2RModel) -> None:
  for function in PolicyFunctions(model).signatures().values():
    function.get_concrete_function()


def _save(model: T2RModel, path: str, warmup_batch_sizes: Sequence[int]) -> None:
  functions = PolicyFunctions(model)
  signatures = functions.signatures()
  tf.saved_model.save(functions.module, path, signatures=signatures)
  write_warmup_requests(path, signatures, warmup_batch_sizes)


def export_versions(export_dir: str) -> list[int]:
  """Lists the complete exports in a folder, oldest first."""
  names = os.listdir(export_dir) if os.path.isdir(export_dir) else []
  return sorted(int(name) for name in names if name.isdigit())


def remove_old_exports(export_dir: str, exports_to_keep: int) -> None:
  """Deletes all but the newest exports of a folder; `exports_to_keep` >= 1."""
  for version in export_versions(export_dir)[:-exports_to_keep]:
    with contextlib.suppress(FileNotFoundError):
      shutil.rmtree(os.path.join(export_dir, str(version)))
