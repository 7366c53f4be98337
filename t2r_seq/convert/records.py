"""TFRecord files, RLDS and TFDS as sources; TFRecord files as targets."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.convert.episodes import (
  EpisodeSource,
  EpisodeTarget,
  ResumePoint,
  SourceEpisode,
  Values,
)
from t2r_seq.records.contents import read_contents
from t2r_seq.specs import validation

# A message that quotes a record may be no UTF-8, and then TensorFlow raises that.
_DATA_ERRORS = (tf.errors.OpError, UnicodeDecodeError)

Position = tuple[int, ...]


class RecordFiles:
  """TFRecord files, read one after the other from any record on."""

  def __init__(
    self, patterns: records.FilePatterns, compression: str | None = None
  ) -> None:
    """Finds the files.

    Args:
      patterns: see `records.get_data_format_and_filenames`.
      compression: of all files, if the suffixes don't tell.
    Raises:
      SpecError: nothing matches.
      RecordError: a file is no TFRecord file.
    """
    _, self.names = records.get_data_format_and_filenames(patterns)
    self.compression = compression
    records.check_file_types(self.names, compression)
    self._sizes = [os.path.getsize(name) for name in self.names]
    self._starts = [0, *itertools.accumulate(self._sizes)]

  def fingerprint(self) -> dict[str, Any]:
    """Returns name, size and time of each file."""
    stats = [(os.path.basename(name), os.stat(name)) for name in self.names]
    return {"files": [[name, s.st_size, s.st_mtime_ns] for name, s in stats]}

  def read(self, position: Position = ()) -> Iterator[tuple[int, records.Record]]:
    """Yields the number of the file and the record, from a position on.

    Args:
      position: of `position_after`; () for the beginning.
    Raises:
      RecordError: a damaged record; names file and record.
    """
    first, skipped = (position[0], position[1]) if position else (0, 0)
    for index in range(first, len(self.names)):
      name = self.names[index]
      kind = records.compression_type(name, self.compression)
      yield from (
        (index, record)
        for record in records.iterate_records(name, kind)
        if index > first or record.index >= skipped
      )

  def position_after(self, file_index: int, record: records.Record) -> Position:
    """Returns where to go on after a record: file, record, and bytes up to it."""
    end = min(record.offset + len(record.data), self._sizes[file_index])
    return file_index, record.index + 1, self._starts[file_index] + end

  def fraction(self, position: Position) -> float | None:
    """Returns how many of the bytes lie before a position, 0 to 1."""
    return position[2] / max(self._starts[-1], 1) if position else 0.0


class RecordParser:
  """Parses records as specs say; encoded images stay as they are."""

  def __init__(
    self,
    spec: specs.TensorSpecStruct,
    is_batched: bool,
    compression: str | None = None,
  ) -> None:
    """Creates the parser.

    Args:
      spec: flat specs of one dataset.
      is_batched: several records are parsed at once, to [B, ...] leaves.
      compression: of the files, for a diagnosis.
    Raises:
      SpecError: with every spec that cannot be parsed.
    """
    self._spec = spec
    self._compression = compression
    self._is_batched = is_batched
    self._names = {p: leaf.name for p, leaf in spec.items() if leaf.is_optional}
    self._images = {
      path: leaf for path, leaf in spec.items() if specs.is_encoded_image_spec(leaf)
    }
    parse_fn = records.create_parse_tf_example_fn(spec, decode_images=False)
    signature = [tf.TensorSpec([None] if is_batched else [], tf.string)]
    self._parse_fn = tf.function(parse_fn, input_signature=signature)

  def parse(self, group: list[records.Record]) -> Values:
    """Parses records of one file.

    Args:
      group: the records; one unless the parser is batched.
    Returns:
      Values by path; absent optionals too.
    Raises:
      RecordError: names file, record and feature.
    """
    data = [record.data for record in group]
    try:
      parsed = self._parse_fn(tf.constant(data if self._is_batched else data[0]))
    except _DATA_ERRORS as error:
      found = records.find_bad_record(
        group[0].filename, self._spec, compression=self._compression
      )
      if found is None:
        place = group[0].place
        raise errors.RecordError(f"{place}: it cannot be parsed: {error}") from error
      raise found from error
    values = {path: _to_array(tensor) for path, tensor in parsed.items()}
    self._check_images(values, group)
    return values

  def _check_images(self, values: Values, group: list[records.Record]) -> None:
    for path, leaf in self._images.items():
      has_rows = self._is_batched or leaf.is_sequence
      images = values[path] if has_rows else values[path][None]
      found = validation.find_misfit(images.ravel().tolist(), leaf, path, True)
      if found:
        index, mismatch = found
        row = index * len(images) // images.size
        place = group[row if self._is_batched else 0].place
        place += f", step {row}" if leaf.is_sequence else ""
        raise errors.mismatch_error(place, [mismatch], errors.RecordError)

  def absent(self, record: records.Record) -> frozenset[str]:
    """Returns the optional paths that a record lacks."""
    if not self._names:
      return frozenset()
    present = records.present_names(record.data)
    return frozenset(p for p, name in self._names.items() if name not in present)


def _to_array(tensor: tf.Tensor) -> np.ndarray:
  array = tensor.numpy()
  if isinstance(array, np.ndarray):
    return array
  scalar = np.empty((), object if isinstance(array, bytes) else None)
  scalar[()] = array
  return scalar if isinstance(array, bytes) else np.asarray(array)


def join(parts: Iterable[np.ndarray]) -> np.ndarray:
  """Concatenates arrays along their first axis; one alone is not copied."""
  arrays = list(parts)
  return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class RecordEpisodes(EpisodeSource):
  """Reads a record as an episode."""

  def __init__(
    self,
    patterns: records.FilePatterns,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
    num_episodes: int | None = None,
  ) -> None:
    """Finds the files.

    Args:
      patterns: see `records.get_data_format_and_filenames`.
      spec: flat specs of the records; None proposes some from a look at all of them.
      compression: of all files, if the suffixes don't tell.
      num_episodes: how many records there are, if that is known.
    Raises:
      SpecError: no file, or a spec that cannot be parsed, or no sequence among them.
    """
    self._files = RecordFiles(patterns, compression)
    self._num_episodes = num_episodes
    self._notes: list[str] = []
    if spec is None:
      summary = records.inspect_records(self._files.names, compression=compression)
      spec = records.propose_spec(summary)
      self._notes.append("The specs were proposed from the files: look at them.")
    self._spec = records.parsed_specs(spec)
    if not any(leaf.is_sequence for leaf in self._spec.values()):
      raise errors.ConversionError(
        f"convert: {self._files.names[0]}: expected sequences, because a record is an "
        f"episode, got none in {errors.listing(self._spec)}. Where a record is a step, "
        "say how episodes end: --episode_key, --last_key or --episode_per_file."
      )
    self._parser = RecordParser(self._spec, False, compression)

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The flat specs that the records are parsed with."""
    return self._spec

  @property
  def num_episodes(self) -> int | None:
    """The records, where they have been counted."""
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
    """Yields a record each from a point on; see `EpisodeSource.episodes`."""
    for file_index, record in self._files.read(start.position):
      values = self._parser.parse([record])
      for path in self._parser.absent(record):
        del values[path]
      position = self._files.position_after(file_index, record)
      yield SourceEpisode(values, record.place, position)


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


class RldsEpisodes(RecordEpisodes):
  """Reads an RLDS episode from a tf.train.Example."""

  def __init__(
    self,
    patterns: records.FilePatterns,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
  ) -> None:
    """Finds the files; see `RecordEpisodes`, and `records.rlds_specs` for the names."""
    rlds_spec = None if spec is None else records.rlds_specs(spec)
    super().__init__(patterns, rlds_spec, compression)


class TfdsSource(EpisodeSource):
  """Reads episodes by way of TFDS; images stay encoded."""

  def __init__(
    self,
    source: Any,
    split: str | None = None,
    leave_out: Callable[[str], bool] | None = None,
  ) -> None:
    """Opens the dataset; see `records.TfdsEpisodes`."""
    self._name = str(source)
    self._episodes = records.TfdsEpisodes(source, split or "train", leave_out)

  @property
  def spec(self) -> specs.TensorSpecStruct:
    """The specs that TFDS tells."""
    return self._episodes.spec

  @property
  def num_episodes(self) -> int | None:
    """The episodes of the split."""
    return self._episodes.num_episodes

  def fingerprint(self) -> dict[str, Any]:
    """Returns the data set's name, version and sizes."""
    return self._episodes.fingerprint

  def episodes(self, start: ResumePoint) -> Iterator[SourceEpisode]:
    """Yields the episodes from a point on; see `EpisodeSource.episodes`."""
    dataset = self._episodes.dataset(decode_images=False).skip(start.episode)
    for number, episode in enumerate(dataset, start.episode):
      values = {
        path: _to_array_tfds_source(value.numpy()) for path, value in episode.items()
      }
      yield SourceEpisode(values, f"episode {number} of {self._name}", (number + 1,))

  def fraction(self, position: tuple[int, ...]) -> float | None:
    """Returns how many of the episodes lie before a position."""
    total = max(self._episodes.num_episodes, 1)
    return position[0] / total if position else 0.0


def _to_array_tfds_source(value: Any) -> np.ndarray:
  if not isinstance(value, bytes):
    return np.asarray(value)
  scalar = np.empty((), object)
  scalar[()] = value
  return scalar


def shard_names(path: str, num_shards: int) -> list[str]:
  """Returns the files of a target: `path` itself where there is one shard."""
  return [path] if num_shards == 1 else records.shard_paths(path, num_shards)


def check_spec(
  path: str, spec: specs.TensorSpecStruct, num_episodes: int, num_shards: int
) -> None:
  """Checks that TFRecord files can hold the episodes.

  Args:
    path: of the file, for the error.
    spec: of the episodes.
    num_episodes: that will be written.
    num_shards: how many files.
  Raises:
    SpecError: with every spec that a record cannot hold; or a wrong number of shards.
  """
  if not 1 <= num_shards <= num_episodes:
    raise errors.ConversionError(
      f"convert: {path}: expected 1 to {num_episodes} shards for as many episodes, got "
      f"{num_shards}."
    )
  records.ExampleEncoder(record_spec(spec))


class RecordTarget(EpisodeTarget):
  """Writes shards, each of which appears when it is whole.

  Which episodes are in which shard follows from their numbers alone, so a conversion
  that was killed goes on with the first shard that is not there.
  """

  def __init__(
    self,
    path: str,
    spec: specs.TensorSpecStruct,
    num_episodes: int,
    num_shards: int = 1,
    compression: str | None = None,
  ) -> None:
    """Finds the shards that are there.

    Args:
      path: of the file; its shards are named by `records.shard_paths`.
      spec: of the episodes; a spec without a name gets its path as name.
      num_episodes: that will be written.
      num_shards: how many files.
      compression: 'GZIP', 'ZLIB' or ''; by default as the suffix says.
    """
    self._spec = record_spec(spec)
    self._names = shard_names(path, num_shards)
    self._compression = compression
    self._ends = [num_episodes * (i + 1) // num_shards for i in range(num_shards)]
    whole = [os.path.exists(name) for name in self._names]
    self._shard = whole.index(False) if False in whole else num_shards
    self._episodes = self._ends[self._shard - 1] if self._shard else 0
    self._committed = self._episodes
    self._writer: records.RecordWriter | None = None
    for name in self._names:
      _remove_leavings(name)

  @property
  def num_committed(self) -> int:
    """The episodes in finished files."""
    return self._committed

  def append(self, values: Values) -> None:
    """Writes a record, and finishes the file with its last one."""
    if self._writer is None:
      name = self._names[self._shard]
      self._writer = records.RecordWriter(name, self._spec, self._compression)
    self._writer.write(values)
    self._episodes += 1
    if self._episodes == self._ends[self._shard]:
      self._writer.close()
      self._writer = None
      self._shard += 1
      self._committed = self._episodes

  def commit(self) -> None:
    """Does nothing: a shard is committed when it is full."""

  def finish(self) -> None:
    """Completes the target: a file got its name with its last record."""
    self.close()

  def close(self) -> None:
    """Drops the file in progress."""
    if self._writer is not None:
      self._writer.discard()
      self._writer = None


def record_spec(spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the specs with a name each: that of the path where there is none."""
  return specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec(**{**leaf.fields(), "name": leaf.name or path}))
    for path, leaf in spec.items()
  )


def _remove_leavings(path: str) -> None:
  """Removes what a killed writer of this file left beside it."""
  folder, name = os.path.split(os.path.abspath(path))
  pattern = os.path.join(glob.escape(folder), f".{glob.escape(name)}.*.tmp")
  for leaving in glob.glob(pattern):
    os.remove(leaving)
