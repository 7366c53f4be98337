"""Episodes whose large raw steps stay in their files until a pool has room for them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import allocation, errors, records, specs
from t2r_seq.data.python_calls import call_of_python
from t2r_seq.data.reading.bad_record_finder import BadRecordFinder
from t2r_seq.data.reading.skipping import of_equal_lengths, parse_chunks
from t2r_seq.data.streamed.large_steps import is_large_step
from t2r_seq.records import features, framing, raw_steps

_as_it_is = tf.autograph.experimental.do_not_convert

# A record costs 0.2 ms more than by the parser, and a frame of 27 KB 9 us less: records
# of 12 such frames came at 0.75 of the parser's rate, of 250 at 1.4.
_MIN_RECORD_BYTES = 1 << 20
# A call of Python from a dataset costs 0.1 ms, to look through a record 0.04 ms.
_RECORDS_AT_ONCE = 8
# Of a place: the number of the file, offset and length of the record's data in it, and
# its checksum.
_CHECKSUM, _STEPS = 3, 4


class RawEpisodes:
  """Reads episodes without their large raw steps, and later these.

  An episode comes with its place: an int64 vector of the file's number, offset, length
  and checksum of the record's data, and, by feature, where the first step's bytes are
  in the record and the number of steps.

  Attributes:
    specs: of those steps, by path.
    place_spec: of a place.
  """

  def __init__(
    self,
    filenames: list[str],
    flat_specs: specs.TensorSpecStruct,
    found: Mapping[str, specs.ExtendedTensorSpec],
    finder: BadRecordFinder | None = None,
  ) -> None:
    """Creates the reader.

    Args:
      filenames: on disks of this machine, not compressed.
      flat_specs: of an episode, by path.
      found: those of them that are read so, by path.
      finder: notes bad records, which are left out; None: they are errors.
    """
    self._finder = finder
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
    self._sequences = [path for path, spec in others.items() if spec.is_sequence]
    self._names = [spec.name for spec in found.values()]
    self.place_spec = tf.TensorSpec([_STEPS + 2 * len(found)], tf.int64)
    self._steps = raw_steps.RawSteps(
      {spec.name: features.bytes_per_value(spec) for spec in found.values()}
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

  def map_episodes(self, found: tf.data.Dataset, function: Any) -> tf.data.Dataset:
    """Maps a function over episodes, by path, and their places.

    In no thread of its own: what is left of a record is parsed in a twentieth of the
    time that its large steps take, and to wake up a thread takes as long.

    Args:
      found: of what `records_of` gives.
      function: called with both.
    Returns:
      Dataset of what the function returns.
    """

    @_as_it_is
    def strip(some: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      types = [tf.string, tf.int64]
      text, place = tf.numpy_function(self._strip, [some], types, stateful=False)
      shape = tf.TensorShape([None]).concatenate(self.place_spec.shape)
      return tf.ensure_shape(text, [None]), tf.ensure_shape(place, shape)

    stripped = found.batch(_RECORDS_AT_ONCE).map(strip)

    def parse_checked(text: tf.Tensor, place: tf.Tensor) -> tuple[Any, tf.Tensor]:
      lengths = list(self.lengths(place).values())
      return of_equal_lengths(self._parse(text), self._sequences, lengths), place

    if self._finder is not None:
      return parse_chunks(stripped, parse_checked, None, self._keep, function)
    return stripped.flat_map(
      _as_it_is(lambda *some: tf.data.Dataset.from_tensor_slices(some))
    ).map(_as_it_is(lambda text, place: function(self._parse(text), place)))

  def lengths(self, place: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the numbers of steps of an episode by path, int64 scalars."""
    of_each = tf.unstack(place)[_STEPS + 1 :: 2]
    return dict(zip(self.specs, of_each, strict=True))

  @_as_it_is
  def load(self, places: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Reads the steps of episodes that follow each other.

    Args:
      places: int64 [episodes, ...]; each with a step.
    Returns:
      The steps by path, [N, ...]; and of which episodes they are good, bool [episodes].
    """
    types = [*(spec.dtype for spec in self.specs.values()), tf.bool]
    *loaded, is_good = tf.numpy_function(self._load, [places], types, stateful=False)
    steps = {
      path: tf.ensure_shape(rows, [None, *spec.shape])
      for (path, spec), rows in zip(self.specs.items(), loaded, strict=True)
    }
    return steps, tf.ensure_shape(is_good, [None])

  def _keep(self, texts: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Looks through the whole records of which some could not be parsed."""
    del texts
    return np.array([self._is_good(*place[:2]) for place in places.tolist()])

  def _is_good(self, number: int, offset: int) -> bool:
    filename = self._filenames[number]
    start = offset - framing.HEADER_SIZE
    frames = framing.read_frames(filename)
    data = next((frame.data for frame in frames if frame.start == start), None)
    if data is None:
      self._note(number, offset, "")
      return False
    finder = cast(BadRecordFinder, self._finder)
    return bool(finder.are_good([data], [filename])[0])

  def _note(self, number: int, offset: int, reason: str) -> None:
    start = offset - framing.HEADER_SIZE
    cast(BadRecordFinder, self._finder).note_at(self._filenames[number], start, reason)

  def _scan(self, number: int) -> np.ndarray:
    filename = self._filenames[number]
    with call_of_python():
      found = list(framing.read_frames(filename, lengths=()))
      gaps = [frame for frame in found if frame.damage is not None]
      if self._finder is not None:
        self._finder.note_gaps(filename, gaps)
      elif gaps:
        where = framing.place(filename, gaps[0].number, gaps[0].start)
        raise errors.RecordError(f"{where}: expected a record, got none.")
    frames = [frame for frame in found if frame.damage is None]
    starts = np.asarray([f.start for f in frames], np.int64) + framing.HEADER_SIZE
    lengths = np.asarray([f.stop for f in frames], np.int64) - starts
    lengths -= framing.FOOTER_SIZE
    return np.stack([np.full_like(starts, number), starts, lengths], 1)

  def _strip(self, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    texts = np.empty(len(some), object)
    places = np.empty([len(some), *self.place_spec.shape], np.int64)
    places[:, :_CHECKSUM] = some
    is_good = np.ones(len(some), bool)
    with call_of_python():
      for i, (number, offset, length) in enumerate(some.tolist()):
        try:
          stripped = self._steps.strip(self._filenames[number], offset, length)
        except errors.RecordError as error:
          if self._finder is None:
            raise
          self._note(number, offset, str(error))
          is_good[i] = False
          continue
        texts[i], places[i, _CHECKSUM] = stripped.serialized, stripped.checksum
        steps = [stripped.places[name] for name in self._names]
        places[i, _STEPS:] = [n for its in steps for n in (its.start, len(its))]
    return texts[is_good], places[is_good]

  def _load(self, places: np.ndarray) -> list[np.ndarray]:
    num_steps = places[:, _STEPS + 1 :: 2]
    ends = np.cumsum(num_steps, 0)
    rows = {
      name: self._memory[name].take(int(count) * size).reshape(-1, size)
      for (name, size), count in zip(
        self._steps.step_bytes.items(), num_steps.sum(0), strict=True
      )
    }
    is_good = np.ones(len(places), bool)
    with call_of_python():
      for i, (place, end) in enumerate(
        zip(places.tolist(), ends.tolist(), strict=True)
      ):
        number, offset, length, checksum = place[:_STEPS]
        starts, counts = place[_STEPS::2], place[_STEPS + 1 :: 2]
        try:
          self._steps.read(
            *(self._filenames[number], offset, length, checksum),
            dict(zip(self._names, starts, strict=True)),
            {
              name: rows[name][stop - count : stop]
              for name, count, stop in zip(self._names, counts, end, strict=True)
            },
          )
        except errors.RecordError as error:
          # That of a record which is another by now is no bad record.
          if self._finder is None or raw_steps.REPLACED in str(error):
            raise
          self._note(number, offset, str(error))
          is_good[i] = False
    loaded = [
      rows[spec.name].view(spec.dtype.as_numpy_dtype).reshape(-1, *spec.shape)
      for spec in self.specs.values()
    ]
    return [*loaded, is_good]


def find_raw_episodes(
  filenames: list[str],
  flat_specs: specs.TensorSpecStruct,
  joined: specs.TensorSpecStruct,
  finder: BadRecordFinder | None,
) -> RawEpisodes | None:
  """Finds out which steps can be read without a parser, by the specs and the files.

  Args:
    filenames: of one dataset.
    flat_specs: of an episode, by path.
    joined: of a window.
    finder: notes bad records, which are left out; None: they are errors.
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
  header = framing.read_start(filenames[0], "", framing.HEADER_SIZE)[0]
  is_whole = len(header) == framing.HEADER_SIZE
  if not is_whole or (framing.read_length(header) or 0) < _MIN_RECORD_BYTES:
    return None
  if raw_steps.can_read_raw_steps():
    return RawEpisodes(filenames, flat_specs, found, finder)
  logging.info(
    "Raw steps of %s go through TensorFlow's parser. With an extra they are read from "
    "their files, which is faster: pip install 't2r_seq[crc]'",
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
    and features.is_raw(spec)
    and np.dtype(spec.dtype.as_numpy_dtype).kind in "uifc"
    and is_large_step(spec.shape, spec.dtype)
  )
