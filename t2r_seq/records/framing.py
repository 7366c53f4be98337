"""The frame of TFRecord files: where each record starts, and what is broken there.

A record is its length (8 bytes, little-endian), the length's checksum (4), the data,
and the data's checksum (4).
"""

from __future__ import annotations

import dataclasses
import struct
import sys
import zlib
from collections.abc import Iterator

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.records import signatures

_CRC32C_POLYNOMIAL = 0x82F63B78
HEADER_SIZE = 12
FRAME_SIZE = 16
_FOOTER_SIZE = 4
_CHUNK_SIZE = 1 << 16
_READ_SIZE = 1 << 20
_SAMPLE_SIZE = 64


def _make_crc_table() -> list[int]:
  table = []
  for byte in range(256):
    for _ in range(8):
      byte = (byte >> 1) ^ (_CRC32C_POLYNOMIAL if byte & 1 else 0)
    table.append(byte)
  return table


CRC_TABLE = _make_crc_table()


def masked_crc32c(data: bytes) -> int:
  """Computes the checksum of TFRecord files; slow, so for headers only."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = CRC_TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  return mask_crc32c(crc ^ 0xFFFFFFFF)


def mask_crc32c(crc: int) -> int:
  """Returns a CRC32C as TFRecord files hold it."""
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_length(header: bytes) -> int | None:
  """Reads the length of a record from its 12 byte header.

  Args:
    header: the length, 8 bytes, and its checksum, 4 bytes.
  Returns:
    The number of bytes of the record, or None where the checksum does not fit.
  """
  length, checksum = struct.unpack("<QI", header)
  return length if masked_crc32c(header[:8]) == checksum else None


@dataclasses.dataclass(frozen=True)
class Record:
  """One record of a file.

  Attributes:
    filename: the file.
    index: number of the record in the file, from 0.
    offset: where its frame starts, in bytes; of a compressed file, in the
      decompressed data.
    data: the serialized proto.
  """

  filename: str
  index: int
  offset: int
  data: bytes

  @property
  def place(self) -> str:
    """Names file, record and byte, for messages."""
    return place(self.filename, self.index, self.offset)


def place(filename: str, index: int, offset: int) -> str:
  """Names file, record and byte, for messages."""
  return f"record {index} of {filename} (byte {offset})"


def iterate_records(filename: str, compression: str = "") -> Iterator[Record]:
  """Reads the records of a file, checksums verified.

  Args:
    filename: a TFRecord file.
    compression: '', 'GZIP' or 'ZLIB'.
  Yields:
    The records in order.
  Raises:
    RecordError: a damaged frame or record, after all that come before it.
  """
  index, offset = 0, 0
  records = iter(read_file(filename, compression))
  while True:
    try:
      data = next(records).numpy()
    except StopIteration:
      break
    except tf.errors.OpError as error:
      raise _describe_damage(filename, index, offset, compression, error) from error
    yield Record(filename, index, offset, data)
    index, offset = index + 1, offset + FRAME_SIZE + len(data)
  if has_rest(filename, offset, compression):
    raise _describe_damage(filename, index, offset, compression)


def read_file(filename: str, compression: str) -> tf.data.Dataset:
  """Returns the records of a file, scalar strings.

  `tf.data.TFRecordDataset` maps a function over names: to make that, and to optimize
  it, takes longer than to read a small file.
  """
  variant = tf.raw_ops.TFRecordDataset(
    filenames=[filename], compression_type=compression, buffer_size=_READ_SIZE
  )
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  options.autotune.enabled = False
  records = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
  return records.with_options(options)


def has_rest(filename: str, offset: int, compression: str) -> bool:
  """Whether anything follows the last record that TensorFlow's reader gives.

  It takes a header that is cut off, or compressed data that is, for the end.

  Args:
    filename: the file.
    offset: where that record's frame ends.
    compression: '', 'GZIP' or 'ZLIB'.
  Returns:
    Whether there is, or was, more.
  """
  try:
    if read_content(filename, compression, offset, HEADER_SIZE):
      return True
  except zlib.error:
    return True
  return bool(compression) and _inflate(filename)[0]


def _inflate(filename: str) -> tuple[bool, str]:
  """Decompresses a file; returns whether it is cut, and why it cannot be, or ''."""
  inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
  is_empty = True
  try:
    with tf.io.gfile.GFile(filename, "rb") as file:
      while chunk := file.read(_CHUNK_SIZE):
        while chunk:
          is_empty = False
          inflater.decompress(chunk)
          chunk = inflater.unused_data
          if chunk:  # One stream after the other makes a file, too.
            inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
  except zlib.error as error:
    return False, str(error)
  return not inflater.eof and not is_empty, ""


def _describe_damage(
  filename: str,
  index: int,
  offset: int,
  compression: str,
  error: Exception | None = None,
) -> errors.RecordError:
  """Says what is wrong with the frame that TensorFlow's reader could not read."""
  hint = "The records before it are good."
  try:
    expected, got = find_damage(filename, offset, compression)
  except (OSError, tf.errors.OpError, zlib.error) as stream_error:
    expected = f"{compression or 'readable'} data"
    got = f"{stream_error or type(stream_error).__name__}"
  if not expected:
    expected, got = "readable data", str(error).split("\n")[0]
  mismatch = errors.Mismatch("frame", expected, got, hint if index else "")
  where = place(filename, index, offset)
  return errors.mismatch_error(where, [mismatch], errors.RecordError)


def find_damage(filename: str, offset: int, compression: str) -> tuple[str, str]:
  """Finds out what is wrong with a frame.

  Args:
    filename: the file.
    offset: of the frame.
    compression: '', 'GZIP' or 'ZLIB'.
  Returns:
    What it should be and what it is, as text; '' where it looks good.
  """
  header = read_content(filename, compression, offset, HEADER_SIZE)
  if len(header) < HEADER_SIZE:
    return "a header of 12 bytes", f"{len(header)}, then the end: the file is truncated"
  length = read_length(header)
  if length is None:
    got = f"the bytes {header.hex(' ')}: flipped bits in the length"
    if offset == 0:
      start = read_content(filename, compression, 0, _SAMPLE_SIZE)
      got += f", or a wrong file type: it looks like {signatures.looks_like(start)}"
    return "a length with a fitting checksum", got
  size = length + _FOOTER_SIZE
  left = _num_left(filename, compression, offset + HEADER_SIZE, size)
  if left < size:
    return (
      f"{length} bytes of data and a checksum of 4",
      f"{left} bytes, then the end: the file is truncated",
    )
  if compression and (error := _inflate(filename)[1]):
    # TensorFlow's reader fails with all that it has in its buffer.
    return (
      f"{compression} data",
      f"{error}, here or after it: t2r_seq doctor tells where, and saves more",
    )
  return "data with a fitting checksum", f"flipped bits in its {length} bytes"


def _num_left(filename: str, compression: str, offset: int, size: int) -> int:
  """Returns how many of so many bytes are there; a wrong length may be of exabytes."""
  if compression:
    return len(read_content(filename, compression, offset, size))
  return min(size, max(0, tf.io.gfile.stat(filename).length - offset))


def read_content(filename: str, compression: str, offset: int, size: int) -> bytes:
  """Reads bytes of a file's decompressed content.

  Args:
    filename: the file.
    compression: '', 'GZIP' or 'ZLIB'.
    offset: of the first byte.
    size: the most bytes to read.
  Returns:
    The bytes; fewer where the content ends.
  Raises:
    OSError: the file cannot be read.
    zlib.error: it is not compressed so.
  """
  with tf.io.gfile.GFile(filename, "rb") as file:
    if not compression:
      file.seek(offset)
      return file.read(size)
    # 32: the header tells gzip from zlib.
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    content, position = b"", 0
    while len(content) < size and (chunk := file.read(_CHUNK_SIZE)):
      # No more than is asked for: what follows may be damaged.
      limit = min(offset + size - position, sys.maxsize)
      data = inflater.decompress(chunk, limit)
      content += data[max(0, offset - position) :]
      position += len(data)
    return content[:size]
