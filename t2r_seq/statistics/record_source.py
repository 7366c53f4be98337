"""TFRecord files as a source: episodes, or plain records in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import records, specs
from t2r_seq.records import batch_sizes
from t2r_seq.statistics import fingerprints
from t2r_seq.statistics.sources import PART_BYTES, Item, Part, Source, Values

_INFERRED_FROM = 100
_FRAME_BYTES = 16


class RecordSource(Source):
  """Reads files one after the other; their records are parsed by the workers."""

  kind = "records"

  def __init__(
    self,
    file_patterns: records.FilePatterns,
    spec: specs.SpecStructure | None,
    images: bool,
    reads_bytes: bool,
    compression: str | None = None,
  ) -> None:
    """Finds the files and makes the parser.

    Args:
      file_patterns: of the files.
      spec: flat specs; None infers them from the first records.
      images: decodes encoded images.
      reads_bytes: gives strings and encoded images; otherwise counts them.
      compression: of all files, if the suffixes don't tell.
    Raises:
      SpecError: no file, or a spec that cannot be parsed.
      RecordError: a file that is none of TFRecords.
    """
    _, self._files = records.get_data_format_and_filenames(file_patterns)
    records.check_file_types(self._files, compression)
    self._compression = compression
    self.spec = self._infer() if spec is None else specs.flatten_spec_structure(spec)
    self.is_blocks = not any(leaf.is_sequence for leaf in self.spec.values())
    self.fingerprint = fingerprints.file_fingerprints(self._files)
    self._reads_bytes = reads_bytes
    self._absent = {p: s for p, s in self.spec.items() if _may_be_absent(s)}
    self._lengths = {p: f"{p}_length" for p, s in self.spec.items() if s.is_sequence}
    parse = records.create_parse_tf_example_fn(
      specs.add_sequence_length_specs(self.spec), decode_images=images
    )
    rank = [None] if self.is_blocks else []
    self._parse = tf.function(parse, input_signature=[tf.TensorSpec(rank, tf.string)])

  def _infer(self) -> specs.TensorSpecStruct:
    summary = records.inspect_records(self._files, _INFERRED_FROM, self._compression)
    logging.info("Specs inferred from the first %d records.", summary.num_records)
    return records.propose_spec(summary)

  def parts(self, cursor: dict[str, int]) -> Iterator[Part]:
    """See the base class; the files are read here, checksums verified."""
    first = cursor.get("file", 0)
    for index in range(first, len(self._files)):
      start = cursor if index == first else {}
      with records.explain_failures([self._files[index]], self.spec):
        yield from self._file_parts(
          index, start.get("records", 0), start.get("byte", 0)
        )

  def _file_parts(self, index: int, count: int, offset: int) -> Iterator[Part]:
    """Yields the rest of a file; `count` records and `offset` bytes of it are done."""
    name = self._files[index]
    kind = records.compression_type(name, self._compression)
    dataset = tf.data.TFRecordDataset(name, compression_type=kind).skip(count)
    found: list[bytes] = []
    num_bytes = 0
    lengths = map(len, dataset.as_numpy_iterator())
    size = batch_sizes.batch_size(lengths, PART_BYTES)
    for batch in dataset.batch(size).as_numpy_iterator():
      found += batch.tolist()
      num_bytes += sum(map(len, batch)) + _FRAME_BYTES * len(batch)
      if num_bytes >= PART_BYTES:
        count, offset = count + len(found), offset + num_bytes
        yield Part((name, found), {"file": index, "records": count, "byte": offset})
        found, num_bytes = [], 0
    count, offset = count + len(found), offset + num_bytes
    if not kind and offset != tf.io.gfile.stat(name).length:
      _find_end(name)
    yield Part((name, found), {"file": index, "records": count, "byte": offset})

  def read(self, part: Part) -> Iterator[Item]:
    """See the base class."""
    name, serialized = part.content
    with records.explain_failures([name], self.spec):
      if not self.is_blocks:
        for record in serialized:
          yield self._episode(record)
        return
      step = 1 if self._absent else len(serialized)
      for start in range(0, len(serialized), step):
        yield self._block(serialized[start : start + step])

  def _episode(self, record: bytes) -> Item:
    parsed = self._parse(tf.constant(record))
    for path, length in self._lengths.items():
      parsed[path] = parsed[path][: parsed[length]]
    values, skipped = self._split(parsed, [record])
    counts = [
      len(values[p]) if p in values else skipped.get(p, 0) for p in self._lengths
    ]
    return Item(values, skipped, max(counts))

  def _block(self, serialized: Sequence[bytes]) -> Item:
    return Item(*self._split(self._parse(tf.constant(serialized)), serialized), None)

  def _split(
    self, parsed: Any, serialized: Sequence[bytes]
  ) -> tuple[Values, dict[str, int]]:
    """Leaves out what is absent, and counts the bytes that nobody reads."""
    present = records.present_names(serialized[0]) if self._absent else set()
    values: Values = {}
    skipped: dict[str, int] = {}
    for path, spec in self.spec.items():
      if path in self._absent and spec.name not in present:
        continue
      tensor = parsed[path]
      if tensor.dtype == tf.string and not self._reads_bytes:
        has_rows = self.is_blocks or spec.is_sequence
        skipped[path] = int(tensor.shape[0]) if has_rows else 1
      else:
        kind = object if tensor.dtype == tf.string else None
        values[path] = np.asarray(tensor.numpy(), kind)
    return values, skipped


def _find_end(name: str) -> None:
  """Raises what is wrong with the end, which TensorFlow's reader passes over."""
  for _ in records.iterate_records(name):
    pass


def _may_be_absent(spec: specs.ExtendedTensorSpec) -> bool:
  is_varlen = spec.varlen_default_value is not None
  return spec.is_optional or (spec.is_sequence and is_varlen)
