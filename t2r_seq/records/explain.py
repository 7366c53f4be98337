"""Finds records that fail to parse or look damaged in batches, and explains each."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent import futures
from typing import Any

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.errors import CONTENT, EPISODES, LENGTHS, NAN, TIMES, Finding
from t2r_seq.imports import tf
from t2r_seq.records import features as features_lib
from t2r_seq.records import parse, protos
from t2r_seq.records.features import IS_FIRST, RecordFeature, cut_hint, set_flags
from t2r_seq.records.images import image_decoding
from t2r_seq.records.protos import (
  EXAMPLE,
  SEQUENCE_EXAMPLE,
  RecordContents,
  kind_of,
  no_proto,
  values_of,
)
from t2r_seq.specs import image_headers

# Kinds of problems that parsing a batch can show; such records are then explained.
SUSPICIONS = (LENGTHS, EPISODES, TIMES, NAN)
_MAX_REASON = 160

_Findings = Iterator[tuple[RecordFeature, Finding]]


def explain_record(
  data: bytes, features: list[RecordFeature], kind: str = CONTENT
) -> list[errors.Mismatch]:
  """Compares a record with the features to parse.

  Args:
    data: the serialized record.
    features: those of the record's dataset; for 'nan' only floats and complex numbers,
      for 'times' only time stamps.
    kind: kind of the problems: 'content', 'lengths', 'episodes', 'times' or 'nan'.
  Returns:
    All mismatches, each with the label of its feature as path; may be empty.
  """
  try:
    contents = parse.as_lists(RecordContents(data), features)
  except errors.RecordError:
    # TensorFlow can read some of these: its parser accepts any bytes as the name of a
    # feature, while protobuf requires UTF-8.
    return [errors.Mismatch("proto", *no_proto(data))]
  look = {
    CONTENT: _explain_content,
    LENGTHS: _explain_lengths,
    EPISODES: _explain_episodes,
    TIMES: _explain_times,
    NAN: _explain_nan,
  }
  mismatches = [
    errors.Mismatch(feature.label, *finding)
    for feature, finding in look[kind](contents, features)
  ]
  if mismatches and not data:
    return [errors.Mismatch("proto", *no_proto(data))]
  if mismatches or kind != CONTENT or not (features and may_be_absent(features)):
    return mismatches
  names = {feature.name for feature in features}
  present = [*contents.context, *contents.steps]
  if names & {*present}:
    return []
  got = f"a {contents.kind} with {errors.listing(present)}"
  return [
    errors.Mismatch("record", f"one of the features {errors.listing(names)}", got)
  ]


def may_be_absent(features: Iterable[RecordFeature]) -> bool:
  """Whether a record with none of the features can be parsed; it gives defaults."""
  return all(feature.is_optional or feature.is_varlen for feature in features)


def _explain_content(
  contents: RecordContents, features: list[RecordFeature]
) -> _Findings:
  for feature in features:
    is_sequence = feature.spec.is_sequence
    given: Mapping[str, Any] = contents.steps if is_sequence else contents.context
    value = given.get(feature.name)
    if value is None or not (is_sequence or kind_of(value)):
      if not feature.is_optional and not feature.is_varlen:
        yield feature, _explain_missing(feature, contents, features)
      continue
    for step, each in enumerate(value if is_sequence else [value]):
      finding = _explain_values(feature, each)
      if finding:
        expected, got, hint = finding
        place = f" at step {step}" if is_sequence else ""
        yield feature, (expected, f"{got}{place}", hint)
        break


def _explain_lengths(
  contents: RecordContents, features: list[RecordFeature]
) -> _Findings:
  """Finds sequences with another number of steps than the first one."""
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
  """Finds flags by which an episode begins or ends within the record."""
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
  """Finds the first time stamp that is smaller than the previous one."""
  for feature in features:
    times = _rows(contents, feature)[:, 0]
    for _, finding in errors.find_misplaced(times, np.array([len(times)])):
      yield feature, finding


def _explain_nan(contents: RecordContents, features: list[RecordFeature]) -> _Findings:
  for feature in features:
    rows = _rows(contents, feature)
    is_sequence = feature.spec.is_sequence
    # RLDS leaves the action and the reward of the last step undefined.
    rows = rows[:-1] if feature.is_concatenated else rows
    values = rows if is_sequence else rows.ravel()
    finding = errors.describe_nonfinite(values, is_sequence)
    if finding:
      yield feature, finding


def _rows(contents: RecordContents, feature: RecordFeature) -> np.ndarray:
  """Returns the numbers of a feature, [T, n]; shorter steps are padded with zeros."""
  steps: Any = contents.steps.get(feature.name, [])
  if not feature.spec.is_sequence and feature.name in contents.context:
    steps = [contents.context[feature.name]]
  found = [_numbers(feature, step) for step in steps]
  dtype = found[0].dtype if found else np.float64
  rows = np.zeros((len(found), max(map(len, found), default=1)), dtype)
  for row, numbers in zip(rows, found, strict=True):
    row[: len(numbers)] = numbers
  return rows


def _numbers(feature: RecordFeature, value: protos.Feature) -> np.ndarray:
  """Returns the numbers of a feature, unpacked from bytes if it is raw."""
  values = values_of(value)
  if features_lib.is_raw(feature.spec):
    unpacked = [features_lib.unpack_value(v, feature.spec).ravel() for v in values]
    return np.concatenate(unpacked) if unpacked else np.zeros(0)
  return np.asarray(values)


_A_LIST = {"int64": "an int64 list", "float": "a float list", "bytes": "a bytes list"}


def _count(values: Sized) -> str:
  return "1 value" if len(values) == 1 else f"{len(values)} values"


def _explain_missing(
  feature: RecordFeature, contents: RecordContents, features: list[RecordFeature]
) -> Finding:
  name, kind = feature.name, contents.kind
  candidates, elsewhere = contents.steps, contents.context
  if feature.is_concatenated:
    where, want, kind = "a feature", EXAMPLE, "record"
    hint = "It has a list for each step: drop is_concatenated."
  elif feature.spec.is_sequence:
    where, want = "a sequence feature", SEQUENCE_EXAMPLE
    hint = "It is a context feature: drop is_sequence, of windows time_offsets."
  else:
    where = "a feature"
    hint = (
      "It is a sequence feature: set is_sequence=True, or for windows time_offsets, "
      "such as 0 for the step of the anchor."
    )
    candidates, elsewhere = contents.context, contents.steps
    want = SEQUENCE_EXAMPLE if any(f.spec.is_sequence for f in features) else EXAMPLE
  expected = f"{where} '{name}' in a {want}"
  if name in candidates:
    return expected, "one that holds no list of values", ""
  if name in elsewhere:
    return expected, f"a {kind} with '{name}' elsewhere", hint
  names = [*candidates, *elsewhere]
  near = errors.nearest(name, names) or f"The record has {errors.listing(names)}."
  return expected, f"a {kind} without it", near


def _explain_values(feature: RecordFeature, value: protos.Feature) -> Finding | None:
  spec, kind, want = feature.spec, kind_of(value), feature.kind
  values = values_of(value)
  is_raw = features_lib.is_raw(spec)
  if kind and kind != want:
    expected = f"{_A_LIST[want]} for dtype {spec.dtype.name}"
    hint = (
      f"{spec.dtype.name} is stored as bytes, to keep it exact. Declare float32 and "
      "cast in a preprocessor."
    )
    is_exact = is_raw and not features_lib.is_packed(spec)
    return expected, f"{_A_LIST[kind]} of {_count(values)}", hint if is_exact else ""
  count = math.prod(feature.record_shape)
  if not feature.is_varlen and len(values) != count:
    expected = f"{_count(range(count))} for shape {tuple(spec.shape)}"
    if feature.is_image:
      expected = f"{count} image(s) of shape {tuple(spec.shape[-3:])}"
    elif count == 1 and is_raw:
      expected = "one byte string"
    return expected, _count(values), ""
  if feature.is_image:
    return _explain_images(feature, values)
  if is_raw:
    return _explain_raw(feature, values)
  return _explain_range(feature, values)


def _explain_raw(feature: RecordFeature, values: Any) -> Finding | None:
  spec = feature.spec
  expected = f"{features_lib.bytes_per_value(spec)} bytes for {errors.describe(spec)}"
  if features_lib.packed_format(spec) == "tensor":
    expected = f"a serialized tensor, {errors.describe(spec)}"
  for value in values:
    try:
      features_lib.unpack_value(value, spec)
    except ValueError as error:
      return expected, str(error), ""
  return None


def _explain_range(feature: RecordFeature, values: Any) -> Finding | None:
  bounds = features_lib.value_range(feature.spec.dtype)
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
  for value in filter(None, values):
    header = image_headers.read_image_header(value)
    if header and header.bits != 8 * spec.dtype.size:
      expected = f"an image of {8 * spec.dtype.size} bits per channel"
      got = f"a {header.format} image of {header.bits} bits per channel"
      hint = f"Declare {'uint8' if header.bits == 8 else 'uint16'}."
      return f"{expected} for {spec.dtype.name}", got, hint
    if header and crop:
      y, x, height, width = crop
      if y + height > header.height or x + width > header.width:
        expected = f"an image that its crop {crop} (y, x, height, width) lies in"
        return expected, f"one of {header.height}x{header.width}", ""
    try:
      image = decoding.decode(value, spec, feature.path)
    except tf.errors.OpError as error:
      what = f"a corrupt {header.format} image" if header else "bytes, not an image"
      reason = error.message.split("\n")[0].split("}} ")[-1][:160]
      got = f"{what} ({len(value)} bytes, {value[:8]!r}...; {reason})"
      return f"a {spec.data_format} image of size {size}", got, ""
    if tuple(image.shape) != size:
      got = f"an image of size {tuple(image.shape)}"
      return f"an image of size {size}", got, ""
  return None


def data_errors() -> tuple[type[Exception], ...]:
  """Returns the errors that TensorFlow raises at a record that it cannot parse."""
  # A message that quotes a record may not be UTF-8.
  return (tf.errors.OpError, UnicodeDecodeError)


@dataclasses.dataclass(frozen=True)
class BatchCheck:
  """Findings in a batch of n records.

  Attributes:
    reasons: why each record cannot be parsed; '' if it can.
    found: bool [n] by name. A name of `SUSPICIONS`: records that may have such a
      problem; 'nan/<number>': with NaN or infinity in a feature; 'edge/<number>': with
      a flag set in the first or last step, as expected; 'empty': whose sequences have
      no step. False for records that cannot be parsed.
  """

  reasons: list[str]
  found: Mapping[str, np.ndarray]


class BatchChecker:
  """Parses batches of records of one dataset as the pipeline does.

  One call parses a batch; if it fails, or for sequences, one call parses each record.
  """

  def __init__(
    self,
    features: Sequence[RecordFeature],
    checks_values: bool = True,
    times: Collection[str] = (),
  ) -> None:
    """Creates the checker.

    Args:
      features: those of the dataset, at least one.
      checks_values: whether to find NaN, infinities and time stamps that run backwards.
      times: names of features that are time stamps, beside those with such a name.
    """
    # Each feature once, under a path that cannot clash with another.
    flat = specs.TensorSpecStruct(
      (str(i), specs.ExtendedTensorSpec.from_spec(f.spec, is_optional=f.is_optional))
      for i, f in enumerate(features)
    )
    self._features = features
    self._checks_values = checks_values
    self._times = {n for n, f in enumerate(features) if f.is_time or f.name in times}
    self._has_sequences = any(feature.spec.is_sequence for feature in features)
    self._parse_fn = parse.create_parse_tf_example_fn(
      specs.add_sequence_length_specs(flat), decode_images=features[0].decode_images
    )
    self._traced: dict[bool, Any] = {}

  def check(self, data: Sequence[bytes]) -> BatchCheck:
    """Parses serialized records, which may be any bytes."""
    # Episodes differ in length: in a batch they would be padded to the longest.
    if not self._has_sequences:
      try:
        found = self._trace(True)(tf.constant(data, tf.string))
        return _to_check([""] * len(data), found)
      except data_errors():
        pass
    self._trace(False)  # Here, so that not every thread traces it.
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
      results = [*pool.map(self._parse_one, data)]
    parsed = [result for result in results if not isinstance(result, str)]
    stacked = {
      name: tf.stack([each[name] for each in parsed]) for name in (parsed or [{}])[0]
    }
    return _to_check([r if isinstance(r, str) else "" for r in results], stacked)

  def _parse_one(self, data: bytes) -> dict[str, tf.Tensor] | str:
    """Returns the findings of a record, or why it cannot be parsed."""
    try:
      return self._trace(False)(tf.constant(data))
    except tf.errors.OpError as error:
      return str(error).split("\n")[0].split("}} ")[-1] or "an error"
    except UnicodeDecodeError as error:
      text = error.object.decode("utf-8", "backslashreplace")
      return text.split("}} ")[-1].split("\n")[0][:_MAX_REASON] or "an error"

  def _trace(self, is_batched: bool) -> Any:
    """Returns a concrete function, traced at the first call.

    A call of it takes no lock. A call of a `tf.function` takes locks, and runs Python
    while it has them. The garbage collector may then end an iterator, which waits for
    its threads; and one of those would wait for the lock forever.
    """
    if is_batched not in self._traced:
      function = tf.function(
        lambda text: self._measure(self._parse_fn(text), is_batched),
        input_signature=[tf.TensorSpec([None] if is_batched else [], tf.string)],
        autograph=False,
      )
      self._traced[is_batched] = function.get_concrete_function()
    return self._traced[is_batched]

  def _measure(self, parsed: Any, is_batched: bool) -> dict[str, tf.Tensor]:
    """Returns the findings of a record, [], or of each record of a batch, [n]."""
    found: dict[str, tf.Tensor] = {}
    flags: dict[str, list[tf.Tensor]] = collections.defaultdict(list)
    for number, feature in enumerate(self._features):
      tensor = parsed[str(number)]
      dtype = tensor.dtype
      if feature.edge and not is_batched:
        edges = tf.reshape(tensor, [-1])
        at = edges[:1] if feature.edge == IS_FIRST else edges[-1:]
        found[f"edge/{number}"] = tf.reduce_any(tf.cast(at, tf.bool))
        flags[EPISODES].append(parse.flags_inside(feature.edge, tensor))
      if self._checks_values and number in self._times and not is_batched:
        times = tf.reshape(tensor, [-1])
        flags[TIMES].append(tf.reduce_any(times[1:] < times[:-1]))
      if self._checks_values and (dtype.is_floating or dtype.is_complex):
        axes = list(range(1 if is_batched else 0, tensor.shape.rank))
        # RLDS leaves the action and the reward of the last step undefined.
        known = tensor[:-1] if feature.is_concatenated else tensor
        # The absolute value is finite if the real and the imaginary part are.
        known = tf.abs(known) if dtype.is_complex else known
        found[f"nan/{number}"] = tf.reduce_any(~tf.math.is_finite(known), axes)
        flags[NAN].append(found[f"nan/{number}"])
      else:
        flags["touched"].append(_touch(tensor, is_batched))
    lengths = [tensor for path, tensor in parsed.items() if path.endswith("_length")]
    if lengths:
      # The parser gives missing optional sequences the length of the others.
      low, high = tf.reduce_min(lengths, 0), tf.reduce_max(lengths, 0)
      flags[LENGTHS], found["empty"] = [low != high], tf.equal(high, 0)
    return found | {name: tf.reduce_any(each, 0) for name, each in flags.items()}


def _to_check(reasons: list[str], measures: Mapping[str, tf.Tensor]) -> BatchCheck:
  is_parsed = np.asarray([not reason for reason in reasons], bool)
  by_name: dict[str, np.ndarray] = collections.defaultdict(
    lambda: np.zeros(len(reasons), bool)
  )
  for name, tensor in measures.items():
    by_name[name][is_parsed] = tensor.numpy()
  return BatchCheck(reasons, by_name)


def _touch(tensor: tf.Tensor, is_batched: bool) -> tf.Tensor:
  """Adds a data dependency so that TensorFlow does not prune the parsing."""
  lead = [tf.shape(tensor)[0]] if is_batched else []
  first = tf.reshape(tensor, [*lead, -1])[..., :1]
  if tensor.dtype == tf.string:
    first = tf.strings.length(first)
  return tf.reduce_any(first != first, -1)
