"""The causal transformer over the last steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.layers.action_decoders import ActionDecoder
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.imitation import ImitationModel, check_no_chunks


@gin.configurable
class TransformerModel(ImitationModel):
  """A causal transformer over the last H steps, each of which predicts its action.

  robomimic's BC-Transformer-GMM. All H actions are fitted; the last is executed.
  """

  def __init__(
    self,
    observation_horizon: int = 10,
    num_layers: int = 6,
    num_heads: int = 8,
    model_size: int = 512,
    dropout: float = 0.1,
    action_decoder_cls: Callable[..., ActionDecoder] = layers.MDNDecoder,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      observation_horizon: H, steps that the network sees, the present one included.
      num_layers: blocks of attention and MLP.
      num_heads: heads of each attention layer.
      model_size: components of a token.
      dropout: dropout rate after attention and MLP.
      action_decoder_cls: decoder of each step's action.
      **kwargs: arguments of `ImitationModel` except `num_past_actions`.
    Raises:
      SpecError: `chunk_size` is not 1; see also `ImitationModel`.
    """
    check_no_chunks("TransformerModel", "chunk_size", kwargs.get("chunk_size", 1))
    super().__init__(
      observation_horizon=observation_horizon,
      num_past_actions=observation_horizon - 1,
      action_decoder_cls=action_decoder_cls,
      **kwargs,
    )
    self._size = model_size
    self._options: dict[str, Any] = {
      "num_layers": num_layers,
      "num_heads": num_heads,
      "model_size": model_size,
      "window": observation_horizon,
      "dropout": dropout,
    }

  def create_network(self) -> Any:
    """See the base class."""
    return {
      "encoder": self.create_encoder(),
      "token": tf.keras.layers.Dense(self._size),
      "transformer": layers.CausalTransformer(**self._options),
      "decoder": self.create_action_decoder((self.action_size,)),
    }

  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """See the base class."""
    training = self.is_training(mode)
    tokens = self.network["token"](self.encode(features, mode))[:, :, tf.newaxis]
    embedding = self.network["transformer"](tokens, training=training)[:, :, 0]
    return self.network["decoder"](embedding, training=training)
