"""Predictors: what turns features into a model's outputs; exported SavedModels."""

from __future__ import annotations

import abc
import enum
import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.lite import policy_io
from t2r_seq.lite.policy_io import Inspection, PolicyState, RateWatch
from t2r_seq.policies.loaded_export import (
  LoadedExport,
  LoadedPolicy,
  scan_exports,
)
from t2r_seq.policies.policy_module import records_arguments
from t2r_seq.policies.policy_record import PolicyRecord


class NoModelError(ValueError):
  """A prediction was asked for, and no model has been loaded."""


class AbstractPredictor(abc.ABC):
  """Loads a model and predicts with it, whatever form the model has on disk.

  As in Tensor2Robot, with `step`, `reset` and `last_window` for models that look at
  more than one step: the predictor is then handed one observation at a time, and the
  frames that the model stacks are kept on its side.
  """

  @abc.abstractmethod
  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Predicts from stacked features.

    Args:
      features: numpy, hierarchical or by path, batched, `[B, ...]`.
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
        `[N, *frame_shape]`.
      is_first: bool `[N]`; True where an episode starts, which forgets that
        environment's history. None: True at the first step after `reset`.
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

  @abc.abstractmethod
  def last_window(self) -> dict[str, np.ndarray]:
    """Returns the stacked features, by path, that the last `step` saw."""

  def initial_state(
    self, num_envs: int = 1, seeds: Sequence[int] | None = None
  ) -> PolicyState:
    """Returns what a policy remembers before a first step, for `stateless_step`.

    Args:
      num_envs: how many environments.
      seeds: of what the model draws, one an environment; by default 0, 1, ...
    """
    raise NotImplementedError(f"{type(self).__name__} has no initial_state.")

  def stateless_step(
    self, features: Any, state: PolicyState, is_first: Any = None
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """Does what `step` does, with a state that the caller keeps.

    Many callers can share one predictor, each with a state of its own.

    Args:
      features: as for `step`.
      state: of `initial_state`, or of the step before.
      is_first: bool `[N]`; True where an episode starts, as at a first step. None:
        nowhere else.
    Returns:
      (the model's outputs by name, `[N, ...]`; the next state).
    """
    raise NotImplementedError(f"{type(self).__name__} has no stateless_step.")

  def inspect_step(
    self, features: Any, state: PolicyState, is_first: Any = None
  ) -> Inspection:
    """Tells what the network is given at such a step of `stateless_step`."""
    raise NotImplementedError(f"{type(self).__name__} has no inspect_step.")

  def get_policy_record(self) -> PolicyRecord | None:
    """Returns what the policy tells of itself, if it does."""
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
    self._num_envs = 1
    # What was logged already: `restore` looks at the same folders again and again.
    self._logged: set[tuple[str, str]] = set()
    # True until the first step after a reset or a restore: no history to build on.
    self._is_fresh = True
    self._all_envs: dict[bool, tf.Tensor] = {}
    # Of environments, to be handed to the model before its next step.
    self._seeds: dict[int, int] = {}
    self._watch = RateWatch(None)
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
    self._watch = RateWatch(self.control_period)
    self.reset(self._num_envs)
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
    """Predicts from stacked features.

    Args:
      features: numpy, hierarchical or by path, batched, `[B, ...]`, as in
        `get_feature_specification`.
    Returns:
      The model's outputs by name, `[B, ...]`.
    Raises:
      SpecError: features are missing, have another shape or dtype, NaN or infinity;
        all are named.
    """
    loaded = self._model("predict")
    flat = _validate("predict", loaded.predict_spec, features)
    _check_batch("predict", flat)
    self._check_finite("predict", flat)
    return loaded.predict(flat)

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
    loaded = self._model("predict_records")
    return loaded.predict_records(_by_argument(serialized, loaded.record_arguments()))

  def step(
    self, features: Any, is_first: Any = None, timestamp: Any = None
  ) -> dict[str, np.ndarray]:
    """Predicts from one observation per environment and the history before it.

    Args:
      features: numpy, hierarchical or by path, `[N, *frame_shape]`, as in
        `get_step_specification`.
      is_first: bool `[N]`, or one bool for all; True where an episode starts. None:
        True at the first step after `reset`, False afterwards.
      timestamp: see the base class.
    Returns:
      The model's outputs by name, `[N, ...]`.
    Raises:
      SpecError: features are missing, have another shape or dtype, NaN or infinity, or
        not one entry per environment; all are named. Or the timestamp is no number. No
        step is taken: what the policy remembers stays as it was.
    """
    if self._loading is not None and is_first is not None and np.all(is_first):
      self._swap_if_loaded()
    loaded = self._model("step")
    flat = self._checked(loaded, features, self._num_envs)
    starts = self._starts(is_first)
    if timestamp is not None:
      self._watch.see(timestamp, np.asarray(starts))
    if self._seeds and loaded.is_seeded:
      loaded.seed(self._seeds)
      self._seeds = {}
    outputs = loaded.step(flat, starts)
    self._is_fresh = False
    return outputs

  def _checked(self, loaded: LoadedPolicy, features: Any, num_envs: int) -> Any:
    """Returns the features of a step by path."""
    flat: Any = loaded.exact_step.take(features, num_envs)
    if flat is None:
      flat = _validate("step", loaded.step_spec, features)
      _check_batch("step", flat, num_envs)
    self._check_finite("step", flat, has_envs=True)
    return flat

  def _check_finite(
    self, operation: str, features: Any, has_envs: bool = False
  ) -> None:
    if not self._allow_nan:
      policy_io.check_finite(operation, features, has_envs)

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
    self._swap_if_loaded()
    self._num_envs = int(num_envs)
    self._is_fresh = True
    self._all_envs = _flags(self._num_envs)
    self._seeds = {env: s for env, s in self._seeds.items() if env < self._num_envs}
    if self._loaded is not None:
      self._loaded.reset(self._num_envs)

  def seed(self, seed: int, env: int = 0) -> None:
    """Makes what the model draws in an environment repeatable from the next step on."""
    self._seeds[env] = seed

  def initial_state(
    self, num_envs: int = 1, seeds: Sequence[int] | None = None
  ) -> PolicyState:
    """See the base class.

    Raises:
      SpecError: the model's export has no stateless step, or there is not one seed for
        each environment.
    """
    loaded = self._model("initial_state")
    state = loaded.initial_state(num_envs)
    if seeds is not None and loaded.is_seeded:
      if len(seeds) != num_envs:
        raise errors.SpecError(
          f"initial_state: seeds: expected {num_envs}, one per environment, got "
          f"{len(seeds)}."
        )
      loaded.set_seeds(state, seeds)
    return state

  def stateless_step(
    self, features: Any, state: PolicyState, is_first: Any = None
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """See the base class.

    Raises:
      SpecError: features or state do not fit, or the state is of another model.
    """
    loaded = self._model("stateless_step")
    return loaded.stateless_step(*self._with_state(loaded, features, state, is_first))

  def inspect_step(
    self, features: Any, state: PolicyState, is_first: Any = None
  ) -> Inspection:
    """Tells what the network is given at a step, from inside of the export.

    Args:
      features: as for `stateless_step`.
      state: as for `stateless_step`; it stays as it is.
      is_first: as for `stateless_step`.
    Returns:
      The windows, what preprocessing made of them, and what the network said.
    Raises:
      SpecError: features or state do not fit, or the export is an older one.
    """
    loaded = self._model("inspect_step")
    return loaded.inspect_step(*self._with_state(loaded, features, state, is_first))

  def _with_state(
    self, loaded: LoadedPolicy, features: Any, state: PolicyState, is_first: Any
  ) -> tuple[Any, np.ndarray, Any]:
    """Returns the checked arguments of a step whose state the caller keeps."""
    if getattr(state, "model_path", loaded.path) != loaded.path:
      raise errors.SpecError(
        f"stateless_step: state: expected one of the model {loaded.path}, got one of "
        f"{state.model_path}. Begin an episode with initial_state()."
      )
    flat_state = _validate("stateless_step: state", loaded.state_spec, state)
    num_envs = next(iter(flat_state.values())).shape[0]
    _check_batch("stateless_step: state", flat_state, num_envs)
    flat = self._checked(loaded, features, num_envs)
    starts = np.asarray(False if is_first is None else is_first, bool)
    if starts.shape not in ((), (num_envs,)):
      raise errors.SpecError(
        f"stateless_step: is_first: expected ({num_envs},) bool, one per environment, "
        f"got {errors.describe(starts)}."
      )
    return flat, np.broadcast_to(starts, [num_envs]), flat_state

  def adapt(self, features: Any, env: int = 0) -> None:
    """Has an environment learn a task, and keep it until `reset` or a newer model.

    Args:
      features: numpy, as `get_adaptation_specification` says, of one task: without an
        axis of environments.
      env: the number of the environment.
    Raises:
      SpecError: the model learns no tasks, or the features do not fit.
    """
    loaded = self._model("adapt")
    given = specs.map_leaves(lambda value: np.asarray(value)[np.newaxis], features)
    flat = self._of_tasks(loaded, "adapt", given)
    if not 0 <= env < self._num_envs:
      raise errors.SpecError(
        f"adapt: env: expected one of {self._num_envs}, got {env}. Call "
        "reset(num_envs) first."
      )
    loaded.adapt(flat, [env])

  def stateless_adapt(self, features: Any, state: PolicyState) -> PolicyState:
    """Returns a state that has learned tasks, one in each environment.

    Args:
      features: numpy, as `get_adaptation_specification` says, `[N, ...]`.
      state: as `initial_state` and `stateless_step` give it.
    Raises:
      SpecError: the model learns no tasks, or the features do not fit.
    """
    loaded = self._model("stateless_adapt")
    return loaded.stateless_adapt(
      self._of_tasks(loaded, "stateless_adapt", features), state
    )

  def get_adaptation_specification(self) -> specs.TensorSpecStruct:
    """Returns what `adapt` takes of one task: [samples, ...]."""
    return self._model("adapt").adaptation_spec

  def _of_tasks(
    self, loaded: LoadedPolicy, operation: str, features: Any
  ) -> specs.TensorSpecStruct:
    loaded.signature(operation)  # Says so where there is none.
    flat = _validate(operation, loaded.adaptation_spec, features)
    self._check_finite(operation, flat, has_envs=True)
    return flat

  def last_window(self) -> dict[str, np.ndarray]:
    """Returns the stacked features `[N, ...]`, by path, that the last `step` saw."""
    return self._model("last_window").last_window()

  def get_feature_specification(self) -> specs.TensorSpecStruct:
    """Returns the stored feature specs: stacked, without the batch axis."""
    return self._model().feature_spec

  def get_step_specification(self) -> specs.TensorSpecStruct:
    """Returns what `step` takes: single frames, without the axis of environments."""
    return self._model("step").step_spec

  def get_state_specification(self) -> specs.TensorSpecStruct:
    """Returns what `stateless_step` remembers, without the axis of environments."""
    return self._model("stateless_step").state_spec

  def get_label_specification(self) -> specs.TensorSpecStruct | None:
    """Returns the label specs."""
    return self._model().label_spec

  def get_policy_record(self) -> PolicyRecord | None:
    """Returns what the policy tells of itself; None of an older export."""
    return self._model().record

  @property
  def control_period(self) -> float | None:
    """See the base class."""
    record = None if self._loaded is None else self._loaded.record
    return None if record is None else record.control_period

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
      {export.path: functools.partial(LoadedExport, export) for export in newer}
    )
    found = found or current
    if not newest_first:
      return found, True
    return found, found is not None and found.path == newest_first[0].path


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


def _by_argument(
  serialized: Sequence[bytes] | Mapping[str, Sequence[bytes]], names: Sequence[str]
) -> dict[str, list[bytes]]:
  """Returns records by the names of the arguments that take them."""
  if not isinstance(serialized, Mapping):
    serialized = {"": serialized}
  given_names = records_arguments(serialized)
  given = {given_names[key]: list(each) for key, each in serialized.items()}
  if set(given) != set(names):
    raise errors.SpecError(
      f"predict_records: serialized: expected records for {errors.listing(names)}, got "
      f"them for {errors.listing(given)}. Records of several datasets are a dictionary "
      "by dataset_key."
    )
  return given
