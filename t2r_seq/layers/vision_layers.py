"""Small image towers, from pixels to feature points and from those to a pose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.construction import CompositeLayer, configurable_layer, get_layer
from t2r_seq.layers.spatial_softmax import SpatialSoftmax

Normalizer = str | Callable[[], Any] | None
"""'layer_norm', 'batch_norm', a function that creates a Keras layer, or None."""

_CHANNELS = 32  # Of each block, as in Tensor2Robot's towers.


class LayerNorm(tf.keras.layers.Layer):
  """Normalises each example over all of its axes, then scales and shifts channels.

  For images, mean and variance are over pixels and channels together, as in slim's
  layer norm; for vectors it equals Keras' `LayerNormalization`.
  """

  def __init__(self, epsilon: float = 1e-6, **kwargs: Any) -> None:
    """Creates the layer.

    Args:
      epsilon: added to the variance.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._epsilon = epsilon

  def build(self, input_shape: Any) -> None:
    """Creates the scale and the offset of each channel."""
    shape = (input_shape[-1],)
    self._gamma = self.add_weight(name="gamma", shape=shape, initializer="ones")
    self._beta = self.add_weight(name="beta", shape=shape, initializer="zeros")
    self.built = True

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Normalises [B, ..., C]."""
    wide = tf.cast(inputs, tf.float32)  # Sums of half precision overflow.
    axes = list(range(1, inputs.shape.rank))
    mean, variance = tf.nn.moments(wide, axes, keepdims=True)
    normal = (wide - mean) * tf.math.rsqrt(variance + self._epsilon)
    scale, shift = tf.cast(self._gamma, tf.float32), tf.cast(self._beta, tf.float32)
    return tf.cast(normal * scale + shift, inputs.dtype)


def film(inputs: tf.Tensor, gamma_beta: tf.Tensor) -> tf.Tensor:
  """Modulates feature maps by a condition, (1 + gamma) * x + beta.

  FiLM, https://arxiv.org/abs/1709.07871; a condition of zeros changes nothing.

  Args:
    inputs: [B, ..., C].
    gamma_beta: [B, 2 * C]: all gammas, then all betas.
  Returns:
    [B, ..., C].
  Raises:
    SpecError: the condition has another shape.
  """
  channels = inputs.shape[-1]
  if gamma_beta.shape.rank != 2 or gamma_beta.shape[-1] != 2 * channels:
    raise errors.SpecError(
      f"film: gamma_beta: expected [batch, {2 * channels}], a gamma and a beta for "
      f"each of {channels} channels, got {errors.describe(gamma_beta)}."
    )
  shape = [-1, *[1] * (inputs.shape.rank - 2), 2 * channels]
  gamma_beta = tf.cast(gamma_beta, inputs.dtype)  # Keras 2 casts the first input only.
  gamma, beta = tf.split(tf.reshape(gamma_beta, shape), 2, axis=-1)
  return (1 + gamma) * inputs + beta


@configurable_layer
class ImagesToFeatures(CompositeLayer):
  """A convolutional tower that ends in feature points, or in feature maps.

  `num_blocks` convolutions of 32 channels, the first two with stride 2, each followed
  by a normaliser, FiLM if there is a condition, and a ReLU; then a 1 x 1 convolution
  and a spatial softmax. The tower of Watch-Try-Learn, https://arxiv.org/abs/1906.03352.
  """

  def __init__(
    self,
    filter_size: int = 3,
    num_blocks: int = 5,
    num_output_maps: int = 32,
    normalizer: Normalizer = "layer_norm",
    weight_regularization: float = 1e-5,
    use_spatial_softmax: bool = True,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      filter_size: height and width of the filters.
      num_blocks: number of convolutions before the last one.
      num_output_maps: number of feature maps.
      normalizer: follows each convolution.
      weight_regularization: times half the squared weights, added to the loss.
      use_spatial_softmax: returns feature points rather than maps.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the normalizer is unknown.
    """
    super().__init__(**kwargs)
    self._num_blocks = num_blocks
    options: dict[str, Any] = {
      "normalizer": normalizer,
      "kernel_regularizer": tf.keras.regularizers.L2(weight_regularization / 2),
      "bias_initializer": tf.keras.initializers.Constant(0.01),
    }
    self._blocks = [
      NormalizedConv(_CHANNELS, filter_size, strides=2 if i < 2 else 1, **options)
      for i in range(num_blocks)
    ]
    self._last = NormalizedConv(num_output_maps, 1, scale=True, **options)
    self._softmax = SpatialSoftmax() if use_spatial_softmax else None

  @property
  def film_size(self) -> int:
    """Components of a condition: a gamma and a beta for each channel of each block."""
    return 2 * self._num_blocks * _CHANNELS

  def call(
    self,
    images: tf.Tensor,
    film_output_params: tf.Tensor | None = None,
    training: bool = False,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Maps images to features.

    Args:
      images: [B, H, W, C], in [0, 1].
      film_output_params: [B, film_size]: the gammas of all blocks, then their betas.
      training: mode of batch normalisation.
    Returns:
      (features, end points): feature points [B, 2 * num_output_maps], x and y in turn,
      and their 'softmax'; or feature maps [B, h, w, num_output_maps] and {}.
    Raises:
      SpecError: the condition has another shape.
    """
    del training  # Keras passes it to the inner layers.
    conditions = self._conditions(film_output_params)
    net = images
    for block, condition in zip(self._blocks, conditions, strict=True):
      net = block(net)
      net = tf.nn.relu(net if condition is None else film(net, condition))
    net = tf.nn.relu(self._last(net))
    if self._softmax is None:
      return net, {}
    points, softmax = self._softmax(net)
    return points, {"softmax": softmax}

  def _conditions(self, params: tf.Tensor | None) -> list[tf.Tensor | None]:
    if params is None:
      return [None] * self._num_blocks
    if params.shape.rank != 2 or params.shape[-1] != self.film_size:
      raise errors.SpecError(
        f"ImagesToFeatures: film_output_params: expected [batch, {self.film_size}], "
        f"got {errors.describe(params)}."
      )
    parts = tf.split(params, 2 * self._num_blocks, axis=-1)
    gammas, betas = parts[: self._num_blocks], parts[self._num_blocks :]
    return [tf.concat(pair, axis=-1) for pair in zip(gammas, betas, strict=True)]


@configurable_layer
class ImagesToFeaturesHighRes(CompositeLayer):
  """A tower that adds up features of several resolutions at the highest one.

  From https://arxiv.org/abs/1610.00529.
  """

  def __init__(
    self,
    filter_size: int = 3,
    num_blocks: int = 5,
    num_output_maps: int = 32,
    normalizer: Normalizer = "batch_norm",
    weight_regularization: float = 1e-5,
    **kwargs: Any,
  ) -> None:
    """Creates the layer; the arguments are as for `ImagesToFeatures`."""
    super().__init__(**kwargs)

    def convolution(filters: int, size: int, **options: Any) -> Any:
      return NormalizedConv(
        filters,
        size,
        normalizer=normalizer,
        kernel_regularizer=tf.keras.regularizers.L2(weight_regularization / 2),
        kernel_initializer=tf.keras.initializers.TruncatedNormal(stddev=0.1),
        **options,
      )

    self._pool = tf.keras.layers.AveragePooling2D(2, 2)
    self._first = convolution(16, filter_size, strides=2)
    self._shrink = tf.keras.layers.MaxPooling2D(2, 2)
    self._blocks = [convolution(_CHANNELS, filter_size) for _ in range(num_blocks)]
    self._sides = [convolution(_CHANNELS, 1) for _ in range(num_blocks)]
    self._last = convolution(num_output_maps, 1, scale=True)
    self._softmax = SpatialSoftmax()

  def call(
    self, images: tf.Tensor, training: bool = False
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Maps images to feature points.

    Args:
      images: [B, H, W, C], in [0, 1].
      training: mode of batch normalisation.
    Returns:
      (points [B, 2 * num_output_maps], {'softmax': [B, h, w, num_output_maps]}).
    """
    del training  # Keras passes it to the inner layers.
    net = tf.nn.relu(self._first(self._pool(images)))
    total: Any = None
    for i, (block, side) in enumerate(zip(self._blocks, self._sides, strict=True)):
      net = tf.nn.relu(block(net if i == 0 else self._shrink(net)))
      maps = tf.nn.relu(side(net))
      if total is None:
        total = maps
      else:
        total += _resize_to(maps, total.shape[1], total.shape[2])
    net = tf.nn.relu(self._last(total))
    points, softmax = self._softmax(net)
    return points, {"softmax": softmax}


@configurable_layer
class ImageFeaturesToPose(CompositeLayer):
  """Dense layers from feature points and other features to a pose.

  A learned constant is appended to the inputs: the bias transformation for inner loops
  of meta-learning, https://arxiv.org/abs/1709.04905.
  """

  def __init__(
    self,
    num_outputs: int | None,
    aux_output_dim: int = 0,
    hidden_dim: int = 100,
    num_layers: int = 2,
    normalizer: Normalizer = "layer_norm",
    bias_transform_size: int = 10,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      num_outputs: components of the pose; None returns the last hidden layer.
      aux_output_dim: components of a second output, computed from the feature points
        alone; 0 for none.
      hidden_dim: units of each hidden layer.
      num_layers: number of hidden layers.
      normalizer: follows each hidden layer.
      bias_transform_size: components of the learned constant; 0 for none.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the normalizer is unknown.
    """
    super().__init__(**kwargs)
    bias = tf.keras.initializers.Constant(0.01)
    kernel = tf.keras.initializers.TruncatedNormal

    def dense(units: int, use_bias: bool = True) -> Any:
      return tf.keras.layers.Dense(
        units,
        use_bias=use_bias,
        kernel_initializer=kernel(stddev=0.01),
        bias_initializer=bias,
      )

    self._constant = None
    if bias_transform_size > 0:
      self._constant = self.add_weight(
        name="bias_transform", shape=(bias_transform_size,), initializer=bias
      )
    self._hidden = [dense(hidden_dim, normalizer is None) for _ in range(num_layers)]
    self._normal = [create_normalizer(normalizer) for _ in range(num_layers)]
    self._output = dense(num_outputs) if num_outputs else None
    self._aux = dense(aux_output_dim) if aux_output_dim > 0 else None

  def call(
    self,
    expected_feature_points: tf.Tensor,
    aux_input: tf.Tensor | None = None,
    training: bool = False,
  ) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Maps feature points to a pose.

    Args:
      expected_feature_points: [B, F].
      aux_input: [B, A], such as the state of the robot.
      training: mode of batch normalisation.
    Returns:
      (pose [B, num_outputs], [B, aux_output_dim] or None).
    """
    del training  # Keras passes it to the inner layers.
    points = expected_feature_points
    parts = [points]
    if aux_input is not None:
      parts.append(tf.cast(aux_input, points.dtype))
    if self._constant is not None:
      constant = tf.cast(tf.convert_to_tensor(self._constant), points.dtype)
      rows = tf.ones([tf.shape(points)[0], 1], points.dtype)
      parts.append(rows * constant)
    net = tf.concat(parts, axis=-1)
    for layer, normal in zip(self._hidden, self._normal, strict=True):
      net = tf.nn.relu(normal(layer(net)))
    pose = net if self._output is None else self._output(net)
    return pose, None if self._aux is None else self._aux(points)


@gin.configurable
def BuildImagesToFeaturesModel(
  images: tf.Tensor,
  filter_size: int = 3,
  num_blocks: int = 5,
  num_output_maps: int = 32,
  is_training: bool = False,
  normalizer_fn: Normalizer = "layer_norm",
  normalizer_params: None = None,
  weight_regularization: float = 1e-5,
  film_output_params: tf.Tensor | None = None,
  use_spatial_softmax: bool = True,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """Maps images to features; Tensor2Robot's function for `ImagesToFeatures`."""
  _check_no_params("BuildImagesToFeaturesModel", normalizer_params)
  layer = get_layer(
    "BuildImagesToFeaturesModel",
    lambda: ImagesToFeatures(
      filter_size,
      num_blocks,
      num_output_maps,
      normalizer_fn,
      weight_regularization,
      use_spatial_softmax,
    ),
  )
  return layer(images, film_output_params, training=is_training)


@gin.configurable
def BuildFILMParams(
  embedding: tf.Tensor, film_output_size: int = 2 * 5 * _CHANNELS
) -> tf.Tensor:
  """Maps a condition to FiLM's parameters; Tensor2Robot's name for a dense layer.

  Args:
    embedding: [B, D].
    film_output_size: see `ImagesToFeatures.film_size`.
  Returns:
    [B, film_output_size].
  """
  layer = get_layer("BuildFILMParams", lambda: tf.keras.layers.Dense(film_output_size))
  return layer(embedding)


@gin.configurable
def BuildImagesToFeaturesModelHighRes(
  images: tf.Tensor,
  filter_size: int = 3,
  num_blocks: int = 5,
  num_output_maps: int = 32,
  is_training: bool = False,
  normalizer_fn: Normalizer = "batch_norm",
  normalizer_params: None = None,
  weight_regularization: float = 1e-5,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
  """Maps images to points; Tensor2Robot's function for `ImagesToFeaturesHighRes`."""
  _check_no_params("BuildImagesToFeaturesModelHighRes", normalizer_params)
  layer = get_layer(
    "BuildImagesToFeaturesModelHighRes",
    lambda: ImagesToFeaturesHighRes(
      filter_size, num_blocks, num_output_maps, normalizer_fn, weight_regularization
    ),
  )
  return layer(images, training=is_training)


@gin.configurable
def BuildImageFeaturesToPoseModel(
  expected_feature_points: tf.Tensor,
  num_outputs: int | None,
  aux_input: tf.Tensor | None = None,
  aux_output_dim: int = 0,
  hidden_dim: int = 100,
  num_layers: int = 2,
  is_training: bool = True,
  normalizer_fn: Normalizer = "layer_norm",
  bias_transform_size: int = 10,
) -> tuple[tf.Tensor, tf.Tensor | None]:
  """Maps features to a pose; Tensor2Robot's function for `ImageFeaturesToPose`."""
  layer = get_layer(
    "BuildImageFeaturesToPoseModel",
    lambda: ImageFeaturesToPose(
      num_outputs,
      aux_output_dim,
      hidden_dim,
      num_layers,
      normalizer_fn,
      bias_transform_size,
    ),
  )
  return layer(expected_feature_points, aux_input, training=is_training)


@configurable_layer
class MLP(CompositeLayer):
  """Hidden dense layers with a normaliser and a ReLU, and a last one without both."""

  def __init__(
    self,
    hidden_sizes: Sequence[int],
    output_size: int,
    normalizer: Normalizer = "layer_norm",
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      hidden_sizes: units of each hidden layer.
      output_size: units of the last one.
      normalizer: follows each hidden layer.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    dense = tf.keras.layers.Dense
    self._hidden = [dense(n, use_bias=normalizer is None) for n in hidden_sizes]
    self._normal = [create_normalizer(normalizer) for _ in hidden_sizes]
    self._output = dense(output_size)

  def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps [N, ..., D] to [N, ..., output_size]."""
    del training  # Keras passes it to the inner layers.
    for layer, normal in zip(self._hidden, self._normal, strict=True):
      inputs = tf.nn.relu(normal(layer(inputs)))
    return self._output(inputs)


def create_normalizer(normalizer: Normalizer, scale: bool = True) -> Any:
  """Returns a new layer for a `Normalizer`.

  Args:
    normalizer: kind of the normalizer; None for the identity.
    scale: whether batch normalisation has a scale.
  Raises:
    SpecError: the normalizer is unknown.
  """
  if normalizer == "layer_norm":
    return LayerNorm()
  if normalizer == "batch_norm":
    return tf.keras.layers.BatchNormalization(momentum=0.99, epsilon=1e-4, scale=scale)
  if normalizer is None:
    return tf.keras.layers.Activation("linear")
  if callable(normalizer):
    return normalizer()
  raise errors.SpecError(
    "create_normalizer: normalizer: expected 'layer_norm', 'batch_norm', None or a "
    f"function that creates a layer, got {normalizer!r}."
  )


class NormalizedConv(CompositeLayer):
  """A convolution without padding, and its normaliser."""

  def __init__(
    self,
    filters: int,
    size: int,
    normalizer: Normalizer,
    strides: int = 1,
    scale: bool = False,
    **options: Any,
  ) -> None:
    super().__init__()
    self._conv = tf.keras.layers.Conv2D(
      filters, size, strides, use_bias=normalizer is None, **options
    )
    self._normal = create_normalizer(normalizer, scale)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    return self._normal(self._conv(inputs))


def _resize_to(maps: tf.Tensor, height: int, width: int) -> tf.Tensor:
  """Resizes [B, h, w, C] to [B, height, width, C] by nearest neighbors."""
  for axis, size in ((1, height), (2, width)):
    source = maps.shape[axis]
    index = np.floor((np.arange(size) + 0.5) * source / size).astype(np.int32)
    maps = tf.gather(maps, index, axis=axis)
  return maps


def _check_no_params(operation: str, normalizer_params: Any) -> None:
  if normalizer_params is not None:
    raise errors.SpecError(
      f"{operation}: normalizer_params: expected None, got "
      f"{normalizer_params!r}. Pass normalizer_fn a function that creates the layer."
    )
