"""Reading past bad records: they are left out, counted and named, up to a limit."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.data import pool
from t2r_seq.data.dataset_options import keeps_positions
from t2r_seq.data.input_generator import InputReport
from t2r_seq.data.record_files import (
  ChosenRecords,
  FilesByKey,
  ParseFn,
  RecordReading,
  keeper,
  map_in_order,
)
from t2r_seq.records import check, explain, framing
from t2r_seq.records import files as files_lib
from t2r_seq.records.explain import RecordProblem, explain_record, to_errors
from t2r_seq.records.features import RecordFeature, collect_features
from t2r_seq.records.images import DecodeImages

_as_it_is = tf.autograph.experimental.do_not_convert
KeepFn = Callable[..., np.ndarray]
_Stamp = tuple[int, int]

_KEPT_SPEC = {
  "kept": tf.TensorSpec([], tf.variant),
  "numbers": tf.TensorSpec([4], tf.int64),
}
_UNKNOWN = "one that TensorFlow cannot parse"
# To watch a function for failure takes 0.2 ms, so records are parsed by the chunk.
_BATCHES_BYTES, _MAX_BATCHES = 1 << 24, 16


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
    self._causes: collections.Counter[str] = collections.Counter()
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
    cause = _cause(found)
    self._causes[cause] += 1
    # A wrong spec makes every record bad: one line says so.
    if self._causes[cause] == 1:
      logging.warning(
        "Left out bad record %d: %s Others like it are counted.", len(self), error
      )
    if len(self._found) > self.max_bad_records:
      (error,) = to_errors(list(self._found.values())[self.max_bad_records])
      told = "".join(f"\n  {n:,} x {each}" for each, n in self._causes.most_common(9))
      self.failure = errors.RecordError(
        f"on_bad_record='skip': max_bad_records: expected at most "
        f"{self.max_bad_records}, got one more: {error} All of them:{told}\n"
        "t2r_seq doctor tells of each."
      )
      raise self.failure


def _cause(problems: Sequence[RecordProblem]) -> str:
  """Returns what the problems of a record have in common with those of others."""
  return "; ".join(
    dict.fromkeys(
      f"{problem.mismatch.path}: expected {problem.mismatch.expected}"
      for problem in problems
    )
  )


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
    compression = files_lib.compression_type(filename)
    for frame in framing.read_frames(filename, compression, lengths):
      if frame.data in found:
        found[frame.data].append((filename, frame.number, frame.start))
  return found


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
        problem = check.damage_at(filename, frame)
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
  first = tf.data.TFRecordDataset(filename).take(16)
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
  return tf.function(
    _as_it_is(size), input_signature=[name, count]
  ).get_concrete_function()


def _frame_bytes(batch: tf.Tensor) -> tf.Tensor:
  lengths = tf.cast(tf.strings.length(batch), tf.int64)
  return tf.reduce_sum(lengths + framing.FRAME_SIZE)


class RecordInputReport:
  """What was read, where bad records are left out."""

  def __init__(self, counts: windows.WindowReport | None, log: BadRecordLog) -> None:
    """Creates the report.

    Args:
      counts: of the windows; None where records are not cut into any.
      log: of the bad records.
    """
    self.window_report = counts
    self._log = log

  @property
  def skipped(self) -> int:
    """Records left out, each counted once, however many epochs there were."""
    return len(self._log)

  @property
  def problems(self) -> tuple[RecordProblem, ...]:
    """What is wrong with them: file, record, byte, path, expected and found."""
    return self._log.problems

  @property
  def too_short(self) -> int:
    """Episodes that were too short for a window."""
    return self.window_report.too_short if self.window_report else 0

  def __str__(self) -> str:
    left_out = f"{self.skipped} bad records left out"
    if self.window_report is None:
      return left_out
    return f"{self.window_report}; {left_out}"


class BadRecordFinder:
  """Looks through records in Python, and notes those that are bad.

  What fails is found by TensorFlow, where it costs nothing until it happens. Then this
  says which record it was, and what is wrong with it.
  """

  def __init__(
    self,
    filenames: Sequence[str],
    features: list[RecordFeature],
    same_lengths: bool,
    log: BadRecordLog,
  ) -> None:
    """Creates the finder.

    Args:
      filenames: of the files, all of one dataset.
      features: what is parsed, images decoded.
      same_lengths: whether a record has to be one episode, its sequences equally long.
      log: takes what is left out.
    """
    self.filenames = list(filenames)
    self._same_lengths = same_lengths
    self._log = log
    self._features = features
    # Digests of bytes, and the files that they were looked for in: what is bad comes
    # again in each epoch.
    self._noted: set[tuple[bytes, tuple[str, ...] | None]] = set()
    self._checker: check.BatchChecker | None = None

  def are_good(
    self, data: Sequence[bytes], filenames: Iterable[str] | None = None
  ) -> np.ndarray:
    """Notes the bad ones of some records.

    Args:
      data: the serialized records.
      filenames: where they may come from, if that is known.
    Returns:
      bool [n]; one that failed for another reason than its content is good.
    """
    is_good = self._check(data)
    bad = [data[i] for i in np.flatnonzero(~is_good).tolist()]
    self._note(bad, None if filenames is None else tuple(filenames))
    return is_good

  def _note(self, bad: Sequence[bytes], filenames: tuple[str, ...] | None) -> None:
    """Notes bad records, and all others with the same bytes."""
    keys = {data: (_digest(data), filenames) for data in bad}
    new = [data for data, key in keys.items() if key not in self._noted]
    if not new:
      return
    filenames = filenames or tuple(self.filenames)
    for data, places in locate_records(new, filenames).items():
      self._add(data, places or [(", ".join(filenames), None, None)], _UNKNOWN)
      self._noted.add(keys[data])

  def _check(self, data: Sequence[bytes]) -> np.ndarray:
    if self._checker is None:
      self._checker = check.BatchChecker(self._features, measures=False)
    found = self._checker.check(data)
    is_whole = found.is_even & found.is_one
    return found.is_parsed & (is_whole | (not self._same_lengths))

  def _add(
    self,
    data: bytes,
    places: Sequence[tuple[str, int | None, int | None]],
    reason: str,
  ) -> None:
    found = explain_record(data, self._features)
    for kind in (explain.LENGTHS, explain.EPISODES) if self._same_lengths else ():
      found = found or explain_record(data, self._features, kind)
    if not found:
      found = [errors.Mismatch("record", "a record that can be parsed", reason)]
    for place in places:
      self._log.add(
        [RecordProblem(*place, explain.CONTENT, mismatch) for mismatch in found]
      )


def _digest(data: bytes) -> bytes:
  return hashlib.sha256(data).digest()


class FileResumer:
  """Reads files past their damages.

  TensorFlow's reader ends a file at the first damage, and there is no asking it whether
  it did: each file is read once more, after its first time, and only its frames. So is
  a file that has changed since.
  """

  def __init__(self, log: BadRecordLog) -> None:
    """Creates the resumer.

    Args:
      log: takes what is left out.
    """
    self._log = log
    # By file: its size and time of change when it was looked through, and what follows
    # a damage.
    self._rests: dict[str, tuple[_Stamp, np.ndarray]] = {}

  @_as_it_is
  def read_file(self, filename: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
    """Reads a file past its damages; inside of a dataset's function.

    Args:
      filename: string scalar.
      compression: as of `tf.data.TFRecordDataset`.
    Returns:
      Dataset of serialized records.
    """
    may_go_on, count = tf.numpy_function(
      self._look, [filename, compression], (tf.bool, tf.int64), stateful=True
    )
    whole = tf.data.TFRecordDataset(filename, compression_type=compression)
    whole = whole.take(tf.ensure_shape(count, []))
    # Iterators of functions take milliseconds to be made: none for a file that is good.
    rest = tf.cond(
      tf.ensure_shape(may_go_on, []),
      _as_it_is(lambda: self._variant_of_rest(filename, compression)),
      _as_it_is(lambda: tf.data.experimental.to_variant(_nothing())),
    )
    rest = tf.data.experimental.from_variant(rest, tf.TensorSpec([], tf.string))
    return whole.ignore_errors(log_warning=False).concatenate(rest)

  def _look(self, filename: bytes, compression: bytes) -> tuple[bool, np.int64]:
    """Whether a file may have records after a damage; the first time any may.

    And how many come before a frame that TensorFlow's reader must not be given.

    A file that cannot be opened is no bad record, and skipped for ever: TensorFlow's
    reader fails each time that it is asked, and goes on to no other file.
    """
    name = filename.decode()
    try:
      with framing.open_file(name) as file:
        file.read(1)
      stamp = _stamp(name)
    except (OSError, tf.errors.OpError) as error:
      self._log.failure = errors.RecordError(
        f"{name}: expected a file that can be read, got: {error}. It is no bad record."
      )
      raise self._log.failure from error
    before, rest = self._rests.get(name, (stamp, None))
    if stamp != before:
      logging.warning(
        "%s: changed while it was in use: from now on it is read as it is now.", name
      )
      self._rests.pop(name, None)
      rest = None
    count = -1 if compression else framing.num_readable(name)
    return rest is None or len(rest) > 0, np.int64(count)

  def _variant_of_rest(self, filename: tf.Tensor, compression: tf.Tensor) -> tf.Tensor:
    once = tf.data.Dataset.from_tensors((filename, compression))
    return tf.data.experimental.to_variant(once.flat_map(self._rest))

  @_as_it_is
  def _rest(self, filename: tf.Tensor, compression: tf.Tensor) -> tf.data.Dataset:
    stretches = tf.numpy_function(
      self._find_rest, [filename, compression], tf.int64, stateful=True
    )
    stretches = tf.ensure_shape(stretches, [None, 2])
    return tf.data.Dataset.from_tensor_slices(stretches).flat_map(
      _as_it_is(lambda pair: read_stretch(filename, pair[0], pair[1]))
    )

  def _find_rest(self, filename: bytes, compression: bytes) -> np.ndarray:
    """Looks through a file once, after it has been read for the first time."""
    name = filename.decode()
    if name not in self._rests:
      stamp = _stamp(name)
      rest = find_rest(name, compression.decode())
      for problem in rest.problems:
        self._log.add([problem])
      self._rests[name] = stamp, rest.stretches
    return self._rests[name][1]


def _stamp(name: str) -> _Stamp:
  found = tf.io.gfile.stat(name)
  return found.length, found.mtime_nsec


def _nothing() -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))


def watched(function: Any, rescue: Any) -> Any:
  """Returns a function that does what one does, and where that fails what another does.

  TensorFlow catches no failure inside of a function; a dataset goes on after one.

  Args:
    function: of tensors.
    rescue: of the same; what it returns is alike.
  """

  @_as_it_is
  def watch(*given: Any) -> Any:
    once = tf.data.Dataset.from_tensors(given)
    good = once.map(_as_it_is(function)).ignore_errors(log_warning=False)
    # The second is only made when there is no first.
    return good.concatenate(once.map(_as_it_is(rescue))).take(1).get_single_element()

  return watch


def parse_chunks(
  chunks: tf.data.Dataset,
  parse_fn: ParseFn,
  num_parallel_calls: int | None,
  keep: KeepFn,
  most_bad: int,
) -> tf.data.Dataset:
  """Parses some records at a time, but those that cannot be.

  Args:
    chunks: serialized records, string [n].
    parse_fn: takes a chunk.
    num_parallel_calls: has no influence on the order.
    keep: given some records, object [n], notes bad ones and returns which are good,
      bool [n].
    most_bad: records of an epoch that may be bad. Where twice as many are, one after
      the other, an epoch had no good one: an error, or more epochs like it would be
      read for ever.
  Returns:
    Dataset of what `parse_fn` returns; of chunks without a good record nothing.
  """
  parsed_spec = chunks.map(_as_it_is(parse_fn)).element_spec
  leaves = tf.nest.flatten(parsed_spec)

  def parse(texts: tf.Tensor) -> tf.Tensor:
    # One value for all: chunks may differ in more than their first size.
    values = tf.nest.flatten(parse_fn(texts))
    return tf.raw_ops.OptionalFromValue(components=values)[tf.newaxis]

  def rescue(texts: tf.Tensor) -> tf.Tensor:
    kept = tf.boolean_mask(texts, _are_good(keep, texts))
    # What failed for another reason fails again, and is not lost.
    nothing = tf.raw_ops.OptionalNone()[tf.newaxis][:0]
    return tf.cond(tf.size(kept) > 0, lambda: parse(kept), lambda: tf.identity(nothing))

  def goes_on(num_bad: tf.Tensor, chunk: tuple[tf.Tensor, tf.Tensor]) -> Any:
    packed, num_records = chunk
    num_bad = tf.where(
      tf.size(packed) > 0, tf.zeros_like(num_bad), num_bad + num_records
    )
    left = tf.raw_ops.Assert(
      condition=num_bad <= 2 * most_bad, data=[tf.constant(pool.NOTHING_LEFT)]
    )
    with tf.control_dependencies([left]):
      return tf.identity(num_bad), packed

  def unpack(packed: tf.Tensor) -> Any:
    values = tf.raw_ops.OptionalGetValue(
      optional=packed,
      output_types=[spec.dtype for spec in leaves],
      output_shapes=[spec.shape for spec in leaves],
    )
    return tf.nest.pack_sequence_as(parsed_spec, values)

  watch = watched(parse, rescue)
  packed = map_in_order(
    chunks,
    _as_it_is(lambda texts: (watch(texts), tf.size(texts, tf.int64))),
    num_parallel_calls,
  ).scan(tf.constant(0, tf.int64), _as_it_is(goes_on))
  return packed.unbatch().map(_as_it_is(unpack))


def _are_good(keep: KeepFn, *rows: tf.Tensor) -> tf.Tensor:
  """Returns which records are good."""
  is_good = tf.numpy_function(
    lambda *arrays: np.asarray(keep(*arrays), bool), list(rows), tf.bool, stateful=True
  )
  return tf.ensure_shape(is_good, [None])


def _example_bytes(dataset: tf.data.Dataset) -> int:
  """Returns the bytes of a parsed record, as far as their number is known."""
  return sum(
    (spec.shape[1:].num_elements() or 0) * spec.dtype.size
    for spec in tf.nest.flatten(dataset.element_spec)
    if spec.dtype != tf.string
  )


class SkippingReading(RecordReading):
  """Leaves bad records out, up to a limit."""

  skips = True

  def __init__(
    self,
    files: FilesByKey,
    max_bad_records: int,
    where: str,
    decode_images: DecodeImages = True,
  ) -> None:
    """Creates the reading.

    Args:
      files: by dataset_key.
      max_bad_records: one more is an error.
      where: who reads what, for messages.
      decode_images: how encoded images are decoded.
    Raises:
      SpecError: there are several datasets: without one's record i, the other's would
        go with another.
    """
    if len(files) > 1:
      raise errors.SpecError(
        f"{where}: on_bad_record: expected 'raise' for the zipped datasets "
        f"{errors.listing(files)}, got 'skip'."
      )
    super().__init__(decode_images)
    self._where = where
    (self._filenames,) = files.values()
    self._log = BadRecordLog(max_bad_records)
    self._resumer = FileResumer(self._log)
    self.read_file = self._resumer.read_file
    self._made: dict[bool, tuple[specs.TensorSpecStruct, ParseFn, BadRecordFinder]] = {}

  @property
  def failure(self) -> Exception | None:  # type: ignore[override]
    """The error of too many bad records, if that is what happened."""
    return self._log.failure

  def good_records(
    self, serialized: tf.data.Dataset, flat_specs: specs.TensorSpecStruct
  ) -> tf.data.Dataset:
    """Parses records one by one, in batches of one."""
    return self.parse_batches(serialized, flat_specs, 1, False, None)

  def report(self, counts: windows.WindowReport | None) -> InputReport | None:
    """Returns counts of windows and of what is left out."""
    return RecordInputReport(counts, self._log)

  def parse_batches(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    batch_size: int,
    drop_remainder: bool,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Batches and parses records; full batches, whatever is left out."""
    parse_fn, finder = self._make_parser(flat_specs)
    has_sequences = any(spec.is_sequence for spec in flat_specs.values())
    # Batches of sequences are padded to lengths of their own and cannot be cut anew.
    # So they are parsed once to see whether they can be, and once more.
    check_fn = _checked(parse_fn) if has_sequences else parse_fn
    # JPEGs become ten times as large.
    one_by_one = serialized.batch(1).map(_as_it_is(check_fn))
    size = batch_size * max(1, self.record_size, _example_bytes(one_by_one))
    num_batches = int(np.clip(_BATCHES_BYTES // size, 1, _MAX_BATCHES))
    parsed = parse_chunks(
      serialized.batch(batch_size * num_batches),
      check_fn,
      num_parallel_calls,
      _keeping(finder),
      self._log.max_bad_records,
    )
    # Copies nothing until a record is left out.
    batches = parsed.rebatch(batch_size, drop_remainder)
    return (
      map_in_order(batches, parse_fn, num_parallel_calls) if has_sequences else batches
    )

  def parse_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Parses episodes; one whose sequences differ in length is bad."""
    parse_fn, finder = self._make_parser(flat_specs, True)
    sequences = [path for path, spec in flat_specs.items() if spec.is_sequence]
    return parse_chunks(
      serialized.batch(1),
      lambda texts: _of_equal_lengths(parse_fn(texts[0]), sequences),
      num_parallel_calls,
      _keeping(finder),
      self._log.max_bad_records,
    )

  def keep_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    columns: pool.PoolColumns,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Parses episodes to what pools keep of them; see the base class."""
    keep_one = keeper(flat_specs, columns)
    keep = _keeping(self._make_parser(flat_specs, True)[1])
    is_single = self.slab_size == 1
    if is_single:  # To put large strings in a batch copies them.
      chunks = serialized.map(_as_it_is(lambda text, number: (text, number[None])))
    else:
      chunks = serialized.batch(self.slab_size)

    def keep_some(texts: tf.Tensor) -> dict[str, tf.Tensor]:
      return tf.map_fn(keep_one, texts, fn_output_signature=_KEPT_SPEC)

    def keep_all(texts: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
      del numbers
      if not is_single:
        return keep_some(texts)
      return {key: value[tf.newaxis] for key, value in keep_one(texts).items()}

    def keep_good(texts: tf.Tensor, numbers: tf.Tensor) -> dict[str, tf.Tensor]:
      texts = tf.reshape(texts, [-1])
      return keep_some(tf.boolean_mask(texts, _are_good(keep, texts, numbers)))

    slabs = map_in_order(chunks, watched(keep_all, keep_good), num_parallel_calls)
    return slabs.filter(_as_it_is(lambda slab: tf.size(slab["kept"]) > 0))

  def check_position(self) -> None:
    """Checks that nobody is to save one: TensorFlow could not, at the save."""
    if keeps_positions():
      # "IgnoreErrorsDataset does not support symbolic checkpointing."
      raise errors.SpecError(
        f"{self._where}: params['is_checkpointed']: expected on_bad_record='raise', "
        "got 'skip', of which TensorFlow saves no position. Resume from "
        "params['start_step'], or leave bad records out for good: "
        "t2r_seq doctor FILES --salvage OUT."
      )

  def _make_parser(
    self,
    flat_specs: specs.TensorSpecStruct,
    same_lengths: bool = False,
  ) -> tuple[ParseFn, BadRecordFinder]:
    """Makes what parses: one graph, traced once, for all datasets of these specs."""
    made = self._made.get(same_lengths)
    if made is None or made[0] is not flat_specs:
      parse_fn = records.create_parse_tf_example_fn(
        flat_specs, decode_images=self._decode_images, is_one_episode=same_lengths
      )
      (features,) = collect_features({"": flat_specs}, self._decode_images).values()
      finder = BadRecordFinder(self._filenames, features, same_lengths, self._log)
      made = flat_specs, tf.function(parse_fn, autograph=False), finder
      self._made[same_lengths] = made
    return made[1:]


def make_reading(
  files: FilesByKey,
  max_bad_records: int | None,
  where: str,
  decode_images: DecodeImages = True,
  chosen: ChosenRecords | None = None,
) -> RecordReading:
  """Creates the reading; of a limit of None one that stops at a bad record."""
  if max_bad_records is None:
    return RecordReading(decode_images, chosen)
  return SkippingReading(files, max_bad_records, where, decode_images)


def _keeping(finder: BadRecordFinder) -> KeepFn:
  def keep(texts: np.ndarray, numbers: np.ndarray | None = None) -> np.ndarray:
    filenames = None
    if numbers is not None:
      names = finder.filenames
      filenames = sorted({names[number % len(names)] for number in numbers.tolist()})
    return finder.are_good(texts.tolist(), filenames)

  return keep


def _of_equal_lengths(episode: Any, sequences: Sequence[str]) -> Any:
  """Returns an episode, if all its sequences are equally long, and fails otherwise."""
  if len(sequences) < 2:
    return episode
  lengths = tf.stack([tf.shape(episode[path], tf.int64)[0] for path in sequences])
  # `tf.debugging.assert_equal` takes ten ops more.
  is_even = tf.raw_ops.Assert(
    condition=tf.reduce_all(lengths == lengths[0]),
    data=["expected sequences of one length, got", lengths],
  )
  with tf.control_dependencies([is_even]):
    return tf.nest.map_structure(tf.identity, episode)


def _checked(parse_fn: ParseFn) -> ParseFn:
  """Returns a function that hands records on if they can be parsed, and else fails."""

  def check(serialized: tf.Tensor) -> tf.Tensor:
    leaves = tf.nest.flatten(parse_fn(serialized))
    # A control dependency would not do: the optimizer of graphs drops it.
    is_parsed = tf.reduce_all([tf.size(leaf, tf.int64) >= 0 for leaf in leaves])
    return tf.where(is_parsed, serialized, "")

  return _as_it_is(check)
