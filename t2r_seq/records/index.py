"""Indices of TFRecord files: written, checked, and used to read records by number.

Opening an index compares its file's size and modification time, without reading the
file: any writer changes the time. `check_index` reads the frames as well, which also
finds a file that was replaced by one of the same size and time.

Writing an index verifies every checksum, so a file with an index was intact.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors, specs, windows
from t2r_seq.records import explain, files, framing, index_file, rlds
from t2r_seq.records import features as features_lib
from t2r_seq.records.index_file import FileIndex
from t2r_seq.records.protos import RecordContents

FRESH, MISSING, STALE, DAMAGED = "fresh", "missing", "stale", "damaged"
_CHUNK_SIZE = 1 << 20


@dataclasses.dataclass(frozen=True)
class IndexState:
  """State of the index of one file.

  Attributes:
    filename: name of the TFRecord file.
    state: 'fresh', 'missing', 'stale' or 'damaged'.
    reason: the fault, for messages; '' for a fresh index.
    index: the index; None if it is missing or damaged.
  """

  filename: str
  state: str
  reason: str = ""
  index: index_file.FileIndex | None = None


def check_index(
  file_patterns: files.FilePatterns, spec: specs.SpecStructure | None = None
) -> list[IndexState]:
  """Checks the index of every file, by size, time and frames.

  Args:
    file_patterns: patterns of TFRecord files.
    spec: specs that the index must have; None for any.
  Returns:
    A state for each file, in order.
  Raises:
    SpecError: a pattern matches no file.
    OSError: a file cannot be read.
  """
  _, filenames = files.get_data_format_and_filenames(file_patterns)
  return [_check_frames(find_state(name, spec)) for name in filenames]


def find_state(filename: str, spec: specs.SpecStructure | None = None) -> IndexState:
  """Compares an index with its file by size, time and spec; reads no record.

  Args:
    filename: name of a TFRecord file, which exists.
    spec: specs that the index must have; None for any.
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


def describe(state: IndexState) -> str:
  """Returns the message about an invalid index, with the command to run."""
  if state.state == DAMAGED:
    return state.reason
  return f"index: {state.filename}: {state.reason}. Run: t2r_seq index {state.filename}"


def _check_frames(state: IndexState) -> IndexState:
  if state.state != FRESH or state.index is None:
    return state
  checksum = 0
  try:
    if state.index.compression:
      checksum = _checksum_of(state.filename)
    else:
      for frame in framing.read_frames(state.filename, lengths=()):
        checksum = zlib.crc32(_ends_of(state.filename, frame), checksum)
  except errors.RecordError as error:
    return dataclasses.replace(state, state=STALE, reason=str(error))
  if checksum == state.index.checksum:
    return state
  reason = "expected the records that were indexed, got others of the same size"
  return dataclasses.replace(state, state=STALE, reason=reason)


def _checksum_of(filename: str) -> int:
  """Returns the CRC-32 of all bytes of a file."""
  checksum = 0
  with open(filename, "rb") as file:
    while chunk := file.read(_CHUNK_SIZE):
      checksum = zlib.crc32(chunk, checksum)
  return checksum


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


def scan_file(filename: str, spec: specs.TensorSpecStruct | None = None) -> FileIndex:
  """Makes the index of a file, and writes nothing.

  Args:
    filename: name of a local TFRecord file.
    spec: flat specs of the records, whose sequences are counted; None counts all.
  Returns:
    The index.
  Raises:
    RecordError: the file is damaged, of another type, or changed while it was read; a
      record is no proto; or the first one does not fit the spec.
    OSError: the file cannot be read.
  """
  compression = files.compression_type(filename)
  files.check_file_types([filename], compression)
  before = os.stat(filename)
  declared = _sequence_names(spec)
  ends: list[int] = []
  steps: dict[str, list[int]] = {}
  checksum = 0
  for frame in framing.read_frames(filename, compression):
    checksum = zlib.crc32(_ends_of(filename, frame), checksum)
    data = frame.data or b""
    if frame.number == 0 and spec is not None:
      _check_fits(filename, data, spec)
    place = framing.place(filename, frame.number, frame.start)
    for name, count in _count(data, place).items():
      if declared is None or name in declared:
        column = steps.setdefault(name, [])
        column.extend([0] * (frame.number - len(column)))
        column.append(count)
    ends.append(frame.stop)
  for column in steps.values():
    column.extend([0] * (len(ends) - len(column)))
  if compression:
    checksum = _checksum_of(filename)
  now = os.stat(filename)
  if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
    raise errors.RecordError(
      f"index: {filename}: expected a file at rest, got one that changed while it was "
      "read. Index it when it is complete."
    )
  return FileIndex(
    before.st_size,
    before.st_mtime_ns,
    checksum,
    compression,
    np.asarray(ends, np.int64),
    {name: np.asarray(column, np.int64) for name, column in steps.items()},
    spec.to_json() if spec is not None else "",
  )


def _ends_of(filename: str, frame: framing.Frame) -> bytes:
  if frame.damage is not None:
    raise framing.damage_error(filename, frame)
  return frame.ends


def _count(data: bytes, place: str) -> dict[str, int]:
  try:
    return rlds.divide_unknown(RecordContents(data)).num_steps
  except errors.RecordError as error:
    raise errors.RecordError(f"{place}: {error}") from error


def _sequence_names(spec: specs.TensorSpecStruct | None) -> set[str] | None:
  if spec is None:
    return None
  flat = features_lib.parsed_specs(spec)
  return {leaf.name for leaf in flat.values() if leaf.is_sequence}


def _check_fits(filename: str, data: bytes, spec: specs.TensorSpecStruct) -> None:
  (features,) = features_lib.collect_features({"": spec}).values()
  mismatches = explain.explain_record(data, features)
  if mismatches:
    place = framing.place(filename, 0, 0)
    raise errors.mismatch_error(place, mismatches, errors.RecordError)


@dataclasses.dataclass(frozen=True)
class Indexed:
  """Result of `write_index` for one file.

  Attributes:
    filename: name of the TFRecord file.
    index: the index; None if the file cannot be indexed.
    is_new: False if there was a fresh index already.
    error: why the file cannot be indexed, or ''.
  """

  filename: str
  index: index_file.FileIndex | None
  is_new: bool = True
  error: str = ""


def write_index(
  file_patterns: files.FilePatterns,
  spec: specs.SpecStructure | None = None,
  num_parallel: int | None = None,
  force: bool = False,
  progress: Callable[[Indexed], None] | None = None,
) -> list[Indexed]:
  """Writes an index beside every TFRecord file without a fresh one.

  Args:
    file_patterns: patterns of local files. An index of a compressed file only gives
      counts, no random access.
    spec: flat specs of the records, of one dataset, to keep in the index. Only their
      sequences are counted, and the first record of every file must fit. None for none.
    num_parallel: number of files read at a time; None: one per core.
    force: whether to write fresh indices again, too.
    progress: called in this thread with the result of each file as soon as it is known.
  Returns:
    The result for each file, in order, with the error of a file that cannot be indexed.
  Raises:
    SpecError: a pattern matches no file, a file is at a URL, or the spec cannot be
      parsed or is of several datasets.
  """
  _, filenames = files.get_data_format_and_filenames(file_patterns)
  _check_local(filenames)
  if spec is not None:
    spec = _check_spec(spec)
  done: dict[str, Indexed] = {}

  def add_result(result: Indexed) -> None:
    done[result.filename] = result
    if progress is not None:
      progress(result)

  pending = []
  for name in filenames:
    state = find_state(name, spec)
    if force or state.state != FRESH:
      pending.append(name)
    else:
      add_result(Indexed(name, state.index, is_new=False))
  with futures.ThreadPoolExecutor(num_parallel or os.cpu_count()) as executor:
    jobs = [executor.submit(_write, name, spec) for name in pending]
    for job in futures.as_completed(jobs):
      add_result(job.result())
  return [done[name] for name in filenames]


def _write(filename: str, spec: specs.TensorSpecStruct | None) -> Indexed:
  try:
    index_file.check_replaces_index(filename)
    index = scan_file(filename, spec)
    index_file.write_file_index(filename, index)
  except (errors.RecordError, OSError) as error:
    return Indexed(filename, None, error=str(error))
  return Indexed(filename, index)


def _check_local(filenames: Sequence[str]) -> None:
  remote = [name for name in filenames if "://" in name]
  if remote:
    raise errors.SpecError(
      f"index: {remote[0]}: expected local files, got a URL. Index them where they are "
      "local, and copy the indices along with the files and their times."
    )


def _check_spec(spec: specs.SpecStructure) -> specs.TensorSpecStruct:
  flat = specs.flatten_spec_structure(spec)
  keys = list(features_lib.collect_features({"": flat}))
  if len(keys) > 1:
    raise errors.SpecError(
      f"index: the spec: expected specs of one dataset, got those of "
      f"{errors.listing(keys)}. Index the files of each with its own specs: "
      "filter_spec_structure_by_dataset."
    )
  return specs.TensorSpecStruct(flat)


_MAX_SHOWN = 20


class RecordIndex:
  """The indices of some TFRecord files as one: record i of all, files in order.

  Attributes:
    filenames: the files, in order.
    files: the index of each.
    record_ends: number of records up to the end of each file, int64 [files].
    num_records: number of records of all files.
  """

  def __init__(
    self, filenames: Sequence[str], indices: Sequence[index_file.FileIndex]
  ) -> None:
    """Puts the indices of files together.

    Args:
      filenames: the files.
      indices: index of each file.
    """
    self.filenames = tuple(filenames)
    self.files = tuple(indices)
    self.record_ends = np.cumsum([index.num_records for index in self.files], dtype=int)
    self.num_records = int(self.record_ends[-1]) if self.files else 0

  def __len__(self) -> int:
    return self.num_records

  @functools.cached_property
  def lengths(self) -> np.ndarray:
    """Bytes of every serialized record, int64 [records]."""
    return _concatenate([index.lengths for index in self.files])

  @functools.cached_property
  def offsets(self) -> np.ndarray:
    """Start of every record's frame in its file, int64 [records]."""
    return _concatenate([index.offsets for index in self.files])

  def place(self, record: int) -> str:
    """Names file, record and byte of a record, for messages."""
    number, local = self._find(record)
    offset = int(self.offsets[record])
    return framing.place(self.filenames[number], local, offset)

  def num_steps(self, spec_structure: specs.SpecStructure) -> np.ndarray:
    """Returns the length of every episode, in steps.

    Args:
      spec_structure: specs of one dataset, windowed or flat; all sequences present in a
        record must have equal length.
    Returns:
      int64 [records].
    Raises:
      SpecError: the specs have no sequence, one that the indices do not count, or one
        that differs from the specs of the indices.
      RecordError: the sequences of a record differ in length; names the record.
    """
    flat = features_lib.parsed_specs(windows.flat_specs(spec_structure))
    by_name = {leaf.name: path for path, leaf in flat.items() if leaf.is_sequence}
    if not by_name:
      raise errors.SpecError(
        "index: the specs: expected at least one sequence, got none. Give the specs "
        "time_offsets, or is_sequence=True."
      )
    self._check_counted(by_name, flat)
    columns = {name: self._steps_of(name) for name in sorted(by_name)}
    steps = np.max(list(columns.values()), axis=0)
    for name, column in columns.items():
      leaf = flat[by_name[name]]
      is_uneven = column != steps
      if leaf.is_optional or leaf.varlen_default_value is not None:
        is_uneven &= column != 0  # 0: the sequence is absent.
      uneven = np.flatnonzero(is_uneven)
      if len(uneven):
        raise self._uneven_error(int(uneven[0]), name, by_name[name], columns)
    return steps

  def read(self, record: int) -> bytes:
    """Reads one serialized record; see `read_many`."""
    return self.read_many([record])[0]

  def read_many(self, numbers: Sequence[int] | np.ndarray) -> list[bytes]:
    """Reads serialized records in any order; verifies their checksums.

    Args:
      numbers: numbers of the records, in range(num_records).
    Returns:
      The serialized protos, in the order of the numbers.
    Raises:
      IndexError: there is no such record.
      RecordError: a file is compressed, damaged, or has changed.
      OSError: a file cannot be read.
    """
    self.require_random_access()
    numbers = np.asarray(numbers, np.int64)
    for number in numbers[(numbers < 0) | (numbers >= self.num_records)]:
      self._find(int(number))  # Raises.
    offsets, lengths = self.offsets[numbers].tolist(), self.lengths[numbers].tolist()
    order = np.argsort(numbers, kind="stable")
    files = np.searchsorted(self.record_ends, numbers[order], "right")
    contents = [b""] * len(numbers)
    for places in np.split(order, np.flatnonzero(np.diff(files)) + 1):
      if not len(places):
        continue
      number = int(np.searchsorted(self.record_ends, numbers[places[0]], "right"))
      with open(self.filenames[number], "rb", buffering=0) as file:
        descriptor = file.fileno()
        for place in places.tolist():
          data = framing.read_data(descriptor, offsets[place], lengths[place])
          if data is None:
            raise self._damage_error(int(numbers[place]))
          contents[place] = data
    return contents

  def records(self, numbers: Sequence[int] | np.ndarray) -> list[framing.Record]:
    """Reads records with their places; see `read_many`."""
    records = []
    for number, data in zip(numbers, self.read_many(numbers), strict=True):
      file, local = self._find(int(number))
      offset = int(self.offsets[number])
      records.append(framing.Record(self.filenames[file], local, offset, data))
    return records

  def _damage_error(self, record: int) -> errors.RecordError:
    """Builds the error for a record that differs from the indexed one."""
    filename = self.filenames[self._find(record)[0]]
    state = find_state(filename)
    if state.state != FRESH:
      return errors.RecordError(describe(state))
    for frame in framing.read_frames(filename):
      if frame.damage is not None:
        return framing.damage_error(filename, frame)
    return errors.RecordError(
      f"index: {self.place(record)}: expected the record that was indexed, got "
      f"another. Run: t2r_seq index {filename}"
    )

  def require_random_access(self) -> None:
    """Raises RecordError if a file is compressed: it can only be read in order."""
    for name, index in zip(self.filenames, self.files, strict=True):
      if index.compression:
        raise errors.RecordError(
          f"index: {name}: expected a file without compression, got "
          f"{index.compression}: a compressed file has no random access. "
          "Decompress it and index it again, convert it to an EpisodeStore, or read it "
          "in order, without the index."
        )

  def _find(self, record: int) -> tuple[int, int]:
    if not 0 <= record < self.num_records:
      raise IndexError(
        f"index: expected a record in range({self.num_records}), got {record}."
      )
    number = int(np.searchsorted(self.record_ends, record, "right"))
    first = int(self.record_ends[number - 1]) if number else 0
    return number, record - first

  def _steps_of(self, name: str) -> np.ndarray:
    return _concatenate(
      [
        index.steps.get(name, np.zeros(index.num_records, np.int64))
        for index in self.files
      ]
    )

  def _check_counted(
    self, by_name: dict[str, str], flat: specs.TensorSpecStruct
  ) -> None:
    """Checks that the indices count the required sequences, and have like specs."""
    mismatches = []
    counted = {name for index in self.files for name in index.steps}
    for name, path in by_name.items():
      is_required = (
        not flat[path].is_optional and flat[path].varlen_default_value is None
      )
      if is_required and name not in counted and self.num_records:
        hint = errors.nearest(name, counted) or (
          " An index that was made with a --spec counts that spec's sequences only."
        )
        mismatches.append(
          errors.Mismatch(
            f"{path} (feature '{name}')",
            "a sequence that the index counts",
            errors.listing(counted),
            hint,
          )
        )
    filename, of_other_kind = self._kind_mismatches(flat)
    if mismatches or of_other_kind:
      raise errors.mismatch_error(f"index: {filename}", mismatches + of_other_kind)

  def _kind_mismatches(
    self, flat: specs.TensorSpecStruct
  ) -> tuple[str, list[errors.Mismatch]]:
    """Compares specs with those that the indices were made with.

    Returns:
      The first file whose index differs, and its mismatches; the first file if none.
    """
    for filename, index in zip(self.filenames, self.files, strict=True):
      declared = {leaf.name: leaf for leaf in (index.spec or {}).values()}
      mismatches = [
        errors.Mismatch(
          f"{path} (feature '{leaf.name}')",
          _describe(declared[leaf.name]),
          _describe(leaf),
        )
        for path, leaf in flat.items()
        if leaf.name in declared and not _is_stored_alike(leaf, declared[leaf.name])
      ]
      if mismatches:
        return filename, mismatches
    return next(iter(self.filenames), ""), []

  def _uneven_error(
    self, record: int, name: str, path: str, columns: dict[str, np.ndarray]
  ) -> errors.RecordError:
    other = max(columns, key=lambda key: columns[key][record])
    mismatch = errors.Mismatch(
      f"{path} (feature '{name}')",
      f"{columns[other][record]} steps, as feature '{other}' has",
      str(columns[name][record]),
    )
    return errors.mismatch_error(self.place(record), [mismatch], errors.RecordError)


def read_index(file_patterns: files.FilePatterns) -> RecordIndex:
  """Reads the indices of files; each must match its file's present state.

  Args:
    file_patterns: patterns of the TFRecord files.
  Returns:
    The index of them all.
  Raises:
    SpecError: a pattern matches no file.
    RecordError: indices are missing, damaged or stale; names the difference and the
      command to run.
  """
  _, filenames = files.get_data_format_and_filenames(file_patterns)
  states = [find_state(name) for name in filenames]
  bad = [state for state in states if state.state != FRESH]
  if bad:
    raise errors.RecordError(_describe_bad(bad))
  indices = [state.index for state in states if state.index is not None]
  return RecordIndex(filenames, indices)


def _describe_bad(states: list[IndexState]) -> str:
  if len(states) == 1:
    return describe(states[0])
  lines = [f"\n  {state.filename}: {state.reason}" for state in states[:_MAX_SHOWN]]
  rest = len(states) - _MAX_SHOWN
  if rest > 0:
    lines.append(f"\n  ... and {rest} more")
  return (
    f"index: {len(states)} files have no valid index:{''.join(lines)}\n"
    "Run t2r_seq index on the files."
  )


def _is_stored_alike(leaf: Any, other: Any) -> bool:
  """Whether the parser can read a feature that fits one spec with the other spec."""
  one, two = _stored_form(leaf), _stored_form(other)
  # None: a varlen spec fits lists of any length.
  return one[:-1] == two[:-1] and (None in (one[-1], two[-1]) or one[-1] == two[-1])


def _stored_form(spec: Any) -> tuple[bool, str, Any]:
  what = spec.data_format or features_lib.record_dtype(spec).name
  if spec.varlen_default_value is not None:
    return spec.is_sequence, what, None
  # Values are stored flat; encoded images have their sizes in them.
  shape = spec.shape.as_list() if spec.data_format else spec.shape.num_elements()
  return spec.is_sequence, what, shape


def _describe(spec: Any) -> str:
  kind = "sequence" if spec.is_sequence else "context"
  what = spec.data_format or features_lib.record_dtype(spec).name
  return f"a {kind} of {what} {tuple(spec.shape)}"


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
  return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
