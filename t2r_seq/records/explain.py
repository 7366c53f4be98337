"""What is wrong with a record: found in graph ops for many, told in Python for one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import features, framing, parse
from t2r_seq.records.contents import (
  EXAMPLE,
  SEQUENCE_EXAMPLE,
  RecordContents,
  kind_of,
  no_proto,
  values_of,
)
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.images import image_decoding
from t2r_seq.specs import validation

FRAME, CONTENT, LENGTHS, NAN, INDEX = "frame", "content", "lengths", "nan", "index"


@dataclasses.dataclass(frozen=True)
class RecordProblem:
  """One thing that is wrong with a record, or with a file.

  Attributes:
    filename: the file.
    record: number of the record in the file, from 0; None where it is the file.
    offset: of the record's frame, in bytes; of a compressed file, in the decompressed
      data. None where it is the file.
    kind: 'frame' (its bytes), 'content' (what cannot be parsed), 'lengths' (sequences
      that disagree), 'nan' or 'index' (the sidecar index).
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
    features: those of the record's dataset; for 'nan' those that have one.
    kind: what to look for, as of a `RecordProblem`: 'content', 'lengths' or 'nan'.
  Returns:
    All mismatches found, by path and feature name; none if the record looks good.
  """
  contents = _read(data, features)
  if contents is None:
    return [errors.Mismatch("proto", *no_proto(data))]
  look = {CONTENT: _explain_content, LENGTHS: _explain_lengths, NAN: _explain_nan}
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


def _explain_nan(contents: RecordContents, features: list[RecordFeature]) -> _Findings:
  for feature in features:
    yield feature, ("numbers", f"NaN{_place_of_nan(feature, contents)}", "")


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
    values = values_of(value)
    if features.is_raw(feature.spec):
      dtype = np.dtype(feature.spec.dtype.as_numpy_dtype).newbyteorder("<")
      values = np.frombuffer(b"".join(values), dtype)
    found = np.flatnonzero(np.isnan(np.asarray(values)))
    if len(found):
      return (
        f" at step {step}, value " if is_sequence else " at value "
      ) + f"{found[0]}"
  return ""


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
  if name in elsewhere:
    return expected, f"a {kind} with '{name}' elsewhere", hint
  names = [*candidates, *elsewhere]
  near = errors.nearest(name, names).strip()
  if not near:
    near = f"The record has {errors.listing(names)}."
  return expected, f"a {kind} without it", near


def _explain_values(feature: RecordFeature, value: tf.train.Feature) -> Finding | None:
  kind, want = kind_of(value), features.KINDS[feature.record_dtype]
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
  want = features.bytes_per_value(feature.spec)
  wrong = [len(value) for value in values if len(value) != want]
  if not wrong:
    return None
  described = errors.describe(feature.spec)
  return f"{want} bytes for {described}", f"{wrong[0]} bytes", ""


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
    header = validation.read_image_header(value)
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
  crop: tuple[int, int, int, int], header: validation.ImageHeader
) -> bool:
  y, x, height, width = crop
  return y + height > header.height or x + width > header.width


def _describe(value: bytes, error: tf.errors.OpError) -> str:
  header = validation.read_image_header(value)
  what = f"a corrupt {header.format} image" if header else "bytes that are no image"
  reason = error.message.split("\n")[0].split("}} ")[-1][:160]
  return f"{what} ({len(value)} bytes, {value[:8]!r}...; {reason})"


# Of features with more values, the smallest and largest of all stand for each.
_MAX_VALUES = 256
# So many records are parsed one by one, without a dataset of them.
_FEW = 16
_MAX_REASON = 160
_KEPT_CHECKERS = 8
# A message that quotes a record may be no UTF-8, and then TensorFlow raises that.
DATA_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
_MANY = tf.TensorSpec([None], tf.string)
_as_it_is = tf.autograph.experimental.do_not_convert


def concrete_function(
  function: Callable[..., Any], *signature: tf.TensorSpec
) -> Callable[..., Any]:
  """Traces a function, to be called without a lock.

  A `tf.function` takes locks for each call, and runs Python while it has them. There
  the garbage collector may end an iterator, which waits for its threads; and one of
  those, which calls a function, would wait for the lock, for ever.

  Args:
    function: of tensors; left as it is, without AutoGraph.
    *signature: of its arguments.
  Returns:
    The concrete function, to be called with tensors.
  """
  as_it_is = tf.autograph.experimental.do_not_convert(function)
  return tf.function(as_it_is, input_signature=signature).get_concrete_function()


@dataclasses.dataclass(frozen=True)
class BatchCheck:
  """What became of a batch of records.

  Attributes:
    is_parsed: bool [n].
    is_even: whether all sequences of the record have the same length, bool [n].
    is_empty: whether it has sequences, and none of them a step, bool [n].
    has_nan: by number of the feature, bool [n]; features that cannot have any are
      left out.
    lows: by number of the feature, the smallest value of each element over all records
      that were parsed, float64 [values], or [1] for large features; no strings.
    highs: the largest, too.
  """

  is_parsed: np.ndarray
  is_even: np.ndarray
  is_empty: np.ndarray
  has_nan: dict[int, np.ndarray]
  lows: dict[int, np.ndarray]
  highs: dict[int, np.ndarray]


class BatchChecker:
  """Parses batches of records of one dataset as the pipeline does.

  A batch is one call. Only where it fails, its records are parsed one by one; nothing
  is explained here.
  """

  def __init__(self, features: Sequence[RecordFeature], measures: bool = True) -> None:
    """Creates the checker.

    Args:
      features: those of the dataset.
      measures: looks for NaN and for the range of values.
    """
    # Each feature once, under a path that cannot clash with another.
    flat = specs.TensorSpecStruct(
      (str(i), specs.ExtendedTensorSpec.from_spec(f.spec, is_optional=f.is_optional))
      for i, f in enumerate(features)
    )
    self._features = features
    self._measures = measures
    self._has_sequences = any(feature.spec.is_sequence for feature in features)
    self._parse_fn = parse.create_parse_tf_example_fn(
      specs.add_sequence_length_specs(flat), decode_images=features[0].decode_images
    )
    self._traced: dict[str, Any] = {}

  def check(self, data: Sequence[bytes]) -> BatchCheck:
    """Parses records.

    Args:
      data: serialized, whole protos or not.
    Returns:
      Which are parsed, and what is in them.
    """
    # Episodes differ in length: in a batch they would be padded to the longest.
    if not self._has_sequences:
      try:
        found = self._together()(tf.constant(data, tf.string))
        return self._to_check(len(data), np.arange(len(data)), found)
      except DATA_ERRORS:
        pass
    if len(data) <= _FEW:
      return self._check_few(data)
    try:
      good, found = self._singly()(tf.constant(data, tf.string))
    except DATA_ERRORS:
      # There is none: a dataset without elements gives no batch.
      return self._to_check(len(data), np.zeros(0, np.int64), {})
    return self._to_check(len(data), good.numpy(), found)

  def failure(self, data: bytes) -> str | None:
    """Parses one record.

    Args:
      data: the serialized record.
    Returns:
      Why it cannot be parsed; None if it can.
    """
    try:
      self._alone()(tf.constant(data))
    except tf.errors.OpError as error:
      return str(error).split("\n")[0].split("}} ")[-1]
    except UnicodeDecodeError as error:
      text = error.object.decode("utf-8", "backslashreplace")
      return text.split("}} ")[-1].split("\n")[0][:_MAX_REASON]
    return None

  def _check_few(self, data: Sequence[bytes]) -> BatchCheck:
    """Saves making the graph that many records are worth."""
    good, found = [], []
    for number, record in enumerate(data):
      try:
        found.append(self._alone()(tf.constant(record)))
        good.append(number)
      except DATA_ERRORS:
        pass
    stacked = {
      name: tf.stack([each[name] for each in found]) for name in (found or [{}])[0]
    }
    return self._to_check(len(data), np.asarray(good, np.int64), stacked)

  def _alone(self) -> Any:
    return self._trace("alone", self._parse_alone, tf.TensorSpec([], tf.string))

  def _together(self) -> Any:
    return self._trace("together", self._parse_together, _MANY)

  def _singly(self) -> Any:
    return self._trace("singly", self._parse_singly, _MANY)

  def _trace(self, name: str, function: Any, signature: tf.TensorSpec) -> Any:
    """Returns a function, traced when it is first asked for: twice, where two ask."""
    if name not in self._traced:
      self._traced[name] = concrete_function(function, signature)
    return self._traced[name]

  def _parse_alone(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    return self._measure(self._parse_fn(serialized), False)

  def _parse_together(self, serialized: tf.Tensor) -> dict[str, tf.Tensor]:
    return self._measure(self._parse_fn(serialized), True)

  def _parse_singly(self, serialized: tf.Tensor) -> Any:
    # The function that is made already: it is not traced once more.
    alone = self._alone()
    dataset = tf.data.Dataset.from_tensor_slices(serialized).enumerate()
    dataset = dataset.map(
      _as_it_is(lambda i, record: (i, alone(record))),
      num_parallel_calls=tf.data.AUTOTUNE,
      deterministic=True,
    )
    dataset = dataset.ignore_errors(log_warning=False)
    count = tf.size(serialized, tf.int64)
    return dataset.batch(count).get_single_element()

  def _measure(self, parsed: Any, is_batched: bool) -> dict[str, tf.Tensor]:
    """Reduces every feature of a record, or of each record of a batch, to numbers."""
    found: dict[str, tf.Tensor] = {}
    for number, feature in enumerate(self._features):
      tensor = parsed[str(number)]
      dtype = tensor.dtype
      if not self._measures or dtype == tf.string:
        found[f"touched/{number}"] = _touch(tensor, is_batched)
        continue
      if dtype.is_floating or dtype.is_complex:
        axes = list(range(1 if is_batched else 0, tensor.shape.rank))
        found[f"nan/{number}"] = tf.reduce_any(_is_nan(tensor), axes)
      if dtype != tf.string and not dtype.is_complex:
        low, high = _range(tensor, feature, is_batched)
        found[f"low/{number}"], found[f"high/{number}"] = low, high
    lengths = [tensor for path, tensor in parsed.items() if path.endswith("_length")]
    if lengths:
      found["lengths"] = tf.stack(lengths, -1)
    return found

  def _to_check(
    self, count: int, good: np.ndarray, found: dict[str, tf.Tensor]
  ) -> BatchCheck:
    is_parsed = np.zeros(count, bool)
    is_parsed[good] = True
    is_even, is_empty = np.ones(count, bool), np.zeros(count, bool)
    check = BatchCheck(is_parsed, is_even, is_empty, {}, {}, {})
    for name, tensor in found.items():
      values = tensor.numpy()
      kind, _, number = name.partition("/")
      if kind == "lengths":
        # Absent optionals count as long as the others.
        is_even[good] = values.max(-1) == values.min(-1)
        is_empty[good] = values.max(-1) == 0
      elif kind == "nan":
        check.has_nan[int(number)] = np.zeros(count, bool)
        check.has_nan[int(number)][good] = values
      elif kind == "low":
        check.lows[int(number)] = np.fmin.reduce(values, axis=0)
      elif kind == "high":
        check.highs[int(number)] = np.fmax.reduce(values, axis=0)
    return check


def checker_of(
  features: Sequence[RecordFeature], measures: bool = True
) -> BatchChecker:
  """Returns a checker; one that was made before for the same features, if it is kept.

  Its graphs take longer to make than to look through a small file.

  Args:
    features: those of the dataset.
    measures: as of `BatchChecker`.
  """
  return _make_checker(_Wanted(repr(features), features), measures)


@dataclasses.dataclass(frozen=True)
class _Wanted:
  """Features, told apart by all they declare: specs compare by shape and dtype."""

  text: str
  features: Sequence[RecordFeature] = dataclasses.field(compare=False)


@functools.lru_cache(maxsize=_KEPT_CHECKERS)
def _make_checker(wanted: _Wanted, measures: bool) -> BatchChecker:
  return BatchChecker(wanted.features, measures)


def _touch(tensor: tf.Tensor, is_batched: bool) -> tf.Tensor:
  """Depends on a value, because what nothing asks for, TensorFlow does not compute."""
  lead = [tf.shape(tensor)[0]] if is_batched else []
  first = tf.reshape(tensor, [*lead, -1])[..., :1]
  if tensor.dtype == tf.string:
    first = tf.strings.length(first)
  return tf.reduce_any(first != first, -1)


def _is_nan(tensor: tf.Tensor) -> tf.Tensor:
  if tensor.dtype.is_complex:
    return tf.math.is_nan(tf.math.real(tensor)) | tf.math.is_nan(tf.math.imag(tensor))
  return tf.math.is_nan(tensor)


def _range(
  tensor: tf.Tensor, feature: RecordFeature, is_batched: bool
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the smallest and largest value of each element, [values] or [B, values]."""
  if tensor.dtype == tf.bool:
    tensor = tf.cast(tensor, tf.uint8)
  num_values = feature.spec.shape.num_elements() or 1
  if feature.is_image or num_values > _MAX_VALUES:
    num_values = 1
  lead = [tf.shape(tensor)[0]] if is_batched else []
  steps = tf.reshape(tensor, [*lead, -1, num_values])
  axis = 1 if is_batched else 0
  low, high = tf.reduce_min(steps, axis), tf.reduce_max(steps, axis)
  return tf.cast(low, tf.float64), tf.cast(high, tf.float64)
