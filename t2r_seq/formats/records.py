"""Reads and writes TFRecord files, with RLDS: a record is an episode, or a step."""

from __future__ import annotations

import abc
import dataclasses
import functools
import glob
import itertools
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, records, specs
from t2r_seq.episodes import reading
from t2r_seq.episodes import splits as splits_lib
from t2r_seq.episodes.episodes import Episode, EpisodePart, EpisodeWriter, Values
from t2r_seq.episodes.registry import register_format
from t2r_seq.episodes.views import Dropped, Episodes
from t2r_seq.errors import Report
from t2r_seq.imports import tf
from t2r_seq.records.check import examine_records, find_bad_record
from t2r_seq.records.explain import data_errors
from t2r_seq.records.features import (
  IS_FIRST,
  RecordFeature,
  collect_features,
  find_flags,
  parsed_specs,
)
from t2r_seq.records.files import (
  FilePatterns,
  check_file_types,
  compression_type,
  file_split,
  files_of_split,
  get_data_format_and_filenames,
  is_tfds_folder,
  other_shards,
  shard_paths,
)
from t2r_seq.records.framing import Record, is_array_record, iterate_records
from t2r_seq.records.index import RecordIndex, read_index
from t2r_seq.records.index_file import index_path
from t2r_seq.records.protos import EXAMPLE, SEQUENCE_EXAMPLE, present_names
from t2r_seq.records.rlds import is_rlds
from t2r_seq.records.write import ExampleEncoder

# Number of records from which specs are proposed. Reading all of a large data set takes
# hours, and a record that does not fit raises an error when it is read.
_SAMPLE = 500


class RecordFiles:
  """TFRecord or ArrayRecord files, read one after the other."""

  def __init__(self, patterns: FilePatterns, compression: str | None = None) -> None:
    """Finds the files.

    Args:
      patterns: see `records.files.get_data_format_and_filenames`.
      compression: compression of all files, if the suffixes don't show it.
    Raises:
      SpecError: nothing matches.
      RecordError: a file is neither a TFRecord nor an ArrayRecord file.
    """
    _, self.names = get_data_format_and_filenames(patterns)
    self.compression = compression
    check_file_types(self.names, compression, array_records=True)
    self._sizes = [os.path.getsize(name) for name in self.names]
    self._starts = [0, *itertools.accumulate(self._sizes)]

  def fingerprint(self) -> dict[str, Any]:
    """Returns name, size and time of each file."""
    stats = [(os.path.basename(name), os.stat(name)) for name in self.names]
    return {"files": [[name, s.st_size, s.st_mtime_ns] for name, s in stats]}

  def read(self) -> Iterator[tuple[int, Record]]:
    """Yields the number of the file, and the record.

    Raises:
      RecordError: a damaged record; names file and record.
    """
    for index, name in enumerate(self.names):
      kind = compression_type(name, self.compression)
      yield from ((index, record) for record in iterate_records(name, kind))

  def fraction_done(self, file_index: int, record: Record) -> float:
    """Returns the share of the bytes up to the end of a record, 0 to 1."""
    end = min(record.offset + len(record.data), self._sizes[file_index])
    return (self._starts[file_index] + end) / max(self._starts[-1], 1)


class RecordParser:
  """Parses records by their specs; encoded images stay encoded."""

  def __init__(
    self, spec: specs.TensorSpecStruct, is_batched: bool, compression: str | None = None
  ) -> None:
    """Creates the parser.

    Args:
      spec: flat specs of one dataset.
      is_batched: several records are parsed at once, to [B, ...] leaves.
      compression: compression of the files, for a diagnosis of errors.
    Raises:
      SpecError: specs cannot be parsed; all are listed.
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
    # Traced here: TensorFlow takes the first calls of several parsers for retracing.
    traced = tf.function(parse_fn, input_signature=signature, autograph=False)
    self._parse_fn = traced.get_concrete_function()

  def parse(self, group: list[Record]) -> Values:
    """Parses records of one file, and checks the headers of their images.

    Args:
      group: the records; one unless the parser is batched.
    Returns:
      Values by path, not to be changed; absent optional paths have zeros or b''.
    Raises:
      RecordError: a record does not fit the specs; names file, record and feature.
    """
    values = self.values([record.data for record in group], lambda: group)
    self._check_images(values, group)
    return values

  def values(self, data: list[bytes], records_fn: Callable[[], list[Record]]) -> Values:
    """Parses serialized records.

    Args:
      data: a record, or a batch of them if the parser is batched.
      records_fn: returns the records with their places, for an error.
    Returns:
      Values by path, not to be changed; absent optional paths have zeros or b''.
    Raises:
      RecordError: a record cannot be parsed; names file, record and feature.
    """
    try:
      parsed = self._parse_fn(tf.constant(data if self._is_batched else data[0]))
    except data_errors() as error:
      group = records_fn()
      names = dict.fromkeys(record.filename for record in group)
      bad_record = find_bad_record(
        list(names), self._spec, compression=self._compression
      )
      if bad_record is None:
        place = group[0].place
        raise errors.RecordError(f"{place}: it cannot be parsed: {error}") from error
      raise bad_record from error
    return {path: _to_array(tensor) for path, tensor in parsed.items()}

  def _check_images(self, values: Values, group: list[Record]) -> None:
    for path, leaf in self._images.items():
      has_rows = self._is_batched or leaf.is_sequence
      images = values[path] if has_rows else values[path][None]
      misfit = specs.validation.find_misfit(images.ravel().tolist(), leaf, path, True)
      if misfit:
        index, mismatch = misfit
        row = index * len(images) // images.size
        place = group[row if self._is_batched else 0].place
        place += f", step {row}" if leaf.is_sequence else ""
        raise errors.mismatch_error(place, [mismatch], errors.RecordError)

  def absent(self, record: Record) -> frozenset[str]:
    """Returns the optional paths that a record lacks."""
    if not self._names:
      return frozenset()
    present = present_names(record.data)
    return frozenset(p for p, name in self._names.items() if name not in present)


def _to_array(tensor: tf.Tensor) -> np.ndarray:
  if tensor.dtype not in (tf.string, tf.bfloat16):
    return np.asarray(tensor)  # Without a copy.
  array = tensor.numpy()
  if isinstance(array, np.ndarray):
    return array
  scalar = np.empty((), object if isinstance(array, bytes) else None)
  scalar[()] = array
  return scalar if isinstance(array, bytes) else np.asarray(array)


def join(parts: Iterable[np.ndarray]) -> np.ndarray:
  """Concatenates arrays along their first axis; a single one is not copied."""
  arrays = list(parts)
  return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class _RecordSource(Episodes):
  """Reads record files."""

  def __init__(
    self, patterns: FilePatterns, compression: str | None, num_episodes: int | None
  ) -> None:
    self._files = RecordFiles(patterns, compression)
    self._compression = compression
    self._num_episodes = num_episodes
    parts = [patterns] if isinstance(patterns, (str, os.PathLike)) else patterns
    self.path = " ".join(os.fspath(part) for part in parts)
    self.notes: list[str] = []

  @property
  def num_episodes(self) -> int | None:
    """The number of episodes that the caller gave, or None."""
    return self._num_episodes

  def _specs_of(self, spec: specs.TensorSpecStruct | None) -> specs.TensorSpecStruct:
    """Returns the specs to parse; None: proposes some from a sample of the records."""
    if spec is None:
      summary = records.inspect_records(
        self._files.names, _SAMPLE, compression=self._compression
      )
      spec = records.propose_spec(summary)
      seen = "" if summary.is_complete else f" ({summary.num_records} records of them)"
      self.notes.append(f"The specs were proposed from the files{seen}: look at them.")
      self.notes += summary.describe_odd_values()
      self.notes += [
        f"'{path}' has different numbers of values in records: shorter ones are filled "
        f"up with {leaf.varlen_default_value!r}, which is not data. Name it in a "
        f"--spec, or leave it out: --drop {path}."
        for path, leaf in spec.items()
        if leaf.varlen_default_value is not None and leaf.dtype != tf.string
      ]
    return parsed_specs(spec)

  def fingerprint(self) -> dict[str, Any]:
    return self._files.fingerprint()

  def iterate(self, start: int = 0) -> Iterator[Episode]:
    """Yields the episodes from number `start`; see `Episodes.iterate`.

    Those before it are read, too: only reading shows where an episode begins.
    """
    return itertools.islice(self._read(), start, None)

  @abc.abstractmethod
  def _read(self) -> Iterator[Episode]:
    """Yields all episodes."""


# Start of the paths of flags that no spec reads.
_UNREAD = "flags of the record"
# Maximum bytes of records that are parsed in one call.
_PARSED_BYTES = 2**18
INDEX_OPTIONS = (None, "auto", "require")


class RecordEpisodes(_RecordSource):
  """Reads files whose records are episodes."""

  def __init__(
    self,
    patterns: FilePatterns,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
    dropped: Dropped | None = None,
    index: RecordIndex | None = None,
  ) -> None:
    """Finds the files.

    Args:
      patterns: see `records.files.get_data_format_and_filenames`.
      spec: flat specs of the records; None proposes some from a sample.
      compression: compression of all files, if the suffixes don't show it.
      dropped: paths to leave out; None for none. Flags of episode boundaries among them
        are not checked.
      index: index of the files, for lengths and random access; None reads in order.
    Raises:
      SpecError: no file, a spec that cannot be parsed, or no spec is a sequence.
    """
    super().__init__(patterns, compression, None)
    self._stored = self._specs_of(spec)
    self.spec = _as_episodes(self._stored)
    self._sequences = [path for path, leaf in self.spec.items() if leaf.is_sequence]
    if not self._sequences:
      raise reading.fault(
        self._files.names[0],
        "sequences, because a record is an episode",
        f"none in {errors.listing(self.spec)}",
        "If a record is a step, say how episodes end: --episode_key, --last_key or "
        "--episode_per_file.",
      )
    dropped = dropped or Dropped()
    unread = {
      name.removeprefix("steps/"): leaf
      for name, leaf in self._find_flags().items()
      if not dropped.has(name.removeprefix("steps/"))
    }
    # Flags that no spec reads are checked, too, under separate paths.
    self._unread = {f"{_UNREAD}/{path}": leaf for path, leaf in unread.items()}
    parsed = specs.TensorSpecStruct({**self._stored, **self._unread})
    self._flags = [
      feature
      for feature in _features_of(parsed)
      if feature.edge and not dropped.has(_shown(feature))
    ]
    self._parsed, self._index = parsed, index
    self._parsers: dict[tuple[str, ...], RecordParser] = {}
    if index is not None:
      steps = index.num_steps(self._stored)
      self.records = np.flatnonzero(steps)
      self.lengths = steps[self.records]
      self.splits = splits_lib.renumber(splits_of(index), self.records)
      self.read_bytes = int(index.lengths.max(initial=0))

  @functools.cached_property
  def _parser(self) -> RecordParser:
    """Parser of one record; made at the first use, as tracing takes time."""
    return RecordParser(self._parsed, False, self._compression)

  @property
  def num_episodes(self) -> int | None:
    return None if self.lengths is None else len(self.lengths)

  def place(self, episode: int) -> str:
    assert self._index is not None
    return self._index.place(int(self.records[episode]))

  def read(
    self,
    episode: int,
    paths: Collection[str] | None = None,
    start: int = 0,
    stop: int | None = None,
    out: Mapping[str, np.ndarray] | None = None,
  ) -> Values:
    """Reads an episode by the index; see `Episodes.read`."""
    del out
    if self._index is None:
      return super().read(episode, paths, start, stop)
    (values,) = self.read_many([EpisodePart(episode, start, stop)], paths)
    names = {path: self._stored[path].name for path in values}
    if any(self._stored[path].is_optional for path in values):
      data = self._index.read(int(self.records[episode]))
      present = present_names(data)
      values = {path: v for path, v in values.items() if names[path] in present}
    return values

  def read_many(
    self, parts: Iterable[EpisodePart], paths: Collection[str] | None = None
  ) -> Iterator[Values]:
    """Reads episodes, some in one call of the parser; see `Episodes.read_many`.

    Optional paths that a record lacks have zeros or empty strings.
    """
    assert self._index is not None and self.lengths is not None
    key = tuple(self.spec if paths is None else paths)
    if key not in self._parsers:
      parsed = specs.TensorSpecStruct({path: self._parsed[path] for path in key})
      parsed.update({flag.path: self._parsed[flag.path] for flag in self._flags})
      self._parsers[key] = RecordParser(parsed, True, self._compression)
    parser, index = self._parsers[key], self._index
    for group in self._groups(list(parts)):
      numbers = self.records[[part.episode for part in group]]
      values = parser.values(
        index.read_many(numbers), functools.partial(index.records, numbers)
      )
      for row, part in enumerate(group):
        length = int(self.lengths[part.episode])
        columns = {
          path: array[row, :length] if self._parsed[path].is_sequence else array[row]
          for path, array in values.items()
        }
        if self._flags:
          self._check_whole(columns, numbers[row])
        yield {
          path: columns[path][part.start : part.stop]
          if self._parsed[path].is_sequence
          else columns[path]
          for path in key
        }

  def _check_whole(self, values: Values, number: int) -> None:
    """Raises RecordError if an episode begins or ends within a record."""
    assert self._index is not None
    try:
      _check_flags(self._flags, values, self._index.place(number))
    except errors.ConversionError as error:
      (record,) = self._index.records([number])
      raise find_bad_record(record.filename, self._parsed) or error from None

  def _groups(self, parts: list[EpisodePart]) -> Iterator[list[EpisodePart]]:
    """Yields parts of several records that are small enough to be parsed at once."""
    assert self._index is not None
    group: list[EpisodePart] = []
    for part in parts:
      size = int(self._index.lengths[self.records[part.episode]])
      if group and (len(group) + 1) * size > _PARSED_BYTES:
        yield group
        group = []
      group.append(part)
    if group:
      yield group

  def _find_flags(self) -> specs.TensorSpecStruct:
    """Returns specs of the flags in the first record that no spec reads."""
    first = next(self._files.read(), None)
    if first is None:
      return specs.TensorSpecStruct()
    return find_flags(first[1].data, _features_of(self._stored))

  def _read(self) -> Iterator[Episode]:
    unset: dict[str, str] = {}
    whole = ""
    empty: list[str] = []
    for file_index, record in self._files.read():
      values = self._parser.parse([record])
      if not any(len(values[path]) for path in self._sequences):
        empty.append(record.place)
        continue
      for path in self._parser.absent(record):
        del values[path]
      flags = [feature for feature in self._flags if feature.path in values]
      missing = _check_flags(flags, values, record.place)
      firsts = [_shown(feature) for feature in flags if feature.edge == IS_FIRST]
      if {*firsts} - {*missing}:
        whole = whole or record.place
      for path in {*missing} - {*unset}:
        unset[path] = record.place
        self.notes.append(
          f"'{path}' is set in no step of {record.place}: if episodes go on from "
          "record to record, convert again with --first_key or --last_key, which join "
          "them."
        )
      if part := next((name for name in firsts if whole and name in unset), ""):
        raise reading.fault(
          f"{unset[part]}: {part}",
          f"it to be set in step 0, as in {whole}, because a record is an episode",
          "a part of one",
          "Join the records of an episode with --first_key and the name of this "
          f"feature; if it means something else: --drop {part}.",
        )
      for path in self._unread:
        values.pop(path, None)
      yield Episode(values, record.place, self._files.fraction_done(file_index, record))
    self.notes += reading.left_out(empty)


def check_index_option(where: str, option: Any) -> str | None:
  """Returns the option; raises SpecError unless it is one of INDEX_OPTIONS."""
  if option in INDEX_OPTIONS:
    return option
  raise errors.SpecError(
    f"{where}: index: expected None, 'auto' or 'require', got {option!r}."
    f"{errors.nearest(str(option), ['auto', 'require'])}"
  )


def find_index(
  where: str, option: str | None, names: Sequence[str]
) -> RecordIndex | None:
  """Reads the index of files, or returns None if it is not used.

  Args:
    where: the reader, for messages.
    option: None uses no index, 'auto' the index if every file has one and none is
      compressed; 'require' raises unless every file has one and none is compressed.
    names: names of the files.
  Raises:
    SpecError: no such option.
    RecordError: an index is stale or damaged; or 'require' is not met.
  """
  check_index_option(where, option)
  is_indexed = all(
    os.path.exists(index_path(name)) and not compression_type(name) for name in names
  )
  if option is None or (option == "auto" and not is_indexed):
    return None
  index = read_index(names)
  index.require_random_access()
  return index


def splits_of(index: RecordIndex) -> dict[str, np.ndarray]:
  """Returns the numbers of records by the split that their files are named after."""
  splits: dict[str, list[np.ndarray]] = {}
  for name, file, end in zip(
    index.filenames, index.files, index.record_ends, strict=True
  ):
    if split := file_split(name):
      splits.setdefault(split, []).append(np.arange(end - file.num_records, end))
  return {split: np.concatenate(numbers) for split, numbers in splits.items()}


def _as_episodes(spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the specs of episodes, without how records store their steps."""
  return specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec(**{**leaf.fields(), "is_concatenated": False}))
    for path, leaf in spec.items()
  )


def _features_of(spec: specs.TensorSpecStruct) -> list[RecordFeature]:
  (features,) = collect_features({"": spec}).values()
  return features


def _shown(feature: RecordFeature) -> str:
  """Returns the path of a flag for messages, without `_UNREAD`."""
  return feature.path.removeprefix(f"{_UNREAD}/")


def _check_flags(
  features: Sequence[RecordFeature], values: Values, place: str
) -> list[str]:
  """Checks that no episode begins or ends within a record.

  Returns:
    The paths whose flag is not set: the record may be a part of an episode.
  """
  unset = []
  for feature in features:
    path, flags = _shown(feature), values[feature.path]
    at = 0 if feature.edge == IS_FIRST else len(flags) - 1
    flagged = np.flatnonzero(flags)  # One value per step, of any shape.
    if (flagged != at).any():
      option = f"--{feature.edge.removeprefix('is_')}_key {feature.name}"
      want = f"it to be set in step {at} of {len(flags)} alone"
      raise reading.fault(
        f"{place}: {path}",
        f"{want}, because a record is an episode",
        f"it in step {flagged[flagged != at][0]}",
        f"Cut the records into episodes with {option}; if it means something else: "
        f"--drop {path}.",
      )
    if not len(flagged):
      unset.append(path)
  return unset


# Steps that are parsed in one call.
_BATCH = 256
# Path of the key if no spec reads it.
_KEY_PATH = "key of the episodes"


@dataclasses.dataclass(frozen=True)
class EpisodeBounds:
  """How episode boundaries are detected: at most one attribute is set.

  Attributes:
    episode_key: a feature whose value is the same in all steps of an episode, and
      differs between episodes.
    first_key: a feature that is 1 in the first step of an episode and 0 in the others;
      or 'name=value' for another value.
    last_key: the same for the last step.
    is_file: a file is an episode.
  """

  episode_key: str | None = None
  first_key: str | None = None
  last_key: str | None = None
  is_file: bool = False

  def __bool__(self) -> bool:
    return bool(self.key or self.is_file)

  @property
  def key(self) -> str | None:
    """Name of the feature that has the boundaries; None without one."""
    return self.episode_key or self._flag.rpartition("=")[0] or self._flag or None

  @property
  def _flag(self) -> str:
    return self.first_key or self.last_key or ""

  def flags(self, values: np.ndarray, place: str) -> np.ndarray:
    """Returns whether the first or last key is set in each step, bool [T]."""
    option = "--first_key" if self.first_key else "--last_key"
    where, hint = f"{place}: {self.key}", f"Say which value it is: {option} "
    hint += f"'{self.key}=VALUE'."
    if values.size != len(values):
      raise reading.fault(where, "one value per step", f"shape {values.shape[1:]}")
    values = values.reshape(len(values))
    _, is_given, text = self._flag.rpartition("=")
    if is_given and values.dtype == object:
      return np.asarray([value == text.encode() for value in values], bool)
    if is_given:
      try:
        return values == float(text)
      except ValueError:
        want = f"a value of {option} that is a number, as the feature is"
        raise reading.fault(where, want, f"'{text}'") from None
    if values.dtype == object:
      raise reading.fault(where, "0 or 1", f"bytes {values[0]!r}", hint)
    others = values[(values != 0) & (values != 1)]
    if others.size:
      raise reading.fault(where, "0 or 1", others[0], hint)
    return values != 0


@dataclasses.dataclass
class _Part:
  """Consecutive steps of one episode.

  Attributes:
    values: [n, ...] by path.
    place: place of the first record.
    last_place: place of the last record.
    num_steps: n.
    absent: the optional paths that each record lacks.
    label: value of the episode key.
    is_first: whether an episode begins with the first step.
    is_last: whether the episode ends with the last step.
    fraction_done: share of the files that was read with these steps, 0 to 1.
  """

  values: Values
  place: str
  last_place: str
  num_steps: int
  absent: list[frozenset[str]]
  label: str | None
  is_first: bool
  is_last: bool
  fraction_done: float


class RecordSteps(_RecordSource):
  """Reads files whose records are steps; joins consecutive ones to episodes.

  Records that are sequences of steps are split and joined, too.
  """

  def __init__(
    self,
    patterns: FilePatterns,
    bounds: EpisodeBounds,
    spec: specs.TensorSpecStruct | None = None,
    compression: str | None = None,
    num_episodes: int | None = None,
  ) -> None:
    """Finds the files, and reads the first record for the type of the key.

    Args:
      patterns: see `records.files.get_data_format_and_filenames`.
      bounds: how episode boundaries are detected.
      spec: flat specs of an episode: sequences are read from each step; values of other
        paths must be equal in all steps. If no spec is a sequence, they describe a
        step: all but the episode key become sequences. None: specs are proposed from a
        sample of the records.
      compression: compression of all files, if the suffixes don't show it.
      num_episodes: number of episodes, if known.
    Raises:
      SpecError: no file, a spec that cannot be parsed, or a damaged first record.
      ConversionError: the first record lacks the key.
    """
    super().__init__(patterns, compression, num_episodes)
    self._bounds = bounds
    stored = _episode_spec(self._specs_of(spec), bounds.episode_key)
    self._is_rlds = any(leaf.is_concatenated for leaf in stored.values())
    self.spec = _as_episodes(stored)
    steps = specs.TensorSpecStruct(
      (path, _with_sequence(leaf, False)) for path, leaf in stored.items()
    )
    self._key_spec, is_step = self._find_key()
    parsed = steps if is_step else stored
    # The parser also reads the key: by its own spec, or as `_KEY_PATH`.
    self._key_path = next(
      (p for p, leaf in parsed.items() if leaf.name == bounds.key), ""
    )
    if self._key_spec is not None and not self._key_path:
      self._key_path = _KEY_PATH
      parsed = specs.TensorSpecStruct({**parsed, _KEY_PATH: self._key_spec})
    self._parser = RecordParser(parsed, is_step, compression)
    self._is_step = is_step

  def _read(self) -> Iterator[Episode]:
    bounds, labels = self._bounds, set[str]()
    open_parts: list[_Part] = []
    self._empty: list[str] = []
    has_ends, num_steps = False, 0
    cut_off = "'{}' is not set in {}. The part of it that is there was converted."
    for part in self._parts():
      if bounds.first_key and not (part.is_first or num_steps):
        note = cut_off.format(bounds.key, part.place)
        self.notes.append(f"The files begin within an episode: {note}")
      num_steps += part.num_steps
      has_ends |= part.is_first or part.is_last
      if open_parts and (part.is_first or part.label != open_parts[-1].label):
        yield self._episode(open_parts, labels)
        open_parts = []
      open_parts.append(part)
      if part.is_last:
        yield self._episode(open_parts, labels)
        open_parts = []
    is_flagged = bounds.first_key or bounds.last_key
    if is_flagged and num_steps and not has_ends:
      place, got = f"{self._files.names[0]}: {bounds.key}", f"none in {num_steps} steps"
      hint = "Look at its values, or choose another key."
      raise reading.fault(place, "it to be set in some step", got, hint)
    if open_parts:
      if bounds.last_key:
        note = cut_off.format(bounds.key, open_parts[-1].last_place)
        self.notes.append(f"The files end within an episode: {note}")
      yield self._episode(open_parts, labels)
    self.notes += reading.left_out(self._empty)

  def _parts(self) -> Iterator[_Part]:
    """Reads groups of records and cuts them where episodes end."""
    bounds = self._bounds
    for file_index, group, is_file_end in self._groups():
      absent = [self._parser.absent(record) for record in group]
      values = self._parser.parse(group)
      count = len(group)
      if not self._is_step:
        count = self._num_steps(values, group[0], absent[0])
      if not count:
        self._empty.append(group[0].place)
      labels = None
      is_first, is_last = np.zeros((2, count), bool)
      if bounds.episode_key:
        labels = _to_labels(values[self._key_path])
        is_cut = np.asarray([a != b for a, b in itertools.pairwise(labels)], bool)
      else:
        if bounds.first_key:
          is_first = bounds.flags(values[self._key_path], group[0].place)
        elif bounds.last_key:
          is_last = bounds.flags(values[self._key_path], group[0].place)
        is_cut = is_first[1:] | is_last[:-1]
      if bounds.is_file and is_file_end:
        is_last[-1:] = True
      ends = [*(np.flatnonzero(is_cut) + 1).tolist(), count] if count else []
      for begin, stop in itertools.pairwise([0, *ends]):
        rows = slice(begin, stop)
        part_records = group[rows] if self._is_step else group
        yield _Part(
          self._cut(values, rows),
          part_records[0].place,
          part_records[-1].place,
          stop - begin,
          absent[rows] if self._is_step else absent,
          str(labels[begin]) if labels else None,
          bool(is_first[begin]),
          bool(is_last[stop - 1]),
          self._files.fraction_done(file_index, part_records[-1]),
        )

  def _num_steps(self, values: Values, record: Record, absent: frozenset[str]) -> int:
    """Returns the number of steps of a record of sequences."""
    lengths = {
      path: len(values[path])
      for path, leaf in self.spec.items()
      if leaf.is_sequence and path not in absent
    }
    if self._key_path not in absent:
      lengths.setdefault(self._key_path, len(values[self._key_path]))
    if len(set(lengths.values())) > 1:
      raise reading.fault(record.place, "sequences of one length", lengths)
    return next(iter(lengths.values()))

  def _cut(self, values: Values, rows: slice) -> Values:
    """Returns some steps; other paths of a record of sequences have one row."""
    return {
      path: values[path][rows]
      if self._is_step or leaf.is_sequence
      else values[path][None]
      for path, leaf in self.spec.items()
    }

  def _groups(self) -> Iterator[tuple[int, list[Record], bool]]:
    """Yields the number of a file, some of its records, and whether they end it."""
    group: list[Record] = []
    last_file = 0
    for file_index, record in self._files.read():
      is_new = bool(group) and file_index != last_file
      if is_new or len(group) == (_BATCH if self._is_step else 1):
        yield last_file, group, is_new
        group = []
      last_file = file_index
      if self._is_step and record.contents().steps:
        raise reading.fault(
          record.place,
          f"a step, a {EXAMPLE}, as the first record is one",
          f"a {SEQUENCE_EXAMPLE}, which has several",
          "Convert the files of one kind apart from those of the other.",
        )
      group.append(record)
    if group:
      yield last_file, group, True

  def _episode(self, parts: list[_Part], labels: set[str]) -> Episode:
    """Joins the parts of an episode."""
    first, last = parts[0], parts[-1]
    count = sum(part.num_steps for part in parts)
    place = f"{count} steps from {first.place}"
    if first.label is not None:
      key = self._bounds.episode_key
      place = f"{key} {first.label}, {place}"
      if first.label in labels:
        want = "the steps of an episode one after the other"
        hint = "Sort the records, or choose another --episode_key."
        raise reading.fault(place, want, f"'{key}' {first.label} a second time", hint)
      labels.add(first.label)
    values: Values = {}
    for path, leaf in self.spec.items():
      if self._is_absent(parts, path, place):
        continue
      steps = join(part.values[path] for part in parts)
      values[path] = steps if leaf.is_sequence else _constant(path, steps, place)
    return Episode(values, place, last.fraction_done)

  def _is_absent(self, parts: list[_Part], path: str, place: str) -> bool:
    """Whether no step has an optional path; raises if only some steps have it."""
    lacks = [path in absent for part in parts for absent in part.absent]
    if any(lacks) and not all(lacks):
      want = "it in every step of the episode or in none"
      got = f"{len(lacks) - sum(lacks)} of {len(lacks)} steps with it"
      raise reading.fault(f"{place}: {path}", want, got, reading.leave_out(path))
    return all(lacks)

  def _find_key(self) -> tuple[specs.ExtendedTensorSpec | None, bool]:
    """Returns the key's spec in the first record or None, and if records are steps."""
    key = self._bounds.key
    first = next(self._files.read(), None) if key else None
    if key is None or first is None:
      return None, True
    _, record = first
    contents = record.contents()
    in_steps = {name: steps[0] for name, steps in contents.steps.items() if steps}
    feature = contents.context.get(key, in_steps.get(key))
    kind = feature.WhichOneof("kind") if feature else None
    if kind is None:
      names = [*contents.context, *in_steps]
      want = f"the feature '{key}', which separates the episodes"
      near = errors.nearest(key, names).strip()
      raise reading.fault(record.place, want, errors.listing(names), near)
    dtypes = {"int64_list": tf.int64, "float_list": tf.float32}
    # In RLDS a feature of the context has the values of all steps.
    is_step = key in contents.context and not self._is_rlds
    leaf = specs.ExtendedTensorSpec(
      (),
      dtypes.get(str(kind), tf.string),
      key,
      is_sequence=not is_step,
      is_concatenated=self._is_rlds,
    )
    return leaf, is_step


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
  """Returns the specs of an episode; specs of a step become sequences."""
  if any(leaf.is_sequence for leaf in spec.values()):
    return spec
  return specs.TensorSpecStruct(
    (path, _with_sequence(leaf, leaf.name != episode_key))
    for path, leaf in spec.items()
  )


def _constant(path: str, steps: np.ndarray, place: str) -> np.ndarray:
  """Returns the value of all steps; raises ConversionError if they differ."""
  for step in range(len(steps)):
    if not _is_same(steps[step], steps[0]):
      want = "the same value in all steps, because it is not a sequence"
      hint = "Declare is_sequence=True."
      raise reading.fault(f"{place}: {path}", want, f"another at step {step}", hint)
  first = np.empty(steps.shape[1:], steps.dtype)
  first[...] = steps[0]
  return first


def _is_same(value: Any, other: Any) -> bool:
  if isinstance(value, bytes):
    return value == other
  if np.asarray(value).dtype == object:
    return bool(np.array_equal(value, other))
  return np.asarray(value).tobytes() == np.asarray(other).tobytes()


def open_records(
  path: FilePatterns,
  dropped: Dropped | None = None,
  spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  split: str | None = None,
  episode_key: str | None = None,
  first_key: str | None = None,
  last_key: str | None = None,
  episode_per_file: bool = False,
  index: str | None = None,
) -> Episodes:
  """Opens TFRecord files; a record is an episode unless a key marks their ends.

  Args:
    path: patterns; see `records.files.get_data_format_and_filenames`.
    dropped: paths to leave out; None for none.
    spec: flat specs of the records; None proposes them from a sample of the records.
    compression: 'GZIP', 'ZLIB' or '', if the suffixes of the files don't show it.
    split: reads only the files with this split in their names; None reads all.
    episode_key: records are steps; this feature's value changes from episode to
      episode.
    first_key: this feature is 1 in the first step of an episode, or 'name=value' for
      another value; records are steps, or sequences that are cut and joined.
    last_key: the same for the last step.
    episode_per_file: records are steps, and each file is an episode.
    index: 'require' gives lengths and random access by the files' index
      (`t2r_seq index`); 'auto' does if every file has one and none is compressed; None
      reads in order. With a key 'auto' reads in order, and 'require' is an error.
  Raises:
    SpecError: no file or split, a spec that cannot be parsed, or an invalid `index`.
    ConversionError: two keys, a record without the key, or no spec is a sequence.
    RecordError: a file or an index is damaged, or 'require' is not met.
  """
  keys = {
    "episode_key": episode_key,
    "first_key": first_key,
    "last_key": last_key,
    "episode_per_file": episode_per_file,
  }
  given = [name for name, value in keys.items() if value]
  if len(given) > 1:
    raise reading.fault(
      str(path), f"one of {errors.listing(keys)}", errors.listing(given)
    )
  if split is not None:
    _, names = get_data_format_and_filenames(path)
    path = ",".join(files_of_split(f"open_episodes: {path}", names, split))
  flat = None
  if spec is not None:
    flat = specs.TensorSpecStruct(specs.flatten_spec_structure(spec))
    flat = specs.TensorSpecStruct(dropped.filter(flat)) if dropped else flat
  bounds = EpisodeBounds(episode_key, first_key, last_key, episode_per_file)
  if bounds and index == "require":
    raise errors.SpecError(
      f"read: {path}: index: expected None where steps are joined to episodes, got "
      "'require'. An index has the lengths of records. Convert them: t2r_seq convert."
    )
  if bounds:
    return RecordSteps(path, bounds, flat, compression)
  _, names = get_data_format_and_filenames(path)
  # Specs without a name are refused below, with their paths.
  if flat and all(leaf.name for leaf in flat.values()) and _is_rlds(path, compression):
    flat = records.rlds_specs(flat)
  index_file = find_index(f"read: {path}", index, names)
  return RecordEpisodes(path, flat, compression, dropped, index_file)


def _is_rlds(path: FilePatterns, compression: str | None) -> bool:
  first = next(RecordFiles(path, compression).read(), None)
  return first is not None and is_rlds(first[1].contents())


class RecordEpisodesWriter(EpisodeWriter):
  """Writes shards, each of which appears when it is complete.

  The number of an episode determines its shard, so a killed conversion resumes with the
  first missing shard.
  """

  def __init__(
    self,
    path: str,
    episodes: Episodes,
    num_shards: int = 1,
    compression: str | None = None,
  ) -> None:
    """Finds the shards that are complete.

    Args:
      path: path of the file; its shards are named by `shard_paths`.
      episodes: episodes to write; a spec without a name gets its path as name. If their
        number is unknown and there are several shards, all are read once to count them.
      num_shards: number of files.
      compression: 'GZIP', 'ZLIB' or ''; None goes by the suffix.
    Raises:
      SpecError: a record cannot hold a spec; all are listed.
      ConversionError: `num_shards` is not between 1 and the number of episodes, or
        other shards of this name exist.
    """
    self._spec = record_spec(episodes.spec)
    ExampleEncoder(self._spec)
    self._names = self.files(path, num_shards)
    if others := other_shards(path, self._names):
      raise errors.ConversionError(
        f"write: {path}: expected no other files of that name, got "
        f"{errors.listing(others, limit=5)}, which patterns would read along with "
        "the new ones. Delete them, or choose another destination."
      )
    count = episodes.num_episodes
    if count is None and num_shards > 1:
      count = sum(1 for _ in episodes)
    if count is not None and not 1 <= num_shards <= count:
      raise errors.ConversionError(
        f"write: {path}: expected 1 to {count} shards for as many episodes, got "
        f"{num_shards}."
      )
    # Without a number there is one shard, which `finish` completes.
    self._ends = [(count or 0) * (i + 1) // num_shards for i in range(num_shards)]
    if count is None:
      self._ends = [sys.maxsize]
    self._compression = compression
    whole = [os.path.exists(name) for name in self._names]
    self._shard = whole.index(False) if False in whole else num_shards
    self._episodes = self._ends[self._shard - 1] if self._shard else 0
    self._committed = self._episodes
    self._writer: records.RecordWriter | None = None
    for name in self._names:
      _remove_leftovers(name)

  @classmethod
  def files(cls, path: str, num_shards: int = 1, **options: Any) -> list[str]:
    """Returns the shards: `path` itself if there is one."""
    del options
    return [path] if num_shards <= 1 else shard_paths(path, num_shards)

  @property
  def num_committed(self) -> int:
    """The episodes in complete files."""
    return self._committed

  def append(self, values: Values) -> None:
    """Writes a record; completes the file if it was the last one of its shard."""
    if self._writer is None:
      name = self._names[self._shard]
      self._writer = records.RecordWriter(name, self._spec, self._compression)
    self._writer.write(values)
    self._episodes += 1
    if self._episodes == self._ends[self._shard]:
      self._complete()

  def _complete(self) -> None:
    if self._writer is not None:
      self._writer.close()
      self._writer = None
      self._shard += 1
      self._committed = self._episodes

  def finish(self) -> None:
    self._complete()

  def close(self) -> None:
    if self._writer is not None:
      self._writer.discard()
      self._writer = None


def record_spec(spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
  """Returns the specs with names: the path if a spec has no name."""
  return specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec(**{**leaf.fields(), "name": leaf.name or path}))
    for path, leaf in spec.items()
  )


def _remove_leftovers(path: str) -> None:
  """Removes temporary files of a killed writer of this file."""
  folder, name = os.path.split(os.path.abspath(path))
  pattern = os.path.join(glob.escape(folder), f".{glob.escape(name)}.*.tmp")
  for leftover in glob.glob(pattern):
    os.remove(leftover)


def check_records(
  path: FilePatterns,
  spec: specs.SpecStructure | None,
  label_spec: specs.SpecStructure | None,
  values: Mapping[str, Any],
  split: str | None = None,
  compression: str | None = None,
  **joined: Any,
) -> Report | None:
  """Checks files record by record; see `examine_records`.

  Returns None, so that the opened episodes are checked instead, if options join records
  to episodes, and for ArrayRecord files, whose bytes only their library can check.
  """
  names = get_data_format_and_filenames(path)[1]
  if any(joined.values()) or is_array_record(names[0]):
    return None
  if split is not None:
    names = files_of_split(f"check: {path}", names, split)
  return examine_records(names, spec, label_spec, compression, **values)


register_format(
  "tfrecord",
  suffixes=(".tfrecord", ".tfrecord.gz", ".tfrecords"),
  recognises=lambda path: os.path.isfile(path) or is_tfds_folder(path),
  description="TFRecord files",
  writer=RecordEpisodesWriter,
  splits_by_file=True,
  check=check_records,
)(open_records)


@register_format("rlds", splits_by_file=True, check=check_records)
def open_rlds(
  path: FilePatterns,
  dropped: Dropped | None = None,
  spec: specs.SpecStructure | None = None,
  compression: str | None = None,
  split: str | None = None,
  first_key: str | None = None,
  last_key: str | None = None,
  index: str | None = None,
) -> Episodes:
  """Opens RLDS files, and adds RLDS's prefix 'steps/' to the names of specs.

  The format 'tfrecord' detects RLDS and does the same, unless a spec has no name or a
  key is given.
  """
  if spec is not None:
    spec = records.rlds_specs(spec)
  return open_records(
    path,
    dropped,
    spec,
    compression,
    split,
    first_key=first_key,
    last_key=last_key,
    index=index,
  )
