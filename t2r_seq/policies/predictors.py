"""Predictors: load models, one or an ensemble, and return their outputs."""

from __future__ import annotations

import abc
import enum
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.lite.policy_io import Inspection, StatefulPolicy
from t2r_seq.policies.loaded_export import LoadedExport, LoadedPolicy, scan_exports
from t2r_seq.policies.policy_model import PolicyRecord


class NoModelError(ValueError):
  """A prediction was asked for, and no model has been loaded."""


class AbstractPredictor(abc.ABC):
  """Loads a model and predicts with it, whatever form the model has on disk.

  As in Tensor2Robot, with `step` and `reset` for models that see more than one step:
  `step` takes one observation at a time, and the predictor keeps the state, such as the
  frames that the model stacks.
  """

  @abc.abstractmethod
  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Predicts from stacked features.

    Args:
      features: numpy, hierarchical or by path, batched, `[B, ...]`, as in
        `get_feature_specification`.
    Returns:
      The model's outputs by name, `[B, ...]`.
    """

  @abc.abstractmethod
  def step(
    self, features: Any, is_first: Any = None, timestamp: Any = None
  ) -> dict[str, np.ndarray]:
    """Predicts from one observation per environment and the history before it.

    Args:
      features: numpy, hierarchical or by path, one frame an environment,
        `[N, *frame_shape]`, as in `get_step_specification`.
      is_first: bool `[N]`, or one for all; True where an episode starts, which forgets
        that environment's history. All start at the first step after `reset`.
      timestamp: seconds, one number or `[N]`; when the observations were made. There
        is a warning if they come at another rate than the steps of training did.
    Returns:
      The model's outputs by name, `[N, ...]`.
    """

  @abc.abstractmethod
  def reset(self, num_envs: int = 1) -> None:
    """Forgets all history.

    Args:
      num_envs: how many environments the following steps are for.
    """

  def get_policy_record(self) -> PolicyRecord | None:
    """Returns the description of the policy, if there is one."""
    return None

  def seed(self, seed: int, env: int = 0) -> None:  # noqa: B027
    """Makes what the model draws in an environment repeatable from here on."""

  @abc.abstractmethod
  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns what `predict` takes, without the batch axis."""

  @abc.abstractmethod
  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns what `step` takes, without the axis of environments."""

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    """Returns the labels that the model was trained on, if they are known."""
    return None

  @abc.abstractmethod
  def restore(self, is_async: bool | None = None) -> bool:
    """Loads the newest model there is; call it between episodes.

    Args:
      is_async: loads in a thread, and returns at once. None: as the predictor was
        told when it was made.
    Returns:
      Whether the newest model is the one in use now, as far as is known.
    """

  def init_randomly(self) -> None:
    """Gives the model random weights."""
    raise ValueError(
      f"{type(self).__name__}: init_randomly: expected a predictor that has the "
      "model's code, such as CheckpointPredictor."
    )

  @abc.abstractmethod
  def close(self) -> None:
    """Lets go of the model."""

  @abc.abstractmethod
  def assert_is_loaded(self) -> None:
    """Checks that there is a model to predict with.

    Raises:
      NoModelError: no model has been restored yet.
    """

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if that is known."""
    return None

  @property
  def model_version(self) -> int:
    """The version of the model in use."""
    return 0

  @property
  def global_step(self) -> int:
    """The training step of the model in use; -1 before there is one."""
    return -1

  @property
  def model_path(self) -> str:
    """The path of the model in use."""
    return ""


_MAX_SHOWN = 400


@gin.constants_from_enum
class RestoreOptions(enum.Enum):
  """When, and in which thread, a predictor loads its models.

  As in Tensor2Robot: the last two begin when the predictor is made. With
  RESTORE_ASYNCHRONOUSLY later calls of `restore()` load in a thread, too.
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
    """Creates a predictor without a model, and begins to restore it, if told to.

    Args:
      place: where models are looked for.
      timeout: how long `restore` waits for a first model, seconds; 0 looks once.
      poll_interval: seconds between two looks.
      restore_model_option: whether to restore now, and in which thread.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
    """
    self._allow_nan = allow_nan
    self._place = place
    self._timeout = timeout
    self._poll_interval = poll_interval
    self._is_async = restore_model_option is RestoreOptions.RESTORE_ASYNCHRONOUSLY
    self._loaded: LoadedPolicy | None = None
    self._loading: _Loading | None = None
    self._acting = StatefulPolicy()
    # What was logged already: `restore` looks at the same folders again and again.
    self._logged: set[tuple[str, str]] = set()
    if restore_model_option is not RestoreOptions.DO_NOT_RESTORE:
      self.restore()

  @abc.abstractmethod
  def _find_newest(
    self, current: LoadedPolicy | None
  ) -> tuple[LoadedPolicy | None, bool]:
    """Loads the newest model that can be; may run in a thread.

    Args:
      current: the one in use.
    Returns:
      (the model to use, which may be the current one, or None where there is none;
      whether it is the newest at all).
    """

  def restore(self, is_async: bool | None = None) -> bool:
    """Loads the newest model, waiting for it if there is none to use yet.

    What cannot be loaded is logged as an error, once, and the one before it is used:
    that which is loaded already, or the next older one on disk. A folder that lacks
    files is logged as a warning, once; so is that there is none.

    In a thread, a model that is found is used from the next `restore`, `reset` or first
    step of all environments on: never in the middle of an episode, because it begins
    without history. Where no model is in use yet, whatever needs one waits.

    Args:
      is_async: loads in a thread, and returns True at once. None: as
        `restore_model_option` said.
    Returns:
      True: the newest model is in use, or is looked for. False: it is not; either
      nothing could be loaded in time, or the newest is broken and an older one is in
      use (then `assert_is_loaded` passes).
    """
    if self._is_async if is_async is None else is_async:
      self._swap_if_loaded()
      if self._loading is None:
        self._loading = _Loading(self._wait_for_newest)
      return True
    self._finish_loading()
    loaded, is_newest = self._wait_for_newest()
    self._use(loaded)
    return is_newest

  def _wait_for_newest(self) -> tuple[LoadedPolicy | None, bool]:
    current = self._loaded
    deadline = time.monotonic() + self._timeout
    self._log_once(logging.INFO, self._place, f"is where {self._noun}s are looked for")
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
    """Has a model in use from here on, without history."""
    if loaded is None or loaded is self._loaded:
      return
    self._loaded = loaded
    self._acting.use(loaded)
    logging.info("Loaded %s (step %d).", loaded.path, loaded.global_step)

  def _swap_if_loaded(self) -> None:
    """Uses what a thread has loaded, if it is done."""
    if self._loading is not None and self._loading.is_done:
      self._finish_loading()

  def _finish_loading(self) -> None:
    """Waits for the thread, and uses what it has loaded."""
    if self._loading is not None:
      loading, self._loading = self._loading, None
      self._use(loading.result()[0])

  def _load_first(self, candidates: Mapping[str, Callable[[], LoadedPolicy]]) -> Any:
    """Loads the first of several models that can be loaded, by their paths."""
    for path, load in candidates.items():
      try:
        return load()
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
    """Says what a path is of, for people."""
    del path
    return "folder"

  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """See the base class.

    Raises:
      SpecError: features are missing, have another shape or dtype, NaN or infinity;
        all are named.
    """
    return self._model("predict").predict(features)

  def predict_records(
    self, serialized: Sequence[bytes] | Mapping[str, Sequence[bytes]]
  ) -> dict[str, np.ndarray]:
    """Predicts from serialized records, parsed inside the export.

    Args:
      serialized: B records, as the model was trained on; of a model of several
        datasets, B records of each by its `dataset_key`.
    Returns:
      The model's outputs by name, `[B, ...]`.
    Raises:
      SpecError: there are records of other datasets than the model asks for.
    """
    return self._model("predict_records").predict_records(serialized)

  def step(
    self, features: Any, is_first: Any = None, timestamp: Any = None
  ) -> dict[str, np.ndarray]:
    """See the base class.

    Raises:
      SpecError: features are missing, have another shape or dtype, NaN or infinity, or
        not one entry per environment; all are named. Or the timestamp is no number. No
        step is taken: the state stays unchanged.
    """
    if self._loading is not None and is_first is not None and np.all(is_first):
      self._swap_if_loaded()
    self._model("step")
    return self._acting.step(features, is_first, timestamp)

  def reset(self, num_envs: int = 1) -> None:
    """See the base class; SpecError if `num_envs` is not an integer >= 1."""
    self._swap_if_loaded()
    self._acting.reset(num_envs)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes the model's random numbers repeatable from the next step on."""
    self._acting.seed(seed, env)

  def inspect(self, features: Any, is_first: Any = None) -> Inspection:
    """Shows the inputs of the network at such a `step`; no step is taken.

    Args:
      features: as for `step`.
      is_first: as for `step`.
    Returns:
      The windows, the results of preprocessing, and the outputs of the network.
    """
    self._model("inspect")
    return self._acting.inspect(features, is_first)

  def adapt(self, features: Any, env: int = 0) -> None:
    """Learns a task in an environment, until `reset` or a newer model.

    Args:
      features: numpy, as in `get_adaptation_specification`, of one task: without an
        axis of environments.
      env: the number of the environment.
    Raises:
      SpecError: the model learns no tasks, or the features do not fit.
    """
    self._model("adapt").signature("adapt")
    rows = specs.map_leaves(lambda value: np.asarray(value)[np.newaxis], features)
    self._acting.adapt(rows, env)

  def get_adaptation_specification(self) -> specs.TensorSpecStruct:
    """Returns the features of `adapt`, of one task: [samples, ...]."""
    return self._model("adapt").adaptation_spec

  @property
  def pure(self) -> LoadedPolicy:
    """The model in use as functions, whose state the caller keeps.

    Many callers can share it. It stays the same when `restore` finds a newer model.

    Raises:
      NoModelError: there is no model.
    """
    return self._model("pure")

  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns the stored feature specs: stacked, without the batch axis."""
    return self._model().feature_spec

  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns what `step` takes: single frames, without the axis of environments."""
    return self._model("step").step_specification()

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    """Returns the label specs."""
    return self._model().label_spec

  def get_policy_record(self) -> PolicyRecord | None:
    """Returns the description of the policy."""
    return self._model().record

  @property
  def control_period(self) -> float | None:
    """See the base class."""
    return None if self._loaded is None else self._loaded.control_period

  def close(self) -> None:
    """Lets go of the model; `restore` loads one again."""
    if self._loading is not None:
      self._finish_loading()
    self._loaded = None

  def assert_is_loaded(self) -> None:
    """Checks that there is a model to predict with; waits for one that is loading.

    Raises:
      NoModelError: no model has been restored yet.
    """
    self._model()

  @property
  def model_version(self) -> int:
    """The version of the model in use.

    Raises:
      NoModelError: there is none.
    """
    return self._model().version

  @property
  def global_step(self) -> int:
    """The training step of the model in use; -1 before there is one."""
    return -1 if self._loaded is None else self._loaded.global_step

  @property
  def model_path(self) -> str:
    """The folder of the model in use.

    Raises:
      NoModelError: there is none.
    """
    return self._model().path

  def _model(self, operation: str = "predictor") -> LoadedPolicy:
    """Returns the model in use."""
    if self._loaded is None:
      self._finish_loading()
    if self._loaded is None:
      raise NoModelError(
        f"{operation}: no model is loaded from {self._place}. Call restore() "
        f"first; its result says whether it found one."
      )
    return self._loaded


class _Loading:
  """A model that is being loaded in a thread."""

  def __init__(self, load: Callable[[], tuple[LoadedPolicy | None, bool]]) -> None:
    self._load = load
    self._result: tuple[LoadedPolicy | None, bool] = (None, False)
    self._error: Exception | None = None
    # A daemon: a wait for a first model must not hold up the end of the process.
    self._thread = threading.Thread(target=self._run, name="restore", daemon=True)
    self._thread.start()

  @property
  def is_done(self) -> bool:
    """Whether `result` returns at once."""
    return not self._thread.is_alive()

  def result(self) -> tuple[LoadedPolicy | None, bool]:
    """Waits for the thread; returns, or raises, what it did."""
    self._thread.join()
    if self._error is not None:
      raise self._error
    return self._result

  def _run(self) -> None:
    try:
      self._result = self._load()
    except Exception as error:  # For whoever asks for the result.
      self._error = error


@gin.configurable
class ExportedSavedModelPredictor(LoadingPredictor):
  """Predicts with the newest export of a folder; needs no model code.

  Nothing is loaded before `restore`. A restored predictor starts without history, and
  so does one that found a newer export: restore between episodes.
  """

  def __init__(
    self,
    export_dir: str = gin.REQUIRED,
    timeout: float = 600.0,
    poll_interval: float = 1.0,
    restore_model_option: RestoreOptions = RestoreOptions.DO_NOT_RESTORE,
    allow_nan: bool = False,
  ) -> None:
    """Creates a predictor, by default without a model.

    Args:
      export_dir: holds one folder per version, or is itself one export.
      timeout: how long `restore` waits for a first export, seconds; 0 looks once.
      poll_interval: seconds between two looks.
      restore_model_option: whether to restore now, and in which thread, see
        `RestoreOptions`.
      allow_nan: accepts features with NaN or infinity, which are otherwise an error.
    """
    super().__init__(
      str(export_dir), timeout, poll_interval, restore_model_option, allow_nan
    )

  def _find_newest(
    self, current: LoadedPolicy | None
  ) -> tuple[LoadedPolicy | None, bool]:
    oldest_first, unfinished = scan_exports(self._place)
    for path, missing in unfinished.items():
      self._log_once(
        logging.WARNING, path, f"is no export: {', '.join(missing)} is missing"
      )
    newest_first = oldest_first[::-1]
    own = next((e for e in newest_first if current and e.path == current.path), None)
    newer = newest_first[: newest_first.index(own)] if own else newest_first
    found = self._load_first(
      {
        export.path: functools.partial(LoadedExport, export, self._allow_nan)
        for export in newer
      }
    )
    found = found or current
    if not newest_first:
      return found, True
    return found, found is not None and found.path == newest_first[0].path


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

  def _joined(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
      name: self._aggregate(np.stack([each[name] for each in outputs])).astype(
        first.dtype
      )
      if first.dtype.kind == "f"
      else first
      for name, first in outputs[0].items()
    }
