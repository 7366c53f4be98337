"""Do these tensors (or specs) fulfil that spec structure? All mismatches at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.specs import structures
from t2r_seq.specs.extended_tensor_spec import ExtendedTensorSpec
from t2r_seq.specs.image_headers import ImageHeader, read_image_header
from t2r_seq.specs.structures import SpecStructure, TensorSpecStruct

# Models call these; AutoGraph warns of difflib, which looks for a hint.
_as_it_is = tf.autograph.experimental.do_not_convert


def maybe_ignore_batch(
  spec_or_tensors: SpecStructure, ignore_batch: bool = False
) -> SpecStructure:
  """Strips the batch axis: returns specs without the first axis, on request.

  Args:
    spec_or_tensors: a structure of specs, tensors or arrays.
    ignore_batch: False returns the argument as it is.
  Returns:
    The structure, its leaves replaced by `ExtendedTensorSpec`s of `shape[1:]`.
  Raises:
    SpecError: a leaf has no axis to strip.
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
  """Checks one spec or tensor against another in shape and dtype.

  An expected dimension of None fits every size. Where a sequence spec meets a tensor
  or array, the latter's time axis is dropped.

  Args:
    expected_spec_or_tensor: what is asked for.
    actual_spec_or_tensor: what there is.
  Raises:
    SpecError: shape or dtype differ.
  """
  mismatch = _compare("spec", expected_spec_or_tensor, actual_spec_or_tensor)
  if mismatch:
    raise errors.mismatch_error("assert_equal_spec_or_tensor", [mismatch])


def assert_equal(
  expected_tensors_or_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> None:
  """Checks that two structures have the same paths, shapes and dtypes.

  Args:
    expected_tensors_or_spec: what is asked for.
    actual_tensors_or_spec: what there is.
    ignore_batch: strips the batch axis from the actual side, and from that only.
  Raises:
    SpecError: with every mismatch.
  """
  expected = structures.flatten_spec_structure(expected_tensors_or_spec)
  actual = structures.flatten_spec_structure(actual_tensors_or_spec)
  found = _compare_flat(expected, actual, ignore_batch)
  found += [
    errors.Mismatch(path, "nothing", errors.describe(leaf))
    for path, leaf in actual.items()
    if path not in expected
  ]
  if found:
    raise errors.mismatch_error("assert_equal", found)


def assert_required(
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> None:
  """Checks that every required spec is there and that optional ones fit if given.

  Args:
    expected_spec: what is asked for; further actual leaves are allowed.
    actual_tensors_or_spec: what there is.
    ignore_batch: strips the batch axis from the actual side.
  Raises:
    SpecError: with every mismatch and missing path.
  """
  _check_required(
    "assert_required", expected_spec, actual_tensors_or_spec, ignore_batch
  )


@_as_it_is
def validate_and_flatten(
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> TensorSpecStruct:
  """Checks like `assert_required`, then flattens what was given.

  Args:
    expected_spec: what is asked for.
    actual_tensors_or_spec: what there is.
    ignore_batch: strips the batch axis from the actual side for the comparison.
  Returns:
    All actual leaves by path, those that were not asked for too.
  Raises:
    SpecError: with every mismatch and missing path.
  """
  return _check_required(
    "validate_and_flatten", expected_spec, actual_tensors_or_spec, ignore_batch
  )


@_as_it_is
def validate_and_pack(
  expected_spec: SpecStructure,
  actual_tensors_or_spec: SpecStructure,
  ignore_batch: bool = False,
) -> SpecStructure:
  """Checks like `assert_required`, then packs into the form of the expected spec.

  Args:
    expected_spec: what is asked for; gives the form.
    actual_tensors_or_spec: what there is, flat or packed.
    ignore_batch: strips the batch axis from the actual side for the comparison.
  Returns:
    The form of `expected_spec`; absent optionals are None, and leaves that were not
    asked for are left out.
  Raises:
    SpecError: with every mismatch and missing path.
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
  asked = TensorSpecStruct((p, leaf) for p, leaf in actual.items() if p in expected)
  axes = ["batch"] if ignore_batch else []
  found = structures.missing_leaves(
    expected,
    actual,
    lambda spec: _describe(ExtendedTensorSpec.to_spec(spec), axes),
  )
  given = TensorSpecStruct((p, spec) for p, spec in expected.items() if p in asked)
  found += _compare_flat(given, asked, ignore_batch)
  if found:
    raise errors.mismatch_error(operation, found)
  return actual


def _compare_flat(
  expected: TensorSpecStruct, actual: Mapping[str, Any], ignore_batch: bool
) -> list[errors.Mismatch]:
  found = []
  extra = [path for path in actual if path not in expected]
  for path, spec in expected.items():
    if path not in actual:
      hint = errors.nearest(path, extra)
      found.append(errors.Mismatch(path, errors.describe(spec), "nothing", hint))
    elif mismatch := _compare(path, spec, actual[path], ignore_batch):
      found.append(mismatch)
  return found


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
  """Renders what is expected, with the axes that may be of any size by name."""
  if not axes or want.shape.rank is None:
    return errors.describe(want)
  dims = ", ".join([*axes, *map(str, want.shape.as_list())])
  return f"({dims}) {want.dtype.name}"


def _fits(want: tf.TensorShape, got: tf.TensorShape, num_free: int) -> bool:
  """Whether `got`, behind its first `num_free` axes, has the wanted dimensions."""
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
  """Looks at the headers of encoded images; that costs about 1 us each, of any size.

  The format is whatever the header says, and the decoder converts gray and color.

  Args:
    images: encoded images.
    spec: an image spec [..., h, w, c].
    path: of the spec.
    allow_empty: empty byte strings, which are read as black, are no misfits.
  Returns:
    The number of the first image of another size or depth, or that is none, and what
    is wrong; None where all fit.
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
        path, expected, *_describe_image_checks(data, header, want[2])
      )
  return None


def _describe_image_checks(
  data: bytes, header: ImageHeader | None, bits: int
) -> tuple[str, str]:
  """Renders what there is, and what to do about it."""
  if header is None and not data:
    return "an empty byte string", "Only an optional spec has images that are absent."
  if header is None:
    return f"{len(data)} bytes that are no image", ""
  got = f"{header.height}x{header.width} {header.format.upper()}"
  if header.bits == bits:
    return got, ""
  hint = f"Declare {'uint8' if header.bits == 8 else 'uint16'}."
  return f"{got} with {header.bits} bits per channel", hint
