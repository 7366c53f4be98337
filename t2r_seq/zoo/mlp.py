"""The multilayer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq.layers.vision_layers import MLP
from t2r_seq.specs import SpecStructure
from t2r_seq.zoo.imitation import ImitationModel


@gin.configurable
class MLPModel(ImitationModel):
  """Dense layers over the observations; robomimic's BC."""

  def __init__(self, hidden_sizes: Sequence[int] = (1024, 1024), **kwargs: Any) -> None:
    """Creates the model.

    Args:
      hidden_sizes: units of each hidden layer; at least one.
      **kwargs: arguments of `ImitationModel`.
    Raises:
      SpecError: see `ImitationModel`.
    """
    super().__init__(**kwargs)
    self._hidden_sizes = hidden_sizes

  def create_network(self) -> Any:
    """See the base class."""
    return {
      "encoder": self.create_encoder(),
      "mlp": MLP(self._hidden_sizes[:-1], self._hidden_sizes[-1], None),
      "decoder": self.create_action_decoder(),
    }

  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """See the base class."""
    training = self.is_training(mode)
    encodings = self.encode(features, mode)
    embedding = tf.reshape(encodings, [-1, encodings.shape[1] * encodings.shape[2]])
    embedding = tf.nn.relu(self.network["mlp"](embedding, training=training))
    return self.network["decoder"](embedding, training=training)
