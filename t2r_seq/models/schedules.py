"""Numbers that follow the global step: learning rates, weights of losses, others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors

Schedule = Any
"""A Keras `LearningRateSchedule`: called with a step, it gives a scalar."""


class PiecewiseLinear(tf.keras.optimizers.schedules.LearningRateSchedule):
  """Straight lines between values at boundaries, and the outer values beyond them."""

  def __init__(self, boundaries: Sequence[int], values: Sequence[float]) -> None:
    """Creates the schedule; see `piecewise_linear`."""
    self._boundaries, self._values = list(boundaries), [float(v) for v in values]

  def __call__(self, step: Any) -> tf.Tensor:
    """Returns the value at a step, float32."""
    step = tf.cast(tf.convert_to_tensor(step), tf.float32)
    value = tf.constant(self._values[0])
    for i, (start, end) in enumerate(itertools.pairwise(self._boundaries)):
      change = self._values[i + 1] - self._values[i]
      value += change * tf.clip_by_value((step - start) / (end - start), 0.0, 1.0)
    return value

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments, as Keras asks for them."""
    return {"boundaries": self._boundaries, "values": self._values}


class WarmupCosine(tf.keras.optimizers.schedules.LearningRateSchedule):
  """A straight line up, and half a cosine down."""

  def __init__(
    self,
    peak_value: float,
    warmup_steps: int,
    decay_steps: int,
    initial_value: float,
    final_value: float,
  ) -> None:
    """Creates the schedule; see `warmup_cosine`."""
    self._config = {
      "peak_value": peak_value,
      "warmup_steps": warmup_steps,
      "decay_steps": decay_steps,
      "initial_value": initial_value,
      "final_value": final_value,
    }

  def __call__(self, step: Any) -> tf.Tensor:
    """Returns the value at a step, float32."""
    peak, first, last, start, end = self._config.values()
    step = tf.cast(tf.convert_to_tensor(step), tf.float32)
    up = start + (peak - start) * step / max(first, 1)
    done = tf.clip_by_value((step - first) / (last - first), 0.0, 1.0)
    down = end + (peak - end) * 0.5 * (1.0 + tf.cos(math.pi * done))
    return tf.where(step < first, up, down)

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments, as Keras asks for them."""
    return dict(self._config)


@gin.configurable
def piecewise_linear(boundaries: Any, values: Any) -> Schedule:
  """Returns a schedule of straight lines between values.

  Args:
    boundaries: steps, each greater than the one before; a list, array or tensor.
    values: at each of them; before the first and after the last it stays as it is.
  Returns:
    A schedule: a learning rate, or called with a model's `global_step`.
  Raises:
    SpecError: there is not one value for each boundary, or these do not grow.
  """
  boundaries, values = [np.asarray(given).tolist() for given in (boundaries, values)]
  pairs = itertools.pairwise(boundaries)
  if not boundaries or len(boundaries) != len(values) or any(a >= b for a, b in pairs):
    raise errors.SpecError(
      f"piecewise_linear: values: expected one for each of {len(boundaries)} "
      f"boundaries, which grow, got {len(values)} for {list(boundaries)}."
    )
  return PiecewiseLinear(boundaries, values)


@gin.configurable
def exponential_decay(
  initial_value: float = 0.0001,
  decay_steps: int = 10000,
  decay_rate: float = 0.9,
  staircase: bool = True,
) -> Schedule:
  """Returns a schedule that decays exponentially.

  Args:
    initial_value: at step 0.
    decay_steps: steps per decay.
    decay_rate: factor per decay.
    staircase: decays at once every `decay_steps` rather than smoothly.
  Returns:
    A schedule: a learning rate, or called with a model's `global_step`.
  """
  return tf.keras.optimizers.schedules.ExponentialDecay(
    initial_value, decay_steps, decay_rate, staircase
  )


@gin.configurable
def warmup_cosine(
  peak_value: float = 0.001,
  warmup_steps: int = 1000,
  decay_steps: int = 100000,
  initial_value: float = 0.0,
  final_value: float = 0.0,
) -> Schedule:
  """Returns a schedule of a linear warmup and half a cosine.

  Args:
    peak_value: at step `warmup_steps`.
    warmup_steps: length of the line up.
    decay_steps: the step at which it ends, the warmup among them.
    initial_value: at step 0.
    final_value: at `decay_steps` and after.
  Returns:
    A schedule: a learning rate, or called with a model's `global_step`.
  Raises:
    SpecError: it would end before its peak.
  """
  if decay_steps <= warmup_steps:
    raise errors.SpecError(
      f"warmup_cosine: decay_steps: expected more than warmup_steps, {warmup_steps}, "
      f"got {decay_steps}."
    )
  return WarmupCosine(peak_value, warmup_steps, decay_steps, initial_value, final_value)
