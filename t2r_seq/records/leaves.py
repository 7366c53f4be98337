"""The leaves of structures to write: found by path, converted to arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs


def lookup(structure: Any, path: str) -> Any:
  """Finds a path in a packed or flat structure; None where there is nothing."""
  if isinstance(structure, Mapping) and path in structure:
    return structure[path]
  head, _, rest = path.partition("/")
  below = None
  if isinstance(structure, Mapping):
    below = structure[head] if _has(structure, head) else None
  elif isinstance(structure, tuple) and hasattr(structure, "_fields"):
    below = getattr(structure, head, None)
  elif isinstance(structure, (list, tuple)) and head.isdigit():
    below = structure[int(head)] if int(head) < len(structure) else None
  if below is None or not rest:
    return below
  return lookup(below, rest)


def iterate_paths(structure: Any, prefix: str = "") -> Iterator[str]:
  """Yields the paths of the leaves that a structure of dicts and namedtuples has."""
  if isinstance(structure, tuple) and hasattr(structure, "_asdict"):
    structure = structure._asdict()
  if isinstance(structure, Mapping):
    for name, value in structure.items():
      yield from iterate_paths(value, f"{prefix}/{name}" if prefix else str(name))
  elif structure is not None and prefix:
    yield prefix


def _has(structure: Mapping[str, Any], head: str) -> bool:
  # A TensorSpecStruct contains leaves only, and gives its branches as attributes.
  return head in structure or (
    isinstance(structure, specs.TensorSpecStruct) and hasattr(structure, head)
  )


def to_array(value: Any, dtype: tf.DType) -> np.ndarray:
  """Converts a leaf; arrays keep their dtype, Python numbers take the spec's."""
  if tf.is_tensor(value):
    value = value.numpy()
  is_typed = isinstance(value, (np.ndarray, np.generic))
  array = value if is_typed else _object_safe_array(value)
  if array.dtype.kind in "SUO":
    return _to_bytes_objects(array)
  if dtype == tf.string:
    is_empty_list = not is_typed and array.size == 0
    return array.astype(object) if is_empty_list else np.asarray(array)
  if not is_typed and _is_same_kind(array, dtype):
    return array.astype(dtype.as_numpy_dtype)
  if dtype_name(array) == dtype.name:
    # Native byte order: what is written is little-endian.
    return np.ascontiguousarray(array, dtype.as_numpy_dtype).reshape(array.shape)
  return np.asarray(array)


def _object_safe_array(value: Any) -> np.ndarray:
  """Converts Python values; bytes become objects, since numpy's 'S' drops zeros."""
  if isinstance(value, (bytes, str)):
    array = np.empty((), dtype=object)
    array[()] = value
    return array
  array = np.asarray(value)
  return np.asarray(value, dtype=object) if array.dtype.kind in "SU" else array


def _to_bytes_objects(array: np.ndarray) -> np.ndarray:
  converted = np.empty(array.shape, dtype=object)
  for index in np.ndindex(*array.shape):
    item = array[index]
    converted[index] = item.encode() if isinstance(item, str) else item
  return converted


def _is_same_kind(array: np.ndarray, dtype: tf.DType) -> bool:
  """Whether Python numbers have values of this dtype: no fractions, no overflow."""
  if array.size == 0 or dtype.is_complex or (dtype.is_floating and array.dtype != bool):
    return True
  if dtype.is_integer and array.dtype.kind in "iu":
    return bool(dtype.min <= array.min() and array.max() <= dtype.max)
  return dtype == tf.bool and array.dtype == bool


def dtype_name(array: np.ndarray) -> str:
  """Returns the TensorFlow name of an array's dtype; objects stand for strings."""
  if array.dtype == object:
    return "string"
  try:
    return tf.as_dtype(array.dtype).name
  except TypeError:
    return str(array.dtype)
