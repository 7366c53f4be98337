"""The library's errors: one builder, so that every message names its place.

The form is `<operation>: <path>: expected <spec>, got <shape dtype>. <what to do>`.
All mismatches of one operation come in one error, sorted by path.
"""

from __future__ import annotations

import dataclasses
import difflib
import errno
import numbers
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

# Advice for gs://, s3:// and so on that TensorFlow cannot read.
IF_REMOTE = (
  "TensorFlow reads gs:// with credentials, and other remote files with tensorflow-io; "
  "or copy them here."
)


class SpecError(ValueError):
  """Data, or a declaration, that does not fit a spec structure."""

  # AutoGraph raises an error with this attribute unchanged out of a tf.function. To any
  # other it prepends the lines of a traceback.
  ag_pass_through = True


class UnknownPathError(SpecError, AttributeError, KeyError):
  """A path that a structure does not have.

  An AttributeError, so that `hasattr` works, and a KeyError, as of any mapping.
  """

  def __str__(self) -> str:
    return str(self.args[0]) if self.args else ""


class RecordError(SpecError):
  """A record that cannot be read or parsed; names file, record and feature."""


class StoreError(SpecError):
  """An EpisodeStore that cannot be opened, read or appended to; names the file."""


class ConversionError(SpecError):
  """A conversion that cannot begin, resume, or be trusted; names the episode."""


class ReplayError(SpecError):
  """A replay that is closed, or lacks a requested ability."""


class ReplayTimeoutError(ReplayError, TimeoutError):
  """A sample or an insert that waited as long as allowed."""


_Error = TypeVar("_Error", bound=SpecError)


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """One difference between expected and actual values.

  Attributes:
    path: path of the value in the structure.
    expected: by the spec, as text.
    got: description of the value.
    hint: instruction for the user; a sentence or nothing.
  """

  path: str
  expected: str
  got: str
  hint: str = ""

  @property
  def finding(self) -> str:
    """The disagreement without its path."""
    hint = self.hint.strip()
    return f"expected {self.expected}, got {self.got}." + (f" {hint}" if hint else "")

  def __str__(self) -> str:
    return f"{self.path}: {self.finding}"


@dataclasses.dataclass(frozen=True)
class Problem:
  """Something that is damaged, or is probably a mistake; `doctor` reports it.

  Attributes:
    place: record and file, segment and file, or episode; '' if the text names it.
    text: expected and found values, and an instruction.
    kind: kind of damage, 'frame' (the record's bytes), 'content' (cannot be parsed),
      'lengths' (sequences of different lengths), 'episodes' (not one whole episode),
      'times' (time stamps that run backwards), 'nan' or 'index' (the sidecar index).
    path: first path of the feature, or the file of a segment, or ''.
    source: the TFRecord file, or the segment; '' for the data set.
    record: number of the record in its file, from 0; None for the whole file.
    offset: start of the record's frame in bytes, after decompression.
    episodes: damaged episodes of the segment.
  """

  place: str
  text: str
  kind: str = ""
  path: str = ""
  source: str = ""
  record: int | None = None
  offset: int | None = None
  episodes: tuple[int, ...] = ()

  def __str__(self) -> str:
    return f"{self.place}: {self.text}" if self.place else self.text


def mismatch_error(
  operation: str,
  mismatches: Iterable[Mismatch],
  error_cls: type[_Error] = SpecError,  # type: ignore[assignment]
) -> _Error:
  """Builds one error that names every mismatch of an operation."""
  ordered = sorted(mismatches, key=lambda mismatch: mismatch.path)
  return joined_error(operation, map(str, ordered), error_cls)


def joined_error(
  operation: str, problems: Iterable[str], error_cls: type[_Error]
) -> _Error:
  """Builds one error of several problems of an operation."""
  texts = [*problems]
  if len(texts) == 1:
    return error_cls(f"{operation}: {texts[0]}")
  lines = "".join(f"\n  {text}" for text in texts)
  return error_cls(f"{operation}: {len(texts)} mismatches:{lines}")


def check_count(
  where: str,
  name: str,
  count: Any,
  minimum: int = 1,
  most: int | None = None,
  hint: str = "",
) -> int:
  """Returns an argument if it is an integer of `minimum` to `most`; else SpecError."""
  is_integer = isinstance(count, numbers.Integral) and not isinstance(count, bool)
  if is_integer and count >= minimum and (most is None or count <= most):
    return int(count)
  is_large = is_integer and count >= minimum
  want = f"at most {most:,}" if is_large else f"at least {minimum}"
  mismatch = Mismatch(name, f"an integer of {want}", repr(count), hint)
  raise mismatch_error(where, [mismatch])


def nearest(name: str, candidates: Iterable[str]) -> str:
  """Returns " Did you mean 'x'?" for the candidate most like `name`, or ''."""
  by_folded = {str(candidate).casefold(): str(candidate) for candidate in candidates}
  close = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
  return f" Did you mean '{by_folded[close[0]]}'?" if close else ""


def check_local(operation: str, path: str | os.PathLike[str]) -> None:
  """Raises SpecError for a URL to write to; it would be a folder called `gs:` here."""
  if "://" in os.fspath(path):
    raise SpecError(
      f"{operation}: {os.fspath(path)}: expected a local path, got a URL. What appears "
      "in one step needs a local file system: write there, then copy."
    )


def listing(names: Iterable[str], limit: int = 20) -> str:
  """Renders names for a message, sorted; long lists are cut and counted."""
  ordered: Sequence[str] = sorted(str(name) for name in names)
  shown = ", ".join(ordered[:limit])
  rest = len(ordered) - limit
  return f"[{shown}" + (f", ... {rest} more]" if rest > 0 else "]")


def describe(value: Any) -> str:
  """Renders the shape and dtype of a spec, tensor or array, e.g. '(4, 2) float32'."""
  if value is None:
    return "nothing"
  shape: Any = getattr(value, "shape", None)
  dtype = getattr(value, "dtype", None)
  if dtype is None:
    return f"{type(value).__name__} {value!r}"[:80]
  is_known = shape is not None and getattr(shape, "rank", 0) is not None
  dims = str(tuple(shape)) if is_known else "(unknown shape)"
  return f"{dims} {getattr(dtype, 'name', dtype)}"


def find_nonfinite(array: np.ndarray) -> tuple[str, tuple[int, ...]] | None:
  """Finds the first NaN or infinity of an array: (its text, its index), or None."""
  if array.dtype.kind not in "fcV":  # bfloat16 is of kind 'V'.
    return None
  finite: np.ndarray = np.isfinite(array)
  if finite.all():
    return None
  index = np.unravel_index(int(np.argmin(finite)), array.shape)
  value = array[index]
  text = "NaN" if value != value else str(value)
  return text, tuple(int(i) for i in index)


def unwritten(what: str, error: Exception, hint: str) -> OSError:
  """Builds the error for a file that could not be written.

  Args:
    what: the operation, the path, and the expected value.
    error: error of the operating system, or of TensorFlow, which has its text only.
    hint: instruction for the user.
  """
  number, text = errno.EIO, str(error).strip().split("\n")[0].rstrip(".")
  numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES)
  if isinstance(error, OSError) and error.errno:
    number, text = error.errno, os.strerror(error.errno)
  for each in numbers:
    if os.strerror(each) in text:
      number, text = each, os.strerror(each)
  return OSError(number, f"{what}, got: {text or type(error).__name__}. {hint}")
