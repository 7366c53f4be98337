"""Memory that iterators have left behind, given back when the next one starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import allocation
from t2r_seq.data.python_calls import call_of_python

_as_it_is = tf.autograph.experimental.do_not_convert


def give_back_first(
  dataset: tf.data.Dataset, is_first: Callable[..., tf.Tensor]
) -> tf.data.Dataset:
  """Gives freed memory back to the system before an iterator fills its first pool.

  TensorFlow's threads take turns, and each has an arena of its own. So the images of
  one iterator are in other arenas than those of the last one, which stay as large as
  they were: with budgets of 415 MiB the eighth iterator over streamed JPEGs took 753
  MiB and was to grow on; with this each took 347 to 455. It takes 20 to 75 ms.

  Args:
    dataset: of what pools are made of, a tensor or a tuple with one in front.
    is_first: called as by `Dataset.map`; says which one an iterator starts with, bool
      scalar.
  Returns:
    The same dataset; it calls Python, so no other process can run it.
  """

  def begin(*element: Any) -> Any:
    value, *others = element
    # What the call returns is used, or it would be left out: it has no state, because
    # of what has one TensorFlow warns at each checkpoint.
    same = tf.cond(
      is_first(*element),
      lambda: tf.numpy_function(_give_back, [value], value.dtype, stateful=False),
      lambda: tf.identity(value),
    )
    same = tf.ensure_shape(same, value.shape)
    return (same, *others) if others else same

  return dataset.map(_as_it_is(begin))


def _give_back(value: Any) -> Any:
  with call_of_python():
    allocation.give_back_freed_memory()
  return value
