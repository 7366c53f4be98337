"""`PoolRescue`: finds the episodes whose images cannot be decoded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from t2r_seq.data.python_calls import call_of_python
from t2r_seq.data.reading.bad_record_finder import BadRecordFinder
from t2r_seq.data.reading.skipping import watched
from t2r_seq.data.streamed.episode_columns import EpisodeColumns


class PoolRescue:
  """Decodes the images of a pool past those that cannot be, and notes their episodes.

  Images are decoded for a pool at once, and nothing is watched but that: what the
  watched function is given is held until it returns. With the lists that the strings
  are copied from, windows of JPEGs took 558 MiB of private memory in place of
  420 without a watch; with the strings alone 480. Which image failed is looked
  for afterwards.
  """

  def __init__(self, columns: EpisodeColumns, finder: BadRecordFinder) -> None:
    """Creates the rescue.

    Args:
      columns: of the episodes; the number of its file comes first in each one's place,
        modulo the number of files.
      finder: notes what is bad.
    """
    self._columns = columns
    self._finder = finder
    self._names = [str(spec.name) for spec in columns.images.values()]

  def decode(
    self, encoded: Mapping[str, tf.Tensor], length: tf.Tensor, places: tf.Tensor
  ) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Decodes the images of a pool; see `EpisodeColumns.join`.

    Args:
      encoded: images by path.
      length: of the episodes, int64 [episodes].
      places: of the episodes, int64 [episodes, ...].
    Returns:
      The images, all black where one of the episode is bad; and which have good ones.
    """
    paths = list(encoded)

    def decode_all(length: tf.Tensor, places: tf.Tensor, *strings: tf.Tensor) -> tuple:
      del places
      images = self._columns.decode(dict(zip(paths, strings, strict=True)))
      return *images.values(), tf.ones_like(length, tf.bool)

    def decode_good(length: tf.Tensor, places: tf.Tensor, *strings: tf.Tensor) -> tuple:
      is_good = tf.numpy_function(
        self._look, [length, places, *strings], tf.bool, stateful=True
      )
      is_good = tf.ensure_shape(is_good, [None])
      good = {}
      for path, each in zip(paths, strings, strict=True):
        is_in = tf.repeat(is_good, length) if self._columns.is_timed(path) else is_good
        is_in = tf.reshape(is_in, [-1, *[1] * (each.shape.rank - 1)])
        good[path] = tf.where(is_in, each, "")
      # What failed for another reason fails again, and is not lost.
      return *self._columns.decode(good).values(), is_good

    watch = watched(decode_all, decode_good)
    *images, is_good = watch(length, places, *encoded.values())
    return dict(zip(paths, images, strict=True)), is_good

  def _look(
    self, length: np.ndarray, places: np.ndarray, *strings: np.ndarray
  ) -> np.ndarray:
    """Returns which episodes have good images, bool [episodes]; notes the others."""
    ends = np.cumsum(length)
    filenames = self._finder.filenames
    numbers = places.reshape(len(length), -1)[:, 0] % len(filenames)
    is_timed = [self._columns.is_timed(path) for path in self._columns.images]
    is_good = np.empty(len(length), bool)
    with call_of_python():
      for i, (number, end) in enumerate(zip(numbers, ends, strict=True)):
        rows = slice(end - length[i], end)
        of_episode = [
          np.asarray(each[rows if timed else i], object)
          for each, timed in zip(strings, is_timed, strict=True)
        ]
        is_good[i] = self._finder.have_good_images(
          filenames[number],
          dict(zip(self._names, of_episode, strict=True)),
        )
    return is_good
