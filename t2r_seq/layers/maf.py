"""Masked autoregressive flow: a density of actions that can have any shape.

https://arxiv.org/abs/1705.07057.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.action_decoders import ActionDecoder, Outputs, draw_for_actions
from t2r_seq.layers.construction import CompositeLayer, configurable_layer


class MaskedDense(tf.keras.layers.Layer):
  """A dense layer whose kernel is multiplied by a constant mask."""

  def __init__(
    self, mask: np.ndarray, kernel_initializer: Any = "glorot_uniform", **kwargs: Any
  ) -> None:
    """Creates the layer.

    Args:
      mask: mask of the kernel, [inputs, units].
      kernel_initializer: initializer of the kernel.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._mask = np.asarray(mask, np.float32)
    self._kernel = self.add_weight(
      name="kernel", shape=self._mask.shape, initializer=kernel_initializer
    )
    self._bias = self.add_weight(
      name="bias", shape=self._mask.shape[1:], initializer="zeros"
    )

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [..., inputs] to [..., units]."""
    kernel = tf.convert_to_tensor(self._kernel) * self._mask
    return tf.tensordot(inputs, kernel, 1) + tf.convert_to_tensor(self._bias)


class AutoregressiveNet(CompositeLayer):
  """Shift and log scale of each number, from the numbers before it and a condition.

  MADE, https://arxiv.org/abs/1502.03509. The log scales stay within +-5.
  """

  def __init__(self, size: int, hidden_layers: Sequence[int], **kwargs: Any) -> None:
    """Creates the layer.

    Args:
      size: D, numbers in a vector.
      hidden_layers: units of each hidden layer.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    # A unit of degree d sees the first d numbers; number d + 1 sees units up to d.
    before = np.arange(1, size + 1)
    self._hidden = []
    for units in hidden_layers:
      degrees = np.arange(units) % size
      mask = before[:, np.newaxis] <= degrees
      self._hidden.append(MaskedDense(mask, dtype=self.dtype))
      before = degrees
    mask = before[:, np.newaxis] < np.arange(1, size + 1)
    self._output = MaskedDense(np.tile(mask, [1, 2]), "zeros", dtype=self.dtype)
    self._condition = tf.keras.layers.Dense(hidden_layers[0], dtype=self.dtype)

  def call(
    self, values: tf.Tensor, condition: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps values [..., D] and a condition [..., C] to (shift, log scale), [..., D]."""
    net = self._condition(condition)
    for i, layer in enumerate(self._hidden):
      net = layer(values) + net if i == 0 else layer(net)
      net = tf.nn.relu(net)
    shift, scale = tf.split(self._output(net), 2, axis=-1)
    return shift, 5.0 * tf.tanh(scale / 5.0)


@configurable_layer
class MAFDecoder(ActionDecoder):
  """Autoregressive flows of normal noise around a mean, fitted by likelihood.

  The embedding gives the mean, and conditions the flows. Masked components are 0 for
  the flows, and are left out of the likelihood.

  For actions of one mode whose components depend on each other. An affine flow cannot
  separate modes: given the embedding, its first component is normal. For demonstrations
  that differ, use `MDNDecoder`, `FlowMatchingDecoder` or `DiffusionDecoder`.
  """

  def __init__(
    self,
    action_shape: Sequence[int],
    num_flows: int = 1,
    hidden_layers: Sequence[int] = (512, 512),
    temperature: float = 1.0,
    seed: int | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      num_flows: number of flows; between two of them the components are permuted.
      hidden_layers: units of each flow's hidden layers, each at least the number of
        components of an action.
      temperature: scales the noise of actions; 0 maps the mean through the flows.
      seed: draws the same noise at each call; None draws new noise.
      **kwargs: arguments of the base class, `ActionDecoder`.
    Raises:
      SpecError: there is no hidden layer, one is too narrow, or there is no flow.
    """
    super().__init__(action_shape, **kwargs)
    size = self.num_components
    if not hidden_layers or min(hidden_layers) < size or num_flows < 1:
      raise errors.SpecError(
        f"MAFDecoder: hidden_layers: expected at least {size} units each, as many as "
        f"an action has numbers, and num_flows of at least 1, got {hidden_layers} and "
        f"{num_flows}."
      )
    self._temperature, self._seed = temperature, seed
    self._mean = tf.keras.layers.Dense(size, dtype="float32")
    self._flows = [
      AutoregressiveNet(size, hidden_layers, dtype="float32") for _ in range(num_flows)
    ]
    rng = np.random.default_rng(0)
    self._orders = [
      np.arange(size),
      *[rng.permutation(size) for _ in range(1, num_flows)],
    ]

  def build(self, input_shape: Any) -> None:
    """Creates the flows' variables, as the loop of sampling can't."""
    embedding = tf.zeros([1, input_shape[-1]])
    for flow in self._flows:
      flow(tf.zeros([1, self.num_components]), embedding)
    self.built = True

  def call(self, embedding: tf.Tensor, training: bool = False) -> Outputs:
    """See the base class; in training there is no action."""
    embedding = tf.cast(embedding, tf.float32)
    outputs = {"maf_embedding": embedding, "maf_mean": self._mean(embedding)}
    if training:
      return outputs
    flat = outputs["maf_mean"]
    if self._temperature > 0:
      flat += self._temperature * draw_for_actions(flat, self._seed)
    for flow, order in reversed(list(zip(self._flows, self._orders, strict=True))):
      flat = _invert(flow, flat, embedding)
      flat = tf.gather(flat, np.argsort(order), axis=-1)
    return {**outputs, "inference_output": self.as_actions(flat)}

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """See the base class: the negative log likelihood of each action."""
    del training
    flat, is_valid = self.flatten(target), self.flatten(is_valid)
    total = tf.zeros_like(flat[..., 0])
    for flow, order in zip(self._flows, self._orders, strict=True):
      flat = tf.gather(flat, order, axis=-1)
      is_valid = tf.gather(is_valid, order, axis=-1)
      shift, log_scale = flow(flat, outputs["maf_embedding"])
      flat = tf.where(is_valid, (flat - shift) * tf.exp(-log_scale), 0.0)
      total += tf.reduce_sum(tf.where(is_valid, log_scale, 0.0), axis=-1)
    squares = tf.square(flat - outputs["maf_mean"]) + math.log(2 * math.pi)
    return total + 0.5 * tf.reduce_sum(tf.where(is_valid, squares, 0.0), axis=-1)


def _invert(
  flow: AutoregressiveNet, noise: tf.Tensor, condition: tf.Tensor
) -> tf.Tensor:
  """Returns the values that a flow maps to the noise, one component after another."""
  size = noise.shape[-1]

  def step(i: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    # After i rounds the first i numbers are right.
    shift, log_scale = flow(values, condition)
    return i + 1, tf.ensure_shape(noise * tf.exp(log_scale) + shift, noise.shape)

  start = (tf.constant(0), tf.zeros_like(noise))
  _, values = tf.while_loop(lambda i, _: i < size, step, start, maximum_iterations=size)
  return values
