"""What is converted: episodes, read from a source and appended to a target."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from t2r_seq import specs

Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class SourceEpisode:
  """One episode of a source.

  Attributes:
    values: by path, [T, ...] and context features; byte strings as arrays of bytes
      objects; absent optionals are left out.
    place: where it was found, for messages.
    position: where the source has the next one; a source reads its own positions.
    label: what the source calls it, where it has names that must not come twice.
  """

  values: Values
  place: str
  position: tuple[int, ...] = ()
  label: str | None = None


@dataclasses.dataclass(frozen=True)
class ResumePoint:
  """Where to go on reading.

  Attributes:
    episode: the number of the first episode to read.
    position: of the episode before it, as its `SourceEpisode` had it; () at 0.
    labels: of the episodes before it.
  """

  episode: int = 0
  position: tuple[int, ...] = ()
  labels: frozenset[str] = frozenset()


class EpisodeSource(abc.ABC):
  """Reads the episodes of a store, of files or of a group of arrays, in order."""

  @property
  @abc.abstractmethod
  def spec(self) -> specs.TensorSpecStruct:
    """The flat specs of the episodes, by path."""

  @property
  @abc.abstractmethod
  def num_episodes(self) -> int | None:
    """How many episodes there are; None if only reading them all would tell."""

  @property
  def episode_ends(self) -> list[int] | None:
    """The step after each episode's last one, counted through; None if unknown."""
    return None

  @property
  def metadata(self) -> Mapping[str, Any]:
    """JSON values that go along with the episodes."""
    return {}

  @property
  def notes(self) -> list[str]:
    """What a user should know of how the source was read; sentences."""
    return []

  @abc.abstractmethod
  def fingerprint(self) -> dict[str, Any]:
    """Returns JSON values that change when the data does; costs no look at it."""

  @abc.abstractmethod
  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields the episodes from a point on.

    Raises:
      SpecError: an episode cannot be read; names the place.
    """

  def fraction(self, position: tuple[int, ...]) -> float | None:
    """Returns how much of the source lies before a position, 0 to 1, if it knows."""
    return None


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
