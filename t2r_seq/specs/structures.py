"""Spec structures: flattened, packed, checked, and derived from others.

A spec structure is a hierarchy of dicts, (named)tuples, lists and `TensorSpecStruct`s
whose leaves are specs, tensors or arrays, or None for an absent optional.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import extended_tensor_spec
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.tensor_spec_struct import TensorSpecStruct

SpecStructure = Any


def is_flat_spec_or_tensors_structure(spec_or_tensors: Any) -> bool:
  """Whether this is a mapping of paths to leaves; a list is not flat."""
  return isinstance(spec_or_tensors, Mapping) and all(
    value is None or extended_tensor_spec.is_leaf(value)
    for value in spec_or_tensors.values()
  )


def flatten_spec_structure(
  spec_structure: SpecStructure, filter_none: bool = True
) -> TensorSpecStruct:
  """Flattens a structure to a `TensorSpecStruct` by '/' paths.

  List and tuple elements get their index as a name. Flattening twice changes nothing.

  Args:
    spec_structure: a structure of specs, tensors or arrays.
    filter_none: leaves out the None of absent optionals.
  Returns:
    A new struct, in the order of the structure; leaves are shared.
  Raises:
    SpecError: see `assert_valid_spec_structure`.
  """
  assert_valid_spec_structure(spec_structure)
  return TensorSpecStruct(
    (path, leaf)
    for path, leaf in iterate_leaves(spec_structure)
    if leaf is not None or not filter_none
  )


def pack_flat_sequence_to_spec_structure(
  spec_structure: SpecStructure, flat_sequence_with_joined_string_paths: Any
) -> SpecStructure:
  """Packs the leaves of a flat structure into the form of another.

  Args:
    spec_structure: gives the form; a TensorSpecStruct packs with sorted keys.
    flat_sequence_with_joined_string_paths: leaves by path; further ones are left out.
  Returns:
    The form of `spec_structure` with the given leaves; absent optionals are None.
  Raises:
    SpecError: required leaves are missing (all are named), or the second argument is
      not flat.
  """
  flat = flat_sequence_with_joined_string_paths
  assert_valid_spec_structure(spec_structure)
  if not is_flat_spec_or_tensors_structure(flat):
    raise errors.SpecError(
      "pack_flat_sequence_to_spec_structure: expected a flat mapping of paths to "
      f"leaves, got {errors.describe(flat)}. Use flatten_spec_structure first."
    )
  missing = missing_leaves(spec_structure, flat)
  if missing:
    raise errors.mismatch_error("pack_flat_sequence_to_spec_structure", missing)
  packed = map_leaves_with_path(lambda path, _: flat.get(path), spec_structure)
  if isinstance(packed, TensorSpecStruct):
    return TensorSpecStruct(sorted(packed.items()))
  return packed


def missing_leaves(
  spec_structure: SpecStructure,
  flat: Mapping[str, Any],
  describe: Callable[[Any], str] = errors.describe,
) -> list[errors.Mismatch]:
  """Lists the required specs of a structure that a flat mapping lacks.

  Args:
    spec_structure: what is asked for.
    flat: leaves by path.
    describe: renders a spec for the message.
  Returns:
    One mismatch per missing path, with the nearest of the paths that nobody asked for.
  """
  wanted = dict(iterate_leaves(spec_structure))
  unused = [path for path in flat if path not in wanted]
  return [
    errors.Mismatch(path, describe(spec), "nothing", errors.nearest(path, unused))
    for path, spec in wanted.items()
    if spec is not None
    and not getattr(spec, "is_optional", False)
    and flat.get(path) is None
  ]


def assert_valid_spec_structure(spec_structure: SpecStructure) -> None:
  """Checks that a structure holds only leaves, and that names are used consistently.

  Specs of one name and dataset read the same record feature, so any two of them must
  agree in dtype and in the shape of one step; they may differ in their time offsets.
  Specs of different datasets may share a name.

  Args:
    spec_structure: a structure of specs, tensors or arrays.
  Raises:
    SpecError: a leaf of another kind, no structure at all, or two specs of one name
      that disagree (both paths are named).
  """
  # Compatible is not transitive, (None,) goes with (2,) and with (3,): a spec is held
  # against every frame shape that its name has had so far, of which there are few.
  by_name: dict[tuple[str, str], list[tuple[str, ExtendedTensorSpec]]] = {}
  for path, leaf in iterate_leaves(spec_structure):
    if leaf is None or not isinstance(leaf, tf.TensorSpec) or leaf.name is None:
      continue
    spec = ExtendedTensorSpec.to_spec(leaf)
    others = by_name.setdefault((spec.dataset_key, spec.name), [])
    for other_path, other in others:
      if not _is_same_feature(spec, other):
        raise errors.SpecError(
          f"assert_valid_spec_structure: {path}: expected the shape and dtype of "
          f"{other_path}, {errors.describe(other)}, because both are named "
          f"'{spec.name}', got {errors.describe(spec)}. A name is a record's "
          "feature: it has one dtype and one shape of a step. Cast in a preprocessor."
        )
    if all(spec.frame_shape != other.frame_shape for _, other in others):
      others.append((path, spec))


def _is_same_feature(a: ExtendedTensorSpec, b: ExtendedTensorSpec) -> bool:
  return a.dtype == b.dtype and a.frame_shape.is_compatible_with(b.frame_shape)


def iterate_leaves(
  spec_structure: SpecStructure, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
  """Yields (path, leaf) in the structure's order; None leaves too.

  Args:
    spec_structure: a structure of specs, tensors or arrays.
    prefix: path of the structure itself.
  Yields:
    Pairs of path and leaf.
  Raises:
    SpecError: a leaf that is no spec, tensor or array, or no structure at all.
  """
  if not isinstance(spec_structure, (Mapping, list, tuple)):
    raise errors.SpecError(
      f"spec structure: {prefix or 'the root'}: expected a dict, (named)tuple, list or "
      f"TensorSpecStruct of specs, tensors or arrays, got "
      f"{errors.describe(spec_structure)}."
    )
  for name, value in _children(spec_structure):
    path = f"{prefix}/{name}" if prefix else name
    if value is None or extended_tensor_spec.is_leaf(value):
      yield path, value
    else:
      yield from iterate_leaves(value, path)


def map_leaves_with_path(
  fn: Callable[[str, Any], Any], spec_structure: SpecStructure, prefix: str = ""
) -> SpecStructure:
  """Builds a structure of the same form from `fn(path, leaf)`; None leaves too."""

  def convert(name: str, value: Any) -> Any:
    path = f"{prefix}/{name}" if prefix else name
    if value is None or extended_tensor_spec.is_leaf(value):
      return fn(path, value)
    return map_leaves_with_path(fn, value, path)

  converted = [
    (name, convert(name, value)) for name, value in _children(spec_structure)
  ]
  if isinstance(spec_structure, TensorSpecStruct):
    return TensorSpecStruct(converted)
  form: Any = type(spec_structure)
  if isinstance(spec_structure, collections.defaultdict):
    return form(spec_structure.default_factory, converted)
  if isinstance(spec_structure, Mapping):
    return form(converted)
  values = [value for _, value in converted]
  if hasattr(spec_structure, "_fields"):
    return form(*values)
  return form(values)


def map_leaves(
  fn: Callable[[Any], Any], spec_structure: SpecStructure
) -> SpecStructure:
  """Builds a structure of the same form from `fn(leaf)`; None stays None."""
  return map_leaves_with_path(
    lambda _, leaf: None if leaf is None else fn(leaf), spec_structure
  )


def _children(spec_structure: SpecStructure) -> list[tuple[str, Any]]:
  if isinstance(spec_structure, Mapping):
    return list(spec_structure.items())
  names = getattr(spec_structure, "_fields", None)
  if names is None:
    names = [str(i) for i in range(len(spec_structure))]
  return list(zip(names, spec_structure, strict=True))


def assert_only_specs(operation: str, spec_structure: SpecStructure) -> None:
  """Checks that a structure is valid and holds specs, no tensors or arrays.

  Args:
    operation: who asks, for the error.
    spec_structure: a structure of specs; None leaves are allowed.
  Raises:
    SpecError: another leaf (all are named), or an invalid structure.
  """
  assert_valid_spec_structure(spec_structure)
  mismatches = [
    errors.Mismatch(path, "a spec", f"{type(leaf).__name__} {errors.describe(leaf)}")
    for path, leaf in iterate_leaves(spec_structure)
    if leaf is not None and not isinstance(leaf, tf.TensorSpec)
  ]
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)


def signature_key(path: str) -> str:
  """Returns the argument name of a path in an exported signature: 'state_image'.

  Signature arguments are identifiers, so every other character becomes '_'.
  """
  key = re.sub(r"\W", "_", path)
  return f"_{key}" if key[0].isdigit() else key


def copy_tensorspec(
  spec_structure: SpecStructure, prefix: str = "", batch_size: int | None = None
) -> SpecStructure:
  """Copies a structure of specs with prefixed names.

  Args:
    spec_structure: a structure of specs.
    prefix: put before every name with a '/'; a missing name becomes 'prefix/'.
    batch_size: prepends a batch axis; see `ExtendedTensorSpec.from_spec`.
  Returns:
    The same form with new specs.
  Raises:
    SpecError: the structure is not valid, or a leaf is not a spec.
  """
  assert_only_specs("copy_tensorspec", spec_structure)
  start = f"{prefix}/" if prefix else ""
  return map_leaves(
    lambda spec: ExtendedTensorSpec.from_spec(
      spec, name=start + (spec.name or ""), batch_size=batch_size
    ),
    spec_structure,
  )


def filter_required_flat_tensor_spec(
  flat_tensor_spec: SpecStructure,
) -> TensorSpecStruct:
  """Keeps the specs of a flat structure that are not optional.

  Raises:
    SpecError: the structure is not flat.
  """
  if not is_flat_spec_or_tensors_structure(flat_tensor_spec):
    raise errors.SpecError(
      "filter_required_flat_tensor_spec: expected a flat mapping of paths to specs, "
      f"got {errors.describe(flat_tensor_spec)}. Use flatten_spec_structure first."
    )
  return TensorSpecStruct(
    (path, spec)
    for path, spec in flat_tensor_spec.items()
    if not getattr(spec, "is_optional", False)
  )


def filter_spec_structure_by_dataset(
  spec_structure: SpecStructure, dataset_key: str, filter_none: bool = True
) -> TensorSpecStruct:
  """Keeps the specs that one dataset holds, flattened.

  Args:
    spec_structure: a structure of specs.
    dataset_key: '' keeps all.
    filter_none: leaves out None.
  Returns:
    A flat struct.
  """
  flat = flatten_spec_structure(spec_structure, filter_none)
  return TensorSpecStruct(
    (path, spec)
    for path, spec in flat.items()
    if not dataset_key or getattr(spec, "dataset_key", "") == dataset_key
  )


def add_sequence_length_specs(spec_structure: SpecStructure) -> TensorSpecStruct:
  """Adds an int64 scalar spec '<path>_length' for every sequence spec."""
  flat = flatten_spec_structure(spec_structure)
  for path, spec in list(flat.items()):
    spec = ExtendedTensorSpec.to_spec(spec)
    if spec.is_sequence:
      name = None if spec.name is None else f"{spec.name}_length"
      flat[f"{path}_length"] = ExtendedTensorSpec(
        (), tf.int64, name, dataset_key=spec.dataset_key
      )
  return flat


def replace_dtype(
  tensor_spec_struct: TensorSpecStruct, from_dtype: Any, to_dtype: Any
) -> TensorSpecStruct:
  """Replaces one dtype by another, in place.

  Args:
    tensor_spec_struct: flat specs; changed.
    from_dtype: the dtype to replace.
    to_dtype: the new dtype.
  Returns:
    The same struct.
  """
  for path, spec in list(tensor_spec_struct.items()):
    if spec is not None and spec.dtype == from_dtype:
      tensor_spec_struct[path] = ExtendedTensorSpec.from_spec(spec, dtype=to_dtype)
  return tensor_spec_struct


def cast_float32_to_bfloat16(
  tensor_spec_struct: TensorSpecStruct, output_spec: SpecStructure
) -> TensorSpecStruct:
  """Casts the tensors that `output_spec` wants in bfloat16, in place.

  Args:
    tensor_spec_struct: tensors by path; changed.
    output_spec: specs by path.
  Returns:
    The same struct.
  Raises:
    SpecError: tensors to cast that are not float32; all are named.
  """
  wanted = [
    path
    for path, spec in flatten_spec_structure(output_spec).items()
    if spec.dtype == tf.bfloat16 and tensor_spec_struct.get(path) is not None
  ]
  wrong = [path for path in wanted if tensor_spec_struct[path].dtype != tf.float32]
  if wrong:
    raise errors.mismatch_error(
      "cast_float32_to_bfloat16",
      [
        errors.Mismatch(path, "float32", errors.describe(tensor_spec_struct[path]))
        for path in wrong
      ],
    )
  for path in wanted:
    tensor_spec_struct[path] = tf.cast(tensor_spec_struct[path], tf.bfloat16)
  return tensor_spec_struct


def cast_bfloat16_to_float32(tensor_spec_struct: TensorSpecStruct) -> TensorSpecStruct:
  """Casts every bfloat16 tensor to float32, in place; returns the same struct."""
  for path, tensor in list(tensor_spec_struct.items()):
    if tensor is not None and tensor.dtype == tf.bfloat16:
      tensor_spec_struct[path] = tf.cast(tensor, tf.float32)
  return tensor_spec_struct


def tensorspec_from_tensors(tensors: SpecStructure) -> SpecStructure:
  """Describes a structure of tensors or arrays by specs with unique names.

  Args:
    tensors: a structure of tensors or arrays.
  Returns:
    The same form; every name is the tensor's name (or its path) and a running number.
  Raises:
    SpecError: the structure is not valid.
  """
  assert_valid_spec_structure(tensors)
  numbers = itertools.count()

  def describe(path: str, tensor: Any) -> ExtendedTensorSpec | None:
    if tensor is None:
      return None
    spec = ExtendedTensorSpec.to_spec(tensor)
    name = f"{spec.name or path}/{next(numbers)}"
    return ExtendedTensorSpec.from_spec(spec, name=name, is_extracted=True)

  return map_leaves_with_path(describe, tensors)


def pad_or_clip_tensor_to_spec_shape(
  tensor: tf.Tensor, tensor_spec: ExtendedTensorSpec
) -> tf.Tensor:
  """Pads or clips a batch of lists to `tensor_spec.shape[0]` elements.

  The parser does this by itself for varlen specs; this is for tensors from elsewhere.

  Args:
    tensor: [batch, n, ...].
    tensor_spec: a spec with a `varlen_default_value`, which pads.
  Returns:
    [batch, *tensor_spec.shape], of the tensor's dtype.
  Raises:
    SpecError: the spec is not of variable length, or the tensor's rank or element
      shape differs from the spec's.
  """
  if tensor_spec.varlen_default_value is None:
    raise errors.SpecError(
      f"pad_or_clip_tensor_to_spec_shape: {tensor_spec.name}: expected a spec with a "
      f"varlen_default_value, got {tensor_spec!r}."
    )
  length, element_shape = tensor_spec.shape[0], tensor_spec.shape[1:]
  want = tf.TensorShape([None, None]).concatenate(element_shape)
  if not tensor.shape.is_compatible_with(want):
    mismatch = errors.Mismatch(
      str(tensor_spec.name), f"shape {want}", errors.describe(tensor)
    )
    raise errors.mismatch_error("pad_or_clip_tensor_to_spec_shape", [mismatch])
  clipped = tensor[:, :length]
  shape = tf.shape(clipped)
  missing = tf.concat([shape[:1], [length - shape[1]], shape[2:]], 0)
  default = _cast(tensor_spec.varlen_default_value, tensor.dtype)
  padded = tf.concat([clipped, tf.fill(missing, default)], 1)
  return tf.ensure_shape(padded, tensor.shape[:1].concatenate(tensor_spec.shape))


def _cast(value: object, dtype: tf.DType) -> tf.Tensor:
  # Tensor2Robot's specs give 3.0 as the default of integers too.
  return tf.constant(value) if dtype == tf.string else tf.cast(value, dtype)
