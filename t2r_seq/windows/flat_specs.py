"""What the time offsets of a spec structure imply: flat specs, span, history."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct

_MASK_SUFFIX = "_mask"


def is_windowed(spec_structure: SpecStructure) -> bool:
  """Whether any spec of the structure has time offsets."""
  flat = specs.flatten_spec_structure(spec_structure)
  return any(getattr(spec, "time_offsets", None) is not None for spec in flat.values())


def time_span(spec_structure: SpecStructure) -> tuple[int, int]:
  """Returns the smallest and largest offset that any spec reads; 0 is included.

  Args:
    spec_structure: specs, any of which may have time offsets.
  Returns:
    (min_offset <= 0, max_offset >= 0), in steps.
  """
  offsets = {0}
  for spec in specs.flatten_spec_structure(spec_structure).values():
    offsets.update(_offsets(spec))
  return min(offsets), max(offsets)


def history_length(spec_structure: SpecStructure) -> int:
  """Returns how many steps, the present one included, a policy must remember."""
  return 1 - time_span(spec_structure)[0]


def flat_length(num_stacks: int, span: tuple[int, int], stride: int = 1) -> int:
  """Returns the flat steps that a sequence of stacks needs.

  With stride 1 and K consecutive frames that is `num_stacks + K - 1`, as in Reverb's
  frame-stacking example.

  Args:
    num_stacks: L >= 1, stacks in the sequence.
    span: smallest and largest offset, as from `time_span`.
    stride: steps between the stacks.
  Returns:
    `(L - 1) * stride + max_offset - min_offset + 1`.
  """
  return (num_stacks - 1) * stride + span[1] - span[0] + 1


def flat_specs(spec_structure: SpecStructure) -> TensorSpecStruct:
  """Derives what one episode record holds, each step once.

  A spec with time offsets becomes a sequence spec of one step. A spec without offsets
  stays as it is: a sequence, or a context feature of the whole episode. Mask specs
  (see `add_mask_specs`) are computed, not stored, and are left out.

  Args:
    spec_structure: the specs of a window.
  Returns:
    Flat specs by path, none with time offsets.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  masks = mask_paths(flat)
  return TensorSpecStruct(
    (path, _flat_spec(ExtendedTensorSpec.to_spec(spec)))
    for path, spec in flat.items()
    if path not in masks
  )


def add_mask_specs(
  spec_structure: SpecStructure, paths: Iterable[str] | None = None
) -> TensorSpecStruct:
  """Adds a bool spec '<path>_mask' that is true where a window shows a real step.

  Declaring the mask is what makes the input pipeline deliver it.

  Args:
    spec_structure: specs with time offsets.
    paths: which paths get a mask; by default every one with time offsets.
  Returns:
    Flat specs with the masks, of shape [K] for a stack and () for an int offset.
  Raises:
    SpecError: a path that has no time offsets.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  windowed = [path for path, spec in flat.items() if _offsets(spec)]
  for path in windowed if paths is None else paths:
    if path not in windowed:
      raise errors.SpecError(
        f"add_mask_specs: {path}: expected a spec with time offsets."
        f"{errors.nearest(path, windowed)} There is {errors.listing(windowed)}."
      )
    flat[path + _MASK_SUFFIX] = mask_spec(flat[path])
  return flat


def mask_spec(spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
  """Returns the spec of the mask that belongs to a windowed spec.

  The mask of an optional path is optional, too: they are absent together.
  """
  stacked = isinstance(spec.time_offsets, tuple)
  shape = spec.shape[:1] if stacked else tf.TensorShape(())
  return ExtendedTensorSpec(
    shape, tf.bool, is_optional=spec.is_optional, is_sequence=spec.is_sequence
  )


def mask_paths(flat: TensorSpecStruct) -> dict[str, str]:
  """Maps the path of every declared mask to the path that it masks."""
  return {
    path: path.removesuffix(_MASK_SUFFIX)
    for path, spec in flat.items()
    if path.endswith(_MASK_SUFFIX)
    and spec.name is None
    and spec.dtype == tf.bool
    and _offsets(flat.get(path.removesuffix(_MASK_SUFFIX)))
  }


def mask_path(path: str) -> str:
  """Returns where the mask of a path stands."""
  return path + _MASK_SUFFIX


def _offsets(spec: tf.TensorSpec | None) -> tuple[int, ...]:
  offsets = getattr(spec, "time_offsets", None)
  if offsets is None:
    return ()
  return offsets if isinstance(offsets, tuple) else (offsets,)


def _flat_spec(spec: ExtendedTensorSpec) -> ExtendedTensorSpec:
  if spec.time_offsets is None:
    return spec
  return ExtendedTensorSpec.from_spec(
    spec, shape=spec.frame_shape, is_sequence=True, time_offsets=None
  )
