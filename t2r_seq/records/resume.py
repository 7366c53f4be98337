"""Reading on after a damaged frame: what of a file TensorFlow's reader leaves out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.records import batch_sizes, checked_reads, frame_scan, framing, problems
from t2r_seq.records.concrete_functions import concrete_function

_as_it_is = tf.autograph.experimental.do_not_convert
_LOST = "What follows it in the compressed file is lost."


@dataclasses.dataclass(frozen=True)
class Rest:
  """What follows the first damage of a file.

  Attributes:
    stretches: (offset of the first frame, count of records) of the readable stretches,
      int64 [n, 2].
    problems: the damages.
  """

  stretches: np.ndarray
  problems: tuple[problems.RecordProblem, ...]


def find_rest(filename: str, compression: str = "") -> Rest:
  """Finds the records that come after a damage, at which TensorFlow's reader ends.

  Args:
    filename: a TFRecord file.
    compression: '', 'GZIP' or 'ZLIB'; of a compressed file nothing can be read on.
  Returns:
    Empty where the file is good.
  Raises:
    OpError: the file cannot be opened.
  """
  if _is_good(filename, compression):
    return Rest(np.zeros([0, 2], np.int64), ())
  if compression:
    return _rest_of_compressed(filename, compression)
  frames = frame_scan.scan_frames(filename)
  damaged = [
    frame
    for batch in checked_reads.read_batches(filename, frames)
    if batch.data is None
    for frame in batch.frames
  ]
  found = [
    (int(frames.numbers[i]), int(frames.starts[i]), int(frames.stops[i]), True)
    for i in damaged
  ] + [(*gap, False) for gap in frames.gaps]
  return Rest(
    _stretches(frames, damaged, min(start for _, start, _, _ in found)),
    tuple(damage_at(filename, *place) for place in sorted(found)),
  )


@_as_it_is
def read_stretch(
  filename: tf.Tensor, offset: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
  """Reads records of an uncompressed file; inside of a dataset's function.

  Args:
    filename: string scalar.
    offset: where the first frame starts, int64 scalar.
    count: of records, int64 scalar.
  Returns:
    Dataset of serialized records.
  """
  variant = tf.raw_ops.TFRecordDatasetV2(
    filenames=[filename],
    compression_type="",
    buffer_size=1 << 18,
    byte_offsets=[offset],
  )
  dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
  return dataset.take(count)


def _is_good(filename: str, compression: str) -> bool:
  """Reads the whole file, which is quick and finds every damage but a cut header."""
  first = framing.read_file(filename, compression)
  try:
    count = batch_sizes.batch_size(len(record.numpy()) for record in first)
    names = tf.constant(filename), tf.constant(compression)
    size = int(_size_fn()(*names, tf.constant(count, tf.int64)))
    return not framing.has_rest(filename, size, compression)
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
    # The latter is of a length that no file has.
    return False


@functools.cache
def _size_fn() -> Callable[..., tf.Tensor]:
  """Makes the graph once that adds up the bytes of a file's frames."""

  def size(filename: tf.Tensor, compression: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    records = tf.data.TFRecordDataset(filename, compression_type=compression)
    # One by one records of 250 bytes would take twenty times as long.
    frames = records.batch(count).map(_as_it_is(_frame_bytes))
    return frames.reduce(tf.constant(0, tf.int64), _as_it_is(lambda a, b: a + b))

  name, count = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)
  return concrete_function(size, name, name, count)


def _frame_bytes(batch: tf.Tensor) -> tf.Tensor:
  lengths = tf.cast(tf.strings.length(batch), tf.int64)
  return tf.reduce_sum(lengths + framing.FRAME_SIZE)


def _rest_of_compressed(filename: str, compression: str) -> Rest:
  index = offset = 0
  try:
    for record in framing.iterate_records(filename, compression):
      index, offset = (
        record.index + 1,
        record.offset + framing.FRAME_SIZE + len(record.data),
      )
  except errors.RecordError as error:
    text = str(error).partition("frame: expected ")[2]
    expected, _, got = text.partition(", got ")
    mismatch = errors.Mismatch("frame", expected, got.rstrip("."), _LOST)
    problem = problems.RecordProblem(filename, index, offset, problems.FRAME, mismatch)
    return Rest(np.zeros([0, 2], np.int64), (problem,))
  return Rest(np.zeros([0, 2], np.int64), ())


def _stretches(
  frames: frame_scan.Frames, damaged: list[int], first_damage: int
) -> np.ndarray:
  """Returns the runs of good frames after the first damage."""
  good = np.ones(len(frames.starts), bool)
  good[damaged] = False
  good &= frames.starts > first_damage
  found: list[tuple[int, int]] = []
  for first, last in frames.runs():
    places = np.flatnonzero(good[first:last]) + first
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
      if len(run):
        found.append((int(frames.starts[run[0]]), len(run)))
  return np.asarray(found, np.int64).reshape(-1, 2)


def damage_at(
  filename: str, number: int, start: int, stop: int, is_framed: bool
) -> problems.RecordProblem:
  """Says what is wrong with a damaged frame, or with what is none.

  Args:
    filename: an uncompressed file.
    number: of the record.
    start: of its frame, in bytes.
    stop: where the next one starts.
    is_framed: its length is good, and it is there as a whole.
  Returns:
    The problem.
  """
  damage = checked_reads.damage_of(filename, start, stop, is_framed)
  mismatch = errors.Mismatch("frame", *damage)
  return problems.RecordProblem(filename, number, start, problems.FRAME, mismatch)
