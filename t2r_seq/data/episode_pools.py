"""Pools of episodes that Python reads: the second feeder, over any `read`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data import pool
from t2r_seq.data.loaders import PoolReader
from t2r_seq.episodes import Episodes
from t2r_seq.process import PythonCalls
from t2r_seq.records.images import DecodeImages
from t2r_seq.store.mapped import empty_array

# Of a text in a tensor.
_STRING_BYTES = 96


class EpisodePools(PoolReader):
  """Reads pools of a data set's episodes, or of parts of them.

  Steps are read to where they stay in the pool: frames are copied once at most.
  """

  def __init__(
    self,
    episodes: Episodes,
    stored: Mapping[str, specs.ExtendedTensorSpec],
    reader: windows.WindowReader,
    numbers: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    decode_images: DecodeImages,
    failures: list[Exception],
  ) -> None:
    """Prepares; reads nothing.

    Args:
      episodes: the data set.
      stored: specs of a step, or of a context feature, by path.
      reader: of the windows.
      numbers: of the episodes to read, int64 [n].
      lengths: steps of each of them.
      counts: windows of each.
      decode_images: how encoded images are decoded.
      failures: what `read` raises is appended, because TensorFlow keeps only its text.
    """
    self._specs = {path: stored[path] for path in reader.paths}
    step_bytes = sum(_step_bytes(self._specs[path]) for path in reader.timed_paths)
    element = element_spec(self._specs, reader.timed_paths)
    super().__init__(pool.PoolRows(reader, element, {}), counts, lengths, step_bytes)
    self._data, self._numbers = episodes, numbers
    self._timed = frozenset(reader.timed_paths)
    self._decode_images, self._failures = decode_images, failures
    self._calls = PythonCalls()

  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    dtypes = [_dtype(spec) for spec in self._specs.values()]
    arrays = tf.numpy_function(
      self._read_arrays, [episodes, first_step, num_steps], dtypes
    )
    rows = {}
    for (path, spec), array in zip(self._specs.items(), arrays, strict=True):
      if specs.is_encoded_image_spec(spec):
        array.set_shape([None])
        array = records.decode_images(array, spec, path, self._decode_images)
      else:
        array.set_shape([None, *spec.shape])
      rows[path] = array
    return rows

  def _read_arrays(
    self, episodes: np.ndarray, first_step: np.ndarray, num_steps: np.ndarray
  ) -> Sequence[np.ndarray]:
    """Returns the steps of all episodes, and a row of each for context features."""
    ends = np.cumsum(num_steps)
    arrays = {}
    for path, spec in self._specs.items():
      dtype = _dtype(spec)
      shape = () if dtype == tf.string else tuple(spec.shape.as_list())
      size = int(ends[-1]) if path in self._timed else len(episodes)
      make = np.empty if dtype == tf.string else empty_array
      arrays[path] = make((size, *shape), dtype.as_numpy_dtype)

    def read(place: int) -> None:
      start, count, end = int(first_step[place]), int(num_steps[place]), ends[place]
      self._calls.check()
      if not count:
        return
      own = {
        path: array[end - count : end] if path in self._timed else array[place]
        for path, array in arrays.items()
      }
      in_place = {path: own[path] for path in own if path in self._timed}
      number = int(self._numbers[episodes[place]])
      values = self._data.read(number, self._specs, start, start + count, in_place)
      check_present(self._specs, values, self._data.place(number))
      for path, array in arrays.items():
        if path not in self._timed:
          array[place] = values[path]
        elif values[path] is not own[path]:
          own[path][...] = values[path]

    with self._calls.one():
      try:
        with futures.ThreadPoolExecutor(pool.PARSES_AT_ONCE) as executor:
          list(executor.map(read, range(len(episodes))))
      except Exception as error:
        self._failures.append(error)
        raise
    return list(arrays.values())


def check_present(paths: Iterable[str], values: Mapping[str, Any], place: str) -> None:
  """Checks that an episode has all paths: zeros would not tell that it lacks one.

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
  stored: Mapping[str, specs.ExtendedTensorSpec], timed: Collection[str]
) -> dict[str, tf.TensorSpec]:
  """Describes an episode as `windows.WindowReader` takes it.

  Args:
    stored: specs of a step, or of a context feature, by path; images are decoded.
    timed: the paths of steps.
  """
  return {
    path: tf.TensorSpec(
      [None, *spec.shape] if path in timed else spec.shape, spec.dtype
    )
    for path, spec in stored.items()
  }


def _dtype(spec: specs.ExtendedTensorSpec) -> tf.DType:
  return tf.string if specs.is_encoded_image_spec(spec) else spec.dtype


def _step_bytes(spec: specs.ExtendedTensorSpec) -> int:
  if spec.dtype == tf.string:
    return _STRING_BYTES
  num_bytes = int(np.prod(spec.shape.as_list())) * spec.dtype.size
  # Images are decoded one by one, and then copied to the pool's.
  return (3 * num_bytes + 1) // 2 if specs.is_encoded_image_spec(spec) else num_bytes
