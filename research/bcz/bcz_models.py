"""Behaviour cloning of instructed actions: specs, network, losses of each component.

After BC-Z (https://arxiv.org/abs/2202.02005): the instruction's embedding modulates a
ResNet by FiLM, and each component of the action has a head and a loss of its own, for
several steps at once. The embedding is `HashedTextPreprocessor`'s: words that training
knew go together in ways that it never saw.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import actors, errors, layers, models, preprocessors, specs, windows

_Spec = specs.ExtendedTensorSpec
_LOSSES = ("huber", "log")
# Of x, y, height, yaw and opening: a few hundredths of height decide.
_GRIPPER_SCALE = (2.0, 2.0, 5.0, 2.0, 1.0)


@gin.configurable
@dataclasses.dataclass(frozen=True)
class ActionComponent:
  """A part of an action that has a head of its own.

  Attributes:
    name: `action/<name>` is its column, and its label.
    size: numbers per step.
    loss: 'huber', or 'log' of numbers that are 0 or 1: the network gives logits.
    weight: of its loss.
  """

  name: str
  size: int
  loss: str = "huber"
  weight: float = 1.0

  def __post_init__(self) -> None:
    """Checks the loss.

    Raises:
      SpecError: it is not known.
    """
    if self.loss not in _LOSSES:
      raise errors.SpecError(
        f"ActionComponent: {self.name}: loss: expected one of "
        f"{errors.listing(_LOSSES)}, got {self.loss!r}."
      )


COMPONENTS = (
  ActionComponent("position", 3),
  ActionComponent("rotation", 1, weight=4.0),
  ActionComponent("gripper", 1, "log", 0.5),
)


@gin.configurable
def table_episode_specification(
  image_size: int = 48, components: Sequence[ActionComponent] = COMPONENTS
) -> specs.TensorSpecStruct:
  """Returns what is stored of an episode: each step once, the instruction once."""
  columns = specs.TensorSpecStruct(
    {
      "state/image": _Spec((image_size, image_size, 3), tf.uint8, is_sequence=True),
      "state/gripper": _Spec((5,), tf.float32, is_sequence=True),
      "instruction": _Spec((), tf.string),
    }
  )
  for each in components:
    path = f"action/{each.name}"
    columns[path] = _Spec((each.size,), tf.float32, is_sequence=True)
  return columns


@gin.configurable
def table_step_to_features(
  step: actors.rollouts.EpisodeStep, components: Sequence[ActionComponent] = COMPONENTS
) -> dict[str, Any]:
  """Takes of a step what was seen, and what the expert meant, beside what was done."""
  seen, meant = step["observation"], np.asarray(step["debug"], np.float32)
  parts = np.split(meant, np.cumsum([each.size for each in components])[:-1])
  return {
    "state/image": seen["state"]["image"],
    "state/gripper": seen["state"]["gripper"],
    "instruction": seen["instruction"].encode(),
    **{f"action/{c.name}": part for c, part in zip(components, parts, strict=True)},
  }


@gin.configurable
class BCZModel(models.RegressionModel):
  """Predicts a chunk of actions from a frame, the gripper, and an instruction.

  Args:
    image_size: height and width of the frames.
    num_waypoints: n, steps of a chunk.
    components: of an action; `inference_output` [B, n, A] has them one after the other.
    embedding_size: of the instruction.
    **kwargs: of `RegressionModel`.
  """

  def __init__(
    self,
    image_size: int = 48,
    num_waypoints: int = 4,
    components: Sequence[ActionComponent] = COMPONENTS,
    embedding_size: int = 32,
    **kwargs: Any,
  ) -> None:
    self._image_size, self._num_waypoints = image_size, num_waypoints
    self._components, self._embedding_size = tuple(components), embedding_size
    super().__init__(action_size=sum(each.size for each in components), **kwargs)

  @property
  def default_preprocessor_cls(self) -> Any:
    """Frames become floats in [0, 1], the instruction a vector."""
    to_float = functools.partial(
      preprocessors.ImageToFloatPreprocessor, image_paths=["state/image"]
    )
    return functools.partial(
      preprocessors.ComposedPreprocessor,
      preprocessor_classes=[to_float, preprocessors.HashedTextPreprocessor],
    )

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the frame, the gripper, and the embedded instruction."""
    del mode
    shape = (self._image_size, self._image_size, 3)
    return specs.TensorSpecStruct(
      {
        "state/image": _Spec(shape, tf.float32, "state/image", time_offsets=0),
        "state/gripper": _Spec((5,), tf.float32, "state/gripper", time_offsets=0),
        "instruction": _Spec((self._embedding_size,), tf.float32, "instruction"),
      }
    )

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns each component at the next n steps, and which of them there are."""
    del mode
    labels = specs.TensorSpecStruct()
    for each in self._components:
      path, shape = f"action/{each.name}", (self._num_waypoints, each.size)
      offsets = tuple(range(self._num_waypoints))
      labels[path] = _Spec(shape, tf.float32, path, time_offsets=offsets)
    return windows.add_mask_specs(labels)

  def create_network(self) -> BCZNetwork:
    """Creates the ResNet and the heads."""
    return BCZNetwork([c.size for c in self._components], self._num_waypoints)

  @tf.autograph.experimental.do_not_convert
  def a_func(self, features: specs.TensorSpecStruct, mode: str) -> dict[str, tf.Tensor]:
    """Predicts the actions [B, n, A], and what each head says."""
    predicted = self.network(
      features["state/image"],
      features["state/gripper"],
      features["instruction"],
      training=mode == specs.ModeKeys.TRAIN,
    )
    outputs = {
      c.name: part for c, part in zip(self._components, predicted, strict=True)
    }
    actions = [
      tf.sigmoid(outputs[c.name]) if c.loss == "log" else outputs[c.name]
      for c in self._components
    ]
    return {**outputs, "inference_output": tf.concat(actions, axis=-1)}

  def model_train_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the weighted sum of the components' losses, and each of them."""
    del features, mode
    losses = {}
    for each in self._components:
      target = labels[f"action/{each.name}"]
      error = _error(each.loss, target, inference_outputs[each.name])
      mask = labels[f"action/{each.name}_mask"]
      losses[f"{each.name}_loss"] = layers.masked_mean(error, mask)
    total = tf.add_n([c.weight * losses[f"{c.name}_loss"] for c in self._components])
    return total, losses


@layers.construction.configurable_layer
class ResNetTower(tf.keras.Model):
  """A ResNet that the instruction modulates.

  Args:
    resnet_size: 18, 34 ...
    num_filters: of the first blocks.
    kernel_size: of the first convolution.
  """

  def __init__(
    self, resnet_size: int = 18, num_filters: int = 64, kernel_size: int = 7
  ) -> None:
    super().__init__(name="tower")
    self._resnet = layers.ResNet(
      resnet_size=resnet_size,
      num_filters=num_filters,
      kernel_size=kernel_size,
      film_generator_cls=layers.LinearFiLMGenerator,
    )

  def call(
    self, images: tf.Tensor, instruction: tf.Tensor, training: bool = False
  ) -> tf.Tensor:
    """Maps [B, H, W, 3] to the last blocks' maps, [B, H / 32, W / 32, C]."""
    found = self._resnet(images, film_generator_input=instruction, training=training)
    return found["pre_final_pool"]


@layers.construction.configurable_layer
class ConvTower(tf.keras.Model):
  """A few convolutions that the instruction modulates: `ImagesToFeatures`.

  Args:
    num_blocks: convolutions.
  """

  def __init__(self, num_blocks: int = 4) -> None:
    super().__init__(name="tower")
    self._tower = layers.ImagesToFeatures(
      num_blocks=num_blocks, use_spatial_softmax=False
    )
    self._film = tf.keras.layers.Dense(self._tower.film_size, name="film")

  def call(
    self, images: tf.Tensor, instruction: tf.Tensor, training: bool = False
  ) -> tf.Tensor:
    """Maps [B, H, W, 3] to maps [B, H / 4, W / 4, C]."""
    maps, _ = self._tower(images, self._film(instruction), training=training)
    return maps


@layers.construction.configurable_layer
class BCZNetwork(tf.keras.Model):
  """A tower that the instruction modulates, and a head for each component.

  Args:
    action_sizes: of the components.
    num_waypoints: n.
    create_tower: gives the tower.
    num_points: places in the tower's maps that are attended to: where they are, and
      what the maps are there. A mean over pixels knows neither.
    fc_layers: hidden layers of each head.
    stop_gradient_future_waypoints: lets the first waypoint alone train the tower.
  """

  def __init__(
    self,
    action_sizes: Sequence[int],
    num_waypoints: int,
    create_tower: Callable[[], Any] = ResNetTower,
    num_points: int = 8,
    fc_layers: Sequence[int] = (256, 256),
    stop_gradient_future_waypoints: bool = False,
  ) -> None:
    super().__init__(name="bcz_network")
    self._tower = create_tower()
    self._to_points = tf.keras.layers.Conv2D(num_points, 1, name="points")
    # With 1 the softmax of a fresh network is flat: all points are in the middle.
    self._softmax = layers.SpatialSoftmax(temperature=0.1, learn_temperature=True)
    self._heads = layers.bcz_networks.WaypointHeads(
      action_sizes, num_waypoints, fc_layers, stop_gradient_future_waypoints
    )

  def call(
    self,
    images: tf.Tensor,
    gripper: tf.Tensor,
    instruction: tf.Tensor,
    training: bool | None = None,
  ) -> list[tf.Tensor]:
    """Maps [B, H, W, 3], [B, 5] and [B, D] to [B, n, size] of each component."""
    maps = self._tower(images - 0.5, instruction, training=training)
    where, attention = self._softmax(self._to_points(maps))
    what = tf.einsum("bhwk,bhwc->bkc", attention, maps)
    what = tf.reshape(what, [-1, what.shape[1] * what.shape[2]])
    seen = [where, what, gripper * _GRIPPER_SCALE, instruction]
    return self._heads(tf.concat(seen, axis=-1), training=training)


def _error(loss: str, target: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
  if loss == "log":
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=predicted)
  absolute = tf.abs(predicted - target)
  return tf.where(absolute < 1.0, 0.5 * tf.square(absolute), absolute - 0.5)
