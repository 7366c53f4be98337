"""Encodes a step's observation, cameras and states, as one vector."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq.layers.construction import CompositeLayer, configurable_layer
from t2r_seq.layers.resnet import ResNet
from t2r_seq.layers.spatial_softmax import SpatialSoftmax

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def standardize(
  images: tf.Tensor, mean_and_std: Sequence[Sequence[float]] | None = None
) -> tf.Tensor:
  """Standardizes the channels of images in [0, 1]; None: by ImageNet's statistics."""
  mean, std = (tf.constant(v, images.dtype) for v in mean_and_std or _IMAGENET)
  return (images - mean) / std


@configurable_layer
class ImageEncoder(CompositeLayer):
  """A ResNet, a spatial softmax over its feature maps, and a dense layer.

  As in robomimic (https://arxiv.org/abs/2108.03298): the places of `num_points` feature
  points become `output_size` components.
  """

  def __init__(
    self,
    resnet_size: int = 18,
    num_filters: int = 64,
    num_block_layers: int = 4,
    num_points: int = 32,
    output_size: int = 64,
    normalizer: str = "group",
    activation: str | None = None,
    centers_images: bool = True,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      resnet_size: 18, 34, 50, ...
      num_filters: filters of the first block layer.
      num_block_layers: 1 to 4 block layers of the ResNet; fewer give finer maps.
      num_points: number of feature points.
      output_size: number of components of an image's encoding.
      normalizer: normalizer of the ResNet.
      activation: Keras' name of the last layer's activation.
      centers_images: maps images from [0, 1] to [-1, 1]; False for standardized images.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: an option of the `ResNet` is unknown or out of range.
    """
    super().__init__(**kwargs)
    self._resnet = ResNet(
      resnet_size=resnet_size,
      version=1,
      num_filters=num_filters,
      num_block_layers=num_block_layers,
      normalizer=normalizer,
    )
    self._maps = tf.keras.layers.Conv2D(num_points, 1)
    self._points = SpatialSoftmax()
    self._output = tf.keras.layers.Dense(output_size, activation)
    self._centers_images = centers_images

  def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps images [N, height, width, channels] to [N, output_size]."""
    del training  # Keras passes it to the inner layers.
    images = 2.0 * images - 1.0 if self._centers_images else images
    maps = self._resnet(images)["pre_final_pool"]
    points, _ = self._points(self._maps(maps))
    return self._output(points)


@configurable_layer
class ObservationEncoder(CompositeLayer):
  """Concatenates the states of a step and an encoding of each of its cameras.

  Or makes a token of each. Every camera has a separate encoder. Works for stacks and
  for sequences of steps.
  """

  def __init__(
    self,
    cameras: Collection[str] = (),
    create_image_encoder_fn: Callable[[], Any] = ImageEncoder,
    token_paths: Collection[str] = (),
    token_size: int = 256,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      cameras: paths of the images.
      create_image_encoder_fn: creates the encoder of a camera, which maps images [N,
        height, width, channels] to [N, D].
      token_paths: all paths, to make a token of each; empty to concatenate them.
      token_size: size of each token.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._encoders = {path: create_image_encoder_fn() for path in sorted(cameras)}
    self._tokens = {
      path: tf.keras.layers.Dense(token_size) for path in sorted(token_paths)
    }

  def call(
    self, observations: Mapping[str, tf.Tensor], training: bool = False
  ) -> tf.Tensor:
    """Encodes steps.

    Args:
      observations: vectors [B, T, D] and images [B, T, height, width, channels] by
        path; vectors [B, 1, D] count for all steps.
      training: mode of the image encoders.
    Returns:
      [B, T, D'], or tokens [B, T, paths, token_size].
    """
    del training  # Keras passes it to the inner layers.
    parts = {}
    for path in sorted(observations):
      value = observations[path]
      if path in self._encoders:
        frames = tf.reshape(value, [-1, *value.shape[2:]])
        encoded = self._encoders[path](frames)
        shape = [-1, tf.shape(value)[1], encoded.shape[-1]]
        encoded = tf.reshape(encoded, shape)
        value = tf.ensure_shape(encoded, [None, value.shape[1], encoded.shape[-1]])
      parts[path] = tf.cast(value, self.compute_dtype)
    lengths = [value.shape[1] for value in parts.values()]
    if 1 in lengths and any(length != 1 for length in lengths):
      longest = next(value for value in parts.values() if value.shape[1] != 1)
      steps = tf.shape(longest)[1]
      parts = {
        path: tf.repeat(value, steps, axis=1) if value.shape[1] == 1 else value
        for path, value in parts.items()
      }
    if self._tokens:
      return tf.stack([self._tokens[path](parts[path]) for path in sorted(parts)], 2)
    return tf.concat([parts[path] for path in sorted(parts)], axis=-1)
