"""The mean over unmasked steps, and losses of embeddings.

The losses of embeddings are computed in float32, also for half precision.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from t2r_seq import errors

_is_local: contextvars.ContextVar[bool] = contextvars.ContextVar("is_local")


@tf.autograph.experimental.do_not_convert
@contextlib.contextmanager
def local_means() -> Iterator[None]:
  """In this context, `masked_mean` averages over one replica, such as within a task."""
  token = _is_local.set(True)
  try:
    yield
  finally:
    _is_local.reset(token)


def masked_mean(values: Any, mask: Any, axis: Any = None) -> tf.Tensor:
  """Averages the unmasked values; masked ones have no effect and no gradient.

  On several replicas, the mean of their results, weighted by their examples as in the
  trainer, is that of the whole batch. If axis 0, the examples, is not reduced, each
  example has a separate mean, equal on any number of replicas.

  >>> from t2r_seq import layers
  >>> errors = [[1.0, 3.0], [5.0, float("nan")]]
  >>> float(layers.masked_mean(errors, mask=[[True, True], [True, False]]))
  3.0

  Args:
    values: [..., D...], floating point.
    mask: bool, the leading axes of `values`: a mask [B, L] masks values [B, L, D].
    axis: axes to reduce, as in `tf.reduce_mean`; None for all.
  Returns:
    The mean over the unmasked values, in their dtype; 0 if everything is masked.
  Raises:
    SpecError: the values are not floating point, or the mask does not fit them.
    RuntimeError: by TensorFlow, on several replicas inside a `tf.function` or loop of
      the loss, where replicas can't communicate.
  """
  values = tf.convert_to_tensor(values)
  mask = tf.convert_to_tensor(mask)
  if not values.dtype.is_floating:
    raise errors.SpecError(
      "masked_mean: values: expected floating point, got "
      f"{errors.describe(values)}. Cast them first."
    )
  sizes = zip(mask.shape, values.shape, strict=False)
  if (
    mask.dtype != tf.bool
    or mask.shape.rank > values.shape.rank
    or any(m not in (None, 1) and v not in (None, m) for m, v in sizes)
  ):
    raise errors.SpecError(
      "masked_mean: mask: expected bools for the leading axes of the values, "
      f"{errors.describe(values)}, got {errors.describe(mask)}."
    )
  for _ in range(values.shape.rank - mask.shape.rank):
    mask = mask[..., tf.newaxis]
  mask = tf.broadcast_to(mask, tf.shape(values))
  # float16 sums overflow at 65504, and bfloat16 counts only to 256.
  wide = values if values.dtype == tf.float64 else tf.cast(values, tf.float32)
  # `where` and not a product, as 0 * inf and 0 * nan are NaN.
  total = tf.reduce_sum(tf.where(mask, wide, tf.zeros_like(wide)), axis)
  count = tf.reduce_sum(tf.cast(mask, wide.dtype), axis)
  replicas = tf.distribute.get_replica_context()
  axes = tf.nest.flatten(axis)
  is_of_batch = axis is None or 0 in axes or -values.shape.rank in axes
  is_of_batch &= not _is_local.get(False)
  if is_of_batch and replicas is not None and replicas.num_replicas_in_sync > 1:
    # Replicas may have different numbers of unmasked values, and of examples, by which
    # the trainer weights their results.
    rows = tf.cast(tf.shape(values)[0], wide.dtype)
    totals = replicas.all_reduce(tf.distribute.ReduceOp.SUM, [count, rows])
    count = tf.math.divide_no_nan(totals[0] * rows, totals[1])
  return tf.cast(tf.math.divide_no_nan(total, count), values.dtype)


def contrastive_loss(
  labels: tf.Tensor, anchor: tf.Tensor, others: tf.Tensor, margin: float = 1.0
) -> tf.Tensor:
  """Returns squared distances of matching pairs, squared hinges of others, averaged.

  Args:
    labels: [N], bool: which of `others` match the anchor.
    anchor: [1, D] or [N, D].
    others: [N, D].
    margin: distance beyond which a pair that does not match costs nothing.
  Returns:
    The mean, a scalar.
  Raises:
    SpecError: the labels have another shape.
  """
  labels = tf.cast(_of_each("contrastive_loss", "labels", labels, others), tf.bool)
  anchor, others = tf.cast(anchor, tf.float32), tf.cast(others, tf.float32)
  squared = tf.reduce_sum(tf.math.squared_difference(anchor, others), axis=-1)
  # The root's gradient is infinite at 0, the distance of a copy of the anchor.
  distance = tf.sqrt(tf.maximum(squared, 1e-12))
  hinge = tf.square(tf.maximum(margin - distance, 0.0))
  return tf.reduce_mean(tf.where(labels, squared, hinge))


def cosine_triplet_semihard_loss(
  labels: tf.Tensor,
  embeddings: tf.Tensor,
  margin: float = 1.0,
  mask: tf.Tensor | None = None,
) -> tf.Tensor:
  """Triplet loss of cosine distances with semi-hard negatives.

  For each anchor and positive the negative is the nearest one that is farther away than
  the positive, or else the farthest one. https://arxiv.org/abs/1503.03832.

  Args:
    labels: [N], the number of each embedding's class.
    embeddings: [N, D], of norm 1.
    margin: distance by which a negative must be farther away than the positive.
    mask: [N], bool, which embeddings count; None for all.
  Returns:
    The mean over all pairs of an anchor and a positive, a scalar; 0 without any.
  Raises:
    SpecError: the labels or the mask are of another form.
  """
  where = "cosine_triplet_semihard_loss"
  labels = _of_each(where, "labels", labels, embeddings)
  embeddings = tf.cast(embeddings, tf.float32)
  if mask is not None:
    mask = _of_each(where, "mask", mask, embeddings, tf.bool)
    embeddings = _mask_embeddings(embeddings, mask)
  distances = 1.0 - tf.matmul(embeddings, embeddings, transpose_b=True)
  count = tf.shape(embeddings)[0]
  distances = tf.linalg.set_diag(distances, tf.zeros([count], distances.dtype))
  is_same = tf.equal(labels[:, tf.newaxis], labels[tf.newaxis, :])
  is_positive, is_negative = is_same & ~tf.eye(count, dtype=tf.bool), ~is_same
  if mask is not None:
    is_positive &= mask[:, tf.newaxis] & mask
    is_negative &= mask
  # [anchor, positive, negative]
  is_farther = is_negative[:, tf.newaxis, :] & (
    distances[:, tf.newaxis, :] > distances[:, :, tf.newaxis]
  )
  far = tf.constant(4.0, distances.dtype)  # Cosine distances are at most 2.
  nearest = tf.reduce_min(tf.where(is_farther, distances[:, tf.newaxis, :], far), -1)
  farthest = tf.reduce_max(tf.where(is_negative, distances, -far), -1, keepdims=True)
  # Without any negative, the anchor's distance to itself, 0, is used.
  farthest = tf.where(tf.reduce_any(is_negative, -1, keepdims=True), farthest, 0.0)
  negative = tf.where(tf.reduce_any(is_farther, -1), nearest, farthest)
  hinge = tf.maximum(margin + distances - negative, 0.0)
  total = tf.reduce_sum(tf.where(is_positive, hinge, tf.zeros_like(hinge)))
  num_positive = tf.reduce_sum(tf.cast(is_positive, hinge.dtype))
  return tf.math.divide_no_nan(total, num_positive)


def n_pairs_loss(
  anchors: tf.Tensor,
  positives: tf.Tensor,
  labels: tf.Tensor | None = None,
  mask: tf.Tensor | None = None,
  norm_weight: float = 0.002,
) -> tf.Tensor:
  """Returns the loss of finding each anchor's positive in the batch, and the reverse.

  Sohn, "Improved Deep Metric Learning with Multi-class N-pair Loss" (2016), in both
  directions.

  Args:
    anchors: [N, D].
    positives: [N, D].
    labels: [N], the number of each pair's class; None: each pair is a separate class.
    mask: [N], bool, which pairs count, also as negatives; None for all.
    norm_weight: half of it, times the mean of squared norms, is added to the loss.
  Returns:
    A scalar; 0 if no pair counts.
  Raises:
    SpecError: the labels or the mask are of another form.
  """
  labels, mask = _classes("n_pairs_loss", anchors, labels, mask)
  anchors, positives = (
    _mask_embeddings(tf.cast(each, tf.float32), mask) for each in (anchors, positives)
  )
  norms = tf.reduce_sum(tf.square(anchors) + tf.square(positives), axis=1)
  loss = 0.5 * norm_weight * masked_mean(norms, mask)
  is_pair = tf.cast(mask & tf.equal(labels[:, tf.newaxis], labels), norms.dtype)
  total = tf.reduce_sum(is_pair, axis=1, keepdims=True)
  share = tf.math.divide_no_nan(is_pair, total)
  logits = tf.matmul(anchors, positives, transpose_b=True)
  for each in (logits, tf.transpose(logits)):
    each = tf.where(mask, each, each.dtype.min / 2)
    entropy = tf.nn.softmax_cross_entropy_with_logits(share, each)
    loss += masked_mean(entropy, mask)
  return loss


def retrieval_accuracy(
  queries: tf.Tensor,
  candidates: tf.Tensor,
  labels: tf.Tensor | None = None,
  mask: tf.Tensor | None = None,
  num_nearest: int = 1,
) -> tf.Tensor:
  """Returns how often the right candidate is among a query's nearest, by cosine.

  Args:
    queries: [N, D].
    candidates: [N, D].
    labels: [N], the class of each query: any candidate of the class is right; None:
      only the query's own candidate is right.
    mask: [N], bool, which queries and candidates count; None for all.
    num_nearest: number of nearest neighbors; all, if there are fewer.
  Returns:
    A scalar; 0 if no query counts.
  Raises:
    SpecError: the labels or the mask are of another form.
  """
  labels, mask = _classes("retrieval_accuracy", queries, labels, mask)
  unit = [
    tf.math.l2_normalize(tf.cast(each, tf.float32), axis=-1)
    for each in (queries, candidates)
  ]
  cosines = tf.where(mask, tf.matmul(*unit, transpose_b=True), -2.0)
  _, nearest = tf.math.top_k(cosines, tf.minimum(num_nearest, tf.shape(cosines)[1]))
  is_right = tf.equal(tf.gather(labels, nearest), labels[:, tf.newaxis])
  is_found = tf.cast(tf.reduce_any(is_right, axis=1), cosines.dtype)
  return masked_mean(is_found, mask)


def _classes(
  operation: str, embeddings: tf.Tensor, labels: Any, mask: Any
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns (labels [N], by default each its own class, and the mask [N])."""
  count = tf.shape(embeddings)[0]
  if labels is None:
    labels = tf.range(count)
  if mask is None:
    mask = tf.ones([count], tf.bool)
  return (
    _of_each(operation, "labels", labels, embeddings),
    _of_each(operation, "mask", mask, embeddings, tf.bool),
  )


def _of_each(
  operation: str,
  name: str,
  values: Any,
  embeddings: tf.Tensor,
  dtype: tf.DType | None = None,
) -> tf.Tensor:
  """Returns a tensor [N]; SpecError for other shapes, which would be broadcast."""
  values = tf.convert_to_tensor(values)
  count = tf.TensorShape(embeddings.shape)[:1]
  if not values.shape.is_compatible_with(count) or dtype not in (None, values.dtype):
    kind = "" if dtype is None else f" {dtype.name}"
    want = f"({count[0] or 'N'},){kind}, one for each embedding"
    mismatch = errors.Mismatch(name, want, errors.describe(values))
    raise errors.mismatch_error(operation, [mismatch])
  return values


def _mask_embeddings(embeddings: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
  """Replaces masked embeddings by zeros, as NaN would also reach gradients."""
  return tf.where(mask[:, tf.newaxis], embeddings, tf.zeros_like(embeddings))
