"""Reads the headers of encoded images."""

from __future__ import annotations

import struct
from typing import NamedTuple

# Markers of JPEG frames (SOF0 to SOF15) without DHT, JPG and DAC, which lie between.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Offset of the bits per channel in a PNG.
PNG_DEPTH = 24
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 1, 6: 4}


class ImageHeader(NamedTuple):
  """The header of an image.

  Attributes:
    format: 'jpeg', 'png', 'bmp' or 'gif'.
    height: in pixels.
    width: in pixels.
    channels: 1, 3 or 4, after decoding.
    bits: per channel after decoding, 8 or 16.
  """

  format: str
  height: int
  width: int
  channels: int
  bits: int = 8


def read_image_header(data: bytes) -> ImageHeader | None:
  """Returns the header of an encoded image, or None for other bytes."""
  readers = (
    (PNG_SIGNATURE, _read_png),
    (b"\xff\xd8\xff", _read_jpeg),
    (b"GIF8", _read_gif),
    (b"BM", _read_bmp),
  )
  for signature, reader in readers:
    if data.startswith(signature):
      try:
        return reader(data)
      except (struct.error, IndexError, KeyError):
        return None
  return None


def _read_png(data: bytes) -> ImageHeader:
  width, height, bits, color_type = struct.unpack_from(">IIBB", data, 16)
  return ImageHeader("png", height, width, _PNG_CHANNELS[color_type], max(8, bits))


def _read_gif(data: bytes) -> ImageHeader:
  width, height = struct.unpack_from("<HH", data, 6)
  return ImageHeader("gif", height, width, 3)


def _read_bmp(data: bytes) -> ImageHeader:
  width, height, _, bits = struct.unpack_from("<iiHH", data, 18)
  return ImageHeader("bmp", abs(height), width, {8: 1, 24: 3, 32: 4}[bits])


def _read_jpeg(data: bytes) -> ImageHeader:
  position = 2
  while True:
    while data[position + 1] == 0xFF:
      position += 1  # Any number of fill bytes may precede a marker.
    marker, size = struct.unpack_from(">HH", data, position)
    if marker & 0xFF in _JPEG_FRAMES:
      height, width, channels = struct.unpack_from(">HHB", data, position + 5)
      return ImageHeader("jpeg", height, width, 1 if channels == 1 else 3)
    position += 2 + size
