"""Windows of episode records, streamed from their files in an order of each epoch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.reading.record_order import FilesByKey
from t2r_seq.data.reading.record_reading import RecordReading
from t2r_seq.data.streamed.episode_columns import EpisodeColumns
from t2r_seq.data.streamed.pool_rescue import PoolRescue
from t2r_seq.data.streamed.raw_episodes import find_raw_episodes
from t2r_seq.data.streamed.streamed_pools import BUDGET, PARSES_AT_ONCE
from t2r_seq.data.streamed.streamed_windows import shuffled_windows
from t2r_seq.records import raw_steps

_REPLACED = re.compile(rf"record of [^\n]*{raw_steps.REPLACED}")
_as_it_is = tf.autograph.experimental.do_not_convert
# Of the file that an episode is from, and more: see `_reader`.
_NUMBER = tf.TensorSpec([], tf.int64)


def stream_records(
  reading: RecordReading,
  files: FilesByKey,
  flat_specs: specs.TensorSpecStruct,
  joined: specs.TensorSpecStruct,
  cut: Mapping[str, Any],
  batch_size: int,
  cycle_length: int,
  num_parallel_calls: int | None,
  seed: int | None,
  *,
  memory_budget: int,
  drop_remainder: bool,
  decode_images: records.DecodeImages,
  report: windows.WindowReport | None,
  is_portable: bool,
) -> tf.data.Dataset:
  """Creates shuffled batches of windows.

  Args:
    reading: parses records, and knows what becomes of bad ones.
    files: by dataset_key. Those of one dataset are permuted in each epoch; several
      datasets are zipped, in order.
    flat_specs: of an episode.
    joined: of a window.
    cut: sequence_length, stride, shift and padding of `windows.windows`.
    batch_size: B.
    cycle_length: files that are read in turns, a record of each.
    num_parallel_calls: of parsing, at most; None for one at a time.
    seed: None: another order in every run.
    memory_budget: bytes; see `streamed_windows`.
    drop_remainder: whether windows that fill no batch at the end are left out.
    decode_images: how images are decoded.
    report: counts.
    is_portable: reads by TensorFlow alone, so that another process can.
  Returns:
    Dataset of batches, for ever.
  Raises:
    SpecError: they are to have a position to be saved, and cannot.
  """
  if seed is None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
  if num_parallel_calls is not None:
    most = PARSES_AT_ONCE
    num_parallel_calls = most if num_parallel_calls < 1 else num_parallel_calls
    num_parallel_calls = min(num_parallel_calls, most)

  names, *others = files.values()
  finder = reading.finder(flat_specs)
  raw_episodes = None
  if not others and not is_portable:
    raw_episodes = find_raw_episodes(names, flat_specs, joined, finder)
  if raw_episodes is None:
    reading.check_position()

  def select(epoch: tf.Tensor, then: Any) -> tf.data.Dataset:
    if raw_episodes is not None:
      order = _permuted(names, cycle_length, seed, epoch, raw_episodes.records_of)
      return raw_episodes.map_episodes(order, then)
    serialized = (
      reading.read(files, check=False)
      if others
      else _permuted(names, cycle_length, seed, epoch, _reader(reading, names))
    )
    return reading.parse_episodes(
      serialized, flat_specs, num_parallel_calls, decode_images=False, then=then
    )

  element_spec, *_ = select(
    tf.constant(0, tf.int64), _as_it_is(lambda *e: e)
  ).element_spec
  place_spec = None if finder is None else _NUMBER
  if raw_episodes is not None:
    place_spec = raw_episodes.place_spec
  columns = EpisodeColumns(
    element_spec, joined, decode_images, raw_episodes, place_spec, **cut
  )
  return shuffled_windows(
    lambda epoch: select(epoch, _as_it_is(columns.select)),
    *(columns, batch_size, memory_budget, seed, None, drop_remainder, report),
    PoolRescue(columns, finder) if finder is not None and columns.images else None,
    is_portable,
  )


def find_cause(where: str, error: Exception) -> errors.SpecError | None:
  """Returns the error that is in one of TensorFlow's, if no record is bad.

  It is of an episode too large for the budget, or of a file that was replaced while it
  was read.

  Args:
    where: who reads what.
    error: TensorFlow's.
  """
  replaced = _REPLACED.search(str(error))
  if replaced is not None:
    return errors.RecordError(f"{where}: {replaced[0]}. Make the dataset anew.")
  found = BUDGET.search(str(error))
  if found is None:
    return None
  needed, num_steps, got = map(int, found.groups())
  return errors.SpecError(
    f"{where}: memory_budget: expected at least {needed:,} bytes for pools that hold "
    f"an episode of {num_steps} steps, got {got:,}; longer ones that come later take "
    "more. Give more, or write shorter episodes."
  )


def _reader(reading: RecordReading, names: list[str]) -> Any:
  """Returns a function of a file's number, that makes the dataset of its records.

  Where bad ones are left out, a number comes with each that is the file's but for a
  multiple of the number of files: what is bad in it is looked for there only.
  """
  compressions = tf.constant([records.compression_type(name) for name in names])
  read_file = reading.read_file or tf.data.TFRecordDataset

  def read(number: tf.Tensor) -> tf.data.Dataset:
    name, compression = tf.gather(names, number), tf.gather(compressions, number)
    serialized = read_file(name, compression)
    if reading.read_file is None:
      return serialized
    # To repeat one number would make an iterator for each record.
    numbers = tf.data.Dataset.range(number, np.iinfo(np.int64).max, len(names))
    return tf.data.Dataset.zip((serialized, numbers))

  return _as_it_is(read)


def _permuted(
  names: list[str], cycle_length: int, seed: int, epoch: Any, read_file: Any
) -> tf.data.Dataset:
  """Reads files in the order of an epoch, which is computed: no state to save."""
  index = tf.range(len(names), dtype=tf.int64)
  if len(names) > 1:
    both = tf.stack([tf.constant(seed % 2**32, tf.int64), epoch])
    last = tf.constant(len(names) - 1, tf.int64)
    index = tf.random.experimental.index_shuffle(index, both, last)
  # One thread: what several read ahead is not restored from a checkpoint.
  return tf.data.Dataset.from_tensor_slices(index).interleave(
    read_file, cycle_length=min(cycle_length, len(names)), block_length=1
  )
