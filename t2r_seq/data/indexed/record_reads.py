"""Records in any order, in graph ops: each read where its index says that it lies."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq import records
from t2r_seq.store import HeldTensor

_as_it_is = tf.autograph.experimental.do_not_convert

# What TensorFlow's reader asks the file system for at once, at most.
_MAX_BUFFER = 1 << 18


class RecordReads:
  """Reads runs of records that follow each other in one file.

  TensorFlow's own reader starts at the byte where the first of them lies, so checksums
  are verified, any file system will do, and no Python runs. What a read costs beside
  its bytes, 80 us, is the making of that reader.
  """

  def __init__(self, index: records.RecordIndex, run_length: int = 1) -> None:
    """Prepares; reads nothing.

    Args:
      index: of the files, none of which is compressed.
      run_length: records that are read at once; a file's last run may be shorter.
    Raises:
      RecordError: a file is compressed.
    """
    index.require_random_access()
    plan = [_plan_runs(file, run_length) for file in index.files]
    files = np.repeat(np.arange(len(plan)), [len(counts) for counts, _, _ in plan])
    self.counts: np.ndarray = np.concatenate([counts for counts, _, _ in plan])
    offsets = np.concatenate([offsets for _, offsets, _ in plan])
    sizes = np.concatenate([sizes for _, _, sizes in plan])
    self._filenames = HeldTensor.of(np.array(index.filenames))
    self._files = HeldTensor.of(files)
    self._counts = HeldTensor.of(self.counts)
    self._offsets = HeldTensor.of(offsets)
    self._buffers = HeldTensor.of(np.minimum(sizes, _MAX_BUFFER))
    self.held = [
      *(self._filenames, self._files, self._counts, self._offsets, self._buffers)
    ]

  def dataset(self, run: tf.Tensor) -> tf.data.Dataset:
    """Reads one run.

    Args:
      run: its number, int64 scalar.
    Returns:
      Dataset of its serialized records, scalar strings.
    """
    file = _pick(self._files, run)
    dataset = tf.raw_ops.TFRecordDatasetV2(
      filenames=[_pick(self._filenames, file)],
      compression_type="",
      buffer_size=_pick(self._buffers, run),
      byte_offsets=[_pick(self._offsets, run)],
    )
    structure = tf.TensorSpec([], tf.string)
    records_on = tf.data.experimental.from_variant(dataset, structure)
    return records_on.take(_pick(self._counts, run))

  def read(self, runs: tf.Tensor) -> tf.Tensor:
    """Reads runs, one after the other.

    Args:
      runs: int64 [N], N >= 1, in any order.
    Returns:
      The serialized records of all of them, string [M].
    """
    total = tf.reduce_sum(tf.gather(self._counts.read_value(), runs))
    dataset = tf.data.Dataset.from_tensor_slices(runs).flat_map(_as_it_is(self.dataset))
    return dataset.batch(total, drop_remainder=True).get_single_element()


def _plan_runs(
  index: records.FileIndex, run_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns records, first byte and bytes of every run of a file, int64 [runs]."""
  firsts = np.arange(0, index.num_records, run_length)
  ends = np.minimum(firsts + run_length, index.num_records)
  offsets = index.offsets[firsts]
  return ends - firsts, offsets, index.ends[ends - 1] - offsets


def _pick(values: HeldTensor, number: tf.Tensor) -> tf.Tensor:
  return tf.gather(values.read_value(), number)
