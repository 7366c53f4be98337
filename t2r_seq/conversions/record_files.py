"""What reading episodes from TFRecord files has in common."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import errors, records, specs
from t2r_seq.conversions.episodes import Values
from t2r_seq.specs import image_checks

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
      found = image_checks.find_misfit(images.ravel().tolist(), leaf, path, True)
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
