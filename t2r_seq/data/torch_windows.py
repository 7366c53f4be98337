"""Windows of a store as a map-style dataset of PyTorch; needs the extra `torch`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports, specs
from t2r_seq.data.loaders import Batch, as_arrays
from t2r_seq.store import EpisodeStore
from t2r_seq.store.episode_store import StoreWindows

try:
  import torch
except ImportError as error:
  raise imports.missing_extra("torch", "torch") from error

TorchBatch = dict[str, Any]


class TorchWindows(torch.utils.data.Dataset):
  """Windows by number, for torch's DataLoader with any sampler.

  A batch of numbers is one read (`__getitems__`). TensorFlow's threads read it, so a
  DataLoader without workers is usually the fastest. Workers must be started by 'spawn',
  as `loader` does; each opens the store itself.

  Byte strings, for which torch has no tensors, stay numpy arrays.
  """

  def __init__(
    self,
    store_path: str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    **options: Any,
  ) -> None:
    """Describes the windows; each process opens the store when it first reads.

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
    if num_workers:
      options.setdefault("multiprocessing_context", "spawn")
    return torch.utils.data.DataLoader(self, num_workers=num_workers, **options)

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
      SpecError: the store does not fit the specs, or this process is a fork.
    """
    windows, read = self._windows
    numbers = np.asarray(indices, np.int64)
    wrong = numbers[(numbers < -len(windows)) | (numbers >= len(windows))]
    if len(wrong):
      raise IndexError(
        f"TorchWindows: {self._store_path}: expected windows below {len(windows)}, "
        f"got {wrong[0]}."
      )
    return to_torch(as_arrays(read(tf.constant(numbers % len(windows)))))

  @staticmethod
  def collate(batch: TorchBatch) -> TorchBatch:
    """Returns the batch unchanged: `__getitems__` reads whole batches."""
    return batch

  @property
  def _windows(self) -> tuple[StoreWindows, Any]:
    if os.getpid() != self._process:  # TensorFlow's threads are missing in a fork.
      raise errors.SpecError(
        "TorchWindows: the workers: expected processes started by 'spawn', got a fork, "
        "in which TensorFlow hangs. Use dataset.loader(num_workers), or "
        "DataLoader(..., multiprocessing_context='spawn')."
      )
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
  """Converts arrays to tensors without a copy.

  Args:
    batch: writable arrays by path, such as an element of a loader's `numpy_batches`.
  Returns:
    Tensors by path; arrays of byte strings unchanged.
  """
  return {path: _to_tensor(array) for path, array in batch.items()}


def _to_tensor(array: np.ndarray) -> Any:
  if array.dtype == object:
    return array
  if array.dtype == ml_dtypes.bfloat16:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
  return torch.from_numpy(array)
