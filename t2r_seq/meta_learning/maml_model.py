"""MAML over any model: adapts its weights to a task by gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import models, specs
from t2r_seq.meta_learning import meta_tfdata, preprocessors
from t2r_seq.meta_learning.maml_inner_loop import (
  MAMLInnerLoopGradientDescent,
  substitute_variables,
)
from t2r_seq.meta_learning.task_model import (
  CARRIED,
  TASK,
  TaskModel,
  base_state,
  branch_of,
  flat,
  merge_samples,
)
from t2r_seq.policies.policy_model import (
  record_network_inputs,
  recording_network_inputs,
)
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct

_SELECTED = ("condition_output", "inference_output")


def pfor_map_fn(fn: Callable[[Any], Any], elems: Any) -> Any:
  """Vectorizes `fn`, which must not assign to variables, over the first axis."""
  return tf.vectorized_map(fn, elems)


@gin.configurable
class MAMLModel(TaskModel):
  """Learns initial weights that adapt to a task in a few gradient steps.

  Finn, Abbeel and Levine, 'Model-Agnostic Meta-Learning for Fast Adaptation of Deep
  Networks', 2017. The base model needs no change. Its loss on the condition adapts the
  weights; training minimizes its loss on the inference with the adapted weights. If it
  has an `inner_loss_fn(features, labels, inference_outputs, mode)`, that adapts the
  weights: a learned loss, as in domain-adaptive meta-learning (Yu et al., 2018).

  The exported policy has `adapt` for each environment, and its steps take the base
  model's observations; see `MAMLRegressionPolicy`.
  """

  def __init__(
    self,
    base_model: models.T2RModel,
    preprocessor_cls: Callable[..., preprocessors.MAMLPreprocessorV2] | None = None,
    num_inner_loop_steps: int = 1,
    var_scope: str | None = None,
    use_parallel_for: bool = False,
    inner_loop: MAMLInnerLoopGradientDescent | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      base_model: any model, not built.
      preprocessor_cls: called with the base model's preprocessor; by default
        `MAMLPreprocessorV2`.
      num_inner_loop_steps: gradient steps on the condition; below 1, warns and uses 1.
      var_scope: prefix of the names of the variables that the outer loop trains, such
        as 'base/head'; None trains all. A `filter_trainables_fn` replaces it. The inner
        loop has a separate `var_scope`.
      use_parallel_for: whether to adapt to all tasks at once by `pfor_map_fn`.
      inner_loop: adapts the weights; None: `MAMLInnerLoopGradientDescent()`.
      **kwargs: see `TaskModel`.
    """
    if num_inner_loop_steps < 1:
      logging.warning(
        "%s: num_inner_loop_steps: expected at least 1, got %s: 1 is used.",
        type(self).__name__,
        num_inner_loop_steps,
      )
      num_inner_loop_steps = 1
    if var_scope is not None:
      kwargs.setdefault("filter_trainables_fn", lambda name: name.startswith(var_scope))
    super().__init__(base_model, preprocessor_cls, **kwargs)
    self._num_inner_loop_steps = num_inner_loop_steps
    self._use_parallel_for = use_parallel_for
    self._inner_loop = inner_loop or MAMLInnerLoopGradientDescent()

  def _unbuilt_copy(self) -> Any:
    copied = super()._unbuilt_copy()
    copied._inner_loop = self._inner_loop._unbuilt_copy()
    return copied

  def create_network(self) -> dict[str, Any]:
    """Builds the base model, and the learning rates of the inner loop."""
    self._base_model.build()
    adapting = self._inner_loop.choose(self._base_names())
    self._inner_loop.create_learning_rates(list(adapting))
    return {"base": self._base_model.network, "inner_loop": self._inner_loop}

  def inference_network_fn(  # type: ignore[override]
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> TensorSpecStruct:
    """Adapts to each task, and infers with the adapted weights.

    Args:
      features: features of the condition and of the inference, [tasks, samples, ...].
      labels: labels of the inference, or None.
      mode: value of `ModeKeys`.
    Returns:
      Outputs of the base model, [tasks, samples, ...]: 'full_condition_output/...' and
      'full_inference_output_unconditioned/...' before the steps,
      'full_condition_outputs/output_<i>/...' after i steps, 'full_inference_output/...'
      after all, and those of `_select_inference_output`; and 'inner_losses', float32
      [tasks, steps + 1].
    Raises:
      SpecError: no variable adapts, or `_select_inference_output` lacks an output.
    """
    elements = {
      "condition_features": flat(features["condition"]["features"]),
      "condition_labels": flat(features["condition"]["labels"]),
      "inference_features": flat(features["inference"]["features"]),
    }
    if labels is not None:
      elements["inference_labels"] = flat(labels)

    map_tasks = pfor_map_fn if self._use_parallel_for else _map_tasks
    learned = map_tasks(lambda element: self._learn_task(element, mode), elements)
    predictions = TensorSpecStruct(learned["outputs"])
    predictions["inner_losses"] = learned["inner_losses"]
    predictions = self._select_inference_output(predictions)
    # In training, a base model may lack these outputs, as its loss does not need them.
    for name in () if mode == ModeKeys.TRAIN else _SELECTED:
      self._check_outputs("_select_inference_output", predictions, name)
    return predictions

  def _select_inference_output(self, predictions: TensorSpecStruct) -> TensorSpecStruct:
    """Adds 'condition_output', before adapting, and 'inference_output', after it.

    From the base model's 'inference_output' or 'q_predicted'; override it for others.
    """
    for name in _SELECTED:
      for key in ("inference_output", "q_predicted"):
        if f"full_{name}/{key}" in predictions and name not in predictions:
          predictions[name] = predictions[f"full_{name}/{key}"]
    return predictions

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the base model's loss on the inference, and the inner losses."""
    x, y, outputs = self._inference_batch(features, labels, inference_outputs, mode)
    loss, scalars, *_ = self._split_loss(
      self._base_model.model_train_fn(x, y, outputs, mode)
    )
    return loss, {**scalars, **self._inner_scalars(inference_outputs)}

  def model_eval_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Returns the base model's metrics, and the inner losses.

    'unconditioned/loss' is the base model's loss on the inference before adapting.
    """
    metrics = super().model_eval_fn(features, labels, inference_outputs, mode)
    x, y, _ = self._inference_batch(features, labels, inference_outputs, mode)
    outputs = meta_tfdata.flatten_batch_examples(
      branch_of(inference_outputs, "full_inference_output_unconditioned")
    )
    loss, *_ = self._split_loss(self._base_model.model_train_fn(x, y, outputs, mode))
    scalars = self._inner_scalars(inference_outputs)
    return {**metrics, "unconditioned/loss": loss, **scalars}

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: Any, mode: str
  ) -> dict[str, tf.Tensor]:
    """Adds 'inference_output' and 'condition_output' to the base model's outputs."""
    flat = meta_tfdata.flatten_batch_examples(
      branch_of(inference_outputs, "full_inference_output")
    )
    inference = meta_tfdata.flatten_batch_examples(features["inference"]["features"])
    outputs = self._base_model.create_export_outputs_fn(inference, flat, mode)
    first = inference_outputs["inference_output"]
    sizes = tf.shape(first)[:2]
    return {
      "inference_output": first,
      **meta_tfdata.expand_batch_dims(dict(outputs), sizes),
      "condition_output": inference_outputs["condition_output"],
    }

  def task_specification(self) -> TensorSpecStruct:
    """Returns the specs of the adapted weights."""
    return TensorSpecStruct(
      (name, specs.ExtendedTensorSpec(variable.shape, variable.dtype))
      for name, variable in self._adapting().items()
    )

  def initial_task(self, batch_size: tf.Tensor) -> TensorSpecStruct:
    """Returns the weights before any task."""
    return TensorSpecStruct(
      (name, tf.repeat(tf.convert_to_tensor(variable)[tf.newaxis], batch_size, axis=0))
      for name, variable in self._adapting().items()
    )

  def adapt(self, raw_features: SpecStructure) -> TensorSpecStruct:
    """Returns the weights adapted to each condition; see the base class."""
    condition = self.preprocessor.preprocess_condition(raw_features, ModeKeys.INFER)

    def learn_task(element: Any) -> Any:
      packed = self._base_model.pack(
        TensorSpecStruct(element["features"]),
        TensorSpecStruct(element["labels"]),
        ModeKeys.EVAL,
      )
      values, _, _ = self._inner_loop.descend(
        [packed] * self._num_inner_loop_steps,
        self._base_model.inference_network_fn,
        self._inner_loss_fn,
        {"mode": ModeKeys.EVAL},
        self._adapting(),
      )
      return dict(zip(self._adapting(), values, strict=True))

    elements = {branch: flat(condition[branch]) for branch in ("features", "labels")}
    with self._holding_step():
      learned = _map_tasks(learn_task, elements)
    return TensorSpecStruct((f"{TASK}/{name}", v) for name, v in learned.items())

  def export_step(
    self,
    raw_features: SpecStructure,
    recurrent_state: SpecStructure,
    seeds: tf.Tensor | None,
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """Steps the base model in each environment, with the weights of its task."""
    state = specs.flatten_spec_structure(recurrent_state)
    adapted = list(self._adapting().values())
    names = [f"{TASK}/{name}" for name in self._adapting()]
    elements = {"features": flat(raw_features), "state": dict(state.items())}
    if seeds is not None:
      elements["seeds"] = seeds

    def step(element: Any) -> Any:
      values = [element["state"][name] for name in names]
      one = tf.nest.map_structure(lambda value: value[tf.newaxis], element)
      carried = base_state(self._base_model, one["state"])
      with recording_network_inputs() as inputs, substitute_variables(adapted, values):
        outputs, carried = self._base_model.export_step(
          TensorSpecStruct(one["features"]), carried, one.get("seeds")
        )
      done = {"outputs": dict(outputs), "carried": flat(carried), "inputs": inputs}
      return tf.nest.map_structure(lambda value: value[0], done)

    done = _map_tasks(step, elements)
    record_network_inputs(done["inputs"])
    for path, value in done["carried"].items():
      state[f"{CARRIED}/{path}"] = value
    return done["outputs"], state

  @property
  def _inner_loss_fn(self) -> Callable[..., Any]:
    """Computes the loss of the inner loop."""
    base: Any = self._base_model
    return getattr(base, "inner_loss_fn", base.model_train_fn)

  def _adapting(self) -> dict[str, tf.Variable]:
    return self._inner_loop.choose(self._base_names())

  def _learn_task(self, element: Any, mode: str) -> dict[str, Any]:
    """Adapts to one task, and infers; tensors [samples, ...]."""
    base = self._base_model
    condition = base.pack(
      TensorSpecStruct(element["condition_features"]),
      TensorSpecStruct(element["condition_labels"]),
      preprocessors.condition_mode(mode),
    )
    given = element.get("inference_labels")
    inference = base.pack(
      TensorSpecStruct(element["inference_features"]),
      None if given is None else TensorSpecStruct(given),
      mode,
    )
    steps = [condition] * self._num_inner_loop_steps
    inferred, inner, losses = self._inner_loop.inner_loop(
      [*steps, inference],
      base.inference_network_fn,
      self._inner_loss_fn,
      mode,
      variables=self._base_names(),
    )
    outputs: dict[str, tf.Tensor] = {}
    branches = {f"full_condition_outputs/output_{i}": o for i, o in enumerate(inner)}
    branches["full_condition_output"] = inner[0]
    branches["full_inference_output_unconditioned"] = inferred[0]
    branches["full_inference_output"] = inferred[1]
    for branch, output in branches.items():
      for path, value in flat(output).items():
        outputs[f"{branch}/{path}"] = value
    return {
      "outputs": outputs,
      "inner_losses": tf.stack([tf.cast(loss, tf.float32) for loss in losses]),
    }

  @tf.autograph.experimental.do_not_convert
  def _inference_batch(
    self, features: SpecStructure, labels: SpecStructure, outputs: Any, mode: str
  ) -> tuple[Any, Any, Any]:
    base, inference = self._base_model, features["inference"]["features"]
    return (
      merge_samples(inference, base.get_feature_specification(mode)),
      merge_samples(labels, base.get_label_specification(mode)),
      meta_tfdata.flatten_batch_examples(branch_of(outputs, "full_inference_output")),
    )

  @tf.autograph.experimental.do_not_convert
  def _inner_scalars(self, outputs: Any) -> dict[str, tf.Tensor]:
    losses = tf.reduce_mean(outputs["inner_losses"], axis=0)
    return {f"inner_loss_{i}": loss for i, loss in enumerate(tf.unstack(losses))}


def _map_tasks(learn_task: Callable[[Any], Any], elements: Any) -> Any:
  """Maps a function over tasks, one after another."""
  one = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), elements)
  traced = tf.function(learn_task, input_signature=[one])
  output = tf.nest.map_structure(
    lambda x: tf.TensorSpec(x.shape, x.dtype),
    traced.get_concrete_function().structured_outputs,
  )
  return tf.map_fn(traced, elements, fn_output_signature=output)
