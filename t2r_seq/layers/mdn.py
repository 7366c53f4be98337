"""Mixture density network for multimodal targets.

Mixture density networks, Bishop 1994.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.action_decoders import ActionDecoder, Outputs, check_inference
from t2r_seq.layers.construction import CompositeLayer, configurable_layer, get_layer

# Makes softplus(...) 1.
_UNIT_SIGMA = math.log(math.e - 1)


class Categorical:
  """Categorical distribution; a subset of tensorflow-probability's."""

  def __init__(self, logits: tf.Tensor) -> None:
    """Creates the distribution over logits [..., K]."""
    self.logits = logits

  def mode(self) -> tf.Tensor:
    """Returns the index of the most probable category, [...], int32."""
    return tf.argmax(self.logits, axis=-1, output_type=tf.int32)


class DiagonalNormals:
  """The components: normal distributions without correlations."""

  def __init__(self, loc: tf.Tensor, scale: tf.Tensor) -> None:
    """Creates distributions with means and standard deviations [..., K, D]."""
    self._loc, self._scale = loc, scale

  def mean(self) -> tf.Tensor:
    """Returns the means, [..., K, D]."""
    return self._loc

  def stddev(self) -> tf.Tensor:
    """Returns the standard deviations, [..., K, D]."""
    return self._scale

  def log_prob(self, value: tf.Tensor, is_valid: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the log density of vectors in each distribution, [..., K].

    Args:
      value: vectors, [..., 1, D].
      is_valid: bool, [..., 1, D]: which components count; None for all.
    """
    z = (value - self._loc) / self._scale
    each = -0.5 * tf.square(z) - tf.math.log(self._scale) - 0.5 * math.log(2 * math.pi)
    if is_valid is not None:
      each = tf.where(is_valid, each, tf.zeros_like(each))
    return tf.reduce_sum(each, axis=-1)


class GaussianMixture:
  """A mixture of normal distributions over vectors [D], one mixture for each example.

  Attributes:
    mixture_distribution: `Categorical`.
    components_distribution: `DiagonalNormals`.
  """

  def __init__(self, logits: tf.Tensor, loc: tf.Tensor, scale: tf.Tensor) -> None:
    """Creates the mixture.

    Args:
      logits: log odds of the components, [..., K].
      loc: means, [..., K, D].
      scale: standard deviations, [..., K, D].
    """
    self.mixture_distribution = Categorical(logits)
    self.components_distribution = DiagonalNormals(loc, scale)

  @property
  def batch_shape(self) -> tf.TensorShape:
    """The axes of the examples."""
    return self.components_distribution.mean().shape[:-2]

  @property
  def event_shape(self) -> tf.TensorShape:
    """The axis of a vector."""
    return self.components_distribution.mean().shape[-1:]

  def log_prob(self, value: tf.Tensor, is_valid: tf.Tensor | None = None) -> tf.Tensor:
    """Returns the log density of vectors, [...].

    Args:
      value: vectors, [..., D].
      is_valid: bool, [..., D]: which of their components count; None for all.
    """
    if is_valid is not None:
      is_valid = is_valid[..., tf.newaxis, :]
    each = self.components_distribution.log_prob(value[..., tf.newaxis, :], is_valid)
    odds = tf.nn.log_softmax(self.mixture_distribution.logits)
    return tf.reduce_logsumexp(odds + each, axis=-1)

  def mean(self) -> tf.Tensor:
    """Returns the mean over all components, [..., D]."""
    odds = tf.nn.softmax(self.mixture_distribution.logits)
    return tf.reduce_sum(
      odds[..., tf.newaxis] * self.components_distribution.mean(), axis=-2
    )

  def sample(self) -> tf.Tensor:
    """Draws a vector from each mixture, [..., D]."""
    logits = self.mixture_distribution.logits
    noise = tf.random.uniform(tf.shape(logits), minval=1e-10)
    which = tf.argmax(logits - tf.math.log(-tf.math.log(noise)), axis=-1)
    pick = lambda x: tf.gather(x, which, batch_dims=which.shape.rank, axis=-2)  # noqa: E731
    mean = pick(self.components_distribution.mean())
    scale = pick(self.components_distribution.stddev())
    return mean + scale * tf.random.normal(tf.shape(mean))


def get_mixture_distribution(
  params: tf.Tensor,
  num_alphas: int,
  sample_size: int,
  output_mean: Any = None,
  min_sigma: float = 1e-4,
) -> GaussianMixture:
  """Makes a mixture from a network's output.

  Args:
    params: [..., num_alphas * (1 + 2 * sample_size)]: the log odds of the components,
      all means, and the standard deviations before softplus.
    num_alphas: K, components.
    sample_size: D, numbers in a vector.
    output_mean: [D], added to each mean.
    min_sigma: added to the standard deviations.
  Returns:
    The mixture of vectors [D].
  Raises:
    SpecError: there are more or fewer parameters.
  """
  num_mus = num_alphas * sample_size
  if params.shape[-1] != num_alphas + 2 * num_mus:
    raise errors.SpecError(
      f"get_mixture_distribution: params: expected {num_alphas + 2 * num_mus} numbers "
      f"at the end, for {num_alphas} components of {sample_size} numbers, got "
      f"{errors.describe(params)}."
    )
  logits, mus, sigmas = tf.split(params, [num_alphas, num_mus, num_mus], axis=-1)
  sizes = [*params.shape[:-1], num_alphas, sample_size]
  shape = tf.concat([tf.shape(params)[:-1], [num_alphas, sample_size]], 0)
  mus = tf.ensure_shape(tf.reshape(mus, shape), sizes)
  sigmas = tf.ensure_shape(tf.reshape(sigmas, shape), sizes)
  if output_mean is not None:
    mus += tf.cast(output_mean, mus.dtype)
  return GaussianMixture(logits, mus, tf.nn.softplus(sigmas) + min_sigma)


def gaussian_mixture_approximate_mode(gm: Any) -> tf.Tensor:
  """Returns the mean of the most probable component, [..., D].

  Args:
    gm: a `GaussianMixture`, or tensorflow-probability's `MixtureSameFamily`.
  """
  which = gm.mixture_distribution.mode()
  means = gm.components_distribution.mean()
  return tf.gather(means, which, batch_dims=which.shape.rank, axis=-2)


@configurable_layer
class MDNParams(CompositeLayer):
  """A dense layer to the parameters that `get_mixture_distribution` reads."""

  def __init__(
    self,
    num_alphas: int,
    sample_size: int,
    condition_sigmas: bool = False,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_alphas: components.
      sample_size: numbers in a vector.
      condition_sigmas: whether standard deviations depend on the inputs; otherwise they
        are learned constants, initially 1.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    num_mus = num_alphas * sample_size
    count = num_alphas + num_mus * (2 if condition_sigmas else 1)
    # The components start close together, and separate as the data does. If they start
    # apart, the nearest one soon explains a long vector alone, and no other learns.
    small = tf.keras.initializers.VarianceScaling(0.01, "fan_avg", "uniform")
    self._dense = tf.keras.layers.Dense(
      count, kernel_initializer=small, dtype=self.dtype
    )
    self._sigmas = None
    if not condition_sigmas:
      self._sigmas = self.add_weight(
        name="mdn_stddev_inputs",
        shape=(num_mus,),
        initializer=tf.keras.initializers.Constant(_UNIT_SIGMA),
      )

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [..., F] to [..., num_alphas * (1 + 2 * sample_size)]."""
    params = self._dense(inputs)
    if self._sigmas is None:
      return params
    sigmas = tf.cast(tf.convert_to_tensor(self._sigmas), params.dtype)
    return tf.concat([params, tf.zeros_like(params[..., :1]) + sigmas], axis=-1)


@gin.configurable
def predict_mdn_params(
  inputs: tf.Tensor, num_alphas: int, sample_size: int, condition_sigmas: bool = False
) -> tf.Tensor:
  """Maps inputs to parameters; Tensor2Robot's function for `MDNParams`."""
  layer = get_layer(
    "predict_mdn_params",
    lambda: MDNParams(num_alphas, sample_size, condition_sigmas),
  )
  return layer(inputs)


@configurable_layer
class MDNDecoder(ActionDecoder):
  """A mixture of normal distributions over whole actions, fitted by their likelihood.

  A chunk of actions is one vector, so that each component is a mode of whole chunks.
  """

  def __init__(
    self,
    action_shape: Sequence[int],
    num_mixture_components: int = 1,
    condition_sigmas: bool = False,
    inference: str = "mode",
    output_mean: Sequence[float] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      num_mixture_components: components; 1 is regression with a learned deviation.
      condition_sigmas: whether the deviations depend on the embedding.
      inference: 'mode' gives the mean of the most probable component, 'mean' that of
        the mixture, 'sample' a random action.
      output_mean: added to the means, of `action_shape`.
      **kwargs: arguments of the base class, `ActionDecoder`.
    Raises:
      SpecError: `inference` is unknown.
    """
    super().__init__(action_shape, **kwargs)
    check_inference(self, inference, ("mode", "mean", "sample"))
    self._count, self._inference = num_mixture_components, inference
    self._mean = None if output_mean is None else np.reshape(output_mean, [-1])
    self._params = MDNParams(
      num_mixture_components, self.num_components, condition_sigmas, dtype="float32"
    )

  def distribution(self, outputs: Outputs) -> GaussianMixture:
    """Returns the mixture of flattened actions for the outputs of `call`."""
    params = outputs["mdn_params"]
    return get_mixture_distribution(
      params, self._count, self.num_components, self._mean
    )

  def call(self, embedding: tf.Tensor, training: bool = False) -> Outputs:
    del training
    outputs = {"mdn_params": self._params(embedding)}
    mixture = self.distribution(outputs)
    if self._inference == "mode":
      flat = gaussian_mixture_approximate_mode(mixture)
    else:
      flat = mixture.mean() if self._inference == "mean" else mixture.sample()
    return {**outputs, "inference_output": self.as_actions(flat)}

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """See the base class: the negative log likelihood of each action."""
    del training
    mixture = self.distribution(outputs)
    return -mixture.log_prob(self.flatten(target), self.flatten(is_valid))
