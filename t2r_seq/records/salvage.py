"""Every record that is good, copied out of damaged files, byte for byte."""

from __future__ import annotations

import dataclasses
import os
import shutil
import uuid
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.records import checked_reads, examine, frame_scan
from t2r_seq.records.frame_scan import Frames

_CHUNK = 1 << 22


@dataclasses.dataclass(frozen=True)
class SalvagedRecords:
  """What became of the records of damaged files.

  Attributes:
    folder: where the new files are.
    num_kept: records by the name of the new file.
    num_left_out: records of all files that are not there.
  """

  folder: str
  num_kept: dict[str, int]
  num_left_out: int


def salvage_records(
  report: examine.RecordReport, out: str | os.PathLike[str]
) -> SalvagedRecords:
  """Copies the good records of files, frames and all, to files of the same names.

  A file stays compressed as it is. The folder appears when it is complete; the old
  files are only read.

  Args:
    report: of `examine_records`, for these files as they are now.
    out: a folder that is not there yet. Where files are of several folders, it has
      those, too.
  Returns:
    What was copied.
  Raises:
    RecordError: there is something at `out`, or a file is not the one of the report.
    OSError: the files cannot be read or written; nothing is left.
  """
  target = os.path.abspath(os.fspath(out))
  if os.path.lexists(target):
    raise errors.RecordError(
      f"salvage: {target}: expected nothing there, got a "
      f"{'folder' if os.path.isdir(target) else 'file'}. Name a new folder."
    )
  hidden = os.path.join(
    os.path.dirname(target), f".{os.path.basename(target)}.{uuid.uuid4().hex}"
  )
  kept: dict[str, int] = {}
  try:
    os.mkdir(hidden)
  except OSError as error:
    reason = f"{target}: {error.strerror}. Nothing was salvaged."
    raise OSError(error.errno, f"salvage: {reason}") from error
  try:
    for filename, name in _names(list(report.num_records)).items():
      place = os.path.join(hidden, name)
      os.makedirs(os.path.dirname(place), exist_ok=True)
      kept[name] = _copy(report, filename, place)
    os.rename(hidden, target)
  except BaseException:
    shutil.rmtree(hidden, ignore_errors=True)
    raise
  left_out = sum(report.num_records.values()) - sum(kept.values())
  return SalvagedRecords(target, kept, left_out)


def _names(filenames: list[str]) -> dict[str, str]:
  """Returns where each file goes: below the folder that all have in common."""
  if any("://" in name for name in filenames):
    names = {name: os.path.basename(name) for name in filenames}
  else:
    places = {name: os.path.abspath(name) for name in filenames}
    common = os.path.commonpath([os.path.dirname(place) for place in places.values()])
    names = {name: os.path.relpath(place, common) for name, place in places.items()}
  if len({*names.values()}) < len(names):
    raise errors.RecordError(
      "salvage: the files: expected a different name for each, got "
      f"{errors.listing(names)}. Salvage them one by one."
    )
  return names


def _copy(report: examine.RecordReport, filename: str, place: str) -> int:
  """Copies the good records of one file; returns how many there are."""
  compression = examine.compression_of(report, filename)
  with checked_reads.open_content(filename, compression) as (content, _):
    frames = frame_scan.scan_frames(content)
    examined = report.num_records[filename]
    if frames.num_records != examined:
      raise errors.RecordError(
        f"salvage: {filename}: expected the {examined} records that were examined, got "
        f"{frames.num_records}. Examine the file again."
      )
    bad = np.asarray([*report.bad_records(filename)], np.int64)
    good = np.flatnonzero(~np.isin(frames.numbers, bad))
    with frame_scan.open_file(content) as source, open(place, "wb") as written:
      sink = _Sink(written, compression)
      for start, stop in _ranges(frames, good):
        source.seek(start)
        while start < stop:
          chunk = source.read(min(_CHUNK, stop - start))
          if not chunk:
            raise OSError(None, f"{filename} became shorter meanwhile")
          sink.write(chunk)
          start += len(chunk)
      sink.finish()
      os.fsync(written.fileno())
  return len(good)


def _ranges(frames: Frames, good: np.ndarray) -> Iterator[tuple[int, int]]:
  """Yields the bytes of good frames, those that follow each other together."""
  if not len(good):
    return
  starts, stops = frames.starts[good], frames.stops[good]
  breaks = np.flatnonzero(starts[1:] != stops[:-1]) + 1
  firsts = np.concatenate([[0], breaks])
  lasts = np.concatenate([breaks, [len(good)]]) - 1
  yield from zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True)


class _Sink:
  """Writes bytes, compressed as a file's name promises."""

  def __init__(self, file: Any, compression: str) -> None:
    self._file = file
    # 16: a gzip header and trailer, and not those of zlib.
    bits = zlib.MAX_WBITS | 16 if compression == "GZIP" else zlib.MAX_WBITS
    self._deflater = zlib.compressobj(wbits=bits) if compression else None

  def write(self, data: bytes) -> None:
    self._file.write(self._deflater.compress(data) if self._deflater else data)

  def finish(self) -> None:
    if self._deflater:
      self._file.write(self._deflater.flush())
    self._file.flush()
