"""Diffusion Policy's 1-D U-Net and transformer, https://arxiv.org/abs/2303.04137."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.attention import Transformer, add_positions
from t2r_seq.layers.construction import CompositeLayer, configurable_layer


class StepEmbedding(CompositeLayer):
  """Sines and cosines of a diffusion step, [B, 1] -> [B, size], float32."""

  def __init__(self, size: int, time_scale: float, **kwargs: Any) -> None:
    """Creates the layer.

    Args:
      size: size of the embedding, even and at least 4.
      time_scale: the number of steps, by which times in [0, 1] are multiplied.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**{"dtype": "float32", **kwargs})
    half = size // 2
    rates = np.exp(np.arange(half) * -math.log(10000) / (half - 1))
    self._rates, self._time_scale = rates.astype(np.float32), time_scale

  def call(self, time: tf.Tensor) -> tf.Tensor:
    """Embeds times, [B, 1]."""
    # A time is step / time_scale, which is not exact: rounding restores the step.
    step = tf.round(tf.cast(time, tf.float32) * self._time_scale * 1024) / 1024
    angles = step * self._rates
    return tf.concat([tf.sin(angles), tf.cos(angles)], axis=-1)


def mish(x: tf.Tensor) -> tf.Tensor:
  """Returns x * tanh(softplus(x)), https://arxiv.org/abs/1908.08681."""
  return x * tf.tanh(tf.math.softplus(x))


def _as_torch() -> dict[str, Any]:
  """Returns initializers like PyTorch's, which the paper uses.

  With Keras's larger kernels and zero biases, the error of the actions was a third
  greater after 3,000 steps.
  """
  uniform = tf.keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
  bias = tf.keras.initializers.RandomUniform(-0.08, 0.08)
  return {"kernel_initializer": uniform, "bias_initializer": bias}


class _ConvBlock(CompositeLayer):
  """Convolution, group normalization, Mish."""

  def __init__(
    self, filters: int, kernel_size: int, num_groups: int, **kwargs: Any
  ) -> None:
    super().__init__(**kwargs)
    self._conv = tf.keras.layers.Conv1D(
      filters, kernel_size, padding="same", **_as_torch()
    )
    self._norm = tf.keras.layers.GroupNormalization(num_groups, epsilon=1e-5)

  def call(self, steps: tf.Tensor) -> tf.Tensor:
    return mish(self._norm(self._conv(steps)))


class _ResidualBlock(CompositeLayer):
  """Two convolutions with FiLM by a condition between them, and a residual."""

  def __init__(
    self,
    filters: int,
    kernel_size: int,
    num_groups: int,
    scales: bool,
    projects: bool,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    self._convs = [
      _ConvBlock(filters, kernel_size, num_groups, name=f"conv_{i}") for i in range(2)
    ]
    size = 2 * filters if scales else filters
    self._film = tf.keras.layers.Dense(size, name="film", **_as_torch())
    self._projection = None
    if projects:
      self._projection = tf.keras.layers.Conv1D(
        filters, 1, name="projection", **_as_torch()
      )
    self._scales = scales

  def call(self, steps: tf.Tensor, condition: tf.Tensor) -> tf.Tensor:
    net = self._convs[0](steps)
    film = self._film(mish(condition))[:, tf.newaxis]
    if self._scales:
      scale, shift = tf.split(film, 2, axis=-1)
      net = scale * net + shift
    else:
      net += film
    net = self._convs[1](net)
    return net + (steps if self._projection is None else self._projection(steps))


@configurable_layer
class ConditionalUNet(CompositeLayer):
  """A 1-D U-Net over the steps of an action chunk; FiLM by time and embedding."""

  def __init__(
    self,
    action_shape: Sequence[int],
    filters: Sequence[int] = (512, 1024, 2048),
    kernel_size: int = 5,
    num_groups: int = 8,
    time_size: int = 128,
    time_scale: float = 100,
    film_scales: bool = True,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of a chunk, (steps, components); the steps a multiple of 2 **
        (len(filters) - 1).
      filters: filters at each resolution in time, which halves from one to the next.
      kernel_size: steps that a convolution sees.
      num_groups: groups of the group normalization.
      time_size: components of the embedded time.
      time_scale: multiplies the time before it is embedded: the steps of the schedule.
      film_scales: whether FiLM scales and shifts; False only shifts.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the chunk has not two axes, or its steps can't be halved that often.
    """
    super().__init__(**kwargs)
    factor = 2 ** (len(filters) - 1)
    if len(action_shape) != 2 or action_shape[0] % factor:
      raise errors.SpecError(
        "ConditionalUNet: action_shape: expected (steps, components) with a multiple "
        f"of {factor} steps for {len(filters)} filters, got {tuple(action_shape)}. "
        "Change the chunk, or take fewer filters."
      )
    self._action_shape = tuple(action_shape)
    self._embed = StepEmbedding(time_size, time_scale)
    dense = tf.keras.layers.Dense
    self._time_in = dense(4 * time_size, mish, name="time_in", **_as_torch())
    self._time_out = dense(time_size, name="time_out", **_as_torch())

    def block(name: str, width: int, inputs: int) -> _ResidualBlock:
      projects = inputs != width
      return _ResidualBlock(
        width, kernel_size, num_groups, film_scales, projects, name=name
      )

    inputs = [action_shape[1], *filters[:-1]]
    self._down = [
      [block("down", n, before), block("down", n, n)]
      for before, n in zip(inputs, filters, strict=True)
    ]
    self._downsample = [
      tf.keras.layers.Conv1D(n, 3, 2, name="downsample", **_as_torch())
      for n in filters[:-1]
    ]
    self._middle = [block("mid", filters[-1], filters[-1]) for _ in range(2)]
    self._up = [
      [block("up", n, 2 * after), block("up", n, n)]
      for n, after in zip(filters[-2::-1], filters[:0:-1], strict=True)
    ]
    self._upsample = [
      tf.keras.layers.Conv1DTranspose(
        n, 4, 2, padding="same", name="upsample", **_as_torch()
      )
      for n in filters[-2::-1]
    ]
    # LeRobot's networks use 8 groups here for any num_groups.
    num_groups = math.gcd(8, filters[0])
    self._last = _ConvBlock(filters[0], kernel_size, num_groups, name="last")
    self._output = tf.keras.layers.Conv1D(
      action_shape[1], 1, dtype="float32", name="output", **_as_torch()
    )

  def call(self, noisy: tf.Tensor, time: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Predicts; see `Denoiser`."""
    net = tf.reshape(noisy, [-1, *self._action_shape])
    embedded = self._time_out(self._time_in(self._embed(tf.reshape(time, [-1, 1]))))
    embedding = tf.reshape(embedding, [-1, embedding.shape[-1]])
    condition = tf.concat([embedded, tf.cast(embedding, embedded.dtype)], axis=-1)
    skips = []
    for i, blocks in enumerate(self._down):
      for block in blocks:
        net = block(net, condition)
      skips.append(net)
      if i < len(self._downsample):
        # Not padding="same", which pads an even number of steps only at the end.
        net = self._downsample[i](tf.pad(net, [[0, 0], [1, 1], [0, 0]]))
    for block in self._middle:
      net = block(net, condition)
    for blocks, upsample in zip(self._up, self._upsample, strict=True):
      net = tf.concat([net, skips.pop()], axis=-1)
      for block in blocks:
        net = block(net, condition)
      net = upsample(net)
    return tf.reshape(self._output(self._last(net)), tf.shape(noisy))


@configurable_layer
class DiffusionTransformer(CompositeLayer):
  """A decoder whose tokens are the steps of a chunk; it reads time and embeddings.

  A step sees itself and the steps before it.
  """

  def __init__(
    self,
    action_shape: Sequence[int],
    num_condition_tokens: int = 1,
    num_layers: int = 8,
    num_heads: int = 4,
    model_size: int = 256,
    dropout: float = 0.3,
    time_scale: float = 100,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of a chunk, (steps, components).
      num_condition_tokens: equal parts that the embedding is split into, such as one
        for each observation; each becomes a token.
      num_layers: blocks of the decoder.
      num_heads: heads of each attention layer.
      model_size: components of a token; a multiple of the heads.
      dropout: rate of dropout, as in `Transformer`.
      time_scale: multiplies the time before it is embedded: the steps of the schedule.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the size cannot be split among the heads.
    """
    super().__init__(**kwargs)
    self._action_shape, self._num_tokens = tuple(action_shape), num_condition_tokens
    self._embed = StepEmbedding(model_size, time_scale)
    self._input = tf.keras.layers.Dense(model_size, name="input")
    self._condition = tf.keras.layers.Dense(model_size, name="condition")
    self._memory_in = tf.keras.layers.Dense(4 * model_size, mish, name="memory_in")
    self._memory_out = tf.keras.layers.Dense(model_size, name="memory_out")
    normal = tf.keras.initializers.RandomNormal(stddev=0.02)
    self._positions, self._memory_positions = (
      self.add_weight(name=name, shape=(count, model_size), initializer=normal)
      for name, count in (
        ("positions", action_shape[0]),
        ("memory_positions", 1 + num_condition_tokens),
      )
    )
    self._decoder = Transformer(
      num_layers,
      num_heads,
      model_size,
      4 * model_size,
      dropout,
      pre_norm=True,
      activation="gelu",
      has_memory=True,
    )
    self._output = tf.keras.layers.Dense(action_shape[1], dtype="float32")

  def call(
    self,
    noisy: tf.Tensor,
    time: tf.Tensor,
    embedding: tf.Tensor,
    training: bool = False,
  ) -> tf.Tensor:
    """Predicts; see `Denoiser`."""
    steps, size = self._action_shape[0], embedding.shape[-1] // self._num_tokens
    tokens = self._input(tf.reshape(noisy, [-1, *self._action_shape]))
    memory = self._condition(tf.reshape(embedding, [-1, self._num_tokens, size]))
    when = tf.cast(self._embed(tf.reshape(time, [-1, 1])), memory.dtype)
    memory = add_positions(
      tf.concat([when[:, tf.newaxis], memory], 1), self._memory_positions
    )
    memory = self._memory_out(self._memory_in(memory))
    order = np.arange(steps)[:, np.newaxis]
    net = self._decoder(
      add_positions(tokens, self._positions),
      visible=tf.constant(order >= order.T)[tf.newaxis],
      memory=memory,
      training=training,
    )
    return tf.reshape(self._output(net), tf.shape(noisy))
