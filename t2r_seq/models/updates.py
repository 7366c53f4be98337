"""Applies gradients in a train step: scale, sum, clip, accumulate.

Keras 2 and Keras 3 differ in these steps, and do not do all of them over all replicas.
So this module switches them off in the optimizers, and does them itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from t2r_seq import errors
from t2r_seq.models import networks, optimizers

_LossScaleOptimizer = tf.keras.mixed_precision.LossScaleOptimizer
_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


@dataclasses.dataclass(frozen=True)
class _OptimizerGroup:
  """An optimizer, the indices of its variables among all trained ones, its clipping."""

  name: str
  optimizer: Any
  places: Sequence[int]
  clips: Mapping[str, float]
  interval: int = 1

  def clip(self, gradients: list[Any]) -> list[Any]:
    for kind, limit in self.clips.items():
      if kind == "global_clipnorm":
        return tf.clip_by_global_norm(gradients, limit)[0]
      if kind == "clipnorm":
        return [tf.clip_by_norm(g, limit) for g in gradients]
      return [tf.clip_by_value(g, -limit, limit) for g in gradients]
    return gradients


class Updates:
  """Updates trained variables with the gradients of a loss.

  An optimizer may wrap another, its `inner_optimizer`. The optimizers of a
  `GroupedOptimizer` all scale the loss alike.
  """

  def __init__(
    self,
    optimizer: Any,
    trained: Mapping[str, tf.Variable],
    all_names: Sequence[str],
    is_float16: bool = False,
  ) -> None:
    """Builds the optimizer, under the current strategy.

    Args:
      optimizer: Keras optimizer, or a `GroupedOptimizer`; not built.
      trained: the trained variables, by name.
      all_names: names of all variables of the model.
      is_float16: whether layers compute in float16; adds loss scaling to an optimizer
        without it, as Keras' `compile` does.
    Raises:
      SpecError: groups do not fit the variables or each other, or groups have
        `intervals` on several replicas.
    """
    self._variables = list(trained.values())
    self._num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
    self._clips: Mapping[str, float] = {}
    names = list(trained)
    if isinstance(optimizer, optimizers.GroupedOptimizer):
      optimizer.assign_variables(names, all_names)
      if optimizer.global_clipnorm is not None:
        self._clips = {"global_clipnorm": optimizer.global_clipnorm}
      places = optimizer.places
      if is_float16:
        for name in places:
          optimizer.groups[name] = _wrapped_for_float16(optimizer.groups[name])
      members = {name: optimizer.groups[name] for name in places}
    else:
      if is_float16:
        optimizer = _wrapped_for_float16(optimizer)
      places, members = {"": list(range(len(names)))}, {"": optimizer}
    self.optimizer = optimizer
    averaging = {name: _take_averaging(member) for name, member in members.items()}
    self.averaging = _same("use_ema", averaging)
    steps = {name: _take_accumulation(member) for name, member in members.items()}
    self.accumulation_steps = _same("gradient_accumulation_steps", steps)
    scaling = {n: _is_scaled(m) or _unscaler(m) is not None for n, m in members.items()}
    _same("loss scaling", scaling)
    self._parts = []
    for name, member in members.items():
      variables = {names[place]: self._variables[place] for place in places[name]}
      clips = _take_clipping(member)
      _exclude_from_decay(member, variables)
      member.build(list(variables.values()))
      if self._num_replicas > 1:
        _take_summing(member)
      interval = getattr(optimizer, "intervals", {}).get(name, 1)
      self._parts.append(_OptimizerGroup(name, member, places[name], clips, interval))
    if self._num_replicas > 1 and any(part.interval > 1 for part in self._parts):
      raise errors.SpecError(
        "create_grouped_optimizer: intervals: expected one replica, got "
        f"{self._num_replicas}."
      )
    self._sums: list[tf.Variable] = []
    if self.accumulation_steps > 1:
      # Each replica has its own sums; a checkpoint has their total.
      self._sums = [_create_sum(variable) for variable in self._variables]
      self.accumulated_norm = tf.Variable(
        0.0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      )
    self._reached: list[int] = []

  @property
  def learning_rates(self) -> dict[str, float]:
    """Current learning rates: 'learning_rate', or 'learning_rate/PATTERN' by group."""
    return {
      "/".join(filter(None, ["learning_rate", part.name])): float(
        tf.convert_to_tensor(part.optimizer.learning_rate)
      )
      for part in self._parts
    }

  @property
  def state(self) -> Any:
    """All variables of the optimizer, for checkpoints; a dict by pattern for groups."""
    if isinstance(self.optimizer, optimizers.GroupedOptimizer):
      return {part.name: _state(part.optimizer) for part in self._parts}
    return _state(self.optimizer)

  @property
  def gradient_sums(self) -> list[tf.Variable]:
    """Sums of gradients that are not applied yet, for checkpoints."""
    return self._sums

  @property
  def skips_bad_steps(self) -> bool:
    """Whether steps with overflowing gradients are skipped and lower the loss scale."""
    return any(
      isinstance(each, _LossScaleOptimizer) and getattr(each, "dynamic", True)
      for part in self._parts
      for each in _chain(part.optimizer)
    )

  def loss_scale(self) -> tf.Tensor | None:
    """Returns the current factor of the loss, float32; None without loss scaling."""
    one, optimizer = tf.ones([]), self._parts[0].optimizer
    scaler = _unscaler(optimizer)
    scale = scaler.get_scaled_loss(one) if scaler else _scale_loss(optimizer, one)
    return None if scale is one else scale

  def unscale(self, gradients: Sequence[Any], scale: tf.Tensor | None) -> list[Any]:
    """Divides gradients by the `loss_scale`.

    Args:
      gradients: dense or `IndexedSlices`, one for each trained variable; None for
        variables that do not affect the loss.
      scale: scale of the loss.
    Returns:
      The gradients of the variables that affect the loss.
    Raises:
      SpecError: no variable affects the loss.
    """
    self._reached = [i for i, g in enumerate(gradients) if g is not None]
    if not self._reached:
      raise errors.SpecError(
        "train_eval_model: loss: expected a loss that depends on the network's "
        f"variables, got one that reaches none of {len(self._variables)}."
      )
    reached = [gradients[i] for i in self._reached]
    if scale is None:
      return reached
    scaler = _unscaler(self._parts[0].optimizer)
    if scaler is not None:
      return list(scaler.get_unscaled_gradients(reached))
    return [_multiply(gradient, 1.0 / scale) for gradient in reached]

  def accumulate(self, gradients: Sequence[Any]) -> None:
    """Adds results of `unscale`, divided by the steps, to this replica's sums."""
    for place, gradient in zip(self._reached, gradients, strict=True):
      part = tf.convert_to_tensor(gradient) / self.accumulation_steps
      self._sums[place].assign_add(tf.cast(part, self._sums[place].dtype))

  def take_accumulated(self) -> list[Any]:
    """Returns the gradients accumulated by this replica, and resets them."""
    sums = [tf.identity(self._sums[place]) for place in self._reached]
    with tf.control_dependencies(sums):
      for place in self._reached:
        self._sums[place].assign(tf.zeros_like(self._sums[place]))
    return sums

  def sum_gradients(self, gradients: Sequence[Any]) -> list[Any]:
    """Sums gradients over the replicas."""
    if self._num_replicas == 1:
      return list(gradients)
    replicas = tf.distribute.get_replica_context()
    return replicas.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))

  def apply(
    self, gradients: Sequence[Any], scale: tf.Tensor | None, is_finite: tf.Tensor
  ) -> None:
    """Clips and applies gradients.

    Args:
      gradients: results of `unscale`, summed over replicas.
      scale: scale of the loss. Keras 3 divides by it, so this multiplies by it before.
      is_finite: bool scalar, whether all gradients are finite.
    """
    if self._clips:
      limit = self._clips["global_clipnorm"]
      gradients = tf.clip_by_global_norm(gradients, limit)[0]
    if len(self._parts) > 1 and scale is not None:
      # Each optimizer checks only its own gradients; NaNs make all skip the step.
      poison = tf.where(is_finite, 1.0, float("nan"))
      gradients = [_multiply(gradient, poison) for gradient in gradients]
    by_place = dict(zip(self._reached, gradients, strict=True))
    # The last group has no interval, so its iterations count the updates.
    step = tf.cast(self._parts[-1].optimizer.iterations, tf.int32) + 1
    for part in self._parts:
      places = [place for place in part.places if place in by_place]
      grads = part.clip([by_place[place] for place in places])
      if not grads:
        continue
      kwargs = {}
      if hasattr(part.optimizer, "aggregate_gradients") and self._num_replicas > 1:
        kwargs["skip_gradients_aggregation"] = True  # An argument of Keras 2.
      if scale is not None and _unscaler(part.optimizer) is None:
        grads = [_multiply(gradient, scale) for gradient in grads]
      pairs = list(zip(grads, [self._variables[p] for p in places], strict=True))
      update = functools.partial(_apply, part.optimizer, pairs, kwargs)
      if part.interval == 1:
        update()
      else:
        tf.cond(tf.equal(step % part.interval, 0), update, lambda: None)


def _apply(optimizer: Any, pairs: list[Any], kwargs: Mapping[str, Any]) -> None:
  optimizer.apply_gradients(pairs, **kwargs)


def _same(what: str, values: Mapping[str, Any]) -> Any:
  first, *others = values.values()
  if any(other != first for other in others):
    raise errors.SpecError(
      f"create_grouped_optimizer: {what}: expected the same of all groups, got "
      f"{values}."
    )
  return first


def _create_sum(variable: tf.Variable) -> tf.Variable:
  return tf.Variable(
    tf.zeros_like(variable),
    trainable=False,
    name="accumulated",
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.SUM,
  )


def _chain(optimizer: Any) -> Iterator[Any]:
  """Yields an optimizer and its inner ones, the outermost first."""
  while optimizer is not None:
    yield optimizer
    optimizer = getattr(optimizer, "inner_optimizer", None)


def _wrapped_for_float16(optimizer: Any) -> Any:
  if _is_scaled(optimizer) or _unscaler(optimizer) is not None:
    return optimizer
  return _LossScaleOptimizer(optimizer)


def _take_averaging(optimizer: Any) -> tuple[float, int | None] | None:
  """Switches off an optimizer's averages; returns (decay, frequency of overwriting).

  Keras 3 begins them at zero, and neither version averages the statistics of batch
  normalisation.
  """
  averaging = None
  for each in _chain(optimizer):
    if not isinstance(each, _LossScaleOptimizer) and getattr(each, "use_ema", False):
      averaging = each.ema_momentum, each.ema_overwrite_frequency
      each.use_ema = False
  return averaging


def _take_accumulation(optimizer: Any) -> int:
  """Switches off an optimizer's accumulation; returns its steps.

  Keras 2 lacks it, and Keras 3 lacks it on several replicas.
  """
  steps = 1
  for each in _chain(optimizer):
    steps *= optimizers.update_options(each).gradient_accumulation_steps
    if getattr(each, "gradient_accumulation_steps", None):
      steps *= each.gradient_accumulation_steps
      each.gradient_accumulation_steps = None
  return steps


def _take_clipping(optimizer: Any) -> dict[str, float]:
  """Switches off an optimizer's clipping; returns it.

  Keras 3 clips the gradients of each replica, Keras 2 their sum.
  """
  clipping: dict[str, float] = {}
  for each in _chain(optimizer):
    for kind in _CLIPS:
      limit = getattr(each, kind, None)
      if limit and not isinstance(each, _LossScaleOptimizer):
        clipping.setdefault(kind, limit)
        setattr(each, kind, None)
  return clipping


def _take_summing(optimizer: Any) -> None:
  """Keeps Keras 3 from summing over replicas again; Keras 2 has an argument for it."""
  for each in _chain(optimizer):
    if hasattr(each, "_all_reduce_sum_gradients"):
      each._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def _exclude_from_decay(optimizer: Any, variables: Mapping[str, tf.Variable]) -> None:
  for each in _chain(optimizer):
    patterns = optimizers.update_options(each).weight_decay_exclude
    excluded = [
      variable
      for name, variable in variables.items()
      if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    if excluded and getattr(each, "weight_decay", None):
      each.exclude_from_weight_decay(var_list=excluded)


def _state(optimizer: Any) -> list[tf.Variable]:
  """Returns all variables of an optimizer, with those of its loss scale."""
  variables = list(networks.tf_variables(optimizer.variables))
  scaler = _unscaler(optimizer)
  if scaler is not None and scaler.dynamic:
    # Keras 2 does not list these two among the optimizer's variables.
    variables += [scaler._loss_scale.current_loss_scale, scaler.dynamic_counter]
  return variables


def _unscaler(optimizer: Any) -> Any:
  """Returns Keras 2's loss scale optimizer, which takes unscaled gradients, or None."""
  return next((o for o in _chain(optimizer) if hasattr(o, "get_scaled_loss")), None)


def _is_scaled(optimizer: Any) -> bool:
  one = tf.ones([])
  return _scale_loss(optimizer, one) is not one


def _scale_loss(optimizer: Any, loss: tf.Tensor) -> tf.Tensor:
  """Scales a loss for a Keras 3 optimizer and its inner ones; not for Keras 2."""
  scale = getattr(type(optimizer), "scale_loss", None)
  if scale is None:
    return loss
  loss = optimizer.scale_loss(loss)
  inner = getattr(optimizer, "inner_optimizer", None)
  # Keras' own methods leave out the inner optimizer's scale. A user's wrapper is
  # assumed to apply it.
  builtin = (_LossScaleOptimizer.scale_loss, tf.keras.optimizers.Optimizer.scale_loss)
  return _scale_loss(inner, loss) if inner is not None and scale in builtin else loss


def _multiply(gradient: Any, factor: tf.Tensor) -> Any:
  if isinstance(gradient, tf.IndexedSlices):
    values = gradient.values * tf.cast(factor, gradient.dtype)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
  return gradient * tf.cast(factor, gradient.dtype)


def project_gradients(
  gradients: Sequence[Sequence[tf.Tensor | None]],
) -> list[tf.Tensor | None]:
  """Adds the gradients of several losses, without opposing parts: PCGrad.

  For `T2RModel.compute_gradients` of a model with several tasks. If the gradient of a
  task opposes another's, its projection on the other is subtracted, for the others in
  random order (Yu et al., 2020).

  Args:
    gradients: for each loss, the dense gradients of all variables; None for a variable
      that does not affect it.
  Returns:
    The sum for each variable; None for variables that affect no loss.
  Raises:
    SpecError: there are no losses, or they have different numbers of gradients.
  """
  counts = {len(each) for each in gradients}
  if len(counts) != 1:
    raise errors.SpecError(
      "project_gradients: gradients: expected one list per loss, each with a gradient "
      f"per variable, got lists of lengths {[len(each) for each in gradients]}."
    )
  reached = [
    next((g for g in each if g is not None), None)
    for each in zip(*gradients, strict=True)
  ]
  like = [each for each in reached if each is not None]
  flat = tf.stack([_flatten(each, reached) for each in gradients])
  projected = [_without_conflicts(flat, index) for index in range(len(gradients))]
  parts = tf.split(tf.add_n(projected), [tf.size(each) for each in like])
  joined = iter(
    tf.cast(tf.reshape(part, tf.shape(each)), each.dtype)
    for part, each in zip(parts, like, strict=True)
  )
  return [None if each is None else next(joined) for each in reached]


def _without_conflicts(flat: tf.Tensor, index: int) -> tf.Tensor:
  """Projects row `index` of `flat` [N, P] off each row that it opposes (PCGrad)."""
  count = flat.shape[0]
  gradient = flat[index]
  order = tf.random.shuffle(tf.range(count))
  for position in range(count):
    other = tf.gather(flat, order[position])
    along = tf.minimum(tf.reduce_sum(gradient * other), 0.0)
    along = tf.where(order[position] == index, 0.0, along)
    gradient -= tf.math.divide_no_nan(along, tf.reduce_sum(other * other)) * other
  return gradient


def _flatten(
  gradients: Sequence[tf.Tensor | None], like: Sequence[tf.Tensor | None]
) -> tf.Tensor:
  """Concatenates the gradients of all variables that any loss reaches, [P]."""
  return tf.concat(
    [
      tf.zeros([tf.size(other)])
      if gradient is None
      else tf.reshape(tf.cast(gradient, tf.float32), [-1])
      for gradient, other in zip(gradients, like, strict=True)
      if other is not None
    ],
    axis=0,
  )


# Keras' names of batch normalization's moving statistics. They are averages already,
# but follow activations of the raw weights: averaged weights need averages of them.
_STATISTICS = ("moving_mean", "moving_variance")


class WeightAverages:
  """Exponential moving averages of weights, which `in_use` swaps in.

  `average = weight + decay * (average - weight)` after each step; the first step
  copies, as in Keras. Training continues with the raw weights: the averages are in the
  model's variables only inside `in_use`.
  """

  def __init__(
    self,
    trained: Sequence[tf.Variable],
    others: Sequence[tf.Variable],
    decay: float,
    overwrite_frequency: int | None = None,
  ) -> None:
    """Creates averages that equal the weights, under the current strategy.

    Args:
      trained: the variables that are trained.
      others: all other variables of the model; the moving statistics of batch
        normalization among them are averaged, too.
      decay: in [0, 1).
      overwrite_frequency: number of steps between two overwrites of the raw weights by
        the averages; None: none.
    """
    self._decay = decay
    self._overwrite_frequency = overwrite_frequency
    self._strategy = tf.distribute.get_strategy()
    statistics = [v for v in others if any(name in v.name for name in _STATISTICS)]
    self._num_trained = len(trained)
    self._weights = [*trained, *statistics]
    # Each replica updates its own averages, without communication. Weights are equal on
    # all replicas, statistics are not.
    first, mean = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.MEAN
    self._averages = [_create(weight, first) for weight in trained]
    self._averages += [_create(statistic, mean) for statistic in statistics]
    self._raw: list[tf.Tensor] | None = None

  @property
  def by_weight(self) -> dict[int, tf.Variable]:
    """The averages by the `id` of their weights."""
    pairs = zip(self._weights, self._averages, strict=True)
    return {id(weight): average for weight, average in pairs}

  def update(self, is_first: tf.Tensor, is_good: tf.Tensor) -> None:
    """Updates the averages by the weights of this step; called by each replica.

    Args:
      is_first: bool scalar; True copies the weights.
      is_good: bool scalar; False changes nothing.
    """
    for weight, average in zip(self._weights, self._averages, strict=True):
      value = tf.convert_to_tensor(weight)
      old = tf.convert_to_tensor(average)
      decay = tf.where(
        is_first, tf.zeros([], old.dtype), tf.cast(self._decay, old.dtype)
      )
      average.assign(tf.where(is_good, value + decay * (old - value), old))

  def overwrite_if_due(self, num_steps: tf.Tensor) -> None:
    """Overwrites trained weights by averages, if due; in cross-replica context."""
    if self._overwrite_frequency is None:
      return

    def overwrite() -> None:
      for index in range(self._num_trained):
        self._weights[index].assign(tf.convert_to_tensor(self._averages[index]))

    tf.cond(num_steps % self._overwrite_frequency == 0, overwrite, lambda: None)

  @contextlib.contextmanager
  def in_use(self) -> Iterator[None]:
    """Swaps the averages in for the weights; can be nested."""
    if self._raw is not None:
      yield
      return
    weights = self._local(self._weights)
    self._raw = [weight.read_value() for weight in weights]
    try:
      for weight, average in zip(weights, self._local(self._averages), strict=True):
        weight.assign(average.read_value())
      yield
    finally:
      self.put_back()

  def put_back(self) -> None:
    """Restores the raw weights if the averages are swapped in."""
    if self._raw is not None:
      for weight, raw in zip(self._local(self._weights), self._raw, strict=True):
        weight.assign(raw)
      self._raw = None

  def _local(self, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    results = self._strategy.experimental_local_results
    return [part for variable in variables for part in results(variable)]


def _create(weight: tf.Variable, aggregation: tf.VariableAggregation) -> tf.Variable:
  return tf.Variable(
    tf.convert_to_tensor(weight),
    trainable=False,
    name="average",
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=aggregation,
  )
