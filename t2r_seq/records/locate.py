"""Which file a serialized record comes from, found by its bytes; slow, for reports."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from t2r_seq.records import checked_reads, file_types, frame_scan, framing

Place = tuple[str, int, int]
"""A file, the number of a record in it, and where its frame starts, in bytes."""


def locate_record(data: bytes, filenames: Iterable[str]) -> list[Place]:
  """Finds a record, and all that are like it; see `locate_records`."""
  return locate_records([data], filenames)[data]


def locate_records(
  records: Iterable[bytes], filenames: Iterable[str]
) -> dict[bytes, list[Place]]:
  """Finds records, and all that are like them, by the content.

  Of the files the frames are read, each file once, and the data of those records only
  that have as many bytes.

  Args:
    records: serialized.
    filenames: of TFRecord files.
  Returns:
    By record the places of all that have its bytes.
  """
  found: dict[bytes, list[Place]] = {data: [] for data in records}
  lengths = sorted({len(data) for data in found})
  for filename in filenames:
    compression = file_types.compression_type(filename)
    with checked_reads.open_content(filename, compression) as (name, _):
      frames = frame_scan.scan_frames(name)
      sizes = frames.stops - frames.starts - framing.FRAME_SIZE
      is_like_one = np.isin(sizes, lengths)
      with frame_scan.open_file(name) as file:
        for i in np.flatnonzero(is_like_one).tolist():
          start = int(frames.starts[i])
          file.seek(start + framing.HEADER_SIZE)
          content = file.read(int(sizes[i]))
          if content in found:
            found[content].append((filename, int(frames.numbers[i]), start))
  return found
