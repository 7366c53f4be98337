"""Batches from pools of indexed records: each read, parsed and decoded once a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import records, specs, windows
from t2r_seq.data.indexed.indexed_examples import IndexedExamples
from t2r_seq.data.indexed.indexed_windows import IndexedWindows
from t2r_seq.data.indexed.record_reads import RecordReads
from t2r_seq.data.loaders.decoded_columns import LoadedRows
from t2r_seq.data.loaders.pooled_batches import PooledWindows
from t2r_seq.store import HeldTensor

_as_it_is = tf.autograph.experimental.do_not_convert

# Bytes of examples that are read at once, as a run of records that are neighbours.
_RUN_BYTES = 1 << 16
_RECORD = "record"
# Of a string in a tensor, beside those that it has.
_STRING_BYTES = 24

_Rows = tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]


class _RowSizes:
  """Rows that have no columns, for `PooledWindows`: sizes, and images to restore."""

  def __init__(
    self,
    lengths: np.ndarray,
    row_bytes: Mapping[str, int],
    images: Mapping[str, specs.ExtendedTensorSpec],
    held: list[HeldTensor],
  ) -> None:
    self.episode_lengths = lengths
    self.held = held
    self._row_bytes = row_bytes
    self._images = images

  def max_row_bytes(self, path: str) -> int:
    return self._row_bytes[path]

  def restore(self, path: str, state: tf.Tensor) -> LoadedRows:
    return LoadedRows.of_state(state, self._images.get(path))


class PooledEpisodes(PooledWindows):
  """Reads the windows of a pool of episode records from memory."""

  def __init__(self, indexed: IndexedWindows, index: records.RecordIndex) -> None:
    """Prepares.

    Args:
      indexed: the windows.
      index: of the same files.
    """
    self._indexed = indexed
    rows = _RowSizes(
      indexed.episode_lengths,
      _step_bytes(indexed, index),
      indexed.images,
      indexed.held,
    )
    super().__init__(rows, indexed.decoded_reader, indexed.counts)

  def _read_rows(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> _Rows:
    """Parses records, and keeps the steps that windows of the pool show."""

    def parse(episode: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> Any:
      data = self._indexed.reads.dataset(episode).get_single_element()
      parsed = self._indexed.parse(data)
      # Checks that the sequences of the record have one length.
      end = tf.minimum(first + count, self._reader.num_steps(parsed))
      return {
        path: values[first:end] if path in self._step_paths else values
        for path, values in parsed.items()
      }

    dataset = tf.data.Dataset.from_tensor_slices((episodes, first_step, num_steps))
    dataset = dataset.map(
      _as_it_is(parse), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    count = tf.size(episodes, tf.int64)
    # A ragged batch is all steps of all episodes in one tensor.
    read = dataset.ragged_batch(count, drop_remainder=True).get_single_element()
    steps = {path: self._state(path, read[path].values) for path in self._step_paths}
    return steps, {path: read[path] for path in self._context_paths}

  def _state(self, path: str, rows: tf.Tensor) -> tf.Tensor:
    if path not in self._indexed.images:
      return rows
    return self._indexed.decode_to_list(tf.reshape(rows, [-1]), path).handle


class PooledExamples(PooledWindows):
  """Reads the examples of a pool of runs of records from memory; parses them last."""

  def __init__(self, examples: IndexedExamples, index: records.RecordIndex) -> None:
    """Prepares.

    Args:
      examples: the records.
      index: of the same files.
    """
    self._examples = examples
    mean_bytes = max(1, int(index.lengths.mean()))
    self._reads = RecordReads(index, max(1, _RUN_BYTES // mean_bytes))
    sizes = {_RECORD: _while_read(int(index.lengths.max()) + _STRING_BYTES)}
    rows = _RowSizes(self._reads.counts, sizes, {}, self._reads.held)
    super().__init__(rows, _run_reader(), self._reads.counts)

  def batches(self, *args: Any) -> tf.data.Dataset:
    """Creates the dataset of batches, parsed; see `PooledWindows.batches`."""
    serialized = super().batches(*args)
    return serialized.map(
      _as_it_is(lambda batch: self._examples.parse(batch[_RECORD])),
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True,
    )

  def _read_rows(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> _Rows:
    """Reads runs, and keeps the records that the pool shows."""
    counts = tf.gather(tf.constant(self._reads.counts, tf.int64), episodes)
    first_rows = tf.cumsum(counts, exclusive=True) + first_step
    rows = tf.ragged.range(first_rows, first_rows + num_steps).flat_values
    return {_RECORD: tf.gather(self._reads.read(episodes), rows)}, {}


def _run_reader() -> windows.WindowReader:
  """Takes runs of records for episodes, and each record for a window."""
  element = {_RECORD: tf.TensorSpec([None], tf.string)}
  spec = {_RECORD: specs.ExtendedTensorSpec((), tf.string, time_offsets=0)}
  return windows.WindowReader(element, spec)


def _step_bytes(indexed: IndexedWindows, index: records.RecordIndex) -> dict[str, int]:
  """Returns the memory of a step by path; strings share that of their records."""
  found = {}
  steps = np.maximum(indexed.episode_lengths, 1)
  of_strings = int(np.ceil((index.lengths / steps).max()))
  for path in indexed.reader.timed_paths:
    element = indexed.element_spec[path]
    count = int(np.prod(element.shape[1:].as_list(), dtype=np.int64))
    encoded = count * element.dtype.size
    if element.dtype == tf.string:
      encoded, of_strings = count * _STRING_BYTES + of_strings, 0
    if path in indexed.images:
      spec = indexed.images[path]
      found[path] = encoded + spec.shape.num_elements() * spec.dtype.size
    else:
      found[path] = _while_read(encoded)
  return found


def _while_read(num_bytes: int) -> int:
  """Returns what to count for a row, so that two pools have room for three.

  While a pool is read its records are there in pieces, and then in one piece, too.
  """
  return -(-3 * num_bytes // 2)
