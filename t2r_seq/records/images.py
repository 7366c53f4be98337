"""Encoded images: bytes to pixels in graph ops, and pixels to bytes for the writer."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.records.decoding import DecodeImages, image_decoding
from t2r_seq.specs import image_headers

_PNG_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
_BMP_HEADER_SIZE = 14 + 40


def decode_images(
  encoded: tf.Tensor,
  spec: specs.ExtendedTensorSpec,
  path: str,
  how: DecodeImages = True,
) -> tf.Tensor:
  """Decodes encoded images of any of the formats; the content is what counts.

  Empty byte strings become black. By default all formats go through
  `tf.io.decode_image`, which costs the same as `decode_jpeg` and gives the same pixels.
  Of an animated GIF it is the first frame.

  Args:
    encoded: [...] strings.
    spec: an image spec [..., h, w, c] of dtype uint8 or uint16.
    path: where the spec is, for the error at run time.
    how: the way of decoding, an `ImageDecoding`.
  Returns:
    [..., h, w, c] of the spec's dtype; of cropped images the window's h and w. An image
    of another size or bit depth fails at run time.
  """
  image_shape = image_decoding(how).image_shape(path, spec)
  images = decode_to_list(tf.reshape(encoded, [-1]), spec, path, how).stack()
  full_shape = tf.concat([tf.shape(encoded), image_shape.as_list()], 0)
  return tf.ensure_shape(
    tf.reshape(images, full_shape), encoded.shape.concatenate(image_shape)
  )


def decode_to_list(
  encoded: tf.Tensor | windows.StringRows,
  spec: specs.ExtendedTensorSpec,
  path: str,
  how: DecodeImages = True,
) -> windows.RowList:
  """Decodes encoded images as `decode_images` does, to images that are kept apart.

  Args:
    encoded: N strings, there or to be made.
    spec: an image spec [..., h, w, c] of dtype uint8 or uint16.
    path: where the spec is, for the error at run time.
    how: the way of decoding, an `ImageDecoding`.
  Returns:
    N images [h, w, c] of the spec's dtype; of cropped images the windows.
  """
  decoding = image_decoding(how)
  image_shape = decoding.image_shape(path, spec)
  strings = (
    encoded
    if isinstance(encoded, windows.StringRows)
    else windows.StringRows.of(encoded)
  )
  black = decoding.black(spec, path)
  if black is None:
    black = tf.constant(black_png(image_shape, spec.dtype))

  def check_sizes(sizes: tf.Tensor) -> tf.Operation | None:
    expected = image_shape.as_list()
    fits = tf.reduce_all(sizes == expected, axis=-1)
    message = (
      f"parse: {path}: expected an image of size {tuple(expected)}, got an image"
    )
    # One that is wrong; nothing where all are right.
    found = tf.reshape(tf.boolean_mask(sizes, ~fits)[:1], [-1])
    # The raw op: tf.debugging.Assert builds a tf.cond around it.
    return tf.raw_ops.Assert(
      condition=tf.reduce_all(fits), data=[f"{message} of size", found], summarize=8
    )

  def decode_all(has_empty: bool) -> tf.Tensor:
    def decode(*inputs: tf.Tensor) -> tf.Tensor:
      string = strings.read(*inputs)
      if has_empty:
        string = tf.where(tf.equal(string, ""), black, string)
      return decoding.decode(string, spec, path)

    # Checked one by one, the images cost a seventh more.
    return windows.RowList.compute(
      decode, strings.inputs, image_shape, spec.dtype, check_shapes=check_sizes
    ).handle

  # One look at the headers of all costs nothing beside the decoding.
  heads = strings.heads(image_headers.PNG_DEPTH + 1)
  is_empty = tf.reduce_all(heads == 0, axis=-1)
  with tf.control_dependencies([_check_depth(heads, is_empty, spec.dtype, path)]):
    any_empty = tf.reduce_any(is_empty)
  # To choose between two strings copies one, so that is done where any is empty.
  images = tf.cond(any_empty, lambda: decode_all(True), lambda: decode_all(False))
  return windows.RowList(images, image_shape, spec.dtype)


def _check_depth(
  heads: tf.Tensor, is_empty: tf.Tensor, dtype: tf.DType, path: str
) -> tf.Operation:
  """Refuses what the decoder would rescale by 257: 16 bits to 8, or the reverse."""
  is_deep = dtype == tf.uint16
  signature = tf.constant(list(image_headers.PNG_SIGNATURE), tf.uint8)
  is_png = tf.reduce_all(heads[..., : signature.shape[0]] == signature, axis=-1)
  is_deep_png = is_png & (heads[..., image_headers.PNG_DEPTH] == 16)
  fits = tf.reduce_all(is_empty | tf.equal(is_deep_png, is_deep))
  expected, found = "8 bits per channel", "a PNG image of 16 bits per channel"
  if is_deep:
    expected, found = "16 bits per channel (PNG)", "one of 8 bits, or none at all"
  message = f"parse: {path}: expected an image of {expected} for {dtype.name}, got"
  return tf.raw_ops.Assert(condition=fits, data=[f"{message} {found}."], summarize=8)


def black_png(image_shape: tf.TensorShape, dtype: tf.DType) -> bytes:
  """Encodes an image of zeros as PNG, without TensorFlow ops.

  Args:
    image_shape: [h, w, c] with 1, 3 or 4 channels.
    dtype: uint8 or uint16.
  Returns:
    The file's bytes.
  """
  height, width, channels = image_shape
  header = struct.pack(
    ">IIBBBBB", width, height, 8 * dtype.size, _PNG_COLOR_TYPES[channels], 0, 0, 0
  )
  rows = bytes(height * (1 + width * channels * dtype.size))
  chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
  return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(*chunk) for chunk in chunks)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
  checksum = zlib.crc32(kind + data)
  return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def encode_image(image: np.ndarray, image_format: str, jpeg_quality: int = 95) -> bytes:
  """Encodes one image.

  Args:
    image: [h, w, c] uint8, or uint16 for png.
    image_format: 'jpeg', 'png' or 'bmp', in any case.
    jpeg_quality: 1 to 100.
  Returns:
    The file's bytes.
  Raises:
    SpecError: the format can only be read (gif).
  """
  image_format = image_format.lower()
  if image_format == "jpeg":
    return tf.io.encode_jpeg(image, quality=jpeg_quality).numpy()
  if image_format == "png":
    return tf.io.encode_png(image).numpy()
  if image_format == "bmp":
    return _encode_bmp(image)
  raise errors.SpecError(
    f"encode_image: expected data_format jpeg, png or bmp, got {image_format!r}. "
    "Give already encoded bytes instead of pixels."
  )


def _encode_bmp(image: np.ndarray) -> bytes:
  """Encodes BMP: rows from the bottom up, BGR(A), padded to 4 bytes."""
  height, width, channels = image.shape
  order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
  rows = image[::-1, :, order].reshape(height, width * channels)
  rows = np.pad(rows, [(0, 0), (0, -width * channels % 4)])
  gray = np.arange(256, dtype=np.uint8)
  palette = (
    np.stack([gray, gray, gray, 0 * gray], 1).tobytes() if channels == 1 else b""
  )
  offset = _BMP_HEADER_SIZE + len(palette)
  header = struct.pack("<2sIHHI", b"BM", offset + rows.size, 0, 0, offset)
  # 40: size of this header; 1 plane; no compression; 2835 pixels per metre.
  info = struct.pack(
    "<IiiHHIIiiII", 40, width, height, 1, 8 * channels, 0, rows.size, 2835, 2835, 0, 0
  )
  return header + info + palette + rows.tobytes()
