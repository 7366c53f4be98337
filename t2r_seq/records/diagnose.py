"""Finding the bad record after a failure; the hot path knows nothing of this."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.records import explain, file_types, files, framing, parse
from t2r_seq.records import features as features_lib

# A message that quotes a record may be no UTF-8, and then TensorFlow raises that.
_DATA_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
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
) -> errors.RecordError | None:
  """Scans files, record by record, for the first that cannot be parsed.

  Args:
    file_patterns: of the files, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets.
    label_spec: the same for labels, or None.
    compression: of all files, if the suffixes don't tell.
  Returns:
    The error that names file, record, byte, path and feature, what was expected and
    what was found; None if all is good. Sequences of unequal length in one record are
    reported where nothing worse is found.
  Raises:
    SpecError: the patterns match no file, or a spec cannot be parsed.
  """
  given = {"features": feature_spec, "labels": label_spec}
  by_dataset = features_lib.collect_features(
    {"": feature_spec}
    if label_spec is None
    else {label: spec for label, spec in given.items() if spec is not None}
  )
  unequal = None
  for key, patterns in _patterns_by_dataset(file_patterns, list(by_dataset)).items():
    features = by_dataset[key]
    parse_fn = _parse_fn(features)
    for filename in files.get_data_format_and_filenames(patterns)[1]:
      bad, uneven = _scan_file(filename, features, parse_fn, compression)
      if bad:
        return bad
      unequal = unequal or uneven
  return unequal


def _patterns_by_dataset(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  keys: list[str],
) -> Mapping[str, files.FilePatterns]:
  if not isinstance(file_patterns, Mapping) and len(keys) == 1:
    return {keys[0]: file_patterns}
  if not isinstance(file_patterns, Mapping) or sorted(file_patterns) != sorted(keys):
    raise errors.SpecError(
      f"find_bad_record: expected file patterns by dataset_key, "
      f"{errors.listing(keys)}, got {file_patterns!r}."
    )
  return file_patterns


def _parse_fn(
  features: list[features_lib.RecordFeature],
) -> Callable[[tf.Tensor], Any]:
  # Each feature once, under a path that cannot clash with another.
  flat = specs.TensorSpecStruct(
    (str(i), specs.ExtendedTensorSpec.from_spec(f.spec, is_optional=f.is_optional))
    for i, f in enumerate(features)
  )
  parse_fn = parse.create_parse_tf_example_fn(flat)
  return tf.function(parse_fn, input_signature=[tf.TensorSpec([], tf.string)])


def _scan_file(
  filename: str,
  features: list[features_lib.RecordFeature],
  parse_fn: Callable[[tf.Tensor], Any],
  compression: str | None,
) -> tuple[errors.RecordError | None, errors.RecordError | None]:
  """Returns the first bad record, and the first with sequences of unequal length."""
  unequal = None
  records = framing.iterate_records(
    filename, file_types.compression_type(filename, compression)
  )
  try:
    for record in records:
      found = _failure(record, features, parse_fn)
      if found:
        return errors.mismatch_error(record.place, found, errors.RecordError), unequal
      if unequal is None:
        uneven = explain.explain_lengths(record.data, features)
        unequal = (
          errors.mismatch_error(record.place, uneven, errors.RecordError)
          if uneven
          else None
        )
  except errors.RecordError as error:
    return error, unequal
  return None, unequal


def _failure(
  record: framing.Record,
  features: list[features_lib.RecordFeature],
  parse_fn: Callable[[tf.Tensor], Any],
) -> list[errors.Mismatch]:
  """Explains why a record cannot be parsed; nothing if it can."""
  try:
    parse_fn(tf.constant(record.data))
  except _DATA_ERRORS as error:
    found = explain.explain_record(record.data, features)
    reason = str(error).split("\n")[0].split("}} ")[-1]
    return found or [errors.Mismatch("record", "a record that can be parsed", reason)]
  return []


@contextlib.contextmanager
def explain_failures(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
) -> Iterator[None]:
  """Turns a failure of reading records into an error that names the record.

  Put it around the loop that draws from the dataset. It costs nothing until a
  TensorFlow error passes through; then the files are scanned.

  Args:
    file_patterns: as for `find_bad_record`.
    feature_spec: as for `find_bad_record`.
    label_spec: as for `find_bad_record`.
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
  except _DATA_ERRORS as op_error:
    found = _diagnose(file_patterns, feature_spec, label_spec)
    if found is None:
      raise
    raise found from op_error


def _diagnose(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
) -> errors.RecordError | None:
  logging.info("Reading failed; looking for a bad record in %s.", file_patterns)
  try:
    return find_bad_record(file_patterns, feature_spec, label_spec)
  except (errors.SpecError, OSError, tf.errors.OpError) as error:
    logging.warning("The search for a bad record failed too: %s", error)
    return None
