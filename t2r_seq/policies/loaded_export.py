"""Exports on disk, and loaded policies: signatures that are called by path."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import saved_model_pb2

from t2r_seq import errors, specs
from t2r_seq.lite.policy_io import Inspection, PolicyState
from t2r_seq.policies.policy_module import (
  INPUT,
  IS_FIRST,
  SAID,
  SEEN,
  STATE,
  state_key,
)
from t2r_seq.policies.policy_record import PolicyRecord
from t2r_seq.policies.policy_step import SEED, new_seeds
from t2r_seq.specs.assets import EXTRA_ASSETS_DIRECTORY, T2R_ASSETS_FILENAME


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
_ASSETS = f"{EXTRA_ASSETS_DIRECTORY}/{T2R_ASSETS_FILENAME}"
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


_NO_STEP = {
  "step": "Models that take sequences are exported without it: call predict.",
  "stateless_step": "Export the model again: older exports have none.",
  "initial_state": "Export the model again: older exports have none.",
  "inspect_step": "Export the model again: older exports have none.",
  "seed": "Its outputs are no random ones.",
  "adapt": "The model learns no tasks: see meta_learning.",
  "stateless_adapt": "The model learns no tasks: see meta_learning.",
}


class LoadedPolicy:
  """Signatures of a policy and the specs that they were made from.

  The signatures name their inputs by `specs.signature_key(path)`; everything here is by
  path.
  """

  def __init__(
    self,
    path: str,
    version: int,
    global_step: int,
    feature_spec: specs.TensorSpecStruct,
    label_spec: specs.TensorSpecStruct | None,
    signatures: Mapping[str, Any],
    record: PolicyRecord | None = None,
  ) -> None:
    """Compares signatures with specs.

    Args:
      path: where the policy was loaded from.
      version: higher is newer.
      global_step: that it was trained to.
      feature_spec: raw features by path.
      label_spec: the labels.
      signatures: concrete functions by name.
      record: what the policy tells of itself; None of older exports.
    Raises:
      SpecError: the signatures don't fit the specs.
    """
    self.path = path
    self.version = version
    self.global_step = global_step
    self.feature_spec = feature_spec
    self.label_spec = label_spec
    self.record = record
    self._signatures = dict(signatures)
    self._positional = {
      name: [
        spec.name for spec in tf.nest.flatten(signature.structured_input_signature[0])
      ]
      for name, signature in signatures.items()
    }
    self.predict_spec = self._signature_spec("serving_default", feature_spec)
    self.step_spec = self._signature_spec("step", _frame_specs(feature_spec))
    self.exact_step = ExactFeatures(self.step_spec)
    self._predict_inputs = _inputs(self.predict_spec)
    self._step_inputs = _inputs(self.step_spec)
    self.state_spec = self._state_spec()

  @property
  def is_seeded(self) -> bool:
    """Whether the policy draws random numbers."""
    return "seed" in self._signatures

  def signature(self, name: str) -> Any:
    """Returns a signature's function; SpecError where there is none."""
    self._check(name)
    return self._signatures[name]

  def predict(self, features: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Calls the model on stacked windows `[B, ...]` by path."""
    return self._call("serving_default", _keyed(features, self._predict_inputs))

  def predict_records(self, serialized: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Calls the model on serialized records, by the argument's name."""
    taken = {
      name: tf.constant(values, tf.string) for name, values in serialized.items()
    }
    return self._call("parse_tf_example", taken)

  def record_arguments(self) -> list[str]:
    """Returns the names of the arguments that take serialized records."""
    return sorted(_arguments(self.signature("parse_tf_example")))

  def step(
    self, features: Mapping[str, Any], is_first: np.ndarray | tf.Tensor
  ) -> dict[str, np.ndarray]:
    """Calls the model on single observations `[N, ...]` by path."""
    inputs = _keyed(features, self._step_inputs)
    inputs[IS_FIRST] = tf.convert_to_tensor(is_first, tf.bool)
    return self._call("step", inputs)

  def stateless_step(
    self,
    features: Mapping[str, Any],
    is_first: np.ndarray | tf.Tensor,
    state: Mapping[str, Any],
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """Calls the model on single observations and a state, `[N, ...]` by path."""
    inputs = self._with_state(features, is_first, state)
    return self._split(self._call("stateless_step", inputs))

  def inspect_step(
    self,
    features: Mapping[str, Any],
    is_first: np.ndarray | tf.Tensor,
    state: Mapping[str, Any],
  ) -> Inspection:
    """Tells what the network is given at such a step of `stateless_step`."""
    told = self._call("inspect_step", self._with_state(features, is_first, state))
    seen, inputs, said = (
      {
        key.removeprefix(f"{kind}_"): value
        for key, value in told.items()
        if key.startswith(f"{kind}_")
      }
      for kind in (SEEN, INPUT, SAID)
    )
    paths = {specs.signature_key(path): path for path in self.feature_spec}
    seen = {paths.get(key, key): value for key, value in seen.items()}
    return Inspection(seen, inputs, said)

  def _with_state(
    self,
    features: Mapping[str, Any],
    is_first: np.ndarray | tf.Tensor,
    state: Mapping[str, Any],
  ) -> dict[str, tf.Tensor]:
    inputs = _keyed(features, self._step_inputs)
    inputs[IS_FIRST] = tf.convert_to_tensor(is_first, tf.bool)
    for path, spec in self.state_spec.items():
      inputs[state_key(path)] = tf.constant(state[path], spec.dtype)
    return inputs

  def initial_state(self, num_envs: int) -> PolicyState:
    """Returns the state before a first step."""
    inputs = {"num_slots": tf.constant(num_envs, tf.int32)}
    return self._split(self._call("initial_state", inputs))[1]

  def set_seeds(self, state: PolicyState, seeds: Sequence[int]) -> None:
    """Seeds a state, one environment after the other."""
    state[SEED] = new_seeds(_as_int32(seeds)).numpy()

  def reset(self, num_envs: int) -> None:
    """Forgets everything."""
    if "reset" in self._signatures:
      self._call("reset", {"num_slots": tf.constant(num_envs, tf.int32)})

  def seed(self, seeds: Mapping[int, int]) -> None:
    """Seeds environments, by their numbers."""
    slots = tf.constant(list(seeds), tf.int32)
    values = tf.constant(_as_int32([*seeds.values()]))
    self._call("seed", {"slots": slots, "seeds": values})

  @property
  def adaptation_spec(self) -> specs.TensorSpecStruct:
    """What `adapt` takes, by path; nothing where the model does not adapt."""
    return self._signature_spec("stateless_adapt", self.feature_spec)

  def adapt(self, features: Mapping[str, Any], slots: Sequence[int]) -> None:
    """Has environments learn tasks, `[N, ...]` by path."""
    inputs = _keyed(features, _inputs(self.adaptation_spec))
    self._call("adapt", {**inputs, "slots": tf.constant(list(slots), tf.int32)})

  def stateless_adapt(
    self, features: Mapping[str, Any], state: Mapping[str, Any]
  ) -> PolicyState:
    """Returns a state that has learned tasks, `[N, ...]` by path."""
    inputs = _keyed(features, _inputs(self.adaptation_spec))
    learned = self._call("stateless_adapt", inputs)
    keys = {state_key(path): path for path in self.state_spec}
    return PolicyState(
      {**state, **{keys[key]: value for key, value in learned.items()}}, self.path
    )

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
    inputs = set(_arguments(self._signatures[signature]))
    taken = specs.TensorSpecStruct()
    for path, spec in declared.items():
      if specs.signature_key(path) in inputs:
        taken[path] = spec
    unknown = inputs - {specs.signature_key(path) for path in taken} - {IS_FIRST}
    if unknown:
      raise errors.SpecError(
        f"load export: {self.path}: the signature '{signature}' takes "
        f"{errors.listing(unknown)}, which the stored specs lack. Export it again."
      )
    return taken

  def _state_spec(self) -> specs.TensorSpecStruct:
    """Returns what the stateless step remembers, by path."""
    state = specs.TensorSpecStruct()
    if "stateless_step" not in self._signatures:
      return state
    # Names of arguments have no slashes: the paths below the branches are those of the
    # specs, which a client need not tell apart.
    taken = _arguments(self._signatures["stateless_step"])
    for key, spec in sorted(taken.items()):
      if key.startswith(f"{STATE}_"):
        path = key.removeprefix(f"{STATE}_")
        state[path] = specs.ExtendedTensorSpec(spec.shape[1:], spec.dtype, path)
    return state

  def _split(
    self, outputs: dict[str, np.ndarray]
  ) -> tuple[dict[str, np.ndarray], PolicyState]:
    """Tells the state from the outputs."""
    keys = {state_key(path): path for path in self.state_spec}
    state = {path: outputs.pop(key) for key, path in keys.items()}
    return outputs, PolicyState(state, self.path)

  def _check(self, signature: str) -> None:
    if signature not in self._signatures:
      hint = _NO_STEP.get(signature, "")
      raise errors.SpecError(
        f"predict: {self.path} has no signature '{signature}', only "
        f"{errors.listing(self._signatures)}. {hint}".rstrip()
      )

  def _call(self, signature: str, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Calls a signature and returns numpy."""
    call, names = self.signature(signature), self._positional[signature]
    # By name, functions that are not from a SavedModel are found to fit only after
    # TensorFlow has written a message with all values in it.
    outputs = call(*map(inputs.get, names)) if names else call(**inputs)
    return {name: value.numpy() for name, value in sorted(outputs.items())}


class LoadedExport(LoadedPolicy):
  """A loaded SavedModel and the specs that lie beside it.

  Only the SavedModel's signatures are called, so no model code is needed.
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
    feature_spec = specs.TensorSpecStruct.from_proto(assets.feature_spec)
    label_spec = specs.TensorSpecStruct.from_proto(assets.label_spec)
    try:
      self._model = tf.saved_model.load(export.path)
    except Exception:
      _read_saved_model(export.path)
      raise
    super().__init__(
      export.path,
      export.version,
      int(assets.global_step),
      feature_spec,
      label_spec,
      self._model.signatures,
      PolicyRecord.load(export.path),
    )


def _arguments(signature: Any) -> dict[str, tf.TensorSpec]:
  """Returns what a signature takes, by name."""
  args, kwargs = signature.structured_input_signature
  return {**{spec.name: spec for spec in tf.nest.flatten(args)}, **kwargs}


def _as_int32(seeds: Sequence[int]) -> np.ndarray:
  """Wraps seeds of any size."""
  return (np.array(list(seeds), object) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def read_signatures(
  path: str,
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
  """Reads what the signatures of an export take and give, without its graph.

  Args:
    path: the folder of one export.
  Returns:
    By the signature's name (what it takes, what it gives): by name (shape with None for
    open sizes, dtype).
  Raises:
    SpecError: saved_model.pb is damaged.
  """
  proto = _read_saved_model(path)
  return {
    name: (_described(signature.inputs), _described(signature.outputs))
    for name, signature in proto.meta_graphs[0].signature_def.items()
    if not name.startswith("__")
  }


def _described(tensors: Mapping[str, Any]) -> dict[str, tuple[list[int | None], str]]:
  return {
    name: (
      tf.TensorShape(tensor.tensor_shape).as_list(), tf.as_dtype(tensor.dtype).name
    )
    for name, tensor in tensors.items()
  }  # fmt: skip


def _read_saved_model(path: str) -> Any:
  """Reads the graph; tells a damaged one from anything else that is wrong with a model.

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
  return proto


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
