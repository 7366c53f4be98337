"""A step of a policy as a function: (observation, state) -> (outputs, state)."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.lite.lite_policy import PREFIX
from t2r_seq.lite.policy_io import AGE, SEED, Leaf, Prefix
from t2r_seq.policies.execution import ChunkRunner
from t2r_seq.policies.policy_model import PolicyModel, recording_network_inputs
from t2r_seq.policies.timed_history import TimedHistory
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, Seconds, TensorSpecStruct
from t2r_seq.specs.structures import signature_key
from t2r_seq.windows.cut import WindowGrid, mask_paths, time_span

# No Python control flow depends on tensors: converting it would only cost time.
_no_autograph = tf.autograph.experimental.do_not_convert

_Outputs = dict[str, tf.Tensor]
Frames = dict[str, tf.Tensor]
"""The latest steps by path, [N, depth, *frame_shape], the newest last."""
RECURRENT = "recurrent"
STATE = "policy_state"
# Time offsets of features that have no history: the caller gives their value, such as
# the image of a goal, at each step.
GIVEN_EACH_STEP = (None, "last")
# Each argument of a step costs 8 us, as much as a copy of about this size.
_MOST_PACKED_BYTES = 1 << 16
_HISTORY, _STAMPS, _CHUNK = "history", "stamps", "chunk"


class FrameHistory:
  """Keeps the latest frames of every path, and cuts windows from them.

  The windows equal, bit for bit, the training window whose anchor is the newest step:
  steps before an episode's first one repeat it ('repeat') or are zeros ('zero').
  """

  def __init__(
    self,
    specs_by_path: TensorSpecStruct,
    cut: windows.Cut,
    masks: Mapping[str, str] | None = None,
  ) -> None:
    """Creates the functions.

    Args:
      specs_by_path: windowed specs by path, with offsets <= 0.
      cut: has the padding before the first step.
      masks: the masked path by the path of each mask.
    """
    self._specs = dict(specs_by_path.items())
    self._grid = WindowGrid(time_span(specs_by_path), cut)
    self._has_zeros = "zero" in (cut.front, cut.end)
    self._masks = dict(masks or {})

  @property
  def state_spec(self) -> dict[str, ExtendedTensorSpec]:
    """The frames of one environment, by path."""
    return {
      path: ExtendedTensorSpec((_depth(spec), *spec.frame_shape), spec.dtype)
      for path, spec in self._specs.items()
    }

  @_no_autograph
  def push(
    self, frames: Frames, observations: Mapping[str, tf.Tensor], ages: tf.Tensor
  ) -> Frames:
    """Returns the frames with the newest step at the end.

    Args:
      frames: frames of the previous step.
      observations: [N, *frame_shape] by path.
      ages: int32 [N]; steps of an environment's episode, this one included; 1 clears
        its past.
    """
    rows = {
      depth: self._rows(depth, ages) for depth in set(map(_depth, self._specs.values()))
    }
    pushed = {}
    for path, spec in self._specs.items():
      kept = tf.reshape(frames[path], [-1, *spec.frame_shape])
      parts = [kept, observations[path]]
      if self._has_zeros:
        parts.append(tf.zeros([1, *spec.frame_shape], spec.dtype))
      # One copy of whole frames by their number: a `where` over the frames, or a cond,
      # costs as much as a small network.
      pushed[path] = tf.gather(tf.concat(parts, axis=0), rows[_depth(spec)])
    return pushed

  def _steps(self, offsets: np.ndarray, ages: tf.Tensor) -> tuple[Any, Any, Any]:
    """Returns the steps at offsets from the newest one; see `WindowGrid`."""
    before = tf.cast(tf.reshape(ages - 1, [-1] + [1] * offsets.ndim), tf.int64)
    return self._grid.steps(offsets, before, 0)

  def _rows(self, depth: int, ages: tf.Tensor) -> tf.Tensor:
    """Returns the new frames, [N, depth], as rows of [old, newest, zeros]."""
    num_envs = tf.shape(ages)[0]
    envs = tf.range(num_envs)[:, tf.newaxis]
    steps, _, visible = self._steps(np.arange(1 - depth, 1), ages)
    steps, newest = tf.cast(steps, tf.int32), num_envs * depth
    # Step -1 is the last of the old frames.
    rows = tf.where(steps < 0, (envs + 1) * depth + steps, newest + envs)
    return rows if visible is None else tf.where(visible, rows, newest + num_envs)

  @_no_autograph
  def windows(self, frames: Frames, ages: tf.Tensor) -> TensorSpecStruct:
    """Returns windows, [N, K, *frame_shape], and masks, [N, K], after a `push`."""
    result = TensorSpecStruct()
    for path, spec in self._specs.items():
      index = _offsets(spec) + _depth(spec) - 1
      window = frames[path]
      if index.tolist() != list(range(_depth(spec))):
        window = tf.gather(window, index, axis=1)
      window.set_shape([None, *spec.shape])
      result[path] = window
    for mask_path, path in self._masks.items():
      result[mask_path] = self._steps(_offsets(self._specs[path]), ages)[1]
    return result


class _StepInputs(NamedTuple):
  """Inputs of the network at a step, and what else is known before it runs.

  Attributes:
    seen: raw features by path, with windows and masks.
    recurrent: the recurrent state.
    seeds: seeds of random numbers.
    begins: bool [N]; where an episode starts.
    new: the parts of the next state that do not depend on the network.
  """

  seen: dict[str, tf.Tensor]
  recurrent: dict[str, tf.Tensor]
  seeds: tf.Tensor | None
  begins: tf.Tensor
  new: TensorSpecStruct


class PolicyStep:
  """The state of a policy, and the function that takes a step with it.

  The state is derived from the specs and the model: `age`, the steps of the episode so
  far; `history/<path>`, the frames of windows, and `stamps/<path>`, their times if the
  time offsets are in seconds; `recurrent/<path>`, the network's state;
  `chunk/<path>`, the action chunk in execution; and `seed`, of random numbers. Each is
  a tensor with a row per environment, which depends on this environment only.
  """

  def __init__(self, model: PolicyModel, feature_specs: TensorSpecStruct) -> None:
    """Derives the state of a built model; see `exported_feature_specs`.

    Raises:
      SpecError: an output cannot be executed as a chunk, or the control period is
        unknown and a time offset is in seconds.
    """
    self._model = model
    self._specs = feature_specs
    # Masks are derived from the history.
    masks = mask_paths(feature_specs)
    seen = [path for path in feature_specs if path not in masks]
    self._paths = model.step_paths(seen)
    paths = [
      p for p in self._paths if feature_specs[p].time_offsets not in GIVEN_EACH_STEP
    ]
    timed = [p for p in paths if isinstance(feature_specs[p].time_offsets, Seconds)]
    self._windowed = TensorSpecStruct(
      (path, feature_specs[path]) for path in paths if path not in timed
    )
    self._timed: TimedHistory | None = None
    if timed:
      by_time = TensorSpecStruct((path, feature_specs[path]) for path in timed)
      periods = model.control_period, model.value_periods
      self._timed = TimedHistory(by_time, history_cut(model), masks, *periods)
    masks = {mask: path for mask, path in masks.items() if path in self._windowed}
    self._history = FrameHistory(self._windowed, history_cut(model), masks)
    self._recurrent = specs.flatten_spec_structure(
      model.get_recurrent_state_specification(ModeKeys.INFER)
    )
    # A tf.function, so that `step` and `inspect` share one copy in the SavedModel.
    self._network = tf.function(self._run_network)
    self._continue = tf.function(self._run_network)
    self._chunks: ChunkRunner | None = None
    if model.execution is not None:
      outputs = self._outputs_spec()
      self._chunks = ChunkRunner(model.execution, outputs, self._chunk_lengths())

  @property
  def exists(self) -> bool:
    """Whether the model has a step: for sequences it needs a recurrent state."""
    is_sequential = any(spec.is_sequence for spec in self._specs.values())
    return len(self._recurrent) > 0 or not is_sequential

  @property
  def observation_spec(self) -> TensorSpecStruct:
    """The observation of one environment, by path."""
    times = {} if self._timed is None else self._timed.time_specs
    frames = {
      path: ExtendedTensorSpec(spec.frame_shape, spec.dtype, path)
      for path, spec in self._specs.items()
      if path in self._paths
    }
    return TensorSpecStruct({**frames, **times})

  @property
  def state_spec(self) -> TensorSpecStruct:
    """The state of one environment, by path."""
    state = TensorSpecStruct({AGE: ExtendedTensorSpec((), tf.int32)})
    if self._model.is_seeded:
      state[SEED] = ExtendedTensorSpec((2,), tf.int32)
    for path, spec in self._history.state_spec.items():
      state[f"{_HISTORY}/{path}"] = spec
    if self._timed is not None:
      state.update(_below(_HISTORY, self._timed.state_spec))
      state.update(_below(_STAMPS, self._timed.stamps_spec))
    for path, spec in self._recurrent.items():
      state[f"{RECURRENT}/{path}"] = spec
    if self._chunks is not None:
      for path, spec in self._chunks.state_spec.items():
        state[f"{_CHUNK}/{path}"] = spec
    return state

  @functools.cached_property
  def leaves(self) -> dict[str, Leaf]:
    """Places of the parts of the state in the arguments of a step, by path.

    Parts of a dtype share one argument [N, size], because a call costs time for each
    argument. A large part has a separate argument, so that it is not copied.
    """
    leaves = {}
    sizes: dict[str, int] = {}
    for path, spec in self.state_spec.items():
      dtype, shape = np.dtype(spec.dtype.as_numpy_dtype), tuple(spec.shape.as_list())
      size = math.prod(shape)
      is_large = size * dtype.itemsize > _MOST_PACKED_BYTES
      name = signature_key(f"{STATE}/{path if is_large else spec.dtype.name}")
      leaves[path] = Leaf(name, shape, dtype, sizes.get(name, 0))
      sizes[name] = sizes.get(name, 0) + size
    return leaves

  @property
  def packed_spec(self) -> dict[str, tf.TensorSpec]:
    """The arguments of a step that hold the state, by name."""
    packed = {}
    for leaf in self.leaves.values():
      size = leaf.start + math.prod(leaf.shape)
      packed[leaf.argument] = tf.TensorSpec([None, size], leaf.dtype, leaf.argument)
    return packed

  @_no_autograph
  def pack(self, state: Mapping[str, tf.Tensor]) -> _Outputs:
    """Returns a state as arguments of a step, by name."""
    columns: dict[str, list[tf.Tensor]] = {}
    for path, leaf in self.leaves.items():
      flat = tf.reshape(state[path], [-1, math.prod(leaf.shape)])
      columns.setdefault(leaf.argument, []).append(flat)
    return {
      name: tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]
      for name, parts in columns.items()
    }

  @_no_autograph
  def unpack(self, packed: Mapping[str, tf.Tensor]) -> TensorSpecStruct:
    """Returns a state by path; the inverse of `pack`."""
    state = TensorSpecStruct()
    for path, leaf in self.leaves.items():
      value, size = packed[leaf.argument], math.prod(leaf.shape)
      if value.shape[1] != size:
        value = value[:, leaf.start : leaf.start + size]
      state[path] = tf.reshape(value, [-1, *leaf.shape])
    return state

  @_no_autograph
  def initial_state(self, seeds: tf.Tensor) -> TensorSpecStruct:
    """Returns the state before a first step; `seeds` are int32 [N]."""
    num_envs = tf.shape(seeds)[0]
    state = TensorSpecStruct()
    for path, spec in self.state_spec.items():
      shape = tf.concat([[num_envs], spec.shape], axis=0)
      state[path] = tf.zeros(shape, spec.dtype)
    for path, value in self._initial_recurrent(num_envs).items():
      state[f"{RECURRENT}/{path}"] = value
    if self._model.is_seeded:
      # Stateless random ops need two numbers: the seed, and a count of the steps.
      state[SEED] = tf.stack([seeds, tf.zeros_like(seeds)], axis=1)
    return state

  @_no_autograph
  def __call__(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> tuple[_Outputs, TensorSpecStruct]:
    """Takes a step in every environment.

    Args:
      observation: see `observation_spec`, [N, ...].
      is_first: bool [N]; true where an episode starts, which clears that row of the
        state except for the seed and learned tasks.
      state: see `state_spec`, [N, ...].
    Returns:
      (outputs by name, [N, ...]; the next state).
    """
    step_inputs = self._network_inputs(observation, is_first, state)
    seen, recurrent, seeds, begins, new = step_inputs
    runs_always = self._chunks is None or bool(recurrent)
    if runs_always:
      outputs, recurrent, _ = self._network(seen, recurrent, seeds)
    if self._chunks is not None:
      outputs, chunk = self._chunks.step(
        (lambda: outputs) if runs_always else lambda: self._network(seen, {}, seeds)[0],
        TensorSpecStruct(_at(_CHUNK, state)),
        begins,
        runs_always,
      )
      new.update(_below(_CHUNK, chunk))
    new.update(_below(RECURRENT, recurrent))
    return outputs, TensorSpecStruct((path, new[path]) for path in self.state_spec)

  @property
  def overlaps(self) -> bool:
    """Whether the history can advance without running the network."""
    return self._chunks is not None and not len(self._recurrent)

  @_no_autograph
  def observe(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> TensorSpecStruct:
    """Returns the next state of a step that does not run the network."""
    new = self._network_inputs(observation, is_first, state).new
    new.update(_below(_CHUNK, _at(_CHUNK, state)))
    return TensorSpecStruct((path, new[path]) for path in self.state_spec)

  @_no_autograph
  def plan(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    prefix: Prefix | None = None,
  ) -> _Outputs:
    """Returns the outputs of the network at a step, with whole chunks."""
    seen, recurrent, seeds, *_ = self._network_inputs(observation, is_first, state)
    network = self._network if prefix is None else self._continue
    more = [] if prefix is None else [prefix]
    return network(seen, recurrent, seeds, *more)[0]

  @property
  def prefix_spec(self) -> dict[str, tf.TensorSpec]:
    """The arguments of a plan that continues another one, by name."""
    name = self._model.execution.outputs[0] if self._model.execution else ""
    chunk = self._outputs_spec()[name]
    counts = [tf.TensorSpec([None], tf.int32, name) for name in PREFIX[1:]]
    actions = tf.TensorSpec(chunk.shape, chunk.dtype, PREFIX[0])
    return dict(zip(PREFIX, [actions, *counts], strict=True))

  @_no_autograph
  def inspect(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor], _Outputs]:
    """Runs the network as a step does.

    Returns:
      (raw features by path, with windows and masks; the network's inputs after
      preprocessing, by path; its outputs by name).
    """
    seen, recurrent, seeds, *_ = self._network_inputs(observation, is_first, state)
    outputs, _, inputs = self._network(seen, recurrent, seeds)
    return seen, inputs, outputs

  def _network_inputs(
    self,
    observation: Mapping[str, tf.Tensor],
    is_first: tf.Tensor,
    state: Mapping[str, tf.Tensor],
  ) -> _StepInputs:
    new = TensorSpecStruct()
    begins = is_first | tf.equal(state[AGE], 0)
    new[AGE] = tf.where(begins, 1, state[AGE] + 1)
    frames = self._history.push(_at(_HISTORY, state), observation, new[AGE])
    new.update(_below(_HISTORY, frames))
    seen = {path: observation[path] for path in self._paths}
    seen.update(self._history.windows(frames, new[AGE]))
    if self._timed is not None:
      history, stamps = _at(_HISTORY, state), _at(_STAMPS, state)
      history, stamps = self._timed.push(history, stamps, observation, begins)
      new.update({**_below(_HISTORY, history), **_below(_STAMPS, stamps)})
      seen.update(self._timed.windows(history, stamps, observation))
    recurrent = _at(RECURRENT, state)
    if recurrent:
      initial = self._initial_recurrent(tf.shape(begins)[0])
      recurrent = {
        path: value
        if self._model.keeps_state(path)
        else tf.where(_as_column(begins, value), initial[path], value)
        for path, value in recurrent.items()
      }
    seeds = None
    if self._model.is_seeded:
      seeds = state[SEED]
      new[SEED] = seeds + tf.constant([[0, 1]])
    return _StepInputs(seen, recurrent, seeds, begins, new)

  def _run_network(
    self,
    seen: dict[str, tf.Tensor],
    recurrent: dict[str, tf.Tensor],
    seeds: tf.Tensor | None,
    prefix: Prefix | None = None,
  ) -> tuple[_Outputs, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    features = TensorSpecStruct(
      (path, value[:, tf.newaxis] if self._specs[path].is_sequence else value)
      for path, value in seen.items()
    )
    state = specs.pack_flat_sequence_to_spec_structure(
      self._model.get_recurrent_state_specification(ModeKeys.INFER),
      TensorSpecStruct(recurrent),
    )
    with recording_network_inputs() as inputs:
      if prefix is None:
        outputs, state = self._model.export_step(features, state, seeds)
      else:
        outputs = self._model.export_outputs_after(features, prefix)
    flat = specs.flatten_spec_structure(state)
    return dict(outputs), dict(flat.items()), inputs

  def _initial_recurrent(self, num_envs: tf.Tensor) -> dict[str, tf.Tensor]:
    if not len(self._recurrent):
      return {}
    state = self._model.initial_recurrent_state(num_envs)
    flat = dict(specs.flatten_spec_structure(state).items())
    mismatches = [
      errors.Mismatch(
        path, f"(batch, {', '.join(map(str, spec.shape))}) {spec.dtype.name}", got
      )
      for path, spec in self._recurrent.items()
      for got in [errors.describe(flat.get(path))]
      if path not in flat
      or flat[path].dtype != spec.dtype
      or not flat[path].shape[1:].is_compatible_with(spec.shape)
    ]
    if mismatches:
      raise errors.mismatch_error("initial_recurrent_state", mismatches)
    return flat

  def _outputs_spec(self) -> dict[str, tf.TensorSpec]:
    """Returns the specs of the model's outputs at one step, by name."""
    seen = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype)
      for path, spec in self._specs.items()
      if path in self._paths or path in mask_paths(self._specs)
    }
    recurrent = {
      path: tf.TensorSpec([None, *spec.shape], spec.dtype)
      for path, spec in self._recurrent.items()
    }
    seeds = tf.TensorSpec([None, 2], tf.int32) if self._model.is_seeded else None
    traced = self._network.get_concrete_function(seen, recurrent, seeds)
    return traced.structured_outputs[0]

  def _chunk_lengths(self) -> set[int]:
    """Returns the lengths of the labels' chunks, in all and from the current step."""
    preprocessor = self._model.step_model.preprocessor
    labels = preprocessor.get_in_label_specification(ModeKeys.TRAIN)
    offsets = [
      getattr(spec, "time_offsets", None)
      for spec in specs.flatten_spec_structure(labels).values()
    ]
    offsets = [getattr(each, "offsets", each) for each in offsets]
    chunks = [each for each in offsets if isinstance(each, tuple)]
    return {n for each in chunks for n in (len(each), sum(t >= 0 for t in each))}


def history_cut(model: PolicyModel) -> windows.Cut:
  """Returns the cut of a policy: windows exist from an episode's first step on."""
  return windows.Cut(padding=model.padding).for_policy()


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
  """Adds axes of size 1 to bool [N], up to the rank of `other`."""
  return tf.reshape(which, [-1] + [1] * (other.shape.rank - 1))


def _depth(spec: ExtendedTensorSpec) -> int:
  """Returns the number of frames that a path's windows span, the newest included."""
  return 1 - int(min(0, np.min(_offsets(spec))))


def _offsets(spec: ExtendedTensorSpec) -> np.ndarray:
  return np.asarray(spec.time_offsets, dtype=np.int64)
