"""Files of records, damaged as disks and programs do it; and what is left in them."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable

from mutations import BYTES

_TABLE = []
for _byte in range(256):
  for _ in range(8):
    _byte = (_byte >> 1) ^ (0x82F63B78 if _byte & 1 else 0)
  _TABLE.append(_byte)


def checksum(data: bytes) -> int:
  """The masked CRC-32C of TFRecord files."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  crc ^= 0xFFFFFFFF
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes, length: int | None = None) -> bytes:
  """Frames a record; with another length than its own, if one is given."""
  head = struct.pack("<Q", len(data) if length is None else length)
  return b"".join(
    [head, struct.pack("<I", checksum(head)), data, struct.pack("<I", checksum(data))]
  )


def compress(content: bytes, suffix: str) -> bytes:
  """Compresses as the suffix promises: '', '.gz' or '.zz'."""
  if not suffix:
    return content
  deflater = zlib.compressobj(wbits=zlib.MAX_WBITS | (16 if suffix == ".gz" else 0))
  return deflater.compress(content) + deflater.flush()


def mutate_file(
  payloads: list[bytes], suffix: str, rng: random.Random
) -> tuple[str, bytes, bytes]:
  """Makes a file with something wrong in it.

  Args:
    payloads: its records.
    suffix: '', '.gz' or '.zz'.
    rng: decides.
  Returns:
    What was done; the bytes; and, of compressed ones, the content that was compressed.
  """
  frames = [frame(payload) for payload in payloads]
  done = []
  if not suffix or rng.random() < 0.3:
    kind = rng.choice(list(FRAMES))
    done.append(kind)
    FRAMES[kind](frames, rng.randrange(len(frames)), rng)
  plain = b"".join(frames)
  content = bytearray(compress(plain, suffix))
  if suffix or rng.random() < 0.4:
    kind = rng.choice(
      ["flip", "insert", "delete", "zeros", "cut", "garbage after", "garbage", "empty"]
    )
    done.append(kind)
    content = bytearray(BYTES[kind](content, rng))
  return "+".join(done), bytes(content), plain if suffix else bytes(content)


def _flip(
  frames: list[bytes], i: int, start: int, stop: int, rng: random.Random
) -> None:
  data = bytearray(frames[i])
  stop = stop or len(data)
  if start % len(data) < stop:
    data[rng.randrange(start % len(data), stop)] ^= 1 << rng.randrange(8)
  frames[i] = bytes(data)


def _swap(frames: list[bytes], i: int, rng: random.Random) -> None:
  frames[i], frames[0] = frames[0], frames[i]


def _cut(frames: list[bytes], i: int, rng: random.Random) -> None:
  frames[i] = frames[i][: rng.randrange(len(frames[i]))]
  del frames[i + 1 :]


def _longer(frames: list[bytes], i: int, rng: random.Random) -> None:
  """A length that has a fitting checksum, and is that of another record."""
  data = frames[i][12:-4]
  # Not of terabytes: TensorFlow's reader asks for the memory and dies.
  change = rng.choice([1, 8, 1000, -1])
  length = rng.choice([max(0, len(data) + change), (1 << 63) - 1, (1 << 64) - 1])
  frames[i] = frame(data, length)


def _lost(frames: list[bytes], i: int, rng: random.Random) -> None:
  """A page of a disk that was never written."""
  data = b"".join(frames[i:])
  start = rng.randrange(len(data))
  size = len(data[start : start + 200])
  frames[i:] = [data[:start] + bytes(size) + data[start + size :]]


FRAMES: dict[str, Callable[[list[bytes], int, random.Random], object]] = {
  "flipped length": lambda f, i, rng: _flip(f, i, 0, 8, rng),
  "flipped checksum of the length": lambda f, i, rng: _flip(f, i, 8, 12, rng),
  "flipped data": lambda f, i, rng: _flip(f, i, 12, len(f[i]) - 4, rng),
  "flipped checksum of the data": lambda f, i, rng: _flip(f, i, -4, 0, rng),
  "swapped": _swap,
  "twice": lambda f, i, rng: f.insert(i, f[i]),
  "removed": lambda f, i, rng: f.pop(i),
  "cut": _cut,
  "another length": _longer,
  "empty record": lambda f, i, rng: f.insert(i, frame(b"")),
  "zeros at the end": lambda f, i, rng: f.append(bytes(rng.randrange(1, 50))),
  "lost page": _lost,
}


def read_frames(content: bytes) -> list[tuple[int, bytes | None]]:
  """Finds what is whole; a damaged frame, or bytes that are none, count as one record.

  Args:
    content: of a file, decompressed.
  Returns:
    Where each starts, and its data; None where it is damaged.
  """
  found: list[tuple[int, bytes | None]] = []
  position = 0
  while position < len(content):
    length = _length_at(content, position)
    if length is None or position + 16 + length > len(content):
      found.append((position, None))
      if length is not None:
        break  # It was longer than what is left.
      position += 1
      while position < len(content) and not _starts_frame(content, position):
        position += 1
      continue
    data = content[position + 12 : position + 12 + length]
    (want,) = struct.unpack_from("<I", content, position + 12 + length)
    found.append((position, data if checksum(data) == want else None))
    position += 16 + length
  return found


def _length_at(content: bytes, position: int) -> int | None:
  if position + 12 > len(content):
    return None
  length, want = struct.unpack_from("<QI", content, position)
  return length if checksum(content[position : position + 8]) == want else None


def _starts_frame(content: bytes, position: int) -> bool:
  length = _length_at(content, position)
  return length is not None and position + 16 + length <= len(content)


def decompress(content: bytes, suffix: str) -> tuple[bytes, bool]:
  """Decompresses what can be; also says whether all is as it should be."""
  if not suffix or not content:
    return content, True
  inflater = zlib.decompressobj(zlib.MAX_WBITS | (16 if suffix == ".gz" else 0))
  data = bytearray()
  try:
    for place in range(len(content)):
      data += inflater.decompress(content[place : place + 1])
  except zlib.error:
    return bytes(data), False
  return bytes(data), inflater.eof and not inflater.unused_data
