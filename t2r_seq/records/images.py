"""Images in records: `ImageDecoding`, pixels to bytes and bytes to pixels."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.specs import image_headers
from t2r_seq.windows.rows import RowList

DCT_METHODS = ("", "INTEGER_FAST", "INTEGER_ACCURATE")


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ImageDecoding:
  """Options for decoding images; the defaults are those of `tf.io.decode_image`.

  `fancy_upscaling` and `dct_method` apply to specs whose data_format is jpeg. If one of
  them is set, the images of these specs must be JPEG or PNG; by default, any format.

  Specs of cropped images have the size of the crop. With data_format jpeg, they must be
  JPEG, and only the crop is decoded; its pixels equal those of the whole image.

  Attributes:
    fancy_upscaling: smooth interpolation of subsampled colors.
    dct_method: 'INTEGER_FAST', 'INTEGER_ACCURATE', or '' for TensorFlow's choice.
    crops: (y, x, height, width) in pixels, by the spec's name of an image, or by its
      path. A crop is fixed: each image is decoded once, for all windows that show it.
      For random crops, use a preprocessor.
    resized: names or paths, as in `crops`, of images that are resized to the size of
      their spec, with antialiasing. Then the images of a source may differ in size.
  """

  fancy_upscaling: bool = True
  dct_method: str = ""
  crops: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  resized: Sequence[str] = ()

  def __post_init__(self) -> None:
    mismatches = []
    if self.dct_method not in DCT_METHODS:
      want = f"one of {errors.listing(map(repr, DCT_METHODS))}"
      near = errors.nearest(str(self.dct_method), DCT_METHODS[1:]).strip()
      mismatches.append(
        errors.Mismatch("dct_method", want, repr(self.dct_method), near)
      )
    if not isinstance(self.fancy_upscaling, (bool, np.bool_)):
      got = repr(self.fancy_upscaling)
      mismatches.append(errors.Mismatch("fancy_upscaling", "True or False", got))
    is_map = isinstance(self.crops, Mapping)
    if not is_map:
      want = "a map of names to windows (y, x, height, width)"
      mismatches.append(errors.Mismatch("crops", want, repr(self.crops)))
    for name, crop in self.crops.items() if is_map else ():
      if not _is_window(crop):
        want = "integers (y, x, height, width), from 0 and of at least 1 pixel"
        mismatches.append(errors.Mismatch(f"crops: {name}", want, repr(crop)))
    if isinstance(self.resized, str) or any(
      name in self.crops for name in self.resized
    ):
      want = "a list of names of images that are not cropped"
      mismatches.append(errors.Mismatch("resized", want, repr(self.resized)))
    if mismatches:
      raise errors.mismatch_error("ImageDecoding", mismatches)

  @property
  def changes_size(self) -> bool:
    """Whether some image is cropped or resized."""
    return bool(self.crops or self.resized)

  def to_stage(self) -> dict[str, Any]:
    """Returns it as JSON, with the name of the class as 'stage'."""
    return {
      "stage": type(self).__name__,
      "fancy_upscaling": bool(self.fancy_upscaling),
      "dct_method": self.dct_method,
      "crops": {name: [int(x) for x in crop] for name, crop in self.crops.items()},
      "resized": [*self.resized],
    }

  @classmethod
  def from_stage(cls, stage: Mapping[str, Any]) -> ImageDecoding | None:
    """Inverts `to_stage`; returns None for a stage of another kind."""
    if stage["stage"] != cls.__name__:
      return None
    return cls(**{name: value for name, value in stage.items() if name != "stage"})

  def crop(self, path: str, spec: tf.TensorSpec) -> tuple[int, int, int, int] | None:
    """Returns the crop of an image, by its path or its spec's name; None if whole."""
    for name in (path, spec.name):
      if name in self.crops:
        y, x, height, width = map(int, self.crops[name])
        return y, x, height, width
    return None

  def image_shape(self, path: str, spec: tf.TensorSpec) -> tf.TensorShape:
    """Returns the decoded shape, [h, w, c]: the crop's, or the spec's."""
    crop = self.crop(path, spec)
    if crop is None:
      return spec.shape[-3:]
    return tf.TensorShape([*crop[2:], spec.shape[-1]])

  def crop_specs(
    self, operation: str, flat: specs.TensorSpecStruct
  ) -> specs.TensorSpecStruct:
    """Returns the specs of whole images with the sizes of their crops.

    Args:
      operation: for the error.
      flat: specs by path.
    Raises:
      SpecError: a key of `crops`, or a name in `resized`, is no encoded image.
    """
    images = {p: s for p, s in flat.items() if specs.is_encoded_image_spec(s)}
    image_names = {name for path, spec in images.items() for name in (path, spec.name)}
    names = sorted(name for name in image_names if name)
    mismatches = [
      errors.Mismatch(
        f"{option}: {name}",
        f"an encoded image: {errors.listing(names)}",
        "nothing of that name",
        errors.nearest(name, names).strip(),
      )
      for option, used in (("crops", self.crops), ("resized", self.resized))
      for name in used
      if name not in image_names
    ]
    if mismatches:
      raise errors.mismatch_error(operation, mismatches)
    cropped = flat.copy()
    for path, spec in images.items():
      shape = spec.shape[:-3].concatenate(self.image_shape(path, spec))
      cropped[path] = specs.ExtendedTensorSpec.from_spec(spec, shape=shape)
    return cropped

  def check(self, operation: str, flat: specs.TensorSpecStruct) -> None:
    """Raises SpecError if specs differ in size from their crops, or a name is wrong."""
    cropped = self.crop_specs(operation, flat) if self.changes_size else flat
    mismatches = [
      errors.Mismatch(
        path,
        f"{errors.describe(cropped[path])}, the size of its crop",
        errors.describe(spec),
      )
      for path, spec in flat.items()
      if spec.shape != cropped[path].shape
    ]
    if mismatches:
      raise errors.mismatch_error(operation, mismatches)

  def decode(self, encoded: tf.Tensor, spec: tf.TensorSpec, path: str) -> tf.Tensor:
    """Decodes one image.

    Args:
      encoded: string scalar.
      spec: an image spec [..., h, w, c].
      path: path of the spec.
    Returns:
      [height, width, channels]: the crop; the image, resized to its spec if its name is
      in `resized`; otherwise the image in the size that it has.
    """
    crop = self.crop(path, spec)
    if _format(spec) == "jpeg" and crop is not None:
      return self._decode_window(encoded, crop, spec.shape[-1])
    if _format(spec) == "jpeg" and (not self.fancy_upscaling or self.dct_method):
      image = tf.io.decode_jpeg(
        encoded,
        spec.shape[-1],
        fancy_upscaling=bool(self.fancy_upscaling),
        dct_method=self.dct_method,
      )
    else:
      image = _decode_any(encoded, spec)
    if crop is None:
      is_resized = path in self.resized or spec.name in self.resized
      return _resize(image, spec) if is_resized else image
    y, x, height, width = crop
    return image[y : y + height, x : x + width]

  def black(self, spec: tf.TensorSpec, path: str) -> tf.Tensor:
    """Returns an encoded image of zeros, large enough for the crop if there is one."""
    crop = self.crop(path, spec)
    if crop is None:
      return tf.io.encode_png(tf.zeros(spec.shape[-3:], spec.dtype))
    y, x, height, width = crop
    zeros = tf.zeros([y + height, x + width, 1], spec.dtype)
    is_jpeg = _format(spec) == "jpeg"
    return tf.io.encode_jpeg(zeros) if is_jpeg else tf.io.encode_png(zeros)

  def _decode_window(
    self, encoded: tf.Tensor, crop: tuple[int, int, int, int], channels: int
  ) -> tf.Tensor:
    y, x, height, width = crop
    left, end = x, tf.constant(x + width)
    if self.fancy_upscaling:
      # Columns are interpolated with their neighbors: decode one more on each side.
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
  """Returns the `ImageDecoding` of an option `decode_images`; SpecError if invalid."""
  if isinstance(decode_images, ImageDecoding):
    return decode_images
  if isinstance(decode_images, (bool, np.bool_)):
    return ImageDecoding()
  raise errors.SpecError(
    f"decode_images: expected True, False or a records.ImageDecoding, got "
    f"{decode_images!r}."
  )


def _format(spec: tf.TensorSpec) -> str:
  return (spec.data_format or "").lower()


def _decode_any(encoded: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  channels = spec.shape[-1]
  if channels == 1 and _format(spec) == "bmp":
    channels = 0  # As stored: the op reads gray BMPs, but converts none to gray.
  return tf.io.decode_image(
    encoded, channels=channels, dtype=spec.dtype, expand_animations=False
  )


def _resize(image: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  resized = tf.image.resize(image, spec.shape[-3:-1], antialias=True)
  return tf.saturate_cast(tf.round(resized), image.dtype)


def _is_window(crop: Any) -> bool:
  if not isinstance(crop, (Sequence, np.ndarray)) or len(crop) != 4:
    return False
  if not all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in crop):
    return False
  return min(crop) >= 0 and min(crop[2:]) >= 1


def decode_images(
  encoded: tf.Tensor,
  spec: specs.ExtendedTensorSpec,
  path: str,
  decode: DecodeImages = True,
) -> tf.Tensor:
  """Decodes encoded images of any of the formats, detected from their bytes.

  Empty byte strings become black images. By default all formats are decoded by
  `tf.io.decode_image`, which costs the same as `decode_jpeg` and gives the same pixels.
  An animated GIF gives its first frame.

  Args:
    encoded: [...] strings.
    spec: an image spec [..., h, w, c] of dtype uint8 or uint16.
    path: path of the spec, for the error at run time.
    decode: options of decoding, an `ImageDecoding`, or True.
  Returns:
    [..., h, w, c] of the spec's dtype; cropped images have the height and width of the
    crop. Decoding fails at run time for an image of another size or bit depth.
  """
  image_shape = image_decoding(decode).image_shape(path, spec)
  images = decode_to_list(tf.reshape(encoded, [-1]), spec, path, decode).stack()
  full_shape = tf.concat([tf.shape(encoded), image_shape.as_list()], 0)
  return tf.ensure_shape(
    tf.reshape(images, full_shape), encoded.shape.concatenate(image_shape)
  )


def decode_to_list(
  encoded: tf.Tensor,
  spec: specs.ExtendedTensorSpec,
  path: str,
  decode: DecodeImages = True,
) -> RowList:
  """Decodes N encoded images as `decode_images` does, to a list of separate images."""
  decoding = image_decoding(decode)
  image_shape = decoding.image_shape(path, spec)

  def check_sizes(sizes: tf.Tensor) -> tf.Operation | None:
    expected = image_shape.as_list()
    fits = tf.reduce_all(sizes == expected, axis=-1)
    message = (
      f"parse: {path}: expected an image of size {tuple(expected)}, got an image"
    )
    # The first wrong image, or nothing.
    misfit = tf.reshape(tf.boolean_mask(sizes, ~fits)[:1], [-1])
    # tf.debugging.Assert would build a tf.cond around this op.
    return tf.raw_ops.Assert(
      condition=tf.reduce_all(fits), data=[f"{message} of size", misfit], summarize=8
    )

  def decode_all(has_empty: bool) -> tf.Tensor:
    black = decoding.black(spec, path) if has_empty else ""

    def decode(string: tf.Tensor) -> tf.Tensor:
      if has_empty:
        string = tf.where(tf.equal(string, ""), black, string)
      return decoding.decode(string, spec, path)

    # All sizes are checked at once: a check of each image costs a seventh more time.
    return RowList.compute(
      decode, [encoded], image_shape, spec.dtype, check_shapes=check_sizes
    ).handle

  # Reading all headers costs little compared to decoding.
  heads = tf.io.decode_raw(encoded, tf.uint8, fixed_length=image_headers.PNG_DEPTH + 1)
  is_empty = tf.reduce_all(heads == 0, axis=-1)
  with tf.control_dependencies([_check_depth(heads, is_empty, spec.dtype, path)]):
    any_empty = tf.reduce_any(is_empty)
  # tf.where copies the encoded image, so it runs only if one is empty.
  images = tf.cond(any_empty, lambda: decode_all(True), lambda: decode_all(False))
  return RowList(images, image_shape, spec.dtype)


def _check_depth(
  heads: tf.Tensor, is_empty: tf.Tensor, dtype: tf.DType, path: str
) -> tf.Operation:
  """Fails at run time if the decoder would rescale pixels: 16 bits to 8, or 8 to 16."""
  is_deep = dtype == tf.uint16
  signature = tf.constant(list(image_headers.PNG_SIGNATURE), tf.uint8)
  is_png = tf.reduce_all(heads[..., : signature.shape[0]] == signature, axis=-1)
  is_deep_png = is_png & (heads[..., image_headers.PNG_DEPTH] == 16)
  fits = tf.reduce_all(is_empty | tf.equal(is_deep_png, is_deep))
  expected, got = "8 bits per channel", "a PNG image of 16 bits per channel"
  if is_deep:
    expected, got = "16 bits per channel (PNG)", "8 bits, or no image"
  message = f"parse: {path}: expected an image of {expected} for {dtype.name}, got"
  return tf.raw_ops.Assert(condition=fits, data=[f"{message} {got}."], summarize=8)


_Convert = Callable[[str, "specs.ExtendedTensorSpec", "tf.Tensor"], "tf.Tensor"]


def create_compress_fn(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  quality: int = 90,
) -> Callable[..., tuple[Any, Any]]:
  """Creates a function for `Dataset.map` that encodes images as JPEG.

  Args:
    feature_spec: the leaves with specs of data_format 'jpeg' are encoded.
    label_spec: label specs, or None to leave labels unchanged.
    quality: JPEG quality from 0 to 100.
  Returns:
    A function of features and labels, or features alone, that returns both; those with
    specs as TensorSpecStructs, missing labels as None. Images [..., h, w, c], integers
    or floats in [0, 1], become strings [...]. It raises SpecError if images have
    another size than their spec.
  """

  def compress(path: str, spec: specs.ExtendedTensorSpec, image: tf.Tensor) -> Any:
    image = tf.convert_to_tensor(image)
    has_rank, size = (image.shape.rank or 0) >= 3, spec.shape[-3:]
    if not has_rank or not image.shape[-3:].is_compatible_with(size):
      got = errors.describe(image)
      mismatches = [errors.Mismatch(path, f"images of {tuple(size)}", got)]
      raise errors.mismatch_error("compress", mismatches)
    pixels = tf.image.convert_image_dtype(image, tf.uint8, saturate=True)
    encoded = tf.map_fn(
      lambda single: tf.io.encode_jpeg(single, quality=quality),
      tf.reshape(pixels, [-1, *spec.shape[-3:]]),
      fn_output_signature=tf.TensorSpec((), tf.string),
    )
    encoded = tf.reshape(encoded, tf.shape(image)[:-3])
    return tf.ensure_shape(encoded, image.shape[:-3])

  return _create_fn(feature_spec, label_spec, compress)


def create_decompress_fn(
  feature_spec: specs.SpecStructure, label_spec: specs.SpecStructure | None = None
) -> Callable[..., tuple[Any, Any]]:
  """Creates the inverse of `create_compress_fn`'s function.

  Strings [...] become images [..., h, w, c] of the spec's dtype; floats are in [0, 1].
  """

  def decompress(path: str, spec: specs.ExtendedTensorSpec, image: tf.Tensor) -> Any:
    pixel_spec = specs.ExtendedTensorSpec.from_spec(spec, dtype=tf.uint8)
    pixels = decode_images(image, pixel_spec, path)
    return tf.image.convert_image_dtype(pixels, spec.dtype)

  return _create_fn(feature_spec, label_spec, decompress)


def _create_fn(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  convert: _Convert,
) -> Callable[..., tuple[Any, Any]]:
  def convert_all(structure: specs.SpecStructure, tensors: Any) -> Any:
    flat = specs.flatten_spec_structure(tensors)
    for path, spec in specs.flatten_spec_structure(structure).items():
      if path in flat and (getattr(spec, "data_format", "") or "").lower() == "jpeg":
        flat[path] = convert(path, spec, flat[path])
    return flat

  def convert_fn(features: Any, labels: Any = None) -> tuple[Any, Any]:
    if labels is not None and label_spec is not None:
      labels = convert_all(label_spec, labels)
    return convert_all(feature_spec, features), labels

  return convert_fn
