"""Soft actor-critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.models.t2r_model import Loss
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.actor_critic import CRITICS, ActorCriticModel, through_action
from t2r_seq.zoo.spaces import EnvSignature

# As in CleanRL: without bounds the exponent overflows in the first steps.
_LOG_STD_RANGE = (-5.0, 2.0)


@gin.configurable
class SACModel(ActorCriticModel):
  """Soft actor-critic with a learned temperature (Haarnoja et al., 2018)."""

  target_networks: Mapping[str, str] = {f"target_{name}": name for name in CRITICS}
  exploration_output = "distribution"
  actor_outputs = 2

  def __init__(
    self,
    signature: EnvSignature,
    temperature: float = 1.0,
    target_entropy: float | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      signature: signature of the environment.
      temperature: initial temperature.
      target_entropy: target entropy of the policy, for which the temperature is
        learned; None: minus the number of action elements.
      **kwargs: arguments of `OnlineModel`.
    Raises:
      SpecError: the actions are discrete, the temperature is not positive, or another
        option is invalid; see `OnlineModel`.
    """
    super().__init__(signature, **kwargs)
    if not temperature > 0:
      raise errors.SpecError(
        f"SACModel: temperature: expected a number > 0, got {temperature!r}."
      )
    self._temperature = temperature
    size = self.signature.action_size
    self._target_entropy = -float(size) if target_entropy is None else target_entropy

  def create_network(self) -> dict[str, Any]:
    """Returns the networks and the logarithm of the temperature."""
    return {**super().create_network(), "temperature": _LogValue(self._temperature)}

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns mean and log std, [B, 2 * A], of the actions before tanh."""
    outputs = self.act("actor", self.observations(features))
    return {"distribution": _bound_log_std(outputs)}

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the summed losses of critics, actor and temperature."""
    log_temperature = self.network["temperature"]()
    temperature = tf.stop_gradient(tf.exp(log_temperature))
    following = self.next_observations(labels)
    sampled = self._sample(_bound_log_std(self.act("actor", following)), 0)
    values = [self.value(n, following, sampled[0]) for n in self.target_networks]
    soft = tf.minimum(*values) - temperature * sampled[1]
    loss, scalars, examples = self.critic_loss(
      features, labels, self.target(labels, soft)
    )
    observations = self.observations(features)
    action, log_prob = self._sample(inference_outputs["distribution"], 1)
    with tf.GradientTape() as tape:
      tape.watch(action)
      value = tf.minimum(*(self.value(n, observations, action) for n in CRITICS))
    value = through_action(value, tape.gradient(value, action), action)
    actor_loss = tf.reduce_mean(temperature * log_prob - value)
    gap = tf.stop_gradient(tf.reduce_mean(log_prob) + self._target_entropy)
    scalars = {
      **scalars,
      "actor_loss": actor_loss,
      "temperature": temperature,
      "entropy": -tf.reduce_mean(log_prob),
    }
    return loss + actor_loss - log_temperature * gap, scalars, examples

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """Adds the action: tanh of the mean, scaled to the bounds of the environment."""
    distribution = inference_outputs["distribution"]
    mean = distribution[:, : self.signature.action_size]
    action = self.signature.unnormalize(tf.tanh(mean))
    return {"distribution": distribution, "inference_output": action}

  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Samples an action from the distribution."""
    mean, log_std = np.split(output, 2)
    sample = mean + np.exp(log_std) * rng.standard_normal(mean.shape)
    return self.signature.unnormalize(np.tanh(sample).astype(np.float32))

  def _sample(
    self, distribution: tf.Tensor, purpose: int
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws squashed actions, [B, A], and their log probabilities, [B]."""
    mean, log_std = tf.split(distribution, 2, axis=1)
    noise = self.normal(mean, purpose)
    raw = mean + tf.exp(log_std) * noise
    log_prob = -0.5 * tf.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(raw)^2) in a form that stays finite for large `raw`.
    log_prob -= 2.0 * (math.log(2.0) - raw - tf.nn.softplus(-2.0 * raw))
    return tf.tanh(raw), tf.reduce_sum(log_prob, axis=1)


def _bound_log_std(outputs: tf.Tensor) -> tf.Tensor:
  """Squashes the log standard deviations into `_LOG_STD_RANGE`."""
  mean, log_std = tf.split(outputs, 2, axis=1)
  low, high = _LOG_STD_RANGE
  log_std = low + 0.5 * (high - low) * (tf.tanh(log_std) + 1.0)
  return tf.concat([mean, log_std], axis=1)


class _LogValue(tf.keras.layers.Layer):
  """The logarithm of a positive number, as a trained variable."""

  def __init__(self, value: float) -> None:
    # Keras 2 makes a scope of the class name, which must not begin with '_'.
    super().__init__(name="log_value")
    initial = tf.keras.initializers.Constant(math.log(value))
    self._log = self.add_weight(name="log", shape=(), initializer=initial)
    self.built = True

  def call(self, inputs: Any = None) -> tf.Tensor:
    return tf.convert_to_tensor(self._log)

  def __call__(self) -> tf.Tensor:
    return self.call()
