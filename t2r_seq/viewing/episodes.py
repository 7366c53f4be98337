"""Reads episodes for display: cameras, curves, texts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import (
  Episode,
  Values,
  num_bytes,
  num_steps,
  steps_spec,
)
from t2r_seq.episodes.rates import control_period
from t2r_seq.episodes.views import Episodes
from t2r_seq.progress import Progress
from t2r_seq.records.images import decode_images
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct

# A path with more numbers per step is not drawn.
MAX_ELEMENTS = 64
_LEAST_PIXELS = 8
_CHANNELS = (1, 3, 4)
_TIMES = ("timestamp", "timestamps", "time", "stamp", "time_stamp")
_MARKS = ("reward", "rewards", "discount", "done", "dones", "success", "terminal")


@dataclasses.dataclass(frozen=True)
class Columns:
  """The paths of a source by how they are shown.

  Attributes:
    cameras: images of each step; of several per step the first is shown.
    series: at most 64 numbers for each step.
    texts: strings, of steps or of the episode.
    contexts: at most 64 numbers for the episode.
    times: time stamps, among `series`.
    actions: signals whose path has a part that begins with 'action', or else all.
    signals: floats among `series` except time stamps, rewards and flags.
    unseen: all others.
  """

  cameras: tuple[str, ...]
  series: tuple[str, ...]
  texts: tuple[str, ...]
  contexts: tuple[str, ...]
  times: tuple[str, ...]
  actions: tuple[str, ...]
  signals: tuple[str, ...]
  unseen: tuple[str, ...]

  @classmethod
  def of(cls, spec: TensorSpecStruct) -> Columns:
    """Sorts the paths of a flat spec by how they are shown."""
    kinds = {path: _kind(leaf) for path, leaf in spec.items()}

    def of_kind(kind: str) -> tuple[str, ...]:
      return tuple(path for path, kind_of_path in kinds.items() if kind_of_path == kind)

    series = of_kind("series")
    names = {path: path.lower().split("/") for path in series}
    times = tuple(path for path in series if names[path][-1] in _TIMES)
    signals = tuple(
      path
      for path in series
      if path not in times
      and spec[path].dtype.is_floating
      and names[path][-1] not in _MARKS
    )
    actions = tuple(
      path for path in signals if any(part.startswith("action") for part in names[path])
    )
    return cls(
      of_kind("camera"),
      series,
      of_kind("text"),
      of_kind("context"),
      times,
      actions or signals,
      signals,
      of_kind("unseen"),
    )


def _kind(spec: ExtendedTensorSpec) -> str:
  if specs.is_encoded_image_spec(spec):
    return "camera" if spec.is_sequence else "unseen"
  if spec.dtype == tf.string:
    return "text"
  if not spec.shape.is_fully_defined() or spec.dtype.is_complex:
    return "unseen"
  shape = spec.shape.as_list()
  is_image = (
    len(shape) == 3 and shape[-1] in _CHANNELS and min(shape[:2]) >= _LEAST_PIXELS
  )
  if is_image and spec.is_sequence:
    return "camera"
  if not 0 < math.prod(shape) <= MAX_ELEMENTS:
    return "unseen"
  return "series" if spec.is_sequence else "context"


class EpisodeViewer:
  """Reads episodes, and decodes their frames.

  Attributes:
    path: path of the data set.
    format: name of the format, such as 'store'.
    spec: spec of its episodes.
    columns: its paths by how they are shown.
    metadata: metadata of the data set.
    clocks: path of the time stamps of each path that is not on the steps' clock.
    period: seconds from a step to the next one; None if unknown.
    num_episodes: number of episodes; None if unknown.
  """

  def __init__(self, episodes: Episodes) -> None:
    """Wraps episodes that `open_episodes` returned."""
    self.path, self.format = episodes.path, episodes.format
    self.num_episodes = episodes.num_episodes
    self._episodes = episodes
    self._decoders: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {}
    self.spec = episodes.spec
    self.columns = Columns.of(self.spec)
    self.metadata, self.clocks = episodes.metadata, episodes.clocks
    self.period = control_period(episodes.metadata)

  @property
  def notes(self) -> list[str]:
    """Warnings about how the data set is read."""
    return [*self._episodes.notes]

  def episodes(
    self,
    chosen: Sequence[int] | None = None,
    progress: Progress | None = None,
    label: str = "look at",
  ) -> Iterator[tuple[int, Values]]:
    """Yields (number, values) of each episode that has steps, in order.

    Args:
      chosen: numbers of the episodes to read; None for all.
      progress: counts the episodes.
      label: describes the pass in the progress.
    """
    if progress is not None:
      total = self.num_episodes if chosen is None else len(chosen)
      progress.start(f"{label} {self.path}", 0, total)
    for number, episode in self._read(chosen):
      if num_steps(episode.values, self.spec):
        yield number, episode.values
      if progress is not None:
        progress.advance(num_bytes(episode.values))
    if progress is not None:
      progress.stop()

  def _read(self, chosen: Sequence[int] | None) -> Iterator[tuple[int, Episode]]:
    """Yields episodes with these numbers; None for all."""
    episodes, numbers = self._episodes, self._episodes.numbers
    if chosen is None:
      episode_numbers: Iterable[int] = (
        itertools.count() if numbers is None else numbers.tolist()
      )
      yield from zip(episode_numbers, episodes.iterate(), strict=False)
    elif episodes.num_episodes is None:
      last = max(chosen, default=-1)
      pairs = itertools.islice(enumerate(episodes.iterate()), last + 1)
      yield from (pair for pair in pairs if pair[0] in {*chosen})
    elif len(chosen):
      rising = np.sort(np.asarray(chosen, int))
      places = rising if numbers is None else np.searchsorted(numbers, rising)
      yield from zip(rising.tolist(), episodes.select(places), strict=True)

  def frames(self, values: Values, path: str, steps: np.ndarray) -> np.ndarray:
    """Returns images of a camera at some steps, uint8 [n, h, w, 1 or 3].

    Raises:
      SpecError: an image cannot be decoded.
    """
    return as_pixels(self.pixels(values, path, steps))

  def pixels(self, values: Values, path: str, steps: np.ndarray) -> np.ndarray:
    """Returns decoded images of a camera in their own dtype; see `frames`."""
    rows, spec = values[path][steps], self.spec[path]
    spec = steps_spec(spec) if path in self.clocks else spec
    if not specs.is_encoded_image_spec(spec):
      return np.asarray(rows)
    if path not in self._decoders:
      self._decoders[path] = _decoder(spec, path, rows.ndim)
    encoded = tf.constant(rows.tolist(), tf.string, rows.shape)
    try:
      decoded = self._decoders[path](encoded).numpy()
    except tf.errors.OpError as error:
      raise errors.SpecError(
        f"view: {self.path}: {path}: expected images that can be decoded, got "
        f"{error.message.splitlines()[0].rstrip('.'):.200}. Find the bad ones with "
        "t2r_seq doctor."
      ) from error
    # If a step has several images, the first is shown.
    return np.asarray(decoded.reshape([len(steps), -1, *decoded.shape[-3:]])[:, 0])


def _decoder(
  spec: ExtendedTensorSpec, path: str, rank: int
) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns a graph that decodes strings of a rank."""
  signature = [tf.TensorSpec([None] * rank, tf.string)]

  @tf.function(input_signature=signature, autograph=False)
  def decode(encoded: tf.Tensor) -> tf.Tensor:
    return decode_images(encoded, spec, path)

  return decode


def as_pixels(images: np.ndarray) -> np.ndarray:
  """Converts images to uint8 [..., h, w, 1 or 3].

  Floats of 0 to 1 and uint8 keep their scale. Other numbers are scaled from the range
  of all images to 0 ... 255. An alpha channel is dropped.
  """
  images = images[..., :3] if images.shape[-1] == 4 else images
  if images.dtype == np.uint8:
    return images
  numbers = np.nan_to_num(np.asarray(images, np.float32), posinf=0.0, neginf=0.0)
  low, high = float(numbers.min(initial=0.0)), float(numbers.max(initial=0.0))
  if images.dtype.kind in "iu" or low < 0 or high > 1:
    low = float(numbers.min()) if numbers.size else 0.0
    numbers = (numbers - low) / max(high - low, 1e-12)
  return np.round(numbers * 255).astype(np.uint8)


def same_frames(values: np.ndarray) -> np.ndarray:
  """Returns which steps have the frame of the step before, bool [T].

  Args:
    values: images [T, ...], decoded or encoded. Pixels of uint8 may differ by 2.
  """
  same = np.zeros(len(values), bool)
  for step in range(1, len(values)):
    before, now = values[step - 1], values[step]
    if values.dtype == object:
      same[step] = np.array_equal(now, before)
    elif now.dtype == np.uint8:
      # Lossy video adds noise to a still picture.
      far = np.maximum(now, before) - np.minimum(now, before)
      same[step] = far.max(initial=0) <= 2
    else:
      same[step] = np.array_equal(now, before)
  return same


def series_of(values: Values, path: str) -> np.ndarray:
  """Returns the numbers of a path, flattened for each step, float64 [T, D]."""
  array = np.asarray(values[path])
  return array.reshape(len(array), -1).astype(np.float64)


def text_of(value: object) -> str:
  """Returns a string, or the first of several, as text."""
  flat = np.asarray(value, object).ravel()
  first = flat[0] if flat.size else ""
  return first.decode("utf-8", "replace") if isinstance(first, bytes) else str(first)


def spread(length: int, limit: int) -> np.ndarray:
  """Returns at most `limit` evenly spread indices below `length`, int [n]."""
  if length <= limit:
    return np.arange(length)
  return np.unique(np.linspace(0, length - 1, limit).round().astype(int))


def encode_jpegs(images: np.ndarray, most_pixels: int, quality: int) -> list[bytes]:
  """Encodes images, uint8 [n, h, w, 1 or 3], shrunk to `most_pixels` per side."""
  height, width = images.shape[1:3]
  factor = min(1.0, most_pixels / max(height, width))
  if factor < 1:
    size = [max(round(height * factor), 1), max(round(width * factor), 1)]
    smaller = tf.image.resize(images, size, tf.image.ResizeMethod.AREA)
    images = np.clip(np.round(smaller.numpy()), 0, 255).astype(np.uint8)
  return [
    tf.io.encode_jpeg(image, quality=quality, chroma_downsampling=False).numpy()
    for image in images
  ]
