"""A small critic of grasps, and the same with Bellman targets: QT-Opt in minutes.

Action, state and their names are those of `QTOptCritic`; the network is another one. It
looks in the image where the fingers would go (`GraspHead`), which `Grasping44` has to
learn from half a million grasps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from research.qtopt import grasp_env, qtopt_models
from t2r_seq import layers, models, specs

# The outputs of an export's search, by the parts of an action.
ACTION_KEY = {name: f"action_{name}" for name in qtopt_models.ACTION}
_Spec = specs.ExtendedTensorSpec


@gin.configurable
class GraspCritic(models.CriticModel):
  """Q(state, action): the discounted success that follows, a probability.

  Supervised: with an `n_step` of whole episodes by what came of an action.

  Args:
    image_size: height and width of what is seen.
    width: of the layers.
    doubt: how much it counts that an action which is drawn at random will fail. Of
      what the data lacks nothing else is known, and a search finds what is valued too
      high: after conservative Q-learning (Kumar et al., 2020).
    **kwargs: of `CriticModel`.
  """

  def __init__(
    self,
    image_size: tuple[int, int] = (48, 48),
    width: int = 8,
    doubt: float = 1.0,
    **kwargs: Any,
  ):
    self._image_size, self._width = tuple(image_size), width
    self._doubt = doubt
    super().__init__(**{"loss_function": models.losses.log_loss, **kwargs})

  def get_state_specification(self) -> specs.TensorSpecStruct:
    """Returns the image, and what the gripper is and where."""
    state = qtopt_models.vectors(qtopt_models.STATUS, "state/", 0)
    image = _Spec((*self._image_size, 3), tf.uint8, "state/image", time_offsets=0)
    return specs.TensorSpecStruct(image=image, **state)

  def get_action_specification(self) -> specs.TensorSpecStruct:
    """Returns the displacement, the turn and the three commands."""
    return qtopt_models.vectors(qtopt_models.ACTION, "action/", 0)

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the reward; the rest is what `n_step` joins."""
    del mode
    labels = {
      "reward": _Spec((1,), tf.float32, "reward", time_offsets=0),
      "terminated": _Spec((1,), tf.bool, "terminated", time_offsets=0),
    }
    for path, spec in self.get_state_specification().items():
      labels[f"next_state/{path}"] = _Spec.from_spec(spec, time_offsets=1)
    return specs.TensorSpecStruct(labels)

  def create_network(self) -> dict[str, Any]:
    """Returns the tower, which sees the image, and the head, which sees actions."""
    keras, width = tf.keras.layers, self._width
    tower = [
      keras.Rescaling(1 / 127.5, offset=-1.0, name="scale"),
      keras.Conv2D(width, 4, 2, "same", activation="relu", name="conv1"),
      keras.Conv2D(width, 3, 1, "same", activation="relu", name="conv2"),
    ]
    return {
      "tower": tf.keras.Sequential(tower, name="tower"),
      "head": GraspHead(6 * width),
    }

  @tf.autograph.experimental.do_not_convert
  def state_func(self, state: Any, mode: str) -> dict[str, tf.Tensor]:
    """Encodes the image; in training, by chance, that of the mirrored world."""
    image, sign = tf.cast(state.image, tf.float32), tf.ones_like(state.gripper_closed)
    if mode == specs.ModeKeys.TRAIN:
      sign = tf.sign(tf.random.uniform(tf.shape(sign)) - 0.5)
      is_mirrored = (sign < 0.0)[:, :, tf.newaxis, tf.newaxis]
      image = tf.where(is_mirrored, tf.reverse(image, axis=[2]), image)
    status = [state.gripper_closed, 10.0 * state.height_to_bottom]
    maps = self.network["tower"](image)
    return {"maps": maps, "status": tf.concat(status, axis=-1), "sign": sign}

  @tf.autograph.experimental.do_not_convert
  def q_func(self, state: Any, action: Any, mode: str) -> dict[str, tf.Tensor]:
    """Returns `q_predicted`, a probability [B, 1]."""
    del mode
    meant = as_meant(action, state["sign"])
    logits = self.network["head"]((state["maps"], state["status"], meant))
    return {"q_predicted": tf.sigmoid(logits)}

  @tf.autograph.experimental.do_not_convert
  def loss_fn(
    self, features: Any, labels: Any, inference_outputs: dict[str, tf.Tensor]
  ) -> tf.Tensor:
    """Returns the error of the values, and doubts of actions that nobody took."""
    loss = super().loss_fn(features, labels, inference_outputs)
    mode = specs.ModeKeys.TRAIN
    state, count = self.state_func(features.state, mode), tf.shape(labels.reward)[0]
    action = specs.TensorSpecStruct(
      (name, tf.random.uniform([count, size], -1.0, 1.0))
      for name, size in qtopt_models.ACTION.items()
    )
    limit = grasp_env.MAX_STEP.astype(np.float32)
    action["world_vector"] = limit * action["world_vector"]
    values = self.q_func(state, action, mode)["q_predicted"]
    failed = self._loss_function(tf.zeros_like(values), values)
    return loss + self._doubt * tf.reduce_mean(failed)


@gin.configurable
class GraspQLearner(models.BellmanTargets, GraspCritic):
  """The same critic, learned off-policy: QT-Opt."""


def as_meant(action: Any, sign: tf.Tensor) -> dict[str, tf.Tensor]:
  """Returns what the gripper makes of an action, [B, ...] by part.

  Where the sign [B, 1] is -1, left and right are exchanged: fingers do not care.

  A command is given or not, and a gripper that ends the episode does not move: so the
  critic need not learn that these are the same.
  """
  meant = {
    name: tf.cast(getattr(action, name) > 0.5, tf.float32)
    for name in qtopt_models.COMMANDS
  }
  goes_on = 1.0 - meant["terminate_episode"]
  to = tf.cast(action.world_vector, tf.float32)
  sine, cosine = tf.unstack(tf.cast(action.vertical_rotation, tf.float32), axis=-1)
  angle = tf.math.atan2(sine, cosine)[:, tf.newaxis] * goes_on * sign
  either = meant["close_gripper"] * meant["open_gripper"]
  return {
    "world_vector": tf.concat([sign * to[:, :1], to[:, 1:]], axis=1) * goes_on,
    "angle": angle,
    "close_gripper": (meant["close_gripper"] - either) * goes_on,
    "open_gripper": (meant["open_gripper"] - either) * goes_on,
    "terminate_episode": meant["terminate_episode"],
  }


# Where a head looks, in metres: a grid around where the gripper would come down, as
# long as it is with both fingers, and turned with it.
_GRID = np.stack(
  np.meshgrid(np.linspace(-0.06, 0.06, 7), np.linspace(-0.02, 0.02, 3)), axis=-1
).reshape(-1, 2)


class GraspHead(tf.keras.layers.Layer):
  """Values actions by what is seen where the gripper would be: logits [B, 1].

  Where that is follows from the displacement and the turn, by the camera's geometry;
  there the maps are read, between places.
  """

  def __init__(self, width: int, **kwargs: Any):
    """Creates the layer.

    Args:
      width: of the hidden layers.
      **kwargs: of the layer.
    """
    super().__init__(**{"name": "head", **kwargs})
    dense = tf.keras.layers.Dense
    self._hidden = [dense(width, "relu", name=f"dense{i}") for i in range(3)]
    # A first guess is that grasps fail: of what seems good all learn from each other.
    bias = tf.keras.initializers.Constant(-3.0)
    self._value = dense(1, bias_initializer=bias, name="logit")

  def call(
    self, inputs: tuple[tf.Tensor, tf.Tensor, Mapping[str, tf.Tensor]]
  ) -> tf.Tensor:
    """Maps (maps [B, h, w, C], status [B, 2], `as_meant` of actions) to logits."""
    maps, status, action = inputs
    to, angle = action["world_vector"], action["angle"]
    sine, cosine = tf.sin(angle), tf.cos(angle)
    x, y = _GRID.T.astype(np.float32)
    places = [to[:, :1] + cosine * x - sine * y, to[:, 1:2] + sine * x + cosine * y]
    pixels = grasp_env.to_pixels(*places, maps.shape[1:3])
    seen = layers.spatial_softmax.sample_maps(maps, *pixels)
    parts = [
      tf.reshape(seen, [-1, seen.shape[1] * seen.shape[2]]),
      status,
      to / grasp_env.MAX_STEP.astype(np.float32),
      status[:, 1:] + 10.0 * to[:, 2:],
      *(action[name] for name in qtopt_models.COMMANDS),
    ]
    values = tf.concat(parts, axis=-1)
    for layer in self._hidden:
      values = layer(values)
    return self._value(values)
