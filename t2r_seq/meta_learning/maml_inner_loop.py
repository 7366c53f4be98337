"""The inner loop of MAML: gradient descent whose steps can be differentiated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.losses import local_means
from t2r_seq.meta_learning.substitution import substituted
from t2r_seq.specs import ModeKeys

InferenceFn = Callable[..., Mapping[str, Any]]
LossFn = Callable[..., Any]


@gin.configurable
class MAMLInnerLoopGradientDescent(tf.Module):
  """Adapts a network to a task by steps of gradient descent (Finn et al., 2017).

  The steps are functions of the variables: the outer loss is differentiated through
  them. The layers are not touched; see `substitution`.
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
      learning_rate: of the steps; what learned ones begin with.
      use_second_order: whether gradients of the outer loss flow through those of the
        inner one. False is first-order MAML.
      var_scope: how the names of variables begin that adapt; None adapts all.
      learn_inner_lr: gives each variable a learning rate of its own, which the outer
        loop trains (Meta-SGD), also where the inner gradients are of first order.
    """
    super().__init__(name="inner_loop")
    self._learning_rate = learning_rate
    self._use_second_order = use_second_order
    self._var_scope = var_scope
    self._learn_inner_lr = learn_inner_lr
    self.inner_learning_rates: dict[str, tf.Variable] = {}

  def create_learning_rates(self, names: Sequence[str]) -> None:
    """Creates the learning rates of variables by name, where they are learned."""
    if not self._learn_inner_lr:
      return
    for name in names:
      key = re.sub(r"\W", "_", name)
      if key not in self.inner_learning_rates:
        with tf.init_scope():
          self.inner_learning_rates[key] = tf.Variable(
            self._learning_rate, name=f"{key}_inner_lr", dtype=tf.float32
          )

  def _adapts(self, name: str) -> bool:
    return self._var_scope is None or name.startswith(self._var_scope)

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
    """Takes a step of descent for each but the last input, and infers on that.

    Args:
      inputs_list: (features, labels) of the steps, then of the inference.
      inference_network_fn: called with `features`, `labels` and `mode`.
      model_train_fn: called with these and `inference_outputs`; gives the loss, or
        (loss, anything).
      mode: is handed to both; in mode 'infer' the steps run in mode 'eval'.
      params: is handed to both, unless None.
      variables: what may adapt, by name; None: the trainable variables that
        `inference_network_fn` is seen to read.
    Returns:
      ([outputs on the last input before any step, outputs after all of them], outputs
      of the steps before each of them and after the last, the losses of those).
    Raises:
      SpecError: there are no two inputs, or nothing adapts.
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
    # What the steps came to, on the data of the last one; nothing is learned from it.
    features, labels = inputs_list[-2]
    adapted = list(adapting.values())
    with substituted(adapted, values), local_means():
      outputs = inference_network_fn(features=features, labels=labels, **inner)
      inner_losses.append(_loss(model_train_fn, features, labels, outputs, inner))
      inner_outputs.append(outputs)
    features, labels = inputs_list[-1]
    asked = {"features": features, "labels": labels, "mode": mode, **extra}
    with substituted(adapted, values):
      conditioned = inference_network_fn(**asked)
    return [inference_network_fn(**asked), conditioned], inner_outputs, inner_losses

  @tf.autograph.experimental.do_not_convert
  def choose(self, variables: Mapping[str, tf.Variable]) -> dict[str, tf.Variable]:
    """Returns the variables that adapt, by name.

    Raises:
      SpecError: there is none.
    """
    adapting = {n: v for n, v in variables.items() if self._adapts(n)}
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
    asked: Mapping[str, Any],
    variables: Mapping[str, tf.Variable],
  ) -> tuple[list[tf.Tensor], list[Any], list[tf.Tensor]]:
    """Takes a step of descent for each input.

    Args:
      inputs_list: (features, labels) of the steps.
      inference_network_fn: see `inner_loop`.
      model_train_fn: see `inner_loop`.
      asked: further arguments of both.
      variables: what adapts, by name.
    Returns:
      (the values that the variables came to; outputs, and losses, before each step).
    """
    names, adapted = list(variables), list(variables.values())
    values = [tf.convert_to_tensor(variable) for variable in adapted]
    inner_outputs, inner_losses = [], []
    for features, labels in inputs_list:
      with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(values)
        with substituted(adapted, values), local_means():
          outputs = inference_network_fn(features=features, labels=labels, **asked)
          loss = _loss(model_train_fn, features, labels, outputs, asked)
      values = self._descended(names, values, tape.gradient(loss, values))
      inner_outputs.append(outputs)
      inner_losses.append(loss)
    return values, inner_outputs, inner_losses

  @tf.autograph.experimental.do_not_convert
  def _descended(
    self,
    names: Sequence[str],
    values: Sequence[tf.Tensor],
    gradients: Sequence[tf.Tensor | None],
  ) -> list[tf.Tensor]:
    """Returns the values after a step; those without a gradient stay."""
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
  asked: Mapping[str, Any],
) -> tf.Tensor:
  result = model_train_fn(
    features=features, labels=labels, inference_outputs=outputs, **asked
  )
  return result[0] if isinstance(result, tuple) else result


def _variables_of(
  inference_network_fn: InferenceFn,
  features: Any,
  labels: Any,
  asked: Mapping[str, Any],
) -> dict[str, tf.Variable]:
  """Finds the trainable variables that a function reads, by their names."""
  with tf.GradientTape() as tape:
    inference_network_fn(features=features, labels=labels, **asked)
  found: dict[str, tf.Variable] = {}
  for variable in tape.watched_variables():
    name = variable.name.partition(":")[0]
    found[name if name not in found else f"{name}_{len(found)}"] = variable
  return found
