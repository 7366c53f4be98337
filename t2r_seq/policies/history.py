"""The frame history that an exported policy keeps, one slot per environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import windows
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

# No Python control flow depends on tensors: converting it would only cost time.
_as_it_is = tf.autograph.experimental.do_not_convert

Frames = dict[str, tf.Tensor]
"""The latest steps by path, [N, depth, *frame_shape], the present one last."""


class FrameHistory:
  """Functions of the latest steps of every path, which the caller keeps.

  The windows equal, bit for bit, the training window whose anchor is the step pushed
  last: the first step of an episode fills the past with itself under 'repeat' and with
  zeros under 'zero'. Which steps are shown is the plan's to say, as in training.
  """

  def __init__(
    self,
    specs_by_path: TensorSpecStruct,
    cut: windows.Cut,
    masks: Mapping[str, str] | None = None,
  ) -> None:
    """Creates the functions.

    Args:
      specs_by_path: windowed specs by path, with offsets <= 0.
      cut: says what stands before the first step: zeros, or that step.
      masks: path of each mask that the windows hold, and the path that it masks.
    """
    self._specs = dict(specs_by_path.items())
    self._grid = windows.WindowGrid(windows.time_span(specs_by_path), cut)
    self._masks = dict(masks or {})

  @property
  def state_spec(self) -> dict[str, ExtendedTensorSpec]:
    """What is kept of one environment, by path."""
    return {
      path: ExtendedTensorSpec((_depth(spec), *spec.frame_shape), spec.dtype)
      for path, spec in self._specs.items()
    }

  @_as_it_is
  def push(
    self,
    frames: Frames,
    observations: Mapping[str, tf.Tensor],
    ages: tf.Tensor,
  ) -> Frames:
    """Adds one step of every environment.

    Args:
      frames: of the step before; of any number of environments where all begin.
      observations: [N, *frame_shape] by path.
      ages: int32 [N]; steps of an environment's episode, this one included; at 1 its
        past is forgotten.
    Returns:
      The frames with the newest step at the end.
    """
    return {
      path: self._shift(path, frames[path], observations[path], ages)
      for path in self._specs
    }

  def _steps(self, offsets: np.ndarray, ages: tf.Tensor) -> tuple[Any, Any, Any]:
    """Says which steps are shown at offsets from the newest one; see `WindowGrid`."""
    before = tf.cast(tf.reshape(ages - 1, [-1] + [1] * offsets.ndim), tf.int64)
    return self._grid.steps(offsets, before, 0)

  def _shift(
    self, path: str, frames: tf.Tensor, newest: tf.Tensor, ages: tf.Tensor
  ) -> tf.Tensor:
    """Returns the frames [N, depth, ...] with the newest step at the end.

    One copy of whole frames by their number, whoever begins: a `where` over the frames,
    or a cond, costs as much as a small network.
    """
    spec = self._specs[path]
    depth, num_slots = _depth(spec), tf.shape(newest, tf.int64)[0]
    kept = tf.reshape(frames, [-1, *spec.frame_shape])
    num_kept = tf.shape(kept, tf.int64)[0]
    empty = tf.zeros([1, *spec.frame_shape], spec.dtype)
    pool = tf.concat([kept, newest, empty], axis=0)
    slots = tf.range(num_slots)[:, tf.newaxis]
    steps, _, shown = self._steps(np.arange(1 - depth, 1), ages)
    # What was the newest step is the one before it now.
    rows = tf.where(steps < 0, (slots + 1) * depth + steps, num_kept + slots)
    if shown is not None:
      rows = tf.where(shown, rows, num_kept + num_slots)
    return tf.gather(pool, rows)

  @_as_it_is
  def windows(self, frames: Frames, ages: tf.Tensor) -> TensorSpecStruct:
    """Returns the windows that end with the step pushed last.

    Args:
      frames: as `push` returned them.
      ages: int32 [N]; steps that an environment's episode has had.
    Returns:
      Windows by path, [N, K, *frame_shape], or [N, *frame_shape] for an int offset;
      and the masks, [N, K] or [N].
    """
    result = TensorSpecStruct()
    for path, spec in self._specs.items():
      index = _offsets(spec) + _depth(spec) - 1
      window = frames[path]
      if index.tolist() != list(range(_depth(spec))):
        window = tf.gather(window, index, axis=1)
      window.set_shape([None, *spec.shape])
      result[path] = window
    for mask_path, path in self._masks.items():
      result[mask_path] = self._steps(_offsets(self._specs[path]), ages)[1]
    return result


def _depth(spec: ExtendedTensorSpec) -> int:
  """Returns how many steps of a path are kept, the present one included."""
  return 1 - int(min(0, np.min(_offsets(spec))))


def _offsets(spec: ExtendedTensorSpec) -> np.ndarray:
  return np.asarray(spec.time_offsets, dtype=np.int64)
