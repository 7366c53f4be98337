"""Images of another bit depth than the dtype: refused, where decoding would rescale."""

from __future__ import annotations

import pathlib
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec
PIXELS = np.arange(4 * 6 * 3).reshape(4, 6, 3)
PNG = {
  8: encode_image(PIXELS.astype(np.uint8), "png"),
  16: encode_image((300 * PIXELS).astype(np.uint16), "png"),
}
JPEG = encode_image(PIXELS.astype(np.uint8), "jpeg")


def one_bit_png() -> bytes:
  """A gray PNG of 1 bit per channel, 8 x 2 pixels: a black row and a white one."""
  rows = zlib.compress(b"\x00\x00\x00\xff")
  header = struct.pack(">IIBBBBB", 8, 2, 1, 0, 0, 0, 0)
  chunks = [(b"IHDR", header), (b"IDAT", rows), (b"IEND", b"")]
  return b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(data))
    + kind
    + data
    + struct.pack(">I", zlib.crc32(kind + data))
    for kind, data in chunks
  )


def spec_of(dtype: tf.DType, **fields: Any) -> Spec:
  return Spec((4, 6, 3), dtype, "image", data_format="png", **fields)


UINT8 = "expected an image of 8 bits per channel for uint8, got a PNG image of 16 bits"
UINT16 = r"expected an image of 16 bits per channel \(PNG\) for uint16, got one of 8"
REFUSED = {
  "16 bits as uint8": (tf.uint8, PNG[16], UINT8),
  "8 bits as uint16": (tf.uint16, PNG[8], UINT16),
  "jpeg as uint16": (tf.uint16, JPEG, UINT16),
  "no image as uint16": (tf.uint16, b"x", UINT16),
}


@pytest.mark.parametrize("layout", ["single", "batch", "sequence"])
@pytest.mark.parametrize("case", REFUSED)
def test_another_bit_depth_fails_with_the_path(case: str, layout: str) -> None:
  dtype, bad, message = REFUSED[case]
  good = PNG[8 * dtype.size]
  encoded = {
    "single": tf.constant(bad),
    "batch": tf.constant([good, b"", bad]),
    "sequence": tf.constant([[good, good], [bad, b""]]),
  }[layout]
  decode = tf.function(lambda x: records.decode_images(x, spec_of(dtype), "state/im"))
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=f"parse: state/im: {message}"
  ):
    decode(encoded)


@pytest.mark.parametrize("bits", [8, 16])
def test_the_declared_bit_depth_is_read_exactly(bits: int) -> None:
  dtype = tf.uint8 if bits == 8 else tf.uint16
  encoded = tf.constant([PNG[bits], b""])
  got = records.decode_images(encoded, spec_of(dtype), "image").numpy()
  np.testing.assert_array_equal(got[0], PIXELS * (1 if bits == 8 else 300))
  assert not got[1].any()


def test_fewer_bits_than_8_are_an_8_bit_image() -> None:
  spec = Spec((2, 8, 1), tf.uint8, "image", data_format="png")
  got = records.decode_images(tf.constant(one_bit_png()), spec, "image").numpy()
  assert got[..., 0].tolist() == [[0] * 8, [255] * 8]


@pytest.mark.parametrize("length", range(0, 26, 5))
def test_bytes_that_end_within_the_header_get_to_the_decoder(length: int) -> None:
  encoded = tf.constant(b"\x89PNG\r\n\x1a\n" + b"\x10" * length)
  message = "bits per channel" if length > 16 else "(?i)png|image"
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    records.decode_images(encoded, spec_of(tf.uint8), "image")


NAMED = {
  "16 bits as uint8": (
    tf.uint8,
    PNG[16],
    "8 bits per channel for uint8, got a png image of 16 bits per channel. "
    "Declare uint16.",
  ),
  "8 bits as uint16": (
    tf.uint16,
    PNG[8],
    "16 bits per channel for uint16, got a png image of 8 bits per channel. "
    "Declare uint8.",
  ),
  "jpeg as uint16": (
    tf.uint16,
    JPEG,
    "16 bits per channel for uint16, got a jpeg image of 8 bits",
  ),
}


@pytest.mark.parametrize("case", NAMED)
def test_the_diagnosis_names_both_depths(tmp_path: pathlib.Path, case: str) -> None:
  dtype, encoded, message = NAMED[case]
  path = tmp_path / "a.tfrecord"
  raw = {"image": Spec((), tf.string, "image")}
  records.write_records(path, raw, [{"image": PNG[8 * dtype.size]}, {"image": encoded}])
  spec = {"image": spec_of(dtype)}
  dataset = records.serialized_to_parsed(records.record_dataset(path), spec)
  want = r"record 1 of .*image \(feature 'image'\): expected an image of "
  with (
    pytest.raises(errors.RecordError, match=want + re.escape(message)),
    records.explain_failures(path, spec),
  ):
    list(dataset)
