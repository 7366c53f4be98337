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


class FrameHistory(tf.Module):
  """The latest steps of every path, as variables, so that a SavedModel holds them.

  The window that `push` returns equals, bit for bit, the training window whose anchor
  is the step pushed: the first step of an episode fills the past with itself under
  'repeat' and with zeros under 'zero'. Which steps are shown is the plan's to say, as
  in training.
  """

  def __init__(
    self,
    specs_by_path: TensorSpecStruct,
    cut: windows.Cut,
    masks: Mapping[str, str] | None = None,
  ) -> None:
    """Creates an empty history: no slots.

    Args:
      specs_by_path: windowed specs by path, with offsets <= 0.
      cut: says what stands before the first step: zeros, or that step.
      masks: path of each mask that the windows hold, and the path that it masks.
    """
    super().__init__()
    self._specs = dict(specs_by_path.items())
    self._grid = windows.WindowGrid(windows.time_span(specs_by_path), cut)
    self._masks = dict(masks or {})
    self._frames = {
      path: tf.Variable(
        tf.zeros([0, _depth(spec), *spec.frame_shape], spec.dtype),
        shape=[None, _depth(spec), *spec.frame_shape],
        trainable=False,
      )
      for path, spec in self._specs.items()
    }
    # Steps that an environment's episode has had; 0 before its first.
    self._ages = tf.Variable(tf.zeros([0], tf.int64), shape=[None], trainable=False)

  @_as_it_is
  def reset(self, num_slots: tf.Tensor) -> None:
    """Forgets everything and makes room for `num_slots` environments (int scalar)."""
    ages, empty = self._empty_state(num_slots)
    self._ages.assign(ages)
    for path, frames in self._frames.items():
      frames.assign(empty[path])

  @_as_it_is
  def push(
    self, observations: Mapping[str, tf.Tensor], is_first: tf.Tensor
  ) -> TensorSpecStruct:
    """Adds one step of every environment and returns the windows that end with it.

    Args:
      observations: [N, *frame_shape] by path.
      is_first: bool [N]; true forgets that environment's past.
    Returns:
      Windows by path, [N, K, *frame_shape], or [N, *frame_shape] for an int offset;
      and the masks, [N, K] or [N].
    """
    num_slots, num_kept = tf.shape(is_first)[0], tf.shape(self._ages)[0]
    check = self._check_slots(num_slots, num_kept, is_first)
    with tf.control_dependencies([check]):
      ages = tf.concat([self._ages, tf.zeros([num_slots], tf.int64)], axis=0)
    ages = ages[:num_slots]
    begins = is_first | tf.equal(ages, 0)
    self._ages.assign(tf.where(begins, tf.ones_like(ages), ages + 1))
    for path, frames in self._frames.items():
      frames.assign(self._shift(path, observations[path]))
    return self.windows()

  def _check_slots(
    self, num_slots: tf.Tensor, num_kept: tf.Tensor, is_first: tf.Tensor
  ) -> tf.Operation:
    """Checks that nobody's past is asked for that is not there."""
    # The op itself: `tf.debugging.Assert` puts a cond around it, which costs 50 us.
    return tf.raw_ops.Assert(
      condition=tf.equal(num_slots, num_kept)
      | tf.equal(num_kept, 0)
      | tf.reduce_all(is_first),
      data=[
        "step: got observations of",
        num_slots,
        "environments, but the history holds",
        num_kept,
        "Call reset(num_slots), or set is_first for all of them.",
      ],
    )

  def _steps(self, offsets: np.ndarray) -> tuple[Any, Any, Any]:
    """Says which steps are shown at offsets from the newest one; see `WindowGrid`."""
    before = tf.reshape(self._ages.read_value() - 1, [-1] + [1] * offsets.ndim)
    return self._grid.steps(offsets, before, 0)

  def _shift(self, path: str, newest: tf.Tensor) -> tf.Tensor:
    """Returns the frames [N, depth, ...] with the newest step at the end.

    One copy of whole frames by their number, whoever begins: a `where` over the frames,
    or a cond, costs as much as a small network.
    """
    spec = self._specs[path]
    depth, num_slots = _depth(spec), tf.shape(newest, tf.int64)[0]
    kept = tf.reshape(self._frames[path], [-1, *spec.frame_shape])
    num_kept = tf.shape(kept, tf.int64)[0]
    empty = tf.zeros([1, *spec.frame_shape], spec.dtype)
    pool = tf.concat([kept, newest, empty], axis=0)
    slots = tf.range(num_slots)[:, tf.newaxis]
    steps, _, shown = self._steps(np.arange(1 - depth, 1))
    # What was the newest step is the one before it now.
    rows = tf.where(steps < 0, (slots + 1) * depth + steps, num_kept + slots)
    if shown is not None:
      rows = tf.where(shown, rows, num_kept + num_slots)
    return tf.gather(pool, rows)

  @_as_it_is
  def windows(self) -> TensorSpecStruct:
    """Returns the windows of the last step, as `push` returned them."""
    result = TensorSpecStruct()
    for path, spec in self._specs.items():
      index = _offsets(spec) + _depth(spec) - 1
      window = self._frames[path].read_value()
      if index.tolist() != list(range(_depth(spec))):
        window = tf.gather(window, index, axis=1)
      window.set_shape([None, *spec.shape])
      result[path] = window
    for mask_path, path in self._masks.items():
      result[mask_path] = self._steps(_offsets(self._specs[path]))[1]
    return result

  def _empty_state(
    self, num_slots: tf.Tensor
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    empty = {}
    for path, spec in self._specs.items():
      shape = tf.concat([[num_slots], [_depth(spec), *spec.frame_shape]], axis=0)
      empty[path] = tf.zeros(shape, spec.dtype)
    return tf.zeros([num_slots], tf.int64), empty


def _depth(spec: ExtendedTensorSpec) -> int:
  """Returns how many steps of a path are kept, the present one included."""
  return 1 - int(min(0, np.min(_offsets(spec))))


def _offsets(spec: ExtendedTensorSpec) -> np.ndarray:
  return np.asarray(spec.time_offsets, dtype=np.int64)
