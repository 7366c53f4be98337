"""When an export is made and which are kept."""

from __future__ import annotations

import abc
import json
import math
import os
from collections.abc import Callable, Collection, Mapping

import gin

from t2r_seq import errors, files
from t2r_seq.models import T2RModel
from t2r_seq.training import export

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
      path = export.export_saved_model(model, export_dir, global_step)
    else:
      path = export.copy_export(saved, export_dir)
    self._exported(export_dir, metrics)
    export.remove_old_exports(export_dir, self._exports_to_keep)
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
    value, best = metrics[self._metric], self._best(model_dir)
    if best is None or not math.isfinite(value):
      return math.isfinite(value)
    return value > best if self._larger_is_better else value < best

  def _best(self, model_dir: str) -> float | None:
    """Returns the best value so far; none of another metric counts."""
    filename = _best_filename(self._export_dir(model_dir))
    if not os.path.exists(filename):
      return None
    with open(filename, encoding="utf-8") as f:
      return json.load(f).get(self._metric)

  def _exported(self, export_dir: str, metrics: Metrics) -> None:
    filename = _best_filename(export_dir)
    best = json.dumps({self._metric: metrics[self._metric]})
    files.replace_file(filename, best.encode())


@gin.configurable
def create_default_exporters(
  exporter_fns: list[Callable[[], Exporter]] | None = None,
) -> list[Exporter]:
  """Creates the exporters of a training run: the latest and the best eval loss.

  Args:
    exporter_fns: replaces the two.
  Returns:
    The exporters, in order.
  """
  return [create() for create in exporter_fns or (LatestExporter, BestExporter)]


def _best_filename(export_dir: str) -> str:
  return os.path.join(export_dir, "best.json")
