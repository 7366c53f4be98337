"""Several robots in one model: each robot's paths, layout and statistics."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, preprocessors
from t2r_seq.preprocessors.abstract_preprocessor import SpecificationFn
from t2r_seq.specs import Convention, TensorSpecStruct
from t2r_seq.zoo.signature import Signature

ROBOT_ID, ROBOT_MASK = "robot/id", "robot/mask"
DIMENSION_MASK = "target_dimension_mask"
# Minimum size of the one-hot `robot/id`: room for robots that are added later.
_NUM_IDS = 16


@gin.configurable
@dataclasses.dataclass(frozen=True)
class Embodiment:
  """A robot: its paths, where their elements are in the model, and its statistics.

  Attributes:
    name: name of the robot, which selects it in exports.
    id: index of the robot in the one-hot `robot/id`; a robot that is added later takes
      a free one.
    signature: the paths of the robot's data, their shapes and conventions.
    paths: the model's path by path of the robot: the role of a camera, the shared name
      of a state. Paths that are not listed are the same in the model.
    layout: index of each element in the model's vector, by path of the robot. Vectors
      that are not listed fill the first elements.
    statistics: JSON files that normalize the robot; several are pooled by count.
    control_period: seconds from a step to the next one, if known.
  """

  name: str = gin.REQUIRED  # type: ignore[assignment]
  id: int = 0
  signature: Signature = gin.REQUIRED  # type: ignore[assignment]
  paths: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layout: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
  statistics: str | Sequence[str] = ""
  control_period: float | None = None

  def __post_init__(self) -> None:
    """Checks the fields.

    Raises:
      SpecError: the name, the id, a path or the layout is invalid.
    """
    where = f"Embodiment: {self.name}"
    if not isinstance(self.name, str) or not self.name or "/" in self.name:
      raise errors.SpecError(
        f"Embodiment: name: expected a text without '/', got {self.name!r}."
      )
    errors.check_count(where, "id", self.id, minimum=0)
    paths = self.vectors_and_cameras
    for path in (*self.paths, *self.layout):
      if path not in (*paths, self.signature.language):
        raise errors.SpecError(
          f"{where}: {path}: expected one of the robot's paths {errors.listing(paths)}."
          f"{errors.nearest(path, paths)}"
        )
    for path, places in self.layout.items():
      if len({*places}) != len(places) or min(places, default=0) < 0:
        raise errors.SpecError(
          f"{where}: layout: {path}: expected a different place for each element, got "
          f"{list(places)}."
        )

  def role(self, path: str) -> str:
    """Returns the model's path for a path of the robot."""
    return self.paths.get(path, path)

  @property
  def vectors_and_cameras(self) -> tuple[str, ...]:
    """The robot's paths of states, cameras and actions."""
    signature = self.signature
    return (*signature.states, *signature.cameras, signature.action)

  @property
  def cameras(self) -> dict[str, str]:
    """The robot's paths of cameras by role."""
    return {self.role(path): path for path in self.signature.cameras}

  def places(self, path: str, size: int) -> np.ndarray:
    """Returns the index in the model's vector of each element of a path, int64 [size].

    Raises:
      SpecError: the path's layout does not have `size` elements.
    """
    places = np.asarray(self.layout.get(path, range(size)), np.int64)
    if len(places) != size:
      raise errors.SpecError(
        f"Embodiment: {self.name}: layout: {path}: expected {size} places, one per "
        f"element of the network's input, got {len(places)}."
      )
    return places

  def describe(self, model: Mapping[str, Any]) -> list[str]:
    """Returns lines that describe the robot's part of a model.

    Args:
      model: specs of the model's features and labels by path.
    """
    signature = self.signature
    sizes = _stored_sizes(signature)
    vectors = [
      f"{path} {sizes[path]} of {model[role].shape[-1]}"
      for path in (*signature.states, signature.action)
      if (role := self.role(path) if path != signature.action else "target") in model
    ]
    missing = [
      p for p, s in model.items() if s.shape.rank >= 3 and p not in self.cameras
    ]
    cameras = f"cameras {', '.join(self.cameras) or 'none'}"
    masked = f", masked {', '.join(missing)}" if missing else ""
    files = self.statistics
    files = files if isinstance(files, str) else " and ".join(files)
    return [
      f"robot {self.name}, id {self.id}",
      ", ".join(vectors),
      f"{cameras}{masked}",
      f"statistics {files}",
    ]

  def to_json(self) -> dict[str, Any]:
    """Returns the fields as JSON values."""
    return dataclasses.asdict(self)


def unique_embodiments(
  where: str, embodiments: Mapping[str, Embodiment]
) -> dict[str, Embodiment]:
  """Returns the robots by name, given those by source; sources may share a robot.

  Raises:
    SpecError: two different robots have one name or id, or a value is no Embodiment.
  """
  by_name: dict[str, Embodiment] = {}
  for each in embodiments.values():
    if not isinstance(each, Embodiment):
      raise errors.SpecError(
        f"{where}: embodiments: expected Embodiment values, got "
        f"{errors.describe(each)}."
      )
    if by_name.setdefault(each.name, each) != each:
      raise errors.SpecError(
        f"{where}: embodiments: expected one robot of each name, got two different "
        f"robots '{each.name}'. Rename one, or share one Embodiment."
      )
  by_id: dict[int, str] = {}
  for name, each in by_name.items():
    if (other := by_id.setdefault(each.id, name)) != name:
      raise errors.SpecError(
        f"{where}: embodiments: {name}: id: expected another one than that of "
        f"'{other}', got {each.id}."
      )
  return by_name


def find_robot(where: str, robots: Mapping[str, Embodiment], name: str) -> Embodiment:
  """Returns a robot by name.

  Raises:
    SpecError: no robot has this name; lists the robots.
  """
  if name not in robots:
    raise errors.SpecError(
      f"{where}: robot: expected one of {errors.listing(robots)}, got {name!r}."
      f"{errors.nearest(str(name), robots)}"
    )
  return robots[name]


def design_embodiments(
  signatures: Mapping[str, Signature],
  statistics: Mapping[str, str | Sequence[str]],
  control_periods: Mapping[str, float | None],
) -> dict[str, Embodiment]:
  """Returns the robots by name, with a common layout.

  Actions share one path of the model, and so do texts; states do if each robot has only
  one. Other states, and cameras, share a path of the model if their paths are equal, or
  differ only in '/', '.' and '_'. Elements of the same name share an index in a vector
  if all robots name its elements; otherwise each robot fills the first elements.

  Args:
    signatures: signatures by name of the robot.
    statistics: JSON files of statistics by name of the robot.
    control_periods: seconds from a step to the next one by name of the robot.
  """
  first = next(iter(signatures.values()))
  has_one_state = all(len(each.states) == 1 for each in signatures.values())
  paths: dict[str, dict[str, str]] = {}
  spellings: dict[str, str] = {}
  for name, signature in signatures.items():
    pairs = [(signature.action, first.action), (signature.language, first.language)]
    pairs += zip(signature.states, first.states, strict=False) if has_one_state else []
    paths[name] = {a: b for a, b in pairs if a and b and a != b}
    for path in (*signature.states, *signature.cameras):
      role = paths[name].get(path, path)
      # RLDS writes observation/state, LeRobot observation.state.
      shared = spellings.setdefault(re.sub(r"[/.]", "_", role), role)
      if shared != path:
        paths[name][path] = shared
  layouts: dict[str, dict[str, list[int]]] = {name: {} for name in signatures}
  for owners in _vectors(signatures, paths):
    conventions = {
      name: Convention.of(signatures[name].conventions.get(path))
      for name, path in owners.items()
    }
    if not all(each is not None and each.names for each in conventions.values()):
      continue
    order: dict[str, int] = {}
    for name, each in conventions.items():
      assert each is not None and each.names
      places = [order.setdefault(element, len(order)) for element in each.names]
      if places != [*range(len(places))]:
        layouts[name][owners[name]] = places
  return {
    name: Embodiment(
      name=name,
      id=number,
      signature=signature,
      paths=paths[name],
      layout=layouts[name],
      statistics=statistics[name],
      control_period=control_periods[name],
    )
    for number, (name, signature) in enumerate(signatures.items())
  }


def _vectors(
  signatures: Mapping[str, Signature], paths: Mapping[str, Mapping[str, str]]
) -> list[dict[str, str]]:
  """Returns each vector of the model as the paths of its robots, by robot."""
  vectors: dict[str, dict[str, str]] = {}
  for name, signature in signatures.items():
    for path in (*signature.states, signature.action):
      vectors.setdefault(paths[name].get(path, path), {})[name] = path
  return [*vectors.values()]


def shared_signature(
  embodiments: Mapping[str, Embodiment],
  sizes: Mapping[str, Mapping[str, int]] | None = None,
) -> Signature:
  """Returns the signature of a model of several robots.

  Vectors have room for all robots' layouts; images are as large as the first robot's.
  Additional states are `robot/id`, one-hot, and `robot/mask`: 1 for each element of the
  states and actions, and for each camera, that the robot has.

  Args:
    embodiments: robots by source; at least one.
    sizes: elements of the network's vectors, by name of the robot and its path, if
      conventions change them.
  Raises:
    SpecError: cameras of one role differ in their channels, two robots share a name or
      an id, or a layout does not have its vector's size.
  """
  robots = [*unique_embodiments("shared_signature", embodiments).values()]
  states: dict[str, list[int]] = {}
  cameras: dict[str, Sequence[int]] = {}
  action_size = 0
  for robot in robots:
    signature = robot.signature
    own_sizes = sizes[robot.name] if sizes else _stored_sizes(signature)
    needs = {
      path: int(robot.places(path, size).max(initial=-1)) + 1
      for path, size in own_sizes.items()
      if path in signature.states or path == signature.action
    }
    for path in signature.states:
      role = robot.role(path)
      states[role] = [max(needs[path], states.get(role, [0])[0])]
    action_size = max(action_size, needs[signature.action])
    for path, shape in signature.cameras.items():
      first = cameras.setdefault(robot.role(path), shape)
      if first[2] != shape[2]:
        raise errors.SpecError(
          f"embodiments: {robot.name}: {path}: expected {first[2]} channels, as other "
          f"robots have at '{robot.role(path)}', got {shape[2]}."
        )
  masked = sum(size for (size,) in states.values()) + action_size + len(cameras)
  texts = [r for r in robots if r.signature.language]
  first_robot = robots[0]
  states[ROBOT_ID] = [max(_NUM_IDS, *(robot.id + 1 for robot in robots))]
  states[ROBOT_MASK] = [masked]
  return Signature(
    action=first_robot.role(first_robot.signature.action),
    action_size=action_size,
    # Sorted, as gin writes the operative config, by which `verify` builds the network.
    states=dict(sorted(states.items())),
    cameras=dict(sorted(cameras.items())),
    language=texts[0].role(str(texts[0].signature.language)) if texts else None,
    language_is_step=all(r.signature.language_is_step for r in texts),
    embodiments=embodiments,
  )


def _stored_sizes(signature: Signature) -> dict[str, int]:
  sizes = {path: shape[-1] if shape else 1 for path, shape in signature.states.items()}
  return {**sizes, signature.action: signature.action_size}


def check_embodiments(
  where: str,
  robots: Mapping[str, Embodiment],
  signature: Signature,
  sizes: Mapping[str, Mapping[str, int]],
) -> None:
  """Checks that robots fit into a model.

  Args:
    where: prefix of errors.
    robots: robots by name.
    signature: signature of the model.
    sizes: elements of vectors, and channels of cameras, by name of the robot and its
      path.
  Raises:
    SpecError: the model has no state `robot/id` or `robot/mask`; or, in one error, a
      mask of another size, ids beyond `robot/id`, vectors larger than the model's,
      paths that the model lacks, or paths of the model that no robot has.
  """
  mismatches = [*_misfits(robots, signature, sizes)]
  if mismatches:
    raise errors.mismatch_error(f"{where}: embodiments", mismatches)


def _misfits(
  robots: Mapping[str, Embodiment],
  signature: Signature,
  sizes: Mapping[str, Mapping[str, int]],
) -> Iterator[errors.Mismatch]:
  limits = {path: shape[0] for path, shape in signature.states.items()}
  for path in (ROBOT_ID, ROBOT_MASK):
    if path not in limits:
      yield errors.Mismatch(path, "a state of the model's signature", "none")
      return
  masked = sum(n for path, n in limits.items() if path not in (ROBOT_ID, ROBOT_MASK))
  masked += signature.action_size + len(signature.cameras)
  if limits[ROBOT_MASK] != masked:
    hint = "One of each element of states and actions, and one of each camera."
    yield errors.Mismatch(
      ROBOT_MASK, f"{masked} elements", str(limits[ROBOT_MASK]), hint
    )
  limits[signature.action] = signature.action_size
  used = {ROBOT_ID, ROBOT_MASK}
  for name, robot in robots.items():
    if robot.id >= limits[ROBOT_ID]:
      hint = "Raise the size of robot/id."
      yield errors.Mismatch(
        f"{name}: id", f"below {limits[ROBOT_ID]}", f"{robot.id}", hint
      )
    for path, size in sizes[name].items():
      role = robot.role(path)
      used.add(role)
      if path in robot.signature.cameras:
        if role not in signature.cameras:
          near = errors.nearest(role, signature.cameras).strip()
          want = f"one of the model's cameras {errors.listing(signature.cameras)}"
          yield errors.Mismatch(f"{name}: {path}", want, f"'{role}'", near)
        continue
      if role not in limits:
        near = errors.nearest(role, limits).strip()
        want = f"one of the model's vectors {errors.listing(limits)}"
        yield errors.Mismatch(f"{name}: {path}", want, f"'{role}'", near)
        continue
      need = int(robot.places(path, size).max(initial=-1)) + 1
      if need > limits[role]:
        want = f"at most {limits[role]} elements, the size of the model's '{role}'"
        yield errors.Mismatch(f"{name}: {path}", want, str(need))
  for path in (*signature.states, *signature.cameras):
    if path not in used:
      kind = "cameras" if path in signature.cameras else "vectors"
      want = f"one of the robots' {kind} {errors.listing(used)}"
      yield errors.Mismatch(path, want, "one that no robot has")


class EmbodimentPreprocessor(preprocessors.AbstractPreprocessor):
  """Puts a robot's normalized values into the vectors of a model of several robots.

  The last stage of a robot's chain. Elements and paths that the robot lacks are 0.
  `robot/mask` and the label `target_dimension_mask` mark what it has.
  """

  def __init__(
    self,
    model_feature_specification_fn: SpecificationFn,
    model_label_specification_fn: SpecificationFn,
    native: Any,
    embodiment: Embodiment,
    signature: Signature,
    target: str,
  ) -> None:
    """Creates the stage.

    Args:
      model_feature_specification_fn: takes a mode, returns the model's feature specs.
      model_label_specification_fn: takes a mode, returns the model's label specs.
      native: the model of this robot alone; see `ImitationModel.native_model`.
      embodiment: the robot.
      signature: signature of the model.
      target: path of the label with the actions.
    """
    super().__init__(model_feature_specification_fn, model_label_specification_fn)
    self._features, self._labels = (
      model_feature_specification_fn,
      model_label_specification_fn,
    )
    self._native, self._embodiment, self._target = native, embodiment, target
    robot = embodiment.signature
    sizes = native.network_sizes()
    self._places = {
      embodiment.role(path): embodiment.places(path, sizes[path])
      for path in (*robot.states, robot.action)
    }
    self._action = self._places[signature.action]
    self._is_action = _mask(self._action, signature.action_size)
    parts = [
      _mask(self._places.get(path, ()), size)
      for path, (size, *_) in signature.states.items()
      if path not in (ROBOT_ID, ROBOT_MASK)
    ]
    parts += [self._is_action]
    parts += [np.array([role in embodiment.cameras]) for role in signature.cameras]
    self._constants = {
      ROBOT_ID: np.eye(signature.states[ROBOT_ID][0])[embodiment.id],
      ROBOT_MASK: np.concatenate(parts),
    }

  def get_in_feature_specification(self, mode: str) -> Any:
    return self._native.get_feature_specification(mode)

  def get_in_label_specification(self, mode: str) -> Any:
    return self._native.get_label_specification(mode)

  def get_out_feature_specification(self, mode: str) -> Any:
    return self._features(mode)

  def get_out_label_specification(self, mode: str) -> Any:
    return self._labels(mode)

  def _preprocess_fn(self, features: Any, labels: Any, mode: str) -> tuple[Any, Any]:
    given = {self._embodiment.role(path): value for path, value in features.items()}
    outputs, any_value = TensorSpecStruct(), next(iter(given.values()))
    for path, spec in self._features(mode).items():
      if path in given:
        value = given[path]
        if path in self._places:
          if value.shape.rank < spec.shape.rank + 1 + spec.is_sequence:
            value = value[..., tf.newaxis]  # One number.
          value = spread(value, self._places[path], int(spec.shape[-1]))
        outputs[path] = value
        continue
      lead = tf.shape(any_value)[: 2 if spec.is_sequence else 1]
      constant = tf.constant(self._constants.get(path, 0), spec.dtype)
      shape = tf.concat([lead, spec.shape.as_list()], 0)
      outputs[path] = tf.broadcast_to(constant, shape)
    if labels is not None:
      target = labels[self._target]
      labels[self._target] = spread(target, self._action, len(self._is_action))
      mask = tf.constant(self._is_action)
      labels[DIMENSION_MASK] = tf.repeat(mask[tf.newaxis], tf.shape(target)[0], axis=0)
    return outputs, labels


def _mask(places: Any, size: int) -> np.ndarray:
  return np.isin(np.arange(size), places)


def spread(values: tf.Tensor, places: np.ndarray, size: int) -> tf.Tensor:
  """Puts elements [..., n] into vectors [..., size] of zeros, at `places`."""
  sources = np.full(size, len(places))
  sources[places] = np.arange(len(places))
  padding = [[0, 0]] * (values.shape.rank - 1) + [[0, 1]]
  return tf.gather(tf.pad(values, padding), sources, axis=-1)
