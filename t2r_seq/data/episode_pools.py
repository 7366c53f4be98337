"""Pools of episodes that Python reads, for data sets without a TensorFlow reader."""

from __future__ import annotations

import dataclasses
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
from t2r_seq.windows.dataset import WindowReport
from t2r_seq.windows.times import clock_rows, rows_path

# Bytes of a string in a tensor, with its content, about.
_STRING_BYTES = 96
# Episodes that a thread reads in one call.
_EPISODES_AT_ONCE = 16


class EpisodePools(PoolReader):
  """Reads pools of a data set's episodes, or of parts of them.

  Steps are read into their place in the pool: numbers are copied at most once, and each
  image is decoded once.

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
    """Plans the windows; of episodes, reads only end flags and time stamps, if needed.

    Args:
      episodes: the data set.
      joined: the specs of a window.
      cut: how episodes become windows.
      numbers: numbers of the episodes to read, int64 [n].
      decode_images: how encoded images are decoded.
      failures: list for the errors of reads, because TensorFlow keeps only their text.
    Raises:
      SpecError: the episodes do not fit the specs, or their time stamps are invalid.
    """
    assert episodes.lengths is not None
    stored = readable(episodes)
    cut = dataclasses.replace(cut, clocks=episodes.clocks)
    of_rows = {
      rows_path(clock): tf.TensorSpec([None, 3], tf.int64)
      for clock in episodes.clocks.values()
    }
    columns = pool.PoolColumns(
      element_spec(stored) | of_rows, with_formats(joined, stored), cut, decode_images
    )
    self._columns, self._data, self._numbers = columns, episodes, numbers
    self._element = element_spec(
      {path: stored[path] for path in columns.encoded.paths if path in stored}
    )
    # Rows of other clocks at each step are found as the episodes are read.
    self._clocked_paths = [path for path in self._element if path in episodes.clocks]
    self._rows_paths = columns.encoded.rows_paths
    self._timed = frozenset(columns.encoded.timed_paths).difference(self._clocked_paths)
    self._timed -= self._rows_paths.keys()
    self._failures, self._calls = failures, PythonCalls()
    self._num_values = 0
    # Row of other clocks' time stamps at the first step of each episode, by path.
    self._begins: dict[str, list[int]] = {}
    self.lengths = np.asarray(episodes.lengths)[numbers]
    reader = columns.reader
    num_rows = reader.num_rows(self.lengths, self._last_flags(reader.end_flag))
    counts = np.asarray(reader.grid.num_windows(num_rows))
    if reader.clocks:
      parts = [EpisodePart(int(number)) for number in numbers]
      stamps = map(self._count_values, episodes.read_many(parts, reader.clocks))
      places = (episodes.place(part.episode) for part in parts)
      reader.survey_stamps(zip(places, stamps, strict=True))
    step_bytes = self._count_step_bytes(self._timed)
    if self._num_values:
      per_step = -(-self._num_values // max(int(self.lengths.sum()), 1))
      step_bytes += per_step * self._count_step_bytes(self._clocked_paths)
    super().__init__(columns, counts, self.lengths, step_bytes, episodes.read_bytes)

  def loader(self, plan: Plan) -> WindowLoader:
    """Returns the loader of a plan's batches.

    Raises:
      RecordError: all episodes are too short for a window.
      SpecError: there are not enough windows for a batch.
    """
    if not self.counts.sum():  # Repeating an empty dataset never ends.
      longest, least = max(self.lengths, default=0), self._columns.reader.min_steps
      raise too_short_error(plan.where, least, len(self.lengths), longest)
    return WindowLoader(plan, None, int(self.counts.sum()), make_pools=lambda: self)

  def report(self) -> WindowReport:
    """Returns the counts of one epoch, over all shards."""
    return WindowReport.of_episodes(self.lengths, self.counts)

  def _count_values(self, stamps: dict[str, Any]) -> dict[str, Any]:
    """Counts an episode's values on other clocks; finds those at its first step."""
    step_stamps = next(v for p, v in stamps.items() if p not in self._data.clocks)
    for path, values in stamps.items():
      if path in self._data.clocks:
        self._num_values += len(values)
        row = int(clock_rows(step_stamps[:1], values)[0, 0])
        self._begins.setdefault(path, []).append(max(row, 0))
    return stamps

  def _count_step_bytes(self, paths: Iterable[str]) -> int:
    """Returns the bytes to budget for a step of some paths in a pool."""
    total = 0
    for path in paths:
      spec, image = self._element[path], self._columns.images.get(path)
      if image is not None:
        pixels = int(np.prod(image.shape.as_list())) * image.dtype.size
        total += (3 * pixels + 1) // 2  # With the strings, held until they are decoded.
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
    rows = dict.fromkeys(self._rows_paths, tf.TensorSpec([None, 3], tf.int64))
    element = self._element | rows
    arrays = tf.numpy_function(
      self._read_arrays,
      [episodes, first_step, num_steps],
      [spec.dtype for spec in element.values()],
    )
    values = {}
    for (path, spec), array in zip(element.items(), arrays, strict=True):
      timed = path in self._timed or path in self._clocked_paths or path in rows
      values[path] = tf.ensure_shape(
        array, spec.shape if timed else [None, *spec.shape]
      )
    return self._columns.decode(self._columns.select(values))

  def _read_arrays(
    self, episodes: np.ndarray, first_step: np.ndarray, num_steps: np.ndarray
  ) -> Sequence[np.ndarray]:
    """Reads parts of the given episodes; those with `num_steps` 0 are skipped.

    Returns:
      By path of the element: steps and values on other clocks, joined along the first
      axis, or a row per episode of context features, undefined for skipped ones. Then
      the rows of other clocks; see `rows_path`.
    """
    ends = np.cumsum(num_steps)
    arrays = {}
    for path, spec in self._element.items():
      if path in self._clocked_paths:  # Their lengths are known after reading.
        continue
      shape = spec.shape[1:] if path in self._timed else spec.shape
      size = int(ends[-1]) if path in self._timed else len(episodes)
      # Strings are Python objects, which `empty_array` cannot hold.
      make = np.empty if spec.dtype == tf.string else empty_array
      arrays[path] = make((size, *shape), spec.dtype.as_numpy_dtype)

    # Values on other clocks, by path.
    clocked: dict[str, list[Any]] = {
      path: [None] * len(episodes) for path in self._clocked_paths
    }

    def make_part(index: int) -> EpisodePart:
      start, end, count = int(first_step[index]), ends[index], int(num_steps[index])
      targets = {path: arrays[path][end - count : end] for path in self._timed}
      number = int(self._numbers[episodes[index]])
      return EpisodePart(number, start, start + count, targets)

    def read(indices: np.ndarray) -> None:
      parts = [make_part(index) for index in indices]
      columns = self._data.read_many(parts, self._element)
      for index, part, values in zip(indices, parts, columns, strict=True):
        self._calls.check()
        if len(values) < len(self._element):
          check_present(self._element, values, self._data.place(part.episode))
        targets = part.out or {}
        for path, array in arrays.items():
          if path not in self._timed:
            array[index] = values[path]
          elif values[path] is not targets[path]:  # `read_many` may ignore `out`.
            targets[path][...] = values[path]
        for path in self._clocked_paths:
          clocked[path][index] = values[path]

    with self._calls.active():
      try:
        nonempty = np.flatnonzero(num_steps)
        # Reads a few long episodes in parallel, and many short ones by few calls.
        count = max(pool.PARSES_AT_ONCE, -(-len(nonempty) // _EPISODES_AT_ONCE))
        groups = np.array_split(nonempty, count)
        with futures.ThreadPoolExecutor(pool.PARSES_AT_ONCE) as executor:
          list(executor.map(read, groups))
      except Exception as error:
        self._failures.append(error)
        raise
    for path, clock in self._rows_paths.items():
      begins = [self._begins[clock][number] for number in episodes]
      arrays[path] = self._find_rows(arrays, clocked[clock], begins, ends, num_steps)
    for path in self._clocked_paths:
      arrays[path] = np.concatenate([v for v in clocked[path] if v is not None])
    return [arrays[path] for path in (*self._element, *self._rows_paths)]

  def _find_rows(
    self,
    arrays: Mapping[str, np.ndarray],
    stamps: Sequence[np.ndarray | None],
    begins: Sequence[int],
    ends: np.ndarray,
    num_steps: np.ndarray,
  ) -> np.ndarray:
    """Finds the rows of another clock at the steps of a pool; see `rows_path`."""
    clocks = self._columns.reader.clocks
    step_stamps = next(arrays[path] for path in clocks if path in arrays)
    first_row, rows = 0, [np.zeros((0, 3), np.int64)]
    parts = zip(stamps, begins, ends, num_steps, strict=True)
    for each, begin, end, count in parts:
      if each is not None:
        rows.append(clock_rows(step_stamps[end - count : end], each, first_row, begin))
        first_row += len(each)
    return np.concatenate(rows)


def readable(episodes: Episodes) -> dict[str, specs.ExtendedTensorSpec]:
  """Returns the specs of all paths that can be read."""
  return {**episodes.derived_spec, **episodes.spec}


def with_formats(
  joined: specs.TensorSpecStruct, stored: Mapping[str, specs.ExtendedTensorSpec]
) -> specs.TensorSpecStruct:
  """Returns the specs, with the formats of the encoded images that they read."""
  formatted = joined.copy()
  for path, spec in joined.items():
    source = stored.get(path, stored.get(spec.name))
    if source is not None and source.data_format and not spec.data_format:
      formatted[path] = specs.ExtendedTensorSpec.from_spec(
        spec, data_format=source.data_format
      )
  return formatted


def check_present(paths: Iterable[str], values: Mapping[str, Any], place: str) -> None:
  """Checks that an episode has all paths; zeros in their place would hide the fault.

  Raises:
    SpecError: paths are missing; all are listed.
  """
  missing = [path for path in paths if path not in values]
  if missing:
    raise errors.SpecError(
      f"read: {place}: expected {errors.listing(missing)}, got an episode without "
      "them. Leave such episodes out (episodes=...), or these paths out of the specs."
    )


def element_spec(
  stored: Mapping[str, specs.ExtendedTensorSpec],
) -> dict[str, tf.TensorSpec]:
  """Describes an episode before decoding: images are strings.

  Args:
    stored: specs of steps, which are sequences, and of context features, by path.
  """
  return {
    path: tf.TensorSpec([None] * stored[path].is_sequence + [*spec.shape], spec.dtype)
    for path, spec in encoded_specs(dict(stored)).items()
  }
