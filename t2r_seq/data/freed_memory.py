"""Memory that iterators have left behind, given back when the next one starts."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq import allocation
from t2r_seq.data.python_calls import call_of_python

_as_it_is = tf.autograph.experimental.do_not_convert


def give_back_first(numbers: tf.data.Dataset, first: Any) -> tf.data.Dataset:
  """Gives freed memory back to the system before an iterator fills its first pool.

  TensorFlow's threads take turns, and each has an arena of its own. So the images of
  one iterator are in other arenas than those of the last one, which stay as large as
  they were: with budgets of 415 MiB the eighth iterator over streamed JPEGs took 753
  MiB and was to grow on, and 380 to 505 with this. It takes 20 to 60 ms.

  Args:
    numbers: int64 scalars, of which an iterator's pools are made.
    first: the number that an iterator starts with.
  Returns:
    The same dataset; it calls Python, so no other process can run it.
  """

  def begin(number: tf.Tensor) -> tf.Tensor:
    same = tf.cond(
      number == first,
      lambda: tf.numpy_function(_give_back, [number], tf.int64, stateful=False),
      lambda: tf.identity(number),
    )
    return tf.ensure_shape(same, [])

  return numbers.map(_as_it_is(begin))


def after_giving_back(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the same dataset, whose iterators do so first; its options are lost."""
  once = give_back_first(tf.data.Dataset.range(1), 0)
  return once.flat_map(_as_it_is(lambda _: dataset))


def _give_back(number: Any) -> Any:
  with call_of_python():
    allocation.give_back_freed_memory()
  return number
