"""Checks TFRecord files and reports damage; copies the good records."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors, specs
from t2r_seq import files as files_lib
from t2r_seq.errors import PathReport, Problem, Report, Salvaged
from t2r_seq.imports import tf
from t2r_seq.records import explain, files, framing, index, inspect, protos
from t2r_seq.records.features import (
  IS_FIRST,
  RecordFeature,
  collect_features,
  cut_hint,
  find_flags,
)
from t2r_seq.records.framing import Frame
from t2r_seq.records.images import DecodeImages

# Bytes and number of records that are parsed together, at most.
_BATCH_BYTES, _MAX_BATCH = 8 << 20, 512

FilesByKey = files.FilePatterns | Mapping[str, files.FilePatterns]


class _Examination:
  """Finds problems in the files of one dataset, and counts them for each feature.

  Attributes:
    num_records: number of frames by file, damaged ones included.
    num_empty: number of episodes without a step.
    names: names of the features in the first record of each batch.
  """

  def __init__(
    self,
    features: Sequence[RecordFeature],
    finds_nan: bool,
    compression: str | None,
    checks_values: bool = True,
    times: Collection[str] = (),
  ) -> None:
    """Creates the examination.

    Args:
      features: those of the dataset; if empty, only frames and protos are checked.
      finds_nan: whether NaN and infinity are problems.
      compression: compression of all files, if the suffixes don't show it.
      checks_values: whether NaN, and time stamps that run backwards, are looked for.
      times: names of features that are time stamps, beside those with such a name.
    """
    self._features = list(features)
    self._labels = {feature.label: feature.path for feature in features}
    self._checker = None
    if features:
      self._checker = explain.BatchChecker(features, checks_values, times)
    self._kinds = [k for k in explain.SUSPICIONS if finds_nan or k != errors.NAN]
    numbers = [f for f in features if re.search("float|complex", f.spec.dtype.name)]
    stamps = [f for f in features if f.is_time or f.name in times]
    self._features_of = {errors.NAN: numbers, errors.TIMES: stamps}
    self._compression = compression
    # A record without any of the features parses to defaults, so each is explained.
    self._looks_at_all = explain.may_be_absent(features)
    self._may_lack = any(f.is_optional or f.is_varlen for f in features)
    self._num_nan: collections.Counter[int] = collections.Counter()
    self._problems: collections.Counter[str] = collections.Counter()
    self._absent: collections.Counter[str] = collections.Counter()
    # By number of a flag: the records that have it at their edge, and the others.
    self._whole: collections.Counter[int] = collections.Counter()
    self._parts: dict[int, list[tuple[str, Frame]]] = collections.defaultdict(list)
    self.num_records: dict[str, int] = {}
    self.num_empty = 0
    self.names: set[str] = set()

  def find_problems(self, filename: str) -> Iterator[Problem]:
    """Yields the problems of a file, in the order of its records.

    Raises:
      OSError: the file cannot be read.
    """
    compression = files.compression_type(filename, self._compression)
    self.num_records[filename] = 0
    for batch in _batches(framing.read_frames(filename, compression)):
      self.num_records[filename] += len(batch)
      yield from self._check_batch(filename, batch)

  def find_parts(self) -> Iterator[Problem]:
    """Yields the records, of all files so far, that are only parts of episodes.

    A flag marks the first or the last step. If some records have it set there, a record
    without it is a part. If no record has it, the flag has no meaning.
    """
    for number, parts in self._parts.items():
      if not self._whole[number]:
        continue
      feature = self._features[number]
      edge = "first" if feature.edge == IS_FIRST else "last"
      mismatch = errors.Mismatch(
        feature.label,
        f"it set in the {edge} step, as in {self._whole[number]:,} others, as a record "
        "is an episode",
        "it unset: a part of an episode",
        cut_hint(feature.name),
      )
      for filename, frame in parts:
        yield self._problem(filename, frame, errors.EPISODES, mismatch)

  def reports(self) -> list[PathReport]:
    """Returns the statistics of each feature."""
    return [
      PathReport(
        feature.path,
        errors.describe(feature.spec)
        + (f" {str(feature.spec.data_format).lower()}" if feature.is_image else ""),
        self._problems[feature.path],
        self._absent[feature.name],
        self._num_nan[number],
      )
      for number, feature in enumerate(self._features)
    ]

  def _check_batch(self, filename: str, batch: Sequence[Frame]) -> Iterator[Problem]:
    whole = [frame for frame in batch if frame.data is not None]
    data = [frame.data or b"" for frame in whole]
    check = self._checker.check(data) if self._checker and data else None
    is_suspect = np.full(len(data), self._looks_at_all or check is None)
    if check is not None:
      self._add(filename, whole, check)
      is_suspect |= np.asarray([bool(reason) for reason in check.reasons], bool)
      for kind in self._kinds:
        is_suspect |= check.found[kind]
    self._add_names(data, is_suspect)
    index = 0
    for frame in batch:
      if frame.data is None:
        mismatch = errors.Mismatch("frame", *(frame.damage or ("", "")))
        yield self._problem(filename, frame, errors.FRAME, mismatch)
        continue
      if is_suspect[index]:
        for kind, mismatch in self._explain(frame.data, check, index):
          problem = self._problem(filename, frame, kind, mismatch)
          if kind != errors.NAN:
            self._problems[problem.path] += 1
          yield problem
      index += 1

  def _problem(
    self, filename: str, frame: Frame, kind: str, mismatch: errors.Mismatch
  ) -> Problem:
    place = framing.place(filename, frame.number, frame.start)
    path = self._labels.get(mismatch.path, "")
    where = filename, frame.number, frame.start
    return Problem(place, str(mismatch), kind, path, *where)

  def _add(
    self, filename: str, frames: Sequence[Frame], check: explain.BatchCheck
  ) -> None:
    """Adds a batch to the features' statistics."""
    is_parsed = np.asarray([not reason for reason in check.reasons], bool)
    self.num_empty += int(check.found["empty"].sum())
    is_part = is_parsed & ~check.found["empty"]
    for number, feature in enumerate(self._features):
      self._num_nan[number] += int(check.found[f"nan/{number}"].sum())
      if f"edge/{number}" not in check.found:
        continue
      at_edge = check.found[f"edge/{number}"]
      self._whole[number] += int((is_part & at_edge).sum())
      if not feature.is_optional:  # An absent flag is not set.
        found = is_part & ~at_edge & ~check.found[errors.EPISODES]
        self._parts[number] += [
          (filename, frames[int(i)]) for i in np.flatnonzero(found)
        ]

  def _add_names(self, data: Sequence[bytes], is_suspect: np.ndarray) -> None:
    """Counts missing features, in the records of a batch that may lack some."""
    for number, record in enumerate(data):
      if number and not self._may_lack and not is_suspect[number]:
        continue
      with contextlib.suppress(errors.RecordError):
        names = protos.present_names(record)
        self._absent.update(f.name for f in self._features if f.name not in names)
        self.names |= names if not number else set()

  def _explain(
    self, data: bytes, check: explain.BatchCheck | None, index: int
  ) -> Iterator[tuple[str, errors.Mismatch]]:
    if check is None or check.reasons[index]:
      mismatches = explain.explain_record(data, self._features)
      if check is not None and not mismatches:
        want = "a record that can be parsed"
        mismatches = [errors.Mismatch("record", want, check.reasons[index])]
      yield from ((errors.CONTENT, mismatch) for mismatch in mismatches)
      return
    kinds = [kind for kind in self._kinds if check.found[kind][index]]
    for kind in [errors.CONTENT] * self._looks_at_all + kinds:
      features = self._features_of.get(kind, self._features)
      for mismatch in explain.explain_record(data, features, kind):
        yield kind, mismatch


def _batches(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
  batch: list[Frame] = []
  num_bytes = 0
  for frame in frames:
    batch.append(frame)
    num_bytes += len(frame.data or b"")
    if num_bytes >= _BATCH_BYTES or len(batch) == _MAX_BATCH:
      yield batch
      batch, num_bytes = [], 0
  if batch:
    yield batch


def _read_good_records(
  filename: str, compression: str | None
) -> Iterator[framing.Record]:
  """Yields the records of a file that are undamaged protos."""
  kind = files.compression_type(filename, compression)
  for frame in framing.read_frames(filename, kind):
    if frame.data is not None:
      with contextlib.suppress(errors.RecordError):
        protos.RecordContents(frame.data)
        yield framing.Record(filename, frame.number, frame.start, frame.data)


def _to_errors(problems: Iterable[Problem]) -> Iterator[errors.RecordError]:
  """Yields, without raising it, one error a record that names all of its problems."""
  for place, group in itertools.groupby(problems, lambda problem: problem.place):
    texts = sorted(problem.text for problem in group)
    yield errors.joined_error(place, texts, errors.RecordError)


def examine_records(
  file_patterns: FilesByKey,
  feature_spec: specs.SpecStructure | None = None,
  label_spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  allow_nan: bool = False,
  schema: int = 1,
  time_keys: Collection[str] = (),
) -> Report:
  """Finds every problem of TFRecord files.

  Records are read and parsed in batches, as in training. One that fails is examined by
  itself; the records after it are examined, too.

  Args:
    file_patterns: file patterns, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets; None for the spec that
      `propose_spec` gives for the records of one schema.
    label_spec: the same for labels, or None; needs `feature_spec`.
    compression: compression of all files, if the suffixes don't show it.
    allow_nan: accepts NaN and infinity, which the last step of an RLDS episode may
      always have.
    schema: without specs, number of the schema that records are compared with; 1 for
      the most frequent one, see `RecordSummary`.
    time_keys: names of sequences that are time stamps, beside those with such a name
      (time, timestamp, robot_timestamp_ns, ...): within a record they must not run
      backwards.
  Returns:
    The problems, and statistics of each path.
  Raises:
    SpecError: the patterns match no file, or have other dataset_keys; a spec cannot be
      parsed; `label_spec` is alone; or a `schema` or time key does not exist.
    RecordError: there are no specs, and TFDS's features.json is damaged.
    OSError: a file cannot be read.
  """
  operation = "examine_records"
  if feature_spec is None and label_spec is not None:
    hint = "Give feature_spec={} to check labels only."
    raise errors.SpecError(
      f"{operation}: feature_spec: expected specs, got none. {hint}"
    )
  by_dataset = (
    {"": None} if feature_spec is None else _collect(feature_spec, label_spec)
  )
  counts: dict[str, int] = {}
  found: list[Problem] = []
  reports: list[PathReport] = []
  num_empty, unread = 0, set()
  absent, names = set(time_keys), set()
  for key, filenames in _find_files(operation, file_patterns, list(by_dataset)).items():
    features = by_dataset[key]
    if features is not None:
      features = _with_flags(features, filenames, compression)
    else:
      summary, features = _propose_features(filenames, compression, schema)
      unread |= {feature.name for feature in summary.features}
      found += _schema_problems(summary)
    check = _Examination(features, not allow_nan, compression, times=time_keys)
    for filename in filenames:
      found += check.find_problems(filename)
      found += _index_problems(filename)
    found += check.find_parts()
    counts.update(check.num_records)
    reports += check.reports()
    num_empty += check.num_empty
    unread |= check.names
    names |= {feature.name for feature in features}
  if absent - names:
    near = errors.nearest(min(absent - names), names)
    raise errors.SpecError(
      f"{operation}: time_keys: expected features that specs read, got "
      f"{errors.listing(absent - names)}.{near}"
    )
  return Report(
    path=next(iter(counts)) if len(counts) == 1 else f"{len(counts):,} files",
    counts=counts,
    problems=tuple(found),
    unit="record",
    paths=tuple(reports),
    notes=tuple(_notes(counts, num_empty, unread - names)),
    compression=compression,
  )


def _notes(
  counts: Mapping[str, int], num_empty: int, unread: Collection[str]
) -> Iterator[str]:
  """Yields notes on what is no error, but may be a mistake."""
  empty = [name for name, count in counts.items() if not count]
  if empty:
    yield f"Files without a record: {errors.listing(empty, 3)}"
  if num_empty:
    yield f"Episodes without a step, which give no data: {num_empty:,}"
  if unread:
    yield (
      f"Features that were not checked, because no spec reads them: "
      f"{errors.listing(unread, 8)}"
    )


def _schema_problems(summary: inspect.RecordSummary) -> Iterator[Problem]:
  lines = summary.describe_schemas()
  if lines:
    hint = "Which is right is unknown: name the --spec, or judge by --schema N."
    text = "\n".join([f"{lines[0]}:", *lines[1:], hint])
    yield Problem("", text, errors.SCHEMAS)


def _collect(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  decode_images: DecodeImages = True,
) -> dict[str, Any]:
  """Returns the features that specs read, by dataset_key."""
  given = {"features": feature_spec, "labels": label_spec}
  named = {label: spec for label, spec in given.items() if spec is not None}
  return collect_features(
    {"": feature_spec} if label_spec is None else named, decode_images
  )


def _find_files(
  operation: str, file_patterns: FilesByKey, keys: list[str]
) -> dict[str, list[str]]:
  """Returns the files of each dataset; SpecError if the dataset_keys differ."""
  if not isinstance(file_patterns, Mapping) and len(keys) == 1:
    file_patterns = {keys[0]: file_patterns}
  if not isinstance(file_patterns, Mapping) or sorted(file_patterns) != sorted(keys):
    raise errors.SpecError(
      f"{operation}: expected file patterns by dataset_key, {errors.listing(keys)}, "
      f"got {file_patterns!r}."
    )
  return {
    key: files.get_data_format_and_filenames(patterns)[1]
    for key, patterns in file_patterns.items()
  }


def _propose_features(
  filenames: Sequence[str], compression: str | None, schema: int
) -> tuple[inspect.RecordSummary, list[RecordFeature]]:
  """Returns a summary of the undamaged records, and the features of a schema."""
  good_records = (
    r for name in filenames for r in _read_good_records(name, compression)
  )
  summary = inspect.summarize_records(good_records, filenames)
  if not 1 <= schema <= max(1, len(summary.schemas)):
    raise errors.SpecError(
      f"examine_records: schema: expected 1 to {max(1, len(summary.schemas))}, got "
      f"{schema}."
    )
  try:
    proposed = inspect.propose_spec((summary.schemas or (summary,))[schema - 1])
  except errors.RecordError:  # The features.json beside the files is damaged.
    raise
  except errors.SpecError:
    return (
      summary,
      [],
    )  # There is nothing to parse, but the framing of records can be checked.
  (features,) = _collect(proposed, None).values()
  return summary, features


def _with_flags(
  features: list[RecordFeature], filenames: Sequence[str], compression: str | None
) -> list[RecordFeature]:
  """Adds the flags of episodes that the first record has, but no spec reads."""
  first = next(_read_good_records(filenames[0], compression), None)
  flags = find_flags(first.data, features) if first else None
  return [*features, *collect_features({"": flags})[""]] if flags else features


def _index_problems(filename: str) -> list[Problem]:
  """Returns the problem of a sidecar index that is stale or damaged."""
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
  return [Problem(filename, str(mismatch), errors.INDEX, source=filename)]


# TensorFlow errors that are not caused by the data.
_UNRELATED_ERRORS = (
  "OutOfRangeError",
  "CancelledError",
  "ResourceExhaustedError",
  "AbortedError",
  "DeadlineExceededError",
  "PermissionDeniedError",
)


def find_bad_record(
  file_patterns: FilesByKey,
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  decode_images: DecodeImages = True,
) -> errors.RecordError | None:
  """Scans files for the first record that cannot be parsed.

  Args:
    file_patterns: file patterns, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets.
    label_spec: the same for labels, or None.
    compression: compression of all files, if the suffixes don't show it.
    decode_images: how encoded images are decoded.
  Returns:
    The error, not raised, that names file, record, byte, path and feature, what was
    expected and what was found; None if all is good. Sequences of unequal length in one
    record, and several episodes in one, are reported if nothing worse is found.
  Raises:
    SpecError: the patterns match no file, or have other dataset_keys; or a spec cannot
      be parsed.
    OSError: a file cannot be read.
  """
  by_dataset = _collect(feature_spec, label_spec, decode_images)
  files = _find_files("find_bad_record", file_patterns, list(by_dataset))
  uneven = None
  for key, filenames in files.items():
    check = _Examination(by_dataset[key], False, compression, checks_values=False)
    for filename in filenames:
      problems = check.find_problems(filename)
      for _, group in itertools.groupby(problems, lambda problem: problem.record):
        of_record = [_with_hint(problem) for problem in group]
        (error,) = _to_errors(of_record)
        if of_record[0].kind not in (errors.LENGTHS, errors.EPISODES):
          return error
        uneven = uneven or error
  return uneven


def _with_hint(problem: Problem) -> Problem:
  if problem.kind != errors.FRAME or not problem.record:
    return problem
  text = f"{problem.text} The records before it are good."
  return dataclasses.replace(problem, text=text)


@contextlib.contextmanager
def explain_failures(
  file_patterns: FilesByKey,
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  decode_images: DecodeImages = True,
  compression: str | None = None,
) -> Iterator[None]:
  """Turns a failure of reading records into an error that names the record.

  Put it around the loop that draws from the dataset. It costs nothing until a
  TensorFlow error passes through; then `find_bad_record` scans the files.

  Raises:
    RecordError: a bad record was found after a TensorFlow error.
    tf.errors.OpError: unchanged, if no record is to blame.
  """
  try:
    yield
  except explain.data_errors() as op_error:
    if type(op_error).__name__ in _UNRELATED_ERRORS:
      raise
    logging.info("Reading failed; looking for a bad record in %s.", file_patterns)
    bad_record = None
    try:
      bad_record = find_bad_record(
        file_patterns, feature_spec, label_spec, compression, decode_images
      )
    except (errors.SpecError, OSError, tf.errors.OpError) as error:
      logging.warning("The search for a bad record failed too: %s", error)
    if bad_record is None:
      raise
    raise bad_record from op_error


def salvage_records(report: Report, out: str | os.PathLike[str]) -> Salvaged:
  """Copies the good records of files, byte for byte, to files of the same names.

  A copy is compressed as its file is. The folder appears when it is complete; the old
  files are only read.

  Args:
    report: report of `examine_records` for these files, which are unchanged.
    out: a folder that does not exist. Files of several folders keep their subfolders.
  Returns:
    How many records were copied to each file, and which ones were left out.
  Raises:
    RecordError: `out` exists, a file has changed since the report, or files at URLs
      have the same name.
    OSError: the files cannot be read or written; nothing is left of `out`.
  """
  target = os.path.abspath(os.fspath(out))
  files_lib.check_vacant("salvage", target, errors.RecordError)
  kept: dict[str, int] = {}
  try:
    with files_lib.new_folder(target) as folder:
      for filename, name in _new_names(list(report.counts)).items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        kept[name] = _copy(report, filename, place)
  except OSError as error:
    reason = f"{target}: {error.strerror}. Nothing was salvaged."
    raise OSError(error.errno, f"salvage: {reason}") from error
  left_out = {
    (problem.source, problem.record): errors.KINDS[problem.kind]
    for problem in reversed(report.problems)
    if problem.record is not None
  }
  return Salvaged(target, report, kept, left_out)


def _new_names(filenames: list[str]) -> dict[str, str]:
  """Returns each file's path in their common folder; for URLs, the file's name."""
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


def _copy(report: Report, filename: str, place: str) -> int:
  """Copies the good records of one file; returns how many there are."""
  compression = files.compression_type(filename, report.compression)
  # 16 asks zlib for a gzip header and trailer instead of zlib's.
  bits = zlib.MAX_WBITS | 16 if compression == "GZIP" else zlib.MAX_WBITS
  deflater = zlib.compressobj(wbits=bits) if compression else None
  bad = report.bad(filename)
  num_found = num_kept = 0
  with open(place, "wb") as written:
    for frame in framing.read_frames(filename, compression):
      num_found += 1
      if frame.data is not None and frame.number not in bad:
        head, foot = (
          frame.ends[: framing.HEADER_SIZE],
          frame.ends[framing.HEADER_SIZE :],
        )
        for part in (head, frame.data, foot):
          written.write(deflater.compress(part) if deflater else part)
        num_kept += 1
    if deflater:
      written.write(deflater.flush())
  examined = report.counts[filename]
  if num_found != examined:
    raise errors.RecordError(
      f"salvage: {filename}: expected the {examined} records that were examined, got "
      f"{num_found}. Examine the file again."
    )
  return num_kept
