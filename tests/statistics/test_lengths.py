"""Episode lengths, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq.statistics.statistics import LengthCounter

CASES = {
  "one": [7],
  "equal": [5] * 30,
  "few": [3, 1, 2, 2, 9],
  "many": np.random.default_rng(0).integers(1, 900, 1000).tolist(),
}


@pytest.mark.parametrize("name", CASES)
def test_lengths(name):
  lengths = CASES[name]
  counter, other = LengthCounter(), LengthCounter()
  for index, length in enumerate(lengths):
    (counter if index % 3 else other).add(length)
  counter.merge(other)
  got = counter.finish()
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


def test_no_episodes():
  assert LengthCounter().finish() is None
