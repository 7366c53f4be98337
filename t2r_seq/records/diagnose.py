"""Finding the bad record after a failure; the hot path knows nothing of this."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.records import examine, file_check, files, problems
from t2r_seq.records.batch_check import DATA_ERRORS
from t2r_seq.records.decoding import DecodeImages

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
  by_dataset = examine.collect(feature_spec, label_spec, decode_images)
  patterns_of = examine.patterns_by_dataset(
    "find_bad_record", file_patterns, list(by_dataset)
  )
  uneven = None
  for key, patterns in patterns_of.items():
    check = file_check.FileCheck(by_dataset[key], False, compression, measures=False)
    for filename in files.get_data_format_and_filenames(patterns)[1]:
      for _, group in itertools.groupby(
        check.find_problems(filename), lambda problem: problem.record
      ):
        found = [_with_hint(problem) for problem in group]
        (error,) = problems.to_errors(found)
        if found[0].kind != problems.LENGTHS:
          return error
        uneven = uneven or error
  return uneven


def _with_hint(problem: problems.RecordProblem) -> problems.RecordProblem:
  if problem.kind != problems.FRAME or not problem.record:
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
