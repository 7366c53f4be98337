"""`PoolRescue`: finds the episodes whose images cannot be decoded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from t2r_seq.data.reading.bad_record_finder import BadRecordFinder
from t2r_seq.data.reading.python_calls import call_of_python
from t2r_seq.data.streamed.episode_columns import PLACE, EpisodeColumns


class PoolRescue:
  """Tells the good episodes of a pool that failed, and notes the others.

  Images are decoded for a pool at once, and nothing is watched but that. Which one
  failed is looked for afterwards.
  """

  def __init__(self, columns: EpisodeColumns, finder: BadRecordFinder) -> None:
    """Creates the rescue.

    Args:
      columns: of the episodes; the number of its file comes first in each one's place.
      finder: notes what is bad.
    """
    self._columns = columns
    self._finder = finder
    self._names = [str(spec.name) for spec in columns.images.values()]

  def is_good(self, values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns whether an episode can be part of a pool; notes it if not.

    Args:
      values: of the episode, in the order of `columns.lists`.
    Returns:
      bool scalar.
    """
    found = self._columns.by_path(values)
    given = [found[PLACE], *(found[path] for path in self._columns.images)]
    is_good = tf.numpy_function(self._look, given, tf.bool, stateful=True)
    return tf.ensure_shape(is_good, [])

  def _look(self, place: np.ndarray, *images: np.ndarray) -> bool:
    with call_of_python():
      return self._finder.have_good_images(
        self._finder.filenames[place[0]],
        {
          name: np.asarray(encoded, object)
          for name, encoded in zip(self._names, images, strict=True)
        },
      )
