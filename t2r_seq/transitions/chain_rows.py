"""Which rows of a store a transition is in."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq.store import HeldTensor


class ChainRows:
  """The rows of transitions in a store of chains, by number.

  A chain of T transitions has T + 1 rows. So transition i is in the row i + c, where c
  is the number of its chain, and its next observation in the row after that.
  """

  def __init__(self, episode_lengths: np.ndarray) -> None:
    """Creates the map.

    Args:
      episode_lengths: rows of each chain, int64 [chains], at least 2 each.
    """
    ends = np.cumsum(episode_lengths - 1)
    self.num_transitions = int(ends[-1])
    self.held = HeldTensor.of(ends)

  def rows(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where transitions are.

    Args:
      ids: integers of any shape, in range(num_transitions).
    Returns:
      Their rows, and the last rows of their chains, both int64 of the shape of `ids`.
    """
    ids = tf.cast(ids, tf.int64)
    ends = self.held.read_value()
    chains = tf.searchsorted(ends, tf.reshape(ids, [-1]), "right", out_type=tf.int64)
    chains = tf.reshape(chains, tf.shape(ids)) if ids.shape.rank != 1 else chains
    return ids + chains, tf.gather(ends, chains) + chains
