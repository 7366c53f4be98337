"""Losses that padding does not train."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq import errors


def masked_mean(values: Any, mask: Any, axis: Any = None) -> tf.Tensor:
  """Averages the values at real steps; padded ones have no value and no gradient.

  Args:
    values: [..., D...], floating point.
    mask: bool, the leading axes of `values`: a mask [B, L] masks values [B, L, D].
    axis: axes to reduce, as in `tf.reduce_mean`; None for all.
  Returns:
    The mean over the unmasked values, in their dtype; 0 where everything is masked.
  Raises:
    SpecError: the values are not floating point, or the mask is none of theirs.
  """
  values = tf.convert_to_tensor(values)
  mask = tf.convert_to_tensor(mask)
  if not values.dtype.is_floating:
    raise errors.SpecError(
      "masked_mean: values: expected floating point, got "
      f"{errors.describe(values)}. Cast them first."
    )
  if mask.dtype != tf.bool or mask.shape.rank > values.shape.rank:
    raise errors.SpecError(
      "masked_mean: mask: expected bools for the leading axes of the values, "
      f"{errors.describe(values)}, got {errors.describe(mask)}."
    )
  for _ in range(values.shape.rank - mask.shape.rank):
    mask = mask[..., tf.newaxis]
  mask = tf.broadcast_to(mask, tf.shape(values))
  # float16 sums overflow at 65504, and bfloat16 ones count to 256 only.
  wide = values if values.dtype == tf.float64 else tf.cast(values, tf.float32)
  # `where` and not a product: 0 * inf and 0 * nan would come through.
  total = tf.reduce_sum(tf.where(mask, wide, tf.zeros_like(wide)), axis)
  count = tf.reduce_sum(tf.cast(mask, wide.dtype), axis)
  return tf.cast(tf.math.divide_no_nan(total, count), values.dtype)
