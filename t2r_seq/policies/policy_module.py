"""What is exported: a model's functions as signatures, and the state they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.policies.policy_model import PolicyModel
from t2r_seq.policies.policy_step import (
  AGE,
  GIVEN_EACH_STEP,
  RECURRENT,
  SEED,
  PolicyStep,
  history_cut,
  new_seeds,
)
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.specs.structures import filter_required_flat_tensor_spec
from t2r_seq.windows.cut import mask_paths

_as_it_is = tf.autograph.experimental.do_not_convert

_Outputs = dict[str, tf.Tensor]
IS_FIRST = "is_first"
STATE = "policy_state"
# A stateless step that takes vectors for texts; exports of models with texts have it.
EMBEDDED_STEP = "embedded_step"
SEEN, INPUT, SAID = "seen", "input", "said"


def exported_feature_specs(model: PolicyModel) -> TensorSpecStruct:
  """Returns the raw features that a policy of this model is given.

  Args:
    model: the model.
  Returns:
    The required in specs of its preprocessor in mode 'infer', by path.
  Raises:
    SpecError: a feature looks into the future, or two paths would be one argument of
      a signature.
  """
  in_spec = model.preprocessor.get_in_feature_specification(ModeKeys.INFER)
  flat = _required(in_spec)
  found = []
  by_key: dict[str, str] = {}
  for path, spec in flat.items():
    if windows.time_span({path: spec})[1] > 0:
      expected, got = "time offsets of at most 0 to export", str(spec.time_offsets)
      hint = "A policy cannot see the future: make it a label."
      found.append(errors.Mismatch(path, expected, got, hint))
    key = specs.signature_key(path)
    if key == IS_FIRST or key.startswith(f"{STATE}_"):
      expected = f"another path: '{key}' is an argument of the policy's step"
      found.append(errors.Mismatch(path, expected, f"'{path}'", "Rename it."))
    other = by_key.setdefault(key, path)
    if other != path:
      expected = "an argument name of its own in the export"
      found.append(errors.Mismatch(path, expected, f"'{key}', that of {other}"))
  if found:
    raise errors.mismatch_error("export", found)
  return flat


def stored_feature_specs(model: PolicyModel) -> TensorSpecStruct:
  """Returns the feature specs that are stored beside an export.

  Those of `exported_feature_specs`; and, where a step is given those of another model,
  these as optional ones.

  Raises:
    SpecError: see `exported_feature_specs`; or a path is in both.
  """
  stored = exported_feature_specs(model)
  if model.step_model is not model:
    for path, spec in exported_feature_specs(model.step_model).items():
      stored[path] = ExtendedTensorSpec.from_spec(spec, is_optional=True)
  return stored


def _required(in_spec: specs.SpecStructure) -> TensorSpecStruct:
  given = specs.flatten_spec_structure(in_spec)
  flat = filter_required_flat_tensor_spec(given)
  # However a store keeps them, a policy is given frames.
  return specs.map_leaves(
    lambda spec: specs.frame_spec(ExtendedTensorSpec.to_spec(spec)), flat
  )


def state_key(path: str) -> str:
  """Returns the name of a part of the state in the signatures."""
  return specs.signature_key(f"{STATE}/{path}")


def records_arguments(dataset_keys: Collection[str]) -> dict[str, str]:
  """Returns which argument of 'parse_tf_example' takes a dataset's records, by key."""
  if len(dataset_keys) == 1:
    return dict.fromkeys(dataset_keys, "examples")
  return {key: specs.signature_key(f"examples/{key}") for key in dataset_keys}


class _Slots(tf.Module):
  """A policy's state as variables, so that a SavedModel holds it."""

  def __init__(self, step: PolicyStep) -> None:
    """Creates no slots."""
    super().__init__()
    self._step = step
    self._state = {
      path: tf.Variable(
        tf.zeros([0, *spec.shape], spec.dtype),
        shape=[None, *spec.shape],
        trainable=False,
      )
      for path, spec in step.state_spec.items()
    }

  def read(self) -> TensorSpecStruct:
    """Returns the state."""
    return TensorSpecStruct((path, v.read_value()) for path, v in self._state.items())

  def write(self, state: Mapping[str, tf.Tensor]) -> None:
    """Replaces the state, or parts of it, of any number of environments."""
    for path, value in state.items():
      self._state[path].assign(value)

  def fitted(self, is_first: tf.Tensor) -> TensorSpecStruct:
    """Returns the state of N environments, is_first [N]."""
    state = self.read()
    num_envs, num_kept = tf.shape(is_first)[0], tf.shape(state[AGE])[0]
    # The op itself: `tf.debugging.Assert` puts a cond around it, which costs 50 us.
    check = tf.raw_ops.Assert(
      condition=tf.equal(num_envs, num_kept)
      | tf.equal(num_kept, 0)
      | tf.reduce_all(is_first),
      data=[
        "step: got observations of",
        num_envs,
        "environments, but the history holds",
        num_kept,
        "Call reset(num_slots), or set is_first for all of them.",
      ],
    )
    with tf.control_dependencies([check]):
      age = tf.identity(state[AGE])
    return self._step.fit(state, is_first, age)


class PolicyFunctions:
  """The signatures of an exported policy, and the module that owns their variables.

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
    self._keys = {path: specs.signature_key(path) for path in self._specs}
    self._windowed = [
      path
      for path, spec in self._specs.items()
      if spec.time_offsets not in GIVEN_EACH_STEP
    ]
    self._masks = mask_paths(self._specs)
    step_specs = exported_feature_specs(model.step_model)
    self._step = PolicyStep(model, step_specs)
    self._slots = _Slots(self._step)
    self.module = tf.Module()
    self.module.model_variables = list(model.variables)
    self.module.slots = self._slots

  def signatures(self) -> dict[str, Any]:
    """Returns the signatures, to be traced when they are saved.

    Returns:
      Functions by name. 'serving_default' takes batches of whole windows and
      'parse_tf_example' serialized records. 'step', 'reset' and 'last_window' act on
      state inside of the export, 'seed' on that of models that draw;
      'stateless_step' and 'initial_state' on state that the caller keeps, and
      'inspect_step' tells what the network is given at such a step; 'adapt' and
      'stateless_adapt' have both learn a task, where the model does. Models of
      sequences that carry no state have none of these, and 'parse_tf_example', with
      an argument for each dataset, needs named specs.
    """
    signatures = {"serving_default": self._serving()}
    if self._is_parseable():
      signatures["parse_tf_example"] = self._parse()
    if not self._step.exists:
      logging.info("The export has no 'step': the model takes sequences.")
      return signatures
    signatures |= {
      "step": self._stateful_step(),
      "reset": self._reset(),
      "stateless_step": self._stateless_step(),
      "inspect_step": self._inspect_step(),
      "initial_state": self._initial_state(),
    }
    if self._step.has_windows:
      signatures["last_window"] = self._last_window()
    if self._model.is_seeded:
      signatures["seed"] = self._seed()
    if self._model.get_adaptation_specification() is not None:
      signatures |= {"adapt": self._adapt(), "stateless_adapt": self._stateless_adapt()}
    return signatures

  def _is_parseable(self) -> bool:
    flat = windows.flat_specs(self._specs)
    unnamed = [path for path, spec in flat.items() if not spec.name]
    unsized = [path for path, s in flat.items() if not s.shape.is_fully_defined()]
    has_sequences = any(spec.is_sequence for spec in self._specs.values())
    stacked_sequences = has_sequences and len(self._windowed) > 0
    if not unnamed and not unsized and not stacked_sequences:
      return True
    logging.info(
      "The export has no 'parse_tf_example': paths without a name %s, of unknown size "
      "%s, sequences of stacks: %s.",
      unnamed,
      unsized,
      stacked_sequences,
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

    # AutoGraph, for what users write in their models.
    @tf.function(input_signature=signature)
    def serving_default(*tensors: tf.Tensor) -> _Outputs:
      features = TensorSpecStruct(zip(self._specs, tensors, strict=True))
      return self._model.export_outputs(features)

    return serving_default

  def _stateful_step(self) -> Any:
    def step(given: TensorSpecStruct) -> _Outputs:
      is_first = given[IS_FIRST]
      outputs, state = self._step(given, is_first, self._slots.fitted(is_first))
      self._slots.write(state)
      return outputs

    return self._function(step, self._observed())

  def _stateless_step(self) -> Any:
    def step(given: TensorSpecStruct) -> _Outputs:
      outputs, state = self._step(given, given[IS_FIRST], self._given_state(given))
      return {**outputs, **_keyed_state(state)}

    return self._function(step, self._observed_with_state())

  def _inspect_step(self) -> Any:
    def step(given: TensorSpecStruct) -> _Outputs:
      state = self._given_state(given)
      told = self._step.inspect(given, given[IS_FIRST], state)
      return {
        specs.signature_key(f"{kind}/{path}"): value
        for kind, values in zip((SEEN, INPUT, SAID), told, strict=True)
        for path, value in values.items()
      }

    return self._function(step, self._observed_with_state())

  def _given_state(self, given: TensorSpecStruct) -> TensorSpecStruct:
    return TensorSpecStruct(
      (path, given[state_key(path)]) for path in self._step.state_spec
    )

  def _observed_with_state(self) -> dict[str, tf.TensorSpec]:
    """Returns the arguments of a step whose state the caller keeps, by path."""
    taken = self._observed()
    for path, spec in self._step.state_spec.items():
      name = state_key(path)
      taken[name] = tf.TensorSpec([None, *spec.shape], spec.dtype, name)
    return taken

  def _observed(self) -> dict[str, tf.TensorSpec]:
    """Returns the arguments of a step, by path."""
    taken = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype, specs.signature_key(path))
      for path, spec in self._step.observation_spec.items()
    }
    return {**taken, IS_FIRST: tf.TensorSpec([None], tf.bool, IS_FIRST)}

  def _function(
    self,
    fn: Callable[[TensorSpecStruct], _Outputs],
    taken: Mapping[str, tf.TensorSpec],
  ) -> Any:
    """Makes a function of a struct into one of arguments that are named in a signature.

    It has an input signature and is not a concrete function, which could not be saved
    once it has seen distributed variables.
    """

    @tf.function(input_signature=list(taken.values()), autograph=False)
    def function(*tensors: tf.Tensor) -> _Outputs:
      return fn(TensorSpecStruct(zip(taken, tensors, strict=True)))

    return function

  def _reset(self) -> Any:
    @tf.function(input_signature=[_count("num_slots")], autograph=False)
    def reset(num_slots: tf.Tensor) -> _Outputs:
      self._slots.write(self._step.initial_state(num_slots))
      return {"num_slots": num_slots}

    return reset

  def _initial_state(self) -> Any:
    @tf.function(input_signature=[_count("num_slots")], autograph=False)
    def initial_state(num_slots: tf.Tensor) -> _Outputs:
      return _keyed_state(self._step.initial_state(num_slots))

    return initial_state

  def _seed(self) -> Any:
    signature = [tf.TensorSpec([None], tf.int32, name) for name in ("slots", "seeds")]

    @tf.function(input_signature=signature, autograph=False)
    def seed(slots: tf.Tensor, seeds: tf.Tensor) -> _Outputs:
      kept = self._slots.read()[SEED]
      seeded = tf.tensor_scatter_nd_update(kept, slots[:, tf.newaxis], new_seeds(seeds))
      self._slots.write({SEED: seeded})
      return {"seeds": seeds}

    return seed

  def _adaptation(self) -> dict[str, tf.TensorSpec]:
    """Returns what a task is learned from, by path."""
    flat = _required(self._model.get_adaptation_specification())
    return {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype, specs.signature_key(path))
      for path, spec in flat.items()
    }

  def _adapted(self, given: TensorSpecStruct) -> dict[str, tf.Tensor]:
    """Returns the parts of the state that hold tasks, by path."""
    learned = specs.flatten_spec_structure(self._model.adapt(given))
    return {f"{RECURRENT}/{path}": value for path, value in learned.items()}

  def _adapt(self) -> Any:
    taken = {"slots": tf.TensorSpec([None], tf.int32, "slots"), **self._adaptation()}

    @tf.function(input_signature=list(taken.values()))
    def adapt(*tensors: tf.Tensor) -> _Outputs:
      slots, state = tensors[0], self._slots.read()
      given = TensorSpecStruct(zip([*taken][1:], tensors[1:], strict=True))
      for path, value in self._adapted(given).items():
        rows = tf.tensor_scatter_nd_update(state[path], slots[:, tf.newaxis], value)
        self._slots.write({path: rows})
      return {"slots": slots}

    return adapt

  def _stateless_adapt(self) -> Any:
    taken = self._adaptation()

    @tf.function(input_signature=list(taken.values()))
    def stateless_adapt(*tensors: tf.Tensor) -> _Outputs:
      given = TensorSpecStruct(zip(taken, tensors, strict=True))
      return _keyed_state(self._adapted(given))

    return stateless_adapt

  def _last_window(self) -> Any:
    @tf.function(input_signature=[], autograph=False)
    def last_window() -> _Outputs:
      found = self._step.windows(self._slots.read())
      return {specs.signature_key(path): window for path, window in found.items()}

    return last_window

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

  @_as_it_is
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


def _count(name: str) -> tf.TensorSpec:
  return tf.TensorSpec([], tf.int32, name)


def _keyed_state(state: Mapping[str, tf.Tensor]) -> _Outputs:
  return {state_key(path): value for path, value in state.items()}
