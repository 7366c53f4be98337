"""BC-Z: a ResNet conditioned on the text of the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.layers.vision_layers import MLP
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.imitation import ImitationModel


@gin.configurable
def huber_error(target: tf.Tensor, action: tf.Tensor, delta: float = 1.0) -> tf.Tensor:
  """Returns half the squared differences, linear beyond `delta`; elementwise."""
  absolute = tf.abs(target - action)
  inner = tf.minimum(absolute, delta)
  return 0.5 * tf.square(inner) + delta * (absolute - inner)


@gin.configurable
class BCZPolicyModel(ImitationModel):
  """A FiLM-ResNet for each camera, conditioned on the text of the task.

  BC-Z, https://arxiv.org/abs/2202.02005: the text embedding conditions every ResNet
  block by FiLM. An MLP predicts the action chunk from the pooled features and states.
  """

  needs = ("cameras", "language")

  def __init__(
    self,
    resnet_size: int = 18,
    num_filters: int = 64,
    hidden_sizes: Sequence[int] = (256, 256),
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      resnet_size: layers of each `layers.ResNet`: 18, 34, 50, 101, 152 or 200.
      num_filters: filters of the first block layer.
      hidden_sizes: units of each hidden layer after the ResNets.
      **kwargs: arguments of `ImitationModel`.
    Raises:
      SpecError: see `ImitationModel`.
    """
    super().__init__(**kwargs)
    self._resnet_size, self._num_filters = resnet_size, num_filters
    self._hidden_sizes = hidden_sizes

  def create_network(self) -> Any:
    """See the base class."""
    size = self.chunk_size * self.action_size
    return {
      "resnets": [
        layers.ResNet(
          resnet_size=self._resnet_size,
          version=1,
          num_filters=self._num_filters,
          film_generator_cls=layers.LinearFiLMGenerator,
          normalizer="group",
        )
        for _ in self.signature.cameras
      ],
      "head": MLP(self._hidden_sizes, size, None),
    }

  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """See the base class."""
    training = self.is_training(mode)
    observations = self.observations(features)
    text = observations[str(self.signature.language)][:, 0]
    steps = self.observation_horizon
    parts = [
      tf.reshape(observations[path], [-1, steps * observations[path].shape[2]])
      for path in self.signature.states
    ]
    for path, resnet in zip(
      self.signature.cameras, self.network["resnets"], strict=True
    ):
      images = tf.reshape(observations[path], [-1, *observations[path].shape[2:]])
      condition = tf.repeat(text, steps, axis=0)
      end_points = resnet(2.0 * images - 1.0, condition, training=training)
      pooled = end_points["final_reduce_mean"]
      parts.append(tf.reshape(pooled, [-1, steps * pooled.shape[-1]]))
    # The head computes in the dtype of the ResNets, which may be half precision.
    joined = tf.concat([tf.cast(part, parts[-1].dtype) for part in parts], axis=-1)
    actions = self.network["head"](joined, training=training)
    actions = tf.reshape(actions, [-1, self.chunk_size, self.action_size])
    return {"inference_output": tf.cast(actions, tf.float32)}

  def all_errors(
    self, labels: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """See the base class: Huber errors."""
    del mode
    return self._all_errors(labels, inference_outputs, huber_error)
