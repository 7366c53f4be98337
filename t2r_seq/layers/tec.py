"""Task embeddings of episodes and the loss that shapes them.

Task-Embedded Control Networks, https://arxiv.org/abs/1810.03237.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.construction import CompositeLayer, configurable_layer, get_layer
from t2r_seq.layers.losses import (
  contrastive_loss,
  cosine_triplet_semihard_loss,
)
from t2r_seq.layers.vision_layers import MLP, ImagesToFeatures, LayerNorm


@configurable_layer
class ImageEmbedding(CompositeLayer):
  """Embeds each image separately, by a tower and optional dense layers."""

  def __init__(
    self,
    fc_layers: Sequence[int] | None = None,
    use_spatial_softmax: bool = True,
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      fc_layers: units of the dense layers after the tower; without a spatial softmax
        they are 1 x 1 convolutions. None for no layers.
      use_spatial_softmax: whether the tower ends in a spatial softmax.
      **kwargs: arguments of the Keras layer.
    """
    super().__init__(**kwargs)
    self._tower = ImagesToFeatures(use_spatial_softmax=use_spatial_softmax)
    self._mlp = MLP(fc_layers[:-1], fc_layers[-1]) if fc_layers else None

  def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
    """Maps images to embeddings.

    Args:
      images: [N, H, W, C].
      training: mode of batch normalisation.
    Returns:
      [N, D]; [N, h, w, D] without a spatial softmax.
    Raises:
      SpecError: the images have other axes.
    """
    del training  # Keras passes it to the inner layers.
    _check_rank("ImageEmbedding", "images", images, 4)
    embedding, _ = self._tower(images)
    return embedding if self._mlp is None else self._mlp(embedding)


@configurable_layer
class TemporalReduction(CompositeLayer):
  """Embeds an episode: combines the embeddings of its steps into one."""

  def __init__(
    self,
    output_size: int,
    conv1d_layers: Sequence[int] | None = (64,),
    fc_hidden_layers: Sequence[int] = (100,),
    combine_mode: str = "temporal_conv",
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      output_size: components of the embedding.
      conv1d_layers: filters of convolutions over 10 steps, without padding.
      fc_hidden_layers: units of the hidden dense layers after them.
      combine_mode: 'temporal_conv' convolves and flattens, 'temporal_conv_avg_after'
        convolves and averages, 'average' averages.
      **kwargs: arguments of the Keras layer.
    Raises:
      SpecError: the mode is unknown.
    """
    super().__init__(**kwargs)
    modes = ("temporal_conv", "temporal_conv_avg_after", "average")
    if combine_mode not in modes:
      raise errors.SpecError(
        f"TemporalReduction: combine_mode: expected one of {errors.listing(modes)}, "
        f"got {combine_mode!r}."
      )
    self._flattens = combine_mode == "temporal_conv"
    filters = () if combine_mode == "average" else conv1d_layers or ()
    self._convs = [
      tf.keras.layers.Conv1D(n, 10, activation="relu", use_bias=False) for n in filters
    ]
    self._norms = [LayerNorm() for _ in filters]
    self._mlp = MLP(fc_hidden_layers, output_size)

  def call(self, temporal_embedding: tf.Tensor) -> tf.Tensor:
    """Maps steps to an episode.

    Args:
      temporal_embedding: [N, T, D], or [N, T, h, w, D], which is averaged over pixels.
    Returns:
      [N, output_size].
    Raises:
      SpecError: the embeddings have other axes.
    """
    net = temporal_embedding
    if net.shape.rank == 5:
      net = tf.reduce_mean(net, axis=[2, 3])
    _check_rank("TemporalReduction", "temporal_embedding", net, 3)
    for conv, norm in zip(self._convs, self._norms, strict=True):
      net = norm(conv(net))
    if self._flattens:
      net = tf.reshape(net, [-1, net.shape[1] * net.shape[2]])
    else:
      net = tf.reduce_mean(net, axis=1)
    return self._mlp(net)


def embed_fullstate(
  fullstate: tf.Tensor,
  embed_size: int,
  scope: str,
  reuse: Any = None,
  fc_layers: Sequence[int] = (100,),
) -> tf.Tensor:
  """Embeds states [N, F]; Tensor2Robot's function for `MLP`."""
  del reuse  # A `LayerStore` shares the layers of one scope.
  create = lambda: MLP(fc_layers, embed_size)  # noqa: E731
  return get_layer("embed_fullstate", create, scope)(fullstate)


@gin.configurable
def embed_condition_images(
  condition_image: tf.Tensor,
  scope: str,
  reuse: Any = None,
  fc_layers: Sequence[int] | None = None,
  use_spatial_softmax: bool = True,
) -> tf.Tensor:
  """Embeds images [N, H, W, C]; Tensor2Robot's function for `ImageEmbedding`."""
  del reuse  # A `LayerStore` shares the layers of one scope.
  create = lambda: ImageEmbedding(fc_layers, use_spatial_softmax)  # noqa: E731
  return get_layer("embed_condition_images", create, scope)(condition_image)


@gin.configurable
def reduce_temporal_embeddings(
  temporal_embedding: tf.Tensor,
  output_size: int,
  scope: str,
  reuse: Any = None,
  conv1d_layers: Sequence[int] | None = (64,),
  fc_hidden_layers: Sequence[int] = (100,),
  combine_mode: str = "temporal_conv",
) -> tf.Tensor:
  """Embeds episodes; Tensor2Robot's function for `TemporalReduction`."""
  del reuse  # A `LayerStore` shares the layers of one scope.
  layer = get_layer(
    "reduce_temporal_embeddings",
    lambda: TemporalReduction(
      output_size, conv1d_layers, fc_hidden_layers, combine_mode
    ),
    scope,
  )
  return layer(temporal_embedding)


@gin.configurable
def compute_embedding_contrastive_loss(
  inf_embedding: tf.Tensor,
  con_embedding: tf.Tensor,
  positives: tf.Tensor | None = None,
  contrastive_loss_mode: str = "both_directions",
) -> tf.Tensor:
  """Pulls embeddings of one task together, and pushes other tasks' away.

  The embeddings of a task's episodes are averaged. All losses but 'triplet' compare the
  first task with all.

  Args:
    inf_embedding: embedding of the episodes to act in, [tasks, episodes, D], of norm 1.
    con_embedding: embedding of the episodes to learn from, [tasks, episodes, D], of
      norm 1.
    positives: [tasks], bool: which tasks equal the first one; None: only itself.
      For 'triplet' the number of each task; None for all different.
    contrastive_loss_mode: 'default' compares the first inference embedding with the
      conditions, 'reverse_direction' the first condition with the inference embeddings,
      'both_directions' adds the two; 'cross_entropy' takes doubled dot products as
      logits, in both directions; 'triplet' is `cosine_triplet_semihard_loss` of all.
  Returns:
    A scalar.
  Raises:
    SpecError: the embeddings or `positives` have another shape, or the mode is unknown.
  """
  operation = "compute_embedding_contrastive_loss"
  inf_embedding = tf.convert_to_tensor(inf_embedding)
  con_embedding = tf.convert_to_tensor(con_embedding)
  _check_rank(operation, "inf_embedding", inf_embedding, 3)
  _check_rank(operation, "con_embedding", con_embedding, 3)
  inference = tf.reduce_mean(inf_embedding, axis=1)
  condition = tf.reduce_mean(con_embedding, axis=1)
  if contrastive_loss_mode == "triplet":
    if positives is None:
      positives = tf.range(tf.shape(inference)[0])
    both = tf.concat([inference, condition], axis=0)
    return cosine_triplet_semihard_loss(tf.tile(positives, [2]), both)
  forward, backward = (inference[:1], condition), (condition[:1], inference)
  pairs = {
    "default": (contrastive_loss, [forward]),
    "reverse_direction": (contrastive_loss, [backward]),
    "both_directions": (contrastive_loss, [forward, backward]),
    "cross_entropy": (_cosine_cross_entropy, [forward, backward]),
  }
  if contrastive_loss_mode not in pairs:
    raise errors.SpecError(
      f"{operation}: contrastive_loss_mode: expected one of "
      f"{errors.listing([*pairs, 'triplet'])}, got {contrastive_loss_mode!r}."
    )
  if positives is None:
    positives = tf.equal(tf.range(tf.shape(inference)[0]), 0)
  function, directions = pairs[contrastive_loss_mode]
  return tf.add_n([function(positives, *direction) for direction in directions])


def _cosine_cross_entropy(
  labels: tf.Tensor, anchor: tf.Tensor, others: tf.Tensor
) -> tf.Tensor:
  logits = 2.0 * tf.reduce_sum(anchor * others, axis=-1)
  odds = tf.cast(labels, logits.dtype)
  return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(odds, logits))


def _check_rank(operation: str, name: str, value: tf.Tensor, rank: int) -> None:
  if value.shape.rank != rank:
    raise errors.SpecError(
      f"{operation}: {name}: expected {rank} axes, got {errors.describe(value)}."
    )
