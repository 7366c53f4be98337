"""Compares two data sets; decodes images."""

from __future__ import annotations

import itertools

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import Episode, Values, num_bytes
from t2r_seq.episodes.views import Episodes, View
from t2r_seq.imports import tf
from t2r_seq.progress import Progress
from t2r_seq.records import images

_MAX_NAMED = 20


def compare_episodes(
  operation: str,
  source: Episodes,
  written: Episodes,
  lossy: frozenset[str],
  progress: Progress | None,
) -> int:
  """Compares the bits of the values of two data sets; ConversionError if they differ.

  Args:
    operation: for the error.
    source: the expected episodes.
    written: the actual ones.
    lossy: paths whose values may differ: only dtypes and shapes are compared.
    progress: shows how many episodes are compared; None shows nothing.
  Returns:
    Number of bytes of the compared values.
  """
  counts, total, num_others = [0, 0], 0, 0
  mismatches: list[errors.Mismatch] = []
  if progress:
    progress.start("checking", 0, written.num_episodes)
  for index, (one, other) in enumerate(itertools.zip_longest(source, written)):
    counts[0] += one is not None
    counts[1] += other is not None
    if one is None or other is None:
      continue
    for path in _differing(one, other, lossy):
      num_others += 1
      if num_others <= _MAX_NAMED:
        want, got = f"the values of {one.place}", f"others in {other.place}"
        mismatches.append(errors.Mismatch(f"episode {index}: {path}", want, got))
    of_episode = num_bytes(one.values)
    total += of_episode
    if progress:
      progress.advance(of_episode, one.fraction_done)
  if counts[0] != counts[1]:
    want, got = f"{counts[0]}, as the source has", str(counts[1])
    mismatches.append(errors.Mismatch("number of episodes", want, got))
  if num_others > _MAX_NAMED:
    got = f"others at {num_others - _MAX_NAMED} more paths of episodes"
    mismatches.append(errors.Mismatch("further episodes", "the same values", got))
  if mismatches:
    raise errors.mismatch_error(operation, mismatches, errors.ConversionError)
  return total


def _differing(one: Episode, other: Episode, lossy: frozenset[str]) -> list[str]:
  """Returns the paths at which two episodes differ, in the bits of their values."""
  a, b = one.values, other.values
  both = {*a} & {*b}
  same = {path for path in both if _is_same(a[path], b[path], path in lossy)}
  return sorted({*a, *b} - same)


def _is_same(one: np.ndarray, other: np.ndarray, is_lossy: bool) -> bool:
  a, b = (v.astype(v.dtype.newbyteorder("="), copy=False) for v in (one, other))
  if a.dtype != b.dtype or a.shape != b.shape or is_lossy:
    return a.dtype == b.dtype and a.shape == b.shape
  if a.dtype == object:
    return bool(a.tolist() == b.tolist())
  return a.tobytes() == b.tobytes()  # In bits, where NaN equals NaN.


class Decoded(View):
  """A view with the pixels of encoded images, at all paths."""

  def __init__(self, base: Episodes) -> None:
    encoded = {p: s for p, s in base.spec.items() if specs.is_encoded_image_spec(s)}
    self._images = encoded
    pixels = {
      path: specs.ExtendedTensorSpec(**{**leaf.fields(), "data_format": None})
      for path, leaf in encoded.items()
    }
    super().__init__(base, {**base.spec, **pixels})
    self.kept_videos = {}

  def with_videos(self, formats: object, encoding: object = None) -> Episodes:
    """Returns the view unchanged: it decodes all frames."""
    del formats, encoding
    return self

  def _is_unchanged(self, source: str) -> bool:
    return source not in self._images

  def _change(self, values: Values, place: str) -> Values:
    return {
      path: self._decode(path, array, place) if path in self._images else array
      for path, array in values.items()
    }

  def _decode(self, path: str, array: np.ndarray, place: str) -> np.ndarray:
    missing = np.argwhere(array == b"")
    if len(missing):  # A mask could not distinguish black pixels from an image.
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected an image in every step, got none at step "
        f"{missing[0][0] if array.ndim else 0}. Leave the images encoded: missing ones "
        "stay missing."
      )
    encoded = tf.constant(array.tolist(), tf.string, array.shape)
    try:
      return images.decode_images(encoded, self._images[path], path).numpy()
    except tf.errors.OpError as error:
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected images that can be decoded, got "
        f"{error.message.splitlines()[0]:.200}"
      ) from error
