"""The inner loop of MAML: differentiable gradient descent on substituted weights."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.losses import local_means
from t2r_seq.specs import ModeKeys

InferenceFn = Callable[..., Mapping[str, Any]]
LossFn = Callable[..., Any]


@gin.configurable
class MAMLInnerLoopGradientDescent(tf.Module):
  """Adapts a network to a task by gradient descent (Finn et al., 2017).

  The outer loss is differentiated through the steps. Layers need no change; see
  `substitute_variables`.
  """

  def __init__(
    self,
    learning_rate: float = 0.001,
    use_second_order: bool = True,
    var_scope: str | None = None,
    learn_inner_lr: bool = False,
  ) -> None:
    """Creates the inner loop.

    Args:
      learning_rate: learning rate of the steps; the initial value of learned rates.
      use_second_order: whether gradients of the outer loss flow through the inner
        gradients. False is first-order MAML.
      var_scope: prefix of the names of the variables that adapt; None adapts all.
      learn_inner_lr: whether the outer loop trains a learning rate for each adapting
        variable (as Meta-SGD does for each weight).
    """
    super().__init__(name="inner_loop")
    self._learning_rate = learning_rate
    self._use_second_order = use_second_order
    self._var_scope = var_scope
    self._learn_inner_lr = learn_inner_lr
    self.inner_learning_rates: dict[str, tf.Variable] = {}

  def _unbuilt_copy(self) -> MAMLInnerLoopGradientDescent:
    """Returns an inner loop with the same options, and no learning rates yet."""
    options = self._use_second_order, self._var_scope, self._learn_inner_lr
    return type(self)(self._learning_rate, *options)

  def create_learning_rates(self, names: Sequence[str]) -> None:
    """Creates the learning rates of variables, if they are trained."""
    if not self._learn_inner_lr:
      return
    for name in names:
      key = re.sub(r"\W", "_", name)
      if key not in self.inner_learning_rates:
        with tf.init_scope():
          self.inner_learning_rates[key] = tf.Variable(
            self._learning_rate, name=f"{key}_inner_lr", dtype=tf.float32
          )

  @tf.autograph.experimental.do_not_convert
  def _learning_rate_of(self, name: str) -> Any:
    if not self._learn_inner_lr:
      return self._learning_rate
    self.create_learning_rates([name])
    return tf.convert_to_tensor(self.inner_learning_rates[re.sub(r"\W", "_", name)])

  def inner_loop(
    self,
    inputs_list: Sequence[tuple[Any, Any]],
    inference_network_fn: InferenceFn,
    model_train_fn: LossFn,
    mode: str | None = None,
    params: Mapping[str, Any] | None = None,
    variables: Mapping[str, tf.Variable] | None = None,
  ) -> tuple[list[Any], list[Any], list[tf.Tensor]]:
    """Takes a gradient step on each input but the last, and infers on the last.

    Args:
      inputs_list: (features, labels) of the steps, then of the inference.
      inference_network_fn: called with `features`, `labels` and `mode`.
      model_train_fn: called with these and `inference_outputs`; returns the loss, or
        (loss, anything).
      mode: mode of both functions; in mode 'infer' the steps run in mode 'eval'.
      params: `params` argument of both functions; None does not pass it.
      variables: variables that may adapt, by name; None: the trainable variables that
        `inference_network_fn` reads.
    Returns:
      ([outputs on the last input before the steps, after them], outputs on the other
      inputs before each step and after the last one, their losses).
    Raises:
      SpecError: there are fewer than two inputs, or no variable adapts.
    """
    if tf.executing_eagerly():

      def in_graph() -> Any:
        return self.inner_loop(
          inputs_list, inference_network_fn, model_train_fn, mode, params, variables
        )

      return tf.function(in_graph)()
    if len(inputs_list) < 2:
      raise errors.SpecError(
        "inner_loop: inputs_list: expected (features, labels) of one step or more, "
        f"and of the inference, got {len(inputs_list)}."
      )
    extra = {} if params is None else {"params": params}
    inner = {"mode": ModeKeys.EVAL if mode == ModeKeys.INFER else mode, **extra}
    if variables is None:
      variables = _variables_of(inference_network_fn, *inputs_list[0], inner)
    functions = inference_network_fn, model_train_fn
    adapting = self.choose(variables)
    values, inner_outputs, inner_losses = self.descend(
      inputs_list[:-1], *functions, inner, adapting
    )
    # Outputs and loss after the last step, on its data; no gradient step follows.
    features, labels = inputs_list[-2]
    adapted = list(adapting.values())
    with substitute_variables(adapted, values), local_means():
      outputs = inference_network_fn(features=features, labels=labels, **inner)
      inner_losses.append(_loss(model_train_fn, features, labels, outputs, inner))
      inner_outputs.append(outputs)
    features, labels = inputs_list[-1]
    last = {"features": features, "labels": labels, "mode": mode, **extra}
    with substitute_variables(adapted, values):
      conditioned = inference_network_fn(**last)
    return [inference_network_fn(**last), conditioned], inner_outputs, inner_losses

  @tf.autograph.experimental.do_not_convert
  def choose(self, variables: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables that adapt; SpecError if no variable does."""
    scope = self._var_scope or ""
    adapting = {n: v for n, v in variables.items() if n.startswith(scope)}
    if not adapting:
      raise errors.SpecError(
        f"{type(self).__name__}: var_scope: expected one that begins names of "
        f"variables, {errors.listing(variables)}, got {self._var_scope!r}."
      )
    return adapting

  def descend(
    self,
    inputs_list: Sequence[tuple[Any, Any]],
    inference_network_fn: InferenceFn,
    model_train_fn: LossFn,
    options: Mapping[str, Any],
    variables: Mapping[str, tf.Variable],
  ) -> tuple[list[tf.Tensor], list[Any], list[tf.Tensor]]:
    """Takes a gradient step on each input.

    Args:
      inputs_list: (features, labels) of the steps.
      inference_network_fn: see `inner_loop`.
      model_train_fn: see `inner_loop`.
      options: further keyword arguments of both functions.
      variables: variables that adapt, by name.
    Returns:
      (adapted values of the variables; outputs, and losses, before each step).
    Raises:
      RuntimeError: outside a `tf.function`.
    """
    names, adapted = list(variables), list(variables.values())
    values = [tf.convert_to_tensor(variable) for variable in adapted]
    inner_outputs, inner_losses = [], []
    for features, labels in inputs_list:
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        with substitute_variables(adapted, values), local_means():
          outputs = inference_network_fn(features=features, labels=labels, **options)
          loss = _loss(model_train_fn, features, labels, outputs, options)
      values = self._descend(names, values, tape.gradient(loss, values))
      inner_outputs.append(outputs)
      inner_losses.append(loss)
    return values, inner_outputs, inner_losses

  @tf.autograph.experimental.do_not_convert
  def _descend(
    self,
    names: Sequence[str],
    values: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor | None],
  ) -> list[tf.Tensor]:
    """Returns the values after a step; values without a gradient are unchanged."""
    stepped = []
    for name, value, gradient in zip(names, values, gradients, strict=True):
      if gradient is not None:
        gradient = tf.convert_to_tensor(gradient)
        if not self._use_second_order:
          gradient = tf.stop_gradient(gradient)
        value -= tf.cast(self._learning_rate_of(name), value.dtype) * gradient
      stepped.append(value)
    return stepped


def _loss(
  model_train_fn: LossFn,
  features: Any,
  labels: Any,
  outputs: Any,
  options: Mapping[str, Any],
) -> tf.Tensor:
  result = model_train_fn(
    features=features, labels=labels, inference_outputs=outputs, **options
  )
  return result[0] if isinstance(result, tuple) else result


def _variables_of(
  inference_network_fn: InferenceFn,
  features: Any,
  labels: Any,
  options: Mapping[str, Any],
) -> dict[str, tf.Variable]:
  """Returns the trainable variables that a function reads, by name."""
  with tf.GradientTape() as tape:
    inference_network_fn(features=features, labels=labels, **options)
  variables: dict[str, tf.Variable] = {}
  for variable in tape.watched_variables():
    name = variable.name.partition(":")[0]
    variables[name if name not in variables else f"{name}_{len(variables)}"] = variable
  return variables


class _Active(threading.local):
  """Substitutes of variables, by id, in this thread."""

  def __init__(self) -> None:
    self.values: dict[int, tf.Tensor] = {}


_active = _Active()


@functools.cache
def _substitutable(cls: Any) -> Any:
  """Derives a variable class whose reads return the variable's substitute, if any.

  Keras 3 has a scope for this; Keras 2, tf.Module and the variables of replicas have
  none, but all read a `tf.Variable`.
  """

  class Substitutable(cls):  # type: ignore[valid-type, misc]
    is_substitutable = True

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
      value = _active.values.get(id(self))
      return super()._read_variable_op(no_copy) if value is None else value

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
      value = _active.values.get(id(self))
      if value is None:
        return super().sparse_read(indices, name)
      return tf.gather(value, indices, name=name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
      value = _active.values.get(id(self))
      if value is None:
        return super().gather_nd(indices, name)
      return tf.gather_nd(value, indices, name=name)

  Substitutable.__name__, Substitutable.__qualname__ = cls.__name__, cls.__qualname__
  Substitutable.__module__ = cls.__module__
  return Substitutable


def _parts(variable: Any) -> list[tf.Variable]:
  """Returns the variables that ops read: this one, or one for each replica."""
  inner = getattr(variable, "_variable", variable)  # Keras 2 wraps mixed precision.
  return list(getattr(inner, "values", [inner]))


@tf.autograph.experimental.do_not_convert
@contextlib.contextmanager
def substitute_variables(
  variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
) -> Iterator[None]:
  """Makes reads of variables return tensors, in this thread and its traces.

  Gradients flow to the tensors. Assignments still change the variables. Layers read
  their variables themselves, so that no argument can carry the values.

  Args:
    variables: variables of Keras layers or tf.Modules.
    values: value for each, of its shape and dtype.
  Raises:
    RuntimeError: outside a `tf.function`: eager ops read variables without Python.
  """
  if tf.executing_eagerly():
    raise RuntimeError("substitute_variables: expected to be inside a tf.function.")
  substitutes = {}
  for variable, value in zip(variables, values, strict=True):
    for part in _parts(variable):
      if not getattr(part, "is_substitutable", False):
        cls: Any = type(part)
        part.__class__ = _substitutable(cls)
      substitutes[id(part)] = value
  before = _active.values
  _active.values = {**before, **substitutes}
  try:
    yield
  finally:
    _active.values = before
