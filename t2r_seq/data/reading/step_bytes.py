"""How many bytes steps take in memory."""

from __future__ import annotations

import tensorflow as tf

# Of a string in a tensor, beside those that it has.
_STRING_BYTES = 24


def num_step_bytes(spec: tf.TensorSpec) -> int | None:
  """Returns the bytes of a step, or of a row of a batch, if all have as many."""
  num_elements = spec.shape[1:].num_elements()
  if num_elements is None or spec.dtype == tf.string:
    return None
  return int(num_elements * spec.dtype.size)


def num_bytes_of(value: tf.Tensor) -> tf.Tensor:
  """Returns the bytes of a tensor and of its strings, int64 scalar."""
  if value.dtype != tf.string:
    return tf.size(value, tf.int64) * value.dtype.size
  lengths = tf.cast(tf.strings.length(value), tf.int64)
  return tf.reduce_sum(lengths) + tf.size(value, tf.int64) * _STRING_BYTES
