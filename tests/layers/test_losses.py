"""Losses of embeddings by hand, and which examples count, under XLA, too."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, layers
from t2r_seq.layers.losses import cosine_triplet_semihard_loss, n_pairs_loss

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
  compiled = tf.function(n_pairs_loss, jit_compile=True)
  got = compiled(ANCHORS, POSITIVES, labels, mask)
  assert float(got) == pytest.approx(want, abs=1e-5)
  none = n_pairs_loss(ANCHORS, POSITIVES, labels, np.zeros(5, bool))
  assert float(none) == 0


def test_slopes_are_of_those_that_count():
  mask = np.array([True, False, True, True, False])
  variables = [
    # Whatever stands where nothing counts.
    tf.Variable(np.where(mask[:, np.newaxis], given, np.nan))
    for given in (ANCHORS, POSITIVES)
  ]
  functions = [
    lambda a, b: n_pairs_loss(a, b, LABELS, mask),
    lambda a, b: cosine_triplet_semihard_loss(
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
    lambda: cosine_triplet_semihard_loss(LABELS[:, np.newaxis], ANCHORS),
    r"cosine_triplet_semihard_loss: labels: expected",
  ),
  "pairs' labels": (
    lambda: n_pairs_loss(ANCHORS, POSITIVES, LABELS[:, np.newaxis]),
    r"n_pairs_loss: labels: expected",
  ),
  "a mask of numbers": (
    lambda: n_pairs_loss(ANCHORS, POSITIVES, mask=np.ones(5, np.float32)),
    r"n_pairs_loss: mask: expected \(5,\) bool, one for each embedding, got \(5,\) f",
  ),
  "one mask for all": (
    lambda: n_pairs_loss(ANCHORS, POSITIVES, mask=np.ones(1, bool)),
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
def test_losses_refuse_to_broadcast(case):
  call, message = _OF_OTHER_FORMS[case]
  with pytest.raises(errors.SpecError, match=message):
    call()


NAN, INF = float("nan"), float("inf")

# name: (values, mask, axis, want)
MEANS = {
  "all real": ([1.0, 2.0, 6.0], [True, True, True], None, 3.0),
  "some": ([1.0, 2.0, 6.0], [True, False, True], None, 3.5),
  "none": ([1.0, 2.0], [False, False], None, 0.0),
  "no values": (np.zeros([0]), np.zeros([0], bool), None, 0.0),
  "nan under the mask": ([1.0, NAN], [True, False], None, 1.0),
  "inf under the mask": ([INF, 2.0, -INF], [False, True, False], None, 2.0),
  "scalar": (4.0, True, None, 4.0),
  "axis": ([[1.0, 3.0], [5.0, 9.0]], [[True, True], [True, False]], 1, [2.0, 5.0]),
  "an empty row": ([[1.0, 3.0], [5.0, 9.0]], [[True, True], [False, False]], 1, [2, 0]),
  "negative axis": ([[1.0, 3.0]], [[False, True]], -1, [3.0]),
  "axes": (np.arange(8.0).reshape(2, 2, 2), [[1, 0], [1, 0]], (0, 1), [2.0, 3.0]),
  "leading axes": ([[1.0, 3.0], [5.0, 9.0]], [True, False], None, 2.0),
  "leading axes, square": ([[1.0, 3.0], [5.0, 9.0]], [False, True], 0, [5.0, 9.0]),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("name", MEANS)
def test_masked_mean(name, dtype):
  values, mask, axis, want = MEANS[name]
  values, mask = tf.cast(values, dtype), tf.cast(mask, tf.bool)
  mean = layers.masked_mean(values, mask, axis)
  assert mean.dtype == dtype
  np.testing.assert_allclose(tf.cast(mean, tf.float32), want)
  graph = tf.function(layers.masked_mean)(values, mask, axis)
  assert bool(tf.reduce_all(graph == mean))


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_more_values_than_a_half_can_count(dtype):
  values = tf.ones([70000], dtype)
  mean = layers.masked_mean(values, tf.ones([70000], tf.bool))
  assert float(mean) == 1.0


def test_padded_steps_have_no_gradient():
  values = tf.Variable([[1.0, NAN], [INF, 3.0]])
  mask = tf.constant([[True, False], [False, True]])
  with tf.GradientTape() as tape:
    loss = layers.masked_mean(tf.square(values), mask)
  assert float(loss) == 5.0
  gradient = tape.gradient(loss, values).numpy()
  assert gradient[0, 0] == 1.0 and gradient[1, 1] == 3.0
  values = tf.Variable([1.0, NAN, INF])
  with tf.GradientTape() as tape:
    loss = layers.masked_mean(values, [True, False, False])
  np.testing.assert_array_equal(tape.gradient(loss, values), [1.0, 0.0, 0.0])


def test_gradient_where_all_is_padding():
  values = tf.Variable([1.0, 2.0])
  with tf.GradientTape() as tape:
    loss = layers.masked_mean(values, [False, False])
  np.testing.assert_array_equal(tape.gradient(loss, values), [0.0, 0.0])


def test_masked_mean_under_xla():
  values, mask = tf.constant([[1.0, NAN], [5.0, 9.0]]), tf.constant([[1, 0], [1, 1]])
  mean = tf.function(layers.masked_mean, jit_compile=True)(values, mask > 0)
  assert float(mean) == 5.0


def test_masked_mean_of_unknown_sizes():
  mean = tf.function(layers.masked_mean).get_concrete_function(
    tf.TensorSpec([None, None, 2], tf.float32), tf.TensorSpec([None, None], tf.bool)
  )
  values = tf.constant([[[1.0, 2.0], [3.0, 4.0]]])
  assert float(mean(values, tf.constant([[False, True]]))) == 3.5


BAD_MEANS = {
  "integers": (
    [1, 2],
    [True, True],
    r"masked_mean: values: expected floating point, got \(2,\) int32\. Cast",
  ),
  "mask of numbers": ([1.0], [1.0], r"mask: expected bools .*, got \(1,\) float32"),
  "mask of more axes": (
    [1.0, 2.0],
    [[True, False]],
    r"masked_mean: mask: expected .* axes of the values, \(2,\) float32, got \(1, 2\)",
  ),
  "mask of other axes": (
    [[1.0, 2.0]] * 3,
    [True, False],
    r"mask: expected .* axes of the values, \(3, 2\) float32, got \(2,\) bool",
  ),
}


@pytest.mark.parametrize("name", BAD_MEANS)
def test_masked_mean_rejects_other_forms(name):
  values, mask, match = BAD_MEANS[name]
  with pytest.raises(errors.SpecError, match=match):
    layers.masked_mean(values, mask)
