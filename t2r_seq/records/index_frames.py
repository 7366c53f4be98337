"""Where the records of a TFRecord file lie, from its frames alone.

A frame holds the record's length, the length's checksum and the data's checksum: 16
bytes, which are all that is read of a large record. Their own checksum stands for the
whole file, since another record has another checksum in its frame.
"""

from __future__ import annotations

import os
import zlib

import numpy as np

from t2r_seq import errors
from t2r_seq.records import framing

_FOOTER_SIZE = framing.FRAME_SIZE - framing.HEADER_SIZE
# Small records are read in large chunks, of large ones only the frames.
_LARGE_RECORD = 1 << 16
_CHUNK_SIZE, _SMALL_CHUNK_SIZE = 1 << 20, 1 << 12
_TABLE = np.asarray(framing.CRC_TABLE, np.uint32)


def scan_frames(filename: str) -> tuple[np.ndarray, int]:
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
  headers = np.frombuffer(bytes(frames), np.uint8).reshape(-1, framing.FRAME_SIZE)
  if not is_whole or not _fit(headers[:, : framing.HEADER_SIZE]):
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
      chunk_size = _CHUNK_SIZE if is_small else _SMALL_CHUNK_SIZE
      chunk, first = os.pread(descriptor, chunk_size, place), place
    return chunk[place - first : place - first + count]

  while position + framing.FRAME_SIZE <= size:
    header = read(position, framing.HEADER_SIZE)
    length = int.from_bytes(header[:8], "little")
    end = position + framing.FRAME_SIZE + length
    if end > size:
      break
    frames += header
    frames += read(end - _FOOTER_SIZE, _FOOTER_SIZE)
    ends.append(end)
    position, last_frame = end, end - position
  is_whole = position == size and len(frames) == len(ends) * framing.FRAME_SIZE
  if not is_whole:
    frames = bytearray()
  return ends, frames, is_whole


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
    for _ in framing.iterate_records(filename):
      pass
  except errors.RecordError as error:
    return error
  return errors.RecordError(
    f"records: {filename}: expected a file at rest, got one that changed while it "
    "was read."
  )
