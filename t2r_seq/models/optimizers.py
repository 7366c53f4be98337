"""Optimizer factories and learning rates for gin, and what optimizers ask of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq.models import networks

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


# What Keras 2 and Keras 3 ask of whoever calls their optimizers. An optimizer may wrap
# another, its `inner_optimizer`.
_LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer


def loss_scale(optimizer: tf.keras.optimizers.Optimizer) -> tf.Tensor | None:
  """Returns what the loss is to be multiplied by now, a float32 scalar; None for 1."""
  one = tf.ones([])
  scaler = _unscaler(optimizer)
  scale = scaler.get_scaled_loss(one) if scaler else _scale_loss(optimizer, one)
  return None if scale is one else scale


def unscale_gradients(
  optimizer: tf.keras.optimizers.Optimizer,
  gradients: Sequence[Any],
  scale: tf.Tensor | None,
) -> list[Any]:
  """Divides gradients, dense or `IndexedSlices`, by the `loss_scale`."""
  if scale is None:
    return list(gradients)
  scaler = _unscaler(optimizer)
  if scaler is not None:
    return scaler.get_unscaled_gradients(gradients)
  return [_multiply(gradient, 1.0 / scale) for gradient in gradients]


def apply_gradients(
  optimizer: tf.keras.optimizers.Optimizer,
  scaled: Sequence[Any],
  unscaled: Sequence[Any],
  variables: Sequence[tf.Variable],
) -> None:
  """Applies the gradients of a scaled loss; sums them over replicas.

  Args:
    optimizer: the optimizer.
    scaled: gradients of the loss times `loss_scale`, which Keras 3 takes.
    unscaled: gradients of the loss, which Keras 2 takes.
    variables: what they are the gradients of.
  """
  gradients = scaled if _unscaler(optimizer) is None else unscaled
  if gradients is scaled and skips_bad_steps(optimizer):
    # Keras 3 asks the first replica whether all gradients are finite. All are to agree.
    replicas = tf.distribute.get_replica_context()
    if replicas is not None and replicas.num_replicas_in_sync > 1:
      norm = tf.linalg.global_norm(unscaled)
      total = replicas.all_reduce(tf.distribute.ReduceOp.SUM, norm)
      poison = tf.where(tf.math.is_finite(total), 1.0, float("nan"))
      gradients = [_multiply(scaled[0], poison), *scaled[1:]]
  optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def skips_bad_steps(optimizer: tf.keras.optimizers.Optimizer) -> bool:
  """Whether steps whose scaled gradients overflow are left out, to scale less."""
  return any(
    isinstance(each, _LossScaleOptimizer) and getattr(each, "dynamic", True)
    for each in _chain(optimizer)
  )


def wrapped_for_float16(
  optimizer: tf.keras.optimizers.Optimizer,
) -> tf.keras.optimizers.Optimizer:
  """Returns the optimizer with loss scaling, as Keras' `compile` does for float16."""
  if loss_scale(optimizer) is not None or _unscaler(optimizer) is not None:
    return optimizer
  return _LossScaleOptimizer(optimizer)


def take_averaging(
  optimizer: tf.keras.optimizers.Optimizer,
) -> tuple[float, int | None] | None:
  """Switches off the averaging of an optimizer that is not built, to be done here.

  Keras 3 begins it at zero, and neither version averages the statistics of batch
  normalisation.

  Returns:
    (decay, frequency of overwriting or None); None where the optimizer has no averages.
  """
  found = None
  for each in _chain(optimizer):
    if not isinstance(each, _LossScaleOptimizer) and getattr(each, "use_ema", False):
      found = each.ema_momentum, each.ema_overwrite_frequency
      each.use_ema = False
  return found


def state(optimizer: tf.keras.optimizers.Optimizer) -> list[tf.Variable]:
  """Returns all variables of an optimizer, those of its loss scale among them."""
  variables = list(networks.tf_variables(optimizer.variables))
  scaler = _unscaler(optimizer)
  if scaler is not None and scaler.dynamic:
    # Keras 2 does not list them.
    variables += [scaler._loss_scale.current_loss_scale, scaler.dynamic_counter]
  return variables


def accumulates(optimizer: tf.keras.optimizers.Optimizer) -> bool:
  """Whether several steps' gradients are applied at once."""
  return any(
    getattr(each, "gradient_accumulation_steps", None) for each in _chain(optimizer)
  )


def _chain(optimizer: Any) -> Iterator[Any]:
  """Yields an optimizer and those that it wraps, the outermost first."""
  while optimizer is not None:
    yield optimizer
    optimizer = getattr(optimizer, "inner_optimizer", None)


def _unscaler(optimizer: Any) -> Any:
  """Returns Keras 2's loss scale optimizer, which takes unscaled gradients, or None."""
  return next((o for o in _chain(optimizer) if hasattr(o, "get_scaled_loss")), None)


def _scale_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
  """Scales for an optimizer of Keras 3 and all that it wraps; Keras 2 has none here."""
  scale = getattr(type(optimizer), "scale_loss", None)
  if scale is None:
    return loss
  loss = optimizer.scale_loss(loss)
  inner = getattr(optimizer, "inner_optimizer", None)
  # Keras' own classes speak for themselves alone; others are taken to ask it.
  own = (_LossScaleOptimizer.scale_loss, tf.keras.optimizers.Optimizer.scale_loss)
  return _scale_loss(inner, loss) if inner is not None and scale in own else loss


def _multiply(gradient: Any, factor: tf.Tensor) -> Any:
  if isinstance(gradient, tf.IndexedSlices):
    values = gradient.values * tf.cast(factor, gradient.dtype)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
  return gradient * tf.cast(factor, gradient.dtype)
