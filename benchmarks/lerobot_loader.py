"""Windows by LeRobot's own loader, for a Python that has LeRobot.

    python lerobot_loader.py FOLDER CAMERA BATCH_SIZE NUM_WORKERS

Each line of the standard input is a number of batches; their windows are printed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any


def main(folder: str, camera: str, *sizes: str) -> None:
  """Answers until the input ends."""
  from lerobot.datasets.lerobot_dataset import LeRobotDataset  # type: ignore
  from torch.utils import data

  batch_size, num_workers = map(int, sizes)
  offsets = [step / 30 for step in range(-3, 1)]
  dataset = LeRobotDataset(
    "local/videos", folder, delta_timestamps={camera: offsets}, video_backend="pyav"
  )
  loader = data.DataLoader(
    dataset,
    batch_size,
    shuffle=True,
    num_workers=num_workers,
    drop_last=True,
    persistent_workers=num_workers > 0,
  )

  def for_ever() -> Iterator[Any]:
    while True:
      yield from loader

  batches = for_ever()
  for line in sys.stdin:
    some = itertools.islice(batches, int(line))
    print(sum(len(batch[camera]) for batch in some), flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
