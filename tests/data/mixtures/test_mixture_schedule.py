from __future__ import annotations

import numpy as np
import pytest

from t2r_seq import errors
from t2r_seq.data.mixtures import make_schedule

# name: (weights, batch size, counts of a period, in any order)
CASES = {
  "even": ([3, 1], 32, [[24, 8]]),
  "one source": ([7], 5, [[5]]),
  "scale is of no account": ([0.3, 0.1], 4, [[3, 1]]),
  "halves go round": ([1, 1], 3, [[2, 1], [1, 2]]),
  "less than one a batch": ([9, 1], 5, [[4, 1], [5, 0]]),
  "tenths": (
    [0.7, 0.2, 0.1],
    8,
    [[5, 2, 1], [5, 2, 1], [6, 1, 1], [6, 1, 1], [6, 2, 0]],
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_of_a_period(name):
  weights, batch_size, want = CASES[name]
  counts = make_schedule(weights, batch_size, seed=0)
  assert sorted(counts.tolist()) == sorted(want)
  shares = counts.sum(axis=0) / counts.sum()
  np.testing.assert_allclose(shares, np.array(weights) / sum(weights))


def random_weights():
  rng = np.random.default_rng(0)
  for seed in range(150):
    size = rng.integers(1, 9)
    whole = rng.integers(1, 40, size).astype(float)
    weights = whole if seed % 2 else rng.random(size) + 0.01
    yield weights.tolist(), int(rng.integers(1, 65)), seed


def test_batches_are_in_proportion_and_sums_exact():
  for weights, batch_size, seed in random_weights():
    counts = make_schedule(weights, batch_size, seed)
    quota = batch_size * np.array(weights) / sum(weights)
    np.testing.assert_array_equal(counts.sum(axis=1), batch_size)
    assert (counts >= np.floor(quota - 1e-9)).all()
    assert (counts <= np.ceil(quota + 1e-9)).all()
    ideal = quota * np.arange(1, len(counts) + 1)[:, np.newaxis]
    assert np.abs(np.cumsum(counts, axis=0) - ideal).max() < 5
    # Exact, or where that takes too long a period, to one example in it.
    off = np.abs(counts.sum(axis=0) - quota * len(counts)).max()
    assert off < 1e-6 or (len(counts) == 4096 and off < 1)


def test_seed_sets_the_start_of_the_round():
  first = {tuple(make_schedule([5, 3], 4, seed)[0]) for seed in range(9)}
  assert first == {(2, 2), (3, 1)}


def test_source_that_would_never_come_is_an_error():
  with pytest.raises(errors.SpecError, match=r"in 4096 batches of 2, got 1e-09 of 1"):
    make_schedule([1, 1e-9], 2, seed=0)


@pytest.mark.parametrize("num_shards", [2, 3, 4])
@pytest.mark.parametrize("weights, size", [((1, 1), 1), ((3, 1), 2), ((0.7, 0.3), 3)])
def test_pipelines_together_are_in_proportion(weights, size, num_shards):
  shards = [
    make_schedule(weights, size, 5, index, num_shards) for index in range(num_shards)
  ]
  exact = size * np.array(weights) / sum(weights)
  for each in shards:
    np.testing.assert_array_equal(each.sum(1), size)
    np.testing.assert_allclose(each.sum(0), len(each) * exact)
  assert np.abs(sum(shards) - num_shards * exact).max() < 1 + 1e-9
