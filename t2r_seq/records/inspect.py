"""What is in TFRecord files: a summary, a table, and a spec that parses them."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.records import contents, files, framing, rlds
from t2r_seq.records.features import RecordFeature, read_tensor_header
from t2r_seq.specs import validation

# How many bytes of a byte string decide whether it is text.
_TEXT_SAMPLE = 256
# Of tensors whose last value stands for all the others.
_MAX_REPEATED_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True)
class FeatureSummary:
  """One feature over all records.

  Attributes:
    name: key in the record.
    is_sequence: in the feature lists, one list of values per step.
    kind: 'int64', 'float', 'bytes', 'mixed', or '' where it never has a value.
    num_records: how many records have it.
    min_length: fewest values of a record, or of a step.
    max_length: most values of a record, or of a step.
    min_steps: fewest steps of a record; 0 for context features.
    max_steps: most steps of a record; 0 for context features.
    guess: what it may be, for people: 'float32', 'jpeg 64x64x3', 'text', ...
    images: the different headers, if all values that are not empty are images.
    min_value: of int64 features.
    max_value: of int64 features.
    tensors: the different dtypes and shapes, if all values that are not empty are
      serialized tensors.
  """

  name: str
  is_sequence: bool
  kind: str
  num_records: int
  min_length: int
  max_length: int
  min_steps: int
  max_steps: int
  guess: str
  images: tuple[validation.ImageHeader, ...] = ()
  min_value: int | None = None
  max_value: int | None = None
  tensors: tuple[tuple[tf.DType, tuple[int, ...]], ...] = ()


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


class _Tally:
  """Collects what is seen of one feature."""

  def __init__(self) -> None:
    self.num_records = 0
    self.kinds: set[str] = set()
    self.lengths: set[int] = set()
    self.steps: set[int] = set()
    self.sizes: set[int] = set()
    self.values: list[int] = []
    self.images: set[validation.ImageHeader] = set()
    self.tensors: set[tuple[tf.DType, tuple[int, ...]]] = set()
    self.is_text = True
    self.is_image = self.is_tensor = True

  def add(self, steps: list[tf.train.Feature], is_sequence: bool) -> None:
    self.num_records += 1
    if is_sequence:
      self.steps.add(len(steps))
    for feature in steps:
      kind, values = contents.kind_of(feature), contents.values_of(feature)
      self.lengths.add(len(values))
      if kind and len(values):
        self.kinds.add(kind)
      if kind == "int64" and len(values):
        self.values = [min([*self.values, *values]), max([*self.values, *values])]
      elif kind == "bytes":
        self._add_bytes(values)

  def _add_bytes(self, values: Iterable[bytes]) -> None:
    for value in values:
      self.sizes.add(len(value))
      if not value:
        continue
      self.is_text = self.is_text and _is_text(value)
      header = validation.read_image_header(value) if self.is_image else None
      self.is_image = header is not None
      if header:
        self.images.add(header)
      tensor = read_tensor_header(value) if self.is_tensor else None
      self.is_tensor = tensor is not None and _has_room(tensor, value)
      if tensor and self.is_tensor:
        self.tensors.add(tensor)

  def merge(self, other: _Tally) -> None:
    """Adds what another has seen of the same feature."""
    self.num_records += other.num_records
    self.kinds |= other.kinds
    self.lengths |= other.lengths
    self.steps |= other.steps
    self.sizes |= other.sizes
    values = [*self.values, *other.values]
    self.values = [min(values), max(values)] if values else []
    self.images |= other.images
    self.is_text &= other.is_text
    self.is_image &= other.is_image
    self.tensors |= other.tensors
    self.is_tensor &= other.is_tensor

  def freeze(self, name: str, is_sequence: bool) -> FeatureSummary:
    kind = "mixed" if len(self.kinds) > 1 else "".join(self.kinds)
    images = tuple(sorted(self.images)) if self.is_image and kind == "bytes" else ()
    tensors = self.tensors if self.is_tensor and kind == "bytes" else ()
    return FeatureSummary(
      name=name,
      is_sequence=is_sequence,
      kind=kind,
      num_records=self.num_records,
      min_length=min(self.lengths, default=0),
      max_length=max(self.lengths, default=0),
      min_steps=min(self.steps, default=0),
      max_steps=max(self.steps, default=0),
      guess=self._guess(kind, images),
      images=images,
      min_value=self.values[0] if self.values else None,
      max_value=self.values[-1] if self.values else None,
      tensors=tuple(sorted(tensors, key=lambda found: (found[0].name, found[1]))),
    )

  def _guess(self, kind: str, images: tuple[validation.ImageHeader, ...]) -> str:
    if kind == "int64":
      return _guess_integer(*self.values)
    if kind == "float":
      return "float32"
    if kind == "bytes":
      return _guess_images(images) if images else self._guess_bytes()
    return {"mixed": "lists of several kinds", "": "no values"}[kind]

  def _guess_bytes(self) -> str:
    low, high = min(self.sizes), max(self.sizes)
    size = f"{low}" if low == high else f"{low}..{high}"
    if self.is_tensor and self.tensors:
      shapes = sorted(f"{dtype.name} {shape}" for dtype, shape in self.tensors)
      return "tensor " + ", ".join(shapes[:2]) + (", ..." if len(shapes) > 2 else "")
    if self.is_text:
      return f"text, {size} bytes"
    return f"data, {size} bytes" + (", maybe raw" if low == high else "")


def _is_text(value: bytes) -> bool:
  sample = value[:_TEXT_SAMPLE]
  # The sample may end within a character of up to 4 bytes; a whole value may not.
  is_cut = len(value) > _TEXT_SAMPLE
  text = sample.decode("utf-8", errors="ignore")
  is_whole = len(text.encode()) > len(sample) - (4 if is_cut else 1)
  return is_whole and all(c.isprintable() or c.isspace() for c in text)


def _has_room(tensor: tuple[tf.DType, tuple[int, ...]], value: bytes) -> bool:
  """Whether a tensor may be proposed: a few bytes can stand for one of any size."""
  dtype, shape = tensor
  return math.prod(shape) * dtype.size <= max(len(value), _MAX_REPEATED_BYTES)


def _guess_integer(low: int, high: int) -> str:
  span = f"{low}" if low == high else f"{low}..{high}"
  if (low, high) == (0, 1):
    return f"int64, {span}, maybe bool"
  return f"int64, {span}" + (", maybe uint8" if low >= 0 and high == 255 else "")


def _guess_images(images: tuple[validation.ImageHeader, ...]) -> str:
  if len(images) == 1:
    image = images[0]
    bits = " 16 bit" if image.bits == 16 else ""
    return f"{image.format} {image.height}x{image.width}x{image.channels}{bits}"
  formats = "/".join(sorted({image.format for image in images}))
  heights = [image.height for image in images]
  widths = [image.width for image in images]
  low, high = f"{min(heights)}x{min(widths)}", f"{max(heights)}x{max(widths)}"
  return f"{formats} {low}..{high}"


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
# A feature of more variants, none of which most records have, is one that varies.
_MAX_VARIANTS, _MOST = 4, 2 / 3
_MAX_GROUPS = 256


class _Group:
  """Records that are alike."""

  def __init__(self, example: str) -> None:
    self.example = example
    self.num_records = self.num_rlds = self.num_empty = 0
    self.files: dict[str, None] = {}
    self.tallies: dict[_Place, _Tally] = collections.defaultdict(_Tally)

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
      group.tallies[place].add(steps, place[0])
    if len(self._groups) > _MAX_GROUPS:
      variants = self._count()
      most = max(variants, key=lambda place: len(variants[place]))
      if len(variants[most]) > 1:
        self._merge([most])

  def _variant(self, place: _Place, steps: list[tf.train.Feature]) -> _Variant:
    kinds = {contents.kind_of(step) for step in steps}
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""
    if not steps or place in self._varied:
      return kind, None
    lengths = {len(contents.values_of(step)) for step in steps}
    image = None
    if kind == "bytes" and (values := contents.values_of(steps[0])):
      image = validation.read_image_header(values[0])
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
    self._merge(
      place
      for place, counts in self._count().items()
      if len(counts) > _MAX_VARIANTS and max(counts.values()) < _MOST * counts.total()
    )
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


def _is_like(key: _Key, known: _Key) -> bool:
  """Whether a record's features are those of others, as far as they have values."""
  ours, theirs = dict(key), dict(known)
  return ours.keys() == theirs.keys() and all(
    variant in (_NOTHING, theirs[place]) for place, variant in ours.items()
  )


def _is_bare(steps: list[tf.train.Feature]) -> bool:
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
        ours, theirs = _variant_text(found[place]), _variant_text(main[place])
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


def _variant_text(feature: FeatureSummary) -> str:
  length = _span(feature.min_length, feature.max_length)
  what = _guess_images(feature.images) if feature.images else feature.kind or "no kind"
  return f"{length} x {what}"


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
  dtype, data_format = _DTYPES[feature.kind], None
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
