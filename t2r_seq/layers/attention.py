"""Transformer encoder and decoder over sets of tokens, as in DETR and ACT."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.construction import CompositeLayer, configurable_layer


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
  """Returns x times the normal cumulative distribution at x.

  LiteRT has the function, but not the ops of TensorFlow's gradient, which guided
  inpainting needs.
  """
  y = tf.nn.gelu(x)

  def gradient(upstream: tf.Tensor) -> tf.Tensor:
    is_small = tf.abs(x) < 1e-2
    scale = tf.constant(1 / math.sqrt(2 * math.pi), x.dtype)
    share = tf.where(is_small, 0.5 + scale * x, y / tf.where(is_small, 1.0, x))
    return upstream * (share + x * scale * tf.exp(-x * x / 2))

  return y, gradient


class Attention(CompositeLayer):
  """Multi-head attention whose queries, keys and values are separate tensors."""

  def __init__(
    self, model_size: int, num_heads: int, dropout: float = 0.0, **kwargs: Any
  ) -> None:
    """Creates the layer.

    Args:
      model_size: D, components of a token; a multiple of the heads.
      num_heads: heads of the attention.
      dropout: rate of the attention weights.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the size cannot be split among the heads.
    """
    super().__init__(**kwargs)
    if model_size % num_heads:
      raise errors.SpecError(
        f"Attention: model_size: expected a multiple of {num_heads} heads, got "
        f"{model_size}."
      )
    self._heads, self._head_size = num_heads, model_size // num_heads
    self._query = tf.keras.layers.Dense(model_size, name="query")
    self._key = tf.keras.layers.Dense(model_size, name="key")
    self._value = tf.keras.layers.Dense(model_size, name="value")
    self._output = tf.keras.layers.Dense(model_size, name="output")
    self._dropout = tf.keras.layers.Dropout(dropout)

  def call(
    self,
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    visible: tf.Tensor | None = None,
    training: bool = False,
  ) -> tf.Tensor:
    """Returns, for each query, the values weighted by the attention to their keys.

    Args:
      queries: [B, T, D].
      keys: [B, S, D].
      values: [B, S, D].
      visible: bool, broadcasts to [B, T, S]: True for keys that a query sees.
      training: mode of dropout.
    Returns:
      [B, T, D].
    """
    query = self._split_heads(self._query(queries))
    key = self._split_heads(self._key(keys))
    value = self._split_heads(self._value(values))
    logits = tf.einsum("bthd,bshd->bhts", query, key)
    logits = tf.cast(logits, tf.float32) / math.sqrt(self._head_size)
    if visible is not None:
      logits = tf.where(tf.expand_dims(visible, -3), logits, tf.float32.min)
    weights = tf.cast(tf.nn.softmax(logits), value.dtype)
    weights = self._dropout(weights, training=training)
    read = tf.einsum("bhts,bshd->bthd", weights, value)
    return self._output(tf.reshape(read, tf.shape(queries)))

  def _split_heads(self, tokens: tf.Tensor) -> tf.Tensor:
    steps = tokens.shape[1]
    steps = tf.shape(tokens)[1] if steps is None else steps
    return tf.reshape(tokens, [-1, steps, self._heads, self._head_size])


class TransformerBlock(CompositeLayer):
  """Self-attention, cross-attention for a decoder, and an MLP, each with a residual."""

  def __init__(
    self,
    num_heads: int,
    model_size: int,
    mlp_size: int,
    dropout: float,
    pre_norm: bool,
    activation: str,
    has_memory: bool,
  ) -> None:
    super().__init__()
    attention = functools.partial(Attention, model_size, num_heads, dropout)
    self._self_attention = attention(name="self_attention")
    self._cross_attention: Any = None
    if has_memory:
      self._cross_attention = attention(name="cross_attention")
    self._mlp_in = tf.keras.layers.Dense(
      mlp_size, gelu if activation == "gelu" else activation, name="mlp_in"
    )
    self._mlp_out = tf.keras.layers.Dense(model_size, name="mlp_out")
    num_parts = 3 if has_memory else 2
    self._norms = [layer_norm(f"norm_{i}") for i in range(num_parts)]
    self._dropouts = [tf.keras.layers.Dropout(dropout) for _ in range(num_parts + 1)]
    self._pre_norm = pre_norm

  def call(
    self,
    tokens: tf.Tensor,
    positions: tf.Tensor | None = None,
    visible: tf.Tensor | None = None,
    memory: tf.Tensor | None = None,
    memory_positions: tf.Tensor | None = None,
    visible_memory: tf.Tensor | None = None,
    training: bool = False,
  ) -> tf.Tensor:
    """See `Transformer`."""

    def attend(net: tf.Tensor) -> tf.Tensor:
      placed = add_positions(net, positions)
      return self._self_attention(placed, placed, net, visible, training=training)

    def cross_attend(net: tf.Tensor) -> tf.Tensor:
      placed, keys = (
        add_positions(net, positions),
        add_positions(memory, memory_positions),
      )
      return self._cross_attention(
        placed, keys, memory, visible_memory, training=training
      )

    def transform(net: tf.Tensor) -> tf.Tensor:
      hidden = self._dropouts[-1](self._mlp_in(net), training=training)
      return self._mlp_out(hidden)

    parts = [attend, cross_attend, transform]
    if self._cross_attention is None:
      parts = [attend, transform]
    for i, part in enumerate(parts):
      tokens = self._residual(i, part, tokens, training)
    return tokens

  def _residual(
    self,
    i: int,
    part: Callable[[tf.Tensor], tf.Tensor],
    tokens: tf.Tensor,
    training: bool,
  ) -> tf.Tensor:
    net = part(self._norms[i](tokens) if self._pre_norm else tokens)
    net = tokens + self._dropouts[i](net, training=training)
    return net if self._pre_norm else self._norms[i](net)


@configurable_layer
class Transformer(CompositeLayer):
  """Blocks of attention and MLP: an encoder, or a decoder that reads a memory.

  As in DETR (https://arxiv.org/abs/2005.12872), positions are added to queries and keys
  of every attention, and not to values.
  """

  def __init__(
    self,
    num_layers: int,
    num_heads: int,
    model_size: int,
    mlp_size: int,
    dropout: float = 0.0,
    pre_norm: bool = False,
    activation: str = "relu",
    has_memory: bool = False,
    final_norm: bool = False,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_layers: blocks.
      num_heads: heads of each attention.
      model_size: D, components of a token; a multiple of the heads.
      mlp_size: hidden units of the MLPs.
      dropout: rate for attention weights, after attention, and in and after the MLP.
      pre_norm: normalizes before attention and MLP, not after the residual.
      activation: Keras' name of the MLPs' activation.
      has_memory: adds cross-attention: a decoder.
      final_norm: normalizes the output, as `pre_norm` always does.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the size cannot be split among the heads.
    """
    super().__init__(**kwargs)
    self.model_size = model_size
    self._blocks = [
      TransformerBlock(
        num_heads, model_size, mlp_size, dropout, pre_norm, activation, has_memory
      )
      for _ in range(num_layers)
    ]
    self._final_norm = layer_norm("final_norm") if final_norm or pre_norm else None

  def call(
    self,
    tokens: tf.Tensor,
    positions: tf.Tensor | None = None,
    visible: tf.Tensor | None = None,
    memory: tf.Tensor | None = None,
    memory_positions: tf.Tensor | None = None,
    visible_memory: tf.Tensor | None = None,
    training: bool = False,
  ) -> tf.Tensor:
    """Maps tokens.

    Args:
      tokens: [B, T, D].
      positions: broadcasts to the tokens.
      visible: bool, broadcasts to [B, T, T]: True for tokens that a token sees.
      memory: [B, S, D], for cross-attention.
      memory_positions: broadcasts to the memory.
      visible_memory: bool, broadcasts to [B, T, S].
      training: mode of dropout.
    Returns:
      [B, T, D].
    """
    for block in self._blocks:
      tokens = block(
        tokens,
        positions,
        visible,
        memory,
        memory_positions,
        visible_memory,
        training=training,
      )
    return tokens if self._final_norm is None else self._final_norm(tokens)


def sinusoidal_positions(num_positions: int, size: int) -> np.ndarray:
  """Returns sines and cosines of positions, [num_positions, size], interleaved."""
  return _waves(np.arange(num_positions), size)


def sinusoidal_positions_2d(height: int, width: int, size: int) -> np.ndarray:
  """Returns the positions of pixels as in DETR, [height, width, size].

  Rows and columns are scaled to (0, 2 pi]; the first half is of rows.
  """
  rows, columns = (
    _waves(np.arange(1, n + 1) / (n + 1e-6) * 2 * math.pi, size // 2)
    for n in (height, width)
  )
  shape = (height, width, size // 2)
  return np.concatenate(
    [np.broadcast_to(rows[:, np.newaxis], shape), np.broadcast_to(columns, shape)], -1
  )


def layer_norm(name: str | None = None) -> Any:
  """Returns layer normalization with PyTorch's epsilon."""
  return tf.keras.layers.LayerNormalization(epsilon=1e-5, name=name)


def _waves(positions: np.ndarray, size: int) -> np.ndarray:
  index = np.arange(size)
  angles = positions[:, np.newaxis] / 10000.0 ** (2 * (index // 2) / size)
  return np.where(index % 2, np.cos(angles), np.sin(angles)).astype(np.float32)


def add_positions(tokens: tf.Tensor, positions: Any) -> tf.Tensor:
  """Adds positions, tensors, arrays or variables, to tokens; None adds nothing."""
  if positions is None:
    return tokens
  return tokens + tf.cast(tf.convert_to_tensor(positions), tokens.dtype)
