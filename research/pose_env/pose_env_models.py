"""What the pose models read and predict, declared once.

Records keep the names of Tensor2Robot's pose environment: `state/image`, `pose` (the
action that was taken), `target_pose` (the right one) and `reward`. The parser, the
frame stacks, the collection's file format, the export's signature and the policy's
history all follow from these specs.
"""

from __future__ import annotations

import functools
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import layers, models, preprocessors, specs, windows
from t2r_seq.layers.vision_layers import MLP

_IMAGE_SHAPE = (64, 64, 3)


def image_specification(
  num_frames: int | None,
  dtype: tf.DType = tf.uint8,
  data_format: str | None = "jpeg",
) -> specs.TensorSpecStruct:
  """Returns the specs of what a pose model sees.

  Args:
    num_frames: K >= 1 looks at the last K frames of an episode, [K, 64, 64, 3]; None
      at the one image of a record that is no episode, [64, 64, 3].
    dtype: uint8 as stored, float32 as the network takes it.
    data_format: how frames are encoded where they are stored; None: they are not.
  """
  offsets = None if num_frames is None else tuple(range(1 - num_frames, 1))
  stack = () if num_frames is None else (num_frames,)
  image = specs.ExtendedTensorSpec(
    stack + _IMAGE_SHAPE,
    dtype,
    name="state/image",
    data_format=data_format,
    time_offsets=offsets,
  )
  return specs.TensorSpecStruct({"state/image": image})


def label_specification(is_windowed: bool) -> specs.TensorSpecStruct:
  """Returns the specs of the right action, and of the reward of the one taken.

  Args:
    is_windowed: whether records are episodes, so that the labels are the anchor's own.
  """
  offsets = 0 if is_windowed else None
  return specs.TensorSpecStruct(
    target_pose=specs.ExtendedTensorSpec(
      (2,), tf.float32, name="target_pose", time_offsets=offsets
    ),
    reward=specs.ExtendedTensorSpec(
      (1,), tf.float32, name="reward", time_offsets=offsets
    ),
  )


@gin.configurable
def episode_specification() -> specs.TensorSpecStruct:
  """Returns what the record of an episode holds: every step once."""
  flat = windows.flat_specs(image_specification(num_frames=1))
  flat["pose"] = specs.ExtendedTensorSpec(
    (2,), tf.float32, name="pose", is_sequence=True
  )
  for path, spec in windows.flat_specs(label_specification(is_windowed=True)).items():
    flat[path] = spec
  return flat


class PoseTower(tf.keras.layers.Layer):
  """Maps a stack of frames to keypoints.

  The frames stand beside each other as channels, so a stack of 4 costs little more
  than a stack of 1, and the first convolution can already see motion.
  """

  def __init__(self) -> None:
    super().__init__(name="tower")
    convolution = functools.partial(tf.keras.layers.Conv2D, padding="same")
    self._convolutions = [
      convolution(16, 5, 2, activation="relu"),
      convolution(24, 3, 2, activation="relu"),
      convolution(32, 3),
    ]
    # With a temperature of 1 the softmax of a fresh network is nearly flat: all
    # keypoints lie in the middle, and some seeds never leave that plateau.
    self._keypoints = layers.SpatialSoftmax(temperature=0.1, learn_temperature=True)

  def call(self, frames: tf.Tensor) -> tf.Tensor:
    """Maps frames [B, K, H, W, C] or [B, H, W, C] in [0, 1] to [B, keypoints]."""
    net = frames - 0.5  # Centred inputs train faster.
    if len(frames.shape) == 5:
      _, num_frames, height, width, channels = net.shape
      net = tf.transpose(net, [0, 2, 3, 1, 4])
      net = tf.reshape(net, [-1, height, width, num_frames * channels])
    for convolution in self._convolutions:
      net = convolution(net)
    points, _ = self._keypoints(net)
    return points


def create_head(output_size: int) -> MLP:
  """Creates what maps [B, N] to [B, output_size]."""
  return MLP((128, 128), output_size, normalizer=None, name="head")


@gin.configurable
class PoseEnvRegressionModel(models.RegressionModel):
  """Predicts the target pose from the last frames.

  Args:
    num_frames: how many frames the model sees; None for records that are single
      images (Tensor2Robot's own test data) instead of episodes.
    **kwargs: of `RegressionModel`.
  """

  def __init__(self, num_frames: int | None = 1, **kwargs: Any):
    if num_frames is not None and num_frames < 1:
      raise ValueError(
        f"PoseEnvRegressionModel: num_frames: expected >= 1 or None, got {num_frames}."
      )
    self._num_frames = num_frames
    super().__init__(action_size=2, **kwargs)

  @property
  def default_preprocessor_cls(self) -> Any:
    """Images are stored as bytes, and taken as floats in [0, 1]."""
    return preprocessors.ImageToFloatPreprocessor

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the stack of frames, in every mode."""
    del mode
    return image_specification(self._num_frames, tf.float32)

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns `target_pose` and `reward`, in every mode."""
    del mode
    return label_specification(is_windowed=self._num_frames is not None)

  def create_network(self) -> tf.keras.Sequential:
    """Creates the convolutional network."""
    return tf.keras.Sequential([PoseTower(), create_head(2)])

  # There is no control flow for AutoGraph, and with Keras it would convert much.
  @tf.autograph.experimental.do_not_convert
  def a_func(self, features: specs.TensorSpecStruct, mode: str) -> dict[str, tf.Tensor]:
    """Predicts the action [B, 2]."""
    training = mode == specs.ModeKeys.TRAIN
    action = self.network(features["state/image"], training=training)
    return {"inference_output": action}

  def loss_fn(
    self,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the mean squared error of the predicted pose."""
    del mode
    difference = inference_outputs["inference_output"] - labels["target_pose"]
    return tf.reduce_mean(tf.square(difference))

  def model_train_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the loss, and the mean distance in metres: minus the reward."""
    loss = super().model_train_fn(features, labels, inference_outputs, mode)
    difference = inference_outputs["inference_output"] - labels["target_pose"]
    return loss, {"distance": tf.reduce_mean(tf.norm(difference, axis=-1))}


@gin.configurable
class PoseEnvChunkModel(PoseEnvRegressionModel):
  """Predicts the target poses of this step and of those after it, a chunk.

  Args:
    num_frames: how many frames the model sees.
    num_actions: n, steps of a chunk.
    **kwargs: of `RegressionModel`.
  """

  def __init__(self, num_frames: int = 4, num_actions: int = 8, **kwargs: Any):
    self._num_actions = num_actions
    super().__init__(num_frames, padding="repeat", **kwargs)

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns `target_pose` [n, 2], its mask, and `reward`, in every mode."""
    labels = super().get_label_specification(mode)
    labels["target_pose"] = specs.ExtendedTensorSpec(
      (self._num_actions, 2),
      tf.float32,
      name="target_pose",
      time_offsets=tuple(range(self._num_actions)),
    )
    return windows.add_mask_specs(labels, ["target_pose"])

  def create_network(self) -> tf.keras.Sequential:
    """Creates the convolutional network, with more to say."""
    return tf.keras.Sequential([PoseTower(), create_head(2 * self._num_actions)])

  @tf.autograph.experimental.do_not_convert
  def a_func(self, features: specs.TensorSpecStruct, mode: str) -> dict[str, tf.Tensor]:
    """Predicts the actions [B, n, 2]."""
    predicted = super().a_func(features, mode)["inference_output"]
    return {"inference_output": tf.reshape(predicted, [-1, self._num_actions, 2])}

  def loss_fn(
    self,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the mean squared error of the poses that episodes have."""
    del mode
    difference = inference_outputs["inference_output"] - labels["target_pose"]
    error = tf.reduce_mean(tf.square(difference), axis=-1)
    return layers.masked_mean(error, labels["target_pose_mask"])

  def model_train_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the loss, and the mean distance in metres."""
    del features
    difference = inference_outputs["inference_output"] - labels["target_pose"]
    distance = tf.norm(difference, axis=-1)
    mask = labels["target_pose_mask"]
    loss = self.loss_fn(labels, inference_outputs, mode)
    return loss, {"distance": layers.masked_mean(distance, mask)}


@gin.configurable
class PoseEnvContinuousMCModel(models.CriticModel):
  """Values a pose as the answer to what is seen, fitted to the reward that it got.

  Episodes have one step, so the reward is the Monte-Carlo return. With a `search` the
  export answers with the best pose that it finds.

  Args:
    num_frames: how many frames the model sees; None for records that are single
      images, as of `PoseEnvRegressionModel`.
    **kwargs: of `CriticModel`.
  """

  def __init__(self, num_frames: int | None = 1, **kwargs: Any):
    self._num_frames = num_frames
    super().__init__(**kwargs)

  @property
  def default_preprocessor_cls(self) -> Any:
    """Images are stored as bytes, and taken as floats in [0, 1]."""
    return preprocessors.ImageToFloatPreprocessor

  def get_state_specification(self) -> specs.TensorSpecStruct:
    """Returns the frames."""
    image = image_specification(self._num_frames, tf.float32)["state/image"]
    return specs.TensorSpecStruct(image=image)

  def get_action_specification(self) -> specs.TensorSpecStruct:
    """Returns `pose`, the action that was taken."""
    offsets = None if self._num_frames is None else 0
    pose = specs.ExtendedTensorSpec((2,), tf.float32, name="pose", time_offsets=offsets)
    return specs.TensorSpecStruct(pose=pose)

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns `reward`, in every mode."""
    del mode
    is_windowed = self._num_frames is not None
    return specs.TensorSpecStruct(reward=label_specification(is_windowed).reward)

  def create_network(self) -> dict[str, Any]:
    """Returns the tower, which sees the frame once, and the head, which sees poses."""
    return {"tower": PoseTower(), "head": create_head(1)}

  def state_func(self, state: Any, mode: str) -> tf.Tensor:
    """Encodes the frame."""
    del mode
    return self.network["tower"](state.image)

  def q_func(self, state: Any, action: Any, mode: str) -> dict[str, tf.Tensor]:
    """Returns `q_predicted` [B, 1]."""
    del mode
    inputs = tf.concat([state, action.pose], axis=-1)
    return {"q_predicted": self.network["head"](inputs)}
