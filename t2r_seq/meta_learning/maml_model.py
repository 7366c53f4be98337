"""MAML over any model: adapts its weights to a task by gradient descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import models, specs
from t2r_seq.meta_learning import meta_tfdata, preprocessors
from t2r_seq.meta_learning.maml_inner_loop import MAMLInnerLoopGradientDescent
from t2r_seq.meta_learning.substitution import substituted
from t2r_seq.meta_learning.task_model import CARRIED, TASK, TaskModel, branch_of, flat
from t2r_seq.policies.policy_model import note_network_inputs, noting_network_inputs
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct

_as_it_is = tf.autograph.experimental.do_not_convert
_SELECTED = ("condition_output", "inference_output")


def pfor_map_fn(fn: Callable[[Any], Any], elems: Any) -> Any:
  """Maps a function over the first axis of tensors, all at once.

  Args:
    fn: takes the structure of `elems` without the first axis, and gives tensors. What
      assigns to variables, such as batch normalisation in mode 'train', can't run so.
    elems: tensors [tasks, ...].
  Returns:
    What `fn` gives, [tasks, ...].
  """
  return tf.vectorized_map(fn, elems)


@gin.configurable
class MAMLModel(TaskModel):
  """Learns the weights from which a few steps of descent learn a task.

  Finn, Abbeel and Levine, 'Model-Agnostic Meta-Learning for Fast Adaptation of Deep
  Networks', 2017. The base model stays as it is: its features and labels become
  `condition/features`, `condition/labels` and `inference/features`, with an axis of
  tasks and one of samples. Its loss on the condition adapts the weights; its loss on
  the inference, with those weights, is what is trained. Where the base model has an
  `inner_loss_fn(features, labels, inference_outputs, mode)`, the weights adapt by that:
  a learned loss, as in domain-adaptive meta-learning (Yu et al., 2018).

  The exported policy has `adapt`: each environment of it can learn a task, and its
  steps take the base model's observations; see `MAMLRegressionPolicy`.
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
      num_inner_loop_steps: steps of descent on the condition; what is less than 1
        counts as 1, with a warning.
      var_scope: how the names of variables begin that the outer loop trains, such as
        'base/head'; None trains all. The inner loop has a `var_scope` of its own.
      use_parallel_for: adapts to all tasks at once, in place of one after the other;
        see `pfor_map_fn` for what can't.
      inner_loop: how the weights adapt; None: `MAMLInnerLoopGradientDescent()`, as gin
        configures it.
      **kwargs: of `T2RModel`; padding, execution, warm start and what is frozen are the
        base model's, the optimizer is this one's.
    """
    if num_inner_loop_steps < 1:
      logging.warning(
        "%s: num_inner_loop_steps: expected at least 1, got %s: 1 is taken, as "
        "Tensor2Robot does it.",
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

  def create_network(self) -> dict[str, Any]:
    """Builds the base model, and the learning rates of the inner loop."""
    self._base_model.build()
    adapting = self._inner_loop.choose(self._base_names())
    self._inner_loop.create_learning_rates(list(adapting))
    return {"base": self._base_model.network, "inner_loop": self._inner_loop}

  def inference_network_fn(  # type: ignore[override]
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> TensorSpecStruct:
    """Adapts to each task, and infers with what it came to.

    Args:
      features: of the condition and of the inference, [tasks, samples, ...].
      labels: of the inference, or None.
      mode: one of `ModeKeys`.
    Returns:
      Outputs of the base model, [tasks, samples, ...]: 'full_condition_output/...'
      before any step, 'full_condition_outputs/output_<i>/...' after i of them,
      'full_inference_output_unconditioned/...' and 'full_inference_output/...', and
      the two that `_select_inference_output` chooses; 'inner_losses',
      [tasks, steps + 1].
    """
    elements = {
      "condition_features": flat(features["condition"]["features"]),
      "condition_labels": flat(features["condition"]["labels"]),
      "inference_features": flat(features["inference"]["features"]),
    }
    if labels is not None:
      elements["inference_labels"] = flat(labels)

    def learn_task(element: Any) -> Any:
      return self._learn_task(element, mode)

    if self._use_parallel_for:
      learned = pfor_map_fn(learn_task, elements)
    else:
      learned = _map_tasks(learn_task, elements)
    predictions = TensorSpecStruct(learned["outputs"])
    predictions["inner_losses"] = learned["inner_losses"]
    predictions = self._select_inference_output(predictions)
    # In training a base model may leave out what only its loss is asked for.
    for name in () if mode == ModeKeys.TRAIN else _SELECTED:
      self._check_outputs("_select_inference_output", predictions, name)
    return predictions

  def _select_inference_output(self, predictions: TensorSpecStruct) -> TensorSpecStruct:
    """Chooses 'condition_output' and 'inference_output'; override it for other models.

    Args:
      predictions: see `inference_network_fn`.
    Returns:
      The same with the two; by default the base model's 'inference_output's, or a
      critic's 'q_predicted'.
    """
    for name in _SELECTED:
      for said in ("inference_output", "q_predicted"):
        if f"full_{name}/{said}" in predictions and name not in predictions:
          predictions[name] = predictions[f"full_{name}/{said}"]
    return predictions

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the base model's loss on the inference, and the inner losses."""
    x, y, outputs = self._inferred(features, labels, inference_outputs, mode)
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
    """Returns the base model's metrics on the inference.

    And 'unconditioned/loss', that of the weights before they adapted: what adapting is
    good for.
    """
    metrics = super().model_eval_fn(features, labels, inference_outputs, mode)
    x, y, _ = self._inferred(features, labels, inference_outputs, mode)
    outputs = meta_tfdata.flatten_batch_examples(
      branch_of(inference_outputs, "full_inference_output_unconditioned")
    )
    loss, *_ = self._split_loss(self._base_model.model_train_fn(x, y, outputs, mode))
    scalars = self._inner_scalars(inference_outputs)
    return {**metrics, "unconditioned/loss": loss, **scalars}

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: Any, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns what the base model exports, and 'condition_output'."""
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
    """Returns the weights that descent on the condition comes to, of each task.

    Args:
      raw_features: as `get_adaptation_specification` says, [tasks, samples, ...].
    """
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
    """Takes a step of the base model in each environment, with its task's weights."""
    state = specs.flatten_spec_structure(recurrent_state)
    adapted = list(self._adapting().values())
    names = [f"{TASK}/{name}" for name in self._adapting()]
    elements = {"features": flat(raw_features), "state": dict(state.items())}
    if seeds is not None:
      elements["seeds"] = seeds

    def step(element: Any) -> Any:
      values = [element["state"][name] for name in names]
      one = tf.nest.map_structure(lambda value: value[tf.newaxis], element)
      carried = specs.pack_flat_sequence_to_spec_structure(
        self._base_model.get_recurrent_state_specification(ModeKeys.INFER),
        branch_of(one["state"], CARRIED),
      )
      with noting_network_inputs() as inputs, substituted(adapted, values):
        outputs, carried = self._base_model.export_step(
          TensorSpecStruct(one["features"]), carried, one.get("seeds")
        )
      done = {"outputs": dict(outputs), "carried": flat(carried), "inputs": inputs}
      return tf.nest.map_structure(lambda value: value[0], done)

    done = _map_tasks(step, elements)
    note_network_inputs(done["inputs"])
    for path, value in done["carried"].items():
      state[f"{CARRIED}/{path}"] = value
    return done["outputs"], state

  @property
  def _inner_loss_fn(self) -> Callable[..., Any]:
    """What the weights adapt by."""
    base: Any = self._base_model
    return getattr(base, "inner_loss_fn", base.model_train_fn)

  def _adapting(self) -> dict[str, tf.Variable]:
    return self._inner_loop.choose(self._base_names())

  def _learn_task(self, element: Any, mode: str) -> dict[str, Any]:
    """Adapts to one task; tensors [samples, ...]."""
    base = self._base_model
    # Mode 'infer' has no labels, and a loss needs what 'eval' computes.
    inner_mode = ModeKeys.EVAL if mode == ModeKeys.INFER else mode
    condition = base.pack(
      TensorSpecStruct(element["condition_features"]),
      TensorSpecStruct(element["condition_labels"]),
      inner_mode,
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
    for branch, said in branches.items():
      for path, value in flat(said).items():
        outputs[f"{branch}/{path}"] = value
    return {
      "outputs": outputs,
      "inner_losses": tf.stack([tf.cast(loss, tf.float32) for loss in losses]),
    }

  @_as_it_is
  def _inferred(
    self, features: SpecStructure, labels: SpecStructure, outputs: Any, mode: str
  ) -> tuple[Any, Any, Any]:
    """Returns (features, labels, outputs) of the inference as one batch."""
    merged = [
      meta_tfdata.flatten_batch_examples(TensorSpecStruct(flat(part)))
      for part in (
        features["inference"]["features"],
        labels,
        branch_of(outputs, "full_inference_output"),
      )
    ]
    packed = specs.pack_flat_sequence_to_spec_structure
    base = self._base_model
    return (
      packed(base.get_feature_specification(mode), merged[0]),
      packed(base.get_label_specification(mode), merged[1]),
      merged[2],
    )

  @_as_it_is
  def _inner_scalars(self, outputs: Any) -> dict[str, tf.Tensor]:
    losses = tf.reduce_mean(outputs["inner_losses"], axis=0)
    return {f"inner_loss_{i}": loss for i, loss in enumerate(tf.unstack(losses))}


def _map_tasks(learn_task: Callable[[Any], Any], elements: Any) -> Any:
  """Maps a function over tasks, one after the other."""
  one = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), elements)
  traced = tf.function(learn_task, input_signature=[one])
  given = tf.nest.map_structure(
    lambda x: tf.TensorSpec(x.shape, x.dtype),
    traced.get_concrete_function().structured_outputs,
  )
  return tf.map_fn(traced, elements, fn_output_signature=given)
