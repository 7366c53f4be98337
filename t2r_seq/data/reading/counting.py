"""How many examples record files hold, found by reading as little as possible."""

from __future__ import annotations

import tensorflow as tf

from t2r_seq import records, specs, windows
from t2r_seq.data.reading import record_order
from t2r_seq.records import framing

_as_it_is = tf.autograph.experimental.do_not_convert


def count_records(files: record_order.FilesByKey) -> int:
  """Counts records, which are not parsed.

  Args:
    files: by dataset_key; record i of one goes with record i of the others.
  Returns:
    The records, or the sets of them where there are several datasets.
  Raises:
    OpError: a file is damaged, or one dataset ends before another.
  """
  dataset = record_order.read_records(files)
  count = framing.batch_size(
    sum(map(len, tf.nest.flatten(each))) for each in dataset.as_numpy_iterator()
  )
  sizes = dataset.batch(count).map(
    _as_it_is(lambda batch: _size(tf.nest.flatten(batch)[0]))
  )
  return _sum(sizes)


def count_windows(
  files: record_order.FilesByKey,
  flat_specs: specs.TensorSpecStruct,
  grid: windows.WindowGrid,
) -> int:
  """Counts windows by the lengths of the episodes; of these one feature is parsed.

  Args:
    files: by dataset_key.
    flat_specs: specs of an episode by path, at least one a sequence.
    grid: the anchors.
  Returns:
    The windows in all episodes.
  Raises:
    OpError: a file is damaged, or an episode lacks the feature.
  """
  path, spec = min(
    ((path, spec) for path, spec in flat_specs.items() if spec.is_sequence),
    key=lambda item: (item[1].is_optional, specs.is_encoded_image_spec(item[1])),
  )
  parse_fn = records.create_parse_tf_example_fn({path: spec}, decode_images=False)
  serialized = record_order.read_records({"": files[spec.dataset_key]})

  def num_windows(record: tf.Tensor) -> tf.Tensor:
    return grid.num_windows(_size(parse_fn({spec.dataset_key: record})[path]))

  return _sum(serialized.map(_as_it_is(num_windows), tf.data.AUTOTUNE))


def _size(tensor: tf.Tensor) -> tf.Tensor:
  return tf.shape(tensor, tf.int64)[0]


def _sum(sizes: tf.data.Dataset) -> int:
  return int(sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + size))
