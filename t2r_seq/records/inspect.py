"""What is in TFRecord files: a summary, a table, and a spec that parses them."""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import contents, files, framing, protos, rlds
from t2r_seq.records.features import KINDS, RecordFeature
from t2r_seq.records.tally import FeatureSummary, Tally, span, variant_text
from t2r_seq.specs import image_headers


@dataclasses.dataclass(frozen=True)
class RecordSummary:
  """What the records of some files hold.

  Attributes:
    files: the files that were read.
    num_records: how many records were read.
    is_complete: all records were read, not only the first `max_records`.
    proto: 'tf.train.Example' or 'tf.train.SequenceExample'.
    features: context features first, each sorted by name.
    is_rlds: RLDS episodes as TFDS writes them: Examples with sequences, whose steps
      are concatenated.
    damages: what is wrong with files that are damaged, or hold records or bytes of
      another kind, by name; of these the records before the first damage were read.
    schemas: the same of the records that are alike: of features with the same names,
      kinds, numbers of values and sizes of images. The most frequent first. A list
      whose length varies much is one feature all the same.
    example: where the first record is.
    num_empty: records whose sequences have no step: episodes that nothing is read of.
  """

  files: tuple[str, ...]
  num_records: int
  is_complete: bool
  proto: str
  features: tuple[FeatureSummary, ...]
  is_rlds: bool = False
  damages: Mapping[str, errors.RecordError] = dataclasses.field(default_factory=dict)
  schemas: tuple[RecordSummary, ...] = ()
  example: str = ""
  num_empty: int = 0


def inspect_records(
  path: files.FilePatterns,
  max_records: int | None = None,
  compression: str | None = None,
  allow_damage: bool = False,
) -> RecordSummary:
  """Reads TFRecord files, whatever they hold, and summarises their features.

  Args:
    path: a file, or file patterns.
    max_records: stops after so many records.
    compression: of all files, if the suffixes don't tell.
    allow_damage: reads a damaged file up to its damage, which the summary names;
      otherwise it is an error.
  Returns:
    The summary.
  Raises:
    SpecError: the patterns match no file.
    RecordError: a damaged file, or records that are no protos of the two kinds; a
      damage that is allowed, where no file has a whole record.
  """
  _, filenames = files.get_data_format_and_filenames(path)
  damages: dict[str, errors.RecordError] = {}
  readable = []
  for filename in filenames:
    try:
      files.check_file_types([filename], compression, array_records=True)
      readable.append(filename)
    except errors.RecordError as error:
      if not allow_damage:
        raise
      damages[filename] = error
  noted = damages if allow_damage else None
  found = _read_whole(readable, compression, noted)
  summary = summarize_records(found, filenames, max_records, noted)
  if damages and not summary.num_records:
    raise next(iter(damages.values()))
  return dataclasses.replace(summary, damages=damages)


def _read_whole(
  filenames: Iterable[str],
  compression: str | None,
  damages: dict[str, errors.RecordError] | None,
) -> Iterator[framing.Record]:
  """Yields the records of each file up to its first damage: an error, or noted."""
  for filename in filenames:
    kind = files.compression_type(filename, compression)
    try:
      yield from framing.iterate_records(filename, kind)
    except errors.RecordError as damage:
      if damages is None:
        raise
      damages.setdefault(filename, damage)


def summarize_records(
  records: Iterable[framing.Record],
  filenames: Iterable[str],
  max_records: int | None = None,
  damages: dict[str, errors.RecordError] | None = None,
) -> RecordSummary:
  """Summarises the features of records.

  Args:
    records: of `framing.iterate_records`.
    filenames: for the summary.
    max_records: stops after so many records.
    damages: takes the records that are none of the two kinds of protos, the first of
      each file; None: they are an error.
  Returns:
    The summary.
  Raises:
    RecordError: a record is none of the two kinds of protos.
  """
  schemas, num_records, is_complete = _Schemas(), 0, True
  for record in records:
    if num_records == max_records:
      is_complete = False
      break
    try:
      schemas.add(record, contents.read_contents(record))
    except errors.RecordError as error:
      if damages is None:
        raise
      damages.setdefault(record.filename, error)
      continue
    num_records += 1
  return dataclasses.replace(
    schemas.freeze(),
    files=tuple(os.fspath(name) for name in filenames),
    is_complete=is_complete,
  )


_Place = tuple[bool, str]
# The kind of a feature's values, and how many there are, of which size; None where it
# does not matter.
_Variant = tuple[str, Any]
_Key = frozenset[tuple[_Place, _Variant]]
_NOTHING: _Variant = ("", None)
# A feature of more variants, none of which most records have, is one that varies; and
# one of nearly as many as there are records.
_MAX_VARIANTS, _MOST, _LEAST = 4, 2 / 3, 3
_MAX_GROUPS = 256


class _Group:
  """Records that are alike."""

  def __init__(self, example: str) -> None:
    self.example = example
    self.num_records = self.num_rlds = self.num_empty = 0
    self.files: dict[str, None] = {}
    self.tallies: dict[_Place, Tally] = collections.defaultdict(Tally)

  def merge(self, other: _Group) -> None:
    self.num_records += other.num_records
    self.num_rlds += other.num_rlds
    self.num_empty += other.num_empty
    self.files |= other.files
    for place, tally in other.tallies.items():
      self.tallies[place].merge(tally)

  def freeze(self) -> RecordSummary:
    return RecordSummary(
      files=tuple(self.files),
      num_records=self.num_records,
      is_complete=True,
      proto=contents.SEQUENCE_EXAMPLE if self._is_sequence() else contents.EXAMPLE,
      features=tuple(
        self.tallies[place].freeze(place[1], place[0]) for place in sorted(self.tallies)
      ),
      is_rlds=0 < self.num_rlds == self.num_records,
      example=self.example,
      num_empty=self.num_empty,
    )

  def _is_sequence(self) -> bool:
    # Those of RLDS are no sequences in the record.
    any_steps = any(is_sequence for is_sequence, _ in self.tallies)
    return any_steps and self.num_rlds < self.num_records


class _Schemas:
  """Tells records apart by what they hold."""

  def __init__(self) -> None:
    self._groups: dict[_Key, _Group] = {}
    self._varied: set[_Place] = set()

  def add(self, record: framing.Record, found: contents.RecordContents) -> None:
    is_rlds = rlds.is_rlds(found)
    found = rlds.divide_unknown(found)
    values = {(False, name): [value] for name, value in found.context.items()}
    values |= {(True, name): steps for name, steps in found.steps.items()}
    is_empty = bool(found.steps) and not any(found.steps.values())
    key = frozenset(
      (place, _NOTHING if is_empty and _is_bare(steps) else self._variant(place, steps))
      for place, steps in values.items()
    )
    group = self._groups.get(key)
    if group is None:
      group = self._groups[key] = _Group(record.place)
    group.num_records += 1
    group.num_rlds += is_rlds
    group.num_empty += is_empty
    group.files[record.filename] = None
    for place, steps in values.items():
      group.tallies[place].add(steps, place[0], record)
    if len(self._groups) > _MAX_GROUPS:
      variants = self._count()
      most = max(variants, key=lambda place: len(variants[place]))
      if len(variants[most]) > 1:
        self._merge([most])

  def _variant(self, place: _Place, steps: list[protos.Feature]) -> _Variant:
    kinds = {contents.kind_of(step) for step in steps}
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""
    if not steps or place in self._varied or rlds.is_nested(place[1]):
      return kind, None
    lengths = {len(contents.values_of(step)) for step in steps}
    image = None
    if kind == "bytes" and (values := contents.values_of(steps[0])):
      image = image_headers.read_image_header(values[0])
    return kind, (lengths.pop() if len(lengths) == 1 else "varied", image)

  def _count(self) -> dict[_Place, collections.Counter[_Variant]]:
    """Counts the records of each variant of each feature."""
    counts: dict[_Place, collections.Counter[_Variant]] = collections.defaultdict(
      collections.Counter
    )
    for key, group in self._groups.items():
      for place, variant in key:
        counts[place][variant] += group.num_records
    return counts

  def _merge(self, varied: Iterable[_Place]) -> None:
    """Tells records no longer apart by how many values some features have."""
    self._varied |= {*varied}
    groups: dict[_Key, _Group] = {}
    for key, group in self._groups.items():
      merged = frozenset(
        (place, (variant[0], None) if place in self._varied else variant)
        for place, variant in key
      )
      if merged in groups:
        groups[merged].merge(group)
      else:
        groups[merged] = group
    self._groups = groups

  def freeze(self) -> RecordSummary:
    self._merge(place for place, c in self._count().items() if _is_ragged(c))
    ordered = sorted(
      self._groups.items(),
      key=lambda item: (item[1].num_empty == item[1].num_records, -item[1].num_records),
    )
    kept: list[tuple[_Key, _Group]] = []
    for key, group in ordered:
      # What has no values, such as an episode without a step, is like what has some.
      like = next((other for known, other in kept if _is_like(key, known)), None)
      if like is None:
        kept.append((key, group))
      else:
        like.merge(group)
    schemas = tuple(group.freeze() for _, group in kept)
    whole = _Group(kept[0][1].example if kept else "")
    for _, group in kept:
      whole.merge(group)
    return dataclasses.replace(whole.freeze(), schemas=schemas)


def _is_ragged(counts: collections.Counter[_Variant]) -> bool:
  """Whether a feature's lists vary in length, from its records by variant."""
  many = len(counts) > _MAX_VARIANTS and max(counts.values()) < _MOST * counts.total()
  return many or (len(counts) >= _LEAST and 2 * len(counts) > counts.total())


def _is_like(key: _Key, known: _Key) -> bool:
  """Whether a record's features are those of others, as far as they have values."""
  ours, theirs = dict(key), dict(known)
  return ours.keys() == theirs.keys() and all(
    variant in (_NOTHING, theirs[place]) for place, variant in ours.items()
  )


def _is_bare(steps: list[protos.Feature]) -> bool:
  return not any(len(contents.values_of(step)) for step in steps)


_MAX_SCHEMAS, _MAX_DIFFERENCES = 8, 3


def describe_schemas(summary: RecordSummary) -> list[str]:
  """Says which schemas records have, and in what they differ from the most frequent.

  Args:
    summary: of `inspect_records`.
  Returns:
    Lines; none where all records are alike.
  """
  if len(summary.schemas) < 2:
    return []
  numbers = ", ".join(f"{len(s.files):,}" for s in summary.schemas[:_MAX_SCHEMAS])
  lines = [f"{len(summary.schemas):,} schemas: {numbers} files"]
  main = {(f.is_sequence, f.name): f for f in summary.schemas[0].features}
  for number, schema in enumerate(summary.schemas[:_MAX_SCHEMAS], 1):
    found = {(f.is_sequence, f.name): f for f in schema.features}
    told = [f"no '{place[1]}'" for place in main if place not in found]
    told += [f"also '{place[1]}'" for place in found if place not in main]
    for place in main:
      if place in found:
        ours, theirs = variant_text(found[place]), variant_text(main[place])
        told += [f"'{place[1]}': {ours}, not {theirs}"] if ours != theirs else []
    rest = len(told) - _MAX_DIFFERENCES
    text = "; ".join(told[:_MAX_DIFFERENCES]) + (
      f"; and {rest} more" if rest > 0 else ""
    )
    plural = "" if schema.num_records == 1 else "s"
    lines.append(
      f"{number}: {schema.num_records:,} record{plural}, first {schema.example}"
      + (f": {text}" if text else "")
    )
  rest = len(summary.schemas) - _MAX_SCHEMAS
  return lines + ([f"and {rest} more"] if rest > 0 else [])


def describe_odd_values(summary: RecordSummary) -> list[str]:
  """Says which values are unlike nearly all others: `propose_spec` is without them.

  Args:
    summary: of `inspect_records`.
  Returns:
    Lines, one for each kind of them; none where there are no such values.
  """
  return [
    f"'{feature.name}': {odd.num_values:,} of {feature.num_values:,} "
    f"{'steps' if feature.is_sequence else 'records'} "
    f"{'has' if odd.num_values == 1 else 'have'} {odd.got}, not {odd.usual}: "
    + ("" if odd.num_values == 1 else "such as ")
    + odd.example
    for feature in summary.features
    for odd in feature.odd
  ]


_COLUMNS = ("feature", "where", "kind", "values", "steps", "in records", "looks like")
_RIGHT_ALIGNED = ("values", "steps", "in records")
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
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
  empty = f", {summary.num_empty} without a step" if summary.num_empty else ""
  return f"{names}: {count}, {proto}{empty}"


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
    span(feature.min_length, feature.max_length),
    span(feature.min_steps, feature.max_steps) if feature.is_sequence else "-",
    # Rounded down: 100 % means all.
    f"{int(100 * share)} %",
    feature.guess,
  )


def propose_spec(summary: RecordSummary) -> specs.TensorSpecStruct:
  """Proposes a spec structure that parses the files of a summary.

  Images get their size and format, lists their length as shape, varying lengths a
  varlen default, and features that some records lack are optional. Paths are the
  names. Images of varying size are left as encoded strings. Features that are empty,
  or of another kind in each record, have no spec, which is logged. Values that nearly
  all others are unlike say nothing here: `describe_odd_values` names them, and records
  that have them do not fit.

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
  declared = rlds.find_features(summary.files) if summary.is_rlds else {}
  proposed = specs.TensorSpecStruct()
  names: set[str] = set()
  left_out: dict[str, str] = {}
  # Sequences first: where a name is in both places, they are the data.
  for feature in sorted(summary.features, key=lambda f: not f.is_sequence):
    if feature.kind not in _DTYPES or feature.max_length == 0 or feature.name in names:
      reason = "is there as a sequence" if feature.name in names else feature.guess
      left_out.setdefault(feature.name, reason)
      continue
    if summary.is_rlds and (reason := _not_divisible(feature, summary)):
      left_out[feature.name] = reason
      continue
    names.add(feature.name)
    spec = _propose(feature, feature.num_records < summary.num_records)
    name = feature.name
    if summary.is_rlds:
      spec = _as_rlds(spec, declared.get(name))
      name = name.removeprefix(f"{rlds.STEPS}/")
    proposed[_free_path(name, proposed)] = spec
  for name, reason in left_out.items():
    logging.warning("No spec for '%s': %s.", name, reason)
  if not len(proposed):
    told = errors.listing(f"'{name}': {reason}" for name, reason in left_out.items())
    raise errors.SpecError(
      f"propose_spec: {errors.listing(summary.files, 3)}: expected records with a "
      f"feature that has values, got {summary.num_records} records and {told}."
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
      spec.name,
      errors.describe(declared),
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
  dtype, data_format = tf.as_dtype(_DTYPES[feature.kind]), None
  if feature.kind == "bytes" and feature.max_length == 1 and not is_varlen:
    shape = ()
  if len(feature.images) == 1:
    image = feature.images[0]
    shape = (*shape, image.height, image.width, image.channels)
    dtype = tf.uint16 if image.bits == 16 else tf.uint8
    data_format = image.format
  if len(feature.tensors) == 1 and feature.min_length == feature.max_length == 1:
    ((dtype, shape),) = feature.tensors
    data_format = "tensor"
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
