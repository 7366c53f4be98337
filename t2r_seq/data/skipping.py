"""Reads record files without their bad records, which are counted, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs
from t2r_seq.data import pool
from t2r_seq.data.input_generator import InputReport
from t2r_seq.data.record_files import FilesByKey, RecordReading, keeper, map_in_order
from t2r_seq.errors import Problem
from t2r_seq.records import framing
from t2r_seq.records.features import require
from t2r_seq.records.images import DecodeImages
from t2r_seq.windows.dataset import WindowReport

_no_autograph = tf.autograph.experimental.do_not_convert

# A record's place is an int64: the number of its file times this, plus its own number.
_MAX_RECORDS = 1 << 40
# Catching errors costs 0.2 ms a call, so records are parsed in chunks.
_CHUNK_BYTES, _MAX_BATCHES = 1 << 24, 16
_NUM_NAMED = 3
_KEPT_SPEC = {
  "kept": tf.TensorSpec([], tf.variant),
  "numbers": tf.TensorSpec([4], tf.int64),
}


class RecordInputReport:
  """Counts the records that are left out, each once.

  Attributes:
    max_bad_records: limit of bad records; one more is an error.
    window_report: counts of the windows; None if records are not cut into windows.
    failure: the error of too many bad records, or of a file that cannot be read; None
      before it.
  """

  def __init__(self, filenames: list[str], max_bad_records: int) -> None:
    """Creates a report without bad records.

    Args:
      filenames: names of the files.
      max_bad_records: limit of bad records; one more is an error.
    """
    self.window_report: WindowReport | None = None
    self.failure: errors.RecordError | None = None
    self._filenames = filenames
    self.max_bad_records = max_bad_records
    # Atomic operations of a dict in place of a lock: the garbage collector may destroy
    # an iterator while a lock is held, and wait for a thread that waits for the lock.
    self._bad_records: dict[int, Problem] = {}

  @property
  def num_skipped(self) -> int:
    """Records left out, each counted once, however many epochs there were."""
    return len(self._bad_records)

  @property
  def problems(self) -> tuple[Problem, ...]:
    """Places of the bad records, in the order of reading; see `t2r_seq doctor`."""
    return tuple([*self._bad_records.values()])

  @property
  def too_short(self) -> int:
    """Episodes that were too short for a window."""
    return self.window_report.too_short if self.window_report else 0

  def __str__(self) -> str:
    left_out = f"{self.num_skipped} bad records left out"
    return f"{self.window_report}; {left_out}" if self.window_report else left_out

  def add(self, place: int) -> None:
    """Counts a bad record; logs the first few.

    Args:
      place: number of its file times `_MAX_RECORDS`, plus its number in the file.
    Raises:
      RecordError: there are too many bad records.
    """
    file, number = divmod(place, _MAX_RECORDS)
    name = self._filenames[file]
    bad = Problem(f"record {number} of {name}", "", source=name, record=number)
    if self._bad_records.setdefault(place, bad) is not bad:
      return
    if len(self._bad_records) <= _NUM_NAMED:
      logging.warning("Left out bad %s. t2r_seq doctor explains it.", bad)
    if len(self._bad_records) > self.max_bad_records:
      first = "; ".join(map(str, self.problems[:_NUM_NAMED]))
      self.fail(
        "on_bad_record='skip': max_bad_records: expected at most "
        f"{self.max_bad_records}, got one more: {bad}. The first: {first}. Run "
        "t2r_seq doctor FILES, which explains each."
      )

  def fail(self, message: str) -> NoReturn:
    """Raises an error; after that, all threads raise that first one."""
    self.failure = self.failure or errors.RecordError(message)
    raise self.failure


def readable_runs(
  filename: str, compression: str = ""
) -> tuple[list[tuple[int, int, int]], list[int]]:
  """Finds the damaged frames of a file, at the first of which TensorFlow's reader ends.

  Args:
    filename: a TFRecord file.
    compression: '', 'GZIP' or 'ZLIB'. A compressed file is lost after its first damage.
  Returns:
    The runs of good frames: number of the first one, its byte offset, and how many, -1
    for all; and the numbers of the damaged ones.
  Raises:
    OSError: the file cannot be read.
  """
  if not compression and _is_good(filename):
    return [(0, 0, -1)], []
  runs: list[tuple[int, int, int]] = []
  damaged: list[int] = []
  for frame in framing.read_frames(filename, compression):
    if frame.data is None:
      damaged.append(frame.number)
      if compression:
        break
    elif runs and sum(runs[-1][::2]) == frame.number:
      runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
    else:
      runs.append((frame.number, frame.start, 1))
  return runs, damaged


def _is_good(filename: str) -> bool:
  """Whether TensorFlow, which is fast, reads every byte of a file without an error."""
  if framing.num_readable(filename) != -1:
    return False
  dataset = tf.data.TFRecordDataset(filename)
  try:
    count = framing.batch_size(len(r) for r in dataset.take(16).as_numpy_iterator())
    size = sum(
      framing.FRAME_SIZE * len(batch) + sum(map(len, batch.tolist()))
      for batch in dataset.batch(count).as_numpy_iterator()
    )
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
    return False  # InvalidArgumentError: a frame is longer than any file.
  # Without an error, TensorFlow leaves out a header that is cut off at the end.
  return bool(size == tf.io.gfile.stat(filename).length)


class SkippingReading(RecordReading):
  """Leaves bad records out, up to a limit.

  The frames of a file are checked before it is first read. Records that cannot be
  parsed or decoded are found when TensorFlow parses them, at no cost for good ones.
  Elements of `read` are pairs (place, record).
  """

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
      max_bad_records: limit of bad records; one more is an error.
      where: name of the generator and its files, for messages.
      decode_images: how encoded images are decoded.
    Raises:
      SpecError: there are several datasets: a record left out of one would shift the
        pairs of all later ones.
    """
    if len(files) > 1:
      raise errors.SpecError(
        f"{where}: on_bad_record: expected 'raise' for the zipped datasets "
        f"{errors.listing(files)}, got 'skip'."
      )
    super().__init__(decode_images)
    self._where = where
    (self._filenames,) = files.values()
    self._report = RecordInputReport(self._filenames, max_bad_records)
    # By file: its size and modification time when it was checked, and its runs.
    self._runs: dict[str, tuple[tuple[int, int], np.ndarray]] = {}

  @property
  def failure(self) -> Exception | None:  # type: ignore[override]
    """The error of too many bad records, or None."""
    return self._report.failure

  def report(self, counts: WindowReport | None) -> InputReport | None:
    """Returns counts of windows and of records left out."""
    self._report.window_report = counts
    return self._report

  @_no_autograph
  def read_file(  # type: ignore[override]
    self, filename: tf.Tensor, compression: tf.Tensor
  ) -> tf.data.Dataset:
    """Reads the good frames of a file, as (place, record)."""
    runs = tf.numpy_function(
      self._find_runs, [filename, compression], tf.int64, stateful=True
    )
    file = tf.argmax(tf.equal(tf.constant(self._filenames), filename))

    def read_run(run: tf.Tensor) -> tf.data.Dataset:
      # The raw op: tf.data.TFRecordDataset cannot start at a byte of the file.
      variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[filename],
        compression_type=compression,
        buffer_size=1 << 18,
        byte_offsets=[run[1]],
      )
      run_records = tf.data.experimental.from_variant(
        variant, tf.TensorSpec([], tf.string)
      )
      # TensorFlow's reader may stop before the damage of a compressed file.
      readable = run_records.take(run[2]).ignore_errors(log_warning=False)
      return readable.enumerate(file * _MAX_RECORDS + run[0])

    runs = tf.ensure_shape(runs, [None, 3])
    return tf.data.Dataset.from_tensor_slices(runs).flat_map(_no_autograph(read_run))

  def texts(self, files: FilesByKey) -> tf.data.Dataset:
    """Reads serialized records, without parsing."""
    return self.read(files).map(_no_autograph(lambda place, text: text))

  def _find_runs(self, filename: bytes, compression: bytes) -> np.ndarray:
    """Returns the runs of a file, cached unless it has changed."""
    name = filename.decode()
    try:
      stat = tf.io.gfile.stat(name)
      stamp = (stat.length, stat.mtime_nsec)
      before, runs = self._runs.get(name, (None, np.zeros([0, 3], np.int64)))
      if before == stamp:
        return runs
      readable, damaged = readable_runs(name, compression.decode())
    except (OSError, tf.errors.OpError) as error:
      # A missing file is not a bad record: reading stops.
      self._report.fail(f"{name}: expected a file that can be read, got: {error}.")
    if before is not None:
      logging.warning("%s: changed while it was in use: its new content is read.", name)
    for number in damaged:
      self._report.add(self._filenames.index(name) * _MAX_RECORDS + number)
    runs = np.asarray(readable, np.int64).reshape(-1, 3)
    self._runs[name] = stamp, runs
    return runs

  def parse_batches(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    batch_size: int,
    drop_remainder: bool,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Batches and parses records; full batches, however many are left out."""
    parse_fn = records.create_parse_tf_example_fn(
      flat_specs, decode_images=self.decode_images
    )
    has_sequences = any(spec.is_sequence for spec in flat_specs.values())
    decoded_size = sum(
      (spec.shape.num_elements() or 0) * spec.dtype.size
      for spec in flat_specs.values()
      if spec.dtype != tf.string
    )
    size = batch_size * max(1, self.record_size, decoded_size)
    num_batches = int(np.clip(_CHUNK_BYTES // size, 1, _MAX_BATCHES))
    # Batches of sequences are padded to different lengths and cannot be re-batched, so
    # sequences are parsed twice: first to find the bad ones, then in full batches.
    good = self._good(
      serialized.batch(batch_size * num_batches),
      _checker(parse_fn) if has_sequences else parse_fn,
      num_parallel_calls,
    )
    batches = good.rebatch(batch_size, drop_remainder)
    if not has_sequences:
      return batches
    return map_in_order(batches, parse_fn, num_parallel_calls)

  def keep_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    columns: pool.PoolColumns,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Parses episodes to the values that pools keep; see the base class."""
    keep_one = keeper(flat_specs, columns)

    def keep(texts: tf.Tensor) -> dict[str, tf.Tensor]:
      if self.chunk_size > 1:
        return tf.map_fn(keep_one, texts, fn_output_signature=_KEPT_SPEC)
      return {key: value[tf.newaxis] for key, value in keep_one(texts[0]).items()}

    return self._good(serialized.batch(self.chunk_size), keep, num_parallel_calls)

  def _good(
    self,
    chunks: tf.data.Dataset,
    function: Callable[[tf.Tensor], Any],
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Maps a function over chunks of records, except the records on which it fails.

    Graph functions cannot catch errors, but a dataset can continue after one. So each
    chunk is a small dataset.

    Args:
      chunks: places and serialized records, [n] each.
      function: takes some records, string [n].
      num_parallel_calls: number of parallel calls; does not change the order.
    Returns:
      Dataset of the function's results; nothing for chunks without a good record.
    """
    with tf.init_scope():
      # The calls of a `tf.function` take locks; see `RecordInputReport`.
      signature = [tf.TensorSpec([None], tf.string)]
      concrete = tf.function(
        _no_autograph(function), input_signature=signature
      ).get_concrete_function()

    def is_good(place: np.int64, text: bytes) -> bool:
      try:
        concrete(tf.constant([text]))
      except (tf.errors.OpError, UnicodeDecodeError):  # A message quotes the record.
        self._report.add(int(place))
      else:
        return True  # Another record of the chunk is bad.
      return False

    def watch(places: tf.Tensor, texts: tf.Tensor) -> Any:
      whole = tf.data.Dataset.from_tensors(texts).map(_no_autograph(concrete))
      rest = tf.data.Dataset.from_tensor_slices((places, texts)).filter(
        _no_autograph(
          lambda *record: tf.ensure_shape(
            tf.numpy_function(is_good, record, tf.bool, stateful=True), []
          )
        )
      )
      rest = rest.batch(tf.size(texts, tf.int64))
      # `take(1)`: if the whole chunk succeeds, its records are not tried one by one.
      parsed = whole.ignore_errors(log_warning=False).concatenate(
        rest.map(_no_autograph(lambda places, texts: concrete(texts)))
      )
      nothing = tf.experimental.Optional.empty(parsed.element_spec)
      packed = parsed.map(_no_autograph(_pack)).concatenate(
        tf.data.Dataset.from_tensors(nothing)
      )
      return packed.take(1).get_single_element(), tf.size(texts, tf.int64)

    def count_bad(num_bad: tf.Tensor, chunk: Any) -> Any:
      optional, size = chunk
      num_bad = tf.where(optional.has_value(), tf.zeros_like(num_bad), num_bad + size)
      # Each bad record counts once an epoch: with so many in a row, an epoch had no
      # good one.
      return require(
        num_bad, num_bad <= most_bad, [tf.constant(pool.NOTHING_LEFT)]
      ), optional

    most_bad = 2 * self._report.max_bad_records
    return (
      map_in_order(chunks, _no_autograph(watch), num_parallel_calls)
      .scan(tf.constant(0, tf.int64), _no_autograph(count_bad))
      .filter(_no_autograph(lambda optional: optional.has_value()))
      .map(_no_autograph(lambda optional: optional.get_value()))
    )


def _pack(*value: Any) -> Any:
  return tf.experimental.Optional.from_value(value if len(value) > 1 else value[0])


def _checker(parse_fn: Callable[[tf.Tensor], Any]) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns an identity function on records that raises if parsing fails."""

  def check(serialized: tf.Tensor) -> tf.Tensor:
    leaves = tf.nest.flatten(parse_fn(serialized))
    # Not a control dependency, which TensorFlow's graph optimizer removes.
    is_parsed = tf.reduce_all([tf.size(leaf, tf.int64) >= 0 for leaf in leaves])
    return tf.where(is_parsed, serialized, "")

  return check
