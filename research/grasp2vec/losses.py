"""Losses of embeddings that add up: scene before - scene after = goal.

They have the names and arguments of Tensor2Robot's. Embeddings are [B, D]; a mask [B]
says which grasps lifted anything, and thus which examples count.
"""

from __future__ import annotations

from typing import Any

import gin
import tensorflow as tf

from t2r_seq import layers
from t2r_seq.layers.losses import cosine_triplet_semihard_loss, n_pairs_loss

_QUADRANTS = ((0.5, -0.5), (-0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))


@gin.configurable
def L2ArithmeticLoss(
  pregrasp_embedding: Any, goal_embedding: Any, postgrasp_embedding: Any, mask: Any
) -> tf.Tensor:
  """Returns the mean squared distance of pregrasp - postgrasp from the goal; 0 of none.

  Without other losses the best embedding of all is 0.
  """
  removed, goal = _pairs(pregrasp_embedding, goal_embedding, postgrasp_embedding)
  squared = tf.reduce_sum(tf.math.squared_difference(removed, goal), axis=1)
  return layers.masked_mean(squared, _as_bool(mask))


@gin.configurable
def CosineArithmeticLoss(
  pregrasp_embedding: Any, goal_embedding: Any, postgrasp_embedding: Any, mask: Any
) -> tf.Tensor:
  """Returns the mean cosine distance of pregrasp - postgrasp from the goal, or 0."""
  removed, goal = _pairs(pregrasp_embedding, goal_embedding, postgrasp_embedding)
  cosine = tf.reduce_sum(_normalized(removed) * _normalized(goal), axis=1)
  return layers.masked_mean(1.0 - cosine, _as_bool(mask))


@gin.configurable
def TripletLoss(
  pregrasp_embedding: Any,
  goal_embedding: Any,
  postgrasp_embedding: Any,
  mask: Any = None,
  margin: float = 3.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Triplets of squared distances between unit vectors, with semi-hard negatives.

  Args:
    pregrasp_embedding: of the scene before.
    goal_embedding: of what was lifted.
    postgrasp_embedding: of the scene after.
    mask: which examples count; None for all.
    margin: by which others are to be farther away; squared distances end at 4.
  Returns:
    (the loss, a scalar; the 2 B unit vectors, differences before goals; the number of
    each one's example, -1 of those that do not count).
  """
  removed, goal = _pairs(pregrasp_embedding, goal_embedding, postgrasp_embedding)
  vectors = _normalized(tf.concat([removed, goal], axis=0))
  labels = tf.range(tf.shape(goal)[0])
  if mask is not None:
    labels = tf.where(_as_bool(mask), labels, -1)
  labels = tf.tile(labels, [2])
  # Between unit vectors a squared distance is two cosine distances.
  loss = cosine_triplet_semihard_loss(labels, vectors, margin / 2, labels >= 0)
  return 2.0 * loss, vectors, labels


@gin.configurable
def NPairsLoss(
  pregrasp_embedding: Any,
  goal_embedding: Any,
  postgrasp_embedding: Any,
  non_negativity_constraint: bool = False,
  mask: Any = None,
) -> tf.Tensor:
  """Tells each goal's difference from those of the batch: `layers.losses.n_pairs_loss`.

  Args:
    pregrasp_embedding: of the scene before.
    goal_embedding: of what was lifted.
    postgrasp_embedding: of the scene after.
    non_negativity_constraint: cuts the difference off at 0: what is in the scene after
      alone was not lifted, but fell in.
    mask: which examples count, also as others; None for all.
  Returns:
    A scalar.
  """
  removed, goal = _pairs(pregrasp_embedding, goal_embedding, postgrasp_embedding)
  if non_negativity_constraint:
    removed = tf.nn.relu(removed)
  return n_pairs_loss(removed, goal, mask=_as_bool(mask))


@gin.configurable
def NPairsLossMultilabel(
  pregrasp_embedding: Any,
  goal_embedding: Any,
  postgrasp_embedding: Any,
  mask: Any,
  params: Any = None,
) -> tf.Tensor:
  """The same, in which all grasps that lifted nothing are of one kind: nothing.

  In Tensor2Robot the first grasp is always one of them.
  """
  del params
  removed, goal = _pairs(pregrasp_embedding, goal_embedding, postgrasp_embedding)
  count = tf.shape(goal)[0]
  kinds = tf.where(_as_bool(mask), tf.range(count), count)
  return n_pairs_loss(removed, goal, kinds)


@gin.configurable
def SendToZeroLoss(tensor: Any, mask: Any) -> tf.Tensor:
  """Returns the mean norm of vectors [B, D]; 0 of none."""
  return layers.masked_mean(tf.norm(_as_float(tensor), axis=1), _as_bool(mask))


@gin.configurable
def MatchNormsLoss(anchor_tensors: Any, paired_tensors: Any) -> tf.Tensor:
  """Returns half the sum of squares by which norms differ; anchors get no gradient."""
  wanted = tf.stop_gradient(tf.norm(_as_float(anchor_tensors), axis=1))
  return tf.nn.l2_loss(wanted - tf.norm(_as_float(paired_tensors), axis=1))


@gin.configurable
def TYloss(
  pregrasp_spatial: Any, postgrasp_spatial: Any, goal_embedding: Any
) -> tf.Tensor:
  """Has the goal found more surely in the maps before, [B, h, w, D], than after."""
  goal = _normalized(_as_float(goal_embedding))
  before, after = [
    tf.reduce_max(
      tf.einsum("bhwd,bd->bhw", _normalized(_as_float(maps)), goal), axis=[1, 2]
    )
    for maps in (pregrasp_spatial, postgrasp_spatial)
  ]
  return tf.reduce_mean(after - before)


def KeypointAccuracy(keypoints: Any, labels: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """Compares keypoints with the quadrants that they should be in.

  Args:
    keypoints: x and y from -1 to 1, [B, 2].
    labels: [B]: right of the top, left of the top, right and left of the bottom.
  Returns:
    (share of keypoints in their quadrant, cross entropy), scalars.
  """
  points = tf.reshape(_as_float(keypoints), [-1, 2])
  labels = tf.cast(tf.reshape(labels, [-1]), tf.int64)
  logits = tf.matmul(points, tf.constant(_QUADRANTS), transpose_b=True)
  is_right = tf.equal(labels, tf.argmax(logits, axis=1))
  entropy = tf.nn.sigmoid_cross_entropy_with_logits(tf.one_hot(labels, 4), logits)
  return tf.reduce_mean(tf.cast(is_right, tf.float32)), tf.reduce_mean(entropy)


def _pairs(pregrasp: Any, goal: Any, postgrasp: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns what should be equal: the difference, and the goal."""
  return _as_float(pregrasp) - _as_float(postgrasp), _as_float(goal)


def _normalized(vectors: tf.Tensor) -> tf.Tensor:
  return tf.math.l2_normalize(vectors, axis=-1)


def _as_float(values: Any) -> tf.Tensor:
  return tf.cast(values, tf.float32)


def _as_bool(mask: Any) -> Any:
  return None if mask is None else tf.cast(tf.reshape(mask, [-1]), tf.bool)
