"""The interface of models that can be exported as policies, and an export's record."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.lite.policy_io import Leaf, Prefix
from t2r_seq.lite.texts import HashedWords
from t2r_seq.policies.execution import ChunkExecution
from t2r_seq.specs import SpecStructure, TensorSpecStruct
from t2r_seq.specs.assets import EXTRA_ASSETS_DIRECTORY, read_record
from t2r_seq.windows.cut import DEFAULT_PADDING, Padding, check_padding

OPERATIVE_CONFIG = "operative_config.gin"
_STATES = ("state", "embedded_state")

_network_inputs: contextvars.ContextVar[dict[str, tf.Tensor] | None] = (
  contextvars.ContextVar("network_inputs", default=None)
)


@tf.autograph.experimental.do_not_convert
@contextlib.contextmanager
def recording_network_inputs() -> Iterator[dict[str, tf.Tensor]]:
  """Yields a dictionary that collects the inputs of the network."""
  inputs: dict[str, tf.Tensor] = {}
  token = _network_inputs.set(inputs)
  try:
    yield inputs
  finally:
    _network_inputs.reset(token)


@tf.autograph.experimental.do_not_convert
def record_network_inputs(features: SpecStructure) -> None:
  """Records the inputs of the network, after all preprocessing, for `inspect`.

  `T2RModel.pack` calls it. If a step calls the network several times, as a search does,
  the first call counts.
  """
  inputs = _network_inputs.get()
  if inputs is None or inputs:
    return
  graph = tf.compat.v1.get_default_graph()
  for path, value in specs.flatten_spec_structure(features).items():
    # Tensors of a loop's body are not visible outside of it.
    if tf.is_tensor(value) and getattr(value, "graph", None) is graph:
      inputs[path] = value


class PolicyModel(abc.ABC):
  """A model that can be exported as a policy, such as a `T2RModel`.

  By default a step of the policy is one call of `export_outputs`, and its state has the
  frames that the time offsets of the specs need.
  """

  # Whether a step needs random numbers; the state then has a seed per environment.
  is_seeded = False

  @property
  @abc.abstractmethod
  def preprocessor(self) -> Any:
    """The preprocessor; its in specs in mode 'infer' are the policy's features."""

  @property
  @abc.abstractmethod
  def padding(self) -> Padding:
    """The padding of windows beyond the ends of an episode."""

  @property
  @abc.abstractmethod
  def variables(self) -> list[tf.Variable]:
    """All variables."""

  @property
  @abc.abstractmethod
  def named_variables(self) -> dict[str, tf.Variable]:
    """All variables, by their names in checkpoints."""

  @abc.abstractmethod
  def export_outputs(self, raw_features: SpecStructure) -> dict[str, tf.Tensor]:
    """Maps raw features, whole windows, [B, ...], to the outputs by name."""

  @property
  def control_period(self) -> float | None:
    """Seconds from a step to the next one in the training data, if known."""
    return None

  @property
  def value_periods(self) -> Mapping[str, float]:
    """Seconds between values on other clocks than the steps', by path of the data."""
    return {}

  @property
  def source_preprocessing(self) -> Mapping[str, list[dict[str, Any]]]:
    """Stages of training's input that the export lacks, by source; {} if unknown."""
    return {}

  @property
  def embodiments(self) -> Mapping[str, Any]:
    """The robots that one model acts for, by name; empty for a single-robot model."""
    return {}

  @property
  def robot(self) -> str | None:
    """Name of the robot that this policy acts for; None for a single-robot model."""
    return None

  def as_robot(self, name: str) -> PolicyModel:
    """Returns the policy of one of the `embodiments`; it shares the network.

    Raises:
      SpecError: there is no such robot; by default always.
    """
    raise errors.SpecError(
      f"{type(self).__name__}: robot: expected None, as the model has one robot, got "
      f"{name!r}."
    )

  @property
  def execution(self) -> ChunkExecution | None:
    """The execution of the model's action chunks; None returns them whole."""
    return None

  @property
  def prefix_mode(self) -> str | None:
    """Method by which a chunk continues another: 'real_time', 'trained', or None."""
    return None

  @property
  def max_delay(self) -> int | None:
    """The most frozen actions of a prefix in training; None for any number."""
    return None

  def export_outputs_after(
    self, raw_features: SpecStructure, prefix: Prefix
  ) -> dict[str, tf.Tensor]:
    """Maps raw features to outputs whose chunk continues a prefix, by `prefix_mode`."""
    raise NotImplementedError(f"{type(self).__name__} cannot continue a chunk.")

  def get_recurrent_state_specification(self, mode: str) -> SpecStructure:
    """Returns the specs of a recurrent state, without the batch axis; empty by default.

    E.g. the two states of an LSTM.
    """
    del mode
    return TensorSpecStruct()

  def initial_recurrent_state(self, batch_size: tf.Tensor) -> SpecStructure:
    """Returns an episode's initial recurrent state, [batch_size, ...]; zeros here."""
    spec = self.get_recurrent_state_specification(specs.ModeKeys.INFER)
    return specs.map_leaves(
      lambda leaf: tf.zeros(tf.concat([[batch_size], leaf.shape], 0), leaf.dtype), spec
    )

  def step_paths(self, raw_paths: list[str]) -> list[str]:
    """Returns the raw features of a step of the policy; by default all."""
    return raw_paths

  def export_step(
    self,
    raw_features: SpecStructure,
    recurrent_state: SpecStructure,
    seeds: tf.Tensor | None,
  ) -> tuple[dict[str, tf.Tensor], SpecStructure]:
    """Computes a step of the policy.

    Args:
      raw_features: whole windows of `step_paths`, [N, ...]; of sequences one step,
        [N, 1, ...].
      recurrent_state: see `get_recurrent_state_specification`, [N, ...].
      seeds: int32 [N, 2], never the same twice, for `tf.random.stateless_*`; None
        unless the model is `is_seeded`.
    Returns:
      (outputs by name, [N, ...]; the next recurrent state).
    """
    del seeds
    return self.export_outputs(raw_features), recurrent_state

  @property
  def step_model(self) -> PolicyModel:
    """The model whose raw features a step of the policy takes; by default this."""
    return self

  def keeps_state(self, path: str) -> bool:
    """Whether a part of the recurrent state survives episodes, until the reset."""
    del path
    return False

  def get_adaptation_specification(self) -> SpecStructure | None:
    """Returns the raw features of `adapt`; None if the model does not adapt."""
    return None

  def adaptation_offsets(self) -> dict[str, list[int]]:
    """Returns time offsets by path of those features of `adapt` that are windows."""
    return {}

  def adapt(self, raw_features: SpecStructure) -> SpecStructure:
    """Learns tasks; must be overridden if the model adapts.

    Args:
      raw_features: see `get_adaptation_specification`, [N, ...].
    Returns:
      The parts of the recurrent state that hold the tasks, by path, [N, ...].
    """
    raise NotImplementedError(f"{type(self).__name__} does not adapt.")


@dataclasses.dataclass(frozen=True)
class PolicyRecord:
  """Training and execution of an export's policy, as recorded in it.

  Attributes:
    padding: padding of training windows beyond the ends of episodes.
    control_period: seconds from a step of the training data to the next one; None if
      unknown.
    execution: how action chunks are executed; None for whole chunks.
    normalization: the export's statistics, by 'features/<path>' or 'labels/<path>':
      mode, center and scale; None without normalization.
    adaptation_offsets: time offsets of a task's samples, by path, if they are windows;
      otherwise None.
    source_preprocessing: stages between the stored data and the model's preprocessor
      in training, by source; '' if there is one source. They are not in the export.
      None without stages. Each has a name, 'stage', and options.
    texts: how the texts of each path become vectors; None without texts.
    state: place of each part of the state of a step, by path; None without a step.
    embedded_state: `state` of the step that takes vectors for texts; None without it.
    prefix_mode: how a chunk can continue another one: 'real_time', 'trained', or None.
    max_delay: the most frozen actions of a prefix in training; None for any number.
    robots: the fields of each `Embodiment` by name, if the export has several. Each
      robot then has separate signatures and a separate record.
    robot: name of the robot that the record is of, in an export of several.
  """

  padding: Padding = DEFAULT_PADDING
  control_period: float | None = None
  execution: ChunkExecution | None = None
  normalization: dict[str, dict[str, Any]] | None = None
  adaptation_offsets: dict[str, list[int]] | None = None
  source_preprocessing: dict[str, list[dict[str, Any]]] | None = None
  texts: dict[str, HashedWords] | None = None
  state: dict[str, Leaf] | None = None
  embedded_state: dict[str, Leaf] | None = None
  prefix_mode: str | None = None
  max_delay: int | None = None
  robots: dict[str, dict[str, Any]] | None = None
  robot: str | None = None

  def stages_of(self, source: str | None = None) -> list[dict[str, Any]] | None:
    """Returns the stages of one source.

    Args:
      source: its name; None if all sources have the same stages.
    Returns:
      The stages; None if no source is given and the sources differ.
    Raises:
      SpecError: there is no source with that name.
    """
    by_source = self.source_preprocessing or {}
    if source is not None and source not in by_source:
      want = (
        f"one of {errors.listing(by_source)}" if by_source else "None for one source"
      )
      raise errors.SpecError(
        f"source: expected {want}, got {source!r}.{errors.nearest(source, by_source)}"
      )
    if source is not None:
      return by_source[source]
    first, *others = [*by_source.values()] or [[]]
    return first if all(other == first for other in others) else None

  @classmethod
  def of(cls, model: PolicyModel) -> PolicyRecord:
    """Returns the record of a model's policy."""
    return cls(
      model.padding,
      model.control_period,
      model.execution,
      adaptation_offsets=model.adaptation_offsets() or None,
      prefix_mode=model.prefix_mode,
      max_delay=model.max_delay,
      source_preprocessing=(
        dict(stages) if any((stages := model.source_preprocessing).values()) else None
      ),
      robots={n: e.to_json() for n, e in model.embodiments.items()} or None,
      robot=model.robot,
    )

  def to_fields(self) -> dict[str, Any]:
    """Returns the fields for JSON."""
    fields = dataclasses.asdict(self)
    for name in _STATES:
      leaves = getattr(self, name)
      if leaves is not None:
        fields[name] = {path: leaf.to_json() for path, leaf in leaves.items()}
    return fields

  def to_json(self) -> str:
    """Returns the record as text."""
    return json.dumps(self.to_fields(), indent=1) + "\n"

  @classmethod
  def from_fields(cls, fields: Mapping[str, Any]) -> PolicyRecord:
    """Reads the output of `to_fields`; a lite folder may lack newer fields."""
    padding, execution = fields["padding"], fields["execution"]
    if execution is not None:
      outputs = tuple(execution["outputs"])
      execution = ChunkExecution(**{**execution, "outputs": outputs})
    padding = padding if isinstance(padding, str) else tuple(padding)
    texts = fields.get("texts")
    if texts is not None:
      texts = {path: HashedWords(**words) for path, words in texts.items()}
    states = {
      name: {path: Leaf.from_json(leaf) for path, leaf in fields[name].items()}
      for name in _STATES
      if fields.get(name) is not None
    }
    return cls(
      check_padding(padding),
      fields["control_period"],
      execution,
      fields.get("normalization"),
      fields.get("adaptation_offsets"),
      fields.get("source_preprocessing"),
      texts,
      **states,
      prefix_mode=fields.get("prefix_mode"),
      max_delay=fields.get("max_delay"),
      robots=fields.get("robots"),
      robot=fields.get("robot"),
    )

  @classmethod
  def load(cls, export_path: str, robot: str | None = None) -> PolicyRecord:
    """Reads the record of an export's folder; SpecError if it is damaged."""
    return read_record(export_path, cls.from_fields, robot)


def operative_config_path(export_path: str) -> str:
  """Returns where an export keeps the gin config of its training, if there was one."""
  return os.path.join(export_path, EXTRA_ASSETS_DIRECTORY, OPERATIVE_CONFIG)
