"""The input generator that reads a LeRobot dataset in place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.convert import LeRobotFolder
from t2r_seq.formats.lerobot_folder import check_frame_options
from t2r_seq.data.episode_pools import EpisodePools, element_spec
from t2r_seq.data.input_generator import DatasetInputGenerator
from t2r_seq.data.loaders import WindowLoader, raised_as_read
from t2r_seq.store.videos import TOLERANCE
from t2r_seq.windows.cut import check_one_step, too_short_error


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
      pools = EpisodePools(
        folder,
        stored,
        reader,
        chosen,
        lengths,
        counts,
        self._decode_images,
        self._failures,
      )
      num_windows = int(counts.sum())
      plan, start = self._numbered_plan(mode, batch_size)
      plan = plan.seeded("quasi_random")
      loader = WindowLoader(plan, None, num_windows, make_pools=lambda: pools)
      self._report = windows.WindowReport.of_episodes(lengths, counts)
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
    reader = windows.WindowReader(
      element_spec(stored, stored), joined, self._cut_in(mode)
    )
    return reader, stored

  def _numbers(self, folder: LeRobotFolder) -> np.ndarray:
    where = f"{type(self).__name__}: {self._path}"
    chosen = self._choose(where, len(folder), lambda: folder.splits)
    numbers = np.arange(len(folder)) if chosen is None else chosen
    return numbers[folder.lengths[numbers] > 0]


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
