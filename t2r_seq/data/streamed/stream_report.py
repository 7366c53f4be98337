"""Counts of what was windowed while it was streamed, and of the memory of its pools."""

from __future__ import annotations

import tensorflow as tf

from t2r_seq import windows


class StreamReport(windows.WindowReport):
  """Counts episodes, steps and windows, and what the pools took of their budget.

  Attributes:
    memory_budget: bytes that the pools may take; None before there are any.
  """

  memory_budget: int | None = None

  def __init__(self) -> None:
    """Creates a report with all counts zero."""
    super().__init__()
    with tf.init_scope(), tf.device("cpu:0"):
      self._pools = tf.Variable(0, trainable=False, dtype=tf.int64, name="pools")
      self._bytes = tf.Variable(0, trainable=False, dtype=tf.int64, name="pool_bytes")

  def count_pool(self, num_bytes: tf.Tensor, num_pools: tf.Tensor) -> tf.Operation:
    """Adds one pool; called inside the input pipeline.

    Args:
      num_bytes: what the pools that are alive, and episodes on their way to the next,
        take at most, int64 scalar.
      num_pools: 1; or 0, int64 scalar, where there is none.
    Returns:
      The op that counts.
    """
    return tf.group(
      self._pools.assign_add(num_pools),
      self._bytes.assign(tf.maximum(self._bytes, num_bytes)),
    )

  @property
  def pools(self) -> int:
    """Pools that were filled."""
    return int(self._pools.numpy())

  @property
  def pool_bytes(self) -> int:
    """The most bytes that pools and episodes on their way to them took together."""
    return int(self._bytes.numpy())

  def __str__(self) -> str:
    line = super().__str__()
    if self.memory_budget is None:
      return line
    return (
      f"{line}; {self.pools} pools, {self.pool_bytes:,} of {self.memory_budget:,} bytes"
    )
