"""Merged moments against numpy's of the whole array."""

from __future__ import annotations

import math

import numpy as np
import pytest

from t2r_seq.statistics.accumulators import Moments

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(5000, 3))
# name: values [rows, elements]
CASES = {
  "plain": NORMAL,
  "offset 1e6, float32": (1e6 + NORMAL).astype(np.float32),
  "offset 1e8": 1e8 + NORMAL,
  "offset -1e9": -1e9 + 1e-3 * NORMAL,
  "drift": np.cumsum(NORMAL, axis=0) + 1e7,
  "heavy tails": RNG.standard_cauchy((5000, 3)),
  "tiny": 1e-30 * NORMAL,
  "constant": np.full((5000, 2), 0.1),
  "integers": RNG.integers(-1000, 1000, (5000, 3)),
  "timestamps": 1_700_000_000_000_000_000 + RNG.integers(0, 10**6, (5000, 2)),
  "uint64": (2**64 - 1000 + RNG.integers(0, 900, (5000, 1)).astype(np.uint64)),
  "whole int64": np.asarray([[-(2**63)], [2**63 - 1], [0]]),
  "float16": (8 + NORMAL).astype(np.float16),
}
SPLITS = {
  "one block": [],
  "two": [1],
  "rows": list(range(1, 60)),
  "odd": [7, 8, 3000, 4999],
  "empty ones": [0, 0, 2500, 2500],
}


def exact(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean and std of columns; the distances from a pivot lose nothing."""
  means, stds = [], []
  for column in values.T:
    pivot = column[0].item()
    distances = [v - pivot for v in column.tolist()]
    mean = math.fsum(distances) / len(distances)
    squares = math.fsum((d - mean) ** 2 for d in distances)
    means.append(pivot + mean)
    stds.append(math.sqrt(squares / len(distances)))
  return np.asarray(means), np.asarray(stds)


def moments_of(values: np.ndarray, splits: list[int]) -> Moments:
  """Merges the moments of blocks."""
  merged = Moments.zeros(values.shape[1])
  for block in np.split(values, splits):
    merged.merge(Moments.of_block(block))
  return merged


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", CASES)
def test_any_split_gives_numpys_moments(name, split):
  values = CASES[name]
  got = moments_of(values, SPLITS[split])
  mean, std = exact(values)
  assert got.count.tolist() == [len(values)] * values.shape[1]
  np.testing.assert_allclose(got.mean, mean, rtol=1e-12, atol=1e-14 * std.max())
  np.testing.assert_allclose(got.std(), std, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", ["plain", "offset 1e6, float32", "offset 1e8"])
def test_numpy_itself(name):
  values = CASES[name].astype(np.float64)
  got = moments_of(values, SPLITS["odd"])
  np.testing.assert_allclose(got.mean, values.mean(axis=0), rtol=1e-9)
  np.testing.assert_allclose(got.std(), values.std(axis=0), rtol=1e-9)


def test_the_naive_sum_of_squares_would_fail():
  values = CASES["offset 1e8"]
  variance = np.square(values).mean(axis=0) - values.mean(axis=0) ** 2
  naive = np.sqrt(np.abs(variance))
  assert not np.allclose(naive, values.std(axis=0), rtol=1e-3)


def test_values_that_are_not_finite_count_for_nothing():
  values = 1e8 + NORMAL
  values[::7, 0], values[3, 1], values[:, 2] = np.nan, np.inf, -np.inf
  finite = np.isfinite(values)
  got = Moments.zeros(3)
  for rows in np.split(np.arange(5000), [1, 2000]):
    got.merge(Moments.of_block(values[rows], finite[rows]))
  assert got.count.tolist() == finite.sum(axis=0).tolist() == [4285, 4999, 0]
  for column in (0, 1):
    mean, std = exact(values[finite[:, column], column : column + 1])
    np.testing.assert_allclose(got.mean[column], mean[0], rtol=1e-14)
    np.testing.assert_allclose(got.std()[column], std[0], rtol=1e-12)
  assert math.isnan(got.std()[2])
