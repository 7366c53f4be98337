"""Predictors: what turns features into a model's outputs; exported SavedModels."""

from __future__ import annotations

import abc
import dataclasses
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf import message
from tensorflow.core.protobuf import saved_model_pb2

from t2r_seq import errors, specs


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
  def step(self, features: Any, is_first: Any = None) -> dict[str, np.ndarray]:
    """Predicts from one observation per environment and the history before it.

    Args:
      features: numpy, hierarchical or by path, one frame an environment,
        `[N, *frame_shape]`.
      is_first: bool `[N]`; True where an episode starts, which forgets that
        environment's history. None: True at the first step after `reset`.
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
  def restore(self) -> bool:
    """Loads the newest model there is.

    Returns:
      Whether the newest model is the one in use now.
    """

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
  def model_version(self) -> int:
    """The version of the model in use."""
    return 0

  @property
  def global_step(self) -> int:
    """The training step of the model in use."""
    return 0

  @property
  def model_path(self) -> str:
    """The path of the model in use."""
    return ""


class ExactFeatures:
  """Recognises arrays by path of exactly the shapes and dtypes that specs ask for.

  The full check of a structure costs 0.1 ms, a sixth of a small policy's step. What it
  would accept in nearly every step is known beforehand; anything else, another nesting
  or a tensor, is left to the full check, which also has the errors.
  """

  def __init__(self, spec: specs.TensorSpecStruct) -> None:
    """Prepares the check.

    Args:
      spec: by path, without the axis of environments.
    """
    # Strings and open shapes have no one array type to compare with.
    self._is_exact = all(
      leaf.shape.is_fully_defined() and np.dtype(leaf.dtype.as_numpy_dtype) != object
      for leaf in spec.values()
    )
    self._leaves = [
      (path, np.dtype(leaf.dtype.as_numpy_dtype), tuple(leaf.shape.as_list()))
      for path, leaf in spec.items()
      if self._is_exact
    ]

  def take(self, features: Any, num_envs: int) -> dict[str, np.ndarray] | None:
    """Returns the features by path, or None where they have to be looked at closely.

    Args:
      features: what a user gives.
      num_envs: size of the first axis.
    """
    if not self._is_exact or not isinstance(features, Mapping):
      return None
    taken = {}
    for path, dtype, shape in self._leaves:
      value = features.get(path)
      if (
        type(value) is not np.ndarray
        or value.dtype != dtype
        or value.shape != (num_envs, *shape)
      ):
        return None
      taken[path] = value
    return taken


SAVED_MODEL = "saved_model.pb"
_ASSETS = f"{specs.EXTRA_ASSETS_DIRECTORY}/{specs.T2R_ASSETS_FILENAME}"
_FILES = (SAVED_MODEL, _ASSETS)


@dataclasses.dataclass(frozen=True, order=True)
class Export:
  """One finished export.

  Attributes:
    version: the number that its folder is named by; higher is newer.
    path: the folder.
  """

  version: int
  path: str


def list_exports(export_dir: str) -> list[Export]:
  """Finds the finished exports of a folder.

  Exporters write to a temporary folder and rename it, so anything whose name is not a
  number, or that lacks the model or its specs, is not an export (yet).

  Args:
    export_dir: holds one folder per version; or is itself one export.
  Returns:
    The exports, oldest first. The version of a lone export whose folder isn't named by
    a number is 0.
  """
  return scan_exports(export_dir)[0]


def scan_exports(export_dir: str) -> tuple[list[Export], dict[str, list[str]]]:
  """Finds the finished exports of a folder, and what looks like one but is not.

  Args:
    export_dir: as in `list_exports`.
  Returns:
    The exports, oldest first; and by folder the files that are missing in it, of each
    version, and of `export_dir` itself where that has some of them.
  """
  # Not normpath: it would spoil the two slashes of a URL.
  export_dir = export_dir.rstrip("/") or "/"
  own = missing_files(export_dir)
  if not own:
    name = os.path.basename(export_dir)
    return [Export(int(name) if name.isdecimal() else 0, export_dir)], {}
  unfinished = {export_dir: own} if len(own) < len(_FILES) else {}
  if not tf.io.gfile.isdir(export_dir):
    return [], unfinished
  exports = []
  for name in sorted(tf.io.gfile.listdir(export_dir)):
    path = os.path.join(export_dir, name.rstrip("/"))
    if not name.rstrip("/").isdecimal():
      continue
    if missing := missing_files(path):
      unfinished[path] = missing
    else:
      exports.append(Export(int(name.rstrip("/")), path))
  return sorted(exports), unfinished


def assets_path(export_path: str) -> str:
  """Returns where an export keeps its specs."""
  return os.path.join(export_path, _ASSETS)


def missing_files(path: str) -> list[str]:
  """Returns which of the files that hold the model and its specs a folder lacks."""
  return [file for file in _FILES if not tf.io.gfile.exists(os.path.join(path, file))]


_IS_FIRST = "is_first"
_RECORDS = "examples"


class LoadedExport:
  """A loaded SavedModel and the specs that lie beside it.

  Only the SavedModel's signatures are called, so no model code is needed. They name
  their inputs by `specs.signature_key(path)`; everything here is by path.
  """

  def __init__(self, export: Export) -> None:
    """Loads the export.

    Args:
      export: a finished export.
    Raises:
      SpecError: it has no specs, its signatures don't fit them, or its saved_model.pb
        is damaged.
      Exception: whatever TensorFlow raises for a broken SavedModel.
    """
    assets = specs.load_t2r_assets_to_file(assets_path(export.path))
    self.export = export
    self.global_step = int(assets.global_step)
    self.feature_spec = specs.TensorSpecStruct.from_proto(assets.feature_spec)
    self.label_spec = specs.TensorSpecStruct.from_proto(assets.label_spec)
    try:
      self._model = tf.saved_model.load(export.path)
    except Exception:
      _check_saved_model(export.path)
      raise
    self._signatures = dict(self._model.signatures)
    self.predict_spec = self._signature_spec("serving_default", self.feature_spec)
    self.step_spec = self._signature_spec("step", _frame_specs(self.feature_spec))
    self.exact_step = ExactFeatures(self.step_spec)
    self._predict_inputs = _inputs(self.predict_spec)
    self._step_inputs = _inputs(self.step_spec)

  def predict(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Calls the model on stacked windows `[B, ...]` by path."""
    return self._call("serving_default", _keyed(features, self._predict_inputs))

  def predict_records(self, serialized: list[bytes]) -> dict[str, np.ndarray]:
    """Calls the model on serialized records."""
    return self._call(
      "parse_tf_example", {_RECORDS: tf.constant(serialized, tf.string)}
    )

  def step(
    self, features: Mapping[str, Any], is_first: np.ndarray | tf.Tensor
  ) -> dict[str, np.ndarray]:
    """Calls the model on single observations `[N, ...]` by path."""
    inputs = _keyed(features, self._step_inputs)
    inputs[_IS_FIRST] = tf.convert_to_tensor(is_first, tf.bool)
    return self._call("step", inputs)

  def reset(self, num_envs: int) -> None:
    """Forgets all history."""
    if "reset" in self._signatures:
      self._call("reset", {"num_slots": tf.constant(num_envs, tf.int32)})

  def last_window(self) -> dict[str, np.ndarray]:
    """Returns the windows `[N, ...]`, by path, that the last step saw."""
    windows = self._call("last_window", {})
    paths = {specs.signature_key(path): path for path in self.feature_spec}
    return {paths.get(key, key): value for key, value in windows.items()}

  def _signature_spec(
    self, signature: str, declared: Mapping[str, specs.ExtendedTensorSpec]
  ) -> specs.TensorSpecStruct:
    """Returns the declared specs that a signature takes: optional ones it may not."""
    if signature not in self._signatures:
      return specs.TensorSpecStruct()
    inputs = set(self._signatures[signature].structured_input_signature[1])
    taken = specs.TensorSpecStruct()
    for path, spec in declared.items():
      if specs.signature_key(path) in inputs:
        taken[path] = spec
    unknown = inputs - {specs.signature_key(path) for path in taken} - {_IS_FIRST}
    if unknown:
      raise errors.SpecError(
        f"load export: {self.export.path}: the signature '{signature}' takes "
        f"{errors.listing(unknown)}, which the stored specs lack. Export it again."
      )
    return taken

  def _call(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Calls a signature and returns numpy."""
    if signature not in self._signatures:
      hint = ""
      if signature == "step":
        hint = " Models that take sequences are exported without it: call predict."
      raise errors.SpecError(
        f"predict: {self.export.path} has no signature '{signature}', only "
        f"{errors.listing(self._signatures)}.{hint}"
      )
    outputs = self._signatures[signature](**inputs)
    return {name: value.numpy() for name, value in sorted(outputs.items())}


def _check_saved_model(path: str) -> None:
  """Tells a damaged graph from anything else that keeps a model from loading.

  Raises:
    SpecError: saved_model.pb is no SavedModel.
  """
  file = os.path.join(path, SAVED_MODEL)
  with tf.io.gfile.GFile(file, "rb") as f:
    data = f.read()
  proto = saved_model_pb2.SavedModel()
  try:
    proto.ParseFromString(data)
    reason = "" if proto.meta_graphs else "it holds no graph"
  except message.DecodeError as error:
    reason = f"it cannot be parsed, {error}"
  if reason:
    raise errors.SpecError(
      f"load export: {path}: {SAVED_MODEL} is damaged: {reason} ({len(data)} "
      "bytes). Copy or export it again."
    )


def _frame_specs(feature_spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the specs of what arrives once per step: no stack, no sequence axis."""
  frames = specs.TensorSpecStruct()
  for path, spec in feature_spec.items():
    frames[path] = specs.ExtendedTensorSpec.from_spec(
      spec, shape=spec.frame_shape, is_sequence=False, time_offsets=None
    )
  return frames


def _inputs(taken: specs.TensorSpecStruct) -> list[tuple[str, str, tf.DType]]:
  """Returns path, argument and dtype of what a signature takes."""
  return [(path, specs.signature_key(path), spec.dtype) for path, spec in taken.items()]


def _keyed(
  features: Mapping[str, Any], inputs: Iterable[tuple[str, str, tf.DType]]
) -> dict[str, tf.Tensor]:
  """Returns a signature's inputs."""
  return {key: tf.constant(features[path], dtype) for path, key, dtype in inputs}


_MAX_SHOWN = 400


@gin.configurable
class ExportedSavedModelPredictor(AbstractPredictor):
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
    self._loaded: LoadedExport | None = None
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
    oldest_first, unfinished = scan_exports(self._export_dir)
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
        self._loaded = LoadedExport(export)
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

  def _model(self, operation: str = "predictor") -> LoadedExport:
    """Returns the export in use."""
    if self._loaded is None:
      raise NoModelError(
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
