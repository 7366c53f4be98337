"""Encoded images that are not what their spec says."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq.specs import ExtendedTensorSpec, validation
from t2r_seq.specs.packing import encode_image


def encode(height: int, width: int, image_format: str = "jpeg", bits: int = 8) -> bytes:
  image = np.zeros((height, width, 3), f"uint{bits}")
  return encode_image(image, image_format)


GOOD = encode(4, 6)
DEEP = encode(4, 6, "png", 16)

# name: (the dtype, the images, the number of the misfit, the error)
MISFITS = {
  "no image": (
    *("uint8", [GOOD, b"garbage"], 1),
    "x: expected an image of (4, 6, 3), got 7 bytes that are no image.",
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
  spec = ExtendedTensorSpec((2, 4, 6, 3), dtype, data_format="png")
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
  spec = ExtendedTensorSpec((4, 6, channels), tf.as_dtype(dtype), data_format="jpeg")
  assert validation.find_misfit(images, spec, "x", allow_empty=True) is None
