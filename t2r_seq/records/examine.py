"""Files of records, examined: what is bad is told, what is good can be copied."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.records import check as check_lib
from t2r_seq.records import explain, features, files, framing, index, inspect
from t2r_seq.records.check import FeatureReport
from t2r_seq.records.explain import DATA_ERRORS, RecordProblem
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.images import DecodeImages


@dataclasses.dataclass(frozen=True)
class RecordReport:
  """What `examine_records` found.

  Attributes:
    num_records: by file; bytes that are no frame count as one record.
    problems: in the order of files and records.
    features: of what was parsed, by dataset and name.
    num_empty: episodes without a step: they can be read, and nothing comes of them.
    is_proposed: the specs were proposed, because none were given.
    compression: of all files, if the suffixes don't tell.
  """

  num_records: dict[str, int]
  problems: tuple[RecordProblem, ...]
  features: tuple[FeatureReport, ...]
  num_empty: int
  is_proposed: bool
  compression: str | None = None

  @property
  def is_good(self) -> bool:
    """Whether nothing is wrong."""
    return not self.problems

  def bad_records(self, filename: str) -> set[int]:
    """Returns the numbers of a file's records that something is wrong with."""
    return {
      problem.record
      for problem in self.problems
      if problem.filename == filename and problem.record is not None
    }

  @property
  def num_bad(self) -> int:
    """Records that something is wrong with."""
    return sum(len(self.bad_records(filename)) for filename in self.num_records)

  def check(self) -> None:
    """Raises RecordError for the first bad record, if there is one."""
    for error in explain.to_errors(self.problems):
      raise error


def examine_records(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure | None = None,
  label_spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  allow_nan: bool = False,
) -> RecordReport:
  """Looks for everything that is wrong with files of records.

  Records are read and parsed in batches, as in training; one that fails is looked at by
  itself, and the rest goes on.

  Args:
    file_patterns: of the files, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets; None takes the spec that
      `propose_spec` gives for the records that are whole.
    label_spec: the same for labels, or None.
    compression: of all files, if the suffixes don't tell.
    allow_nan: a NaN is no problem.
  Returns:
    What is wrong, and what the features look like.
  Raises:
    SpecError: the patterns match no file, or a spec cannot be parsed.
    OSError: a file cannot be read.
  """
  by_dataset = {"": None} if feature_spec is None else collect(feature_spec, label_spec)
  num_records: dict[str, int] = {}
  found: list[RecordProblem] = []
  reports: list[FeatureReport] = []
  num_empty = 0
  patterns_of = patterns_by_dataset("examine_records", file_patterns, list(by_dataset))
  for key, patterns in patterns_of.items():
    filenames = files.get_data_format_and_filenames(patterns)[1]
    features = by_dataset[key]
    if features is None:
      features = _proposed_features(filenames, compression)
    check = check_lib.FileCheck(features, not allow_nan, compression)
    for filename in filenames:
      found += check.find_problems(filename)
      found += _index_problems(filename)
    num_records.update(check.num_records)
    reports += check.tally.reports()
    num_empty += check.tally.num_empty
  return RecordReport(
    num_records,
    tuple(found),
    tuple(reports),
    num_empty,
    feature_spec is None,
    compression,
  )


def collect(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  decode_images: DecodeImages = True,
) -> dict[str, list[RecordFeature]]:
  """Returns the features that specs read, by dataset_key."""
  given = {"features": feature_spec, "labels": label_spec}
  return features.collect_features(
    {"": feature_spec}
    if label_spec is None
    else {label: spec for label, spec in given.items() if spec is not None},
    decode_images,
  )


def patterns_by_dataset(
  operation: str,
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  keys: list[str],
) -> Mapping[str, files.FilePatterns]:
  """Returns the file patterns of each dataset.

  Raises:
    SpecError: there are several, and the patterns are not by dataset_key.
  """
  if not isinstance(file_patterns, Mapping) and len(keys) == 1:
    return {keys[0]: file_patterns}
  if not isinstance(file_patterns, Mapping) or sorted(file_patterns) != sorted(keys):
    raise errors.SpecError(
      f"{operation}: expected file patterns by dataset_key, {errors.listing(keys)}, "
      f"got {file_patterns!r}."
    )
  return file_patterns


def _proposed_features(
  filenames: Iterable[str], compression: str | None
) -> list[RecordFeature]:
  """Returns the features that the whole records of some files seem to have."""
  whole = (
    record
    for filename in filenames
    for record in check_lib.read_good_records(filename, compression)
  )
  try:
    proposed = inspect.propose_spec(inspect.summarize_records(whole, filenames))
  except errors.SpecError:
    return []  # There is nothing to parse; frames are looked at all the same.
  (features,) = collect(proposed, None).values()
  return features


def _index_problems(filename: str) -> list[RecordProblem]:
  """Says whether the sidecar index is one of the file as it is; it may be missing."""
  if "://" in filename:
    return []
  (state,) = index.check_index([filename])
  if state.state in (index.FRESH, index.MISSING):
    return []
  what, _, _ = state.reason.partition(" Run: ")
  expected, _, got = what.partition("expected ")[2].partition(", got ")
  mismatch = errors.Mismatch(
    f"the {state.state} index",
    expected or "an index of the file",
    got.rstrip(".") or what,
    f"Run: t2r_seq index {filename}",
  )
  return [RecordProblem(filename, None, None, explain.INDEX, mismatch)]


def compression_of(report: RecordReport, filename: str) -> str:
  """Returns how a file of a report is compressed: '', 'GZIP' or 'ZLIB'."""
  return files.compression_type(filename, report.compression)


# Failures that say nothing about the data.
_UNRELATED_ERRORS = (
  tf.errors.OutOfRangeError,
  tf.errors.CancelledError,
  tf.errors.ResourceExhaustedError,
  tf.errors.AbortedError,
  tf.errors.DeadlineExceededError,
  tf.errors.PermissionDeniedError,
)


def find_bad_record(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  decode_images: DecodeImages = True,
) -> errors.RecordError | None:
  """Scans files for the first record that cannot be parsed.

  Records are parsed in batches, and one by one only in a batch that fails.

  Args:
    file_patterns: of the files, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets.
    label_spec: the same for labels, or None.
    compression: of all files, if the suffixes don't tell.
    decode_images: how encoded images are decoded.
  Returns:
    The error that names file, record, byte, path and feature, what was expected and
    what was found; None if all is good. Sequences of unequal length in one record are
    reported where nothing worse is found.
  Raises:
    SpecError: the patterns match no file, or a spec cannot be parsed.
  """
  by_dataset = collect(feature_spec, label_spec, decode_images)
  patterns_of = patterns_by_dataset("find_bad_record", file_patterns, list(by_dataset))
  uneven = None
  for key, patterns in patterns_of.items():
    check = check_lib.FileCheck(by_dataset[key], False, compression, measures=False)
    for filename in files.get_data_format_and_filenames(patterns)[1]:
      for _, group in itertools.groupby(
        check.find_problems(filename), lambda problem: problem.record
      ):
        found = [_with_hint(problem) for problem in group]
        (error,) = explain.to_errors(found)
        if found[0].kind != explain.LENGTHS:
          return error
        uneven = uneven or error
  return uneven


def _with_hint(problem: explain.RecordProblem) -> explain.RecordProblem:
  if problem.kind != explain.FRAME or not problem.record:
    return problem
  hint = "The records before it are good."
  mismatch = dataclasses.replace(problem.mismatch, hint=hint)
  return dataclasses.replace(problem, mismatch=mismatch)


@contextlib.contextmanager
def explain_failures(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  decode_images: DecodeImages = True,
) -> Iterator[None]:
  """Turns a failure of reading records into an error that names the record.

  Put it around the loop that draws from the dataset. It costs nothing until a
  TensorFlow error passes through; then the files are scanned.

  Args:
    file_patterns: as for `find_bad_record`.
    feature_spec: as for `find_bad_record`.
    label_spec: as for `find_bad_record`.
    decode_images: as for `find_bad_record`.
  Yields:
    Nothing.
  Raises:
    RecordError: a bad record was found after a TensorFlow error.
    OpError: as it was, where no record is to blame.
  """
  try:
    yield
  except _UNRELATED_ERRORS:
    raise
  except DATA_ERRORS as op_error:
    found = _diagnose(file_patterns, feature_spec, label_spec, decode_images)
    if found is None:
      raise
    raise found from op_error


def _diagnose(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  decode_images: DecodeImages,
) -> errors.RecordError | None:
  logging.info("Reading failed; looking for a bad record in %s.", file_patterns)
  try:
    return find_bad_record(
      file_patterns, feature_spec, label_spec, decode_images=decode_images
    )
  except (errors.SpecError, OSError, tf.errors.OpError) as error:
    logging.warning("The search for a bad record failed too: %s", error)
    return None


@dataclasses.dataclass(frozen=True)
class SalvagedRecords:
  """What became of the records of damaged files.

  Attributes:
    folder: where the new files are.
    num_kept: records by the name of the new file.
    num_left_out: records of all files that are not there.
  """

  folder: str
  num_kept: dict[str, int]
  num_left_out: int


def salvage_records(
  report: RecordReport, out: str | os.PathLike[str]
) -> SalvagedRecords:
  """Copies the good records of files, frames and all, to files of the same names.

  A file stays compressed as it is. The folder appears when it is complete; the old
  files are only read.

  Args:
    report: of `examine_records`, for these files as they are now.
    out: a folder that is not there yet. Where files are of several folders, it has
      those, too.
  Returns:
    What was copied.
  Raises:
    RecordError: there is something at `out`, or a file is not the one of the report.
    OSError: the files cannot be read or written; nothing is left.
  """
  target = os.path.abspath(os.fspath(out))
  if os.path.lexists(target):
    raise errors.RecordError(
      f"salvage: {target}: expected nothing there, got a "
      f"{'folder' if os.path.isdir(target) else 'file'}. Name a new folder."
    )
  hidden = os.path.join(
    os.path.dirname(target), f".{os.path.basename(target)}.{uuid.uuid4().hex}"
  )
  kept: dict[str, int] = {}
  try:
    os.mkdir(hidden)
  except OSError as error:
    reason = f"{target}: {error.strerror}. Nothing was salvaged."
    raise OSError(error.errno, f"salvage: {reason}") from error
  try:
    for filename, name in _names(list(report.num_records)).items():
      place = os.path.join(hidden, name)
      os.makedirs(os.path.dirname(place), exist_ok=True)
      kept[name] = _copy(report, filename, place)
    os.rename(hidden, target)
  except BaseException:
    shutil.rmtree(hidden, ignore_errors=True)
    raise
  left_out = sum(report.num_records.values()) - sum(kept.values())
  return SalvagedRecords(target, kept, left_out)


def _names(filenames: list[str]) -> dict[str, str]:
  """Returns where each file goes: below the folder that all have in common."""
  if any("://" in name for name in filenames):
    names = {name: os.path.basename(name) for name in filenames}
  else:
    places = {name: os.path.abspath(name) for name in filenames}
    common = os.path.commonpath([os.path.dirname(place) for place in places.values()])
    names = {name: os.path.relpath(place, common) for name, place in places.items()}
  if len({*names.values()}) < len(names):
    raise errors.RecordError(
      "salvage: the files: expected a different name for each, got "
      f"{errors.listing(names)}. Salvage them one by one."
    )
  return names


def _copy(report: RecordReport, filename: str, place: str) -> int:
  """Copies the good records of one file; returns how many there are."""
  compression = compression_of(report, filename)
  bad = report.bad_records(filename)
  num_found = num_kept = 0
  with open(place, "wb") as written:
    sink = _Sink(written, compression)
    for frame in framing.read_frames(filename, compression):
      num_found += 1
      if frame.data is not None and frame.number not in bad:
        sink.write(frame.ends[: framing.HEADER_SIZE])
        sink.write(frame.data)
        sink.write(frame.ends[framing.HEADER_SIZE :])
        num_kept += 1
    sink.finish()
    os.fsync(written.fileno())
  examined = report.num_records[filename]
  if num_found != examined:
    raise errors.RecordError(
      f"salvage: {filename}: expected the {examined} records that were examined, got "
      f"{num_found}. Examine the file again."
    )
  return num_kept


class _Sink:
  """Writes bytes, compressed as a file's name promises."""

  def __init__(self, file: Any, compression: str) -> None:
    self._file = file
    # 16: a gzip header and trailer, and not those of zlib.
    bits = zlib.MAX_WBITS | 16 if compression == "GZIP" else zlib.MAX_WBITS
    self._deflater = zlib.compressobj(wbits=bits) if compression else None

  def write(self, data: bytes) -> None:
    self._file.write(self._deflater.compress(data) if self._deflater else data)

  def finish(self) -> None:
    if self._deflater:
      self._file.write(self._deflater.flush())
    self._file.flush()
