"""QT-Opt's critic at its size: Grasping44, which sees grasps from over the shoulder.

After Kalashnikov et al., "QT-Opt: Scalable Deep Reinforcement Learning for Vision-Based
Robotic Manipulation" (2018), and Tensor2Robot's graph of that name, layer for layer: an
image of 472x472 becomes 27x27x64 in the tower, which sees no action; the head adds the
action to each place of it. So many actions of one state cost one pass of the tower.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import models, preprocessors, specs

# What is stored, and what the network takes of it.
STORED_SIZE, IMAGE_SIZE = (512, 640), (472, 472)
STATUS = {"gripper_closed": 1, "height_to_bottom": 1}
COMMANDS = ("close_gripper", "open_gripper", "terminate_episode")
ACTION = {"world_vector": 3, "vertical_rotation": 2, **dict.fromkeys(COMMANDS, 1)}
_WIDTH = 64  # Of the layers.


@gin.configurable
class QTOptCritic(models.CriticModel):
  """Q(state, action): the probability of a grasp, or its Bellman target in [0, 1].

  Tensor2Robot's `Grasping44E2EOpenCloseTerminateGripperStatusHeightToBottom`. What the
  gripper is and where belongs to the state here, so that a search leaves it alone.

  Args:
    **kwargs: of `CriticModel`; the loss is `log_loss`, and averaged weights are what is
      evaluated and exported. With `action_batch_size` the export values so many actions
      in a state, which the tower sees once.
  """

  def __init__(self, **kwargs: Any):
    defaults = {
      "loss_function": models.losses.log_loss,
      "use_avg_model_params": True,
      "avg_model_params_decay": 0.9999,
    }
    super().__init__(**{**defaults, **kwargs})

  def get_state_specification(self) -> specs.TensorSpecStruct:
    """Returns the image, and what the gripper is and where."""
    image = specs.ExtendedTensorSpec(
      (*IMAGE_SIZE, 3), tf.float32, "image_1", data_format="jpeg"
    )
    return specs.TensorSpecStruct(image=image, **vectors(STATUS))

  def get_action_specification(self) -> specs.TensorSpecStruct:
    """Returns where the gripper goes, and the three commands."""
    return vectors(ACTION)

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
    make = Grasping44Layers()
    head = Grasping44Head(make, (*ACTION, *STATUS), name="head")
    return {"tower": make.tower(), "head": head}

  def state_func(self, state: Any, mode: str) -> dict[str, tf.Tensor]:
    """Encodes the image; the status of the gripper stays as it is."""
    maps = self.network["tower"](state.image, training=mode == specs.ModeKeys.TRAIN)
    return {"maps": maps, **{name: getattr(state, name) for name in STATUS}}

  def q_func(self, state: Any, action: Any, mode: str) -> dict[str, tf.Tensor]:
    """Returns `q_predicted`, a probability [B, 1], and its logit."""
    blocks = {name: getattr(action, name) for name in ACTION}
    blocks.update({name: state[name] for name in STATUS})
    is_training = mode == specs.ModeKeys.TRAIN
    logits = self.network["head"]((state["maps"], blocks), training=is_training)
    return {"q_predicted": tf.sigmoid(logits), "logits": logits}


def vectors(
  sizes: Mapping[str, int], prefix: str = "", time_offsets: int | None = None
) -> specs.TensorSpecStruct:
  """Returns specs of vectors by name, which are stored below a prefix."""
  make = functools.partial(specs.ExtendedTensorSpec, time_offsets=time_offsets)
  return specs.TensorSpecStruct(
    (name, make((size,), tf.float32, prefix + name)) for name, size in sizes.items()
  )


@gin.configurable
class Grasping44Layers:
  """Makes the layers of both parts, with what they have in common."""

  def __init__(
    self,
    batch_norm_momentum: float = 0.9997,
    batch_norm_epsilon: float = 1e-3,
    l2_regularization: float = 7e-5,
  ) -> None:
    """Creates the maker.

    Args:
      batch_norm_momentum: of the moving statistics.
      batch_norm_epsilon: added to variances.
      l2_regularization: the loss adds half of it times the squared kernels.
    """
    self._batch_norm = {"momentum": batch_norm_momentum, "epsilon": batch_norm_epsilon}
    self._l2 = l2_regularization

  def weighted(self, layer_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """A layer with a kernel."""
    initializer = tf.keras.initializers.TruncatedNormal(stddev=0.01)
    kwargs["kernel_regularizer"] = tf.keras.regularizers.L2(self._l2 / 2)
    return layer_cls(*args, kernel_initializer=initializer, **kwargs)

  def normed(self, name: str, scale: bool = True) -> list[Any]:
    """Batch normalisation and a ReLU."""
    norm = tf.keras.layers.BatchNormalization(
      scale=scale, name=f"{name}_norm", **self._batch_norm
    )
    return [norm, tf.keras.layers.ReLU(name=f"{name}_relu")]

  def convs(self, numbers: range, size: int, padding: str = "same") -> list[Any]:
    """Convolutions of stride 1, normalised."""
    cls, options = tf.keras.layers.Conv2D, {"padding": padding, "use_bias": False}
    parts = []
    for name in (f"conv{number}" for number in numbers):
      parts.append(self.weighted(cls, _WIDTH, size, name=name, **options))
      parts += self.normed(name)
    return parts

  def dense(self, name: str) -> list[Any]:
    """A dense layer, normalised."""
    cls = tf.keras.layers.Dense
    return [self.weighted(cls, _WIDTH, use_bias=False, name=name), *self.normed(name)]

  def tower(self) -> Any:
    """Returns what maps images [B, 472, 472, 3] in [0, 1] to maps [B, 27, 27, 64]."""
    options = {"strides": 2, "padding": "same", "name": "conv1"}
    first = self.weighted(tf.keras.layers.Conv2D, _WIDTH, 6, **options)
    parts = [first, *self.normed("conv1", scale=False), _pool("pool1", 3)]
    parts += [*self.convs(range(2, 8), 5), _pool("pool2", 3)]
    return tf.keras.Sequential(parts, name="tower")


class Grasping44Head(tf.keras.layers.Layer):
  """Values actions where the tower's maps are there: logits [B, 1]."""

  def __init__(self, make: Grasping44Layers, blocks: tuple[str, ...], **kwargs: Any):
    """Creates the layer.

    Args:
      make: makes its layers.
      blocks: names of the parts of an action, each with weights of its own.
      **kwargs: of the layer.
    """
    super().__init__(**kwargs)
    dense = functools.partial(make.weighted, tf.keras.layers.Dense)
    self._embeddings = {name: dense(256, name=f"embed_{name}") for name in blocks}
    self._embedding_layers = list(self._embeddings.values())  # What Keras tracks.
    self._context = tf.keras.Sequential(
      [*make.normed("context1", scale=False), *make.dense("context2")], name="context"
    )
    parts = [*make.convs(range(8, 14), 3), _pool("pool3", 2)]
    parts += make.convs(range(14, 17), 3, "valid")
    parts.append(tf.keras.layers.Flatten(name="flatten"))
    parts += [*make.dense("dense0"), *make.dense("dense1"), dense(1, name="logit")]
    self._value = tf.keras.Sequential(parts, name="value")

  def call(
    self, inputs: tuple[tf.Tensor, Mapping[str, tf.Tensor]], training: bool = False
  ) -> tf.Tensor:
    """Maps (maps [B, 27, 27, 64], blocks [B, n] by name) to logits [B, 1]."""
    maps, blocks = inputs
    embedded = [layer(blocks[name]) for name, layer in self._embeddings.items()]
    context = self._context(tf.add_n(embedded), training=training)
    maps = maps + context[:, tf.newaxis, tf.newaxis, :]
    return self._value(maps, training=training)


def _pool(name: str, size: int) -> Any:
  return tf.keras.layers.MaxPool2D(size, strides=size, padding="same", name=name)
