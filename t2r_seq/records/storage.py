"""How a dtype is held by a record: int64 list, float list or bytes list.

`tf.train.Feature` has only these three. Integers and bools go into the int64 list
(uint64 keeps its bits), floats of up to 32 bits, exactly, into the float list. What
neither can hold without loss (float64, complex) goes into the bytes list as
little-endian bytes, and so does any tensor of data_format 'raw'.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.records import run_time_checks

INT64_DTYPES = (
  tf.bool,
  tf.int8,
  tf.int16,
  tf.int32,
  tf.int64,
  tf.uint8,
  tf.uint16,
  tf.uint32,
  tf.uint64,
)
FLOAT_DTYPES = (tf.float16, tf.bfloat16, tf.float32)
RAW_BYTES_DTYPES = (tf.float64, tf.complex64, tf.complex128)
SUPPORTED_DTYPES = (*INT64_DTYPES, *FLOAT_DTYPES, *RAW_BYTES_DTYPES, tf.string)

# The names of the three lists in tf.train.Feature, without their '_list'.
KINDS = {tf.int64: "int64", tf.float32: "float", tf.string: "bytes"}


def is_raw(spec: specs.ExtendedTensorSpec) -> bool:
  """Whether the record holds the tensor's bytes, by data_format 'raw' or by dtype."""
  return is_raw_format(spec) or spec.dtype in RAW_BYTES_DTYPES


def is_raw_format(spec: specs.ExtendedTensorSpec) -> bool:
  """Whether the data_format is 'raw'."""
  return (spec.data_format or "").lower() == specs.RAW_FORMAT


def record_dtype(spec: specs.ExtendedTensorSpec) -> tf.DType:
  """Returns the dtype of the list that holds the spec: int64, float32 or string."""
  if specs.is_encoded_image_spec(spec) or is_raw(spec) or spec.dtype == tf.string:
    return tf.string
  return tf.int64 if spec.dtype in INT64_DTYPES else tf.float32


def bytes_per_value(spec: specs.ExtendedTensorSpec) -> int:
  """Returns how many bytes one entry of the bytes list of a raw spec has."""
  shape = () if spec.varlen_default_value is not None else spec.shape.as_list()
  return math.prod(shape) * spec.dtype.size


def default_value(spec: specs.ExtendedTensorSpec) -> Any:
  """Casts the varlen default to the spec's dtype: 3.0 for int64 is 3.

  Args:
    spec: a spec with a varlen_default_value.
  Returns:
    A numpy scalar of the spec's dtype; bytes for strings.
  Raises:
    ValueError: the default has no such value.
  """
  value = spec.varlen_default_value
  if spec.dtype == tf.string:
    if not isinstance(value, (str, bytes)):
      raise ValueError("a string")
    return value.encode() if isinstance(value, str) else value
  if not isinstance(value, (numbers.Number, np.generic)):
    raise ValueError("a number")
  if spec.dtype.is_integer and not spec.dtype.min <= value <= spec.dtype.max:
    raise ValueError(f"a number from {spec.dtype.min} to {spec.dtype.max}")
  return np.asarray(value).astype(spec.dtype.as_numpy_dtype)[()]


def record_default(spec: specs.ExtendedTensorSpec) -> int | float | bytes:
  """Returns the varlen default as the record's list holds it."""
  if specs.is_encoded_image_spec(spec):
    return b""
  values = to_record_values(np.asarray([default_value(spec)]), spec)
  return values[0]


def to_record_values(
  array: np.ndarray, spec: specs.ExtendedTensorSpec
) -> list[int] | list[float] | list[bytes]:
  """Converts the values of one step to the entries of the record's list.

  Args:
    array: of the spec's dtype (bytes objects for strings); one step's values.
    spec: not an image.
  Returns:
    The list's entries.
  """
  if spec.dtype == tf.string:
    return list(array.ravel())
  if is_raw(spec):
    if spec.varlen_default_value is None:
      return [array.tobytes()]
    return [value.tobytes() for value in array.ravel()]
  if spec.dtype == tf.uint64:
    return array.ravel().view(np.int64).tolist()
  if spec.dtype in INT64_DTYPES:
    return array.ravel().astype(np.int64).tolist()
  return array.ravel().astype(np.float32).tolist()


def to_feature(values: list, dtype: tf.DType) -> tf.train.Feature:
  """Wraps entries in the list of a record dtype (int64, float32 or string)."""
  if dtype == tf.int64:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
  if dtype == tf.float32:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
  return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def decode_values(
  values: tf.Tensor,
  spec: specs.ExtendedTensorSpec,
  path: str,
  allow_empty: bool = False,
) -> tf.Tensor:
  """Converts parsed entries to the spec's dtype, in graph ops.

  Args:
    values: of the record dtype; [..., *shape], or [...] byte strings for a raw spec.
    spec: not an image.
    path: where the spec is, for the error at run time.
    allow_empty: empty byte strings, which stand for absent or padded steps, become
      zeros; otherwise they are an error.
  Returns:
    [..., *shape] of the spec's dtype.
  """
  if spec.dtype == tf.string:
    return values
  if is_raw(spec):
    return _decode_bytes(values, spec, path, allow_empty)
  if spec.dtype == tf.uint64:
    return tf.bitcast(values, tf.uint64)
  bounds = value_range(spec.dtype)
  if bounds is not None:
    values = _check_range(values, spec.dtype, bounds, path)
  return values if values.dtype == spec.dtype else tf.cast(values, spec.dtype)


def value_range(dtype: tf.DType) -> tuple[float, float] | None:
  """Returns the finite values that a dtype has, of those that records store as others.

  Args:
    dtype: of a spec.
  Returns:
    The smallest and the largest; None for dtypes that hold all that is stored.
  """
  if dtype == tf.bool:
    return 0, 1
  if dtype == tf.float16:
    return float(dtype.min), float(dtype.max)
  if dtype.is_integer and dtype not in (tf.int64, tf.uint64):
    return dtype.min, dtype.max
  return None


def _check_range(
  values: tf.Tensor, dtype: tf.DType, bounds: tuple[float, float], path: str
) -> tf.Tensor:
  """Fails at run time where a cast would make another value: 300 as uint8."""
  finite = values
  if values.dtype.is_floating:  # Infinities and NaN are those of the dtype, too.
    finite = tf.where(tf.math.is_finite(values), values, tf.zeros_like(values))
  low, high = tf.reduce_min(finite), tf.reduce_max(finite)
  message = f"parse: {path}: expected values of {dtype.name}, got values from, to:"
  fits = tf.logical_and(low >= bounds[0], high <= bounds[1])
  return run_time_checks.require(values, fits, [message, low, high])


def _decode_bytes(
  values: tf.Tensor, spec: specs.ExtendedTensorSpec, path: str, allow_empty: bool
) -> tf.Tensor:
  varlen = spec.varlen_default_value is not None
  shape = [] if varlen else spec.shape.as_list()
  num_bytes = bytes_per_value(spec)
  full_shape = tf.concat([tf.shape(values), tf.constant(shape, tf.int32)], 0)
  static_shape = values.shape.concatenate(shape)
  if num_bytes == 0:
    return tf.ensure_shape(tf.zeros(full_shape, spec.dtype), static_shape)
  values = _check_num_bytes(values, num_bytes, spec, path, allow_empty)
  # A fixed length makes zeros of empty strings, but costs a fifth of the speed.
  fixed_length = num_bytes if allow_empty else None
  data = tf.io.decode_raw(values, tf.uint8, fixed_length=fixed_length)
  if spec.dtype.size > 1:
    data = tf.reshape(data, tf.concat([full_shape, [spec.dtype.size]], 0))
  else:
    data = tf.reshape(data, full_shape)
  if spec.dtype == tf.bool:
    data = tf.cast(data, tf.bool)
  elif spec.dtype != tf.uint8:
    data = tf.bitcast(data, spec.dtype)
  return tf.ensure_shape(data, static_shape)


def _check_num_bytes(
  values: tf.Tensor,
  num_bytes: int,
  spec: specs.ExtendedTensorSpec,
  path: str,
  allow_empty: bool,
) -> tf.Tensor:
  """Fails at run time on byte strings of a wrong length; decode_raw would pad them."""
  found = tf.strings.length(values)
  fits = tf.equal(found, num_bytes)
  if allow_empty:
    fits = tf.logical_or(fits, tf.equal(found, 0))
  message = (
    f"parse: {path}: expected {num_bytes} bytes for {tuple(spec.shape)} "
    f"{spec.dtype.name}, got lengths:"
  )
  return run_time_checks.require(values, tf.reduce_all(fits), [message, found])
