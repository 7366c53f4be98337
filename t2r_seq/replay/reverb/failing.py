"""`failing`: an element of a dataset that cannot be had."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def failing(message: tf.Tensor, element_spec: Any) -> Any:
  """Makes an element that is an error when it is computed.

  Args:
    message: of the error, a string.
    element_spec: specs of the other elements of the dataset.
  Returns:
    Tensors of these specs.
  """

  def make(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    value = tf.zeros(shape, spec.dtype)
    return tf.compat.v1.placeholder_with_default(value, spec.shape)

  with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
    return tf.nest.map_structure(make, element_spec)
