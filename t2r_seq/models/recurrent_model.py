"""Models of sequences with a recurrent state."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.models.regression_model import RegressionModel
from t2r_seq.models.t2r_model import T2RModel
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct
from t2r_seq.specs.structures import signature_key

STORED_STATE = "recurrent_state"


class RecurrentModel(T2RModel):
  """Trains on windows of L steps; the exported `step` carries a recurrent state.

  A subclass declares sequences (`is_sequence=True`), the specs of its state and
  `recurrent_network_fn`. That runs over L steps in training, and over one step in the
  exported policy, which resets the state of an environment at `is_first`.
  """

  def __init__(
    self, burn_in: int = 0, stored_state: bool = False, **kwargs: Any
  ) -> None:
    """Creates the model.

    Args:
      burn_in: steps at the beginning of each training window that only compute the
        state for the others: windows begin anywhere in an episode, where the state is
        not the initial one. They have no gradient, and do not count in the loss.
      stored_state: whether training windows begin with the state that the policy had
        there, which is stored in the data (R2D2, Kapturowski et al., 2019). The
        exported policy outputs it at every step, as `recurrent_state_<path>`; see
        `with_stored_state`. It becomes stale as the network learns; use a burn-in, too.
      **kwargs: arguments of `T2RModel`.
    Raises:
      SpecError: `burn_in` is negative, or an argument of `T2RModel` is invalid.
    """
    super().__init__(**kwargs)
    if burn_in < 0:
      raise errors.SpecError(
        f"{type(self).__name__}: burn_in: expected at least 0, got {burn_in}."
      )
    self._burn_in = burn_in
    self._stored_state = stored_state
    self._example_length = burn_in + 3

  @property
  def burn_in(self) -> int:
    """Steps of each training window that only compute the state for the others."""
    return self._burn_in

  def with_stored_state(self, features: SpecStructure, mode: str) -> SpecStructure:
    """Adds the stored state to the features of training, if the model uses it.

    Args:
      features: specs that `get_feature_specification` would return.
      mode: value of `ModeKeys`.
    Returns:
      `features`, unchanged; but with `stored_state` and in mode 'train' also a sequence
      `recurrent_state/<path>` for each part of the state: its values before each step.
    """
    if not self._stored_state or mode != ModeKeys.TRAIN:
      return features
    flat = TensorSpecStruct(specs.flatten_spec_structure(features).items())
    for path, spec in self._state_specs(mode).items():
      name = f"{STORED_STATE}/{path}"
      flat[name] = specs.ExtendedTensorSpec(
        spec.shape, spec.dtype, name, is_sequence=True
      )
    return flat

  @abc.abstractmethod
  def get_recurrent_state_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of the network's state, without the batch axis."""

  @abc.abstractmethod
  def recurrent_network_fn(
    self, features: SpecStructure, state: SpecStructure, mode: str
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """Maps a sequence to outputs, starting from a state.

    Args:
      features: packed as the feature specs, sequences [B, L, ...] with L >= 1.
      state: packed as the state's specs, [B, ...].
      mode: value of `ModeKeys`.
    Returns:
      (outputs by name, [B, L, ...]; the state after the last step).
    """

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: starts from the initial state, or in training a stored one.

    Raises:
      SpecError: the features lack the stored state, or the new state does not fit.
      tf.errors.InvalidArgumentError: a window in training has no step after `burn_in`.
    """
    del labels
    first = next(
      x for x in specs.flatten_spec_structure(features).values() if x is not None
    )
    if self._stored_state and mode == ModeKeys.TRAIN:
      state = self._stored_initial_state(features, mode)
    else:
      state = self.initial_recurrent_state(tf.shape(first)[0])
    if not self._burn_in or mode != ModeKeys.TRAIN:
      return self._run(features, state, mode)[0]
    length = next(
      tf.shape(x)[1]
      for path, x in specs.flatten_spec_structure(features).items()
      if x is not None and path in self._sequences(mode)
    )
    tf.debugging.assert_greater(
      length,
      self._burn_in,
      f"{type(self).__name__}: burn_in: expected windows of more steps. Raise the "
      "input's sequence_length.",
    )
    first_steps = self._part(features, slice(self._burn_in), mode)
    last_steps = self._part(features, slice(self._burn_in, None), mode)
    before, state = self._run(first_steps, state, mode)
    before, state = tf.nest.map_structure(tf.stop_gradient, (before, state))
    after, _ = self._run(last_steps, state, mode)
    return {name: tf.concat([before[name], after[name]], axis=1) for name in after}

  def export_step(
    self,
    raw_features: SpecStructure,
    recurrent_state: SpecStructure,
    seeds: tf.Tensor | None,
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """See the base class: one step of a sequence."""
    del seeds
    mode = ModeKeys.INFER
    features, _ = self.preprocessor.preprocess(raw_features, None, mode)
    features, _ = self.pack(features, None, mode)
    with self._holding_step():
      outputs, state = self._run(features, recurrent_state, mode)
      outputs = self._export_outputs(features, raw_features, outputs)
    outputs = {name: tf.squeeze(x, axis=1) for name, x in outputs.items()}
    if self._stored_state:  # The state before the step.
      for path, value in specs.flatten_spec_structure(recurrent_state).items():
        # A copy: an output must not be the tensor of an input.
        outputs[signature_key(f"{STORED_STATE}/{path}")] = tf.identity(value)
    return outputs, state

  def _run(
    self, features: SpecStructure, state: SpecStructure, mode: str
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    outputs, state = self.recurrent_network_fn(features, state, mode)
    self._check_outputs("recurrent_network_fn", outputs)
    spec = self.get_recurrent_state_specification(mode)
    return outputs, specs.validate_and_pack(spec, state, ignore_batch=True)

  def _stored_initial_state(self, features: SpecStructure, mode: str) -> SpecStructure:
    """Returns the stored state before the first step of each window."""
    flat = specs.flatten_spec_structure(features)
    names = {path: f"{STORED_STATE}/{path}" for path in self._state_specs(mode)}
    missing = [name for name in names.values() if flat.get(name) is None]
    if missing:
      raise errors.SpecError(
        f"{type(self).__name__}: stored_state: expected the features "
        f"{errors.listing(missing)}, got none. Have get_feature_specification return "
        "self.with_stored_state(features, mode)."
      )
    return specs.pack_flat_sequence_to_spec_structure(
      self.get_recurrent_state_specification(mode),
      TensorSpecStruct(
        (path, tf.convert_to_tensor(flat[name])[:, 0]) for path, name in names.items()
      ),
    )

  def _state_specs(self, mode: str) -> TensorSpecStruct:
    return specs.flatten_spec_structure(self.get_recurrent_state_specification(mode))

  def _part(self, features: SpecStructure, steps: slice, mode: str) -> SpecStructure:
    """Returns the features with a range of the steps of sequences."""
    sequences = self._sequences(mode)
    flat = TensorSpecStruct(
      (path, x[:, steps] if path in sequences and x is not None else x)
      for path, x in specs.flatten_spec_structure(features).items()
    )
    structure = self.get_feature_specification(mode)
    return specs.pack_flat_sequence_to_spec_structure(structure, flat)

  def _sequences(self, mode: str) -> set[str]:
    """Returns the paths of the features that are sequences."""
    flat = specs.flatten_spec_structure(self.get_feature_specification(mode))
    return {path for path, spec in flat.items() if spec.is_sequence}


class RecurrentRegressionModel(RecurrentModel, RegressionModel):
  """Regresses `labels.target`, [B, L, action_size], at every step of a sequence."""

  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """Maps a sequence to actions; see `inference_network_fn`."""
    return self.inference_network_fn(features, None, mode)

  def loss_fn(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """See the base class; in training the mean over the steps after `burn_in`."""
    if self._burn_in and mode == ModeKeys.TRAIN:
      flat, steps = specs.flatten_spec_structure(labels), slice(self._burn_in, None)
      late = {path: x for path, x in flat.items() if path.startswith("sample/")}
      late |= {p: flat[p][:, steps] for p in ("target", "target_mask") if p in flat}
      mask = flat.get("target_dimension_mask")
      if mask is not None:  # One for all steps, or one for each.
        has_steps = mask.shape.rank == flat["target"].shape.rank
        late["target_dimension_mask"] = mask[:, steps] if has_steps else mask
      labels = TensorSpecStruct(late)
      # Outputs for an action decoder's loss have an axis of steps, too.
      inference_outputs = {
        name: value[:, steps] for name, value in inference_outputs.items()
      }
    return super().loss_fn(labels, inference_outputs, mode)
