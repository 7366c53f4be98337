"""SNAIL: causal convolutions and attention over time, https://arxiv.org/abs/1707.03141."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from t2r_seq.layers.construction import CompositeLayer, configurable_layer, get_layer


@configurable_layer
class CausalConv1D(CompositeLayer):
  """A dilated convolution over time that sees the present and the past only."""

  def __init__(
    self,
    filters: int,
    dilation_rate: int = 1,
    kernel_size: int = 2,
    activation: str | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      filters: number of output channels.
      dilation_rate: distance of the steps that the kernel reads.
      kernel_size: number of steps that the kernel reads.
      activation: Keras activation, by name; None is linear, as in the paper.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._padding = (kernel_size - 1) * dilation_rate
    self._conv = tf.keras.layers.Conv1D(
      filters, kernel_size, dilation_rate=dilation_rate, activation=activation
    )

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [B, T, C] to [B, T, filters]; zeros precede the first step."""
    return self._conv(tf.pad(inputs, [[0, 0], [self._padding, 0], [0, 0]]))


@configurable_layer
class GatedDenseBlock(CompositeLayer):
  """Appends tanh(conv) * sigmoid(conv) to the channels: SNAIL's dense block."""

  def __init__(
    self,
    filters: int,
    dilation_rate: int = 1,
    activation: str | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      filters: channels that it appends.
      dilation_rate: dilation rate of its causal convolutions.
      activation: activation of its causal convolutions, before tanh and sigmoid.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._value = CausalConv1D(filters, dilation_rate, activation=activation)
    self._gate = CausalConv1D(filters, dilation_rate, activation=activation)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [B, T, C] to [B, T, C + filters]."""
    added = tf.nn.tanh(self._value(inputs)) * tf.nn.sigmoid(self._gate(inputs))
    return tf.concat([inputs, added], axis=-1)


@configurable_layer
class TemporalConvBlock(CompositeLayer):
  """Dense blocks with dilations 2, 4, 8 ... that reach over the whole sequence.

  SNAIL's TC block: ceil(log2(sequence_length)) dense blocks.
  """

  def __init__(
    self,
    sequence_length: int,
    filters: int,
    activation: str | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      sequence_length: steps of the sequences.
      filters: channels that each dense block appends.
      activation: activation of the causal convolutions.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    count = math.ceil(math.log2(sequence_length))
    self._blocks = [
      GatedDenseBlock(filters, 2**i, activation) for i in range(1, count + 1)
    ]

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [B, T, C] to [B, T, C + ceil(log2(sequence_length)) * filters]."""
    for block in self._blocks:
      inputs = block(inputs)
    return inputs


@configurable_layer
class CausalAttention(CompositeLayer):
  """Appends the output of one head of causal attention: SNAIL's attention block."""

  def __init__(self, key_size: int, value_size: int, **kwargs: Any) -> None:
    """Creates the layer.

    Args:
      key_size: size of keys and queries.
      value_size: channels that it appends.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._key_size = key_size
    self._key = tf.keras.layers.Dense(key_size)
    self._query = tf.keras.layers.Dense(key_size)
    self._value = tf.keras.layers.Dense(value_size)

  def call(self, inputs: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Attends to the present and past steps.

    Args:
      inputs: [B, T, C].
    Returns:
      ([B, T, C + value_size], {'attn_prob': [B, T, T], rows sum to 1}).
    """
    logits = tf.matmul(self._query(inputs), self._key(inputs), transpose_b=True)
    probs = CausallyMaskedSoftmax(logits / math.sqrt(self._key_size))
    read = tf.matmul(probs, self._value(inputs))
    return tf.concat([inputs, read], axis=-1), {"attn_prob": probs}


def CausallyMaskedSoftmax(x: tf.Tensor) -> tf.Tensor:
  """Softmax of each query's row over the keys up to its own step; 0 beyond.

  Args:
    x: logits, [..., T, T].
  Returns:
    [..., T, T]; rows sum to 1.
  """
  keys = tf.range(tf.shape(x)[-1])
  visible = keys[tf.newaxis, :] <= keys[:, tf.newaxis]
  return tf.nn.softmax(tf.where(visible, x, x.dtype.min))


# The convolutions of Tensor2Robot's functions end in a ReLU, the default activation of
# contrib's conv1d. The paper has none, nor do the layers by default.
_CONTRIB_ACTIVATION = "relu"


def CausalConv(
  x: tf.Tensor, dilation_rate: int, filters: int, kernel_size: int = 2, scope: str = ""
) -> tf.Tensor:
  """Convolves over time; Tensor2Robot's function for `CausalConv1D`, with a ReLU."""
  create = lambda: CausalConv1D(  # noqa: E731
    filters, dilation_rate, kernel_size, _CONTRIB_ACTIVATION
  )
  return get_layer("CausalConv", create, scope)(x)


def DenseBlock(
  x: tf.Tensor, dilation_rate: int, filters: int, scope: str = ""
) -> tf.Tensor:
  """Appends gated channels; Tensor2Robot's function for `GatedDenseBlock`."""
  create = lambda: GatedDenseBlock(  # noqa: E731
    filters, dilation_rate, _CONTRIB_ACTIVATION
  )
  return get_layer("DenseBlock", create, scope)(x)


def TCBlock(
  x: tf.Tensor, sequence_length: int, filters: int, scope: str = ""
) -> tf.Tensor:
  """Stacks dense blocks; Tensor2Robot's function for `TemporalConvBlock`."""
  create = lambda: TemporalConvBlock(  # noqa: E731
    sequence_length, filters, _CONTRIB_ACTIVATION
  )
  return get_layer("TCBlock", create, scope)(x)


def AttentionBlock(
  x: tf.Tensor, key_size: int, value_size: int, scope: str = ""
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """Appends the output of attention; Tensor2Robot's function for `CausalAttention`."""
  create = lambda: CausalAttention(key_size, value_size)  # noqa: E731
  return get_layer("AttentionBlock", create, scope)(x)
