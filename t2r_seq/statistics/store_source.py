"""An EpisodeStore as a source: episodes as views of its files."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import numpy as np
import tensorflow as tf

from t2r_seq import records, specs, store
from t2r_seq.statistics.sources import PART_BYTES, Item, Part, Source, Values
from t2r_seq.store import layout

_MAX_EPISODES = 4096


def is_store(source: Any) -> TypeGuard[str | os.PathLike[str]]:
  """Whether this is the folder of a store."""
  if not isinstance(source, (str, os.PathLike)):
    return False
  return os.path.isfile(os.path.join(os.fspath(source), layout.MANIFEST))


class StoreSource(Source):
  """Reads the committed episodes of all segments."""

  kind = "store"
  is_blocks = False

  def __init__(
    self,
    path: str | os.PathLike[str],
    spec: specs.SpecStructure | None,
    images: bool,
    reads_bytes: bool,
  ) -> None:
    """Opens the store.

    Args:
      path: of the folder.
      spec: flat specs of the paths to read; None for all.
      images: decodes encoded images.
      reads_bytes: gives strings and encoded images; otherwise counts them.
    Raises:
      StoreError: a damaged or newer store.
      SpecError: with every difference between `spec` and the store's.
    """
    self._store = store.EpisodeStore(path, spec)
    wanted = self._store.spec if spec is None else specs.flatten_spec_structure(spec)
    self.spec = specs.TensorSpecStruct((p, self._store.spec[p]) for p in wanted)
    self._columns = layout.make_columns("statistics", self._store.spec)
    self._reads_bytes = reads_bytes
    self._decoders = {
      p: _make_decoder(p, s)
      for p, s in self.spec.items()
      if images and specs.is_encoded_image_spec(s)
    }
    self.fingerprint = self._find_fingerprint()

  def _find_fingerprint(self) -> dict[str, str]:
    """Of the specs, the lengths and the checksums of the episodes.

    A merge of segments leaves it as it is: only offsets of bytes differ after one.
    """
    names = layout.file_names(self._columns)
    offsets = {c.offsets_file for c in self._columns.values() if c.is_bytes}
    kept = [index for index, name in enumerate(names) if name not in offsets]
    crc = zlib.crc32(self._store.episode_lengths.astype("<i8").tobytes())
    for segment in self._store.segments:
      path = os.path.join(segment.folder, layout.CHECKSUMS)
      sums = np.fromfile(path, "<u4", len(segment) * len(names))
      crc = zlib.crc32(sums.reshape(-1, len(names))[:, kept].tobytes(), crc)
    spec_crc = zlib.crc32(self._store.spec.to_json().encode())
    return {
      "specs": f"{spec_crc:08x}",
      "episodes": f"{len(self._store)}-{crc:08x}",
    }

  def parts(self, cursor: dict[str, int]) -> Iterator[Part]:
    """See the base class; the cursor counts episodes of the whole store."""
    done, first = cursor.get("episodes", 0), 0
    for segment in self._store.segments:
      ends = self._part_ends(segment)
      for start, end in zip([0, *ends], ends, strict=False):
        if first + start >= done:
          yield Part((segment, start, end), {"episodes": first + end})
      first += len(segment)

  def _part_ends(self, segment: store.Segment) -> list[int]:
    """Cuts a segment into parts by the bytes that are read of it."""
    row_bytes = sum(
      self._columns[p].items_per_row * self._columns[p].dtype.itemsize
      if p not in self._decoders
      else int(np.prod(s.shape.as_list())) * s.dtype.size
      for p, s in self.spec.items()
      if s.is_sequence
    )
    total = segment.episode_ends.astype(np.int64) * max(row_bytes, 1)
    ends, start = [], 0
    while start < len(segment):
      before = int(total[start - 1]) if start else 0
      end = int(np.searchsorted(total, before + PART_BYTES)) + 1
      start = min(end, start + _MAX_EPISODES, len(segment))
      ends.append(start)
    return ends

  def read(self, part: Part) -> Iterator[Item]:
    """See the base class."""
    segment, start, end = part.content
    present = {p: segment.is_present(p) for p, s in self.spec.items() if s.is_optional}
    ends = segment.episode_ends
    for index in range(start, end):
      rows = (int(ends[index - 1]) if index else 0, int(ends[index]))
      absent = {path for path, is_there in present.items() if not is_there[index]}
      yield self._episode(segment, index, rows, absent)

  def _episode(
    self, segment: store.Segment, index: int, steps: tuple[int, int], absent: set[str]
  ) -> Item:
    values: Values = {}
    skipped: dict[str, int] = {}
    for path, spec in self.spec.items():
      if path in absent:
        continue
      rows = steps if spec.is_sequence else (index, index + 1)
      column = segment.column(path)
      if isinstance(column, store.BytesColumn):
        if path not in self._decoders and not self._reads_bytes:
          skipped[path] = rows[1] - rows[0]
          continue
        found = column.rows(*rows)
        if path in self._decoders:
          found = self._decoders[path](found)
      else:
        found = column[rows[0] : rows[1]]
      values[path] = found if spec.is_sequence else found.reshape(found.shape[1:])
    return Item(values, skipped, steps[1] - steps[0])


def _make_decoder(
  path: str, spec: specs.ExtendedTensorSpec
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a function of encoded images [n, ...] that gives their pixels."""
  outer = [None] * (spec.shape.rank - 3 + 1)

  @tf.function(input_signature=[tf.TensorSpec(outer, tf.string)])
  def decode(encoded: tf.Tensor) -> tf.Tensor:
    return records.decode_images(encoded, spec, path)

  def to_pixels(encoded: np.ndarray) -> np.ndarray:
    pixels = decode(tf.constant(encoded, tf.string)).numpy()
    return pixels.reshape(len(encoded), *spec.shape)

  return to_pixels
