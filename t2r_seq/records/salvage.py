"""What is good in damaged files of records, copied to new ones."""

from __future__ import annotations

import dataclasses
import os
import zlib
from typing import Any

from t2r_seq import errors
from t2r_seq import files as files_lib
from t2r_seq.records import files, framing
from t2r_seq.records.check import RecordReport


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
  report: RecordReport, out: str | os.PathLike[str]
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
  kept: dict[str, int] = {}
  try:
    with files_lib.new_folder(target) as folder:
      for filename, name in _names(list(report.num_records)).items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        kept[name] = _copy(report, filename, place)
  except OSError as error:
    reason = f"{target}: {error.strerror}. Nothing was salvaged."
    raise OSError(error.errno, f"salvage: {reason}") from error
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


def _copy(report: RecordReport, filename: str, place: str) -> int:
  """Copies the good records of one file; returns how many there are."""
  compression = files.compression_type(filename, report.compression)
  bad = report.bad_records(filename)
  num_found = num_kept = 0
  with open(place, "wb") as written:
    sink = _Sink(written, compression)
    for frame in framing.read_frames(filename, compression):
      num_found += 1
      if frame.data is not None and frame.number not in bad:
        sink.write(frame.ends[: framing.HEADER_SIZE])
        sink.write(frame.data)
        sink.write(frame.ends[framing.HEADER_SIZE :])
        num_kept += 1
    sink.finish()
  examined = report.num_records[filename]
  if num_found != examined:
    raise errors.RecordError(
      f"salvage: {filename}: expected the {examined} records that were examined, got "
      f"{num_found}. Examine the file again."
    )
  return num_kept


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
