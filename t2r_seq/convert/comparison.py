"""Compares the episodes of two data sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from t2r_seq import errors
from t2r_seq.episodes.episodes import Episode, num_bytes
from t2r_seq.episodes.views import Episodes
from t2r_seq.progress import Progress

_MAX_NAMED = 20


def compare_episodes(
  operation: str,
  reader: Episodes,
  written: Episodes,
  lossy: frozenset[str],
  progress: Progress | None,
) -> int:
  """Compares the episodes of two data sets, in the bits of their values.

  Args:
    operation: for the error.
    reader: the expected episodes.
    written: the other ones.
    lossy: paths of which only dtypes and shapes are compared.
    progress: shows how many episodes are compared; None shows nothing.
  Returns:
    Bytes of the values that were compared.
  Raises:
    ConversionError: with every difference, up to 20.
  """
  counts, total, num_others = [0, 0], 0, 0
  found: list[errors.Mismatch] = []
  if progress:
    progress.start("checking", 0, written.num_episodes)
  both = itertools.zip_longest(reader, written)
  for index, (one, other) in enumerate(both):
    counts[0] += one is not None
    counts[1] += other is not None
    if one is None or other is None:
      continue
    for path in _differing(one, other, lossy):
      num_others += 1
      if num_others <= _MAX_NAMED:
        want, got = f"the values of {one.place}", f"others in {other.place}"
        found.append(errors.Mismatch(f"episode {index}: {path}", want, got))
    of_episode = num_bytes(one.values)
    total += of_episode
    if progress:
      progress.advance(of_episode, one.done)
  if counts[0] != counts[1]:
    want, got = f"{counts[0]}, as the source has", str(counts[1])
    found.append(errors.Mismatch("number of episodes", want, got))
  if num_others > _MAX_NAMED:
    got = f"others at {num_others - _MAX_NAMED} more paths of episodes"
    found.append(errors.Mismatch("further episodes", "the same values", got))
  if found:
    raise errors.mismatch_error(operation, found, errors.ConversionError)
  return total


def _differing(one: Episode, other: Episode, lossy: frozenset[str]) -> Iterator[str]:
  """Yields the paths at which two episodes differ, in the bits of their values."""
  for path in sorted({*one.values, *other.values}):
    if (
      path not in one.values
      or path not in other.values
      or not _is_same(one.values[path], other.values[path], path in lossy)
    ):
      yield path


def _is_same(one: np.ndarray, other: np.ndarray, is_lossy: bool) -> bool:
  a, b = (v.astype(v.dtype.newbyteorder("="), copy=False) for v in (one, other))
  if a.dtype != b.dtype or a.shape != b.shape or is_lossy:
    return a.dtype == b.dtype and a.shape == b.shape
  if a.dtype == object:
    return bool(a.tolist() == b.tolist())
  return a.tobytes() == b.tobytes()  # A NaN is one only if it has the same bits.
