"""Reading past bad records: the rest of their batch, and of their file, is kept."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records
from t2r_seq.data.reading import python_calls
from t2r_seq.data.reading.record_reading import ParseFn
from t2r_seq.records import batch_check, explain, frame_scan, locate, problems, resume
from t2r_seq.records.bad_records import BadRecordLog

_as_it_is = tf.autograph.experimental.do_not_convert
_Stamp = tuple[int, int]

# Watching a parse for failure takes 0.2 ms, so records are parsed by the chunk.
_CHUNK_BYTES = 1 << 22
_MAX_CHUNK = 16


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
    whole = tf.data.TFRecordDataset(filename, compression_type=compression)
    may_go_on = tf.numpy_function(self._may_go_on, [filename], tf.bool, stateful=True)
    # Iterators of functions take milliseconds to be made: none for a file that is good.
    rest = tf.cond(
      tf.ensure_shape(may_go_on, []),
      _as_it_is(lambda: self._variant_of_rest(filename, compression)),
      _as_it_is(lambda: tf.data.experimental.to_variant(_nothing())),
    )
    rest = tf.data.experimental.from_variant(rest, tf.TensorSpec([], tf.string))
    return whole.ignore_errors(log_warning=False).concatenate(rest)

  def _may_go_on(self, filename: bytes) -> bool:
    """Whether a file may have records after a damage; the first time any may.

    A file that cannot be opened is no bad record, and skipped for ever: TensorFlow's
    reader fails each time that it is asked, and goes on to no other file.
    """
    name = filename.decode()
    try:
      with frame_scan.open_file(name) as file:
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
      return True
    return rest is None or len(rest) > 0

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
      _as_it_is(lambda pair: resume.read_stretch(filename, pair[0], pair[1]))
    )

  def _find_rest(self, filename: bytes, compression: bytes) -> np.ndarray:
    """Looks through a file once, after it has been read for the first time."""
    name = filename.decode()
    if name not in self._rests:
      with python_calls.call_of_python():
        stamp = _stamp(name)
        rest = resume.find_rest(name, compression.decode())
      for problem in rest.problems:
        self._log.add([problem])
      self._rests[name] = stamp, rest.stretches
    return self._rests[name][1]


def _stamp(name: str) -> _Stamp:
  found = tf.io.gfile.stat(name)
  return found.length, found.mtime_nsec


def _nothing() -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))


class RecordSkipper:
  """Parses what can be parsed; what cannot is left out, counted and explained.

  What fails is found by TensorFlow, where it costs nothing until it happens. Then the
  batch is looked through in Python, and what is good of it is parsed again.
  """

  def __init__(
    self,
    filenames: Sequence[str],
    features: list[records.RecordFeature],
    same_lengths: bool,
    log: BadRecordLog,
  ) -> None:
    """Creates the skipper.

    Args:
      filenames: of the files, all of one dataset.
      features: what is parsed.
      same_lengths: whether the sequences of a record have to be equally long.
      log: takes what is left out.
    """
    self._filenames = list(filenames)
    self._same_lengths = same_lengths
    self._log = log
    self._features = features
    self._checker: batch_check.BatchChecker | None = None

  def parse(
    self,
    serialized: tf.data.Dataset,
    parse_fn: ParseFn,
    batch_size: int | None,
    record_size: int,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Parses records, by the batch or one by one.

    Args:
      serialized: scalar strings.
      parse_fn: takes a batch [n], or a scalar where there is no batch size.
      batch_size: the least to parse at once: small records are parsed more at a time.
        None: one by one.
      record_size: bytes of a record, about.
      num_parallel_calls: has no influence on the order.
    Returns:
      Dataset of what `parse_fn` returns; batches are not of one size.
    """
    texts = serialized
    if batch_size is not None:
      chunk = np.clip(_CHUNK_BYTES // max(1, batch_size * record_size), 1, _MAX_CHUNK)
      texts = serialized.batch(batch_size * int(chunk))
    parse_fn = _as_it_is(parse_fn)

    @_as_it_is
    def parse_one(text: tf.Tensor) -> tf.data.Dataset:
      given = tf.data.Dataset.from_tensors(text)
      kept = given.map(_as_it_is(lambda t: self._keep(tf.reshape(t, [-1]))))
      if batch_size is None:
        kept = kept.flat_map(tf.data.Dataset.from_tensor_slices)
      else:
        kept = kept.filter(_as_it_is(lambda t: tf.size(t) > 0))
      good = given.map(parse_fn).ignore_errors(log_warning=False)
      # What is kept is only looked for where nothing is good at once.
      return good.concatenate(kept.map(parse_fn)).take(1)

    if num_parallel_calls is None:
      return texts.flat_map(parse_one)
    return texts.interleave(
      parse_one,
      cycle_length=(
        num_parallel_calls if num_parallel_calls > 0 else max(2, os.cpu_count() or 1)
      ),
      num_parallel_calls=num_parallel_calls,
      deterministic=True,
    )

  def _keep(self, texts: tf.Tensor) -> tf.Tensor:
    kept = tf.numpy_function(self._keep_good, [texts], tf.string)
    return tf.ensure_shape(kept, [None])

  def _keep_good(self, values: np.ndarray) -> np.ndarray:
    """Returns the good records of some that hold bad ones, and notes the latter."""
    if self._checker is None:
      self._checker = batch_check.checker_of(self._features, measures=False)
    data = values.tolist()
    with python_calls.call_of_python():
      check = self._checker.check(data)
      is_good = check.is_parsed & (check.is_even | (not self._same_lengths))
      for i in np.flatnonzero(~is_good):
        self._note(data[i])
    # What failed for another reason fails again, and is not lost.
    return np.array([data[i] for i in np.flatnonzero(is_good)], object)

  def _note(self, data: bytes) -> None:
    """Notes a bad record, and all others with the same bytes."""
    found = records.explain_record(data, self._features)
    if not found and self._same_lengths:
      found = explain.explain_lengths(data, self._features)
    if not found:
      reason = "one that TensorFlow cannot parse"
      found = [errors.Mismatch("record", "a record that can be parsed", reason)]
    places: list[tuple[str, int | None, int | None]]
    places = [*locate.locate_record(data, self._filenames)]
    for place in places or [(", ".join(self._filenames), None, None)]:
      self._log.add(
        [
          problems.RecordProblem(*place, problems.CONTENT, mismatch)
          for mismatch in found
        ]
      )
