"""A dataset of windows from Reverb's own dataset of items."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.replay.replay import SampleInfo
from t2r_seq.replay.reverb.connection import Connection, why_it_waits
from t2r_seq.replay.reverb.failing import failing
from t2r_seq.replay.reverb.importing import import_reverb
from t2r_seq.replay.reverb.layout import ItemLayout
from t2r_seq.replay.reverb.server import TABLE
from t2r_seq.replay.reverb.wire import from_wire, wire_signature

_as_it_is = tf.autograph.experimental.do_not_convert


def sample_items(
  connection: Connection,
  layout: ItemLayout,
  batch_size: int,
  max_in_flight: int | None = None,
) -> tf.data.Dataset:
  """Samples batches of items as they are stored.

  Items are batched before they are windows: flat ones are smaller, and stacking a batch
  is one op for each path.

  Args:
    connection: to the server.
    layout: what items hold.
    batch_size: B.
    max_in_flight: items that are asked for before they are needed; None for two
      batches. A queue gives them away, and a rate limiter counts them.
  Returns:
    Endless dataset of (SampleInfo, columns), leaves [B, ...]. Where the rate limiter
    holds for longer than is allowed, it ends with an error.
  """
  signature = wire_signature(layout.signature)
  info = connection.table()
  is_ordered = info is not None and info.sampler_options.is_deterministic
  milliseconds = -1 if connection.timeout is None else int(1000 * connection.timeout)
  items = import_reverb().TrajectoryDataset(
    connection.address,
    TABLE,
    dtypes={name: spec.dtype for name, spec in signature.items()},
    shapes={name: spec.shape for name, spec in signature.items()},
    max_in_flight_samples_per_worker=max_in_flight or 2 * batch_size,
    # Several workers would mix up what a queue gives in order.
    num_workers_per_iterator=1 if is_ordered else -1,
    rate_limiter_timeout_ms=milliseconds,
  )
  if layout.full_shapes == {name: spec.shape for name, spec in signature.items()}:
    batches = items.batch(batch_size, drop_remainder=True)
  else:
    info_shapes = tf.nest.map_structure(lambda _: [], items.element_spec.info)
    shapes = items.element_spec._replace(info=info_shapes, data=layout.full_shapes)
    batches = items.padded_batch(batch_size, shapes, drop_remainder=True)
  batches = batches.map(lambda sample: (SampleInfo(*sample.info), sample.data))
  return batches.concatenate(_timeout_error(connection, batches.element_spec))


def to_windows(items: tf.data.Dataset, layout: ItemLayout) -> tf.data.Dataset:
  """Makes windows of items.

  Args:
    items: batches of (SampleInfo, columns).
    layout: what items hold.
  Returns:
    Dataset of (SampleInfo, windows).
  """

  @_as_it_is
  def stack(info: SampleInfo, columns: Any) -> tuple[SampleInfo, Any]:
    columns = {
      name: from_wire(columns[name], spec.dtype)
      for name, spec in layout.signature.items()
    }
    return info, layout.to_windows(columns)

  return items.map(stack, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _timeout_error(connection: Connection, element_spec: Any) -> tf.data.Dataset:
  """Says why there is nothing to sample, where Reverb just ends its dataset."""

  def say() -> bytes:
    return str(
      errors.ReplayTimeoutError(
        f"replay: sample: waited {connection.timeout:g} s for {connection.address}: "
        f"{why_it_waits(connection.table())}"
      )
    ).encode()

  @_as_it_is
  def fail(_: tf.Tensor) -> Any:
    message = tf.numpy_function(say, [], tf.string)
    return failing(message, element_spec)

  return tf.data.Dataset.range(1).map(fail)
