"""What the time offsets of a spec structure imply: flat specs, span, masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.windows.cut import NStep
from t2r_seq.windows.n_step import computed_paths

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


def flat_specs(
  spec_structure: SpecStructure, n_step: NStep | tuple[int, float] | None = None
) -> TensorSpecStruct:
  """Derives what one episode record holds, each step once.

  A spec with time offsets becomes a sequence spec of one step. A spec without offsets
  stays as it is: a sequence, or a context feature of the whole episode. What is
  computed and not stored is left out: masks (see `add_mask_specs`), and what `n_step`
  adds to transitions.

  Args:
    spec_structure: the specs of a window.
    n_step: how transitions are joined, if they are.
  Returns:
    Flat specs by path, none with time offsets.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  computed = {**mask_paths(flat), **computed_paths(flat, NStep.of(n_step))}
  return TensorSpecStruct(
    (path, _flat_spec(ExtendedTensorSpec.to_spec(spec)))
    for path, spec in flat.items()
    if path not in computed
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


def masked_mean(values: Any, mask: Any, axis: Any = None) -> tf.Tensor:
  """Averages the values at real steps; padded ones have no value and no gradient.

  Args:
    values: [..., D...], floating point.
    mask: bool, the leading axes of `values`: a mask [B, L] masks values [B, L, D].
    axis: axes to reduce, as in `tf.reduce_mean`; None for all.
  Returns:
    The mean over the unmasked values, in their dtype; 0 where everything is masked.
  Raises:
    SpecError: the values are not floating point, or the mask is none of theirs.
  """
  values = tf.convert_to_tensor(values)
  mask = tf.convert_to_tensor(mask)
  if not values.dtype.is_floating:
    raise errors.SpecError(
      "masked_mean: values: expected floating point, got "
      f"{errors.describe(values)}. Cast them first."
    )
  if mask.dtype != tf.bool or mask.shape.rank > values.shape.rank:
    raise errors.SpecError(
      "masked_mean: mask: expected bools for the leading axes of the values, "
      f"{errors.describe(values)}, got {errors.describe(mask)}."
    )
  for _ in range(values.shape.rank - mask.shape.rank):
    mask = mask[..., tf.newaxis]
  mask = tf.broadcast_to(mask, tf.shape(values))
  # float16 sums overflow at 65504, and bfloat16 ones count to 256 only.
  wide = values if values.dtype == tf.float64 else tf.cast(values, tf.float32)
  # `where` and not a product: 0 * inf and 0 * nan would come through.
  total = tf.reduce_sum(tf.where(mask, wide, tf.zeros_like(wide)), axis)
  count = tf.reduce_sum(tf.cast(mask, wide.dtype), axis)
  return tf.cast(tf.math.divide_no_nan(total, count), values.dtype)


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
