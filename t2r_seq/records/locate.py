"""Which file a serialized record comes from, found by its bytes; slow, for reports."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from t2r_seq.records import checked_reads, file_types, frame_scan, framing


def locate_record(data: bytes, filenames: Iterable[str]) -> list[tuple[str, int, int]]:
  """Finds a record, and all that are like it, by the content.

  Of the files the frames are read, and the data of those records only that have as many
  bytes.

  Args:
    data: the serialized record.
    filenames: of TFRecord files.
  Returns:
    File, number of the record in it, and where its frame starts, of all such records.
  """
  found = []
  for filename in filenames:
    compression = file_types.compression_type(filename)
    with checked_reads.open_content(filename, compression) as (name, _):
      frames = frame_scan.scan_frames(name)
      sizes = frames.stops - frames.starts - framing.FRAME_SIZE
      for i in np.flatnonzero(sizes == len(data)).tolist():
        start = int(frames.starts[i])
        content = framing.read_content(name, "", start + framing.HEADER_SIZE, len(data))
        if content == data:
          found.append((filename, int(frames.numbers[i]), start))
  return found
