"""What the gripper's models read and predict, declared once, and their network."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import actors, layers, models, preprocessors, specs, windows
from t2r_seq.layers import vision_layers

_Spec = specs.ExtendedTensorSpec


@gin.configurable
def vrgripper_episode_specification(
  image_size: int | None = 40, has_task: bool = False
) -> specs.TensorSpecStruct:
  """Returns what is stored of an episode: each step once.

  Args:
    image_size: height and width of the frames; None leaves them out.
    has_task: adds the number of its task, and what it is to that, once each.
  """
  columns = specs.TensorSpecStruct(
    blocks=_Spec((3, 4), tf.float32, "blocks", is_sequence=True),
    hand_pose=_Spec((2,), tf.float32, "hand_pose", is_sequence=True),
    gripper_pose=_Spec((2,), tf.float32, "gripper_pose", is_sequence=True),
    action=_Spec((3,), tf.float32, "action", is_sequence=True),
    reward=_Spec((1,), tf.float32, "reward", is_sequence=True),
  )
  if image_size is not None:
    shape = (image_size, image_size, 3)
    columns.image = _Spec(shape, tf.uint8, "image", is_sequence=True)
  if has_task:
    columns.task = _Spec((), tf.int64, "task")
    columns.kind = _Spec((), tf.string, "kind")
  return columns


@gin.configurable
def episode_to_transitions(
  steps: actors.rollouts.Episode,
  task: int = 0,
  kind: str = "demo",
  has_image: bool = False,
) -> specs.TensorSpecStruct:
  """Turns an episode's steps into the record of `vrgripper_episode_specification`.

  Args:
    steps: T steps of the environment.
    task: number of its task.
    kind: what it is to its task: 'demo', 'trial', or 'hand'.
    has_image: whether the frames are kept.
  Returns:
    Numpy arrays by path, [T, ...].
  """
  seen = [step["observation"] for step in steps]
  return specs.TensorSpecStruct(
    {
      key: np.stack([each[key] for each in seen])
      for key in seen[0]
      if key != "image" or has_image
    },
    action=np.stack([np.asarray(step["action"], np.float32) for step in steps]),
    reward=np.array([[step["reward"]] for step in steps], np.float32),
    task=np.int64(task),
    kind=kind.encode(),
  )


@gin.configurable
class VRGripperRegressionModel(models.RegressionModel):
  """Predicts the action from a frame, or from where the blocks are.

  Which distribution the action is taken from is the decoder's: `action_decoder_cls`.

  Args:
    image_size: height and width of the frames; None: it sees no frame, but the state.
    num_waypoints: n, actions that are predicted at once.
    context_size: of a learned vector that modulates the network, for MAML to adapt;
      None: there is none.
    embedding_size: of a task's embedding that modulates it, for `TaskEmbeddingModel` to
      make; None: there is none.
    has_reward: whether the reward is a label too, so that a task is learned from it.
    num_blocks: convolutions of the tower.
    fc_layers: units of the dense layers in front of the decoder.
    **kwargs: of `RegressionModel`.
  """

  def __init__(
    self,
    image_size: int | None = 40,
    num_waypoints: int = 1,
    context_size: int | None = None,
    embedding_size: int | None = None,
    has_reward: bool = False,
    num_blocks: int = 3,
    fc_layers: Sequence[int] = (128, 128),
    **kwargs: Any,
  ) -> None:
    self._image_size, self._num_waypoints = image_size, num_waypoints
    self._context_size, self._embedding_size = context_size, embedding_size
    self._has_reward = has_reward
    self._num_blocks, self._fc_layers = num_blocks, tuple(fc_layers)
    super().__init__(action_size=3, **kwargs)

  @property
  def default_preprocessor_cls(self) -> Any:
    """Frames become floats in [0, 1]."""
    if self._image_size is None:
      return super().default_preprocessor_cls
    return functools.partial(
      preprocessors.ImageToFloatPreprocessor, image_paths=["image"]
    )

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns what is seen."""
    del mode
    features = specs.TensorSpecStruct()
    shapes: dict[str, tuple[int, ...]] = {"gripper_pose": (2,)}
    if self._image_size is None:
      shapes = {"blocks": (3, 4), "hand_pose": (2,), **shapes}
    else:
      shapes["image"] = (self._image_size, self._image_size, 3)
    for name, shape in shapes.items():
      features[name] = _Spec(shape, tf.float32, name, time_offsets=0)
    if self._embedding_size is not None:
      features.task_embedding = _Spec((self._embedding_size,), tf.float32)
    return features

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns `target`, the action that was taken, or n of them and a mask."""
    del mode
    labels = specs.TensorSpecStruct()
    if self._num_waypoints == 1:
      labels.target = _Spec((self.action_size,), tf.float32, "action", time_offsets=0)
    else:
      shape = (self._num_waypoints, self.action_size)
      offsets = tuple(range(self._num_waypoints))
      labels.target = _Spec(shape, tf.float32, "action", time_offsets=offsets)
      labels = windows.add_mask_specs(labels)
    if self._has_reward:
      labels.reward = _Spec((1,), tf.float32, "reward", time_offsets=0)
    return labels

  def create_network(self) -> dict[str, Any]:
    """Creates the tower, the dense layers, and the decoder."""
    sees_frames = self._image_size is not None
    has_task = (self._context_size or self._embedding_size) is not None
    network = {
      "tower": ImageTower(self._num_blocks, has_task) if sees_frames else BlocksTower(),
      "head": vision_layers.MLP(self._fc_layers[:-1], self._fc_layers[-1]),
      "decoder": self.create_action_decoder(),
    }
    if self._context_size is not None:
      network["context"] = Context(self._context_size)
    return network

  @tf.autograph.experimental.do_not_convert
  def a_func(self, features: specs.TensorSpecStruct, mode: str) -> dict[str, tf.Tensor]:
    """Returns what the decoder makes of what is seen, and `feature_points`."""
    training = mode == specs.ModeKeys.TRAIN
    task = features.get("task_embedding")
    if self._context_size is not None:
      task = self.network["context"](features.gripper_pose)
    points = self.network["tower"](features, task, training=training)
    seen = [points, features.gripper_pose, *([] if task is None else [task])]
    embedded = self.network["head"](tf.concat(seen, axis=-1), training=training)
    prediction = self.network["decoder"](tf.nn.relu(embedded), training=training)
    return {**prediction, "feature_points": points}


class ImageTower(tf.keras.layers.Layer):
  """Finds points in a frame; a task's vector modulates which.

  Args:
    num_blocks: convolutions.
    has_task: whether there is a task's vector.
  """

  def __init__(self, num_blocks: int = 3, has_task: bool = False) -> None:
    super().__init__(name="tower")
    self._maps = layers.ImagesToFeatures(
      num_blocks=num_blocks, use_spatial_softmax=False
    )
    film = tf.keras.layers.Dense
    self._film = film(self._maps.film_size, name="film") if has_task else None
    # With 1 the softmax of a fresh network is flat: all points are in the middle.
    self._softmax = layers.SpatialSoftmax(temperature=0.1, learn_temperature=True)

  def build(self, input_shape: Any) -> None:
    """Does nothing: the layers inside create their variables when they are called."""
    self.built = True

  def call(
    self,
    features: specs.TensorSpecStruct,
    task: tf.Tensor | None,
    training: bool = False,
  ) -> tf.Tensor:
    """Maps `image` [B, H, W, 3], and [B, D] or None, to points, [B, 64]."""
    film = None if self._film is None else self._film(task)
    maps, _ = self._maps(features.image - 0.5, film, training=training)
    points, _ = self._softmax(maps)
    return points


class BlocksTower(tf.keras.layers.Layer):
  """Looks at each block, modulated by a task's vector, and attends to one.

  Args:
    size: of what is found.
  """

  def __init__(self, size: int = 64) -> None:
    super().__init__(name="tower")
    self._each = vision_layers.MLP((size,), size)
    self._film = tf.keras.layers.Dense(2 * size, name="film")
    self._logit = tf.keras.layers.Dense(1, name="logit")

  def build(self, input_shape: Any) -> None:
    """Does nothing: the layers inside create their variables when they are called."""
    self.built = True

  def call(
    self,
    features: specs.TensorSpecStruct,
    task: tf.Tensor | None,
    training: bool = False,
  ) -> tf.Tensor:
    """Maps `blocks` [B, n, 4], poses [B, 2], and [B, D] or None, to [B, size]."""
    known = tf.concat([features.gripper_pose, features.hand_pose], axis=-1)
    known = tf.repeat(known[:, tf.newaxis], features.blocks.shape[1], axis=1)
    each = self._each(tf.concat([features.blocks, known], axis=-1), training=training)
    if task is not None:
      each = vision_layers.film(each, self._film(task))
    each = tf.nn.relu(each)
    weights = tf.nn.softmax(self._logit(each), axis=1)
    return tf.reduce_sum(weights * each, axis=1)


@layers.construction.configurable_layer
class StepEmbedding(tf.keras.layers.Layer):
  """Embeds a step of a demonstration or a trial: near which block, and what came of it.

  Args:
    embedding_size: D.
    size: of what is found at the blocks.
  """

  def __init__(self, embedding_size: int, size: int = 64) -> None:
    super().__init__(name="step_embedding")
    self._tower = BlocksTower(size)
    self._mlp = vision_layers.MLP((size,), embedding_size)

  def build(self, input_shape: Any) -> None:
    """Does nothing: the layers inside create their variables when they are called."""
    self.built = True

  def call(self, sample: dict[str, tf.Tensor], training: bool = False) -> tf.Tensor:
    """Maps features and labels by path, [N, ...], to [N, D]."""
    features = specs.TensorSpecStruct(
      (path.removeprefix("features/"), value) for path, value in sample.items()
    )
    poses = [features.gripper_pose, features.hand_pose]
    told = [
      tf.reshape(tf.cast(value, tf.float32), [-1, value.shape[1:].num_elements()])
      for path, value in sorted(sample.items())
      if path.startswith("labels/")
    ]
    found = self._tower(features, None, training=training)
    return self._mlp(tf.concat([found, *poses, *told], axis=-1), training=training)


class Context(tf.keras.layers.Layer):
  """A learned vector, the same for all.

  Args:
    size: D.
  """

  def __init__(self, size: int) -> None:
    super().__init__(name="context")
    self._vector = self.add_weight(name="vector", shape=(size,), initializer="zeros")

  def call(self, like: tf.Tensor) -> tf.Tensor:
    """Returns the vector, [B, D], as often as there are examples."""
    vector = tf.convert_to_tensor(self._vector)
    return tf.repeat(vector[tf.newaxis], tf.shape(like)[0], axis=0)


@gin.configurable
class VRGripperDomainAdaptiveModel(VRGripperRegressionModel):
  """Adapts, inside of a `MAMLModel`, to what is seen alone, such as of a human hand.

  The loss of that is learned, of what the network finds in each step and would do
  there: actions are not known, and a hand moves otherwise than the gripper. Yu et al.,
  'One-Shot Imitation from Observing Humans via Domain-Adaptive Meta-Learning',
  https://arxiv.org/abs/1802.01557.

  Args:
    learned_loss_conv1d_layers: filters of the convolutions over an episode's steps.
    **kwargs: of `VRGripperRegressionModel`.
  """

  def __init__(
    self, learned_loss_conv1d_layers: Sequence[int] = (32, 32, 16), **kwargs: Any
  ) -> None:
    self._loss_layers = tuple(learned_loss_conv1d_layers)
    super().__init__(**kwargs)

  def create_network(self) -> dict[str, Any]:
    """Adds the network of the loss."""
    *hidden, last = self._loss_layers
    convs = [
      tf.keras.layers.Conv1D(n, 3, padding="same", activation="relu") for n in hidden
    ]
    loss = tf.keras.Sequential([*convs, tf.keras.layers.Conv1D(last, 1)])
    return {**super().create_network(), "learned_loss": loss}

  @tf.autograph.experimental.do_not_convert
  def a_func(self, features: specs.TensorSpecStruct, mode: str) -> dict[str, tf.Tensor]:
    """Adds `learned_loss` [B, filters]: an episode's steps are one batch, in order."""
    prediction = super().a_func(features, mode)
    seen = tf.concat(
      [prediction["feature_points"], prediction["inference_output"]], axis=-1
    )
    return {
      **prediction,
      "learned_loss": self.network["learned_loss"](seen[tf.newaxis])[0],
    }

  def inner_loss_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the learned loss, a scalar."""
    del features, labels, mode
    return tf.reduce_mean(tf.square(inference_outputs["learned_loss"]))
