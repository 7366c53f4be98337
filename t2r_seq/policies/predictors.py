"""Predictors: load models, one or an ensemble, and return their outputs."""

from __future__ import annotations

import abc
import enum
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.lite.policy_io import STAMPS, Inspection, StatefulPolicy, with_times
from t2r_seq.policies.loaded_export import LoadedExport, LoadedPolicy, UnknownRobotError
from t2r_seq.policies.policy_model import PolicyRecord
from t2r_seq.specs.assets import scan_exports


class NoModelError(ValueError):
  """No model has been loaded."""


class AbstractPredictor(abc.ABC):
  """Loads a model and predicts with it.

  Beside Tensor2Robot's methods, `step` takes one observation at a time and keeps the
  policy's state, such as the frames that the model stacks; `reset` clears it.
  """

  @abc.abstractmethod
  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Returns the model's outputs by name, `[B, ...]`, for stacked features.

    Args:
      features: numpy, hierarchical or by path, `[B, ...]`, as in
        `get_feature_specification`.
    """

  @abc.abstractmethod
  def step(
    self,
    features: Any,
    is_first: Any = None,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> dict[str, np.ndarray]:
    """Returns the outputs by name, `[N, ...]`, for an observation per environment.

    Args:
      features: numpy, hierarchical or by path, `[N, *frame_shape]`, as in
        `get_step_specification`.
      is_first: bool `[N]`, or one for all; True where an episode starts, which clears
        that environment's state. All start at the first step after `reset`.
      timestamp: time of the observations in seconds, one number or `[N]`. A rate that
        differs from training's logs a warning. A history by time requires it, here or
        in `features`, as floats of seconds or integers of nanoseconds.
      stamps: measurement times by path, for a history by time; default: `timestamp`.
    """

  @abc.abstractmethod
  def reset(self, num_envs: int = 1) -> None:
    """Clears all state; the following steps are for `num_envs` environments."""

  def get_policy_record(self) -> PolicyRecord | None:
    """Returns the description of the policy, if there is one."""
    return None

  def seed(self, seed: int, env: int = 0) -> None:  # noqa: B027
    """Makes the model's random numbers in an environment repeatable."""

  @abc.abstractmethod
  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns the features of `predict`, without the batch axis."""

  @abc.abstractmethod
  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns the features of `step`, without the axis of environments."""

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    """Returns the labels of training, if known."""
    return None

  @abc.abstractmethod
  def restore(self, is_async: bool | None = None) -> bool:
    """Loads the newest model; call it between episodes.

    Args:
      is_async: loads in a thread, and returns at once; None for the default of the
        predictor.
    Returns:
      Whether the newest model is in use, as far as is known.
    """

  def init_randomly(self) -> None:
    """Gives the model random weights; ValueError without the model's code."""
    raise ValueError(
      f"{type(self).__name__}: init_randomly: expected a predictor that has the "
      "model's code, such as CheckpointPredictor."
    )

  @abc.abstractmethod
  def close(self) -> None:
    """Releases the model."""

  @abc.abstractmethod
  def assert_is_loaded(self) -> None:
    """Raises a `NoModelError` if no model has been restored."""

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if known."""
    return None

  @property
  def model_version(self) -> int:
    """The version of the model in use; 0 if there are no versions."""
    return 0

  @property
  def global_step(self) -> int:
    """The training step of the model in use; -1 before there is one."""
    return -1

  @property
  def model_path(self) -> str:
    """The path of the model in use; '' if it has none."""
    return ""


# Characters of an error in a line of the log.
_MAX_SHOWN = 400


@gin.constants_from_enum
class RestoreOptions(enum.Enum):
  """When, and in which thread, a predictor loads its models, as in Tensor2Robot.

  The last two start when the predictor is created. With RESTORE_ASYNCHRONOUSLY later
  calls of `restore()` load in a thread, too.
  """

  DO_NOT_RESTORE = 0
  RESTORE_SYNCHRONOUSLY = 1
  RESTORE_ASYNCHRONOUSLY = 2


class LoadingPredictor(AbstractPredictor):
  """Predicts with the newest model of a folder, which a subclass finds and loads."""

  _noun = "export"

  def __init__(
    self,
    place: str,
    timeout: float,
    poll_interval: float,
    restore_model_option: RestoreOptions,
    allow_nan: bool = False,
  ) -> None:
    """Creates a predictor; see `ExportedSavedModelPredictor` for the arguments."""
    self._allow_nan = allow_nan
    self._place = place
    self._timeout = timeout
    self._poll_interval = poll_interval
    self._is_async = restore_model_option is RestoreOptions.RESTORE_ASYNCHRONOUSLY
    self._loaded: LoadedPolicy | None = None
    self._loading: futures.Future[tuple[LoadedPolicy | None, bool]] | None = None
    self._acting = StatefulPolicy()
    # Already logged: `restore` checks the same folders repeatedly.
    self._logged: set[tuple[str, str]] = set()
    if restore_model_option is not RestoreOptions.DO_NOT_RESTORE:
      self.restore()

  @abc.abstractmethod
  def _find_newest(
    self, current: LoadedPolicy | None
  ) -> tuple[LoadedPolicy | None, bool]:
    """Loads the newest intact model, perhaps in a thread.

    Args:
      current: the model in use.
    Returns:
      (the model to use, perhaps the current one, or None; whether it is the newest).
    """

  def restore(self, is_async: bool | None = None) -> bool:
    """Loads the newest model; waits up to `timeout` for a first one.

    A broken model is logged once, and the next older one is used. A model that a thread
    has loaded is used from the next `restore`, `reset` or first step of all
    environments on. Calls that need a first model wait for the thread.

    Args:
      is_async: loads in a thread, and returns True at once; None: as
        `restore_model_option` does.
    Returns:
      True if the newest model is in use, or is being loaded. False if no model was
      found in time, or the newest is broken and an older one is in use (then
      `assert_is_loaded` passes).
    Raises:
      UnknownRobotError: the export lacks the robot, or has several and none was named.
        If a thread loads, the next call that uses its model raises it.
    """
    if self._is_async if is_async is None else is_async:
      self._swap_if_loaded()
      if self._loading is None:
        loading: futures.Future[tuple[LoadedPolicy | None, bool]] = futures.Future()
        self._loading = loading

        def load() -> None:
          try:
            loading.set_result(self._wait_for_newest())
          except Exception as error:  # `_finish_loading` raises it.
            loading.set_exception(error)

        # A daemon: waiting for a first model must not delay the end of the process.
        threading.Thread(target=load, name="restore", daemon=True).start()
      return True
    self._finish_loading()
    loaded, is_newest = self._wait_for_newest()
    self._use(loaded)
    return is_newest

  def _wait_for_newest(self) -> tuple[LoadedPolicy | None, bool]:
    current = self._loaded
    deadline = time.monotonic() + self._timeout
    self._log_once(logging.INFO, self._place, f"is searched for {self._noun}s")
    while True:
      loaded, is_newest = self._find_newest(current)
      if loaded is not None:
        return loaded, is_newest
      remaining = deadline - time.monotonic()
      if remaining <= 0:
        problem = f"has no {self._noun} after {self._timeout:g} s"
        self._log_once(logging.WARNING, self._place, problem)
        return None, False
      time.sleep(min(self._poll_interval, remaining))

  def _use(self, loaded: LoadedPolicy | None) -> None:
    """Uses a model, with initial states."""
    if loaded is None or loaded is self._loaded:
      return
    self._loaded = loaded
    self._acting.use(loaded)
    logging.info("Loaded %s (step %d).", loaded.path, loaded.global_step)

  def _swap_if_loaded(self) -> None:
    """Uses the model that a thread has loaded, if it is done."""
    if self._loading is not None and self._loading.done():
      self._finish_loading()

  def _finish_loading(self) -> None:
    """Waits for the thread, and uses the model that it has loaded."""
    if self._loading is not None:
      loading, self._loading = self._loading, None
      self._use(loading.result()[0])

  def _load_first(self, candidates: Mapping[str, Callable[[], LoadedPolicy]]) -> Any:
    """Loads the first intact model of several, by their paths."""
    for path, load in candidates.items():
      try:
        return load()
      except UnknownRobotError:
        raise
      except Exception as error:  # A broken model raises nearly anything.
        reason = " ".join(str(error).split())[:_MAX_SHOWN]
        self._log_once(logging.ERROR, path, f"cannot be loaded: {reason}")
    return None

  def _log_once(self, level: int, path: str, problem: str) -> None:
    if (path, problem) not in self._logged:
      self._logged.add((path, problem))
      kind = self._kind_of(path)
      logging.log(level, "The %s %s %s.", kind, path, problem.rstrip("."))

  def _kind_of(self, path: str) -> str:
    del path
    return "folder"

  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """See the base class.

    Raises:
      SpecError: features are missing, or have another shape, dtype or batch size, or
        NaN or infinity.
      NoModelError: no model is loaded.
    """
    return self._model("predict").predict(features)

  def predict_records(
    self, serialized: Sequence[bytes] | Mapping[str, Sequence[bytes]]
  ) -> dict[str, np.ndarray]:
    """Returns the outputs by name, `[B, ...]`, for serialized records.

    Args:
      serialized: B records; for a model of several datasets B records of each by its
        `dataset_key`.
    Raises:
      SpecError: datasets are missing or unknown, or the export has no signature
        'parse_tf_example'.
      NoModelError: no model is loaded.
    """
    return self._model("predict_records").predict_records(serialized)

  def step(
    self,
    features: Any,
    is_first: Any = None,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> dict[str, np.ndarray]:
    """See the base class.

    Raises:
      SpecError: the arguments do not fit, or have NaN or infinity, or the export has no
        step. The state stays unchanged.
      NoModelError: no model is loaded.
    """
    if self._loading is not None and is_first is not None and np.all(is_first):
      self._swap_if_loaded()
    self._model("step")
    return self._acting.step(features, is_first, timestamp, stamps)

  def reset(self, num_envs: int = 1) -> None:
    """See the base class; SpecError if `num_envs` is not an integer >= 1."""
    self._swap_if_loaded()
    self._acting.reset(num_envs)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the model's random numbers repeatable from the next step on."""
    self._acting.seed(seed, env)

  def inspect(self, features: Any, is_first: Any = None) -> Inspection:
    """Returns inputs and outputs of the network at a `step`; takes no step."""
    self._model("inspect")
    return self._acting.inspect(features, is_first)

  def adapt(self, features: Any, env: int = 0) -> None:
    """Learns a task in an environment, until `reset` or a newer model.

    Args:
      features: numpy, as in `get_adaptation_specification`, of one task: without an
        axis of environments.
      env: the number of the environment.
    Raises:
      SpecError: the model learns no tasks, or the arguments do not fit.
      NoModelError: no model is loaded.
    """
    self._model("adapt").signature("adapt")
    rows = specs.map_leaves(lambda value: np.asarray(value)[np.newaxis], features)
    self._acting.adapt(rows, env)

  def get_adaptation_specification(self) -> specs.TensorSpecStruct:
    """Returns the features of `adapt` for one task, [samples, ...], or none."""
    return self._model("adapt").adaptation_spec

  @property
  def pure(self) -> LoadedPolicy:
    """The model in use as functions; callers keep their states.

    Many callers can share it. It stays the same when `restore` finds a newer model.
    """
    return self._model("pure")

  def get_feature_specification(self) -> specs.TensorSpecStruct:
    return self._model().feature_spec

  def get_step_specification(self) -> specs.TensorSpecStruct:
    return self._model("step").step_specification()

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    return self._model().label_spec

  def get_policy_record(self) -> PolicyRecord | None:
    return self._model().record

  @property
  def control_period(self) -> float | None:
    return None if self._loaded is None else self._loaded.control_period

  def close(self) -> None:
    """Releases the model, after a load in progress; `restore` loads one again."""
    self._finish_loading()
    self._loaded = None
    self._acting.use(None)

  def assert_is_loaded(self) -> None:
    """See the base class; waits for a model that is loading."""
    self._model()

  @property
  def model_version(self) -> int:
    """The version of the model in use; NoModelError before there is one."""
    return self._model().version

  @property
  def global_step(self) -> int:
    return -1 if self._loaded is None else self._loaded.global_step

  @property
  def model_path(self) -> str:
    """The path of the model in use; NoModelError before there is one."""
    return self._model().path

  def _model(self, operation: str = "predictor") -> LoadedPolicy:
    """Returns the model in use, after a first load in progress; else NoModelError."""
    if self._loaded is None:
      self._finish_loading()
    if self._loaded is None:
      raise NoModelError(
        f"{operation}: no model is loaded from {self._place}. Call restore() "
        f"first; its result says whether it found one."
      )
    return self._loaded


@gin.configurable
class ExportedSavedModelPredictor(LoadingPredictor):
  """Predicts with the newest export of a folder; needs no model code.

  By default nothing is loaded before `restore`. A newer export clears all policy
  states, so call `restore` between episodes.

  >>> import numpy as np
  >>> from t2r_seq import policies, testing, training
  >>> model = testing.MockT2RModel()
  >>> model.build()
  >>> _ = training.export_saved_model(model, "exports", global_step=0)
  >>> predictor = policies.ExportedSavedModelPredictor("exports")
  >>> predictor.restore()
  True
  >>> predictor.step({"x": np.zeros([1, 3], np.float32)})["a_predicted"].shape
  (1, 1)

  """

  def __init__(
    self,
    export_dir: str = gin.REQUIRED,
    timeout: float = 600.0,
    poll_interval: float = 1.0,
    restore_model_option: RestoreOptions = RestoreOptions.DO_NOT_RESTORE,
    allow_nan: bool = False,
    robot: str | None = None,
  ) -> None:
    """Creates a predictor, by default without a model.

    Args:
      export_dir: holds one folder per version, or is itself one export.
      timeout: how long `restore` waits for a first export, seconds; 0 checks once.
      poll_interval: seconds between two checks.
      restore_model_option: whether to restore now, and in which thread.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
      robot: name of the robot, for an export of several robots. If it is missing,
        `restore` raises and lists their names.
    """
    self._robot = robot
    super().__init__(
      str(export_dir), timeout, poll_interval, restore_model_option, allow_nan
    )

  def _find_newest(
    self, current: LoadedPolicy | None
  ) -> tuple[LoadedPolicy | None, bool]:
    oldest_first, unfinished = scan_exports(self._place)
    for path, missing in unfinished.items():
      self._log_once(
        logging.WARNING, path, f"is not an export: {', '.join(missing)} is missing"
      )
    newest_first = oldest_first[::-1]
    active = next((e for e in newest_first if current and e.path == current.path), None)
    newer = newest_first[: newest_first.index(active)] if active else newest_first
    newest = self._load_first(
      {
        export.path: functools.partial(
          LoadedExport, export, self._allow_nan, self._robot
        )
        for export in newer
      }
    )
    newest = newest or current
    if not newest_first:
      return newest, True
    return newest, newest is not None and newest.path == newest_first[0].path


_AGGREGATIONS = ("mean", "min", "lcb")


@gin.configurable
class EnsembleExportedSavedModelPredictor(AbstractPredictor):
  """Returns the mean, minimum or lower confidence bound over an ensemble of exports.

  `resample_ensemble()` and the first `restore()` choose `ensemble_size` of the folders
  at random.
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
      export_dirs: folders of exports, from which the members are chosen; a list, or
        joined by commas.
      local_export_root: a folder with copies of `export_dirs`, by their last names;
        None reads `export_dirs`.
      ensemble_size: the number of members in use.
      timeout: see `ExportedSavedModelPredictor`.
      restore_model_option: see `ExportedSavedModelPredictor`.
      aggregation: for floating point outputs: 'mean', 'min', or 'lcb', the mean minus
        `lcb_coefficient` standard deviations. Other outputs are the first member's.
      lcb_coefficient: number of standard deviations of 'lcb'.
      seed: seed of the choice of members; None for another choice in each process.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
    Raises:
      SpecError: a folder is missing below `local_export_root`, there are no folders,
        `ensemble_size` is below 1, or the aggregation is unknown.
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
    if restore_model_option is not RestoreOptions.DO_NOT_RESTORE:
      self.resample_ensemble()

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
    """Chooses members at random, if possible all different; clears their states."""
    num = len(self._predictors)
    with_replacement = self._ensemble_size > num
    chosen = self._rng.choice(num, self._ensemble_size, with_replacement)
    self._members = chosen.tolist()
    for predictor in self._ensemble:
      predictor.reset(self._num_envs)

  def restore(self, is_async: bool | None = None) -> bool:
    """Loads the newest export of each folder; returns whether all are in use."""
    restored = [predictor.restore(is_async) for predictor in self._predictors]
    if not self._members:
      self.resample_ensemble()
    return all(restored)

  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Aggregates the members' outputs; see `ExportedSavedModelPredictor.predict`."""
    self.assert_is_loaded()
    return self._combine([each.predict(features) for each in self._ensemble])

  def step(
    self,
    features: Any,
    is_first: Any = None,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> dict[str, np.ndarray]:
    """Aggregates the members' outputs; each member has a separate state."""
    self.assert_is_loaded()
    if any(path.startswith(f"{STAMPS}/") for path in self.get_step_specification()):
      features = with_times(features, timestamp, stamps)
    # A member that was sampled several times steps once. Only the first one gets the
    # timestamp, so that a wrong rate is logged once.
    outputs: dict[int, dict[str, np.ndarray]] = {}
    for i in dict.fromkeys(self._members):
      outputs[i] = self._predictors[i].step(features, is_first, timestamp)
      timestamp = None
    return self._combine([outputs[i] for i in self._members])

  def reset(self, num_envs: int = 1) -> None:
    for predictor in self._predictors:
      predictor.reset(num_envs)
    self._num_envs = num_envs

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the members' random numbers repeatable."""
    for predictor in self._predictors:
      predictor.seed(seed, env)

  def get_feature_specification(self) -> specs.TensorSpecStruct:
    return self._predictors[0].get_feature_specification()

  def get_step_specification(self) -> specs.TensorSpecStruct:
    return self._predictors[0].get_step_specification()

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    return self._predictors[0].get_label_specification()

  def close(self) -> None:
    for predictor in self._predictors:
      predictor.close()

  def assert_is_loaded(self) -> None:
    """Raises a `NoModelError` if a member has no model."""
    if not self._members:
      raise NoModelError("ensemble: expected members, got none. Call restore() first.")
    for predictor in self._ensemble:
      predictor.assert_is_loaded()

  @property
  def control_period(self) -> float | None:
    return self._predictors[0].control_period

  @property
  def model_version(self) -> int:
    """The version of the first member's export."""
    self.assert_is_loaded()
    return self._ensemble[0].model_version

  @property
  def global_step(self) -> int:
    """The training step of the only member; -1 for several, or before there is one."""
    return self._ensemble[0].global_step if len(self._members) == 1 else -1

  @property
  def model_path(self) -> str:
    """The members' exports, joined by commas."""
    self.assert_is_loaded()
    return ",".join(each.model_path for each in self._ensemble)

  @property
  def _ensemble(self) -> list[ExportedSavedModelPredictor]:
    return [self._predictors[member] for member in self._members]

  def _combine(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
      name: self._aggregate(np.stack([each[name] for each in outputs])).astype(
        first.dtype
      )
      if first.dtype.kind == "f"
      else first
      for name, first in outputs[0].items()
    }
