"""Which records are read, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs
from t2r_seq.data import emptiness

FilesByKey = dict[str, list[str]]

UNEVEN = (
  "expected datasets with the same number of records, got one that ends before another."
)


def find_files(file_patterns: Any, spec_structure: Any) -> FilesByKey:
  """Finds the files of each dataset.

  Args:
    file_patterns: a pattern, a comma-separated string or list of them; or a mapping of
      dataset_key to these.
    spec_structure: the specs to be read; their dataset_keys must be those of the
      mapping.
  Returns:
    Sorted files by dataset_key.
  Raises:
    SpecError: a pattern matches no file, or the dataset_keys differ.
  """
  flat = specs.flatten_spec_structure(spec_structure)
  wanted: dict[str, str] = {}
  for path, spec in flat.items():
    wanted.setdefault(spec.dataset_key, path)
  if not isinstance(file_patterns, Mapping):
    if len(wanted) == 1:
      file_patterns = {next(iter(wanted)): file_patterns}
    else:
      file_patterns = {"": file_patterns}
  mismatches = [
    errors.Mismatch(
      f"{path} (dataset_key {key!r})",
      "file patterns for its dataset_key",
      errors.listing(repr(given) for given in file_patterns),
      errors.nearest(key, file_patterns).strip(),
    )
    for key, path in wanted.items()
    if key not in file_patterns
  ]
  if mismatches:
    raise errors.mismatch_error("file_patterns", mismatches)
  unused = [key for key in file_patterns if key not in wanted]
  if unused:
    logging.warning("No spec reads the datasets %s.", errors.listing(unused))
  return {
    key: records.get_data_format_and_filenames(patterns)[1]
    for key, patterns in file_patterns.items()
    if key in wanted
  }


def find_cause(
  where: str, files: FilesByKey, error: Exception
) -> errors.RecordError | None:
  """Returns the error in one of TensorFlow's, if it is of the files, not of a record.

  One dataset ended before another, all files have become empty or their records bad,
  or a file that was found is no longer there.

  Args:
    where: who reads what.
    files: by dataset_key.
    error: TensorFlow's.
  """
  for text in (UNEVEN, emptiness.NOTHING_LEFT):
    if text in str(error):
      return errors.RecordError(f"{where}: {text}")
  names = [name for of_one in files.values() for name in of_one]
  gone = [name for name in names if not tf.io.gfile.exists(name)]
  if not gone:
    return None
  return errors.RecordError(
    f"{where}: {gone[0]}: expected a file, as when the dataset was made, got none. "
    f"{len(gone)} of {len(names)} files are gone; make the dataset anew."
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

  Several datasets are zipped: record i of one goes with record i of the others, so
  their files are read in order, whatever the other arguments say.

  Args:
    files: by dataset_key.
    cycle_length: files that are read in turns, one record of each.
    shuffle_files: in another order in every epoch.
    seed: of that shuffle.
    check: whether to look at the start of each file.
    read_file: as for `records.record_dataset`, of one dataset.
  Returns:
    Dataset of scalar strings, or of dicts of them where there are several datasets.
  """
  if len(files) > 1:
    return _zip_strictly(
      {key: records.record_dataset(names, check=check) for key, names in files.items()}
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


def _feature_names(serialized: tf.Tensor) -> set[str] | None:
  """Names the features that hold something; None if this is no record at all."""
  try:
    return records.present_names(serialized.numpy())
  except errors.RecordError:
    # Reading it fails, too, and says in which file it is.
    return None


def _zip_strictly(datasets: dict[str, tf.data.Dataset]) -> tf.data.Dataset:
  """Zips datasets; fails, other than `Dataset.zip`, where one ends before another."""
  keys = list(datasets)
  ended = tf.data.Dataset.from_tensors((tf.constant(""), False))
  zipped = tf.data.Dataset.zip(
    {
      key: dataset.map(lambda record: (record, True)).concatenate(ended)
      for key, dataset in datasets.items()
    }
  )

  def all_go_on(pairs: Any) -> tf.Tensor:
    goes_on = tf.stack([pairs[key][1] for key in keys])
    check = tf.debugging.Assert(
      tf.reduce_all(goes_on) | ~tf.reduce_any(goes_on),
      [f"file_patterns: {UNEVEN} Datasets, and which of them go on:", keys, goes_on],
    )
    with tf.control_dependencies([check] if check is not None else []):
      return tf.reduce_all(goes_on)

  return zipped.take_while(all_go_on).map(
    lambda pairs: {key: pairs[key][0] for key in keys}
  )
