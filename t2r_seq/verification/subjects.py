"""Subjects of `verify`: an export, its lite form, or a policy behind a socket."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf import text_format

from t2r_seq import errors, lite, serving, specs
from t2r_seq.lite import lite_policy, policy_io
from t2r_seq.lite.overlap import OverlappedPolicy, SimulatedLatency
from t2r_seq.policies.loaded_export import OneTask
from t2r_seq.policies.policy_model import PolicyRecord
from t2r_seq.serving import websocket
from t2r_seq.specs import TensorSpecStruct, t2r_pb2

Arrays = dict[str, np.ndarray]


class Subject(abc.ABC):
  """A deployed policy that episodes are replayed through.

  Attributes:
    name: for the report.
    feature_spec: the raw features, by path.
    step_spec: the observation of a step, by path.
    label_spec: label specs of the policy's training, by path.
    record: describes the policy; None if it has no description.
    one_task: how a task is learned from an episode; None for models without tasks.
    weights: dtype of the stored weights; they are rounded if it is not 'float32'.
    returns_inputs: whether it returns the inputs of its network.
    predict: maps whole windows, [B, ...], to outputs; None if it only has `step`.
  """

  name: str
  feature_spec: TensorSpecStruct
  step_spec: Mapping[str, Any]
  label_spec: TensorSpecStruct
  record: PolicyRecord | None
  one_task: OneTask | None = None
  weights = "float32"
  returns_inputs = True
  predict: Callable[[Any], Arrays] | None = None

  def learn(self, condition: Arrays) -> None:
    """Learns a task from samples, [1, samples, ...]."""
    raise NotImplementedError(f"{type(self).__name__} learns no tasks.")

  @abc.abstractmethod
  def take(
    self, observation: Arrays, is_first: bool
  ) -> tuple[Arrays, policy_io.Inspection]:
    """Takes a step; returns its outputs and inspection, [1, ...].

    Raises:
      SpecError: the observation does not fit.
    """


def subject_of(policy: Any) -> Subject:
  """Returns the subject for a predictor, a `LitePolicy` or a `PolicyClient`.

  Raises:
    SpecError: a server, or a lite folder, has no specs of its policy.
    NoModelError: the predictor has no model.
  """
  if isinstance(policy, lite.LitePolicy):
    return _Lite(policy)
  if isinstance(policy, serving.PolicyClient):
    return _Served(policy)
  return _Exported(policy)


class _Exported(Subject):
  """The predictor of an export, or of a model's code and weights."""

  def __init__(self, predictor: Any) -> None:
    self._predictor = predictor
    self.name = f"{predictor.model_path} (step {predictor.global_step})"
    self.feature_spec = predictor.get_feature_specification()
    self.step_spec = predictor.get_step_specification()
    self.label_spec = predictor.get_label_specification() or TensorSpecStruct()
    self.record = predictor.get_policy_record()
    self.one_task = OneTask.of(predictor)
    self.predict = predictor.predict
    predictor.reset()

  def learn(self, condition: Arrays) -> None:
    self._predictor.adapt({path: value[0] for path, value in condition.items()})

  def take(
    self, observation: Arrays, is_first: bool
  ) -> tuple[Arrays, policy_io.Inspection]:
    given = _add_batch_axis(observation)
    inspection = self._predictor.inspect(given, is_first=is_first)
    return self._predictor.step(given, is_first=is_first), inspection


class _Lite(Subject):
  returns_inputs = False

  def __init__(self, policy: lite.LitePolicy) -> None:
    self._policy = policy
    self.name = f"{policy.model_path} (LiteRT, step {policy.global_step})"
    self.weights = policy.layout.weights
    self.step_spec = policy.pure.step_specification()
    described = _read_description(self.name, policy.pure.describe())
    self.feature_spec, self.label_spec, self.record = described

  def take(
    self, observation: Arrays, is_first: bool
  ) -> tuple[Arrays, policy_io.Inspection]:
    if is_first:
      self._policy.reset()
    inspection = self._policy.inspect(observation)
    return _add_batch_axis(self._policy.step(observation)), inspection


class _Served(Subject):
  def __init__(self, client: serving.PolicyClient) -> None:
    self._client = client
    metadata = client.metadata
    if "observation" not in metadata:
      raise errors.SpecError(
        f"verify: {client.model_path}: expected a t2r_seq server, which describes its "
        f"policy, got one with {errors.listing(metadata)}."
      )
    self.name = f"{client.model_path} (step {client.global_step})"
    self.step_spec = {
      path: lite_policy.Leaf("", tuple(leaf["shape"]), np.dtype(leaf["dtype"]))
      for path, leaf in metadata["observation"].items()
    }
    described = _read_description(self.name, metadata)
    self.feature_spec, self.label_spec, self.record = described
    self.returns_inputs = False

  def take(
    self, observation: Arrays, is_first: bool
  ) -> tuple[Arrays, policy_io.Inspection]:
    if is_first:
      self._client.reset()
    answer: Any = self._client.step({**observation, websocket.INSPECT: True})
    inspection = policy_io.Inspection(**answer.pop("inspection"))
    for path, value in inspection.seen.items():
      if path in self.step_spec:  # bfloat16 and texts are sent in another dtype.
        inspection.seen[path] = value.astype(self.step_spec[path].dtype)
    del answer["server_timing"]
    self.returns_inputs = bool(inspection.inputs)
    return _add_batch_axis(answer), inspection


class Overlapped(Subject):
  """A policy whose network is late: the history advances while the network runs.

  Attributes:
    num_requests: number of requested chunks.
  """

  def __init__(self, policy: Any, latency: SimulatedLatency) -> None:
    if isinstance(policy, serving.PolicyClient):
      raise errors.SpecError(
        f"verify: {policy.model_path}: latency: expected an export or a lite folder, "
        "got a server. Verify what it serves."
      )
    subject = subject_of(policy)
    self.name, self.weights = subject.name, subject.weights
    self.feature_spec, self.step_spec = subject.feature_spec, subject.step_spec
    self.label_spec = subject.label_spec
    self.returns_inputs, self.predict = subject.returns_inputs, subject.predict
    # With late chunks the actions differ from training's, so they are not compared.
    self.record = subject.record and dataclasses.replace(subject.record, execution=None)
    self._pure = policy.pure
    self._arguments: Any = None
    self._chunk: Arrays | None = None
    self._source = policy_io.StatefulPolicy(self._pure)
    declared = subject.record and subject.record.execution
    overlap = "asynchronous"
    if declared and declared.overlap != "synchronous":
      overlap = declared.overlap
    self._policy = OverlappedPolicy(self, overlap, planner=latency)
    self.num_requests = 0

  def take(
    self, observation: Arrays, is_first: bool
  ) -> tuple[Arrays, policy_io.Inspection]:
    """Takes a step; the network runs if the policy requests a chunk."""
    if is_first:
      self._policy.reset()
    self._chunk = None
    self._policy.sample_action(observation)
    inspection = self._pure.inspect(*self._arguments)
    # A lite folder's `inspect` has no outputs, so none are compared.
    return inspection.outputs and (self._chunk or inspection.outputs), inspection

  # The methods that an `OverlappedPolicy` calls.

  @property
  def control_period(self) -> float | None:
    """Seconds from a step of the training data to the next one, if known."""
    return self._pure.control_period

  def describe(self) -> dict[str, Any]:
    """Returns the description of the policy."""
    return self._pure.describe()

  def seed(self, seed: int) -> None:
    """Makes the policy's random numbers repeatable."""
    self._source.seed(seed)

  def start_episode(self) -> None:
    """Starts an episode."""
    self._source.start_episode()

  def observe_one(self, observation: Any) -> Any:
    """Adds an observation to the history."""
    self._arguments = self._source.observe_one(observation)
    return self._arguments

  def plan_one(self, arguments: Any, prefix: Any = None) -> Arrays:
    """Runs the network; keeps the chunk for `take` if it has no prefix."""
    outputs = self._pure.plan(*arguments, prefix)
    self.num_requests += 1
    if prefix is None:
      self._chunk = outputs
    return {name: value[0] for name, value in outputs.items()}


def _add_batch_axis(values: Mapping[str, np.ndarray]) -> Arrays:
  return {name: np.asarray(value)[np.newaxis] for name, value in values.items()}


def _read_description(
  name: str, description: Mapping[str, Any]
) -> tuple[TensorSpecStruct, TensorSpecStruct, PolicyRecord | None]:
  """Reads the description of a policy, see `LoadedPolicy.describe`."""
  if "specs" not in description:
    raise errors.SpecError(
      f"verify: {name}: expected a policy with known specs, got one without. "
      "Serve an export, or a lite folder."
    )
  assets = text_format.Parse(description["specs"], t2r_pb2.T2RAssets())
  record = description.get("record")
  return (
    specs.TensorSpecStruct.from_proto(assets.feature_spec),
    specs.TensorSpecStruct.from_proto(assets.label_spec),
    None if record is None else PolicyRecord.from_fields(record),
  )
