"""Optimizer factories and learning rates, for gin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf

LearningRate = Any
"""A float or a `tf.keras.optimizers.schedules.LearningRateSchedule`."""


@gin.configurable
def create_constant_learning_rate(initial_learning_rate: float = 1e-4) -> LearningRate:
  """Returns a constant learning rate."""
  return initial_learning_rate


@gin.configurable
def create_exp_decaying_learning_rate(
  initial_learning_rate: float = 1e-4,
  decay_steps: int = 10000,
  decay_rate: float = 0.9,
  staircase: bool = True,
) -> LearningRate:
  """Returns a learning rate that decays exponentially.

  Args:
    initial_learning_rate: at step 0.
    decay_steps: training steps per decay.
    decay_rate: factor per decay.
    staircase: decays at once every `decay_steps` rather than smoothly.
  Returns:
    A Keras schedule.
  """
  return tf.keras.optimizers.schedules.ExponentialDecay(
    initial_learning_rate, decay_steps, decay_rate, staircase
  )


@gin.configurable
def create_cosine_learning_rate(
  initial_learning_rate: float = 1e-3,
  decay_steps: int = 10000,
  alpha: float = 0.0,
) -> LearningRate:
  """Returns a learning rate that decays along a half cosine.

  Args:
    initial_learning_rate: at step 0.
    decay_steps: training steps until the lowest rate.
    alpha: the lowest rate as a fraction of the first.
  Returns:
    A Keras schedule.
  """
  return tf.keras.optimizers.schedules.CosineDecay(
    initial_learning_rate, decay_steps, alpha
  )


@gin.configurable
def create_adam_optimizer(
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
  global_clipnorm: float | None = None,
) -> tf.keras.optimizers.Optimizer:
  """Creates an Adam optimizer.

  Args:
    learning_rate_fn: gives the rate or schedule.
    global_clipnorm: clips the norm of all gradients together; None does not clip.
  Returns:
    A Keras optimizer.
  """
  return tf.keras.optimizers.Adam(learning_rate_fn(), global_clipnorm=global_clipnorm)


@gin.configurable
def create_gradient_descent_optimizer(
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
) -> tf.keras.optimizers.Optimizer:
  """Creates a plain gradient descent optimizer."""
  return tf.keras.optimizers.SGD(learning_rate_fn())


@gin.configurable
def create_momentum_optimizer(
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
  momentum: float = 0.9,
) -> tf.keras.optimizers.Optimizer:
  """Creates a gradient descent optimizer with momentum."""
  return tf.keras.optimizers.SGD(learning_rate_fn(), momentum=momentum)
