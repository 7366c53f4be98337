"""Batches as numpy arrays, for JAX and for plain loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq.data.arguments import check_count
from t2r_seq.data.dataset_options import bounded_options
from t2r_seq.data.loaders.ordered_batches import (
  batches_at_once,
  reads_in_order,
)
from t2r_seq.data.loaders.window_order import WindowOrder
from t2r_seq.store import HeldTensor, dataset_over

Batch = dict[str, np.ndarray]

_NOT_IN_BUFFERS = (tf.string, tf.bfloat16)


class NumpyBatches(Iterator[Batch]):
  """The batches of a dataset as dicts of numpy arrays, by path; can be read once.

  Arrays are the memory that TensorFlow has read them to: there is no copy, and they may
  be written to. Small batches are parts of one read, which stays in memory as long as
  any of them does. bfloat16 is that of ml_dtypes, strings are objects of bytes.

  Attributes:
    next_batch: number of the batch that comes next, over all epochs: what to start
      from to go on here.
  """

  def __init__(
    self,
    reads: tf.data.Dataset,
    batch_size: int | None = None,
    start_batch: int = 0,
    every: int = 1,
  ) -> None:
    """Creates the iterator; nothing is read yet.

    Args:
      reads: of mappings by path, leaves [N, ...]; one batch, or several that follow
        each other. Every element has memory of its own.
      batch_size: B; None if each element is a batch.
      start_batch: number of the first batch that comes.
      every: how far apart the numbers of two batches are.
    """
    self.next_batch = start_batch
    self._every = every
    self._batches = self._cut(reads, batch_size)

  def __iter__(self) -> Iterator[Batch]:
    # Faster by a call for each batch, and the same.
    return self._batches

  def __next__(self) -> Batch:
    return next(self._batches)

  def _cut(self, reads: tf.data.Dataset, batch_size: int | None) -> Iterator[Batch]:
    for read in reads:
      arrays = list(as_arrays(read).items())
      size = len(arrays[0][1])
      step = batch_size or size
      for start in range(0, size, step):
        stop = start + step
        self.next_batch += self._every
        yield {path: array[start:stop] for path, array in arrays}


def numpy_batches_in_order(
  read: Callable[[Any], Mapping[str, Any]],
  order: WindowOrder,
  batch_bytes: int,
  num_epochs: int | None = 1,
  start_batch: int = 0,
  every: int = 1,
  locate: Callable[[tf.Tensor], Any] | None = None,
  held: Sequence[HeldTensor] = (),
) -> NumpyBatches:
  """Makes the batches of an order: those of `batches_in_order`, as numpy arrays.

  Args:
    read: maps window numbers, int64 [N], to a mapping by path, leaves [N, ...] that
      have memory of their own.
    order: which windows are in which batch.
    batch_bytes: memory of a batch, about; decides how many are read at once.
    num_epochs: None for ever.
    start_batch: batches to leave out, over all epochs; costs nothing.
    every: shows each of that many only: n readers with the starts 0 to n - 1 have the
      batches between them.
    locate: see `batches_in_order`.
    held: see `batches_in_order`.
  Returns:
    An iterator that knows its position.
  Raises:
    SpecError: `start_batch` is negative.
  """
  check_start_batch("numpy_batches_in_order", start_batch)
  if every > 1:
    read_ids = read if locate is None else lambda ids: read(locate(ids))
    parted = dataset_over(
      held, lambda: _read_every(read_ids, order, num_epochs, start_batch, every)
    )
    return NumpyBatches(
      parted.with_options(bounded_options()), start_batch=start_batch, every=every
    )
  at_once = batches_at_once(order, batch_bytes)
  reads = dataset_over(
    held,
    lambda: reads_in_order(
      read, order, at_once, batch_bytes, num_epochs, start_batch, locate
    ),
  )
  return NumpyBatches(
    reads.with_options(bounded_options()), order.batch_size, start_batch
  )


def _read_every(
  read: Callable[[tf.Tensor], Mapping[str, Any]],
  order: WindowOrder,
  num_epochs: int | None,
  start_batch: int,
  every: int,
) -> tf.data.Dataset:
  end = np.iinfo(np.int64).max
  if num_epochs is not None:
    end = num_epochs * order.batches_per_epoch
  batches = tf.data.Dataset.range(start_batch, max(end, start_batch), every)
  return batches.map(
    tf.autograph.experimental.do_not_convert(
      lambda batch: read(order.window_ids(batch))
    ),
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )


def check_start_batch(where: str, start_batch: Any) -> int:
  """Returns it as an int; raises SpecError unless it is an integer of at least 0."""
  return check_count(where, "start_batch", start_batch, minimum=0)


def as_arrays(tensors: Mapping[str, tf.Tensor]) -> Batch:
  """Returns the memory of tensors as arrays that can be written to.

  Args:
    tensors: on the CPU, by path, with memory that nothing else reads. Two of them may
      share it, as equal ops of a graph do: the second is copied then.
  Returns:
    Arrays by path; strings and bfloat16, which no buffer can hold, are copied.
  """
  arrays, addresses = {}, set()
  for path, tensor in tensors.items():
    if tensor.dtype in _NOT_IN_BUFFERS:
      arrays[path] = tensor.numpy()
      continue
    writable = _Writable(np.asarray(tensor))
    is_shared = writable.address in addresses
    addresses.add(writable.address)
    array = np.asarray(writable)
    arrays[path] = array.copy() if is_shared else array
  return arrays


class _Writable:
  """Exports a read-only array as writable."""

  def __init__(self, array: np.ndarray) -> None:
    self._array = array  # Kept alive by whoever holds the exported array.
    interface: dict[str, Any] = dict(array.__array_interface__)
    self.address = interface["data"][0]
    interface["data"] = (self.address, False)
    self.__array_interface__ = interface
