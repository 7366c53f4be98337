"""Videos of episodes: gif, or mp4."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import gin
import numpy as np
from absl import logging

from t2r_seq import errors, files, imports
from t2r_seq.store import videos

_ENCODING = videos.VideoEncoding("libx264", gop=50, quality=18)  # What browsers play.
_FORMATS = ("gif", "mp4")
_MIN_PIXELS = 256
_DEFAULT_FPS = 10


@gin.configurable
class FilmedEnv:
  """An environment whose first episodes are filmed.

  Of a `gymnasium.vector` environment the first one is. Everything but `reset`, `step`
  and `close` is the environment's own.
  """

  def __init__(
    self,
    env: Any = gin.REQUIRED,
    video_format: str = "gif",
    num_videos: int = 1,
    fps: float | None = None,
  ) -> None:
    """Wraps an environment; nothing is filmed before `set_video_output_dir`.

    Args:
      env: made with `render_mode="rgb_array"`.
      video_format: 'gif' (needs the extra `plots`) or 'mp4' (the extra `video`).
      num_videos: episodes filmed for each folder.
      fps: frames a second; None takes the environment's `render_fps`, or 10.
    Raises:
      ValueError: the format is unknown, or the environment renders no arrays.
      ImportError: a package is missing; names the extra.
    """
    if video_format not in _FORMATS:
      raise ValueError(
        f"FilmedEnv: video_format: expected one of {errors.listing(_FORMATS)}, got "
        f"'{video_format}'."
      )
    mode = getattr(env, "render_mode", None)
    if mode != "rgb_array":
      raise ValueError(
        "FilmedEnv: env: expected an environment with render_mode 'rgb_array', got "
        f"{mode!r}. Make it with render_mode='rgb_array'."
      )
    _import_writer(video_format)
    self._env = env
    self._format = video_format
    self._num_videos = num_videos
    self._fps = fps or getattr(env, "metadata", {}).get("render_fps") or _DEFAULT_FPS
    self._folder = ""
    self._num_written = 0
    self._frames: list[np.ndarray] = []

  def set_video_output_dir(self, folder: str) -> None:
    """Films the next episodes into a folder, as 'episode-00000.gif' and so on."""
    self.finish_video()
    self._folder = folder
    self._num_written = 0

  def reset(self, **kwargs: Any) -> Any:
    """Resets the environment, and films its first frame."""
    mask = (kwargs.get("options") or {}).get("reset_mask")
    starts = mask is None or bool(mask[0])
    result = self._env.reset(**kwargs)
    if starts:
      self.finish_video()
      self._film()
    return result

  def step(self, action: Any) -> Any:
    """Steps the environment, and films the frame if the first episodes still run."""
    result = self._env.step(action)
    if self._frames:
      self._film()
      if np.any(np.ravel(result[2])[:1]) or np.any(np.ravel(result[3])[:1]):
        self.finish_video()
    return result

  def finish_video(self) -> None:
    """Writes the video in progress, e.g. of an episode that was cut off."""
    if not self._frames:
      return
    name = f"episode-{self._num_written:05d}.{self._format}"
    path = os.path.join(self._folder, name)
    write_video(path, self._frames, self._fps)
    logging.info("Wrote %s, %d frames.", path, len(self._frames))
    self._num_written += 1
    self._frames = []

  def close(self) -> None:
    """Finishes the video and closes the environment."""
    self.finish_video()
    self._env.close()

  def __getattr__(self, name: str) -> Any:
    return getattr(self._env, name)

  def _film(self) -> None:
    if self._folder and self._num_written < self._num_videos:
      frames = self._env.render()
      self._frames.append(_check_frame(frames[0] if _is_many(frames) else frames))


def write_video(path: str, frames: Sequence[np.ndarray], fps: float) -> None:
  """Writes frames to a file that is whole when it appears.

  Small frames are enlarged by a whole factor, to be seen.

  Args:
    path: ends with '.gif' or '.mp4'.
    frames: [h, w, 3] uint8 each, all of one size.
    fps: frames a second; a gif's are of whole hundredths of a second each.
  """
  folder = os.path.dirname(os.path.abspath(path))
  os.makedirs(folder, exist_ok=True)
  factor = max(1, _MIN_PIXELS // min(frames[0].shape[:2]))
  large = [frame.repeat(factor, axis=0).repeat(factor, axis=1) for frame in frames]
  extension = os.path.splitext(path)[1]
  with tempfile.TemporaryDirectory(dir=folder, prefix=".video-") as scratch:
    partial = os.path.join(scratch, f"video{extension}")
    (_write_mp4 if extension == ".mp4" else _write_gif)(partial, large, fps)
    files.publish(partial, path)


def _write_gif(path: str, frames: Sequence[np.ndarray], fps: float) -> None:
  image = _import_writer("gif")
  first, *rest = [image.fromarray(frame) for frame in frames]
  first.save(
    path, save_all=True, append_images=rest, duration=round(1000 / fps), loop=0
  )


def _write_mp4(path: str, frames: Sequence[np.ndarray], fps: float) -> None:
  # The codec halves the resolution of colours: sides are to be even.
  height, width = (size - size % 2 for size in frames[0].shape[:2])
  even = (frame[:height, :width] for frame in frames)
  videos.write_frames(path, even, fps, _ENCODING)


def _import_writer(video_format: str) -> Any:
  """Returns the module that writes a format."""
  if video_format == "gif":
    try:
      from PIL import Image
    except ImportError as error:
      raise imports.missing_extra("pillow", "plots") from error
    return Image
  return videos.load_av("video")


def _is_many(frames: Any) -> bool:
  """Whether a vector environment rendered, which gives a frame per environment."""
  return isinstance(frames, (tuple, list))


def _check_frame(frame: Any) -> np.ndarray:
  array = np.asarray(frame)
  if array.dtype != np.uint8 or array.ndim != 3 or array.shape[-1] != 3:
    raise ValueError(
      f"FilmedEnv: env.render(): expected (height, width, 3) uint8, got "
      f"{errors.describe(array)}."
    )
  return array.copy()
