"""Which steps are so large that a copy of them counts."""

from __future__ import annotations

import tensorflow as tf

# Rows from this size on stay where they are; to gather those costs a copy less.
_LARGE_BYTES = 4096
# TensorFlow shares the memory of parts of a tensor where they start at multiples.
_ALIGNMENT = 64


def is_large_step(shape: tf.TensorShape, dtype: tf.DType) -> bool:
  """Whether a step is large, and TensorFlow can look at it where it is."""
  num_elements = shape.num_elements()
  if num_elements is None or dtype == tf.string:
    return False
  num_bytes = num_elements * dtype.size
  return num_bytes >= _LARGE_BYTES and num_bytes % _ALIGNMENT == 0
