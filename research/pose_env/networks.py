"""The small network of the pose models: convolutions, keypoints, a few dense layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


class SpatialSoftmax(tf.keras.layers.Layer):
  """Turns each feature map into the expected position of its activation.

  After Levine et al., "End-to-End Training of Deep Visuomotor Policies" (2016): a
  softmax over the pixels of each channel, and the mean pixel position under it. So the
  network answers where instead of what, with very few parameters after it.

  Args:
    inverse_temperature: initial value; it is trained. With 1 the softmax of a fresh
      network is nearly flat: all keypoints lie in the middle, and some seeds never
      leave that plateau.
    **kwargs: of the layer.
  """

  def __init__(self, inverse_temperature: float = 10.0, **kwargs: Any):
    super().__init__(**kwargs)
    self._initial_inverse_temperature = inverse_temperature

  def build(self, input_shape: Any) -> None:
    """Creates the temperature and the grid of positions."""
    _, height, width, _ = input_shape
    self.inverse_temperature = self.add_weight(
      name="inverse_temperature",
      shape=(),
      initializer=tf.keras.initializers.Constant(self._initial_inverse_temperature),
    )
    rows, columns = np.meshgrid(
      np.linspace(-1.0, 1.0, height), np.linspace(-1.0, 1.0, width), indexing="ij"
    )
    self._grid = np.stack([columns.ravel(), rows.ravel()], axis=1).astype(np.float32)
    super().build(input_shape)

  def call(self, inputs: tf.Tensor) -> tf.Tensor:
    """Maps [B, H, W, C] to keypoints [B, 2 C], x and y in [-1, 1]."""
    _, height, width, channels = inputs.shape
    logits = tf.reshape(inputs, [-1, height * width, channels])
    weights = tf.nn.softmax(logits * self.inverse_temperature, axis=1)
    keypoints = tf.einsum("bpc,pd->bcd", weights, tf.constant(self._grid))
    return tf.reshape(keypoints, [-1, 2 * channels])


class PoseTower(tf.keras.Model):
  """Maps a stack of frames to keypoints.

  The frames stand beside each other as channels, so a stack of 4 costs little more
  than a stack of 1, and the first convolution can already see motion.

  Args:
    filters: of the three convolutions (the first two halve height and width).
  """

  def __init__(self, filters: tuple[int, int, int] = (16, 24, 32)):
    super().__init__(name="tower")
    layers = tf.keras.layers
    self._layers_in_order = [
      layers.Conv2D(filters[0], 5, 2, padding="same", activation="relu", name="conv1"),
      layers.Conv2D(filters[1], 3, 2, padding="same", activation="relu", name="conv2"),
      layers.Conv2D(filters[2], 3, 1, padding="same", name="conv3"),
      SpatialSoftmax(name="keypoints"),
    ]

  def call(self, frames: tf.Tensor, training: bool | None = None) -> tf.Tensor:
    """Maps frames [B, K, H, W, C] or [B, H, W, C] in [0, 1] to [B, keypoints]."""
    del training  # Nothing here behaves differently.
    net = _frames_to_channels(frames) - 0.5  # Centred inputs train faster.
    for layer in self._layers_in_order:
      net = layer(net)
    return net


class PoseHead(tf.keras.Model):
  """Two hidden layers and a linear one.

  Args:
    output_size: numbers to predict.
    dense_units: width of the hidden layers.
  """

  def __init__(self, output_size: int, dense_units: int = 128):
    super().__init__(name="head")
    layers = tf.keras.layers
    self._layers_in_order = [
      layers.Dense(dense_units, activation="relu", name="hidden1"),
      layers.Dense(dense_units, activation="relu", name="hidden2"),
      layers.Dense(output_size, name="action"),
    ]

  def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
    """Maps [B, N] to [B, output_size]."""
    del training
    for layer in self._layers_in_order:
      inputs = layer(inputs)
    return inputs


class PoseNetwork(tf.keras.Model):
  """Predicts an action from a stack of frames.

  Args:
    action_size: numbers to predict.
    filters: of `PoseTower`.
    dense_units: of `PoseHead`.
  """

  def __init__(
    self,
    action_size: int = 2,
    filters: tuple[int, int, int] = (16, 24, 32),
    dense_units: int = 128,
  ):
    super().__init__(name="pose_network")
    self._tower, self._head = PoseTower(filters), PoseHead(action_size, dense_units)

  def call(self, frames: tf.Tensor, training: bool | None = None) -> tf.Tensor:
    """Maps frames [B, K, H, W, C] or [B, H, W, C] in [0, 1] to [B, action_size]."""
    return self._head(self._tower(frames, training=training), training=training)


def _frames_to_channels(frames: tf.Tensor) -> tf.Tensor:
  """Maps [B, K, H, W, C] to [B, H, W, K C]; leaves a single image as it is."""
  if frames.shape.rank == 4:
    return frames
  _, num_frames, height, width, channels = frames.shape
  net = tf.transpose(frames, [0, 2, 3, 1, 4])
  return tf.reshape(net, [-1, height, width, num_frames * channels])
