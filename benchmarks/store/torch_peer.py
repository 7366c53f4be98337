"""torch's DataLoader over the store's columns by `np.memmap`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils import data as torch_data

from benchmarks.store.mapped_windows import MappedWindows
from benchmarks.store.works import Work


class TorchWindows(torch_data.Dataset):
  """Whole batches of windows by their numbers, gathered by torch's own threads."""

  def __init__(self, work: Work) -> None:
    """Shares the mapped memory with torch; nothing is copied."""
    self._windows = MappedWindows(work)
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # Of read-only memory; nothing writes to it.
      self._columns = {
        name: torch.from_numpy(column) for name, column in self._windows.columns.items()
      }

  def __len__(self) -> int:
    return len(self._windows)

  def __getitem__(self, window_ids: Sequence[int]) -> dict[str, torch.Tensor]:
    rows = torch.from_numpy(self._windows.rows(np.asarray(window_ids)))
    flat = rows.reshape(-1)
    return {
      name: column.index_select(0, flat).reshape(*rows.shape, *column.shape[1:])
      for name, column in self._columns.items()
    }


def batches(work: Work, epochs: int | None = None) -> Iterator[dict[str, torch.Tensor]]:
  """A DataLoader in this process whose sampler draws whole batches.

  Workers would send every batch through shared memory, one copy more; single samples
  would be collated, one more still.
  """
  dataset = TorchWindows(work)
  sampler = torch_data.BatchSampler(
    torch_data.RandomSampler(dataset, generator=torch.Generator().manual_seed(1)),
    work.batch_size,
    drop_last=True,
  )
  loader = torch_data.DataLoader(dataset, sampler=sampler, batch_size=None)
  done = 0
  while epochs is None or done < epochs:
    yield from loader
    done += 1
