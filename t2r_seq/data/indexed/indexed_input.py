"""Whether an input generator reads record files by their index."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.indexed.indexed_records import IndexedRecordLoader
from t2r_seq.data.record_files import FilesByKey

OPTIONS = (None, "auto", "require")


def check_option(where: str, option: Any) -> str | None:
  """Raises SpecError unless `option` is one of OPTIONS, and returns it."""
  if option in OPTIONS:
    return option
  raise errors.SpecError(
    f"{where}: index: expected None, 'auto' or 'require', got {option!r}."
    f"{errors.nearest(str(option), ['auto', 'require'])}"
  )


def find_index(
  option: str | None, files: FilesByKey, where: str
) -> records.RecordIndex | None:
  """Reads the index of files that are to be read by it.

  Args:
    option: None: by no index. 'auto': by that which every file has, if none of them is
      compressed. 'require': an index that is missing is an error.
    files: by dataset_key.
    where: who reads what, for messages.
  Returns:
    The index, or None for reading in order.
  Raises:
    SpecError: an index is required for several datasets.
    RecordError: an index is stale; it is required and missing.
  """
  if option is None:
    return None
  if len(files) > 1 and option == "require":
    raise errors.SpecError(
      f"{where}: index: expected files of one dataset, got those of "
      f"{errors.listing(files)}. Zipped datasets are read in order: index=None."
    )
  (names, *others) = files.values()
  if option == "auto":
    missing = [name for name in names if not os.path.exists(records.index_path(name))]
    if others or missing or any(map(records.compression_type, names)):
      logging.info("%s: read in order, not by an index.", where)
      return None
  index = records.read_index(names)
  index.require_random_access()
  return index


def count_windows(
  index: records.RecordIndex, joined: specs.TensorSpecStruct, grid: windows.WindowGrid
) -> int:
  """Counts the examples of one pass; reads nothing.

  Args:
    index: of the files.
    joined: specs of the examples.
    grid: the anchors, where the specs are windowed.
  Returns:
    Windows, or records.
  """
  if not windows.is_windowed(joined):
    return len(index)
  return int(np.sum(grid.num_windows(index.num_steps(joined))))


def plan_batches(
  index: records.RecordIndex,
  joined: specs.TensorSpecStruct,
  batch_size: int,
  is_train: bool,
  shuffle: bool,
  seed: int | None,
  **options: Any,
) -> IndexedRecordLoader:
  """Plans the batches of an input generator.

  Args:
    index: of the files.
    joined: specs of the examples.
    batch_size: B.
    is_train: repeats for ever.
    shuffle: in pools; otherwise the order is that of the files.
    seed: None: another order in every run.
    **options: further arguments of `IndexedRecordLoader`.
  Returns:
    What loads them.
  Raises:
    SpecError: the specs do not fit the files, or these are too small for one batch.
  """
  if seed is None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
  return IndexedRecordLoader(
    index,
    joined,
    batch_size,
    "quasi_random" if shuffle else "sequential",
    seed,
    None if is_train else 1,
    **options,
  )
