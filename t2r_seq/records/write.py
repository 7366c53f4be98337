"""Writing TFRecord files that are whole or not there."""

from __future__ import annotations

import os
import types
import uuid
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import file_types
from t2r_seq.records.encode import ExampleEncoder


class RecordWriter:
  """Writes structures to a TFRecord file that appears, whole, when it is closed.

  A context manager: leaving it normally commits the file, an exception discards it.
  Records go to a hidden temporary file in the same folder, which is synced to disk
  and then replaces `path` in one step, so no reader ever sees a part of it.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    spec: specs.SpecStructure,
    compression: str | None = None,
    jpeg_quality: int = 95,
  ) -> None:
    """Opens the temporary file.

    Args:
      path: of the file to write, on a local file system.
      spec: a structure of specs of one dataset, without time offsets.
      compression: 'GZIP', 'ZLIB', '' for none; by default as the suffix says (.gz;
        .zz or .zlib).
      jpeg_quality: 1 to 100, for images given as pixels.
    Raises:
      SpecError: a spec cannot be written, or the compression is not known.
    """
    self._path = os.path.abspath(os.fspath(path))
    if "://" in os.fspath(path):
      raise errors.SpecError(
        f"RecordWriter: {os.fspath(path)}: expected a local path, got a URL. Replacing "
        "a file in one step needs a local file system: write there, then copy."
      )
    self._encoder = ExampleEncoder(spec, jpeg_quality)
    options = file_types.compression_type(self._path, compression)
    folder, name = os.path.split(self._path)
    os.makedirs(folder, exist_ok=True)
    self._temp_path = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.tmp")
    self._writer: tf.io.TFRecordWriter | None = tf.io.TFRecordWriter(
      self._temp_path, options
    )
    self._num_records = 0

  @property
  def num_records(self) -> int:
    """How many records were written so far."""
    return self._num_records

  def write(self, structure: Any) -> None:
    """Writes one record.

    Args:
      structure: numpy leaves by path; see `ExampleEncoder.encode`.
    Raises:
      SpecError: the structure does not fit the spec, or the writer is closed.
    """
    if self._writer is None:
      raise errors.SpecError(
        f"RecordWriter: {self._path}: expected an open writer, got a closed one."
      )
    self._writer.write(self._encoder.encode(structure))
    self._num_records += 1

  def close(self) -> None:
    """Commits the file; does nothing the second time."""
    if self._writer is None:
      return
    try:
      self._writer.close()
      self._writer = None
      _sync(self._temp_path)
      os.replace(self._temp_path, self._path)
    except BaseException:
      self.discard()
      raise
    _sync(os.path.dirname(self._path))

  def discard(self) -> None:
    """Drops what was written; a file that was at the path stays as it was."""
    if self._writer is not None:
      self._writer.close()
      self._writer = None
    if os.path.exists(self._temp_path):
      os.remove(self._temp_path)

  def __enter__(self) -> RecordWriter:
    return self

  def __exit__(
    self,
    exc_type: type[BaseException] | None,
    exc_value: BaseException | None,
    traceback: types.TracebackType | None,
  ) -> None:
    if exc_type is None:
      self.close()
    else:
      self.discard()


def write_records(
  path: str | os.PathLike[str],
  spec: specs.SpecStructure,
  structures: Iterable[Any],
  compression: str | None = None,
  jpeg_quality: int = 95,
) -> int:
  """Writes one record per structure to a TFRecord file; the parser's inverse.

  Args:
    path: of the file, which is replaced as a whole, or not at all on an exception.
    spec: a structure of specs of one dataset, without time offsets.
    structures: numpy structures, one a record; sequences [T, ...].
    compression: 'GZIP', 'ZLIB', '' for none; by default as the suffix says.
    jpeg_quality: 1 to 100, for images given as pixels.
  Returns:
    The number of records.
  Raises:
    SpecError: a structure does not fit the spec.
  """
  with RecordWriter(path, spec, compression, jpeg_quality) as writer:
    for structure in structures:
      writer.write(structure)
  return writer.num_records


def _sync(path: str) -> None:
  """Waits until a file or folder is on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
