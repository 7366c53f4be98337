"""The sum tree draws as a walk along the running sum of all values would."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq import errors
from t2r_seq.replay.selectors import SumTree

# One level, just above one level, an odd number, three levels.
CAPACITIES = (1, 15, 4096, 4097, 70_001, 1 << 20)


def walk(values: np.ndarray, fractions: np.ndarray) -> np.ndarray:
  """What is to be drawn: the first row whose running sum is above."""
  running = np.cumsum(values)
  return running.searchsorted(fractions * running[-1], "right")


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_samples_follow_the_cumulative_sum(capacity):
  rng = np.random.default_rng(capacity)
  tree = SumTree(capacity)
  # Small integers add up exactly in any order, so the rows must be the same.
  values = rng.integers(0, 5, capacity).astype(np.float64)
  values[0] = 1
  tree.set(np.arange(capacity), values)
  for _ in range(3):
    fractions = np.r_[0.0, rng.random(500), 1 - 2.0**-53]
    np.testing.assert_array_equal(tree.sample(fractions), walk(values, fractions))
    rows = rng.integers(0, capacity, 300)
    new = rng.integers(1, 9, 300).astype(np.float64)
    values[rows] = new
    tree.set(rows, new)
    assert tree.total == values.sum()
    np.testing.assert_array_equal(tree.values[rows], values[rows])


def test_stays_exact_over_millions_of_updates():
  rng = np.random.default_rng(1)
  tree = SumTree(5000)
  values = np.zeros(5000)
  for _ in range(300):
    # Values of 30 orders of magnitude: differences would have lost all small ones.
    rows = rng.integers(0, 5000, 10_000)
    new = (10.0 ** rng.uniform(-15, 15, 10_000)).astype(np.float32)
    tree.set(rows, new)
    values[rows] = new
    tree.sample(rng.random(4))
  large = values > 1e-3
  tree.set(np.flatnonzero(large), 0)
  values[large] = 0
  assert tree.total == pytest.approx(values.sum(), rel=1e-13)
  fresh = SumTree(5000)
  fresh.set(np.arange(5000), values)
  assert fresh.total == tree.total


def test_never_draws_a_zero():
  rng = np.random.default_rng(2)
  tree = SumTree(100_000)
  values = np.where(rng.random(100_000) < 0.01, 10.0 ** rng.uniform(-30, 2), 0.0)
  values = (values * rng.random(100_000)).astype(np.float32).astype(np.float64)
  tree.set(np.arange(100_000), values)
  edges = np.cumsum(values)[values > 0] / values.sum()
  edges = np.r_[0.0, edges, np.nextafter(edges, 0), np.nextafter(edges, 1)]
  rows = tree.sample(edges[edges < 1])
  assert (values[rows] > 0).all()


def test_one_row_takes_all():
  tree = SumTree(1 << 20)
  tree.set(np.array([777_777]), 1e-45)  # Not even a normal number.
  fractions = np.array([0.0, 0.5, 1 - 2.0**-53])
  assert tree.sample(fractions).tolist() == [777_777] * 3
  tree.set(np.array([777_777]), 0.0)
  assert tree.total == 0


def test_last_value_of_a_repeated_row_counts():
  tree = SumTree(10)
  tree.set(np.array([3, 3, 4]), np.array([5.0, 1.0, 2.0]))
  assert tree.total == 3


def test_more_updates_than_there_are_nodes_at_once():
  rng = np.random.default_rng(4)
  tree, values = SumTree(20_001), np.zeros(20_001)
  for count in (3, 5000, 40_000, 30):
    rows = rng.integers(0, 20_001, count)
    new = rng.integers(0, 9, count).astype(np.float64)
    tree.set(rows, new)
    values[rows] = new
    assert tree.total == values.sum()


def test_sampling_zero_priorities_is_an_error():
  with pytest.raises(errors.SpecError, match="expected values above 0, got only 0"):
    SumTree(4).sample(np.array([0.5]))
