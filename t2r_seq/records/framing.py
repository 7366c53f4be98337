"""Reads the frames of TFRecord files, also after damaged ones, and ArrayRecord files.

The frame of a record is its length (8 bytes, little-endian), the length's checksum (4),
the data, and the data's checksum (4). After a damaged length, the next frame is found
by its header: 12 bytes with a valid checksum, which random data has once in 4 GB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import struct
import tarfile
import time
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.imports import tf
from t2r_seq.records import protos

HEADER_SIZE, FOOTER_SIZE = 12, 4
FRAME_SIZE = HEADER_SIZE + FOOTER_SIZE
# Records of at most this many bytes are read in one call, with header and footer.
_ONE_READ_SIZE = 1 << 14
# Bytes of a file to read at a time, beside those of a large record.
_CHUNK_SIZE = 1 << 14
# Bytes of a gap to search at a time.
_SEARCHED_SIZE = 1 << 20
SAMPLE_SIZE = 512  # Holds the header of a tar archive.
_TEXT_SIZE = 64
# Headers of smaller records are read many at a time; the reader can allocate a GiB.
_SMALL_RECORD, _HARMLESS_SIZE = 1 << 11, 1 << 30
_LENGTH = struct.Struct("<Q")
# Data is at most this many times larger than its deflated form.
_MAX_RATIO = 1032
# No proto is larger. Without a limit, a few megabytes of gzip could fill the memory.
_MAX_RECORD = 1 << 31
_ZIP, _ZIP_END, _ZIP64_END = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"
_MAX_ARCHIVES, _MAX_ZIP_VERSION = 8, 63
_TAR, _TAR_AT, _TAR_BLOCK = b"ustar", 257, SAMPLE_SIZE
_SIGNATURES = (
  (_ZIP, "a zip archive (or an npz file)"),
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
  (b"#ROSBAG V", "a bag of ROS 1"),
  (b"\x89MCAP", "an MCAP file"),
)
# Ends every LevelDB table; SSTables and indices of TF checkpoints are such tables.
_TABLE_FOOTER = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"


def looks_like(start: bytes, end: bytes = b"") -> str:
  """Guesses the type of a file, such as 'an HDF5 file', by its first and last bytes."""
  if phrase := _other_format(start):
    return phrase
  if end.endswith(_TABLE_FOOTER):
    return "an SSTable (LevelDB table, or the index of a TensorFlow checkpoint)"
  if len(start) > 1 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:
    return "a zlib stream"
  start = start[:_TEXT_SIZE]
  # 'ignore' is for a character that is cut at the end of the sample, and for no others.
  text = start.decode("utf-8", errors="ignore")
  is_whole = len(text.encode()) > len(start) - 4
  if is_whole and text and all(c.isprintable() or c in "\r\n\t" for c in text):
    return f"text ({text[:24]!r})"
  return f"unknown data (it starts with {start[:8].hex(' ')})"


def _other_format(start: bytes) -> str:
  """Returns the known format whose signature a file has, or ''."""
  if start[_TAR_AT:].startswith(_TAR):
    return "a tar archive"
  return next((phrase for sign, phrase in _SIGNATURES if start.startswith(sign)), "")


def _make_crc_table() -> np.ndarray:
  table: np.ndarray = np.arange(256, dtype=np.uint32)
  for _ in range(8):
    table = (table >> 1) ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
  return table


_TABLE = _make_crc_table()
_TABLE_LIST = _TABLE.tolist()


def masked_crc32c(data: bytes) -> int:
  """Returns the masked CRC32C of bytes, which is the checksum of TFRecord files."""
  return int(_mask(_crc32c(data)))


def _mask(crc: Any) -> Any:
  """Masks a CRC32C, or each of an array of uint32."""
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c_by_table(data: bytes) -> int:
  """Computes a checksum without google-crc32c: correct, at a few MB a second."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE_LIST[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  return crc ^ 0xFFFFFFFF


try:
  from google_crc32c import value as _crc32c
except ImportError:  # A platform without a wheel.
  _crc32c = _crc32c_by_table


def read_length(header: bytes) -> int | None:
  """Returns the length from a frame's header; None if it is cut or has a wrong CRC."""
  if len(header) < HEADER_SIZE:
    return None
  length, checksum = struct.unpack("<QI", header)
  return length if masked_crc32c(header[:8]) == checksum else None


def read_data(descriptor: int, offset: int, length: int) -> bytes | None:
  """Reads the record at a known offset and verifies its checksums.

  Args:
    descriptor: descriptor of the open file.
    offset: start of the frame, in bytes.
    length: bytes of the data.
  Returns:
    The data; None if the frame is damaged or cut, or has another length.
  """
  if length > _ONE_READ_SIZE:
    header = os.pread(descriptor, HEADER_SIZE, offset)
    data = os.pread(descriptor, length, offset + HEADER_SIZE)
    footer = os.pread(descriptor, FOOTER_SIZE, offset + HEADER_SIZE + length)
  else:  # One call costs less than three, and few bytes are quickly copied.
    frame = os.pread(descriptor, length + FRAME_SIZE, offset)
    header, data = frame[:HEADER_SIZE], frame[HEADER_SIZE:-FOOTER_SIZE]
    footer = frame[HEADER_SIZE + length :]
  is_good = read_length(header) == length and len(footer) == FOOTER_SIZE
  if is_good and int.from_bytes(footer, "little") == masked_crc32c(data):
    return data
  return None


class Frame(NamedTuple):
  """A frame, or the damaged bytes up to the next one.

  Attributes:
    number: number of the record in the file, from 0; damaged bytes count as one.
    start: offset of its first byte; in a compressed file after decompression.
    stop: offset after its last byte.
    data: the serialized proto; None if it is damaged, or was not requested.
    damage: (expected, got) as text; None if no damage was found.
    is_framed: its length is good, and all of its bytes are there.
    ends: the header and the footer, 16 bytes; b"" if `is_framed` is False.
  """

  number: int
  start: int
  stop: int
  data: bytes | None
  damage: tuple[str, str] | None
  is_framed: bool
  ends: bytes


def read_frames(
  filename: str, compression: str = "", lengths: Container[int] | None = None
) -> Iterator[Frame]:
  """Yields the frames of a file from its start to its end, also after damage.

  Args:
    filename: a TFRecord file.
    compression: '', 'GZIP' or 'ZLIB'.
    lengths: lengths of the records to read and verify; None for all. The data of other
      records is skipped: it is None, and its checksum is not verified.
  Raises:
    OSError, tf.errors.OpError: the file, or one at a URL, cannot be read.
  """
  with _Content(filename, compression) as content:
    number = 0
    while content.has(1):
      frame = _read_frame(content, number, lengths)
      is_end = content.error is not None and not content.has(1)
      if is_end and not frame.is_framed:
        yield frame._replace(damage=(f"{compression} data", str(content.error)))
        return
      yield frame
      number += 1
    if content.error is not None:
      damage = f"{compression} data", str(content.error)
      yield Frame(number, content.position, content.position, None, damage, False, b"")


def _read_frame(
  content: _Content, number: int, lengths: Container[int] | None
) -> Frame:
  start = content.position
  header = content.read(HEADER_SIZE)
  length = read_length(header)
  if length is not None and content.has(length + FOOTER_SIZE):
    data = damage = None
    if lengths is None or length in lengths:
      data = content.read(length)
    else:
      content.skip(length)
    footer = content.read(FOOTER_SIZE)
    if data is not None and int.from_bytes(footer, "little") != masked_crc32c(data):
      data = None
      damage = "data with a fitting checksum", f"flipped bits in its {length} bytes"
    stop = content.position
    return Frame(number, start, stop, data, damage, True, header + footer)
  if length is not None:
    # A valid length that exceeds the rest of the file: the file was cut.
    left = content.skip_all()
    expected = f"{length} bytes of data and a checksum of {FOOTER_SIZE}"
    damage = expected, f"{left} bytes, then the end: the file is truncated"
  elif len(header) < HEADER_SIZE:
    got = f"{len(header)}, then the end: the file is truncated"
    damage = f"a header of {HEADER_SIZE} bytes", got
  else:
    content.unread(header)
    sample = content.peek(SAMPLE_SIZE)
    size, is_whole = content.archive_size()
    got = f"the bytes {header.hex(' ')}: flipped bits in the length"
    if start == 0:
      got += f", or a wrong file type: it looks like {looks_like(sample)}"
    elif size:
      got = f"{_other_format(sample)} of {size:,} bytes, which is left out"
    damage = "a length with a fitting checksum", got
    if start == 0 and _other_format(sample) and not is_whole:
      content.skip_all()
    else:
      content.skip(size)
      if inside := content.go_to_header():
        damage = damage[0], f"{got}; {inside:,} bytes of archives are left out"
  return Frame(number, start, content.position, None, damage, False, b"")


class _Content:
  """The bytes of a file from first to last, decompressed on demand.

  Attributes:
    position: number of bytes that were read or skipped, after decompression.
    error: error that ended decompression early; the bytes before it are in the buffer.
  """

  def __init__(self, filename: str, compression: str) -> None:
    self._file = open_file(filename)
    self._size = file_size(filename)
    self._inflated = inflate(self._file) if compression else None
    self._buffer, self._at = b"", 0
    self.position = 0
    self.error: Exception | None = None

  def __enter__(self) -> _Content:
    return self

  def __exit__(self, *exc_info: object) -> None:
    self._file.close()

  def has(self, count: int) -> bool:
    """Whether at least `count` bytes follow."""
    if self._inflated is None:
      return self.position + count <= self._size
    most = min(_MAX_RATIO * self._size, _MAX_RECORD)
    return count <= most and len(self.peek(count)) == count

  def peek(self, count: int) -> bytes:
    """Returns the next bytes, fewer at the end, and stays at the position."""
    missing = count - (len(self._buffer) - self._at)
    if missing > 0:
      parts = [self._buffer[self._at :]]
      while missing > 0 and (part := self._next(missing)):
        parts.append(part)
        missing -= len(part)
      self._buffer, self._at = b"".join(parts), 0
    return self._buffer[self._at : self._at + count]

  def peek_at(self, offset: int, count: int) -> bytes:
    """Returns the bytes at `position + offset`, and stays at the position."""
    if self._inflated is not None:
      end = offset + count  # All bytes up to there are held in memory.
      return self.peek(end)[offset:] if end <= _MAX_RECORD else b""
    position = self.position + len(self._buffer) - self._at
    self._file.seek(min(self.position + offset, self._size))
    data = bytes(self._file.read(min(count, self._size)))
    self._file.seek(position)
    return data

  def unread(self, data: bytes) -> None:
    """Moves back before `data`, the last bytes that were read."""
    self._buffer, self._at = data + self._buffer[self._at :], 0
    self.position -= len(data)

  def archive_size(self, offset: int = 0) -> tuple[int, bool]:
    """Returns the size of a zip or tar archive, 0 for none, and if it is complete."""

    def peek_at(place: int, count: int) -> bytes:
      return self.peek_at(offset + place, count)

    if peek_at(0, len(_ZIP)) == _ZIP:
      return _zip_size(peek_at, self.position + offset)
    return _tar_size(peek_at)

  def read(self, count: int) -> bytes:
    """Returns the next bytes, fewer at the end."""
    data = self.peek(count)
    self._at += len(data)
    self.position += len(data)
    return data

  def skip(self, count: int) -> None:
    beyond = count - (len(self._buffer) - self._at)
    if beyond > 0 and self._inflated is None:
      self.position = min(self.position + count, self._size)
      self._buffer, self._at = b"", 0
      self._file.seek(self.position)
    else:
      self.read(count)

  def skip_all(self) -> int:
    """Skips the rest; returns its size."""
    start = self.position
    while self.read(_SEARCHED_SIZE):
      pass
    return self.position - start

  def go_to_header(self) -> int:
    """Skips to the next header with a valid checksum and a whole frame.

    Returns the bytes of archives on the way: frames in them are not records of the
    file.
    """
    passed = 0
    while len(data := self.peek(_SEARCHED_SIZE + SAMPLE_SIZE)) >= HEADER_SIZE:
      count = min(_SEARCHED_SIZE, len(data) - HEADER_SIZE + 1)
      are_headers = _are_headers(np.frombuffer(data, np.uint8), count)
      candidates = np.flatnonzero(are_headers).tolist()
      lengths = (
        int.from_bytes(data[start : start + 8], "little") for start in candidates
      )
      frames = zip(candidates, lengths, strict=True)
      stop = next((s for s, size in frames if self.has(s + FRAME_SIZE + size)), count)
      for start in _archive_starts(data, stop):
        size, is_whole = self.archive_size(start)
        if is_whole:
          self.skip(start + size)
          passed += size
          break
      else:
        self.read(stop)
        if stop < count:
          return passed
    self.skip_all()
    return passed

  def _next(self, count: int) -> bytes:
    if self._inflated is None:
      return bytes(self._file.read(max(count, _CHUNK_SIZE)))
    try:
      return next(self._inflated, b"")
    except (zlib.error, EOFError) as error:
      self.error = error
      return b""


def _archive_starts(data: bytes, stop: int) -> list[int]:
  """Returns up to `_MAX_ARCHIVES` places before `stop` where archives may begin."""
  starts = [match.start() for match in re.finditer(re.escape(_ZIP), data)]
  starts += [match.start() - _TAR_AT for match in re.finditer(_TAR, data)]
  # To find the end of each, the whole rest of the file may be read: hence the limit.
  return sorted(start for start in starts if 0 <= start < stop)[:_MAX_ARCHIVES]


def _zip_size(peek_at: Callable[[int, int], bytes], position: int) -> tuple[int, bool]:
  """Returns the size of a zip archive, and whether its end was found."""
  place = 0
  while len(chunk := peek_at(place, _SEARCHED_SIZE)) >= len(_ZIP_END):
    for match in re.finditer(_ZIP_END, chunk):
      end = directory_end = place + match.start()
      # The end record has 22 bytes; zip64 has one of 56 and a locator of 20 before it.
      record = peek_at(end, 22).ljust(22, b"\x00")
      size, offset, comment = struct.unpack("<12xIIH", record)
      if (record := peek_at(max(end - 76, 0), 56)).startswith(_ZIP64_END):
        directory_end -= 76
        size, offset = struct.unpack("<40xQQ", record)
      # The end of an archive within this one has another offset. Offsets of an archive
      # that was appended to a file may count from the start of the file.
      if offset + size - directory_end in (0, position):
        return end + 22 + comment, True
    place += max(len(chunk) - len(_ZIP_END) + 1, 1)
  place = 0
  while (header := peek_at(place, 30)).startswith(_ZIP) and len(header) == 30:
    version, size, name, extra = struct.unpack("<4xB13xI4xHH", header)
    text = peek_at(place + 30, name).decode(errors="replace")
    if version > _MAX_ZIP_VERSION or not text or not text.isprintable():
      break  # The signature's four bytes are random data.
    place += 30 + name + extra
    if peek_at(place + size, 2) != _ZIP[:2]:
      return _stored_frames_end(peek_at, place), False
    place += size
  return place, False


def _tar_size(peek_at: Callable[[int, int], bytes]) -> tuple[int, bool]:
  """Returns the size of a tar archive, and whether its end was found."""
  place = 0
  while (size := _tar_entry_size(peek_at(place, _TAR_BLOCK))) is not None:
    next_place = place + _TAR_BLOCK * (1 + math.ceil(size / _TAR_BLOCK))
    block = peek_at(next_place, _TAR_BLOCK)
    if block != bytes(_TAR_BLOCK) and _tar_entry_size(block) is None:
      return _stored_frames_end(peek_at, place + _TAR_BLOCK), False
    place = next_place
  entries_end = place
  while place and peek_at(place, _TAR_BLOCK) == bytes(_TAR_BLOCK):
    place += _TAR_BLOCK
  return place, place > entries_end


def _tar_entry_size(header: bytes) -> int | None:
  """Returns the bytes of a tar archive's entry, or None if it is not a header."""
  if header[_TAR_AT:].startswith(_TAR):
    with contextlib.suppress(tarfile.TarError):
      # A forged size may be negative.
      return max(tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").size, 0)
  return None


def _stored_frames_end(peek_at: Callable[[int, int], bytes], place: int) -> int:
  """Returns where the records in the last entry of a cut archive end.

  The entry's header has its size before the cut, which may cover records that follow.
  """
  while (length := read_length(peek_at(place, HEADER_SIZE))) is not None:
    data = peek_at(place + HEADER_SIZE, length + FOOTER_SIZE)
    if int.from_bytes(data[length:], "little") != masked_crc32c(data[:length]):
      return place + 1  # After the start of this header, so that it is not found again.
    place += FRAME_SIZE + length
  return place


def _are_headers(data: np.ndarray, count: int) -> np.ndarray:
  """Whether a valid header starts at each of the first positions: bool [count]."""
  crcs = np.full(count, 0xFFFFFFFF, np.uint32)
  for i in range(8):  # Many CRCs at once, each extended by one byte.
    crcs = _TABLE[(crcs ^ data[i : i + count]) & 0xFF] ^ (crcs >> 8)
  words = np.zeros(count, np.uint32)
  for i in range(FOOTER_SIZE):
    words |= data[8 + i : 8 + i + count].astype(np.uint32) << np.uint32(8 * i)
  return np.asarray(_mask(crcs ^ np.uint32(0xFFFFFFFF)) == words)


def inflate(file: Any) -> Iterator[bytes]:
  """Yields, in parts, the content of one or several joined gzip or zlib files.

  Raises:
    zlib.error: the file is damaged; raised after the content before the damage.
    EOFError: the file ends too early.
  """
  bits = zlib.MAX_WBITS | 32  # Detects gzip or zlib by the header.
  inflater, is_empty = zlib.decompressobj(bits), True
  while chunk := file.read(_CHUNK_SIZE):
    is_empty = False
    while chunk:
      before = inflater.copy()
      try:
        data = inflater.decompress(chunk, _SEARCHED_SIZE)
      except zlib.error:
        # zlib returns nothing for a damaged chunk, hence byte by byte.
        with contextlib.suppress(zlib.error):
          for place in range(len(chunk)):
            if data := before.decompress(chunk[place : place + 1]):
              yield data
        raise
      if data:
        yield data
      chunk = inflater.unconsumed_tail or inflater.unused_data
      if inflater.eof and chunk:
        inflater = zlib.decompressobj(bits)
  yield from iter(lambda: inflater.decompress(b"", _SEARCHED_SIZE), b"")
  if not inflater.eof and not is_empty:
    raise EOFError("the compressed data ends too early")


def open_file(filename: str) -> Any:
  """Opens a file for reading: a local one, or with TensorFlow one at a URL."""
  if "://" in filename:
    return tf.io.gfile.GFile(filename, "rb")
  return open(os.fspath(filename), "rb", buffering=0)


def file_size(filename: str) -> int:
  """Returns the size in bytes of a file, which may be at a URL."""
  if "://" in filename:
    return tf.io.gfile.stat(filename).length
  return os.stat(filename).st_size


@dataclasses.dataclass(frozen=True)
class Record:
  """One record of a file.

  Attributes:
    filename: the file.
    index: number of the record in the file, from 0.
    offset: start of its frame, in bytes; in a compressed file after decompression.
    data: the serialized proto.
  """

  filename: str
  index: int
  offset: int
  data: bytes

  @property
  def place(self) -> str:
    """File, record and byte, for messages."""
    return place(self.filename, self.index, self.offset)

  def contents(self) -> protos.RecordContents:
    """Returns its features; raises RecordError if the data is no such proto."""
    try:
      return protos.RecordContents(self.data)
    except errors.RecordError as error:
      raise errors.RecordError(f"{self.place}: {error}") from error


def place(filename: str, index: int, offset: int) -> str:
  """Names file, record and byte, for messages."""
  return f"record {index} of {filename} (byte {offset})"


_ARRAY_RECORD = b"\x83\xafp\xd1\r\x88J?"
_ARRAY_BATCH = 64


def is_array_record(filename: str) -> bool:
  """Whether a local file is an ArrayRecord file, as TFDS and Grain write them."""
  if "://" in filename or "record" not in os.path.basename(filename).lower():
    return False
  try:
    with open(filename, "rb") as file:
      return file.read(len(_ARRAY_RECORD)) == _ARRAY_RECORD
  except OSError:
    return False


def _iterate_array(filename: str) -> Iterator[Record]:
  """Yields the records of an ArrayRecord file; their offsets are their numbers."""
  module = imports.load_extra("array_record.python.array_record_module", "array_record")
  reader = module.ArrayRecordReader(filename)
  try:
    count = reader.num_records()
    if not reader.ok() or not count:
      # For a truncated file the library reports an end without data.
      raise errors.RecordError(
        f"records: {filename}: expected an ArrayRecord file with records, got none. "
        "The file was cut, or never finished."
      )
    for start in range(0, count, _ARRAY_BATCH):
      numbers = list(range(start, min(start + _ARRAY_BATCH, count)))
      try:
        contents = reader.read(numbers)
      except (IndexError, RuntimeError, ValueError) as error:
        raise errors.RecordError(
          f"{place(filename, start, start)}: expected a record that can be read, got "
          f"{error}. The file is damaged."
        ) from error
      for number, data in zip(numbers, contents, strict=True):
        yield Record(filename, number, number, data)
  finally:
    with contextlib.suppress(RuntimeError):  # Damage, which was reported before.
      reader.close()


def iterate_records(filename: str, compression: str = "") -> Iterator[Record]:
  """Yields the records of a TFRecord or ArrayRecord file, checksums verified.

  Args:
    filename: the file; ArrayRecord needs the extra `array_record`.
    compression: '', 'GZIP' or 'ZLIB'.
  Raises:
    RecordError: a frame or record is damaged, raised after the ones before it; the file
      cannot be read, or is an ArrayRecord file without records.
    ImportError: the file is an ArrayRecord file, and the extra is not installed.
  """
  if is_array_record(filename):
    yield from _iterate_array(filename)
    return
  try:
    for frame in read_frames(filename, compression):
      if frame.data is None:
        raise damage_error(filename, frame)
      yield Record(filename, frame.number, frame.start, frame.data)
  except (OSError, tf.errors.OpError) as error:
    raise errors.RecordError(
      f"records: {filename}: expected a file that can be read, got: {error}."
    ) from error


def damage_error(filename: str, frame: Frame) -> errors.RecordError:
  """Builds the error for the first damaged frame of a file."""
  hint = "The records before it are good." if frame.number else ""
  mismatch = errors.Mismatch("frame", *(frame.damage or ("", "")), hint)
  where = place(filename, frame.number, frame.start)
  return errors.mismatch_error(where, [mismatch], errors.RecordError)


def check_lengths(filename: str, deadline: float = math.inf) -> None:
  """Checks an uncompressed file for frames longer than the file.

  TensorFlow's reader allocates the length of a frame before it reads it: a wrong length
  with a valid checksum exhausts memory and kills the process. Files at URLs are not
  checked.

  Args:
    filename: name of a TFRecord file.
    deadline: value of `time.monotonic()` at which the check stops; the rest is not
      checked.
  Raises:
    RecordError: a frame is longer than the whole file, and longer than a GiB. Shorter
      ones TensorFlow's reader itself reports, as a truncated file.
    OSError: the file cannot be read.
  """
  too_long = _find_too_long(filename, deadline)
  if too_long is not None:
    _, start = too_long
    frames = read_frames(filename, lengths=())
    raise damage_error(filename, next(f for f in frames if f.start == start))


def num_readable(filename: str) -> int:
  """Returns how many records precede a frame that `check_lengths` reports, or -1."""
  too_long = _find_too_long(filename)
  return -1 if too_long is None else too_long[0]


def _find_too_long(filename: str, deadline: float = math.inf) -> tuple[int, int] | None:
  """Returns number and offset of a frame that `check_lengths` reports, or None."""
  if "://" in filename:
    return None  # Reading at a URL takes too long.
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
          return None  # The file has become shorter.
      stop = start + FRAME_SIZE + _LENGTH.unpack_from(chunk, place)[0]
      chunk_size = _CHUNK_SIZE if stop - start < _SMALL_RECORD else HEADER_SIZE
    if stop - start <= max(size, _HARMLESS_SIZE):
      return None
    header = chunk[start - first : start - first + HEADER_SIZE]
    # The reader stops by itself at a wrong checksum.
    return (number, start) if read_length(header) is not None else None


def read_start(
  filename: str, compression: str, count: int
) -> tuple[bytes, Exception | None]:
  """Returns the first bytes of a file, decompressed, and what ended decompression."""
  with _Content(filename, compression) as content:
    return content.read(count), content.error


_BATCH_BYTES = 1 << 20
# Larger batches are no faster.
_MAX_BATCH = 1024
# Several, because the first episode of a file may be the shortest one.
_NUM_FIRST = 16


def batch_size(lengths: Iterable[int], max_bytes: int = _BATCH_BYTES) -> int:
  """Returns how many records make a batch, by the longest of the first 16."""
  longest = max(itertools.islice(lengths, _NUM_FIRST), default=1)
  size = min(_BATCH_BYTES, max_bytes)
  return min(max(size // max(longest, 1), 1), _MAX_BATCH)
