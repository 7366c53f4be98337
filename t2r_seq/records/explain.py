"""What is wrong with a record, told in Python."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from t2r_seq import errors
from t2r_seq.imports import tf
from t2r_seq.records import features, framing, parse, protos
from t2r_seq.records.contents import (
  EXAMPLE,
  SEQUENCE_EXAMPLE,
  RecordContents,
  cut_hint,
  kind_of,
  no_proto,
  set_flags,
  values_of,
)
from t2r_seq.records.features import IS_FIRST, RecordFeature
from t2r_seq.records.images import image_decoding
from t2r_seq.specs import image_headers

FRAME, CONTENT, LENGTHS, NAN, INDEX = "frame", "content", "lengths", "nan", "index"
EPISODES, TIMES = "episodes", "times"


@dataclasses.dataclass(frozen=True)
class RecordProblem:
  """One thing that is wrong with a record, or with a file.

  Attributes:
    filename: the file.
    record: number of the record in the file, from 0; None where it is the file.
    offset: of the record's frame, in bytes; of a compressed file, in the decompressed
      data. None where it is the file.
    kind: 'frame' (its bytes), 'content' (what cannot be parsed), 'lengths' (sequences
      that disagree), 'episodes' (a record that is not one), 'times' (stamps that run
      backwards), 'nan' or 'index' (the sidecar index).
    mismatch: the path and feature, what was expected, what is there, what to do.
    feature: the feature's first path; '' where it is none.
  """

  filename: str
  record: int | None
  offset: int | None
  kind: str
  mismatch: errors.Mismatch
  feature: str = ""

  @property
  def place(self) -> str:
    """Names file, record and byte."""
    if self.record is None or self.offset is None:
      return self.filename
    return framing.place(self.filename, self.record, self.offset)

  def __str__(self) -> str:
    return f"{self.place}: {self.mismatch}"


def to_errors(problems: Iterable[RecordProblem]) -> Iterator[errors.RecordError]:
  """Yields one error a record, which names all of its problems.

  Args:
    problems: in the order of files and records.
  Yields:
    The errors, not raised.
  """
  for place, group in itertools.groupby(problems, lambda problem: problem.place):
    found = [problem.mismatch for problem in group]
    yield errors.mismatch_error(place, found, errors.RecordError)


def path_of(mismatch: errors.Mismatch, features: Iterable[RecordFeature]) -> str:
  """Returns the path of the feature that a mismatch is about; '' for none."""
  path = mismatch.path.rpartition(" (feature '")[0] or mismatch.path
  return path if any(path == feature.path for feature in features) else ""


def explain_record(
  data: bytes, features: list[RecordFeature], kind: str = CONTENT
) -> list[errors.Mismatch]:
  """Compares a record with what is to be parsed from it.

  Args:
    data: the serialized record.
    features: those of the record's dataset; for 'nan' and 'times' those that have some.
    kind: what to look for, as of a `RecordProblem`: 'content', 'lengths', 'episodes',
      'times' or 'nan'.
  Returns:
    All mismatches found, by path and feature name; none if the record looks good.
  """
  contents = _read(data, features)
  if contents is None:
    return [errors.Mismatch("proto", *no_proto(data))]
  look = {
    CONTENT: _explain_content,
    LENGTHS: _explain_lengths,
    EPISODES: _explain_episodes,
    TIMES: _explain_times,
    NAN: _explain_nan,
  }
  found = [
    errors.Mismatch(f"{feature.path} (feature '{feature.name}')", *finding)
    for feature, finding in look[kind](contents, features)
  ]
  if found and not data:
    return [errors.Mismatch("proto", *no_proto(data))]
  if found or kind != CONTENT or not (features and may_be_absent(features)):
    return found
  names = {feature.name for feature in features}
  if names & {*contents.context, *contents.steps}:
    return []
  got = f"a {contents.kind} with {errors.listing([*contents.context, *contents.steps])}"
  return [
    errors.Mismatch("record", f"one of the features {errors.listing(names)}", got)
  ]


def may_be_absent(features: Iterable[RecordFeature]) -> bool:
  """Whether a record that has none of some features can be parsed, to fillings only."""
  return all(feature.is_optional or feature.is_varlen for feature in features)


Finding = tuple[str, str, str]
_Findings = Iterator[tuple[RecordFeature, Finding]]


def _explain_content(
  contents: RecordContents, features: list[RecordFeature]
) -> _Findings:
  for feature in features:
    for finding in _explain_feature(feature, contents, features):
      yield feature, finding


def _explain_lengths(
  contents: RecordContents, features: list[RecordFeature]
) -> _Findings:
  """Finds sequences whose number of steps differs from that of the first."""
  steps = contents.num_steps
  given = [
    f
    for f in features
    if f.spec.is_sequence and (steps.get(f.name) or not (f.is_optional or f.is_varlen))
  ]
  for feature in given[1:]:
    count, want = steps.get(feature.name, 0), steps.get(given[0].name, 0)
    if count != want:
      yield feature, (f"{want} steps, as {given[0].path} has", f"{count} steps", "")


def _explain_episodes(
  contents: RecordContents, features: list[RecordFeature]
) -> _Findings:
  """Finds flags that say that an episode begins, or ends, within the record."""
  for feature in features:
    flags = set_flags(feature, contents)
    if flags is None or not len(flags):
      continue
    at = 0 if feature.edge == IS_FIRST else len(flags) - 1
    inside = np.flatnonzero(flags)
    inside = inside[inside != at]
    if len(inside):
      want = f"it set in step {at} of {len(flags)} alone, as a record is an episode"
      yield feature, (want, f"it set in step {inside[0]}", cut_hint(feature.name))


def _explain_times(
  contents: RecordContents, features: list[RecordFeature]
) -> _Findings:
  """Finds the first time stamp that is before the one of the step before it."""
  for feature in features:
    times = [
      _numbers(feature, step)[0] for step in contents.steps.get(feature.name, [])
    ]
    for step, (before, now) in enumerate(itertools.pairwise(times), start=1):
      if now < before:
        want = "time stamps that do not run backwards"
        hint = "Sort the steps, or cut the record where another episode begins."
        yield feature, (want, f"{now} at step {step}, after {before}", hint)
        break


def _explain_nan(contents: RecordContents, features: list[RecordFeature]) -> _Findings:
  for feature in features:
    yield feature, ("numbers", f"NaN{_place_of_nan(feature, contents)}", _IF_NAN)


def _read(data: bytes, features: list[RecordFeature]) -> RecordContents | None:
  """Returns the contents of a record; None if Python cannot read it.

  TensorFlow reads some of these: in a proto the names of features have to be UTF-8, to
  its parser they are bytes.
  """
  try:
    return parse.as_lists(RecordContents(data), features)
  except errors.RecordError:
    return None


def _place_of_nan(feature: RecordFeature, contents: RecordContents) -> str:
  is_sequence = feature.spec.is_sequence
  if is_sequence:
    steps = contents.steps.get(feature.name, [])
  else:
    steps = [contents.context[feature.name]]
  for step, value in enumerate(steps):
    found = np.flatnonzero(np.isnan(_numbers(feature, value)))
    if len(found):
      return (
        f" at step {step}, value " if is_sequence else " at value "
      ) + f"{found[0]}"
  return ""


def _numbers(feature: RecordFeature, value: protos.Feature) -> np.ndarray:
  """Returns the numbers of a feature, of one that is raw, too."""
  values = values_of(value)
  if features.is_raw(feature.spec):
    unpacked = [features.unpack_value(v, feature.spec).ravel() for v in values]
    return np.concatenate(unpacked) if unpacked else np.zeros(0)
  return np.asarray(values)


_IF_NAN = "If it is meant: --allow_nan, or allow_nan=True."
_A_LIST = {"int64": "an int64 list", "float": "a float list", "bytes": "a bytes list"}


def _count(values: Sized) -> str:
  return "1 value" if len(values) == 1 else f"{len(values)} values"


def _explain_feature(
  feature: RecordFeature, contents: RecordContents, features: list[RecordFeature]
) -> Iterator[Finding]:
  is_sequence = feature.spec.is_sequence
  given: Mapping[str, Any] = contents.steps if is_sequence else contents.context
  if feature.name not in given or (
    not is_sequence and not kind_of(given[feature.name])
  ):
    if not feature.is_optional and not feature.is_varlen:
      yield _explain_missing(feature, contents, features)
    return
  steps = given[feature.name] if is_sequence else [given[feature.name]]
  for step, value in enumerate(steps):
    place = f" at step {step}" if is_sequence else ""
    finding = _explain_values(feature, value)
    if finding:
      expected, got, hint = finding
      yield expected, f"{got}{place}", hint
      return


def _explain_missing(
  feature: RecordFeature, contents: RecordContents, features: list[RecordFeature]
) -> Finding:
  name, kind = feature.name, contents.kind
  if feature.is_concatenated:
    where, want, kind = "a feature", EXAMPLE, "record"
    elsewhere, candidates = contents.context, contents.steps
    hint = "It has a list for each step: drop is_concatenated."
  elif feature.spec.is_sequence:
    where = "a sequence feature"
    hint = "It is a context feature: drop is_sequence, of windows time_offsets."
    elsewhere, candidates = contents.context, contents.steps
    want = SEQUENCE_EXAMPLE
  else:
    where = "a feature"
    hint = (
      "It is a sequence feature: set is_sequence=True, or for windows time_offsets, "
      "such as 0 for the step of the anchor."
    )
    elsewhere, candidates = contents.steps, contents.context
    want = SEQUENCE_EXAMPLE if any(f.spec.is_sequence for f in features) else EXAMPLE
  expected = f"{where} '{name}' in a {want}"
  if name in candidates:
    return expected, "one that holds no list of values", ""
  if name in elsewhere:
    return expected, f"a {kind} with '{name}' elsewhere", hint
  names = [*candidates, *elsewhere]
  near = errors.nearest(name, names).strip()
  if not near:
    near = f"The record has {errors.listing(names)}."
  return expected, f"a {kind} without it", near


def _explain_values(feature: RecordFeature, value: protos.Feature) -> Finding | None:
  kind, want = kind_of(value), feature.kind
  values = values_of(value)
  if kind and kind != want:
    expected = f"{_A_LIST[want]} for dtype {feature.spec.dtype.name}"
    return expected, f"{_A_LIST[kind]} of {_count(values)}", _kind_hint(feature)
  count = math.prod(feature.record_shape)
  if not feature.is_varlen and len(values) != count:
    if feature.is_image:
      expected = f"{count} image(s) of shape {tuple(feature.spec.shape[-3:])}"
    elif count == 1 and features.is_raw(feature.spec):
      expected = "one byte string"
    else:
      expected = f"{_count(range(count))} for shape {tuple(feature.spec.shape)}"
    return expected, _count(values), ""
  if feature.is_image:
    return _explain_images(feature, values)
  if features.is_raw(feature.spec):
    return _explain_raw(feature, values)
  return _explain_range(feature, values)


def _kind_hint(feature: RecordFeature) -> str:
  if features.is_raw(feature.spec) and not features.is_raw_format(feature.spec):
    return (
      f"{feature.spec.dtype.name} is stored as bytes, to keep it exact. Declare "
      "float32 and cast in a preprocessor."
    )
  return ""


def _explain_raw(feature: RecordFeature, values: Any) -> Finding | None:
  described = errors.describe(feature.spec)
  expected = f"{features.bytes_per_value(feature.spec)} bytes for {described}"
  if features.packed_format(feature.spec) == "tensor":
    expected = f"a serialized tensor, {described}"
  for value in values:
    try:
      features.unpack_value(value, feature.spec)
    except ValueError as error:
      return expected, str(error), ""
  return None


def _explain_range(feature: RecordFeature, values: Any) -> Finding | None:
  bounds = features.value_range(feature.spec.dtype)
  if bounds is None:
    return None
  low, high = bounds
  wrong = [v for v in values if math.isfinite(v) and not low <= v <= high]
  if not wrong:
    return None
  expected = f"values from {low} to {high} for {feature.spec.dtype.name}"
  return expected, f"{wrong[0]}", ""


def _explain_images(feature: RecordFeature, values: Any) -> Finding | None:
  spec, decoding = feature.spec, image_decoding(feature.decode_images)
  size = tuple(spec.shape[-3:])
  crop = decoding.crop(feature.path, spec)
  for value in values:
    if not value:
      continue
    header = image_headers.read_image_header(value)
    if header and header.bits != 8 * spec.dtype.size:
      expected = f"an image of {8 * spec.dtype.size} bits per channel"
      got = f"a {header.format} image of {header.bits} bits per channel"
      hint = f"Declare {'uint8' if header.bits == 8 else 'uint16'}."
      return f"{expected} for {spec.dtype.name}", got, hint
    if header and crop and _is_outside(crop, header):
      expected = f"an image that its crop {crop} (y, x, height, width) lies in"
      return expected, f"one of {header.height}x{header.width}", ""
    try:
      image = decoding.decode(value, spec, feature.path)
    except tf.errors.OpError as error:
      return f"a {spec.data_format} image of size {size}", _describe(value, error), ""
    if tuple(image.shape) != size:
      got = f"an image of size {tuple(image.shape)}"
      return f"an image of size {size}", got, ""
  return None


def _is_outside(
  crop: tuple[int, int, int, int], header: image_headers.ImageHeader
) -> bool:
  y, x, height, width = crop
  return y + height > header.height or x + width > header.width


def _describe(value: bytes, error: tf.errors.OpError) -> str:
  header = image_headers.read_image_header(value)
  what = f"a corrupt {header.format} image" if header else "bytes that are no image"
  reason = error.message.split("\n")[0].split("}} ")[-1][:160]
  return f"{what} ({len(value)} bytes, {value[:8]!r}...; {reason})"
