"""Checks of values while records are parsed, in graph ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def require(tensor: tf.Tensor, condition: tf.Tensor, data: list[Any]) -> tf.Tensor:
  """Passes a tensor on, or fails at run time.

  Args:
    tensor: any.
    condition: [] bool.
    data: what the error shows: a message that names the path, and tensors.
  Returns:
    `tensor`.
  Raises:
    InvalidArgumentError: at run time, where the condition is False.
  """
  # The raw op: tf.debugging.Assert builds a tf.cond around it, which costs every image.
  check = tf.raw_ops.Assert(condition=condition, data=data, summarize=8)
  with tf.control_dependencies([check] if check is not None else []):
    return tf.identity(tensor)
