"""Actions out of noise in a few steps: flow matching and diffusion."""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.action_decoders import (
  ActionDecoder,
  Outputs,
  draw,
  draw_for_actions,
)
from t2r_seq.layers.construction import CompositeLayer, configurable_layer

_TIME_FEATURES = 32
# Above 1, steps are shorter near noise, where the mode of a long chunk is decided. If a
# network is exact and draws from two modes of 56 numbers, 30 % and 70 %, 10 equal steps
# choose the first in 23 %, these in 27 %. Larger exponents blur the actions.
_STEP_EXPONENT = 1.5


@configurable_layer
class Denoiser(CompositeLayer):
  """Residual dense layers over noisy actions, the time and an embedding."""

  def __init__(
    self, num_components: int, hidden_sizes: Sequence[int] = (256, 256), **kwargs: Any
  ) -> None:
    """Creates the layer.

    Args:
      num_components: numbers in an action or chunk.
      hidden_sizes: units of each hidden layer.
      **kwargs: of the Keras layer.
    """
    # Times and actions are numbers that half precision blurs.
    super().__init__(**{"dtype": "float32", **kwargs})
    dense = functools.partial(tf.keras.layers.Dense, dtype=self.dtype)
    self._input = dense(hidden_sizes[0])
    self._hidden = [dense(n, activation="silu") for n in hidden_sizes]
    self._output = dense(num_components, kernel_initializer="zeros")

  def call(self, noisy: tf.Tensor, time: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Maps noisy actions to what the decoder asks for.

    Args:
      noisy: flat actions, [B, ..., num_components].
      time: in [0, 1], [B, ..., 1].
      embedding: [B, ..., D].
    Returns:
      [B, ..., num_components].
    """
    # Periods of 0.004 to 4, as in https://arxiv.org/abs/2410.24164.
    count = _TIME_FEATURES // 2
    periods = 0.004 * 1000.0 ** (np.arange(count) / (count - 1))
    angle = time * tf.constant(2 * math.pi / periods, time.dtype)
    net = tf.concat([noisy, tf.sin(angle), tf.cos(angle), embedding], axis=-1)
    net = self._input(net)
    for layer in self._hidden:
      change = layer(net)
      net = net + change if net.shape[-1] == change.shape[-1] else change
    return self._output(net)


class _NoiseDecoder(ActionDecoder):
  """What flow matching and diffusion share: a network, noise, and a few steps."""

  def __init__(
    self,
    action_shape: Sequence[int],
    num_steps: int = 10,
    create_denoiser_fn: Callable[[int], Any] = Denoiser,
    temperature: float = 1.0,
    seed: int | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: of one action, or of one chunk of them.
      num_steps: calls of the network for an action.
      create_denoiser_fn: called with the numbers in an action, gives the network, which
        is called as `Denoiser` is.
      temperature: scales the noise that actions begin with; 0 begins at zeros.
      seed: begins with the same noise at each call, so that a policy depends on what
        it sees alone; None draws anew.
      **kwargs: of the base class.
    Raises:
      SpecError: there are no steps.
    """
    super().__init__(action_shape, **kwargs)
    if num_steps < 1:
      raise errors.SpecError(
        f"{type(self).__name__}: num_steps: expected at least 1, got {num_steps}."
      )
    self._num_steps = num_steps
    self._temperature, self._seed = temperature, seed
    self._denoiser = create_denoiser_fn(self.num_components)

  def call(self, embedding: tf.Tensor, training: bool = False) -> Outputs:
    """See the base class; in training there is no action."""
    outputs = {"action_embedding": embedding}
    if training:
      return outputs
    like = tf.zeros_like(embedding[..., :1]) + tf.zeros([self.num_components])
    noise = self._temperature * draw_for_actions(like, self._seed)
    flat = self._denoise(noise, embedding)
    return {**outputs, "inference_output": self.as_actions(flat)}

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """See the base class: squared differences of what the network says."""
    del is_valid
    flat, seed = self.flatten(target), None if training else 0
    time = draw("uniform", tf.shape(flat[..., :1]), seed, 1)
    noise = draw("normal", tf.shape(flat), seed, 2)
    noisy, want = self._corrupt(flat, noise, time)
    said = self._ask(noisy, time, outputs["action_embedding"])
    return self.as_actions(tf.math.squared_difference(said, want))

  def _ask(self, noisy: tf.Tensor, time: Any, embedding: tf.Tensor) -> tf.Tensor:
    if not tf.is_tensor(time):
      time = tf.fill(tf.shape(noisy[..., :1]), tf.constant(time, noisy.dtype))
      time = tf.ensure_shape(time, [*noisy.shape[:-1], 1])
    said = self._denoiser(noisy, time, embedding)
    return tf.cast(said, tf.float32)

  def _progress(self) -> Iterator[tuple[float, float]]:
    """Yields the start and end of each step, from 0 for noise to 1 for actions."""
    ends = (np.arange(self._num_steps + 1) / self._num_steps) ** _STEP_EXPONENT
    return itertools.pairwise(ends.tolist())

  @abc.abstractmethod
  def _corrupt(
    self, action: tf.Tensor, noise: tf.Tensor, time: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns (noisy actions, what the network is to say of them)."""

  @abc.abstractmethod
  def _denoise(self, noise: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Makes actions of noise."""


@configurable_layer
class FlowMatchingDecoder(_NoiseDecoder):
  """A velocity field from noise to actions, integrated by Euler steps.

  Straight paths, https://arxiv.org/abs/2210.02747. Actions are best of unit scale.
  """

  def _corrupt(
    self, action: tf.Tensor, noise: tf.Tensor, time: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    return (1 - time) * noise + time * action, action - noise

  def _denoise(self, noise: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    flat = noise
    for start, end in self._progress():
      flat += (end - start) * self._ask(flat, start, embedding)
    return flat


@configurable_layer
class DiffusionDecoder(_NoiseDecoder):
  """Denoising diffusion with a cosine schedule, sampled by deterministic steps.

  DDIM, https://arxiv.org/abs/2010.02502. The network predicts velocities, as in
  https://arxiv.org/abs/2202.00512. Actions are best of unit scale.
  """

  def _corrupt(
    self, action: tf.Tensor, noise: tf.Tensor, time: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    angle = time * (math.pi / 2)
    cos, sin = tf.cos(angle), tf.sin(angle)
    return cos * action + sin * noise, cos * noise - sin * action

  def _denoise(self, noise: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    flat = noise
    for start, end in self._progress():
      now, then = ((1 - progress) * math.pi / 2 for progress in (start, end))
      velocity = self._ask(flat, 1 - start, embedding)
      action = math.cos(now) * flat - math.sin(now) * velocity
      rest = math.sin(now) * flat + math.cos(now) * velocity
      flat = math.cos(then) * action + math.sin(then) * rest
    return flat
