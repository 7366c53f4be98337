"""Errors of predictions, their weights, and masks of the values that count."""

from __future__ import annotations

from collections.abc import Callable

import gin
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.specs import SpecStructure

ErrorFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Maps (labels, predictions), of one shape and dtype, to errors of that shape."""


@gin.configurable
def squared_error(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
  """Returns the squared differences."""
  return tf.square(predictions - labels)


@gin.configurable
def log_loss(
  labels: tf.Tensor, predictions: tf.Tensor, epsilon: float = 1e-7
) -> tf.Tensor:
  """Returns the binary cross entropies of predicted probabilities.

  Args:
    labels: in [0, 1].
    predictions: in [0, 1].
    epsilon: added to the logarithms' arguments, which may be 0.
  """
  positive = labels * tf.math.log(predictions + epsilon)
  return -positive - (1 - labels) * tf.math.log(1 - predictions + epsilon)


def all_errors(
  labels: SpecStructure,
  path: str,
  name: str,
  predictions: tf.Tensor,
  error_function: ErrorFunction,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the errors of predictions against a label, and a mask of those that count.

  Targets that the masks of `masks_of` exclude do not count. A replay's importance
  weights multiply all errors.

  Args:
    labels: packed as the label specs, [B, ...].
    path: path of the label, e.g. 'target'.
    name: name of the predictions, for errors.
    predictions: predictions with the label's shape, cast to its dtype.
    error_function: maps labels and predictions to errors.
  Returns:
    (errors, bools), both of the label's shape.
  Raises:
    SpecError: the shapes differ (broadcasting would be wrong), or a mask does not fit.
  """
  target = getattr(labels, path)
  if not predictions.shape.is_compatible_with(target.shape):
    raise errors.SpecError(
      f"loss_fn: {name}: expected the shape of labels.{path}, "
      f"{errors.describe(target)}, got {errors.describe(predictions)}. Reshape one of "
      "them: broadcast, all would be compared with all."
    )
  error = error_function(target, tf.cast(predictions, target.dtype))
  is_valid = layers.action_decoders.valid_targets(
    "loss_fn", target, *masks_of(labels, path)
  )
  return weighted(error, labels), is_valid


def weighted(error: tf.Tensor, labels: SpecStructure) -> tf.Tensor:
  """Multiplies errors [B, ...] by a replay's importance weights, if there are any."""
  weight = replay_value(labels, "weight")
  if weight is None:
    return error
  axes = [1] * (error.shape.rank - 1)
  return error * tf.cast(tf.reshape(weight, [-1, *axes]), error.dtype)


def replay_value(labels: SpecStructure, name: str) -> tf.Tensor | None:
  """Returns the 'key' or 'weight' of items sampled from a replay, [B], or None."""
  return getattr(getattr(labels, "sample", None), name, None)


def masks_of(
  labels: SpecStructure, path: str
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
  """Returns the masks of a label, each None if the labels lack it.

  Returns:
    (`<path>_mask`, bool, the label's leading axes: which steps are not padded;
    `<path>_dimension_mask`, bool, [B, ..., A]: which components an example has).
  """
  mask = getattr(labels, f"{path}_mask", None)
  return mask, getattr(labels, f"{path}_dimension_mask", None)


def as_float32(outputs: tf.Tensor) -> tf.Tensor:
  """Returns half-precision outputs as float32, for a robot."""
  is_half = outputs.dtype in (tf.float16, tf.bfloat16)
  return tf.cast(outputs, tf.float32) if is_half else outputs
