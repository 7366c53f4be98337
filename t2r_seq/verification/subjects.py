"""What is verified: an export, its lite form, or a policy behind a socket."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import text_format

from t2r_seq import errors, lite, policies, serving, specs
from t2r_seq.lite import lite_policy, policy_io
from t2r_seq.serving import websocket
from t2r_seq.specs import TensorSpecStruct, t2r_pb2

Arrays = dict[str, np.ndarray]


class Step(NamedTuple):
  """What a policy did and saw at a step, `[1, ...]`.

  Attributes:
    outputs: of the step.
    inspection: the inputs of its network, and its outputs.
  """

  outputs: Arrays
  inspection: policy_io.Inspection


class Subject(abc.ABC):
  """A deployed policy, of which episodes are lived.

  Attributes:
    name: says which one it is.
    feature_spec: the raw features, by path.
    step_spec: what a step takes, by path.
    record: what the policy tells of itself, if it does.
    one_task: how a task is learned from an episode; None where none is learned.
    weights: how they are stored; other than 'float32' they are rounded.
    tells_inputs: whether it can say what its network is given.
    predict: maps whole windows, [B, ...], to outputs; None where there is no such way.
  """

  name: str
  feature_spec: TensorSpecStruct
  step_spec: Mapping[str, Any]
  record: policies.PolicyRecord | None
  one_task: policies.OneTask | None = None
  weights = "float32"
  tells_inputs = True
  predict: Callable[[Any], Arrays] | None = None

  def learn(self, condition: Arrays) -> None:
    """Learns a task.

    Args:
      condition: what it is learned from, [1, samples, ...].
    """
    raise NotImplementedError(f"{type(self).__name__} learns no tasks.")

  @abc.abstractmethod
  def take(self, observation: Arrays, begins: bool) -> Step:
    """Takes a step; an episode begins with it, or not.

    Args:
      observation: by path, without the axis of environments.
      begins: whether an episode begins.
    Raises:
      SpecError: the observation is refused.
    """


def subject_of(policy: Any) -> Subject:
  """Returns what lives episodes with a policy.

  Args:
    policy: a predictor that has a model, a `lite.LitePolicy`, or a
      `serving.PolicyClient`.
  """
  if isinstance(policy, lite.LitePolicy):
    return _Lite(policy)
  if isinstance(policy, serving.PolicyClient):
    return _Served(policy)
  return _Exported(policy)


class _Exported(Subject):
  """A predictor: of an export, or of a model's code and weights."""

  def __init__(self, predictor: Any) -> None:
    self._predictor = predictor
    self.name = f"{predictor.model_path} (step {predictor.global_step})"
    self.feature_spec = predictor.get_feature_specification()
    self.step_spec = predictor.get_step_specification()
    self.record = predictor.get_policy_record()
    self.one_task = policies.OneTask.of(predictor)
    self.predict = predictor.predict
    predictor.reset()

  def learn(self, condition: Arrays) -> None:
    """See the base class."""
    self._predictor.adapt({path: value[0] for path, value in condition.items()})

  def take(self, observation: Arrays, begins: bool) -> Step:
    given = {path: value[np.newaxis] for path, value in observation.items()}
    inspection = self._predictor.inspect(given, is_first=begins)
    return Step(self._predictor.step(given, is_first=begins), inspection)


class _Lite(Subject):
  """A folder that LiteRT runs."""

  tells_inputs = False

  def __init__(self, policy: lite.LitePolicy) -> None:
    self._policy = policy
    self.name = f"{policy.model_path} (LiteRT, step {policy.global_step})"
    self.weights = policy.layout.weights
    self.step_spec = policy.pure.step_specification()
    self.feature_spec, self.record = _described(self.name, policy.pure.describe())

  def take(self, observation: Arrays, begins: bool) -> Step:
    policy = self._policy
    if begins:
      policy.reset()
    inspection = policy.inspect(observation)
    return Step(_batched(policy.step(observation)), inspection)


class _Served(Subject):
  """A policy behind a socket, whose server tells what it sees."""

  def __init__(self, client: serving.PolicyClient) -> None:
    self._client = client
    said = client.metadata
    if "observation" not in said:
      raise errors.SpecError(
        f"verify: {client.model_path}: expected a t2r_seq server, which describes its "
        f"policy, got one with {errors.listing(said)}."
      )
    self.name = f"{client.model_path} (step {client.global_step})"
    self.step_spec = {
      path: lite_policy.Leaf("", tuple(leaf["shape"]), np.dtype(leaf["dtype"]))
      for path, leaf in said["observation"].items()
    }
    self.feature_spec, self.record = _described(self.name, said)
    self.tells_inputs = False

  def take(self, observation: Arrays, begins: bool) -> Step:
    if begins:
      self._client.reset()
    answer: Any = self._client.step({**observation, websocket.INSPECT: True})
    inspection = policy_io.Inspection(**answer.pop("inspection"))
    for path, value in inspection.seen.items():
      if path in self.step_spec:  # bfloat16 and texts are sent in another dtype.
        inspection.seen[path] = value.astype(self.step_spec[path].dtype)
    outputs = {name: x for name, x in answer.items() if name != "server_timing"}
    self.tells_inputs = bool(inspection.inputs)
    return Step(_batched(outputs), inspection)


def _batched(values: Mapping[str, np.ndarray]) -> Arrays:
  return {name: np.asarray(value)[np.newaxis] for name, value in values.items()}


def _described(
  name: str, said: Mapping[str, Any]
) -> tuple[TensorSpecStruct, policies.PolicyRecord | None]:
  """Reads what a policy tells of itself, see `LoadedPolicy.describe`."""
  if "specs" not in said:
    raise errors.SpecError(
      f"verify: {name}: expected a policy that tells its specs, got one that does not. "
      "Serve an export, or a lite folder."
    )
  assets = text_format.Parse(said["specs"], t2r_pb2.T2RAssets())
  record = said.get("record")
  return (
    specs.TensorSpecStruct.from_proto(assets.feature_spec),
    None if record is None else policies.PolicyRecord.from_fields(record),
  )
