"""Is this a TFRecord file, and how is it compressed?"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable

from t2r_seq import errors
from t2r_seq.records import framing, signatures

_SUFFIXES = {".gz": "GZIP", ".zz": "ZLIB", ".zlib": "ZLIB"}
_SAMPLE_SIZE = 64


def compression_type(filename: str, compression: str | None = None) -> str:
  """Returns the compression of a file: '', 'GZIP' or 'ZLIB'.

  Args:
    filename: its suffix tells, unless `compression` does.
    compression: 'GZIP', 'ZLIB', '' for none, or None.
  Returns:
    As `tf.data.TFRecordDataset` takes it.
  Raises:
    SpecError: no such compression.
  """
  if compression is None:
    return _SUFFIXES.get(os.path.splitext(filename)[1].lower(), "")
  if compression.upper() not in ("", "GZIP", "ZLIB"):
    raise errors.SpecError(
      f"compression: {filename}: expected 'GZIP', 'ZLIB' or '', got {compression!r}."
    )
  return compression.upper()


def check_file_types(filenames: Iterable[str], compression: str | None = None) -> None:
  """Checks that local files start like TFRecord files; empty ones are fine.

  Args:
    filenames: the files; those at URLs are not looked at.
    compression: of all files, if the suffixes don't tell.
  Raises:
    RecordError: names the first file that is none, and says what it looks like.
  """
  for name in filenames:
    if "://" not in name:
      _check_file_type(name, compression_type(name, compression))


def _check_file_type(filename: str, compression: str) -> None:
  try:
    start, end = _read_ends(filename)
    content = _read_content(filename, compression, start)
  except OSError as error:
    raise errors.RecordError(
      f"records: {filename}: expected a TFRecord file, got {error}."
    ) from error
  if content == b"":
    return
  header = (content or b"")[: framing.HEADER_SIZE]
  if len(header) == framing.HEADER_SIZE and framing.read_length(header) is not None:
    return
  kind = f"{compression}-compressed" if compression else "uncompressed"
  raise errors.RecordError(
    f"records: {filename}: expected a TFRecord file, {kind} as its name says, got a "
    f"wrong file type: it looks like {_looks_like(start, end)}. If it is {kind}, its "
    "first bytes are damaged. Compressed files end in .gz, .zz or .zlib, and no others."
  )


def _looks_like(start: bytes, end: bytes) -> str:
  header = start[: framing.HEADER_SIZE]
  if len(header) == framing.HEADER_SIZE and framing.read_length(header) is not None:
    return "an uncompressed TFRecord file"
  return signatures.looks_like(start, end)


def _read_ends(filename: str) -> tuple[bytes, bytes]:
  with open(filename, "rb") as file:
    start = file.read(_SAMPLE_SIZE)
    file.seek(max(0, os.path.getsize(filename) - 8))
    return start, file.read()


def _read_content(filename: str, compression: str, start: bytes) -> bytes | None:
  """Returns the first decompressed bytes, or None where that is not possible."""
  if compression == "":
    return start
  try:
    return framing.read_content(filename, compression, 0, _SAMPLE_SIZE)
  except zlib.error:
    return None
