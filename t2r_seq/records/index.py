"""The records of many files by number, counted without reading them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, specs, windows
from t2r_seq.records import features as features_lib
from t2r_seq.records import files, framing, index_file, index_freshness, storage

_MAX_SHOWN = 20


class RecordIndex:
  """The indices of some TFRecord files as one: record i of all, files in order.

  Attributes:
    filenames: the files, in order.
    files: the index of each.
    record_ends: how many records there are up to the end of each file, int64 [files].
    num_records: of all files.
  """

  def __init__(
    self, filenames: Sequence[str], indices: Sequence[index_file.FileIndex]
  ) -> None:
    """Puts the indices of files together.

    Args:
      filenames: the files.
      indices: one for each.
    """
    self.filenames = tuple(filenames)
    self.files = tuple(indices)
    self.record_ends = np.cumsum([index.num_records for index in self.files], dtype=int)
    self.num_records = int(self.record_ends[-1]) if self.files else 0

  def __len__(self) -> int:
    return self.num_records

  @property
  def lengths(self) -> np.ndarray:
    """Bytes of every serialized record, int64 [records]."""
    return _concatenate([index.lengths for index in self.files])

  @property
  def offsets(self) -> np.ndarray:
    """Where every record's frame starts in its file, int64 [records]."""
    return _concatenate([index.offsets for index in self.files])

  def place(self, record: int) -> str:
    """Names file, record and byte of a record, for messages."""
    number, local = self._find(record)
    offset = int(self.files[number].offsets[local])
    return framing.place(self.filenames[number], local, offset)

  def num_steps(self, spec_structure: specs.SpecStructure) -> np.ndarray:
    """Returns how long every episode is.

    Args:
      spec_structure: of what is read, of one dataset; windowed, or flat. Its sequences
        that a record has are equally long.
    Returns:
      int64 [records].
    Raises:
      SpecError: it reads no sequence, or one that the indices do not count.
      RecordError: names a record whose sequences differ in length.
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
        is_uneven &= column != 0  # Absent.
      uneven = np.flatnonzero(is_uneven)
      if len(uneven):
        raise self._uneven_error(int(uneven[0]), name, by_name[name], columns)
    return steps

  def num_windows(
    self,
    spec_structure: specs.SpecStructure,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
  ) -> np.ndarray:
    """Returns how many windows every episode gives; reads nothing.

    Args:
      spec_structure: the specs of a window.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
    Returns:
      int64 [records].
    Raises:
      SpecError: see `num_steps`.
      RecordError: see `num_steps`.
    """
    span = windows.time_span(spec_structure)
    grid = windows.WindowGrid(
      span, windows.Cut(sequence_length, stride, shift, padding)
    )
    return np.asarray(grid.num_windows(self.num_steps(spec_structure)), np.int64)

  def read(self, record: int) -> bytes:
    """Reads one serialized record; its data's checksum is not verified.

    Args:
      record: its number, in range(num_records).
    Returns:
      The serialized proto.
    Raises:
      IndexError: there is no such record.
      RecordError: the file is compressed, or has no such record any more.
    """
    self.require_random_access()
    number, local = self._find(record)
    index = self.files[number]
    length = int(index.lengths[local])
    with open(self.filenames[number], "rb") as file:
      file.seek(int(index.offsets[local]))
      header, data = file.read(framing.HEADER_SIZE), file.read(length)
    is_whole = len(header) == framing.HEADER_SIZE and len(data) == length
    if not is_whole or framing.read_length(header) != length:
      raise errors.RecordError(
        f"index: {self.place(record)}: expected a record of {length} bytes, got "
        "another or none. The file has changed. Run: t2r_seq index "
        f"{self.filenames[number]}"
      )
    return data

  def require_random_access(self) -> None:
    """Raises RecordError where a file is compressed: it can only be read in order."""
    for name, index in zip(self.filenames, self.files, strict=True):
      if index.compression:
        raise errors.RecordError(
          f"index: {name}: expected a file without compression, got "
          f"{index.compression}: of a compressed file only the counts are known. "
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
    """Checks that the sequences are in the index, where one can expect them."""
    found = []
    counted = {name for index in self.files for name in index.steps}
    for name, path in by_name.items():
      needed = not flat[path].is_optional and flat[path].varlen_default_value is None
      if needed and name not in counted and self.num_records:
        hint = errors.nearest(name, counted) or (
          " An index that was made with a --spec counts that spec's sequences only."
        )
        found.append(
          errors.Mismatch(
            f"{path} (feature '{name}')",
            "a sequence that the index counts",
            errors.listing(counted),
            hint,
          )
        )
    filename, of_other_kind = self._kind_mismatches(flat)
    if found or of_other_kind:
      raise errors.mismatch_error(f"index: {filename}", found + of_other_kind)

  def _kind_mismatches(
    self, flat: specs.TensorSpecStruct
  ) -> tuple[str, list[errors.Mismatch]]:
    """Compares what is read with the specs that the indices were made with.

    Returns:
      The first file whose index differs, or just the first; and its mismatches.
    """
    for filename, index in zip(self.filenames, self.files, strict=True):
      declared = {leaf.name: leaf for leaf in (index.spec or {}).values()}
      found = [
        errors.Mismatch(
          f"{path} (feature '{leaf.name}')",
          _describe(declared[leaf.name]),
          _describe(leaf),
        )
        for path, leaf in flat.items()
        if leaf.name in declared and not _is_stored_alike(leaf, declared[leaf.name])
      ]
      if found:
        return filename, found
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
  """Reads the indices of files; each must be of its file as it is now.

  Args:
    file_patterns: of the TFRecord files.
  Returns:
    The index of them all.
  Raises:
    SpecError: a pattern matches no file.
    RecordError: indices that are missing, damaged or stale: says what differs, and
      what to run.
  """
  _, filenames = files.get_data_format_and_filenames(file_patterns)
  states = [index_freshness.find_state(name) for name in filenames]
  bad = [state for state in states if state.state != index_freshness.FRESH]
  if bad:
    raise errors.RecordError(_describe_bad(bad))
  indices = [state.index for state in states if state.index is not None]
  return RecordIndex(filenames, indices)


def _describe_bad(states: list[index_freshness.IndexState]) -> str:
  if len(states) == 1:
    return index_freshness.describe(states[0])
  lines = [f"\n  {state.filename}: {state.reason}" for state in states[:_MAX_SHOWN]]
  rest = len(states) - _MAX_SHOWN
  if rest > 0:
    lines.append(f"\n  ... and {rest} more")
  return (
    f"index: {len(states)} files have no index that holds:{''.join(lines)}\n"
    "Run t2r_seq index on the files."
  )


def _is_stored_alike(leaf: Any, other: Any) -> bool:
  """Whether a feature that fits one spec may fit the other, as the parser sees it."""
  one, two = _stored(leaf), _stored(other)
  # Of a feature of any length the shape says how much of it is taken.
  return one[:-1] == two[:-1] and (None in (one[-1], two[-1]) or one[-1] == two[-1])


def _stored(spec: Any) -> tuple[bool, str, Any]:
  what = spec.data_format or storage.record_dtype(spec).name
  if spec.varlen_default_value is not None:
    return spec.is_sequence, what, None
  # Values are stored flat; encoded images have their sizes in them.
  shape = spec.shape.as_list() if spec.data_format else spec.shape.num_elements()
  return spec.is_sequence, what, shape


def _describe(spec: Any) -> str:
  kind = "sequence" if spec.is_sequence else "context"
  what = spec.data_format or storage.record_dtype(spec).name
  return f"a {kind} of {what} {tuple(spec.shape)}"


def _concatenate(arrays: list[np.ndarray]) -> np.ndarray:
  return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
