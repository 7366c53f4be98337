"""Large raw steps of SequenceExamples: found by their place, read without a parser.

TensorFlow's reader, its parser and `tf.io.decode_raw` copy a frame one after the other,
and its checksum takes as long as two more copies. Here a frame goes through a small
buffer to where it is gathered from.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.records import contents, framing

_CONTEXT, _FEATURE_LISTS = 1, 2
_ENTRY, _KEY, _VALUE = 1, 1, 2
_BYTES_LIST, _BYTES = 1, 1
_PAGE_BYTES = 4096
# Bytes that are read, checked and copied while the processor's cache holds them.
_CHUNK_BYTES = 1 << 19
_CRC_BYTES = 4
# What an error ends with whose file is good, but another.
REPLACED = "the file was replaced or written to"


@functools.cache
def can_read_raw_steps() -> bool:
  """Whether the package that computes checksums is installed: the extra 'crc'."""
  try:
    import google_crc32c  # noqa: F401
  except ImportError:
    return False
  return True


@dataclasses.dataclass(frozen=True)
class StrippedRecord:
  """A record without its large raw steps.

  Attributes:
    serialized: the SequenceExample with all else.
    places: where in the record the bytes of each step start, T of them, by feature.
    checksum: of the whole record, as its file has it.
  """

  serialized: bytes
  places: dict[str, range]
  checksum: int


class RawSteps:
  """Reads some features of records, which have a fixed number of bytes a step.

  Attributes:
    step_bytes: of a step, by the feature's name.
  """

  def __init__(self, step_bytes: Mapping[str, int]) -> None:
    """Creates the reader.

    Args:
      step_bytes: of a step, at least 1, by the feature's name.
    """
    self.step_bytes = dict(step_bytes)
    self._headers = {name: _header(size) for name, size in self.step_bytes.items()}

  def strip(self, filename: str, offset: int, length: int) -> StrippedRecord:
    """Reads a record without these features; verifies no checksum.

    Args:
      filename: of an uncompressed file on a disk of this machine.
      offset: where the record's data starts.
      length: of its data.
    Returns:
      What is left, and where the features are.
    Raises:
      RecordError: a feature is missing or has steps of other sizes; or the record is no
        SequenceExample as all writers write it.
      OSError: the file cannot be read.
    """
    with open(filename, "rb", buffering=0) as file:
      data = _FileBytes(file, offset)
      try:
        return self._strip(data, length)
      except (IndexError, ValueError) as error:
        raise errors.RecordError(
          f"record of {filename} (byte {offset - framing.HEADER_SIZE}): {error}."
        ) from error

  def read(
    self,
    filename: str,
    offset: int,
    length: int,
    checksum: int,
    starts: Mapping[str, int],
    out: Mapping[str, np.ndarray],
  ) -> None:
    """Reads the steps of a record, and verifies the checksum of all its data.

    Args:
      filename: of the file.
      offset: where the record's data starts.
      length: of its data.
      checksum: as `strip` gave it: the file may have been replaced since.
      starts: where the bytes of the first step are, by feature.
      out: takes the steps, uint8 [T, step_bytes], by feature; T >= 1.
    Raises:
      RecordError: the checksum does not fit, the record is another than it was, or a
        step has another size.
      OSError: the file cannot be read.
    """
    with open(filename, "rb", buffering=0) as file:
      checked = _CheckedReader(file, self._longest_step())
      try:
        file.seek(offset + length)
        if int.from_bytes(file.read(_CRC_BYTES), "little") != checksum:
          raise ValueError(
            "expected the record that was there when its other features were read, got "
            f"another: {REPLACED}"
          )
        file.seek(offset)
        for name in sorted(starts, key=starts.__getitem__):
          header = self._headers[name]
          checked.skip(starts[name] - len(header) - checked.position)
          checked.copy_steps(header, out[name])
        checked.skip(length - checked.position)
        checked.verify(checksum)
      except ValueError as error:
        raise errors.RecordError(
          f"record of {filename} (byte {offset - framing.HEADER_SIZE}): {error}."
        ) from error

  def _longest_step(self) -> int:
    return max(len(self._headers[name]) + n for name, n in self.step_bytes.items())

  def _strip(self, data: _FileBytes, length: int) -> StrippedRecord:
    whole = (0, length)
    kept: list[bytes] = []
    places: dict[str, range] = {}
    for lists in contents.fields(data, whole, _FEATURE_LISTS):
      for start, end in contents.fields(data, lists, _ENTRY):
        keys = [data[a:b] for a, b in contents.fields(data, (start, end), _KEY)]
        name = keys[-1].decode() if keys else ""
        if name not in self.step_bytes:
          kept.append(contents.delimited(_ENTRY, data[start:end]))
        elif name in places:
          raise ValueError(f"feature '{name}': expected it once")
        else:
          values = list(contents.fields(data, (start, end), _VALUE))
          places[name] = self._find_steps(data, name, values)
    missing = sorted(set(self.step_bytes) - set(places))
    if missing:
      raise ValueError(f"expected the features {errors.listing(missing)}, got none")
    context = [data[start:end] for start, end in contents.fields(data, whole, _CONTEXT)]
    serialized = b"".join(contents.delimited(_CONTEXT, part) for part in context)
    serialized += contents.delimited(_FEATURE_LISTS, b"".join(kept))
    checksum = int.from_bytes(data[length : length + _CRC_BYTES], "little")
    return StrippedRecord(serialized, places, checksum)

  def _find_steps(
    self, data: _FileBytes, name: str, values: Sequence[contents.Span]
  ) -> range:
    header, size = self._headers[name], self.step_bytes[name]
    start, end = values[0] if values else (0, 0)
    apart = len(header) + size
    is_first = end == start or data[start : start + len(header)] == header
    if len(values) > 1 or (end - start) % apart or not is_first:
      raise ValueError(f"feature '{name}': expected steps of {size} bytes, got others")
    return range(start + len(header), end, apart)


class _FileBytes:
  """The bytes of a record, read from its file by the page."""

  def __init__(self, file: Any, offset: int) -> None:
    self._file = file
    self._offset = offset
    self._start = 0
    self._page = b""

  def __getitem__(self, index: Any) -> Any:
    if isinstance(index, slice):
      return self._read(index.start, index.stop - index.start)
    found = index - self._start
    if not 0 <= found < len(self._page):
      self._page, self._start, found = self._read(index, _PAGE_BYTES), index, 0
    return self._page[found]

  def _read(self, start: int, size: int) -> bytes:
    found = start - self._start
    if found >= 0 and found + size <= len(self._page):
      return self._page[found : found + size]
    self._file.seek(self._offset + start)
    return self._file.read(size)


class _CheckedReader:
  """Reads a record from its start to its end, and computes the checksum on the way."""

  def __init__(self, file: Any, longest_step: int) -> None:
    import google_crc32c

    self.position = 0
    self._crc = 0
    self._extend = google_crc32c.extend
    self._file = file
    self._buffer = np.empty(max(_CHUNK_BYTES, longest_step), np.uint8)

  def skip(self, num_bytes: int) -> None:
    """Reads bytes that nothing takes."""
    if num_bytes < 0:
      raise ValueError("expected features that follow each other")
    while num_bytes:
      num_bytes -= len(self._read(min(num_bytes, len(self._buffer))))

  def copy_steps(self, header: bytes, out: np.ndarray) -> None:
    """Copies steps, each of which follows a header."""
    size = len(header) + out.shape[1]
    at_once = max(1, len(self._buffer) // size)
    for start in range(0, len(out), at_once):
      target = out[start : start + at_once]
      steps = self._read(len(target) * size).reshape(-1, size)
      if steps[:, : len(header)].tobytes() != header * len(target):
        raise ValueError(f"expected steps of {out.shape[1]} bytes, got others")
      target[:] = steps[:, len(header) :]

  def verify(self, checksum: int) -> None:
    """Compares the checksum of what was read with what it should be."""
    if framing.mask_crc32c(self._crc) != checksum:
      raise ValueError("expected data with a fitting checksum, got flipped bits")

  def _read(self, num_bytes: int) -> np.ndarray:
    found = self._fill(num_bytes)
    self._crc = self._extend(self._crc, bytes(found.data))
    self.position += num_bytes
    return found

  def _fill(self, num_bytes: int) -> np.ndarray:
    whole = self._buffer[:num_bytes]
    left = whole.data
    while left:
      count = self._file.readinto(left)
      if not count:
        raise ValueError(f"expected {len(left)} more bytes, got the file's end")
      left = left[count:]
    return whole


def _header(size: int) -> bytes:
  """Returns what stands before the bytes of a step: a Feature of one value."""
  content = bytes(size)
  value = contents.delimited(_BYTES, content)
  feature = contents.delimited(_ENTRY, contents.delimited(_BYTES_LIST, value))
  return feature[: len(feature) - size]
