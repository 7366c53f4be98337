"""Critics that learn from their own value of the next step."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors, policies, specs
from t2r_seq.models import networks
from t2r_seq.models.critic_model import CriticModel
from t2r_seq.models.t2r_model import Loss
from t2r_seq.specs import (
  ExtendedTensorSpec,
  ModeKeys,
  Seconds,
  SpecStructure,
  TensorSpecStruct,
)

_LEARNER, _TARGET, _LAGGED = "learner", "target", "lagged"


class BellmanTargets(CriticModel):
  """Fits a critic to its reward and the value of its best next action: QT-Opt.

  A mixin, listed before a critic that needs no change:

      class QLearner(models.BellmanTargets, MyCritic): ...

  The target is `reward + discount * min(target, lagged)(next, a)`, where `a` is the
  best action that a search finds by the target network. The target network averages the
  learner's weights exponentially, and the lagged one is an older copy of it
  (Kalashnikov et al., 2018; the minimum is that of clipped double Q-learning). The
  search and the updates run inside the train step.

  Labels are the critic's, the flag `terminated`, the `discount` that an input generator
  with `n_step` computes, and `next_state`, the state one step later. So an episode of T
  actions has T + 1 steps, the last with the last observation. A preprocessor has to
  transform `next_state` as it does the state.
  """

  # Name of the network that a view uses; None for the model itself.
  _in_use: str | None = None

  def __init__(
    self,
    bellman_search: policies.CrossEntropySearch | None = None,
    target_rate: float = 0.01,
    lag_steps: int | None = 1000,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      bellman_search: search for the best next action; None: the critic's `search`.
      target_rate: step size of the target network towards the learner's weights, in
        each train step; the first one copies them.
      lag_steps: train steps between two copies of the target network to the lagged one;
        None: there is no lagged network.
      **kwargs: arguments of the critic.
    Raises:
      SpecError: there is no search, or a number is out of range.
    """
    super().__init__(**kwargs)
    name = type(self).__name__
    self._bellman_search = bellman_search or self._search
    if self._bellman_search is None:
      raise errors.SpecError(
        f"{name}: bellman_search: expected a CrossEntropySearch, here or as `search`, "
        "got none. The target is the value of the best next action."
      )
    if not 0 < target_rate <= 1:
      raise errors.SpecError(
        f"{name}: target_rate: expected a number in (0, 1], got {target_rate!r}."
      )
    if lag_steps is not None:
      errors.check_count(name, "lag_steps", lag_steps)
    self._target_rate, self._lag_steps = target_rate, lag_steps

  def get_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the critic's labels, `terminated`, `discount`, and `next_state`.

    Raises SpecError if the state has time offsets in seconds.
    """
    given_labels = super().get_label_specification(mode)  # type: ignore[safe-super]
    labels = specs.flatten_spec_structure(given_labels)
    reward = ExtendedTensorSpec.to_spec(labels["reward"])
    flag = ExtendedTensorSpec.from_spec(reward, name="terminated", dtype=tf.bool)
    discount = ExtendedTensorSpec(reward.shape, tf.float32)
    following = TensorSpecStruct(
      (f"next_state/{path}", _one_step_later(path, ExtendedTensorSpec.to_spec(spec)))
      for path, spec in specs.flatten_spec_structure(
        self.get_state_specification()
      ).items()
    )
    given = {"terminated": flag, **labels, "discount": discount}
    return TensorSpecStruct({**given, **following})

  def create_network(self) -> dict[str, Any]:
    """Returns the critic's network, the target network and the lagged one."""
    by_name = {_LEARNER: super().create_network()}  # type: ignore[safe-super]
    for name in self._targets:
      by_name[name] = super().create_network()  # type: ignore[safe-super]
      for each in networks.as_networks(by_name[name]):
        each.trainable = False
    return by_name

  @property
  def network(self) -> Any:
    """See the base class; for a view, its network."""
    whole = super().network
    return whole if self._in_use is None else whole[self._in_use]

  def state_func(self, state: SpecStructure, mode: str) -> Any:
    """Encodes the state by the network in use, which is the learner's by default."""
    if self._in_use is None:
      return self._using(_LEARNER).state_func(state, mode)
    return super().state_func(state, mode)

  def q_func(
    self, state: Any, action: SpecStructure, mode: str
  ) -> dict[str, tf.Tensor]:
    """Values actions by the network in use, which is the learner's by default."""
    if self._in_use is None:
      return self._using(_LEARNER).q_func(state, action, mode)
    return super().q_func(state, action, mode)  # type: ignore[safe-super]

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the critic's loss with the targets in place of the rewards."""
    target = self.bellman_targets(labels)
    fitted = specs.flatten_spec_structure(labels).copy()
    fitted["reward"] = target
    loss = super().model_train_fn(features, fitted, inference_outputs, mode)
    loss, scalars, *rest = loss if isinstance(loss, tuple) else (loss, {})
    return loss, {**scalars, "q_target": tf.reduce_mean(target)}, *rest

  def bellman_targets(self, labels: SpecStructure) -> tf.Tensor:
    """Returns the target values, of the shape and dtype of the reward.

    Args:
      labels: packed as the label specs, [B, ...].
    Raises:
      SpecError: the search does not support the action specs.
    """
    search, mode = self._bellman_search, ModeKeys.EVAL
    assert search is not None
    action_spec = TensorSpecStruct(
      (path, ExtendedTensorSpec(spec.shape, spec.dtype))
      for path, spec in specs.flatten_spec_structure(
        self.get_action_specification()
      ).items()
    )
    search.check(action_spec)
    views = [self._using(name) for name in self._targets]
    encoded = [view.state_func(labels.next_state, mode) for view in views]

    def value(view: BellmanTargets, state: Any, actions: TensorSpecStruct) -> tf.Tensor:
      packed = specs.pack_flat_sequence_to_spec_structure(
        self.get_action_specification(), actions
      )
      count = next(iter(actions.values())).shape[1]
      outputs = view._values_of_candidates(state, packed, count, mode)
      return tf.reshape(tf.cast(outputs["q_predicted"], tf.float32), [-1, count])

    reward = labels.reward
    number = tf.range(tf.shape(reward)[0])
    step = tf.cast(self.global_step, tf.int32)
    _, best = best_actions(
      search,
      [functools.partial(value, *each) for each in zip(views, encoded, strict=True)],
      action_spec,
      tf.stack([number, tf.fill(tf.shape(number), step)], axis=1),
    )
    best = tf.reshape(tf.cast(best, reward.dtype), tf.shape(reward))
    discount = tf.cast(labels.discount, reward.dtype)
    return tf.stop_gradient(reward + discount * best)

  def after_train_step(self) -> None:
    """Updates the target network and, every `lag_steps`, the lagged one."""
    super().after_train_step()
    whole, step = self.network, self.global_step + 1
    # The first step copies the weights: the networks have separate initial values.
    is_first = step == 1
    rate = tf.where(is_first, 1.0, self._target_rate)
    networks.update_target_network(whole[_TARGET], whole[_LEARNER], rate)
    if self._lag_steps is not None:
      is_due = is_first | (step % self._lag_steps == 0)
      rate = tf.cast(is_due, tf.float32)
      networks.update_target_network(whole[_LAGGED], whole[_TARGET], rate)

  def _using(self, name: str) -> BellmanTargets:
    """Returns a view of this model whose functions use one of its networks."""
    view = copy.copy(self)
    view.__dict__["_in_use"] = name
    return view

  @property
  def _targets(self) -> tuple[str, ...]:
    return (_TARGET,) if self._lag_steps is None else (_TARGET, _LAGGED)


def best_actions(
  search: policies.CrossEntropySearch,
  critics: Sequence[Callable[[TensorSpecStruct], tf.Tensor]],
  action_spec: TensorSpecStruct,
  seeds: tf.Tensor,
) -> tuple[TensorSpecStruct, tf.Tensor]:
  """Searches for the best actions of the first critic; their value is the minimum.

  Args:
    search: the cross-entropy method.
    critics: each maps actions by path, [B, N, ...], to values, [B, N].
    action_spec: specs of one action by path.
    seeds: int32 [B, 2].
  Returns:
    The actions by path, [B, ...], and the minimum of the critics' values of them, [B].
  """
  first, *others = critics
  best, value = search.maximize(first, action_spec, seeds)
  one = TensorSpecStruct((path, each[:, tf.newaxis]) for path, each in best.items())
  for critic in others:
    value = tf.minimum(value, critic(one)[:, 0])
  return best, value


def _one_step_later(path: str, spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
  """Returns the spec of a state one step later."""
  offsets = spec.time_offsets
  if isinstance(offsets, Seconds):
    raise errors.SpecError(
      f"{path}: time_offsets: expected steps for the next state, got {offsets}."
    )
  if isinstance(offsets, tuple):
    offsets = tuple(each + 1 for each in offsets)
  elif offsets != "last":  # The next state has the same goal.
    offsets = (offsets or 0) + 1
  name = spec.name or f"state/{path}"
  return ExtendedTensorSpec.from_spec(spec, name=name, time_offsets=offsets)
