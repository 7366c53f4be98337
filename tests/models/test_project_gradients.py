"""PCGrad: gradients of several losses without what opposes another."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, models

# name: (gradients of each loss in one variable of two numbers, what is applied)
CASES = {
  "no conflict": ([[1.0, 0.0], [0.0, 2.0]], [1.0, 2.0]),
  # (1, 0) loses its part along (-1, 1), and that its part along (1, 0).
  "a conflict": ([[1.0, 0.0], [-1.0, 1.0]], [0.5, 1.5]),
  "one against itself is none": ([[3.0, -1.0]], [3.0, -1.0]),
  "a loss that is flat": ([[1.0, 2.0], [0.0, 0.0]], [1.0, 2.0]),
}


@pytest.mark.parametrize(("given", "want"), CASES.values(), ids=CASES)
def test_conflicts_are_projected_away(given, want):
  (applied,) = models.project_gradients([[tf.constant(each)] for each in given])
  np.testing.assert_allclose(applied, want, atol=1e-6)


def test_conflicts_are_of_all_variables_together():
  first = [tf.constant([[1.0]]), tf.constant([0.0]), None, tf.constant([2.0])]
  second = [tf.constant([[-1.0]]), tf.constant([1.0]), None, None]
  applied = models.project_gradients([first, second])
  assert applied[2] is None
  # Along (-1, 1, 0): -1 / 2 of it; along (1, 0, 2): -1 / 5.
  np.testing.assert_allclose(applied[0], [[0.5 - 0.8]], atol=1e-6)
  np.testing.assert_allclose(applied[1], [0.5 + 1.0], atol=1e-6)
  np.testing.assert_allclose(applied[3], [2.0 + 0.4], atol=1e-6)


@pytest.mark.parametrize("given", [[], [[tf.zeros(1)], []]])
def test_gradients_that_do_not_fit_are_refused(given):
  with pytest.raises(errors.SpecError, match="project_gradients: gradients: expected"):
    models.project_gradients(given)
