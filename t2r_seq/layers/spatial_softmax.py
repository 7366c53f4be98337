"""Spatial softmax: the place of each feature in an image, and features at a place."""

from __future__ import annotations

from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.construction import configurable_layer


@configurable_layer
class SpatialSoftmax(tf.keras.layers.Layer):
  """Expected coordinates of each feature map, weighted by its softmax.

  From https://arxiv.org/abs/1504.00702. With `gumbel`, training adds random noise to
  the features; eval and infer do not.
  """

  def __init__(
    self,
    temperature: float = 1.0,
    learn_temperature: bool = False,
    gumbel: bool = False,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      temperature: divides the features; lower is sharper.
      learn_temperature: trains the temperature, which starts with that value.
      gumbel: adds gumbel noise to the features when called with `training=True`.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._temperature = temperature
    self._gumbel = gumbel
    self._log_temperature = None
    if learn_temperature:
      self._log_temperature = self.add_weight(
        name="log_temperature",
        shape=(),
        initializer=tf.keras.initializers.Constant(np.log(temperature)),
        dtype=tf.float32,
      )

  def call(
    self, features: tf.Tensor, training: bool = False
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Locates the features.

    Args:
      features: [B, H, W, C].
      training: adds the noise of `gumbel`.
    Returns:
      (points, softmax): the points, [B, 2 * C], are x and y of each map in turn, x1,
      y1, x2, y2 ..., from -1 (left, top) to 1; the softmax, [B, H, W, C], sums to 1
      over H and W. Both have the layer's compute dtype.
    """
    height, width, channels = features.shape[1:]
    logits = tf.cast(features, tf.float32)  # Half precision is too coarse for points.
    logits = tf.reshape(logits, [-1, height * width, channels])
    if self._gumbel and training:
      noise = tf.random.uniform(tf.shape(logits), minval=1e-10, maxval=1.0)
      logits -= tf.math.log(-tf.math.log(noise))
    if self._log_temperature is not None:
      logits *= tf.exp(-tf.cast(self._log_temperature, tf.float32))
    elif self._temperature != 1.0:
      logits /= self._temperature
    softmax = tf.nn.softmax(logits, axis=1)
    positions = tf.constant(_positions(height, width))
    points = tf.einsum("bpc,pk->bck", softmax, positions)
    points = tf.reshape(points, [-1, 2 * channels])
    softmax = tf.reshape(softmax, [-1, height, width, channels])
    return tf.cast(points, self.compute_dtype), tf.cast(softmax, self.compute_dtype)


@gin.configurable
def BuildSpatialSoftmax(
  features: tf.Tensor, spatial_gumbel_softmax: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
  """Locates features; Tensor2Robot's function for `SpatialSoftmax`.

  Args:
    features: [B, H, W, C].
    spatial_gumbel_softmax: adds gumbel noise to the features in each call.
  Returns:
    (points [B, 2 * C], softmax [B, H, W, C]).
  """
  layer = SpatialSoftmax(gumbel=spatial_gumbel_softmax)
  return layer(features, training=spatial_gumbel_softmax)


def sample_maps(maps: tf.Tensor, columns: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
  """Interpolates maps bilinearly; differentiable by maps and places.

  Args:
    maps: [B, H, W, C].
    columns: places [B, K] in pixels, 0 at the first pixel's centre. Those outside of
      the map read its edge.
    rows: places [B, K], as `columns`.
  Returns:
    [B, K, C], of the maps' dtype.
  Raises:
    SpecError: the maps have fewer than 2 x 2 pixels, or an unknown size.
  """
  height, width, channels = maps.shape[1:]
  if None in (height, width) or min(height, width) < 2:
    raise errors.SpecError(
      f"sample_maps: maps: expected 2 x 2 pixels at least, got {errors.describe(maps)}."
    )
  # Half precision is exact neither for numbers of pixels nor for places between them.
  dtype = tf.float64 if maps.dtype == tf.float64 else tf.float32
  columns, rows = tf.cast(columns, dtype), tf.cast(rows, dtype)
  columns = tf.clip_by_value(columns, 0.0, width - 1.0)
  rows = tf.clip_by_value(rows, 0.0, height - 1.0)
  # At the last pixel, the one before it is the left neighbor, with the weight 0.
  left = tf.minimum(tf.floor(columns), width - 2.0)
  top = tf.minimum(tf.floor(rows), height - 2.0)
  flat = tf.reshape(maps, [-1, height * width, channels])
  samples = []
  for down in (0, 1):
    for right in (0, 1):
      weight = (1 - tf.abs(rows - top - down)) * (1 - tf.abs(columns - left - right))
      row, column = tf.cast(top, tf.int32) + down, tf.cast(left, tf.int32) + right
      read = tf.gather(flat, row * width + column, batch_dims=1)
      samples.append(weight[..., tf.newaxis] * tf.cast(read, dtype))
  return tf.cast(tf.add_n(samples), maps.dtype)


def _positions(height: int, width: int) -> np.ndarray:
  """Returns (x, y) of each pixel, row by row, [H * W, 2]; a single one is at 0."""
  axes = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in (width, height)]
  x, y = np.meshgrid(*axes)
  return np.stack([x.ravel(), y.ravel()], axis=-1).astype(np.float32)
