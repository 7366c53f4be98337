"""Writing the indices of many files: in parallel, and only where one is needed."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import features as features_lib
from t2r_seq.records import (
  file_types,
  files,
  index_file,
  index_freshness,
  index_scan,
)

_FILES_PER_READER = 32
_BYTES_PER_READER = 64 << 20


@dataclasses.dataclass(frozen=True)
class Indexed:
  """What `write_index` did about one file.

  Attributes:
    filename: of the TFRecord file.
    index: None where it cannot be indexed.
    is_new: False where the index that was there still holds.
    error: why it cannot be indexed; '' where it is.
  """

  filename: str
  index: index_file.FileIndex | None
  is_new: bool = True
  error: str = ""


def write_index(
  file_patterns: files.FilePatterns,
  spec: specs.SpecStructure | None = None,
  num_parallel: int | None = None,
  force: bool = False,
  progress: Callable[[Indexed], None] | None = None,
) -> list[Indexed]:
  """Writes an index beside every TFRecord file that has no fresh one.

  Args:
    file_patterns: of local files; compressed ones get counts, but no random access.
    spec: what the records hold, flat and of one dataset; kept in the index, and only
      its sequences are counted. The first record of every file must fit it.
    num_parallel: how many files are read at a time; None for one a core.
    force: writes those that are fresh anew, too.
    progress: called in this thread with what became of each file, when it is known.
  Returns:
    What became of every file, in order; one that cannot be indexed does not keep the
    others from it.
  Raises:
    SpecError: a pattern matches no file, one is a URL, or the spec cannot be parsed.
  """
  _, filenames = files.get_data_format_and_filenames(file_patterns)
  _check_local(filenames)
  if spec is not None:
    spec = _check_spec(spec)
  done: dict[str, Indexed] = {}

  def note(result: Indexed) -> None:
    done[result.filename] = result
    if progress is not None:
      progress(result)

  pending = []
  for name in filenames:
    state = index_freshness.find_state(name, spec)
    if force or state.state != index_freshness.FRESH:
      pending.append(name)
    else:
      note(Indexed(name, state.index, is_new=False))
  with futures.ThreadPoolExecutor(num_parallel or os.cpu_count()) as executor:
    jobs = [executor.submit(_write_group, group, spec) for group in _group(pending)]
    for job in futures.as_completed(jobs):
      for result in job.result():
        note(result)
  return [done[name] for name in filenames]


def _group(filenames: Sequence[str]) -> Iterator[list[str]]:
  """Puts small files together for one reader; a compressed one stays alone."""
  group: list[str] = []
  num_bytes = 0
  for name in filenames:
    if file_types.compression_type(name):
      yield [name]
      continue
    group.append(name)
    num_bytes += os.path.getsize(name) if os.path.exists(name) else 0
    if len(group) == _FILES_PER_READER or num_bytes >= _BYTES_PER_READER:
      yield group
      group, num_bytes = [], 0
  if group:
    yield group


def _write_group(
  filenames: list[str], spec: specs.TensorSpecStruct | None
) -> list[Indexed]:
  try:
    indices = index_scan.scan_files(filenames, spec)
    for name, index in zip(filenames, indices, strict=True):
      index_file.write_file_index(name, index)
  except (errors.RecordError, OSError, tf.errors.OpError) as error:
    if len(filenames) == 1:
      return [Indexed(filenames[0], None, error=str(error))]
    parts = [_write_group([name], spec) for name in filenames]
    return list(itertools.chain.from_iterable(parts))
  return [Indexed(*pair) for pair in zip(filenames, indices, strict=True)]


def _check_local(filenames: Sequence[str]) -> None:
  remote = [name for name in filenames if "://" in name]
  if remote:
    raise errors.SpecError(
      f"index: {remote[0]}: expected local files, got a URL. Index them where they are "
      "local, and copy the indices along with the files and their times."
    )


def _check_spec(spec: specs.SpecStructure) -> specs.TensorSpecStruct:
  flat = specs.flatten_spec_structure(spec)
  keys = list(features_lib.collect_features({"": flat}))
  if len(keys) > 1:
    raise errors.SpecError(
      f"index: the spec: expected specs of one dataset, got those of "
      f"{errors.listing(keys)}. Index the files of each with its own specs: "
      "filter_spec_structure_by_dataset."
    )
  return specs.TensorSpecStruct(flat)
