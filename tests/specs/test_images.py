"""Headers of images of every format, whole and cut."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.specs import image_headers, validation
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


def encode(height: int, width: int, image_format: str = "jpeg", bits: int = 8) -> bytes:
  image = np.zeros((height, width, 3), f"uint{bits}")
  return encode_image(image, image_format)


GOOD = encode(4, 6)
DEEP = encode(4, 6, "png", 16)

# name: (the dtype, the images, the number of the misfit, the error)
MISFITS = {
  "no image": (
    *("uint8", [GOOD, b"garbage"], 1),
    "x: expected an image of (4, 6, 3), got 7 bytes that are not an image.",
  ),
  "another size": (
    *("uint8", [GOOD, GOOD, encode(8, 9), b""], 2),
    "x: expected an image of (4, 6, 3), got 8x9 JPEG.",
  ),
  "sides swapped": (
    *("uint8", [encode(6, 4, "png")], 0),
    "x: expected an image of (4, 6, 3), got 6x4 PNG.",
  ),
  "empty": (
    *("uint8", [b"", GOOD], 0),
    "x: expected an image of (4, 6, 3), got an empty byte string. Only an optional "
    "spec has images that are absent.",
  ),
  "deep": (
    *("uint8", [DEEP], 0),
    "x: expected an image of (4, 6, 3) with 8 bits per channel, got 4x6 PNG with 16 "
    "bits per channel. Declare uint16.",
  ),
  "not deep": (
    *("uint16", [DEEP, GOOD], 1),
    "x: expected an image of (4, 6, 3) with 16 bits per channel, got 4x6 JPEG with 8 "
    "bits per channel. Declare uint8.",
  ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_misfits(case: str) -> None:
  dtype, images, index, want = MISFITS[case]
  spec = Spec((2, 4, 6, 3), dtype, data_format="png")
  found = validation.find_misfit(images, spec, "x")
  assert found is not None
  assert (found[0], str(found[1])) == (index, want)


FITS = {
  "every format": (3, "uint8", [encode(4, 6, f) for f in ("jpeg", "png")]),
  "converted to gray": (1, "uint8", [GOOD]),
  "deep": (3, "uint16", [DEEP]),
  "absent": (3, "uint8", [b"", GOOD, b""]),
}


@pytest.mark.parametrize("case", FITS)
def test_fits(case: str) -> None:
  channels, dtype, images = FITS[case]
  spec = Spec((4, 6, channels), tf.as_dtype(dtype), data_format="jpeg")
  assert validation.find_misfit(images, spec, "x", allow_empty=True) is None
