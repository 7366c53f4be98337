"""Grasp2Vec: what was lifted is what the scene lost.

Jang, Devin, Vanhoucke and Levine, "Grasp2Vec: Learning Object Representations from
Self-Supervised Grasping" (https://arxiv.org/abs/1811.06964), with the names of
Tensor2Robot. Nothing but grasps is needed: no labels of objects, no places.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gin
import tensorflow as tf

from research.grasp2vec import losses
from t2r_seq import layers, models, preprocessors, specs
from t2r_seq.models import summaries
from t2r_seq.preprocessors.augmentations import ImageTransform

_SCENES = ("pregrasp_image", "postgrasp_image")
# In records of single grasps, as Tensor2Robot has them; and in episodes: the column and
# the step, from when the grasp is over.
IMAGES = {
  "pregrasp_image": ("image", "state/scene", -1),
  "postgrasp_image": ("postgrasp_image", "state/scene", 0),
  "goal_image": ("present_image", "state/held", 0),
}
Crop = Sequence[int]


@gin.configurable
class Grasp2VecPreprocessor(preprocessors.ComposedPreprocessor):
  """Crops and flips images in training, and makes floats of them.

  The scenes before and after get the same crop and flips, the goal its own.

  Args:
    model_feature_specification_fn: takes a mode, returns the model's feature specs.
    model_label_specification_fn: takes a mode, returns the model's label specs.
    scene_crop: least and most rows to cut off at the top, rows to keep, and the same of
      columns; in the middle when not training. None keeps all.
    goal_crop: the same of the goal.
    stored_size: height and width of stored images that are cropped.
  """

  def __init__(
    self,
    model_feature_specification_fn: Callable[..., Any] | None = None,
    model_label_specification_fn: Callable[..., Any] | None = None,
    scene_crop: Crop | None = (0, 40, 472, 0, 168, 472),
    goal_crop: Crop | None = (0, 40, 472, 0, 168, 472),
    stored_size: tuple[int, int] = (512, 640),
  ) -> None:
    make = preprocessors.AugmentationPreprocessor
    parts = ((_SCENES, scene_crop), (("goal_image",), goal_crop))
    super().__init__(
      model_feature_specification_fn,
      model_label_specification_fn,
      [
        functools.partial(
          make,
          transforms=[*_crop(crop), preprocessors.RandomFlip(up_down=True)],
          input_size=stored_size if crop else None,
          image_paths=paths,
          share_cameras=True,
          seed=seed,
        )
        for seed, (paths, crop) in enumerate(parts)
      ],
    )


def _crop(crop: Crop | None) -> list[ImageTransform]:
  if crop is None:
    return []
  top, most_top, height, left, most_left, width = crop
  reached = (most_top - top + height, most_left - left + width)
  return [
    preprocessors.CustomCrop((top, left), reached),
    preprocessors.RandomCrop((height, width)),
  ]


@gin.configurable
def grasp2vec_conv_tower(filters: Sequence[int] = (16, 24, 32, 48)) -> Any:
  """Makes some convolutions: [B, H, W, 3] to maps [B, H / 4, W / 4, D], not negative.

  Args:
    filters: of each; those of the last one are the size of the embedding.
  """
  keras = tf.keras.layers
  net = [keras.Rescaling(2.0, offset=-1.0)]
  for index, width in enumerate(filters):
    # Of even size where they halve: the middle of a cell is that of what it sees.
    size, strides = (4, 2) if index < 2 else (3, 1)
    net.append(keras.Conv2D(width, size, strides, "same", use_bias=False))
    # Without, what all scenes have in common drowns what tells them apart.
    net += [keras.BatchNormalization(momentum=0.95), keras.ReLU()]
  return tf.keras.Sequential(net)


@gin.configurable
def grasp2vec_resnet_tower(resnet_size: int = 50, num_filters: int = 64) -> Any:
  """Makes a ResNet without its last block layer: maps [B, H / 16, W / 16, D].

  Args:
    resnet_size: 50 in the paper.
    num_filters: of the first block layer.
  """
  resnet = layers.ResNet(None, resnet_size, 2, num_filters, num_block_layers=3)
  last = tf.keras.layers.Lambda(lambda end_points: end_points["pre_final_pool"])
  return tf.keras.Sequential([resnet, last], name="tower")


def heatmaps(feature_query: tf.Tensor, feature_map: tf.Tensor) -> tf.Tensor:
  """Returns where in maps [B, h, w, D] queries [B, D] are: [B, h, w, 1]."""
  return tf.einsum("bhwd,bd->bhw", feature_map, feature_query)[..., tf.newaxis]


def peaks(heat: Any, around: int = 3) -> tf.Tensor:
  """Returns where maps [B, h, w, 1] are hottest: [B, 2], column and row, 0 to 1.

  Args:
    heat: float.
    around: cells a side that are averaged: all of an object is warm, often its rim
      most; its middle is where most of it is around.
  """
  height, width = heat.shape[1:3]
  heat = tf.nn.avg_pool2d(heat, around, 1, "SAME")
  peak = tf.argmax(tf.reshape(heat, [-1, height * width]), axis=1)
  cell = tf.cast(tf.stack([peak % width, peak // width], axis=1), tf.float32)
  return (cell + 0.5) / tf.constant([width, height], tf.float32)


@gin.configurable
class Grasp2VecModel(models.T2RModel):
  """Embeds scenes and goals so that scene before - scene after = goal.

  An embedding is the mean of maps, so that a goal's product with the maps of a scene
  says where the goal is. The export gives `pre_vector`, `post_vector`, `goal_vector`
  [D], where the goal was before, `heatmap` [h, w, 1], and its peak, `location` [2]:
  column and row, from 0 to 1. Of episodes it remembers the scene before by itself.

  Args:
    scene_size: height and width of the pictures of scenes.
    goal_size: of those of goals.
    embedding_loss_fn: of the embeddings before, of the goal, and after, and of `mask`
      where it is known which grasps succeeded; see `losses`.
    create_tower: makes one of the two towers.
    from_episodes: learns from stored episodes, a grasp each (`outcome_env`), with their
      `reward`; otherwise from Tensor2Robot's records, successful grasps without labels.
    **kwargs: of `T2RModel`.
  """

  def __init__(
    self,
    scene_size: tuple[int, int] = (472, 472),
    goal_size: tuple[int, int] = (472, 472),
    embedding_loss_fn: Callable[..., Any] = losses.NPairsLoss,
    create_tower: Callable[[], Any] = grasp2vec_resnet_tower,
    from_episodes: bool = False,
    **kwargs: Any,
  ) -> None:
    self._sizes = {name: tuple(scene_size) for name in _SCENES}
    self._sizes["goal_image"] = tuple(goal_size)
    self._embedding_loss_fn, self._create_tower = embedding_loss_fn, create_tower
    self._from_episodes = from_episodes
    super().__init__(**{"padding": "drop", **kwargs})

  @property
  def default_preprocessor_cls(self) -> Any:
    """Crops, flips, floats."""
    return Grasp2VecPreprocessor

  def get_feature_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns both scenes and the goal, in every mode."""
    del mode
    found = specs.TensorSpecStruct()
    for path, size in self._sizes.items():
      record_name, column, offset = IMAGES[path]
      told = {"name": record_name, "data_format": "jpeg"}
      if self._from_episodes:
        told = {"name": column, "time_offsets": offset}
      found[path] = specs.ExtendedTensorSpec((*size, 3), tf.float32, **told)
    return found

  def get_label_specification(self, mode: str) -> specs.TensorSpecStruct:
    """Returns whether anything was lifted, where episodes say so."""
    del mode
    labels = specs.TensorSpecStruct()
    if self._from_episodes:
      labels["grasp_success"] = specs.ExtendedTensorSpec(
        (1,), tf.float32, "reward", time_offsets=-1
      )
    return labels

  def create_network(self) -> dict[str, Any]:
    """Creates a tower for scenes and one for goals."""
    return {"scene": self._create_tower(), "goal": self._create_tower()}

  @tf.autograph.experimental.do_not_convert
  def inference_network_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct | None,
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Returns vectors [B, D] and maps [B, h, w, D] of 'pre', 'post' and 'goal'."""
    del labels
    training = mode == specs.ModeKeys.TRAIN
    # Both scenes at once: what normalises a batch sees the two alike.
    scenes = tf.concat([features[path] for path in _SCENES], axis=0)
    pre, post = tf.split(self.network["scene"](scenes, training=training), 2)
    goal = self.network["goal"](features["goal_image"], training=training)
    outputs = {}
    for name, maps in (("pre", pre), ("post", post), ("goal", goal)):
      outputs[f"{name}_spatial"] = maps
      outputs[f"{name}_vector"] = tf.reduce_mean(maps, axis=[1, 2])
    return outputs

  def create_export_outputs_fn(
    self,
    features: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """Returns the embeddings, and where the goal was."""
    del features, mode
    predicted = {
      n: value for n, value in inference_outputs.items() if n.endswith("_vector")
    }
    heat = heatmaps(predicted["goal_vector"], inference_outputs["pre_spatial"])
    return {**predicted, "heatmap": heat, "location": peaks(heat)}

  def model_train_fn(
    self,
    features: specs.TensorSpecStruct,
    labels: specs.TensorSpecStruct,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Returns the loss, and how often a goal finds its grasp in the batch."""
    del mode
    pre, goal, post = [
      inference_outputs[f"{name}_vector"] for name in ("pre", "goal", "post")
    ]
    counts = {}
    if self._from_episodes:
      counts["mask"] = labels["grasp_success"][:, 0] > 0.5
    loss = self._embedding_loss_fn(pre, goal, post, **counts)
    loss = loss[0] if isinstance(loss, tuple) else loss
    heat = heatmaps(goal, inference_outputs["pre_spatial"])
    summaries.image("pregrasp", features["pregrasp_image"])
    summaries.image("goal", features["goal_image"])
    summaries.image("heatmap", heat / (tf.reduce_max(heat) + 1e-6))
    accuracy = layers.losses.retrieval_accuracy(goal, pre - post, **counts)
    return loss, {"retrieval_accuracy": accuracy}
