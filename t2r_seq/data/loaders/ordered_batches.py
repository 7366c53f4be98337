"""Batches in an order that is a function: read by number, many at once if small."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.data.dataset_options import checkpoint_options
from t2r_seq.data.loaders.window_order import WindowOrder
from t2r_seq.store import HeldTensor, dataset_over

_as_it_is = tf.autograph.experimental.do_not_convert

# What a read of some 30 small ops costs is little beside a copy of this size.
_READ_BYTES = 2**22
_MAX_BATCHES = 64
# Reads in parallel hold at most this, or two batches. tf.data's autotuner would take
# fewer than there are cores; with one more, copies of 7 MB are 4% faster.
_PARALLEL_BYTES = 2**28


def batches_in_order(
  read: Callable[[Any], Any],
  order: WindowOrder,
  batch_bytes: int,
  num_epochs: int | None = 1,
  start_batch: int = 0,
  locate: Callable[[tf.Tensor], Any] | None = None,
  held: Sequence[HeldTensor] = (),
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
    locate: maps window numbers to what `read` then takes in their place, a structure
      of small tensors [N, ...]; it is called for many batches at once.
    held: the tensors that both of them read from; see `store.dataset_over`.
  Returns:
    Dataset of structures with leaves [B, ...], that can be checkpointed.
  """
  at_once = batches_at_once(order, batch_bytes) if order.drop_remainder else 1

  def make() -> tf.data.Dataset:
    if at_once > 1:
      return _split_reads(
        _compose(read, locate), order, at_once, batch_bytes, num_epochs, start_batch
      )
    return reads_in_order(read, order, 1, batch_bytes, num_epochs, start_batch, locate)

  return dataset_over(held, make).with_options(checkpoint_options())


def batches_at_once(order: WindowOrder, batch_bytes: int) -> int:
  """Returns how many batches are best read at once.

  Args:
    order: which windows are in which batch.
    batch_bytes: memory of a batch, about.
  """
  most = min(_MAX_BATCHES, order.batches_per_epoch)
  return max(1, min(most, _READ_BYTES // max(1, batch_bytes)))


def reads_in_order(
  read: Callable[[Any], Any],
  order: WindowOrder,
  at_once: int,
  batch_bytes: int,
  num_epochs: int | None = 1,
  start_batch: int = 0,
  locate: Callable[[tf.Tensor], Any] | None = None,
) -> tf.data.Dataset:
  """Makes a dataset of reads, each of several batches that follow each other.

  Args:
    read: maps window numbers, int64 [N], to a structure with leaves [N, ...].
    order: which windows are in which batch.
    at_once: batches of a read; an epoch's last read may have fewer.
    batch_bytes: memory of a batch, about.
    num_epochs: None for ever.
    start_batch: batches to leave out, over all epochs.
    locate: see `batches_in_order`.
  Returns:
    Dataset of structures with leaves [at_once * B, ...] at most.
  """
  per_epoch = order.batches_per_epoch
  num_calls = parallel_reads(at_once * batch_bytes)
  if locate is not None and at_once == 1 and order.drop_remainder:
    located = min(_MAX_BATCHES, per_epoch)
    places = _split_reads(locate, order, located, 0, num_epochs, start_batch)
    return _read_all(places, read, num_calls)
  reads_per_epoch = -(-per_epoch // at_once)
  epoch, in_epoch = divmod(start_batch, per_epoch)
  start = epoch * reads_per_epoch + in_epoch // at_once
  end = np.iinfo(np.int64).max
  if num_epochs is not None:
    end = max(start, num_epochs * reads_per_epoch)
  left_out = in_epoch % at_once * order.batch_size
  read_ids = _compose(read, locate)

  def read_batches(number: tf.Tensor) -> Any:
    first = number // reads_per_epoch * per_epoch + number % reads_per_epoch * at_once
    ids = order.window_ids(first, at_once)
    if left_out:
      # Not by `skip`: after a restore TensorFlow 2.15 skips as many once more.
      ids = ids[tf.where(number == start, left_out, 0) :]
    return read_ids(ids)

  return _read_all(tf.data.Dataset.range(start, end), read_batches, num_calls)


def parallel_reads(read_bytes: int) -> int:
  """Returns how many reads are best done in parallel.

  Args:
    read_bytes: memory of what one of them gives, about.
  """
  cores = len(os.sched_getaffinity(0))
  return max(2, min(cores + 1, _PARALLEL_BYTES // max(1, read_bytes)))


def _split_reads(
  read: Callable[[tf.Tensor], Any],
  order: WindowOrder,
  at_once: int,
  batch_bytes: int,
  num_epochs: int | None,
  start_batch: int,
) -> tf.data.Dataset:
  """Reads several full batches at once, and gives them one by one."""

  def split(values: tf.Tensor) -> tf.Tensor:
    shape = tf.concat([[-1, order.batch_size], tf.shape(values)[1:]], 0)
    batches = tf.reshape(values, shape)
    return tf.ensure_shape(batches, [None, order.batch_size, *values.shape[1:]])

  def read_and_split(window_ids: tf.Tensor) -> Any:
    return tf.nest.map_structure(split, read(window_ids))

  reads = reads_in_order(
    read_and_split, order, at_once, batch_bytes, num_epochs, start_batch
  )
  # A sixth less work than `unbatch`.
  return reads.flat_map(tf.data.Dataset.from_tensor_slices)


def _read_all(
  dataset: tf.data.Dataset, read: Callable[[Any], Any], num_calls: int
) -> tf.data.Dataset:
  return dataset.map(_as_it_is(read), num_parallel_calls=num_calls, deterministic=True)


def _compose(
  read: Callable[[Any], Any], locate: Callable[[tf.Tensor], Any] | None
) -> Callable[[tf.Tensor], Any]:
  if locate is None:
    return read
  return lambda window_ids: read(locate(window_ids))
