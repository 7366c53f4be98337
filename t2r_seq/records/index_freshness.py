"""Is the index of a file there, whole, and of the file as it is now?

Opening compares size and time of change, two numbers that the file system gives without
reading: any writer changes the time. `check_index` reads the frames as well, which also
finds a file that was swapped for one of the same size and time.
"""

from __future__ import annotations

import dataclasses
import os
import zlib

from t2r_seq import errors, specs
from t2r_seq.records import files, index_file, index_frames

FRESH, MISSING, STALE, DAMAGED = "fresh", "missing", "stale", "damaged"
_CHUNK_SIZE = 1 << 20


@dataclasses.dataclass(frozen=True)
class IndexState:
  """What became of the index of one file.

  Attributes:
    filename: of the TFRecord file.
    state: 'fresh', 'missing', 'stale' or 'damaged'.
    reason: what is wrong, for people; '' of a fresh one.
    index: what was read; None of a missing or damaged one.
  """

  filename: str
  state: str
  reason: str = ""
  index: index_file.FileIndex | None = None


def check_index(
  file_patterns: files.FilePatterns, spec: specs.SpecStructure | None = None
) -> list[IndexState]:
  """Says of every file whether its index holds, by size, time and frames.

  Args:
    file_patterns: of TFRecord files.
    spec: what the index should say that the records hold; None for anything.
  Returns:
    A state for each file, in order.
  Raises:
    SpecError: a pattern matches no file.
  """
  _, filenames = files.get_data_format_and_filenames(file_patterns)
  return [_check_frames(find_state(name, spec)) for name in filenames]


def find_state(filename: str, spec: specs.SpecStructure | None = None) -> IndexState:
  """Compares an index with its file by size, time and spec; reads no record.

  Args:
    filename: of a TFRecord file.
    spec: what the index should say that the records hold; None for anything.
  Returns:
    The state.
  """
  try:
    index = index_file.read_file_index(filename)
  except FileNotFoundError:
    path = index_file.index_path(filename)
    return IndexState(filename, MISSING, f"expected an index at {path}, got none")
  except (errors.RecordError, OSError) as error:
    return IndexState(filename, DAMAGED, str(error))
  reason = _difference(os.stat(filename), index)
  if not reason and spec is not None and not _is_same_spec(spec, index.spec):
    reason = "expected the index to be made with the given spec, got another"
  return IndexState(filename, STALE if reason else FRESH, reason, index)


def require_fresh(filename: str) -> index_file.FileIndex:
  """Reads the index of a file that must have one.

  Args:
    filename: of a TFRecord file.
  Returns:
    The index.
  Raises:
    RecordError: it is missing, damaged or stale; says what differs and what to run.
  """
  state = find_state(filename)
  if state.index is not None and state.state == FRESH:
    return state.index
  raise errors.RecordError(describe(state))


def describe(state: IndexState) -> str:
  """Returns the message about an index that does not hold, with what to run."""
  if state.state == DAMAGED:
    return state.reason
  return f"index: {state.filename}: {state.reason}. Run: t2r_seq index {state.filename}"


def checksum_of(filename: str, compression: str) -> int:
  """Returns the checksum that an index of the file as it is now would have.

  Args:
    filename: of a TFRecord file.
    compression: '', 'GZIP' or 'ZLIB'.
  Returns:
    CRC-32 of the frames; of a compressed file, of all its bytes.
  Raises:
    RecordError: a frame is damaged.
  """
  if not compression:
    return index_frames.scan_frames(filename)[1]
  checksum = 0
  with open(filename, "rb") as file:
    while chunk := file.read(_CHUNK_SIZE):
      checksum = zlib.crc32(chunk, checksum)
  return checksum


def _check_frames(state: IndexState) -> IndexState:
  if state.state != FRESH or state.index is None:
    return state
  try:
    found = checksum_of(state.filename, state.index.compression)
  except errors.RecordError as error:
    return dataclasses.replace(state, state=STALE, reason=str(error))
  if found == state.index.checksum:
    return state
  reason = "expected the records that were indexed, got others of the same size"
  return dataclasses.replace(state, state=STALE, reason=reason)


def _difference(stat: os.stat_result, index: index_file.FileIndex) -> str:
  if stat.st_size != index.file_size:
    return (
      f"expected the {index.file_size} bytes that were indexed, got a file of "
      f"{stat.st_size}"
    )
  if stat.st_mtime_ns != index.mtime_ns:
    later = (stat.st_mtime_ns - index.mtime_ns) / 1e9
    return (
      "expected the file as it was indexed, got one of the same size that was changed "
      f"{abs(later):.6g} s {'later' if later > 0 else 'earlier'}"
    )
  return ""


def _is_same_spec(
  spec: specs.SpecStructure, other: specs.TensorSpecStruct | None
) -> bool:
  if other is None:
    return False
  return specs.flatten_spec_structure(spec).to_json() == other.to_json()
