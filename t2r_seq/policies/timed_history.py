"""The history of a policy by time stamps: windows of `Seconds` at a robot's times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.lite.policy_io import STAMPS, TIMESTAMP
from t2r_seq.lite.sensor_values import EMPTY
from t2r_seq.specs import ExtendedTensorSpec, Seconds, TensorSpecStruct
from t2r_seq.specs.names import source_paths
from t2r_seq.windows.cut import Cut, add_axes
from t2r_seq.windows.times import interpolate, nanoseconds, select

# A robot may observe at up to this multiple of training's rate without losing values.
_MOST_RATE = 2
# Assumed seconds between events in a burst. Of events only the stamps are kept.
_EVENT_PERIOD = 0.002

Frames = dict[str, tf.Tensor]


class TimedHistory:
  """Keeps the latest values of every path by time stamp, and cuts windows from them.

  Values are sorted by their stamps, whatever order they arrive in; of equal stamps the
  last value is kept. So the windows at a time equal those that training cuts from the
  values so far, bit for bit.
  """

  def __init__(
    self,
    specs_by_path: TensorSpecStruct,
    cut: Cut,
    masks: Mapping[str, str],
    period: float | None,
    value_periods: Mapping[str, float] | None = None,
  ) -> None:
    """Creates the functions.

    Args:
      specs_by_path: specs with `Seconds` by path, with offsets <= 0.
      cut: has the padding before the first value.
      masks: the masked path by the path of each mask.
      period: seconds from a step of the training data to the next one.
      value_periods: periods of values on other clocks, by path of the data.
    Raises:
      SpecError: the period is unknown, which the length of the history depends on.
    """
    self._specs, self._cut = dict(specs_by_path.items()), cut
    self._masks = {path: mask for mask, path in masks.items() if path in self._specs}
    self._depths: dict[str, int] = {}
    periods = value_periods or {}
    period = period or periods.get("")  # The shortest one of a mixture's sources.
    columns = source_paths(self._specs, periods)
    for path, spec in self._specs.items():
      span = -_seconds(spec).extent[0]
      if period is None:
        raise errors.SpecError(
          f"export: {path}: expected the control period of the data for a history of "
          f"{span:g} s, got none. Pass it to the model: control_period=0.05."
        )
      # A robot may also give each step a value of a slower sensor, without stamps.
      spacing = min(period, periods.get(columns[path], period))
      spacing = min(spacing, _EVENT_PERIOD) if _is_event(spec) else spacing
      self._depths[path] = _MOST_RATE * math.ceil(span / spacing - 1e-6) + 2

  @property
  def time_specs(self) -> dict[str, ExtendedTensorSpec]:
    """A step's time, [nanoseconds, precision], and stamps, nanoseconds, by path."""
    return time_specs(self._specs, tf.int64, (2,))

  @property
  def state_spec(self) -> dict[str, ExtendedTensorSpec]:
    """The values of one environment, by path, the newest last; no events."""
    return {
      path: ExtendedTensorSpec((self._depths[path], *spec.frame_shape), spec.dtype)
      for path, spec in self._specs.items()
      if not _is_event(spec)
    }

  @property
  def stamps_spec(self) -> dict[str, ExtendedTensorSpec]:
    """The time stamps of all values and events, by path, the newest last."""
    return {
      path: ExtendedTensorSpec((depth,), tf.int64)
      for path, depth in self._depths.items()
    }

  @tf.autograph.experimental.do_not_convert
  def push(
    self,
    frames: Frames,
    stamps: Frames,
    observations: Mapping[str, tf.Tensor],
    begins: tf.Tensor,
  ) -> tuple[Frames, Frames]:
    """Returns values and stamps with those of a step.

    Args:
      frames: frames of the previous step, [N, depth, *frame_shape].
      stamps: stamps of the previous step, [N, depth].
      observations: [N, *frame_shape] by path, and the times of the step.
      begins: bool [N]; where an episode starts, which clears the past.
    """
    new_frames, new_stamps = {}, {}
    num_envs = tf.shape(begins)[0]
    envs = tf.range(num_envs)[:, tf.newaxis]
    for path, spec in self._specs.items():
      depth, given = self._depths[path], observations[f"{STAMPS}/{path}"]
      empty = tf.constant(EMPTY, tf.int64)
      old = tf.where(begins[:, tf.newaxis], empty, stamps[path])
      count = _count(old <= given[:, tf.newaxis])
      newest = tf.gather(
        tf.reshape(old, [-1]), envs[:, 0] * depth + tf.maximum(count - 1, 0)
      )
      # Of equal stamps the last value is kept; otherwise the oldest value is dropped.
      is_same = ((count > 0) & tf.equal(newest, given))[:, tf.newaxis]
      slots, place = tf.range(depth)[tf.newaxis], (count - 1)[:, tf.newaxis]
      is_new = tf.equal(slots, place)
      moved = tf.where(is_same | (slots > place), slots, slots + 1)
      rows = tf.where(is_new, num_envs * depth + envs, envs * depth + moved)
      both = tf.concat([tf.reshape(old, [-1]), given], 0)
      new_stamps[path] = tf.gather(both, rows)
      if path not in frames:
        continue  # Of events only the stamps count.
      kept = tf.reshape(frames[path], [-1, *spec.frame_shape])
      new_frames[path] = tf.gather(tf.concat([kept, observations[path]], 0), rows)
    return new_frames, new_stamps

  @tf.autograph.experimental.do_not_convert
  def windows(
    self, frames: Frames, stamps: Frames, observations: Mapping[str, tf.Tensor]
  ) -> TensorSpecStruct:
    """Returns windows, [N, K, *frame_shape], and masks, [N, K], at the step's time."""
    result = TensorSpecStruct()
    anchor, slack = (observations[TIMESTAMP][:, column] for column in (0, 1))
    for path, spec in self._specs.items():
      seconds, depth = _seconds(spec), self._depths[path]
      num_axes = int(seconds.is_stack)
      times = add_axes(anchor, num_axes) + nanoseconds(seconds.array)
      slacks, held = add_axes(slack, num_axes), stamps[path]
      first = depth - _count(held > EMPTY)
      each = held[:, tf.newaxis] if num_axes else held
      is_before = each <= tf.expand_dims(times + slacks, -1)
      if _is_event(spec):
        shift = nanoseconds(seconds.starts) - nanoseconds(seconds.array)
        is_earlier = each <= tf.expand_dims(times + shift + slacks, -1)
        count = tf.cast(_count(is_before) - _count(is_earlier), spec.dtype)
        result[path] = tf.ensure_shape(count, [None, *spec.shape])
        if path in self._masks:
          result[self._masks[path]] = tf.ones_like(count, tf.bool)
        continue
      before = tf.cast(_count(is_before) - 1, tf.int64)
      firsts = add_axes(tf.cast(first, tf.int64), num_axes)
      lasts = tf.fill(tf.shape(firsts), tf.constant(depth - 1, tf.int64))
      starts = add_axes(tf.range(tf.shape(anchor)[0]) * depth, num_axes)
      flat = tf.reshape(held, [-1])

      def rows(slots: tf.Tensor, starts: tf.Tensor = starts) -> tf.Tensor:
        return starts + tf.cast(slots, tf.int32)

      def at(slots: tf.Tensor, flat: tf.Tensor = flat, rows: Any = rows) -> tf.Tensor:
        return tf.gather(flat, rows(slots))

      low, later, weights, real = select(
        seconds, tf.maximum(before, firsts - 1), times, slacks, at, firsts, lasts
      )
      values = tf.reshape(frames[path], [-1, *spec.frame_shape])
      index = [rows(low)] if later is None else [rows(low), rows(later)]
      if self._cut.front == "zero":
        # A row of zeros, as `tf.where` in LiteRT supports few dtypes.
        index = [tf.where(real, each, tf.shape(values)[0]) for each in index]
        values = tf.concat([values, tf.zeros([1, *spec.frame_shape], spec.dtype)], 0)
      window, *after = (tf.gather(values, each) for each in index)
      if after:
        window = interpolate(seconds.select, window, after[0], weights)
      window.set_shape([None, *spec.shape])
      result[path] = window
      if path in self._masks:
        result[self._masks[path]] = real
    return result


def time_specs(
  specs_by_path: Mapping[str, ExtendedTensorSpec],
  dtype: tf.DType = tf.float64,
  shape: tuple[int, ...] = (),
) -> dict[str, ExtendedTensorSpec]:
  """Returns the specs of the times of a step: its own, and the stamps of values.

  Args:
    specs_by_path: raw features.
    dtype: dtype of all times.
    shape: shape of the step's time; stamps are scalars.
  Returns:
    Specs by path; empty if no feature has time offsets in seconds.
  """
  timed = [
    path for path, s in specs_by_path.items() if isinstance(s.time_offsets, Seconds)
  ]
  times = {TIMESTAMP: ExtendedTensorSpec(shape, dtype, TIMESTAMP)} if timed else {}
  stamps = [f"{STAMPS}/{path}" for path in timed]
  return times | {path: ExtendedTensorSpec((), dtype, path) for path in stamps}


def _count(flags: tf.Tensor) -> tf.Tensor:
  """Counts in the last axis, int32."""
  return tf.reduce_sum(tf.cast(flags, tf.int32), -1)


def _is_event(spec: ExtendedTensorSpec) -> bool:
  return _seconds(spec).select == "event"


def _seconds(spec: ExtendedTensorSpec) -> Seconds:
  assert isinstance(spec.time_offsets, Seconds)
  return spec.time_offsets
