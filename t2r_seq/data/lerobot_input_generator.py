"""The input generator that reads a LeRobot dataset in place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.convert import LeRobotFolder
from t2r_seq.convert.lerobot_folder import check_frame_options
from t2r_seq.data import pool
from t2r_seq.data.input_generator import DatasetInputGenerator
from t2r_seq.data.loaders import PoolReader, WindowLoader, raised_as_read
from t2r_seq.process import PythonCalls
from t2r_seq.records.images import DecodeImages
from t2r_seq.store.mapped import empty_array
from t2r_seq.store.videos import TOLERANCE
from t2r_seq.windows.cut import check_one_step, too_short_error

# Of a text in a tensor.
_STRING_BYTES = 96


@gin.configurable
class LeRobotInputGenerator(DatasetInputGenerator):
  """Reads windows from a LeRobot dataset, v3 or v2.1, as it is.

  A spec reads the key that is its path, or else its name: `observation.state`, a
  camera, `task` for the text of the task. `convert.delta_time_offsets` makes time
  offsets of LeRobot's `delta_timestamps`. Depth is float32 in metres or uint16 in
  millimetres, as the spec declares.

  Pools hold the steps that their windows show, each frame once, and no more than the
  memory budget: of a long episode a part, whose frames are decoded from the key frame
  before it on. Mode 'train' shuffles episodes, and the windows of a pool, anew in every
  epoch, and repeats for ever; a resumed run goes on with exactly the next batch. The
  other modes are one pass in order. The same seed gives the same batches on every
  machine.
  """

  def __init__(
    self,
    dataset_path: str | os.PathLike[str],
    batch_size: int = 32,
    frames_by: str | None = None,
    frame_tolerance: float = TOLERANCE,
    **options: Any,
  ) -> None:
    """Creates the generator; the dataset is opened when a tf.data one is created.

    Args:
      dataset_path: the dataset's folder.
      batch_size: examples in a batch, over all replicas together.
      frames_by: how the frames of steps are found, 'timestamp' or 'index'; see
        `convert.LeRobotFolder`.
      frame_tolerance: seconds that the nearest frame may be from a time stamp.
      **options: of all that read datasets: seed, sequence_length, memory_budget,
        episodes, split (of `meta/info.json`), image_decoding (of images in the parquet
        files), ...; see `DatasetInputGenerator`.
    Raises:
      SpecError: a size is too small, or an option is none of these.
    """
    super().__init__(batch_size, **options)
    self._path = os.fspath(dataset_path)
    check_frame_options(type(self).__name__, frames_by, frame_tolerance)
    self.frames_by, self.frame_tolerance = frames_by, frame_tolerance
    self._failures: list[Exception] = []

  @property
  def reads_shards(self) -> bool:
    """Whether workers read their own parts: each its own episodes."""
    return True

  @property
  def control_period(self) -> float | None:
    """Seconds from a step to the next one, as the dataset tells."""
    return 1.0 / LeRobotFolder(self._path).fps

  @property
  def num_examples(self) -> int | None:
    """Windows of one pass; counted from the episodes' lengths."""
    if not self.has_specifications:
      return None
    with tf.init_scope():
      folder = LeRobotFolder(self._path, self.frames_by, self.frame_tolerance)
      numbers = self._numbers(folder)
      if self.n_step is None:
        return self._count_windows(folder.spec, folder.lengths[numbers])
      return int(np.sum(_count(folder, self._reader(folder, "eval")[0], numbers)))

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Raises what reading an episode raised instead of TensorFlow's version of it."""
    with raised_as_read(lambda: self._failures):
      yield

  @tf.autograph.experimental.do_not_convert
  def _create_batches(self, mode: str, batch_size: int) -> tf.data.Dataset:
    where = f"{type(self).__name__}: {self._path}"
    if self._is_portable:
      raise errors.SpecError(
        f"{where}: the tf.data service: expected data that other processes can read, "
        "got one that Python reads. Convert it to a store first: t2r_seq convert."
      )
    with tf.init_scope():
      folder = LeRobotFolder(self._path, self.frames_by, self.frame_tolerance)
      reader, stored = self._reader(folder, mode)
      chosen = self._numbers(folder)
      lengths = folder.lengths[chosen]
      counts = _count(folder, reader, chosen)
      if not counts.sum():  # To repeat nothing has no end.
        raise too_short_error(where, reader.min_steps, len(lengths), max(lengths))
      reading = _Reading(
        folder,
        {key: stored[key] for key in reader.paths},
        chosen,
        self._decode_images,
        self._failures,
      )
      pools = _LeRobotPools(reading, reader, _element_spec(stored), counts)
      num_windows = int(pools.counts.sum())
      plan, start = self._numbered_plan(mode, batch_size)
      plan = plan.seeded("quasi_random")
      loader = WindowLoader(plan, None, num_windows, make_pools=lambda: pools)
      self._report = windows.WindowReport.of_episodes(lengths, pools.counts)
    self._reads_ahead = True
    return loader.dataset(start)

  def _reader(
    self, folder: LeRobotFolder, mode: str
  ) -> tuple[windows.WindowReader, dict[str, specs.ExtendedTensorSpec]]:
    """Plans the windows; returns the specs of what is read by key, too."""
    where = f"{type(self).__name__}: {self._path}"
    check_one_step(where, folder.extra.get("metadata", {}), self.n_step)
    joined = self._named_specs(folder.spec, mode)
    stored = _depth_as_declared(where, folder, joined)
    reader = windows.WindowReader(_element_spec(stored), joined, self._cut_in(mode))
    return reader, stored

  def _numbers(self, folder: LeRobotFolder) -> np.ndarray:
    where = f"{type(self).__name__}: {self._path}"
    chosen = self._choose(where, len(folder), lambda: folder.splits)
    numbers = np.arange(len(folder)) if chosen is None else chosen
    return numbers[folder.lengths[numbers] > 0]


class _Reading:
  """Reads episodes for tf.data: tensors by key, all images decoded.

  Attributes:
    numbers: of the episodes.
    lengths: of these.
    specs: what is read of the dataset, by key.
  """

  def __init__(
    self,
    folder: LeRobotFolder,
    stored: dict[str, specs.ExtendedTensorSpec],
    numbers: np.ndarray,
    decode_images: DecodeImages,
    failures: list[Exception],
  ) -> None:
    self._folder = folder
    self.numbers = numbers
    self._calls = PythonCalls()
    self._failures = failures  # What was raised of those that could not be read.
    self._decode_images = decode_images
    self.lengths = folder.lengths[numbers]
    self.specs = stored

  def read_parts(
    self, numbers: tf.Tensor, starts: tf.Tensor, counts: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    """Reads steps of several episodes, one after the other.

    Args:
      numbers: places in `numbers`, int64 [n].
      starts: the first step of each.
      counts: its steps.
    Returns:
      Steps of all of them by key, [N, ...], images decoded.
    """
    arrays = tf.numpy_function(
      self._read_parts, [numbers, starts, counts], self._types()
    )
    return self._decode(arrays)

  def _types(self) -> list[tf.DType]:
    return [
      tf.string if specs.is_encoded_image_spec(spec) else spec.dtype
      for spec in self.specs.values()
    ]

  def _decode(self, arrays: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    element = {}
    for (key, spec), array in zip(self.specs.items(), arrays, strict=True):
      if specs.is_encoded_image_spec(spec):
        array.set_shape([None])
        array = records.decode_images(array, spec, key, self._decode_images)
      else:
        array.set_shape([None, *spec.shape])
      element[key] = array
    return element

  def _read_parts(
    self, numbers: np.ndarray, starts: np.ndarray, counts: np.ndarray
  ) -> Sequence[np.ndarray]:
    ends, total = np.cumsum(counts), int(counts.sum())
    arrays = {}
    for (key, spec), dtype in zip(self.specs.items(), self._types(), strict=True):
      shape = () if dtype == tf.string else tuple(spec.shape.as_list())
      room = np.empty if dtype == tf.string else empty_array
      arrays[key] = room((total, *shape), dtype.as_numpy_dtype)

    def read(place: int) -> None:
      start, count, end = int(starts[place]), int(counts[place]), int(ends[place])
      self._calls.check()
      if not count:
        return
      number = int(self.numbers[numbers[place]])
      own = {key: array[end - count : end] for key, array in arrays.items()}
      values = self._folder.read(number, self.specs, start, start + count, own)
      for key, array in own.items():
        if values[key] is not array:  # Frames are decoded to where they stay.
          array[:] = values[key]

    with self._calls.one():
      try:
        with futures.ThreadPoolExecutor(pool.PARSES_AT_ONCE) as executor:
          list(executor.map(read, range(len(numbers))))
      except Exception as error:
        self._failures.append(error)
        raise
    return list(arrays.values())


class _LeRobotPools(PoolReader):
  """Reads pools of a dataset's episodes, or of parts of them."""

  def __init__(
    self,
    reading: _Reading,
    reader: windows.WindowReader,
    element: Mapping[str, tf.TensorSpec],
    counts: np.ndarray,
  ) -> None:
    lengths = reading.lengths
    step_bytes = sum(map(_step_bytes, reading.specs.values()))
    super().__init__(pool.PoolRows(reader, element, {}), counts, lengths, step_bytes)
    self._reading = reading

  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    return self._reading.read_parts(episodes, first_step, num_steps)


def _element_spec(
  stored: Mapping[str, specs.ExtendedTensorSpec],
) -> dict[str, tf.TensorSpec]:
  """Describes an episode as `windows.WindowReader` takes it."""
  return {
    key: tf.TensorSpec([None, *spec.shape], spec.dtype) for key, spec in stored.items()
  }


def _count(
  folder: LeRobotFolder, reader: windows.WindowReader, numbers: np.ndarray
) -> np.ndarray:
  """Counts the windows of episodes, given their numbers; int64 [episodes]."""
  lengths, flag, last_flags = folder.lengths[numbers], reader.end_flag, None
  if flag is not None:
    last_flags = np.array(
      [
        folder.read(int(number), [flag], int(length) - 1)[flag].any()
        for number, length in zip(numbers, lengths, strict=True)
      ]
    )
  return np.asarray(reader.grid.num_windows(reader.num_rows(lengths, last_flags)))


def _depth_as_declared(
  where: str, folder: LeRobotFolder, wanted: specs.TensorSpecStruct
) -> dict[str, specs.ExtendedTensorSpec]:
  """Returns what is read by key: depth in the unit of the dtype that a spec declares.

  Args:
    where: for the error.
    folder: of the dataset.
    wanted: specs, each named after what it reads.
  Raises:
    SpecError: depth is declared as what it is not.
  """
  stored, found = dict(folder.spec.items()), []
  for path, spec in wanted.items():
    feature = folder.features.get(spec.name)
    if feature is None or feature.depth is None:
      continue
    dtype = spec.stored_dtype or spec.dtype
    if dtype in (tf.float32, tf.uint16):
      own = stored[spec.name]
      stored[spec.name] = specs.ExtendedTensorSpec.from_spec(own, dtype=dtype)
      continue
    want = "depth of 12 bits"
    hint = "Declare float32 for metres, or uint16 for millimetres."
    found.append(errors.Mismatch(path, want, errors.describe(spec), hint))
  if found:
    raise errors.mismatch_error(where, found)
  return stored


def _step_bytes(spec: specs.ExtendedTensorSpec) -> int:
  if spec.dtype == tf.string:
    return _STRING_BYTES
  num_bytes = int(np.prod(spec.shape.as_list())) * spec.dtype.size
  # Images are decoded one by one, and then copied to the pool's.
  return (3 * num_bytes + 1) // 2 if specs.is_encoded_image_spec(spec) else num_bytes
