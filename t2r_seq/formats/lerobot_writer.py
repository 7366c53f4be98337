"""Writes LeRobot's v3 datasets: rows, videos, tasks, statistics and metadata.

Rows of each episode are appended to parquet files. Each episode has a video file per
camera; at the end these are joined to larger files, as LeRobot does.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, files, records, specs
from t2r_seq.episodes.episodes import EpisodeWriter, Values
from t2r_seq.episodes.rates import check_rate, control_period
from t2r_seq.episodes.views import Episodes
from t2r_seq.episodes.writing import Staging
from t2r_seq.formats import lerobot_folder
from t2r_seq.formats.lerobot_folder import (
  DERIVED,
  EPISODE_INDEX,
  FRAME_INDEX,
  IMAGE,
  INDEX,
  TASK,
  TASK_INDEX,
  TIMESTAMP,
  VIDEO,
)
from t2r_seq.imports import tf
from t2r_seq.store import videos
from t2r_seq.store.videos import VideoEncoding

# Format of images that are in the parquet files instead of a video: lossless.
PNG = "png"
# Names of paths with the text of a task, the likeliest first.
_TASK_NAMES = (TASK, "language_instruction", "instruction", "task_description")
_DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
_EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"
_CHUNK_FILES, _DATA_MB, _VIDEO_MB = 1000, 100, 200
_CODEC_NAMES = {
  **{"libsvtav1": "av1", "libdav1d": "av1"},
  **{"libx264": "h264", "libx265": "hevc"},
}
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# Maximum number of values, evenly spaced, for the quantiles of an element.
_MAX_RANKED = 1 << 22
_MAX_AXES = 5


@dataclasses.dataclass(frozen=True)
class _Column:
  """A path, its spec, and the feature of LeRobot that holds it."""

  path: str
  spec: specs.ExtendedTensorSpec
  feature: lerobot_folder.Feature

  def arrow_type(self) -> Any:
    """Returns the type of the rows in the parquet files."""
    import pyarrow

    feature = self.feature
    if feature.dtype == IMAGE:
      return pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    if feature.dtype == "string":
      return pyarrow.string()
    kind = pyarrow.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.shape == (1,):
      return kind
    if len(feature.shape) == 1:
      return pyarrow.list_(kind, feature.shape[0])
    for _ in feature.shape:
      kind = pyarrow.list_(kind)
    return kind

  def to_arrow(self, rows: np.ndarray) -> Any:
    """Returns the values of all steps as an Arrow array of `arrow_type`."""
    import pyarrow

    if self.feature.dtype == IMAGE:
      images: Any = rows
      if rows.dtype != object:
        images = [specs.packing.encode_image(frame, PNG) for frame in rows]
      named = [{"bytes": b, "path": f"frame-{i:06d}"} for i, b in enumerate(images)]
      return pyarrow.array(named, self.arrow_type())
    if self.feature.dtype == "string":
      return pyarrow.array([text.decode() for text in rows], self.arrow_type())
    flat = pyarrow.array(np.ascontiguousarray(rows).reshape(-1))
    shape = self.feature.shape
    if shape == (1,):
      return flat
    if len(shape) == 1:
      return pyarrow.FixedSizeListArray.from_arrays(flat, shape[0])
    for axis in reversed(range(len(shape))):
      count = len(flat) // shape[axis]
      offsets = np.arange(count + 1, dtype=np.int32) * shape[axis]
      flat = pyarrow.ListArray.from_arrays(pyarrow.array(offsets), flat)
    return flat


def _clock_path(spec: specs.TensorSpecStruct) -> str | None:
  """Returns the path of time stamps that LeRobot's `timestamp` can hold, or None."""
  leaf = spec.get(TIMESTAMP)
  if leaf is None or not leaf.is_sequence or leaf.is_optional:
    return None
  is_number = leaf.dtype in (tf.float32, tf.float64) and leaf.shape in ((), (1,))
  return TIMESTAMP if is_number else None


def _task_path(spec: specs.TensorSpecStruct) -> str | None:
  """Returns the path of the text of the task, or None."""
  texts = [
    path
    for path, leaf in spec.items()
    if leaf.dtype == tf.string and not leaf.shape.rank and not leaf.is_optional
  ]
  for name in _TASK_NAMES:
    for path in texts:
      if path.rpartition("/")[2] == name:
        return path
  return None


def _make_columns(
  path: str, spec: specs.TensorSpecStruct, has_videos: bool
) -> list[_Column]:
  """Returns the columns that store all paths, except task texts and time stamps."""
  columns: list[_Column] = []
  mismatches: list[errors.Mismatch] = []
  of_format = (_task_path(spec), _clock_path(spec))
  for name, leaf in spec.items():
    if name in of_format:
      continue
    column = _make_column(name, leaf, has_videos)
    if isinstance(column, errors.Mismatch):
      mismatches.append(column)
      continue
    same = [c.path for c in columns if c.feature.key == column.feature.key]
    if same:
      want, got = "paths that differ where / is .", f"the key of {same[0]}"
      mismatches.append(
        errors.Mismatch(name, want, got, f"Leave one out: --drop {name}.")
      )
    columns.append(column)
  if mismatches:
    raise errors.mismatch_error(f"write: {path}", mismatches)
  return columns


def _make_column(
  path: str, leaf: specs.ExtendedTensorSpec, has_videos: bool
) -> _Column | errors.Mismatch:
  key, shape = path.replace("/", "."), tuple(leaf.shape.as_list())
  hint = f"Leave it out: --drop {path}."
  if key in (*DERIVED, TASK):
    want = "another path than LeRobot's own"
    return errors.Mismatch(path, want, f"{key}", hint)
  if leaf.is_optional:
    want = "a path that every episode has"
    return errors.Mismatch(path, want, "an optional one", hint)
  dtype = leaf.dtype.name
  if specs.extended_tensor_spec.is_video_spec(leaf):
    dtype = VIDEO
  elif specs.is_encoded_image_spec(leaf):
    if len(shape) != 3:
      return errors.Mismatch(path, "one image per step", f"images of {shape}", hint)
    dtype = IMAGE
  elif leaf.dtype == tf.string:
    if shape:
      return errors.Mismatch(path, "one text a step", f"strings {shape}", hint)
    dtype = "string"
  elif leaf.dtype == tf.uint8 and len(shape) == 3 and shape[-1] in (1, 3, 4):
    is_even = not shape[0] % 2 and not shape[1] % 2
    is_video = leaf.is_sequence and is_even and shape[-1] == 3
    dtype = VIDEO if is_video and has_videos else IMAGE
  elif leaf.dtype == tf.bfloat16 or leaf.dtype.is_complex:
    return errors.Mismatch(path, "numbers that parquet has", dtype, hint)
  elif 0 in shape or len(shape) > _MAX_AXES:
    want = f"at most {_MAX_AXES} axes, none of them empty"
    return errors.Mismatch(path, want, f"{shape}", hint)
  return _Column(path, leaf, lerobot_folder.Feature(key, dtype, shape or (1,)))


def _rate(path: str, episodes: Episodes, fps: float | None) -> float:
  """Returns steps per second: `fps`, or that of the metadata, or of kept videos."""
  if fps is not None:
    check_rate(f"write: {path}", episodes, fps)
  lerobot = episodes.metadata.get("lerobot")
  if fps is None and isinstance(lerobot, dict):
    fps = lerobot.get("fps")
  period = control_period(episodes.metadata)
  if fps is None and period is not None:
    fps = round(1 / period, 9)
  rates = {options.fps for options in episodes.kept_videos.values()}
  if fps is None and len(rates) == 1:
    fps = rates.pop()
  is_flag = isinstance(fps, bool)
  if not isinstance(fps, (int, float)) or is_flag or not 0 < fps < math.inf:
    raise errors.ConversionError(
      f"write: {path}: expected a number of steps per second, got {fps}. "
      "Say it: --fps 10."
    )
  return fps


class LeRobotWriter(EpisodeWriter):
  """Writes a v3 dataset."""

  def __init__(
    self,
    path: str,
    episodes: Episodes,
    fps: float | None = None,
    task: str | None = None,
    video_codec: str = VideoEncoding.codec,
    video_gop: int = VideoEncoding.gop,
    video_quality: int = VideoEncoding.quality,
  ) -> None:
    """Makes the dataset in a temporary folder.

    Args:
      path: path of the new folder.
      episodes: episodes to write; the 'lerobot' of their metadata gives rate, robot,
        tasks and names.
      fps: steps per second of the data, which is not resampled; None for that of the
        metadata, or of videos that are copied.
      task: text for all episodes, if they have no path with a text; None for ''.
      video_codec: the encoder of videos; 'png' stores images without loss instead.
      video_gop: frames from one key frame to the next.
      video_quality: the codec's crf: lower is better.
    """
    lerobot_folder.load_parquet()
    self._encoding = None
    if video_codec != PNG:
      self._encoding = VideoEncoding(video_codec, video_gop, video_quality)
      episodes = episodes.with_videos(("mp4",), self._encoding)
    self.episodes = episodes
    self._kept_videos = episodes.kept_videos
    self._spec, self._task = episodes.spec, task
    self._columns = _make_columns(path, self._spec, self._encoding is not None)
    if self._encoding and any(c.feature.dtype == VIDEO for c in self._columns):
      self._encoding.check()
    self._fps = _rate(path, episodes, fps)
    self._of_task = _task_path(self._spec)
    self._of_clock = _clock_path(self._spec)
    self._metadata = dict(episodes.metadata)
    lerobot = self._metadata.get("lerobot")
    self._lerobot: dict[str, Any] = lerobot if isinstance(lerobot, dict) else {}
    self._tasks: list[str] = [str(task) for task in self._lerobot.get("tasks", [])]
    self._episodes: list[dict[str, Any]] = []
    self._stats: list[dict[str, dict[str, Any]]] = []
    self._codecs: dict[str, str] = {}
    self._num_steps = 0
    self._histograms: dict[str, np.ndarray] = {}
    self._staging = Staging(path)
    self._rows_file: Any = None
    self._place, self._size = -1, 0

  def append(self, values: Values) -> None:
    """Encodes the videos of an episode, and writes its rows."""
    number = len(self._episodes)
    length = self._length(values)
    rows = self._rows(values, length)
    texts = self._texts(values, length)
    for text in texts:
      if text not in self._tasks:
        self._tasks.append(text)
    first = self._num_steps
    rows[TIMESTAMP] = (np.arange(length) / self._fps).astype(np.float32)
    if self._of_clock is not None:
      rows[TIMESTAMP] = values[self._of_clock].reshape(length)
    rows[FRAME_INDEX] = np.arange(length)
    rows[EPISODE_INDEX] = np.full(length, number)
    rows[INDEX] = np.arange(first, first + length)
    rows[TASK_INDEX] = np.array([self._tasks.index(text) for text in texts])
    stats = {}
    for column in self._columns:
      key = column.feature.key
      if column.feature.dtype == VIDEO:
        video = self._video(key, number)
        files.make_folders(os.path.dirname(video))
        if column.path in self._kept_videos:
          rows[key] = self._copy_video(video, column.path, rows[key].item())
        else:
          videos.write_frames(video, rows[key], self._fps, self._encoding)
      if column.feature.dtype != "string":
        stats[key] = self._measure(column, rows[key])
    stats.update({key: _measure(rows[key]) for key in DERIVED})
    self._write_rows(self._table(rows))
    row = {EPISODE_INDEX: number, "tasks": list(dict.fromkeys(texts)), "length": length}
    row |= {"dataset_from_index": first, "dataset_to_index": first + length}
    row |= _chunk_and_file("data/", self._place)
    self._episodes.append(row)
    self._stats.append(stats)
    self._num_steps += length

  def _write_rows(self, table: Any) -> None:
    """Appends the rows of an episode; starts the next file if this one is full."""
    if self._rows_file is None or self._size + table.nbytes > _DATA_MB * 2**20:
      self._close_rows()
      self._place, self._size = self._place + 1, 0
      name = self._data_file(self._place)
      self._rows_file = lerobot_folder.load_parquet().ParquetWriter(name, table.schema)
    self._rows_file.write_table(table, row_group_size=len(table))
    self._size += table.nbytes

  def _close_rows(self) -> None:
    if self._rows_file is not None:
      self._rows_file.close()
      self._rows_file = None

  def _data_file(self, place: int) -> str:
    return self._name(_DATA_PATH.format(**_chunk_and_file("", place)))

  def _name(self, relative: str) -> str:
    name = os.path.join(self._staging.place("dataset"), relative)
    os.makedirs(os.path.dirname(name), exist_ok=True)
    return name

  def _copy_video(self, path: str, name: str, data: bytes) -> np.ndarray:
    """Copies a video, at the rate of the dataset; returns its frames."""
    times = videos.VideoInfo.read(io.BytesIO(data)).times
    depth = self._kept_videos[name].depth
    frames = videos.read_frames(io.BytesIO(data), times, depth=depth)
    copied = videos.cut_video(io.BytesIO(data), times, self._fps)
    if copied is None:
      copied = videos.encode(frames, self._fps, self._kept_videos[name])
    with open(path, "wb") as file:
      file.write(copied)
    return frames

  def _measure(self, column: _Column, rows: np.ndarray) -> dict[str, Any]:
    """Returns the statistics of an episode; adds its pixels to the histogram of all."""
    if column.feature.dtype not in (VIDEO, IMAGE):
      return _measure(rows)
    if rows.dtype == object:
      encoded = tf.constant(rows.tolist(), tf.string)
      rows = records.images.decode_images(encoded, column.spec, column.path).numpy()
    key, levels = column.feature.key, self._levels(column)
    depth = self._depth(column)
    codes = rows if depth is None else depth.to_codes(rows)
    histogram = _histogram(codes, len(levels))
    self._histograms[key] = self._histograms.get(key, 0) + histogram
    return _of_histogram(histogram, len(rows), levels)

  def _depth(self, column: _Column) -> videos.DepthQuantizer | None:
    """Returns the quantiser of a depth video; None for other columns."""
    kept = self._kept_videos.get(column.path)
    return None if kept is None else kept.depth

  def _levels(self, column: _Column) -> np.ndarray:
    """Returns the values that pixels can have in LeRobot's statistics."""
    depth = self._depth(column)
    if depth is not None:  # Metres.
      codes = np.arange(videos.DEPTH_CODES)
      return depth.to_depth(codes, np.dtype(np.float32)).astype(np.float64)
    if column.spec.dtype == tf.uint16:
      return np.arange(1 << 16, dtype=np.float64)
    return np.arange(256) / 255

  def finish(self) -> None:
    """Joins the videos, writes the metadata, and publishes the dataset."""
    self._close_rows()
    for column in self._columns:
      if column.feature.dtype == VIDEO:
        self._join_videos(column.feature.key)
    self._write_stats()
    self._write_episodes()
    self._write_tasks()
    self._write_info()
    self._write_extra()
    self._staging.publish("dataset")

  def close(self) -> None:
    self._close_rows()
    self._staging.close()

  def _video(self, key: str, episode: int) -> str:
    return self._staging.place(os.path.join(key, f"episode-{episode:08d}.mp4"))

  def _length(self, values: Values) -> int:
    timed = [v for p, v in values.items() if self._spec[p].is_sequence]
    length = next((len(value) for value in timed if value.ndim), 0)
    if timed and not any(value.ndim for value in timed):
      length = len(videos.VideoInfo.read(io.BytesIO(timed[0].item())).times)
    if not length:
      raise errors.SpecError("write: expected at least one step, got none.")
    return length

  def _rows(self, values: Values, length: int) -> dict[str, np.ndarray]:
    """Returns the values of each step by key; values of the episode are repeated."""
    rows = {}
    for column in self._columns:
      value = values[column.path]
      if not column.spec.is_sequence:
        value = np.broadcast_to(value, (length, *value.shape))
      if column.feature.dtype == "string":
        _check_texts(column.path, value)
      rows[column.feature.key] = value
    return rows

  def _texts(self, values: Values, length: int) -> list[str]:
    if self._of_task is None:
      return [self._task or ""] * length
    texts = np.broadcast_to(values[self._of_task], (length,))
    _check_texts(self._of_task, texts)
    return [text.decode() for text in texts]

  def _derived_dtype(self, key: str) -> tf.DType:
    """Returns the dtype of one of `DERIVED`."""
    clock = self._spec[self._of_clock].dtype if self._of_clock else tf.float32
    return clock if key == TIMESTAMP else tf.int64

  def _stored_columns(self) -> list[_Column]:
    """Returns the columns of the parquet files."""
    columns = [column for column in self._columns if column.feature.dtype != VIDEO]
    for key in DERIVED:
      dtype = self._derived_dtype(key)
      leaf = specs.ExtendedTensorSpec((), dtype, key, is_sequence=True)
      columns.append(_Column(key, leaf, lerobot_folder.Feature(key, dtype.name, (1,))))
    return columns

  def _table(self, rows: Mapping[str, np.ndarray]) -> Any:
    import pyarrow

    columns = self._stored_columns()
    schema = pyarrow.schema([(c.feature.key, c.arrow_type()) for c in columns])
    arrays = [column.to_arrow(rows[column.feature.key]) for column in columns]
    return pyarrow.Table.from_arrays(arrays, schema=schema)

  def _join_videos(self, key: str) -> None:
    parts: list[list[int]] = []
    size, before = 0, None
    for number in range(len(self._episodes)):
      video = self._video(key, number)
      num_bytes = os.path.getsize(video)
      # Videos that were copied may differ from one episode to the next.
      codec = videos.VideoInfo.read(video).codec if self._kept_videos else None
      if codec is not None:
        self._codecs.setdefault(key, _CODEC_NAMES.get(codec[0], codec[0]))
      if not parts or size + num_bytes > _VIDEO_MB * 2**20 or codec != before:
        parts.append([])
        size, before = 0, codec
      parts[-1].append(number)
      size += num_bytes
    fps = self._fps
    for place, numbers in enumerate(parts):
      path = _VIDEO_PATH.format(video_key=key, **_chunk_and_file("", place))
      names = [self._video(key, number) for number in numbers]
      videos.join_videos(self._name(path), names)
      first = 0
      for number in numbers:
        row = self._episodes[number]
        end = first + row["length"]
        row |= _chunk_and_file(f"videos/{key}/", place)
        times = {"from_timestamp": first / fps, "to_timestamp": end / fps}
        row |= {f"videos/{key}/{name}": time for name, time in times.items()}
        first = end

  def _write_stats(self) -> None:
    """Adds each episode's statistics to its row; writes the total."""
    joined = {}
    for key in self._stats[0]:
      measured = [stats[key] for stats in self._stats]
      for row, measures in zip(self._episodes, measured, strict=True):
        row |= {f"stats/{key}/{name}": value for name, value in measures.items()}
      if (histogram := self._histograms.get(key)) is not None:
        count = sum(measures["count"][0] for measures in measured)
        (column,) = (c for c in self._columns if c.feature.key == key)
        joined[key] = _of_histogram(histogram, count, self._levels(column))
      else:
        joined[key] = _merge(measured, self._values(key))
    self._write_json(lerobot_folder.STATS, joined)

  def _values(self, key: str) -> np.ndarray:
    """Reads a key's rows of all episodes; of many rows, about `_MAX_RANKED`."""
    every = -(-sum(row["length"] for row in self._episodes) // _MAX_RANKED)
    (column,) = (c for c in self._stored_columns() if c.feature.key == key)
    columns = []
    for place in range(self._place + 1):
      name = self._data_file(place)
      rows = lerobot_folder.load_parquet().read_table(name, columns=[key])[key]
      values = lerobot_folder.to_numpy(rows.combine_chunks(), column.feature)
      columns.append(values[::every])
    return np.concatenate(columns)

  def _write_episodes(self) -> None:
    import pyarrow

    place = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
    columns = {
      name: [row[name] for row in self._episodes] for name in self._episodes[0]
    } | {name: [0] * len(self._episodes) for name in place}
    table = pyarrow.table(columns)
    name = self._name(_EPISODES_PATH)
    lerobot_folder.load_parquet().write_table(table, name, row_group_size=_CHUNK_FILES)

  def _write_tasks(self) -> None:
    """Writes the tasks like a pandas table whose index is the texts."""
    import pyarrow

    tasks = self._tasks
    table = pyarrow.table({TASK_INDEX: list(range(len(tasks))), TASK: tasks})
    text = {"pandas_type": "unicode", "numpy_type": "object"}
    index = {"name": TASK, "field_name": TASK, **text, "metadata": None}
    number = {"name": TASK_INDEX, "field_name": TASK_INDEX, "pandas_type": "int64"}
    described = {
      "index_columns": [TASK],
      "column_indexes": [
        {"name": None, "field_name": None, **text, "metadata": {"encoding": "UTF-8"}}
      ],
      "columns": [{**number, "numpy_type": "int64", "metadata": None}, index],
      "creator": {"library": "pyarrow", "version": pyarrow.__version__},
      "pandas_version": "2.2.0",
    }
    table = table.replace_schema_metadata({b"pandas": json.dumps(described).encode()})
    lerobot_folder.load_parquet().write_table(table, self._name(lerobot_folder.TASKS))

  def _write_info(self) -> None:
    count = len(self._episodes)
    fps = self._fps
    if fps == int(fps):
      fps = int(fps)
    features = {c.feature.key: self._describe(c, fps) for c in self._columns}
    for key in DERIVED:
      dtype = self._derived_dtype(key).name
      features[key] = {"dtype": dtype, "shape": [1], "names": None}
    has_videos = any(c.feature.dtype == VIDEO for c in self._columns)
    info = {
      "codebase_version": "v3.0",
      "robot_type": self._lerobot.get("robot_type"),
      "total_episodes": count,
      "total_frames": self._num_steps,
      "total_tasks": len(self._tasks),
      "chunks_size": _CHUNK_FILES,
      "data_files_size_in_mb": _DATA_MB,
      "video_files_size_in_mb": _VIDEO_MB,
      "fps": fps,
      "splits": _ranges(self.episodes.splits) or {"train": f"0:{count}"},
      "data_path": _DATA_PATH,
      "video_path": _VIDEO_PATH if has_videos else None,
      "features": features,
    }
    self._write_json(lerobot_folder.INFO, info)

  def _describe(self, column: _Column, fps: float) -> dict[str, Any]:
    feature = column.feature
    names = self._lerobot.get("names")
    own_names = names.get(feature.key) if isinstance(names, dict) else None
    shape = list(feature.shape)
    entry: dict[str, Any] = {"dtype": feature.dtype, "shape": shape, "names": own_names}
    convention = self._spec[column.path].convention
    if convention is not None:
      entry["convention"] = convention.to_json()
      if convention.names and own_names is None:
        entry["names"] = [*convention.names]
    if feature.dtype in (VIDEO, IMAGE):
      entry["names"] = ["height", "width", "channels"]
    encoding = self._encoding
    if feature.dtype == VIDEO and encoding is not None:
      entry["info"] = {
        "video.height": feature.shape[0],
        "video.width": feature.shape[1],
        "video.codec": self._codecs.get(feature.key)
        or _CODEC_NAMES.get(encoding.codec, encoding.codec),
        "video.pix_fmt": videos.PIXEL_FORMAT,
        "video.is_depth_map": False,
        "video.fps": fps,
        "video.channels": feature.shape[2],
        "has_audio": False,
      }
    if (depth := self._depth(column)) is not None:
      entry["info"] |= {
        "video.codec": _CODEC_NAMES["libx265"],
        "video.pix_fmt": videos.DEPTH_FORMAT,
        "video.is_depth_map": True,
        "is_depth_map": True,
        "depth_unit": "m",  # Of the statistics.
        **{f"video.{name}": value for name, value in vars(depth).items()},
      }
    return entry

  def _write_extra(self) -> None:
    """Writes paths, specs and metadata, for which the format has no place."""
    keys = {column.path: column.feature.key for column in self._columns}
    if self._of_task is not None:
      keys[self._of_task] = TASK
    if self._of_clock is not None:
      keys[self._of_clock] = TIMESTAMP
    extra = {"keys": keys, "spec": json.loads(self._spec.to_json())}
    if self._kept_videos:
      kept = self._kept_videos.items()
      extra["videos"] = {path: form.to_json_dict() for path, form in kept}
    if self._of_clock is not None:
      # The writer stores one frame per step, whatever the time stamps are.
      extra["frames_by"] = "index"
    if splits := self.episodes.splits:
      extra["splits"] = {name: [*map(int, splits[name])] for name in splits}
    self._write_json(lerobot_folder.EXTRA, {**extra, "metadata": dict(self._metadata)})

  def _write_json(self, name: str, value: Any) -> None:
    with open(self._name(name), "w", encoding="utf-8") as file:
      json.dump(value, file, indent=4)


def _ranges(splits: Mapping[str, Any]) -> dict[str, str]:
  """Returns the splits that are ranges of episodes, all that `info.json` can hold."""
  return {
    name: f"{numbers[0]}:{numbers[-1] + 1}"
    for name, numbers in ((name, [*map(int, splits[name])]) for name in splits)
    if numbers and numbers == list(range(numbers[0], numbers[-1] + 1))
  }


def _chunk_and_file(prefix: str, place: int) -> dict[str, int]:
  chunk, file = divmod(place, _CHUNK_FILES)
  return {f"{prefix}chunk_index": chunk, f"{prefix}file_index": file}


def _check_texts(path: str, texts: np.ndarray) -> None:
  try:
    for text in texts:
      text.decode()
  except UnicodeDecodeError as error:
    raise errors.SpecError(
      f"write: {path}: expected text in UTF-8, got {text!r:.60}. Leave it out: "
      f"--drop {path}."
    ) from error


# LeRobot's statistics: numbers by element, pixels by channel.


def _measure(rows: np.ndarray) -> dict[str, Any]:
  """Returns the statistics of the values of steps [T, ...]."""
  values = rows.reshape(len(rows), -1).astype(np.float64)
  measures = {"min": values.min(0), "max": values.max(0)}
  measures |= {"mean": values.mean(0), "std": values.std(0), **_rank(values)}
  return _reshape(measures, rows.shape[1:], len(rows))


def _rank(values: np.ndarray) -> dict[str, np.ndarray]:
  return {name: np.quantile(values, part, 0) for name, part in _QUANTILES.items()}


def _merge(measured: Sequence[Mapping[str, Any]], values: np.ndarray) -> dict[str, Any]:
  """Merges statistics of episodes; quantiles come from `values`, sampled rows."""
  of_each = {name: np.array([f[name] for f in measured]) for name in measured[0]}
  counts = of_each["count"].reshape(-1, *[1] * (of_each["mean"].ndim - 1))
  total = counts.sum()
  mean = (counts * of_each["mean"]).sum(0) / total
  squares = of_each["std"] ** 2 + (of_each["mean"] - mean) ** 2
  merged = {"min": of_each["min"].min(0), "max": of_each["max"].max(0), "mean": mean}
  merged["std"] = np.sqrt((counts * squares).sum(0) / total)
  merged |= _rank(values.reshape(len(values), -1).astype(np.float64))
  return _reshape(merged, values.shape[1:], int(total))


def _histogram(pixels: np.ndarray, num_levels: int) -> np.ndarray:
  """Counts the levels of each channel: int64 [channels, num_levels]."""
  channels = np.moveaxis(pixels, -1, 0).reshape(pixels.shape[-1], -1)
  return np.stack([np.bincount(c, minlength=num_levels) for c in channels])


def _of_histogram(
  histogram: np.ndarray, count: int, levels: np.ndarray
) -> dict[str, Any]:
  """Returns the statistics of `count` images; `levels` are the bins, rising."""
  total = histogram.sum(1)
  mean = histogram @ levels / total
  variance = np.maximum(histogram @ levels**2 / total - mean**2, 0)
  ends = np.cumsum(histogram, 1)
  parts = {"min": 0.0, "max": 1.0, **_QUANTILES}
  measures = {
    name: levels[np.argmax(ends >= np.maximum(part * total, 1)[:, None], 1)]
    for name, part in parts.items()
  }
  shape = (len(histogram), 1, 1)
  return _reshape({**measures, "mean": mean, "std": np.sqrt(variance)}, shape, count)


def _reshape(
  measures: Mapping[str, np.ndarray], shape: tuple[int, ...], count: int
) -> dict[str, Any]:
  shaped = {k: v.reshape(shape or (1,)).tolist() for k, v in measures.items()}
  return {**shaped, "count": [count]}
