"""Windows of a store for PyTorch: what its DataLoader takes.

The only module that needs torch; the extra `torch` has it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports, specs
from t2r_seq.data.loaders import Batch, as_arrays, check_start_batch
from t2r_seq.data.stores import StoreWindowLoader
from t2r_seq.store import EpisodeStore, StoreWindows

try:
  import torch
except ImportError as error:
  raise imports.missing_extra("torch", "torch") from error

TorchBatch = dict[str, Any]


class TorchWindows(torch.utils.data.IterableDataset):
  """Batches of windows as dicts of tensors, for `DataLoader(..., batch_size=None)`.

  Tensors are the memory that the batch was read to, without a copy. TensorFlow's
  threads read ahead in this process, so the best DataLoader has no workers; with
  workers each takes its turn, and the batches are the same ones in the same order.
  Workers are started by 'spawn', as `loader` does, and open the store themselves. In
  a fork TensorFlow, and torch, may wait for threads for ever.

  Byte strings, which torch has no tensors of, stay numpy arrays of bytes.
  """

  def __init__(
    self,
    store_path: str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    batch_size: int,
    order: str = "global",
    num_epochs: int | None = 1,
    start_batch: int = 0,
    **options: Any,
  ) -> None:
    """Describes the batches; the store is opened where they are read.

    Args:
      store_path: the store's folder.
      spec_structure: the specs of a window.
      batch_size: B.
      order: as `StoreWindowLoader` has them; 'quasi_random' without workers only.
      num_epochs: how often every window is shown; None for ever.
      start_batch: batches to leave out, over all epochs: what to resume from.
      **options: further arguments of `StoreWindowLoader`: seed, shard_index, ...
    Raises:
      SpecError: `start_batch` is negative.
    """
    super().__init__()
    check_start_batch("TorchWindows", start_batch)
    self._store_path = os.fspath(store_path)
    self._arguments = (spec_structure, batch_size, order)
    self._options = options
    self._num_epochs = num_epochs
    self._start_batch = start_batch
    self._process = os.getpid()
    self._opened: StoreWindowLoader | None = None

  def loader(self, num_workers: int = 0, **options: Any) -> Any:
    """Creates torch's DataLoader of these batches.

    Args:
      num_workers: processes that take turns; 0, the fastest, reads in this one.
      **options: further arguments of `torch.utils.data.DataLoader`.
    Returns:
      The DataLoader.
    """
    return _loader_of(self, num_workers, batch_size=None, **options)

  @property
  def batches_per_epoch(self) -> int:
    """Batches of this shard in each epoch."""
    return self._loader.batches_per_epoch

  def set_epoch(self, epoch: int, start_batch: int = 0) -> None:
    """Shows one epoch from now on, as torch's samplers do.

    Args:
      epoch: which one; each has an order of its own.
      start_batch: batches of it to leave out.
    """
    check_start_batch("TorchWindows", start_batch)
    self._start_batch = epoch * self.batches_per_epoch + start_batch
    self._num_epochs = epoch + 1

  def __len__(self) -> int:
    if self._num_epochs is None:
      raise TypeError("TorchWindows: num_epochs=None is without end: it has no len().")
    end = self._num_epochs * self.batches_per_epoch
    return max(0, end - self._start_batch)

  def __iter__(self) -> Iterator[TorchBatch]:
    worker = torch.utils.data.get_worker_info()
    first, every = self._start_batch, 1
    if worker is not None:
      # DataLoader asks its workers in turn.
      first, every = first + worker.id, worker.num_workers
    batches: Iterator[Batch] = iter(self._loader.numpy_batches(first, every))
    if self._num_epochs is not None:
      # The loader goes on for ever.
      count = -(-(len(self) - (first - self._start_batch)) // every)
      batches = itertools.islice(batches, max(0, count))
    return map(to_torch, batches)

  @property
  def _loader(self) -> StoreWindowLoader:
    _check_process("TorchWindows", self._process)
    if self._opened is None:
      store = EpisodeStore(self._store_path)
      options = {**self._options, "num_epochs": None}
      self._opened = StoreWindowLoader(store, *self._arguments, **options)
    return self._opened

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, "_opened": None}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__dict__.update(state, _process=os.getpid())


class TorchWindowMap(torch.utils.data.Dataset):
  """Windows by number, for samplers of your own.

  A batch of numbers is one read.
  """

  def __init__(
    self,
    store_path: str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    **options: Any,
  ) -> None:
    """Describes the windows; the store is opened where they are read.

    Args:
      store_path: the store's folder.
      spec_structure: the specs of a window.
      **options: further arguments of `EpisodeStore.windows`: padding, masks, ...
    """
    self._store_path = os.fspath(store_path)
    self._spec_structure = spec_structure
    self._options = options
    self._process = os.getpid()
    self._opened: tuple[StoreWindows, Any] | None = None

  def loader(self, num_workers: int = 0, **options: Any) -> Any:
    """Creates torch's DataLoader of these windows.

    Args:
      num_workers: processes that read; 0 reads in this one.
      **options: further arguments of `torch.utils.data.DataLoader`: batch_size,
        sampler, shuffle, ...
    Returns:
      The DataLoader.
    """
    options.setdefault("collate_fn", self.collate)
    return _loader_of(self, num_workers, **options)

  def __len__(self) -> int:
    return len(self._windows[0])

  def __getitem__(self, index: int) -> TorchBatch:
    return {path: values[0] for path, values in self.__getitems__([index]).items()}

  def __getitems__(self, indices: Sequence[int]) -> TorchBatch:
    """Reads windows.

    Args:
      indices: their numbers; negative ones count from the end.
    Returns:
      One batch by path, [len(indices), L, K, ...]; encoded images as bytes.
    Raises:
      IndexError: there is no such window.
    """
    windows, read = self._windows
    numbers = np.asarray(indices, np.int64)
    wrong = numbers[(numbers < -len(windows)) | (numbers >= len(windows))]
    if len(wrong):
      raise IndexError(
        f"TorchWindowMap: {self._store_path}: expected windows below {len(windows)}, "
        f"got {wrong[0]}."
      )
    return to_torch(as_arrays(read(tf.constant(numbers % len(windows)))))

  @staticmethod
  def collate(batch: TorchBatch) -> TorchBatch:
    """Returns the batch, which is one already."""
    return batch

  @property
  def _windows(self) -> tuple[StoreWindows, Any]:
    _check_process("TorchWindowMap", self._process)
    if self._opened is None:
      store = EpisodeStore(self._store_path)
      windows = store.windows(self._spec_structure, **self._options)
      signature = [tf.TensorSpec([None], tf.int64)]
      self._opened = windows, tf.function(windows.read, signature, autograph=False)
    return self._opened

  def __getstate__(self) -> dict[str, Any]:
    return {**self.__dict__, "_opened": None}

  def __setstate__(self, state: dict[str, Any]) -> None:
    self.__dict__.update(state, _process=os.getpid())


def to_torch(batch: Batch) -> TorchBatch:
  """Makes tensors of arrays, without a copy.

  Args:
    batch: arrays by path that can be written to.
  Returns:
    Tensors by path; arrays of byte strings as they are.
  """
  return {path: _to_tensor(array) for path, array in batch.items()}


def _to_tensor(array: np.ndarray) -> Any:
  if array.dtype == object:
    return array
  if array.dtype == ml_dtypes.bfloat16:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
  return torch.from_numpy(array)


def _loader_of(dataset: Any, num_workers: int, **options: Any) -> Any:
  if num_workers:
    options.setdefault("multiprocessing_context", "spawn")
  return torch.utils.data.DataLoader(dataset, num_workers=num_workers, **options)


def _check_process(name: str, process: int) -> None:
  """Raises in a process that was forked: TensorFlow's threads are not there."""
  if os.getpid() != process:
    raise errors.SpecError(
      f"{name}: the workers: expected processes that are started by 'spawn', got a "
      "fork, in which TensorFlow would wait for threads for ever. Use "
      "dataset.loader(num_workers), or DataLoader(..., "
      "multiprocessing_context='spawn')."
    )
