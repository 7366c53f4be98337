"""Which anchors an episode has: pure index arithmetic, for ints, arrays and tensors."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.windows import flat_specs

# Of stacks, strides and shifts: the product of two is a step of an episode.
_MOST = 2**31 - 1

PADDINGS = ("drop", "repeat", "zero")


@dataclasses.dataclass(frozen=True)
class WindowGrid:
  """The sequences of anchors that are cut from an episode of `num_steps` steps.

  Under 'drop' the first anchor is the first whose window is full and only full
  sequences count. Otherwise the first anchor is step 0, every step that lies on the
  stride is an anchor of some sequence, unless `shift` leaves anchors out between two
  sequences, and the last sequence may run over the end.

  Attributes:
    span: smallest and largest time offset.
    num_stacks: anchors in one sequence; 1 for single windows.
    stride: steps between the anchors of one sequence.
    shift: anchors between the starts of two sequences.
    padding: 'drop', 'repeat' (the edge step) or 'zero'.
  """

  span: tuple[int, int]
  num_stacks: int = 1
  stride: int = 1
  shift: int = 1
  padding: str = "drop"

  def __post_init__(self) -> None:
    check_padding(self.padding)
    for field in ("num_stacks", "stride", "shift"):
      check_count(field, getattr(self, field), _MOST)

  @property
  def first_anchor(self) -> int:
    """The anchor that the first sequence starts at."""
    return -self.span[0] if self.padding == "drop" else 0

  @property
  def min_steps(self) -> int:
    """The shortest episode that gives a window."""
    if self.padding != "drop":
      return 1
    return flat_specs.flat_length(self.num_stacks, self.span, self.stride)

  def num_windows(self, num_steps: Any) -> Any:
    """Returns how many windows (sequences) an episode gives.

    Args:
      num_steps: episode length(s); int, array or integer tensor.
    Returns:
      The counts, of the same kind.
    """
    if self.padding == "drop":
      room = num_steps - (self.span[1] - self.span[0]) - 1
      anchors = room // self.stride + 1
      return _at_least_zero((anchors - self.num_stacks) // self.shift + 1)
    anchors = -(-num_steps // self.stride)
    # A shift beyond the sequence must not start one beyond the episode.
    covered = max(self.num_stacks, self.shift)
    further = _at_least_zero(-((covered - anchors) // self.shift))
    return further + _at_least_zero(_at_most_one(num_steps))

  def start(self, window: Any) -> Any:
    """Returns the first anchor of the window with that index in its episode."""
    return self.first_anchor + window * (self.shift * self.stride)

  def rows(
    self,
    offsets: np.ndarray,
    starts: tf.Tensor,
    num_steps: tf.Tensor,
    first_rows: tf.Tensor | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the steps that windows show, as rows of what holds one or many episodes.

    Args:
      offsets: steps relative to the first anchor, int64 [L, K].
      starts: first anchor(s) in their episodes, int64 scalar or [B].
      num_steps: T, int64 scalar, or [B] for windows of several episodes.
      first_rows: of the first steps of the episodes, int64 [B]; None: rows are steps.
    Returns:
      Rows, starts.shape + [L, K], and which of them are real steps, bool.
    """
    index = add_axes(starts, offsets.ndim) + offsets
    if num_steps.shape.rank == 1:
      num_steps = add_axes(num_steps, offsets.ndim)
    real = (index >= 0) & (index < num_steps)
    if self.padding != "drop":
      index = tf.clip_by_value(index, 0, num_steps - 1)
    if first_rows is not None:
      index += add_axes(first_rows, offsets.ndim)
    return index, real


def add_axes(values: tf.Tensor, count: Any) -> tf.Tensor:
  """Appends `count` axes of size 1; with one cheap op where one size is unknown."""
  sizes = [-1 if size is None else size for size in values.shape]
  if isinstance(count, int) and sizes.count(-1) <= 1:
    return tf.reshape(values, [*sizes, *[1] * count])
  ones = tf.ones([count], tf.int32)
  return tf.reshape(values, tf.concat([tf.shape(values), ones], 0))


def check_padding(padding: str) -> None:
  """Raises SpecError unless `padding` is one of PADDINGS."""
  if padding not in PADDINGS:
    raise errors.SpecError(
      f"windows: padding: expected one of {', '.join(PADDINGS)}, got {padding!r}."
      f"{errors.nearest(str(padding), PADDINGS)}"
    )


def check_count(name: str, value: Any, most: int | None = None) -> None:
  """Raises SpecError unless `value` is an integer of at least 1, and not too large."""
  is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
  if not is_integer or value < 1:
    expected = "an integer of at least 1"
  elif most is not None and value > most:
    expected = f"an integer of at most {most:,}"
  else:
    return
  raise errors.SpecError(f"windows: {name}: expected {expected}, got {value!r}.")


def _at_least_zero(count: Any) -> Any:
  if tf.is_tensor(count):
    return tf.maximum(count, 0)
  return np.maximum(count, 0) if isinstance(count, np.ndarray) else max(count, 0)


def _at_most_one(count: Any) -> Any:
  if tf.is_tensor(count):
    return tf.minimum(count, 1)
  return np.minimum(count, 1) if isinstance(count, np.ndarray) else min(count, 1)
