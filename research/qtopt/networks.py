"""Grasping44: the network of QT-Opt, which values a grasp seen from over the shoulder.

After Kalashnikov et al., "QT-Opt: Scalable Deep Reinforcement Learning for Vision-Based
Robotic Manipulation" (2018), and Tensor2Robot's graph of that name, layer for layer: an
image of 472x472 becomes 27x27x64 in the tower, which sees no action; the head adds the
action to each place of it. So many actions of one state cost one pass of the tower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

_WIDTH = 64


@gin.configurable
class Grasping44Layers:
  """Makes the layers of both parts, with what they have in common."""

  def __init__(
    self,
    batch_norm_momentum: float = 0.9997,
    batch_norm_epsilon: float = 1e-3,
    l2_regularization: float = 7e-5,
  ) -> None:
    """Creates the maker.

    Args:
      batch_norm_momentum: of the moving statistics.
      batch_norm_epsilon: added to variances.
      l2_regularization: the loss adds half of it times the squared kernels.
    """
    self._momentum = batch_norm_momentum
    self._epsilon = batch_norm_epsilon
    self._l2 = l2_regularization

  def _kernel(self) -> dict[str, Any]:
    return {
      "kernel_initializer": tf.keras.initializers.TruncatedNormal(stddev=0.01),
      "kernel_regularizer": tf.keras.regularizers.L2(self._l2 / 2),
    }

  def normed(self, name: str, scale: bool = True) -> list[Any]:
    """Batch normalisation and a ReLU."""
    norm = tf.keras.layers.BatchNormalization(
      momentum=self._momentum, epsilon=self._epsilon, scale=scale, name=f"{name}_norm"
    )
    return [norm, tf.keras.layers.ReLU(name=f"{name}_relu")]

  def conv(self, name: str, size: int, padding: str = "same") -> list[Any]:
    """A convolution of stride 1, normalised."""
    conv = tf.keras.layers.Conv2D(
      _WIDTH, size, padding=padding, use_bias=False, name=name, **self._kernel()
    )
    return [conv, *self.normed(name)]

  def dense(self, name: str) -> list[Any]:
    """A dense layer, normalised."""
    dense = tf.keras.layers.Dense(_WIDTH, use_bias=False, name=name, **self._kernel())
    return [dense, *self.normed(name)]

  def linear(self, name: str, units: int) -> Any:
    """A dense layer alone."""
    return tf.keras.layers.Dense(units, name=name, **self._kernel())

  def tower(self) -> Any:
    """Returns what maps images [B, 472, 472, 3] in [0, 1] to maps [B, 27, 27, 64]."""
    layers = tf.keras.layers
    first = layers.Conv2D(
      _WIDTH, 6, strides=2, padding="same", name="conv1", **self._kernel()
    )
    parts = [first, *self.normed("conv1", scale=False), _pool("pool1", 3)]
    for number in range(2, 8):
      parts += self.conv(f"conv{number}", 5)
    return tf.keras.Sequential([*parts, _pool("pool2", 3)], name="tower")


class Grasping44Head(tf.keras.layers.Layer):
  """Values actions where the tower's maps are there: logits [B, 1]."""

  def __init__(self, make: Grasping44Layers, blocks: tuple[str, ...], **kwargs: Any):
    """Creates the layer.

    Args:
      make: makes its layers.
      blocks: names of the parts of an action, each with weights of its own.
      **kwargs: of the layer.
    """
    super().__init__(**kwargs)
    self._embeddings = {name: make.linear(f"embed_{name}", 256) for name in blocks}
    self._embedding_layers = list(self._embeddings.values())  # What Keras tracks.
    self._context = tf.keras.Sequential(
      [*make.normed("context1", scale=False), *make.dense("context2")], name="context"
    )
    parts = [part for i in range(8, 14) for part in make.conv(f"conv{i}", 3)]
    parts.append(_pool("pool3", 2))
    parts += [part for i in range(14, 17) for part in make.conv(f"conv{i}", 3, "valid")]
    parts.append(tf.keras.layers.Flatten(name="flatten"))
    parts += [part for i in range(2) for part in make.dense(f"dense{i}")]
    self._value = tf.keras.Sequential([*parts, make.linear("logit", 1)], name="value")

  def call(
    self, inputs: tuple[tf.Tensor, Mapping[str, tf.Tensor]], training: bool = False
  ) -> tf.Tensor:
    """Maps (maps [B, 27, 27, 64], blocks [B, n] by name) to logits [B, 1]."""
    maps, blocks = inputs
    embedded = [layer(blocks[name]) for name, layer in self._embeddings.items()]
    context = self._context(tf.add_n(embedded), training=training)
    maps = maps + context[:, tf.newaxis, tf.newaxis, :]
    return self._value(maps, training=training)


def _pool(name: str, size: int) -> Any:
  return tf.keras.layers.MaxPool2D(size, strides=size, padding="same", name=name)
