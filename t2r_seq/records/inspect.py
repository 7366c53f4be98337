"""Contents of TFRecord files: a summary, a table, and a spec that parses them.

Damaged values are rare. Kinds of values in fewer than 1 in 20 records and steps are
counted separately: otherwise one damaged image in a thousand would make a camera plain
bytes, and one step with a missing value would make a pose ragged.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import files, framing, protos, rlds
from t2r_seq.records.features import KINDS, read_tensor_header
from t2r_seq.specs.image_headers import ImageHeader, read_image_header

# How many bytes of a byte string decide whether it is text.
_TEXT_SAMPLE = 256
# In a short serialized tensor, the last value stands for all missing ones. Up to this
# size it is taken for a tensor.
_MAX_REPEATED_BYTES = 1 << 26
# Odd values are in fewer than 1 in `_RARE` records and steps, and have few forms: lists
# of many lengths are ragged.
_RARE, _MAX_ODD = 20, 4

_Tensor = tuple["tf.DType", tuple[int, ...]]
# Of a list: the kind, the number of values, and the headers of images and tensors among
# its byte strings, None for other strings.
_Form = tuple[str, int, frozenset[Any]]


@dataclasses.dataclass(frozen=True)
class OddValues:
  """Rare values of a feature that differ in kind or number from nearly all others.

  Attributes:
    num_values: number of records, or steps, with such values.
    got: description of the values: '4 x float'.
    usual: description of the other values.
    example: place of the first one.
  """

  num_values: int
  got: str
  usual: str
  example: str


@dataclasses.dataclass(frozen=True)
class FeatureSummary:
  """One feature over all records.

  Lengths, values, `guess`, `images` and `tensors` are without the values in `odd`.

  Attributes:
    name: key in the record.
    is_sequence: in the feature lists, one list of values per step.
    kind: 'int64', 'float', 'bytes', 'mixed', or '' if it never has a value.
    num_records: number of records with the feature.
    min_length: fewest values of a record, or of a step.
    max_length: most values of a record, or of a step.
    min_steps: fewest steps of a record; 0 for context features.
    max_steps: most steps of a record; 0 for context features.
    guess: description of the values: 'float32', 'jpeg 64x64x3', 'text', ...
    images: the different headers, if all values that are not empty are images.
    min_value: smallest value of an int64 feature; None for other kinds.
    max_value: largest value of an int64 feature; None for other kinds.
    tensors: the different dtypes and shapes, if all values that are not empty are
      serialized tensors.
    num_values: number of records, or steps, with this feature.
    odd: rare kinds of values (in fewer than 1 in 20); the proposed spec ignores them.
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
  images: tuple[ImageHeader, ...] = ()
  min_value: int | None = None
  max_value: int | None = None
  tensors: tuple[_Tensor, ...] = ()
  num_values: int = 0
  odd: tuple[OddValues, ...] = ()

  @property
  def variant(self) -> str:
    """Number and kind of the values, as text: '7 x float'."""
    what = _guess_images(self.images) if self.images else self.kind
    return f"{_span(self.min_length, self.max_length)} x {what or 'no kind'}"


@dataclasses.dataclass(frozen=True)
class RecordSummary:
  """Summary of the records of some files.

  Attributes:
    files: the files that were read.
    num_records: number of records that were read.
    is_complete: False if `max_records` left some records unread.
    proto: 'tf.train.Example' or 'tf.train.SequenceExample'.
    features: context features first, each sorted by name.
    is_rlds: RLDS episodes as TFDS writes them: Examples with sequences, whose steps
      are concatenated.
    damages: the first error in each file, by file name: damaged bytes, or a record of
      another proto. Records after damaged bytes are not counted.
    schemas: one summary per schema, most frequent first. Records of a schema have the
      same names, kinds, numbers of values and image sizes of features. A ragged list
      does not start a new schema.
    example: place of the first record.
    num_empty: number of records whose sequences have no step; they give no window.
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

  def __str__(self) -> str:
    heading = self._heading()
    if not self.features:  # Without features, the proto is only a guess.
      return f"{heading}, no features".replace(f", {self.proto}", "")
    rows = [_COLUMNS, *(_row(each, self.num_records) for each in self.features)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("─" * width for width in widths))
    lines = []
    for row in rows:
      cells = [
        cell.rjust(width) if column in _RIGHT_ALIGNED else cell.ljust(width)
        for cell, width, column in zip(row, widths, _COLUMNS, strict=True)
      ]
      lines.append("  ".join(cells).rstrip())
    return "\n".join([heading, "", *lines])

  def _heading(self) -> str:
    names = self.files[0] if len(self.files) == 1 else f"{len(self.files)} files"
    whole = "whole " if self.damages else ""
    plural = "" if self.num_records == 1 else "s"
    count = f"{self.num_records} {whole}record{plural}"
    if not self.is_complete:
      count = f"the first {count}"
    proto = f"{self.proto} (RLDS episodes)" if self.is_rlds else self.proto
    empty = f", {self.num_empty} without a step" if self.num_empty else ""
    return f"{names}: {count}, {proto}{empty}"

  def describe_schemas(self) -> list[str]:
    """Returns a heading, and a line on how each schema differs from the first one.

    Empty if there are fewer than two schemas.
    """
    if len(self.schemas) < 2:
      return []
    schemas = self.schemas[:_MAX_SCHEMAS]
    numbers = ", ".join(f"{len(schema.files):,}" for schema in schemas)
    lines = [f"{len(self.schemas):,} schemas: {numbers} files"]
    main = {(f.is_sequence, f.name): f.variant for f in self.schemas[0].features}
    for number, schema in enumerate(schemas, 1):
      variants = {(f.is_sequence, f.name): f.variant for f in schema.features}
      texts = [f"no '{key[1]}'" for key in main if key not in variants]
      texts += [f"also '{key[1]}'" for key in variants if key not in main]
      texts += [
        f"'{key[1]}': {variants[key]}, not {variant}"
        for key, variant in main.items()
        if variants.get(key, variant) != variant
      ]
      rest = len(texts) - _MAX_DIFFERENCES
      texts = texts[:_MAX_DIFFERENCES] + ([f"and {rest} more"] if rest > 0 else [])
      plural = "" if schema.num_records == 1 else "s"
      lines.append(
        f"{number}: {schema.num_records:,} record{plural}, first {schema.example}"
        + (f": {'; '.join(texts)}" if texts else "")
      )
    rest = len(self.schemas) - _MAX_SCHEMAS
    return lines + ([f"and {rest} more"] if rest > 0 else [])

  def describe_odd_values(self) -> list[str]:
    """Returns a line for each kind of values in fewer than 1 in 20 records or steps.

    `propose_spec` ignores them.
    """
    return [
      f"'{feature.name}': {odd.num_values:,} of {feature.num_values:,} "
      f"{'steps' if feature.is_sequence else 'records'} "
      f"{'has' if odd.num_values == 1 else 'have'} {odd.got}, not {odd.usual}: "
      + ("" if odd.num_values == 1 else "such as ")
      + odd.example
      for feature in self.features
      for odd in feature.odd
    ]


def inspect_records(
  path: files.FilePatterns,
  max_records: int | None = None,
  compression: str | None = None,
  allow_damage: bool = False,
) -> RecordSummary:
  """Reads TFRecord files of any content and summarises their features.

  Args:
    path: a file, or file patterns.
    max_records: maximum number of records to read, in equal shares from the start of
      each file. If there are more files, one record of evenly spaced files. None reads
      all.
    compression: compression of all files, if the suffixes don't show it.
    allow_damage: reads a damaged file up to its damage, which the summary names;
      otherwise it is an error.
  Returns:
    The features of all records, and the damage by file.
  Raises:
    SpecError: the patterns match no file, or the compression is unknown.
    RecordError: a file is damaged or of another type, or a record is neither an Example
      nor a SequenceExample; with `allow_damage` only if no record can be read.
    ImportError: a file is an ArrayRecord file, and the extra is not installed.
  """
  _, filenames = files.get_data_format_and_filenames(path)
  damages: dict[str, errors.RecordError] = {}
  is_complete = True

  def read_up_to_damage() -> Iterator[framing.Record]:
    nonlocal is_complete
    for index, filename in enumerate(filenames):
      share = None
      if max_records is not None:
        first, end = (max_records * i // len(filenames) for i in (index, index + 1))
        share = end - first
      try:
        files.check_file_types([filename], compression, array_records=True)
        kind = files.compression_type(filename, compression)
        for number, record in enumerate(framing.iterate_records(filename, kind)):
          if number == share:
            is_complete = False
            break
          yield record
      except errors.RecordError as damage:
        if not allow_damage:
          raise
        damages.setdefault(filename, damage)

  recorded = damages if allow_damage else None
  summary = summarize_records(read_up_to_damage(), filenames, recorded)
  if damages and not summary.num_records:
    raise next(iter(damages.values()))
  return dataclasses.replace(summary, damages=damages, is_complete=is_complete)


def summarize_records(
  records: Iterable[framing.Record],
  filenames: Iterable[str],
  damages: dict[str, errors.RecordError] | None = None,
) -> RecordSummary:
  """Summarises the features of records.

  Args:
    records: records from `framing.iterate_records`.
    filenames: for the summary.
    damages: receives, by file name, the error for the first record that is neither an
      Example nor a SequenceExample; None raises it.
  """
  schemas = _Schemas()
  for record in records:
    try:
      schemas.add(record, record.contents())
    except errors.RecordError as error:
      if damages is None:
        raise
      damages.setdefault(record.filename, error)
  names = tuple(os.fspath(name) for name in filenames)
  return dataclasses.replace(schemas.freeze(), files=names)


class _Seen:
  """Counts lists of one form."""

  def __init__(self, example: str) -> None:
    self.example = example
    self.num_values = self.num_records = 0
    # [lowest, highest] integer and number of bytes; empty if there are no values.
    self.integers: list[int] = []
    self.sizes: list[int] = []
    self.is_text = True

  def add(self, kind: str, values: Any) -> None:
    self.num_values += 1
    if kind == "int64":
      self.integers = _widen(self.integers, values)
    elif kind == "bytes":
      self.sizes = _widen(self.sizes, [len(value) for value in values])
      self.is_text = self.is_text and all(_is_text(value) for value in values)

  def merge(self, other: _Seen) -> None:
    self.num_values += other.num_values
    self.num_records += other.num_records
    self.integers = _widen(self.integers, other.integers)
    self.sizes = _widen(self.sizes, other.sizes)
    self.is_text &= other.is_text


def _widen(span: list[int], values: Iterable[int]) -> list[int]:
  values_of_both = [*span, *values]
  return [min(values_of_both), max(values_of_both)] if values_of_both else []


class _FeatureForms:
  """Collects the forms of one feature's lists."""

  def __init__(self) -> None:
    self.num_records = 0
    self._steps: set[int] = set()
    self._forms: dict[_Form, _Seen] = {}

  def add(
    self, steps: list[protos.Feature], is_sequence: bool, record: framing.Record
  ) -> None:
    """Adds the lists of one record: one per step, or one in the context."""
    self.num_records += 1
    if is_sequence:
      self._steps.add(len(steps))
    forms: set[_Form] = set()
    for number, feature in enumerate(steps):
      values = protos.values_of(feature)
      kind = protos.kind_of(feature) if len(values) else ""
      headers = map(_header, filter(None, values)) if kind == "bytes" else ()
      form = kind, len(values), frozenset(headers)
      seen = self._forms.get(form)
      if seen is None:
        step = f", step {number}" if is_sequence else ""
        seen = self._forms[form] = _Seen(record.place + step)
      seen.add(kind, values)
      forms.add(form)
    for form in forms:
      self._forms[form].num_records += 1

  def merge(self, other: _FeatureForms) -> None:
    """Adds the forms of the same feature in other records."""
    self.num_records += other.num_records
    self._steps |= other._steps
    for form, seen in other._forms.items():
      self._forms.setdefault(form, _Seen(seen.example)).merge(seen)

  def freeze(self, name: str, is_sequence: bool) -> FeatureSummary:
    total = sum(seen.num_values for seen in self._forms.values())
    odd = self._find_odd(total)
    summary = _summarize({f: seen for f, seen in self._forms.items() if f not in odd})
    return dataclasses.replace(
      summary,
      name=name,
      is_sequence=is_sequence,
      num_records=self.num_records,
      min_steps=min(self._steps, default=0),
      max_steps=max(self._steps, default=0),
      num_values=total,
      odd=tuple(
        OddValues(
          seen.num_values,
          _summarize({form: seen}).variant,
          summary.variant,
          seen.example,
        )
        for form, seen in odd.items()
      ),
    )

  def _find_odd(self, total: int) -> dict[_Form, _Seen]:
    """Returns the rare forms that differ from the usual one."""
    if len(self._forms) < 2:
      return {}
    kind, length, headers = max(self._forms, key=lambda f: self._forms[f].num_values)
    # Headers are compared only if the usual lists have one. A list of empty strings has
    # none, and fits.
    is_one = len(headers) == 1 and None not in headers
    odd = {
      form: seen
      for form, seen in self._forms.items()
      if form[:2] != (kind, length) or (is_one and not form[2] <= headers)
    }
    num_values = sum(seen.num_values for seen in odd.values())
    num_records = sum(seen.num_records for seen in odd.values())
    is_rare = num_values * _RARE < total and num_records * _RARE < self.num_records
    # If most lists are empty, the few others are the data, and not odd.
    is_odd = length > 0 and is_rare and len({form[:2] for form in odd}) <= _MAX_ODD
    return odd if is_odd else {}


def _header(value: bytes) -> ImageHeader | _Tensor | None:
  if image := read_image_header(value):
    return image
  tensor = read_tensor_header(value)
  if tensor is None:
    return None
  dtype, shape = tensor
  # A few bytes can stand for a tensor of any size.
  has_room = math.prod(shape) * dtype.size <= max(len(value), _MAX_REPEATED_BYTES)
  return tensor if has_room else None


def _summarize(forms: dict[_Form, _Seen]) -> FeatureSummary:
  """Returns the common properties of lists of several forms."""
  whole = _Seen("")
  for seen in forms.values():
    whole.merge(seen)
  kinds = {kind for kind, length, _ in forms if length}
  lengths = [length for _, length, _ in forms]
  headers: set[Any] = set().union(*(header for _, _, header in forms))
  is_bytes = kinds == {"bytes"}
  are_images = is_bytes and all(isinstance(each, ImageHeader) for each in headers)
  # Not isinstance: an ImageHeader is a tuple, too.
  are_tensors = is_bytes and all(type(each) is tuple for each in headers)
  tensors = headers if are_tensors else set()
  summary = FeatureSummary(
    name="",
    is_sequence=False,
    kind="mixed" if len(kinds) > 1 else "".join(kinds),
    num_records=whole.num_records,
    min_length=min(lengths, default=0),
    max_length=max(lengths, default=0),
    min_steps=0,
    max_steps=0,
    guess="",
    images=tuple(sorted(headers)) if are_images else (),
    min_value=whole.integers[0] if whole.integers else None,
    max_value=whole.integers[-1] if whole.integers else None,
    tensors=tuple(sorted(tensors, key=lambda tensor: (tensor[0].name, tensor[1]))),
  )
  return dataclasses.replace(summary, guess=_guess(summary, whole))


def _span(low: int, high: int) -> str:
  return f"{low}" if low == high else f"{low}..{high}"


def _guess(feature: FeatureSummary, seen: _Seen) -> str:
  """Guesses the meaning of a feature, as text."""
  if feature.kind == "int64":
    low, high = seen.integers
    if (low, high) == (0, 1):
      return "int64, 0..1, maybe bool"
    is_byte = low >= 0 and high == 255
    return f"int64, {_span(low, high)}{', maybe uint8' * is_byte}"
  if feature.images:
    return _guess_images(feature.images)
  if feature.tensors:
    shapes = sorted(f"{dtype.name} {shape}" for dtype, shape in feature.tensors)
    return f"tensor {', '.join(shapes[:2])}{', ...' * (len(shapes) > 2)}"
  if feature.kind == "bytes":
    low, high = seen.sizes
    if seen.is_text:
      return f"text, {_span(low, high)} bytes"
    return f"data, {_span(low, high)} bytes{', maybe raw' * (low == high)}"
  names = {"float": "float32", "mixed": "lists of several kinds", "": "no values"}
  return names[feature.kind]


def _is_text(value: bytes) -> bool:
  sample = value[:_TEXT_SAMPLE]
  # The sample may end within a character of up to 4 bytes; a whole value may not.
  is_cut = len(value) > _TEXT_SAMPLE
  text = sample.decode("utf-8", errors="ignore")
  is_whole = len(text.encode()) > len(sample) - (4 if is_cut else 1)
  return is_whole and all(c.isprintable() or c.isspace() for c in text)


def _guess_images(images: tuple[ImageHeader, ...]) -> str:
  if len(images) == 1:
    image = images[0]
    bits = " 16 bit" if image.bits == 16 else ""
    return f"{image.format} {image.height}x{image.width}x{image.channels}{bits}"
  formats = "/".join(sorted({image.format for image in images}))
  heights = [image.height for image in images]
  widths = [image.width for image in images]
  low, high = f"{min(heights)}x{min(widths)}", f"{max(heights)}x{max(widths)}"
  return f"{formats} {low}..{high}"


_Feature = tuple[bool, str]
# The kind of a feature's values, and (values per step, header of an image) or, if these
# vary, None.
_Variant = tuple[str, Any]
_Key = frozenset[tuple[_Feature, _Variant]]
_NOTHING: _Variant = ("", None)
# A feature varies if it has more variants, and no variant in this share of records; or
# if it has at least `_LEAST` variants, and fewer than two records for each.
_MAX_VARIANTS, _MOST, _LEAST = 4, 2 / 3, 3
_MAX_GROUPS = 256
_MAX_SCHEMAS, _MAX_DIFFERENCES = 8, 3  # Limits of `describe_schemas`.


class _Group:
  """Records of one schema."""

  def __init__(self, example: str) -> None:
    self.example = example
    self.num_records = self.num_rlds = self.num_empty = 0
    self.files: dict[str, None] = {}
    self.forms: dict[_Feature, _FeatureForms] = collections.defaultdict(_FeatureForms)

  def merge(self, other: _Group) -> None:
    self.num_records += other.num_records
    self.num_rlds += other.num_rlds
    self.num_empty += other.num_empty
    self.files |= other.files
    for feature, forms in other.forms.items():
      self.forms[feature].merge(forms)

  def freeze(self) -> RecordSummary:
    # RLDS records are Examples; their sequences come from `rlds.divide_unknown`.
    has_steps = any(is_sequence for is_sequence, _ in self.forms)
    is_sequence = has_steps and self.num_rlds < self.num_records
    return RecordSummary(
      files=tuple(self.files),
      num_records=self.num_records,
      is_complete=True,
      proto=protos.SEQUENCE_EXAMPLE if is_sequence else protos.EXAMPLE,
      features=tuple(
        self.forms[feature].freeze(feature[1], feature[0])
        for feature in sorted(self.forms)
      ),
      is_rlds=0 < self.num_rlds == self.num_records,
      example=self.example,
      num_empty=self.num_empty,
    )


class _Schemas:
  """Groups records by schema."""

  def __init__(self) -> None:
    self._groups: dict[_Key, _Group] = {}
    self._varied: set[_Feature] = set()

  def add(self, record: framing.Record, contents: protos.RecordContents) -> None:
    """Counts a record in the group of its schema."""
    is_rlds = rlds.is_rlds(contents)
    contents = rlds.divide_unknown(contents)
    values = {(False, name): [value] for name, value in contents.context.items()}
    values |= {(True, name): steps for name, steps in contents.steps.items()}
    is_empty = bool(contents.steps) and not any(contents.steps.values())
    key = frozenset(
      (feature, self._variant(feature, steps, is_empty))
      for feature, steps in values.items()
    )
    group = self._groups.get(key)
    if group is None:
      group = self._groups[key] = _Group(record.place)
    group.num_records += 1
    group.num_rlds += is_rlds
    group.num_empty += is_empty
    group.files[record.filename] = None
    for feature, steps in values.items():
      group.forms[feature].add(steps, feature[0], record)
    # To bound memory, the feature with the most variants no longer separates groups.
    if len(self._groups) > _MAX_GROUPS:
      variants = self._count()
      most = max(variants, key=lambda feature: len(variants[feature]))
      if len(variants[most]) > 1:
        self._merge([most])

  def _variant(
    self, feature: _Feature, steps: list[protos.Feature], is_empty: bool
  ) -> _Variant:
    lengths = {len(protos.values_of(step)) for step in steps}
    if is_empty and not any(lengths):
      return _NOTHING
    kinds = {protos.kind_of(step) for step in steps}
    kind = kinds.pop() if len(kinds) == 1 else "mixed" if kinds else ""
    if not steps or feature in self._varied or rlds.is_nested(feature[1]):
      return kind, None
    image = None
    if kind == "bytes" and (values := protos.values_of(steps[0])):
      image = read_image_header(values[0])
    return kind, (lengths.pop() if len(lengths) == 1 else "varied", image)

  def _count(self) -> dict[_Feature, collections.Counter[_Variant]]:
    """Counts the records of each variant of each feature."""
    counts: dict[_Feature, collections.Counter[_Variant]] = collections.defaultdict(
      collections.Counter
    )
    for key, group in self._groups.items():
      for feature, variant in key:
        counts[feature][variant] += group.num_records
    return counts

  def _merge(self, varied: Iterable[_Feature]) -> None:
    """Merges groups that differ only by how many values some features have."""
    self._varied |= {*varied}
    groups, self._groups = self._groups, {}
    for key, group in groups.items():
      merged = frozenset(
        (feature, (variant[0], None) if feature in self._varied else variant)
        for feature, variant in key
      )
      if merged in self._groups:
        self._groups[merged].merge(group)
      else:
        self._groups[merged] = group

  def freeze(self) -> RecordSummary:
    self._merge(feature for feature, c in self._count().items() if _is_ragged(c))
    ordered = sorted(
      self._groups.items(),
      key=lambda item: (item[1].num_empty == item[1].num_records, -item[1].num_records),
    )
    kept: list[tuple[_Key, _Group]] = []
    for key, group in ordered:
      # A feature without values, as in an episode without a step, fits any other.
      like = next((other for earlier, other in kept if _is_like(key, earlier)), None)
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
  """Whether a feature's lists vary, by the number of records of each variant."""
  many = len(counts) > _MAX_VARIANTS and max(counts.values()) < _MOST * counts.total()
  return many or (len(counts) >= _LEAST and 2 * len(counts) > counts.total())


def _is_like(key: _Key, earlier: _Key) -> bool:
  """Whether a record's features match a group's, as far as they have values."""
  ours, theirs = dict(key), dict(earlier)
  return ours.keys() == theirs.keys() and all(
    variant in (_NOTHING, theirs[feature]) for feature, variant in ours.items()
  )


_COLUMNS = ("feature", "where", "kind", "values", "steps", "in records", "looks like")
_RIGHT_ALIGNED = ("values", "steps", "in records")
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
_DEFAULTS = {"int64": 0, "float": 0.0, "bytes": ""}


def _row(feature: FeatureSummary, num_records: int) -> tuple[str, ...]:
  return (
    feature.name,
    "sequence" if feature.is_sequence else "context",
    feature.kind or "-",
    _span(feature.min_length, feature.max_length),
    _span(feature.min_steps, feature.max_steps) if feature.is_sequence else "-",
    # Rounded down, so that 100 % means all records.
    f"{int(100 * feature.num_records / num_records)} %",
    feature.guess,
  )


def propose_spec(summary: RecordSummary) -> specs.TensorSpecStruct:
  """Proposes a spec structure that parses the files of a summary.

  Images get their size and format, lists their length as shape, and lists of varying
  length a varlen default. Features that some records lack are optional. Paths are the
  names. Images of varying size are left as encoded strings. Features that are empty or
  of mixed kinds have no spec, which is logged. Rare kinds of values are ignored:
  `describe_odd_values` names them, and records that have them do not fit the spec.

  Paths of RLDS episodes have no 'steps/'. If TFDS's features.json is beside the files,
  shapes and dtypes come from it.

  >>> import numpy as np
  >>> from t2r_seq import records, specs
  >>> x = specs.ExtendedTensorSpec((3,), "float32", "x", is_sequence=True)
  >>> records.write_records("demo.tfrecord", {"x": x}, [{"x": np.eye(3, dtype="f4")}])
  1
  >>> spec = records.propose_spec(records.inspect_records("demo.tfrecord"))
  >>> spec.x.shape, spec.x.is_sequence
  (TensorShape([3]), True)

  Args:
    summary: summary of the files, from `inspect_records`.
  Returns:
    Specs by path.
  Raises:
    SpecError: there is no feature to parse.
    RecordError: a features.json cannot be read.
  """
  declared = rlds.find_features(summary.files) if summary.is_rlds else {}
  proposed = specs.TensorSpecStruct()
  names: set[str] = set()
  left_out: dict[str, str] = {}
  # Sequences first: if a name is a context feature as well, the sequence is the data.
  for feature in sorted(summary.features, key=lambda f: not f.is_sequence):
    name = feature.name
    if feature.kind not in _DTYPES or feature.max_length == 0 or name in names:
      reason = "it is a sequence as well" if name in names else feature.guess
      left_out.setdefault(name, reason)
      continue
    if summary.is_rlds and (reason := _not_divisible(feature, summary)):
      left_out[name] = reason
      continue
    names.add(name)
    spec = _propose(feature, feature.num_records < summary.num_records)
    if summary.is_rlds:
      spec = rlds.complete_spec(spec, declared.get(name))
      name = name.removeprefix(f"{rlds.STEPS}/")
    proposed[_free_path(name, proposed)] = spec
  for name, reason in left_out.items():
    logging.warning("No spec for '%s': %s.", name, reason)
  if not len(proposed):
    reasons = errors.listing(f"'{name}': {reason}" for name, reason in left_out.items())
    raise errors.SpecError(
      f"propose_spec: {errors.listing(summary.files, 3)}: expected records with a "
      f"feature that has values, got {summary.num_records} records and {reasons}."
    )
  return specs.TensorSpecStruct(sorted(proposed.items()))


def _not_divisible(feature: FeatureSummary, summary: RecordSummary) -> str:
  """Returns why a feature cannot be divided into steps; '' if it can."""
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


def _free_path(name: str, taken: specs.TensorSpecStruct) -> str:
  """Makes a path of a name: no empty parts, and no clash of a leaf with a branch."""
  path = "/".join(part for part in name.split("/") if part) or "feature"

  def is_taken(path: str) -> bool:
    return any(
      f"{other}/".startswith(f"{path}/") or path.startswith(f"{other}/")
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
