"""Checks of tensors or specs against a spec structure, with all mismatches at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import structures
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.image_headers import ImageHeader, read_image_header
from t2r_seq.specs.structures import SpecStructure, TensorSpecStruct


def maybe_ignore_batch(
  spec_or_tensors: SpecStructure, ignore_batch: bool = False
) -> SpecStructure:
  """Returns specs of the leaves without the batch axis, or the leaves unchanged.

  Raises:
    SpecError: a leaf has no axis, and `ignore_batch` is set.
  """
  if not ignore_batch:
    return spec_or_tensors
  return structures.map_leaves_with_path(
    lambda path, leaf: None if leaf is None else _without_first_axis(path, leaf),
    spec_or_tensors,
  )


def _without_first_axis(path: str, leaf: Any) -> ExtendedTensorSpec:
  spec = ExtendedTensorSpec.to_spec(leaf)
  if spec.shape.rank == 0:
    raise errors.SpecError(
      f"maybe_ignore_batch: {path}: expected a batch axis, got "
      f"{errors.describe(leaf)}. Batch the data first, or pass ignore_batch=False."
    )
  fields = {**spec.fields(), "time_offsets": None, "varlen_default_value": None}
  fields["shape"] = tf.TensorShape(None) if spec.shape.rank is None else spec.shape[1:]
  return ExtendedTensorSpec(**fields)


def assert_equal_spec_or_tensor(
  expected_spec_or_tensor: Any, actual_spec_or_tensor: Any
) -> None:
  """Raises SpecError if the shape or dtype of a spec or tensor differs.

  An expected dimension of None matches every size. The time axis of a tensor or array
  is ignored for a sequence spec.
  """
  mismatch = _compare("spec", expected_spec_or_tensor, actual_spec_or_tensor)
  if mismatch:
    raise errors.mismatch_error("assert_equal_spec_or_tensor", [mismatch])


def assert_equal(
  expected_tensors_or_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> None:
  """Raises SpecError if two structures differ in paths, shapes or dtypes.

  `ignore_batch` strips the batch axis from the actual side.
  """
  expected = structures.flatten_spec_structure(expected_tensors_or_spec)
  actual = structures.flatten_spec_structure(actual_tensors_or_spec)
  mismatches = _compare_flat(expected, actual, ignore_batch)
  mismatches += [
    errors.Mismatch(path, "nothing", errors.describe(leaf))
    for path, leaf in actual.items()
    if path not in expected
  ]
  if mismatches:
    raise errors.mismatch_error("assert_equal", mismatches)


def assert_required(
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> None:
  """Raises SpecError if a required leaf is missing, or a leaf does not match its spec.

  Other actual leaves are allowed. `ignore_batch` strips the batch axis from the actual
  side.
  """
  _check_required(
    "assert_required", expected_spec, actual_tensors_or_spec, ignore_batch
  )


# Models call these two; AutoGraph would warn about difflib, which finds the hints.
@tf.autograph.experimental.do_not_convert
def validate_and_flatten(
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> TensorSpecStruct:
  """Checks like `assert_required`, then returns all actual leaves by path, extra too.

  >>> import numpy as np
  >>> from t2r_seq import specs
  >>> expected = {"pose": specs.ExtendedTensorSpec((7,), "float32", "pose")}
  >>> specs.validate_and_flatten(expected, {"pose": np.zeros(6, np.float32)})
  Traceback (most recent call last):
  ...
  t2r_seq.errors.SpecError: ... pose: expected (7,) float32, got (6,) float32...

  Args:
    expected_spec: the expected specs.
    actual_tensors_or_spec: tensors, arrays or specs, flat or packed.
    ignore_batch: strips the batch axis from the actual side for the comparison.
  Raises:
    SpecError: a structure is invalid; or tensors are missing or do not match, and all
      of them are listed.
  """
  return _check_required(
    "validate_and_flatten", expected_spec, actual_tensors_or_spec, ignore_batch
  )


@tf.autograph.experimental.do_not_convert
def validate_and_pack(
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> SpecStructure:
  """Checks like `assert_required`, then packs leaves into the form of `expected_spec`.

  >>> import numpy as np
  >>> from t2r_seq import specs
  >>> expected = {"state": {"pose": specs.ExtendedTensorSpec((7,), "float32", "pose")}}
  >>> batch = {"state/pose": np.zeros((8, 7), np.float32), "more": np.zeros(8)}
  >>> packed = specs.validate_and_pack(expected, batch, ignore_batch=True)
  >>> packed["state"]["pose"].shape, list(packed)
  ((8, 7), ['state'])

  Args:
    expected_spec: the expected specs.
    actual_tensors_or_spec: tensors, arrays or specs, flat or packed.
    ignore_batch: strips the batch axis from the actual side for the comparison.
  Returns:
    The form of `expected_spec`; absent optionals are None, other leaves are left out.
  Raises:
    SpecError: a structure is invalid; or tensors are missing or do not match, and all
      of them are listed.
  """
  actual = _check_required(
    "validate_and_pack", expected_spec, actual_tensors_or_spec, ignore_batch
  )
  return structures.pack_flat_sequence_to_spec_structure(expected_spec, actual)


def _check_required(
  operation: str,
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool,
) -> TensorSpecStruct:
  """Raises one error for all mismatches; returns the flat actual leaves."""
  expected = structures.flatten_spec_structure(expected_spec)
  actual = structures.flatten_spec_structure(actual_tensors_or_spec)
  present = TensorSpecStruct((p, leaf) for p, leaf in actual.items() if p in expected)
  axes = ["batch"] if ignore_batch else []
  mismatches = structures.missing_leaves(
    expected,
    actual,
    lambda spec: _describe(ExtendedTensorSpec.to_spec(spec), axes),
  )
  given = TensorSpecStruct((p, spec) for p, spec in expected.items() if p in present)
  mismatches += _compare_flat(given, present, ignore_batch)
  if mismatches:
    raise errors.mismatch_error(operation, mismatches)
  return actual


def _compare_flat(
  expected: TensorSpecStruct, actual: Mapping[str, Any], ignore_batch: bool
) -> list[errors.Mismatch]:
  mismatches = []
  extra = [path for path in actual if path not in expected]
  for path, spec in expected.items():
    if path not in actual:
      hint = errors.nearest(path, extra)
      mismatches.append(errors.Mismatch(path, errors.describe(spec), "nothing", hint))
    elif mismatch := _compare(path, spec, actual[path], ignore_batch):
      mismatches.append(mismatch)
  return mismatches


def _compare(
  path: str, expected: Any, actual: Any, ignore_batch: bool = False
) -> errors.Mismatch | None:
  want = ExtendedTensorSpec.to_spec(expected)
  got = ExtendedTensorSpec.to_spec(actual)
  axes = ["batch"] if ignore_batch else []
  if want.is_sequence and got.is_extracted:
    axes.append("time")
  if want.dtype == got.dtype and _fits(want.shape, got.shape, len(axes)):
    return None
  return errors.Mismatch(path, _describe(want, axes), errors.describe(got))


def _describe(want: ExtendedTensorSpec, axes: list[str]) -> str:
  """Describes the expected leaf, with the names of the axes of any size."""
  if not axes or want.shape.rank is None:
    return errors.describe(want)
  dims = ", ".join([*axes, *map(str, want.shape.as_list())])
  return f"({dims}) {want.dtype.name}"


def _fits(want: tf.TensorShape, got: tf.TensorShape, num_free: int) -> bool:
  """Whether `got`, after its first `num_free` axes, has the expected dimensions."""
  if want.rank is None:
    return True
  if got.rank != want.rank + num_free:
    return False
  return all(
    w is None or w == g
    for w, g in zip(want.as_list(), got.as_list()[num_free:], strict=True)
  )


def find_misfit(
  images: Iterable[bytes],
  spec: ExtendedTensorSpec,
  path: str,
  allow_empty: bool = False,
) -> tuple[int, errors.Mismatch] | None:
  """Finds the first image with a wrong size, a wrong depth or no header.

  The format and the number of channels may differ: the decoder converts them.

  Args:
    images: encoded images.
    spec: an image spec [..., h, w, c].
    path: path of the spec.
    allow_empty: accepts empty byte strings, which are decoded as black.
  Returns:
    (its number, the mismatch); or None if all images fit.
  """
  shape = tuple(spec.shape.as_list()[-3:])
  want = (*shape[:2], 8 * spec.dtype.size)
  for index, data in enumerate(images):
    if not data and allow_empty:
      continue
    header = read_image_header(data)
    if header is None or (header.height, header.width, header.bits) != want:
      expected = f"an image of {shape}"
      if header and header.bits != want[2]:
        expected += f" with {want[2]} bits per channel"
      return index, errors.Mismatch(
        path, expected, *_describe_image(data, header, want[2])
      )
  return None


def _describe_image(
  data: bytes, header: ImageHeader | None, bits: int
) -> tuple[str, str]:
  """Returns what a wrong image is, and a hint."""
  if header is None and not data:
    return "an empty byte string", "Only an optional spec has images that are absent."
  if header is None:
    return f"{len(data)} bytes that are not an image", ""
  got = f"{header.height}x{header.width} {header.format.upper()}"
  if header.bits == bits:
    return got, ""
  hint = f"Declare {'uint8' if header.bits == 8 else 'uint16'}."
  return f"{got} with {header.bits} bits per channel", hint
