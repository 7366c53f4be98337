"""The transformer of flow matching over chunks, after pi0's action expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from t2r_seq.layers.attention import Attention, gelu
from t2r_seq.layers.construction import CompositeLayer, configurable_layer
from t2r_seq.layers.flow_matching import time_features


class AttentionBlock(CompositeLayer):
  """Pre-norm attention to a context and to the tokens themselves, and an MLP."""

  def __init__(self, num_heads: int, size: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self._attention = Attention(size, num_heads)
    self._norms = [tf.keras.layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
    self._mlp = [
      tf.keras.layers.Dense(4 * size, activation=gelu),
      tf.keras.layers.Dense(size),
    ]

  def call(self, tokens: tf.Tensor, context: tf.Tensor | None = None) -> tf.Tensor:
    normed = self._norms[0](tokens)
    seen = normed if context is None else tf.concat([context, normed], axis=1)
    tokens = tokens + self._attention(normed, seen, seen)
    return tokens + self._mlp[1](self._mlp[0](self._norms[1](tokens)))


@configurable_layer
class ContextEncoder(CompositeLayer):
  """A transformer over the tokens of an observation, [B, N, D] to [B, N, D]."""

  def __init__(
    self,
    num_tokens: int,
    size: int = 256,
    num_layers: int = 2,
    num_heads: int = 4,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_tokens: N.
      size: D, a multiple of the heads.
      num_layers: blocks of attention and MLP.
      num_heads: heads of each attention layer.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._places = self.add_weight(
      name="places",
      shape=(num_tokens, size),
      initializer=tf.keras.initializers.RandomNormal(stddev=0.02),
    )
    self._blocks = [AttentionBlock(num_heads, size) for _ in range(num_layers)]
    self._norm = tf.keras.layers.LayerNormalization(epsilon=1e-6)

  def call(self, tokens: tf.Tensor) -> tf.Tensor:
    """Maps tokens [B, N, D] to [B, N, D]."""
    tokens = tokens + tf.cast(tf.convert_to_tensor(self._places), tokens.dtype)
    for block in self._blocks:
      tokens = block(tokens)
    return self._norm(tokens)


@configurable_layer
class ActionExpert(CompositeLayer):
  """Velocities of a noisy chunk of actions, given the tokens of an observation.

  Each action of the chunk is a token; they see each other and the context, which does
  not see them: a small version of pi0's, https://arxiv.org/abs/2410.24164. Denoiser of
  a `FlowMatchingDecoder` whose embedding is the flattened context.
  """

  def __init__(
    self,
    action_shape: Sequence[int],
    size: int = 256,
    num_layers: int = 4,
    num_heads: int = 4,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of a chunk, (actions, numbers in each).
      size: components of a token, also of the context; a multiple of the heads.
      num_layers: blocks of attention and MLP.
      num_heads: heads of each attention layer.
      **kwargs: arguments of the Keras layer.
    """
    # Half precision blurs times before they become features.
    super().__init__(**{"autocast": False, **kwargs})
    self._shape, self._size = tuple(action_shape), size
    self._places = self.add_weight(
      name="places",
      shape=(self._shape[0], size),
      initializer=tf.keras.initializers.RandomNormal(stddev=0.02),
    )
    self._action_in = tf.keras.layers.Dense(size)
    self._time = [
      tf.keras.layers.Dense(size, activation="silu"),
      tf.keras.layers.Dense(size),
    ]
    self._blocks = [AttentionBlock(num_heads, size) for _ in range(num_layers)]
    self._norm = tf.keras.layers.LayerNormalization(epsilon=1e-6)
    self._output = tf.keras.layers.Dense(
      self._shape[1], kernel_initializer="zeros", dtype="float32"
    )

  def call(self, noisy: tf.Tensor, time: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Maps noisy chunks to velocities.

    Args:
      noisy: flat chunks, [B, N].
      time: in [0, 1], [B, 1]; or one for each action, [B, actions].
      embedding: flattened tokens of the context, [B, tokens * size].
    Returns:
      [B, N].
    """
    tokens = self._action_in(tf.reshape(noisy, [-1, *self._shape]))
    context = tf.reshape(embedding, [-1, embedding.shape[-1] // self._size, self._size])
    context = tf.cast(context, tokens.dtype)
    times = tf.cast(time_features(time[..., tf.newaxis]), tokens.dtype)
    if time.shape[-1] == 1:
      times = tf.repeat(times, self._shape[0], axis=1)
    tokens = self._time[1](self._time[0](tf.concat([tokens, times], axis=-1)))
    tokens += tf.cast(tf.convert_to_tensor(self._places), tokens.dtype)
    for block in self._blocks:
      tokens = block(tokens, context)
    velocities = self._output(self._norm(tokens))
    return tf.reshape(velocities, [-1, self._shape[0] * self._shape[1]])
