"""`FileResumer`: reads files past their damages."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.data.python_calls import call_of_python
from t2r_seq.records import check, framing
from t2r_seq.records.check import BadRecordLog

_as_it_is = tf.autograph.experimental.do_not_convert
_Stamp = tuple[int, int]


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
      _as_it_is(lambda pair: check.read_stretch(filename, pair[0], pair[1]))
    )

  def _find_rest(self, filename: bytes, compression: bytes) -> np.ndarray:
    """Looks through a file once, after it has been read for the first time."""
    name = filename.decode()
    if name not in self._rests:
      with call_of_python():
        stamp = _stamp(name)
        rest = check.find_rest(name, compression.decode())
      for problem in rest.problems:
        self._log.add([problem])
      self._rests[name] = stamp, rest.stretches
    return self._rests[name][1]


def _stamp(name: str) -> _Stamp:
  found = tf.io.gfile.stat(name)
  return found.length, found.mtime_nsec


def _nothing() -> tf.data.Dataset:
  return tf.data.Dataset.from_tensor_slices(tf.zeros([0], tf.string))
