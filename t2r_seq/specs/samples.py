"""Arrays and tensors that fit a spec structure, for tests, dry runs and warm-ups."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import structures
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.structures import SpecStructure

# Random integers stay below this, as in Tensor2Robot: they are images, mostly.
_MAX_RANDOM_INTEGER = 255
_MAX_RANDOM_BYTES = 8


def make_random_numpy(
  spec_structure: SpecStructure,
  batch_size: int | None = 2,
  sequence_length: int | None = 3,
  seed: int = 0,
  unknown_size: int = 1,
) -> SpecStructure:
  """Makes random arrays for a structure of specs.

  Floats lie in [0, 1], integers in [0, 255] or as far as their dtype goes, strings are
  up to 8 random bytes. What stands at a path depends on the seed and the path alone,
  so that another spec in the structure changes nothing.

  Args:
    spec_structure: specs in any structure.
    batch_size: > 0 prepends a batch axis; None and <= 0 don't. (In Tensor2Robot None
      asked for an unknown size, which no array has.)
    sequence_length: T of sequences, [batch, T, *shape]; None leaves the axis out. The
      stack axis of a spec with time offsets is part of its shape and always there.
    seed: two calls with one seed give the same arrays.
    unknown_size: size of every unknown dimension; a shape of unknown rank is a scalar.
  Returns:
    The form of `spec_structure`, filled with arrays; None leaves stay None.
  Raises:
    SpecError: a leaf is not a spec, or no array has its dtype.
  """

  def make(path: str, spec: ExtendedTensorSpec) -> np.ndarray:
    shape = _full_shape(spec, batch_size, sequence_length, unknown_size)
    rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
    return _random(rng, shape, spec.dtype)

  return _fill("make_random_numpy", make, spec_structure)


def make_constant_numpy(
  spec_structure: SpecStructure,
  constant_value: Any,
  batch_size: int | None = 2,
  sequence_length: int | None = 3,
  unknown_size: int = 1,
) -> SpecStructure:
  """Makes arrays full of one value for a structure of specs.

  The value is brought to every dtype: clipped to the range of integers, true where it
  is not zero for bool, its text for string.

  Args:
    spec_structure: specs in any structure.
    constant_value: a number, bool, str or bytes.
    batch_size: as in `make_random_numpy`.
    sequence_length: as in `make_random_numpy`.
    unknown_size: as in `make_random_numpy`.
  Returns:
    The form of `spec_structure`, filled with arrays; None leaves stay None.
  Raises:
    SpecError: a leaf is not a spec, no array has its dtype, or the constant is text
      that a numeric spec should hold.
  """

  def make(path: str, spec: ExtendedTensorSpec) -> np.ndarray:
    shape = _full_shape(spec, batch_size, sequence_length, unknown_size)
    try:
      array = np.empty(shape, _numpy_dtype(spec))
      # Not np.full: on its way through numpy's bytes type a string loses its last \0s.
      array.fill(_constant(constant_value, spec.dtype))
      return array
    except (TypeError, ValueError) as e:
      got = f"the constant {constant_value!r}"
      mismatch = errors.Mismatch(path, errors.describe(spec), got)
      raise errors.mismatch_error("make_constant_numpy", [mismatch]) from e

  return _fill("make_constant_numpy", make, spec_structure)


def make_random_tensors(
  spec_structure: SpecStructure,
  batch_size: int | None = 2,
  seed: int = 0,
  sequence_length: int | None = 3,
) -> SpecStructure:
  """Makes constant tensors of the arrays of `make_random_numpy`; see there.

  Args:
    spec_structure: specs in any structure.
    batch_size: > 0 prepends a batch axis; None and <= 0 don't.
    seed: two calls with one seed give the same tensors.
    sequence_length: T of sequences; None leaves the axis out.
  Returns:
    The form of `spec_structure`, filled with tensors; None leaves stay None.
  Raises:
    SpecError: a leaf is not a spec, or no array has its dtype.
  """
  arrays = make_random_numpy(spec_structure, batch_size, sequence_length, seed)
  return structures.map_leaves(tf.convert_to_tensor, arrays)


def _fill(operation: str, make: Any, spec_structure: SpecStructure) -> SpecStructure:
  structures.assert_only_specs(operation, spec_structure)
  _check_dtypes(operation, spec_structure)

  def fill(path: str, leaf: tf.TensorSpec | None) -> np.ndarray | None:
    return None if leaf is None else make(path, ExtendedTensorSpec.to_spec(leaf))

  return structures.map_leaves_with_path(fill, spec_structure)


def _check_dtypes(operation: str, spec_structure: SpecStructure) -> None:
  found = [
    errors.Mismatch(path, "a dtype that an array can have", errors.describe(leaf))
    for path, leaf in structures.iterate_leaves(spec_structure)
    if leaf is not None and (leaf.dtype.is_quantized or _is_handle(leaf.dtype))
  ]
  if found:
    raise errors.mismatch_error(operation, found)


def _is_handle(dtype: tf.DType) -> bool:
  return dtype in (tf.resource, tf.variant)


def _full_shape(
  spec: ExtendedTensorSpec,
  batch_size: int | None,
  sequence_length: int | None,
  unknown_size: int,
) -> tuple[int, ...]:
  dims = [] if spec.shape.rank is None else spec.shape.as_list()
  shape = [unknown_size if dim is None else dim for dim in dims]
  if spec.is_sequence and sequence_length is not None:
    shape.insert(0, sequence_length)
  if batch_size is not None and batch_size > 0:
    shape.insert(0, batch_size)
  return tuple(shape)


def _numpy_dtype(spec: ExtendedTensorSpec) -> Any:
  return np.dtype(object) if spec.dtype == tf.string else spec.dtype.as_numpy_dtype


def _random(
  rng: np.random.Generator, shape: tuple[int, ...], dtype: tf.DType
) -> np.ndarray:
  if dtype == tf.string:
    sizes = rng.integers(1, _MAX_RANDOM_BYTES + 1, size=int(np.prod(shape)))
    strings = [rng.bytes(int(size)) for size in sizes]
    return np.array(strings, dtype=object).reshape(shape)
  if dtype.is_bool:
    return rng.integers(0, 2, size=shape).astype(np.bool_)
  if dtype.is_integer:
    highest = min(int(dtype.max), _MAX_RANDOM_INTEGER)
    values = rng.integers(0, highest, size=shape, endpoint=True)
    return np.asarray(values).astype(dtype.as_numpy_dtype)
  values = np.asarray(rng.random(size=shape))
  if dtype.is_complex:
    values = values + 1j * rng.random(size=shape)
  return np.asarray(values).astype(dtype.as_numpy_dtype)


def _constant(value: Any, dtype: tf.DType) -> Any:
  if dtype == tf.string:
    return value if isinstance(value, bytes) else str(value).encode()
  if isinstance(value, (str, bytes)):
    raise TypeError("text is not a number")
  if dtype.is_bool:
    return bool(value)
  if dtype.is_integer:
    lowest, highest = int(dtype.min), int(dtype.max)
    return int(min(max(np.nan_to_num(np.real(value)), lowest), highest))
  return value if dtype.is_complex else np.real(value)
