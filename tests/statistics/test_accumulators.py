"""Moments, quantile sketches and lengths against numpy's of all values."""

from __future__ import annotations

import collections
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from t2r_seq.statistics.accumulators import Moments, QuantileSketch
from t2r_seq.statistics.statistics import LengthStatistics

RNG = np.random.default_rng(0)
NORMAL = RNG.normal(size=(5000, 3))
# name: values [rows, elements]
MOMENTS = {
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
@pytest.mark.parametrize("name", MOMENTS)
def test_any_split_gives_numpys_moments(name, split):
  values = MOMENTS[name]
  got = moments_of(values, SPLITS[split])
  mean, std = exact(values)
  assert got.count.tolist() == [len(values)] * values.shape[1]
  np.testing.assert_allclose(got.mean, mean, rtol=1e-12, atol=1e-14 * std.max())
  np.testing.assert_allclose(got.std(), std, rtol=1e-12, atol=1e-300)


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


FRACTIONS = np.linspace(0, 1, 41)
NUM = 60_000
UNIFORM = RNG.uniform(size=NUM)
SKETCHES = {
  "shuffled": UNIFORM,
  "sorted": np.sort(UNIFORM),
  "reversed": np.sort(UNIFORM)[::-1],
  "constant": np.full(NUM, 3.0),
  "two values": (UNIFORM > 0.99).astype(np.float64),
  "heavy tails": RNG.standard_cauchy(NUM),
  "zoom in": np.where(np.arange(NUM) % 2, 1.0, -1.0) / (1.0 + np.arange(NUM)),
  "saw": np.arange(NUM) % 257.0,
  "blocks of one value": np.repeat(RNG.permutation(600), 100).astype(np.float64),
}


def rank_errors(sketch: QuantileSketch, values: np.ndarray) -> np.ndarray:
  """Returns how many ranks each answer is away from the asked one."""
  ordered = np.sort(values)
  answers = sketch.quantiles(FRACTIONS)
  low = np.searchsorted(ordered, answers, "left") + 1
  high = np.searchsorted(ordered, answers, "right")
  assert np.all(low <= high), "an answer is none of the values"
  ranks = np.ceil(FRACTIONS * len(values)).clip(1, len(values))
  return np.maximum(np.maximum(low - ranks, ranks - high), 0)


@pytest.mark.parametrize("block", [1000, 4096, 60_000])
@pytest.mark.parametrize("name", SKETCHES)
def test_sketch_bound(name, block):
  values = SKETCHES[name]
  sketch = QuantileSketch(256)
  for start in range(0, NUM, block):
    sketch.add(values[start : start + block])
  assert sketch.count == NUM
  assert rank_errors(sketch, values).max() <= sketch.rank_error
  levels = math.log2(NUM / 256) + 1
  assert sketch.rank_error <= NUM * levels / 256


@pytest.mark.parametrize("size, bound", [(4096, 0.0006), (256, 0.02)])
def test_sketch_error_is_small(size, bound):
  sketch = QuantileSketch(size)
  for block in np.split(UNIFORM, 60):
    sketch.add(block)
  assert sketch.rank_error / NUM <= bound


@pytest.mark.parametrize("name", SKETCHES)
def test_merged_sketches_keep_the_bound(name):
  values = SKETCHES[name]
  splits = {"even": 10, "tree": 16, "ragged": [1, 2, 500, 501, 30_000]}
  for kind, split in splits.items():
    parts = []
    for block in np.array_split(values, split):
      parts.append(QuantileSketch(256))
      parts[-1].add(block)
    while len(parts) > 1:
      if kind == "tree":
        for first, second in zip(parts[::2], parts[1::2], strict=True):
          first.merge(second)
        parts = parts[::2]
      else:
        parts[0].merge(parts.pop(1))
    assert parts[0].count == NUM
    assert rank_errors(parts[0], values).max() <= parts[0].rank_error
    assert parts[0].rank_error <= NUM * (math.log2(NUM / 256) + 1) / 256


@hypothesis.given(
  st.lists(st.lists(st.floats(-5, 5), max_size=80), min_size=1, max_size=12)
)
@hypothesis.settings(max_examples=40)
def test_sketch_bound_for_any_blocks(blocks):
  sketch = QuantileSketch(16)
  for block in blocks:
    other = QuantileSketch(16)
    other.add(np.asarray(block, np.float64))
    sketch.merge(other)
  values = np.concatenate([np.asarray(block, np.float64) for block in blocks])
  assert sketch.count == len(values)
  if len(values):
    assert rank_errors(sketch, values).max() <= sketch.rank_error


def test_sketches_of_few_values_are_exact():
  sketch = QuantileSketch(256)
  sketch.add(UNIFORM[:256])
  assert sketch.rank_error == 0
  want = np.quantile(UNIFORM[:256], [0.1, 0.5, 0.9], method="inverted_cdf")
  assert sketch.quantiles([0.1, 0.5, 0.9]).tolist() == want.tolist()
  assert np.isnan(QuantileSketch().quantiles([0.5])).all()


LENGTHS = {
  "one": [7],
  "equal": [5] * 30,
  "few": [3, 1, 2, 2, 9],
  "many": np.random.default_rng(0).integers(1, 900, 1000).tolist(),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths(name):
  lengths = LENGTHS[name]
  got = LengthStatistics.of(collections.Counter(lengths))
  assert got is not None
  assert (got.num_episodes, got.num_steps) == (len(lengths), sum(lengths))
  assert (got.min, got.max) == (min(lengths), max(lengths))
  assert got.mean == sum(lengths) / len(lengths)
  for fraction, value in got.quantiles.items():
    assert value == np.quantile(lengths, fraction, method="inverted_cdf")
  assert sum(got.counts) == len(lengths) and len(got.edges) == len(got.counts) + 1
  assert len(got.counts) <= 20
  for low, high, count in zip(got.edges[:-1], got.edges[1:], got.counts, strict=True):
    assert count == sum(low <= length < high for length in lengths)
