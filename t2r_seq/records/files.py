"""File patterns and datasets of serialized records."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors
from t2r_seq.records import file_patterns as patterns_lib
from t2r_seq.records import file_types, index_file, shards

FilePatterns = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

TFRECORD = "tfrecord"
_PREFIX = re.compile(r"^(\w+):(?!//)")
# The bookkeeping of a conversion, a folder beside what it has written.
_CONVERSION_SUFFIX = ".conversion"
# What `t2r_seq stats` writes beside record files.
_STATISTICS = "statistics.json"
# What makes a name a pattern, a list or a prefixed name.
_SPECIAL = re.compile(r"[*?\[\\,]|^\w+:(?!//)")


def get_batch_size(params: Mapping[str, Any] | None, batch_size: int) -> int:
  """Returns the batch size to use: that of `params` wins, and is logged."""
  wanted = params.get("batch_size") if params else None
  if wanted and wanted != batch_size:
    logging.info(
      "The batch size is %d, from params, not %d, the input generator's own.",
      wanted,
      batch_size,
    )
    return wanted
  return batch_size


def split_file_patterns(file_patterns: FilePatterns) -> list[str]:
  """Splits comma lists and lists of them into single patterns.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
  Returns:
    The patterns, with their prefixes; a file of exactly that name stays whole.
  Raises:
    SpecError: they are neither strings nor paths.
  """
  parts = [
    part
    for name in patterns_lib.pattern_names(file_patterns)
    for part in ([name] if _is_special_file(name) else name.split(","))
  ]
  return [part.strip() for part in parts if part.strip()]


def _is_special_file(name: str) -> bool:
  """Whether a name that looks like a pattern or a list is that of a file."""
  name = _PREFIX.sub("", name.strip())
  return bool(_SPECIAL.search(name)) and tf.io.gfile.exists(name)


def infer_data_format(file_patterns: FilePatterns) -> str:
  """Returns the data format of file patterns, which is always 'tfrecord'.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
  Returns:
    'tfrecord'.
  Raises:
    SpecError: a pattern has the prefix of another format, or is none.
  """
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
      each may start with 'tfrecord:'. A file that has exactly that name comes first.
  Returns:
    The data format, and for each pattern the list of its files, sorted. Hidden files,
    indices (see `write_index`), `statistics.json` and `*.conversion` only count where
    the pattern asks for them.
  Raises:
    SpecError: a pattern matches no file, or is none.
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
  found = [pattern] if is_name else sorted(tf.io.gfile.glob(pattern))
  if not os.path.basename(pattern).startswith("."):
    found = [name for name in found if not os.path.basename(name).startswith(".")]
  for suffix in (index_file.SUFFIX, _CONVERSION_SUFFIX, _STATISTICS):
    if not pattern.rstrip("/").endswith(suffix):
      # 'train.tfrecord*' means the data, not what lies beside it.
      found = [name for name in found if not name.endswith(suffix)]
  filenames = [name for name in found if not tf.io.gfile.isdir(name)]
  if found and not filenames:
    raise errors.SpecError(
      f"file patterns: {pattern}: expected files, got a folder. Name the files in it, "
      f"such as {os.path.join(pattern, '*.tfrecord*')}"
    )
  if not filenames:
    raise errors.SpecError(
      f"file patterns: {pattern}: expected at least one file, got none."
      f"{_shards_of(pattern)} The current folder is {os.getcwd()}"
    )
  return filenames


def _shards_of(pattern: str) -> str:
  """Names the pattern of shards 'a-00000-of-00002.tfrecord', where these are there."""
  name = pattern.rstrip("*")
  if _SPECIAL.search(name) or not (found := shards.other_shards(name, [])):
    return ""
  root, extension = os.path.splitext(name)
  return f" There are its shards, such as {found[0]}: '{root}-*{extension}*'."


def get_data_format_and_filenames(file_patterns: FilePatterns) -> tuple[str, list[str]]:
  """Finds all files of file patterns.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
  Returns:
    The data format and the files, in the order of the patterns; a file that several
    patterns match comes once, where the first of them has it.
  Raises:
    SpecError: a pattern matches no file.
  """
  data_format, filenames = get_data_format_and_filenames_list(file_patterns)
  once: dict[str, str] = {}
  for name in itertools.chain.from_iterable(filenames):
    # A relative glob gives './a' where its name gives 'a'.
    once.setdefault(name if "://" in name else os.path.normpath(name), name)
  return data_format, list(once.values())


def get_dataset_metadata(file_patterns: FilePatterns) -> tuple[str, int, int]:
  """Counts the files, and the records of the first of them.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
  Returns:
    The data format, the number of files, and the number of records in the first one.
  Raises:
    SpecError: a pattern matches no file.
  """
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
  """Reads serialized records; the same arguments give the same order.

  Args:
    filenames: TFRecord files, compressed or not as their suffixes say; or patterns, see
      `get_data_format_and_filenames_list`.
    num_parallel_reads: how many files are read at a time, their records interleaved
      one by one. It changes the order; the speed of the threads does not.
    shuffle_files: shuffles the files anew in every epoch.
    seed: of that shuffle; without one the order is not reproducible.
    compression: of all files, if the suffixes don't tell.
    check: looks at the first bytes of each local file.
    read_file: reads one file, given its name and compression; None: as
      `tf.data.TFRecordDataset` does, which stops at a damage.
  Returns:
    Dataset of scalar strings.
  Raises:
    SpecError: no files; a RecordError if one is no TFRecord file.
  """
  names = _expand(filenames)
  if not names:
    raise errors.SpecError("record_dataset: expected at least one file, got none.")
  compressions = [file_types.compression_type(name, compression) for name in names]
  if check:
    file_types.check_file_types(names, compression)
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


def _expand(filenames: FilePatterns) -> list[str]:
  """Finds the files of patterns; looks nothing up for a list of plain names."""
  if not isinstance(filenames, (str, os.PathLike)):
    names = patterns_lib.pattern_names(filenames)
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
  """Reads the serialized records of shuffled files, from many files in turns.

  Args:
    file_patterns: see `get_data_format_and_filenames_list`.
    num_shards: how many files there are, for `num_readers`; None counts them. The
      shuffle is among all files in any case.
    num_readers: how many files are read at a time; None for `num_shards`.
    num_epochs: passes over the files, each shuffled anew and ended before the next
      begins; None for ever.
    seed: of the shuffle; without one the order is not reproducible.
  Returns:
    Dataset of scalar strings.
  Raises:
    SpecError: a pattern matches no file; a RecordError if a file is no TFRecord file.
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
