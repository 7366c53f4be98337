"""Errors, and problems of data: one form, so that every message names its place.

The form is `<operation>: <path>: expected <spec>, got <shape dtype>. <what to do>`.
All mismatches of one operation come in one error, sorted by path.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import errno
import functools
import itertools
import numbers as numbers_lib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

  An AttributeError for `hasattr`, and a KeyError like that of any mapping.
  """

  def __str__(self) -> str:
    return str(self.args[0]) if self.args else ""


class RecordError(SpecError):
  """A record that cannot be read or parsed; names file, record and feature."""


class StoreError(SpecError):
  """An EpisodeStore that cannot be opened, read or appended to; names the file."""


class ConversionError(SpecError):
  """A data set that cannot be opened, read, converted or written; names the place."""


class ReplayError(SpecError):
  """A replay that is closed, or lacks a requested ability."""


class ReplayTimeoutError(ReplayError, TimeoutError):
  """A sample or an insert that exceeded its timeout."""


_Error = TypeVar("_Error", bound=SpecError)


@dataclasses.dataclass(frozen=True)
class Mismatch:
  """One difference between expected and actual values.

  Attributes:
    path: path of the value in the structure.
    expected: description of the expected value.
    got: description of the actual value.
    hint: instruction for the user; sentences, or ''.
  """

  path: str
  expected: str
  got: str
  hint: str = ""

  @property
  def finding(self) -> str:
    """The message without the path."""
    hint = self.hint.strip()
    return f"expected {self.expected}, got {self.got}." + (f" {hint}" if hint else "")

  def __str__(self) -> str:
    return f"{self.path}: {self.finding}"


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
  """Returns `count` if it is an integer from `minimum` to `most`; else SpecError."""
  is_integer = isinstance(count, numbers_lib.Integral) and not isinstance(count, bool)
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
  """Raises SpecError if a path to write is a URL: `os` would make a folder `gs:`."""
  if "://" in os.fspath(path):
    raise SpecError(
      f"{operation}: {os.fspath(path)}: expected a local path, got a URL. An atomic "
      "write needs a local file system: write there, then copy."
    )


def listing(names: Iterable[str], limit: int = 20) -> str:
  """Renders names for a message, sorted; long lists are cut and counted."""
  ordered: Sequence[str] = sorted(str(name) for name in names)
  head = ", ".join(ordered[:limit])
  rest = len(ordered) - limit
  return f"[{head}" + (f", ... {rest} more]" if rest > 0 else "]")


def ranges(numbers: Iterable[int], limit: int = 12) -> str:
  """Renders numbers as ranges: '0 to 2, 7, 9 to 11'; long lists are cut and counted."""
  runs: list[str] = []
  pairs = enumerate(sorted(numbers))
  for _, run in itertools.groupby(pairs, lambda pair: pair[1] - pair[0]):
    texts = [str(number) for _, number in run]
    runs += texts if len(texts) < 3 else [f"{texts[0]} to {texts[-1]}"]
  rest = len(runs) - limit
  return ", ".join(runs[:limit]) + (f" and {rest} more ranges" if rest > 0 else "")


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
    error: error of the operating system, or of TensorFlow, which has only its text.
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


# Kinds of problems and their names, in the order of reports: damage comes first.
FRAME, INDEX, CONTENT, LENGTHS = "frame", "index", "content", "lengths"
EPISODES, TIMES, NAN, SCHEMAS = "episodes", "times", "nan", "schemas"
KINDS = {
  FRAME: "damaged bytes",
  INDEX: "index",
  CONTENT: "other content",
  LENGTHS: "lengths that differ",
  EPISODES: "parts of episodes",
  TIMES: "time stamps",
  NAN: "NaN",
  "": "other",
  SCHEMAS: "schemas",
}


@dataclasses.dataclass(frozen=True)
class Problem:
  """Something that is damaged, or is probably a mistake; `doctor` reports it.

  Attributes:
    place: record and file, segment and file, or episode; '' if the text names it.
    text: what was expected, what there is, what to do.
    kind: one of `KINDS`: 'frame' (damaged bytes), 'index' (of a TFRecord file),
      'content' (values that cannot be read), 'lengths' (sequences that disagree),
      'episodes' (a record that is not one), 'times' (time stamps that run backwards),
      'nan' (infinities, too), 'schemas' (of records), '' for others.
    path: path of the values, or file of a segment; '' without one.
    source: the TFRecord file, or the segment; '' for the data set.
    record: number of the record in its file, from 0; None for the whole file.
    offset: byte offset of the record's frame; in a compressed file after decompression.
    episodes: numbers in the segment, or the data set, that it concerns.
  """

  place: str
  text: str
  kind: str = ""
  path: str = ""
  source: str = ""
  record: int | None = None
  offset: int | None = None
  episodes: tuple[int, ...] = ()

  @property
  def numbers(self) -> tuple[int, ...]:
    """The records or episodes of the source that are bad."""
    return self.episodes if self.record is None else (self.record,)

  def __str__(self) -> str:
    return ": ".join(filter(None, (self.place, self.text)))


@dataclasses.dataclass(frozen=True)
class PathReport:
  """Results of one path over all records or episodes that could be read.

  Attributes:
    path: path of the values.
    described: shape, dtype and encoding, as text.
    num_problems: number of problems with content, lengths and order.
    num_absent: records or episodes that do not have it.
    num_nan: records or episodes with a NaN or an infinity.
  """

  path: str
  described: str
  num_problems: int = 0
  num_absent: int = 0
  num_nan: int = 0


@dataclasses.dataclass(frozen=True)
class Report:
  """Results of `checks.check` for a data set.

  Attributes:
    path: path of the data set.
    counts: number of records by TFRecord file; of episodes by segment of a store, or by
      the path of another data set. Damaged bytes between two records count as one.
    problems: all problems, in the order of the data.
    unit: what is counted, 'record' or 'episode'.
    paths: a report of each checked path; None if damage prevented the check.
    notes: possible mistakes that are not problems, one sentence each.
    num_bytes: number of bytes compared with checksums of the store.
    compression: of all TFRecord files, if their suffixes don't show it; else None.
  """

  path: str
  counts: Mapping[str, int]
  problems: tuple[Problem, ...]
  unit: str = "episode"
  paths: tuple[PathReport, ...] | None = None
  notes: tuple[str, ...] = ()
  num_bytes: int = 0
  compression: str | None = None

  @property
  def is_good(self) -> bool:
    """Whether there are no problems."""
    return not self.problems

  @functools.cached_property
  def _bad(self) -> Mapping[str, set[int]]:
    bad = collections.defaultdict[str, set[int]](set)
    for problem in self.problems:
      bad[problem.source].update(problem.numbers)
    return bad

  def bad(self, source: str = "") -> list[int]:
    """Lists the records of a file, or episodes of a segment, that have a problem."""
    return sorted(self._bad.get(source, ()))

  @property
  def num_bad(self) -> int:
    """The number of records or episodes that have a problem."""
    return sum(map(len, self._bad.values()))


@dataclasses.dataclass(frozen=True)
class Salvaged:
  """Results of copying the good records or episodes of a damaged data set.

  Attributes:
    path: path of the new store, or folder of the new files.
    source: the report of the damaged data set.
    num_kept: records by new file, or episodes by new segment.
    left_out: why a record or an episode was not copied, by (file or segment, number).
  """

  path: str
  source: Report
  num_kept: Mapping[str, int]
  left_out: Mapping[tuple[str, int], str]


Finding = tuple[str, str, str]
"""(expected, got, hint), the fields of a `Mismatch`."""
# Values that are checked at a time: a large column is memory-mapped, and not loaded.
_BLOCK_VALUES = 1 << 20


def describe_nonfinite(values: np.ndarray, is_sequence: bool) -> Finding | None:
  """Describes the first NaN or infinity of an episode's values, or returns None."""
  found = find_nonfinite(values)
  if found is None:
    return None
  text, index = found
  places = [f"step {index[0]}"] if is_sequence else []
  first = 1 if is_sequence else 0
  rest = index[first:]
  if rest and values.shape[first:] != (1,):  # A single value needs no index.
    places.append(f"value {rest[0] if len(rest) == 1 else rest}")
  got = f"{text} at {', '.join(places)}" if places else text
  count = int((~np.isfinite(values)).sum())
  got += f", {count:,} of {values.size:,}" if values.size > 1 else ""
  return "numbers", got, "To accept it: allow_nan=True, --allow_nan."


def find_bad_numbers(
  values: np.ndarray, ends: np.ndarray, is_sequence: bool = True
) -> Iterator[tuple[int, Finding]]:
  """Yields the episodes with a NaN or an infinity, each with its `Finding`.

  Args:
    values: values of all episodes, [rows, ...].
    ends: the row after each episode's last one, int64 [episodes].
    is_sequence: rows are steps; else each is the value of an episode.
  """
  if values.dtype.kind not in "fcV":  # bfloat16 is of kind 'V'.
    return
  step = max(1, _BLOCK_VALUES // max(1, int(np.prod(values.shape[1:]))))
  bad = [np.zeros(0, np.int64)]
  for start in range(0, len(values), step):
    finite = np.isfinite(values[start : start + step])
    if not finite.all():
      rows = np.flatnonzero(~finite.reshape(len(finite), -1).all(axis=1))
      bad.append(start + rows)
  for episode in np.unique(np.searchsorted(ends, np.concatenate(bad), "right")):
    rows = values[ends[episode - 1] if episode else 0 : ends[episode]]
    finding = describe_nonfinite(rows if is_sequence else rows[0], is_sequence)
    assert finding is not None
    yield int(episode), finding


def find_misplaced(
  times: np.ndarray, ends: np.ndarray, is_rising: bool = False
) -> Iterator[tuple[int, Finding]]:
  """Yields the episodes whose time stamps run backwards, each with its `Finding`.

  Args:
    times: one for each step of all episodes, [n] or [n, 1].
    ends: the step after each episode's last one, int64 [episodes].
    is_rising: equal time stamps are misplaced, too.
  """
  times = np.asarray(times).reshape(len(times))
  # A NaN is in no order.
  in_order = times[1:] > times[:-1] if is_rising else times[1:] >= times[:-1]
  back = np.flatnonzero(~in_order) + 1
  back = back[~np.isin(back, ends)]
  expected = "rise" if is_rising else "do not run backwards"
  episodes = np.searchsorted(ends, back, side="right")
  for episode, at in zip(*np.unique(episodes, return_index=True), strict=True):
    row = back[at]
    step = row - (ends[episode - 1] if episode else 0)
    got = f"{times[row]} at step {step}, after {times[row - 1]}"
    hint = "Sort the steps, or begin another episode there."
    yield int(episode), (f"time stamps that {expected}", got, hint)
