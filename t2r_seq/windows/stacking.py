"""Flat windows stacked where they are used: on the device, after the transfer."""

from __future__ import annotations

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.specs import ExtendedTensorSpec, SpecStructure, TensorSpecStruct
from t2r_seq.windows.flat_specs import mask_path, mask_paths, time_span
from t2r_seq.windows.grid import WindowGrid
from t2r_seq.windows.readings import steps_of


@tf.autograph.experimental.do_not_convert
def stack_windows(
  flat: SpecStructure,
  spec_structure: SpecStructure,
  sequence_length: int | None = None,
  stride: int = 1,
) -> TensorSpecStruct:
  """Stacks what a reader with `flat=True` has delivered.

  L stacks of K frames travel as L + K - 1 frames, and are stacked by one gather each
  with constant indices, in a train step as well as under XLA. Masks, and the padding
  that the reader has put in, are stacked alike.

  Args:
    flat: by path, [B, F, ...]; context features [B, ...].
    spec_structure: the specs of a window, as the reader had them.
    sequence_length: L, stacks in a sequence, as the reader had it.
    stride: steps between the stacks, as the reader had it.
  Returns:
    By path, [B, L, K, ...]; paths that no spec has stay as they are.
  Raises:
    SpecError: a path has another number of steps than its spec reads.
  """
  wanted = specs.map_leaves(
    ExtendedTensorSpec.to_spec, specs.flatten_spec_structure(spec_structure)
  )
  span = time_span(wanted)
  grid = WindowGrid(span, sequence_length or 1, stride)
  # A reader may add masks that no spec declares.
  masks = {mask_path(path): path for path in wanted}
  masks = {path: of for path, of in masks.items() if path not in wanted}
  masks.update(mask_paths(wanted))
  stacked, found = TensorSpecStruct(), []
  for path, values in specs.flatten_spec_structure(flat).items():
    spec = wanted.get(masks.get(path, path))
    frame_rank = 0 if path in masks or spec is None else spec.frame_shape.rank
    if spec is None or (
      spec.time_offsets is None
      and not spec.is_sequence
      and values.shape.rank == 1 + frame_rank
    ):
      stacked[path] = values
      continue
    steps = steps_of(spec, grid)
    num_flat = int(steps.max() - steps.min()) + 1
    if values.shape[1] != num_flat:
      got = errors.describe(values)
      found.append(errors.Mismatch(path, f"[B, {num_flat}, ...] flat steps", got))
      continue
    stacked[path] = tf.gather(values, steps - steps.min(), axis=1)
  if found:
    raise errors.mismatch_error("stack_windows", found)
  return stacked
