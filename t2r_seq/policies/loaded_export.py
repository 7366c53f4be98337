"""An export in memory: its specs, and its signatures called by path."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import saved_model_pb2

from t2r_seq import errors, specs
from t2r_seq.policies import exact_features, exports

_IS_FIRST = "is_first"
_RECORDS = "examples"


class LoadedExport:
  """A loaded SavedModel and the specs that lie beside it.

  Only the SavedModel's signatures are called, so no model code is needed. They name
  their inputs by `specs.signature_key(path)`; everything here is by path.
  """

  def __init__(self, export: exports.Export) -> None:
    """Loads the export.

    Args:
      export: a finished export.
    Raises:
      SpecError: it has no specs, its signatures don't fit them, or its saved_model.pb
        is damaged.
      Exception: whatever TensorFlow raises for a broken SavedModel.
    """
    assets = specs.load_t2r_assets_to_file(exports.assets_path(export.path))
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
    self.exact_step = exact_features.ExactFeatures(self.step_spec)
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
  file = os.path.join(path, exports.SAVED_MODEL)
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
      f"load export: {path}: {exports.SAVED_MODEL} is damaged: {reason} ({len(data)} "
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
