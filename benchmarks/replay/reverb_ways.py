"""What is measured: datasets of a Reverb server's windows, ours and written by hand."""

from __future__ import annotations

import numpy as np
import reverb
import tensorflow as tf

from benchmarks.replay.reverb_servers import TABLE, ServedWork, connect


def ours(served: ServedWork) -> tf.data.Dataset:
  """The library's dataset."""
  client = connect(served.work, served.servers["flat"].address)
  return client.dataset(served.batch_size)


def flat_by_hand(served: ServedWork) -> tf.data.Dataset:
  """Samples flat items and stacks them, a batch at a time."""
  work = served.work
  fields = {name: work.fields[name] for name in sorted(work.fields)}
  sizes = [field.dtype.size * field.shape.num_elements() for field in fields.values()]
  if len(fields) == 1:
    column = {name: (field.dtype, field.shape) for name, field in fields.items()}
  else:
    # All fields of a step are one column of bytes.
    name = f"@steps {1 - work.num_frames} to {work.num_flat - work.num_frames}"
    column = {name: (tf.uint8, tf.TensorShape([sum(sizes)]))}
  starts = np.arange(work.num_flat - work.num_frames + 1)
  index = starts[:, None] + np.arange(work.num_frames)

  def window(sample: reverb.ReplaySample) -> dict[str, tf.Tensor]:
    steps = dict(sample.data)
    if len(fields) > 1:
      parts = tf.split(steps[name], sizes, axis=2)
      steps = {
        path: _values(part, field)
        for (path, field), part in zip(fields.items(), parts, strict=True)
      }
    if work.sequence_length is None:
      return steps
    return {path: tf.gather(values, index, axis=1) for path, values in steps.items()}

  batches = _batches(served, "flat", [work.num_flat], column)
  return batches.map(window, num_parallel_calls=2)


def _values(part: tf.Tensor, field: tf.TensorSpec) -> tf.Tensor:
  shape = [part.shape[0], part.shape[1], *field.shape]
  if field.dtype == tf.uint8:
    return tf.reshape(part, shape)
  return tf.bitcast(tf.reshape(part, [*shape, field.dtype.size]), field.dtype)


def stacked_by_hand(served: ServedWork) -> tf.data.Dataset:
  """Samples stacked items, which are windows."""
  work = served.work
  length = [] if work.sequence_length is None else [work.sequence_length]
  columns = {name: (field.dtype, field.shape) for name, field in work.fields.items()}
  batches = _batches(served, "stacked", [*length, work.num_frames], columns)
  return batches.map(lambda sample: sample.data)


def pid_of(served: ServedWork, store: str) -> int:
  """Returns the server's process."""
  return served.servers[store].pid


def _batches(
  served: ServedWork,
  store: str,
  axes: list[int],
  columns: dict[str, tuple[tf.DType, tf.TensorShape]],
) -> tf.data.Dataset:
  return reverb.TrajectoryDataset(
    served.servers[store].address,
    TABLE,
    dtypes={name: dtype for name, (dtype, _) in columns.items()},
    shapes={name: tf.TensorShape(axes + shape) for name, (_, shape) in columns.items()},
    # The best of 1 to 4 workers with 32 to 128 items each, with and without prefetch.
    max_in_flight_samples_per_worker=served.batch_size,
    num_workers_per_iterator=2,
  ).batch(served.batch_size, drop_remainder=True)
