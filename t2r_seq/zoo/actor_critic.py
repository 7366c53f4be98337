"""Shared parts of actor-critic methods for continuous actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq.layers.vision_layers import MLP
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo import online_model
from t2r_seq.zoo.online_model import OnlineModel

CRITICS = ("critic_0", "critic_1")


class ActorCriticModel(OnlineModel):
  """An actor, two critics, and the target networks that a subclass names.

  One loss trains actor and critics. The actor's part uses only the derivative of the
  critics' value with respect to the action, so it sends no gradient to the critics.
  """

  actor_outputs = 1
  """Outputs of the actor for each element of an action."""

  def create_network(self) -> dict[str, Any]:
    """Returns the actor, the critics and the target networks."""
    size = self.signature.action_size
    network: dict[str, Any] = {}
    for name in ("actor", *CRITICS, *self.target_networks):
      is_actor = name.endswith("actor")
      count = self.actor_outputs * size if is_actor else 1
      network[name] = {
        "encoder": self.create_encoder(),
        "head": MLP(self._hidden_sizes, count, normalizer=None),
      }
      for each in network[name].values():
        each.trainable = name not in self.target_networks
    return network

  def act(self, name: str, observations: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the outputs of an actor, [B, actor_outputs * A], float32."""
    network = self.network[name]
    return tf.cast(network["head"](network["encoder"](observations)), tf.float32)

  def value(
    self, name: str, observations: Mapping[str, tf.Tensor], action: tf.Tensor
  ) -> tf.Tensor:
    """Returns a critic's value of normalised actions [B, A], [B], float32."""
    network = self.network[name]
    encoded = network["encoder"](observations)
    joined = tf.concat([encoded, tf.cast(action, encoded.dtype)], axis=-1)
    return tf.cast(network["head"](joined)[:, 0], tf.float32)

  def critic_loss(
    self, features: SpecStructure, labels: SpecStructure, target: tf.Tensor
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the summed loss of both critics, scalars, and the first's TD errors."""
    observations = self.observations(features)
    action = self.signature.normalize(labels.action)
    values = [self.value(name, observations, action) for name in CRITICS]
    loss = tf.add_n(
      [online_model.weighted_mean(labels, tf.square(v - target)) for v in values]
    )
    scalars = {
      "critic_loss": loss,
      "q": tf.reduce_mean(values[0]),
      "q_target": tf.reduce_mean(target),
    }
    return loss, scalars, self.examples(labels, values[0] - target)


def through_action(value: tf.Tensor, slope: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
  """Returns `value` with a gradient through `action` only.

  Args:
    value: value of the actions, [B].
    slope: derivative of the values with respect to the actions, [B, A].
    action: [B, A].
  """
  moved = tf.reduce_sum(tf.stop_gradient(slope) * action, axis=1)
  return tf.stop_gradient(value - moved) + moved
