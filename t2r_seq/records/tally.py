"""What is seen of one feature: its kinds, lengths, images, and what is odd in it.

Damage is rare. A list of values that less than one in twenty are like says nothing of
what the others are, so it is told apart: one image in a thousand that is none, or one
step with a value too few, would otherwise make a camera text and a pose ragged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from t2r_seq.imports import tf
from t2r_seq.records import contents, framing, protos
from t2r_seq.records.features import read_tensor_header
from t2r_seq.specs import image_headers

# How many bytes of a byte string decide whether it is text.
_TEXT_SAMPLE = 256
# Of tensors whose last value stands for all the others.
_MAX_REPEATED_BYTES = 1 << 26
# What is odd is rarer than one in so many, of records and of steps, and of few forms: a
# list of many lengths is ragged.
_RARE, _MAX_ODD = 20, 4

_Tensor = tuple["tf.DType", tuple[int, ...]]
# What the bytes of a list are: headers of images and tensors, None for others.
_Headers = frozenset[Any]
# The kind, the number of values, and what its bytes are.
_Form = tuple[str, int, _Headers]


@dataclasses.dataclass(frozen=True)
class OddValues:
  """Values of a feature that nearly all of its others are unlike.

  Attributes:
    num_values: how many records, or steps, have such.
    got: what they are, for people: '4 x float'.
    usual: what the others are.
    example: where the first is.
  """

  num_values: int
  got: str
  usual: str
  example: str


@dataclasses.dataclass(frozen=True)
class FeatureSummary:
  """One feature over all records.

  Attributes:
    name: key in the record.
    is_sequence: in the feature lists, one list of values per step.
    kind: 'int64', 'float', 'bytes', 'mixed', or '' where it never has a value.
    num_records: how many records have it.
    min_length: fewest values of a record, or of a step; here and below without `odd`.
    max_length: most values of a record, or of a step.
    min_steps: fewest steps of a record; 0 for context features.
    max_steps: most steps of a record; 0 for context features.
    guess: what it may be, for people: 'float32', 'jpeg 64x64x3', 'text', ...
    images: the different headers, if all values that are not empty are images.
    min_value: of int64 features.
    max_value: of int64 features.
    tensors: the different dtypes and shapes, if all values that are not empty are
      serialized tensors.
    num_values: of how many records, or steps, values were seen.
    odd: lists that nearly all others are unlike, by which alone nothing is proposed.
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
  images: tuple[image_headers.ImageHeader, ...] = ()
  min_value: int | None = None
  max_value: int | None = None
  tensors: tuple[_Tensor, ...] = ()
  num_values: int = 0
  odd: tuple[OddValues, ...] = ()


class Tally:
  """Collects what is seen of one feature."""

  def __init__(self) -> None:
    self.num_records = 0
    self._steps: set[int] = set()
    self._forms: dict[_Form, _Seen] = {}

  def add(
    self, steps: list[protos.Feature], is_sequence: bool, record: framing.Record
  ) -> None:
    """Adds the lists of one record: one per step, or the only one."""
    self.num_records += 1
    if is_sequence:
      self._steps.add(len(steps))
    forms: set[_Form] = set()
    for number, feature in enumerate(steps):
      values = contents.values_of(feature)
      kind = contents.kind_of(feature) if len(values) else ""
      headers = _headers(values) if kind == "bytes" else frozenset()
      form = kind, len(values), headers
      seen = self._forms.get(form)
      if seen is None:
        step = f", step {number}" if is_sequence else ""
        seen = self._forms[form] = _Seen(record.place + step)
      seen.add(kind, values)
      forms.add(form)
    for form in forms:
      self._forms[form].num_records += 1

  def merge(self, other: Tally) -> None:
    """Adds what another has seen of the same feature."""
    self.num_records += other.num_records
    self._steps |= other._steps
    for form, seen in other._forms.items():
      self._forms.setdefault(form, _Seen(seen.example)).merge(seen)

  def freeze(self, name: str, is_sequence: bool) -> FeatureSummary:
    """Returns what was seen."""
    total = sum(seen.num_values for seen in self._forms.values())
    odd = self._find_odd(total)
    usual = {form: seen for form, seen in self._forms.items() if form not in odd}
    found = _summarize(usual)
    return dataclasses.replace(
      found,
      name=name,
      is_sequence=is_sequence,
      num_records=self.num_records,
      min_steps=min(self._steps, default=0),
      max_steps=max(self._steps, default=0),
      num_values=total,
      odd=tuple(
        OddValues(
          seen.num_values,
          variant_text(_summarize({form: seen})),
          variant_text(found),
          seen.example,
        )
        for form, seen in odd.items()
      ),
    )

  def _find_odd(self, total: int) -> dict[_Form, _Seen]:
    """Returns what nearly all others are unlike."""
    if len(self._forms) < 2:
      return {}
    kind, length, headers = max(self._forms, key=lambda f: self._forms[f].num_values)
    # Else any bytes are like any others, as those without a byte are like all.
    is_one = len(headers) == 1 and None not in headers
    odd = {
      form: seen
      for form, seen in self._forms.items()
      if form[:2] != (kind, length) or (is_one and not form[2] <= headers)
    }
    num_values = sum(seen.num_values for seen in odd.values())
    num_records = sum(seen.num_records for seen in odd.values())
    is_rare = num_values * _RARE < total and num_records * _RARE < self.num_records
    # Where most have nothing, the few that have something are all there is.
    is_told = length > 0 and is_rare and len({form[:2] for form in odd}) <= _MAX_ODD
    return odd if is_told else {}


class _Seen:
  """Counts lists of one form."""

  def __init__(self, example: str) -> None:
    self.example = example
    self.num_values = self.num_records = 0
    # The lowest and the highest integer, and number of bytes.
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
  found = [*span, *values]
  return [min(found), max(found)] if found else []


def _headers(values: Iterable[bytes]) -> _Headers:
  return frozenset(_header(value) for value in values if value)


def _header(value: bytes) -> image_headers.ImageHeader | _Tensor | None:
  image = image_headers.read_image_header(value)
  if image is not None:
    return image
  tensor = read_tensor_header(value)
  return tensor if tensor is not None and _has_room(tensor, value) else None


def _summarize(forms: dict[_Form, _Seen]) -> FeatureSummary:
  """Returns what the lists of some forms have in common."""
  whole = _Seen("")
  for seen in forms.values():
    whole.merge(seen)
  kinds = {kind for kind, length, _ in forms if length}
  lengths = [length for _, length, _ in forms]
  headers: set[Any] = set().union(*(found for _, _, found in forms))
  is_bytes = kinds == {"bytes"}
  are_images = all(isinstance(h, image_headers.ImageHeader) for h in headers)
  are_tensors = all(type(header) is tuple for header in headers)
  images = tuple(sorted(headers)) if is_bytes and are_images else ()
  tensors = headers if is_bytes and are_tensors else set()
  found = FeatureSummary(
    name="",
    is_sequence=False,
    kind="mixed" if len(kinds) > 1 else "".join(kinds),
    num_records=whole.num_records,
    min_length=min(lengths, default=0),
    max_length=max(lengths, default=0),
    min_steps=0,
    max_steps=0,
    guess="",
    images=images,
    min_value=whole.integers[0] if whole.integers else None,
    max_value=whole.integers[-1] if whole.integers else None,
    tensors=tuple(sorted(tensors, key=lambda tensor: (tensor[0].name, tensor[1]))),
  )
  return dataclasses.replace(found, guess=_guess(found, whole))


def variant_text(feature: FeatureSummary) -> str:
  """Says how many values of which kind a feature has: '7 x float'."""
  what = _guess_images(feature.images) if feature.images else feature.kind
  return f"{span(feature.min_length, feature.max_length)} x {what or 'no kind'}"


def span(low: int, high: int) -> str:
  """Renders a range."""
  return f"{low}" if low == high else f"{low}..{high}"


def _guess(feature: FeatureSummary, seen: _Seen) -> str:
  if feature.kind == "int64":
    return _guess_integer(*seen.integers)
  if feature.kind == "float":
    return "float32"
  if feature.kind == "bytes":
    return (
      _guess_images(feature.images) if feature.images else _guess_bytes(feature, seen)
    )
  return {"mixed": "lists of several kinds", "": "no values"}[feature.kind]


def _guess_bytes(feature: FeatureSummary, seen: _Seen) -> str:
  low, high = seen.sizes
  if feature.tensors:
    shapes = sorted(f"{dtype.name} {shape}" for dtype, shape in feature.tensors)
    return "tensor " + ", ".join(shapes[:2]) + (", ..." if len(shapes) > 2 else "")
  if seen.is_text:
    return f"text, {span(low, high)} bytes"
  return f"data, {span(low, high)} bytes" + (", maybe raw" if low == high else "")


def _is_text(value: bytes) -> bool:
  sample = value[:_TEXT_SAMPLE]
  # The sample may end within a character of up to 4 bytes; a whole value may not.
  is_cut = len(value) > _TEXT_SAMPLE
  text = sample.decode("utf-8", errors="ignore")
  is_whole = len(text.encode()) > len(sample) - (4 if is_cut else 1)
  return is_whole and all(c.isprintable() or c.isspace() for c in text)


def _has_room(tensor: _Tensor, value: bytes) -> bool:
  """Whether a tensor may be proposed: a few bytes can stand for one of any size."""
  dtype, shape = tensor
  return math.prod(shape) * dtype.size <= max(len(value), _MAX_REPEATED_BYTES)


def _guess_integer(low: int, high: int) -> str:
  span = f"{low}" if low == high else f"{low}..{high}"
  if (low, high) == (0, 1):
    return f"int64, {span}, maybe bool"
  return f"int64, {span}" + (", maybe uint8" if low >= 0 and high == 255 else "")


def _guess_images(images: tuple[image_headers.ImageHeader, ...]) -> str:
  if len(images) == 1:
    image = images[0]
    bits = " 16 bit" if image.bits == 16 else ""
    return f"{image.format} {image.height}x{image.width}x{image.channels}{bits}"
  formats = "/".join(sorted({image.format for image in images}))
  heights = [image.height for image in images]
  widths = [image.width for image in images]
  low, high = f"{min(heights)}x{min(widths)}", f"{max(heights)}x{max(widths)}"
  return f"{formats} {low}..{high}"
