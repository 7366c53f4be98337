"""Networks of reinforcement learning: an encoder of observations, a dueling head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq.layers.construction import CompositeLayer
from t2r_seq.layers.vision_layers import MLP

# For smaller images the convolutions of Mnih et al. have no output.
_SMALLEST_NATURE_IMAGE = 36


class StackEncoder(CompositeLayer):
  """Turns stacks of vectors, images and categories into one vector, [B, D].

  Images pass the convolutions of Mnih et al., 2015; below 36 pixels those of MinAtar
  (Young and Tian, 2019). The frames of a stack are channels. uint8 is scaled to [0, 1].
  """

  def __init__(
    self,
    shapes: Mapping[str, Sequence[int]],
    categories: Mapping[str, int] | None = None,
    image_features: int = 512,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      shapes: shapes of one frame by path; of rank 2 or 3 for images.
      categories: the number of categories by path, for paths of integer categories.
      image_features: units of the dense layer after the convolutions.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._ranks = {path: len(shape) for path, shape in shapes.items()}
    self._categories = dict(categories or {})
    self._towers = {
      # Keras tracks the layers of a dictionary by its keys, which must not be paths.
      path.replace("/", "__"): _image_tower(shape, image_features)
      for path, shape in shapes.items()
      if len(shape) in (2, 3)
    }

  def call(self, observations: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Maps stacks [B, K, ...] by path to [B, D]."""
    parts = []
    for path, rank in self._ranks.items():
      stack = observations[path]
      if path in self._categories:
        stack = tf.one_hot(tf.cast(stack, tf.int32), self._categories[path])
      scale = 255.0 if stack.dtype == tf.uint8 else 1.0
      stack = tf.cast(stack, self.compute_dtype) / scale
      if rank in (2, 3):
        stack = stack[..., tf.newaxis] if rank == 2 else stack
        depth = stack.shape[1] * stack.shape[-1]
        stack = tf.transpose(stack, [0, 2, 3, 1, 4])
        stack = tf.reshape(stack, [-1, *stack.shape[1:3], depth])
        parts.append(self._towers[path.replace("/", "__")](stack))
      else:
        size = 1
        for length in stack.shape[1:]:
          size *= length
        parts.append(tf.reshape(stack, [-1, size]))
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=-1)


def _image_tower(shape: Sequence[int], features: int) -> tf.keras.Sequential:
  conv = tf.keras.layers.Conv2D
  sizes: tuple[tuple[int, int, int], ...] = ((16, 3, 1),)
  if min(shape[:2]) >= _SMALLEST_NATURE_IMAGE:
    sizes = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
  return tf.keras.Sequential(
    [
      *(conv(*size, activation="relu") for size in sizes),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(features, activation="relu"),
    ]
  )


class QNetwork(CompositeLayer):
  """Values each of a few actions, [B, num_actions].

  With `is_dueling`, it adds the value of the state and each action's advantage over the
  mean (Wang et al., 2016).
  """

  def __init__(
    self,
    encoder: StackEncoder,
    hidden_sizes: Sequence[int],
    num_actions: int,
    is_dueling: bool = False,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      encoder: encoder of the observations.
      hidden_sizes: units of the dense layers of each head.
      num_actions: the number of actions.
      is_dueling: see the class.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._encoder = encoder
    self._advantage = MLP(hidden_sizes, num_actions, normalizer=None)
    self._value = MLP(hidden_sizes, 1, normalizer=None) if is_dueling else None

  def call(self, observations: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Maps stacks [B, K, ...] by path to values [B, num_actions]."""
    encoded = self._encoder(observations)
    advantage = self._advantage(encoded)
    if self._value is None:
      return advantage
    mean = tf.reduce_mean(advantage, axis=-1, keepdims=True)
    return self._value(encoded) + advantage - mean
