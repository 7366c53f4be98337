"""Vectors of texts in numpy, as `HashedTextPreprocessor` computes them in TensorFlow.

TensorFlow is not imported here: LiteRT has no string ops, so `t2r_seq.lite` embeds
texts before it calls the network.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import unicodedata
from typing import Any

import numpy as np

_MASK = (1 << 64) - 1
# FarmHash's constants k0, k1 and k2.
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_NUM_CACHED = 64


@dataclasses.dataclass(frozen=True)
class HashedWords:
  """A fixed random vector for each word.

  The vector of a text is the sum of its words' vectors, divided by the square root of
  their number.

  Attributes:
    num_buckets: rows of the table; words may share one.
    ngrams: the largest n of the n-grams that have a vector; 1 for single words.
    seed: seed of the table.
    size: size of a vector.
  """

  num_buckets: int
  ngrams: int
  seed: int
  size: int

  @functools.cached_property
  def table(self) -> np.ndarray:
    """The vectors of all buckets, float64 [num_buckets, size]."""
    # NumPy promises that the numbers of this generator never change.
    rng = np.random.RandomState(self.seed)
    return rng.standard_normal([self.num_buckets, self.size])

  def embed(self, texts: Any) -> np.ndarray:
    """Returns the vectors of texts.

    Args:
      texts: str or bytes (UTF-8), or an array of them [...].
    Returns:
      float32 [..., size].
    """
    texts = np.asarray(texts, object)
    vectors = [self._embed(text) for text in texts.ravel().tolist()]
    return np.reshape(np.array(vectors, np.float32), [*texts.shape, self.size])

  @functools.lru_cache(_NUM_CACHED)  # noqa: B019 - a policy has one for its lifetime.
  def _embed(self, text: str | bytes) -> np.ndarray:
    total = np.zeros([self.size], np.float32)
    rows = [
      fingerprint64(word.encode()) % self.num_buckets
      for word in _words(text, self.ngrams)
    ]
    for row in rows:  # In this order, as float32 sums depend on it.
      total += self.table[row].astype(np.float32)
    return total / np.sqrt(np.float32(max(len(rows), 1)))


def _words(text: str | bytes, ngrams: int) -> list[str]:
  """Splits a text at characters other than letters, marks and digits; adds n-grams."""
  if isinstance(text, bytes):
    text = text.decode("utf-8", "replace")
  text = text.partition("\0")[0]  # `tf.strings.lower` ends a text at a zero.
  letters = [c if unicodedata.category(c)[0] in "LMN" else " " for c in text.lower()]
  words = "".join(letters).split(" ")
  words = [word for word in words if word]
  return [
    " ".join(words[start : start + width])
    for width in range(1, ngrams + 1)
    for start in range(len(words) - width + 1)
  ]


def fingerprint64(data: bytes) -> int:
  """Returns FarmHash's Fingerprint64, as `tf.strings.to_hash_bucket_fast` uses it."""
  size = len(data)
  if size <= 16:
    return _hash_16(data)
  if size <= 64:
    return _hash_64(data)
  # farmhashna::Hash64, with its names and seed.
  seed = 81
  y = (seed * _K1 + 113) & _MASK
  z = _mix(y * _K2 + 113) * _K2 & _MASK
  x = (seed * _K2 + _word(data, 0)) & _MASK
  v, w = (0, 0), (0, 0)
  end = (size - 1) // 64 * 64
  for at in range(0, end, 64):
    x, y, z, v, w = _block(data, at, x, y, z, v, w, _K1, 1)
  mul = _K1 + ((z & 0xFF) << 1)
  first = w[0] + ((size - 1) & 63)
  v = (v[0] + first, v[1])
  w = (first + v[0], w[1])
  x, y, z, v, w = _block(data, size - 64, x, y, z, v, w, mul, 9)
  low = _mix_pair(v[0], w[0], mul) + _mix(y) * _K0 + z
  return _mix_pair(low, _mix_pair(v[1], w[1], mul) + x, mul)


def _block(
  data: bytes,
  at: int,
  x: int,
  y: int,
  z: int,
  v: tuple[int, int],
  w: tuple[int, int],
  mul: int,
  factor: int,
) -> tuple[int, int, int, tuple[int, int], tuple[int, int]]:
  """Hashes 64 bytes into the state."""
  x = _rotate(x + y + v[0] + _word(data, at + 8), 37) * mul
  y = _rotate(y + v[1] + _word(data, at + 48), 42) * mul
  x = (x ^ (w[1] * factor)) & _MASK
  y += v[0] * factor + _word(data, at + 40)
  z = _rotate(z + w[0], 33) * mul
  v = _weak(data, at, v[1] * mul, x + w[0])
  w = _weak(data, at + 32, z + w[1], y + _word(data, at + 16))
  return z & _MASK, y & _MASK, x, v, w  # FarmHash swaps x and z after each block.


def _hash_16(data: bytes) -> int:
  size = len(data)
  mul = _K2 + 2 * size
  if size >= 8:
    a, b = _word(data, 0) + _K2, _word(data, size - 8)
    return _mix_pair(_rotate(b, 37) * mul + a, (_rotate(a, 25) + b) * mul, mul)
  if size >= 4:
    a, b = struct.unpack("<I", data[:4])[0], struct.unpack("<I", data[-4:])[0]
    return _mix_pair(size + (a << 3), b, mul)
  if size:
    a, b, c = data[0], data[size >> 1], data[-1]
    return _mix((a + (b << 8)) * _K2 ^ (size + (c << 2)) * _K0) * _K2 & _MASK
  return _K2


def _hash_64(data: bytes) -> int:
  size = len(data)
  mul = _K2 + 2 * size
  is_long = size > 32
  a, b = _word(data, 0) * (_K2 if is_long else _K1), _word(data, 8)
  c, d = _word(data, size - 8) * mul, _word(data, size - 16) * _K2
  y = _rotate(a + b, 43) + _rotate(c, 30) + d
  z = _mix_pair(y, a + _rotate(b + _K2, 18) + c, mul)
  if not is_long:
    return z
  e, f = _word(data, 16) * mul, _word(data, 24)
  g, h = (y + _word(data, size - 32)) * mul, (z + _word(data, size - 24)) * mul
  return _mix_pair(
    _rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, mul
  )


def _word(data: bytes, at: int) -> int:
  return int.from_bytes(data[at : at + 8], "little")


def _rotate(value: int, by: int) -> int:
  value &= _MASK
  return (value >> by | value << (64 - by)) & _MASK


def _mix(value: int) -> int:
  value &= _MASK
  return value ^ (value >> 47)


def _mix_pair(u: int, v: int, mul: int) -> int:
  a = _mix((u ^ v) * mul)
  return _mix((v ^ a) * mul) * mul & _MASK


def _weak(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
  """Hashes 32 bytes into two seeds."""
  w, x, y, z = (_word(data, at + i) for i in (0, 8, 16, 24))
  a += w
  b = _rotate(b + a + z, 21)
  c = a
  a += x + y
  b += _rotate(a, 44)
  return (a + z) & _MASK, (b + c) & _MASK
