"""Batches in an order that is a function: read by number, many at once if small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.data.loaders.window_order import WindowOrder

_as_it_is = tf.autograph.experimental.do_not_convert

# What a read of some 30 small ops costs is little beside a copy of this size.
_READ_BYTES = 2**22
_MAX_BATCHES = 64


def batches_in_order(
  read: Callable[[tf.Tensor], Any],
  order: WindowOrder,
  batch_bytes: int,
  num_epochs: int | None = 1,
  start_batch: int = 0,
) -> tf.data.Dataset:
  """Makes a dataset of the batches of an order.

  Small batches are read several at once: what is paid once per read, and not per byte,
  would otherwise cost more than the copy.

  Args:
    read: maps window numbers, int64 [N], to a structure with leaves [N, ...].
    order: which windows are in which batch.
    batch_bytes: memory of a batch, about; decides how many are read at once.
    num_epochs: None for ever.
    start_batch: batches to leave out, over all epochs; costs nothing.
  Returns:
    Dataset of structures with leaves [B, ...], that can be checkpointed.
  """

  def split(values: tf.Tensor) -> tf.Tensor:
    shape = tf.concat([[-1, order.batch_size], tf.shape(values)[1:]], 0)
    batches = tf.reshape(values, shape)
    return tf.ensure_shape(batches, [None, order.batch_size, *values.shape[1:]])

  def read_and_split(window_ids: tf.Tensor) -> Any:
    return tf.nest.map_structure(split, read(window_ids))

  at_once = batches_at_once(order, batch_bytes) if order.drop_remainder else 1
  dataset, left_out = reads_in_order(
    *(read if at_once == 1 else read_and_split, order, at_once),
    *(num_epochs, start_batch),
  )
  if at_once > 1:
    # A sixth less work than `unbatch`.
    dataset = dataset.flat_map(tf.data.Dataset.from_tensor_slices)
    if left_out:
      dataset = dataset.skip(left_out)
  return dataset.with_options(checkpoint_options())


def batches_at_once(order: WindowOrder, batch_bytes: int) -> int:
  """Returns how many batches are best read at once.

  Args:
    order: which windows are in which batch.
    batch_bytes: memory of a batch, about.
  """
  most = min(_MAX_BATCHES, order.batches_per_epoch)
  return max(1, min(most, _READ_BYTES // max(1, batch_bytes)))


def reads_in_order(
  read: Callable[[tf.Tensor], Any],
  order: WindowOrder,
  at_once: int,
  num_epochs: int | None = 1,
  start_batch: int = 0,
) -> tuple[tf.data.Dataset, int]:
  """Makes a dataset of reads, each of several batches that follow each other.

  Args:
    read: maps window numbers, int64 [N], to a structure with leaves [N, ...].
    order: which windows are in which batch.
    at_once: batches of a read; an epoch's last read may have fewer.
    num_epochs: None for ever.
    start_batch: batches to leave out, over all epochs.
  Returns:
    Dataset of structures with leaves [at_once * B, ...] at most, and how many batches
    of its first element come before `start_batch`.
  """
  per_epoch = order.batches_per_epoch
  reads_per_epoch = -(-per_epoch // at_once)
  epoch, in_epoch = divmod(start_batch, per_epoch)
  start = epoch * reads_per_epoch + in_epoch // at_once
  end = np.iinfo(np.int64).max
  if num_epochs is not None:
    end = max(start, num_epochs * reads_per_epoch)

  def read_batches(number: tf.Tensor) -> Any:
    first = number // reads_per_epoch * per_epoch + number % reads_per_epoch * at_once
    return read(order.window_ids(first, at_once))

  dataset = tf.data.Dataset.range(start, end).map(
    _as_it_is(read_batches), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
  )
  return dataset, in_epoch % at_once if start < end else 0


def checkpoint_options() -> tf.data.Options:
  """Returns the options that make a dataset over mapped columns resumable.

  To a checkpoint the columns' variables are a state that it cannot save; they never
  change, so the position is all that there is to save.
  """
  options = tf.data.Options()
  options.experimental_external_state_policy = (
    tf.data.experimental.ExternalStatePolicy.IGNORE
  )
  # The state is then a position, without what is being read ahead.
  options.experimental_symbolic_checkpoint = True
  return options
