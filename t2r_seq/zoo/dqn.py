"""Deep Q-learning, for discrete actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import policies
from t2r_seq.layers.control import QNetwork
from t2r_seq.models.t2r_model import Loss
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo import online_model
from t2r_seq.zoo.online_model import OnlineModel
from t2r_seq.zoo.spaces import EnvSignature


@gin.configurable
class DQNModel(OnlineModel):
  """Deep Q-learning (Mnih et al., 2015); optionally double, dueling and n-step.

  Exports give the value of each action, 'q_predicted', [B, num_actions], and the best
  action, 'inference_output'.
  """

  target_networks: Mapping[str, str] = {"target": "online"}
  exploration_output = "q_predicted"
  is_discrete = True

  def __init__(
    self,
    signature: EnvSignature,
    is_double: bool = True,
    is_dueling: bool = False,
    loss: str = "huber",
    epsilon: tuple[float, float] = (1.0, 0.05),
    exploration_fraction: float = 0.5,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      signature: signature of the environment.
      is_double: whether the trained network chooses the next action that the target
        network evaluates (van Hasselt et al., 2016).
      is_dueling: see `layers.control.QNetwork`.
      loss: 'huber' or 'squared'.
      epsilon: the first and the last probability of a random action.
      exploration_fraction: fraction of the environment steps over which epsilon decays.
      **kwargs: arguments of `OnlineModel`.
    Raises:
      SpecError: the actions are continuous, or an option is invalid; see `OnlineModel`.
    """
    super().__init__(signature, **kwargs)
    self._is_double, self._is_dueling = is_double, is_dueling
    self._error_fn = online_model.error_fn("DQNModel", loss)
    self._epsilon = policies.LinearSchedule(*epsilon, exploration_fraction)

  def create_network(self) -> dict[str, Any]:
    """Returns the trained network and the target network."""
    count = self.signature.num_actions
    assert count is not None
    network = {
      name: QNetwork(self.create_encoder(), self._hidden_sizes, count, self._is_dueling)
      for name in ("online", "target")
    }
    network["target"].trainable = False
    return network

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the value of each action."""
    return {"q_predicted": self.network["online"](self.observations(features))}

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the error against the value of the best next action."""
    following = self.next_observations(labels)
    values = self.network["target"](following)
    chooser = self.network["online"](following) if self._is_double else values
    best = tf.argmax(chooser, axis=1)
    target = self.target(labels, tf.gather(values, best, batch_dims=1))
    action = labels.action - self.signature.first_action
    value = tf.gather(inference_outputs["q_predicted"], action, batch_dims=1)
    loss = online_model.weighted_mean(labels, self._error_fn(value - target))
    scalars = {"q": tf.reduce_mean(value), "q_target": tf.reduce_mean(target)}
    return loss, scalars, self.examples(labels, value - target)

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the values and the best action."""
    values = tf.cast(inference_outputs["q_predicted"], tf.float32)
    action = tf.argmax(values, axis=1) + self.signature.first_action
    return {"q_predicted": values, "inference_output": action}

  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Chooses a random action with probability epsilon, otherwise the best."""
    is_random, action = rng.random() < self._epsilon(done), rng.integers(len(output))
    index = action if is_random else np.argmax(output)
    return np.int64(index + self.signature.first_action)
