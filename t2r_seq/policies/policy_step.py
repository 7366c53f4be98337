"""A step of a policy as a function: (observation, state) -> (outputs, state)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.policies.execution import ChunkRunner
from t2r_seq.policies.history import FrameHistory
from t2r_seq.policies.policy_model import PolicyModel, noting_network_inputs
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, TensorSpecStruct
from t2r_seq.windows.cut import Padding, mask_paths

_as_it_is = tf.autograph.experimental.do_not_convert

_Outputs = dict[str, tf.Tensor]
AGE, SEED = "age", "seed"
RECURRENT = "recurrent"
# Time offsets of features that have no history: the caller gives their value, such as
# the image of a goal, at each step.
GIVEN_EACH_STEP = (None, "last")
_HISTORY, _CHUNK = "history", "chunk"


class _Sight(NamedTuple):
  """What a step sees, before the network is asked.

  Attributes:
    seen: raw features by path, windows and their masks among them.
    carried: the recurrent state.
    seeds: of what is drawn.
    begins: bool [N]; where an episode begins.
    new: the next state, as far as it is known without the network.
  """

  seen: dict[str, tf.Tensor]
  carried: dict[str, tf.Tensor]
  seeds: tf.Tensor | None
  begins: tf.Tensor
  new: TensorSpecStruct


class PolicyStep:
  """All that a policy remembers, declared, and the function that takes a step with it.

  The state is derived from the specs and the model: `age`, the steps of the episode so
  far; `history/<path>`, the frames that windows look back at; `recurrent/<path>`, what
  the network carries; `chunk/<path>`, the action chunk in execution; and `seed`, of
  what the model draws. Each is a tensor with a row per environment, and every row is
  that environment's alone.
  """

  def __init__(self, model: PolicyModel, feature_specs: TensorSpecStruct) -> None:
    """Derives the state.

    Args:
      model: a built model.
      feature_specs: the raw features by path, see `exported_feature_specs`.
    Raises:
      SpecError: the action chunk to execute is none that the model gives.
    """
    self._model = model
    self._specs = feature_specs
    # Masks are derived from the history, never asked for.
    masks = mask_paths(feature_specs)
    seen = [path for path in feature_specs if path not in masks]
    self._paths = model.step_paths(seen)
    self._windowed = TensorSpecStruct(
      (path, feature_specs[path])
      for path in self._paths
      if feature_specs[path].time_offsets not in GIVEN_EACH_STEP
    )
    masks = {mask: path for mask, path in masks.items() if path in self._windowed}
    self._history = FrameHistory(self._windowed, history_cut(model), masks)
    self._recurrent = specs.flatten_spec_structure(
      model.get_recurrent_state_specification(ModeKeys.INFER)
    )
    # One function for all that step: traced once, and it is what they have in common.
    self._network = tf.function(self._run_network)
    self._chunks: ChunkRunner | None = None
    if model.execution is not None:
      said = self._outputs_spec()
      self._chunks = ChunkRunner(model.execution, said, self._chunk_lengths())

  @property
  def exists(self) -> bool:
    """Whether the model can be stepped: sequences need a state to be carried."""
    is_sequential = any(spec.is_sequence for spec in self._specs.values())
    return len(self._recurrent) > 0 or not is_sequential

  @property
  def has_windows(self) -> bool:
    """Whether there are windows to look at."""
    return len(self._windowed) > 0

  @property
  def observation_spec(self) -> TensorSpecStruct:
    """What is seen of one environment at one step, by path."""
    return TensorSpecStruct(
      (path, ExtendedTensorSpec(spec.frame_shape, spec.dtype, path))
      for path, spec in self._specs.items()
      if path in self._paths
    )

  @property
  def state_spec(self) -> TensorSpecStruct:
    """What is remembered of one environment, by path."""
    state = TensorSpecStruct({AGE: ExtendedTensorSpec((), tf.int32)})
    for path, spec in self._history.state_spec.items():
      state[f"{_HISTORY}/{path}"] = spec
    for path, spec in self._recurrent.items():
      state[f"{RECURRENT}/{path}"] = spec
    if self._chunks is not None:
      for path, spec in self._chunks.state_spec.items():
        state[f"{_CHUNK}/{path}"] = spec
    if self._model.is_seeded:
      state[SEED] = ExtendedTensorSpec((2,), tf.int32)
    return state

  @_as_it_is
  def initial_state(self, num_envs: tf.Tensor) -> TensorSpecStruct:
    """Returns the state before a first step; environment i has the seed i.

    Args:
      num_envs: int32 scalar.
    """
    state = TensorSpecStruct()
    for path, spec in self.state_spec.items():
      shape = tf.concat([[num_envs], spec.shape], axis=0)
      state[path] = tf.zeros(shape, spec.dtype)
    state.update(_below(RECURRENT, self._initial_recurrent(num_envs)))
    if self._model.is_seeded:
      state[SEED] = new_seeds(tf.range(num_envs))
    return state

  @_as_it_is
  def fit(
    self, state: TensorSpecStruct, is_first: tf.Tensor, age: tf.Tensor
  ) -> TensorSpecStruct:
    """Makes rows for as many environments as there are now.

    Args:
      state: of any number of environments.
      is_first: bool [N].
      age: of the state, behind a check that none is asked for that is not there.
    Returns:
      The state of N environments; new rows begin. The history's rows are left as they
      are: nothing is read of those that begin.
    """
    num_envs = tf.shape(is_first)[0]
    new = self.initial_state(num_envs)
    fitted = TensorSpecStruct()
    for path, value in {**state, AGE: age}.items():
      if path not in new or path.startswith(f"{_HISTORY}/"):
        fitted[path] = value
      else:
        fitted[path] = tf.concat([value, new[path]], axis=0)[:num_envs]
    return fitted

  @_as_it_is
  def __call__(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> tuple[_Outputs, TensorSpecStruct]:
    """Takes a step in every environment.

    Args:
      observation: as `observation_spec` says, [N, ...].
      is_first: bool [N]; true where an episode begins: that row of the state counts
        for nothing, but for the seed.
      state: as `state_spec` says, [N, ...].
    Returns:
      (outputs by name, [N, ...]; the next state).
    """
    seen, carried, seeds, begins, new = self._look(observation, is_first, state)
    if self._chunks is None:
      outputs, carried, _ = self._network(seen, carried, seeds)
    elif carried:
      said, carried, _ = self._network(seen, carried, seeds)
      outputs, chunk = self._chunks.step(
        lambda: said, TensorSpecStruct(_at(_CHUNK, state)), begins, True
      )
      new.update(_below(_CHUNK, chunk))
    else:
      ask = lambda: self._network(seen, {}, seeds)[0]  # noqa: E731
      outputs, chunk = self._chunks.step(
        ask, TensorSpecStruct(_at(_CHUNK, state)), begins, False
      )
      new.update(_below(_CHUNK, chunk))
    new.update(_below(RECURRENT, carried))
    return outputs, TensorSpecStruct((path, new[path]) for path in self.state_spec)

  @_as_it_is
  def inspect(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], _Outputs]:
    """Asks the network as a step does, and tells what it was given.

    It is the same function of the graph that a step calls, of which a step drops what
    is told here.

    Args:
      observation: as for a step.
      is_first: as for a step.
      state: as for a step.
    Returns:
      (raw features by path, windows and masks among them; what the network was given
      after preprocessing, by path; what it said).
    """
    sight = self._look(observation, is_first, state)
    said, _, inputs = self._network(sight.seen, sight.carried, sight.seeds)
    return sight.seen, inputs, said

  def _look(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> _Sight:
    new = TensorSpecStruct()
    begins = is_first | tf.equal(state[AGE], 0)
    new[AGE] = tf.where(begins, 1, state[AGE] + 1)
    frames = self._history.push(_at(_HISTORY, state), observation, new[AGE])
    new.update(_below(_HISTORY, frames))
    seen = {path: observation[path] for path in self._paths}
    seen.update(self._history.windows(frames, new[AGE]))
    carried = _at(RECURRENT, state)
    if carried:
      initial = self._initial_recurrent(tf.shape(begins)[0])
      carried = {
        path: value
        if self._model.keeps_state(path)
        else tf.where(_as_column(begins, value), initial[path], value)
        for path, value in carried.items()
      }
    seeds = None
    if self._model.is_seeded:
      seeds = state[SEED]
      new[SEED] = seeds + tf.constant([[0, 1]])
    return _Sight(seen, carried, seeds, begins, new)

  @_as_it_is
  def windows(self, state: Mapping[str, tf.Tensor]) -> TensorSpecStruct:
    """Returns the windows that the last step saw."""
    return self._history.windows(_at(_HISTORY, state), state[AGE])

  def _run_network(
    self,
    seen: dict[str, tf.Tensor],
    carried: dict[str, tf.Tensor],
    seeds: tf.Tensor | None,
  ) -> tuple[_Outputs, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    features = TensorSpecStruct(
      (path, value[:, tf.newaxis] if self._specs[path].is_sequence else value)
      for path, value in seen.items()
    )
    state = specs.pack_flat_sequence_to_spec_structure(
      self._model.get_recurrent_state_specification(ModeKeys.INFER),
      TensorSpecStruct(carried),
    )
    with noting_network_inputs() as inputs:
      outputs, state = self._model.export_step(features, state, seeds)
    flat = specs.flatten_spec_structure(state)
    return dict(outputs), dict(flat.items()), inputs

  def _initial_recurrent(self, num_envs: tf.Tensor) -> dict[str, tf.Tensor]:
    if not len(self._recurrent):
      return {}
    state = self._model.initial_recurrent_state(num_envs)
    flat = dict(specs.flatten_spec_structure(state).items())
    found = [
      errors.Mismatch(
        path, f"(batch, {', '.join(map(str, spec.shape))}) {spec.dtype.name}", got
      )
      for path, spec in self._recurrent.items()
      for got in [errors.describe(flat.get(path))]
      if path not in flat
      or flat[path].dtype != spec.dtype
      or not flat[path].shape[1:].is_compatible_with(spec.shape)
    ]
    if found:
      raise errors.mismatch_error("initial_recurrent_state", found)
    return flat

  def _outputs_spec(self) -> dict[str, tf.TensorSpec]:
    """Returns the specs of what the model says at one step, by name."""
    seen = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype)
      for path, spec in self._specs.items()
      if path in self._paths or path in mask_paths(self._specs)
    }
    carried = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype)
      for path, spec in self._recurrent.items()
    }
    seeds = tf.TensorSpec([None, 2], tf.int32) if self._model.is_seeded else None
    traced = self._network.get_concrete_function(seen, carried, seeds)
    return traced.structured_outputs[0]

  def _chunk_lengths(self) -> set[int]:
    """Returns how many steps the labels' chunks have."""
    preprocessor = self._model.step_model.preprocessor
    labels = preprocessor.get_in_label_specification(ModeKeys.TRAIN)
    offsets = [
      getattr(spec, "time_offsets", None)
      for spec in specs.flatten_spec_structure(labels).values()
    ]
    return {len(each) for each in offsets if isinstance(each, tuple)}


def history_cut(model: PolicyModel) -> windows.Cut:
  """Says what stands before an episode's first step.

  The policy acts at that step, too, whatever the model was trained on.
  """
  front = windows.Cut(padding=model.padding).front
  # Of each word, so that no other shows the robot what training did not.
  shown: dict[str, Padding] = {
    "drop": "repeat",
    "repeat": "repeat",
    "zero": "zero",
  }
  return windows.Cut(padding=shown[front])


def new_seeds(seeds: tf.Tensor) -> tf.Tensor:
  """Returns the state of seeds [N] that nothing has been drawn with, int32 [N, 2]."""
  seeds = tf.cast(seeds, tf.int32)
  return tf.stack([seeds, tf.zeros_like(seeds)], axis=1)


def _at(branch: str, state: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Returns a branch of a state, by path below it."""
  prefix = f"{branch}/"
  return {
    path.removeprefix(prefix): value
    for path, value in state.items()
    if path.startswith(prefix)
  }


def _below(branch: str, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  return {f"{branch}/{path}": value for path, value in values.items()}


def _as_column(which: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
  """Gives bool [N] the rank of the other."""
  return tf.reshape(which, [-1] + [1] * (other.shape.rank - 1))
