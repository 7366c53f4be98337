"""Converts users' values to arrays, and encodes images."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec, is_encoded_image_spec


def leaves(
  structure: Any, paths: Container[str], prefix: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields (path, value) of each leaf of a packed or flat structure, None leaves too.

  Args:
    structure: structure of dicts, namedtuples and lists.
    paths: paths of the specs. A list or tuple with a spec below it is a branch, and any
      other is a value. A dict or namedtuple is a branch, except at one of these paths.
    prefix: path of the structure.
  """
  if prefix in paths or structure is None:
    yield prefix, structure
    return
  children: Any = None
  if isinstance(structure, tuple) and hasattr(structure, "_asdict"):
    children = structure._asdict().items()
  elif isinstance(structure, Mapping):
    children = structure.items()
  elif isinstance(structure, (list, tuple)) and _is_branch(prefix, paths):
    children = enumerate(structure)
  if children is None:
    yield prefix, structure
    return
  for name, value in children:
    yield from leaves(value, paths, f"{prefix}/{name}" if prefix else str(name))


def _is_branch(prefix: str, paths: Any) -> bool:
  return not prefix or any(path.startswith(f"{prefix}/") for path in paths)


def is_array(value: Any, dtype: np.dtype, shape: tuple[int, ...], ndim: int) -> bool:
  """Whether a value needs no conversion; costs less than `to_array`.

  Args:
    value: any.
    dtype: dtype in native byte order.
    shape: the last dimensions.
    ndim: number of all dimensions.
  Returns:
    Whether it is an array, or a numpy scalar, of this dtype and shape.
  """
  return (
    isinstance(value, (np.ndarray, np.generic))
    and value.dtype == dtype
    and value.ndim == ndim
    and value.shape[ndim - len(shape) :] == shape
  )


def to_array(value: Any, spec: ExtendedTensorSpec) -> np.ndarray | str:
  """Converts a value of any shape to an array of native byte order.

  Args:
    value: an array or tensor, which keeps its dtype; Python numbers or lists, which get
      the dtype of the spec if they fit, otherwise numpy's; byte strings and text, which
      become objects, because numpy's strings drop trailing zeros.
    spec: spec of the value; for encoded images, pixels or byte strings.
  Returns:
    The array; or a description of an invalid value.
  """
  is_typed = isinstance(value, (np.ndarray, np.generic))
  if not is_typed and (imports.is_tensor(value) or isinstance(value, tf.Variable)):
    value = value.numpy()
    is_typed = isinstance(value, (np.ndarray, np.generic))
  is_image = is_encoded_image_spec(spec)
  is_number = is_typed and value.dtype.kind not in "SUO"
  if (spec.dtype == tf.string or is_image) and not is_number:
    strings = _to_objects(value)
    if not isinstance(strings, str) or is_typed or not is_image:
      return strings
  try:
    array = np.asarray(value)
  except ValueError:
    return "a ragged list"
  if array.dtype.kind in "SUO":
    return f"{array.shape} {'strings' if array.dtype.kind in 'SU' else 'objects'}"
  if not is_typed and _has_values_of(array, spec.dtype):
    too_large = _find_overflow(array, spec.dtype)
    if too_large is not None:
      return f"{array.shape} with {too_large:g} in it, which is beyond its range"
    return array.astype(spec.dtype.as_numpy_dtype)
  return array.astype(array.dtype.newbyteorder("="), copy=False)


def _to_objects(value: Any) -> np.ndarray | str:
  """Converts strings to an object array of bytes; or describes an invalid value."""
  try:
    array = np.asarray(value, dtype=object)
  except ValueError:
    return "a ragged list"
  flat = array.ravel().tolist()
  converted = np.empty(len(flat), dtype=object)
  for index, item in enumerate(flat):
    item = item.encode() if isinstance(item, str) else item
    if not isinstance(item, bytes):
      return f"{array.shape} with an item of type {type(item).__name__}"
    converted[index] = item
  return converted.reshape(array.shape)


def _has_values_of(array: np.ndarray, dtype: tf.DType) -> bool:
  """Whether Python numbers are values of this dtype, without rounding or overflow."""
  if array.size == 0 or dtype.is_complex or (dtype.is_floating and array.dtype != bool):
    return array.dtype.kind in "iufcb" and (dtype.is_complex or array.dtype.kind != "c")
  if dtype.is_integer and array.dtype.kind in "iu":
    return bool(dtype.min <= array.min() and array.max() <= dtype.max)
  return dtype == tf.bool and array.dtype == bool


def _find_overflow(array: np.ndarray, dtype: tf.DType) -> Any:
  """Returns a finite number that would become infinite, or None."""
  if not (dtype.is_floating or dtype.is_complex):
    return None
  with np.errstate(over="ignore"):
    converted: Any = array.astype(dtype.as_numpy_dtype)
  overflowing = array[np.isfinite(array) & ~np.isfinite(converted)]
  return overflowing[0] if overflowing.size else None


def describe_array(array: np.ndarray | str) -> str:
  """Describes the output of `to_array`, for a message."""
  if isinstance(array, str):
    return array
  return f"{array.shape} {'bytes' if array.dtype == object else array.dtype.name}"


def encode_pixels(
  pixels: np.ndarray, spec: ExtendedTensorSpec, jpeg_quality: int = 95
) -> np.ndarray:
  """Encodes images in the format of their spec.

  Args:
    pixels: [..., h, w, c] uint8, or uint16 for png.
    spec: spec of an encoded image.
    jpeg_quality: 1 to 100.
  Returns:
    Byte strings, object [...].
  Raises:
    SpecError: the format can only be read (bmp, gif).
  """
  encoded = np.empty(pixels.shape[:-3], object)
  for index in np.ndindex(*encoded.shape):
    image_format = str(spec.data_format)
    encoded[index] = encode_image(pixels[index], image_format, jpeg_quality)
  return encoded


def encode_image(image: np.ndarray, image_format: str, jpeg_quality: int = 95) -> bytes:
  """Encodes an image.

  Args:
    image: [h, w, c] uint8, or uint16 for png.
    image_format: 'jpeg' or 'png', in any case.
    jpeg_quality: 1 to 100.
  Raises:
    SpecError: `image_format` is another one: bmp and gif can only be read.
  """
  image_format = image_format.lower()
  if image_format == "jpeg":
    return tf.io.encode_jpeg(image, quality=jpeg_quality).numpy()
  if image_format == "png":
    return tf.io.encode_png(image).numpy()
  raise errors.SpecError(
    f"encode_image: expected data_format jpeg or png, got {image_format!r}. "
    "Give already encoded bytes instead of pixels."
  )
