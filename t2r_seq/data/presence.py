"""Masks that say which examples have an optional feature, and which show zeros for it.

A bool spec '<path>_mask' without a name, of shape (), beside an optional spec without
time offsets is such a mask. It is made by the input generator and never read. The mask
of a path with time offsets says which of its steps are real (`windows.mask_paths`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.specs import TensorSpecStruct

_SUFFIX = "_mask"


def presence_masks(spec_structure: specs.SpecStructure) -> dict[str, str]:
  """Maps the path of every declared presence mask to the path that it is about.

  Args:
    spec_structure: specs, some of which may be masks.
  Returns:
    Mask paths to paths; without the masks of windows.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  return {
    path: path.removesuffix(_SUFFIX)
    for path, spec in flat.items()
    if path.endswith(_SUFFIX)
    and getattr(spec, "name", None) is None
    and spec.dtype == tf.bool
    and spec.shape.rank == 0
    and not getattr(spec, "is_sequence", False)
    and _may_be_absent(flat.get(path.removesuffix(_SUFFIX)))
  }


def add_presence_specs(
  spec_structure: specs.SpecStructure, paths: Iterable[str] | None = None
) -> TensorSpecStruct:
  """Declares masks that are true where an example has an optional feature.

  Args:
    spec_structure: specs, some of them optional.
    paths: which paths get a mask; by default every optional one. Those with time
      offsets get the mask of their steps, as from `windows.add_mask_specs`.
  Returns:
    Flat specs with the masks.
  Raises:
    SpecError: a path that is not optional.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  known = {**windows.mask_paths(flat), **presence_masks(flat)}
  optional = [
    path
    for path, spec in flat.items()
    if getattr(spec, "is_optional", False) and path not in known
  ]
  chosen = optional if paths is None else list(paths)
  for path in chosen:
    if path not in optional:
      raise errors.SpecError(
        f"add_presence_specs: {path}: expected an optional spec."
        f"{errors.nearest(path, optional)} There is {errors.listing(optional)}."
      )
  windowed = [path for path in chosen if windows.is_windowed({path: flat[path]})]
  flat = windows.add_mask_specs(flat, windowed)
  for path in set(chosen).difference(windowed):
    flat[path + _SUFFIX] = _mask_spec()
  return flat


def split_masks(flat: TensorSpecStruct) -> tuple[TensorSpecStruct, dict[str, str]]:
  """Takes the presence masks out of specs.

  Args:
    flat: specs by path.
  Returns:
    The specs without them, and mask paths to paths.
  """
  masks = presence_masks(flat)
  kept = ((path, spec) for path, spec in flat.items() if path not in masks)
  return TensorSpecStruct(kept), masks


def join_masks(flat: TensorSpecStruct | None, masks: Iterable[str]) -> TensorSpecStruct:
  """Undoes `split_masks`.

  Args:
    flat: specs by path; None for none.
    masks: paths of masks.
  Returns:
    The specs with the masks.
  """
  joined = TensorSpecStruct(() if flat is None else flat.items())
  for mask in masks:
    joined[mask] = _mask_spec()
  return joined


def add_masks(batch: Any, masks: Mapping[str, str]) -> Any:
  """Adds the masks of a batch all of whose examples have what is there.

  Args:
    batch: tensors by path, [B, ...].
    masks: mask paths to paths; those that the batch has already stay.
  Returns:
    The batch with a mask [B] for every path that is there.
  """
  missing = {
    mask: path for mask, path in masks.items() if path in batch and mask not in batch
  }
  if not missing:
    return batch
  added = TensorSpecStruct(batch.items())
  for mask, path in missing.items():
    added[mask] = tf.fill(tf.shape(batch[path])[:1], True)
  return added


def _mask_spec() -> specs.ExtendedTensorSpec:
  return specs.ExtendedTensorSpec((), tf.bool, is_optional=True)


def _may_be_absent(spec: Any) -> bool:
  return getattr(spec, "is_optional", False) and spec.time_offsets is None
