"""Loaded policies: the signatures of an export, called with arrays by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

from t2r_seq import errors, specs
from t2r_seq.lite import policy_io
from t2r_seq.lite.lite_policy import OBSERVE, PLAN, PREFIX, REPLAN
from t2r_seq.lite.policy_io import Inspection, PolicyState
from t2r_seq.lite.sensor_values import push_values
from t2r_seq.policies.policy_model import PolicyRecord
from t2r_seq.policies.policy_module import (
  ENVS,
  INPUT,
  IS_FIRST,
  OUTPUT,
  SEEN,
  records_arguments,
)
from t2r_seq.policies.timed_history import time_specs
from t2r_seq.specs.assets import (
  Export,
  assets_path,
  create_t2r_assets,
  load_t2r_assets_to_file,
  of_robot,
  read_signatures,
)
from t2r_seq.specs.structures import signature_key

_HINTS = {
  "adapt": "The model learns no tasks: see meta_learning.",
  **dict.fromkeys(
    ("step", "initial_state", "inspect"),
    "Models that take sequences are exported without it: call predict.",
  ),
}


class LoadedPolicy(policy_io.PurePolicy):
  """A policy as functions of numpy arrays by path: a `PurePolicy`.

  Observations are checked against the specs. The tensors of a state are not: they stay
  on their device.
  """

  def __init__(
    self,
    path: str,
    version: int,
    global_step: int,
    feature_spec: specs.TensorSpecStruct,
    label_spec: specs.TensorSpecStruct | None,
    signatures: Mapping[str, Any],
    record: PolicyRecord,
    allow_nan: bool = False,
  ) -> None:
    """Creates the policy from `signatures`: concrete functions by name.

    Raises:
      SpecError: a signature takes an argument that the specs lack.
    """
    self.path = path
    self.version = version
    self.global_step = global_step
    self.feature_spec = feature_spec
    self.label_spec = label_spec
    self.record = record
    self.control_period = record.control_period
    self._allow_nan = allow_nan
    self._signatures = dict(signatures)
    self._calls = {name: _Call(function) for name, function in signatures.items()}
    self._leaves = record.state or {}
    self._arguments = {leaf.argument for leaf in self._leaves.values()}
    self._predict_spec = self._signature_spec("serving_default", feature_spec)
    frames, times = _frame_specs(feature_spec), time_specs(feature_spec)
    frames.update(times)
    self._step_spec = self._signature_spec("step", frames)
    self.time_paths = [path for path in self._step_spec if path in times]
    self._observed = specs.TensorSpecStruct(
      (path, spec) for path, spec in self._step_spec.items() if path not in times
    )
    self._step_keys = _inputs(self._observed)
    self._observation = _ExactFeatures(self._observed)
    self._predict_keys = _inputs(self._predict_spec)
    self._windows = _ExactFeatures(self._predict_spec)
    # Cached tensors of one bool for all environments: making one costs 6 us per step.
    self._starts: dict[tuple[int, bool], tf.Tensor] = {}

  def step_specification(self) -> specs.TensorSpecStruct:
    """Returns an observation's specs by path; SpecError if the policy has no step."""
    self.signature("step")
    return self._step_spec

  @property
  def adaptation_spec(self) -> specs.TensorSpecStruct:
    """The specs of a task for `adapt`, by path; empty if the model does not adapt."""
    return self._signature_spec("adapt", self.feature_spec)

  def signature(self, name: str) -> Any:
    """Returns a signature's function.

    Raises:
      SpecError: there is no such signature.
    """
    if name not in self._signatures:
      raise errors.SpecError(
        f"predict: {self.path} has no signature '{name}', only "
        f"{errors.listing(self._signatures)}. {_HINTS.get(name, '')}".rstrip()
      )
    return self._signatures[name]

  @property
  def signatures(self) -> list[str]:
    """The names of the signatures."""
    return [*self._signatures]

  def describe(self) -> dict[str, Any]:
    """Returns 'model' (its path), 'record' and 'specs' of the policy, for JSON."""
    assets = create_t2r_assets(self.feature_spec)
    return {
      "model": self.path,
      "record": self.record.to_fields(),
      "specs": text_format.MessageToString(assets),
    }

  def predict(self, features: Any) -> dict[str, np.ndarray]:
    """Predicts from whole windows, [B, ...]; see `AbstractPredictor.predict`."""
    flat: Any = self._windows.take(features)
    if flat is None:
      flat = _validate("predict", self._predict_spec, features)
      _check_batch("predict", flat)
    self._check_finite("predict", flat)
    return _to_numpy(self._call("serving_default", _feed(flat, self._predict_keys)))

  def predict_records(
    self, serialized: Sequence[bytes] | Mapping[str, Sequence[bytes]]
  ) -> dict[str, np.ndarray]:
    """Predicts from serialized records; see `predict_records` of predictors."""
    names = _arguments(self.signature("parse_tf_example"))
    given = _by_argument(serialized, sorted(names))
    inputs = {name: tf.constant(values, tf.string) for name, values in given.items()}
    return _to_numpy(self._call("parse_tf_example", inputs))

  def initial_state(self, seeds: Sequence[int] = (0,)) -> PolicyState:
    inputs = {"seeds": tf.constant([*map(policy_io.as_int32, seeds)], tf.int32)}
    return self._state(self._call("initial_state", inputs))

  def step(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    timestamp: Any = None,
    stamps: Mapping[str, Any] | None = None,
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    observation = policy_io.with_times(observation, timestamp, stamps)
    outputs = self._call("step", self._step_inputs(observation, state, is_first))
    new = self._state(outputs)
    return _to_numpy(outputs), new

  def observe(
    self, observation: Any, state: PolicyState, is_first: Any = False
  ) -> PolicyState:
    if OBSERVE not in self._signatures:
      raise self._lacks(OBSERVE)
    inputs = self._step_inputs(observation, state, is_first)
    return self._state(self._call(OBSERVE, inputs))

  def plan(
    self,
    observation: Any,
    state: PolicyState,
    is_first: Any = False,
    prefix: policy_io.Prefix | None = None,
  ) -> dict[str, np.ndarray]:
    name = PLAN if prefix is None else REPLAN
    if name not in self._signatures:
      raise self._lacks(name)
    inputs = self._step_inputs(observation, state, is_first)
    if prefix is not None:
      spec = _arguments(self.signature(name))[PREFIX[0]]
      prefix = policy_io.check_prefix(prefix, spec.shape.as_list())
      inputs |= dict(zip(PREFIX, map(tf.constant, prefix), strict=True))
    return _to_numpy(self._call(name, inputs))

  def inspect(
    self, observation: Any, state: PolicyState, is_first: Any = False
  ) -> Inspection:
    """Returns inputs and outputs of the network at this step; takes no step."""
    inputs = self._step_inputs(observation, state, is_first)
    inspected = _to_numpy(self._call("inspect", inputs))
    seen, network_inputs, outputs = (
      {
        key.removeprefix(f"{kind}_"): value
        for key, value in inspected.items()
        if key.startswith(f"{kind}_")
      }
      for kind in (SEEN, INPUT, OUTPUT)
    )
    paths = {signature_key(path): path for path in self.feature_spec}
    seen = {paths.get(key, key): value for key, value in seen.items()}
    return Inspection(seen, network_inputs, outputs)

  def adapt(
    self, features: Any, state: PolicyState, envs: Sequence[int] | None = None
  ) -> PolicyState:
    """Returns a state of N environments, K of which have learned tasks.

    Args:
      features: numpy by path, of K tasks, [K, samples, ...].
      state: state of N environments.
      envs: the numbers of the K environments; None for all.
    Raises:
      SpecError: the model learns no tasks, or the arguments do not fit.
    """
    self.signature("adapt")
    policy_io.check_state(state, self.path)
    spec = self.adaptation_spec
    flat = _validate("adapt", spec, features)
    num_tasks = _num_rows(state) if envs is None else len(envs)
    _check_batch("adapt", flat, num_tasks)
    self._check_finite("adapt", flat, has_envs=True)
    numbers = list(range(num_tasks) if envs is None else envs)
    inputs = {**_feed(flat, _inputs(spec)), ENVS: tf.constant(numbers, tf.int32)}
    return self._state(self._call("adapt", {**inputs, **_tensors(state)}))

  def _step_inputs(
    self, observation: Any, state: PolicyState, is_first: Any
  ) -> dict[str, Any]:
    self.signature("step")
    policy_io.check_state(state, self.path)
    num_envs = _num_rows(state)
    observation, state = push_values(
      observation, state, self._step_spec, self.time_paths, is_first, self._allow_nan
    )
    flat: Any = self._observation.take(observation, num_envs)
    if flat is None:
      flat = _validate("step", self._observed, observation)
      _check_batch("step", flat, num_envs)
    self._check_finite("step", flat, has_envs=True)
    inputs = {key: tf.constant(flat[p], dtype) for p, key, dtype in self._step_keys}
    if self.time_paths:
      times = policy_io.take_times(observation, self.time_paths, num_envs)
      inputs |= {signature_key(p): tf.constant(t) for p, t in times.items()}
    starts = policy_io.check_is_first(is_first, num_envs)
    if isinstance(starts, bool):
      key = (num_envs, starts)
      if key not in self._starts:
        self._starts[key] = tf.fill([num_envs], starts)
      inputs[IS_FIRST] = self._starts[key]
    else:
      inputs[IS_FIRST] = tf.constant(starts)
    inputs.update(_tensors(state))
    return inputs

  def _check_finite(
    self, operation: str, features: Any, has_envs: bool = False
  ) -> None:
    if not self._allow_nan:
      policy_io.check_finite(operation, features, has_envs)

  def _state(self, outputs: dict[str, tf.Tensor]) -> PolicyState:
    """Removes the state from the outputs of a signature, and returns it."""
    tensors = {name: outputs.pop(name) for name in self._arguments}
    return PolicyState(tensors, self._leaves, self.path)

  def _signature_spec(
    self, signature: str, declared: Mapping[str, specs.ExtendedTensorSpec]
  ) -> specs.TensorSpecStruct:
    """Returns the declared specs that a signature takes."""
    taken = specs.TensorSpecStruct()
    if signature not in self._signatures:
      return taken
    inputs = set(_arguments(self._signatures[signature]))
    for path, spec in declared.items():
      if signature_key(path) in inputs:
        taken[path] = spec
    unknown = inputs - {signature_key(path) for path in taken}
    unknown -= {IS_FIRST, ENVS, *self._arguments}
    if unknown:
      raise errors.SpecError(
        f"load export: {self.path}: the signature '{signature}' takes "
        f"{errors.listing(unknown)}, which the stored specs lack. Export it again."
      )
    return taken

  def _call(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    self.signature(signature)  # Raises if it is missing.
    return self._calls[signature](inputs)


class _Call:
  """Calls a signature with tensors by argument.

  A `ConcreteFunction` binds and casts its arguments in Python, 160 us for eight. On a
  host without accelerators the op that runs the function is called directly.
  """

  def __init__(self, function: Any) -> None:
    self._function = function
    self._is_direct = len(tf.config.list_logical_devices()) == 1
    args, kwargs = function.structured_input_signature
    self._positional = [spec.name for spec in tf.nest.flatten(args)]
    self._names = self._positional + sorted(kwargs)
    self._captured = list(function.captured_inputs)
    self._outputs = sorted(function.structured_outputs)
    self._dtypes = [tensor.dtype for tensor in function.outputs]

  def __call__(self, inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    if not self._is_direct:
      positional = [inputs[name] for name in self._positional]
      named = {} if positional else inputs
      return dict(self._function(*positional, **named))
    values = tf.raw_ops.StatefulPartitionedCall(
      args=[*(inputs[name] for name in self._names), *self._captured],
      Tout=self._dtypes,
      f=self._function,
    )
    return dict(zip(self._outputs, values, strict=True))


class LoadedExport(LoadedPolicy):
  """A loaded SavedModel and its specs; no model code is needed."""

  def __init__(
    self, export: Export, allow_nan: bool = False, robot: str | None = None
  ) -> None:
    """Loads the export.

    Args:
      export: a finished export.
      allow_nan: accepts features with NaN or infinity.
      robot: robot to act for, if the export has several; see `choose_robot`.
    Raises:
      UnknownRobotError: the export has no such robot, or several and none is named.
      SpecError: the specs or the record are missing or damaged, saved_model.pb is
        damaged, or a signature takes an argument that the specs lack.
      Exception: any error of TensorFlow for a broken SavedModel.
    """
    self.robot = choose_robot(export.path, robot)
    arguments = _policy_arguments(export, self.robot)
    try:
      self._model = tf.saved_model.load(export.path)
    except Exception:
      read_signatures(export.path)
      raise
    signatures = of_robot(self._model.signatures, self.robot)
    super().__init__(**arguments, signatures=signatures, allow_nan=allow_nan)


def _policy_arguments(export: Export, robot: str | None) -> dict[str, Any]:
  """Reads the files beside a SavedModel, of one robot."""
  assets = load_t2r_assets_to_file(assets_path(export.path, robot))
  return {
    "path": export.path,
    "version": export.version,
    "global_step": int(assets.global_step),
    "feature_spec": specs.TensorSpecStruct.from_proto(assets.feature_spec),
    "label_spec": specs.TensorSpecStruct.from_proto(assets.label_spec),
    "record": PolicyRecord.load(export.path, robot),
  }


def load_policy(
  export: Export, model: Any, robot: str, allow_nan: bool = False
) -> LoadedPolicy:
  """Returns the policy of a robot of a loaded SavedModel."""
  signatures = of_robot(model.signatures, robot)
  arguments = _policy_arguments(export, robot)
  return LoadedPolicy(**arguments, signatures=signatures, allow_nan=allow_nan)


class UnknownRobotError(errors.SpecError):
  """Raised if an export has no such robot, or has several and none was named."""


def choose_robot(path: str, robot: str | None) -> str | None:
  """Returns the robot to act for: the only one, if no name is given.

  Args:
    path: path of an export.
    robot: name of the robot; None if the export has at most one.
  Returns:
    The name; None if the export names no robots.
  Raises:
    UnknownRobotError: there is no such robot, or there are several and `robot` is None.
    SpecError: the export's record is missing or damaged.
  """
  robots = PolicyRecord.load(path).robots or {}
  if robot is None and len(robots) < 2:
    return next(iter(robots), None)
  if robot not in robots:
    expected = f"one of {errors.listing(robots)}" if robots else "None for this export"
    raise UnknownRobotError(
      f"load export: {path}: robot: expected {expected}, got {robot!r}."
      f"{errors.nearest(str(robot), robots)}"
    )
  return robot


class _ExactFeatures:
  """Accepts arrays by path with exactly the shapes and dtypes of specs.

  The full check of a structure costs 0.1 ms, a sixth of a small policy's step; it is
  only needed for other observations, and for the error.
  """

  def __init__(self, spec: specs.TensorSpecStruct) -> None:
    # Strings and open shapes need the full check.
    self._is_exact = all(
      leaf.shape.is_fully_defined() and np.dtype(leaf.dtype.as_numpy_dtype) != object
      for leaf in spec.values()
    )
    self._leaves = [
      (path, np.dtype(leaf.dtype.as_numpy_dtype), tuple(leaf.shape.as_list()))
      for path, leaf in spec.items()
      if self._is_exact
    ]

  def take(
    self, features: Any, batch_size: int | None = None
  ) -> dict[str, np.ndarray] | None:
    """Returns the features by path; None if they need the full check."""
    if not self._is_exact or not isinstance(features, Mapping):
      return None
    exact = {}
    for path, dtype, shape in self._leaves:
      value = features.get(path)
      if type(value) is not np.ndarray or value.dtype != dtype or not value.ndim:
        return None
      if batch_size is None:
        batch_size = len(value)
      if value.shape != (batch_size, *shape):
        return None
      exact[path] = value
    return exact


def _arguments(signature: Any) -> dict[str, tf.TensorSpec]:
  args, kwargs = signature.structured_input_signature
  return {**{spec.name: spec for spec in tf.nest.flatten(args)}, **kwargs}


def _frame_specs(feature_spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the specs of single frames: no stack, no sequence axis."""
  frames = specs.TensorSpecStruct()
  for path, spec in feature_spec.items():
    frames[path] = specs.ExtendedTensorSpec.from_spec(
      spec, shape=spec.frame_shape, is_sequence=False, time_offsets=None
    )
  return frames


def _inputs(signature: specs.TensorSpecStruct) -> list[tuple[str, str, tf.DType]]:
  """Returns path, argument and dtype of a signature's inputs."""
  return [(path, signature_key(path), spec.dtype) for path, spec in signature.items()]


def _feed(
  features: Mapping[str, Any], inputs: Iterable[tuple[str, str, tf.DType]]
) -> dict[str, tf.Tensor]:
  return {key: tf.constant(features[path], dtype) for path, key, dtype in inputs}


def _tensors(state: PolicyState) -> dict[str, Any]:
  """Returns the arguments of a state; arrays become tensors."""
  return {
    name: tf.constant(value) if isinstance(value, np.ndarray) else value
    for name, value in state.tensors.items()
  }


def _num_rows(state: PolicyState) -> int:
  return int(next(iter(state.tensors.values())).shape[0])


def _to_numpy(outputs: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
  return {name: value.numpy() for name, value in sorted(outputs.items())}


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
  """Checks that all features have `num_envs` entries; for None, equally many."""
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
  """Returns records by argument; SpecError unless they are for `names`."""
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


Arrays = dict[str, np.ndarray]
_FEATURES, _LABELS = "condition/features/", "condition/labels/"
_INFERENCE = "inference/features/"
# Samples of a task if the model takes any number of them.
_SAMPLES = 8


class OneTask:
  """Predicts an episode with a meta-learned model that is adapted to it.

  The samples of the task are evenly spaced windows of the same episode.

  Attributes:
    feature_spec: the raw features of a step, by path.
    label_spec: the labels of the samples, by path.
    is_searched: whether the model scores candidate actions. Recorded episodes have
      none, so `predict` returns {}.
  """

  def __init__(
    self,
    adaptation_spec: Mapping[str, specs.ExtendedTensorSpec],
    feature_spec: Mapping[str, specs.ExtendedTensorSpec],
    time_offsets: Mapping[str, Any] | None = None,
  ) -> None:
    """Reads the specs of an export.

    Args:
      adaptation_spec: result of `get_adaptation_specification`.
      feature_spec: result of `get_feature_specification`: the features of tasks, and
        those of a step.
      time_offsets: time offsets of stacks, by path of `adaptation_spec`; default: 0.
    Raises:
      SpecError: a sample is a sequence, or each sample has a separate path.
    """
    mismatches = []
    for path, spec in adaptation_spec.items():
      name = path.removeprefix(_FEATURES)
      if not spec.shape[1:].is_fully_defined():
        mismatches.append(
          errors.Mismatch(path, "samples of one window each", "sequences")
        )
      elif path.startswith(_FEATURES) and name not in feature_spec:
        mismatches.append(
          errors.Mismatch(path, "all samples together", "numbered ones")
        )
    if mismatches:
      raise errors.mismatch_error("learn a task of an episode", mismatches)
    self._spec = adaptation_spec
    self.feature_spec = specs.TensorSpecStruct(
      # An export marks features of a step as optional.
      (name, specs.ExtendedTensorSpec.from_spec(feature_spec[name], is_optional=False))
      for path in adaptation_spec
      for name in [path.removeprefix(_FEATURES)]
      if path.startswith(_FEATURES)
    )
    self.is_searched = any(
      adaptation_spec[_FEATURES + path].shape[1:] != inferred.shape[1:]
      for path in self.feature_spec
      if (inferred := feature_spec.get(_INFERENCE + path)) is not None
    )
    self.label_spec = specs.TensorSpecStruct()
    for path, spec in adaptation_spec.items():
      if path.startswith(_LABELS):
        label = path.removeprefix(_LABELS)
        self.label_spec[label] = specs.ExtendedTensorSpec.from_spec(
          spec,
          shape=spec.shape[1:],
          name=(spec.name or label).removeprefix("condition_labels/"),
          time_offsets=(time_offsets or {}).get(path, 0),
        )

  @classmethod
  def of(cls, predictor: Any) -> OneTask | None:
    """Returns the task of a predictor's model; None if the model learns no tasks."""
    spec = predictor.get_adaptation_specification()
    if not spec:
      return None
    record = predictor.get_policy_record()
    offsets = None if record is None else record.adaptation_offsets
    return cls(spec, predictor.get_feature_specification(), offsets)

  def condition(
    self, features: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]
  ) -> Arrays:
    """Returns the samples of a task, [1, samples, ...], from windows, [n, ...]."""
    condition = {}
    for path, spec in self._spec.items():
      source = labels if path.startswith(_LABELS) else features
      values = source[path.removeprefix(_LABELS).removeprefix(_FEATURES)]
      rows = np.linspace(0, len(values) - 1, spec.shape[0] or _SAMPLES).astype(int)
      condition[path] = values[rows][np.newaxis]
    return condition

  def predict(
    self,
    predict: Callable[[Any], Arrays],
    condition: Mapping[str, np.ndarray],
    features: Mapping[str, np.ndarray],
  ) -> Arrays:
    """Returns a model's outputs for windows in the task, [n, ...]; {} if `is_searched`.

    Args:
      predict: maps features to outputs, as `AbstractPredictor.predict`.
      condition: samples of the task, from `condition`.
      features: windows by path, [n, ...].
    """
    if self.is_searched:
      return {}
    count = len(next(iter(features.values())))
    inputs = {f"{_INFERENCE}{p}": features[p][np.newaxis] for p in self.feature_spec}
    outputs = predict({**condition, **inputs})
    return {
      name: value[0] for name, value in outputs.items() if value.shape[:2] == (1, count)
    }
