"""Flow matching over chunks of actions."""

from __future__ import annotations

import functools
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.imitation import ImitationModel


@gin.configurable
class FlowModel(ImitationModel):
  """A transformer that makes a chunk of actions of noise, in a few steps.

  The small form of pi0's action expert (https://arxiv.org/abs/2410.24164): what the
  robot sees becomes tokens, and the actions, which are tokens, too, attend to them.
  """

  def __init__(
    self,
    model_size: int = 512,
    num_layers: int = 6,
    num_context_layers: int = 2,
    num_heads: int = 8,
    num_steps: int = 10,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      model_size: components of a token.
      num_layers: blocks of the action expert.
      num_context_layers: blocks over what the robot sees, which are computed once.
      num_heads: of each attention.
      num_steps: of the integration from noise to actions.
      **kwargs: of `ImitationModel`.
    """
    super().__init__(**kwargs)
    self._size, self._num_heads, self._num_steps = model_size, num_heads, num_steps
    self._num_layers, self._num_context_layers = num_layers, num_context_layers
    self._action_decoder_cls = self._create_decoder

  def _create_decoder(self, action_shape: Any) -> Any:
    expert = functools.partial(
      layers.ActionExpert,
      size=self._size,
      num_layers=self._num_layers,
      num_heads=self._num_heads,
    )
    return layers.FlowMatchingDecoder(
      action_shape, num_steps=self._num_steps, create_denoiser_fn=expert, seed=0
    )

  def create_network(self) -> Any:
    """See the base class."""
    count = len(self.get_feature_specification("train")) * self.observation_horizon
    return {
      "encoder": self.create_encoder(self._size),
      "context": layers.ContextEncoder(
        count, self._size, self._num_context_layers, self._num_heads
      ),
      "decoder": self.create_action_decoder(),
    }

  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """See the base class."""
    training = self.is_training(mode)
    seen = self.encode(features, mode)
    count = seen.shape[1] * seen.shape[2]
    context = self.network["context"](tf.reshape(seen, [-1, count, self._size]))
    context = tf.reshape(context, [-1, count * self._size])
    return self.network["decoder"](context, training=training)
