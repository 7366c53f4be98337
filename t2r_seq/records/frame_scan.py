"""The frames of a file that may be damaged: where records lie, and where none can be.

After a length that is damaged, the next record is found by its own: 12 bytes with a
fitting checksum, which 4 billion bytes have by chance once.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.records import framing

_CHUNK = 1 << 20
_TABLE = np.asarray(framing.CRC_TABLE, np.uint32)


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
    header = file.read(framing.HEADER_SIZE)
    is_header = len(header) == framing.HEADER_SIZE
    length = framing.read_length(header) if is_header else None
    stop = size + 1 if length is None else position + framing.FRAME_SIZE + length
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
  while position + framing.FRAME_SIZE <= size:
    file.seek(position)
    data = np.frombuffer(file.read(_CHUNK + framing.HEADER_SIZE - 1), np.uint8)
    count = len(data) - framing.HEADER_SIZE + 1
    if count < 1:
      break
    for start in np.flatnonzero(_has_fitting_checksum(data, count)).tolist():
      length = int.from_bytes(data[start : start + 8].tobytes(), "little")
      if position + start + framing.FRAME_SIZE + length <= size:
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
