"""Episodes of LeRobot's datasets: their features, and the tasks as text."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import errors, records, specs
from t2r_seq.episodes import reading, splits
from t2r_seq.episodes.episodes import Fields, Values, make_specs
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.formats.lerobot_folder import (
  DERIVED,
  EXTRA,
  INFO,
  STATS,
  TASK,
  TIMESTAMP,
  VIDEO,
  LeRobotFolder,
  is_lerobot,
  read_json,
)
from t2r_seq.formats.lerobot_writer import LeRobotWriter
from t2r_seq.imports import tf
from t2r_seq.store import videos
from t2r_seq.store.videos import VideoEncoding, VideoOptions


@register_format(
  "lerobot",
  suffixes=(".lerobot",),
  recognises=lambda path: os.path.isdir(path) and is_lerobot(path),
  description=f"a LeRobot folder (with {INFO})",
  writer=LeRobotWriter,
)
class LeRobotEpisodes(Episodes):
  """Reads the episodes of a dataset, with the text of their task at each step.

  Keys that follow from the position of a step, such as its index, are in
  `derived_spec`.
  """

  def __init__(
    self,
    path: str,
    dropped: Dropped | None = None,
    frames_by: str | None = None,
    frame_tolerance: float = videos.TOLERANCE,
  ) -> None:
    """Opens the dataset; raises as `LeRobotFolder` does.

    Args:
      path: path of the folder.
      dropped: paths to leave out; None for none.
      frames_by: see `LeRobotFolder`.
      frame_tolerance: see `LeRobotFolder`.
    """
    self.path = path
    self.folder = LeRobotFolder(path, frames_by, frame_tolerance)
    self._extra = self.folder.extra
    self._millimetres: frozenset[str] = frozenset()
    self._keys = self._extra.get("keys", {})
    dropped = dropped or Dropped()
    # Time stamps of a clock don't follow from the step.
    is_timed = self.folder.has_own_clock
    derived = tuple(key for key in DERIVED if key != TIMESTAMP or not is_timed)
    of_keys = {k: leaf for k, leaf in self.folder.fields.items() if k not in derived}
    fields = self._known_fields(of_keys)
    names = {*self._keys.values(), TASK} if self._extra else set()
    left = {key: leaf for key, leaf in of_keys.items() if key not in names}
    self._spec_fields = {
      path: leaf for path, leaf in {**fields, **left}.items() if not dropped.has(path)
    }
    features = self.folder.features
    keys = {path: self._key(path) for path in self._spec_fields}
    self.videos = [
      p for p, key in keys.items() if key in features and features[key].dtype == VIDEO
    ]
    self.depth = [p for p in self.videos if features[keys[p]].depth is not None]
    name = os.path.join(self.folder.path, EXTRA)
    with reading.explain_errors(name, "the options of its videos"):
      self._were_kept = {
        path: VideoOptions.from_json_dict(options)
        for path, options in self._extra.get("videos", {}).items()
        if path in self.videos
      }
    lengths = self.folder.lengths
    self._episodes = np.flatnonzero(lengths).tolist()
    self.lengths = lengths[self._episodes]
    self.metadata = self._read_metadata()
    self.splits = splits.renumber(self.folder.splits, np.asarray(self._episodes))
    empty = np.flatnonzero(lengths == 0).tolist()
    self.notes = reading.left_out([f"episode {number} of {path}" for number in empty])
    if self.depth:
      note = f"{errors.listing(self.depth)}: depth is float32 in metres."
      self.notes.insert(0, note)
    if TIMESTAMP in self._spec_fields:
      self.notes.insert(
        0,
        f"{TIMESTAMP} is kept: its values are not multiples of 1 / fps, but those of a "
        "clock.",
      )
    if not self._extra:
      self.notes.insert(
        0,
        f"{errors.listing(derived)} are left out: they follow from the position of a "
        "step.",
      )

  def _key(self, path: str) -> str:
    """Returns the key of the dataset that a path reads."""
    return self._keys.get(path, path)

  @functools.cached_property
  def derived_spec(self) -> Mapping[str, specs.ExtendedTensorSpec]:  # type: ignore[override]
    """Specs of the keys that are not paths; see `EpisodeReader`."""
    fields = self.folder.fields
    return make_specs({k: fields[k] for k in fields if k not in self._spec_fields})

  def _known_fields(self, of_keys: Mapping[str, Fields]) -> dict[str, Fields]:
    """Returns the specs that `LeRobotWriter` stored, for keys whose size still fits."""
    if not self._extra:
      return {}
    name = os.path.join(self.folder.path, EXTRA)
    with reading.explain_errors(name, "the specs of a conversion"):
      fields = reading.fields_from_json(self._extra["spec"])
      sizes = {key: math.prod(leaf["shape"]) for key, leaf in of_keys.items()}
      self._keys = {
        path: key
        for path, key in self._keys.items()
        if path in fields and math.prod(fields[path]["shape"]) == sizes.get(key)
      }
    return {
      path: reading.frame_fields(fields[path]) for path in fields if path in self._keys
    }

  def _read_metadata(self) -> Mapping[str, Any]:
    """Returns rate, robot, tasks and names, or the metadata of a converted data set."""
    if isinstance(self._extra.get("metadata"), dict):
      return self._extra["metadata"]
    folder = self.folder
    names = {k: f.names for k, f in folder.features.items() if k not in DERIVED}
    metadata = {"fps": folder.info["fps"], "tasks": folder.tasks, "names": names}
    return {"lerobot": {**metadata, "robot_type": folder.info.get("robot_type")}}

  def compare_statistics(
    self, computed: Mapping[str, Mapping[str, np.ndarray]]
  ) -> list[str]:
    """Compares `meta/stats.json` with computed statistics; see the base class."""
    name = os.path.join(self.folder.path, STATS)
    if not os.path.isfile(name):
      return []
    differences, stored = [], read_json(name)
    for path, measures in computed.items():
      for measure, value in measures.items():
        with reading.explain_errors(f"{name}: {self._key(path)}", "statistics"):
          stored_value = stored.get(self._key(path), {}).get(measure, value)
          given = np.ravel(np.asarray(stored_value, np.float64))
        want = np.ravel(value)
        scale = np.abs(want).max(initial=0) + 1e-6
        if given.shape != want.shape or np.abs(given - want).max() > 1e-3 * scale:
          differences.append(
            f"{STATS}: {path}: {measure} is {given[:3].tolist()}, but that of the "
            f"values is {want[:3].tolist()}"
          )
          break
    return differences

  def check_files(self) -> Iterator[str]:
    """Yields a sentence for each video with frames that no step shows."""
    return self.folder.extra_frames()

  def with_videos(
    self, formats: Collection[str], encoding: VideoEncoding | None = None
  ) -> Episodes:
    """Returns whole videos, cut out of their files; see `Episodes.with_videos`."""
    kept = dict(self._were_kept)
    for path in self.videos if encoding is not None else ():
      if path not in kept:
        made = {**vars(encoding), "gop": self.folder.gop(self._key(path))}
        depth = self.folder.quantizer(self._key(path))
        unit = None if depth is None else "m"
        kept[path] = VideoOptions(**made, fps=self.folder.fps, unit=unit, depth=depth)
    kept = {path: options for path, options in kept.items() if "mp4" in formats}
    spec = specs.TensorSpecStruct(
      (path, specs.ExtendedTensorSpec.from_spec(leaf, data_format="mp4"))
      if path in kept
      else (path, leaf)
      for path, leaf in self.spec.items()
    )
    return self.copy(kept_videos=kept, spec=spec, notes=[*self.notes])

  def _cut(self, episode: int, path: str) -> np.ndarray:
    """Returns an episode's part of a video, encoded again if no key frame begins it."""
    key, options = self._key(path), self.kept_videos[path]
    video = self.folder.cut(episode, key, options.fps)
    if video is None:
      note = f"{path}: videos that begin with no key frame are encoded again."
      notes: Any = self.notes  # Views share the list.
      if note not in notes:
        notes.append(note)
      frames = self.folder.frames(episode, key)
      video = videos.encode(frames, options.fps, options)
    return np.array(video, object)

  def fingerprint(self) -> dict[str, Any]:
    return reading.folder_fingerprint(self.path)

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads steps of an episode; decodes only the frames of these steps."""
    index = self._episodes[episode]
    names = list(self.spec if paths is None else paths)
    kept = [path for path in names if path in self.kept_videos]
    keys = {path: self._key(path) for path in names if path not in kept}
    targets = {keys[path]: array for path, array in (out or {}).items() if path in keys}
    for path in names:
      if path in self._millimetres and keys[path] not in targets:
        count = len(range(int(self.folder.lengths[index]))[start:stop])
        targets[keys[path]] = np.empty((count, *self.spec[path].shape), np.uint16)
    columns = self.folder.read(index, keys.values(), start, stop, targets)
    values = {path: self._restore(path, columns[key]) for path, key in keys.items()}
    return values | {path: self._cut(index, path) for path in kept}

  def cast(self, casts: Mapping[str, Any] | Iterable[str]) -> Episodes:
    """Casts numbers; depth that becomes uint16 is read in millimetres, not metres."""
    if not isinstance(casts, Mapping):
      return super().cast(casts)
    depth = {
      path: specs.ExtendedTensorSpec.from_spec(self.spec[path], dtype=tf.uint16)
      for path, dtype in casts.items()
      if path in self.depth and tf.as_dtype(dtype) == tf.uint16
    }
    spec = specs.TensorSpecStruct({**self.spec, **depth})
    millimetres = self._millimetres | depth.keys()
    changed: Episodes = self.copy(spec=spec, _millimetres=millimetres)
    left = {path: dtype for path, dtype in casts.items() if path not in depth}
    return Episodes.cast(changed, left) if left else changed

  def place(self, episode: int) -> str:
    """Returns where an episode is stored: its number among all, empty ones included."""
    return f"episode {self._episodes[episode]} of {self.path}"

  def _restore(self, path: str, rows: np.ndarray) -> np.ndarray:
    """Returns rows of the files in the form of their spec."""
    leaf = self.spec.get(path) or self.derived_spec[path]
    if not leaf.is_sequence:
      rows = rows[:1]
    if rows.dtype == object and leaf.dtype == tf.uint8 and not leaf.data_format:
      lossless = specs.ExtendedTensorSpec.from_spec(leaf, data_format="png")
      encoded = tf.constant(rows.tolist(), tf.string)
      rows = records.images.decode_images(encoded, lossless, path).numpy()
    elif rows.dtype != object:
      rows = rows.reshape(len(rows), *leaf.shape)
    return rows if leaf.is_sequence else rows.reshape(rows.shape[1:])
