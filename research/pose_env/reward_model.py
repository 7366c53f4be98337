"""The pose model that nobody tells the right answer: it learns from rewards alone.

A step of online data says what was seen, which pose was answered, and the reward, which
is minus the distance to a target that stays unknown. So the action-value has a known
shape, Q(s, a) = -|a - f(s)|, and what is left to learn is its peak f(s), which is the
greedy action at the same time. (As in Gu et al., "Continuous Deep Q-Learning with
Model-based Acceleration", 2016: an advantage whose maximum is known needs no search.)
Each step says that the target lies on a circle around its action; the many actions of
exploration, on views that resemble each other, leave one place where they all meet.
The fit doesn't ask which policy chose the actions, so old data in replay stays good.
"""

from __future__ import annotations

import functools
from typing import Any

import gin
import tensorflow as tf

from research.pose_env import pose_env_models
from t2r_seq import preprocessors, specs

_IMAGE = "state/image"
# The norm has no gradient at 0, where a fresh network may well start.
_EPSILON = 1e-6


@gin.configurable
class PoseEnvRewardModel(pose_env_models.PoseEnvRegressionModel):
  """Finds the pose of highest reward from poses that were tried.

  Args:
    num_frames: how many frames the model sees, >= 1.
    **kwargs: of `RegressionModel`.
  """

  def __init__(self, num_frames: int = 4, **kwargs: Any):
    super().__init__(num_frames=num_frames, **kwargs)
    self._num_frames: int = num_frames

  @property
  def default_preprocessor_cls(self) -> Any:
    """Images are stored as bytes, and taken as floats in [0, 1]."""
    return functools.partial(
      preprocessors.ImageToFloatPreprocessor, image_paths=[_IMAGE]
    )

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns the stack of frames, in every mode."""
    del mode
    # Stored as pixels: a step is sampled many times, and would be decoded as often.
    return pose_env_models.image_specification(
      self._num_frames, tf.float32, data_format=None
    )

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns `pose`, the action that was taken, and its `reward`, in every mode."""
    del mode
    return specs.TensorSpecStruct(
      pose=specs.ExtendedTensorSpec((2,), tf.float32, name="pose", time_offsets=0),
      reward=specs.ExtendedTensorSpec((1,), tf.float32, name="reward", time_offsets=0),
    )

  def loss_fn(
    self,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the mean squared error of the predicted reward."""
    del mode
    return tf.reduce_mean(tf.square(_reward_errors(labels, inference_outputs)))

  def model_train_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the loss, and the mean error of the predicted reward, in metres."""
    del features
    error = tf.reduce_mean(tf.abs(_reward_errors(labels, inference_outputs)))
    return self.loss_fn(labels, inference_outputs, mode), {"reward_error": error}


def _reward_errors(
  labels: specs.TensorSpecStruct, inference_outputs: dict[str, tf.Tensor]
) -> tf.Tensor:
  """Returns what was predicted of the rewards minus what they were: [B, 1]."""
  difference = inference_outputs["inference_output"] - labels["pose"]
  squared = tf.reduce_sum(tf.square(difference), axis=-1, keepdims=True)
  return -tf.sqrt(squared + _EPSILON) - labels["reward"]
