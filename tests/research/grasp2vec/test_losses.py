"""The losses by hand: values of known embeddings, masks, and what learns from them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from research.grasp2vec import losses

# Three grasps: pregrasp, goal, postgrasp. The first is right, the second is half of
# what it should be, the third points elsewhere.
PRE = np.array([[3.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
GOAL = np.array([[2.0, 1.0], [2.0, 0.0], [0.0, 2.0]])
POST = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
ALL, NONE, LAST = np.ones(3), np.zeros(3), np.array([0, 0, 1])


@pytest.mark.parametrize(
  ("loss", "mask", "want"),
  [
    (losses.L2ArithmeticLoss, ALL, (0 + 1 + 8) / 3),
    (losses.L2ArithmeticLoss, LAST[:, np.newaxis], 8),
    (losses.L2ArithmeticLoss, NONE, 0),
    (losses.CosineArithmeticLoss, ALL, 1 / 3),
    (losses.CosineArithmeticLoss, LAST, 1),
    (losses.CosineArithmeticLoss, NONE, 0),
  ],
)
def test_arithmetic_losses(loss, mask, want):
  assert float(loss(PRE, GOAL, POST, mask)) == pytest.approx(want, abs=1e-5)


def n_pairs(removed, goal, pairs):
  """The loss of both directions as its paper writes it, in numpy."""
  logits = removed @ goal.T
  total = 0.001 * np.mean(np.sum(removed**2 + goal**2, axis=1))
  for each in (logits, logits.T):
    log_odds = each - np.log(np.sum(np.exp(each), axis=1, keepdims=True))
    total -= np.mean(np.sum(log_odds * pairs / pairs.sum(1, keepdims=True), axis=1))
  return total


def test_n_pairs_and_which_examples_count():
  removed, eye = PRE - POST, np.eye(3)
  plain = float(losses.NPairsLoss(PRE, GOAL, POST))
  assert plain == pytest.approx(n_pairs(removed, GOAL, eye), abs=1e-5)
  masked = float(losses.NPairsLoss(PRE, GOAL, POST, mask=np.array([1, 0, 1])))
  kept = [0, 2]
  want = n_pairs(removed[kept], GOAL[kept], np.eye(2))
  assert masked == pytest.approx(want, abs=1e-5)
  assert float(losses.NPairsLoss(PRE, GOAL, POST, mask=NONE)) == 0
  fallen_in = float(losses.NPairsLoss(POST, GOAL, PRE, non_negativity_constraint=True))
  want = n_pairs(np.zeros([3, 2]), GOAL, eye)
  assert fallen_in == pytest.approx(want, abs=1e-5)


def test_grasps_of_nothing_are_of_one_kind():
  multilabel = losses.NPairsLossMultilabel
  assert float(multilabel(PRE, GOAL, POST, ALL, {})) == pytest.approx(
    float(losses.NPairsLoss(PRE, GOAL, POST, {})), abs=1e-5
  )
  pairs = np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])
  want = n_pairs(PRE - POST, GOAL, pairs)
  assert float(multilabel(PRE, GOAL, POST, LAST, {})) == pytest.approx(want, abs=1e-5)


def test_triplets():
  loss, vectors, labels = losses.TripletLoss(PRE, GOAL, POST)
  np.testing.assert_allclose(tf.norm(vectors, axis=1), np.ones(6), atol=1e-5)
  assert labels.numpy().tolist() == [0, 1, 2, 0, 1, 2]
  # Squared distances, each pair both ways, against the nearest one farther away.
  unit = vectors.numpy()
  squared = np.sum((unit[:, np.newaxis] - unit) ** 2, axis=2)
  hinges = []
  for anchor, positive in ((0, 3), (3, 0), (1, 4), (4, 1), (2, 5), (5, 2)):
    to = squared[anchor, positive]
    others = [squared[anchor, i] for i in range(6) if i % 3 != anchor % 3]
    farther = [each for each in others if each > to]
    hinges.append(max(0.0, 3.0 + to - (min(farther) if farther else max(others))))
  assert float(loss) == pytest.approx(np.mean(hinges), abs=1e-4)


@pytest.mark.parametrize("mask", [(1, 1, 0), (0, 1, 0), (0, 0, 0), (1, 1, 1)])
def test_triplets_that_count_are_those_of_a_smaller_batch(mask):
  kept = np.flatnonzero(mask)
  want = losses.TripletLoss(PRE[kept], GOAL[kept], POST[kept])[0]
  compiled = tf.function(losses.TripletLoss, jit_compile=True)
  loss, vectors, labels = compiled(PRE, GOAL, POST, tf.constant(mask))
  assert float(loss) == pytest.approx(float(want), abs=1e-5)
  assert vectors.shape == (6, 2)
  assert labels.numpy().tolist() == [i if mask[i] else -1 for i in (0, 1, 2, 0, 1, 2)]


def test_norms_and_maps():
  assert float(losses.SendToZeroLoss(GOAL, LAST)) == 2
  assert float(losses.SendToZeroLoss(GOAL, NONE)) == 0
  anchors, paired = tf.Variable(PRE), tf.Variable(3.0 * PRE)
  with tf.GradientTape() as tape:
    loss = losses.MatchNormsLoss(anchors, paired)
  assert float(loss) == pytest.approx(0.5 * np.sum((2.0 * PRE) ** 2), rel=1e-5)
  gradients = tape.gradient(loss, [anchors, paired])
  assert gradients[0] is None and np.abs(gradients[1]).min(axis=1).max() > 0
  maps = np.zeros([1, 2, 2, 2])
  maps[0, 1, 0] = (0.0, 5.0)
  seen = losses.TYloss(maps, np.zeros_like(maps), np.array([[0.0, 1.0]]))
  assert float(seen) == pytest.approx(-1.0)


@pytest.mark.parametrize(
  ("labels", "want"), [((1, 3, 0, 2), 1.0), ((2, 0, 3, 1), 0.0), ((1, 0, 0, 1), 0.5)]
)
def test_keypoints_in_their_quadrants(labels, want):
  points = np.array([[-0.6, -0.4], [-0.4, 0.1], [0.3, -0.6], [0.7, 0.9]])
  accuracy, entropy = losses.KeypointAccuracy(points, np.array(labels))
  assert float(accuracy) == want
  assert float(entropy) > 0
