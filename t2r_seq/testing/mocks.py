"""Stand-ins: a small model that learns, and the data that it learns from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import data, models, specs

_SIZE = 3


@gin.configurable
class MockT2RModel(models.ClassificationModel):
  """Classifies points by half-space.

  For tests of code around a model: it has batch normalisation, builds in no time,
  and learns from `MockInputGenerator` within some ten steps.
  """

  def __init__(self, activation: str = "sigmoid", **kwargs: Any) -> None:
    """Creates the model.

    Args:
      activation: activation of `ClassificationModel`.
      **kwargs: arguments of `T2RModel`.
    """
    kwargs.setdefault("create_optimizer_fn", lambda: tf.keras.optimizers.Adam(0.1))
    super().__init__(activation=activation, **kwargs)

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns 'x', a point."""
    del mode
    return specs.TensorSpecStruct(x=specs.ExtendedTensorSpec((_SIZE,), tf.float32, "x"))

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns 'classes', 0 or 1."""
    del mode
    return specs.TensorSpecStruct(
      classes=specs.ExtendedTensorSpec((1,), tf.float32, "y")
    )

  def create_network(self) -> Any:
    """Returns two dense layers, and batch normalisation for between them."""
    return {
      "hidden": tf.keras.layers.Dense(16, activation="relu"),
      "norm": tf.keras.layers.BatchNormalization(momentum=0.5),
      "out": tf.keras.layers.Dense(1),
    }

  def a_func(self, features: Any, mode: str) -> dict[str, tf.Tensor]:
    """Returns 'logits', [B, 1]."""
    hidden = self.network["hidden"](features.x)
    hidden = self.network["norm"](hidden, training=mode == specs.ModeKeys.TRAIN)
    return {"logits": self.network["out"](hidden)}


@gin.configurable
class MockInputGenerator(data.GeneratorInputGenerator):
  """64 points per pass for `MockT2RModel`, whose classes a plane separates."""

  def __init__(self, batch_size: int = 16, seed: int = 0) -> None:
    """Creates the generator.

    Args:
      batch_size: points in a batch.
      seed: seed of the points.
    """
    points = np.random.default_rng(seed).normal(size=(64, _SIZE)).astype(np.float32)

    def examples() -> Iterator[Any]:
      for point in points:
        label = np.float32(point.sum() > 0).reshape(1)
        yield {"x": point}, {"classes": label}

    super().__init__(examples, batch_size=batch_size)
