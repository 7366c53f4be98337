"""Spec structures derived from others: copies, filters, casts."""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import structures
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.structures import SpecStructure
from t2r_seq.specs.tensor_spec_struct import TensorSpecStruct


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
  structures.assert_only_specs("copy_tensorspec", spec_structure)
  start = f"{prefix}/" if prefix else ""
  return structures.map_leaves(
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
  if not structures.is_flat_spec_or_tensors_structure(flat_tensor_spec):
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
  flat = structures.flatten_spec_structure(spec_structure, filter_none)
  return TensorSpecStruct(
    (path, spec)
    for path, spec in flat.items()
    if not dataset_key or getattr(spec, "dataset_key", "") == dataset_key
  )


def add_sequence_length_specs(spec_structure: SpecStructure) -> TensorSpecStruct:
  """Adds an int64 scalar spec '<path>_length' for every sequence spec."""
  flat = structures.flatten_spec_structure(spec_structure)
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
    for path, spec in structures.flatten_spec_structure(output_spec).items()
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
  structures.assert_valid_spec_structure(tensors)
  numbers = itertools.count()

  def describe(path: str, tensor: Any) -> ExtendedTensorSpec | None:
    if tensor is None:
      return None
    spec = ExtendedTensorSpec.to_spec(tensor)
    name = f"{spec.name or path}/{next(numbers)}"
    return ExtendedTensorSpec.from_spec(spec, name=name, is_extracted=True)

  return structures.map_leaves_with_path(describe, tensors)
