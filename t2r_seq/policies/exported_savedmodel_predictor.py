"""A predictor that loads exported SavedModels, the newest there is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.policies import abstract_predictor, exports, loaded_export

_MAX_SHOWN = 400


@gin.configurable
class ExportedSavedModelPredictor(abstract_predictor.AbstractPredictor):
  """Predicts with the newest export of a folder; needs no model code.

  Nothing is loaded before `restore`. A restored predictor starts without history, and
  so does one that found a newer export: restore between episodes.
  """

  def __init__(
    self,
    export_dir: str = gin.REQUIRED,
    timeout: float = 600.0,
    poll_interval: float = 1.0,
  ) -> None:
    """Creates a predictor without a model.

    Args:
      export_dir: holds one folder per version, or is itself one export.
      timeout: how long `restore` waits for a first export, seconds; 0 looks once.
      poll_interval: seconds between two looks.
    """
    self._export_dir = str(export_dir)
    self._timeout = timeout
    self._poll_interval = poll_interval
    self._loaded: loaded_export.LoadedExport | None = None
    self._num_envs = 1
    # What was logged already: `restore` looks at the same folders again and again.
    self._logged: set[tuple[str, str]] = set()
    # True until the first step after a reset or a restore: no history to build on.
    self._is_fresh = True
    self._all_envs: dict[bool, tf.Tensor] = {}

  def restore(self) -> bool:
    """Loads the newest export, waiting for it if there is no model to use yet.

    An export that cannot be loaded is logged as an error, once, and the one before it
    is used: that which is loaded already, or the next older one on disk. A folder that
    lacks files of an export is logged as a warning, once; so is that there is none.

    Returns:
      True: the newest export is in use. False: it is not; either nothing could be
      loaded in time, or the newest is broken and an older one is in use (then
      `assert_is_loaded` passes).
    """
    deadline = time.monotonic() + self._timeout
    self._log_once(logging.INFO, self._export_dir, "is where exports are looked for")
    while True:
      is_newest = self._load_newest()
      if self._loaded is not None:
        return is_newest
      remaining = deadline - time.monotonic()
      if remaining <= 0:
        problem = f"has no export after {self._timeout:g} s"
        self._log_once(logging.WARNING, self._export_dir, problem)
        return False
      time.sleep(min(self._poll_interval, remaining))

  def _load_newest(self) -> bool:
    """Loads the newest export that can be; returns whether it is the newest at all."""
    oldest_first, unfinished = exports.scan_exports(self._export_dir)
    for path, missing in unfinished.items():
      self._log_once(
        logging.WARNING, path, f"is no export: {', '.join(missing)} is missing"
      )
    newest_first = oldest_first[::-1]
    for export in newest_first:
      is_newest = export == newest_first[0]
      if self._loaded is not None and self._loaded.export == export:
        return is_newest
      try:
        self._loaded = loaded_export.LoadedExport(export)
      except Exception as error:  # A broken SavedModel raises nearly anything.
        reason = " ".join(str(error).split())[:_MAX_SHOWN]
        self._log_once(logging.ERROR, export.path, f"cannot be loaded: {reason}")
        continue
      self.reset(self._num_envs)
      logging.info(
        "Loaded %s (step %d).", self._loaded.export.path, self._loaded.global_step
      )
      return is_newest
    return not newest_first

  def _log_once(self, level: int, path: str, problem: str) -> None:
    if (path, problem) not in self._logged:
      self._logged.add((path, problem))
      logging.log(level, "The folder %s %s.", path, problem.rstrip("."))

  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Predicts from stacked features.

    Args:
      features: numpy, hierarchical or by path, batched, `[B, ...]`, as in
        `get_feature_specification`.
    Returns:
      The model's outputs by name, `[B, ...]`.
    Raises:
      SpecError: features are missing, or have another shape or dtype; all are named.
    """
    loaded = self._model("predict")
    flat = _validate("predict", loaded.predict_spec, features)
    _check_batch("predict", flat)
    return loaded.predict(flat)

  def predict_records(self, serialized: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Predicts from serialized records, parsed inside the export.

    Args:
      serialized: B records, as the model was trained on.
    Returns:
      The model's outputs by name, `[B, ...]`.
    """
    return self._model("predict_records").predict_records(list(serialized))

  def step(self, features: Any, is_first: Any = None) -> dict[str, np.ndarray]:
    """Predicts from one observation per environment and the history before it.

    Args:
      features: numpy, hierarchical or by path, `[N, *frame_shape]`, as in
        `get_step_specification`.
      is_first: bool `[N]`, or one bool for all; True where an episode starts. None:
        True at the first step after `reset`, False afterwards.
    Returns:
      The model's outputs by name, `[N, ...]`.
    Raises:
      SpecError: features are missing, or have another shape or dtype, or not one
        entry per environment; all are named.
    """
    loaded = self._model("step")
    flat: Any = loaded.exact_step.take(features, self._num_envs)
    if flat is None:
      flat = _validate("step", loaded.step_spec, features)
      _check_batch("step", flat, self._num_envs)
    outputs = loaded.step(flat, self._starts(is_first))
    self._is_fresh = False
    return outputs

  def _starts(self, is_first: Any) -> Any:
    """Returns where an episode starts, bool [N]."""
    starts = np.bool_(False) if is_first is None else np.asarray(is_first, bool)
    if starts.shape not in ((), (self._num_envs,)):
      raise errors.SpecError(
        f"step: is_first: expected ({self._num_envs},) bool, one per environment, got "
        f"{errors.describe(starts)}."
      )
    if starts.ndim and not self._is_fresh:
      return starts
    # Tensors that are there already: to make them costs as much as our other Python.
    return self._all_envs[self._is_fresh or bool(starts)]

  def reset(self, num_envs: int = 1) -> None:
    """Forgets all history.

    Args:
      num_envs: how many environments the following steps are for, >= 1.
    Raises:
      SpecError: num_envs is no such number.
    """
    if not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
      raise errors.SpecError(
        f"reset: num_envs: expected an integer >= 1, got {num_envs!r}."
      )
    self._num_envs = int(num_envs)
    self._is_fresh = True
    self._all_envs = _flags(self._num_envs)
    if self._loaded is not None:
      self._loaded.reset(num_envs)

  def last_window(self) -> dict[str, np.ndarray]:
    """Returns the stacked features `[N, ...]`, by path, that the last `step` saw."""
    return self._model("last_window").last_window()

  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns the stored feature specs: stacked, without the batch axis."""
    return self._model().feature_spec

  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns what `step` takes: single frames, without the axis of environments."""
    return self._model("step").step_spec

  def get_label_specification(self) -> specs.TensorSpecStruct:
    """Returns the stored label specs."""
    return self._model().label_spec

  def close(self) -> None:
    """Lets go of the model; `restore` loads one again."""
    self._loaded = None

  def assert_is_loaded(self) -> None:
    """Checks that there is a model to predict with.

    Raises:
      NoModelError: no model has been restored yet.
    """
    self._model()

  @property
  def model_version(self) -> int:
    """The version of the export in use."""
    return self._model().export.version

  @property
  def global_step(self) -> int:
    """The training step of the export in use."""
    return self._model().global_step

  @property
  def model_path(self) -> str:
    """The folder of the export in use."""
    return self._model().export.path

  def _model(self, operation: str = "predictor") -> loaded_export.LoadedExport:
    """Returns the export in use."""
    if self._loaded is None:
      raise abstract_predictor.NoModelError(
        f"{operation}: no model is loaded from {self._export_dir}. Call restore() "
        "first, and check that it finds an export."
      )
    return self._loaded


def _flags(num_envs: int) -> dict[bool, tf.Tensor]:
  """Returns False, and True, for every environment."""
  return {value: tf.fill([num_envs], value) for value in (False, True)}


def _validate(
  operation: str, expected: specs.TensorSpecStruct, features: Any
) -> specs.TensorSpecStruct:
  """Returns the expected features by path, after a check against their specs."""
  try:
    flat = specs.validate_and_flatten(expected, features, ignore_batch=True)
  except errors.SpecError as error:
    details = str(error).removeprefix("validate_and_flatten: ")
    raise errors.SpecError(f"{operation}: {details}") from None
  return specs.TensorSpecStruct([(path, flat[path]) for path in expected])


def _check_batch(
  operation: str, features: specs.TensorSpecStruct, num_envs: int | None = None
) -> None:
  """Checks that all features have one entry per environment, or equally many."""
  counts = {path: int(value.shape[0]) for path, value in features.items()}
  if num_envs is not None:
    want, what = num_envs, f"{num_envs} environments"
    hint = "Call reset(num_envs) first to change their number."
  else:
    first = next(iter(counts), "")
    want, what, hint = counts.get(first, 0), f"a batch as large as that of {first}", ""
  wrong = [
    errors.Mismatch(path, what, errors.describe(features[path]), hint)
    for path, count in counts.items()
    if count != want
  ]
  if wrong:
    raise errors.mismatch_error(operation, wrong)
