"""Headers of images of every format, whole and cut."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from t2r_seq.specs import image_headers
from t2r_seq.specs.packing import encode_image

HEADERS = {
  "jpeg": (3, np.uint8, "jpeg"),
  "gray jpeg": (1, np.uint8, "jpeg"),
  "png": (3, np.uint8, "png"),
  "gray png": (1, np.uint8, "png"),
  "alpha png": (4, np.uint8, "png"),
  "deep png": (3, np.uint16, "png"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_image_headers(case: str) -> None:
  channels, dtype, image_format = HEADERS[case]
  data = encode_image(np.zeros((5, 7, channels), dtype), image_format)
  bits = 8 * np.dtype(dtype).itemsize
  want = image_headers.ImageHeader(image_format, 5, 7, channels, bits)
  assert image_headers.read_image_header(data) == want
  # Cut anywhere, it is a header, or it is none; it is never an exception.
  assert {image_headers.read_image_header(data[:i]) for i in range(60)} <= {want, None}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_bmp_headers(channels) -> None:
  header = (b"BM", 0, 0, 0, 0, 40, 7, -5, 1, 8 * channels)
  data = struct.pack("<2sIHHIIiiHH", *header) + bytes(60)
  want = image_headers.ImageHeader("bmp", 5, 7, channels)
  assert image_headers.read_image_header(data) == want
  assert image_headers.read_image_header(data[:20]) is None


def test_gif_headers() -> None:
  want = image_headers.ImageHeader("gif", 5, 7, 3)
  assert image_headers.read_image_header(b"GIF89a\7\0\5\0\x80\0\0") == want
  assert image_headers.read_image_header(b"text") is None


def test_fill_bytes_in_a_jpeg() -> None:
  data = encode_image(np.zeros((5, 7, 3), np.uint8), "jpeg")
  want = image_headers.ImageHeader("jpeg", 5, 7, 3)
  frame = data.index(b"\xff\xc0")
  filled = data[:frame] + b"\xff" * 3 + data[frame:]
  assert image_headers.read_image_header(filled) == want
