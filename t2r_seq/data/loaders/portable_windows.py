"""Windows from pools, as a graph that another process can run."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from t2r_seq.data.loaders.decoded_columns import DecodedColumns
from t2r_seq.data.loaders.pool_order import PoolOrder
from t2r_seq.data.loaders.pooled_batches import PooledColumns
from t2r_seq.store import HeldTensor, StoreWindows

_as_it_is = tf.autograph.experimental.do_not_convert


class PortableWindows(PooledColumns):
  """Pools whose graph refers to nothing in this process.

  One range counts the pools through all epochs: it is what a tf.data service splits
  between its workers.
  """

  def __init__(self, columns: DecodedColumns, store_windows: StoreWindows) -> None:
    """Prepares.

    Args:
      columns: those of `FileColumns`.
      store_windows: the windows, cut from columns of the same store.
    """
    super().__init__(columns, store_windows)
    lengths = columns.episode_lengths
    self._lengths = _InGraph.of(lengths)
    self._first_rows = _InGraph.of(np.cumsum(lengths) - lengths)
    self._num_windows = _InGraph.of(self.counts)

  def _positions(
    self, order: PoolOrder, start: np.ndarray, end_epoch: int
  ) -> tf.data.Dataset:
    per_epoch = order.pools_per_epoch
    last = np.iinfo(np.int64).max // per_epoch
    numbers = tf.data.Dataset.range(min(end_epoch, last) * per_epoch)

    def position(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
      epoch = number // per_epoch
      return epoch, number % per_epoch, *order.episodes(epoch)

    return numbers.map(_as_it_is(position))


class _InGraph(HeldTensor):
  """Numbers that become a part of each graph."""

  def read_value(self) -> tf.Tensor:
    return tf.constant(self.tensor.numpy())
