"""The frame of TFRecord files: where each record starts, and what is broken there.

A record is its length (8 bytes, little-endian), the length's checksum (4), the data,
and the data's checksum (4).

After a length that is damaged, the next record is found by its own: 12 bytes with a
fitting checksum, which 4 billion bytes have by chance once.

A frame holds the record's length, the length's checksum and the data's checksum: 16
bytes, which are all that is read of a large record. Their own checksum stands for the
whole file, since another record has another checksum in its frame.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors

_SIGNATURES = (
  (b"PK\x03\x04", "a zip archive (or an npz file)"),
  (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
  (b"\x1f\x8b", "a gzip file"),
  (b"\x93NUMPY", "a numpy .npy file"),
  (b"\x83\xaf\x70\xd1", "a Riegeli or ArrayRecord file"),
  (b"PAR1", "a Parquet file"),
  (b"ARROW1", "an Arrow file"),
  (b"SQLite format 3", "an SQLite database"),
  (b"\x89PNG", "a PNG image"),
  (b"\xff\xd8\xff", "a JPEG image"),
  (b"GIF8", "a GIF image"),
  (b"BZh", "a bzip2 file"),
  (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
  (b"\xfd7zXZ", "an xz file"),
  (b"\x80\x04\x95", "a Python pickle"),
  (b"version https://git-lfs", "a Git LFS pointer; fetch the file with git lfs pull"),
  (b"SSTABLE", "an SSTable"),
  (b"T2RI", "the index of a TFRecord file; name the file without .t2ri"),
)
# At the end of the tables of LevelDB, which SSTables and TF checkpoint indices are.
_TABLE_FOOTER = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"


def looks_like(start: bytes, end: bytes = b"") -> str:
  """Guesses what a file is.

  Args:
    start: its first bytes; 64 are enough.
    end: its last bytes; 8 are enough.
  Returns:
    A phrase such as 'an HDF5 file'.
  """
  for signature, phrase in _SIGNATURES:
    if start.startswith(signature):
      return phrase
  if end.endswith(_TABLE_FOOTER):
    return "an SSTable (LevelDB table, or the index of a TensorFlow checkpoint)"
  if len(start) > 1 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:
    return "a zlib stream"
  # A character may be cut at the end of the sample, hence 'ignore' is for that only.
  text = start.decode("utf-8", errors="ignore")
  is_whole = len(text.encode()) > len(start) - 4
  if is_whole and text and all(c.isprintable() or c in "\r\n\t" for c in text):
    return f"text ({text[:24]!r})"
  return f"unknown data (it starts with {start[:8].hex(' ')})"


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
  count = -1 if compression else num_readable(filename)
  records = iter(read_file(filename, compression).take(count))
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
      got += f", or a wrong file type: it looks like {looks_like(start)}"
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


_CHUNK = 1 << 20
_TABLE = np.asarray(CRC_TABLE, np.uint32)


@dataclasses.dataclass(frozen=True)
class Frames:
  """The frames of a file.

  A gap, where bytes are no frame, counts as one record.

  Attributes:
    numbers: of each record in the file, int64 [n].
    starts: of each frame, in bytes, int64 [n].
    stops: of each frame, int64 [n].
    gaps: (number, start, stop) of each gap.
    size: of the file.
  """

  numbers: np.ndarray
  starts: np.ndarray
  stops: np.ndarray
  gaps: tuple[tuple[int, int, int], ...]
  size: int

  @property
  def num_records(self) -> int:
    """Frames and gaps together."""
    return len(self.starts) + len(self.gaps)

  def runs(self) -> list[tuple[int, int]]:
    """Returns (first, last + 1) of the frames that follow each other without a gap."""
    breaks = np.flatnonzero(self.starts[1:] != self.stops[:-1]) + 1
    bounds = [0, *breaks.tolist(), len(self.starts)]
    return [(a, b) for a, b in itertools.pairwise(bounds) if a < b]


def scan_frames(filename: str) -> Frames:
  """Finds the frames of an uncompressed file, by their lengths and checksums.

  Args:
    filename: of a TFRecord file; its data is not read.
  Returns:
    The frames, and the gaps between them.
  Raises:
    OSError: the file cannot be read.
  """
  with open_file(filename) as file:
    size = tf.io.gfile.stat(filename).length
    return _scan(file, size)


def open_file(filename: str) -> Any:
  """Opens a file for reading, wherever it is; a local one the quick way."""
  if "://" in filename:
    return tf.io.gfile.GFile(filename, "rb")
  return open(os.fspath(filename), "rb")


def _scan(file: Any, size: int) -> Frames:
  numbers: list[int] = []
  starts: list[int] = []
  stops: list[int] = []
  gaps: list[tuple[int, int, int]] = []
  position = number = 0
  while position < size:
    file.seek(position)
    header = file.read(HEADER_SIZE)
    is_header = len(header) == HEADER_SIZE
    length = read_length(header) if is_header else None
    stop = size + 1 if length is None else position + FRAME_SIZE + length
    if stop <= size:
      numbers.append(number)
      starts.append(position)
      stops.append(stop)
    else:
      # A good length beyond the end is that of the last record: the file was cut.
      stop = size if length is not None else _find_header(file, position + 1, size)
      gaps.append((number, position, stop))
    number += 1
    position = stop
  return Frames(
    np.asarray(numbers, np.int64),
    np.asarray(starts, np.int64),
    np.asarray(stops, np.int64),
    tuple(gaps),
    size,
  )


def _find_header(file: Any, position: int, size: int) -> int:
  """Returns where the next frame starts; the end of the file where there is none."""
  while position + FRAME_SIZE <= size:
    file.seek(position)
    data = np.frombuffer(file.read(_CHUNK + HEADER_SIZE - 1), np.uint8)
    count = len(data) - HEADER_SIZE + 1
    if count < 1:
      break
    for start in np.flatnonzero(_has_fitting_checksum(data, count)).tolist():
      length = int.from_bytes(data[start : start + 8].tobytes(), "little")
      if position + start + FRAME_SIZE + length <= size:
        return position + start
    position += count
  return size


def _has_fitting_checksum(data: np.ndarray, count: int) -> np.ndarray:
  """Whether each of the first positions can be the start of a header, bool [count]."""
  crc = np.full(count, 0xFFFFFFFF, np.uint32)
  for shift in range(8):
    crc = _TABLE[(crc ^ data[shift : shift + count]) & 0xFF] ^ (crc >> 8)
  crc ^= np.uint32(0xFFFFFFFF)
  masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
  found = np.zeros(count, np.uint32)
  for shift in range(4):
    part = data[8 + shift : 8 + shift + count].astype(np.uint32)
    found |= part << np.uint32(8 * shift)
  return masked == found


_FOOTER_SIZE_INDEX_FRAMES = FRAME_SIZE - HEADER_SIZE
# Small records are read in large chunks, of large ones only the frames.
_LARGE_RECORD, _SMALL_RECORD = 1 << 16, 1 << 11
_CHUNK_SIZE_INDEX_FRAMES, _SMALL_CHUNK_SIZE = 1 << 20, 1 << 12
_LENGTH = struct.Struct("<Q")


def frame_ends(filename: str) -> tuple[np.ndarray, int]:
  """Reads the frames of an uncompressed file.

  Args:
    filename: of a local TFRecord file.
  Returns:
    Where each frame ends, int64 [n], and the CRC-32 of all frames.
  Raises:
    RecordError: a frame is damaged, or the file ends within one.
    OSError: the file cannot be read.
  """
  with open(filename, "rb", buffering=0) as file:
    ends, frames, is_whole = _walk(file.fileno(), os.fstat(file.fileno()).st_size)
  headers = np.frombuffer(bytes(frames), np.uint8).reshape(-1, FRAME_SIZE)
  if not is_whole or not _fit(headers[:, :HEADER_SIZE]):
    raise _explain(filename)
  return np.asarray(ends, np.int64), zlib.crc32(frames)


def _walk(descriptor: int, size: int) -> tuple[list[int], bytearray, bool]:
  """Goes from length to length; says whether the last frame ends with the file."""
  ends: list[int] = []
  frames = bytearray()
  chunk, first, position, last_frame = b"", 0, 0, 0

  def read(place: int, count: int) -> bytes:
    nonlocal chunk, first
    if not first <= place <= place + count <= first + len(chunk):
      is_small = last_frame < _LARGE_RECORD
      chunk_size = _CHUNK_SIZE_INDEX_FRAMES if is_small else _SMALL_CHUNK_SIZE
      chunk, first = os.pread(descriptor, chunk_size, place), place
    return chunk[place - first : place - first + count]

  while position + FRAME_SIZE <= size:
    header = read(position, HEADER_SIZE)
    length = int.from_bytes(header[:8], "little")
    end = position + FRAME_SIZE + length
    if end > size:
      break
    frames += header
    frames += read(end - _FOOTER_SIZE_INDEX_FRAMES, _FOOTER_SIZE_INDEX_FRAMES)
    ends.append(end)
    position, last_frame = end, end - position
  is_whole = position == size and len(frames) == len(ends) * FRAME_SIZE
  if not is_whole:
    frames = bytearray()
  return ends, frames, is_whole


def check_lengths(filename: str, deadline: float = math.inf) -> None:
  """Checks that TensorFlow's reader can be given a file, whatever is wrong with it.

  It asks for as much memory as a frame says; where a length that is a lie has a fitting
  checksum, the process dies of that.

  Args:
    filename: of an uncompressed TFRecord file; of a compressed one it is no matter.
    deadline: by `time.monotonic`, when to leave off.
  Raises:
    RecordError: a frame is longer than what is left of the file.
    OSError: the file cannot be read.
  """
  found = _find_too_long(filename, deadline)
  if found is not None:
    raise _describe_damage(filename, *found, "")


def num_readable(filename: str) -> int:
  """Returns how many records TensorFlow's reader may be asked for; -1 for any number.

  See `check_lengths`.
  """
  found = _find_too_long(filename)
  return -1 if found is None else found[0]


def _find_too_long(filename: str, deadline: float = math.inf) -> tuple[int, int] | None:
  """Returns number and offset of a frame that is longer than the rest of its file."""
  if "://" in filename:
    return None  # To read there takes too long.
  with open(filename, "rb", buffering=0) as file:
    descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
    chunk, first, chunk_size = b"", 0, HEADER_SIZE
    number, start, stop = -1, 0, 0
    while stop + HEADER_SIZE <= size:
      number, start = number + 1, stop
      place = start - first
      if place + HEADER_SIZE > len(chunk):
        if time.monotonic() > deadline:
          return None
        chunk, first, place = os.pread(descriptor, chunk_size, start), start, 0
        if len(chunk) < HEADER_SIZE:
          return None  # It has become shorter.
      stop = start + FRAME_SIZE + _LENGTH.unpack_from(chunk, place)[0]
      chunk_size = _CHUNK_SIZE if stop - start < _SMALL_RECORD else HEADER_SIZE
    if stop <= size:
      return None
    header = chunk[start - first : start - first + HEADER_SIZE]
    # With another checksum the reader stops by itself.
    return (number, start) if read_length(header) is not None else None


def _fit(headers: np.ndarray) -> bool:
  """Whether the checksums of the lengths fit; [n, 12] uint8."""
  crc = np.full(len(headers), 0xFFFFFFFF, np.uint32)
  for column in headers[:, :8].T:
    crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
  crc ^= np.uint32(0xFFFFFFFF)
  masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
  checksums = np.ascontiguousarray(headers[:, 8:]).view("<u4").reshape(-1)
  return bool((masked == checksums).all())


def _explain(filename: str) -> errors.RecordError:
  """Finds the damage with the reader that knows all kinds of it."""
  try:
    for _ in iterate_records(filename):
      pass
  except errors.RecordError as error:
    return error
  return errors.RecordError(
    f"records: {filename}: expected a file at rest, got one that changed while it "
    "was read."
  )


def concrete_function(
  function: Callable[..., Any], *signature: tf.TensorSpec
) -> Callable[..., Any]:
  """Traces a function, to be called without a lock.

  A `tf.function` takes locks for each call, and runs Python while it has them. There
  the garbage collector may end an iterator, which waits for its threads; and one of
  those, which calls a function, would wait for the lock, for ever.

  Args:
    function: of tensors; left as it is, without AutoGraph.
    *signature: of its arguments.
  Returns:
    The concrete function, to be called with tensors.
  """
  as_it_is = tf.autograph.experimental.do_not_convert(function)
  return tf.function(as_it_is, input_signature=signature).get_concrete_function()


_BATCH_BYTES = 1 << 20
# Beyond as many a record more costs what it costs in a batch of its own.
_MAX_BATCH = 1024
# The first episode of a file may be the shortest one.
_NUM_LOOKED_AT = 16


def batch_size(lengths: Iterable[int], max_bytes: int = _BATCH_BYTES) -> int:
  """Returns how many records make a batch, by the longest of the first ones.

  Args:
    lengths: of the records in bytes; no more than the first are asked for.
    max_bytes: of a batch, if that is less than usual.
  Returns:
    At least 1.
  """
  longest = max(itertools.islice(lengths, _NUM_LOOKED_AT), default=1)
  wanted = min(_BATCH_BYTES, max_bytes)
  return min(max(wanted // max(longest, 1), 1), _MAX_BATCH)


_BATCH_BYTES_CHECKED_READS = 8 << 20
_MAX_BATCH_CHECKED_READS = 512


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
    yield place, _inflate_checked_reads(filename, place)


def _inflate_checked_reads(filename: str, place: str) -> Exception | None:
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
    size = int(np.clip(_BATCH_BYTES_CHECKED_READS / mean, 1, _MAX_BATCH_CHECKED_READS))
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
    size = stop - offset - FRAME_SIZE
    return "data with a fitting checksum", f"flipped bits in its {size} bytes"
  expected, got = find_damage(filename, offset, "")
  return expected or "readable data", got or "none that can be read"
