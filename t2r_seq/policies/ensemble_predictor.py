"""A predictor of several exports, whose outputs become one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.policies.predictors import (
  AbstractPredictor,
  ExportedSavedModelPredictor,
  NoModelError,
  RestoreOptions,
)

_AGGREGATIONS = ("mean", "min", "lcb")


@gin.configurable
class EnsembleExportedSavedModelPredictor(AbstractPredictor):
  """Asks several exports, and gives the mean of what they say, or the least.

  `ensemble_size` of the folders are drawn by `resample_ensemble()`, and at the first
  restore. The minimum, or the lower confidence bound, keeps a search over critics off
  actions that one of them alone values.
  """

  def __init__(
    self,
    export_dirs: str | Sequence[str] = gin.REQUIRED,
    local_export_root: str | None = None,
    ensemble_size: int = 1,
    timeout: float = 600.0,
    restore_model_option: RestoreOptions = RestoreOptions.DO_NOT_RESTORE,
    aggregation: str = "mean",
    lcb_coefficient: float = 1.0,
    seed: int | None = None,
    allow_nan: bool = False,
  ) -> None:
    """Creates the predictors, by default without models.

    Args:
      export_dirs: folders of exports, one a member; a list, or joined by commas.
      local_export_root: looks for the folders' last names in here.
      ensemble_size: members that are asked; 1 draws one of the exports.
      timeout: see `ExportedSavedModelPredictor`, for each.
      restore_model_option: see `ExportedSavedModelPredictor`.
      aggregation: of outputs of floating point: 'mean', 'min', or 'lcb', the mean minus
        `lcb_coefficient` standard deviations. Others are those of the first member.
      lcb_coefficient: of 'lcb'.
      seed: of the draw of members.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
    Raises:
      SpecError: a folder is missing below `local_export_root`, there are no folders or
        no members, or the aggregation is not known.
    """
    if aggregation not in _AGGREGATIONS:
      raise errors.SpecError(
        f"{type(self).__name__}: aggregation: expected one of "
        f"{errors.listing(_AGGREGATIONS)}, got {aggregation!r}."
      )
    given = export_dirs.split(",") if isinstance(export_dirs, str) else export_dirs
    self._export_dirs = [str(path) for path in given if str(path)]
    if not self._export_dirs or ensemble_size < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: expected folders and an ensemble_size of at least 1, "
        f"got {len(self._export_dirs)} folders and {ensemble_size}."
      )
    self._ensemble_size = ensemble_size
    self._aggregate: Callable[[np.ndarray], np.ndarray] = {
      "mean": lambda x: x.mean(axis=0),
      "min": lambda x: x.min(axis=0),
      "lcb": lambda x: x.mean(axis=0) - lcb_coefficient * x.std(axis=0),
    }[aggregation]
    self._rng = np.random.default_rng(seed)
    self._predictors = [
      ExportedSavedModelPredictor(
        self._resolve(path, local_export_root),
        timeout,
        restore_model_option=restore_model_option,
        allow_nan=allow_nan,
      )
      for path in self._export_dirs
    ]
    self._members: list[int] = []
    self._num_envs = 1

  def _resolve(self, path: str, root: str | None) -> str:
    if root is None:
      return path
    resolved = os.path.join(root, os.path.basename(path.strip("/")))
    if not os.path.exists(resolved):
      raise errors.SpecError(
        f"{type(self).__name__}: export_dirs: expected the folder {resolved}, got "
        "nothing. It is the last name of the folder below local_export_root."
      )
    return resolved

  def resample_ensemble(self) -> None:
    """Draws which exports are asked; each at most once, if there are enough."""
    num = len(self._predictors)
    again = self._ensemble_size > num
    drawn = self._rng.choice(num, self._ensemble_size, replace=again)
    self._members = [int(each) for each in drawn]
    for predictor in self._ensemble:
      predictor.reset(self._num_envs)

  def restore(self, is_async: bool | None = None) -> bool:
    """Loads the newest exports of all folders; see `ExportedSavedModelPredictor`.

    Returns:
      Whether all are the newest.
    """
    restored = [predictor.restore(is_async) for predictor in self._predictors]
    if not self._members:
      self.resample_ensemble()
    return all(restored)

  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """See the base class: the aggregate of the members' outputs."""
    self.assert_is_loaded()
    return self._joined([each.predict(features) for each in self._ensemble])

  def step(
    self, features: Any, is_first: Any = None, timestamp: Any = None
  ) -> dict[str, np.ndarray]:
    """See the base class: the aggregate; each member has a history of its own."""
    self.assert_is_loaded()
    # One of them warns for all.
    times = [timestamp, *[None] * (len(self._asked_once) - 1)]
    return self._joined(
      [
        each.step(features, is_first, time)
        for each, time in zip(self._asked_once, times, strict=True)
      ]
    )

  def reset(self, num_envs: int = 1) -> None:
    """Forgets all history."""
    for predictor in self._predictors:
      predictor.reset(num_envs)
    self._num_envs = num_envs

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes what the members draw repeatable from here on."""
    for predictor in self._predictors:
      predictor.seed(seed, env)

  def last_window(self) -> dict[str, np.ndarray]:
    """Returns what the last `step` saw; all members saw the same."""
    self.assert_is_loaded()
    return self._ensemble[0].last_window()

  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns what `predict` takes; the members' are the same."""
    return self._predictors[0].get_feature_specification()

  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns what `step` takes; the members' are the same."""
    return self._predictors[0].get_step_specification()

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    """Returns the label specs."""
    return self._predictors[0].get_label_specification()

  def close(self) -> None:
    """Lets go of the models."""
    for predictor in self._predictors:
      predictor.close()

  def assert_is_loaded(self) -> None:
    """Checks that there are models to predict with.

    Raises:
      NoModelError: nothing was restored, or a member has no model.
    """
    if not self._members:
      raise NoModelError(
        "ensemble: expected members to ask, got none. Call restore() first."
      )
    for predictor in self._ensemble:
      predictor.assert_is_loaded()

  @property
  def control_period(self) -> float | None:
    """That of the members, which is the same."""
    return self._predictors[0].control_period

  @property
  def model_version(self) -> int:
    """The version of the first member's export."""
    self.assert_is_loaded()
    return self._ensemble[0].model_version

  @property
  def global_step(self) -> int:
    """The training step of the one member; -1 of several, and before there is one."""
    return self._ensemble[0].global_step if len(self._members) == 1 else -1

  @property
  def model_path(self) -> str:
    """The members' exports, joined by commas."""
    self.assert_is_loaded()
    return ",".join(each.model_path for each in self._ensemble)

  @property
  def _ensemble(self) -> list[ExportedSavedModelPredictor]:
    return [self._predictors[member] for member in self._members]

  @property
  def _asked_once(self) -> list[ExportedSavedModelPredictor]:
    """Members without repetitions: a history sees each observation once."""
    return [self._predictors[member] for member in dict.fromkeys(self._members)]

  def _joined(self, said: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
      name: self._aggregate(np.stack([each[name] for each in said])).astype(first.dtype)
      if first.dtype.kind == "f"
      else first
      for name, first in said[0].items()
    }
