"""Reads LeRobot's datasets, v3 and v2.x: parquet files, videos, and metadata.

`meta/info.json` in the folder describes the dataset and its files. In v3 an episode is
some rows of a parquet file, and a part of a video for each camera: `meta/episodes` has
their places. In v2.x each episode has its own files. Paths are LeRobot's keys, such as
`observation.state`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, imports, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes.episodes import Fields, Values, make_specs, num_bytes
from t2r_seq.specs.conventions import Convention
from t2r_seq.store import videos

# Written by a conversion: paths, specs and metadata that the format lacks.
EXTRA = "meta/t2r_seq.json"
INFO, TASKS, STATS = "meta/info.json", "meta/tasks.parquet", "meta/stats.json"
VIDEO, IMAGE = "video", "image"
EPISODES = "meta/episodes"
TASK = "task"
TIMESTAMP, FRAME_INDEX, EPISODE_INDEX = "timestamp", "frame_index", "episode_index"
INDEX, TASK_INDEX = "index", "task_index"
# Features that follow from the position of a step.
DERIVED = (TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX)
_VERSIONS = ("v2.0", "v2.1", "v3.0")
_IMAGE_STARTS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"GIF8": "gif", b"BM": "bmp"}
# Bytes of decoded columns to cache: a row group has the rows of many episodes.
_CACHED_BYTES = 1 << 27
_PARQUET = "a whole parquet file"


def load_parquet() -> Any:
  """Imports pyarrow; an ImportError names the extra."""
  return imports.load_extra("pyarrow.parquet", "lerobot")


def is_lerobot(path: str) -> bool:
  """Whether a folder is a LeRobot dataset."""
  return os.path.isfile(os.path.join(path, INFO))


@dataclasses.dataclass(frozen=True)
class Feature:
  """A key in `info.json`.

  Attributes:
    key: name of the feature.
    dtype: 'video', 'image', 'string', or the dtype of its numbers.
    shape: shape of a step; for images height, width, channels.
    names: names of its elements, as in JSON.
    depth: quantiser of a depth video, as in JSON; None for other values.
    bits: bits per channel of encoded images.
    convention: meaning of the numbers, from a key of JSON that LeRobot ignores, and the
      names of the elements.
  """

  key: str
  dtype: str
  shape: tuple[int, ...]
  names: Any = None
  depth: Mapping[str, Any] | None = None
  bits: int = 8
  convention: Convention | None = None

  def fields(self, data_format: str | None = None) -> Fields:
    """Returns the fields of the spec; `data_format` is that of encoded images."""
    dtype = self.dtype
    if self.dtype in (VIDEO, IMAGE):
      dtype = "uint16" if self.bits > 8 else "uint8"
    if self.depth is not None:
      dtype = "float32"  # Metres.
    # A single number is a scalar in the files, and to LeRobot's reader.
    shape = () if self.shape == (1,) else self.shape
    try:
      dtype = reading.dtype_name(dtype)
    except TypeError as error:
      want, hint = "a dtype that TensorFlow has", reading.leave_out(self.key)
      place = f"{INFO}: {self.key}"
      raise reading.fault(place, want, repr(self.dtype), hint) from error
    convention = self.convention and self.convention.to_json()
    return reading.make_fields(
      self.key, dtype, shape, True, data_format=data_format, convention=convention
    )

  @classmethod
  def of_json(cls, key: str, described: Mapping[str, Any]) -> Feature:
    """Makes a feature of its entry in `info.json`."""
    dtype, names = str(described["dtype"]), described.get("names")
    shape = tuple(int(size) for size in described["shape"])
    if min(shape, default=0) < 0:
      raise ValueError(f"{key} of shape {shape}")
    # Older datasets have the channels first here, though not in their files.
    is_first = isinstance(names, list) and names[:1] in (["channels"], ["channel"])
    if dtype in (VIDEO, IMAGE) and is_first and len(shape) == 3:
      shape = (*shape[1:], shape[0])
    depth = _depth_of_json(described) if dtype == VIDEO else None
    if depth is not None and len(shape) == 3 and shape[-1] != 1:
      # Other writers store depth as a colour image, without a quantiser.
      depth = depth if any(value is not None for value in depth.values()) else None
    convention = dict(described.get("convention") or {})
    if isinstance(names, dict) and len(names) == 1:  # As LeRobot v2 groups them.
      names = next(iter(names.values()))
    listed = names if isinstance(names, list) else []
    is_vector = dtype not in (VIDEO, IMAGE) and shape != (1,)
    are_names = bool(listed) and all(isinstance(each, str) for each in listed)
    if are_names and is_vector and (len({*listed}),) == shape:
      convention.setdefault("names", listed)
    known = Convention.of(convention)
    return cls(key, dtype, shape, described.get("names"), depth, convention=known)


def _depth_of_json(described: Mapping[str, Any]) -> dict[str, Any] | None:
  """Returns the quantiser of a depth video, absent fields as None; None for others."""
  info = described.get("info") or described.get("video_info") or {}
  if not (info.get("is_depth_map") or info.get("video.is_depth_map")):
    return None
  fields = [field.name for field in dataclasses.fields(videos.DepthQuantizer)]
  return {name: info.get(f"video.{name}", info.get(name)) for name in fields}


@dataclasses.dataclass(frozen=True)
class _Spans:
  """Places of the episodes in the video files of a camera.

  Attributes:
    bounds: start and end of each episode, in seconds of its video file.
    overlaps: number of one overlapping episode, by number of the episode.
  """

  bounds: list[tuple[float, float]]
  overlaps: dict[int, int]


FRAMES_BY = ("timestamp", "index")


def check_frame_options(
  operation: str, frames_by: str | None, frame_tolerance: float
) -> None:
  """Raises SpecError if an option of `LeRobotFolder` is invalid."""
  if frames_by is not None and frames_by not in FRAMES_BY:
    raise errors.SpecError(
      f"{operation}: frames_by: expected one of {errors.listing(FRAMES_BY)}, got "
      f"{frames_by!r}.{errors.nearest(str(frames_by), FRAMES_BY)}"
    )
  is_number = isinstance(frame_tolerance, (int, float))
  if not is_number or not 0 <= frame_tolerance < math.inf:
    raise errors.SpecError(
      f"{operation}: frame_tolerance: expected seconds, got {frame_tolerance!r}."
    )


class LeRobotFolder:
  """Reads a dataset: any episode, any of its keys, any of its steps.

  Several threads may read at a time.

  Attributes:
    path: path of the folder.
    info: contents of `info.json`.
    fps: steps per second.
    features: features by key, those of `DERIVED` included.
    tasks: texts by `task_index`.
    lengths: steps of each episode, int64 [episodes].
    frames_by: how the frames of steps are found: 'timestamp' or 'index'.
    frame_tolerance: maximum seconds from a time stamp to the nearest frame.
  """

  def __init__(
    self,
    path: str | os.PathLike[str],
    frames_by: str | None = None,
    frame_tolerance: float = videos.TOLERANCE,
  ) -> None:
    """Reads only the metadata.

    Args:
      path: path of the folder.
      frames_by: 'timestamp': a step has the frame of its time stamp; 'index': step i
        has frame i of the episode. None: 'index' if `convert` wrote the data set with
        the time stamps of a clock, else 'timestamp'.
      frame_tolerance: maximum seconds from a time stamp to the nearest frame; at least
        `videos.TOLERANCE` is allowed.
    Raises:
      ImportError: the extra is not installed.
      SpecError: an option is invalid.
      ConversionError: metadata are missing, damaged or of an unknown version, or
        disagree because the recording was not finished; names file and key.
    """
    self.path = os.fspath(path)
    check_frame_options(f"open_episodes: {self.path}", frames_by, frame_tolerance)
    load_parquet()
    self.info = self._read_info()
    self.extra = self._read_extra()
    self.frames_by = frames_by or self.extra.get("frames_by", "timestamp")
    self.frame_tolerance = max(float(frame_tolerance), videos.TOLERANCE)
    self._is_v2 = self.info["codebase_version"].startswith("v2")
    self.fps = float(self.info["fps"])
    self.features = self._read_features()
    with reading.explain_errors(os.path.join(self.path, "meta"), "tasks and episodes"):
      self.tasks = self._read_tasks()
      self._table = self._read_episodes()
    self.lengths = self._table["length"]
    self._check_totals()
    self._files: dict[str, Any] = {}
    self._span_cache: dict[str, _Spans] = {}
    self._cache = _ColumnCache(_CACHED_BYTES)
    self._lock = threading.Lock()

  def __len__(self) -> int:
    return len(self.lengths)

  @property
  def splits(self) -> dict[str, range | list[int]]:
    """Numbers of episodes by the name of a split.

    They are the ranges of `info.json`, and the splits that `LeRobotWriter` stored.

    Raises:
      ConversionError: a value is not a range of episodes, or not a list of numbers.
    """
    splits: dict[str, range | list[int]] = {}
    ranges = self.info.get("splits") or {}
    if not isinstance(ranges, dict):
      raise self._fault(INFO, "splits", "ranges by name", repr(ranges))
    for name, text in ranges.items():
      try:
        first, end = (int(number) for number in str(text).split(":"))
        if not 0 <= first <= end <= len(self):
          raise ValueError(f"of {len(self)} episodes")
      except ValueError as error:
        want = f"a range of the {len(self)} episodes, such as '0:{len(self)}'"
        raise self._fault(INFO, f"splits: {name}", want, repr(text)) from error
      splits[name] = range(first, end)
    with reading.explain_errors(os.path.join(self.path, EXTRA), "splits"):
      extra = self.extra.get("splits") or {}
      return splits | {name: list(map(int, numbers)) for name, numbers in extra.items()}

  @functools.cached_property
  def has_own_clock(self) -> bool:
    """Whether some time stamps are not step / fps, but those of a hardware clock.

    Reads the time stamps of all files; ignores damaged files.
    """
    return any(map(self._is_off_grid, {self._data_file(e) for e in range(len(self))}))

  def _is_off_grid(self, name: str) -> bool:
    import pyarrow

    keys = (TIMESTAMP, FRAME_INDEX)
    try:
      table = load_parquet().ParquetFile(os.path.join(self.path, name)).read(keys)
      columns = {key: table[key].combine_chunks() for key in keys}
      rows = {key: to_numpy(columns[key], self.features[key]) for key in keys}
    except (pyarrow.ArrowException, OSError, KeyError, ValueError):
      return False  # Reading the episodes explains the damage.
    return bool(np.any(self._times(rows) != rows[FRAME_INDEX] / self.fps))

  @functools.cached_property
  def spec(self) -> specs.TensorSpecStruct:
    """Specs of an episode, by key: all features, and the text of the task."""
    return make_specs(self.fields)

  @functools.cached_property
  def fields(self) -> dict[str, Fields]:
    """The fields of `spec`; reads the first image of each key of encoded images."""
    fields = {}
    for key, feature in self.features.items():
      image_format = None
      if feature.dtype == IMAGE:
        image_format, bits = self._detect_image(key)
        feature = dataclasses.replace(feature, bits=bits)
      fields[key] = feature.fields(image_format)
    if TASK not in fields:
      fields[TASK] = reading.make_fields(TASK, "string", (), True)
    return fields

  def read(
    self,
    episode: int,
    keys: Iterable[str],
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads an episode, or some of its steps; decodes only their frames of videos.

    Args:
      episode: its number.
      keys: keys of `spec`.
      start: the first step.
      stop: the step after the last one; None for all that follow.
      out: arrays for the frames of videos, [T, ...] by key. Depth is float32 in metres,
        or uint16 in millimetres.
    Returns:
      Arrays [T, ...] by key: videos decoded, images encoded, text as bytes objects.
    Raises:
      ConversionError: no such episode, a file is missing or damaged, or rows or frames
        are not where the metadata say; names file, episode and key.
    """
    paths = list(keys)
    is_video = {
      k: k in self.features and self.features[k].dtype == VIDEO for k in paths
    }
    columns = {k for k in paths if k in self.features and not is_video[k]}
    if any(is_video.values()):
      columns.add(TIMESTAMP)
    if TASK in paths and TASK not in self.features:
      columns.add(TASK_INDEX)
    rows = self._read_rows(episode, columns)
    values: Values = {}
    steps = slice(start, stop)
    times = self._frame_times(rows, episode) if any(is_video.values()) else None
    for key in paths:
      if is_video[key]:
        assert times is not None
        target = None if out is None else out.get(key)
        self._check_span(episode, key, times)
        values[key] = self._decode(episode, key, times[steps], start, target)
      elif key in self.features:
        values[key] = rows[key][steps]
      else:
        values[key] = self._texts(episode, rows[TASK_INDEX][steps])
    return values

  def frames(
    self, episode: int, key: str, start: int = 0, stop: int | None = None
  ) -> np.ndarray:
    """Decodes some frames of an episode; raises as `read` does.

    Returns:
      uint8 [stop - start, height, width, channels]; float32 in metres for depth.
    """
    return self.read(episode, [key], start, stop)[key]

  def cut(self, episode: int, key: str, fps: float) -> bytes | None:
    """Cuts out the video of an episode; None if no key frame begins it."""
    times = self._frame_times(self._read_rows(episode, [TIMESTAMP]), episode)
    self._check_span(episode, key, times)
    name, times = self._times_in_video(episode, key, times)
    with self._explain_video_errors(name, key, episode, times, 0):
      return videos.cut_video(os.path.join(self.path, name), times, fps)

  def gop(self, key: str) -> int:
    """Returns the most frames between key frames in the first video of a key."""
    name, _ = self._times_in_video(0, key, np.zeros(0))
    with self._explain_video_errors(name, key, 0, np.zeros(0), 0):
      return videos.VideoInfo.read(os.path.join(self.path, name)).gop

  def quantizer(self, key: str) -> videos.DepthQuantizer | None:
    """Returns the quantiser of a depth video; None for other videos."""
    fields = self.features[key].depth
    if fields is None:
      return None
    hint = f"Add what the recording used, or leave it out: --drop {key}."
    missing = [f"video.{name}" for name, value in fields.items() if value is None]
    if missing:
      want = f"{errors.listing(missing)} in the info of a depth map"
      raise self._fault(INFO, key, want, f"none of them. {hint}")
    try:
      return videos.DepthQuantizer(**fields)
    except errors.SpecError as error:
      want = "the quantiser of a depth map"
      raise self._fault(INFO, key, want, f"an error ({error}) {hint}") from error

  # Metadata.

  def _read_info(self) -> dict[str, Any]:
    info = read_json(os.path.join(self.path, INFO))
    required = ("codebase_version", "fps", "features", "data_path", "total_episodes")
    missing = [key for key in (*required, "total_frames") if key not in info]
    if missing:
      raise self._fault(INFO, "", f"the keys {errors.listing(missing)}", "none of them")
    version = info["codebase_version"]
    if version not in _VERSIONS:
      want = f"a version of {errors.listing(_VERSIONS)}"
      hint = " Convert it with LeRobot's own tools, or use a newer version of t2r_seq."
      raise self._fault(INFO, "codebase_version", want, f"{version!r}.{hint}")
    fps, chunk = info["fps"], info.get("chunks_size", 1000)
    if not isinstance(fps, (int, float)) or not 0 < fps < math.inf:
      raise self._fault(INFO, "fps", "steps per second", repr(fps))
    if type(chunk) is not int or chunk < 1:
      raise self._fault(INFO, "chunks_size", "episodes of a folder", repr(chunk))
    return info

  def _read_extra(self) -> dict[str, Any]:
    name = os.path.join(self.path, EXTRA)
    return read_json(name) if os.path.isfile(name) else {}

  def _read_features(self) -> dict[str, Feature]:
    try:
      features = {k: Feature.of_json(k, v) for k, v in self.info["features"].items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
      want = "a dtype and a shape of each key"
      raise self._fault(INFO, "features", want, repr(error)) from error
    required = DERIVED if not self._is_v2 else (TIMESTAMP, FRAME_INDEX, EPISODE_INDEX)
    missing = [key for key in required if key not in features]
    if missing:
      raise self._fault(INFO, "features", errors.listing(missing), "none of them")
    return features

  def _read_tasks(self) -> list[str]:
    if self._is_v2:
      rows = self._read_lines("meta/tasks.jsonl")
      tasks = {int(row["task_index"]): str(row["task"]) for row in rows}
    else:
      table = self._read_table(TASKS)
      # The texts are the index of a pandas table, whose name depends on the version.
      names = [name for name in table.column_names if name != TASK_INDEX]
      if len(names) != 1 or TASK_INDEX not in table.column_names:
        got = errors.listing(table.column_names)
        raise self._fault(TASKS, "", f"{TASK_INDEX} and a column of texts", got)
      numbers, texts = table[TASK_INDEX].to_pylist(), table[names[0]].to_pylist()
      tasks = dict(zip(numbers, texts, strict=True))
    if sorted(tasks) != list(range(len(tasks))):
      want = f"numbers from 0 to {len(tasks) - 1}"
      raise self._fault(TASKS, TASK_INDEX, want, errors.listing(map(str, tasks)))
    return [tasks[index] for index in range(len(tasks))]

  def _read_episodes(self) -> dict[str, np.ndarray]:
    """Reads the lengths and places of episodes: columns by name, sorted by episode."""
    if self._is_v2:
      rows = self._read_lines("meta/episodes.jsonl")
      columns = {
        EPISODE_INDEX: np.array([row[EPISODE_INDEX] for row in rows], np.int64),
        "length": np.array([row["length"] for row in rows], np.int64),
      }
    else:
      columns = self._read_episode_tables()
    order = np.argsort(columns[EPISODE_INDEX], kind="stable")
    columns = {name: column[order] for name, column in columns.items()}
    numbers = columns[EPISODE_INDEX]
    if numbers.tolist() != list(range(len(numbers))):
      want = f"the numbers 0 to {len(numbers) - 1}, each once"
      got = f"{numbers[:8].tolist()} ..."
      raise self._fault(EPISODES, EPISODE_INDEX, want, got)
    return columns

  def _read_episode_tables(self) -> dict[str, np.ndarray]:
    names = [EPISODE_INDEX, "length", "data/chunk_index", "data/file_index"]
    names += ["dataset_from_index", "dataset_to_index"]
    for key, feature in self.features.items():
      if feature.dtype == VIDEO:
        fields = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")
        names += [f"videos/{key}/{field}" for field in fields]
    tables = sorted(
      glob.glob(os.path.join(glob.escape(self.path), EPISODES, "*", "*.parquet"))
    )
    if not tables:
      raise self._fault(EPISODES, "", "parquet files of the episodes", _UNFINISHED)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for path in tables:
      relative = os.path.relpath(path, self.path)
      table = self._read_table(relative, names)
      for name in names:
        if name.endswith("/to_timestamp") and name not in table.column_names:
          parts[name].append(np.full(len(table), np.nan))
          continue
        if name not in table.column_names:
          got = errors.listing(table.column_names)
          raise self._fault(relative, name, "a column of it", got)
        parts[name].append(table[name].to_numpy())
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}

  def _check_totals(self) -> None:
    """Raises ConversionError if totals or lengths of episodes disagree."""
    counted = {"total_episodes": len(self), "total_frames": int(self.lengths.sum())}
    for key, count in counted.items():
      if self.info[key] != count:
        want = f"{count}, as the metadata of the episodes have it"
        raise self._fault(INFO, key, want, f"{self.info[key]!r}: {_UNFINISHED}")
    if self._is_v2:
      return
    spans = self._table["dataset_to_index"] - self._table["dataset_from_index"]
    wrong = np.flatnonzero((spans != self.lengths) | (self.lengths < 0))
    if len(wrong):
      episode = int(wrong[0])
      want = f"{spans[episode]} steps, as from dataset_from_index to dataset_to_index"
      got = str(self.lengths[episode])
      raise self._fault(EPISODES, "length", want, got, episode)

  # Rows.

  def _read_rows(self, episode: int, columns: Iterable[str]) -> Values:
    """Reads columns of an episode's rows, and checks that they are this episode's."""
    if not 0 <= episode < len(self):
      want = f"an episode from 0 to {len(self) - 1}"
      raise self._fault("", "", want, str(episode))
    length = int(self.lengths[episode])
    name, first = self._data_file(episode), 0
    expected = {EPISODE_INDEX: np.full(length, episode), FRAME_INDEX: np.arange(length)}
    with self._lock:
      file = self._open(name, episode)
      if not self._is_v2:
        first = int(self._table["dataset_from_index"][episode])
        expected[INDEX] = np.arange(first, first + length)
        first -= int(self._column(name, 0, INDEX, episode)[0])
      num_rows = file.metadata.num_rows
      if first < 0 or first + length > num_rows or (self._is_v2 and length != num_rows):
        want = f"its rows {first} to {first + length - 1}, as the metadata say"
        raise self._fault(name, "", want, f"{num_rows} rows", episode)
      keys = [*expected, *(key for key in columns if key not in expected)]
      rows = {key: self._slice(name, first, length, key, episode) for key in keys}
    for key, numbers in expected.items():
      wrong = np.flatnonzero(rows[key] != numbers)
      if len(wrong):
        step = int(wrong[0])
        want = f"{numbers[step]} at step {step}"
        raise self._fault(name, key, want, str(rows[key][step]), episode)
    return rows

  def _slice(
    self, name: str, first: int, length: int, key: str, episode: int
  ) -> np.ndarray:
    """Reads rows of a column, from all row groups that have some of them."""
    parts, start = [], 0
    metadata = self._files[name].metadata
    for group in range(metadata.num_row_groups):
      end = start + metadata.row_group(group).num_rows
      if start < first + length and first < end:
        column = self._column(name, group, key, episode)
        parts.append(column[max(first - start, 0) : first + length - start])
      start = end
    return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

  def _column(self, name: str, group: int, key: str, episode: int) -> np.ndarray:
    """Reads a column of a row group; caches it, as it has rows of other episodes."""
    array = self._cache.get((name, group, key))
    if array is None:
      file = self._open(name, episode)
      if key not in file.schema_arrow.names:
        got = errors.listing(file.schema_arrow.names)
        raise self._fault(name, key, "a column of it", got, episode)
      with self._explain_damage(name, key, "rows that can be read", episode):
        column = file.read_row_group(group, [key])[key].combine_chunks()
      try:
        array = to_numpy(column, self.features[key])
      except ValueError as error:
        want = f"{self.features[key].shape} {self.features[key].dtype}, as {INFO} says"
        raise self._fault(name, key, want, str(error), episode) from error
      self._cache.put((name, group, key), array)
    return array

  def _open(self, name: str, episode: int | None = None) -> Any:
    """Opens a parquet file, or returns the open one."""
    if name not in self._files:
      path = os.path.join(self.path, name)
      if not os.path.isfile(path):
        raise self._fault(name, "", "a file", "none", episode)
      with self._explain_damage(name, "", _PARQUET, episode):
        self._files[name] = load_parquet().ParquetFile(path)
    return self._files[name]

  def _read_table(self, name: str, columns: Sequence[str] | None = None) -> Any:
    path = os.path.join(self.path, name)
    if not os.path.isfile(path):
      raise self._fault(name, "", "a file", f"none: {_UNFINISHED}")
    with self._explain_damage(name, "", _PARQUET):
      return load_parquet().ParquetFile(path).read(columns)

  def _read_lines(self, name: str) -> list[dict[str, Any]]:
    path = os.path.join(self.path, name)
    with (
      self._explain_damage(name, "", "a file of JSON lines"),
      open(path, encoding="utf-8") as file,
    ):
      return [json.loads(line) for line in file if line.strip()]

  @contextlib.contextmanager
  def _explain_damage(
    self, name: str, key: str, want: str, episode: int | None = None
  ) -> Iterator[None]:
    """Explains errors of pyarrow and of the operating system."""
    import pyarrow

    try:
      yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
      raise self._fault(name, key, want, _damage(error), episode) from error

  def _texts(self, episode: int, numbers: np.ndarray) -> np.ndarray:
    wrong = (numbers < 0) | (numbers >= len(self.tasks))
    if wrong.any():
      step = int(np.argmax(wrong))
      want = f"a number below {len(self.tasks)}, of {TASKS}, at step {step}"
      name, got = self._data_file(episode), str(numbers[step])
      raise self._fault(name, TASK_INDEX, want, got, episode)
    return reading.objects(task.encode() for task in self.tasks)[numbers]

  def _detect_image(self, key: str) -> tuple[str, int]:
    """Returns the format of the first image, and its bits per channel."""
    first = self._read_rows(0, [key])[key][0]
    for start, name in _IMAGE_STARTS.items():
      if first.startswith(start):
        # A PNG begins: signature 8, size and name of IHDR 8, width and height 8, bits.
        return name, first[24] if name == "png" and len(first) > 24 else 8
    want = f"images of {errors.listing(_IMAGE_STARTS.values())}"
    raise self._fault(self._data_file(0), key, want, f"{first[:8]!r}", 0)

  # Videos.

  def _times(self, rows: Values) -> np.ndarray:
    """Returns the times of steps, in seconds from their episode's start.

    A time stamp that differs from step / fps by rounding to float32 becomes step / fps.
    """
    stamps = rows[TIMESTAMP]
    exact = rows[FRAME_INDEX] / self.fps
    slack = videos.TOLERANCE + np.spacing(np.abs(stamps).astype(np.float32))
    stamps = stamps.astype(np.float64)
    return np.where(np.abs(stamps - exact) <= slack, exact, stamps)

  def _frame_times(self, rows: Values, episode: int) -> np.ndarray:
    """Returns the times of the frames of steps, from their episode's start."""
    if self.frames_by == "index":
      return rows[FRAME_INDEX] / self.fps
    times = self._times(rows)
    # `~(... >= 0)` is true for NaN, too.
    back = np.flatnonzero(~(np.diff(times, prepend=-np.inf) >= 0))
    if len(back):
      step = int(back[0])
      want = "time stamps that do not run backwards, to find frames by"
      after = f", after {times[step - 1]:.6f}" if step else ""
      got = f"{times[step]:.6f} at step {step}{after}.{_BY_INDEX}"
      raise self._fault(self._data_file(episode), TIMESTAMP, want, got, episode)
    return times

  def _check_span(self, episode: int, key: str, times: np.ndarray) -> None:
    """Checks that a part of a video fits its episode's length and overlaps no other.

    Otherwise its first frame, or its last one, may be another episode's.
    """
    if self._is_v2 or not len(times):
      return
    spans = self._spans(key)
    name, (start, end) = self._video_file(episode, key), spans.bounds[episode]
    mend = f"Correct from_timestamp and to_timestamp in {EPISODES}"
    other = spans.overlaps.get(episode)
    if other is not None:
      want = "a part of the video that no other episode has"
      its_start, its_end = spans.bounds[other]
      got = (
        f"{start:.4f} s to {end:.4f} s, and {its_start:.4f} s to {its_end:.4f} s of "
        f"episode {other}. {mend}"
      )
      raise self._fault(name, key, want, got, episode)
    length = float(times[-1]) + 1 / self.fps
    excess = end - start - length
    # By a clock, the video may end some frames after the time stamp of the last step.
    is_wrong = abs(excess) > self._span_slack
    if is_wrong and (excess < 0 or not self._is_by_clock):
      want = f"{length:.4f} s of the video, for {len(times)} steps"
      way_out = f" {mend}, or allow it: frame_tolerance, --frame_tolerance SECONDS"
      if self._is_by_clock:
        way_out = _BY_INDEX
      got = f"{end - start:.4f} s, from {start:.4f} s to {end:.4f} s.{way_out}"
      raise self._fault(name, key, want, got, episode)

  @property
  def _is_by_clock(self) -> bool:
    """Whether frames are found by the time stamps of a clock."""
    return self.frames_by == "timestamp" and self.has_own_clock

  @property
  def _span_slack(self) -> float:
    return max(0.5 / self.fps, self.frame_tolerance)

  def _spans(self, key: str) -> _Spans:
    """Returns where the episodes are in their video files."""
    if key not in self._span_cache:
      columns = {
        name: self._table[f"videos/{key}/{name}"]
        for name in ("from_timestamp", "to_timestamp", "chunk_index", "file_index")
      }
      start = columns["from_timestamp"].astype(np.float64)
      end = columns["to_timestamp"].astype(np.float64)
      end = np.where(np.isnan(end), start + self.lengths / self.fps, end)
      files = np.stack([columns["chunk_index"], columns["file_index"]], axis=1)
      overlaps: dict[int, int] = {}
      last = -1
      for episode in np.lexsort((start, files[:, 1], files[:, 0])).tolist():
        if not self.lengths[episode]:
          continue
        if last >= 0 and np.array_equal(files[episode], files[last]):
          if start[episode] < end[last] - self._span_slack:
            overlaps[episode] = last
            overlaps.setdefault(last, episode)
          if end[episode] < end[last]:
            continue
        last = episode
      bounds = [*zip(start.tolist(), end.tolist(), strict=True)]
      self._span_cache[key] = _Spans(bounds, overlaps)
    return self._span_cache[key]

  def extra_frames(self) -> Iterator[str]:
    """Yields a sentence for each video with more frames than its episodes have steps.

    Then an episode has frames of another one, or some of its steps were lost.
    """
    if self._is_by_clock:
      return  # Its frames may have another rate than its steps.
    for key in [k for k, feature in self.features.items() if feature.dtype == VIDEO]:
      counts: dict[str, int] = {}
      for episode, length in enumerate(self.lengths.tolist()):
        name = self._video_file(episode, key)
        counts[name] = counts.get(name, 0) + length
      for name, count in counts.items():
        try:
          info = videos.VideoInfo.read(os.path.join(self.path, name))
        except (errors.RecordError, OSError):
          continue  # Reading the episodes explains the damage.
        if len(info.times) > count:
          want = f"{count} frames, one for each step of its episodes"
          yield str(self._fault(name, key, want, str(len(info.times))))

  def _decode(
    self, episode: int, key: str, times: np.ndarray, first: int, out: np.ndarray | None
  ) -> np.ndarray:
    """Decodes the frames of consecutive steps, from step `first`."""
    name, times = self._times_in_video(episode, key, times)
    shape = self.features[key].shape
    depth = self.quantizer(key)
    if not len(times):
      return np.empty((0, *shape), np.float32 if depth else np.uint8)
    with self._explain_video_errors(name, key, episode, times, first):
      frames = videos.read_frames(
        os.path.join(self.path, name),
        times,
        out,
        depth=depth,
        tolerance=self.frame_tolerance,
      )
    if frames.shape[1:] != shape:
      want = f"frames of {shape}, as {INFO} says"
      raise self._fault(name, key, want, str(frames.shape[1:]), episode)
    return frames

  def _times_in_video(
    self, episode: int, key: str, times: np.ndarray
  ) -> tuple[str, np.ndarray]:
    """Returns an episode's video file, and the times of its steps in it."""
    name = self._video_file(episode, key)
    start = 0.0
    if not self._is_v2:
      start = float(self._table[f"videos/{key}/from_timestamp"][episode])
      # Snaps a start with rounding errors to a frame.
      nearest = round(start * self.fps) / self.fps
      start = nearest if abs(start - nearest) <= videos.TOLERANCE else start
    if not os.path.isfile(os.path.join(self.path, name)):
      raise self._fault(name, key, "a video file", "none", episode)
    if not self._is_v2 and len(times):
      # The nearest frame may belong to another episode in the same file.
      end = self._spans(key).bounds[episode][1] - 1 / self.fps
      inside = np.clip(times, 0, max(end - start, 0))
      is_near = np.abs(inside - times) <= self.frame_tolerance
      times = np.where(is_near, inside, times)
    return name, start + times

  @contextlib.contextmanager
  def _explain_video_errors(
    self, name: str, key: str, episode: int, times: np.ndarray, first: int
  ) -> Iterator[None]:
    """Names the episode and the step of a video that cannot be read."""
    try:
      yield
    except videos.MissingFrameError as error:
      step = first + error.index
      want = f"the frame of step {step} at {times[error.index]:.6f} s"
      got = error.got
      if self._is_by_clock:
        got += f". The time stamps are not multiples of 1 / fps.{_BY_INDEX}"
      raise self._fault(name, key, want, got, episode) from error
    except errors.RecordError as error:
      want = "a video that can be decoded"
      raise self._fault(name, key, want, f"an error ({error})", episode) from error

  # Files.

  def _data_file(self, episode: int) -> str:
    return self._file("data_path", episode, "data", "")

  def _video_file(self, episode: int, key: str) -> str:
    return self._file("video_path", episode, f"videos/{key}", key)

  def _file(self, template: str, episode: int, prefix: str, key: str) -> str:
    """Returns a file of an episode, relative to the folder."""
    if self._is_v2:
      chunk = episode // int(self.info.get("chunks_size", 1000))
      fields = {"episode_chunk": chunk, "episode_index": episode}
    else:
      names = ("chunk_index", "file_index")
      fields = {name: int(self._table[f"{prefix}/{name}"][episode]) for name in names}
    try:
      # The template is untrusted: a field width of billions gives as many blanks.
      if "{" in _FIELD.sub("", self.info[template]):
        raise ValueError("other fields")
      name = os.path.normpath(self.info[template].format(video_key=key, **fields))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
      want = f"a template of {errors.listing(fields)}"
      got = repr(self.info.get(template))
      raise self._fault(INFO, template, want, got, episode) from error
    if os.path.isabs(name) or name.startswith(os.pardir):
      raise self._fault(INFO, template, "files of this folder", name, episode)
    return name

  def _fault(
    self, name: str, key: str, want: str, got: str, episode: int | None = None
  ) -> errors.ConversionError:
    places = [os.path.join(self.path, name) if name else self.path]
    places += [f"episode {episode}"] if episode is not None else []
    places += [key] if key else []
    return reading.fault(": ".join(places), want, got)


_BY_INDEX = (
  " Find frame i at step i: frames_by='index', --frames_by index; or allow the nearest "
  "frame: frame_tolerance, --frame_tolerance SECONDS"
)
_FIELD = re.compile(r"\{\w+(:0?\d{1,2}d?)?\}")
_UNFINISHED = (
  "the recording was not finished (LeRobot's `finalize` did not run), or files are "
  "missing"
)


def _damage(error: Exception) -> str:
  text = str(error).strip().split("\n")[0].rstrip(".")
  hint = "The file was cut or damaged, or never finished"
  return f"{type(error).__name__}: {text:.200}. {hint}"


def read_json(name: str) -> dict[str, Any]:
  """Reads a JSON file of a dataset; raises ConversionError if it is damaged."""
  want = "the JSON description of a dataset of LeRobot's"
  return reading.read_json_object(name, want)


class _ColumnCache:
  """Cache of the most recently read columns of row groups, limited in bytes."""

  def __init__(self, max_bytes: int) -> None:
    self._max_bytes = max_bytes
    self._num_bytes = 0
    self._columns: dict[Any, np.ndarray] = {}

  def get(self, key: Any) -> np.ndarray | None:
    """Returns a column, or None if it is not in the cache."""
    if key in self._columns:
      # The order of the dict is that of use.
      self._columns[key] = self._columns.pop(key)
    return self._columns.get(key)

  def put(self, key: Any, column: np.ndarray) -> None:
    """Adds a column; drops the least recently used ones if the cache is full."""
    self._columns[key] = column
    self._num_bytes += num_bytes({"": column})
    while self._num_bytes > self._max_bytes and len(self._columns) > 1:
      dropped = self._columns.pop(next(iter(self._columns)))
      self._num_bytes -= num_bytes({"": dropped})


def to_numpy(column: Any, feature: Feature) -> np.ndarray:
  """Returns a column as an array [rows, ...]; ValueError if it does not fit."""
  import pyarrow

  if isinstance(column, pyarrow.ExtensionArray):
    column = column.storage
  if feature.dtype == IMAGE:
    if not pyarrow.types.is_struct(column.type):
      raise ValueError(str(column.type))
    images = column.field("bytes").to_pylist()
    if not all(images):  # None, or empty.
      raise ValueError("images that are not in the file, only their names")
    return reading.objects(images)
  if feature.dtype == "string":
    if column.null_count or not (
      pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)
    ):
      raise ValueError(f"{column.null_count} nulls of {column.type}")
    return reading.objects(text.encode() for text in column.to_pylist())
  shape: tuple[int, ...] = ()
  num_rows = len(column)
  while pyarrow.types.is_nested(column.type):
    if column.null_count or not hasattr(column, "flatten"):
      raise ValueError(f"{column.null_count} nulls of {column.type}")
    num_lists, flat = len(column), column.flatten()
    size = len(flat) // max(num_lists, 1)
    if not isinstance(column, pyarrow.FixedSizeListArray) and num_lists:
      sizes = column.value_lengths().to_numpy(zero_copy_only=False)
      if sizes.min() != sizes.max():
        raise ValueError(f"lists of {sizes.min()} to {sizes.max()} values")
    shape, column = (*shape, size), flat
  if column.null_count:
    raise ValueError(f"{column.null_count} nulls")
  values = column.to_numpy(zero_copy_only=False)
  want = () if feature.shape == (1,) and not shape else feature.shape
  try:
    dtype = np.dtype(feature.dtype)
  except TypeError as error:
    raise ValueError(f"the dtype {feature.dtype!r} in {INFO}") from error
  if values.dtype != dtype or (num_rows and shape != want):
    raise ValueError(f"{shape} {values.dtype}")
  return values.reshape(num_rows, *(() if want == (1,) else want))


def delta_time_offsets(
  delta_timestamps: Sequence[float], fps: float
) -> tuple[int, ...]:
  """Returns time offsets for LeRobot's `delta_timestamps`.

  Args:
    delta_timestamps: seconds from the anchor's step, multiples of 1 / fps.
    fps: frame rate of the dataset.
  Raises:
    SpecError: a time differs from a multiple of 1 / fps by more than 1e-4 s, LeRobot's
      tolerance.
  """
  offsets = tuple(round(delta * fps) for delta in delta_timestamps)
  for delta, offset in zip(delta_timestamps, offsets, strict=True):
    if not math.isclose(delta, offset / fps, rel_tol=0, abs_tol=videos.TOLERANCE):
      raise errors.SpecError(
        f"delta_time_offsets: expected multiples of 1/{fps:g} s, got {delta}. The "
        f"nearest is {offset / fps:.4f}."
      )
  return offsets
