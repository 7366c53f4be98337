"""What models of tasks have in common: what they take over from a base model."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import models, policies, specs
from t2r_seq.meta_learning import preprocessors
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct
from t2r_seq.windows.cut import Padding

# Branches of the policy's state.
TASK, CARRIED = "task", "carried"


class TaskModel(models.T2RModel):
  """A model that learns a task from a condition, and does what a base model does.

  The base model's features and labels become `condition/features`, `condition/labels`
  and `inference/features`, with an axis of tasks and one of samples. A step of the
  exported policy takes what the base model's would.
  """

  def __init__(
    self,
    base_model: models.T2RModel,
    preprocessor_cls: Callable[..., preprocessors.MAMLPreprocessorV2] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      base_model: any model, not built.
      preprocessor_cls: called with the base model's preprocessor; by default
        `MAMLPreprocessorV2`.
      **kwargs: of `T2RModel`; padding, execution, warm start and what is frozen are the
        base model's, the optimizer is this one's.
    """
    super().__init__(preprocessor_cls=preprocessor_cls, **kwargs)
    self._base_model = base_model

  @property
  def base_model(self) -> models.T2RModel:
    """The model that adapts."""
    return self._base_model

  @property
  def default_preprocessor_cls(self) -> Any:
    """The base model's preprocessor, of every sample."""
    return preprocessors.MAMLPreprocessorV2

  @property
  def preprocessor(self) -> Any:
    """The preprocessor, around that of the base model."""
    if self._preprocessor is None:
      preprocessor_cls = self._preprocessor_cls or self.default_preprocessor_cls
      self._preprocessor = preprocessor_cls(self._base_model.preprocessor)
    return self._preprocessor

  @property
  def step_preprocessor(self) -> Any:
    """That of the base model: a step is one sample."""
    return self.preprocessor.base_preprocessor

  @property
  def padding(self) -> Padding:
    """That of the base model."""
    return self._base_model.padding

  @property
  def execution(self) -> policies.ChunkExecution | None:
    """That of the base model."""
    return self._base_model.execution

  def get_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's specs, of condition and inference."""
    base, learned = self._base_model, preprocessors.condition_mode(mode)
    return preprocessors.create_maml_feature_spec(
      base.get_feature_specification(learned),
      base.get_label_specification(learned),
      base.get_feature_specification(mode),
    )

  def get_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's label specs, of the inference."""
    return preprocessors.create_maml_label_spec(
      self._base_model.get_label_specification(mode)
    )

  @property
  def trainable_variables(self) -> list[tf.Variable]:
    """The variables that are trained; of the base model's those that it trains."""
    kept = {id(variable) for variable in self._base_names().values()}
    frozen = {id(v) for v in self._base_model.variables} - kept
    return [v for v in super().trainable_variables if id(v) not in frozen]

  def follow_global_step(self, variable: tf.Variable) -> None:
    """Has both models see the steps of a trainer."""
    super().follow_global_step(variable)
    self._base_model.follow_global_step(variable)

  def maybe_init_from_checkpoint(self) -> None:
    """Initialises the variables as this model says, and then as the base model does."""
    super().maybe_init_from_checkpoint()
    self._base_model.maybe_init_from_checkpoint()

  def after_train_step(self) -> None:
    """Does what the base model does."""
    self._base_model.after_train_step()

  @abc.abstractmethod
  def _inferred(
    self, features: SpecStructure, labels: SpecStructure, outputs: Any, mode: str
  ) -> tuple[Any, Any, Any]:
    """Returns (features, labels, outputs) of the inference as one batch."""

  def model_eval_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Returns the base model's metrics on the inference."""
    given = self._inferred(features, labels, inference_outputs, mode)
    return self._base_model.model_eval_fn(*given, mode)

  def eval_tallies_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Counts what the base model counts, on the inference."""
    given = self._inferred(features, labels, inference_outputs, mode)
    return self._base_model.eval_tallies_fn(*given, mode)

  def eval_results_fn(self, tallies: dict[str, np.ndarray]) -> dict[str, float]:
    """Makes of them what the base model makes."""
    return self._base_model.eval_results_fn(tallies)

  @property
  def is_seeded(self) -> bool:  # type: ignore[override]
    """Whether the base model draws random numbers."""
    return self._base_model.is_seeded

  @property
  def step_model(self) -> policies.PolicyModel:
    """A step takes what the base model's would."""
    return self._base_model

  def step_paths(self, raw_paths: list[str]) -> list[str]:
    """Returns those of the base model."""
    return self._base_model.step_paths(raw_paths)

  def keeps_state(self, path: str) -> bool:
    """Whether it is of the task, which outlives its episodes."""
    return path.startswith(f"{TASK}/")

  def get_adaptation_specification(self) -> TensorSpecStruct:
    """Returns the raw features of the condition, in mode 'infer'."""
    given = specs.flatten_spec_structure(
      self.preprocessor.get_in_feature_specification(ModeKeys.INFER)
    )
    return TensorSpecStruct(
      (path, spec) for path, spec in given.items() if path.startswith("condition/")
    )

  def adaptation_offsets(self) -> dict[str, list[int]]:
    """Returns those of the base model's stacks, in mode 'infer'."""
    base = self.preprocessor.base_preprocessor
    mode = preprocessors.condition_mode(ModeKeys.INFER)
    given = {
      "features": base.get_in_feature_specification(mode),
      "labels": base.get_in_label_specification(mode),
    }
    return {
      f"condition/{branch}/{path}": list(spec.time_offsets)
      for branch, structure in given.items()
      for path, spec in specs.flatten_spec_structure(structure).items()
      if isinstance(spec.time_offsets, tuple)
    }

  def _example_batch(self, mode: str) -> tuple[SpecStructure, SpecStructure]:
    """Has as many steps in sequences as the base model needs."""
    wanted = (self.get_feature_specification(mode), self.get_label_specification(mode))
    features, labels = (
      TensorSpecStruct(
        (path, tf.repeat(value, self._base_model._example_length, axis=2))
        if spec[path].shape[1:2] == [None]
        else (path, value)
        for path, value in specs.flatten_spec_structure(given).items()
      )
      for given, spec in zip(super()._example_batch(mode), wanted, strict=True)
    )
    return features, labels

  @abc.abstractmethod
  def task_specification(self) -> TensorSpecStruct:
    """Returns the specs of what is known of a task, of one environment."""

  @abc.abstractmethod
  def initial_task(self, batch_size: tf.Tensor) -> TensorSpecStruct:
    """Returns what is known before any task, [batch_size, ...]."""

  def get_recurrent_state_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the specs of what is known of the task, and the base model's state."""
    carried = self._base_model.get_recurrent_state_specification(mode)
    return _state(self.task_specification(), carried)

  def initial_recurrent_state(self, batch_size: tf.Tensor) -> TensorSpecStruct:
    """Returns what is known before any task, and what the base model begins with."""
    carried = self._base_model.initial_recurrent_state(batch_size)
    return _state(self.initial_task(batch_size), carried)

  @tf.autograph.experimental.do_not_convert
  def _base_names(self) -> dict[str, tf.Variable]:
    """Returns the base model's trainable variables by name."""
    trained = {id(variable) for variable in self._base_model.trainable_variables}
    named = self._base_model.named_variables
    return {name: v for name, v in named.items() if id(v) in trained}


def _state(task: SpecStructure, carried: SpecStructure) -> TensorSpecStruct:
  return TensorSpecStruct(
    (f"{branch}/{path}", leaf)
    for branch, part in ((TASK, task), (CARRIED, carried))
    for path, leaf in specs.flatten_spec_structure(part).items()
  )


def flat(structure: Any) -> dict[str, tf.Tensor]:
  """Returns the tensors of a structure by path; those that are absent are left out."""
  return dict(specs.flatten_spec_structure(structure, filter_none=True).items())


def branch_of(outputs: Any, name: str) -> TensorSpecStruct:
  return TensorSpecStruct(
    (path.removeprefix(f"{name}/"), value)
    for path, value in outputs.items()
    if path.startswith(f"{name}/")
  )
