"""Optimizers, learning rates and other schedules of the global step, for gin."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors

LearningRate = Any
"""A float or a `tf.keras.optimizers.schedules.LearningRateSchedule`."""

# Biases, and what Keras calls the scales and offsets of its normalisations.
NOT_DECAYED = ("*bias", "*gamma", "*beta")
_OPTIONS = "_t2r_update_options"


@gin.configurable
def create_constant_learning_rate(initial_learning_rate: float = 1e-4) -> LearningRate:
  """Returns a constant learning rate."""
  return initial_learning_rate


@gin.configurable
def create_exp_decaying_learning_rate(
  initial_learning_rate: float = 1e-4,
  decay_steps: int = 10000,
  decay_rate: float = 0.9,
  staircase: bool = True,
) -> LearningRate:
  """Returns a learning rate that decays exponentially; see `exponential_decay`."""
  return tf.keras.optimizers.schedules.ExponentialDecay(
    initial_learning_rate, decay_steps, decay_rate, staircase
  )


@gin.configurable
def create_cosine_learning_rate(
  initial_learning_rate: float = 1e-3,
  decay_steps: int = 10000,
  alpha: float = 0.0,
) -> LearningRate:
  """Returns a learning rate that decays along a half cosine.

  Args:
    initial_learning_rate: at step 0.
    decay_steps: training steps until the lowest rate.
    alpha: the lowest rate as a fraction of the first.
  """
  return tf.keras.optimizers.schedules.CosineDecay(
    initial_learning_rate, decay_steps, alpha
  )


@gin.configurable
def create_keras_optimizer(
  optimizer: str | Callable[..., tf.keras.optimizers.Optimizer] = "Adam",
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
  clipnorm: float | None = None,
  global_clipnorm: float | None = None,
  clipvalue: float | None = None,
  weight_decay: float | None = None,
  weight_decay_exclude: Sequence[str] = NOT_DECAYED,
  gradient_accumulation_steps: int = 1,
  **kwargs: Any,
) -> tf.keras.optimizers.Optimizer:
  """Creates a Keras optimizer by its name or class.

  Clipping and accumulation apply to the gradients of the whole batch, on any number of
  replicas, and are the same on Keras 2 and Keras 3.

  Args:
    optimizer: a name in `tf.keras.optimizers`, such as 'Lion', or a class.
    learning_rate_fn: returns the rate or schedule.
    clipnorm: maximum norm of the gradient of each variable; None does not clip. At most
      one of the three clips is given.
    global_clipnorm: maximum norm of all gradients together.
    clipvalue: maximum magnitude of each gradient component.
    weight_decay: each update subtracts this times the learning rate times the weight.
    weight_decay_exclude: patterns of names, as in `T2RModel.named_variables`, without
      weight decay: biases, and the scales and offsets of normalisations.
    gradient_accumulation_steps: train steps whose gradients are averaged for one
      update; the schedule of the learning rate counts updates.
    **kwargs: arguments of the optimizer.
  Returns:
    A Keras optimizer.
  Raises:
    SpecError: Keras has no such optimizer, there are two clips, or
      `gradient_accumulation_steps` is not an integer of at least 1.
  """
  name = optimizer if isinstance(optimizer, str) else optimizer.__name__
  create = getattr(tf.keras.optimizers, name, None)
  create = create if isinstance(optimizer, str) else optimizer
  if not callable(create) or not name[:1].isupper():
    names = [n for n in dir(tf.keras.optimizers) if n[:1].isupper()]
    raise errors.SpecError(
      f"create_keras_optimizer: optimizer: expected one of {errors.listing(names)}, "
      f"got {optimizer!r}.{errors.nearest(name, names)}"
    )
  clips = {
    "clipnorm": clipnorm,
    "global_clipnorm": global_clipnorm,
    "clipvalue": clipvalue,
  }
  clips = {name: value for name, value in clips.items() if value is not None}
  if len(clips) > 1:
    raise errors.SpecError(
      f"create_keras_optimizer: clipping: expected one way of it, got {clips}."
    )
  if weight_decay is not None:
    kwargs["weight_decay"] = weight_decay
  created = create(learning_rate_fn(), **clips, **kwargs)
  options = UpdateOptions(tuple(weight_decay_exclude), gradient_accumulation_steps)
  setattr(created, _OPTIONS, options)
  return created


@gin.configurable
def create_adam_optimizer(
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
  global_clipnorm: float | None = None,
  **kwargs: Any,
) -> tf.keras.optimizers.Optimizer:
  """Creates an Adam optimizer; with a `weight_decay`, AdamW.

  Args:
    learning_rate_fn: returns the rate or schedule.
    global_clipnorm: maximum norm of all gradients together; None does not clip.
    **kwargs: arguments of `create_keras_optimizer`; see there for errors.
  Returns:
    A Keras optimizer.
  """
  kwargs["global_clipnorm"] = global_clipnorm
  return create_keras_optimizer("Adam", learning_rate_fn, **kwargs)


@gin.configurable
def default_create_optimizer_fn(
  learning_rate: float | None = None,
) -> tf.keras.optimizers.Optimizer:
  """Creates the default optimizer: Adam.

  Args:
    learning_rate: constant; None uses the configuration of `create_adam_optimizer`.
  Returns:
    A Keras optimizer.
  """
  if learning_rate is None:
    return create_adam_optimizer()
  return create_adam_optimizer(learning_rate_fn=lambda: learning_rate)


@gin.configurable
def create_gradient_descent_optimizer(
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
  **kwargs: Any,
) -> tf.keras.optimizers.Optimizer:
  """Creates a plain gradient descent optimizer; see `create_keras_optimizer`."""
  return create_keras_optimizer("SGD", learning_rate_fn, **kwargs)


@gin.configurable
def create_momentum_optimizer(
  learning_rate_fn: Callable[[], LearningRate] = create_constant_learning_rate,
  momentum: float = 0.9,
  **kwargs: Any,
) -> tf.keras.optimizers.Optimizer:
  """Creates an optimizer with momentum; see `create_keras_optimizer`."""
  return create_keras_optimizer("SGD", learning_rate_fn, momentum=momentum, **kwargs)


class GroupedOptimizer:
  """Several optimizers, each for the variables whose names match its pattern.

  A `create_optimizer_fn` may return it in place of a Keras optimizer.
  """

  def __init__(
    self, groups: Mapping[str, tf.keras.optimizers.Optimizer], **options: Any
  ) -> None:
    """Creates it; see `create_grouped_optimizer`."""
    self.groups = dict(groups)
    self.global_clipnorm = options.get("global_clipnorm")
    # Train steps per update, by pattern; 1 for groups that are not in it.
    self.intervals: dict[str, int] = dict(options.get("intervals") or {})
    # Indices, among all trained variables, of those of each pattern that has any.
    self.places: dict[str, list[int]] = {}

  def assign_variables(self, names: Sequence[str], all_names: Sequence[str]) -> None:
    """Gives each variable to the first pattern that matches its name.

    Args:
      names: names of the trained variables.
      all_names: names of all variables.
    Raises:
      SpecError: a variable matches none, a pattern matches no variable, or an interval
        is no count, or of no group before the last.
    """
    places: dict[str, list[int]] = {pattern: [] for pattern in self.groups}
    unmatched = []
    for index, name in enumerate(names):
      pattern = next((p for p in self.groups if fnmatch.fnmatchcase(name, p)), None)
      if pattern is None:
        unmatched.append(name)
      else:
        places[pattern].append(index)
    idle = [p for p in self.groups if not fnmatch.filter(all_names, p)]
    if unmatched or idle:
      wrong = unmatched or idle
      expected = "a pattern for each variable" if unmatched else "patterns of variables"
      hint = (
        "Add a last group '*' for the rest."
        if unmatched
        else f"The variables are {errors.listing(all_names)}."
      )
      raise errors.SpecError(
        f"create_grouped_optimizer: groups: expected {expected}, got none for "
        f"{errors.listing(wrong)}. {hint}"
      )
    self.places = {pattern: indices for pattern, indices in places.items() if indices}
    for pattern, interval in self.intervals.items():
      if pattern not in self.groups or pattern in [*self.places][-1:]:
        raise errors.SpecError(
          "create_grouped_optimizer: intervals: expected patterns of groups before the "
          f"last one with trained variables, got {pattern!r}."
        )
      errors.check_count("create_grouped_optimizer: intervals", pattern, interval)

  @property
  def learning_rate(self) -> Any:
    """The first group's learning rate; logs have those of all groups."""
    return next(iter(self.groups.values())).learning_rate

  @property
  def iterations(self) -> Any:
    """Updates so far: those of the last group, which has no interval."""
    return self.groups[[*self.places][-1]].iterations


@gin.configurable
def create_grouped_optimizer(
  groups: Mapping[str, Callable[[], tf.keras.optimizers.Optimizer]],
  global_clipnorm: float | None = None,
  intervals: Mapping[str, int] | None = None,
) -> GroupedOptimizer:
  """Creates different optimizers or learning rates for parts of the network.

  Args:
    groups: patterns of names, as in `T2RModel.named_variables`, to functions that
      create an optimizer. A variable belongs to the first pattern that matches it:
      {'backbone/*': ..., '*': ...}.
    global_clipnorm: maximum norm of all groups' gradients together; None does not clip.
      The `global_clipnorm` of a group covers only its own gradients.
    intervals: train steps per update by pattern, such as 2 for the actor of TD3. On one
      replica only, and not for the last group; other groups have 1.
  Returns:
    The optimizer for `T2RModel`'s `create_optimizer_fn`.
  Raises:
    SpecError: there is no group, or one is not a function. The model raises it later if
      groups or intervals do not fit its variables.
  """
  wrong = {
    pattern: create for pattern, create in groups.items() if not callable(create)
  }
  if wrong or not groups:
    raise errors.SpecError(
      "create_grouped_optimizer: groups: expected functions that create optimizers, "
      f"got {wrong or 'none'}. In gin, leave out the parentheses: "
      "@create_adam_optimizer."
    )
  created = {pattern: create() for pattern, create in groups.items()}
  return GroupedOptimizer(created, global_clipnorm=global_clipnorm, intervals=intervals)


@dataclasses.dataclass(frozen=True)
class UpdateOptions:
  """Options that Keras 2 or Keras 3 lacks.

  Attributes:
    weight_decay_exclude: patterns of names of variables without weight decay.
    gradient_accumulation_steps: train steps for one update.
  """

  weight_decay_exclude: tuple[str, ...] = ()
  gradient_accumulation_steps: int = 1

  def __post_init__(self) -> None:
    steps = self.gradient_accumulation_steps
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
      raise errors.SpecError(
        "create_keras_optimizer: gradient_accumulation_steps: expected an integer of "
        f"at least 1, got {steps!r}."
      )


def update_options(optimizer: Any) -> UpdateOptions:
  """Returns the options that `create_keras_optimizer` attached to an optimizer."""
  return getattr(optimizer, _OPTIONS, UpdateOptions())


Schedule = Any
"""A Keras `LearningRateSchedule`: maps a step to a scalar."""


class PiecewiseLinear(tf.keras.optimizers.schedules.LearningRateSchedule):
  """Linear interpolation between values at boundaries, constant beyond them."""

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
    """Returns the constructor's arguments, for Keras."""
    return {"boundaries": self._boundaries, "values": self._values}


class WarmupCosine(tf.keras.optimizers.schedules.LearningRateSchedule):
  """Linear warmup, then decay along half a cosine."""

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
    """Returns the constructor's arguments, for Keras."""
    return dict(self._config)


@gin.configurable
def piecewise_linear(boundaries: Any, values: Any) -> Schedule:
  """Returns a schedule that interpolates linearly between values.

  Args:
    boundaries: steps, strictly ascending; a list, array or tensor.
    values: the value at each boundary; constant before the first and after the last.
  Returns:
    A schedule: a learning rate, or called with a model's `global_step`.
  Raises:
    SpecError: there is no boundary, not one value for each, or they do not ascend.
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
    staircase: whether the value is constant within `decay_steps`, rather than smooth.
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
  """Returns a schedule with a linear warmup, then decay along half a cosine.

  Args:
    peak_value: at step `warmup_steps`.
    warmup_steps: steps from `initial_value` to `peak_value`.
    decay_steps: step at which the decay ends, counted from the start of the warmup.
    initial_value: at step 0.
    final_value: at `decay_steps` and after.
  Returns:
    A schedule: a learning rate, or called with a model's `global_step`.
  Raises:
    SpecError: `decay_steps` is not above `warmup_steps`.
  """
  if decay_steps <= warmup_steps:
    raise errors.SpecError(
      f"warmup_cosine: decay_steps: expected more than warmup_steps, {warmup_steps}, "
      f"got {decay_steps}."
    )
  return WarmupCosine(peak_value, warmup_steps, decay_steps, initial_value, final_value)
