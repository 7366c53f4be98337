"""Actor-critic methods for continuous actions: SAC and TD3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, layers, models
from t2r_seq.models.t2r_model import Loss
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo import online_model
from t2r_seq.zoo.online_model import OnlineModel
from t2r_seq.zoo.q_learning import noisy
from t2r_seq.zoo.spaces import EnvSignature

_CRITICS = ("critic_0", "critic_1")
_LOG_STD_RANGE = (-5.0, 2.0)


class ActorCriticModel(OnlineModel):
  """An actor, two critics, and the targets of what a subclass names.

  Actor and critics are trained by one loss: the critics get no gradient of the actor's
  part, which sees them by the derivative of their value with respect to the action.
  """

  actor_outputs = 1
  """Numbers that the actor gives for each of an action."""

  def create_network(self) -> dict[str, Any]:
    """Returns the actor, the critics and the target networks."""
    size = self.signature.action_size
    network: dict[str, Any] = {}
    for name in ("actor", *_CRITICS, *self.target_networks):
      is_actor = name.endswith("actor")
      count = self.actor_outputs * size if is_actor else 1
      network[name] = {
        "encoder": self.create_encoder(),
        "head": layers.MLP(self._hidden_sizes, count, normalizer=None),
      }
      for each in network[name].values():
        each.trainable = name not in self.target_networks
    return network

  def act(self, name: str, observations: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Returns the outputs of an actor, [B, actor_outputs * A]."""
    network = self.network[name]
    return tf.cast(network["head"](network["encoder"](observations)), tf.float32)

  def value(
    self, name: str, observations: Mapping[str, tf.Tensor], action: tf.Tensor
  ) -> tf.Tensor:
    """Values normalised actions [B, A] by a critic, [B]."""
    network = self.network[name]
    encoded = network["encoder"](observations)
    joined = tf.concat([encoded, tf.cast(action, encoded.dtype)], axis=-1)
    return tf.cast(network["head"](joined)[:, 0], tf.float32)

  def critic_loss(
    self, features: SpecStructure, labels: SpecStructure, target: tf.Tensor
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Returns the error of both critics, scalars, and what priorities are made of."""
    observations = self.observations(features)
    action = self.signature.normalize(labels.action)
    values = [self.value(name, observations, action) for name in _CRITICS]
    each = [online_model.weighted_mean(labels, tf.square(v - target)) for v in values]
    scalars = {
      "critic_loss": tf.add_n(each),
      "q": tf.reduce_mean(values[0]),
      "q_target": tf.reduce_mean(target),
    }
    return tf.add_n(each), scalars, self.examples(labels, values[0] - target)


def through_action(value: tf.Tensor, slope: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
  """Returns values whose gradient reaches what chose the action, and no critic.

  Args:
    value: of the actions, [B].
    slope: the derivative of the values with respect to the actions, [B, A].
    action: [B, A].
  """
  moved = tf.reduce_sum(tf.stop_gradient(slope) * action, axis=1)
  return tf.stop_gradient(value - moved) + moved


@gin.configurable
class SACModel(ActorCriticModel):
  """Soft actor-critic with a learned temperature (Haarnoja et al., 2018)."""

  target_networks: Mapping[str, str] = {f"target_{name}": name for name in _CRITICS}
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
      signature: of the environment.
      temperature: the first one.
      target_entropy: of the policy, which the temperature is learned for; None for
        minus the size of the action.
      **kwargs: of `OnlineModel`.
    Raises:
      SpecError: the actions are discrete, or the temperature is not positive.
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
    """Returns the distribution of the actions before they are squashed."""
    outputs = self.act("actor", self.observations(features))
    return {"distribution": _bounded(outputs)}

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the losses of the critics, the actor and the temperature together."""
    log_temperature = self.network["temperature"]()
    temperature = tf.stop_gradient(tf.exp(log_temperature))
    following = self.next_observations(labels)
    sampled = self._sample(_bounded(self.act("actor", following)), 0)
    values = [self.value(n, following, sampled[0]) for n in self.target_networks]
    soft = tf.minimum(*values) - temperature * sampled[1]
    loss, scalars, examples = self.critic_loss(
      features, labels, self.target(labels, soft)
    )
    observations = self.observations(features)
    action, log_prob = self._sample(inference_outputs["distribution"], 1)
    with tf.GradientTape() as tape:
      tape.watch(action)
      value = tf.minimum(*(self.value(n, observations, action) for n in _CRITICS))
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
    """Adds the action: the mean, squashed to the bounds of the environment."""
    distribution = inference_outputs["distribution"]
    mean = distribution[:, : self.signature.action_size]
    action = self.signature.unnormalize(tf.tanh(mean))
    return {"distribution": distribution, "inference_output": action}

  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Draws an action."""
    mean, log_std = np.split(output, 2)
    drawn = mean + np.exp(log_std) * rng.standard_normal(mean.shape)
    return self.signature.unnormalize(np.tanh(drawn).astype(np.float32))

  def _sample(
    self, distribution: tf.Tensor, purpose: int
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws squashed actions, [B, A], and their log probabilities, [B]."""
    mean, log_std = tf.split(distribution, 2, axis=1)
    noise = self.normal(mean, purpose)
    raw = mean + tf.exp(log_std) * noise
    log_prob = -0.5 * tf.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    # log(1 - tanh(raw)^2), without its overflow.
    log_prob -= 2.0 * (math.log(2.0) - raw - tf.nn.softplus(-2.0 * raw))
    return tf.tanh(raw), tf.reduce_sum(log_prob, axis=1)


def _bounded(outputs: tf.Tensor) -> tf.Tensor:
  """Keeps the logarithms of the standard deviations in their range, smoothly."""
  mean, log_std = tf.split(outputs, 2, axis=1)
  low, high = _LOG_STD_RANGE
  log_std = low + 0.5 * (high - low) * (tf.tanh(log_std) + 1.0)
  return tf.concat([mean, log_std], axis=1)


class _LogValue(tf.keras.layers.Layer):
  """A positive number that is trained, by its logarithm."""

  def __init__(self, value: float) -> None:
    # Keras 2 makes a scope of the name, which must not begin with '_'.
    super().__init__(name="log_value")
    initial = tf.keras.initializers.Constant(math.log(value))
    self._log = self.add_weight(name="log", shape=(), initializer=initial)
    self.built = True

  def call(self, inputs: Any = None) -> tf.Tensor:
    return tf.convert_to_tensor(self._log)

  def __call__(self) -> tf.Tensor:
    return self.call()


@gin.configurable
class TD3Model(ActorCriticModel):
  """Twin delayed DDPG (Fujimoto et al., 2018).

  The actor is trained in each `policy_interval`-th step, when the target networks move,
  too.
  """

  target_networks: Mapping[str, str] = {
    f"target_{name}": name for name in ("actor", *_CRITICS)
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
    """Creates the model; noise is in units of half the range of the actions.

    Args:
      signature: of the environment.
      policy_interval: train steps for one of the actor.
      noise: standard deviation of what is added to actions to explore.
      target_noise: standard deviation of what is added to the target's actions.
      target_noise_clip: the greatest of it.
      **kwargs: of `OnlineModel`.
    Raises:
      SpecError: the actions are discrete, or an option is out of range.
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
    """Returns the action in [-1, 1]."""
    return {"squashed": tf.tanh(self.act("actor", self.observations(features)))}

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the losses of the critics and the actor together."""
    following = self.next_observations(labels)
    action = tf.tanh(self.act("target_actor", following))
    kick = self._target_noise * self.normal(action, 0)
    kick = tf.clip_by_value(kick, -self._clip, self._clip)
    action = tf.clip_by_value(action + kick, -1.0, 1.0)
    values = [self.value(f"target_{n}", following, action) for n in _CRITICS]
    loss, scalars, examples = self.critic_loss(
      features, labels, self.target(labels, tf.minimum(*values))
    )
    action = inference_outputs["squashed"]
    with tf.GradientTape() as tape:
      tape.watch(action)
      value = self.value(_CRITICS[0], self.observations(features), action)
    value = through_action(value, tape.gradient(value, action), action)
    actor_loss = -tf.reduce_mean(value)
    return loss + actor_loss, {**scalars, "actor_loss": actor_loss}, examples

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the action of the environment."""
    return {
      "inference_output": self.signature.unnormalize(inference_outputs["squashed"])
    }

  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Adds noise to the action."""
    return noisy(self.signature, output, self._noise, rng)
