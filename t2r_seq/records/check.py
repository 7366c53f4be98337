"""Everything that is wrong with a file of records, and reading on past it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.records import contents, explain, files, framing
from t2r_seq.records.explain import BatchCheck, RecordProblem, checker_of, to_errors
from t2r_seq.records.features import RecordFeature
from t2r_seq.records.framing import Frame


class BadRecordLog:
  """Collects bad records, says so in the log, and stops where they are too many.

  A record that is read again, in a later epoch, is the same bad record.

  Attributes:
    max_bad_records: one more is an error.
    failure: that error, once there is one.
  """

  def __init__(self, max_bad_records: int) -> None:
    """Creates an empty log.

    Args:
      max_bad_records: one more is an error.
    """
    self.max_bad_records = max_bad_records
    # No lock, but steps of which none can be parted: while one is held the garbage
    # collector may end an iterator, which waits for a thread that may want it, too.
    self._found: dict[tuple[str, int | None], list[RecordProblem]] = {}
    self.failure: errors.RecordError | None = None

  @property
  def problems(self) -> tuple[RecordProblem, ...]:
    """What is wrong with the records found so far, in the order of reading."""
    return tuple(problem for found in list(self._found.values()) for problem in found)

  def __len__(self) -> int:
    """Returns how many records were left out, each counted once."""
    return len(self._found)

  def add(self, problems: Sequence[RecordProblem]) -> None:
    """Notes a bad record.

    Args:
      problems: of one record, noted before or not.
    Raises:
      RecordError: there are more than `max_bad_records`: always the same, also of what
        is found in other threads after it.
    """
    if self.failure is not None:
      raise self.failure
    key, found = (problems[0].filename, problems[0].offset), list(problems)
    if self._found.setdefault(key, found) is not found:
      return
    (error,) = to_errors(found)
    logging.warning("Left out bad record %d: %s", len(self._found), error)
    if len(self._found) > self.max_bad_records:
      (error,) = to_errors(list(self._found.values())[self.max_bad_records])
      self.failure = errors.RecordError(
        f"on_bad_record='skip': max_bad_records: expected at most "
        f"{self.max_bad_records}, got one more: {error}"
      )
      raise self.failure


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
  num_nan: int
  low: float | None
  high: float | None
  num_values: int
  constant: tuple[int, ...]


class FeatureTally:
  """Adds up what batches of records show.

  Attributes:
    num_empty: episodes without a step.
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
    self._num_parsed = 0
    self.num_empty = 0

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
      constant = tuple(np.flatnonzero(high - low <= _NEAR * scale).tolist())
    return FeatureReport(
      path=feature.path,
      name=feature.name,
      described=described,
      num_problems=self._problems[feature.path],
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
  ) -> None:
    """Creates the check.

    Args:
      features: those of the dataset; none to look at frames and protos only.
      finds_nan: a NaN is a problem.
      compression: of all files, if the suffixes don't tell.
      measures: fills the tally; without it nothing is known of values.
    """
    self._features = list(features)
    self._checker = checker_of(self._features, measures) if features else None
    self._finds_nan = finds_nan
    self._compression = compression
    self.tally = FeatureTally(self._features)
    self.num_records: dict[str, int] = {}

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

  def _check_batch(
    self, filename: str, batch: Sequence[Frame]
  ) -> Iterator[RecordProblem]:
    data = [frame.data for frame in batch if frame.data is not None]
    check = self._checker.check(data) if self._checker and data else None
    if check is not None:
      self.tally.add(check)
    suspects = set(self._suspects(data, check))
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
    is_suspect = ~check.is_parsed | ~check.is_even
    if self._finds_nan:
      for has_nan in check.has_nan.values():
        is_suspect |= has_nan
    return np.flatnonzero(is_suspect).tolist()

  def _explain(
    self, data: bytes, check: BatchCheck | None, index: int
  ) -> Iterator[tuple[str, errors.Mismatch]]:
    if self._checker is not None and check is not None and not check.is_parsed[index]:
      reason = self._checker.failure(data)
      if reason is None:
        return  # It was something else, that did not last.
      found = explain.explain_record(data, self._features)
      if not found:
        want = "a record that can be parsed"
        found = [errors.Mismatch("record", want, reason)]
      yield from ((explain.CONTENT, mismatch) for mismatch in found)
      return
    looks = []
    if explain.may_be_absent(self._features):
      looks.append((explain.CONTENT, self._features))
    if check is not None and not check.is_even[index]:
      looks.append((explain.LENGTHS, self._features))
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


def read_good_records(
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


Place = tuple[str, int, int]
"""A file, the number of a record in it, and where its frame starts, in bytes."""


def locate_records(
  records: Iterable[bytes], filenames: Iterable[str]
) -> dict[bytes, list[Place]]:
  """Finds records, and all that are like them, by the content.

  Of the files the frames are read, each file once, and the data of those records only
  that have as many bytes.

  Args:
    records: serialized.
    filenames: of TFRecord files.
  Returns:
    By record the places of all that have its bytes.
  """
  found: dict[bytes, list[Place]] = {data: [] for data in records}
  lengths = {len(data) for data in found}
  for filename in filenames:
    compression = files.compression_type(filename)
    for frame in framing.read_frames(filename, compression, lengths):
      if frame.data in found:
        found[frame.data].append((filename, frame.number, frame.start))
  return found


_as_it_is = tf.autograph.experimental.do_not_convert
_LOST = "What follows it in the compressed file is lost."


@dataclasses.dataclass(frozen=True)
class Rest:
  """What follows the first damage of a file.

  Attributes:
    stretches: (offset of the first frame, count of records) of the readable stretches,
      int64 [n, 2].
    problems: the damages.
  """

  stretches: np.ndarray
  problems: tuple[RecordProblem, ...]


def find_rest(filename: str, compression: str = "") -> Rest:
  """Finds the records that come after a damage, at which TensorFlow's reader ends.

  Args:
    filename: a TFRecord file.
    compression: '', 'GZIP' or 'ZLIB'; of a compressed file nothing can be read on.
  Returns:
    Empty where the file is good.
  Raises:
    OSError: the file cannot be read.
  """
  stretches: list[list[int]] = []
  problems: list[RecordProblem] = []
  is_after_damage = False
  if compression or not _is_good(filename):
    for frame in framing.read_frames(filename, compression):
      if frame.data is None:
        problem = damage_at(filename, frame)
        if compression:
          mismatch = dataclasses.replace(problem.mismatch, hint=_LOST)
          problems = [dataclasses.replace(problem, mismatch=mismatch)]
          break
        problems.append(problem)
        is_after_damage = True
      elif problems:
        if is_after_damage:
          stretches.append([frame.start, 0])
        stretches[-1][1] += 1
        is_after_damage = False
  return Rest(np.asarray(stretches, np.int64).reshape(-1, 2), tuple(problems))


@_as_it_is
def read_stretch(
  filename: tf.Tensor, offset: tf.Tensor, count: tf.Tensor
) -> tf.data.Dataset:
  """Reads records of an uncompressed file; inside of a dataset's function.

  Args:
    filename: string scalar.
    offset: where the first frame starts, int64 scalar.
    count: of records, int64 scalar.
  Returns:
    Dataset of serialized records.
  """
  variant = tf.raw_ops.TFRecordDatasetV2(
    filenames=[filename],
    compression_type="",
    buffer_size=1 << 18,
    byte_offsets=[offset],
  )
  dataset = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))
  return dataset.take(count)


def _is_good(filename: str) -> bool:
  """Reads the whole file by TensorFlow, which is quick; a cut header is left over."""
  if framing.num_readable(filename) >= 0:
    return False
  first = tf.data.TFRecordDataset(filename).take(_NUM_LOOKED_AT)
  try:
    count = framing.batch_size(len(record.numpy()) for record in first)
    size = int(_size_fn()(tf.constant(filename), tf.constant(count, tf.int64)))
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
    # The latter is of a length that no file has.
    return False
  return size == tf.io.gfile.stat(filename).length


@functools.cache
def _size_fn() -> Callable[..., tf.Tensor]:
  """Makes the graph once that adds up the bytes of a file's frames."""

  def size(filename: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    records = tf.data.TFRecordDataset(filename)
    # One by one records of 250 bytes would take twenty times as long.
    frames = records.batch(count).map(_as_it_is(_frame_bytes))
    return frames.reduce(tf.constant(0, tf.int64), _as_it_is(lambda a, b: a + b))

  name, count = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)
  return explain.concrete_function(size, name, count)


def _frame_bytes(batch: tf.Tensor) -> tf.Tensor:
  lengths = tf.cast(tf.strings.length(batch), tf.int64)
  return tf.reduce_sum(lengths + framing.FRAME_SIZE)
