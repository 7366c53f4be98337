"""Windows gathered from one flat episode."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.specs import SpecStructure, TensorSpecStruct
from t2r_seq.windows.window_reader import WindowReader


@tf.autograph.experimental.do_not_convert
def gather_windows(
  episode: SpecStructure,
  starts: Any,
  spec_structure: SpecStructure,
  sequence_length: int | None = None,
  stride: int = 1,
  padding: str = "drop",
  masks: bool = False,
) -> TensorSpecStruct:
  """Gathers windows from one flat episode.

  Args:
    episode: tensors or arrays by path; leaves [T, ...], and context features.
    starts: anchor(s), an int scalar or [B]; for sequences the first anchor of each.
    spec_structure: the specs of a window.
    sequence_length: L, stacks in a sequence; None for single windows.
    stride: steps between the stacks of one sequence.
    padding: what stands where a window leaves the episode: 'repeat' or 'zero'; 'drop'
      asks for full windows only, and an anchor without one is an error.
    masks: adds '<path>_mask' for every windowed path.
  Returns:
    Windows by path, leaves starts.shape + [L, K, ...].
  Raises:
    SpecError: the episode does not fit the specs.
    tf.errors.InvalidArgumentError: an anchor outside of the episode or, under 'drop',
      without a full window (XLA leaves this check out and clamps the steps).
  """
  flat = specs.flatten_spec_structure(episode)
  tensors = TensorSpecStruct((p, tf.convert_to_tensor(v)) for p, v in flat.items())
  element = specs.map_leaves(tf.TensorSpec.from_tensor, tensors)
  reader = WindowReader(
    element, spec_structure, sequence_length, stride, 1, padding, masks
  )
  num_steps = reader.num_steps(tensors)
  check = reader.check_starts(starts, num_steps)
  with tf.control_dependencies([] if check is None else [check]):
    return reader.read(tensors, starts, tf.identity(num_steps))
