"""Reading TFRecord files once, to know them without reading: what an index is made of.

Every record passes through TensorFlow's reader, which verifies its checksums: an index
is a promise that the file was whole.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.records import (
  explain,
  file_types,
  framing,
  index_frames,
  index_freshness,
  index_steps,
  rlds,
)
from t2r_seq.records import features as features_lib
from t2r_seq.records.index_file import FileIndex

_BATCH_BYTES = 8 << 20
_MAX_BATCH = 1024


def scan_files(
  filenames: Sequence[str], spec: specs.TensorSpecStruct | None = None
) -> list[FileIndex]:
  """Makes the indices of files, and writes nothing.

  Several small files share a reader, which takes longer to make than they to read.

  Args:
    filenames: of local TFRecord files; a compressed one comes alone.
    spec: what the records hold, flat, of which sequences are counted; None counts all.
  Returns:
    An index for each file.
  Raises:
    RecordError: a damaged file, one that changed meanwhile, or a record that is no
      proto; a first record that does not fit the spec.
    OSError: a file cannot be read.
  """
  compression = file_types.compression_type(filenames[0])
  file_types.check_file_types(filenames, compression)
  scan = _scan_compressed if compression else _scan_plain
  stats = [os.stat(name) for name in filenames]
  indices = scan(filenames, stats, spec)
  for name, stat in zip(filenames, stats, strict=True):
    now = os.stat(name)
    if (now.st_size, now.st_mtime_ns) != (stat.st_size, stat.st_mtime_ns):
      raise _changed(name)
  return indices


def _scan_plain(
  filenames: Sequence[str],
  stats: Sequence[os.stat_result],
  spec: specs.TensorSpecStruct | None,
) -> list[FileIndex]:
  frames = [index_frames.scan_frames(name) for name in filenames]
  largest = max((int(np.diff(ends, prepend=0).max(initial=1)) for ends, _ in frames))
  batch_size = min(max(_BATCH_BYTES // largest, 1), _MAX_BATCH)
  contents = itertools.chain.from_iterable(
    tf.data.TFRecordDataset(filenames).batch(batch_size).as_numpy_iterator()
  )
  indices: list[FileIndex] = []
  try:
    for name, stat, (ends, checksum) in zip(filenames, stats, frames, strict=True):
      found, steps = _tally(name, itertools.islice(contents, len(ends)), spec)
      if not np.array_equal(found, ends):
        raise _changed(name)
      indices.append(
        FileIndex(stat.st_size, stat.st_mtime_ns, checksum, "", ends, steps, spec)
      )
  except tf.errors.OpError as error:
    raise _find_damage(filenames[len(indices) :], error) from error
  return indices


def _scan_compressed(
  filenames: Sequence[str],
  stats: Sequence[os.stat_result],
  spec: specs.TensorSpecStruct | None,
) -> list[FileIndex]:
  (name,), (stat,) = filenames, stats
  compression = file_types.compression_type(name)
  records = framing.iterate_records(name, compression)
  ends, steps = _tally(name, (record.data for record in records), spec)
  checksum = index_freshness.checksum_of(name, compression)
  size, mtime_ns = stat.st_size, stat.st_mtime_ns
  return [FileIndex(size, mtime_ns, checksum, compression, ends, steps, spec)]


def _tally(
  filename: str, contents: Iterable[bytes], spec: specs.TensorSpecStruct | None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Returns where the records end, and the steps of their sequences by name."""
  declared = _sequence_names(spec)
  ends: list[int] = []
  steps: dict[str, list[int]] = {}
  offset = 0
  for number, data in enumerate(contents):
    if number == 0 and spec is not None:
      _check_fits(filename, data, spec)
    for name, count in _count(data, framing.place(filename, number, offset)).items():
      if declared is None or name in declared:
        column = steps.setdefault(name, [])
        column.extend([0] * (number - len(column)))
        column.append(count)
    offset += len(data) + framing.FRAME_SIZE
    ends.append(offset)
  for column in steps.values():
    column.extend([0] * (len(ends) - len(column)))
  by_name = {name: np.asarray(column, np.int64) for name, column in steps.items()}
  return np.asarray(ends, np.int64), by_name


def _count(data: bytes, place: str) -> dict[str, int]:
  try:
    return index_steps.count_steps(data) or rlds.count_steps(data)
  except errors.RecordError as error:
    raise errors.RecordError(f"{place}: {error}") from error


def _sequence_names(spec: specs.TensorSpecStruct | None) -> set[str] | None:
  if spec is None:
    return None
  flat = features_lib.parsed_specs(spec)
  return {leaf.name for leaf in flat.values() if leaf.is_sequence}


def _check_fits(filename: str, data: bytes, spec: specs.TensorSpecStruct) -> None:
  (features,) = features_lib.collect_features({"": spec}).values()
  found = explain.explain_record(data, features)
  if found:
    place = framing.place(filename, 0, 0)
    raise errors.mismatch_error(place, found, errors.RecordError)


def _find_damage(
  filenames: Iterator[str] | Sequence[str], error: Exception
) -> Exception:
  """Returns the error that names the damaged record; the given one if none is found."""
  try:
    for name in filenames:
      for _ in framing.iterate_records(name):
        pass
  except errors.RecordError as found:
    return found
  return error


def _changed(filename: str) -> errors.RecordError:
  return errors.RecordError(
    f"index: {filename}: expected a file at rest, got one that changed while it was "
    "read. Index it when it is complete."
  )
