"""Files of records, examined: every record that is bad, and what features look like."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from t2r_seq import errors, specs
from t2r_seq.records import features as features_lib
from t2r_seq.records import (
  file_check,
  file_types,
  files,
  index_freshness,
  inspect,
  problems,
  summary,
)
from t2r_seq.records.decoding import DecodeImages
from t2r_seq.records.feature_tally import FeatureReport
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.problems import RecordProblem


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
    for error in problems.to_errors(self.problems):
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
    check = file_check.FileCheck(features, not allow_nan, compression)
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
  return features_lib.collect_features(
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
    for record in file_check.read_good_records(filename, compression)
  )
  try:
    proposed = inspect.propose_spec(summary.summarize_records(whole, filenames))
  except errors.SpecError:
    return []  # There is nothing to parse; frames are looked at all the same.
  (features,) = collect(proposed, None).values()
  return features


def _index_problems(filename: str) -> list[RecordProblem]:
  """Says whether the sidecar index is one of the file as it is; it may be missing."""
  if "://" in filename:
    return []
  (state,) = index_freshness.check_index([filename])
  if state.state in (index_freshness.FRESH, index_freshness.MISSING):
    return []
  what, _, _ = state.reason.partition(" Run: ")
  expected, _, got = what.partition("expected ")[2].partition(", got ")
  mismatch = errors.Mismatch(
    f"the {state.state} index",
    expected or "an index of the file",
    got.rstrip(".") or what,
    f"Run: t2r_seq index {filename}",
  )
  return [RecordProblem(filename, None, None, problems.INDEX, mismatch)]


def compression_of(report: RecordReport, filename: str) -> str:
  """Returns how a file of a report is compressed: '', 'GZIP' or 'ZLIB'."""
  return file_types.compression_type(filename, report.compression)
