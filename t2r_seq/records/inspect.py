"""From a summary of record files: a table for people, and a spec that parses them."""

from __future__ import annotations

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.records import rlds, tfds_features
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.summary import FeatureSummary, RecordSummary

_COLUMNS = ("feature", "where", "kind", "values", "steps", "in records", "looks like")
_RIGHT_ALIGNED = ("values", "steps", "in records")
_DTYPES = {"int64": tf.int64, "float": tf.float32, "bytes": tf.string}
_DEFAULTS = {"int64": 0, "float": 0.0, "bytes": ""}


def format_table(summary: RecordSummary) -> str:
  """Renders a summary as an aligned table for the terminal.

  Args:
    summary: of `inspect_records`.
  Returns:
    Lines without a trailing newline.
  """
  if not summary.features:
    return f"{_heading(summary)}, no features".replace(f", {summary.proto}", "")
  rows = [_row(feature, summary.num_records) for feature in summary.features]
  widths = [max(len(row[i]) for row in [_COLUMNS, *rows]) for i in range(len(_COLUMNS))]
  lines = [_format_row(_COLUMNS, widths), "  ".join("─" * width for width in widths)]
  lines += [_format_row(row, widths) for row in rows]
  return "\n".join([_heading(summary), "", *lines])


def _heading(summary: RecordSummary) -> str:
  names = summary.files[0] if len(summary.files) == 1 else f"{len(summary.files)} files"
  whole = "whole " if summary.damages else ""
  plural = "" if summary.num_records == 1 else "s"
  count = f"{summary.num_records} {whole}record{plural}"
  if not summary.is_complete:
    count = f"the first {count}"
  proto = f"{summary.proto} (RLDS episodes)" if summary.is_rlds else summary.proto
  return f"{names}: {count}, {proto}"


def _format_row(row: tuple[str, ...], widths: list[int]) -> str:
  cells = [
    cell.rjust(width) if column in _RIGHT_ALIGNED else cell.ljust(width)
    for cell, width, column in zip(row, widths, _COLUMNS, strict=True)
  ]
  return "  ".join(cells).rstrip()


def _row(feature: FeatureSummary, num_records: int) -> tuple[str, ...]:
  share = feature.num_records / num_records
  return (
    feature.name,
    "sequence" if feature.is_sequence else "context",
    feature.kind or "-",
    _span(feature.min_length, feature.max_length),
    _span(feature.min_steps, feature.max_steps) if feature.is_sequence else "-",
    # Rounded down: 100 % means all.
    f"{int(100 * share)} %",
    feature.guess,
  )


def _span(low: int, high: int) -> str:
  return f"{low}" if low == high else f"{low}..{high}"


def propose_spec(summary: RecordSummary) -> specs.TensorSpecStruct:
  """Proposes a spec structure that parses the files of a summary.

  Images get their size and format, lists their length as shape, varying lengths a
  varlen default, and features that some records lack are optional. Paths are the
  names. Images of varying size are left as encoded strings. Features that are empty,
  or of another kind in each record, have no spec, which is logged.

  Of RLDS episodes the paths are without 'steps/', and where TFDS's features.json lies
  beside the files, shapes and dtypes are those that it declares.

  Args:
    summary: of `inspect_records`.
  Returns:
    Specs by path.
  Raises:
    SpecError: there is no feature to parse.
    RecordError: a features.json that cannot be read.
  """
  declared = tfds_features.find_features(summary.files) if summary.is_rlds else {}
  proposed = specs.TensorSpecStruct()
  names: set[str] = set()
  # Sequences first: where a name is in both places, they are the data.
  for feature in sorted(summary.features, key=lambda f: not f.is_sequence):
    if feature.kind not in _DTYPES or feature.max_length == 0 or feature.name in names:
      reason = "is there as a sequence" if feature.name in names else feature.guess
      logging.warning("No spec for '%s': %s.", feature.name, reason)
      continue
    if summary.is_rlds and (reason := _not_divisible(feature, summary)):
      logging.warning("No spec for '%s': %s.", feature.name, reason)
      continue
    names.add(feature.name)
    spec = _propose(feature, feature.num_records < summary.num_records)
    name = feature.name
    if summary.is_rlds:
      spec = _as_rlds(spec, declared.get(name))
      name = name.removeprefix(f"{rlds.STEPS}/")
    proposed[_free_path(name, proposed)] = spec
  if not len(proposed):
    raise errors.SpecError(
      f"propose_spec: expected records with features, got {summary.num_records} "
      f"records with {len(summary.features)} features in {', '.join(summary.files)}."
    )
  return specs.TensorSpecStruct(sorted(proposed.items()))


def _not_divisible(feature: FeatureSummary, summary: RecordSummary) -> str:
  """Says why no step of a feature can be told from the next; '' if it can."""
  if not feature.name.startswith(f"{rlds.STEPS}/"):
    return ""
  if rlds.is_nested(feature.name):
    return "a sequence within steps, whose lengths may differ"
  places = {
    other.is_sequence for other in summary.features if other.name == feature.name
  }
  if places == {True} and feature.min_length == feature.max_length:
    return ""
  return "its number of values per step varies"


def _as_rlds(
  spec: specs.ExtendedTensorSpec, declared: specs.ExtendedTensorSpec | None
) -> specs.ExtendedTensorSpec:
  """Takes over what TFDS or the convention says of a feature, where it fits."""
  if spec.is_sequence:
    spec = specs.ExtendedTensorSpec.from_spec(spec, is_concatenated=True)
  if spec.name in rlds.FLAGS and spec.shape == (1,) and spec.dtype == tf.int64:
    declared = specs.ExtendedTensorSpec.from_spec(spec, shape=(), dtype=tf.bool)
  elif spec.name in rlds.SCALARS and spec.shape == (1,):
    declared = declared or specs.ExtendedTensorSpec.from_spec(spec, shape=())
  if declared is None:
    return spec
  found = RecordFeature(spec.name, spec, ("",), False)
  want = RecordFeature(spec.name, declared, ("",), False)
  if found.record_dtype != want.record_dtype or not _is_same_size(found, want):
    logging.warning(
      "features.json has '%s' as %s, which the records do not fit.",
      *(spec.name, errors.describe(declared)),
    )
    return spec
  return specs.ExtendedTensorSpec.from_spec(declared, is_optional=spec.is_optional)


def _is_same_size(found: RecordFeature, want: RecordFeature) -> bool:
  """Whether two features have as many values; images also as many pixels."""
  if found.is_image != want.is_image or found.is_varlen:
    return False
  if found.is_image:
    return found.spec.shape == want.spec.shape
  return found.values_per_step == want.values_per_step


def _free_path(name: str, taken: specs.TensorSpecStruct) -> str:
  """Makes a path of a name: no empty parts, and no clash of a leaf with a branch."""
  path = "/".join(part for part in name.split("/") if part) or "feature"

  def is_taken(candidate: str) -> bool:
    return any(
      other == candidate
      or other.startswith(f"{candidate}/")
      or candidate.startswith(f"{other}/")
      for other in taken
    )

  if is_taken(path):
    path = path.replace("/", "_") + "_value"
  while is_taken(path):
    path += "_"
  return path


def _propose(feature: FeatureSummary, is_optional: bool) -> specs.ExtendedTensorSpec:
  is_varlen = feature.min_length != feature.max_length
  shape: tuple[int, ...] = (feature.max_length,)
  dtype, data_format = _DTYPES[feature.kind], None
  if feature.kind == "bytes" and feature.max_length == 1 and not is_varlen:
    shape = ()
  if len(feature.images) == 1:
    image = feature.images[0]
    shape = (*shape, image.height, image.width, image.channels)
    dtype = tf.uint16 if image.bits == 16 else tf.uint8
    data_format = image.format
  default = (0 if data_format else _DEFAULTS[feature.kind]) if is_varlen else None
  return specs.ExtendedTensorSpec(
    shape,
    dtype,
    feature.name,
    is_optional=is_optional,
    is_sequence=feature.is_sequence,
    data_format=data_format,
    varlen_default_value=default,
  )
