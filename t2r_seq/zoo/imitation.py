"""Base class of all imitation policies: specs, preprocessing, loss, execution."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, layers, models, policies, preprocessors, specs, windows
from t2r_seq.layers.flow_matching import Continuation
from t2r_seq.layers.observation_encoder import ObservationEncoder
from t2r_seq.lite.policy_io import Prefix
from t2r_seq.preprocessors.augmentations import ImageTransform
from t2r_seq.preprocessors.convert_conventions import stages_of
from t2r_seq.specs import (
  Convention,
  ExtendedTensorSpec,
  ModeKeys,
  SpecStructure,
  TensorSpecStruct,
)
from t2r_seq.specs.conventions import RELATIVE
from t2r_seq.zoo.embodiments import (
  DIMENSION_MASK,
  ROBOT_ID,
  Embodiment,
  EmbodimentPreprocessor,
  check_embodiments,
  find_robot,
  spread,
  unique_embodiments,
)
from t2r_seq.zoo.signature import Signature

TARGET = "target"
# Components of a text's vector; see `HashedTextPreprocessor`.
TEXT_SIZE = 128


@gin.configurable
def default_image_transforms(
  size: Sequence[int], stored_size: Sequence[int]
) -> list[ImageTransform]:
  """Returns the transforms of a camera: a resize; in training shifts and color jitter.

  Args:
    size: height and width that the network gets.
    stored_size: height and width of the stored images.
  """
  resize = [preprocessors.Resize(size)] if tuple(size) != tuple(stored_size) else []
  # Shifts by up to 4 of 84 pixels: https://arxiv.org/abs/2004.13649.
  shift = preprocessors.RandomShift(max(1, round(min(size) / 21)))
  jitter = preprocessors.ColorJitter(0.1, (0.7, 1.3), 0.02, (0.7, 1.3))
  return [*resize, shift, jitter]


def model_conventions(
  signature: Signature, changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Convention | None, int]]:
  """Returns the network's convention and size of each state, camera and the action.

  Args:
    signature: signature of the data.
    changes: fields of `Convention` that differ from the data's, by path. Relative
      actions without `reference` refer to the only state of the action's size, or else
      to the only state.
  Returns:
    (convention, or None if the data declares none; size of the last axis), by path.
  Raises:
    SpecError: the data declares no convention for a path, or lacks a field to convert
      from; a field is invalid; or several states could be the reference.
  """
  shapes = {**signature.states, **signature.cameras}
  sizes = {path: int(shape[-1]) if shape else 1 for path, shape in shapes.items()}
  sizes[signature.action] = signature.action_size
  conventions = {
    path: (Convention.of(signature.conventions.get(path)), size)
    for path, size in sizes.items()
  }
  for path, words in changes.items():
    convention, size = conventions.get(path, (None, 0))
    if convention is None:
      paths = errors.listing(p for p, (each, _) in conventions.items() if each)
      raise errors.SpecError(
        f"conventions: {path}: expected a convention that the data declares, as for "
        f"{paths}, got none. Declare it in the data set, or bind "
        "find_signature.conventions = {'" + path + "': {...}}."
      )
    options = dict(words)
    if options.get("control") in RELATIVE and "reference" not in options:
      options["reference"] = _only_state(signature, path)
    for name in ("control", "unit", "gripper"):
      if name in options and not convention.declares(name):
        raise errors.SpecError(
          f"conventions: {path}: {name}: expected the data to declare one, got "
          f"{convention}. Declare it in the data set, or bind "
          "find_signature.conventions = {'" + path + "': {...}}."
        )
    conventions[path] = convention.replace(size, **options)
  return conventions


def robot_conventions(
  robot: Embodiment, changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[Convention | None, int]]:
  """Returns `model_conventions` of a robot.

  Args:
    robot: the robot; fields that its data does not declare are not converted.
    changes: fields of conventions by the model's path.
  Raises:
    SpecError: see `model_conventions`.
  """
  own_changes = {}
  for path in robot.vectors_and_cameras:
    if words := _filter(robot, path, changes.get(robot.role(path), {})):
      own_changes[path] = words
  return model_conventions(robot.signature, own_changes)


def _filter(robot: Embodiment, path: str, words: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the fields of a change that the robot's data declares at its path."""
  convention = Convention.of(robot.signature.conventions.get(path))
  if convention is None:
    return {}
  return {
    word: value
    for word, value in words.items()
    if convention.declares("control" if word == "reference" else word)
  }


@functools.cache
def _warn_once(text: str) -> None:
  logging.warning("%s", text)


def _only_state(signature: Signature, path: str) -> str:
  sizes = {p: int(shape[-1]) if shape else 1 for p, shape in signature.states.items()}
  alike = [p for p in sizes if sizes[p] == signature.action_size] or [*sizes]
  if len(alike) != 1:
    raise errors.SpecError(
      f"conventions: {path}: reference: expected the path of the state that relative "
      f"actions refer to, one of {errors.listing(sizes)}, got none."
    )
  return alike[0]


def check_no_chunks(name: str, option: str, value: int) -> None:
  """Raises SpecError unless an option of a model that acts step by step is 1."""
  if value != 1:
    raise errors.SpecError(
      f"{name}: {option}: expected 1, as each step predicts its own action, got "
      f"{value}. For chunks take the policies flow or mlp."
    )


@gin.configurable
class ImitationModel(models.RegressionModel):
  """A policy that is fitted to recorded actions; its specs follow from a `Signature`.

  Features are the signature's paths: normalised states `[B, H, ...]` and cameras
  `[B, H, height, width, channels]` in [0, 1] of the last H = `observation_horizon`
  steps, and for policies that need 'language' the text's vector `[B, 128]`. The label
  is the chunk of actions, `[B, num_past_actions + chunk_size, A]`, normalised, with a
  mask of its real steps.

  A model of several robots has the signature that they share, with its `embodiments`.
  Each robot's data goes through the robot's own stages, in the input and in the export:
  conventions, images, normalization, layout. `as_robot` returns the policy of a robot.

  A subclass defines `create_network` and `a_func`, and `all_errors` for a loss other
  than the action decoder's or the squared error. A network that sees the labels in
  training, such as a CVAE, also overrides `inference_network_fn`.

  Attributes:
    needs: required inputs, from 'cameras' and 'language'.
    is_sequence: whether features and labels are sequences `[B, L, ...]`, for networks
      that carry a state; then there are neither stacks nor chunks.
  """

  needs: tuple[str, ...] = ()
  is_sequence = False

  def __init__(
    self,
    signature: Signature = gin.REQUIRED,
    statistics_path: str = gin.REQUIRED,
    observation_horizon: int = 1,
    chunk_size: int = 1,
    num_past_actions: int = 0,
    num_executed: int | None = None,
    ensemble_decay: float | None = None,
    overlap: str = "synchronous",
    normalization: str | Mapping[str, str | None] = "mean_std",
    image_size: Sequence[int] | None = None,
    image_transforms: Sequence[ImageTransform] | None = None,
    conventions: Mapping[str, Mapping[str, Any]] | None = None,
    **kwargs: Any,
  ) -> None:
    """Creates the model, without its network.

    Args:
      signature: signature of the data set, or of several robots.
      statistics_path: JSON file of statistics, which normalise states and actions;
        unused for several robots.
      observation_horizon: H, steps that the network sees, the present one included.
      chunk_size: actions that the policy predicts, from the present step on.
      num_past_actions: actions before the present step that are also fitted, but not
        executed.
      num_executed: executed actions of a chunk; None: half of them, at least 1.
      ensemble_decay: decay of temporal ensembling; see `policies.ChunkExecution`.
      overlap: overlap of inference with execution; see `policies.ChunkExecution`.
      normalization: normalization of states and actions, as in
        `preprocessors.Normalize`; or by path, the actions as 'target'.
      image_size: height and width of the images that the network gets; None: those of
        the signature.
      image_transforms: transforms of every camera, starting from the stored images;
        None uses `default_image_transforms`. `[]` neither resizes nor augments.
      conventions: the network's conventions that differ from the data's, by path:
        `{'action': {'control': 'relative', 'rotation': 'rot6d_rows'}}`. The export
        converts actions back.
      **kwargs: arguments of `RegressionModel` except `action_size`.
    Raises:
      SpecError: an option is invalid, the data set lacks an input of the policy or the
        convention to convert from, or robots do not fit into the model.
    """
    name = type(self).__name__
    for option, value in (("observation_horizon", observation_horizon),
                          ("chunk_size", chunk_size)):  # fmt: skip
      errors.check_count(name, option, value)
    for need in self.needs:
      if not getattr(signature, need):
        raise errors.SpecError(
          f"{name}: signature: expected {need}, got {signature.describe()}."
        )
    if self.is_sequence:
      check_no_chunks(name, "observation_horizon", observation_horizon)
      check_no_chunks(name, "chunk_size", chunk_size)
    else:
      executed = num_executed or max(1, chunk_size // 2)
      execution = policies.ChunkExecution(executed, ensemble_decay, overlap=overlap)
      kwargs.setdefault("execution", execution)
    self._embodiments = unique_embodiments(name, signature.embodiments)
    changes, self._changes = dict(conventions or {}), dict(conventions or {})
    if self._embodiments:  # Each robot is converted by its own stages.
      changes = {}
    self._conventions = model_conventions(signature, changes)
    _, size = self._conventions[signature.action]
    super().__init__(action_size=size, **kwargs)
    self.signature = signature
    self.observation_horizon, self.chunk_size = observation_horizon, chunk_size
    self.num_past_actions = num_past_actions
    self._statistics_path: str | Sequence[str] = statistics_path
    self._normalization = normalization
    self._image_size, self._image_transforms = image_size, image_transforms
    # Set by `native_model`: the sizes to which a robot's images are resized.
    self._camera_sizes: dict[str, Sequence[int]] = {}
    # Set by `as_robot`: the robot, and the model of this robot alone.
    self._robot: Embodiment | None = None
    self._native: ImitationModel = self
    if self._embodiments:
      sizes = {
        n: self.native_model(e).network_sizes() for n, e in self._embodiments.items()
      }
      check_embodiments(name, self._embodiments, signature, sizes)
      self._check_changes()

  def _check_changes(self) -> None:
    """Checks `conventions` of several robots; warns if some robots lack a field.

    Raises:
      SpecError: the model lacks a path, or no robot declares a field.
    """
    paths = (*self.signature.states, *self.signature.cameras, self.signature.action)
    if unknown := [path for path in self._changes if path not in paths]:
      raise errors.SpecError(
        f"conventions: {unknown[0]}: expected one of the model's paths "
        f"{errors.listing(paths)}.{errors.nearest(unknown[0], paths)}"
      )
    for role, words in self._changes.items():
      owners = {
        (name, path): _filter(robot, path, words)
        for name, robot in self._embodiments.items()
        for path in robot.vectors_and_cameras
        if robot.role(path) == role
      }
      for word in words:
        lacking = [owner for owner, found in owners.items() if word not in found]
        text = f"conventions: {role}: {word}: expected "
        hint = f"Declare it in the data set: conventions.json, {{'{role}': {{...}}}}."
        if len(lacking) == len(owners):
          raise errors.SpecError(f"{text}a robot that declares it, got none. {hint}")
        for name, path in lacking:
          _warn_once(
            f"{text}each robot to declare it, got none of '{name}': its {path} is not "
            f"converted. {hint}"
          )

  @property
  def embodiments(self) -> Mapping[str, Embodiment]:
    """The robots by name; empty for one robot, and for the result of `as_robot`."""
    return self._embodiments if self._robot is None else {}

  @property
  def robot(self) -> str | None:
    """See the base class."""
    return None if self._robot is None else self._robot.name

  def network_sizes(self) -> dict[str, int]:
    """Returns the network's last axis of each state, camera and the action, by path."""
    return {path: size for path, (_, size) in self._conventions.items()}

  def native_model(self, robot: Embodiment) -> ImitationModel:
    """Returns the model of one robot alone: its specs and stages, without a network."""
    native = copy.copy(self)
    native._robot, native._native, native._embodiments = None, native, {}
    native.signature, native._statistics_path = robot.signature, robot.statistics
    native._conventions = robot_conventions(robot, self._changes)
    _, native._action_size = native._conventions[native.signature.action]
    native._camera_sizes = {
      path: self.signature.cameras[role][:2]
      for role, path in robot.cameras.items()
      if role in self.signature.cameras
    }
    return native

  def robot_preprocessor_cls(self, name: str) -> Any:
    """Returns the `preprocessor_cls` of a robot, from its data to the network's inputs.

    Raises:
      SpecError: no robot has this name.
    """
    robot = find_robot(type(self).__name__, self._embodiments, name)
    native = self.native_model(robot)
    fit = functools.partial(
      EmbodimentPreprocessor,
      native=native,
      embodiment=robot,
      signature=self.signature,
      target=TARGET,
    )
    chain: Any = self._preprocessor_cls or native.default_preprocessor_cls
    return functools.partial(
      preprocessors.ComposedPreprocessor,
      preprocessor_classes=[*chain.keywords["preprocessor_classes"], fit],
    )

  def as_robot(self, name: str) -> ImitationModel:
    """See the base class."""
    robot = find_robot(type(self).__name__, self._embodiments, name)
    model = copy.copy(self)
    model._robot, model._native = robot, self.native_model(robot)
    model._preprocessor = None
    model._preprocessor_cls = self.robot_preprocessor_cls(name)
    model._control_period = robot.control_period
    model._source_preprocessing = {}
    return model

  @property
  def preprocessor(self) -> preprocessors.AbstractPreprocessor:
    """See the base class; a no-op for several robots: the input runs their stages."""
    if self._preprocessor is None and self.embodiments:
      self._preprocessor = preprocessors.NoOpPreprocessor(
        self.get_feature_specification, self.get_label_specification
      )
    return super().preprocessor

  @property
  def uses_language(self) -> bool:
    """Whether the text of the task is a feature."""
    return "language" in self.needs

  def get_feature_specification(self, mode: str) -> TensorSpecStruct:
    """See the base class: states, cameras and text, by the paths of the data set."""
    del mode
    features = TensorSpecStruct()
    for path, shape in self.signature.states.items():
      features[path] = self._observation_spec(path, shape)
    for path, shape in self.signature.cameras.items():
      size = self._camera_size(path, shape)
      features[path] = self._observation_spec(path, [*size, shape[2]])
    if self.uses_language:
      text = str(self.signature.language)
      is_step = self.signature.language_is_step
      features[text] = ExtendedTensorSpec(
        (TEXT_SIZE,),
        tf.float32,
        text,
        is_sequence=is_step and self.is_sequence,
        time_offsets=0 if is_step and not self.is_sequence else None,
      )
    return features

  def get_label_specification(self, mode: str) -> SpecStructure:
    """See the base class: the chunk of actions, and the mask of its real steps."""
    del mode
    size, name = self.action_size, self.signature.action
    stored = self._stored_dtype(name)
    options: dict[str, Any] = {
      "stored_dtype": stored,
      "convention": self._conventions[name][0],
    }
    if self.is_sequence:
      target = ExtendedTensorSpec(
        (size,), tf.float32, name, is_sequence=True, **options
      )
      return self._with_dimension_mask(TensorSpecStruct({TARGET: target}))
    offsets = range(-self.num_past_actions, self.chunk_size)
    target = ExtendedTensorSpec(
      (len(offsets), size), tf.float32, name, time_offsets=offsets, **options
    )
    labels = windows.add_mask_specs(TensorSpecStruct({TARGET: target}))
    return self._with_dimension_mask(labels)

  def _with_dimension_mask(self, labels: TensorSpecStruct) -> TensorSpecStruct:
    """Adds the mask of a robot's action components, if there are several robots."""
    if self._embodiments:
      labels[DIMENSION_MASK] = ExtendedTensorSpec((self.action_size,), tf.bool)
    return labels

  def _observation_spec(self, path: str, shape: Sequence[int]) -> ExtendedTensorSpec:
    convention, size = self._conventions[path]
    # Network and data may represent rotations by different numbers of components.
    shape = [*shape[:-1], size] if shape else []
    history = () if self.is_sequence else (self.observation_horizon,)
    return ExtendedTensorSpec(
      (*history, *shape),
      tf.float32,
      path,
      is_sequence=self.is_sequence,
      time_offsets=None if self.is_sequence else range(1 - self.observation_horizon, 1),
      data_format=self.signature.data_formats.get(path),
      stored_dtype=self._stored_dtype(path),
      convention=convention,
    )

  def _stored_dtype(self, path: str) -> str | None:
    return self.signature.stored_dtypes.get(path)

  @property
  def default_preprocessor_cls(self) -> Any:
    """Converts conventions, augments float images, hashes texts, normalises."""
    stages: list[Any] = [*self._convert_stages()]
    stages += [
      functools.partial(
        preprocessors.AugmentationPreprocessor,
        transforms=self._transforms(path, shape),
        input_size=tuple(shape[:2]),
        image_paths=[path],
      )
      for path, shape in self.signature.cameras.items()
    ]
    if self.uses_language:
      stages.append(
        functools.partial(
          preprocessors.HashedTextPreprocessor,
          text_paths=[str(self.signature.language)],
        )
      )
    normalized: Mapping[str, str | None]
    if isinstance(self._normalization, str):
      paths = (*self.signature.states, TARGET)
      normalized = dict.fromkeys(paths, self._normalization)
    else:
      normalized = self._normalization
    stages.append(
      functools.partial(
        preprocessors.Normalize, statistics_path=self._statistics_path, modes=normalized
      )
    )
    return functools.partial(
      preprocessors.ComposedPreprocessor, preprocessor_classes=stages
    )

  def _convert_stages(self) -> list[Any]:
    """Returns the stage that converts conventions, if any path differs."""
    data = self.signature.conventions
    names = {self.signature.action: TARGET}
    changed = {
      names.get(path, path): data[path]
      for path, (convention, _) in self._conventions.items()
      if path in data and Convention.of(data[path]) != convention
    }
    if not changed:
      return []
    data = {names.get(path, path): each for path, each in data.items()}
    return [functools.partial(preprocessors.ConvertConventions, data=data)]

  def statistics_preprocessor(self) -> preprocessors.AbstractPreprocessor | None:
    """Returns the preprocessor of vectors before `Normalize`; None if it is a no-op."""
    stages = self._convert_stages()
    if not stages:
      return None
    cameras = (*self.signature.cameras, self.signature.language)
    return stages[0](
      lambda mode: TensorSpecStruct(
        (path, spec)
        for path, spec in self.get_feature_specification(mode).items()
        if path not in cameras
      ),
      self.get_label_specification,
    )

  def _camera_size(self, path: str, shape: Sequence[int]) -> Sequence[int]:
    return self._image_size or self._camera_sizes.get(path, shape[:2])

  def _transforms(self, path: str, shape: Sequence[int]) -> Sequence[Any]:
    if self._image_transforms is not None:
      return self._image_transforms
    return default_image_transforms(self._camera_size(path, shape), shape[:2])

  def create_encoder(self, token_size: int | None = None) -> Any:
    """Returns the layer that encodes the observations of each step.

    Args:
      token_size: size of the token of each path; None concatenates the paths.
    """
    tokens = [] if token_size is None else list(self.get_feature_specification("train"))
    return ObservationEncoder(
      tuple(self.signature.cameras), token_paths=tokens, token_size=token_size or 0
    )

  def encode(self, features: SpecStructure, mode: str) -> tf.Tensor:
    """Encodes the observations by the network's 'encoder', [B, T, ...]."""
    observations = self.observations(features)
    return self.network["encoder"](observations, training=self.is_training(mode))

  def observations(self, features: SpecStructure) -> dict[str, tf.Tensor]:
    """Returns the features by path, for an `ObservationEncoder`.

    States and texts are vectors [B, T, D], images [B, T, height, width, channels]; T is
    1 for a text without a time axis.
    """
    observations = {}
    for path, value in specs.flatten_spec_structure(features).items():
      if path == self.signature.language and value.shape.rank == 2:
        value = value[:, tf.newaxis]
      elif path in self.signature.states and value.shape.rank == 2:
        value = value[..., tf.newaxis]
      observations[path] = value
    return observations

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> Any:
    """See the base class; with several robots also `robot_losses`."""
    if not self._embodiments:
      return super().model_train_fn(features, labels, inference_outputs, mode)
    error, is_valid = self.all_errors(labels, inference_outputs, mode)
    loss = layers.masked_mean(error, is_valid)
    return loss, self.robot_losses(features, error, is_valid, mode)

  def robot_losses(
    self, features: SpecStructure, error: tf.Tensor, is_valid: tf.Tensor, mode: str
  ) -> dict[str, tf.Tensor]:
    """Returns '<robot>/loss' in training, 0 for a robot that the batch lacks.

    In evaluation returns nothing, as an evaluation is of one robot.
    """
    if not self.is_training(mode):
      return {}
    losses = {}
    for name, robot in self._embodiments.items():
      ids = specs.flatten_spec_structure(features)[ROBOT_ID][:, 0, robot.id]
      is_own = tf.reshape(ids > 0, [-1, *[1] * (error.shape.rank - 1)])
      losses[f"{name}/loss"] = layers.masked_mean(error, is_valid & is_own)
    return losses

  def model_eval_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """See the base class: models without a decoder have an 'action_error', too."""
    metrics = super().model_eval_fn(features, labels, inference_outputs, mode)
    if "action_error" in metrics or "inference_output" not in inference_outputs:
      return metrics
    absolute = lambda target, action: tf.abs(action - target)  # noqa: E731
    return {
      **metrics,
      "action_error": self._mean_error(labels, inference_outputs, absolute),
    }

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: actions from the present step on, not normalised."""
    outputs = super().create_export_outputs_fn(features, inference_outputs, mode)
    actions = outputs["inference_output"]
    if self._robot is not None:
      actions = tf.gather(actions, self._action_places, axis=-1)
    actions = preprocessors.unnormalize(self.preprocessor, TARGET, actions)
    return {"inference_output": actions[:, self.num_past_actions :]}

  @property
  def can_continue(self) -> bool:
    """Whether `a_func` takes a third argument, the `Continuation` that it continues."""
    return False

  @property
  def prefix_mode(self) -> str | None:
    """See the base class: 'real_time' if `can_continue`, and otherwise None.

    Also None if `converts_actions`: executed actions are not converted back.
    """
    return "real_time" if self.can_continue and not self.converts_actions else None

  @property
  def converts_actions(self) -> bool:
    """Whether the export converts actions to the data's convention."""
    native = self._native
    name = native.signature.action
    stored = native.signature.conventions.get(name)
    return stored is not None and Convention.of(stored) != native._conventions[name][0]

  @property
  def _action_places(self) -> Any:
    assert self._robot is not None
    return self._robot.places(self._robot.signature.action, self._native.action_size)

  def export_outputs_after(
    self, raw_features: SpecStructure, prefix: Prefix
  ) -> dict[str, tf.Tensor]:
    """See the base class."""
    mode = ModeKeys.INFER
    features, _ = self.preprocessor.preprocess(raw_features, None, mode)
    features, _ = self.pack(features, None, mode)
    actions, past = prefix.actions, self.num_past_actions
    for stage in stages_of(self.preprocessor, preprocessors.Normalize):
      if stage.is_normalized(TARGET):
        actions = stage.normalize(TARGET, actions)
    if self._robot is not None:
      actions = spread(actions, self._action_places, self.action_size)
    known = Continuation.of(actions, prefix.num_frozen, prefix.num_known)
    # Actions before the present step are unconstrained: their weights are 0.
    known = Continuation(
      tf.pad(known.target, [[0, 0], [past, 0], [0, 0]]),
      tf.pad(known.weights, [[0, 0], [past, 0]]),
    )
    with self._holding_step():
      a_func: Any = self.a_func  # Takes `known`: see `can_continue`.
      outputs = a_func(features, mode, known)
      return self.create_export_outputs_fn(features, outputs, mode)

  def is_training(self, mode: str) -> bool:
    """Whether layers are called with `training=True` in a mode."""
    return mode == ModeKeys.TRAIN
