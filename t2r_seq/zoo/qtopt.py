"""QT-Opt: Q-learning of continuous actions, chosen by the cross-entropy method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, models, policies
from t2r_seq.layers.vision_layers import MLP
from t2r_seq.models import bellman
from t2r_seq.models.t2r_model import Loss
from t2r_seq.specs import ExtendedTensorSpec, ModeKeys, SpecStructure, TensorSpecStruct
from t2r_seq.zoo import online_model
from t2r_seq.zoo.online_model import OnlineModel
from t2r_seq.zoo.spaces import EnvSignature


@gin.configurable
class QTOptModel(OnlineModel):
  """QT-Opt (Kalashnikov et al., 2018): Q-learning of continuous actions by search.

  The action is the best that the cross-entropy method finds. The target value is the
  minimum over a Polyak-averaged target network and a lagged copy of it, refreshed every
  `lag_steps`. An export's search uses fixed random numbers, so it is deterministic.
  """

  target_networks: Mapping[str, str] = {"target": "online"}

  def __init__(
    self,
    signature: EnvSignature,
    search: policies.CrossEntropySearch | None = None,
    lag_steps: int = 1000,
    loss: str = "squared",
    epsilon: tuple[float, float] = (0.2, 0.2),
    exploration_fraction: float = 1.0,
    noise: float = 0.1,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      signature: signature of the environment.
      search: options of the search, except `mean`, `low` and `high`, which are those of
        normalised actions. None: 2 rounds, 64 samples, 6 elites.
      lag_steps: train steps between two copies of the target to the lagged network.
      loss: 'squared' or 'huber'.
      epsilon: the first and the last probability of a random action.
      exploration_fraction: fraction of the environment steps over which epsilon decays.
      noise: standard deviation of exploration noise, in half action ranges.
      **kwargs: arguments of `OnlineModel`.
    Raises:
      SpecError: the actions are discrete, or an option is invalid; see `OnlineModel`.
    """
    super().__init__(signature, **kwargs)
    search = search or policies.CrossEntropySearch(2, 64, 6)
    self._search = dataclasses.replace(search, mean=0.0, low=-1.0, high=1.0)
    self._lag_steps = errors.check_count("QTOptModel", "lag_steps", lag_steps)
    self._error_fn = online_model.error_fn("QTOptModel", loss)
    self._epsilon = policies.LinearSchedule(*epsilon, exploration_fraction)
    self._noise = noise

  def create_network(self) -> dict[str, Any]:
    """Returns the trained critic, its target and the lagged copy of the target."""
    network: dict[str, Any] = {}
    for name in ("online", "target", "lagged"):
      network[name] = {
        "encoder": self.create_encoder(),
        "value": MLP(self._hidden_sizes, 1, normalizer=None),
      }
      for each in network[name].values():
        each.trainable = name == "online"
    return network

  def build(self) -> None:
    """Creates the network; target and lagged copy begin equal to the trained critic."""
    is_new = not self.is_built
    super().build()
    if is_new:
      self._update_lagged()

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns the value of the labels' action; in 'infer' the best action, too."""
    observations = self.observations(features)
    if labels is not None and mode != ModeKeys.INFER:
      actions = self.signature.normalize(labels.action)[:, tf.newaxis]
      encoded = self.network["online"]["encoder"](observations)
      return {"q_predicted": self._values("online", encoded, actions)[:, 0]}
    first = next(iter(observations.values()))
    seeds = tf.zeros([tf.shape(first)[0], 2], tf.int32)
    action, value = self._best(("online",), observations, seeds)
    return {
      "inference_output": self.signature.unnormalize(action),
      "q_predicted": value,
    }

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Loss:
    """Returns the error against the value of the best next action that is found."""
    following = self.next_observations(labels)
    number = tf.range(tf.shape(labels.reward)[0])[:, tf.newaxis]
    seeds = self.step_seed() + [0, 1] * number
    _, best = self._best(("target", "lagged"), following, seeds)
    target = self.target(labels, best)
    value = inference_outputs["q_predicted"]
    loss = online_model.weighted_mean(labels, self._error_fn(value - target))
    scalars = {"q": tf.reduce_mean(value), "q_target": tf.reduce_mean(target)}
    return loss, scalars, self.examples(labels, value - target)

  def after_train_step(self) -> None:
    """Updates the target network, and every `lag_steps` the lagged copy."""
    super().after_train_step()
    is_due = tf.equal((self.global_step + 1) % self._lag_steps, 0)
    tf.cond(is_due, self._update_lagged, lambda: None)

  def explore(self, output: np.ndarray, rng: np.random.Generator, done: float) -> Any:
    """Chooses a random action with probability epsilon, otherwise adds noise."""
    if rng.random() < self._epsilon(done):
      return self.signature.random_action(rng)
    return self.signature.add_noise(output, self._noise, rng)

  def _update_lagged(self) -> None:
    models.update_target_network(self.network["lagged"], self.network["target"])

  def _values(self, name: str, encoded: tf.Tensor, actions: tf.Tensor) -> tf.Tensor:
    """Returns the values [B, N] of actions [B, N, A] in encoded states [B, D]."""
    count = actions.shape[1]
    states = tf.repeat(encoded[:, tf.newaxis], count, axis=1)
    joined = tf.concat([states, tf.cast(actions, states.dtype)], axis=-1)
    return tf.cast(self.network[name]["value"](joined)[..., 0], tf.float32)

  def _best(
    self, names: Sequence[str], observations: dict[str, tf.Tensor], seeds: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Searches by the first network; see `bellman.best_actions`."""

    def critic(name: str) -> Callable[[TensorSpecStruct], tf.Tensor]:
      encoded = self.network[name]["encoder"](observations)
      return lambda actions: self._values(name, encoded, actions["action"])

    spec = ExtendedTensorSpec((self.signature.action_size,), tf.float32)
    best, value = bellman.best_actions(
      self._search, [*map(critic, names)], TensorSpecStruct(action=spec), seeds
    )
    return best["action"], value
