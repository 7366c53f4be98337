"""Losses of embeddings by hand, and which examples count, under XLA, too."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers

RANDOM = np.random.default_rng(0)
ANCHORS, POSITIVES = RANDOM.normal(size=(2, 5, 3)).astype(np.float32)
LABELS = np.array([0, 1, 0, 2, 1])


def n_pairs(anchors, positives, labels):
  """The loss of both directions as its paper writes it, in numpy."""
  logits, same = anchors @ positives.T, labels[:, np.newaxis] == labels
  total = 0.001 * np.mean(np.sum(anchors**2 + positives**2, axis=1))
  for each in (logits, logits.T):
    log_odds = each - np.log(np.sum(np.exp(each), axis=1, keepdims=True))
    total -= np.mean(np.sum(log_odds * same / same.sum(1, keepdims=True), axis=1))
  return total


@pytest.mark.parametrize("labels", [None, LABELS])
@pytest.mark.parametrize("kept", [[0, 1, 2, 3, 4], [0, 3, 4], [2]])
def test_n_pairs_of_those_that_count(labels, kept):
  classes = np.arange(5) if labels is None else labels
  want = n_pairs(ANCHORS[kept], POSITIVES[kept], classes[kept])
  mask = np.isin(np.arange(5), kept)
  compiled = tf.function(layers.n_pairs_loss, jit_compile=True)
  got = compiled(ANCHORS, POSITIVES, labels, mask)
  assert float(got) == pytest.approx(want, abs=1e-5)
  none = layers.n_pairs_loss(ANCHORS, POSITIVES, labels, np.zeros(5, bool))
  assert float(none) == 0


def test_slopes_are_of_those_that_count():
  mask = np.array([True, False, True, True, False])
  variables = [
    # Whatever stands where nothing counts.
    tf.Variable(np.where(mask[:, np.newaxis], given, np.nan))
    for given in (ANCHORS, POSITIVES)
  ]
  functions = [
    lambda a, b: layers.n_pairs_loss(a, b, LABELS, mask),
    lambda a, b: layers.cosine_triplet_semihard_loss(
      np.tile(LABELS, 2), tf.concat([a, b], 0), 2.0, np.tile(mask, 2)
    ),
  ]  # fmt: skip
  for function in functions:
    with tf.GradientTape() as tape:
      loss = function(*variables)
    for slope in tape.gradient(loss, variables):
      assert np.isfinite(slope).all()
      assert (np.abs(slope).max(axis=1) > 0).tolist() == mask.tolist()


def test_retrieval_among_those_that_count():
  queries = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]], np.float32)
  found = layers.losses.retrieval_accuracy(queries, queries[[0, 2, 1]])
  assert float(found) == pytest.approx(1 / 3)
  # Without its nearest candidate, the second finds its own.
  mask = np.array([True, True, False])
  assert (
    float(layers.losses.retrieval_accuracy(queries, queries[[0, 2, 1]], mask=mask)) == 1
  )
  compiled = tf.function(layers.losses.retrieval_accuracy, jit_compile=True)
  among = compiled(queries, queries[[0, 2, 1]], num_nearest=2)
  assert float(among) == 1
  assert float(layers.losses.retrieval_accuracy(queries, queries, num_nearest=9)) == 1
  labelled = compiled(queries, queries[[0, 2, 1]], np.array([0, 1, 1]))
  assert float(labelled) == 1


def test_half_precision_has_finite_slopes_at_copies():
  anchor = tf.ones([1, 4], tf.float16)
  others = tf.Variable(tf.concat([anchor, 2 * anchor], 0))
  with tf.GradientTape() as tape:
    loss = layers.losses.contrastive_loss([True, False], anchor, others, 4.0)
  assert np.isfinite(tape.gradient(loss, others)).all()


_OF_OTHER_FORMS = {
  "contrastive labels": (
    lambda: layers.losses.contrastive_loss(
      np.ones([5, 1], bool), ANCHORS[:1], POSITIVES
    ),
    r"contrastive_loss: labels: expected \(5,\), one for each embedding, got \(5, 1\)",
  ),
  "triplet labels": (
    lambda: layers.cosine_triplet_semihard_loss(LABELS[:, np.newaxis], ANCHORS),
    r"cosine_triplet_semihard_loss: labels: expected",
  ),
  "pairs' labels": (
    lambda: layers.n_pairs_loss(ANCHORS, POSITIVES, LABELS[:, np.newaxis]),
    r"n_pairs_loss: labels: expected",
  ),
  "a mask of numbers": (
    lambda: layers.n_pairs_loss(ANCHORS, POSITIVES, mask=np.ones(5, np.float32)),
    r"n_pairs_loss: mask: expected \(5,\) bool, one for each embedding, got \(5,\) f",
  ),
  "one mask for all": (
    lambda: layers.n_pairs_loss(ANCHORS, POSITIVES, mask=np.ones(1, bool)),
    r"n_pairs_loss: mask: expected \(5,\) bool, one for each embedding, got \(1,",
  ),
  "retrieval": (
    lambda: layers.losses.retrieval_accuracy(
      ANCHORS, POSITIVES, mask=np.ones([5, 1], bool)
    ),
    r"retrieval_accuracy: mask: expected \(5,\) bool, one for each embedding, got",
  ),
}


@pytest.mark.parametrize("case", _OF_OTHER_FORMS)
def test_what_would_be_broadcast_is_refused(case):
  call, message = _OF_OTHER_FORMS[case]
  with pytest.raises(errors.SpecError, match=message):
    call()
