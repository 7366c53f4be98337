"""Functions of TensorFlow that threads of several iterators may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def concrete_function(
  function: Callable[..., Any], *signature: tf.TensorSpec
) -> Callable[..., Any]:
  """Traces a function, to be called without a lock.

  A `tf.function` takes locks for each call, and runs Python while it has them. There
  the garbage collector may end an iterator, which waits for its threads; and one of
  those, which calls a function, would wait for the lock, for ever.

  Args:
    function: of tensors; left as it is, without AutoGraph.
    *signature: of its arguments.
  Returns:
    The concrete function, to be called with tensors.
  """
  as_it_is = tf.autograph.experimental.do_not_convert(function)
  return tf.function(as_it_is, input_signature=signature).get_concrete_function()
