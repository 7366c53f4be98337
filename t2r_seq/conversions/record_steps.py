"""TFRecord files of tf.train.Examples: a record is a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.conversions.episodes import (
  EpisodeSource,
  ResumePoint,
  SourceEpisode,
  Values,
)
from t2r_seq.conversions.record_files import Position, RecordFiles, RecordParser, join
from t2r_seq.records.contents import read_contents

_BATCH = 256


@dataclasses.dataclass(frozen=True)
class EpisodeBounds:
  """How the steps of an episode are told from those of the next; one of the three.

  Attributes:
    episode_key: a feature whose value is the same in all steps of an episode, and in
      no other.
    last_key: a feature that is not zero in the last step of an episode.
    is_file: a file is an episode.
  """

  episode_key: str | None = None
  last_key: str | None = None
  is_file: bool = False

  def __bool__(self) -> bool:
    return bool(self.episode_key or self.last_key or self.is_file)

  @property
  def key(self) -> str | None:
    """The feature to look at."""
    return self.episode_key or self.last_key


@dataclasses.dataclass
class _Part:
  """Consecutive steps of one episode.

  Attributes:
    values: [n, ...] by path.
    records: where they are from.
    absent: the optional paths that each step lacks.
    label: value of the episode key.
    is_last: the episode ends with them.
    position: after them.
  """

  values: Values
  records: list[records.Record]
  absent: list[frozenset[str]]
  label: str | None
  is_last: bool
  position: Position


class RecordSteps(EpisodeSource):
  """Reads a record as a step; consecutive ones make an episode."""

  def __init__(
    self,
    patterns: records.FilePatterns,
    bounds: EpisodeBounds,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
    num_episodes: int | None = None,
  ) -> None:
    """Finds the files.

    Args:
      patterns: see `records.get_data_format_and_filenames`.
      bounds: how episodes end.
      spec: flat specs of the episode: sequences are read from each step, and what
        is no sequence must be the same in all steps. Where there is no sequence at
        all, they are specs of a step, and all but the episode key become sequences.
        None proposes some from a look at all records.
      compression: of all files, if the suffixes don't tell.
      num_episodes: how many there are, if that is known.
    Raises:
      SpecError: no file, no such key, or a spec that cannot be parsed.
    """
    self._files = RecordFiles(patterns, compression)
    self._bounds = bounds
    self._num_episodes = num_episodes
    self._notes: list[str] = []
    if spec is None:
      summary = records.inspect_records(self._files.names, compression=compression)
      spec = records.propose_spec(summary)
      self._notes.append("The specs were proposed from the files: look at them.")
    self._spec = _episode_spec(records.parsed_specs(spec), bounds.episode_key)
    steps = specs.TensorSpecStruct(
      (path, _with_sequence(leaf, False)) for path, leaf in self._spec.items()
    )
    self._parser = RecordParser(steps, True, compression)
    self._read_key = self._make_key_reader()

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The flat specs of the episodes that the steps make."""
    return self._spec

  @property
  def num_episodes(self) -> int | None:
    """The episodes, where they have been counted."""
    return self._num_episodes

  @property
  def notes(self) -> list[str]:
    """What was left out, and why."""
    return self._notes

  def fingerprint(self) -> dict[str, Any]:
    """Returns the files' names, sizes and times."""
    return self._files.fingerprint()

  def fraction(self, position: tuple[int, ...]) -> float | None:
    """Returns how many of the bytes lie before a position."""
    return self._files.fraction(position)

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields runs of steps of one label; see `EpisodeSource.episodes`."""
    labels = set(start.labels)
    open_parts: list[_Part] = []
    for part in self._parts(start.position):
      if open_parts and part.label != open_parts[-1].label:
        yield self._episode(open_parts, labels)
        open_parts = []
      open_parts.append(part)
      if part.is_last:
        yield self._episode(open_parts, labels)
        open_parts = []
    if open_parts:
      if self._bounds.last_key:
        self._notes.append(
          f"The files end within an episode: '{self._bounds.last_key}' is not set in "
          f"{open_parts[-1].records[-1].place}. What there is of it was converted."
        )
      yield self._episode(open_parts, labels)

  def _parts(self, position: Position) -> Iterator[_Part]:
    """Reads groups of records and cuts them where episodes end."""
    for file_index, group, is_file_end in self._groups(position):
      values = self._parser.parse(group)
      absent = [self._parser.absent(record) for record in group]
      keys = self._read_key(group)
      start = 0
      for stop in range(1, len(group) + 1):
        is_end = stop == len(group)
        is_last = bool(self._bounds.last_key and keys[stop - 1])
        is_last |= self._bounds.is_file and is_end and is_file_end
        is_cut = not self._bounds.last_key and not is_end and keys[stop] != keys[start]
        if is_end or is_last or is_cut:
          yield _Part(
            {path: array[start:stop] for path, array in values.items()},
            group[start:stop],
            absent[start:stop],
            str(keys[start]) if self._bounds.episode_key else None,
            is_last,
            self._files.position_after(file_index, group[stop - 1]),
          )
          start = stop

  def _groups(
    self, position: Position
  ) -> Iterator[tuple[int, list[records.Record], bool]]:
    """Yields the file's number, records of one file, and whether they end it."""
    group: list[records.Record] = []
    last_file = 0
    for file_index, record in self._files.read(position):
      is_new = bool(group) and file_index != last_file
      if is_new or len(group) == _BATCH:
        yield last_file, group, is_new
        group = []
      last_file = file_index
      group.append(record)
    if group:
      yield last_file, group, True

  def _episode(self, parts: list[_Part], labels: set[str]) -> SourceEpisode:
    """Joins the parts of an episode."""
    first, last = parts[0], parts[-1]
    count = sum(len(part.records) for part in parts)
    place = f"{count} steps from {first.records[0].place}"
    if first.label is not None:
      place = f"{self._bounds.episode_key} {first.label}, {place}"
      if first.label in labels:
        raise errors.ConversionError(
          f"convert: {place}: expected the steps of an episode one after the other, "
          f"got '{self._bounds.episode_key}' {first.label} a second time. Sort the "
          "records, or choose another --episode_key."
        )
      labels.add(first.label)
    values: Values = {}
    for path, leaf in self._spec.items():
      if self._is_absent(parts, path, place):
        continue
      steps = join(part.values[path] for part in parts)
      values[path] = steps if leaf.is_sequence else _constant(path, steps, place)
    return SourceEpisode(values, place, last.position, first.label)

  def _is_absent(self, parts: list[_Part], path: str, place: str) -> bool:
    """Whether no step has an optional path; that only some have it is an error."""
    lacks = [path in absent for part in parts for absent in part.absent]
    if any(lacks) and not all(lacks):
      raise errors.ConversionError(
        f"convert: {place}: {path}: expected it in every step of the episode or in "
        f"none, got {len(lacks) - sum(lacks)} of {len(lacks)} steps with it. Leave it "
        f"out: --drop {path}."
      )
    return all(lacks)

  def _make_key_reader(self) -> Any:
    """Makes the function that reads the key of each record, [B]."""
    key = self._bounds.key
    if key is None:
      return lambda group: [0] * len(group)
    found = next(self._files.read(), None)
    contents = read_contents(found[1]) if found else None
    feature = contents.context.get(key) if contents else None
    kind = feature.WhichOneof("kind") if feature else None
    if found and kind is None:
      names = list(contents.context) if contents else []
      raise errors.ConversionError(
        f"convert: {found[1].place}: expected the feature '{key}', which tells the "
        f"episodes apart, got {errors.listing(names)}.{errors.nearest(key, names)}"
      )
    dtypes = {"int64_list": tf.int64, "float_list": tf.float32}
    leaf = specs.ExtendedTensorSpec((), dtypes.get(str(kind), tf.string), key)
    spec = specs.TensorSpecStruct({"key": leaf})
    parser = RecordParser(spec, True, self._files.compression)
    return lambda group: _to_labels(parser.parse(group)["key"])


def _to_labels(values: np.ndarray) -> list[Any]:
  return [
    value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    for value in values.tolist()
  ]


def _with_sequence(
  spec: specs.ExtendedTensorSpec, is_sequence: bool
) -> specs.ExtendedTensorSpec:
  return specs.ExtendedTensorSpec(**{**spec.fields(), "is_sequence": is_sequence})


def _episode_spec(
  spec: specs.TensorSpecStruct, episode_key: str | None
) -> specs.TensorSpecStruct:
  """Specs of a step become those of an episode."""
  if any(leaf.is_sequence for leaf in spec.values()):
    return spec
  return specs.TensorSpecStruct(
    (path, _with_sequence(leaf, leaf.name != episode_key))
    for path, leaf in spec.items()
  )


def _constant(path: str, steps: np.ndarray, place: str) -> np.ndarray:
  """Returns what all steps have in common."""
  differing = [i for i in range(len(steps)) if not _is_same(steps[i], steps[0])]
  if differing:
    raise errors.ConversionError(
      f"convert: {place}: {path}: expected the same value in all steps, because it is "
      f"no sequence, got another at step {differing[0]}. Declare is_sequence=True."
    )
  first = np.empty(steps.shape[1:], steps.dtype)
  first[...] = steps[0]
  return first


def _is_same(value: Any, other: Any) -> bool:
  if isinstance(value, bytes):
    return value == other
  if np.asarray(value).dtype == object:
    return bool(np.array_equal(value, other))
  return np.asarray(value).tobytes() == np.asarray(other).tobytes()
