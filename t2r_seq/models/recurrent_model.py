"""Models of sequences whose network carries a state from step to step."""

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
  """Trains on windows of L steps, and is exported with a `step` that remembers.

  A subclass declares sequences (`is_sequence=True`), gives the specs of its state and
  `recurrent_network_fn`. That runs over L steps in training, and over one in the
  exported policy, which keeps the state of every environment and resets it at
  `is_first`.
  """

  def __init__(
    self, burn_in: int = 0, stored_state: bool = False, **kwargs: Any
  ) -> None:
    """Creates the model.

    Args:
      burn_in: steps at the beginning of each training window that only compute the
        state for the others: windows begin anywhere in an episode, where the state is
        not the initial one. They have no gradient, and do not count in the loss.
      stored_state: training windows begin with the state that the policy had there,
        which the data hold (R2D2, Kapturowski et al., 2019). The exported policy gives
        it at every step, as outputs `recurrent_state_<path>`; see `with_stored_state`.
        As the network learns it goes stale: a burn-in mends that.
      **kwargs: arguments of `T2RModel`.
    Raises:
      SpecError: burn_in is negative.
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
    """Steps of each training window that only make a state."""
    return self._burn_in

  def with_stored_state(self, features: SpecStructure, mode: str) -> SpecStructure:
    """Adds the stored state to the features of training, if the model uses it.

    Args:
      features: specs that `get_feature_specification` would return.
      mode: value of `ModeKeys`.
    Returns:
      In training the features and, of a model with `stored_state`, a sequence
      `recurrent_state/<path>` for each part of the state: as it was before each step.
      Otherwise the features, unchanged.
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
    """Maps a sequence to outputs, from a state on.

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
    """See the base class: the outputs of a sequence from the initial state on."""
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
    burnt = self._part(features, slice(self._burn_in), mode)
    rest = self._part(features, slice(self._burn_in, None), mode)
    before, state = self._run(burnt, state, mode)
    before, state = tf.nest.map_structure(tf.stop_gradient, (before, state))
    after, _ = self._run(rest, state, mode)
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
    if self._stored_state:  # As it was before the step.
      for path, value in specs.flatten_spec_structure(recurrent_state).items():
        # A copy, since an output that is an argument would be the same tensor.
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
    """Returns the state that the data have of the first steps of windows."""
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
    """Returns some of the steps of the sequences."""
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
    """Maps a sequence to actions, from the initial state on."""
    return self.inference_network_fn(features, None, mode)

  def loss_fn(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """See the base class; in training the mean of the steps after `burn_in`."""
    if self._burn_in and mode == ModeKeys.TRAIN:
      flat = specs.flatten_spec_structure(labels)
      late = {
        path: flat[path][:, self._burn_in :]
        for path in ("target", "target_mask")
        if path in flat and flat[path] is not None
      }
      has = flat.get("target_dimension_mask")
      if has is not None:  # One for all steps, or one for each.
        is_by_step = has.shape.rank == flat["target"].shape.rank
        late["target_dimension_mask"] = has[:, self._burn_in :] if is_by_step else has
      labels = TensorSpecStruct(late)
      # Arguments of an action decoder's loss have the action's steps, too.
      inference_outputs = {
        name: value[:, self._burn_in :] for name, value in inference_outputs.items()
      }
    return super().loss_fn(labels, inference_outputs, mode)
