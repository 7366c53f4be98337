"""Pools of episodes that Python reads: the second feeder, over any `read`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data import pool
from t2r_seq.data.loaders import PoolReader, WindowLoader
from t2r_seq.data.plan import Plan
from t2r_seq.episodes import Episodes
from t2r_seq.episodes.episodes import EpisodePart
from t2r_seq.process import PythonCalls
from t2r_seq.records.features import encoded_specs
from t2r_seq.records.images import DecodeImages
from t2r_seq.store.mapped import empty_array
from t2r_seq.windows.cut import too_short_error

# Bytes of a text in a tensor.
_STRING_BYTES = 96
# Episodes that a thread reads in one call.
_EPISODES_AT_ONCE = 16


class EpisodePools(PoolReader):
  """Reads pools of a data set's episodes, or of parts of them.

  Steps are read to where they stay in the pool: numbers are copied once at most, and
  each image is decoded once.

  Attributes:
    lengths: steps of each episode, int64 [n].
  """

  def __init__(
    self,
    episodes: Episodes,
    joined: specs.TensorSpecStruct,
    cut: windows.Cut,
    numbers: np.ndarray,
    decode_images: DecodeImages,
    failures: list[Exception],
  ) -> None:
    """Plans the windows; reads no episode, or the last flags of transitions.

    Args:
      episodes: the data set.
      joined: the specs of a window.
      cut: how episodes become windows.
      numbers: of the episodes to read, int64 [n].
      decode_images: how encoded images are decoded.
      failures: what `read` raises is appended, because TensorFlow keeps only its text.
    Raises:
      SpecError: the episodes do not fit the specs.
    """
    assert episodes.lengths is not None
    stored = readable(episodes)
    columns = pool.PoolColumns(
      element_spec(stored), with_formats(joined, stored), cut, decode_images
    )
    self._columns, self._data, self._numbers = columns, episodes, numbers
    self._stored = {path: stored[path] for path in columns.encoded.paths}
    self._element = element_spec(self._stored)
    self._timed = frozenset(columns.encoded.timed_paths)
    self._failures, self._calls = failures, PythonCalls()
    self.lengths = np.asarray(episodes.lengths)[numbers]
    reader = columns.reader
    num_rows = reader.num_rows(self.lengths, self._last_flags(reader.end_flag))
    counts = np.asarray(reader.grid.num_windows(num_rows))
    if reader.clocks:
      parts = [EpisodePart(int(number)) for number in numbers]
      stamps = episodes.read_many(parts, reader.clocks)
      places = (episodes.place(part.episode) for part in parts)
      reader.survey_stamps(zip(places, stamps, strict=True))
    step_bytes = self._count_step_bytes()
    super().__init__(columns, counts, self.lengths, step_bytes, episodes.read_bytes)

  def loader(self, plan: Plan) -> WindowLoader:
    """Returns the loader of a plan's batches.

    Raises:
      RecordError: all episodes are too short for a window.
      SpecError: there are not enough windows for a batch.
    """
    if not self.counts.sum():  # To repeat nothing has no end.
      longest, least = max(self.lengths, default=0), self._columns.reader.min_steps
      raise too_short_error(plan.where, least, len(self.lengths), longest)
    return WindowLoader(plan, None, int(self.counts.sum()), make_pools=lambda: self)

  def report(self) -> windows.WindowReport:
    """Returns what an epoch of all shards holds, and which episodes are too short."""
    return windows.WindowReport.of_episodes(self.lengths, self.counts)

  def _count_step_bytes(self) -> int:
    """Returns the memory of a step in a pool, and of its encoded images."""
    total = 0
    for path in self._timed:
      spec, image = self._element[path], self._columns.images.get(path)
      if image is not None:
        pixels = int(np.prod(image.shape.as_list())) * image.dtype.size
        total += (3 * pixels + 1) // 2  # The strings are there while they are decoded.
      elif spec.dtype == tf.string:
        total += _STRING_BYTES
      else:
        total += int(np.prod(spec.shape.as_list()[1:])) * spec.dtype.size
    return total

  def _last_flags(self, flag: str | None) -> np.ndarray | None:
    """Returns whether a flag is set in the last step of each episode, bool [n]."""
    if flag is None:
      return None
    parts = (
      EpisodePart(int(number), int(length) - 1, int(length))
      for number, length in zip(self._numbers, self.lengths, strict=True)
    )
    values = self._data.read_many(parts, [flag])
    return np.array([np.asarray(each[flag]).any() for each in values], bool)

  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    arrays = tf.numpy_function(
      self._read_arrays,
      [episodes, first_step, num_steps],
      [spec.dtype for spec in self._element.values()],
    )
    values = {}
    for (path, spec), array in zip(self._element.items(), arrays, strict=True):
      timed = path in self._timed
      values[path] = tf.ensure_shape(
        array, spec.shape if timed else [None, *spec.shape]
      )
    return self._columns.decode(self._columns.select(values))

  def _read_arrays(
    self, episodes: np.ndarray, first_step: np.ndarray, num_steps: np.ndarray
  ) -> Sequence[np.ndarray]:
    """Returns the steps of all episodes, and a row of each for context features."""
    ends = np.cumsum(num_steps)
    arrays = {}
    for path, spec in self._element.items():
      shape = spec.shape[1:] if path in self._timed else spec.shape
      size = int(ends[-1]) if path in self._timed else len(episodes)
      make = np.empty if spec.dtype == tf.string else empty_array
      arrays[path] = make((size, *shape), spec.dtype.as_numpy_dtype)

    def part(place: int) -> EpisodePart:
      start, end, count = int(first_step[place]), ends[place], int(num_steps[place])
      rooms = {path: arrays[path][end - count : end] for path in self._timed}
      number = int(self._numbers[episodes[place]])
      return EpisodePart(number, start, start + count, rooms)

    def read(places: np.ndarray) -> None:
      parts = [part(place) for place in places]
      found = self._data.read_many(parts, self._element)
      for place, own, values in zip(places, parts, found, strict=True):
        self._calls.check()
        if len(values) < len(arrays):
          check_present(self._element, values, self._data.place(own.episode))
        for path, array in arrays.items():
          if path not in self._timed:
            array[place] = values[path]
          elif values[path] is not (room := own.out[path]):  # type: ignore[index]
            room[...] = values[path]

    with self._calls.one():
      try:
        shown = np.flatnonzero(num_steps)
        # Few long episodes are read in parallel, many short ones in few calls.
        count = max(pool.PARSES_AT_ONCE, -(-len(shown) // _EPISODES_AT_ONCE))
        groups = np.array_split(shown, count)
        with futures.ThreadPoolExecutor(pool.PARSES_AT_ONCE) as executor:
          list(executor.map(read, groups))
      except Exception as error:
        self._failures.append(error)
        raise
    return list(arrays.values())


def readable(episodes: Episodes) -> dict[str, specs.ExtendedTensorSpec]:
  """Returns the specs of all paths that can be read."""
  return {**episodes.derived_spec, **episodes.spec}


def with_formats(
  joined: specs.TensorSpecStruct, stored: Mapping[str, specs.ExtendedTensorSpec]
) -> specs.TensorSpecStruct:
  """Gives specs that read encoded images the images' format."""
  found = joined.copy()
  for path, spec in joined.items():
    source = stored.get(path, stored.get(spec.name))
    if source is not None and source.data_format and not spec.data_format:
      found[path] = specs.ExtendedTensorSpec.from_spec(
        spec, data_format=source.data_format
      )
  return found


def check_present(paths: Iterable[str], values: Mapping[str, Any], place: str) -> None:
  """Checks that an episode has all paths: zeros would hide that one is missing.

  Raises:
    SpecError: with every missing path.
  """
  missing = [path for path in paths if path not in values]
  if missing:
    raise errors.SpecError(
      f"read: {place}: expected {errors.listing(missing)}, got an episode without. "
      "Leave such episodes out (episodes=...), or the path out of the specs."
    )


def element_spec(
  stored: Mapping[str, specs.ExtendedTensorSpec],
) -> dict[str, tf.TensorSpec]:
  """Describes an episode as it is read: images are strings.

  Args:
    stored: specs of steps, which are sequences, and of context features, by path.
  """
  return {
    path: tf.TensorSpec([None] * stored[path].is_sequence + [*spec.shape], spec.dtype)
    for path, spec in encoded_specs(dict(stored)).items()
  }
