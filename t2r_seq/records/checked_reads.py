"""Records in batches, their checksums verified; one that is damaged ends nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.records import framing
from t2r_seq.records.concrete_functions import concrete_function
from t2r_seq.records.frame_scan import Frames, open_file

_BATCH_BYTES = 8 << 20
_MAX_BATCH = 512
_READ_SIZE = 1 << 20


@dataclasses.dataclass(frozen=True)
class RecordBatch:
  """Records that follow each other in a file.

  Attributes:
    frames: which frames of the file they are, from 0.
    data: the serialized protos; None where they are damaged.
  """

  frames: Sequence[int]
  data: list[bytes] | None


@contextlib.contextmanager
def open_content(
  filename: str, compression: str
) -> Iterator[tuple[str, Exception | None]]:
  """Gives the uncompressed content of a file as a file.

  Args:
    filename: the file.
    compression: '', 'GZIP' or 'ZLIB'.
  Yields:
    Its own name, or that of a temporary file; and the error that ended decompression
    early, if one did.
  """
  if not compression:
    yield filename, None
    return
  with tempfile.TemporaryDirectory(prefix="t2r_seq_") as folder:
    place = os.path.join(folder, "content")
    yield place, _inflate(filename, place)


def _inflate(filename: str, place: str) -> Exception | None:
  # 32: the header tells gzip from zlib.
  inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
  with open_file(filename) as source, open(place, "wb") as target:
    while chunk := source.read(_READ_SIZE):
      while chunk:
        before = inflater.copy()
        try:
          target.write(inflater.decompress(chunk))
        except zlib.error as error:
          target.write(_up_to_damage(before, chunk))
          return error
        chunk = inflater.unused_data
        if chunk:  # One stream after the other makes a file, too.
          inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
  if not inflater.eof and os.path.getsize(filename):
    return EOFError("the compressed data ends too early")
  return None


def _up_to_damage(inflater: Any, chunk: bytes) -> bytes:
  """Decompresses byte by byte: of a damaged chunk zlib gives nothing at once."""
  content = bytearray()
  with contextlib.suppress(zlib.error):
    for place in range(len(chunk)):
      content += inflater.decompress(chunk[place : place + 1])
  return bytes(content)


def read_batches(filename: str, frames: Frames) -> Iterator[RecordBatch]:
  """Reads all records of an uncompressed file.

  Args:
    filename: the file.
    frames: of it.
  Yields:
    Batches of whole records, and of single ones that are damaged, in order.
  """
  for first, last in frames.runs():
    mean = (frames.stops[last - 1] - frames.starts[first]) / (last - first)
    size = int(np.clip(_BATCH_BYTES / mean, 1, _MAX_BATCH))
    position = first
    while position < last:
      stop = min(position + size, last)
      try:
        data = _read(filename, frames.starts[position], stop - position)
        yield RecordBatch(range(position, stop), data)
      except tf.errors.OpError:
        yield from _read_singly(filename, frames, position, stop)
      position = stop


def _read_singly(
  filename: str, frames: Frames, position: int, stop: int
) -> Iterator[RecordBatch]:
  """Reads records one by one, past those that are damaged."""
  good: list[bytes] = []
  for number in range(position, stop):
    try:
      good += _read(filename, frames.starts[number], 1)
    except tf.errors.OpError:
      if good:
        yield RecordBatch(range(number - len(good), number), good)
      yield RecordBatch([number], None)
      good = []
  if good:
    yield RecordBatch(range(stop - len(good), stop), good)


def read_record(filename: str, start: int) -> bytes | None:
  """Reads one record of an uncompressed file.

  Args:
    filename: the file.
    start: of the record's frame, in bytes.
  Returns:
    The serialized proto; None where it is damaged.
  """
  try:
    (data,) = _read(filename, start, 1)
  except tf.errors.OpError:
    return None
  return data


def _read(filename: str, start: int, count: int) -> list[bytes]:
  """Reads records that follow each other, from a place in the file on."""
  numbers = (tf.constant(number, tf.int64) for number in (start, count))
  return _read_fn()(tf.constant(filename), *numbers).numpy().tolist()


@functools.cache
def _read_fn() -> Callable[..., tf.Tensor]:
  """Makes the graph of a read once: for a small file it takes longer than the read."""

  # The op knows where to start only below the top: it is serialized without that.
  @tf.autograph.experimental.do_not_convert
  def read_from(filename: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
    variant = tf.raw_ops.TFRecordDatasetV2(
      filenames=[filename],
      compression_type="",
      buffer_size=_READ_SIZE,
      byte_offsets=[offset],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))

  def read(filename: tf.Tensor, offset: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    dataset = tf.data.Dataset.from_tensors((filename, offset)).flat_map(read_from)
    batches = dataset.take(count).batch(count, drop_remainder=True)
    return batches.get_single_element()

  number = tf.TensorSpec([], tf.int64)
  return concrete_function(read, tf.TensorSpec([], tf.string), number, number)


def damage_of(
  filename: str, offset: int, stop: int, is_framed: bool
) -> tuple[str, str]:
  """Returns what a damaged frame should be, and what it is.

  Args:
    filename: an uncompressed file.
    offset: of the frame.
    stop: where the next one starts.
    is_framed: its length is good, and it is there as a whole.
  Returns:
    Both as text.
  """
  if is_framed:
    size = stop - offset - framing.FRAME_SIZE
    return "data with a fitting checksum", f"flipped bits in its {size} bytes"
  expected, got = framing.find_damage(filename, offset, "")
  return expected or "readable data", got or "none that can be read"
