"""A dataset that is an error: that of samples that do not come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.reverb.connection import Connection
from t2r_seq.replay.reverb.server import TABLE
from t2r_seq.replay.reverb.waiting import why_it_waits

_as_it_is = tf.autograph.experimental.do_not_convert


def rate_limiter_timeout(connection: Connection, element_spec: Any) -> tf.data.Dataset:
  """Makes a dataset that is an error: that of Reverb's, which just ends.

  Args:
    connection: to the server.
    element_spec: of its elements, if it had any.
  """

  def fail() -> bool:
    tables = connection.look()
    info = None if tables is None else tables.get(TABLE)
    why = "the server is away." if tables is None else why_it_waits(info)
    if info is not None and info.max_times_sampled:
      why += (
        " What had been taken for the unfinished batch counts as sampled, and is gone."
      )
    raise errors.ReplayTimeoutError(
      f"replay: sample: waited {connection.timeout:g} s for {connection.address}: {why}"
    )

  return _only_errors(_calls(fail, tf.data.Dataset.range(1)), element_spec)


def _calls(function: Callable[[], bool], dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Calls a function for each element."""
  return dataset.map(_as_it_is(lambda _: tf.numpy_function(function, [], tf.bool)))


def _only_errors(dataset: tf.data.Dataset, element_spec: Any) -> tf.data.Dataset:
  """Leaves nothing of a dataset but its errors, among elements of other specs."""

  def make(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [0 if size is None else size for size in spec.shape.as_list()]
    value = tf.zeros(shape, spec.dtype)
    return tf.compat.v1.placeholder_with_default(value, spec.shape)

  @_as_it_is
  def element(_: tf.Tensor) -> Any:
    return tf.nest.map_structure(make, element_spec)

  return dataset.filter(_as_it_is(lambda _: tf.constant(False))).map(element)
