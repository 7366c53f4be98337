"""Everything that is wrong with a file of records, and reading on past it."""

from __future__ import annotations

import collections
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
from t2r_seq.records.framing import Frames, RecordBatch, concrete_function


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
    with framing.open_content(filename, compression) as (content, error):
      frames = framing.scan_frames(content)
      gaps = [*frames.gaps]
      for batch in framing.read_batches(content, frames):
        first = int(frames.starts[batch.frames[0]])
        while gaps and gaps[0][1] < first:
          yield self._gap(filename, content, frames, gaps.pop(0), error, compression)
        yield from self._check_batch(filename, frames, batch)
      for gap in gaps:
        yield self._gap(filename, content, frames, gap, error, compression)
      if error is not None and not _is_cut(frames):
        end = (frames.num_records, frames.size, frames.size)
        yield self._gap(filename, content, frames, end, error, compression)
      self.num_records[filename] = frames.num_records

  def _gap(
    self,
    filename: str,
    content: str,
    frames: Frames,
    gap: tuple[int, int, int],
    error: Exception | None,
    compression: str,
  ) -> RecordProblem:
    """Says what is wrong with bytes that are no frame."""
    number, start, stop = gap
    if error is not None and stop == frames.size:
      expected, got = f"{compression} data", f"{error}"
    else:
      expected, got = framing.damage_of(content, start, stop, False)
    mismatch = errors.Mismatch("frame", expected, got)
    return RecordProblem(filename, number, start, explain.FRAME, mismatch)

  def _check_batch(
    self, filename: str, frames: Frames, batch: RecordBatch
  ) -> Iterator[RecordProblem]:
    places = [
      (int(frames.numbers[frame]), int(frames.starts[frame])) for frame in batch.frames
    ]
    if batch.data is None:
      (frame,) = batch.frames
      start, stop = int(frames.starts[frame]), int(frames.stops[frame])
      expected, got = framing.damage_of(filename, start, stop, True)
      mismatch = errors.Mismatch("frame", expected, got)
      yield RecordProblem(filename, *places[0], explain.FRAME, mismatch)
      return
    check = self._checker.check(batch.data) if self._checker and batch.data else None
    if check is not None:
      self.tally.add(check)
    for index in self._suspects(batch.data, check):
      for kind, mismatch in self._explain(batch.data[index], check, index):
        path = explain.path_of(mismatch, self._features)
        self.tally.add_problem(path, kind)
        yield RecordProblem(filename, *places[index], kind, mismatch, path)

  def _suspects(self, data: list[bytes], check: BatchCheck | None) -> list[int]:
    """Returns which records of a batch are worth a slow look."""
    if check is None:
      return [*range(len(data))]
    is_suspect = ~check.is_parsed | ~check.is_even
    if self._finds_nan:
      for has_nan in check.has_nan.values():
        is_suspect |= has_nan
    return np.flatnonzero(is_suspect).tolist()

  def _explain(
    self, data: bytes, check: BatchCheck | None, index: int
  ) -> Iterator[tuple[str, errors.Mismatch]]:
    if check is None or not check.is_parsed[index]:
      for mismatch in self._explain_content(data):
        yield explain.CONTENT, mismatch
      return
    if not check.is_even[index]:
      for mismatch in explain.explain_lengths(data, self._features):
        yield explain.LENGTHS, mismatch
    having = [self._features[n] for n, found in check.has_nan.items() if found[index]]
    if having and self._finds_nan:
      for mismatch in explain.explain_nan(data, having):
        yield explain.NAN, mismatch

  def _explain_content(self, data: bytes) -> list[errors.Mismatch]:
    if self._checker is None:
      try:
        contents.RecordContents(data)
        return []
      except errors.RecordError:
        return explain.explain_record(data, [])
    reason = self._checker.failure(data)
    if reason is None:
      return []  # It was something else, that did not last.
    found = explain.explain_record(data, self._features)
    return found or [errors.Mismatch("record", "a record that can be parsed", reason)]


def _is_cut(frames: Frames) -> bool:
  """Whether the last bytes are no frame."""
  return bool(frames.gaps) and frames.gaps[-1][2] == frames.size


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
  with framing.open_content(filename, kind) as (content, _):
    frames = framing.scan_frames(content)
    for batch in framing.read_batches(content, frames):
      for frame, data in zip(batch.frames, batch.data or [], strict=False):
        number, start = int(frames.numbers[frame]), int(frames.starts[frame])
        try:
          contents.RecordContents(data)
        except errors.RecordError:
          continue
        yield framing.Record(filename, number, start, data)


Place = tuple[str, int, int]
"""A file, the number of a record in it, and where its frame starts, in bytes."""


def locate_record(data: bytes, filenames: Iterable[str]) -> list[Place]:
  """Finds a record, and all that are like it; see `locate_records`."""
  return locate_records([data], filenames)[data]


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
  lengths = sorted({len(data) for data in found})
  for filename in filenames:
    compression = files.compression_type(filename)
    with framing.open_content(filename, compression) as (name, _):
      frames = framing.scan_frames(name)
      sizes = frames.stops - frames.starts - framing.FRAME_SIZE
      is_like_one = np.isin(sizes, lengths)
      with framing.open_file(name) as file:
        for i in np.flatnonzero(is_like_one).tolist():
          start = int(frames.starts[i])
          file.seek(start + framing.HEADER_SIZE)
          content = file.read(int(sizes[i]))
          if content in found:
            found[content].append((filename, int(frames.numbers[i]), start))
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
    OpError: the file cannot be opened.
  """
  if _is_good(filename, compression):
    return Rest(np.zeros([0, 2], np.int64), ())
  if compression:
    return _rest_of_compressed(filename, compression)
  frames = framing.scan_frames(filename)
  damaged = [
    frame
    for batch in framing.read_batches(filename, frames)
    if batch.data is None
    for frame in batch.frames
  ]
  found = [
    (int(frames.numbers[i]), int(frames.starts[i]), int(frames.stops[i]), True)
    for i in damaged
  ] + [(*gap, False) for gap in frames.gaps]
  return Rest(
    _stretches(frames, damaged, min(start for _, start, _, _ in found)),
    tuple(damage_at(filename, *place) for place in sorted(found)),
  )


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


def _is_good(filename: str, compression: str) -> bool:
  """Reads the whole file, which is quick and finds every damage but a cut header."""
  if not compression and framing.num_readable(filename) >= 0:
    return False
  first = framing.read_file(filename, compression)
  try:
    count = framing.batch_size(len(record.numpy()) for record in first)
    names = tf.constant(filename), tf.constant(compression)
    size = int(_size_fn()(*names, tf.constant(count, tf.int64)))
    return not framing.has_rest(filename, size, compression)
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
    # The latter is of a length that no file has.
    return False


@functools.cache
def _size_fn() -> Callable[..., tf.Tensor]:
  """Makes the graph once that adds up the bytes of a file's frames."""

  def size(filename: tf.Tensor, compression: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    records = tf.data.TFRecordDataset(filename, compression_type=compression)
    # One by one records of 250 bytes would take twenty times as long.
    frames = records.batch(count).map(_as_it_is(_frame_bytes))
    return frames.reduce(tf.constant(0, tf.int64), _as_it_is(lambda a, b: a + b))

  name, count = tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)
  return concrete_function(size, name, name, count)


def _frame_bytes(batch: tf.Tensor) -> tf.Tensor:
  lengths = tf.cast(tf.strings.length(batch), tf.int64)
  return tf.reduce_sum(lengths + framing.FRAME_SIZE)


def _rest_of_compressed(filename: str, compression: str) -> Rest:
  index = offset = 0
  try:
    for record in framing.iterate_records(filename, compression):
      index, offset = (
        record.index + 1,
        record.offset + framing.FRAME_SIZE + len(record.data),
      )
  except errors.RecordError as error:
    text = str(error).partition("frame: expected ")[2]
    expected, _, got = text.partition(", got ")
    mismatch = errors.Mismatch("frame", expected, got.rstrip("."), _LOST)
    problem = explain.RecordProblem(filename, index, offset, explain.FRAME, mismatch)
    return Rest(np.zeros([0, 2], np.int64), (problem,))
  return Rest(np.zeros([0, 2], np.int64), ())


def _stretches(
  frames: framing.Frames, damaged: list[int], first_damage: int
) -> np.ndarray:
  """Returns the runs of good frames after the first damage."""
  good = np.ones(len(frames.starts), bool)
  good[damaged] = False
  good &= frames.starts > first_damage
  found: list[tuple[int, int]] = []
  for first, last in frames.runs():
    places = np.flatnonzero(good[first:last]) + first
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
      if len(run):
        found.append((int(frames.starts[run[0]]), len(run)))
  return np.asarray(found, np.int64).reshape(-1, 2)


def damage_at(
  filename: str, number: int, start: int, stop: int, is_framed: bool
) -> explain.RecordProblem:
  """Says what is wrong with a damaged frame, or with what is none.

  Args:
    filename: an uncompressed file.
    number: of the record.
    start: of its frame, in bytes.
    stop: where the next one starts.
    is_framed: its length is good, and it is there as a whole.
  Returns:
    The problem.
  """
  damage = framing.damage_of(filename, start, stop, is_framed)
  mismatch = errors.Mismatch("frame", *damage)
  return explain.RecordProblem(filename, number, start, explain.FRAME, mismatch)
