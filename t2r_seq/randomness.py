"""Random numbers that are a function of a seed, a sample's number and a purpose.

Nothing is drawn from a generator that has a state: the same sample gets the same
numbers in any process, batch, order or run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import zlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

_WORD = 2**64
# The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
# lowbias32 of Chris Wellons's search for hashes of 32 bits.
_STEPS_32 = ((16, 0x7FEB352D), (15, 0x846CA68B))
_GOLDEN = 0x9E3779B97F4A7C15
# Rounds of `permute`; 4 make all orders of a few numbers equally frequent.
_EXCHANGES = 24


@dataclasses.dataclass(frozen=True)
class RandomNumbers:
  """The random numbers of a batch of samples; each purpose has its own.

  Attributes:
    numbers: numbers of the samples, int64 [B].
    seed: seed of all samples.
    scope: prefix of the names of purposes.
  """

  numbers: tf.Tensor
  seed: int = 0
  scope: str = ""

  def scoped(self, name: str) -> RandomNumbers:
    """Returns the numbers of a part, whose purposes are separate from the others."""
    return dataclasses.replace(self, scope=f"{self.scope}{name}/")

  def uniform(self, purpose: str, low: float = 0.0, high: float = 1.0) -> tf.Tensor:
    """Draws from [low, high); float32 [B]."""
    bits = tf.bitwise.right_shift(self._words(purpose), tf.constant(40, tf.uint64))
    return low + (high - low) * (tf.cast(bits, tf.float32) * 2.0**-24)

  def integers(self, purpose: str, count: int) -> tf.Tensor:
    """Draws from range(count), count up to 2**24; int32 [B]."""
    drawn = tf.cast(self.uniform(purpose) * float(count), tf.int32)
    return tf.minimum(drawn, count - 1)

  def permute(self, purpose: str, index: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns where each sample's random permutation of range(size) maps its index.

    TensorFlow's `index_shuffle` retries until a number is in range, which takes 0.1 ms
    for small sizes. This is the swap-or-not shuffle of Hoang, Morris and Rogaway, 'An
    Enciphering Scheme Based on a Card Shuffle', 2012.

    Args:
      purpose: name of the permutations.
      index: int64 [B], less than the size.
      size: sizes of the permutations, int64 [B].
    Returns:
      int64 [B].
    """
    for number in range(_EXCHANGES):
      words = self._words(f"{purpose}/{number}")
      offset = tf.cast(words % tf.cast(size, tf.uint64), tf.int64)
      other = tf.math.floormod(offset - index, size)
      # The maximum identifies the pair {index, other}: both of them swap, or neither.
      pair = RandomNumbers(
        tf.bitcast(words, tf.int64) + tf.maximum(index, other), self.seed
      )
      index = tf.where(pair.chance("exchanged", 0.5), other, index)
    return index

  def chance(self, purpose: str, probability: float) -> tf.Tensor:
    """Draws whether something happens; bool [B]."""
    return self.uniform(purpose) < probability

  def normal(self, purpose: str, shape: tf.Tensor | Sequence[int]) -> tf.Tensor:
    """Draws from the standard normal distribution; float32 [B, *shape]."""
    shape = tf.convert_to_tensor(shape, tf.int32)
    count = tf.reduce_prod(shape)
    pairs = _spread(*_halves(self._words(purpose)), 2 * ((count + 1) // 2))
    # After Box and Muller. `tf.random.stateless_normal` takes one seed for all samples,
    # and gives other numbers where XLA compiles it.
    radius, turns = tf.split(pairs, 2, axis=1)
    radius, angle = tf.sqrt(-2.0 * tf.math.log(1.0 - radius)), 2 * math.pi * turns
    values = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=1)
    return tf.reshape(values[:, :count], tf.concat([[-1], shape], axis=0))

  def seeds(self, purpose: str) -> tf.Tensor:
    """Returns seeds for TensorFlow's stateless ops; int32 [B, 2]."""
    low, high = _halves(self._words(purpose))
    return tf.bitcast(tf.stack([low, high], axis=-1), tf.int32)

  def _words(self, purpose: str) -> tf.Tensor:
    """Returns 64 random bits for each sample, uint64 [B]."""
    salt = zlib.crc32(f"{self.scope}{purpose}".encode())
    key = _mix(_mix(self.seed % _WORD) + salt)
    words = tf.bitcast(self.numbers, tf.uint64)
    words = _mix_tensor(words * tf.constant(_GOLDEN, tf.uint64))
    return _mix_tensor(words + tf.constant(key, tf.uint64))


def of_seeds(seeds: tf.Tensor, count: int) -> tf.Tensor:
  """Draws many numbers for each of N seeds, by ops that LiteRT has, too.

  Args:
    seeds: int32 [N, 2].
    count: number of random numbers for each seed.
  Returns:
    float32 [N, count], from [0, 1).
  """
  low, high = (tf.bitcast(each, tf.uint32) for each in tf.unstack(seeds, axis=1))
  return _spread(_fold(low, _STEPS_32, 16), high, tf.constant(count))


def _spread(low: tf.Tensor, high: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
  """Makes float32 [N, count], in [0, 1), from 64 bits per sample, two uint32 [N]."""
  places = tf.range(count, dtype=tf.int32)
  words = _fold(tf.bitcast(places, tf.uint32) + low[:, tf.newaxis], _STEPS_32, 16)
  words = _fold(tf.bitwise.bitwise_xor(words, high[:, tf.newaxis]), _STEPS_32, 16)
  bits = tf.bitwise.right_shift(words, tf.constant(8, tf.uint32))
  return tf.cast(tf.bitcast(bits, tf.int32), tf.float32) * 2.0**-24


def _mix(word: int) -> int:
  for shift, factor in _STEPS:
    word = (word ^ word >> shift) * factor % _WORD
  return word ^ word >> _LAST_SHIFT


def _mix_tensor(words: tf.Tensor) -> tf.Tensor:
  return _fold(words, _STEPS, _LAST_SHIFT)


def _fold(
  words: tf.Tensor, steps: Sequence[tuple[int, int]], last_shift: int
) -> tf.Tensor:
  def fold(words: tf.Tensor, shift: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(words, tf.constant(shift, words.dtype))
    return tf.bitwise.bitwise_xor(words, shifted)

  for shift, factor in steps:
    words = fold(words, shift) * tf.constant(factor, words.dtype)
  return fold(words, last_shift)


def _halves(words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
  """Splits uint64 into the low and the high uint32."""
  high = tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))
  mask = tf.constant(2**32 - 1, tf.uint64)
  low = tf.bitwise.bitwise_and(words, mask)
  return tf.cast(low, tf.uint32), tf.cast(high, tf.uint32)


class _Present(threading.local):
  """Thread-local state of `sample_number_scope`: a function is traced in one thread."""

  numbers: tf.Tensor | None = None
  on_host: bool = False
  num_calls: int = 0


_present = _Present()


@contextlib.contextmanager
def sample_number_scope(
  numbers: tf.Tensor | None, on_host: bool = False
) -> Iterator[None]:
  """Sets the sample numbers for functions that are traced inside.

  Args:
    numbers: numbers of the samples of a batch, int64 [B]; None for no numbers.
    on_host: the ops run in an input pipeline, and not on the device that trains.
  """
  # threading.local has a separate __dict__ in each thread.
  before = dict(_present.__dict__)
  _present.__dict__.update(numbers=numbers, on_host=on_host, num_calls=0)
  try:
    yield
  finally:
    _present.__dict__.clear()
    _present.__dict__.update(before)


def sample_numbers() -> tf.Tensor | None:
  """Returns int64 [B] as set by `sample_number_scope`; None outside of it."""
  return _present.numbers


def is_on_host() -> bool:
  """Whether the traced function runs in an input pipeline."""
  return _present.on_host


def of_samples(batch_size: tf.Tensor, seed: int = 0) -> RandomNumbers:
  """Returns the random numbers of the batch that the traced function gets.

  Args:
    batch_size: B, an integer scalar; used only outside of `sample_number_scope`, where
      TensorFlow's global generator numbers the samples; see `tf.random.set_seed`.
    seed: seed of the numbers.
  """
  if _present.numbers is not None:
    return RandomNumbers(_present.numbers, seed)
  numbers = tf.random.uniform([batch_size], maxval=tf.int64.max, dtype=tf.int64)
  return RandomNumbers(numbers, seed)


def of_batch() -> RandomNumbers:
  """Returns random numbers for a whole batch, [1]: its first sample's.

  Each call within one function is a separate purpose.
  """
  whole = of_samples(tf.constant(1))
  first = RandomNumbers(whole.numbers[:1], whole.seed)
  if _present.numbers is None:  # Each call has another number.
    return first
  _present.num_calls += 1
  return first.scoped(f"call {_present.num_calls}")
