"""A causal transformer over steps of tokens, with a cache of keys and values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.layers.construction import CompositeLayer, configurable_layer

Cache = dict[str, tf.Tensor]
"""'keys' and 'values', [B, layers, window - 1, N, heads, size], and 'is_valid', bool,
[B, window - 1], of the previous steps. An episode starts with zeros."""


@configurable_layer
class CausalTransformer(CompositeLayer):
  """Pre-norm transformer over steps: each sees itself and the `window - 1` before it.

  The tokens of one step see each other. Positions are relative (rotary embeddings,
  https://arxiv.org/abs/2104.09864). So an episode may be longer than in training, and
  a step with a carried cache equals the same step of a whole sequence.
  """

  def __init__(
    self,
    num_layers: int,
    num_heads: int,
    model_size: int,
    window: int,
    num_tokens: int = 1,
    mlp_size: int | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_layers: blocks of attention and MLP.
      num_heads: heads of each attention layer.
      model_size: D, components of a token; a multiple of twice the heads.
      window: steps that a step sees, itself among them.
      num_tokens: N, tokens of a step.
      mlp_size: hidden units of the MLPs; None for 4 * model_size.
      dropout: rate, after attention and MLP.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the size cannot be split among the heads, or `window` is below 1.
    """
    super().__init__(**kwargs)
    if model_size % (2 * num_heads) or window < 1:
      raise errors.SpecError(
        f"CausalTransformer: model_size: expected a multiple of {2 * num_heads} for "
        f"{num_heads} heads, and a window of at least 1, got {model_size} and {window}."
      )
    self._window, self._num_tokens, self._size = window, num_tokens, model_size
    self._heads, self._head_size = num_heads, model_size // num_heads
    self._slots = self.add_weight(
      name="token_slots",
      shape=(num_tokens, model_size),
      initializer=tf.keras.initializers.RandomNormal(stddev=0.02),
    )
    layers = range(num_layers)
    norm = lambda: tf.keras.layers.LayerNormalization(epsilon=1e-6)  # noqa: E731
    self._norms = [[norm(), norm()] for _ in layers]
    self._qkv = [tf.keras.layers.Dense(3 * model_size) for _ in layers]
    self._merge = [tf.keras.layers.Dense(model_size) for _ in layers]
    hidden = mlp_size or 4 * model_size
    self._mlp_in = [tf.keras.layers.Dense(hidden, activation="gelu") for _ in layers]
    self._mlp_out = [tf.keras.layers.Dense(model_size) for _ in layers]
    self._dropout = [tf.keras.layers.Dropout(dropout) for _ in range(2 * num_layers)]
    self._last_norm = norm()

  def cache_spec(self) -> dict[str, specs.ExtendedTensorSpec]:
    """Returns the specs of a cache: the state of a `RecurrentModel` with this layer."""
    before = self._window - 1
    shape = [len(self._qkv), before, self._num_tokens, self._heads, self._head_size]
    spec = specs.ExtendedTensorSpec(shape, tf.as_dtype(self.compute_dtype))
    valid = specs.ExtendedTensorSpec([before], tf.bool)
    return {"keys": spec, "values": spec, "is_valid": valid}

  def initial_cache(self, batch_size: Any) -> Cache:
    """Returns the cache before the first step of an episode: zeros."""
    return {
      name: tf.zeros([batch_size, *spec.shape], spec.dtype)
      for name, spec in self.cache_spec().items()
    }

  def call(
    self,
    tokens: tf.Tensor,
    is_valid: tf.Tensor | None = None,
    cache: Cache | None = None,
    training: bool = False,
  ) -> tf.Tensor | tuple[tf.Tensor, Cache]:
    """Maps the tokens of steps.

    Args:
      tokens: [B, T, N, D]; T may be unknown, as it is in an export's sequences.
      is_valid: bool, [B, T]: False for padded steps, which no other step sees.
      cache: cache of the previous steps; None if there are no previous steps.
      training: mode of dropout.
    Returns:
      [B, T, N, D]; with a cache (these, the cache after the last step).
    Raises:
      SpecError: the tokens have another shape.
    """
    del training  # Keras passes it to the inner layers.
    if tokens.shape.rank != 4 or tokens.shape[2:] != (self._num_tokens, self._size):
      raise errors.SpecError(
        f"CausalTransformer: tokens: expected [batch, steps, {self._num_tokens}, "
        f"{self._size}], got {errors.describe(tokens)}."
      )
    steps = _num_steps(tokens)
    if is_valid is None:
      is_valid = tf.ones(tf.shape(tokens)[:2], tf.bool)
    before = 0
    if cache is not None:
      before = self._window - 1
      is_valid = tf.concat([cache["is_valid"], is_valid], axis=1)
    visible = self._visible(is_valid, before, steps)
    net = tokens + tf.cast(tf.convert_to_tensor(self._slots), tokens.dtype)
    kept: list[tuple[tf.Tensor, tf.Tensor]] = []
    for i, qkv in enumerate(self._qkv):
      query, key, value = self._split_heads(qkv(self._norms[i][0](net)))
      if cache is not None:
        key = tf.concat([cache["keys"][:, i], key], axis=1)
        value = tf.concat([cache["values"][:, i], value], axis=1)
        kept.append((self._last(key, before), self._last(value, before)))
      read = self._attend(query, key, value, visible, before)
      net += self._dropout[2 * i](self._merge[i](read))
      hidden = self._mlp_in[i](self._norms[i][1](net))
      net += self._dropout[2 * i + 1](self._mlp_out[i](hidden))
    net = self._last_norm(net)
    if cache is None:
      return net
    keys, values = (tf.stack(parts, axis=1) for parts in zip(*kept, strict=True))
    valid = self._last(is_valid, before)
    return net, {"keys": keys, "values": values, "is_valid": valid}

  def _last(self, steps: tf.Tensor, before: int) -> tf.Tensor:
    """Returns the last steps of [B, before + T, ...], which the next ones see."""
    last = steps[:, _num_steps(steps) - before :]
    return tf.ensure_shape(last, [steps.shape[0], before, *steps.shape[2:]])

  def _visible(self, is_valid: tf.Tensor, before: int, steps: Any) -> tf.Tensor:
    """Returns which steps each query's step sees, [B, steps, before + steps]."""
    key, query = _range(before + steps), before + _range(steps)[:, np.newaxis]
    in_window = (key <= query) & (key > query - self._window)
    # A padded step sees itself, so that its softmax is defined.
    # The oldest supported converter to LiteRT rejects newaxis for bools.
    return tf.convert_to_tensor(in_window) & (
      tf.expand_dims(is_valid, 1) | (key == query)
    )

  def _split_heads(self, qkv: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Splits [B, T, N, 3 * D] to queries, keys, values [B, T, N, heads, size]."""
    shape = [-1, _num_steps(qkv), self._num_tokens, 3, self._heads, self._head_size]
    query, key, value = tf.unstack(tf.reshape(qkv, shape), axis=3)
    return query, key, value

  def _attend(
    self,
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    visible: tf.Tensor,
    before: int,
  ) -> tf.Tensor:
    """Reads values [B, S, N, heads, size] for queries of T steps, [B, T, N, D]."""
    steps, seen, tokens = _num_steps(query), _num_steps(key), self._num_tokens
    query, key = _rotate(query, before), _rotate(key, 0)
    logits = tf.einsum("btnhd,bsmhd->bhtnsm", query, key)
    logits = tf.cast(logits, tf.float32) / math.sqrt(self._head_size)
    mask = tf.reshape(visible, [-1, 1, steps, 1, seen, 1])
    logits = tf.where(mask, logits, tf.float32.min)
    flat = tf.reshape(logits, [-1, self._heads, steps, tokens, seen * tokens])
    weights = tf.reshape(tf.nn.softmax(flat), tf.shape(logits))
    read = tf.einsum("bhtnsm,bsmhd->btnhd", tf.cast(weights, value.dtype), value)
    return tf.reshape(read, [-1, steps, tokens, self._size])


def _rotate(vectors: tf.Tensor, first: int) -> tf.Tensor:
  """Rotates pairs of components, [B, T, N, H, D], by angles that grow with the step."""
  half = vectors.shape[-1] // 2
  rates = 10000.0 ** (-np.arange(half) / half)
  steps = first + _range(_num_steps(vectors))
  if tf.is_tensor(steps):
    angles = tf.cast(steps, tf.float32)[:, np.newaxis] * tf.constant(rates, tf.float32)
    turns = [tf.cos(angles), tf.sin(angles)]
  else:
    turns = [f(steps[:, np.newaxis] * rates) for f in (np.cos, np.sin)]
  cos, sin = (tf.cast(turn[:, np.newaxis, np.newaxis], vectors.dtype) for turn in turns)
  a, b = vectors[..., :half], vectors[..., half:]
  return tf.concat([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _num_steps(vectors: tf.Tensor) -> Any:
  """Returns the size of the second axis: a tensor if it is unknown, else an int."""
  steps = vectors.shape[1]
  return tf.shape(vectors)[1] if steps is None else steps


def _range(steps: Any) -> Any:
  return tf.range(steps) if tf.is_tensor(steps) else np.arange(steps)
