"""What a model tells of itself, so that a policy can be exported from it."""

from __future__ import annotations

import abc
import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import specs
from t2r_seq.policies.execution import ChunkExecution
from t2r_seq.specs import SpecStructure, TensorSpecStruct
from t2r_seq.windows.cut import Padding

_noted: contextvars.ContextVar[dict[str, tf.Tensor] | None] = contextvars.ContextVar(
  "network_inputs", default=None
)


@tf.autograph.experimental.do_not_convert
@contextlib.contextmanager
def noting_network_inputs() -> Iterator[dict[str, tf.Tensor]]:
  """Gives a dictionary that is filled with what the network is given inside."""
  noted: dict[str, tf.Tensor] = {}
  token = _noted.set(noted)
  try:
    yield noted
  finally:
    _noted.reset(token)


@tf.autograph.experimental.do_not_convert
def note_network_inputs(features: SpecStructure) -> None:
  """Tells whoever asks what the network is given, after all preprocessing.

  `T2RModel.pack` does so. Where the network is asked several times in a step, as by a
  search, the first time counts.
  """
  noted = _noted.get()
  if noted is None or noted:
    return
  graph = tf.compat.v1.get_default_graph()
  for path, value in specs.flatten_spec_structure(features).items():
    # What is made inside of a loop's body cannot be looked at from outside.
    if tf.is_tensor(value) and getattr(value, "graph", None) is graph:
      noted[path] = value


class PolicyModel(abc.ABC):
  """The side of a model that its exported policy is made of; `T2RModel` is one.

  By default a step of the policy is one call of `export_outputs`, and all that the
  policy remembers are the frames that the specs' time offsets ask for.
  """

  # Whether a step draws random numbers; the policy then keeps a seed per environment.
  is_seeded = False

  @property
  @abc.abstractmethod
  def preprocessor(self) -> Any:
    """The preprocessor; its in specs in mode 'infer' are what the policy is given."""

  @property
  @abc.abstractmethod
  def padding(self) -> Padding:
    """What a window shows beyond the ends of an episode."""

  @property
  @abc.abstractmethod
  def variables(self) -> list[tf.Variable]:
    """All variables."""

  @property
  @abc.abstractmethod
  def named_variables(self) -> dict[str, tf.Variable]:
    """All variables, by the names that checkpoints have of them."""

  @abc.abstractmethod
  def export_outputs(self, raw_features: SpecStructure) -> dict[str, tf.Tensor]:
    """Maps raw features, whole windows, [B, ...], to the outputs by name."""

  @property
  def control_period(self) -> float | None:
    """Seconds from a step to the next one in the training data, if that is known."""
    return None

  @property
  def source_preprocessing(self) -> Mapping[str, list[dict[str, Any]]]:
    """Stages of the training's input that the export lacks, by source, if known."""
    return {}

  @property
  def execution(self) -> ChunkExecution | None:
    """How the policy executes the model's action chunks; None hands them out whole."""
    return None

  def get_recurrent_state_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of what a network carries from step to step; by default none.

    E.g. the two states of an LSTM, of one environment, without the batch axis.
    """
    del mode
    return TensorSpecStruct()

  def initial_recurrent_state(self, batch_size: tf.Tensor) -> SpecStructure:
    """Returns the state that episodes begin with; by default zeros.

    Override it for a learned one.

    Args:
      batch_size: int32 scalar, a number of environments.
    Returns:
      Tensors [batch_size, ...], in the structure of
      `get_recurrent_state_specification`.
    """
    spec = self.get_recurrent_state_specification(specs.ModeKeys.INFER)
    return specs.map_leaves(
      lambda leaf: tf.zeros(tf.concat([[batch_size], leaf.shape], 0), leaf.dtype), spec
    )

  def step_paths(self, raw_paths: list[str]) -> list[str]:
    """Says which of the raw features a step of the policy is given; by default all."""
    return raw_paths

  def export_step(
    self,
    raw_features: SpecStructure,
    recurrent_state: SpecStructure,
    seeds: tf.Tensor | None,
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """Maps what a step of the policy sees to outputs, and the state to the next one.

    Args:
      raw_features: whole windows of `step_paths`, [N, ...]; of sequences one step,
        [N, 1, ...].
      recurrent_state: [N, ...], as `get_recurrent_state_specification` says.
      seeds: int32 [N, 2], one for each environment and never the same twice, for
        `tf.random.stateless_*`; None where the model is not `is_seeded`.
    Returns:
      (outputs by name, [N, ...]; the next recurrent state).
    """
    del seeds
    return self.export_outputs(raw_features), recurrent_state

  @property
  def step_model(self) -> PolicyModel:
    """The model whose raw features a step of the policy is given; by default this."""
    return self

  def keeps_state(self, path: str) -> bool:
    """Whether a part of the recurrent state outlives episodes, until the reset."""
    del path
    return False

  def get_adaptation_specification(self) -> SpecStructure | None:
    """Returns the raw features that `adapt` takes; None: the model does not adapt."""
    return None

  def adaptation_offsets(self) -> dict[str, list[int]]:
    """Returns the time offsets of those of them that are windows, by path."""
    return {}

  def adapt(self, raw_features: SpecStructure) -> SpecStructure:
    """Maps what a task is learned from to the parts of the state that hold it.

    Args:
      raw_features: fits `get_adaptation_specification`, [N, ...].
    Returns:
      Parts of the recurrent state, which `keeps_state`, by path, [N, ...].
    """
    raise NotImplementedError(f"{type(self).__name__} does not adapt.")
