"""Errors of predictions, and their mean over values that are not padding."""

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
  """Returns the cross entropies of probabilities, as of a sigmoid.

  Args:
    labels: in [0, 1].
    predictions: in [0, 1].
    epsilon: keeps the logarithms away from 0.
  """
  hit = labels * tf.math.log(predictions + epsilon)
  return -hit - (1 - labels) * tf.math.log(1 - predictions + epsilon)


def all_errors(
  labels: SpecStructure,
  path: str,
  name: str,
  predictions: tf.Tensor,
  error_function: ErrorFunction,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the errors of predictions against one of the labels, and which count.

  Targets that the masks of `masks_of` leave out do not count; a replay's importance
  weights multiply the others.

  Args:
    labels: packed as the label specs, [B, ...].
    path: path of the label, e.g. 'target'.
    name: name of the predictions, for errors.
    predictions: predictions with the label's shape, cast to its dtype.
    error_function: maps labels and predictions to errors.
  Returns:
    (errors, bools), both of the label's shape.
  Raises:
    SpecError: the shapes differ. They would be broadcast, which trains something else.
  """
  target = getattr(labels, path)
  if not predictions.shape.is_compatible_with(target.shape):
    raise errors.SpecError(
      f"loss_fn: {name}: expected the shape of labels.{path}, "
      f"{errors.describe(target)}, got {errors.describe(predictions)}. Reshape one of "
      "them: broadcast, all would be compared with all."
    )
  error = error_function(target, tf.cast(predictions, target.dtype))
  weight = replay_value(labels, "weight")
  if weight is not None:
    axes = [1] * (error.shape.rank - 1)
    error *= tf.cast(tf.reshape(weight, [-1, *axes]), error.dtype)
  is_valid = layers.action_decoders.valid_targets(
    "loss_fn", target, *masks_of(labels, path)
  )
  return error, is_valid


def replay_value(labels: SpecStructure, name: str) -> tf.Tensor | None:
  """Returns a replay's 'key' or 'weight' of sampled items, [B], or None."""
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
