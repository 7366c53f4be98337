"""Which rows of a store a transition is in."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


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
    with tf.device("CPU:0"):
      # Datasets refer to a variable and would copy a tensor.
      self._ends = tf.Variable(tf.constant(ends, tf.int64), trainable=False)

  def rows(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where transitions are.

    Args:
      ids: int64 of any shape, in range(num_transitions).
    Returns:
      Their rows, and the last rows of their chains, both int64 of the shape of `ids`.
    """
    ends = self._ends.read_value()
    flat = tf.reshape(ids, [-1])
    chains = tf.searchsorted(ends, flat, "right", out_type=tf.int64)
    last_rows = tf.gather(ends, chains) + chains
    shape = tf.shape(ids)
    return tf.reshape(flat + chains, shape), tf.reshape(last_rows, shape)
