"""Classifiers: one class of several, or several properties at once."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.models import losses
from t2r_seq.models.t2r_model import T2RModel
from t2r_seq.specs import SpecStructure

_ACTIVATIONS = ("softmax", "sigmoid")
# AUC sorts scores into bins of log odds, which separate probabilities near 0 and 1.
_NUM_BINS, _MAX_LOG_ODDS = 1000, 20.0


class ClassificationModel(T2RModel):
  """Classes fitted to `labels.classes` by cross entropy.

  With 'softmax' one class of several is right: `labels.classes`, integers [B, ...], is
  its number, and 'logits' are [B, ..., C]. With 'sigmoid' each logit is a separate
  binary property: `labels.classes` has the shape of 'logits', and is 0 or 1.

  An evaluation computes accuracy, precision, recall and AUC over all of its examples
  together. The last three compare each class (last axis of 'logits') with the rest.
  Precision and recall are means over the classes that are labelled or predicted at
  least once, AUC over those with positive and negative examples.
  """

  def __init__(self, activation: str = "softmax", **kwargs: Any) -> None:
    """Creates the model.

    Args:
      activation: 'softmax' or 'sigmoid'.
      **kwargs: arguments of `T2RModel`.
    Raises:
      SpecError: the activation is unknown, or an argument of `T2RModel` is invalid.
    """
    super().__init__(**kwargs)
    if activation not in _ACTIVATIONS:
      raise errors.SpecError(
        f"{type(self).__name__}: activation: expected one of "
        f"{errors.listing(_ACTIVATIONS)}, got {activation!r}."
      )
    self._is_softmax = activation == "softmax"

  @abc.abstractmethod
  def a_func(self, features: SpecStructure, mode: str) -> dict[str, tf.Tensor]:
    """Maps a state to logits.

    Args:
      features: packed as the feature specs, [B, ...].
      mode: value of `ModeKeys`.
    Returns:
      Outputs by name; 'logits' is required.
    """

  def inference_network_fn(
    self, features: SpecStructure, labels: SpecStructure | None, mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class.

    Returns:
      The outputs of `a_func`, and 'a_predicted', the probabilities. Both it and
      'logits' are float32 instead of half precision.
    Raises:
      SpecError: the outputs of `a_func` are not a dict, or lack 'logits'.
    """
    del labels
    outputs = self.a_func(features, mode)
    self._check_outputs("a_func", outputs, "logits")
    logits = losses.as_float32(outputs["logits"])
    activation = tf.nn.softmax if self._is_softmax else tf.nn.sigmoid
    return {**outputs, "logits": logits, "a_predicted": activation(logits)}

  def loss_fn(
    self,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor:
    """Returns the mean cross entropy, a scalar.

    If the labels have a `classes_mask`, values where it is False do not count.
    A replay's importance weights multiply the errors.

    Raises:
      SpecError: `labels.classes` or its mask does not fit the logits.
    """
    del mode
    logits = inference_outputs["logits"]
    classes = self._classes(labels, logits)
    if self._is_softmax:
      error = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits)
    else:
      error = tf.nn.sigmoid_cross_entropy_with_logits(classes, logits)
    error = losses.weighted(error, labels)
    mask = getattr(labels, "classes_mask", None)
    return tf.reduce_mean(error) if mask is None else layers.masked_mean(error, mask)

  def model_train_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> tf.Tensor | tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """See the base class: the loss of `loss_fn`."""
    del features
    return self.loss_fn(labels, inference_outputs, mode)

  def create_export_outputs_fn(
    self, features: SpecStructure, inference_outputs: dict[str, tf.Tensor], mode: str
  ) -> dict[str, tf.Tensor]:
    """See the base class: 'a_predicted' only."""
    del features, mode
    return {"a_predicted": inference_outputs["a_predicted"]}

  def eval_tallies_fn(
    self,
    features: SpecStructure,
    labels: SpecStructure,
    inference_outputs: dict[str, tf.Tensor],
    mode: str,
  ) -> dict[str, tf.Tensor]:
    """See the base class: counts of right and wrong predictions, by class and score."""
    del features, mode
    logits = inference_outputs["logits"]
    classes = self._classes(labels, logits)
    if self._is_softmax:
      num_classes = logits.shape[-1]
      is_right = tf.equal(tf.argmax(logits, -1, classes.dtype), classes)
      truth = tf.one_hot(classes, num_classes, True, False, dtype=tf.bool)
      predicted = tf.one_hot(
        tf.argmax(logits, -1), num_classes, True, False, dtype=tf.bool
      )
      log_p = tf.nn.log_softmax(logits)
      # log(p / (1 - p)); expm1 keeps 1 - p exact near p = 1.
      log_odds = log_p - tf.math.log(-tf.math.expm1(log_p))
    else:
      truth, predicted, log_odds = classes > 0.5, logits > 0, logits
      is_right = tf.equal(truth, predicted)
    weight = tf.ones_like(is_right, tf.float32)
    mask = getattr(labels, "classes_mask", None)
    if mask is not None:
      while mask.shape.rank < weight.shape.rank:
        mask = mask[..., tf.newaxis]
      weight *= tf.cast(mask, tf.float32)
    class_weight = weight[..., tf.newaxis] if self._is_softmax else weight
    class_weight = tf.broadcast_to(class_weight, tf.shape(truth))
    if logits.shape.rank == 1:  # One binary property is one class.
      class_weight, truth, predicted, log_odds = [
        x[:, tf.newaxis] for x in (class_weight, truth, predicted, log_odds)
      ]

    def count(which: tf.Tensor) -> tf.Tensor:
      axes = list(range(which.shape.rank - 1))
      return tf.reduce_sum(tf.where(which, class_weight, 0.0), axes)

    return {
      "num_right": tf.reduce_sum(tf.where(is_right, weight, 0.0)),
      "num": tf.reduce_sum(weight),
      "true_positives": count(truth & predicted),
      "false_positives": count(~truth & predicted),
      "false_negatives": count(truth & ~predicted),
      "positives": _histograms(log_odds, tf.where(truth, class_weight, 0.0)),
      "negatives": _histograms(log_odds, tf.where(truth, 0.0, class_weight)),
    }

  def eval_results_fn(self, tallies: dict[str, np.ndarray]) -> dict[str, float]:
    """See the base class: accuracy, precision, recall and AUC; 0 where undefined.

    AUC counts pairs whose log odds share one of 1,000 bins as half right.
    """
    hits = tallies["true_positives"]
    predicted = hits + tallies["false_positives"]
    real = hits + tallies["false_negatives"]
    positives, negatives = tallies["positives"], tallies["negatives"]
    below = np.cumsum(negatives, axis=1) - negatives / 2
    pairs = positives.sum(axis=1) * negatives.sum(axis=1)
    return {
      "accuracy": _ratio(tallies["num_right"], tallies["num"]),
      "precision": _ratio(hits, predicted, where=predicted + real > 0),
      "recall": _ratio(hits, real, where=predicted + real > 0),
      "auc": _ratio((positives * below).sum(axis=1), pairs, where=pairs > 0),
    }

  def _classes(self, labels: SpecStructure, logits: tf.Tensor) -> tf.Tensor:
    """Returns the label in the dtype that the cross entropy takes."""
    classes = labels.classes
    shape = logits.shape[:-1] if self._is_softmax else logits.shape
    is_numeric = classes.dtype.is_integer or not self._is_softmax
    if not is_numeric or not classes.shape.is_compatible_with(shape):
      kind = "integers, the numbers of classes" if self._is_softmax else "0 or 1"
      raise errors.SpecError(
        f"{type(self).__name__}: labels.classes: expected {kind}, of the shape {shape} "
        f"for logits {errors.describe(logits)}, got {errors.describe(classes)}."
      )
    return tf.cast(classes, tf.int32 if self._is_softmax else logits.dtype)


def _histograms(log_odds: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
  """Sums weights [..., C] by class and by bin of their log odds; [C, bins]."""
  num_classes = log_odds.shape[-1]
  position = (log_odds / _MAX_LOG_ODDS + 1) * (_NUM_BINS / 2)
  bins = tf.cast(tf.clip_by_value(position, 0, _NUM_BINS - 1), tf.int32)
  index = tf.range(num_classes) * _NUM_BINS + bins
  sums = tf.math.unsorted_segment_sum(
    tf.reshape(weights, [-1]), tf.reshape(index, [-1]), num_classes * _NUM_BINS
  )
  return tf.reshape(sums, [num_classes, _NUM_BINS])


def _ratio(part: np.ndarray, whole: np.ndarray, where: Any = True) -> float:
  """Returns the mean of part / whole over the classes; 0 / 0 is 0."""
  ratio = np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)
  return float(np.mean(ratio, where=where)) if np.any(where) else 0.0
