"""Reads, writes, cuts and joins video files by PyAV; frames are found by their times.

A decoder starts at a key frame, and gives frames in the order in which they are shown.
Reading seeks to the key frame at or before the first frame, decodes from there, and
identifies each frame by its time stamp, never by counting.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import functools
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np

from t2r_seq import errors, imports

# LeRobot's tolerance, in seconds, for the time of a frame.
TOLERANCE = 1e-4
# Pixel format of written videos, which every player decodes.
PIXEL_FORMAT = "yuv420p"
# Seconds to seek further back if a frame cannot be decoded from the key frame found.
_SEEK_BACK = 1.0
# Number of bytes of a file to read at a time.
_IO_BYTES = 1 << 17
# Ticks per second of streams without a time base: MPEG's usual number.
_TIME_BASE = 90000


def load_av(extra: str = "video") -> Any:
  """Imports PyAV; an ImportError names the extra."""
  return imports.load_extra("av", extra)


# Depth videos have codes of 12 bits, as LeRobot's.
DEPTH_CODES = 4096
DEPTH_FORMAT = "gray12le"


@gin.configurable
@dataclasses.dataclass(frozen=True)
class DepthQuantizer:
  """Maps depth to the 12-bit codes of a video, as LeRobot's depth cameras do.

  Depth is float32 in metres or uint16 in millimetres, and clipped to the range.

  Attributes:
    depth_min: depth of code 0, in metres.
    depth_max: depth of code 4095, in metres.
    shift: metres that are added before the logarithm.
    use_log: whether codes are evenly spaced in the logarithm, so finer for near depth;
      if False, in metres.
  """

  depth_min: float = 0.01
  depth_max: float = 10.0
  shift: float = 3.5
  use_log: bool = True

  def __post_init__(self) -> None:
    numbers = (self.depth_min, self.depth_max, self.shift)
    is_number = all(type(n) in (int, float) and np.isfinite(n) for n in numbers)
    if not is_number or not self.depth_min < self.depth_max:
      raise errors.SpecError(
        "DepthQuantizer: expected numbers with depth_min < depth_max, got depth_min="
        f"{numbers[0]!r}, depth_max={numbers[1]!r}, shift={numbers[2]!r}."
      )
    if self.use_log and self.depth_min + self.shift <= 0:
      raise errors.SpecError(
        "DepthQuantizer: expected depth_min + shift above 0, which has a logarithm, "
        f"got {self.depth_min + self.shift}."
      )

  def to_depth(self, codes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the depth of codes: float32 in metres, or uint16 in millimetres."""
    return _depth_table(self, np.dtype(dtype))[codes]

  def to_codes(self, depth: np.ndarray) -> np.ndarray:
    """Returns the nearest codes, uint16, of depth; SpecError for NaN or infinity."""
    metres = depth.astype(np.float64)
    if not np.all(np.isfinite(metres)):
      raise errors.SpecError(
        "DepthQuantizer: expected finite depth, got NaN or infinity. Replace it, as by "
        "depth_min."
      )
    metres = metres / 1000 if depth.dtype == np.uint16 else metres
    low, high = self._scale(np.array([self.depth_min, self.depth_max]))
    clipped = np.clip(metres, self.depth_min, self.depth_max)
    part = (self._scale(clipped) - low) / (high - low)
    return np.rint(part * (DEPTH_CODES - 1)).astype(np.uint16)

  def _scale(self, metres: np.ndarray) -> np.ndarray:
    return np.log(metres + self.shift) if self.use_log else metres


@functools.lru_cache(maxsize=16)
def _depth_table(quantizer: DepthQuantizer, dtype: np.dtype) -> np.ndarray:
  ends = np.array([quantizer.depth_min, quantizer.depth_max], np.float64)
  low, high = quantizer._scale(ends).tolist()
  metres = np.linspace(low, high, DEPTH_CODES)
  if quantizer.use_log:
    metres = np.exp(metres) - quantizer.shift
  metres = metres.astype(np.float32)
  if dtype == np.float32:
    return metres
  return np.rint(metres * np.float32(1000)).clip(0, 65535).astype(np.uint16)


def _depth_codes(path: str, frame: Any) -> np.ndarray:
  """Returns the 12-bit codes of a frame: its stored luma, [height, width].

  A conversion to another pixel format would scale them, as by the color range of YUV.
  """
  pixels = frame.format
  bits = pixels.components[0].bits
  if pixels.is_rgb or pixels.has_palette or (bits > 8 and pixels.is_big_endian):
    raise errors.RecordError(
      f"video: {path}: expected grey or YUV frames of depth codes, got {pixels.name}."
    )
  dtype = np.dtype(np.uint16 if bits > 8 else np.uint8)
  plane = frame.planes[0]
  rows = np.frombuffer(plane, dtype).reshape(plane.height, -1)
  codes = rows[: frame.height, : frame.width]
  if bits < 12:  # Scale fewer levels to the range of the codes.
    scale = (DEPTH_CODES - 1) / (2**bits - 1)
    return np.rint(codes * scale).astype(np.uint16)
  if codes.max() >= DEPTH_CODES:
    raise errors.RecordError(
      f"video: {path}: expected depth codes below {DEPTH_CODES}, got {codes.max()} of "
      f"{pixels.name} at {frame.time:.4f} s."
    )
  return codes


Source = Any
"""A file's name, or a file object that can seek; errors have its `name`."""


def read_frames(
  source: Source,
  times: Sequence[float] | np.ndarray,
  out: np.ndarray | None = None,
  seek_after: float | None = None,
  num_threads: int | None = None,
  depth: DepthQuantizer | None = None,
  tolerance: float = TOLERANCE,
) -> np.ndarray:
  """Decodes the frames of a video that are shown at given times.

  Frames between two of them are decoded as well, once, unless `seek_after` skips them.

  Args:
    source: the video.
    times: seconds from the start of the file, rising, one or more.
    out: array for the frames, [len(times), height, width, channels]: uint8 of three
      channels or one, or uint16 of one. None makes one.
    seek_after: if two times are more seconds apart, the frames between them are skipped
      by seeking; None decodes them.
    num_threads: number of threads of the decoder; None for its default.
    depth: quantizer of a depth video: `out` is float32 in metres or uint16 in
      millimetres, of one channel. None for other videos.
    tolerance: seconds that the nearest frame may be from a time, at least half a tick.
  Returns:
    The frames; without `out` RGB, uint8 [len(times), height, width, 3], or depth,
    float32 [len(times), height, width, 1].
  Raises:
    RecordError: the video is missing or damaged, or its frames do not fit `out` or
      `depth`; MissingFrameError if it has no frame at a time.
  """
  av = load_av()
  seconds, path = np.asarray(times, np.float64), _name(source)
  if isinstance(source, str) and not os.path.exists(source):
    raise errors.RecordError(f"video: {path}: expected a video file, got none.")
  what = f"a video that can be decoded, from {seconds[0]:.4f} s to {seconds[-1]:.4f} s"
  with (
    _explain_errors(path, what),
    av.open(source, buffer_size=_IO_BYTES, metadata_errors="replace") as container,
  ):
    reading = _Reading(path, container, seconds, out, num_threads, depth, tolerance)
    return reading.run(np.inf if seek_after is None else seek_after)


@contextlib.contextmanager
def _explain_errors(path: str, expected: str) -> Iterator[None]:
  """Turns PyAV's errors for damaged files into a RecordError."""
  try:
    yield
  except (errors.SpecError, ImportError):
    raise
  except Exception as error:
    got = getattr(error, "strerror", None) or error
    raise errors.RecordError(
      f"video: {path}: expected {expected}, got {type(error).__name__}: {got}. The "
      "file is damaged or was cut, or it is not a video."
    ) from error


def _video_stream(path: str, container: Any) -> Any:
  """Returns the first video stream of a file."""
  streams = container.streams.video
  if not streams or streams[0].codec_context is None:
    got = "one of an unknown codec" if streams else "none"
    raise errors.RecordError(f"video: {path}: expected a video stream, got {got}.")
  return streams[0]


def _name(source: Source) -> str:
  return source if isinstance(source, str) else str(getattr(source, "name", "a file"))


def _frame_format(dtype: np.dtype, num_channels: int) -> str:
  """Returns ffmpeg's name of the pixel format of an array's frames."""
  if dtype == np.uint16:
    return "gray16le"
  return "gray" if num_channels == 1 else "rgb24"


class _Reading:
  """One pass over some parts of a video."""

  def __init__(
    self,
    path: str,
    container: Any,
    times: np.ndarray,
    out: np.ndarray | None,
    num_threads: int | None,
    depth: DepthQuantizer | None,
    tolerance: float,
  ) -> None:
    self._path = path
    self._container = container
    self._stream = _video_stream(path, container)
    self._stream.thread_type = "AUTO"
    if num_threads is not None:
      self._stream.codec_context.thread_count = num_threads
    self._tick = float(self._stream.time_base or fractions.Fraction(1, _TIME_BASE))
    # Times of frames are rounded to ticks.
    self._exact = max(TOLERANCE, 0.51 * self._tick)
    self._tolerance = max(tolerance, self._exact)
    self._depth = depth
    self._times = times
    self._frames = out
    # Shared by all frames, because it caches its tables.
    self._reformatter = load_av().video.reformatter.VideoReformatter()

  def run(self, seek_after: float) -> np.ndarray:
    """Returns the frames.

    In an open group of pictures, some frames need frames before the group. So if frames
    are missing after a seek, they are read again from further back.
    """
    breaks = np.flatnonzero(np.diff(self._times) > seek_after) + 1
    for part in np.split(np.arange(len(self._times)), breaks):
      first, end = int(part[0]), int(part[-1]) + 1
      start, back = float(self._times[first]), min(seek_after, _SEEK_BACK)
      while True:
        try:
          self._read(start, first, end)
          break
        except MissingFrameError:
          if start <= 0:
            raise
          start, back = start - back, 2 * back
    assert self._frames is not None
    return self._frames

  def _read(self, start: float, count: int, end: int) -> None:
    """Decodes frames `count` to `end`, from the key frame at or before `start`."""
    before: Any = None
    for frame in self._decode(start):
      while frame.time >= (time := float(self._times[count])) - self._exact:
        late, near = frame.time - time, frame
        if late > self._exact and before is not None and time - before.time < late:
          near = before
        # After a seek, a frame before the key frame may be nearer.
        is_unsure = near is frame and late > self._exact and not before and start > 0
        if is_unsure or abs(near.time - time) > self._tolerance:
          raise self._missing(count, before, frame)
        self._put(count, near)
        count += 1
        if count == end:
          return
      before = frame
    for last in range(count, end):
      if before is None or self._times[last] - before.time > self._tolerance:
        raise self._missing(last, before, None)
      self._put(last, before)

  def _put(self, count: int, frame: Any) -> None:
    if self._frames is None:
      channels, dtype = (1, np.float32) if self._depth else (3, np.uint8)
      shape = (len(self._times), frame.height, frame.width, channels)
      self._frames = np.empty(shape, dtype)
    _, *size, channels = self._frames.shape
    if [frame.height, frame.width] != size:
      raise errors.RecordError(
        f"video: {self._path}: expected frames of {tuple(size)}, got "
        f"{(frame.height, frame.width)} at {frame.time:.4f} s."
      )
    if frame.is_corrupt:
      raise errors.RecordError(
        f"video: {self._path}: expected whole frames, got a damaged one at "
        f"{frame.time:.4f} s."
      )
    if self._depth is not None:
      codes = _depth_codes(self._path, frame)
      pixels = self._depth.to_depth(codes, self._frames.dtype)
      self._frames[count] = pixels[..., np.newaxis]
      return
    pixel_format = _frame_format(self._frames.dtype, channels)
    pixels = self._reformatter.reformat(frame, format=pixel_format).to_ndarray()
    self._frames[count] = pixels.reshape(self._frames.shape[1:])

  def _decode(self, start: float) -> Iterator[Any]:
    # Plus `_exact`, so that rounding does not seek before a key frame at `start`.
    target = int((start + self._exact) / self._tick) if start > 0 else 0
    self._container.seek(target, stream=self._stream, backward=True)
    return self._container.decode(self._stream)

  def _missing(
    self, count: int, before: Any | None, after: Any | None
  ) -> MissingFrameError:
    target = float(self._times[count])
    near = [frame.time for frame in (before, after) if frame is not None]
    nearest = min(near, key=lambda time: abs(time - target), default=None)
    return MissingFrameError(self._path, count, target, nearest)


class MissingFrameError(errors.RecordError):
  """A video has no frame at one of the requested times.

  Attributes:
    index: index of the time among the requested ones.
    got: the nearest frame, as text.
  """

  def __init__(self, path: str, index: int, time: float, nearest: float | None) -> None:
    self.index = index
    self.got = "none: the video ends before"
    if nearest is not None:
      self.got = f"the nearest one {nearest - time:+.6f} s from there"
    super().__init__(
      f"video: {path}: expected a frame at {time:.6f} s, got {self.got}."
    )


@dataclasses.dataclass(frozen=True)
class VideoEncoding:
  """Options of a video encoder.

  Attributes:
    codec: encoder of ffmpeg, such as 'libsvtav1' (LeRobot's), 'libx264' or 'libx265'.
    gop: frames from one key frame to the next: with few, windows are fast to read, with
      many, files are small.
    quality: constant rate factor (CRF), lower is better: 0 to 51 for x264 and x265, 0
      to 63 for AV1.
    preset: preset of the codec; None: 8 for libsvtav1, otherwise the codec's default.
  """

  codec: str = "libsvtav1"
  gop: int = 2
  quality: int = 30
  preset: str | None = None

  def __post_init__(self) -> None:
    for name, least in (("gop", 1), ("quality", 0)):
      errors.check_count("VideoEncoding", name, getattr(self, name), least)

  def check(self) -> None:
    """Raises SpecError if PyAV has no such codec; ImportError if PyAV is missing."""
    av = load_av()
    try:
      codec = av.Codec(self.codec, "w")
    except ValueError as error:
      raise self._unknown() from error
    if codec.type != "video":
      raise self._unknown()

  def _unknown(self) -> errors.SpecError:
    codecs = ("libsvtav1", "libx264", "libx265")
    return errors.SpecError(
      f"VideoEncoding: codec: expected an encoder of videos that PyAV has, such as "
      f"{errors.listing(codecs)}, got {self.codec!r}."
      f"{errors.nearest(self.codec, codecs)}"
    )

  @property
  def options(self) -> dict[str, str]:
    """The options of the codec, as ffmpeg names them."""
    options = {"g": str(self.gop), "crf": str(self.quality)}
    preset = self.preset or {"libsvtav1": "8"}.get(self.codec)
    if preset is not None:
      options["preset"] = preset
    if self.codec == "libx265":
      options["x265-params"] = f"log-level=error:keyint={self.gop}:open-gop=0"
    return options


@gin.configurable
@dataclasses.dataclass(frozen=True)
class VideoOptions(VideoEncoding):
  """Options of the videos in which a store has the images of a path.

  Attributes:
    fps: frames per second, at most 1000: step i is the frame at i / fps seconds.
    unit: unit of the values of a depth image, such as 'mm'; a description only.
    depth: quantizer of depth images that are stored as 'mp4': float32 in metres or
      uint16 in millimetres, one channel; always encoded as lossless HEVC.
  """

  fps: float = 30.0
  unit: str | None = None
  depth: DepthQuantizer | None = None

  def __post_init__(self) -> None:
    super().__post_init__()
    if isinstance(self.fps, bool) or not 0 < self.fps <= 1000:
      raise errors.SpecError(
        "VideoOptions: fps: expected frames per second, at most 1000, got "
        f"{self.fps!r}."
      )

  def to_json_dict(self) -> dict[str, Any]:
    """Returns the fields as JSON values."""
    fields = dataclasses.asdict(self)
    if self.depth is None:
      del fields["depth"]
    return fields

  @classmethod
  def from_json_dict(cls, fields: Mapping[str, Any]) -> VideoOptions:
    """Inverts `to_json_dict`."""
    depth = fields.get("depth")
    return cls(**{**fields, "depth": DepthQuantizer(**depth) if depth else None})


class FrameWriter:
  """Encodes frames one by one to a video; the first is at time 0."""

  def __init__(
    self, target: Source, fps: float, encoding: VideoEncoding | None = None
  ) -> None:
    """Opens a file to write, which the caller syncs.

    Without an encoding, the video is lossless: FFV1 in Matroska. With the `depth` of
    `VideoOptions`, it is lossless HEVC in mp4.
    """
    av = load_av()
    self._depth = getattr(encoding, "depth", None)
    if self._depth is not None:
      encoding = VideoEncoding("libx265", encoding.gop if encoding else 1)
    if encoding is not None:
      encoding.check()
    av.logging.set_libav_level(av.logging.ERROR)
    self._path, self._encoding = _name(target), encoding
    self._rate = fractions.Fraction(fps).limit_denominator(1001)
    # SVT-AV1 prints a banner when it is opened.
    os.environ.setdefault("SVT_LOG", "1")
    kind = "matroska" if encoding is None else "mp4"
    self._container = av.open(target, "w", format=kind)
    self._stream: Any = None
    self.num_frames = 0

  def write(self, pixels: np.ndarray) -> None:
    """Encodes a frame; SpecError if the codec cannot.

    Args:
      pixels: RGB, uint8 [height, width, 3], of even sizes except for FFV1; for FFV1
        also uint8 or uint16 [height, width, 1]; for depth [height, width, 1], float32
        in metres or uint16 in millimetres.
    """
    av = load_av()
    kind = _frame_format(pixels.dtype, pixels.shape[-1])
    if self._depth is not None:
      kind, pixels = DEPTH_FORMAT, self._depth.to_codes(pixels)
    with self._explain_errors():
      if self._stream is None:
        self._stream = self._make_stream(kind)
        self._stream.height, self._stream.width = pixels.shape[:2]
      if pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
      frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), kind)
      frame.pts, frame.time_base = self.num_frames, 1 / self._rate
      # The first frame opens the encoder.
      with _ordinary_threads() if not self.num_frames else contextlib.nullcontext():
        packets = self._stream.encode(frame)
      self._container.mux(packets)
    self.num_frames += 1

  def _make_stream(self, kind: str) -> Any:
    encoding = self._encoding
    if encoding is None:
      stream = self._container.add_stream("ffv1", self._rate)
      stream.pix_fmt = {"rgb24": "bgr0"}.get(kind, kind)
      stream.gop_size = 1
      return stream
    options = encoding.options
    if self._depth is not None:
      options = {"x265-params": f"lossless=1:{options['x265-params']}"}
    stream = self._container.add_stream(encoding.codec, self._rate, options=options)
    stream.gop_size = encoding.gop
    stream.pix_fmt = PIXEL_FORMAT if self._depth is None else kind
    return stream

  def close(self) -> None:
    """Writes the remaining packets, and closes the file."""
    with self._explain_errors(), self._container:
      if self._stream is not None:
        self._container.mux(self._stream.encode())

  @contextlib.contextmanager
  def _explain_errors(self) -> Iterator[None]:
    try:
      yield
    except load_av().FFmpegError as error:
      codec = self._encoding.codec if self._encoding else "ffv1"
      raise errors.SpecError(
        f"video: {self._path}: expected frames that {codec} can encode, got "
        f"{type(error).__name__}: {error.strerror} at frame {self.num_frames}."
      ) from error


@contextlib.contextmanager
def _ordinary_threads() -> Iterator[None]:
  """Keeps the scheduling policy of threads, which SVT-AV1 changes when it is opened.

  Under root, as in a container, the calling thread and those of SVT-AV1 would get a
  real-time policy, ahead of all other processes, and later threads would inherit it.
  """
  if not hasattr(os, "sched_getscheduler"):  # Only Linux has it.
    yield
    return
  policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
  before = {*os.listdir("/proc/self/task")}
  yield
  changed = os.sched_getscheduler(0)
  if changed == policy:
    return
  os.sched_setscheduler(0, policy, parameters)
  for thread in {*os.listdir("/proc/self/task")} - before:
    with contextlib.suppress(ProcessLookupError):
      if os.sched_getscheduler(int(thread)) == changed:
        os.sched_setscheduler(int(thread), policy, parameters)


def write_frames(
  path: str,
  frames: Iterable[np.ndarray],
  fps: float,
  encoding: VideoEncoding | None = None,
) -> int:
  """Writes an .mp4 video of frames, as `FrameWriter`; returns their number."""
  writer = FrameWriter(path, fps, encoding or VideoEncoding())
  try:
    for pixels in frames:
      writer.write(pixels)
  finally:
    writer.close()
  return writer.num_frames


def encode(
  frames: Iterable[np.ndarray], fps: float, encoding: VideoEncoding | None
) -> bytes:
  """Encodes frames to a video in memory; see `FrameWriter`."""
  file = io.BytesIO()
  writer = FrameWriter(file, fps, encoding)
  for pixels in frames:
    writer.write(pixels)
  writer.close()
  return file.getvalue()


@dataclasses.dataclass(frozen=True)
class VideoInfo:
  """Properties of a video, read without decoding.

  Attributes:
    size: height, width.
    codec: its name, pixel format and extra data; videos of equal `codec` can be joined.
    times: seconds of each frame, rising, float64 [frames].
    gop: largest number of frames from one key frame to the next.
  """

  size: tuple[int, int]
  codec: tuple[str, str | None, bytes]
  times: np.ndarray
  gop: int

  @classmethod
  def read(cls, source: Source) -> VideoInfo:
    """Reads the packets of a video; RecordError if it is damaged or has no frame."""
    av, path = load_av(), _name(source)
    with (
      _explain_errors(path, "a whole video"),
      av.open(source, buffer_size=_IO_BYTES, metadata_errors="replace") as container,
    ):
      stream = _video_stream(path, container)
      context = stream.codec_context
      packets = [
        (float(p.pts * p.time_base), p.is_keyframe)
        for p in container.demux(stream)
        if p.size
      ]
      if not packets:
        raise errors.RecordError(
          f"video: {path}: expected a whole video, got no frame."
        )
      codec = (context.name, context.pix_fmt, bytes(context.extradata or b""))
      keys = [i for i, (_, is_key) in enumerate(packets) if is_key]
      gop = int(np.diff([*keys, len(packets)]).max(initial=1))
      times = np.sort(np.array([time for time, _ in packets], np.float64))
      return cls((context.height, context.width), codec, times, gop)


def cut_video(
  source: Source, times: Sequence[float] | np.ndarray, fps: float
) -> bytes | None:
  """Cuts consecutive frames out of a video, without re-encoding.

  Args:
    source: the video.
    times: seconds of the frames, rising.
    fps: frame rate of the new video: frame i is at i / fps seconds.
  Returns:
    An .mp4 file; None if the frames are not packets from a key frame on, so that they
    cannot be decoded without others.
  Raises:
    RecordError: the video cannot be read.
  """
  av, path = load_av(), _name(source)
  seconds, output = np.asarray(times, np.float64), io.BytesIO()
  rate = fractions.Fraction(fps).limit_denominator(1001)
  with (
    _explain_errors(path, "a video to be cut"),
    av.open(source, buffer_size=_IO_BYTES, metadata_errors="replace") as container,
  ):
    stream = _video_stream(path, container)
    slack = max(TOLERANCE, 0.51 * float(stream.time_base))
    # From further back: seeking compares decoding times, which may be earlier.
    target = max(float(seconds[0]) - _SEEK_BACK, 0) / float(stream.time_base)
    container.seek(int(target), stream=stream, backward=True)
    packets: list[Any] = []
    for packet in container.demux(stream):
      if not packet.size or len(packets) == len(seconds):
        break
      time = float(packet.pts * packet.time_base)
      if packets or (packet.is_keyframe and time > seconds[0] - slack):
        packets.append(packet)
    stamps = np.array([float(p.pts * p.time_base) for p in packets])
    order = np.argsort(stamps)
    is_whole = len(stamps) == len(seconds)
    if not is_whole or np.abs(stamps[order] - seconds).max() > slack:
      return None
    ranks = np.argsort(order)
    delay = int((np.arange(len(ranks)) - ranks).max())
    with av.open(output, "w", format="mp4") as made:
      # Opaque: a format's decoder and encoder differ in name, so none is looked up.
      track = made.add_stream_from_template(stream, opaque=True)
      track.time_base = 1 / rate
      for number, (packet, rank) in enumerate(zip(packets, ranks, strict=True)):
        packet.stream, packet.time_base = track, 1 / rate
        packet.pts, packet.dts = int(rank), number - delay
        packet.duration = 1
        made.mux(packet)
  return output.getvalue()


def join_videos(path: str, parts: Sequence[str]) -> None:
  """Joins videos of one codec, size and rate to one .mp4 file, without re-encoding."""
  av = load_av()
  with (
    _explain_errors(path, "videos that can be joined"),
    av.open(path, "w", format="mp4") as container,
  ):
    stream, offset, last = None, fractions.Fraction(0), None
    for name in parts:
      with _explain_errors(name, "a video that can be joined"), av.open(name) as source:
        video = _video_stream(name, source)
        if stream is None:
          # Opaque: see `cut_video`.
          stream = container.add_stream_from_template(video, opaque=True)
          stream.time_base = video.time_base
        shift, end = round(offset / video.time_base), 0
        for packet in source.demux(video):
          if packet.dts is None:
            continue  # The empty packet at the end.
          end = max(end, packet.pts + packet.duration)
          packet.pts += shift
          # Decoding times must rise, also from one part to the next.
          last = (
            packet.dts + shift if last is None else max(packet.dts + shift, last + 1)
          )
          packet.dts = last
          packet.stream = stream
          container.mux(packet)
        offset += end * video.time_base
