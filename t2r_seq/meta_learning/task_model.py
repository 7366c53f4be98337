"""The base class of models that adapt a base model to tasks."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, models, policies, specs
from t2r_seq.meta_learning import meta_tfdata, preprocessors
from t2r_seq.policies.policy_model import PolicyModel
from t2r_seq.specs import ModeKeys, SpecStructure, TensorSpecStruct
from t2r_seq.windows.cut import Padding

# Branches of the policy state.
TASK, CARRIED = "task", "carried"


class TaskModel(models.T2RModel):
  """A model that adapts a base model to a task by the task's condition.

  The base model's features and labels become `condition/features`, `condition/labels`
  and `inference/features`, [tasks, samples, ...]. A step of the exported policy takes
  the base model's observations.
  """

  def __init__(
    self,
    base_model: models.T2RModel,
    preprocessor_cls: Callable[..., preprocessors.MAMLPreprocessorV2] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model.

    Args:
      base_model: any model, not built. Its `padding`, `execution`, `control_period`,
        warm start and frozen variables apply.
      preprocessor_cls: called with the base model's preprocessor; by default
        `MAMLPreprocessorV2`.
      **kwargs: arguments of `T2RModel`; its optimizer applies, not the base model's.
    """
    kwargs.setdefault("control_period", base_model.control_period)
    super().__init__(preprocessor_cls=preprocessor_cls, **kwargs)
    self._base_model = base_model

  @property
  def base_model(self) -> models.T2RModel:
    """The model that is adapted."""
    return self._base_model

  @property
  def default_preprocessor_cls(self) -> Any:
    return preprocessors.MAMLPreprocessorV2

  @property
  def preprocessor(self) -> Any:
    """The preprocessor, which wraps the base model's."""
    if self._preprocessor is None:
      preprocessor_cls = self._preprocessor_cls or self.default_preprocessor_cls
      self._preprocessor = preprocessor_cls(self._base_preprocessor())
    return self._preprocessor

  def _base_preprocessor(self) -> Any:
    return self._base_model.preprocessor

  @property
  def step_preprocessor(self) -> Any:
    return self.preprocessor.base_preprocessor

  @property
  def padding(self) -> Padding:
    return self._base_model.padding

  @property
  def execution(self) -> policies.ChunkExecution | None:
    return self._base_model.execution

  def get_feature_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's specs for the condition and the inference."""
    base = self._base_model
    return preprocessors.maml_feature_spec(
      base.get_feature_specification, base.get_label_specification, mode
    )

  def get_label_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the base model's label specs for the inference."""
    return preprocessors.create_maml_label_spec(
      self._base_model.get_label_specification(mode)
    )

  @property
  def trainable_variables(self) -> list[tf.Variable]:
    """The trained variables, without the base model's frozen ones."""
    kept = {id(variable) for variable in self._base_names().values()}
    frozen = {id(v) for v in self._base_model.variables} - kept
    return [v for v in super().trainable_variables if id(v) not in frozen]

  def _unbuilt_copy(self) -> Any:
    copied = super()._unbuilt_copy()
    copied._base_model = self._base_model._unbuilt_copy()
    return copied

  def follow_global_step(self, variable: tf.Variable | tf.Tensor) -> None:
    super().follow_global_step(variable)
    self._base_model.follow_global_step(variable)

  @tf.autograph.experimental.do_not_convert
  @contextlib.contextmanager
  def _holding_step(self) -> Iterator[None]:
    with super()._holding_step(), self._base_model._holding_step():
      yield

  def maybe_init_from_checkpoint(self) -> None:
    """Initializes variables of this model, then of the base model."""
    super().maybe_init_from_checkpoint()
    self._base_model.maybe_init_from_checkpoint()

  def after_train_step(self) -> None:
    self._base_model.after_train_step()

  @abc.abstractmethod
  def _inference_batch(
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
    given = self._inference_batch(features, labels, inference_outputs, mode)
    return self._base_model.model_eval_fn(*given, mode)

  def eval_tallies_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: Any,
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Returns the base model's tallies on the inference."""
    given = self._inference_batch(features, labels, inference_outputs, mode)
    return self._base_model.eval_tallies_fn(*given, mode)

  def eval_results_fn(self, tallies: dict[str, np.ndarray]) -> dict[str, float]:
    return self._base_model.eval_results_fn(tallies)

  @property
  def is_seeded(self) -> bool:  # type: ignore[override]
    return self._base_model.is_seeded

  @property
  def step_model(self) -> PolicyModel:
    return self._base_model

  def step_paths(self, raw_paths: list[str]) -> list[str]:
    return self._base_model.step_paths(raw_paths)

  def keeps_state(self, path: str) -> bool:
    """Whether a part of the state outlives its episode: that of the task."""
    return path.startswith(f"{TASK}/")

  def get_adaptation_specification(self) -> TensorSpecStruct:
    """Returns the specs of the condition's raw features, in mode 'infer'."""
    return preprocessors.condition_of(
      self.preprocessor.get_in_feature_specification(ModeKeys.INFER)
    )

  def adaptation_offsets(self) -> dict[str, list[int]]:
    """Returns the time offsets of the condition's stacks by path, in mode 'infer'.

    Raises:
      SpecError: time offsets are in seconds.
    """
    base = self.preprocessor.base_preprocessor
    mode = preprocessors.condition_mode(ModeKeys.INFER)
    given = {
      "features": base.get_in_feature_specification(mode),
      "labels": base.get_in_label_specification(mode),
    }
    stacked = {
      f"condition/{branch}/{path}": spec.time_offsets
      for branch, structure in given.items()
      for path, spec in specs.flatten_spec_structure(structure).items()
      if spec.is_stacked
    }
    for path, offsets in stacked.items():
      if isinstance(offsets, specs.Seconds):
        raise errors.SpecError(
          f"meta-learning: {path}: time_offsets: expected steps, as tasks are sampled "
          f"by steps, got {offsets}. Name the steps at the rate of the data."
        )
    return {path: list(offsets) for path, offsets in stacked.items()}

  def _example_batch(self, mode: str) -> tuple[SpecStructure, SpecStructure]:
    """Repeats sequences to the length that the base model needs."""
    expected = (
      self.get_feature_specification(mode),
      self.get_label_specification(mode),
    )
    features, labels = (
      TensorSpecStruct(
        (path, tf.repeat(value, self._base_model._example_length, axis=2))
        if spec[path].shape[1:2] == [None]
        else (path, value)
        for path, value in specs.flatten_spec_structure(given).items()
      )
      for given, spec in zip(super()._example_batch(mode), expected, strict=True)
    )
    return features, labels

  @abc.abstractmethod
  def task_specification(self) -> TensorSpecStruct:
    """Returns the specs of the task state of one environment."""

  @abc.abstractmethod
  def initial_task(self, batch_size: tf.Tensor) -> TensorSpecStruct:
    """Returns the task state before the first task, [batch_size, ...]."""

  @abc.abstractmethod
  def adapt(self, raw_features: SpecStructure) -> TensorSpecStruct:
    """Returns the state after adapting to each task, below 'task/'.

    Args:
      raw_features: features of `get_adaptation_specification`, [tasks, samples, ...].
    """

  def get_recurrent_state_specification(self, mode: str) -> TensorSpecStruct:
    """Returns the specs of the task state and the base model's state."""
    carried = self._base_model.get_recurrent_state_specification(mode)
    return _state(self.task_specification(), carried)

  def initial_recurrent_state(self, batch_size: tf.Tensor) -> TensorSpecStruct:
    """Returns the initial task state and the base model's."""
    carried = self._base_model.initial_recurrent_state(batch_size)
    return _state(self.initial_task(batch_size), carried)

  @tf.autograph.experimental.do_not_convert
  def _base_names(self) -> dict[str, tf.Variable]:
    """Returns the base model's trainable variables by name."""
    trained = {id(variable) for variable in self._base_model.trainable_variables}
    named = self._base_model.named_variables
    return {name: v for name, v in named.items() if id(v) in trained}


def base_state(model: Any, state: Any) -> SpecStructure:
  """Packs the base model's part of a policy state."""
  spec = model.get_recurrent_state_specification(ModeKeys.INFER)
  return specs.pack_flat_sequence_to_spec_structure(spec, branch_of(state, CARRIED))


def merge_samples(structure: Any, spec: SpecStructure) -> SpecStructure:
  """Merges the axes of tasks and samples, and packs the tensors as `spec`."""
  merged = meta_tfdata.flatten_batch_examples(TensorSpecStruct(flat(structure)))
  return specs.pack_flat_sequence_to_spec_structure(spec, merged)


def _state(task: SpecStructure, carried: SpecStructure) -> TensorSpecStruct:
  return TensorSpecStruct(
    (f"{branch}/{path}", leaf)
    for branch, part in ((TASK, task), (CARRIED, carried))
    for path, leaf in specs.flatten_spec_structure(part).items()
  )


def flat(structure: Any) -> dict[str, tf.Tensor]:
  """Returns the tensors of a structure by path, without None."""
  return dict(specs.flatten_spec_structure(structure, filter_none=True).items())


def branch_of(outputs: Any, name: str) -> TensorSpecStruct:
  """Returns the part of a structure below a path."""
  return TensorSpecStruct(
    (path.removeprefix(f"{name}/"), value)
    for path, value in outputs.items()
    if path.startswith(f"{name}/")
  )
