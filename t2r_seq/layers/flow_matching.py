"""Decoders that turn noise into actions in a few steps: flow matching and diffusion."""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.action_decoders import (
  ActionDecoder,
  Outputs,
  check_inference,
  draw,
  draw_for_actions,
)
from t2r_seq.layers.construction import CompositeLayer, configurable_layer

_TIME_FEATURES = 32
# Above 1, steps are shorter near noise, where the mode of a long chunk is decided. If a
# network is exact and draws from two modes of 56 numbers, 30 % and 70 %, 10 equal steps
# choose the first in 23 %, these in 27 %. Larger exponents blur the actions.
_STEP_EXPONENT = 1.5
# The largest strength of guidance, whose formula is unbounded near noise.
_MOST_GUIDANCE = 5.0


def time_features(time: tf.Tensor) -> tf.Tensor:
  """Maps times in [0, 1], [..., 1], to sines and cosines, [..., 32].

  Periods of 0.004 to 4, as in https://arxiv.org/abs/2410.24164.
  """
  count = _TIME_FEATURES // 2
  periods = 0.004 * 1000.0 ** (np.arange(count) / (count - 1))
  angle = time * tf.constant(2 * math.pi / periods, time.dtype)
  return tf.concat([tf.sin(angle), tf.cos(angle)], axis=-1)


class Continuation(NamedTuple):
  """The previous chunk's actions for a new chunk's first steps, and their weights.

  Attributes:
    target: the previous actions, [B, n, ...].
    weights: float32 [B, n]: 1 for actions that will have been executed, which the
      chunk repeats; less for planned ones, to which it stays close; 0 for others.
  """

  target: tf.Tensor
  weights: tf.Tensor

  @classmethod
  def of(
    cls, target: tf.Tensor, num_frozen: tf.Tensor, num_known: tf.Tensor
  ) -> Continuation:
    """Weighs the previous chunk's actions, after https://arxiv.org/abs/2506.07339.

    Args:
      target: the previous actions, [B, n, ...].
      num_frozen: actions executed before the new chunk arrives, int32 [B].
      num_known: valid actions of `target`, int32 [B], at least `num_frozen`.
    """
    places = tf.range(target.shape[1], dtype=tf.float32)[tf.newaxis]
    frozen, known = (
      tf.cast(each, tf.float32)[:, tf.newaxis] for each in (num_frozen, num_known)
    )
    share = (known - places) / (known - frozen + 1)
    soft = share * (tf.exp(share) - 1) / (math.e - 1)
    weights = tf.where(places < known, soft, tf.zeros_like(soft))
    return cls(target, tf.where(places < frozen, tf.ones_like(soft), weights))

  @property
  def is_frozen(self) -> tf.Tensor:
    """Which actions the new chunk repeats, bool [B, n]."""
    return self.weights >= 1

  def flat(self) -> Continuation:
    """Returns targets and weights of each component of a flattened chunk, [B, N]."""
    size = math.prod(self.target.shape[1:])
    weights = tf.repeat(self.weights, math.prod(self.target.shape[2:]), axis=1)
    return Continuation(tf.reshape(self.target, [-1, size]), weights)


@configurable_layer
class Denoiser(CompositeLayer):
  """Residual dense layers over noisy actions, the time and an embedding."""

  def __init__(
    self,
    action_shape: Sequence[int],
    hidden_sizes: Sequence[int] = (256, 256),
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      hidden_sizes: units of each hidden layer.
      **kwargs: arguments of the Keras layer.
    """
    # Half precision is too coarse for times and actions.
    super().__init__(**{"dtype": "float32", **kwargs})
    dense = functools.partial(tf.keras.layers.Dense, dtype=self.dtype)
    self._input = dense(hidden_sizes[0])
    self._hidden = [dense(n, activation="silu") for n in hidden_sizes]
    self._output = dense(math.prod(action_shape), kernel_initializer="zeros")

  def call(self, noisy: tf.Tensor, time: tf.Tensor, embedding: tf.Tensor) -> tf.Tensor:
    """Maps noisy actions to the prediction that the decoder trains.

    Args:
      noisy: flat actions, [B, ..., N].
      time: in [0, 1], [B, ..., 1].
      embedding: [B, ..., D].
    Returns:
      [B, ..., N].
    """
    net = tf.concat([noisy, time_features(time), embedding], axis=-1)
    net = self._input(net)
    for layer in self._hidden:
      change = layer(net)
      net = net + change if net.shape[-1] == change.shape[-1] else change
    return self._output(net)


class _NoiseDecoder(ActionDecoder):
  """Shared by flow matching and diffusion: a network, noise, and a few steps."""

  def __init__(
    self,
    action_shape: Sequence[int],
    num_steps: int = 10,
    create_denoiser_fn: Callable[[Sequence[int]], Any] = Denoiser,
    temperature: float = 1.0,
    seed: int | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      num_steps: denoising steps (network calls) per sample.
      create_denoiser_fn: maps `action_shape` to a network with the signature of
        `Denoiser`, such as `ConditionalUNet` or `DiffusionTransformer`.
      temperature: scale of the initial noise; 0 starts from zeros.
      seed: starts each call from the same noise, so that the policy is deterministic;
        None: new noise.
      **kwargs: arguments of the base class, `ActionDecoder`.
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
    self._denoiser = create_denoiser_fn(self.action_shape)

  def call(
    self,
    embedding: tf.Tensor,
    training: bool = False,
    known: Continuation | None = None,
  ) -> Outputs:
    """See the base class; in training there is no action.

    With `known`, [B, D] embeddings give chunks that continue a plan: by default by
    guided inpainting (https://arxiv.org/abs/2506.07339), with a gradient in each step.
    """
    outputs = {"action_embedding": embedding}
    if training:
      return outputs
    like = tf.zeros_like(embedding[..., :1]) + tf.zeros([self.num_components])
    noise = self._temperature * draw_for_actions(like, self._seed)
    if known is None:
      flat = self._denoise(noise, embedding)
    else:
      flat = self._continue(noise, embedding, known)
    return {**outputs, "inference_output": self.as_actions(flat)}

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """See the base class: squared errors of the network's predictions."""
    del is_valid
    flat, seed = self.flatten(target), None if training else 0
    time = draw("uniform", tf.shape(flat[..., :1]), seed, 1)
    noise = draw("normal", tf.shape(flat), seed, 2)
    noisy, time, expected = self._corrupt(flat, noise, time)
    predicted = self._predict(noisy, time, outputs["action_embedding"])
    return self.as_actions(tf.math.squared_difference(predicted, expected))

  def _predict(self, noisy: tf.Tensor, time: Any, embedding: tf.Tensor) -> tf.Tensor:
    time = tf.convert_to_tensor(time, noisy.dtype)
    if not time.shape.rank:
      time = tf.fill(tf.shape(noisy[..., :1]), time)
      time = tf.ensure_shape(time, [*noisy.shape[:-1], 1])
    return tf.cast(self._denoiser(noisy, time, embedding), tf.float32)

  @abc.abstractmethod
  def _corrupt(
    self, action: tf.Tensor, noise: tf.Tensor, time: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (noisy actions, the network's time, the prediction to learn)."""

  @abc.abstractmethod
  def _denoise(
    self, noise: tf.Tensor, embedding: tf.Tensor, known: Continuation | None = None
  ) -> tf.Tensor:
    """Maps noise to actions, [B, ..., N]; guides them to known ones, if given."""

  def _continue(
    self, noise: tf.Tensor, embedding: tf.Tensor, known: Continuation
  ) -> tf.Tensor:
    """Maps noise to actions that continue known ones, [B, N]."""
    numbers = known.flat()
    flat = self._denoise(noise, embedding, numbers)
    return tf.where(numbers.is_frozen, numbers.target, flat)


def _guidance(
  known: Continuation, tape: tf.GradientTape, clean: tf.Tensor, flat: tf.Tensor
) -> tf.Tensor:
  """Returns the change of noisy actions that brings clean ones closer to known ones."""
  error = known.weights * (known.target - clean)
  return tape.gradient(clean, flat, output_gradients=tf.stop_gradient(error))


@configurable_layer
class FlowMatchingDecoder(_NoiseDecoder):
  """A velocity field from noise to actions, integrated by Euler steps.

  Straight paths, https://arxiv.org/abs/2210.02747. Normalize actions to unit scale.
  """

  def __init__(
    self, action_shape: Sequence[int], max_delay: int | None = None, **kwargs: Any
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: see the base class.
      max_delay: maximum number of actions of the previous chunk that a chunk continues;
        they have no noise in training, https://arxiv.org/abs/2512.05964. Their number,
        int32 [B], is to be added to the outputs as 'delay' for the loss. The network
        must take a time for each action, as an `ActionExpert` does. None continues a
        plan by guided inpainting.
      **kwargs: num_steps (network calls), create_denoiser_fn (maps `action_shape` to a
        network like `Denoiser`), temperature (scale of the initial noise), seed (None:
        new noise in each call); arguments of `ActionDecoder`.
    Raises:
      SpecError: `num_steps` is below 1.
    """
    super().__init__(action_shape, **kwargs)
    self._max_delay = max_delay

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """Returns squared errors; 0 for the previous chunk's actions."""
    if "delay" not in outputs:
      return super().errors(outputs, target, is_valid, training)
    count = outputs["delay"]
    known = Continuation.of(target, count, count)
    flat, seed = self.flatten(target), None if training else 0
    time = draw("uniform", tf.shape(flat[..., :1]), seed, 1)
    noise = draw("normal", tf.shape(flat), seed, 2)
    noisy, time, expected = self._corrupt(flat, noise, time)
    predicted = self._predict_after(known, noisy, time, outputs["action_embedding"])
    error = tf.math.squared_difference(predicted, expected)
    return self.as_actions(error * (1 - known.flat().weights))

  def _predict_after(
    self, known: Continuation, noisy: tf.Tensor, time: Any, embedding: tf.Tensor
  ) -> tf.Tensor:
    """Predicts velocities; frozen actions have no noise, so that their time is 1."""
    flat = known.flat()
    noisy = tf.where(flat.is_frozen, flat.target, noisy)
    times = tf.where(known.is_frozen, tf.ones_like(known.weights), time)
    return self._predict(noisy, times, embedding)

  def _continue(
    self, noise: tf.Tensor, embedding: tf.Tensor, known: Continuation
  ) -> tf.Tensor:
    if self._max_delay is None:
      return super()._continue(noise, embedding, known)
    flat = noise
    for start, end in itertools.pairwise(_dense_progress(self._num_steps).tolist()):
      flat += (end - start) * self._predict_after(known, flat, start, embedding)
    numbers = known.flat()
    return tf.where(numbers.is_frozen, numbers.target, flat)

  def _corrupt(
    self, action: tf.Tensor, noise: tf.Tensor, time: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    return (1 - time) * noise + time * action, time, action - noise

  def _denoise(
    self, noise: tf.Tensor, embedding: tf.Tensor, known: Continuation | None = None
  ) -> tf.Tensor:
    ends = _dense_progress(self._num_steps)
    if known is None:
      flat = noise
      for start, end in itertools.pairwise(ends.tolist()):
        flat += (end - start) * self._predict(flat, start, embedding)
      return flat
    with np.errstate(divide="ignore"):
      strengths = (ends**2 + (1 - ends) ** 2) / (ends * (1 - ends))
    strengths = np.minimum(strengths, _MOST_GUIDANCE)
    rows = np.stack([ends[:-1], np.diff(ends), strengths[:-1]], axis=1)

    def step(i: Any, flat: tf.Tensor) -> tuple[Any, tf.Tensor]:
      start, size, strength = tf.unstack(tf.gather(tf.constant(rows, tf.float32), i))
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(flat)
        velocity = self._predict(flat, start, embedding)
        clean = flat + (1 - start) * velocity
      return i + 1, flat + size * (
        velocity + strength * _guidance(known, tape, clean, flat)
      )

    return _repeat(step, noise, self._num_steps)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class NoiseSchedule:
  """The noise of each step of a diffusion, and the prediction of its network.

  Terms and formulas are those of DDPM (https://arxiv.org/abs/2006.11239) and of its
  implementations, so that networks trained elsewhere can be loaded.

  Attributes:
    num_steps: T, steps of the diffusion that is trained.
    betas: 'squaredcos_cap_v2' (https://arxiv.org/abs/2102.09672) or 'linear', from
      `beta_start` to `beta_end`.
    beta_start: first value of 'linear'.
    beta_end: last value of 'linear'.
    prediction: 'epsilon' (the noise), 'sample' (the actions), or 'velocity'
      (https://arxiv.org/abs/2202.00512).
    clip: clips predicted actions to [-clip, clip] in every step; None does not clip.
    spacing: steps of the sampler: 'leading', equally spaced and the last at 0; or
      'dense', shorter near noise, where the mode of a long chunk is decided.
  """

  num_steps: int = 1000
  betas: str = "squaredcos_cap_v2"
  beta_start: float = 0.0001
  beta_end: float = 0.02
  prediction: str = "velocity"
  clip: float | None = None
  spacing: str = "dense"

  def __post_init__(self) -> None:
    """Checks the options.

    Raises:
      SpecError: an option is unknown or out of range.
    """
    for name, options in _SCHEDULE_OPTIONS.items():
      if getattr(self, name) not in options:
        raise errors.SpecError(
          f"NoiseSchedule: {name}: expected one of {errors.listing(options)}, got "
          f"{getattr(self, name)!r}."
        )
    if self.num_steps < 1:
      raise errors.SpecError(
        f"NoiseSchedule: num_steps: expected at least 1, got {self.num_steps}."
      )

  @functools.cached_property
  def alphas_cumprod(self) -> np.ndarray:
    """The share of the signal's power after each step, [num_steps]."""
    if self.betas == "linear":
      betas = np.linspace(self.beta_start, self.beta_end, self.num_steps)
    else:
      ends = np.arange(self.num_steps + 1) / self.num_steps
      powers = np.cos((ends + 0.008) / 1.008 * math.pi / 2) ** 2
      betas = np.minimum(1 - powers[1:] / powers[:-1], 0.999)
    # Rounded as in PyTorch: a network is sensitive to a little more or less noise.
    alphas = np.float32(1) - betas.astype(np.float32)
    power = np.cumprod(alphas, dtype=np.float64)
    return power.astype(np.float32).astype(np.float64)

  def sampler_steps(self, num_steps: int) -> np.ndarray:
    """Returns the steps that a sampler of `num_steps` steps visits, descending."""
    if self.spacing == "leading":
      return np.arange(num_steps)[::-1] * (self.num_steps // num_steps)
    steps = np.round(self.num_steps * (1 - _dense_progress(num_steps)[:-1]))
    return steps.astype(np.int64) - 1


_SCHEDULE_OPTIONS = {
  "betas": ("squaredcos_cap_v2", "linear"),
  "prediction": ("epsilon", "sample", "velocity"),
  "spacing": ("leading", "dense"),
}


@configurable_layer
class DiffusionDecoder(_NoiseDecoder):
  """Denoising diffusion of actions, sampled by DDIM or DDPM steps.

  DDIM, https://arxiv.org/abs/2010.02502, is deterministic except for the initial noise;
  DDPM, https://arxiv.org/abs/2006.11239, adds noise in every step. Normalize actions to
  unit scale.
  """

  def __init__(
    self,
    action_shape: Sequence[int],
    num_steps: int = 10,
    schedule: NoiseSchedule = NoiseSchedule(),
    sampler: str = "ddim",
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      num_steps: denoising steps (network calls) per sample.
      schedule: the noise schedule used in training.
      sampler: 'ddim' or 'ddpm'.
      **kwargs: create_denoiser_fn, temperature and seed as for `FlowMatchingDecoder`;
        arguments of `ActionDecoder`.
    Raises:
      SpecError: the sampler is unknown, or `num_steps` is below 1 or above the
        schedule's.
    """
    super().__init__(action_shape, num_steps, **kwargs)
    check_inference(self, sampler, ("ddim", "ddpm"), "sampler")
    if num_steps > schedule.num_steps:
      raise errors.SpecError(
        f"DiffusionDecoder: num_steps: expected at most the {schedule.num_steps} of "
        f"its schedule, got {num_steps}."
      )
    self._schedule, self._sampler = schedule, sampler

  def _corrupt(
    self, action: tf.Tensor, noise: tf.Tensor, time: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    count, power = self._schedule.num_steps, self._schedule.alphas_cumprod
    step = tf.minimum(tf.cast(time * count, tf.int32), count - 1)
    signal, sigma = (
      tf.gather(tf.constant(rates, tf.float32), step)
      for rates in (np.sqrt(power), np.sqrt(1 - power))
    )
    expected = {
      "epsilon": noise,
      "sample": action,
      "velocity": signal * noise - sigma * action,
    }
    time = tf.cast(step, tf.float32) / count
    return signal * action + sigma * noise, time, expected[self._schedule.prediction]

  def _denoise(
    self, noise: tf.Tensor, embedding: tf.Tensor, known: Continuation | None = None
  ) -> tf.Tensor:
    steps = self._schedule.sampler_steps(self._num_steps)
    power = self._schedule.alphas_cumprod[steps]
    next_power = np.append(power[1:], 1.0)
    variance = np.zeros_like(power)
    if self._sampler == "ddpm":  # The variance of DDIM with eta = 1.
      variance = (1 - next_power) / (1 - power) * (1 - power / next_power)
    rates = np.stack(
      [
        steps / self._schedule.num_steps,
        np.sqrt(power),
        np.sqrt(1 - power),
        np.sqrt(next_power),
        np.sqrt(np.maximum(1 - next_power - variance, 0)),
        self._temperature * np.sqrt(variance),
      ],
      axis=1,
    )

    def step(i: Any, flat: tf.Tensor) -> tuple[Any, tf.Tensor]:
      row = tf.gather(tf.constant(rates, tf.float32), i)
      time, signal, sigma, next_signal, rest, spread = tf.unstack(row)
      if known is None:
        predicted = self._predict(flat, time, embedding)
        action, noise = self._action_and_noise(flat, predicted, signal, sigma)
      else:
        # Corrects the expected actions as if the known ones had been measured,
        # https://openreview.net/forum?id=9_gsMA8MRKQ.
        with tf.GradientTape(watch_accessed_variables=False) as tape:
          tape.watch(flat)
          predicted = self._predict(flat, time, embedding)
          action, noise = self._split(flat, predicted, signal, sigma)
        strength = tf.minimum(1 / signal, _MOST_GUIDANCE)
        change = strength * _guidance(known, tape, action, flat)
        # Near noise, the slightest error of the network's gradient is amplified.
        most = tf.norm(known.weights * (known.target - action), axis=-1, keepdims=True)
        size = tf.maximum(tf.norm(change, axis=-1, keepdims=True), 1e-6)
        action += change * tf.minimum(1.0, most / size)
        action, noise = self._clip(action, noise, flat, signal, sigma)
      flat = next_signal * action + rest * noise
      if self._sampler == "ddpm":
        flat += spread * self._step_noise(i, flat)
      return i + 1, flat

    return _repeat(step, noise, self._num_steps)

  def _action_and_noise(
    self, flat: tf.Tensor, predicted: tf.Tensor, signal: tf.Tensor, sigma: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Splits noisy actions into actions and noise, by the network's prediction."""
    action, noise = self._split(flat, predicted, signal, sigma)
    return self._clip(action, noise, flat, signal, sigma)

  def _split(
    self, flat: tf.Tensor, predicted: tf.Tensor, signal: tf.Tensor, sigma: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    schedule = self._schedule
    if schedule.prediction == "epsilon":
      action, noise = (flat - sigma * predicted) / signal, predicted
    elif schedule.prediction == "sample":
      action, noise = predicted, (flat - signal * predicted) / sigma
    else:
      action = signal * flat - sigma * predicted
      noise = signal * predicted + sigma * flat
    return action, noise

  def _clip(
    self,
    action: tf.Tensor,
    noise: tf.Tensor,
    flat: tf.Tensor,
    signal: tf.Tensor,
    sigma: tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    if self._schedule.clip is not None:
      action = tf.clip_by_value(action, -self._schedule.clip, self._schedule.clip)
    if self._sampler == "ddpm":
      # DDPM's posterior is that of clipped actions; DDIM keeps the predicted noise.
      noise = (flat - signal * action) / sigma
    return action, noise

  def _step_noise(self, i: Any, like: tf.Tensor) -> tf.Tensor:
    """Draws the noise of step i, [B, ..., N]; with a seed the same in every row."""
    if self._seed is None:
      return tf.random.normal(tf.shape(like))
    rng = np.random.default_rng([self._seed, 1])
    table = rng.standard_normal((self._num_steps, self.num_components))
    return tf.zeros_like(like) + tf.gather(tf.constant(table, like.dtype), i)


def _repeat(
  step: Callable[[Any, tf.Tensor], tuple[Any, tf.Tensor]],
  flat: tf.Tensor,
  num_steps: int,
) -> tf.Tensor:
  """Takes the steps of a sampler in a loop: the graph's size is independent of them."""
  # The first step creates the network's variables, which a loop can't.
  _, flat = step(0, flat)
  if num_steps > 1:
    last = num_steps - 1
    condition = lambda i, _: i <= last  # noqa: E731
    _, flat = tf.while_loop(condition, step, (1, flat), maximum_iterations=last)
  return flat


def _dense_progress(num_steps: int) -> np.ndarray:
  """Returns the ends of steps from 0 for noise to 1 for actions, [num_steps + 1]."""
  return (np.arange(num_steps + 1) / num_steps) ** _STEP_EXPONENT
