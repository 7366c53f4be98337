"""What is drawn depends on the seed, the sample's number and the purpose alone."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import randomness

NUMBERS = tf.range(20_000, dtype=tf.int64)


def splitmix(word: int) -> int:
  """The finalizer, in Python's integers."""
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
  word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
  return word ^ word >> 31


def test_random_numbers_equal_a_reference():
  numbers = [0, 1, 5, 2**40, 2**63 - 1]
  got = (
    randomness.RandomNumbers(tf.constant(numbers, tf.int64), 7)
    .scoped("part")
    .uniform("crop")
  )
  key = splitmix((splitmix(7) + zlib.crc32(b"part/crop")) % 2**64)
  want = [
    (splitmix((splitmix(n * 0x9E3779B97F4A7C15 % 2**64) + key) % 2**64) >> 40) / 2**24
    for n in numbers
  ]
  np.testing.assert_array_equal(got, np.float32(want))


def test_sample_has_its_numbers_in_any_batch():
  whole = randomness.RandomNumbers(NUMBERS, 3)
  part = randomness.RandomNumbers(NUMBERS[100:103], 3)
  np.testing.assert_array_equal(part.uniform("a"), whole.uniform("a")[100:103])
  np.testing.assert_array_equal(part.seeds("a"), whole.seeds("a")[100:103])
  few = randomness.RandomNumbers(NUMBERS[100:101], 3).normal("a", [4, 3])
  np.testing.assert_allclose(few[0], part.normal("a", [4, 3])[0], rtol=1e-5)


def test_distributions():
  drawn = randomness.RandomNumbers(NUMBERS, 1)
  uniform = drawn.uniform("a", -1, 3).numpy()
  assert -1 <= uniform.min() < -0.99 and 2.99 < uniform.max() < 3
  assert abs(uniform.mean() - 1) < 0.03 and abs(uniform.std() - 4 / 12**0.5) < 0.03
  counts = np.bincount(drawn.integers("b", 5).numpy(), minlength=5)
  assert len(counts) == 5 and np.all(np.abs(counts - 4000) < 250)
  assert abs(np.mean(drawn.chance("c", 0.2)) - 0.2) < 0.02
  normal = randomness.RandomNumbers(NUMBERS[:2]).normal("d", [9999]).numpy()
  assert np.all(np.abs(normal.mean(axis=1)) < 0.04)
  assert np.all(np.abs(normal.std(axis=1) - 1) < 0.04)
  pixels = drawn.normal("e", [3]).numpy()
  assert np.all(np.abs(np.corrcoef(pixels.T) - np.eye(3)) < 0.03)


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_permutations_differ_by_sample_and_are_uniform(size):
  number, index = (each.reshape(-1) for each in np.indices([5_000, size]))
  sizes = np.full_like(number, size)
  places = randomness.RandomNumbers(tf.constant(number), 3).permute("p", index, sizes)
  rows = places.numpy().reshape(-1, size)
  np.testing.assert_array_equal(np.sort(rows), np.tile(np.arange(size), [5_000, 1]))
  if size == 4:
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(counts) == 24 and np.sum((counts * 24 / 5_000 - 1) ** 2) < 0.25
  pairs = np.zeros([size, size])
  np.add.at(pairs, (rows[:, 0], rows[:, -1]), 1)
  if size > 1:
    likely = (1 - np.eye(size)) * 5_000 / (size * (size - 1))
    assert np.all(np.abs(pairs - likely) < 5 * np.sqrt(likely) + 1)


@pytest.mark.parametrize("other", ["purpose", "seed", "scope", "number"])
def test_other_purposes_seeds_and_scopes_are_independent(other):
  first = randomness.RandomNumbers(NUMBERS, 1).uniform("a")
  second = {
    "purpose": lambda: randomness.RandomNumbers(NUMBERS, 1).uniform("b"),
    "seed": lambda: randomness.RandomNumbers(NUMBERS, 2).uniform("a"),
    "scope": lambda: randomness.RandomNumbers(NUMBERS, 1).scoped("x").uniform("a"),
    "number": lambda: randomness.RandomNumbers(NUMBERS + 1, 1).uniform("a"),
  }[other]()
  assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_batches_are_numbered_inside_and_drawn_for_outside():
  numbers = tf.constant([4, 5], tf.int64)
  with randomness.sample_number_scope(numbers, on_host=True):
    assert randomness.is_on_host()
    inside = randomness.of_samples(2, seed=3)
    batches = [randomness.of_batch() for _ in range(2)]
  np.testing.assert_array_equal(inside.numbers, numbers)
  assert [b.numbers.numpy().tolist() for b in batches] == [[4], [4]]
  assert batches[0].uniform("a") != batches[1].uniform("a")
  assert not randomness.is_on_host() and randomness.sample_numbers() is None
  drawn = []
  for _ in range(2):
    tf.random.set_seed(1)
    drawn.append(randomness.of_samples(2).numbers.numpy().tolist())
  assert drawn[0] == drawn[1] and drawn[0][0] != drawn[0][1]


def test_xla_draws_the_same():
  drawn = randomness.RandomNumbers(NUMBERS[:3], 1)

  def draw():
    return drawn.uniform("a"), drawn.integers("b", 9), drawn.normal("c", [3, 5])

  got = tf.function(draw, jit_compile=True)()
  for mine, compiled in zip(tf.function(draw)(), got, strict=True):
    np.testing.assert_allclose(mine, compiled, atol=1e-5)
