"""Finds, reads, parses, counts and streams the records of TFRecord files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.data import pool, streams
from t2r_seq.data.episode_pools import element_spec
from t2r_seq.data.input_generator import InputReport
from t2r_seq.data.plan import Plan, permute_positions
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.episodes.splits import choose_episodes
from t2r_seq.records import framing
from t2r_seq.records import parse as records_parse
from t2r_seq.records.features import (
  IS_FIRST,
  collect_features,
  cut_hint,
  find_flags,
  set_flags,
)
from t2r_seq.records.files import (
  compression_type,
  file_split,
  files_of_split,
  get_data_format_and_filenames,
)
from t2r_seq.records.images import DecodeImages
from t2r_seq.records.protos import RecordContents, present_names
from t2r_seq.windows.cut import WindowGrid, too_short_error
from t2r_seq.windows.dataset import WindowReport
from t2r_seq.windows.reader import WindowReader
from t2r_seq.windows.times import stamps_error

_no_autograph = tf.autograph.experimental.do_not_convert
FilesByKey = dict[str, list[str]]
ParseFn = Callable[[tf.Tensor], Any]
POLICIES = ("raise", "skip")
# Short episodes are kept in chunks: a step of a stream costs as much as one of them.
_CHUNK_BYTES, _MAX_CHUNK = 1 << 18, 16
# Number of records whose flags show whether an episode continues in the next record.
NUM_LOOKED_AT = 8


UNEVEN = (
  "expected datasets with the same number of records, got one that ends before another."
)


def find_files(file_patterns: Any, spec_structure: Any) -> FilesByKey:
  """Finds the files of each dataset.

  Args:
    file_patterns: a pattern, a comma-separated string or list of them; or a mapping of
      dataset_key to these.
    spec_structure: the specs to read; the mapping must have their dataset_keys. Its
      other keys are ignored, with a warning.
  Returns:
    Files by dataset_key, in the order of the patterns; those of a pattern are sorted.
  Raises:
    SpecError: a pattern matches no file, or a dataset_key has no patterns.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  paths_by_key: dict[str, str] = {}
  for path, spec in flat.items():
    paths_by_key.setdefault(spec.dataset_key, path)
  if not isinstance(file_patterns, Mapping):
    if len(paths_by_key) == 1:
      file_patterns = {next(iter(paths_by_key)): file_patterns}
    else:
      file_patterns = {"": file_patterns}
  mismatches = [
    errors.Mismatch(
      f"{path} (dataset_key {key!r})",
      "file patterns for its dataset_key",
      errors.listing(repr(given) for given in file_patterns),
      errors.nearest(key, file_patterns).strip(),
    )
    for key, path in paths_by_key.items()
    if key not in file_patterns
  ]
  if mismatches:
    raise errors.mismatch_error("file_patterns", mismatches)
  unused = [key for key in file_patterns if key not in paths_by_key]
  if unused:
    logging.warning("No spec reads the datasets %s.", errors.listing(unused))
  return {
    key: get_data_format_and_filenames(patterns)[1]
    for key, patterns in file_patterns.items()
    if key in paths_by_key
  }


def choose_files(where: str, files: FilesByKey, split: str | None) -> FilesByKey:
  """Selects the files of a split, by their names; None for all.

  Raises:
    SpecError: a dataset has no such split.
  """
  if split is None:
    return files
  return {key: files_of_split(where, names, split) for key, names in files.items()}


def splits_of_files(names: list[str], counts: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the numbers of the records of each split that file names have."""
  ends = np.cumsum(counts)
  by_split: dict[str, list[np.ndarray]] = {}
  for name, end, count in zip(names, ends, counts, strict=True):
    if split := file_split(name):
      by_split.setdefault(split, []).append(np.arange(end - count, end))
  return {split: np.concatenate(parts) for split, parts in by_split.items()}


class ChosenRecords:
  """Some records of files, by their numbers, counted through all files in order.

  Attributes:
    count: number of records.
  """

  def __init__(
    self, where: str, files: FilesByKey, episodes: Episodes, split: str | None
  ) -> None:
    """Counts the records of all files, by reading them.

    Args:
      where: name of the generator and its files, for messages.
      files: file names by dataset_key, with those of other splits.
      episodes: numbers, or a file that lists them.
      split: split of the files; None for any.
    Raises:
      SpecError: a number has no record, or no record is left.
    """
    starts: list[np.ndarray] = []
    chosen: Any = None
    for names in files.values():
      counts = np.array([count_records({"": [name]}) for name in names], np.int64)
      starts.append(np.cumsum(counts) - counts)
      if chosen is None:
        num_records = int(counts.sum())
        splits = splits_of_files(names, counts) if split is not None else None
        chosen = choose_episodes(where, num_records, episodes, split, splits)
    self.count = len(chosen)
    self._keep = np.isin(np.arange(num_records), chosen)
    self._names = [name for names in files.values() for name in names]
    self._starts = np.concatenate(starts)

  def read_file(self, filename: Any, compression: Any) -> tf.data.Dataset:
    """Reads the chosen records of one file; see `records.record_dataset`."""
    place = tf.argmax(tf.equal(tf.constant(self._names), filename))
    start = tf.gather(tf.constant(self._starts, tf.int64), place)
    # A zipped dataset may be longer than the first one; reading reports that.
    keep = tf.constant(np.append(self._keep, False))
    last = tf.constant(len(self._keep), tf.int64)
    numbered = tf.data.TFRecordDataset(filename, compression).enumerate(start)
    kept = numbered.filter(
      _no_autograph(lambda number, _: tf.gather(keep, tf.minimum(number, last)))
    )
    return kept.map(_no_autograph(lambda _, record: record))


def find_cause(
  where: str, files: FilesByKey, error: Exception
) -> errors.SpecError | None:
  """Returns the cause of TensorFlow's error, unless the bytes of a record are.

  Causes are: time stamps are wrong, one dataset ended before another, all files have
  become empty or their records bad, or a file is no longer there.

  Args:
    where: name of the generator and its files.
    files: by dataset_key.
    error: TensorFlow's error.
  """
  if (cause := stamps_error(error)) is not None:
    return cause
  for text in (UNEVEN, pool.NOTHING_LEFT):
    if text in str(error):
      return errors.RecordError(f"{where}: {text}")
  names = [name for of_one in files.values() for name in of_one]
  gone = [name for name in names if not tf.io.gfile.exists(name)]
  if not gone:
    return None
  return errors.RecordError(
    f"{where}: {gone[0]}: expected a file, as when the dataset was made, got none. "
    f"{len(gone)} of {len(names)} files are gone; create the dataset again."
  )


def read_records(
  files: FilesByKey,
  cycle_length: int = 1,
  shuffle_files: bool = False,
  seed: int | None = None,
  check: bool = True,
  read_file: Any = None,
) -> tf.data.Dataset:
  """Reads serialized records in an order that depends on the arguments only.

  Several datasets are zipped: record i of one goes with record i of the others. Their
  files are read in order, without interleaving or a shuffle.

  Args:
    files: by dataset_key.
    cycle_length: files that are read in turns, one record of each.
    shuffle_files: whether files are in another order in every epoch.
    seed: seed of the shuffle.
    check: whether to check the types of the files.
    read_file: function as for `records.record_dataset`.
  Returns:
    Dataset of scalar strings, or of dicts of them if there are several datasets.
  Raises:
    RecordError: a file is not a TFRecord file.
  """
  if len(files) > 1:
    return _zip_strictly(
      {
        key: records.record_dataset(names, check=check, read_file=read_file)
        for key, names in files.items()
      }
    )
  (filenames,) = files.values()
  return records.record_dataset(
    filenames,
    num_parallel_reads=cycle_length,
    shuffle_files=shuffle_files,
    seed=seed,
    check=check,
    read_file=read_file,
  )


def leave_out_absent(
  flat_specs: specs.TensorSpecStruct, first: Any
) -> specs.TensorSpecStruct:
  """Leaves out the optional specs that the first record does not have.

  Args:
    flat_specs: specs by path.
    first: the first serialized record, or a dict of them by dataset_key.
  Returns:
    The specs that are to be parsed.
  """
  by_key = first if isinstance(first, Mapping) else None
  names: dict[str, set[str] | None] = {}
  kept, absent = specs.TensorSpecStruct(), []
  for path, spec in flat_specs.items():
    key = spec.dataset_key
    if key not in names:
      names[key] = _feature_names(first if by_key is None else by_key[key])
    present = names[key]
    if spec.is_optional and present is not None and spec.name not in present:
      absent.append(f"{path} (feature '{spec.name}')")
    else:
      kept[path] = spec
  if absent:
    logging.warning(
      "Optional features that the first record lacks are left out of all batches: %s.",
      ", ".join(absent),
    )
  return kept


def add_flags(flat_specs: specs.TensorSpecStruct, first: Any) -> specs.TensorSpecStruct:
  """Adds the spec of an episode flag that records have and windows do not read.

  A window must not show steps of two episodes: parsing fails if the flag shows that an
  episode begins or ends within a record.

  Args:
    flat_specs: specs of episodes, by path.
    first: the first serialized record, or a dict of them by dataset_key.
  Returns:
    The specs; for each dataset whose flags are not read, with that of one flag.
  """
  added = flat_specs.copy()
  for key, features in collect_features({"": flat_specs}).items():
    serialized = first[key] if isinstance(first, Mapping) else first
    with contextlib.suppress(errors.RecordError):  # Reading reports the error.
      # A single flag suffices; each costs as much to parse as a small sequence.
      flags = (
        {}
        if any(feature.edge for feature in features)
        else find_flags(serialized.numpy(), features)
      )
      for name, spec in sorted(flags.items())[:1]:
        with_key = specs.ExtendedTensorSpec.from_spec(spec, dataset_key=key)
        path = f"features/{name}"
        if path not in added and not any(p.startswith(f"{path}/") for p in added):
          added[path] = with_key
  return added


def check_whole(
  where: str, serialized: Iterable[Any], flat_specs: specs.TensorSpecStruct
) -> None:
  """Checks that none of the first few records continues an episode.

  Args:
    where: name of the generator and its files.
    serialized: the first few records, or dicts of them by dataset_key.
    flat_specs: specs of episodes, by path, with those of their flags.
  Raises:
    RecordError: a flag of the first or last step is set in some records only.
  """
  by_dataset = collect_features({"": flat_specs})
  flags = [(key, f) for key, features in by_dataset.items() for f in features if f.edge]
  if not flags:
    return
  is_set: dict[str, list[bool]] = {feature.name: [] for _, feature in flags}
  for record in serialized:
    for key, feature in flags:
      data = record[key] if isinstance(record, Mapping) else record
      with contextlib.suppress(errors.RecordError):
        contents = records_parse.as_lists(RecordContents(data), [feature])
        values = set_flags(feature, contents)
        if values is not None and len(values):
          at = 0 if feature.edge == IS_FIRST else -1
          is_set[feature.name].append(bool(values[at]))
  for name, are_set in is_set.items():
    if any(are_set) and not all(are_set):
      edge = "first" if name.endswith(IS_FIRST) else "last"
      raise errors.RecordError(
        f"{where}: {name}: expected it set in the {edge} step of every record, as a "
        f"record is an episode, got it unset in record {are_set.index(False)}: an "
        f"episode that is cut over several records. {cut_hint(name)}."
      )


def _feature_names(serialized: tf.Tensor) -> set[str] | None:
  """Returns the names of features with values; None if the bytes are not a record."""
  try:
    return present_names(serialized.numpy())
  except errors.RecordError:
    return None  # Reading fails, too, and its error names the file.


def _zip_strictly(datasets: dict[str, tf.data.Dataset]) -> tf.data.Dataset:
  """Zips datasets; unlike `Dataset.zip` it fails if one ends before another."""
  keys = list(datasets)
  ended = tf.data.Dataset.from_tensors((tf.constant(""), False))
  zipped = tf.data.Dataset.zip(
    {
      key: dataset.map(lambda record: (record, True)).concatenate(ended)
      for key, dataset in datasets.items()
    }
  )

  def all_have_a_record(pairs: Any) -> tf.Tensor:
    has_record = tf.stack([pairs[key][1] for key in keys])
    message = f"file_patterns: {UNEVEN} Datasets, and whether each continues:"
    check = tf.debugging.Assert(
      tf.reduce_all(has_record) | ~tf.reduce_any(has_record),
      [message, keys, has_record],
    )
    with tf.control_dependencies([check] if check is not None else []):
      return tf.reduce_all(has_record)

  return zipped.take_while(all_have_a_record).map(
    lambda pairs: {key: pairs[key][0] for key in keys}
  )


def check_policy(
  where: str, policy: Any, index: str | None, has_episodes: bool = False
) -> str:
  """Validates `on_bad_record`.

  Args:
    where: the generator's class.
    policy: 'raise' or 'skip'.
    index: the generator's option `index`.
    has_episodes: whether episodes are chosen by their numbers.
  Returns:
    The policy.
  Raises:
    SpecError: the policy is unknown, or 'skip' with an index or chosen episodes.
  """
  if policy not in POLICIES:
    raise errors.SpecError(
      f"{where}: on_bad_record: expected 'raise' or 'skip', got {policy!r}."
      f"{errors.nearest(str(policy), POLICIES)}"
    )
  if policy == "skip" and index is not None:
    raise errors.SpecError(
      f"{where}: on_bad_record: expected 'raise' where files are read by their index, "
      f"got 'skip' with index='{index}'. Use index=None, or leave bad records out for "
      "good: t2r_seq doctor FILES --salvage OUT."
    )
  if policy == "skip" and has_episodes:
    raise errors.SpecError(
      f"{where}: on_bad_record: expected 'raise' where episodes are chosen by their "
      "numbers, got 'skip': what is left out would move the numbers of the others. "
      "Leave bad records out for good: t2r_seq doctor FILES --salvage OUT."
    )
  return policy


class RecordReading:
  """Reads and parses records; a bad one stops the dataset with TensorFlow's error.

  Attributes:
    failure: the dataset's error, if it is clearer than TensorFlow's; otherwise None.
    read_file: reads one file, as for `records.record_dataset`; None: TensorFlow does.
    skips: whether bad records are left out.
    record_size: bytes of the first record, as an estimate for all; 0 before it is read.
    decode_images: how encoded images are decoded, if there are any.
  """

  failure: Exception | None = None
  read_file: Callable[[Any, Any], tf.data.Dataset] | None = None
  skips = False
  record_size = 0

  def __init__(
    self,
    decode_images: DecodeImages = True,
    chosen: ChosenRecords | None = None,
  ) -> None:
    """Creates the reading.

    Args:
      decode_images: how encoded images are decoded, if there are any.
      chosen: the records that are read; None for all.
    """
    self.decode_images = decode_images
    if chosen is not None:
      self.read_file = chosen.read_file

  def read(
    self,
    files: FilesByKey,
    cycle_length: int = 1,
    shuffle_files: bool = False,
    seed: int | None = None,
    check: bool = True,
  ) -> tf.data.Dataset:
    """Reads records, as the `parse_batches` of this reading takes them.

    See `read_records`.
    """
    # With 'skip', a file of another type is no error: all of its records are bad.
    check = check and not self.skips
    return read_records(files, cycle_length, shuffle_files, seed, check, self.read_file)

  def texts(self, files: FilesByKey) -> tf.data.Dataset:
    """Reads serialized records, or dicts of them by dataset_key, in order."""
    return self.read(files)

  def parse_batches(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    batch_size: int,
    drop_remainder: bool,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Batches and parses records.

    Args:
      serialized: dataset of single serialized records.
      flat_specs: specs to parse, by path.
      batch_size: B.
      drop_remainder: whether the last, smaller batch is left out.
      num_parallel_calls: number of parallel calls; does not change the order.
    Returns:
      Dataset of batches by path, [B, ...].
    """
    parse_fn = records.create_parse_tf_example_fn(
      flat_specs, decode_images=self.decode_images
    )
    batches = serialized.batch(batch_size, drop_remainder)
    return map_in_order(batches, parse_fn, num_parallel_calls)

  def keep_episodes(
    self,
    serialized: tf.data.Dataset,
    flat_specs: specs.TensorSpecStruct,
    columns: pool.PoolColumns,
    num_parallel_calls: int | None,
  ) -> tf.data.Dataset:
    """Parses records to the values that pools keep.

    Args:
      serialized: dataset of single serialized records.
      flat_specs: specs to parse, by path.
      columns: columns of the pools.
      num_parallel_calls: number of parallel calls; does not change the order.
    Returns:
      Dataset of chunks; see `streams.shuffled_windows`.
    """
    keep = keeper(flat_specs, columns)
    kept = map_in_order(serialized, keep, num_parallel_calls)
    return kept.batch(self.chunk_size)

  @property
  def chunk_size(self) -> int:
    """Episodes of a chunk."""
    return int(np.clip(_CHUNK_BYTES // max(1, self.record_size), 1, _MAX_CHUNK))

  def first_record(self, files: FilesByKey, where: str) -> Any:
    """Reads the first record, or the first of each dataset.

    Args:
      files: by dataset_key.
      where: name of the generator and its files, for messages.
    Returns:
      The serialized record, or a dict of them.
    Raises:
      RecordError: there is no record.
    """
    first = next(iter(self.texts(files).take(1)), None)
    if first is None:
      num_files = sum(len(names) for names in files.values())
      raise errors.RecordError(
        f"{where}: expected records, got none in {num_files} file(s)."
      )
    self.record_size = sum(len(each.numpy()) for each in tf.nest.flatten(first))
    return first

  def report(self, counts: WindowReport | None) -> InputReport | None:
    """Returns the generator's report: the counts of windows, if there are any."""
    return counts


def keeper(flat_specs: specs.TensorSpecStruct, columns: pool.PoolColumns) -> ParseFn:
  """Returns the function that parses a record and decodes its images, for pools."""
  parse_fn = records.create_parse_tf_example_fn(
    flat_specs, decode_images=False, is_one_episode=True
  )
  return _no_autograph(lambda text: columns.keep(columns.select(parse_fn(text))))


def map_in_order(
  dataset: tf.data.Dataset, function: ParseFn, num_parallel_calls: int | None
) -> tf.data.Dataset:
  """Maps a function; the order does not depend on how many calls run in parallel."""
  # tf.data warns of a requested order if nothing runs in parallel.
  deterministic = None if num_parallel_calls is None else True
  return dataset.map(function, num_parallel_calls, deterministic)


def count_records(files: FilesByKey) -> int:
  """Counts records without parsing them.

  Args:
    files: by dataset_key; record i of one goes with record i of the others.
  Returns:
    The number of records; with several datasets, of those of each.
  Raises:
    tf.errors.OpError: a file is damaged, or one dataset ends before another.
  """
  dataset = read_records(files)
  count = framing.batch_size(
    sum(map(len, tf.nest.flatten(each))) for each in dataset.as_numpy_iterator()
  )
  sizes = dataset.batch(count).map(
    _no_autograph(lambda batch: _size(tf.nest.flatten(batch)[0]))
  )
  return _sum(sizes)


def count_windows(
  files: FilesByKey,
  flat_specs: specs.TensorSpecStruct,
  window_specs: specs.TensorSpecStruct,
  cut: windows.Cut,
  chosen: ChosenRecords | None = None,
) -> int:
  """Counts windows from episode lengths. Parses only one feature of each record.

  With `n_step`, that feature is the terminal flag if the count depends on it.

  Args:
    files: file names by dataset_key.
    flat_specs: specs of an episode by path, at least one a sequence.
    window_specs: the specs of a window.
    cut: how episodes become windows.
    chosen: the records that count; None for all.
  Returns:
    The number of windows in all episodes.
  Raises:
    tf.errors.OpError: a file is damaged, or an episode lacks the feature.
  """
  # Prefers a required feature without images: always present and cheap.
  path, spec = min(
    ((path, spec) for path, spec in flat_specs.items() if spec.is_sequence),
    key=lambda item: (item[1].is_optional, specs.is_encoded_image_spec(item[1])),
  )
  reader, parsed = None, {path: spec}
  if cut.n_step is not None:
    reader = WindowReader(element_spec(flat_specs), window_specs, cut)
    flag = reader.end_flag
    if flag is not None:
      path, spec, parsed = flag, flat_specs[flag], {flag: flat_specs[flag]}
  grid = WindowGrid.of(window_specs, cut)
  parse_fn = records.create_parse_tf_example_fn(parsed, decode_images=False)
  read_file = None if chosen is None else chosen.read_file
  serialized = read_records({"": files[spec.dataset_key]}, read_file=read_file)

  def num_windows(record: tf.Tensor) -> tf.Tensor:
    episode = parse_fn({spec.dataset_key: record})
    rows = num_steps = _size(episode[path])
    if reader is not None:
      # A terminal last step counts as one more row: it needs no next observation.
      rows = reader.num_rows_of(episode, num_steps)
    return (grid if reader is None else reader.grid).num_windows(rows)

  return _sum(serialized.map(_no_autograph(num_windows), tf.data.AUTOTUNE))


def _size(tensor: tf.Tensor) -> tf.Tensor:
  return tf.shape(tensor, tf.int64)[0]


def _sum(sizes: tf.data.Dataset) -> int:
  return int(sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + size))


def fills_a_batch(
  record: Any,
  flat_specs: specs.TensorSpecStruct,
  grid: WindowGrid,
  num_needed: int,
  decode_images: DecodeImages,
) -> bool:
  """Whether a single episode fills a batch; it is parsed without a dataset.

  Args:
    record: the serialized record, or a dict of records by dataset_key.
    flat_specs: specs to parse, by path.
    grid: the anchors of the windows.
    num_needed: windows of a batch.
    decode_images: how encoded images are decoded.
  Returns:
    False also if the record cannot be read, which the dataset reports.
  """
  parse_fn = records.create_parse_tf_example_fn(flat_specs, decode_images=decode_images)
  try:
    episode = parse_fn(record)
  except (tf.errors.OpError, UnicodeDecodeError):
    return False
  timed = [path for path, spec in flat_specs.items() if spec.is_sequence]
  lengths = {len(episode[path]) for path in timed}
  return len(lengths) == 1 and grid.num_windows(lengths.pop()) >= num_needed


def check_enough(
  where: str,
  num_needed: int,
  num_found: int,
  min_steps: int,
  report: WindowReport | None = None,
  left_out: InputReport | None = None,
) -> None:
  """Checks that the files fill a first batch.

  Args:
    where: name of the generator and its files, for messages.
    num_needed: examples of a batch.
    num_found: number of examples.
    min_steps: minimum number of steps of an episode with a window.
    report: report of the episodes that were read; None if examples are not windows.
    left_out: report of the bad records that were left out; None if these are errors.
  Raises:
    RecordError: there are too few examples.
  """
  if num_found >= num_needed:
    return
  if report is not None and report.episodes and not num_found:
    raise too_short_error(where, min_steps, report.episodes, report.longest_too_short)
  got = f"{num_found}. Use a smaller batch_size, or drop_remainder=False"
  if problems := getattr(left_out, "problems", ()):
    # Files are read in parallel, so problems are in any order.
    first = min(problems, key=lambda problem: (problem.source, problem.record))
    got = f"{num_found} and {left_out}. The first: {first}. Run t2r_seq doctor FILES"
  raise errors.RecordError(
    f"{where}: expected at least the {num_needed} examples of one batch, got {got}."
  )


def never_ending(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Raises an error at the end of a dataset that should repeat without end.

  TensorFlow's `repeat` ends silently after an empty epoch.

  Args:
    dataset: dataset of any elements.
  Returns:
    A dataset of the same elements that fails after the last one.
  """

  @_no_autograph
  def fail(number: tf.Tensor) -> tf.Tensor:
    # tf.debugging.Assert of a constant would fail when the graph is built.
    check = tf.raw_ops.Assert(condition=False, data=[tf.constant(pool.NOTHING_LEFT)])
    with tf.control_dependencies([check]):
      return tf.identity(number)

  # `concatenate` requires datasets with the same element spec.
  failing = (
    tf.data.Dataset.range(1).map(fail).flat_map(_no_autograph(lambda _: dataset))
  )
  return dataset.concatenate(failing)


def stream_records(
  reading: RecordReading,
  files: FilesByKey,
  flat_specs: specs.TensorSpecStruct,
  joined: specs.TensorSpecStruct,
  cut: windows.Cut,
  plan: Plan,
  *,
  cycle_length: int,
  num_parallel_calls: int | None,
  report: WindowReport | None,
) -> tf.data.Dataset:
  """Creates batches of the windows of episode records.

  Args:
    reading: reads and parses records; may leave out bad ones.
    files: by dataset_key. Those of one dataset are permuted in each epoch, unless the
      plan's order is 'sequential'. Several datasets are zipped, in order.
    flat_specs: specs of an episode.
    joined: specs of a window.
    cut: how episodes become windows.
    plan: plan of the batches; see `streams.streamed_windows`.
    cycle_length: files that are read in turns, a record of each.
    num_parallel_calls: maximum number of parallel parse calls; None for one at a time.
    report: counts episodes and windows; None: see `streams.streamed_windows`.
  Returns:
    Dataset of batches.
  """
  plan = plan.with_seed()
  names, *others = files.values()
  parse_fn = records.create_parse_tf_example_fn(flat_specs, decode_images=False)
  texts = tf.data.Dataset.from_tensors({key: tf.constant("") for key in files})
  parsed = texts.map(_no_autograph(lambda text: parse_fn(text)))
  columns = pool.PoolColumns(parsed.element_spec, joined, cut, reading.decode_images)
  most = pool.PARSES_AT_ONCE
  if columns.images:  # Those of one episode are decoded in parallel.
    num_parallel_calls = None
  elif num_parallel_calls is not None:
    num_parallel_calls = (
      min(num_parallel_calls, most) if num_parallel_calls > 0 else most
    )

  def chunks(epoch: tf.Tensor) -> tf.data.Dataset:
    if others or plan.order == "sequential":
      serialized = reading.read(files, check=False)
    else:
      serialized = _permuted_records(reading, names, cycle_length, plan.seed, epoch)
    return reading.keep_episodes(serialized, flat_specs, columns, num_parallel_calls)

  return streams.shuffled_windows(chunks, columns, plan, report)


def _permuted_records(
  reading: RecordReading, names: list[str], cycle_length: int, seed: Any, epoch: Any
) -> tf.data.Dataset:
  """Reads files in the order of an epoch, which is a function of seed and epoch."""
  compressions = tf.constant([compression_type(name) for name in names])
  read_file = reading.read_file or tf.data.TFRecordDataset

  def read(number: tf.Tensor) -> tf.data.Dataset:
    return read_file(tf.gather(names, number), tf.gather(compressions, number))

  count = tf.constant(len(names), tf.int64)
  index = permute_positions(tf.range(count), count, seed, epoch)
  # A single thread: the budget does not count what parallel reads hold.
  return tf.data.Dataset.from_tensor_slices(index).interleave(
    _no_autograph(read), cycle_length=min(cycle_length, len(names)), block_length=1
  )
