"""Options of decoding, crops of the whole, and images of another bit depth."""

from __future__ import annotations

import io
import itertools
import pathlib
import re
import struct
import zlib
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.records import images
from t2r_seq.records.check import find_bad_record
from t2r_seq.records.images import decode_images
from t2r_seq.specs.packing import encode_image

Spec = specs.ExtendedTensorSpec
SHAPE = (45, 61, 3)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (9, 12, 3)).astype(np.uint8)
PIXELS = np.asarray(PIL.Image.fromarray(PIXELS).resize(SHAPE[1::-1]))


def jpeg(subsampling=2, pixels=PIXELS):
  """Encodes a JPEG; subsampling 2 is 4:2:0, where color is interpolated."""
  data = io.BytesIO()
  PIL.Image.fromarray(pixels).save(data, "jpeg", quality=80, subsampling=subsampling)
  return data.getvalue()


def spec_of(shape, data_format="jpeg"):
  return Spec(shape, tf.uint8, "image", data_format=data_format)


def decode(data, how, shape=SHAPE, data_format="jpeg"):
  encoded = tf.constant(data)
  return decode_images(encoded, spec_of(shape, data_format), "x", how).numpy()


@pytest.mark.parametrize("fancy_upscaling", [True, False])
@pytest.mark.parametrize("dct_method", ["", "INTEGER_FAST", "INTEGER_ACCURATE"])
def test_pixels_are_those_of_decode_jpeg(fancy_upscaling, dct_method):
  how = records.ImageDecoding(fancy_upscaling, dct_method)
  want = tf.io.decode_jpeg(
    jpeg(), 3, fancy_upscaling=fancy_upscaling, dct_method=dct_method
  )
  got = decode([jpeg(), b""], how)
  np.testing.assert_array_equal(got, [want, np.zeros(SHAPE)])


def test_options_change_the_pixels():
  default = decode(jpeg(), True)
  np.testing.assert_array_equal(default, decode(jpeg(), records.ImageDecoding()))
  for changed in ({"fancy_upscaling": False}, {"dct_method": "INTEGER_ACCURATE"}):
    assert (decode(jpeg(), records.ImageDecoding(**changed)) != default).any(), changed


def test_options_leave_other_formats_alone():
  how = records.ImageDecoding(False, "INTEGER_ACCURATE")
  data = encode_image(PIXELS, "png")
  np.testing.assert_array_equal(decode(data, how, data_format="png"), PIXELS)
  # What the spec calls JPEG may be a PNG.
  np.testing.assert_array_equal(decode(data, how), PIXELS)


# At each border, at none, all of it, one pixel; y, x, height, width.
CROPS = [
  (0, 0, 45, 61),
  (0, 0, 20, 30),
  (25, 31, 20, 30),
  (7, 9, 17, 23),
  (3, 60, 1, 1),
]


@pytest.mark.parametrize(
  ("crop", "fancy_upscaling"), [*((crop, True) for crop in CROPS), (CROPS[3], False)]
)
def test_crop_has_the_pixels_of_the_whole(crop, fancy_upscaling):
  y, x, height, width = crop
  for subsampling, dct_method in itertools.product((0, 1, 2), ("", "INTEGER_ACCURATE")):
    how = records.ImageDecoding(fancy_upscaling, dct_method)
    whole = decode(jpeg(subsampling), how)
    how = records.ImageDecoding(fancy_upscaling, dct_method, {"image": crop})
    got = decode([jpeg(subsampling), b""], how, (height, width, 3))
    np.testing.assert_array_equal(got[0], whole[y : y + height, x : x + width])
    assert got.shape == (2, height, width, 3) and not got[1].any()


def test_other_formats_are_cropped_after_decoding():
  how = records.ImageDecoding(crops={"image": (7, 9, 17, 23)})
  data = [encode_image(PIXELS, "png"), b""]
  got = decode(data, how, (17, 23, 3), "png")
  np.testing.assert_array_equal(got, [PIXELS[7:24, 9:32], np.zeros((17, 23, 3))])


def test_crop_of_deep_and_of_gray_images():
  deep = PIXELS[..., :1].astype(np.uint16) * 200
  spec = Spec((2, 3, 1), tf.uint16, "image", data_format="png")
  how = records.ImageDecoding(crops={"image": (40, 50, 2, 3)})
  data = tf.constant([encode_image(deep, "png"), b""])
  got = decode_images(data, spec, "x", how).numpy()
  np.testing.assert_array_equal(got, [deep[40:42, 50:53], np.zeros((2, 3, 1))])
  gray = decode(jpeg(pixels=PIXELS[..., 0]), True, (45, 61, 1))
  got = decode(jpeg(pixels=PIXELS[..., 0]), how, (2, 3, 1))
  np.testing.assert_array_equal(got, gray[40:42, 50:53])


@pytest.mark.parametrize("data_format", ["jpeg", "png"])
def test_images_that_differ_in_size_are_resized(data_format):
  small = np.repeat(np.repeat(PIXELS[:1, :1], 5, 0), 7, 1)
  data = [encode_image(image, data_format) for image in (PIXELS, small)]
  how = records.ImageDecoding(resized=["image"])
  got = decode([*data, b""], how, (20, 30, 3), data_format)
  want = tf.image.resize(tf.io.decode_image(data[0]), (20, 30), antialias=True)
  np.testing.assert_array_equal(got[0], np.round(want))
  assert np.ptp(got[1], axis=(0, 1)).max() <= 1 and not got[2].any()
  same = decode(data[:1], how, SHAPE, data_format)  # What fits stays as it is.
  np.testing.assert_array_equal(same[0], tf.io.decode_image(data[0]))


def test_parser_decodes_with_options():
  path_spec = {"camera": spec_of((17, 23, 3))}
  how = records.ImageDecoding(False, "INTEGER_FAST", {"image": (7, 9, 17, 23)})
  parse_fn = records.create_parse_tf_example_fn(path_spec, decode_images=how)
  record = records.encode_example({"camera": spec_of(SHAPE)}, {"camera": jpeg()})
  want = tf.io.decode_jpeg(
    jpeg(), fancy_upscaling=False, dct_method="INTEGER_FAST"
  ).numpy()[7:24, 9:32]
  for given in (record, [record, record]):
    np.testing.assert_array_equal(
      tf.reshape(parse_fn(tf.constant(given))["camera"], [-1, 17, 23, 3])[-1], want
    )


ERRORS = {
  "method": (
    {"dct_method": "INTEGER_FASTER"},
    "ImageDecoding: dct_method: expected one of ['', 'INTEGER_ACCURATE', "
    "'INTEGER_FAST'], got 'INTEGER_FASTER'. Did you mean 'INTEGER_FAST'?",
  ),
  "three numbers": (
    {"crops": {"image": (1, 2, 3)}},
    "ImageDecoding: crops: image: expected integers (y, x, height, width), from 0 and "
    "of at least 1 pixel, got (1, 2, 3).",
  ),
  "nothing": ({"crops": {"image": (1, 2, 3, 0)}}, "got (1, 2, 3, 0)."),
  "fraction": ({"crops": {"image": (1, 2, 3, 0.5)}}, "got (1, 2, 3, 0.5)."),
  "one number": ({"crops": {"image": 5}}, "of at least 1 pixel, got 5."),
  "no map": (
    {"crops": "image"},
    "ImageDecoding: crops: expected a map of names to windows (y, x, height, width), "
    "got 'image'.",
  ),
  "resized and cropped": (
    {"crops": {"image": (1, 2, 3, 4)}, "resized": ["image"]},
    "ImageDecoding: resized: expected a list of names of images that are not cropped, "
    "got ['image'].",
  ),
  "no flag": (
    {"fancy_upscaling": "no"},
    "ImageDecoding: fancy_upscaling: expected True or False, got 'no'.",
  ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_options_are_checked(name):
  options, want = ERRORS[name]
  with pytest.raises(errors.SpecError, match=re.escape(want)):
    records.ImageDecoding(**options)


def test_numbers_of_numpy_are_fine():
  crop = np.array([1, 2, 3, 4])
  how = records.ImageDecoding(fancy_upscaling=np.bool_(False), crops={"image": crop})
  assert how.crop("camera", spec_of((3, 4, 3))) == (1, 2, 3, 4)
  path_spec = {"camera": spec_of((3, 4, 3))}
  parse_fn = records.create_parse_tf_example_fn(path_spec, decode_images=how)
  encoded = records.encode_example({"camera": spec_of(SHAPE)}, {"camera": jpeg()})
  assert parse_fn(encoded)["camera"].shape == (3, 4, 3)


@pytest.mark.parametrize("how", ["fast", None, 1])
def test_image_decoding_rejects_invalid_options(how):
  want = "decode_images: expected True, False or a records.ImageDecoding, got "
  with pytest.raises(errors.SpecError, match=f"{want}{how!r}"):
    images.image_decoding(how)
  assert images.image_decoding(np.bool_(True)) == records.ImageDecoding()


def test_crop_fits_its_spec():
  path_spec = {"camera": spec_of((17, 23, 3)), "state": Spec((2,), tf.float32, "state")}
  cases = {
    "parse: camera: expected (16, 23, 3) uint8, the size of its crop, got "
    "(17, 23, 3) uint8.": {"image": (0, 0, 16, 23)},
    "parse: crops: imagee: expected an encoded image: [camera, image], got nothing of "
    "that name. Did you mean 'image'?": {"imagee": (0, 0, 17, 23)},
    "parse: crops: state: expected an encoded image: [camera, image], got": {
      "state": (0, 0, 1, 1)
    },
  }
  for want, crops in cases.items():
    how = records.ImageDecoding(crops=crops)
    with pytest.raises(errors.SpecError, match=re.escape(want)):
      records.create_parse_tf_example_fn(path_spec, decode_images=how)


def test_record_that_a_crop_does_not_fit_is_explained(tmp_path):
  path = str(tmp_path / "a.tfrecord")
  records.write_records(path, {"camera": spec_of(SHAPE)}, [{"camera": jpeg()}] * 2)
  for crop, data_format in (((30, 0, 17, 23), "jpeg"), ((0, 40, 17, 23), "png")):
    how = records.ImageDecoding(crops={"image": crop})
    wanted = {"camera": spec_of((17, 23, 3), data_format)}
    parse_fn = records.create_parse_tf_example_fn(wanted, decode_images=how)
    want = (
      "record 0 of .*camera .* expected an image that its crop "
      rf"{re.escape(str(crop))} \(y, x, height, width\) lies in, got one of 45x61"
    )
    with (
      pytest.raises(errors.RecordError, match=want),
      records.explain_failures(path, wanted, decode_images=how),
    ):
      list(tf.data.TFRecordDataset(path).map(parse_fn))
    assert "image of size" in str(find_bad_record(path, wanted))
  how = records.ImageDecoding(crops={"image": (1, 1, 17, 23)})
  good = {"camera": spec_of((17, 23, 3))}
  assert find_bad_record(path, good, decode_images=how) is None


SMALL = np.arange(4 * 6 * 3).reshape(4, 6, 3)
PNGS = {
  8: encode_image(SMALL.astype(np.uint8), "png"),
  16: encode_image((300 * SMALL).astype(np.uint16), "png"),
}
SMALL_JPEG = encode_image(SMALL.astype(np.uint8), "jpeg")


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


def deep_spec(dtype: tf.DType, **fields: Any) -> Spec:
  return Spec((4, 6, 3), dtype, "image", data_format="png", **fields)


UINT8 = "expected an image of 8 bits per channel for uint8, got a PNG image of 16 bits"
UINT16 = r"expected an image of 16 bits per channel \(PNG\) for uint16, got 8 bits"
DEPTHS = {
  "16 bits as uint8": (tf.uint8, PNGS[16], UINT8),
  "8 bits as uint16": (tf.uint16, PNGS[8], UINT16),
  "jpeg as uint16": (tf.uint16, SMALL_JPEG, UINT16),
  "no image as uint16": (tf.uint16, b"x", UINT16),
}


@pytest.mark.parametrize("layout", ["single", "batch", "sequence"])
@pytest.mark.parametrize("case", DEPTHS)
def test_another_bit_depth_fails_with_the_path(case: str, layout: str) -> None:
  dtype, bad, message = DEPTHS[case]
  good = PNGS[8 * dtype.size]
  encoded = {
    "single": tf.constant(bad),
    "batch": tf.constant([good, b"", bad]),
    "sequence": tf.constant([[good, good], [bad, b""]]),
  }[layout]
  decode = tf.function(lambda x: decode_images(x, deep_spec(dtype), "state/im"))
  with pytest.raises(
    tf.errors.InvalidArgumentError, match=f"parse: state/im: {message}"
  ):
    decode(encoded)


@pytest.mark.parametrize("bits", [8, 16])
def test_declared_bit_depth_is_read_exactly(bits: int) -> None:
  dtype = tf.uint8 if bits == 8 else tf.uint16
  encoded = tf.constant([PNGS[bits], b""])
  got = decode_images(encoded, deep_spec(dtype), "image").numpy()
  np.testing.assert_array_equal(got[0], SMALL * (1 if bits == 8 else 300))
  assert not got[1].any()


def test_fewer_bits_than_8_are_an_8_bit_image() -> None:
  spec = Spec((2, 8, 1), tf.uint8, "image", data_format="png")
  got = decode_images(tf.constant(one_bit_png()), spec, "image").numpy()
  assert got[..., 0].tolist() == [[0] * 8, [255] * 8]


@pytest.mark.parametrize("length", range(0, 26, 5))
def test_truncated_header_is_reported_by_the_decoder(length: int) -> None:
  encoded = tf.constant(b"\x89PNG\r\n\x1a\n" + b"\x10" * length)
  message = "bits per channel" if length > 16 else "(?i)png|image"
  with pytest.raises(tf.errors.InvalidArgumentError, match=message):
    decode_images(encoded, deep_spec(tf.uint8), "image")


NAMED_DEPTHS = {
  "16 bits as uint8": (
    tf.uint8,
    PNGS[16],
    "8 bits per channel for uint8, got a png image of 16 bits per channel. "
    "Declare uint16.",
  ),
  "8 bits as uint16": (
    tf.uint16,
    PNGS[8],
    "16 bits per channel for uint16, got a png image of 8 bits per channel. "
    "Declare uint8.",
  ),
  "jpeg as uint16": (
    tf.uint16,
    SMALL_JPEG,
    "16 bits per channel for uint16, got a jpeg image of 8 bits",
  ),
}


@pytest.mark.parametrize("case", NAMED_DEPTHS)
def test_diagnosis_names_both_depths(tmp_path: pathlib.Path, case: str) -> None:
  dtype, encoded, message = NAMED_DEPTHS[case]
  path = tmp_path / "a.tfrecord"
  raw = {"image": Spec((), tf.string, "image")}
  records.write_records(
    path, raw, [{"image": PNGS[8 * dtype.size]}, {"image": encoded}]
  )
  spec = {"image": deep_spec(dtype)}
  dataset = records.serialized_to_parsed(records.record_dataset(path), spec)
  want = r"record 1 of .*image \(feature 'image'\): expected an image of "
  with (
    pytest.raises(errors.RecordError, match=want + re.escape(message)),
    records.explain_failures(path, spec),
  ):
    list(dataset)
