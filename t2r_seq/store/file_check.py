"""The bytes of each episode in one file, compared with their checksums."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np

from t2r_seq.store.spans import Spans

_CHUNK = 1 << 22


@dataclasses.dataclass
class FileFailures:
  """The episodes whose bytes in a file are not as they were written.

  Attributes:
    lost: by episode, why its bytes cannot be read.
    changed: by episode, which bytes have another checksum.
    num_bytes: how many were compared.
  """

  lost: dict[int, str] = dataclasses.field(default_factory=dict)
  changed: dict[int, str] = dataclasses.field(default_factory=dict)
  num_bytes: int = 0

  @property
  def episodes(self) -> set[int]:
    """All of them."""
    return {*self.lost, *self.changed}

  def forgive(self, episodes: set[int]) -> None:
    """Drops episodes that something else explains."""
    for episode in episodes:
      self.lost.pop(episode, None)
      self.changed.pop(episode, None)


def check_file(path: str, size: int, spans: Spans, sums: np.ndarray) -> FileFailures:
  """Compares the bytes of each episode in a file with their checksums.

  The file is read, not mapped: a disk that fails is an error then, and does not end
  the process.

  Args:
    path: of the file.
    size: how many of its bytes can count; -1 where it is missing.
    spans: the bytes of each episode.
    sums: CRC-32 of the first episodes' bytes, uint32 [n]; the rest is not compared.
  Returns:
    What is wrong.
  """
  if size < 0:
    return FileFailures(dict.fromkeys(range(len(spans)), "the file is missing"))
  found = FileFailures()
  try:
    with open(path, "rb", buffering=1 << 20) as file:
      _compare(file, size, spans, sums.tolist(), found)
  except OSError as error:
    reason = f"the file cannot be read: {error.strerror or error}"
    found.lost.update({e: reason for e in range(len(spans)) if e not in found.episodes})
  return found


def _compare(
  file: Any, size: int, spans: Spans, sums: list[int], found: FileFailures
) -> None:
  buffer = memoryview(bytearray(_CHUNK))
  bounds = zip(
    spans.starts.tolist(), spans.stops.tolist(), spans.is_known.tolist(), strict=True
  )
  for episode, (start, stop, is_known) in enumerate(bounds):
    if not is_known:
      found.lost[episode] = "its place is not known"
    elif stop > size:
      found.lost[episode] = f"it ends at byte {stop:,}"
    elif episode < len(sums):
      got = _checksum(file, start, stop, buffer)
      found.num_bytes += stop - start
      if got != sums[episode]:
        where = f"bytes {start:,} to {stop - 1:,}" if stop > start else "no bytes"
        found.changed[episode] = f"{where}: CRC-32 {got:08x}, not {sums[episode]:08x}"


def _checksum(file: Any, start: int, stop: int, buffer: memoryview) -> int:
  file.seek(start)
  checksum = 0
  while start < stop:
    count = file.readinto(buffer[: stop - start])
    if not count:
      raise OSError(None, "it became shorter meanwhile")
    checksum = zlib.crc32(buffer[:count], checksum)
    start += count
  return checksum
