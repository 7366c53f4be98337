"""Twin delayed DDPG."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, models
from t2r_seq.models.t2r_model import Loss
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.actor_critic import CRITICS, ActorCriticModel, through_action
from t2r_seq.zoo.spaces import EnvSignature


@gin.configurable
class TD3Model(ActorCriticModel):
  """Twin delayed DDPG (Fujimoto et al., 2018).

  The actor and the target networks are updated every `policy_interval` train steps.
  """

  target_networks: Mapping[str, str] = {
    f"target_{name}": name for name in ("actor", *CRITICS)
  }

  def __init__(
    self,
    signature: EnvSignature,
    policy_interval: int = 2,
    noise: float = 0.1,
    target_noise: float = 0.2,
    target_noise_clip: float = 0.5,
    **kwargs: Any,
  ) -> None:
    """Creates the model; noise is in units of half the range of each action element.

    Args:
      signature: signature of the environment.
      policy_interval: train steps per update of the actor and of target networks.
      noise: standard deviation of exploration noise.
      target_noise: standard deviation of the noise on the target network's actions.
      target_noise_clip: maximum absolute target noise.
      **kwargs: arguments of `OnlineModel` except `target_update_steps`.
    Raises:
      SpecError: the actions are discrete, or an option is invalid; see `OnlineModel`.
    """
    interval = errors.check_count("TD3Model", "policy_interval", policy_interval)
    super().__init__(signature, target_update_steps=interval, **kwargs)
    self._interval, self._noise = interval, noise
    self._target_noise, self._clip = target_noise, target_noise_clip
    create = self._create_optimizer_fn
    self._create_optimizer_fn = lambda: models.create_grouped_optimizer(
      {"actor/*": create, "*": create}, intervals={"actor/*": interval}
    )

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the action in [-1, 1], as 'squashed'."""
    return {"squashed": tf.tanh(self.act("actor", self.observations(features)))}

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the summed losses of critics and actor."""
    following = self.next_observations(labels)
    action = tf.tanh(self.act("target_actor", following))
    noise = self._target_noise * self.normal(action, 0)
    noise = tf.clip_by_value(noise, -self._clip, self._clip)
    action = tf.clip_by_value(action + noise, -1.0, 1.0)
    values = [self.value(f"target_{n}", following, action) for n in CRITICS]
    loss, scalars, examples = self.critic_loss(
      features, labels, self.target(labels, tf.minimum(*values))
    )
    action = inference_outputs["squashed"]
    with tf.GradientTape() as tape:
      tape.watch(action)
      value = self.value(CRITICS[0], self.observations(features), action)
    value = through_action(value, tape.gradient(value, action), action)
    actor_loss = -tf.reduce_mean(value)
    return loss + actor_loss, {**scalars, "actor_loss": actor_loss}, examples

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the action in the environment's units."""
    return {
      "inference_output": self.signature.unnormalize(inference_outputs["squashed"])
    }

  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Adds noise to the exported action."""
    return self.signature.add_noise(output, self._noise, rng)
