"""What is converted: episodes, read from a source and appended to a target."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import itertools
import json
import os
import re
import types
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.specs import names as spec_names
from t2r_seq.specs.extended_tensor_spec import added_axes
from t2r_seq.store import layout, manifest, splits
from t2r_seq.store.videos import VideoEncoding, VideoOptions

Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class SourceEpisode:
  """One episode of a source.

  Attributes:
    values: by path, [T, ...] and context features; byte strings as arrays of bytes
      objects; absent optionals are left out.
    place: where it was found, for messages.
    done: how much of the source was read with it, 0 to 1, where it is not known how
      many episodes there are.
  """

  values: Values
  place: str
  done: float | None = None


class EpisodeSource(abc.ABC):
  """Reads the episodes of a store, of files or of a group of arrays, in order.

  Attributes:
    spec: the flat specs of the episodes, by path.
    num_episodes: how many there are; None if only reading them all would tell.
    episode_ends: the step after each episode's last one, counted through; None if
      unknown.
    metadata: JSON values that go along with the episodes.
    notes: what a user should know of how the source was read; sentences.
    problems: what may be damaged though it can be read; sentences.
    videos: the paths whose values are decoded from videos.
    kept_videos: those whose values are videos instead, byte strings (), and how they
      are kept; see `keep_videos`.
    splits: numbers of episodes, by the name of a split.
  """

  spec: specs.TensorSpecStruct
  num_episodes: int | None = None
  episode_ends: list[int] | None = None
  metadata: Mapping[str, Any] = types.MappingProxyType({})
  notes: Sequence[str] = ()
  problems: Sequence[str] = ()
  videos: Sequence[str] = ()
  kept_videos: Mapping[str, VideoOptions] = types.MappingProxyType({})
  splits: splits.Splits = types.MappingProxyType({})

  @abc.abstractmethod
  def fingerprint(self) -> dict[str, Any]:
    """Returns JSON values that change when the data does; costs no look at it."""

  @abc.abstractmethod
  def episodes(self, start: int = 0) -> Iterator[SourceEpisode]:
    """Yields the episodes from a number on.

    Raises:
      SpecError: an episode cannot be read; names the place.
    """

  def keep_videos(
    self, formats: Collection[str], encoding: VideoEncoding | None = None
  ) -> None:
    """Gives videos as they are from now on, and not their frames; `spec` says which.

    Args:
      formats: of videos that are wanted so, of `specs.VIDEO_FORMATS`.
      encoding: keeps all, and encodes anew what is no whole video; None keeps those
        alone that are, or were, columns of a store.
    """
    self.kept_videos = {}

  def __iter__(self) -> Iterator[Values]:
    """Yields the values of all episodes."""
    for episode in self.episodes():
      yield episode.values

  def compare_statistics(
    self, computed: Mapping[str, Mapping[str, np.ndarray]]
  ) -> list[str]:
    """Compares figures that come along with the episodes with computed ones.

    Args:
      computed: by path and name of a figure, such as 'mean'.
    Returns:
      A sentence for each path that differs.
    """
    return []

  def check_files(self) -> Iterator[str]:
    """Looks for damage that reading the episodes does not meet.

    Yields:
      A sentence for each problem.
    """
    return iter(())

  def metadata_of(self, chosen: np.ndarray) -> Mapping[str, Any]:
    """Returns the metadata that go along with some of the episodes.

    Args:
      chosen: their numbers, rising.
    """
    return self.metadata


class ChosenSource(EpisodeSource):
  """Some episodes of a source, in its order."""

  def __init__(self, source: EpisodeSource, chosen: np.ndarray) -> None:
    """Wraps the source.

    Args:
      source: that knows how many episodes it has.
      chosen: their numbers, rising.
    """
    self._source = source
    self._chosen = chosen
    self.spec, self.notes, self.videos = source.spec, source.notes, source.videos
    self.problems = source.problems
    self.num_episodes = len(chosen)
    if source.episode_ends is not None:
      lengths = np.diff(source.episode_ends, prepend=0)
      self.episode_ends = np.cumsum(lengths[chosen]).tolist()
    self.splits = splits.renumber(source.splits, chosen)
    self.metadata = source.metadata_of(chosen)

  def keep_videos(
    self, formats: Collection[str], encoding: VideoEncoding | None = None
  ) -> None:
    """Gives videos of the source as they are."""
    self._source.keep_videos(formats, encoding)
    self.spec, self.kept_videos = self._source.spec, self._source.kept_videos
    self.notes = self._source.notes

  def fingerprint(self) -> dict[str, Any]:
    """Returns that of the source, and which episodes they are."""
    numbers = zlib.crc32(self._chosen.astype("<i8").tobytes())
    return {**self._source.fingerprint(), "chosen": numbers}

  def episodes(self, start: int = 0) -> Iterator[SourceEpisode]:
    """Yields the chosen ones from a number on; see `EpisodeSource.episodes`."""
    left = self._chosen[start:]
    for run in np.split(left, np.flatnonzero(np.diff(left) != 1) + 1):
      if len(run):
        yield from itertools.islice(self._source.episodes(int(run[0])), len(run))

  def compare_statistics(
    self, computed: Mapping[str, Mapping[str, np.ndarray]]
  ) -> list[str]:
    """Compares nothing: what comes along is of all episodes."""
    return []


class EpisodeTarget(abc.ABC):
  """Writes episodes; a killed writer's target goes on where it was committed."""

  @property
  @abc.abstractmethod
  def num_committed(self) -> int:
    """The episode to go on from: those before it survive whatever happens."""

  @abc.abstractmethod
  def append(self, values: Values) -> None:
    """Appends an episode.

    Args:
      values: as those of a `SourceEpisode`.
    Raises:
      SpecError: the values do not fit the specs of the target.
      OSError: the disk is full or failed.
    """

  @abc.abstractmethod
  def commit(self) -> None:
    """Makes what was appended survive a kill, as far as the format allows."""

  @abc.abstractmethod
  def finish(self) -> None:
    """Completes the target: it is where it was asked for, and whole."""

  @abc.abstractmethod
  def close(self) -> None:
    """Lets go of files; what is committed stays."""


@contextlib.contextmanager
def reading(place: str, what: str) -> Iterator[None]:
  """Says where damage lies: of damaged files libraries raise what they like.

  Args:
    place: the file, or what of it.
    what: is read, as 'chunks'.
  Raises:
    ConversionError: it cannot be read.
  """
  try:
    yield
  except (errors.SpecError, ImportError):
    raise
  except Exception as error:
    raise errors.ConversionError(
      f"convert: {place}: expected {what} that can be read, got "
      f"{type(error).__name__}: {error}."
    ) from error


def read_json_object(operation: str, path: str) -> dict[str, Any]:
  """Reads a JSON file whose values have names.

  Args:
    operation: for the error.
    path: of the file.
  Raises:
    ConversionError: it is none.
  """
  try:
    with open(path, encoding="utf-8") as file:
      values = json.load(file)
  except (OSError, RecursionError, ValueError) as error:
    raise errors.ConversionError(
      f"{operation}: expected a JSON object, got {error}."
    ) from error
  if not isinstance(values, dict):
    raise errors.ConversionError(
      f"{operation}: expected a JSON object, got {values!r:.80}."
    )
  return values


def natural_order(name: str) -> list[Any]:
  """Sorts episode_2 before episode_10.

  Args:
    name: of a file or a group.
  """
  return [(not part.isdigit(), part.zfill(20)) for part in re.split(r"(\d+)", name)]


def control_period(metadata: Mapping[str, Any]) -> float | None:
  """Returns seconds from a step to the next one, as far as metadata tell.

  Args:
    metadata: of a source, or of a store that was converted from it.
  """
  known = metadata.get("lerobot")
  fps = known.get("fps") if isinstance(known, dict) else metadata.get("fps")
  if not isinstance(fps, (int, float)) or isinstance(fps, bool) or not fps > 0:
    return None
  return 1.0 / fps


# How far a rate that a user names may be from that of the data: 30 for 29.97, and what
# clocks measure.
_RATE_SLACK, _CLOCK_SLACK = 0.01, 0.1
# Parts of a second that time stamps may be in, the likeliest first.
_UNITS = (1.0, 1e3, 1e6, 1e9)
_LEAST_RATE, _MOST_RATE = 0.5, 1000.0
# Episodes that are read for it, as the first may have one step.
_RATE_EPISODES = 3
CLOCKS = "clocks/"


def check_rate(operation: str, source: EpisodeSource, fps: float) -> None:
  """Checks that a rate is that of the data: nothing is resampled.

  The data has it in its metadata, or as time stamps, as of `clocks/`. Where neither is
  there, any rate is right.

  Args:
    operation: for the error.
    source: of the data; an episode is read if it has time stamps.
    fps: steps a second that a user names.
  Raises:
    ConversionError: the data has another rate.
  """
  period = control_period(source.metadata)
  known = [] if period is None else [(1 / period, "its metadata have", _RATE_SLACK)]
  known += [
    (rate, f"the time stamps of {path} have", _CLOCK_SLACK)
    for path, rates in _measured_rates(source).items()
    for rate in rates
  ]
  if not known or any(abs(fps / rate - 1) <= slack for rate, _, slack in known):
    return
  rate, origin, _ = known[0]
  raise errors.ConversionError(
    f"{operation}: fps: expected {rate:.4g} steps a second, as {origin}, got {fps:g}: "
    "fps names the rate of the data and does not resample them. Leave it out, or name "
    f"the right one: --fps {rate:.4g}. To train at a lower rate, choose steps by "
    "time_offsets and stride."
  )


def _measured_rates(source: EpisodeSource) -> dict[str, list[float]]:
  """Returns steps a second by path of time stamps, in each unit that they may have."""
  timed = [
    path
    for path, leaf in source.spec.items()
    if leaf.is_sequence
    and (leaf.dtype.is_integer or leaf.dtype.is_floating)
    and leaf.shape.num_elements() == 1
    and (path.startswith(CLOCKS) or specs.names.is_time(path))
  ]
  if not timed:
    return {}
  periods = {}
  for values in itertools.islice(source, _RATE_EPISODES):
    for path in timed:
      if path in values and path not in periods:
        steps = np.diff(np.ravel(values[path]).astype(np.float64))
        # A topic that is slower than the steps repeats its stamp.
        if len(steps) and np.isfinite(steps).all() and np.median(steps) > 0:
          periods[path] = float(np.median(steps))
  clocks = {path: period for path, period in periods.items() if path.startswith(CLOCKS)}
  if clocks:
    # The fastest is that of the steps. Nanoseconds.
    path = min(clocks, key=clocks.__getitem__)
    return {path: [_UNITS[-1] / clocks[path]]}
  return {
    path: [
      unit / period for unit in _UNITS if _LEAST_RATE <= unit / period <= _MOST_RATE
    ]
    for path, period in periods.items()
  }


def folder_fingerprint(path: str) -> dict[str, Any]:
  """Returns the number of the files in a folder, their sizes and the newest time.

  But for the statistics that were computed of them.
  """
  count, size, newest = 0, 0, 0
  for folder, _, names in os.walk(path):
    for name in names:
      if layout.STATISTICS in name and folder == path:
        continue
      found = os.stat(os.path.join(folder, name))
      count, size = count + 1, size + found.st_size
      newest = max(newest, found.st_mtime_ns)
  return {"files": count, "bytes": size, "newest": newest}


def left_out(count: int, first: str) -> str:
  """Says that episodes without a step were left out: nothing would be read of them.

  Args:
    count: of them.
    first: where the first one is.
  """
  one = f"An episode without a step is left out: {first}."
  more = f"{count} episodes without a step are left out, the first: {first}."
  return one if count == 1 else more


def num_bytes(values: Values) -> int:
  """Counts the bytes of an episode's values."""
  return sum(
    sum(map(len, array.ravel().tolist())) if array.dtype == object else array.nbytes
    for array in values.values()
  )


def num_steps(values: Values, spec: specs.TensorSpecStruct) -> int:
  """Returns the steps of an episode: the rows of its first path with a time axis."""
  for path, array in values.items():
    if spec[path].is_sequence and array.ndim:
      return len(array)
  return 0


def check_numbers(operation: str, spec: specs.TensorSpecStruct) -> None:
  """Checks that all specs of steps are numbers, which a plain array can hold.

  Args:
    operation: for the error.
    spec: of the episodes.
  Raises:
    SpecError: with every path that is an encoded image, a byte string or of a dtype
      that numpy alone does not have.
  """
  found = []
  for path, leaf in spec.items():
    if specs.is_encoded_image_spec(leaf):
      got = f"encoded images ({leaf.data_format})"
      hint = "Store pixels: --decode_images."
    elif leaf.dtype == tf.string:
      got, hint = "byte strings", f"Leave them out: --drop {path}."
    elif leaf.dtype == tf.bfloat16:
      got, hint = "bfloat16", f"Leave it out: --drop {path}."
    else:
      continue
    found.append(errors.Mismatch(path, "numbers", got, hint))
  if found:
    raise errors.mismatch_error(operation, found)


def array_spec(
  path: str, dtype: np.dtype, shape: tuple[int, ...], is_sequence: bool
) -> specs.ExtendedTensorSpec | errors.Mismatch:
  """Describes an array, or says why it cannot be taken over.

  Args:
    path: of the spec.
    dtype: of the array.
    shape: of one step, or of one episode's value.
    is_sequence: there is one for each step.
  """
  hint = f"Leave it out: --drop {path}."
  if dtype.kind not in "biufc":
    name = {"O": "objects", "S": "byte strings", "U": "text"}.get(dtype.kind, dtype)
    return errors.Mismatch(path, "numbers", f"{name}", hint)
  try:
    tf_dtype = tf.as_dtype(dtype.newbyteorder("="))
  except TypeError:
    return errors.Mismatch(path, "a dtype that TensorFlow has", str(dtype), hint)
  return specs.ExtendedTensorSpec(shape, tf_dtype, path, is_sequence=is_sequence)


def describe(dtype: np.dtype, shape: tuple[int, ...]) -> str:
  """Renders shape and dtype of an array on disk."""
  return f"{tuple(shape)} {dtype.newbyteorder('=').name}"


class Dropped:
  """The paths that a user leaves out; a name stands for all that is below it, too."""

  def __init__(self, names: Iterable[str] = ()) -> None:
    """Takes the names.

    Args:
      names: paths, or the beginnings of some: 'next_obs' drops 'next_obs/image'.
    """
    self._names = {name.strip("/") for name in names}
    self._met: set[str] = set()
    self._paths: set[str] = set()

  def has(self, path: str) -> bool:
    """Whether a path is left out."""
    self._paths.add(path)
    met = {n for n in self._names if path == n or path.startswith(f"{n}/")}
    self._met |= met
    return bool(met)

  def filter(self, spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Returns the specs that stay."""
    return specs.TensorSpecStruct(
      (path, leaf) for path, leaf in spec.items() if not self.has(path)
    )

  def check(self, operation: str) -> None:
    """Checks that every name met a path.

    Raises:
      SpecError: with every name that met none.
    """
    found = [
      errors.Mismatch(
        name,
        f"a path to drop, of {errors.listing(self._paths)}",
        "no such path",
        errors.nearest(name, self._paths),
      )
      for name in self._names - self._met
    ]
    if found:
      raise errors.mismatch_error(operation, found)


def check_same_specs(
  operation: str, wanted: specs.SpecStructure, spec: specs.TensorSpecStruct
) -> specs.TensorSpecStruct:
  """Picks the specs that a user wants from those that a source has.

  Args:
    operation: for the error.
    wanted: flat specs; their names in records are taken over.
    spec: of the source.
  Returns:
    The wanted ones that there are.
  Raises:
    SpecError: with every difference.
  """
  columns = layout.make_columns(operation, specs.map_leaves(specs.frame_spec, spec))
  manifest.check_spec(operation, wanted, columns, False)
  return specs.TensorSpecStruct(
    # However videos are kept, the source says.
    (path, spec[path] if specs.is_video_spec(spec[path]) else specs.frame_spec(leaf))
    for path, leaf in specs.flatten_spec_structure(wanted).items()
    if path in spec
  )


_NUMBERS = (
  *("float16", "bfloat16", "float32", "float64", "bool"),
  *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


@dataclasses.dataclass(frozen=True)
class Cast:
  """A cast of the numbers of a path.

  Attributes:
    dtype: the new one.
    is_of_path: the path itself was named, so that values may become equal.
  """

  dtype: tf.DType
  is_of_path: bool


def find_casts(
  operation: str, casts: Iterable[str], spec: specs.TensorSpecStruct
) -> dict[str, Cast]:
  """Finds which paths become numbers of another dtype.

  Args:
    operation: for the error.
    casts: 'float64=float32' for all paths of a dtype, or 'path=float32' for a path and
      all below it, which counts more.
    spec: of the episodes.
  Returns:
    The casts by path.
  Raises:
    SpecError: with every cast that is none.
  """
  by_dtype: dict[str, Cast] = {}
  by_path: dict[str, Cast] = {}
  found = []
  for text in casts:
    name, _, wanted = text.partition("=")
    if wanted not in _NUMBERS:
      want = f"a dtype of {errors.listing(_NUMBERS)} after a ="
      near = errors.nearest(wanted, _NUMBERS)
      found.append(errors.Mismatch(f"cast {text}", want, repr(wanted), near))
      continue
    below = [p for p in spec if p == name or p.startswith(f"{name}/")]
    if name in _NUMBERS and not below:
      by_dtype[name] = Cast(tf.as_dtype(wanted), False)
    elif not below:
      want = f"a dtype, or a path of {errors.listing(spec)}"
      found.append(
        errors.Mismatch(f"cast {text}", want, repr(name), errors.nearest(name, spec))
      )
    by_path |= {path: Cast(tf.as_dtype(wanted), path == name) for path in below}
  result = {}
  for path, leaf in spec.items():
    is_image = specs.is_encoded_image_spec(leaf) or specs.is_video_spec(leaf)
    is_number = leaf.dtype.name in _NUMBERS and not is_image
    cast = by_path.get(path)
    if is_number and cast is None:
      cast = by_dtype.get(leaf.dtype.name)
    if not is_number and cast is not None:
      got = "encoded images" if leaf.data_format else leaf.dtype.name
      found.append(errors.Mismatch(path, "numbers to cast", got))
    elif cast is not None and cast.dtype != leaf.dtype:
      result[path] = cast
  if found:
    raise errors.mismatch_error(operation, found)
  return result


def cast_values(path: str, array: np.ndarray, cast: Cast, place: str) -> np.ndarray:
  """Makes numbers of another dtype: floats are rounded, nothing else is lost.

  Args:
    path: for the error.
    array: of numbers.
    cast: to another dtype.
    place: for the error.
  Raises:
    ConversionError: the new dtype lacks a number, or time stamps become equal.
  """
  dtype = cast.dtype
  with np.errstate(over="ignore", invalid="ignore"):
    result = array.astype(dtype.as_numpy_dtype)
  both = (tf.as_dtype(array.dtype).is_floating, dtype.is_floating)
  if both == (True, True):
    lost = np.isfinite(array) & ~np.isfinite(result.astype(np.float64))
  else:
    lost = result.astype(array.dtype) != array
  if both == (False, False) and not dtype.is_bool:
    # Of another sign the way back may lead to the same bits.
    lost = lost | ((result < 0) != (array < 0))
  if lost.any():
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected numbers that {dtype.name} has, got "
      f"{array[lost].ravel()[0]} of {array.dtype.name}."
    )
  merged = None
  if both == (True, True) and not cast.is_of_path:
    merged = _find_merged(path, array.astype(np.float64), result.astype(np.float64))
  if merged is not None:
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected values that {dtype.name} tells apart, got "
      f"{merged[0]!r} and {merged[1]!r}, which become equal. Keep them, --cast "
      f"{path}={array.dtype.name}, or round them all the same, --cast "
      f"{path}={dtype.name}."
    )
  return result


# A column of numbers that rounding moves by more than the first number, and more than
# the second one's share of its range, holds something else afterwards.
_MOVED, _MOVED_SHARE = 0.1, 0.01
_LOST_SHARE = 0.25  # The same of numbers that rise and fall.
_MAX_COLUMNS = 256  # Of a step; more are an image.


def _find_merged(
  path: str, array: np.ndarray, rounded: np.ndarray
) -> tuple[float, float] | None:
  """Finds two steps of a column whose values differed, and whose difference mattered.

  Rounding makes neighbours of almost any signal equal. It matters for time stamps, by
  their name, and for numbers that rise through the episode, such as a time under
  another name, or the position of a vehicle on a map, if rounding takes their rise. It
  also matters for others, if a quarter of their range is lost.

  Args:
    path: of the numbers.
    array: float64 [T, ...].
    rounded: the same in the other dtype.
  Returns:
    The two values; None if there are none.
  """
  if array.ndim == 0 or len(array) < 2:
    # A time stamp of an episode: those of other episodes become equal to it.
    moved = np.abs(rounded - array).ravel()
    if not spec_names.is_time(path) or not moved.size or moved.max() <= _MOVED:
      return None
    return float(array.ravel()[moved.argmax()]), float(rounded.ravel()[moved.argmax()])
  if array.size > _MAX_COLUMNS * len(array):
    return None
  before, after = (v.reshape(len(v), -1) for v in (array, rounded))
  with np.errstate(invalid="ignore"):
    steps = np.diff(before, axis=0)
    merged = (steps != 0) & (np.diff(after, axis=0) == 0)
    if not spec_names.is_time(path):
      moved = np.abs(after - before).max(axis=0)
      is_rising = (steps >= 0).all(axis=0) & ((steps > 0).sum(axis=0) > 1)
      share = np.where(is_rising, _MOVED_SHARE, _LOST_SHARE)
      merged &= (moved > _MOVED) & (moved > share * np.ptp(before, axis=0))
  if not merged.any():
    return None
  step, column = np.argwhere(merged)[0]
  return float(before[step, column]), float(before[step + 1, column])


class SelectedSource(EpisodeSource):
  """Some paths of a source, perhaps with images decoded to pixels, or numbers cast."""

  def __init__(
    self,
    source: EpisodeSource,
    spec: specs.TensorSpecStruct,
    decode_images: bool = False,
    casts: Iterable[str] = (),
  ) -> None:
    """Wraps the source.

    Args:
      source: to read.
      spec: specs of the source that are wanted.
      decode_images: turns encoded images into pixels.
      casts: which numbers get another dtype; see `find_casts`.
    Raises:
      SpecError: a cast is none.
    """
    self._source = source
    self._wanted = spec
    self._images = {
      path: leaf
      for path, leaf in spec.items()
      if decode_images and specs.is_encoded_image_spec(leaf)
    }
    self._casts = find_casts("convert", casts, spec)
    self._axes = {
      path: added_axes(source.spec[path].shape, leaf.shape)
      for path, leaf in spec.items()
    }
    self.spec = specs.TensorSpecStruct(
      (path, _own_spec(leaf, path in self._images, self._casts.get(path)))
      for path, leaf in spec.items()
    )
    self.num_episodes, self.episode_ends = source.num_episodes, source.episode_ends
    self.metadata, self.notes = source.metadata, source.notes
    self.splits, self.problems = source.splits, source.problems
    kept = source.kept_videos
    self.kept_videos = {path: kept[path] for path in kept if path in spec}

  def fingerprint(self) -> dict[str, Any]:
    """Returns that of the source."""
    return self._source.fingerprint()

  def episodes(self, start: int = 0) -> Iterator[SourceEpisode]:
    """Yields the source's episodes with the chosen paths alone."""
    for episode in self._source.episodes(start):
      values: Values = {
        path: self._change(path, array, episode.place)
        for path, array in episode.values.items()
        if path in self._wanted
      }
      yield SourceEpisode(values, episode.place, episode.done)

  def _change(self, path: str, array: np.ndarray, place: str) -> np.ndarray:
    axes = self._axes.get(path, 0)
    if axes:
      array = array[..., np.newaxis] if axes > 0 else array[..., 0]
    if path in self._casts:
      return cast_values(path, array, self._casts[path], place)
    if path not in self._images:
      return array
    missing = np.argwhere(array == b"")
    if len(missing):  # They would be black pixels that no mask tells from a picture.
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected an image in every step, got none at step "
        f"{missing[0][0] if array.ndim else 0}. Leave the images encoded: missing ones "
        "stay missing."
      )
    encoded = tf.constant(array.tolist(), tf.string, array.shape)
    try:
      return records.decode_images(encoded, self._images[path], path).numpy()
    except tf.errors.OpError as error:
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected images that can be decoded, got "
        f"{error.message.splitlines()[0]:.200}"
      ) from error


def _own_spec(
  spec: specs.ExtendedTensorSpec, is_decoded: bool, cast: Cast | None
) -> specs.ExtendedTensorSpec:
  # How the source's records lay their steps out is no matter to what is made of them.
  fields = {**spec.fields(), "is_concatenated": False}
  if is_decoded:
    fields["data_format"] = None
  if cast is not None:
    fields["dtype"] = cast.dtype
  return specs.ExtendedTensorSpec(**fields)
