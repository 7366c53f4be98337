"""All selectors against brute force: what they choose, and how often."""

from __future__ import annotations

import numpy as np
import pytest

from t2r_seq.replay import options
from t2r_seq.replay.selectors import Selector, make_selector

OPTIONS = {
  "fifo": options.Fifo(),
  "prioritized": options.Prioritized(0.7),
}


class Model:
  """Items as a plain dict: row -> (priority, number of its last change)."""

  def __init__(self, option: options.SelectorOption) -> None:
    self.option = option
    self.items: dict[int, list[float]] = {}
    self.inserted: list[int] = []
    self.count = 0

  def insert(self, rows, priorities):
    self.inserted += rows.tolist()
    self.update(rows, priorities)

  def remove(self, rows):
    for row in rows.tolist():
      del self.items[row]
      self.inserted.remove(row)

  def update(self, rows, priorities):
    for row, priority in zip(rows.tolist(), priorities.tolist(), strict=True):
      self.count += 1
      self.items[row] = [priority, self.count]

  def probabilities(self) -> dict[int, float]:
    """Row -> probability; those that cannot be chosen are left out."""
    match self.option:
      case options.Fifo():
        return {self.inserted[0]: 1.0}
    exponent = getattr(self.option, "priority_exponent", None)
    weights = {row: 1.0 for row in self.items}
    if exponent is not None and any(p for p, _ in self.items.values()):
      weights = {row: p**exponent for row, (p, _) in self.items.items() if p}
    total = sum(weights.values())
    return {row: weight / total for row, weight in weights.items()}


def is_fair(rows: np.ndarray, probabilities: dict[int, float]) -> bool:
  """Chi-square, at about six standard deviations."""
  want = np.array(list(probabilities.values())) * len(rows)
  got = np.array([(rows == row).sum() for row in probabilities])
  if got.sum() != len(rows):
    return False
  statistic = ((got - want) ** 2 / want).sum()
  freedom = len(want) - 1
  return bool(statistic <= freedom + 6 * np.sqrt(2 * freedom))


def check(selector: Selector, model: Model, rng: np.random.Generator) -> None:
  assert sorted(selector.rows().tolist()) == sorted(model.items)
  if not model.items:
    return
  want = model.probabilities()
  rows, probabilities = selector.sample(64, rng)
  assert rows.dtype == np.int64 and probabilities.dtype == np.float64
  np.testing.assert_allclose(probabilities, [want[row] for row in rows.tolist()])


def remade(selector: Selector, model: Model, capacity: int) -> Selector:
  rows = selector.rows()
  again = make_selector(model.option, capacity)
  again.insert(rows, np.array([model.items[row][0] for row in rows.tolist()]))
  return again


@pytest.mark.parametrize("name", OPTIONS)
def test_chooses_as_brute_force_does(name):
  capacity, rng = 200, np.random.default_rng(7)
  selector, model = make_selector(OPTIONS[name], capacity), Model(OPTIONS[name])
  check(selector, model, rng)
  for step in range(600):
    held = np.array(sorted(model.items), np.int64)
    free = np.setdiff1d(np.arange(capacity), held)
    # Priorities of few values: ties, and zeros.
    count = rng.integers(0, min(len(free), 20) + 1)
    rows = rng.permutation(free)[:count]
    priorities = rng.integers(0, 6, count).astype(np.float64)
    for change in (selector, model):
      change.insert(rows, priorities)
    rows = rng.permutation(held)[: rng.integers(0, 5)]
    priorities = rng.integers(0, 6, len(rows)).astype(np.float64)
    for change in (selector, model):
      change.update(rows, priorities)
    held = np.array(sorted(model.items), np.int64)
    count = len(held) if step % 50 == 49 else rng.integers(0, min(len(held), 20) + 1)
    rows = rng.permutation(held)[:count]
    for change in (selector, model):
      change.remove(rows)
    check(selector, model, rng)
    if step % 97 == 0:
      # What a checkpoint does; from here on the new one has to do as well.
      selector = remade(selector, model, capacity)


@pytest.mark.parametrize("name", OPTIONS)
def test_made_again_it_chooses_the_same(name):
  rng = np.random.default_rng(3)
  selector, model = make_selector(OPTIONS[name], 50), Model(OPTIONS[name])
  for rows in (np.arange(30, 50), np.arange(10)):
    priorities = rng.integers(1, 4, len(rows)).astype(np.float64)
    for change in (selector, model):
      change.insert(rows, priorities)
      change.remove(rows[3:7])
  again = remade(selector, model, 50)
  left, right = (np.random.default_rng(5) for _ in range(2))
  while len(selector.rows()):
    (row, *_), _ = selector.sample(3, left)
    np.testing.assert_array_equal(again.sample(3, right)[0][0], row)
    selector.remove(np.array([row]))
    again.remove(np.array([row]))


DISTRIBUTIONS = {
  "exponent 1": (options.Prioritized(1.0), [1, 2, 3, 4]),
  "exponent 0.5": (options.Prioritized(0.5), [1, 2, 3, 4]),
  "exponent 2": (options.Prioritized(2.0), [0.1, 2, 3, 4]),
  "some of priority 0": (options.Prioritized(1.0), [0, 2, 0, 4]),
  "exponent 0": (options.Prioritized(0.0), [1, 2, 3, 4]),
  "exponent 0, some of priority 0": (options.Prioritized(0.0), [0, 2, 0, 4]),
  "all of priority 0": (options.Prioritized(0.6), [0, 0, 0, 0]),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name):
  option, priorities = DISTRIBUTIONS[name]
  selector, model = make_selector(option, 40), Model(option)
  # Rows that came and went leave no trace in the distribution.
  for change in (selector, model):
    change.insert(np.arange(40), np.full(40, 9.0))
    change.remove(np.arange(3, 39))
    change.update(np.array([0, 1, 2, 39]), np.array(priorities, np.float64))
  rows, probabilities = selector.sample(40_000, np.random.default_rng(11))
  want = model.probabilities()
  assert is_fair(rows, want)
  np.testing.assert_allclose(probabilities, [want[row] for row in rows.tolist()])
