"""Episodes whose large raw steps stay in their files until a pool has room for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import allocation, errors, records, specs
from t2r_seq.data.reading.python_calls import call_of_python
from t2r_seq.data.streamed.large_steps import is_large_step
from t2r_seq.records import frame_scan, framing, raw_steps, storage

_as_it_is = tf.autograph.experimental.do_not_convert

# A record costs 0.2 ms more than by the parser, and a frame of 27 KB 9 us less: records
# of 12 such frames came at 0.75 of the parser's rate, of 250 at 1.4.
_MIN_RECORD_BYTES = 1 << 20


class RawEpisodes:
  """Reads episodes that hold places in a file instead of their large raw steps.

  Attributes:
    specs: of those steps, by path.
  """

  def __init__(
    self,
    filenames: list[str],
    flat_specs: specs.TensorSpecStruct,
    found: Mapping[str, specs.ExtendedTensorSpec],
  ) -> None:
    """Creates the reader.

    Args:
      filenames: on disks of this machine, not compressed.
      flat_specs: of an episode, by path.
      found: those of them that are read so, by path.
    """
    self.specs = dict(found)
    self._filenames = filenames
    others = specs.TensorSpecStruct(
      (path, spec) for path, spec in flat_specs.items() if path not in found
    )
    self._parse = (
      records.create_parse_tf_example_fn(others, decode_images=False)
      if others
      else lambda _: {}
    )
    self._names = {path: spec.name for path, spec in found.items()}
    self._steps = raw_steps.RawSteps(
      {spec.name: storage.bytes_per_value(spec) for spec in found.values()}
    )
    # One for each, as pools are of the same size, about, and features are not.
    self._memory = {name: allocation.ReusedMemory() for name in self._steps.step_bytes}

  @_as_it_is
  def records_of(self, number: tf.Tensor) -> tf.data.Dataset:
    """Returns a dataset of the file's number, and offset and length of each record's
    data, int64 [3].
    """
    found = tf.numpy_function(self._scan, [number], tf.int64, stateful=False)
    return tf.data.Dataset.from_tensor_slices(tf.ensure_shape(found, [None, 3]))

  @_as_it_is
  def episode(self, record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Returns an episode, by path, with the places of large raw steps, int64 [T].

    The second of the pair is the record itself, for `load`.
    """
    paths = list(self.specs)
    serialized, *places = tf.numpy_function(
      self._strip, [record], [tf.string, *[tf.int64] * len(paths)], stateful=False
    )
    episode = dict(self._parse(tf.ensure_shape(serialized, [])))
    for path, steps in zip(paths, places, strict=True):
      episode[path] = tf.ensure_shape(steps, [None])
    return episode, record

  @_as_it_is
  def load(
    self, record: tf.Tensor, length: tf.Tensor, places: Mapping[str, tf.Tensor]
  ) -> dict[str, tf.Tensor]:
    """Reads the steps of episodes that follow each other.

    Args:
      record: of each episode, int64 [E, 3].
      length: steps of each, int64 [E].
      places: of their steps by path, int64 [N].
    Returns:
      The steps by path, [N, ...].
    """
    paths = list(self.specs)
    loaded = tf.numpy_function(
      self._load,
      [record, length, *[places[path] for path in paths]],
      [spec.dtype for spec in self.specs.values()],
      stateful=False,
    )
    shapes = {path: [None, *spec.shape] for path, spec in self.specs.items()}
    return {
      path: tf.ensure_shape(rows, shapes[path])
      for path, rows in zip(paths, loaded, strict=True)
    }

  def _scan(self, number: int) -> np.ndarray:
    filename = self._filenames[number]
    with call_of_python():
      frames = frame_scan.scan_frames(filename)
    if frames.gaps:
      index, start, _ = frames.gaps[0]
      where = framing.place(filename, index, start)
      raise errors.RecordError(f"{where}: expected a record, got none.")
    starts = frames.starts + framing.HEADER_SIZE
    lengths = frames.stops - frames.starts - framing.FRAME_SIZE
    return np.stack([np.full_like(starts, number), starts, lengths], 1)

  def _strip(self, record: np.ndarray) -> tuple[Any, ...]:
    number, offset, length = record.tolist()
    with call_of_python():
      stripped = self._steps.strip(self._filenames[number], offset, length)
    places = [stripped.places[name] for name in self._names.values()]
    return (stripped.serialized, *places)

  def _load(
    self, record: np.ndarray, length: np.ndarray, *places: np.ndarray
  ) -> list[np.ndarray]:
    found = dict(zip(self._names.values(), places, strict=True))
    rows = {
      name: self._memory[name].take(len(found[name]) * size).reshape(-1, size)
      for name, size in self._steps.step_bytes.items()
    }
    ends = np.cumsum(length)
    with call_of_python():
      for episode, start, end in zip(record, ends - length, ends, strict=True):
        number, offset, size = episode.tolist()
        its_places, its_rows = (
          {name: values[start:end] for name, values in of_all.items()}
          for of_all in (found, rows)
        )
        self._steps.read(self._filenames[number], offset, size, its_places, its_rows)
    return [
      rows[spec.name].view(spec.dtype.as_numpy_dtype).reshape(-1, *spec.shape)
      for spec in self.specs.values()
    ]


def find_raw_episodes(
  filenames: list[str],
  flat_specs: specs.TensorSpecStruct,
  joined: specs.TensorSpecStruct,
) -> RawEpisodes | None:
  """Finds out which steps can be read without a parser, by the specs and the files.

  Args:
    filenames: of one dataset.
    flat_specs: of an episode, by path.
    joined: of a window.
  Returns:
    What reads them; None where there are none, the first record is too short for it to
    be worth it, or a package is missing.
  """
  found = {
    path: specs.ExtendedTensorSpec.to_spec(spec)
    for path, spec in flat_specs.items()
    if joined[path].time_offsets is not None
    and f"{path}_length" not in flat_specs
    and _is_raw(spec)
  }
  names = [spec.name for spec in found.values()]
  are_plain = all(
    "://" not in name and not records.compression_type(name) for name in filenames
  )
  # A feature that two paths show is left to the parser.
  if not found or not are_plain or len(names) != len(set(names)):
    return None
  header = framing.read_content(filenames[0], "", 0, framing.HEADER_SIZE)
  is_whole = len(header) == framing.HEADER_SIZE
  if not is_whole or (framing.read_length(header) or 0) < _MIN_RECORD_BYTES:
    return None
  if raw_steps.can_read_raw_steps():
    return RawEpisodes(filenames, flat_specs, found)
  logging.info(
    "Raw steps of %s go through TensorFlow's parser. With an extra they are read from "
    "their files, which is faster: pip install 't2r_seq[crc32c]'",
    errors.listing(found),
  )
  return None


def _is_raw(spec: Any) -> bool:
  """Whether the steps are large, and their bytes in the record those in memory."""
  return (
    sys.byteorder == "little"
    and spec.is_sequence
    and not spec.is_optional
    and spec.varlen_default_value is None
    and not specs.is_encoded_image_spec(spec)
    and storage.is_raw(spec)
    and np.dtype(spec.dtype.as_numpy_dtype).kind in "uifc"
    and is_large_step(spec.shape, spec.dtype)
  )
