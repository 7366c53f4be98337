"""WebDataset: tar files whose samples are episodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import webdataset

from benchmarks.store import works
from benchmarks.store.works import Work

Batch = dict[str, Any]
_SHARDS = 4


def _windows(work: Work, episode: works.Episode) -> Iterator[works.Episode]:
  for start in range(work.windows_per_episode):
    stop = start + work.num_frames
    yield {name: episode[name][start:stop] for name in work.fields}


def windows(work: Work, epochs: int | None = None) -> Iterator[Batch]:
  """Cuts windows of episodes, shuffles them in a buffer, and batches them."""
  count = min(_SHARDS, work.num_episodes)
  shards = [os.path.join(work.folder, f"web_{number}.tar") for number in range(count)]
  if not os.path.exists(shards[0]):
    writers = [webdataset.TarWriter(name) for name in shards]
    for number, episode in enumerate(works.make_episodes(work)):
      files = {f"{name}.npy": values for name, values in episode.items()}
      writers[number % count].write({"__key__": f"{number:06d}", **files})
    for writer in writers:
      writer.close()

  def cut(samples: Iterator[Any]) -> Iterator[works.Episode]:
    for sample in samples:
      episode = {name: sample[f"{name}.npy"] for name in work.fields}
      yield from _windows(work, episode)

  dataset = webdataset.WebDataset(shards, shardshuffle=_SHARDS, empty_check=False)
  dataset = dataset.decode().compose(cut).shuffle(work.shuffle_buffer_size)
  batched = dataset.batched(work.batch_size, collation_fn=_collate, partial=False)
  done = 0
  while epochs is None or done < epochs:
    yield from batched
    done += 1


def _collate(windows: list[works.Episode]) -> Batch:
  return {name: np.stack([w[name] for w in windows]) for name in windows[0]}
