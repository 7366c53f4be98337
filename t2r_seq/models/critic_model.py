"""Critics: models of the value of an action in a state."""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf

from t2r_seq import errors, layers, policies, specs
from t2r_seq.data.input_generator import SAMPLE_KEY
from t2r_seq.models import losses
from t2r_seq.models.t2r_model import Loss, T2RModel
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, SpecStructure, TensorSpecStruct
from t2r_seq.specs.structures import signature_key


class CriticModel(T2RModel):
  """Q(state, action), fitted to `labels.reward`: a return, or a Bellman target.

  If labels have the specs of `replay.add_sample_specs`, importance weights multiply the
  errors, and callbacks get the 'td_error' of each example.

  A subclass defines the specs of state and action, those of the labels, the network and
  `q_func`. The exported critic evaluates `action_batch_size` actions in each state with
  one call, as the cross-entropy method needs; the state is encoded once. With a
  `search` the export also has a `step` that maps a state to the best `action` that it
  finds, and its value, `q_predicted`.
  """

  def __init__(
    self,
    loss_function: losses.ErrorFunction = losses.squared_error,
    action_batch_size: int | None = None,
    search: policies.CrossEntropySearch | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      loss_function: errors of values, e.g. `log_loss` for probabilities of success.
      action_batch_size: actions per state in mode 'infer'. None: the search's
        `num_samples`; without a search one action, and no axis of actions.
      search: search for the best action in the exported `step`; None: the export has no
        `step`.
      **kwargs: arguments of `T2RModel`.
    Raises:
      SpecError: `action_batch_size` is below 1, or differs from the search's
        `num_samples`.
    """
    super().__init__(**kwargs)
    if search is not None:
      if action_batch_size not in (None, search.num_samples):
        raise errors.SpecError(
          f"{type(self).__name__}: action_batch_size: expected the search's "
          f"num_samples, {search.num_samples}, or None, got {action_batch_size}."
        )
      action_batch_size = search.num_samples
    self._search = search
    if action_batch_size is not None and action_batch_size < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: action_batch_size: expected at least 1, got "
        f"{action_batch_size}."
      )
    self._loss_function = loss_function
    self._action_batch_size = action_batch_size

  @abc.abstractmethod
  def get_state_specification(self) -> SpecStructure:
    """Returns the specs that all actions of a state share."""

  @abc.abstractmethod
  def get_action_specification(self) -> SpecStructure:
    """Returns the specs of each action."""

  def get_feature_specification(self, mode: str) -> SpecStructure:
    """Returns the state and action specs, below 'state' and 'action'.

    In mode 'infer' actions come from a search, not from an episode: they have no time
    offsets and, unless `action_batch_size` is None, a first axis of this size.
    """
    action = self.get_action_specification()
    if mode == ModeKeys.INFER:
      action = specs.map_leaves(self._candidates, action)
    return TensorSpecStruct(state=self.get_state_specification(), action=action)

  def state_func(self, state: SpecStructure, mode: str) -> Any:
    """Encodes the state, once for all actions; by default the identity.

    Args:
      state: packed as the state specs, [B, ...].
      mode: value of `ModeKeys`.
    Returns:
      A tensor or structure of tensors, [B, ...].
    """
    del mode
    return state

  @abc.abstractmethod
  def q_func(
    self, state: Any, action: SpecStructure, mode: str
  ) -> dict[str, tf.Tensor]:
    """Predicts the value of one action for each state.

    Args:
      state: result of `state_func`, [B, ...]; with several actions per state, the state
        of each action.
      action: packed as the action specs, [B, ...].
      mode: value of `ModeKeys`.
    Returns:
      Outputs by name, [B, ...]; 'q_predicted', of the shape of `labels.reward`, is
      required.
    """

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class.

    Returns:
      The outputs of `q_func`, [B, ...]; in mode 'infer', unless `action_batch_size` is
      None, [B, action_batch_size, ...].
    Raises:
      SpecError: the outputs of `q_func` are not a dict, or lack 'q_predicted'.
    """
    del labels
    state, action = self.state_func(features.state, mode), features.action
    count = self._action_batch_size if mode == ModeKeys.INFER else None
    if count is None:
      return self._values(state, action, mode)
    return self._values_of_candidates(state, action, count, mode)

  def _values_of_candidates(
    self, state: Any, action: SpecStructure, count: int, mode: str
  ) -> dict[str, tf.Tensor]:
    """Evaluates several actions, [B, count, ...], in each encoded state, [B, ...]."""
    repeat = lambda x: None if x is None else tf.repeat(x, count, axis=0)  # noqa: E731
    state = tf.nest.map_structure(repeat, state)
    outputs = self._values(state, specs.map_leaves(_join, action), mode)
    return {
      name: tf.reshape(x, tf.concat([[-1, count], tf.shape(x)[1:]], axis=0))
      for name, x in outputs.items()
    }

  def loss_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
  ) -> tf.Tensor:
    """Returns the mean error of the values, a scalar.

    Padded rewards, by the labels' `reward_mask`, do not count. The labels'
    'sample/weight', if present, multiplies the errors.

    Raises:
      SpecError: 'q_predicted' or a mask does not fit `labels.reward`.
    """
    del features
    values = inference_outputs["q_predicted"]
    function = self._loss_function
    errors = losses.all_errors(labels, "reward", "q_predicted", values, function)
    return layers.masked_mean(*errors)

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """See the base class: the loss of `loss_fn`.

    Returns:
      The loss; or if the labels have 'sample/key', (loss, {}, the keys and 'td_error').
    """
    del mode
    loss = self.loss_fn(features, labels, inference_outputs)
    key = losses.replay_value(labels, "key")
    if key is None:
      return loss
    error = tf.cast(inference_outputs["q_predicted"], tf.float32)
    error = tf.abs(error - tf.cast(labels.reward, tf.float32))
    error = tf.reduce_mean(tf.reshape(error, [tf.shape(error)[0], -1]), axis=1)
    return loss, {}, {SAMPLE_KEY: key, "td_error": error}

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: 'q_predicted' only, half precision as float32."""
    del features, mode
    return {"q_predicted": losses.as_float32(inference_outputs["q_predicted"])}

  @property
  def is_seeded(self) -> bool:  # type: ignore[override]
    """Whether a step needs random numbers: if it searches."""
    return self._search is not None

  def step_paths(self, raw_paths: list[str]) -> list[str]:
    """See the base class: without the action if a search finds it."""
    if self._search is None:
      return raw_paths
    return [path for path in raw_paths if not _is_action(path)]

  def export_step(
    self,
    raw_features: SpecStructure,
    recurrent_state: SpecStructure,
    seeds: tf.Tensor | None,
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """See the base class; with a search, the best action that it finds.

    Returns:
      ('action', or 'action_<path>' for each path if there are several, and
      'q_predicted', [N, ...]; the state).
    """
    if self._search is None or seeds is None:
      return super().export_step(raw_features, recurrent_state, seeds)
    search, mode = self._search, ModeKeys.INFER
    in_spec = self.preprocessor.get_in_feature_specification(mode)
    action_spec = TensorSpecStruct(
      (path, ExtendedTensorSpec(spec.shape[1:], spec.dtype))
      for path, spec in specs.flatten_spec_structure(in_spec).items()
      if _is_action(path)
    )
    search.check(action_spec)
    encoded = list[Any]()  # AutoGraph rejects annotated variables in closures.

    def objective(actions: TensorSpecStruct) -> tf.Tensor:
      raw = TensorSpecStruct({**raw_features, **actions})
      features, _ = self.preprocessor.preprocess(raw, None, mode)
      features, _ = self.pack(features, None, mode)
      if not encoded:
        encoded.append(self.state_func(features.state, mode))
      outputs = self._values_of_candidates(
        encoded[0], features.action, search.num_samples, mode
      )
      outputs = self.create_export_outputs_fn(features, outputs, mode)
      values = tf.cast(outputs["q_predicted"], tf.float32)
      return tf.reshape(values, [-1, search.num_samples])

    with self._holding_step():
      best, value = search.maximize(objective, action_spec, seeds)
    named = {signature_key(path): action for path, action in best.items()}
    if len(named) == 1:
      named = {"action": next(iter(named.values()))}
    reward = specs.flatten_spec_structure(self.get_label_specification(mode))["reward"]
    value = tf.reshape(value, [-1, *reward.shape])  # The shape is () or (1,).
    return {**named, "q_predicted": value}, recurrent_state

  def _candidates(self, spec: tf.TensorSpec) -> ExtendedTensorSpec:
    count = self._action_batch_size
    shape = spec.shape if count is None else [count, *spec.shape]
    return ExtendedTensorSpec.from_spec(spec, shape=shape, time_offsets=None)

  def _values(
    self, state: Any, action: SpecStructure, mode: str
  ) -> dict[str, tf.Tensor]:
    outputs = self.q_func(state, action, mode)
    self._check_outputs("q_func", outputs, "q_predicted")
    return outputs


def _is_action(path: str) -> bool:
  return path == "action" or path.startswith("action/")


def _join(actions: tf.Tensor | None) -> tf.Tensor | None:
  """Merges the axes of states and actions: [B, N, ...] to [B * N, ...]."""
  if actions is None:
    return None
  joined = tf.reshape(actions, tf.concat([[-1], tf.shape(actions)[2:]], axis=0))
  return tf.ensure_shape(joined, [None, *actions.shape[2:]])
