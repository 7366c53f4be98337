"""Shapes and dtypes as specs have them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import errors


def dtype_of(array: np.ndarray | np.generic) -> tf.DType:
  """Returns the dtype of an array; text, byte strings and objects are strings."""
  return tf.string if array.dtype.kind in "SUO" else tf.as_dtype(array.dtype)


def prepend_batch(shape: tf.TensorShape, batch_size: int) -> tf.TensorShape:
  """Puts a batch axis in front of a shape.

  Args:
    shape: of one example.
    batch_size: > 0 of that size, < 0 of unknown size.
  Returns:
    The shape of a batch.
  Raises:
    SpecError: the batch size is not an integer.
  """
  if isinstance(batch_size, bool) or not isinstance(batch_size, int):
    raise errors.SpecError(
      f"from_spec: expected an integer batch_size, got {batch_size!r}."
    )
  return tf.TensorShape([batch_size if batch_size > 0 else None]).concatenate(shape)
