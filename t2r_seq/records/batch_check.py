"""Many records parsed at once: which cannot be, and what numbers the others have."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import specs
from t2r_seq.records import parse
from t2r_seq.records.concrete_functions import concrete_function
from t2r_seq.records.features import RecordFeature

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
