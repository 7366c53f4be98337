"""Grain over the store's columns by `np.memmap`."""

from __future__ import annotations

from collections.abc import Iterator

import grain

from benchmarks.store.mapped_windows import Batch, MappedWindows
from benchmarks.store.works import Work

# In this process and without reading ahead: workers would copy every batch once more,
# and threads take turns with the consumer for Python's lock, which costs half the rate.
_HERE = grain.ReadOptions(0, 0)


class WindowViews:
  """A random access source: a window is a view of the mapped file."""

  def __init__(self, work: Work) -> None:
    """Opens the columns."""
    self._windows = MappedWindows(work)

  def __len__(self) -> int:
    return len(self._windows)

  def __getitem__(self, window_id: int) -> Batch:
    return self._windows.view(window_id)


def windows(work: Work, epochs: int | None = None) -> Iterator[Batch]:
  """Grain as it is meant: a source of samples, shuffled globally, batched."""
  dataset = grain.MapDataset.source(WindowViews(work)).shuffle(seed=1).repeat(epochs)
  batched = dataset.batch(work.batch_size, drop_remainder=True)
  return iter(batched.to_iter_dataset(_HERE))


def batches(work: Work, epochs: int | None = None) -> Iterator[Batch]:
  """Grain bent to this: it shuffles and batches numbers, one call gathers a batch."""
  numbers = grain.MapDataset.range(work.num_windows).shuffle(seed=1).repeat(epochs)
  batched = numbers.batch(work.batch_size, drop_remainder=True)
  gathered = batched.map(MappedWindows(work).gather)
  return iter(gathered.to_iter_dataset(_HERE))
