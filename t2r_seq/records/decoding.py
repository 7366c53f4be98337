"""`ImageDecoding`: how encoded images become pixels, and which part of them."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs

DCT_METHODS = ("", "INTEGER_FAST", "INTEGER_ACCURATE")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ImageDecoding:
  """How encoded images become pixels; the default is as `tf.io.decode_image` has it.

  The options are those of `tf.io.decode_jpeg`, for specs whose data_format is jpeg.
  Images under these may be PNG, too; other formats need the default.

  Of a cropped image only what lies in the window is decoded, if it is a JPEG; the
  pixels are those of decoding and then cropping. Specs have the size of the window.

  Attributes:
    fancy_upscaling: smooth interpolation of color where JPEG has less of it.
    dct_method: 'INTEGER_FAST', 'INTEGER_ACCURATE', or '' for TensorFlow's choice.
    crops: windows (y, x, height, width) in pixels, by the name of an image in records,
      or the path of a store's column. Fixed: each image is decoded once, for all
      windows that show it. Augment in a preprocessor.
  """

  fancy_upscaling: bool = True
  dct_method: str = ""
  crops: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    found = []
    if self.dct_method not in DCT_METHODS:
      want = f"one of {errors.listing(map(repr, DCT_METHODS))}"
      near = errors.nearest(str(self.dct_method), DCT_METHODS[1:]).strip()
      found.append(errors.Mismatch("dct_method", want, repr(self.dct_method), near))
    if not isinstance(self.fancy_upscaling, (bool, np.bool_)):
      got = repr(self.fancy_upscaling)
      found.append(errors.Mismatch("fancy_upscaling", "True or False", got))
    is_map = isinstance(self.crops, Mapping)
    if not is_map:
      want = "a map of names to windows (y, x, height, width)"
      found.append(errors.Mismatch("crops", want, repr(self.crops)))
    for name, crop in self.crops.items() if is_map else ():
      if not _is_window(crop):
        want = "integers (y, x, height, width), from 0 and of at least 1 pixel"
        found.append(errors.Mismatch(f"crops: {name}", want, repr(crop)))
    if found:
      raise errors.mismatch_error("ImageDecoding", found)

  def crop(self, path: str, spec: tf.TensorSpec) -> tuple[int, int, int, int] | None:
    """Returns the window of an image, found by its path or its spec's name; or None."""
    for name in (path, spec.name):
      if name in self.crops:
        y, x, height, width = map(int, self.crops[name])
        return y, x, height, width
    return None

  def image_shape(self, path: str, spec: tf.TensorSpec) -> tf.TensorShape:
    """Returns the shape of what is decoded, [h, w, c]: the window's, or the spec's."""
    crop = self.crop(path, spec)
    if crop is None:
      return spec.shape[-3:]
    return tf.TensorShape([*crop[2:], spec.shape[-1]])

  def crop_specs(
    self, operation: str, flat: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Gives the specs of whole images the sizes of their windows.

    Args:
      operation: starts the message.
      flat: specs by path.
    Returns:
      The same, with other shapes where there is a window.
    Raises:
      SpecError: a window is of no image among them.
    """
    images = {p: s for p, s in flat.items() if specs.is_encoded_image_spec(s)}
    known = {name for path, spec in images.items() for name in (path, spec.name)}
    names = sorted(name for name in known if name)
    found = [
      errors.Mismatch(
        f"crops: {name}",
        f"an encoded image: {errors.listing(names)}",
        "nothing of that name",
        errors.nearest(name, names).strip(),
      )
      for name in self.crops
      if name not in known
    ]
    if found:
      raise errors.mismatch_error(operation, found)
    cropped = flat.copy()
    for path, spec in images.items():
      shape = spec.shape[:-3].concatenate(self.image_shape(path, spec))
      cropped[path] = specs.ExtendedTensorSpec.from_spec(spec, shape=shape)
    return cropped

  def check(self, operation: str, flat: specs.TensorSpecStruct) -> None:
    """Checks that specs have the sizes of their windows.

    Raises:
      SpecError: they do not, or a window is of no image among them.
    """
    cropped = self.crop_specs(operation, flat) if self.crops else flat
    found = [
      errors.Mismatch(
        path,
        f"{errors.describe(cropped[path])}, the size of its crop",
        errors.describe(spec),
      )
      for path, spec in flat.items()
      if spec.shape != cropped[path].shape
    ]
    if found:
      raise errors.mismatch_error(operation, found)

  def decode(self, encoded: tf.Tensor, spec: tf.TensorSpec, path: str) -> tf.Tensor:
    """Decodes one image.

    Args:
      encoded: string scalar.
      spec: an image spec [..., h, w, c].
      path: where the spec is.
    Returns:
      [height, width, channels]: its window, or the image, whatever its size.
    """
    crop = self.crop(path, spec)
    if _is_jpeg(spec) and crop is not None:
      return self._decode_window(encoded, crop, spec.shape[-1])
    if _is_jpeg(spec) and (not self.fancy_upscaling or self.dct_method):
      image = tf.io.decode_jpeg(
        encoded,
        spec.shape[-1],
        fancy_upscaling=bool(self.fancy_upscaling),
        dct_method=self.dct_method,
      )
    else:
      image = _decode_any(encoded, spec)
    if crop is None:
      return image
    y, x, height, width = crop
    return image[y : y + height, x : x + width]

  def black(self, spec: tf.TensorSpec, path: str) -> tf.Tensor | None:
    """Returns an encoded image of zeros that the window fits in; None without one."""
    crop = self.crop(path, spec)
    if crop is None:
      return None
    y, x, height, width = crop
    zeros = tf.zeros([y + height, x + width, 1], spec.dtype)
    return tf.io.encode_jpeg(zeros) if _is_jpeg(spec) else tf.io.encode_png(zeros)

  def _decode_window(
    self, encoded: tf.Tensor, crop: tuple[int, int, int, int], channels: int
  ) -> tf.Tensor:
    y, x, height, width = crop
    left, end = x, tf.constant(x + width)
    if self.fancy_upscaling:
      # A column is interpolated with its neighbors; without them the outermost differ.
      left = max(x - 1, 0)
      end = tf.minimum(end + 1, tf.io.extract_jpeg_shape(encoded)[1])
    image = tf.io.decode_and_crop_jpeg(
      encoded,
      tf.stack([y, left, height, end - left]),
      channels,
      fancy_upscaling=bool(self.fancy_upscaling),
      dct_method=self.dct_method,
    )
    return image[:, x - left : x - left + width]


DecodeImages = bool | ImageDecoding
"""Whether encoded images are decoded, or how."""


def image_decoding(decode_images: DecodeImages) -> ImageDecoding:
  """Returns how images are decoded, if they are.

  Raises:
    SpecError: it is neither a bool nor an `ImageDecoding`.
  """
  if isinstance(decode_images, ImageDecoding):
    return decode_images
  if isinstance(decode_images, (bool, np.bool_)):
    return ImageDecoding()
  raise errors.SpecError(
    f"decode_images: expected True, False or a records.ImageDecoding, got "
    f"{decode_images!r}."
  )


def _is_jpeg(spec: tf.TensorSpec) -> bool:
  return (spec.data_format or "").lower() == "jpeg"


def _decode_any(encoded: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  channels = spec.shape[-1]
  if channels == 1 and (spec.data_format or "").lower() == "bmp":
    channels = 0  # As stored: the op converts no BMP to gray, but reads gray ones.
  return tf.io.decode_image(
    encoded, channels=channels, dtype=spec.dtype, expand_animations=False
  )


def _is_window(crop: Any) -> bool:
  if not isinstance(crop, (Sequence, np.ndarray)) or len(crop) != 4:
    return False
  if not all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in crop):
    return False
  return min(crop) >= 0 and min(crop[2:]) >= 1
