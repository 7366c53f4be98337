"""The functions of an exported policy, as signatures of a SavedModel."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.lite.lite_policy import OBSERVE, PLAN, PREFIX, REPLAN
from t2r_seq.lite.policy_io import Prefix
from t2r_seq.policies.policy_model import PolicyModel, PolicyRecord
from t2r_seq.policies.policy_step import (
  GIVEN_EACH_STEP,
  RECURRENT,
  STATE,
  PolicyStep,
  history_cut,
)
from t2r_seq.policies.timed_history import time_specs
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.specs.assets import EXTRA_ASSETS_DIRECTORY
from t2r_seq.specs.extended_tensor_spec import frame_spec
from t2r_seq.specs.structures import filter_required_flat_tensor_spec, signature_key
from t2r_seq.windows.cut import has_seconds, mask_paths, time_span

_no_autograph = tf.autograph.experimental.do_not_convert

_Outputs = dict[str, tf.Tensor]
IS_FIRST, ENVS = "is_first", "envs"
# A step with vectors in place of texts.
EMBEDDED_STEP = "embedded_step"
# Prefixes of the names in the signature `inspect`, which exports on disk have.
SEEN, INPUT, OUTPUT = "seen", "input", "output"


def exported_feature_specs(model: PolicyModel) -> TensorSpecStruct:
  """Returns the raw features of a model's policy, by path.

  They are the required in specs of its preprocessor in mode 'infer'.

  Raises:
    SpecError: a feature has a time offset above 0, or a path becomes the same argument
      of a signature as another path, or as one of the step's own.
  """
  in_spec = model.preprocessor.get_in_feature_specification(ModeKeys.INFER)
  flat = _required_specs(in_spec)
  mismatches = []
  by_key: dict[str, str] = {}
  times = time_specs(flat)
  for path, spec in flat.items():
    if time_span({path: spec})[1] > 0:
      expected, got = "time offsets of at most 0 to export", str(spec.time_offsets)
      hint = "A policy cannot see the future: make it a label."
      mismatches.append(errors.Mismatch(path, expected, got, hint))
    key = signature_key(path)
    if path in times:
      expected = f"another path: '{path}' is the time of a step"
      mismatches.append(errors.Mismatch(path, expected, f"'{path}'", "Rename it."))
    if key in (IS_FIRST, ENVS, *PREFIX) or key.startswith(f"{STATE}_"):
      expected = f"another path: '{key}' is an argument of the policy's step"
      mismatches.append(errors.Mismatch(path, expected, f"'{path}'", "Rename it."))
    other = by_key.setdefault(key, path)
    if other != path:
      expected = "a unique argument name in the export"
      mismatches.append(errors.Mismatch(path, expected, f"'{key}', that of {other}"))
  if mismatches:
    raise errors.mismatch_error("export", mismatches)
  return flat


def stored_feature_specs(model: PolicyModel) -> TensorSpecStruct:
  """Returns the feature specs that an export stores.

  They are `exported_feature_specs`, and those of a separate `step_model` as optional.
  """
  stored = exported_feature_specs(model)
  if model.step_model is not model:
    for path, spec in exported_feature_specs(model.step_model).items():
      stored[path] = ExtendedTensorSpec.from_spec(spec, is_optional=True)
  return stored


def _required_specs(in_spec: specs.SpecStructure) -> TensorSpecStruct:
  given = specs.flatten_spec_structure(in_spec)
  flat = filter_required_flat_tensor_spec(given)
  # A policy is given frames, also where the data are whole videos.
  return specs.map_leaves(
    lambda spec: frame_spec(ExtendedTensorSpec.to_spec(spec)), flat
  )


def records_arguments(dataset_keys: Collection[str]) -> dict[str, str]:
  """Returns the arguments of 'parse_tf_example' by dataset key."""
  if len(dataset_keys) == 1:
    return dict.fromkeys(dataset_keys, "examples")
  return {key: signature_key(f"examples/{key}") for key in dataset_keys}


class PolicyFunctions:
  """The signatures of an exported policy: a state goes in, and the next one comes out.

  Attributes:
    module: holds variables only, so that the export loads without the model's code.
  """

  def __init__(self, model: PolicyModel) -> None:
    """Creates the functions of a built model.

    Raises:
      SpecError: see `exported_feature_specs` and `PolicyStep`.
    """
    self._model = model
    self._specs = exported_feature_specs(model)
    self._keys = {path: signature_key(path) for path in self._specs}
    self._windowed = [
      path
      for path, spec in self._specs.items()
      if spec.time_offsets not in GIVEN_EACH_STEP
    ]
    self._masks = mask_paths(self._specs)
    self._step = PolicyStep(model, exported_feature_specs(model.step_model))
    self.module = tf.Module()
    self.module.model_variables = list(model.variables)

  @property
  def record(self) -> PolicyRecord:
    """The record of the policy, with the layout of its state."""
    state = self._step.leaves if self._step.exists else None
    return dataclasses.replace(PolicyRecord.of(self._model), state=state)

  def signatures(self) -> dict[str, Any]:
    """Returns the signatures by name, which are traced when they are saved.

    'serving_default' takes batches of whole windows, 'parse_tf_example' serialized
    records, if they can hold all features. 'step' maps observations and a state to
    outputs and the next state; 'initial_state' returns a first state, 'inspect' the
    inputs and outputs of the network at a step, and 'adapt' a state that has learned a
    task, if the model can. If it executes chunks, 'observe' and 'plan' are the halves
    of an overlapped step; 'replan' also continues a prefix, if the model can. Models
    of sequences without a recurrent state have no step.
    """
    signatures = {"serving_default": self._serving()}
    if self._is_parseable():
      signatures["parse_tf_example"] = self._parse()
    if not self._step.exists:
      logging.info("The export has no 'step': the model takes sequences.")
      return signatures
    signatures |= {
      "step": self._function(self._take_step, self._step_inputs()),
      "inspect": self._function(self._inspect, self._step_inputs()),
      "initial_state": self._initial_state(),
    }
    if self._step.overlaps:
      inputs = self._step_inputs()
      signatures[OBSERVE] = self._function(self._observe, inputs)
      signatures[PLAN] = self._function(self._plan, inputs)
      if self._model.prefix_mode is not None:
        continued = {**inputs, **self._step.prefix_spec}
        # One environment: LiteRT cannot compute gradients of unknown shapes.
        for name, spec in continued.items():
          continued[name] = tf.TensorSpec([1, *spec.shape[1:]], spec.dtype, spec.name)
        signatures[REPLAN] = self._function(self._plan, continued)
    if self._model.get_adaptation_specification() is not None:
      signatures["adapt"] = self._adapt()
    return signatures

  def _is_parseable(self) -> bool:
    flat = windows.flat_specs(self._specs)
    unnamed = [path for path, spec in flat.items() if not spec.name]
    unsized = [path for path, s in flat.items() if not s.shape.is_fully_defined()]
    has_sequences = any(spec.is_sequence for spec in self._specs.values())
    stacked_sequences = has_sequences and len(self._windowed) > 0
    by_time = has_seconds(self._specs)  # A record lacks the stamps.
    if not (unnamed or unsized or stacked_sequences or by_time):
      return True
    logging.info(
      "The export has no 'parse_tf_example': paths without a name %s, of unknown size "
      "%s, sequences of stacks: %s, time offsets in seconds: %s.",
      unnamed,
      unsized,
      stacked_sequences,
      by_time,
    )
    return False

  def _serving(self) -> Any:
    signature = [
      tf.TensorSpec(
        [None, *([None] if spec.is_sequence else []), *spec.shape],
        spec.dtype,
        self._keys[path],
      )
      for path, spec in self._specs.items()
    ]

    # With AutoGraph: models of users may have Python control flow on tensors.
    @tf.function(input_signature=signature)
    def serving_default(*tensors: tf.Tensor) -> _Outputs:
      features = TensorSpecStruct(zip(self._specs, tensors, strict=True))
      return self._model.export_outputs(features)

    return serving_default

  def _take_step(self, inputs: Mapping[str, tf.Tensor]) -> _Outputs:
    state = self._step.unpack(inputs)
    outputs, state = self._step(inputs, inputs[IS_FIRST], state)
    return {**outputs, **self._step.pack(state)}

  def _observe(self, inputs: Mapping[str, tf.Tensor]) -> _Outputs:
    state = self._step.unpack(inputs)
    return self._step.pack(self._step.observe(inputs, inputs[IS_FIRST], state))

  def _plan(self, inputs: Mapping[str, tf.Tensor]) -> _Outputs:
    state, prefix = self._step.unpack(inputs), None
    if PREFIX[0] in inputs:
      prefix = Prefix(*(inputs[name] for name in PREFIX))
    return self._step.plan(inputs, inputs[IS_FIRST], state, prefix)

  def _inspect(self, inputs: Mapping[str, tf.Tensor]) -> _Outputs:
    state = self._step.unpack(inputs)
    inspected = self._step.inspect(inputs, inputs[IS_FIRST], state)
    return {
      signature_key(f"{kind}/{path}"): value
      for kind, values in zip((SEEN, INPUT, OUTPUT), inspected, strict=True)
      for path, value in values.items()
    }

  def _step_inputs(self) -> dict[str, tf.TensorSpec]:
    inputs = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype, signature_key(path))
      for path, spec in self._step.observation_spec.items()
    }
    inputs[IS_FIRST] = tf.TensorSpec([None], tf.bool, IS_FIRST)
    return {**inputs, **self._step.packed_spec}

  def _function(
    self,
    fn: Callable[[dict[str, tf.Tensor]], _Outputs],
    inputs: Mapping[str, tf.TensorSpec],
    autograph: bool = False,
  ) -> Any:
    """Converts a function of a dictionary to one with named arguments.

    The result is no concrete function: with distributed variables none can be saved.
    """

    @tf.function(input_signature=list(inputs.values()), autograph=autograph)
    def function(*tensors: tf.Tensor) -> _Outputs:
      return fn(dict(zip(inputs, tensors, strict=True)))

    return function

  def _initial_state(self) -> Any:
    @tf.function(input_signature=[_numbers("seeds")], autograph=False)
    def initial_state(seeds: tf.Tensor) -> _Outputs:
      return self._step.pack(self._step.initial_state(seeds))

    return initial_state

  def _adapt(self) -> Any:
    flat = _required_specs(self._model.get_adaptation_specification())
    inputs = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype, signature_key(path))
      for path, spec in flat.items()
    }

    def adapt(given: dict[str, tf.Tensor]) -> _Outputs:
      features = TensorSpecStruct((path, given[path]) for path in flat)
      learned = specs.flatten_spec_structure(self._model.adapt(features))
      state = self._step.unpack(given)
      for path, value in learned.items():
        key = f"{RECURRENT}/{path}"
        state[key] = tf.tensor_scatter_nd_update(
          state[key], given[ENVS][:, tf.newaxis], value
        )
      return self._step.pack(state)

    arguments = {**inputs, ENVS: _numbers(ENVS), **self._step.packed_spec}
    return self._function(adapt, arguments, autograph=True)

  def _parse(self) -> Any:
    flat = specs.add_sequence_length_specs(windows.flat_specs(self._specs))
    parse = records.create_parse_tf_example_fn(flat)

    datasets = sorted({spec.dataset_key for spec in self._specs.values()})
    names = records_arguments(datasets).values()
    signature = [tf.TensorSpec([None], tf.string, name) for name in names]

    @tf.function(input_signature=signature)
    def parse_tf_example(*examples: tf.Tensor) -> _Outputs:
      records_of = dict(zip(datasets, examples, strict=True))
      features = parse(records_of if len(datasets) > 1 else examples[0])
      if len(self._windowed):
        features = self._windows_at_last_step(features)
      return self._model.export_outputs(features)

    return parse_tf_example

  @_no_autograph
  def _windows_at_last_step(self, features: TensorSpecStruct) -> TensorSpecStruct:
    """Maps [B, T, ...] to the windows [B, K, ...] whose anchors end the records."""
    cut = history_cut(self._model)
    length_path = f"{self._windowed[0]}_length"

    def read(row: TensorSpecStruct) -> TensorSpecStruct:
      length = row[length_path]
      episode = TensorSpecStruct(
        (path, row[path][:length] if path in self._windowed else row[path])
        for path in self._specs
        if path not in self._masks
      )
      return windows.gather_windows(episode, length - 1, self._specs, cut)

    signature = TensorSpecStruct(
      (path, tf.TensorSpec(spec.shape, spec.dtype))
      for path, spec in self._specs.items()
    )
    return tf.map_fn(read, features, fn_output_signature=signature)


def _numbers(name: str) -> tf.TensorSpec:
  return tf.TensorSpec([None], tf.int32, name)


WARMUP_REQUESTS = "tf_serving_warmup_requests"
_SIGNATURES = ("serving_default", "step")
_MODEL_NAME = "policy"


def write_warmup_requests(
  export_path: str, signatures: Mapping[str, Any], batch_sizes: Sequence[int] = (1,)
) -> None:
  """Writes requests of zeros, with which TensorFlow Serving warms up a model.

  The file is a TFRecord of `tensorflow.serving.PredictionLog`.

  Args:
    export_path: the folder of a SavedModel.
    signatures: functions with an `input_signature`, by name. Only 'serving_default' and
      'step', also of each robot, get requests.
    batch_sizes: batch sizes of the requests to each.
  """
  extra = os.path.join(export_path, EXTRA_ASSETS_DIRECTORY)
  tf.io.gfile.makedirs(extra)
  with tf.io.TFRecordWriter(os.path.join(extra, WARMUP_REQUESTS)) as writer:
    for name in signatures:
      is_warmed = name.rpartition("/")[2] in _SIGNATURES
      for size in batch_sizes if is_warmed else ():
        writer.write(_prediction_log(name, signatures[name].input_signature, size))


def _prediction_log(signature: str, inputs: Any, batch_size: int) -> bytes:
  """Encodes a request with the field numbers of TensorFlow Serving's protos."""
  model_spec = _field(1, _MODEL_NAME.encode()) + _field(3, signature.encode())
  request = _field(1, model_spec)
  for spec in inputs:
    shape = [1 if size is None else size for size in spec.shape]
    shape[:1] = [batch_size]
    empty = b"" if spec.dtype == tf.string else np.zeros([], spec.dtype.as_numpy_dtype)
    # A single value is broadcast.
    tensor = tf.make_tensor_proto(empty, spec.dtype, shape).SerializeToString()
    request += _field(2, _field(1, spec.name.encode()) + _field(2, tensor))
  predict_log = _field(1, request)
  return _field(6, predict_log)


def _field(number: int, data: bytes) -> bytes:
  return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
  encoded = b""
  while value > 0x7F:
    encoded += bytes([value & 0x7F | 0x80])
    value >>= 7
  return encoded + bytes([value])
