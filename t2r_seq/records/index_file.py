"""The sidecar index of one TFRecord file: its contents and its bytes.

    0    4       b"T2RI"
    4    4       version of the format, uint32: 1
    8    8       H, bytes of the header, uint64
    16   H       header: JSON, UTF-8, filled up with spaces so that 8 divides H
    ...  8 n     end offset of each record's frame, int64 [n]
    ...  8 n A   steps of the record's sequences, int64 [A, n]
    ...  4       CRC-32 of all bytes before

All numbers are little-endian. The ends in a compressed file count decompressed bytes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, files, specs
from t2r_seq.records import framing

SUFFIX = ".t2ri"
_MAGIC, _VERSION = b"T2RI", 1
_START = struct.Struct("<4sIQ")
_CHECKSUM = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class FileIndex:
  """Index of one TFRecord file.

  Attributes:
    file_size: bytes of the file when it was indexed.
    mtime_ns: modification time of the file, in nanoseconds.
    checksum: CRC-32 of all headers and footers; if compressed, of the file's bytes.
    compression: '', 'GZIP' or 'ZLIB'.
    ends: end offset of each record's frame, int64 [n], in the decompressed data.
    steps: the number of steps of every sequence in each record, int64 [n], by name.
    spec_json: the declared specs of the records, as JSON; '' if none were declared.
  """

  file_size: int
  mtime_ns: int
  checksum: int
  compression: str
  ends: np.ndarray
  steps: Mapping[str, np.ndarray]
  spec_json: str = ""

  @property
  def spec(self) -> specs.TensorSpecStruct | None:
    """The declared specs of the records; None if none were declared."""
    return specs.TensorSpecStruct.from_json(self.spec_json) if self.spec_json else None

  @property
  def num_records(self) -> int:
    """Number of records in the file."""
    return len(self.ends)

  @property
  def offsets(self) -> np.ndarray:
    """Start of each record's frame, int64 [n]."""
    return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])[: len(self.ends)]

  @property
  def lengths(self) -> np.ndarray:
    """Bytes of each serialized record, without its frame, int64 [n]."""
    return self.ends - self.offsets - framing.FRAME_SIZE

  def check(self) -> None:
    """Checks that the numbers can describe a file, as a sidecar may be wrong.

    Raises:
      ValueError: records overlap or end beyond the file, a sequence has fewer than 0
        steps, or the specs are invalid.
    """
    if np.any(self.lengths < 0):
      raise ValueError("records overlap")
    if self.num_records and not self.compression and self.ends[-1] > self.file_size:
      raise ValueError("records end beyond the file")
    if any(np.any(steps < 0) for steps in self.steps.values()):
      raise ValueError("a sequence has fewer than 0 steps")
    if self.spec_json:
      specs.TensorSpecStruct.from_json(self.spec_json)

  def to_bytes(self) -> bytes:
    """Returns the bytes of the sidecar."""
    arrays, numbers = _share_arrays(self.steps)
    header = {
      "file_size": self.file_size,
      "mtime_ns": self.mtime_ns,
      "checksum": self.checksum,
      "compression": self.compression,
      "num_records": self.num_records,
      "sequences": numbers,
      "spec": json.loads(self.spec_json) if self.spec_json else None,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    parts = [_START.pack(_MAGIC, _VERSION, len(text)), text]
    parts += [array.astype("<i8").tobytes() for array in (self.ends, *arrays)]
    content = b"".join(parts)
    return content + _CHECKSUM.pack(zlib.crc32(content))

  @classmethod
  def from_bytes(cls, data: bytes) -> FileIndex:
    """Reads the output of `to_bytes`.

    Args:
      data: the bytes of a sidecar.
    Returns:
      The index.
    Raises:
      RecordError: the bytes are no index, a damaged one, or one of another version.
    """
    header, position = _read_header(data)
    try:
      return cls._from_header(header, data[position : -_CHECKSUM.size])
    except (
      *(AttributeError, KeyError, IndexError, MemoryError, OverflowError),
      *(TypeError, ValueError),
    ) as error:
      raise _damage(f"its header does not fit its arrays ({error})") from error

  @classmethod
  def _from_header(cls, header: dict[str, Any], data: bytes) -> FileIndex:
    count, numbers = header["num_records"], header["sequences"]
    arrays = np.frombuffer(data, "<i8").reshape(
      1 + max(numbers.values(), default=-1) + 1, count
    )
    spec = header["spec"]
    index = cls(
      file_size=int(header["file_size"]),
      mtime_ns=int(header["mtime_ns"]),
      checksum=int(header["checksum"]),
      compression=str(header["compression"]),
      ends=arrays[0],
      steps={name: arrays[1 + number] for name, number in numbers.items()},
      spec_json=json.dumps(spec) if spec else "",
    )
    index.check()
    return index


def index_path(filename: str | os.PathLike[str]) -> str:
  """Returns the path of a file's index: beside it, with '.t2ri' appended."""
  return os.fspath(filename) + SUFFIX


def read_file_index(filename: str | os.PathLike[str]) -> FileIndex:
  """Reads the index of a TFRecord file, but not the file itself.

  Args:
    filename: name of the TFRecord file.
  Returns:
    Its index.
  Raises:
    OSError: the index cannot be read; FileNotFoundError if it is missing.
    RecordError: the index is damaged, or of another version.
  """
  path = index_path(filename)
  with open(path, "rb") as file:
    data = file.read()
  try:
    return FileIndex.from_bytes(data)
  except errors.RecordError as error:
    hint = f"Run: t2r_seq index {os.fspath(filename)}"
    raise errors.RecordError(f"index: {path}: {error} {hint}") from error


def check_replaces_index(filename: str) -> None:
  """Checks that writing the index beside a file would not overwrite another file.

  Raises:
    OSError: something else has the name of the index.
  """
  files.check_output(
    "index",
    index_path(filename),
    "an index",
    _MAGIC,
    f"Move it: the index of {filename} has that name.",
  )


def write_file_index(filename: str, index: FileIndex) -> None:
  """Writes the index beside its file, atomically: readers see the old or the new.

  Raises:
    OSError: the index cannot be written, or another file has its name.
  """
  check_replaces_index(filename)
  files.replace_file(index_path(filename), index.to_bytes())


def _share_arrays(
  steps: Mapping[str, np.ndarray],
) -> tuple[list[np.ndarray], dict[str, int]]:
  """Returns distinct arrays, and which one each sequence has: most have equal ones."""
  arrays: list[np.ndarray] = []
  by_content: dict[bytes, int] = {}
  numbers = {}
  for name, array in sorted(steps.items()):
    number = by_content.setdefault(array.tobytes(), len(arrays))
    if number == len(arrays):
      arrays.append(array)
    numbers[name] = number
  return arrays, numbers


def _read_header(data: bytes) -> tuple[dict[str, Any], int]:
  if len(data) < _START.size + _CHECKSUM.size or not data.startswith(_MAGIC):
    raise _damage(f"{len(data)} bytes that start with {data[:8]!r}")
  _, version, size = _START.unpack_from(data)
  if version != _VERSION:
    raise errors.RecordError(
      f"expected version {_VERSION} of the format, got {version}."
    )
  (checksum,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
  if zlib.crc32(memoryview(data)[: -_CHECKSUM.size]) != checksum:
    raise _damage("other bytes than were written")
  position = _START.size + size
  try:
    return json.loads(data[_START.size : position]), position
  except (RecursionError, ValueError) as error:
    raise _damage(f"a header that is not JSON ({error})") from error


def _damage(got: str) -> errors.RecordError:
  return errors.RecordError(f"expected a whole index, got {got}.")
