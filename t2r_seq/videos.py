"""Video files by PyAV: frames at given times, exactly, and files of frames.

A decoder gives frames in the order in which they are shown, from a key frame on. So
reading means: to seek to the key frame at or before the first frame that is wanted, to
decode on, and to tell each frame by its own time stamp, never by counting.
"""

from __future__ import annotations

import dataclasses
import fractions
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors

# As far as LeRobot lets a frame be from where it is looked for; its own files keep to
# some 1e-7 s.
TOLERANCE = 1e-4
# Of the videos that are written: what every player and decoder has.
PIXEL_FORMAT = "yuv420p"
# Where the key frame that a seek found comes after the frame that is looked for.
_SEEK_BACK = 1.0
# Ticks of a second in files that are written: of every usual rate a multiple.
_TIME_BASE = 90000


def load_av(extra: str = "lerobot") -> Any:
  """Imports PyAV; an ImportError names the extra."""
  return errors.load_extra("av", extra)


def read_frames(path: str, times: Sequence[float] | np.ndarray) -> np.ndarray:
  """Decodes the frames of a video that are shown at given times.

  What lies between the first and the last of them is decoded once, from the key frame
  before the first on: of an episode, or of a window, whole groups of pictures.

  Args:
    path: of the file.
    times: seconds from the start of the file, rising, one or more.
  Returns:
    RGB, uint8 [len(times), height, width, 3].
  Raises:
    ImportError: PyAV is not installed.
    RecordError: no video that can be decoded, or a frame that is not there: says which
      of the times, and what is nearest.
  """
  av = load_av()
  wanted = np.asarray(times, np.float64)
  if not os.path.exists(path):
    raise errors.RecordError(f"video: {path}: expected a video file, got none.")
  try:
    with av.open(path) as container:
      return _Reading(path, container, wanted).run()
  except av.FFmpegError as error:
    raise errors.RecordError(
      f"video: {path}: expected a video that can be decoded, from {wanted[0]:.4f} s to "
      f"{wanted[-1]:.4f} s, got {type(error).__name__}: {error.strerror}. The file is "
      "damaged or was cut, or it is none of a video."
    ) from error


class _Reading:
  """One pass over a part of a video."""

  def __init__(self, path: str, container: Any, times: np.ndarray) -> None:
    if not container.streams.video:
      raise errors.RecordError(f"video: {path}: expected a video stream, got none.")
    self._path = path
    self._container = container
    self._stream = container.streams.video[0]
    self._stream.thread_type = "AUTO"
    self._tick = float(self._stream.time_base or fractions.Fraction(1, _TIME_BASE))
    self._tolerance = max(TOLERANCE, self._tick / 2)
    self._times = times

  def run(self) -> np.ndarray:
    """Returns the frames.

    Where a group of pictures is open, some of its frames need those before it: what is
    missed after a seek is looked for from further back.
    """
    start, back = float(self._times[0]), _SEEK_BACK
    while True:
      try:
        return self._read(start)
      except MissingFrameError:
        if start <= 0:
          raise
        start, back = start - back, 2 * back

  def _read(self, start: float) -> np.ndarray:
    """Returns the frames, decoded from a key frame at or before a time on."""
    # One for all frames: it keeps its tables.
    reformatter = load_av().video.reformatter.VideoReformatter()
    frames: np.ndarray | None = None
    count, before = 0, None
    for frame in self._decode(start):
      wanted = float(self._times[count])
      if frame.time < wanted - self._tolerance:
        before = frame.time
        continue
      if frame.time > wanted + self._tolerance:
        raise self._missing(count, before, frame.time)
      pixels = reformatter.reformat(frame, format="rgb24").to_ndarray()
      if frames is None:
        frames = np.empty((len(self._times), *pixels.shape), np.uint8)
      elif pixels.shape != frames.shape[1:]:
        raise errors.RecordError(
          f"video: {self._path}: expected frames of {frames.shape[1:3]}, as the first, "
          f"got {pixels.shape[:2]} at {frame.time:.4f} s."
        )
      frames[count] = pixels
      count, before = count + 1, frame.time
      if count == len(self._times):
        return frames
    raise self._missing(count, before, None)

  def _decode(self, start: float) -> Iterator[Any]:
    # A bit on: a seek must not fall before the key frame that it is at.
    target = int((start + self._tolerance) / self._tick) if start > 0 else 0
    self._container.seek(target, stream=self._stream, backward=True)
    return self._container.decode(self._stream)

  def _missing(
    self, count: int, before: float | None, after: float | None
  ) -> MissingFrameError:
    wanted = float(self._times[count])
    near = [time for time in (before, after) if time is not None]
    nearest = min(near, key=lambda time: abs(time - wanted), default=None)
    return MissingFrameError.of(self._path, count, wanted, nearest)


class MissingFrameError(errors.RecordError):
  """A frame that is not where it is looked for.

  Attributes:
    index: which of the times that were asked for.
    difference: of the nearest frame, seconds; None where there is none.
  """

  index: int = 0
  difference: float | None = None

  @classmethod
  def of(
    cls, path: str, index: int, wanted: float, nearest: float | None
  ) -> MissingFrameError:
    """Makes the error of a frame that was wanted at a time."""
    got = "none: the video ends before"
    if nearest is not None:
      got = f"the nearest one at {nearest:.6f} s, {nearest - wanted:+.6f} s from there"
    error = cls(f"video: {path}: expected a frame at {wanted:.6f} s, got {got}.")
    error.index = index
    error.difference = None if nearest is None else nearest - wanted
    return error


@dataclasses.dataclass(frozen=True)
class VideoEncoding:
  """How frames become videos.

  Attributes:
    codec: of ffmpeg: 'libsvtav1' (as LeRobot has it), 'libx264' or 'libx265'.
    gop: frames from one key frame to the next: small ones make windows cheap to read,
      large ones make small files.
    quality: the crf of the codec, lower is better: 0 to 51, of AV1 to 63.
    preset: of the codec; None for its own, of libsvtav1 8.
  """

  codec: str = "libsvtav1"
  gop: int = 2
  quality: int = 30
  preset: str | None = None

  def __post_init__(self) -> None:
    for name, least in (("gop", 1), ("quality", 0)):
      errors.check_count("VideoEncoding", name, getattr(self, name), least)

  def check(self) -> None:
    """Checks that the codec is there.

    Raises:
      ImportError: PyAV is not installed.
      SpecError: there is no such encoder.
    """
    av = load_av()
    try:
      codec = av.Codec(self.codec, "w")
    except ValueError as error:
      raise self._unknown() from error
    if codec.type != "video":
      raise self._unknown()

  def _unknown(self) -> errors.SpecError:
    known = ("libsvtav1", "libx264", "libx265")
    return errors.SpecError(
      f"VideoEncoding: codec: expected an encoder of videos that PyAV has, such as "
      f"{errors.listing(known)}, got {self.codec!r}.{errors.nearest(self.codec, known)}"
    )

  @property
  def options(self) -> dict[str, str]:
    """What the codec is told."""
    options = {"g": str(self.gop), "crf": str(self.quality)}
    preset = self.preset or {"libsvtav1": "8"}.get(self.codec)
    if preset is not None:
      options["preset"] = preset
    if self.codec == "libx265":
      options["x265-params"] = f"log-level=error:keyint={self.gop}:open-gop=0"
    return options


def write_frames(
  path: str,
  frames: Iterable[np.ndarray],
  fps: float,
  encoding: VideoEncoding | None = None,
) -> int:
  """Writes a video of frames, the first at time 0; the file is synced by the caller.

  Args:
    path: of the file, .mp4.
    frames: RGB, uint8 [height, width, 3] each, one or more; even heights and widths.
    fps: frames a second.
    encoding: how; None for `VideoEncoding()`.
  Returns:
    How many frames there were.
  Raises:
    SpecError: no such codec, or frames that it cannot take.
  """
  av = load_av()
  encoding = encoding or VideoEncoding()
  encoding.check()
  av.logging.set_libav_level(av.logging.ERROR)
  rate = fractions.Fraction(fps).limit_denominator(1001)
  count = 0
  # The encoder SVT-AV1 speaks about itself where it is made.
  os.environ.setdefault("SVT_LOG", "1")
  try:
    with av.open(path, "w", format="mp4") as container:
      stream = None
      for count, pixels in enumerate(frames, 1):
        if stream is None:
          stream = container.add_stream(encoding.codec, rate, options=encoding.options)
          stream.height, stream.width = pixels.shape[:2]
          stream.pix_fmt = PIXEL_FORMAT
          stream.gop_size = encoding.gop
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
        frame.pts, frame.time_base = count - 1, 1 / rate
        for packet in stream.encode(frame):
          container.mux(packet)
      if stream is not None:
        for packet in stream.encode():
          container.mux(packet)
  except av.FFmpegError as error:
    raise errors.SpecError(
      f"video: {path}: expected frames that {encoding.codec} can encode, got "
      f"{type(error).__name__}: {error.strerror} at frame {count - 1}."
    ) from error
  return count


def join_videos(path: str, parts: Sequence[str]) -> None:
  """Puts videos one after the other into one file, without encoding them anew.

  Args:
    path: of the file to write, .mp4.
    parts: files of one codec, size and rate, as `write_frames` makes them.
  Raises:
    RecordError: a part cannot be read.
  """
  av = load_av()
  name = path
  try:
    with av.open(path, "w", format="mp4") as container:
      stream, offset, last = None, fractions.Fraction(0), None
      for name in parts:
        with av.open(name) as source:
          video = source.streams.video[0]
          if stream is None:
            # Opaque: what decodes a format has another name than what encodes it.
            stream = container.add_stream_from_template(video, opaque=True)
            stream.time_base = video.time_base
          shift, end = round(offset / video.time_base), 0
          for packet in source.demux(video):
            if packet.dts is None:
              continue  # What a demuxer ends with.
            end = max(end, packet.pts + packet.duration)
            packet.pts += shift
            # A part that is too short for B-frames decodes later than the next begins.
            last = (
              packet.dts + shift if last is None else max(packet.dts + shift, last + 1)
            )
            packet.dts = last
            packet.stream = stream
            container.mux(packet)
          offset += end * video.time_base
  except av.FFmpegError as error:
    raise errors.RecordError(
      f"video: {path}: expected videos that can be joined, got {type(error).__name__}: "
      f"{error.strerror}, at {name}."
    ) from error
