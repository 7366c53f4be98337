"""LeRobot's datasets as sources of episodes: their features, and the tasks as text."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.episodes import reading, splits
from t2r_seq.episodes.episodes import Values
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
from t2r_seq.store import videos
from t2r_seq.store.videos import VideoEncoding, VideoOptions


@register_format(
  "lerobot",
  suffixes=(".lerobot",),
  recognises=lambda path: os.path.isdir(path) and is_lerobot(path),
  description=f"a LeRobot folder (with {INFO})",
  extra="lerobot",
  writer=LeRobotWriter,
)
class LeRobotEpisodes(Episodes):
  """Reads the episodes of a dataset, with the text of their task at each step.

  What says where a step is, such as its index, is left out: an episode tells.
  """

  def __init__(
    self,
    path: str,
    dropped: Dropped | None = None,
    frames_by: str | None = None,
    frame_tolerance: float = videos.TOLERANCE,
  ) -> None:
    """Opens the dataset.

    Args:
      path: of the folder.
      dropped: paths to leave out.
      frames_by: how the frames of steps are found; see `LeRobotFolder`.
      frame_tolerance: likewise.
    Raises:
      ImportError: the extra is not installed.
      ConversionError: no dataset that can be read.
    """
    self.path = path
    self.folder = LeRobotFolder(path, frames_by, frame_tolerance)
    self._extra = self.folder.extra
    self._millimetres: frozenset[str] = frozenset()
    self._keys = self._extra.get("keys", {})
    dropped = dropped or Dropped()
    # A clock's time stamps don't follow from the step.
    is_timed = self.folder.has_own_clock
    derived = tuple(key for key in DERIVED if key != TIMESTAMP or not is_timed)
    of_keys = {
      key: spec for key, spec in self.folder.spec.items() if key not in derived
    }
    known = self._known_spec(of_keys)
    taken = {*self._keys.values(), TASK} if self._extra else set()
    left = {key: spec for key, spec in of_keys.items() if key not in taken}
    self.spec = specs.TensorSpecStruct(
      (path, leaf) for path, leaf in {**known, **left}.items() if not dropped.has(path)
    )
    features = self.folder.features
    self.videos = [
      path
      for path in self.spec
      if (key := self._keys.get(path, path)) in features
      and features[key].dtype == VIDEO
    ]
    with reading.explained(
      os.path.join(self.folder.path, EXTRA), "the options of its videos"
    ):
      self._were_kept = {
        path: VideoOptions.from_json_dict(options)
        for path, options in self._extra.get("videos", {}).items()
        if path in self.videos
      }
    self.derived_spec = {
      key: leaf for key, leaf in self.folder.spec.items() if key not in self.spec
    }
    lengths = self.folder.lengths
    self._episodes = np.flatnonzero(lengths).tolist()
    self.lengths = lengths[self._episodes]
    self.metadata = self._read_metadata()
    self.splits = splits.renumber(self.folder.splits, np.asarray(self._episodes))
    if not self._extra:
      self.notes = [
        f"{errors.listing(derived)} are left out: they say where a step is, and follow "
        "from that."
      ]
    if TIMESTAMP in self.spec:
      note = (
        f"{TIMESTAMP} is kept: its values are no multiples of 1 / fps, as those of a "
        "clock."
      )
      self.notes = [*self.notes, note]
    self.depth = [
      p for p in self.videos if features[self._keys.get(p, p)].depth is not None
    ]
    if self.depth:
      note = f"{errors.listing(self.depth)}: depth is float32 in metres."
      self.notes = [*self.notes, note]
    if empty := np.flatnonzero(lengths == 0).tolist():
      note = reading.left_out(len(empty), f"episode {empty[0]} of {path}")
      self.notes = [*self.notes, note]

  def _known_spec(
    self, of_keys: Mapping[str, specs.ExtendedTensorSpec]
  ) -> dict[str, specs.ExtendedTensorSpec]:
    """Returns the specs that a conversion has left, where the data is still so."""
    if not self._extra:
      return {}
    name = os.path.join(self.folder.path, EXTRA)
    with reading.explained(name, "the specs of a conversion"):
      spec = specs.TensorSpecStruct.from_json(json.dumps(self._extra["spec"]))
      sizes = {key: leaf.shape.num_elements() for key, leaf in of_keys.items()}
      self._keys = {
        path: key
        for path, key in self._keys.items()
        if path in spec and spec[path].shape.num_elements() == sizes.get(key)
      }
    return {path: specs.frame_spec(spec[path]) for path in spec if path in self._keys}

  def _read_metadata(self) -> Mapping[str, Any]:
    """Rate, robot, tasks and names, or the metadata that a conversion left there."""
    if isinstance(self._extra.get("metadata"), dict):
      return self._extra["metadata"]
    folder = self.folder
    names = {k: f.names for k, f in folder.features.items() if k not in DERIVED}
    found = {"fps": folder.info["fps"], "tasks": folder.tasks, "names": names}
    return {"lerobot": {**found, "robot_type": folder.info.get("robot_type")}}

  def compare_statistics(
    self, computed: Mapping[str, Mapping[str, np.ndarray]]
  ) -> list[str]:
    """Compares with the figures of `meta/stats.json`; see the base class."""
    name = os.path.join(self.folder.path, STATS)
    if not os.path.isfile(name):
      return []
    found, kept = [], read_json(name)
    for path, figures in computed.items():
      known = kept.get(self._keys.get(path, path), {})
      for figure, value in figures.items():
        given = np.ravel(np.asarray(known.get(figure, value), np.float64))
        want = np.ravel(value)
        scale = np.abs(want).max(initial=0) + 1e-6
        if given.shape != want.shape or np.abs(given - want).max() > 1e-3 * scale:
          found.append(
            f"{STATS}: {path}: {figure} is {given[:3].tolist()}, of its values it is "
            f"{want[:3].tolist()}"
          )
          break
    return found

  def check_files(self) -> Iterator[str]:
    """Looks for frames that no step has; see `Episodes.check_files`."""
    return self.folder.extra_frames()

  def with_videos(
    self, formats: Collection[str], encoding: VideoEncoding | None = None
  ) -> Episodes:
    """Returns whole videos, cut out of their files; see `Episodes.with_videos`."""
    kept = dict(self._were_kept)
    for path in self.videos if encoding is not None else ():
      if path not in kept:
        made = {**vars(encoding), "gop": self.folder.gop(self._keys.get(path, path))}
        depth = self.folder.quantizer(self._keys.get(path, path))
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
    """Returns the video of an episode."""
    key, how = self._keys.get(path, path), self.kept_videos[path]
    video = self.folder.cut(episode, key, how.fps)
    if video is None:
      note = f"{path}: videos that begin with no key frame are encoded anew."
      notes: Any = self.notes  # Others hold the list.
      if note not in notes:
        notes.append(note)
      video = videos.encode(self.folder.frames(episode, key), how.fps, how)
    return np.array(video, object)

  def fingerprint(self) -> dict[str, Any]:
    """Returns the files' number, sizes and newest time."""
    return self.folder.fingerprint()

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads steps of an episode; decodes only the frames that they show."""
    index = self._episodes[episode]
    own = list(self.spec if paths is None else paths)
    kept = [path for path in own if path in self.kept_videos]
    keys = {path: self._keys.get(path, path) for path in own if path not in kept}
    rooms = {keys[path]: room for path, room in (out or {}).items() if path in keys}
    for path in own:
      if path in self._millimetres and keys[path] not in rooms:
        count = len(range(int(self.folder.lengths[index]))[start:stop])
        rooms[keys[path]] = np.empty((count, *self.spec[path].shape), np.uint16)
    found = self.folder.read(index, keys.values(), start, stop, rooms)
    values = {path: self._restore(path, found[key]) for path, key in keys.items()}
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
    changed: Episodes = self.copy(spec=spec, _millimetres=frozenset(depth))
    left = {path: dtype for path, dtype in casts.items() if path not in depth}
    return Episodes.cast(changed, left) if left else changed

  def place(self, episode: int) -> str:
    """Returns where an episode is stored; episodes without a step count, too."""
    return f"episode {self._episodes[episode]} of {self.path}"

  def _restore(self, path: str, rows: np.ndarray) -> np.ndarray:
    """Gives the values of all steps the form of their spec."""
    leaf = self.spec.get(path) or self.derived_spec[path]
    if not leaf.is_sequence:
      rows = rows[:1]
    if rows.dtype == object and leaf.dtype == tf.uint8 and not leaf.data_format:
      lossless = specs.ExtendedTensorSpec.from_spec(leaf, data_format="png")
      encoded = tf.constant(rows.tolist(), tf.string)
      rows = records.decode_images(encoded, lossless, path).numpy()
    elif rows.dtype != object:
      rows = rows.reshape(len(rows), *leaf.shape)
    return rows if leaf.is_sequence else rows.reshape(rows.shape[1:])
