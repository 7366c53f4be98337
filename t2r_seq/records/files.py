"""Files of records: patterns, shards, compression, and datasets of their records."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from absl import logging

from t2r_seq import errors
from t2r_seq.imports import tf
from t2r_seq.records import framing, index_file

_PATTERNS = "a pattern, a comma-separated string or a list of them"
_HINT = "Name the files, such as 'data/train*.tfrecord'."


def pattern_names(file_patterns: Any, where: str = "file patterns") -> list[str]:
  """Returns file patterns as strings, not split at commas; SpecError for other types.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
    where: the caller and its argument, for the error.
  """
  if isinstance(file_patterns, (str, os.PathLike)):
    file_patterns = [file_patterns]
  is_list = isinstance(file_patterns, Iterable)
  if not is_list or isinstance(file_patterns, (bytes, bytearray, Mapping)):
    raise _error(where, _PATTERNS, file_patterns)
  names = []
  for i, item in enumerate(file_patterns):
    name = os.fspath(item) if isinstance(item, (str, os.PathLike)) else None
    if not isinstance(name, str):
      raise _error(f"{where}[{i}]", "a pattern or a path", item)
    names.append(name)
  return names


def check_file_patterns(where: str, file_patterns: Any) -> Any:
  """Raises SpecError if there is no file pattern; does not look for files.

  Args:
    where: the caller and its argument, for the error.
    file_patterns: see `get_data_format_and_filenames_list`.
  Returns:
    The patterns; those of an iterator as a list.
  """
  if isinstance(file_patterns, Iterator):
    file_patterns = list(file_patterns)
  names = pattern_names(file_patterns, where)
  if not any(part.strip() for name in names for part in name.split(",")):
    raise _error(where, "at least one pattern", file_patterns)
  return file_patterns


def _error(where: str, expected: str, got: Any) -> errors.SpecError:
  return errors.SpecError(f"{where}: expected {expected}, got {got!r}. {_HINT}")


_SUFFIXES = {".gz": "GZIP", ".zz": "ZLIB", ".zlib": "ZLIB"}
_MAX_CHECK_SECS = 0.2
_ALWAYS_CHECKED = 100


def compression_type(filename: str, compression: str | None = None) -> str:
  """Returns the compression of a file: '', 'GZIP' or 'ZLIB'; SpecError for others.

  Args:
    filename: name of the file; its suffix decides unless `compression` is given.
    compression: 'GZIP', 'ZLIB', '' (in any case of letters) or None.
  """
  if compression is None:
    return _SUFFIXES.get(os.path.splitext(filename)[1].lower(), "")
  if compression.upper() not in ("", "GZIP", "ZLIB"):
    raise errors.SpecError(
      f"compression: {filename}: expected 'GZIP', 'ZLIB' or '', got {compression!r}."
    )
  return compression.upper()


def check_file_types(
  filenames: Iterable[str],
  compression: str | None = None,
  array_records: bool = False,
) -> None:
  """Checks that local files are TFRecord files; empty ones are valid.

  Reads the start of each file, and then its frames. The time for both is limited, so
  that the first batch does not wait for many files. TensorFlow's reader may fail later
  at what was not checked here.

  Args:
    filenames: the files; those at URLs are skipped.
    compression: compression of all files, if the suffixes don't show it.
    array_records: whether ArrayRecord files are valid, too.
  Raises:
    RecordError: a file is of another type, which is named, or cannot be read; or a
      frame is much longer than its file.
  """
  plain = []
  deadline = time.monotonic() + _MAX_CHECK_SECS
  local = [name for name in filenames if "://" not in name]
  for number, name in enumerate(local):
    if number >= _ALWAYS_CHECKED and time.monotonic() > deadline:
      break
    kind = compression_type(name, compression)
    if array_records and framing.is_array_record(name):
      continue
    if _check_file_type(name, kind) and not kind:
      plain.append(name)
  deadline = time.monotonic() + _MAX_CHECK_SECS
  for name in plain:
    framing.check_lengths(name, deadline)
    if time.monotonic() > deadline:
      break


def _check_file_type(filename: str, compression: str) -> bool:
  """Checks the start of a file; returns whether it has any bytes."""
  try:
    content, error = framing.read_start(filename, compression, framing.HEADER_SIZE)
    if framing.read_length(content) is not None or not (content or error):
      return bool(content)
    start, end = _read_ends(filename)
  except OSError as error:
    raise errors.RecordError(
      f"records: {filename}: expected a TFRecord file, got {error}."
    ) from error
  kind = f"{compression}-compressed" if compression else "uncompressed"
  what = framing.looks_like(start, end)
  if framing.read_length(start[: framing.HEADER_SIZE]) is not None:
    what = "an uncompressed TFRecord file"
  hint = (
    f"If it is {kind}, its first bytes are damaged. Compressed files end in .gz, .zz "
    "or .zlib, and no others."
  )
  if what in ("an HDF5 file", "a Riegeli or ArrayRecord file"):
    hint = "`t2r_seq convert` reads it into a store."
  from t2r_seq.episodes.registry import other_format

  if other := other_format([filename]):
    hint = other[1]
  raise errors.RecordError(
    f"records: {filename}: expected a TFRecord file, {kind} as its name says, got a "
    f"wrong file type: it looks like {what}. {hint}"
  )


def _read_ends(filename: str) -> tuple[bytes, bytes]:
  with open(filename, "rb") as file:
    start = file.read(framing.SAMPLE_SIZE)
    file.seek(max(0, os.path.getsize(filename) - 8))
    return start, file.read()


_COMPRESSION_SUFFIXES = (".gz", ".zz", ".zlib")


def shard_paths(output_path: str, num_shards: int) -> list[str]:
  """Returns the names of a sharded file: 'a-00000-of-00002.tfrecord' and so on.

  The suffixes of `output_path` stay at the end.
  """
  root, extension, compression = _split_suffixes(output_path)
  return [
    f"{root}-{shard:05d}-of-{num_shards:05d}{extension}{compression}"
    for shard in range(num_shards)
  ]


def token_path(output_path: str, token: str) -> str:
  """Returns 'a-<token>.tfrecord' for 'a.tfrecord': a unique name."""
  root, extension, compression = _split_suffixes(output_path)
  return f"{root}-{token}{extension}{compression}"


def other_shards(output_path: str, files: Iterable[str]) -> list[str]:
  """Finds files of earlier runs that a pattern would read along with the new ones.

  Args:
    output_path: the name without shards.
    files: files to write.
  Returns:
    The names of files in the same folder that are `output_path` or a shard of it,
    compressed or not, and not among `files`.
  """
  root, extension, _ = _split_suffixes(output_path)
  folder, base = os.path.split(root)
  compressions = "|".join(map(re.escape, _COMPRESSION_SUFFIXES))
  same_base = re.compile(
    rf"{re.escape(base)}(-\d{{5,}}-of-\d{{5,}})?{re.escape(extension)}({compressions})?"
  )
  at = folder or "."
  if not _paths(at).isdir(at):
    return []
  new = {os.path.basename(path) for path in files}
  names = sorted((tf.io.gfile if "://" in at else os).listdir(at))
  return [name for name in names if same_base.fullmatch(name) and name not in new]


def _paths(path: str) -> Any:
  """Returns `tf.io.gfile` for a URL, else `os.path`, which needs no TensorFlow."""
  return tf.io.gfile if "://" in path else os.path


def _split_suffixes(output_path: str) -> tuple[str, str, str]:
  """Splits 'a.tfrecord.gz' into ('a', '.tfrecord', '.gz')."""
  root, compression = output_path, ""
  for suffix in _COMPRESSION_SUFFIXES:
    if root.lower().endswith(suffix):
      root, compression = root[: -len(suffix)], root[-len(suffix) :]
      break
  return (*os.path.splitext(root), compression)


FilePatterns = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

TFRECORD = "tfrecord"
_PREFIX = re.compile(r"^(\w+):(?!//)")
# The bookkeeping of a conversion, a folder beside what it has written.
_CONVERSION_SUFFIX = ".conversion"
# The file that `t2r_seq stats` writes beside record files.
_STATISTICS = "statistics.json"
# Characters that make a name a pattern, a list or a prefixed name.
_SPECIAL = re.compile(r"[*?\[\\,]|^\w+:(?!//)")


def get_batch_size(params: Mapping[str, Any] | None, batch_size: int) -> int:
  """Returns the batch size of `params` if they have one; else `batch_size`."""
  given = params.get("batch_size") if params else None
  if given and given != batch_size:
    logging.info(
      "The batch size is %d, from params, not %d, the input generator's.",
      given,
      batch_size,
    )
    return given
  return batch_size


def split_file_patterns(file_patterns: FilePatterns) -> list[str]:
  """Splits comma lists and lists of them into single patterns.

  Prefixes stay. The name of an existing file is not split at its commas.
  """
  parts = [
    part
    for name in pattern_names(file_patterns)
    for part in ([name] if _is_special_file(name) else name.split(","))
  ]
  return [part.strip() for part in parts if part.strip()]


def _is_special_file(name: str) -> bool:
  """Whether a name that looks like a pattern or a list is the name of a file."""
  name = _PREFIX.sub("", name.strip())
  with _listing(name):
    return bool(_SPECIAL.search(name)) and _paths(name).exists(name)


@contextlib.contextmanager
def _listing(pattern: str) -> Iterator[None]:
  """Adds a hint for remote files to TensorFlow's errors."""
  try:
    yield
  except tf.errors.OpError as error:
    raise errors.SpecError(
      f"file patterns: {pattern}: expected files that TensorFlow can list, got: "
      f"{' '.join(error.message.split())}. {errors.IF_REMOTE}"
    ) from error


def infer_data_format(file_patterns: FilePatterns) -> str:
  """Returns 'tfrecord'; raises SpecError for a pattern with another prefix."""
  for pattern in split_file_patterns(file_patterns):
    prefix = _PREFIX.match(pattern)
    if prefix and prefix[1] != TFRECORD:
      raise errors.SpecError(
        f"file patterns: {pattern}: expected the prefix 'tfrecord:' or none, got "
        f"'{prefix[0]}'. Convert the data to TFRecord files."
      )
  return TFRECORD


def get_data_format_and_filenames_list(
  file_patterns: FilePatterns,
) -> tuple[str, list[list[str]]]:
  """Finds the files of each pattern.

  Args:
    file_patterns: a pattern, a comma-separated string of them, or a list of these;
      each may start with 'tfrecord:'. If a file has exactly this name, only that file
      is returned, without globbing. A folder of TFDS gives the files of all its splits.
  Returns:
    The data format, and for each pattern the list of its files, sorted. Hidden files,
    indices (see `write_index`), `statistics.json` and `*.conversion` count only if the
    pattern names them.
  Raises:
    SpecError: a pattern matches no file, is not a pattern, or has another prefix; or
      TensorFlow cannot list remote files.
  """
  data_format = infer_data_format(file_patterns)
  patterns = [
    _PREFIX.sub("", pattern) for pattern in split_file_patterns(file_patterns)
  ]
  if not patterns:
    raise errors.SpecError(
      f"file patterns: expected at least one pattern, got {file_patterns!r}."
    )
  return data_format, [_glob(pattern) for pattern in patterns]


def _glob(pattern: str) -> list[str]:
  is_name = _is_special_file(pattern)
  with _listing(pattern):
    if is_tfds_folder(pattern):
      names = _record_files(pattern)
    else:
      names = [pattern] if is_name else sorted(_match(pattern))
  if not os.path.basename(pattern).startswith("."):
    names = [name for name in names if not os.path.basename(name).startswith(".")]
  for suffix in (index_file.SUFFIX, _CONVERSION_SUFFIX, _STATISTICS):
    if not pattern.rstrip("/").endswith(suffix):
      # 'train.tfrecord*' means the data, not other files beside it.
      names = [name for name in names if not name.endswith(suffix)]
  filenames = [name for name in names if not _paths(name).isdir(name)]
  if names and not filenames:
    raise errors.SpecError(
      f"file patterns: {pattern}: expected TFRecord files, got a folder. "
      f"{_hint_of_folder(pattern)}"
    )
  if not filenames:
    raise errors.SpecError(
      f"file patterns: {pattern}: expected at least one file, got none."
      f"{_shards_of(pattern)} The current folder is {os.getcwd()}"
    )
  return filenames


def is_tfds_folder(path: str) -> bool:
  """Whether a path is a data set as TFDS prepares it, such as RLDS: 'bridge/1.0.0'."""
  description = os.path.join(path, "features.json")
  return _paths(path).exists(description) and bool(_record_files(path))


def _record_files(folder: str) -> list[str]:
  remote = "://" in folder
  names = tf.io.gfile.listdir(folder) if remote else os.listdir(folder)
  return sorted(os.path.join(folder, name) for name in names if _SPLIT.search(name))


def _match(pattern: str) -> list[str]:
  """Lists the names that match a pattern, as TensorFlow's glob, without loading it."""
  if "://" in pattern:
    return tf.io.gfile.glob(pattern)
  # Python's glob has another syntax for negated sets and escaped characters.
  pattern = re.sub(r"\\([*?\[\]\\])", r"[\1]", pattern.replace("[^", "[!"))
  names = glob.glob(pattern)
  is_bare = glob.has_magic(pattern) and not os.path.dirname(pattern)
  return [f"./{name}" for name in names] if is_bare else names


def _hint_of_folder(folder: str) -> str:
  """Returns how to name the TFRecord files of a folder, if it has some."""
  names = _paths(folder).isdir(folder) and (
    tf.io.gfile.listdir(folder) if "://" in folder else os.listdir(folder)
  )
  if "store.json" in (names or ()):
    return f"Make them of this store: t2r_seq convert {folder} records.tfrecord"
  if any(".tfrecord" in name for name in names or ()):
    return f"Name the files in it, such as {os.path.join(folder, '*.tfrecord*')}"
  return "It has none; `t2r_seq inspect` shows what it is."


def _shards_of(pattern: str) -> str:
  """Returns a hint with the pattern of a file's shards, or ''."""
  name = pattern.rstrip("*")
  if _SPECIAL.search(name) or not (shards := other_shards(name, [])):
    return ""
  root, extension = os.path.splitext(name)
  return f" There are its shards, such as {shards[0]}: '{root}-*{extension}*'."


def get_data_format_and_filenames(file_patterns: FilePatterns) -> tuple[str, list[str]]:
  """Finds all files of file patterns.

  Returns:
    The data format and the files, in the order of the patterns; a file that several
    patterns match is listed once, at the first of them.
  Raises:
    SpecError: as `get_data_format_and_filenames_list` raises.
  """
  data_format, filenames = get_data_format_and_filenames_list(file_patterns)
  once: dict[str, list[str]] = {}
  for name in itertools.chain.from_iterable(filenames):
    # The same file is './a' by a relative pattern, but 'a' by its name.
    key = name if "://" in name else os.path.normpath(name)
    once.setdefault(key, []).append(name)
  twice = [names[0] for names in once.values() if len(names) > 1]
  if twice:
    logging.warning(
      "%d files are named more than once and read once, such as %s. To read some data "
      "more often than other, give it a weight: data.WeightedRecordInputGenerator.",
      len(twice),
      twice[0],
    )
  return data_format, [names[0] for names in once.values()]


def get_dataset_metadata(file_patterns: FilePatterns) -> tuple[str, int, int]:
  """Returns the data format, the number of files, and of records in the first one."""
  data_format, filenames = get_data_format_and_filenames(file_patterns)
  first = record_dataset(filenames[:1])
  count = first.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1)
  return data_format, len(filenames), int(count)


def record_dataset(
  filenames: FilePatterns,
  num_parallel_reads: int = 1,
  shuffle_files: bool = False,
  seed: int | None = None,
  compression: str | None = None,
  check: bool = True,
  read_file: Callable[[Any, Any], tf.data.Dataset] | None = None,
) -> tf.data.Dataset:
  """Reads serialized records; their order is reproducible if a shuffle has a seed.

  Args:
    filenames: TFRecord files, compressed or not by their suffixes; or patterns, see
      `get_data_format_and_filenames_list`.
    num_parallel_reads: number of files read at a time; their records are interleaved
      one by one. The order depends on this number, but not on the speed of threads.
    shuffle_files: whether the files are shuffled, again in every epoch.
    seed: seed of the shuffle; with None the order is not reproducible.
    compression: compression of all files, if the suffixes don't show it.
    check: whether to check the types of local files, and uncompressed ones for
      impossible frame lengths, for a limited time; see `check_file_types`.
    read_file: reads one file, given its name and compression; None: by
      `tf.data.TFRecordDataset`, which stops at the first damaged record.
  Returns:
    Dataset of scalar strings.
  Raises:
    SpecError: there are no files, or the compression is unknown.
    RecordError: with `check`, a file is not a TFRecord file.
  """
  names = _expand(filenames)
  if not names:
    raise errors.SpecError("record_dataset: expected at least one file, got none.")
  compressions = [compression_type(name, compression) for name in names]
  if check:
    check_file_types(names, compression)
  is_plain = len(set(compressions)) == 1 and not shuffle_files and read_file is None
  if is_plain and num_parallel_reads <= 1:
    return tf.data.TFRecordDataset(names, compression_type=compressions[0])
  dataset = tf.data.Dataset.from_tensor_slices((names, compressions))
  if shuffle_files:
    dataset = dataset.shuffle(len(names), seed=seed)
  num_parallel_reads = max(1, min(num_parallel_reads, len(names)))
  if num_parallel_reads == 1:
    return dataset.flat_map(read_file or tf.data.TFRecordDataset)
  return dataset.interleave(
    read_file or tf.data.TFRecordDataset,
    cycle_length=num_parallel_reads,
    num_parallel_calls=num_parallel_reads,
    deterministic=True,
  )


_SPLIT = re.compile(r"([^-./]+)(?:-\d+-of-\d+)?\.(?:tfrecord|array_record)")


def file_split(filename: str) -> str | None:
  """Returns the split in the name of a file, as TFDS names them; None for others.

  It is 'train' for 'bridge-train.tfrecord-00000-of-00010', 'eval' for 'eval.tfrecord'.
  """
  match = _SPLIT.search(os.path.basename(filename))
  return match[1] if match else None


def files_of_split(where: str, filenames: Iterable[str], split: str) -> list[str]:
  """Returns the files of a split, by their names; SpecError without any."""
  by_name = {name: file_split(name) for name in filenames}
  files = [name for name, part in by_name.items() if part == split]
  if not files:
    all_splits = {part for part in by_name.values() if part}
    raise errors.SpecError(
      f"{where}: split: expected one of {errors.listing(all_splits)}, splits in names "
      f"of files (as in NAME-{split}.tfrecord-00000-of-00001), got '{split}'."
      f"{errors.nearest(split, all_splits)}"
    )
  return files


def _expand(filenames: FilePatterns) -> list[str]:
  """Finds the files of patterns; returns a list of plain names unchanged."""
  if not isinstance(filenames, (str, os.PathLike)):
    names = pattern_names(filenames)
    if not any(_SPECIAL.search(name) for name in names):
      return names
    filenames = names
  return get_data_format_and_filenames(filenames)[1]


def parallel_read(
  file_patterns: FilePatterns,
  num_shards: int | None = None,
  num_readers: int | None = None,
  num_epochs: int | None = None,
  seed: int | None = None,
) -> tf.data.Dataset:
  """Reads the serialized records of shuffled files, many files interleaved.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
    num_shards: default of `num_readers`; None: the number of files. All files are read
      in any case.
    num_readers: number of files read at a time; None: `num_shards`.
    num_epochs: number of passes over the files, each shuffled again, and complete
      before the next begins; None for no limit.
    seed: seed of the shuffle; without one the order is not reproducible.
  Returns:
    Dataset of scalar strings.
  Raises:
    SpecError: a pattern matches no file.
    RecordError: a file is not a TFRecord file.
  """
  _, filenames = get_data_format_and_filenames(file_patterns)
  num_files = len(filenames) if num_shards is None else num_shards
  dataset = record_dataset(
    filenames,
    num_parallel_reads=num_files if num_readers is None else num_readers,
    shuffle_files=True,
    seed=seed,
  )
  return dataset.repeat(num_epochs)
