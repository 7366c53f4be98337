"""The sketch's bound holds, whatever the values, their order and the merges."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from t2r_seq.statistics.accumulators import (
  MAX_SIZE,
  MIN_SIZE,
  QuantileSketch,
  sketch_size,
)

FRACTIONS = np.linspace(0, 1, 41)
RNG = np.random.default_rng(0)
NUM = 60_000
UNIFORM = RNG.uniform(size=NUM)
CASES = {
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
  wanted = np.ceil(FRACTIONS * len(values)).clip(1, len(values))
  return np.maximum(np.maximum(low - wanted, wanted - high), 0)


@pytest.mark.parametrize("block", [1000, 4096, 60_000])
@pytest.mark.parametrize("name", CASES)
def test_bound(name, block):
  values = CASES[name]
  sketch = QuantileSketch(256)
  for start in range(0, NUM, block):
    sketch.add(values[start : start + block])
  assert sketch.count == NUM
  assert rank_errors(sketch, values).max() <= sketch.rank_error
  levels = math.log2(NUM / 256) + 1
  assert sketch.rank_error <= NUM * levels / 256


@pytest.mark.parametrize("size, bound", [(4096, 0.0006), (256, 0.02)])
def test_error_is_small(size, bound):
  sketch = QuantileSketch(size)
  for block in np.split(UNIFORM, 60):
    sketch.add(block)
  assert sketch.rank_error / NUM <= bound


@pytest.mark.parametrize("name", CASES)
def test_merges_keep_the_bound(name):
  values = CASES[name]
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
def test_bound_for_any_blocks(blocks):
  sketch = QuantileSketch(16)
  for block in blocks:
    other = QuantileSketch(16)
    other.add(np.asarray(block, np.float64))
    sketch.merge(other)
  values = np.concatenate([np.asarray(block, np.float64) for block in blocks])
  assert sketch.count == len(values)
  if len(values):
    assert rank_errors(sketch, values).max() <= sketch.rank_error


def test_few_values_are_exact():
  sketch = QuantileSketch(256)
  sketch.add(UNIFORM[:256])
  assert sketch.rank_error == 0
  want = np.quantile(UNIFORM[:256], [0.1, 0.5, 0.9], method="inverted_cdf")
  assert sketch.quantiles([0.1, 0.5, 0.9]).tolist() == want.tolist()


def test_no_values():
  assert np.isnan(QuantileSketch().quantiles([0.5])).all()


def test_memory_is_bounded():
  sketch = QuantileSketch(256)
  for _ in range(20):
    sketch.add(UNIFORM)
  assert max(map(len, sketch._levels)) <= 256


@pytest.mark.parametrize(
  "elements, want", [(0, MAX_SIZE), (1, MAX_SIZE), (128, 2048), (2048, MIN_SIZE)]
)
def test_sketch_size(elements, want):
  assert sketch_size(elements) == want
