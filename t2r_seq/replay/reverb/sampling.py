"""A dataset of windows from Reverb's own dataset of items."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq.replay.replay import SampleInfo
from t2r_seq.replay.reverb import failing
from t2r_seq.replay.reverb.connection import Connection
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
  Raises:
    ReplayTimeoutError: the server is away.
  """
  signature = wire_signature(layout.signature)
  info = connection.tables("sample")[TABLE]
  is_ordered = info.sampler_options.is_deterministic
  in_flight = max_in_flight or 2 * batch_size
  # A reader asks again when all that it asked for has been taken: two take turns, which
  # is 10% faster than one that asks for as much, and as fast as three or four. Where
  # order matters, several would mix it up.
  num_readers = 1 if is_ordered or in_flight == 1 else 2
  milliseconds = -1 if connection.timeout is None else int(1000 * connection.timeout)
  items = import_reverb().TrajectoryDataset(
    connection.address,
    TABLE,
    dtypes={name: spec.dtype for name, spec in signature.items()},
    shapes={name: spec.shape for name, spec in signature.items()},
    max_in_flight_samples_per_worker=in_flight // num_readers,
    num_workers_per_iterator=num_readers,
    rate_limiter_timeout_ms=milliseconds,
  )
  if layout.full_shapes == {name: spec.shape for name, spec in signature.items()}:
    batches = items.batch(batch_size, drop_remainder=True)
  else:
    info_shapes = tf.nest.map_structure(lambda _: [], items.element_spec.info)
    shapes = items.element_spec._replace(info=info_shapes, data=layout.full_shapes)
    batches = items.padded_batch(batch_size, shapes, drop_remainder=True)
  batches = batches.map(lambda sample: (SampleInfo(*sample.info), sample.data))
  too_late = failing.rate_limiter_timeout(connection, batches.element_spec)
  return batches.concatenate(too_late)


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
