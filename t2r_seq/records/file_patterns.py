"""Checks of file patterns, before any file is looked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from t2r_seq import errors

_PATTERNS = "a pattern, a comma-separated string or a list of them"
_HINT = "Name the files, such as 'data/train*.tfrecord'."


def pattern_names(file_patterns: Any, where: str = "file patterns") -> list[str]:
  """Lists file patterns as strings; comma lists stay as they are.

  Args:
    file_patterns: see `files.get_data_format_and_filenames_list`.
    where: who was given them, and as which argument.
  Returns:
    The strings, perhaps none.
  Raises:
    SpecError: they are neither strings nor paths.
  """
  if isinstance(file_patterns, (str, os.PathLike)):
    file_patterns = [file_patterns]
  is_list = isinstance(file_patterns, Iterable)
  if not is_list or isinstance(file_patterns, (bytes, bytearray, Mapping)):
    raise _error(where, _PATTERNS, file_patterns)
  names = []
  for i, item in enumerate(file_patterns):
    name = os.fspath(item) if isinstance(item, (str, os.PathLike)) else None
    if not isinstance(name, str):
      raise _error(f"{where}[{i}]", "a pattern or a path", item)
    names.append(name)
  return names


def check_file_patterns(where: str, file_patterns: Any) -> Any:
  """Checks that there is a file pattern; looks for no file.

  Args:
    where: who was given them, and as which argument.
    file_patterns: see `files.get_data_format_and_filenames_list`.
  Returns:
    The patterns, to be read more than once.
  Raises:
    SpecError: they are neither strings nor paths, or there is none.
  """
  if isinstance(file_patterns, Iterator):
    file_patterns = list(file_patterns)
  names = pattern_names(file_patterns, where)
  if not any(part.strip() for name in names for part in name.split(",")):
    raise _error(where, "at least one pattern", file_patterns)
  return file_patterns


def _error(where: str, expected: str, got: Any) -> errors.SpecError:
  return errors.SpecError(f"{where}: expected {expected}, got {got!r}. {_HINT}")
