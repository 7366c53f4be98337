"""A data set of episodes, in any format."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.splits import Splits

Values = dict[str, np.ndarray]
"""Arrays of an episode by path: `[T, ...]`, or a value of the episode."""
Fields = dict[str, Any]
"""Fields of a spec, as `ExtendedTensorSpec.to_json_dict` gives them."""


@dataclasses.dataclass(frozen=True)
class Episode:
  """One episode.

  Attributes:
    values: arrays by path, `[T, ...]`, and context features; byte strings as arrays of
      bytes objects. Absent optional paths are left out.
    place: place of the episode in the files, for messages.
    fraction_done: share of the data set that is read after this episode; None if the
      number of episodes is known.
  """

  values: Values
  place: str
  fraction_done: float | None = None


class EpisodePart(NamedTuple):
  """Steps of an episode to read; see `EpisodeReader.read`."""

  episode: int
  start: int = 0
  stop: int | None = None
  out: Mapping[str, np.ndarray] | None = None


class EpisodeReader:
  """Interface that a format implements for `Episodes`: attributes, and reading.

  A format is a subclass (see `register_format`). Formats with random access set
  `lengths` and implement `read` and `place`; the others implement `iterate`.

  Attributes:
    path: the data set's file or folder; '' if it has none.
    format: name of the format, such as 'lerobot'.
    spec: flat specs by path; made from `_spec_fields` if a format sets those.
    derived_spec: specs of paths that follow from the position of a step, such as its
      index. `read` returns them only if `paths` has them; conversions leave them out.
    lengths: steps of each episode, int64 [episodes]; None if unknown before reading.
    numbers: numbers of the selected episodes in the data set, int64; None for all.
    splits: numbers of episodes by the name of the split.
    clocks: path of the time stamps by path of a value on another clock than the steps'.
      The spec of such a value has the shape (None, ...), and is not a sequence: `read`
      returns one value for each stamp, of the whole episode. Stamps map to themselves.
    metadata: JSON values: the control period or the clocks, the robot, the task texts.
    notes: sentences for the user on how the data set was read.
    problems: sentences on readable data that may be damaged.
    videos: paths whose frames are decoded from videos.
    depth: paths of depth images, float32 in metres; `cast` reads them as uint16 in
      millimetres.
    kept_videos: encoding by path of values that are whole videos, byte strings of shape
      (); see `with_videos`.
    read_bytes: memory to read the largest episode, in addition to its values.
  """

  path: str = ""
  format: str = ""
  _spec_fields: Mapping[str, Fields] = types.MappingProxyType({})
  derived_spec: Mapping[str, specs.ExtendedTensorSpec] = types.MappingProxyType({})
  lengths: np.ndarray | None = None
  numbers: np.ndarray | None = None
  splits: Splits = types.MappingProxyType({})
  clocks: Mapping[str, str] = types.MappingProxyType({})
  metadata: Mapping[str, Any] = types.MappingProxyType({})
  notes: Sequence[str] = ()
  problems: Sequence[str] = ()
  depth: Sequence[str] = ()
  videos: Sequence[str] = ()
  kept_videos: Mapping[str, Any] = types.MappingProxyType({})
  read_bytes: int = 0

  @functools.cached_property
  def spec(self) -> specs.TensorSpecStruct:
    """Flat specs by path; TensorFlow is loaded."""
    return make_specs(self._spec_fields)

  @property
  def fields(self) -> Mapping[str, Fields]:
    """The fields of `spec` by path; without TensorFlow if the format reads so."""
    if self._spec_fields and "spec" not in vars(self):
      return self._spec_fields
    return {path: leaf.to_json_dict() for path, leaf in self.spec.items()}

  @property
  def num_episodes(self) -> int | None:
    """The number of episodes; None if unknown before reading."""
    return None if self.lengths is None else len(self.lengths)

  def __iter__(self) -> Iterator[Episode]:
    """Yields the episodes in order."""
    return self.iterate()

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the episodes in order.

    Args:
      start: the number of the first episode.
    Raises:
      SpecError: an episode cannot be read; names the place.
    """
    for number in range(start, self.num_episodes or 0):
      yield Episode(self.read(number), self.place(number))

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads an episode, or some of its steps; thread-safe.

    Args:
      episode: its number.
      paths: paths of `spec` and `derived_spec`; None for all of `spec`.
      start: the first step.
      stop: the step after the last one; None for the end of the episode.
      out: arrays `[stop - start, ...]` by path that a format may decode into. It did
        not if it returns another array for the path.
    Returns:
      Arrays by path, `[stop - start, ...]`, and context features whole.
    Raises:
      SpecError: the format has no random access, or the episode cannot be read.
    """
    del episode, paths, start, stop, out
    raise errors.SpecError(
      f"read: {self.path}: expected a data set with random access, got one that can be "
      "read in order only. Convert it to a store: t2r_seq convert."
    )

  def read_many(
    self, parts: Iterable[EpisodePart], paths: Collection[str] | None = None
  ) -> Iterator[Values]:
    """Reads several episodes; a format that parses batches overrides it.

    Args:
      parts: arguments of `read` for each part.
      paths: paths as for `read`.
    Yields:
      What `read` returns for each.
    """
    for part in parts:
      yield self.read(part.episode, paths, part.start, part.stop, part.out)

  def place(self, episode: int) -> str:
    """Returns where an episode is stored, for messages."""
    return f"episode {episode} of {self.path}"

  def rows(self) -> Any:
    """Returns the `EpisodeStore` whose columns are tensors in the graph; else None."""
    return None

  def fingerprint(self) -> dict[str, Any]:
    """Returns JSON values that change if the data does; reads no episode."""
    return {}

  def with_videos(self, formats: Collection[str], encoding: Any = None) -> Any:
    """Returns the episodes with whole videos in place of frames of stored videos.

    Args:
      formats: formats of the videos, from `specs.names.VIDEO_FORMATS`.
      encoding: a `store.videos.VideoEncoding` that encodes the frames again if no whole
        video is stored; None: only videos of a store's columns, also if converted.
    """
    del formats, encoding
    return self

  def compare_statistics(
    self, computed: Mapping[str, Mapping[str, np.ndarray]]
  ) -> list[str]:
    """Compares statistics that are stored with the episodes with computed ones.

    Args:
      computed: by path and name of the statistic, such as 'mean'.
    Returns:
      A sentence for each path that differs; [] if no statistics are stored.
    """
    del computed
    return []

  def check_files(self) -> Iterator[str]:
    """Yields a sentence for each problem that reading the episodes does not find."""
    return iter(())

  def metadata_of(self, episodes: np.ndarray) -> Mapping[str, Any]:
    """Returns the metadata of a selection of episodes, given their rising numbers."""
    del episodes
    return self.metadata

  def copy(self, **attributes: Any) -> Any:
    """Returns a shallow copy with other attributes; for subclasses."""
    result = copy.copy(self)
    for name, value in attributes.items():
      setattr(result, name, value)
    return result


class EpisodeWriter(abc.ABC):
  """Writes the episodes of a new data set.

  The constructor takes a path, the episodes to write, and options by name. It checks
  that the format can hold the specs, before anything is written. The data set appears
  at its path when it is complete.

  Attributes:
    episodes: the view of the episodes that `append` takes, with whole videos, which are
      copied without re-encoding; None if it takes them unchanged.
  """

  episodes: Any = None

  @classmethod
  def files(cls, path: str, **options: Any) -> list[str]:
    """Returns the files, or the folder, that a writer with these options makes."""
    del options
    return [path]

  @abc.abstractmethod
  def append(self, values: Values) -> None:
    """Appends an episode.

    Args:
      values: values by path, as in an `Episode`.
    Raises:
      SpecError: the values do not fit the specs.
      OSError: the disk is full or failed.
    """

  @abc.abstractmethod
  def finish(self) -> None:
    """Completes the data set, which appears at its path."""

  @abc.abstractmethod
  def close(self) -> None:
    """Closes files, and removes what is not committed."""

  @property
  def num_committed(self) -> int:
    """Episodes that survive a kill; a conversion resumes after them."""
    return 0

  def commit(self) -> None:  # noqa: B027
    """Makes the appended episodes survive a kill, as far as the format allows."""


def make_specs(fields: Mapping[str, Fields]) -> specs.TensorSpecStruct:
  """Makes specs of their fields, by path; SpecError if one is invalid."""
  make = specs.ExtendedTensorSpec.from_json_dict
  return specs.TensorSpecStruct((p, make(each, p)) for p, each in fields.items())


def steps_spec(spec: specs.ExtendedTensorSpec) -> specs.ExtendedTensorSpec:
  """Returns the spec of values on another clock as that of one value per step."""
  return specs.ExtendedTensorSpec.from_spec(
    spec, shape=spec.shape[1:], is_sequence=True
  )


def num_bytes(values: Values) -> int:
  """Counts the bytes of an episode's values."""
  return sum(
    sum(map(len, array.ravel().tolist())) if array.dtype == object else array.nbytes
    for array in values.values()
  )


def num_steps(values: Values, spec: Mapping[str, specs.ExtendedTensorSpec]) -> int:
  """Returns the number of steps: that of the first path with a time axis, or 0."""
  for path, array in values.items():
    if spec[path].is_sequence and array.ndim:
      return len(array)
  return 0
