"""Files of records, looked through: what is bad is told; `salvage` copies the rest."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors, specs
from t2r_seq.imports import tf
from t2r_seq.records import contents, explain, files, framing, index, inspect, parse
from t2r_seq.records.contents import cut_hint, find_flags
from t2r_seq.records.explain import RecordProblem
from t2r_seq.records.features import IS_FIRST, RecordFeature, collect_features
from t2r_seq.records.framing import Frame
from t2r_seq.records.images import DecodeImages

# Of features with more values, the smallest and largest of all stand for each.
_MAX_VALUES = 256
_MAX_REASON = 160


def data_errors() -> tuple[type[Exception], ...]:
  """Returns what TensorFlow raises of a record that it cannot parse."""
  # A message that quotes a record may be no UTF-8.
  return (tf.errors.OpError, UnicodeDecodeError)


@dataclasses.dataclass(frozen=True)
class BatchCheck:
  """What became of a batch of records.

  Attributes:
    reasons: why each cannot be parsed; '' if it can.
    is_parsed: bool [n].
    is_even: whether all sequences of the record have the same length, bool [n].
    is_empty: whether it has sequences, and none of them a step, bool [n].
    is_one: whether no episode begins or ends within the record, bool [n].
    edges: by number of the feature, whether a flag is set in the first or last step, as
      it is to be, bool [n].
    has_nan: by number of the feature, bool [n]; features that cannot have any are
      left out.
    backwards: by number of a feature of time stamps, whether some run so, bool [n].
    lows: by number of the feature, the smallest value of each element over all records
      that were parsed, float64 [values], or [1] for large features; no strings.
    highs: the largest, too.
  """

  reasons: list[str]
  is_parsed: np.ndarray
  is_even: np.ndarray
  is_empty: np.ndarray
  is_one: np.ndarray
  edges: dict[int, np.ndarray]
  has_nan: dict[int, np.ndarray]
  backwards: dict[int, np.ndarray]
  lows: dict[int, np.ndarray]
  highs: dict[int, np.ndarray]


class BatchChecker:
  """Parses batches of records of one dataset as the pipeline does.

  A batch is one call. Only where it fails, its records are parsed one by one; what is
  wrong with them is not explained here.
  """

  def __init__(
    self,
    features: Sequence[RecordFeature],
    measures: bool = True,
    num_threads: int = 1,
    times: Collection[str] = (),
  ) -> None:
    """Creates the checker.

    Args:
      features: those of the dataset.
      measures: looks for NaN and for the range of values.
      num_threads: that records are parsed in one by one.
      times: names of features that are time stamps, whatever they are called.
    """
    # Each feature once, under a path that cannot clash with another.
    flat = specs.TensorSpecStruct(
      (str(i), specs.ExtendedTensorSpec.from_spec(f.spec, is_optional=f.is_optional))
      for i, f in enumerate(features)
    )
    self._features = features
    self._measures = measures
    self._num_threads = num_threads
    self._times = {n for n, f in enumerate(features) if f.is_time or f.name in times}
    self._has_sequences = any(feature.spec.is_sequence for feature in features)
    self._parse_fn = parse.create_parse_tf_example_fn(
      specs.add_sequence_length_specs(flat), decode_images=features[0].decode_images
    )
    self._traced: dict[bool, Any] = {}

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
        found = self._trace(True)(tf.constant(data, tf.string))
        return self._to_check([""] * len(data), found)
      except data_errors():
        pass
    self._trace(False)  # Once, not in every thread.
    if self._num_threads > 1:
      with concurrent.futures.ThreadPoolExecutor(self._num_threads) as pool:
        each = [*pool.map(self._parse_one, data)]
    else:
      each = [*map(self._parse_one, data)]
    parsed = [found for found in each if not isinstance(found, str)]
    stacked = {
      name: tf.stack([found[name] for found in parsed]) for name in (parsed or [{}])[0]
    }
    return self._to_check([f if isinstance(f, str) else "" for f in each], stacked)

  def _parse_one(self, data: bytes) -> dict[str, tf.Tensor] | str:
    """Returns what a record shows, or why it cannot be parsed."""
    try:
      return self._trace(False)(tf.constant(data))
    except tf.errors.OpError as error:
      return str(error).split("\n")[0].split("}} ")[-1] or "an error"
    except UnicodeDecodeError as error:
      text = error.object.decode("utf-8", "backslashreplace")
      return text.split("}} ")[-1].split("\n")[0][:_MAX_REASON] or "an error"

  def _trace(self, is_batched: bool) -> Any:
    """Returns a function, traced when it is first asked for: twice, where two ask.

    It is called without a lock. A `tf.function` takes locks for each call, and runs
    Python while it has them. There the garbage collector may end an iterator, which
    waits for its threads; and one of those would wait for the lock, for ever.
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
    """Reduces every feature of a record, or of each record of a batch, to numbers."""
    found: dict[str, tf.Tensor] = {}
    for number, feature in enumerate(self._features):
      tensor = parsed[str(number)]
      dtype = tensor.dtype
      if feature.edge and not is_batched:
        flags = tf.reshape(tensor, [-1])
        at = flags[:1] if feature.edge == IS_FIRST else flags[-1:]
        found[f"edge/{number}"] = tf.reduce_any(tf.cast(at, tf.bool))
        found[f"inside/{number}"] = parse.flags_inside(feature.edge, tensor)
      if not self._measures or dtype == tf.string:
        found[f"touched/{number}"] = _touch(tensor, is_batched)
        continue
      if number in self._times and not is_batched:
        times = tf.reshape(tensor, [-1])
        found[f"backwards/{number}"] = tf.reduce_any(times[1:] < times[:-1])
      if dtype.is_floating or dtype.is_complex:
        axes = list(range(1 if is_batched else 0, tensor.shape.rank))
        # RLDS leaves the action and the reward of the last step undefined.
        known = tensor[:-1] if feature.is_concatenated else tensor
        found[f"nan/{number}"] = tf.reduce_any(_is_nan(known), axes)
      if dtype != tf.string and not dtype.is_complex:
        low, high = _range(tensor, feature, is_batched)
        found[f"low/{number}"], found[f"high/{number}"] = low, high
    lengths = [tensor for path, tensor in parsed.items() if path.endswith("_length")]
    if lengths:
      found["lengths"] = tf.stack(lengths, -1)
    return found

  def _to_check(self, reasons: list[str], found: Mapping[str, tf.Tensor]) -> BatchCheck:
    count, good = len(reasons), np.asarray([not reason for reason in reasons], bool)
    is_even, is_one, is_empty = np.ones((3, count), bool)
    is_empty[:] = False
    check = BatchCheck(reasons, good, is_even, is_empty, is_one, {}, {}, {}, {}, {})
    for name, tensor in found.items():
      values = tensor.numpy()
      kind, _, number = name.partition("/")
      if kind == "lengths":
        # Absent optionals count as long as the others.
        is_even[good] = values.max(-1) == values.min(-1)
        is_empty[good] = values.max(-1) == 0
      elif kind == "inside":
        is_one[good] &= ~values
      elif kind == "edge":
        check.edges[int(number)] = np.zeros(count, bool)
        check.edges[int(number)][good] = values
      elif kind in ("nan", "backwards"):
        by_number = check.has_nan if kind == "nan" else check.backwards
        by_number[int(number)] = np.zeros(count, bool)
        by_number[int(number)][good] = values
      elif kind == "low":
        check.lows[int(number)] = np.fmin.reduce(values, axis=0)
      elif kind == "high":
        check.highs[int(number)] = np.fmax.reduce(values, axis=0)
    return check


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
  below = above = steps
  if tensor.dtype.is_floating:  # Beside a NaN there are numbers.
    is_nan, inf = tf.math.is_nan(steps), tf.constant(np.inf, tensor.dtype)
    below, above = tf.where(is_nan, inf, steps), tf.where(is_nan, -inf, steps)
  low, high = tf.reduce_min(below, axis), tf.reduce_max(above, axis)
  return tf.cast(low, tf.float64), tf.cast(high, tf.float64)


# A range below this part of the values is one that a network cannot tell from none.
_NEAR = 1e-6
# Of the records that are parsed together.
_BATCH_BYTES, _MAX_BATCH = 8 << 20, 512
_NUM_LOOKED_AT = 16


@dataclasses.dataclass(frozen=True)
class FeatureReport:
  """One feature over all records that could be parsed.

  Attributes:
    path: its first path.
    name: key in the record.
    described: shape, dtype and encoding, as text.
    num_problems: of content, and of lengths.
    num_absent: records that do not have it.
    num_nan: records with a NaN.
    low: the smallest value; None for strings.
    high: the largest value; None for strings.
    num_values: of one step.
    constant: which values never change, or hardly.
  """

  path: str
  name: str
  described: str
  num_problems: int
  num_absent: int
  num_nan: int
  low: float | None
  high: float | None
  num_values: int
  constant: tuple[int, ...]


class FeatureTally:
  """Adds up what batches of records show.

  Attributes:
    num_empty: episodes without a step.
    names: of the features that records have, of the first one of each batch.
  """

  def __init__(self, features: Sequence[RecordFeature]) -> None:
    """Creates an empty tally.

    Args:
      features: those of the dataset.
    """
    self._features = features
    self._lows: dict[int, np.ndarray] = {}
    self._highs: dict[int, np.ndarray] = {}
    self._num_nan: collections.Counter[int] = collections.Counter()
    self._problems: collections.Counter[str] = collections.Counter()
    self._absent: collections.Counter[str] = collections.Counter()
    self._may_lack = any(f.is_optional or f.is_varlen for f in features)
    self._num_parsed = 0
    self.num_empty = 0
    self.names: set[str] = set()

  def add_names(self, data: Sequence[bytes], suspects: Collection[int]) -> None:
    """Adds which features the records of a batch have, of all that may lack some."""
    for number, record in enumerate(data):
      if number and not self._may_lack and number not in suspects:
        continue
      with contextlib.suppress(errors.RecordError):
        names = contents.present_names(record)
        self._absent.update(f.name for f in self._features if f.name not in names)
        self.names |= names if not number else set()

  def add(self, check: BatchCheck) -> None:
    """Adds a batch."""
    self._num_parsed += int(check.is_parsed.sum())
    self.num_empty += int(check.is_empty.sum())
    for number, has_nan in check.has_nan.items():
      self._num_nan[number] += int(has_nan.sum())
    for number, low in check.lows.items():
      high = check.highs[number]
      self._lows[number] = np.fmin(self._lows.get(number, low), low)
      self._highs[number] = np.fmax(self._highs.get(number, high), high)

  def add_problem(self, path: str, kind: str) -> None:
    """Adds a problem of a feature."""
    if kind != explain.NAN:
      self._problems[path] += 1

  def reports(self) -> list[FeatureReport]:
    """Returns what is known of each feature."""
    return [self._report(n, feature) for n, feature in enumerate(self._features)]

  def _report(self, number: int, feature: RecordFeature) -> FeatureReport:
    low, high = self._lows.get(number), self._highs.get(number)
    described = errors.describe(feature.spec)
    if feature.is_image:
      described += f" {str(feature.spec.data_format).lower()}"
    constant: tuple[int, ...] = ()
    # With one record, what has no steps is never seen to change.
    if low is not None and high is not None and self._num_parsed > 1:
      scale = np.maximum(np.abs(low), np.abs(high))
      with np.errstate(invalid="ignore"):  # Infinities are no scale.
        is_near = (high - low <= _NEAR * scale) & np.isfinite(scale)
      constant = tuple(np.flatnonzero(is_near | (high == low)).tolist())
    return FeatureReport(
      path=feature.path,
      name=feature.name,
      described=described,
      num_problems=self._problems[feature.path],
      num_absent=self._absent[feature.name],
      num_nan=self._num_nan[number],
      low=None if low is None else float(np.fmin.reduce(low)),
      high=None if high is None else float(np.fmax.reduce(high)),
      num_values=0 if low is None else len(low),
      constant=constant,
    )


class FileCheck:
  """Looks for what is wrong with files of one dataset.

  Attributes:
    tally: what is known of the features of all files so far.
  """

  def __init__(
    self,
    features: Sequence[RecordFeature],
    finds_nan: bool,
    compression: str | None,
    measures: bool = True,
    times: Collection[str] = (),
  ) -> None:
    """Creates the check.

    Args:
      features: those of the dataset; none to look at frames and protos only.
      finds_nan: a NaN is a problem.
      compression: of all files, if the suffixes don't tell.
      measures: fills the tally; without it nothing is known of values.
      times: names of features that are time stamps, whatever they are called.
    """
    self._features = list(features)
    self._checker = (
      BatchChecker(self._features, measures, os.cpu_count() or 1, times)
      if features
      else None
    )
    self._finds_nan = finds_nan
    self._compression = compression
    self.tally = FeatureTally(self._features)
    self.num_records: dict[str, int] = {}
    # By number of a flag: the records that have it at their edge, and the others.
    self._whole: collections.Counter[int] = collections.Counter()
    self._parts: dict[int, list[tuple[str, Frame]]] = collections.defaultdict(list)

  def find_problems(self, filename: str) -> Iterator[RecordProblem]:
    """Yields what is wrong with a file, in the order of its records.

    Args:
      filename: the file.
    Yields:
      The problems; `num_records` knows the file when all were drawn.
    Raises:
      OSError: the file cannot be read.
    """
    compression = files.compression_type(filename, self._compression)
    self.num_records[filename] = 0
    for batch in _batches(framing.read_frames(filename, compression)):
      self.num_records[filename] += len(batch)
      yield from self._check_batch(filename, batch)

  def find_parts(self) -> Iterator[RecordProblem]:
    """Yields the records that are parts of an episode, of all files so far.

    By its flags a record is one, if they begin or end the episodes of others. Where no
    record has them set, they say nothing.
    """
    for number, parts in self._parts.items():
      if not self._whole[number]:
        continue
      feature = self._features[number]
      edge = "first" if feature.edge == IS_FIRST else "last"
      others = f"{self._whole[number]:,} others"
      mismatch = errors.Mismatch(
        f"{feature.path} (feature '{feature.name}')",
        f"it set in the {edge} step, as in {others}, as a record is an episode",
        "it unset: a part of an episode",
        cut_hint(feature.name),
      )
      for filename, frame in parts:
        yield RecordProblem(
          filename,
          frame.number,
          frame.start,
          explain.EPISODES,
          mismatch,
          feature.path,
        )

  def _note_edges(
    self, filename: str, frames: Sequence[Frame], check: BatchCheck
  ) -> None:
    for number, at_edge in check.edges.items():
      looked_at = check.is_parsed & ~check.is_empty
      self._whole[number] += int((looked_at & at_edge).sum())
      if not self._features[number].is_optional:  # One that is absent is not set.
        found = np.flatnonzero(looked_at & ~at_edge & check.is_one).tolist()
        self._parts[number] += [(filename, frames[index]) for index in found]

  def _check_batch(
    self, filename: str, batch: Sequence[Frame]
  ) -> Iterator[RecordProblem]:
    data = [frame.data for frame in batch if frame.data is not None]
    check = self._checker.check(data) if self._checker and data else None
    if check is not None:
      self.tally.add(check)
      self._note_edges(filename, [f for f in batch if f.data is not None], check)
    suspects = set(self._suspects(data, check))
    self.tally.add_names(data, suspects)
    index = 0
    for frame in batch:
      if frame.data is None:
        yield damage_at(filename, frame)
        continue
      if index in suspects:
        for kind, mismatch in self._explain(frame.data, check, index):
          path = explain.path_of(mismatch, self._features)
          self.tally.add_problem(path, kind)
          yield RecordProblem(filename, frame.number, frame.start, kind, mismatch, path)
      index += 1

  def _suspects(self, data: list[bytes], check: BatchCheck | None) -> list[int]:
    """Returns which records of a batch are worth a slow look."""
    if check is None or explain.may_be_absent(self._features):
      return [*range(len(data))]
    is_suspect = ~check.is_parsed | ~check.is_even | ~check.is_one
    for found in check.backwards.values():
      is_suspect |= found
    if self._finds_nan:
      for has_nan in check.has_nan.values():
        is_suspect |= has_nan
    return np.flatnonzero(is_suspect).tolist()

  def _explain(
    self, data: bytes, check: BatchCheck | None, index: int
  ) -> Iterator[tuple[str, errors.Mismatch]]:
    if check is not None and check.reasons[index]:
      found = explain.explain_record(data, self._features)
      if not found:
        want = "a record that can be parsed"
        found = [errors.Mismatch("record", want, check.reasons[index])]
      yield from ((explain.CONTENT, mismatch) for mismatch in found)
      return
    looks = []
    if explain.may_be_absent(self._features):
      looks.append((explain.CONTENT, self._features))
    if check is not None and not check.is_even[index]:
      looks.append((explain.LENGTHS, self._features))
    if check is not None and not check.is_one[index]:
      looks.append((explain.EPISODES, self._features))
    if check is not None:
      having = [
        self._features[n] for n, found in check.backwards.items() if found[index]
      ]
      looks += [(explain.TIMES, having)] if having else []
    if check is not None and self._finds_nan:
      having = [self._features[n] for n, found in check.has_nan.items() if found[index]]
      looks += [(explain.NAN, having)] if having else []
    for kind, features in looks:
      for mismatch in explain.explain_record(data, features, kind):
        yield kind, mismatch


def _batches(frames: Iterable[Frame]) -> Iterator[list[Frame]]:
  batch: list[Frame] = []
  num_bytes = 0
  for frame in frames:
    batch.append(frame)
    num_bytes += len(frame.data or b"")
    if num_bytes >= _BATCH_BYTES or len(batch) == _MAX_BATCH:
      yield batch
      batch, num_bytes = [], 0
  if batch:
    yield batch


def damage_at(filename: str, frame: Frame) -> RecordProblem:
  """Returns the problem of a damaged frame."""
  mismatch = errors.Mismatch("frame", *(frame.damage or ("", "")))
  return RecordProblem(filename, frame.number, frame.start, explain.FRAME, mismatch)


def _read_good_records(
  filename: str, compression: str | None = None
) -> Iterator[framing.Record]:
  """Reads the records of a file that may be damaged, those that are whole protos.

  Args:
    filename: the file.
    compression: of the file, if the suffix doesn't tell.
  Yields:
    The records in order.
  """
  kind = files.compression_type(filename, compression)
  for frame in framing.read_frames(filename, kind):
    if frame.data is None:
      continue
    with contextlib.suppress(errors.RecordError):
      contents.RecordContents(frame.data)
      yield framing.Record(filename, frame.number, frame.start, frame.data)


@dataclasses.dataclass(frozen=True)
class RecordReport:
  """What `examine_records` found.

  Attributes:
    num_records: by file; bytes that are no frame count as one record.
    problems: in the order of files and records.
    features: of what was parsed, by dataset and name.
    num_empty: episodes without a step: they can be read, and nothing comes of them.
    unchecked: names of features that records have and no spec reads.
    summary: of the records, where specs were proposed because none were given.
    compression: of all files, if the suffixes don't tell.
  """

  num_records: dict[str, int]
  problems: tuple[RecordProblem, ...]
  features: tuple[FeatureReport, ...]
  num_empty: int
  unchecked: tuple[str, ...] = ()
  summary: inspect.RecordSummary | None = None
  compression: str | None = None

  @property
  def is_good(self) -> bool:
    """Whether nothing is wrong, and all records are alike or fit specs given."""
    return not self.problems and (self.summary is None or len(self.summary.schemas) < 2)

  def bad_records(self, filename: str) -> set[int]:
    """Returns the numbers of a file's records that something is wrong with."""
    return {
      problem.record
      for problem in self.problems
      if problem.filename == filename and problem.record is not None
    }

  @property
  def num_bad(self) -> int:
    """Records that something is wrong with."""
    return sum(len(self.bad_records(filename)) for filename in self.num_records)

  def check(self) -> None:
    """Raises RecordError for the first bad record, if there is one."""
    for error in explain.to_errors(self.problems):
      raise error


def examine_records(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure | None = None,
  label_spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  allow_nan: bool = False,
  schema: int = 1,
  time_keys: Collection[str] = (),
) -> RecordReport:
  """Looks for everything that is wrong with files of records.

  Records are read and parsed in batches, as in training; one that fails is looked at by
  itself, and the rest goes on.

  Args:
    file_patterns: of the files, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets; None takes the spec that
      `propose_spec` gives for the records of one schema.
    label_spec: the same for labels, or None.
    compression: of all files, if the suffixes don't tell.
    allow_nan: a NaN is no problem. In RLDS that of a last step is none.
    schema: where there are no specs, which records the others are to be like: 1 for
      those of the most frequent schema, see `RecordSummary`.
    time_keys: names of sequences that are time stamps, beside those that are called so
      (time, timestamp, robot_timestamp_ns, ...): within a record they must not run
      backwards.
  Returns:
    What is wrong, and what the features look like.
  Raises:
    SpecError: the patterns match no file, a spec cannot be parsed, or there are fewer
      schemas.
    OSError: a file cannot be read.
  """
  by_dataset = {"": None} if feature_spec is None else collect(feature_spec, label_spec)
  num_records: dict[str, int] = {}
  found: list[RecordProblem] = []
  reports: list[FeatureReport] = []
  num_empty, unchecked, summary = 0, set(), None
  absent = set(time_keys)
  patterns_of = patterns_by_dataset("examine_records", file_patterns, list(by_dataset))
  for key, patterns in patterns_of.items():
    filenames = files.get_data_format_and_filenames(patterns)[1]
    features = by_dataset[key]
    if features is not None:
      features = _with_flags(features, filenames, compression)
    else:
      summary, features = _propose_features(filenames, compression, schema)
      unchecked |= {feature.name for feature in summary.features}
    check = FileCheck(features, not allow_nan, compression, times=time_keys)
    absent -= {feature.name for feature in features}
    for filename in filenames:
      found += check.find_problems(filename)
      found += _index_problems(filename)
    found += check.find_parts()
    num_records.update(check.num_records)
    reports += check.tally.reports()
    num_empty += check.tally.num_empty
    unchecked |= check.tally.names
    unchecked -= {feature.name for feature in features}
  if absent:
    near = errors.nearest(min(absent), (report.name for report in reports))
    raise errors.SpecError(
      f"examine_records: time_keys: expected features of the records, got "
      f"{errors.listing(absent)}.{near}"
    )
  return RecordReport(
    num_records,
    tuple(found),
    tuple(reports),
    num_empty,
    tuple(sorted(unchecked)),
    summary,
    compression,
  )


def collect(
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  decode_images: DecodeImages = True,
) -> dict[str, list[RecordFeature]]:
  """Returns the features that specs read, by dataset_key."""
  given = {"features": feature_spec, "labels": label_spec}
  return collect_features(
    {"": feature_spec}
    if label_spec is None
    else {label: spec for label, spec in given.items() if spec is not None},
    decode_images,
  )


def patterns_by_dataset(
  operation: str,
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  keys: list[str],
) -> Mapping[str, files.FilePatterns]:
  """Returns the file patterns of each dataset.

  Raises:
    SpecError: there are several, and the patterns are not by dataset_key.
  """
  if not isinstance(file_patterns, Mapping) and len(keys) == 1:
    return {keys[0]: file_patterns}
  if not isinstance(file_patterns, Mapping) or sorted(file_patterns) != sorted(keys):
    raise errors.SpecError(
      f"{operation}: expected file patterns by dataset_key, {errors.listing(keys)}, "
      f"got {file_patterns!r}."
    )
  return file_patterns


def _propose_features(
  filenames: Sequence[str], compression: str | None, schema: int
) -> tuple[inspect.RecordSummary, list[RecordFeature]]:
  """Returns what the whole records of some files hold, and the features of a schema."""
  whole = (
    record
    for filename in filenames
    for record in _read_good_records(filename, compression)
  )
  summary = inspect.summarize_records(whole, filenames)
  if not 1 <= schema <= max(1, len(summary.schemas)):
    raise errors.SpecError(
      f"examine_records: schema: expected 1 to {len(summary.schemas)}, got {schema}."
    )
  try:
    proposed = inspect.propose_spec((summary.schemas or (summary,))[schema - 1])
  except errors.SpecError:
    return summary, []  # There is nothing to parse; frames are looked at all the same.
  (features,) = collect(proposed, None).values()
  return summary, features


def _with_flags(
  features: list[RecordFeature], filenames: Sequence[str], compression: str | None
) -> list[RecordFeature]:
  """Adds the flags of episodes that records have and no spec reads."""
  first = next(_read_good_records(filenames[0], compression), None)
  if first is None:
    return features
  flags = find_flags(first.data, features)
  if not flags:
    return features
  (added,) = collect_features({"": flags}).values()
  return [*features, *added]


def _index_problems(filename: str) -> list[RecordProblem]:
  """Says whether the sidecar index is one of the file as it is; it may be missing."""
  if "://" in filename:
    return []
  (state,) = index.check_index([filename])
  if state.state in (index.FRESH, index.MISSING):
    return []
  what, _, _ = state.reason.partition(" Run: ")
  expected, _, got = what.partition("expected ")[2].partition(", got ")
  mismatch = errors.Mismatch(
    f"the {state.state} index",
    expected or "an index of the file",
    got.rstrip(".") or what,
    f"Run: t2r_seq index {filename}",
  )
  return [RecordProblem(filename, None, None, explain.INDEX, mismatch)]


# Failures that say nothing about the data.
_UNRELATED_ERRORS = (
  "OutOfRangeError",
  "CancelledError",
  "ResourceExhaustedError",
  "AbortedError",
  "DeadlineExceededError",
  "PermissionDeniedError",
)


def find_bad_record(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  decode_images: DecodeImages = True,
) -> errors.RecordError | None:
  """Scans files for the first record that cannot be parsed.

  Records are parsed in batches, and one by one only in a batch that fails.

  Args:
    file_patterns: of the files, or a dict of them by dataset_key.
    feature_spec: a structure of specs without time offsets.
    label_spec: the same for labels, or None.
    compression: of all files, if the suffixes don't tell.
    decode_images: how encoded images are decoded.
  Returns:
    The error that names file, record, byte, path and feature, what was expected and
    what was found; None if all is good. Sequences of unequal length in one record, and
    several episodes in one, are reported where nothing worse is found.
  Raises:
    SpecError: the patterns match no file, or a spec cannot be parsed.
  """
  by_dataset = collect(feature_spec, label_spec, decode_images)
  patterns_of = patterns_by_dataset("find_bad_record", file_patterns, list(by_dataset))
  uneven = None
  for key, patterns in patterns_of.items():
    check = FileCheck(by_dataset[key], False, compression, measures=False)
    for filename in files.get_data_format_and_filenames(patterns)[1]:
      for _, group in itertools.groupby(
        check.find_problems(filename), lambda problem: problem.record
      ):
        found = [_with_hint(problem) for problem in group]
        (error,) = explain.to_errors(found)
        if found[0].kind not in (explain.LENGTHS, explain.EPISODES):
          return error
        uneven = uneven or error
  return uneven


def _with_hint(problem: RecordProblem) -> RecordProblem:
  if problem.kind != explain.FRAME or not problem.record:
    return problem
  hint = "The records before it are good."
  mismatch = dataclasses.replace(problem.mismatch, hint=hint)
  return dataclasses.replace(problem, mismatch=mismatch)


@contextlib.contextmanager
def explain_failures(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None = None,
  decode_images: DecodeImages = True,
) -> Iterator[None]:
  """Turns a failure of reading records into an error that names the record.

  Put it around the loop that draws from the dataset. It costs nothing until a
  TensorFlow error passes through; then the files are scanned.

  Args:
    file_patterns: as for `find_bad_record`.
    feature_spec: as for `find_bad_record`.
    label_spec: as for `find_bad_record`.
    decode_images: as for `find_bad_record`.
  Yields:
    Nothing.
  Raises:
    RecordError: a bad record was found after a TensorFlow error.
    OpError: as it was, where no record is to blame.
  """
  try:
    yield
  except data_errors() as op_error:
    if type(op_error).__name__ in _UNRELATED_ERRORS:
      raise
    found = _diagnose(file_patterns, feature_spec, label_spec, decode_images)
    if found is None:
      raise
    raise found from op_error


def _diagnose(
  file_patterns: files.FilePatterns | Mapping[str, files.FilePatterns],
  feature_spec: specs.SpecStructure,
  label_spec: specs.SpecStructure | None,
  decode_images: DecodeImages,
) -> errors.RecordError | None:
  logging.info("Reading failed; looking for a bad record in %s.", file_patterns)
  try:
    return find_bad_record(
      file_patterns, feature_spec, label_spec, decode_images=decode_images
    )
  except (errors.SpecError, OSError, tf.errors.OpError) as error:
    logging.warning("The search for a bad record failed too: %s", error)
    return None
