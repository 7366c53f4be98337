"""The critic of QT-Opt for grasping with a gripper that opens, closes and gives up."""

from __future__ import annotations

import functools
from typing import Any

import gin
import tensorflow as tf

from research.qtopt import networks
from t2r_seq import models, preprocessors, specs

# What is stored, and what the network takes of it.
STORED_SIZE, IMAGE_SIZE = (512, 640), (472, 472)
_STATUS = {"gripper_closed": 1, "height_to_bottom": 1}
_ACTION = {
  "world_vector": 3,
  "vertical_rotation": 2,
  "close_gripper": 1,
  "open_gripper": 1,
  "terminate_episode": 1,
}


@gin.configurable
class QTOptCritic(models.CriticModel):
  """Q(state, action): the probability of a grasp, or its Bellman target in [0, 1].

  Tensor2Robot's `Grasping44E2EOpenCloseTerminateGripperStatusHeightToBottom`. What the
  gripper is and where belongs to the state here, so that a search leaves it alone.

  Args:
    loss_function: errors of values.
    use_avg_model_params: evaluates and exports averaged weights.
    avg_model_params_decay: of the averages.
    **kwargs: of `CriticModel`; with `action_batch_size` the export values so many
      actions in a state, which the tower sees once.
  """

  def __init__(
    self,
    loss_function: Any = models.log_loss,
    use_avg_model_params: bool = True,
    avg_model_params_decay: float = 0.9999,
    **kwargs: Any,
  ):
    super().__init__(
      loss_function=loss_function,
      use_avg_model_params=use_avg_model_params,
      avg_model_params_decay=avg_model_params_decay,
      **kwargs,
    )

  def get_state_specification(self) -> specs.TensorSpecStruct:
    """Returns the image, and what the gripper is and where."""
    image = specs.ExtendedTensorSpec(
      (*IMAGE_SIZE, 3), tf.float32, "image_1", data_format="jpeg"
    )
    return specs.TensorSpecStruct(image=image, **_vectors(_STATUS))

  def get_action_specification(self) -> specs.TensorSpecStruct:
    """Returns where the gripper goes, and the three commands."""
    return specs.TensorSpecStruct(**_vectors(_ACTION))

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns `reward`, in every mode."""
    del mode
    reward = specs.ExtendedTensorSpec((1,), tf.float32, "grasp_success")
    return specs.TensorSpecStruct(reward=reward)

  @property
  def default_preprocessor_cls(self) -> Any:
    """Crops, by chance in training, and distorts colours as gin configures it."""
    return functools.partial(
      preprocessors.AugmentationPreprocessor,
      transforms=(preprocessors.RandomCrop(IMAGE_SIZE), preprocessors.ColorJitter()),
      input_size=STORED_SIZE,
    )

  def create_network(self) -> dict[str, Any]:
    """Returns the tower, which sees the image, and the head, which sees actions."""
    make = networks.Grasping44Layers()
    head = networks.Grasping44Head(make, (*_ACTION, *_STATUS), name="head")
    return {"tower": make.tower(), "head": head}

  def state_func(self, state: Any, mode: str) -> dict[str, tf.Tensor]:
    """Encodes the image; the status of the gripper stays as it is."""
    maps = self.network["tower"](state.image, training=mode == specs.ModeKeys.TRAIN)
    return {"maps": maps, **{name: getattr(state, name) for name in _STATUS}}

  def q_func(self, state: Any, action: Any, mode: str) -> dict[str, tf.Tensor]:
    """Returns `q_predicted`, a probability [B, 1], and its logit."""
    blocks = {name: getattr(action, name) for name in _ACTION}
    blocks.update({name: state[name] for name in _STATUS})
    is_training = mode == specs.ModeKeys.TRAIN
    logits = self.network["head"]((state["maps"], blocks), training=is_training)
    return {"q_predicted": tf.sigmoid(logits), "logits": logits}


def _vectors(sizes: dict[str, int]) -> dict[str, specs.ExtendedTensorSpec]:
  make = specs.ExtendedTensorSpec
  return {name: make((size,), tf.float32, name) for name, size in sizes.items()}
