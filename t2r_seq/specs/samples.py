"""Arrays, tensors and placeholders for a spec structure."""

from __future__ import annotations

import re
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.specs import extended_tensor_spec, structures, validation
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.structures import SpecStructure

# Maximum of random integers, which are mostly pixels.
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

  Floats are in [0, 1], integers in [0, 255] or up to the maximum of their dtype, and
  strings have 1 to 8 random bytes. The values depend on the seed and the path.

  >>> from t2r_seq import specs
  >>> pose = specs.ExtendedTensorSpec((7,), "float32", "pose", is_sequence=True)
  >>> arrays = specs.make_random_numpy({"pose": pose}, batch_size=2, sequence_length=5)
  >>> arrays["pose"].shape
  (2, 5, 7)

  Args:
    spec_structure: specs in any structure.
    batch_size: > 0 prepends a batch axis; None and <= 0 don't.
    sequence_length: T, steps of sequences, [batch, T, *shape]; None: no such axis.
    seed: seed of the random numbers.
    unknown_size: size of unknown dimensions; a shape of unknown rank is a scalar.
  Returns:
    The form of `spec_structure` with arrays; None leaves are None.
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
  """Makes arrays of one value, cast to each dtype; see `make_random_numpy`.

  For an integer dtype, the constant is clipped to its range.

  Raises:
    SpecError: a leaf is not a spec, no array has its dtype, or the constant is not a
      number for a numeric spec.
  """

  def make(path: str, spec: ExtendedTensorSpec) -> np.ndarray:
    shape = _full_shape(spec, batch_size, sequence_length, unknown_size)
    try:
      array = np.empty(shape, spec.dtype.as_numpy_dtype)  # Strings: objects.
      # np.full would convert to numpy's bytes, which lose trailing zeros.
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
  """Makes constant tensors of the arrays of `make_random_numpy`."""
  arrays = make_random_numpy(spec_structure, batch_size, sequence_length, seed)
  return structures.map_leaves(tf.convert_to_tensor, arrays)


def _fill(operation: str, make: Any, spec_structure: SpecStructure) -> SpecStructure:
  structures.assert_only_specs(operation, spec_structure)
  mismatches = [
    errors.Mismatch(path, "a dtype that an array can have", errors.describe(leaf))
    for path, leaf in structures.iterate_leaves(spec_structure)
    if leaf is not None
    and (leaf.dtype.is_quantized or leaf.dtype in (tf.resource, tf.variant))
  ]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)

  def fill(path: str, leaf: tf.TensorSpec | None) -> np.ndarray | None:
    return None if leaf is None else make(path, ExtendedTensorSpec.to_spec(leaf))

  return structures.map_leaves_with_path(fill, spec_structure)


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


_NOT_IN_OP_NAMES = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def make_placeholders(
  spec_structure: SpecStructure, batch_size: int | None = None
) -> SpecStructure:
  """Creates an input for each spec: a placeholder in a `tf.Graph`, or a Keras input.

  Their names are those of the specs, or the paths. Keras allows no '/' and no
  duplicates: 'state/image' becomes 'state_image', and a second use of a name gets '_1'.

  Args:
    spec_structure: specs in any structure.
    batch_size: None: inputs [None, *shape]; > 0: a fixed batch axis; <= 0: none.
      Sequences have a time axis of unknown length.
  Returns:
    The form of `spec_structure` with inputs; None leaves are None.
  Raises:
    SpecError: a leaf is not a spec, or Keras has no input of its shape or dtype.
  """
  structures.assert_only_specs("make_placeholders", spec_structure)
  taken: set[str] = set()

  def make(path: str, leaf: tf.TensorSpec | None) -> Any:
    if leaf is None:
      return None
    spec = ExtendedTensorSpec.to_spec(leaf)
    shape = _input_shape(spec, batch_size)
    name = (spec.name or path).strip("/") or path
    if not tf.executing_eagerly():
      return tf.compat.v1.placeholder(spec.dtype, shape, name=_op_name(name))
    return _keras_input(path, spec.dtype, shape, _unique(name, taken))

  return structures.map_leaves_with_path(make, spec_structure)


def map_feed_dict(
  spec_placeholders: SpecStructure,
  spec_numpy: SpecStructure,
  feed_dict: dict[Any, Any] | None = None,
  ignore_batch: bool = False,
) -> dict[Any, Any]:
  """Maps placeholders to arrays of the same paths, for `Session.run`.

  Args:
    spec_placeholders: placeholders in any structure.
    spec_numpy: arrays in a structure with the same paths.
    feed_dict: extended, if given.
    ignore_batch: ignores the batch axes in the check.
  Raises:
    SpecError: an array is missing, does not match or has no placeholder, a placeholder
      is fed already, or the placeholders are Keras inputs.
  """
  placeholders = structures.flatten_spec_structure(spec_placeholders)
  arrays = structures.flatten_spec_structure(spec_numpy)
  validation.assert_required(
    validation.maybe_ignore_batch(placeholders, ignore_batch),
    validation.maybe_ignore_batch(arrays, ignore_batch),
  )
  _refuse_keras_inputs(placeholders)
  unknown = [
    errors.Mismatch(
      path, "nothing", errors.describe(array), errors.nearest(path, placeholders)
    )
    for path, array in arrays.items()
    if path not in placeholders
  ]
  if unknown:
    raise errors.mismatch_error("map_feed_dict", unknown)
  feed_dict = {} if feed_dict is None else feed_dict
  _refuse_fed("map_feed_dict", [p for p in arrays if placeholders[p] in feed_dict])
  feed_dict.update({placeholders[path]: array for path, array in arrays.items()})
  return feed_dict


def map_predict_fn_dict(
  spec_structure: SpecStructure,
  spec_numpy: SpecStructure,
  feed_dict: dict[str, Any] | None = None,
  ignore_batch: bool = False,
) -> dict[str, Any]:
  """Maps the paths of specs to arrays, for a predict function.

  Args:
    spec_structure: the specs of the inputs.
    spec_numpy: arrays in a structure with the same paths; others are left out.
    feed_dict: extended, if given.
    ignore_batch: strips the batch axis of the arrays in the check.
  Raises:
    SpecError: an array is missing or does not match, or a path is fed already.
  """
  specs = structures.flatten_spec_structure(spec_structure)
  arrays = structures.flatten_spec_structure(spec_numpy)
  validation.assert_required(specs, arrays, ignore_batch)
  feed_dict = {} if feed_dict is None else feed_dict
  expected = {path: array for path, array in arrays.items() if path in specs}
  _refuse_fed("map_predict_fn_dict", [path for path in expected if path in feed_dict])
  feed_dict.update(expected)
  return feed_dict


def map_feed_dict_unsafe(
  feature_placeholders_spec: SpecStructure, np_inputs_spec: SpecStructure
) -> dict[Any, Any]:
  """Maps placeholders to arrays, without a check of shapes and dtypes.

  Arrays without a placeholder are logged and left out.

  Raises:
    SpecError: an array is missing, or the placeholders are Keras inputs.
  """
  logging.warning("map_feed_dict_unsafe checks no shapes or dtypes; use map_feed_dict.")
  placeholders = structures.flatten_spec_structure(feature_placeholders_spec)
  arrays = structures.flatten_spec_structure(np_inputs_spec)
  _refuse_keras_inputs(placeholders)
  for path in arrays:
    if path not in placeholders:
      logging.warning("map_feed_dict_unsafe: %s: there is no such placeholder.", path)
  missing = structures.missing_leaves(placeholders, arrays) if placeholders else []
  if missing:
    raise errors.mismatch_error("map_feed_dict_unsafe", missing)
  return {placeholders[path]: arrays[path] for path in placeholders}


def _input_shape(spec: ExtendedTensorSpec, batch_size: int | None) -> tf.TensorShape:
  leading: list[int | None] = []
  if batch_size is None or batch_size > 0:
    leading.append(batch_size)
  if spec.is_sequence:
    leading.append(None)
  return tf.TensorShape(leading).concatenate(spec.shape)


def _op_name(name: str) -> str:
  name = _NOT_IN_OP_NAMES.sub("_", name)
  return name if re.match(r"[A-Za-z0-9.]", name) else f"input{name}"


def _unique(name: str, taken: set[str]) -> str:
  key = structures.signature_key(name)
  candidate, number = key, 0
  while candidate in taken:
    number += 1
    candidate = f"{key}_{number}"
  taken.add(candidate)
  return candidate


def _keras_input(path: str, dtype: tf.DType, shape: tf.TensorShape, name: str) -> Any:
  if shape.rank is None:
    want, hint = "a known rank", "Or make the placeholders inside a tf.Graph."
    mismatch = errors.Mismatch(path, want, "a shape of unknown rank", hint)
    raise errors.mismatch_error("make_placeholders", [mismatch])
  try:
    # Keras 2 reads an empty batch_shape as missing; Keras 3 has no type_spec.
    is_keras_3 = getattr(tf.keras, "__version__", "").startswith("3")
    if shape.rank == 0 and not is_keras_3:
      return tf.keras.Input(type_spec=tf.TensorSpec((), dtype), name=name)
    return tf.keras.Input(batch_shape=shape.as_list(), dtype=dtype.name, name=name)
  except (TypeError, ValueError) as e:
    mismatch = errors.Mismatch(path, "a Keras input", f"{shape} {dtype.name}", str(e))
    raise errors.mismatch_error("make_placeholders", [mismatch]) from e


def _refuse_keras_inputs(placeholders: SpecStructure) -> None:
  mismatches = [
    errors.Mismatch(path, "a placeholder of a tf.Graph", f"a Keras input {leaf.name}")
    for path, leaf in placeholders.items()
    if extended_tensor_spec.is_keras_tensor(leaf)
  ]
  if mismatches:
    raise errors.SpecError(
      f"{errors.mismatch_error('map_feed_dict', mismatches)}\n"
      "Keras inputs are not fed: call the model with map_predict_fn_dict's arrays."
    )


def _refuse_fed(operation: str, paths: list[str]) -> None:
  if paths:
    mismatches = [
      errors.Mismatch(p, "a free placeholder", "one fed already") for p in paths
    ]
    raise errors.mismatch_error(operation, mismatches)
