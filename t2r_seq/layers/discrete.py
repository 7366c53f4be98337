"""Actions as classes: each component is one of several bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors
from t2r_seq.layers.action_decoders import ActionDecoder, Outputs, check_inference
from t2r_seq.layers.construction import configurable_layer


def GetDiscreteBins(num_bins: int, output_min: Any, output_max: Any) -> np.ndarray:
  """Returns the centres of equal bins of a range, [num_bins, A].

  Args:
    num_bins: number of bins.
    output_min: [A], where the first bin begins.
    output_max: [A], where the last bin ends.
  """
  low, high = np.asarray(output_min, float), np.asarray(output_max, float)
  places = (np.arange(num_bins) + 0.5) / num_bins
  return low + places.reshape([-1, *[1] * low.ndim]) * (high - low)


def GetDiscreteActions(
  logits: tf.Tensor, action_size: int, num_bins: int, bin_centers: Any
) -> tf.Tensor:
  """Returns the centre of the most probable bin of each number.

  Args:
    logits: [..., action_size * num_bins].
    action_size: A.
    num_bins: bins of each number.
    bin_centers: [num_bins, A].
  Returns:
    [..., A], float32.
  """
  best = tf.argmax(_by_bin(logits, action_size, num_bins), axis=-1)
  one_hot = tf.one_hot(best, num_bins, dtype=tf.float32)
  return tf.reduce_sum(one_hot * _centers(bin_centers), axis=-1)


def GetDiscreteActionLoss(
  logits: tf.Tensor, action_labels: tf.Tensor, bin_centers: Any, num_bins: int
) -> tf.Tensor:
  """Returns the mean cross entropy of the bins that actions are nearest to.

  Args:
    logits: [..., A * num_bins].
    action_labels: [..., A].
    bin_centers: [num_bins, A].
    num_bins: bins of each number.
  Returns:
    A scalar.
  """
  size = action_labels.shape[-1]
  by_bin = tf.reshape(logits, [-1, size, num_bins])
  labels = tf.reshape(action_labels, [-1, size])
  return tf.reduce_mean(_cross_entropy(by_bin, labels, bin_centers))


@configurable_layer
class DiscreteDecoder(ActionDecoder):
  """A softmax over bins for each number of the action, fitted by cross entropy."""

  def __init__(
    self,
    action_shape: Sequence[int],
    num_bins: int = 256,
    output_min: float | Sequence[float] = -1.0,
    output_max: float | Sequence[float] = 1.0,
    inference: str = "mode",
    **kwargs: Any,
  ) -> None:
    """Creates the layer.

    Args:
      action_shape: shape of one action or chunk.
      num_bins: bins of each number.
      output_min: start of the first bin, of `action_shape` or broadcast to it; smaller
        values fall into that bin.
      output_max: end of the last bin.
      inference: 'mode' gives the centre of the most probable bin, 'mean' the mean of
        all centres by probability, 'sample' the centre of a random bin.
      **kwargs: arguments of the base class, `ActionDecoder`.
    Raises:
      SpecError: there are no bins, a range is empty, or `inference` is unknown.
    """
    super().__init__(action_shape, **kwargs)
    check_inference(self, inference, ("mode", "mean", "sample"))
    low, high = np.asarray(output_min, float), np.asarray(output_max, float)
    if num_bins < 1 or np.any(low >= high):
      raise errors.SpecError(
        f"DiscreteDecoder: output_min: expected less than output_max, {output_max}, "
        f"and at least 1 bin, got {output_min} and {num_bins}."
      )
    low, high = (np.broadcast_to(x, self.action_shape).ravel() for x in (low, high))
    self._bin_centers = GetDiscreteBins(num_bins, low, high)
    self._num_bins, self._inference = num_bins, inference
    self._dense = tf.keras.layers.Dense(self.num_components * num_bins, dtype="float32")

  def call(self, embedding: tf.Tensor, training: bool = False) -> Outputs:
    del training
    logits = self._dense(embedding)
    by_bin = _by_bin(logits, self.num_components, self._num_bins)
    if self._inference == "mean":
      flat = tf.reduce_sum(tf.nn.softmax(by_bin) * _centers(self._bin_centers), axis=-1)
    else:
      scores = logits
      if self._inference == "sample":
        noise = tf.random.uniform(tf.shape(logits), minval=1e-10)
        scores -= tf.math.log(-tf.math.log(noise))
      flat = GetDiscreteActions(
        scores, self.num_components, self._num_bins, self._bin_centers
      )
    return {"action_logits": by_bin, "inference_output": self.as_actions(flat)}

  def errors(
    self, outputs: Outputs, target: tf.Tensor, is_valid: tf.Tensor, training: bool
  ) -> tf.Tensor:
    """See the base class: the cross entropy of each number."""
    del is_valid, training
    flat = self.flatten(target)
    return self.as_actions(
      _cross_entropy(outputs["action_logits"], flat, self._bin_centers)
    )


def _centers(bin_centers: Any) -> tf.Tensor:
  """Returns [bins, A] as constants [A, bins]."""
  return tf.constant(np.transpose(bin_centers), tf.float32)


def _by_bin(logits: tf.Tensor, size: int, num_bins: int) -> tf.Tensor:
  shape = tf.concat([tf.shape(logits)[:-1], [size, num_bins]], 0)
  return tf.ensure_shape(
    tf.reshape(logits, shape), [*logits.shape[:-1], size, num_bins]
  )


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor, bin_centers: Any) -> tf.Tensor:
  """Returns the errors of logits [..., A, bins] and labels [..., A], [..., A]."""
  distance = tf.abs(labels[..., tf.newaxis] - _centers(bin_centers))
  nearest = tf.argmin(distance, axis=-1, output_type=tf.int32)
  return tf.nn.sparse_softmax_cross_entropy_with_logits(nearest, logits)
