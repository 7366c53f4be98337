"""Computes statistics in one pass: threads count parts, which are merged in order."""

from __future__ import annotations

import abc
import collections
import dataclasses
import json
import os
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, files, records, specs, windows
from t2r_seq.episodes import Episodes, open_episodes, registry
from t2r_seq.episodes.episodes import Values, num_bytes, num_steps, steps_spec
from t2r_seq.records import framing
from t2r_seq.records.files import (
  FilePatterns,
  check_file_types,
  get_data_format_and_filenames,
)
from t2r_seq.records.images import decode_images
from t2r_seq.records.protos import present_names
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.specs.extended_tensor_spec import added_axes, is_video_spec
from t2r_seq.specs.names import VIDEO_FORMATS
from t2r_seq.statistics.accumulators import Accumulator, create_accumulator
from t2r_seq.statistics.statistics import (
  FORMAT,
  LengthStatistics,
  PathStatistics,
  Statistics,
  file_fingerprints,
  load_statistics,
)
from t2r_seq.statistics.transforms import Transform, create_transform
from t2r_seq.store import EpisodeStore, layout

# Limits of a part. Parts are in memory: one for each worker, and one that waits.
PART_BYTES = 16 << 20
_MAX_EPISODES = 4096
_MAX_WORKERS = 8
_MAX_SHOWN = 10

SourceName = FilePatterns | os.PathLike[str] | Episodes
"""A path of any format, patterns of TFRecord files, or episodes."""


def compute_statistics(
  source: SourceName,
  output: str | os.PathLike[str] | None = None,
  spec: specs.SpecStructure | None = None,
  transform: Any = None,
  images: bool = False,
  num_workers: int | None = None,
  compression: str | None = None,
  cut: windows.Cut | None = None,
) -> Statistics:
  """Computes the statistics of all paths of a source, in one pass.

  The result is bit-identical for any number of workers: the bounds of the parts, and
  the order in which they are merged, are fixed.

  >>> import numpy as np
  >>> from t2r_seq import specs, statistics, store
  >>> x = specs.ExtendedTensorSpec((1,), "float32", is_sequence=True)
  >>> with store.EpisodeStore.create("demo", {"x": x}) as writer:
  ...   _ = writer.append_episode({"x": np.array([[1.0], [3.0]], np.float32)})
  >>> result = statistics.compute_statistics("demo", "statistics.json")
  >>> result.paths["x"].mean.tolist(), result.paths["x"].std.tolist()
  ([2.0], [1.0])

  Args:
    source: a path of any format, patterns of TFRecord files, or episodes that
      `open_episodes` returns.
    output: JSON file to write; None writes none.
    spec: specs of the paths to read, windowed or flat; None for the input of a
      preprocessor, else for all paths. Specs of records are proposed from all records
      then.
    transform: None counts the stored values. A function is called with the values of
      each episode by path, [T, ...] and context features, or with those of blocks of
      plain records, [B, ...]. It returns the values to count: [T', ...] for every path
      except the source's context features. A preprocessor runs on all windows; for a
      model, the stages of its preprocessor before `Normalize` do. 'module:name' imports
      one of these.
    images: decodes encoded images and videos; otherwise images are only counted, and
      videos of other formats than stores left out.
    num_workers: number of threads; None for the number of CPUs, at most 8.
    compression: compression of all TFRecord files, if the suffixes don't show it.
    cut: how the windows of a preprocessor are cut, as in training; None for
      `windows.Cut()` with the padding of the model. Padded steps don't count.
  Returns:
    The statistics, with those of each path in `paths`.
  Raises:
    SpecError: nothing to read; a spec, transform or cut that does not fit; values that
      change their shape or dtype between episodes; or an output that is a URL.
    RecordError: a record is damaged or does not fit; names its place.
    ImportError: `transform` names a missing module, or an extra is not installed.
    OSError: the output cannot be written, or is another file; a missing folder is found
      before anything is read.
  """
  _check_output(output)
  change = create_transform(transform, images, cut)
  opened = _open(source, spec, change, images, compression)
  change.prepare(opened)
  tally = _count(opened, change, images, num_workers)
  if not tally.num_items:
    what = "records" if opened.kind == "records" else "episodes"
    raise errors.SpecError(f"statistics: {source}: expected {what}, got none.")
  statistics = Statistics(
    kind=opened.kind,
    fingerprint=opened.fingerprint,
    transform=change.name,
    images=images,
    num_items=tally.num_items,
    lengths=LengthStatistics.of(tally.lengths),
    paths=tally.finish(change),
  )
  if output is not None:
    statistics.save(output)
  return statistics


def check_statistics(path: str | os.PathLike[str], source: SourceName) -> Statistics:
  """Reads statistics, and checks that their source has not changed since.

  Args:
    path: path of the JSON file.
    source: source as for `compute_statistics`.
  Returns:
    The statistics.
  Raises:
    SpecError: the file has no statistics, or the source is missing or has changed;
      names the first changed files.
    OSError: the file cannot be read.
  """
  statistics = load_statistics(path)
  episodes = _open_episodes(source)
  if episodes is not None:
    now = _fingerprint(episodes)
  else:
    patterns: Any = source
    now = file_fingerprints(get_data_format_and_filenames(patterns)[1])
  changes = statistics.find_changes(now)
  if changes:
    text = "; ".join(changes[:_MAX_SHOWN])
    if len(changes) > _MAX_SHOWN:
      text += f"; {len(changes) - _MAX_SHOWN} changes more"
    raise errors.SpecError(
      f"statistics: {os.fspath(path)}: expected the source that they were computed "
      f"from, got another: {text}. Compute them again."
    )
  return statistics


def _check_output(output: str | os.PathLike[str] | None) -> None:
  """Checks before the read that the output is local and replaces only statistics."""
  errors.check_local("statistics", output or "")
  if output is None:
    return
  folder = os.path.dirname(os.path.abspath(os.fspath(output)))
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f"statistics: {os.fspath(output)}: expected a file in a folder that exists, "
      f"got no folder {folder}. Make it first."
    )
  start = rb'\{\s*"format": "' + FORMAT.encode()
  hint = "Name another file (--output)."
  files.check_output("statistics", output, "statistics", start, hint)


# Counting.


class _Tally:
  """Accumulators by path, and the distribution of episode lengths.

  Attributes:
    num_items: number of episodes, or of plain records.
    lengths: number of episodes by number of steps.
  """

  def __init__(self) -> None:
    self.num_items = 0
    self.lengths: collections.Counter[int] = collections.Counter()
    self._paths: dict[str, Accumulator] = {}

  def add(self, item: _Item, source: _Source, transform: Transform) -> None:
    """Counts an item."""
    if item.num_steps is None:
      self.num_items += max([len(v) for v in item.values.values()] or [0])
    else:
      self.num_items += 1
      self.lengths[item.num_steps] += 1
    for path, (spec, rows) in transform.to_rows(item.values, source).items():
      self.accumulator(path, spec, rows.dtype == object).add(rows)
    if not transform.name:
      for path, count in item.skipped.items():
        self.accumulator(path, source.spec[path], True).rows += count

  def accumulator(
    self, path: str, spec: ExtendedTensorSpec, is_counted: bool
  ) -> Accumulator:
    """Returns the accumulator of a path; SpecError if it has another spec."""
    if path not in self._paths:
      self._paths[path] = create_accumulator(spec, is_counted)
    accumulator = self._paths[path]
    _check_same(path, accumulator.spec, spec)
    return accumulator

  def flush(self) -> None:
    for accumulator in self._paths.values():
      accumulator.flush()

  def merge(self, other: _Tally) -> None:
    self.num_items += other.num_items
    self.lengths.update(other.lengths)
    for path, accumulator in other._paths.items():
      if path in self._paths:
        _check_same(path, self._paths[path].spec, accumulator.spec)
        self._paths[path].merge(accumulator)
      else:
        self._paths[path] = accumulator

  def finish(self, transform: Transform) -> dict[str, PathStatistics]:
    """Returns the statistics by path, sorted."""
    return {
      path: dataclasses.replace(
        self._paths[path].finish(), transform=transform.representation(path)
      )
      for path in sorted(self._paths)
    }


def _check_same(path: str, before: ExtendedTensorSpec, now: ExtendedTensorSpec) -> None:
  if before != now:
    raise errors.SpecError(
      f"statistics: {path}: expected {errors.describe(before)}, as in the episodes "
      f"before, got {errors.describe(now)}. A transform gives the same shapes and "
      "dtypes for every episode."
    )


def _count_part(part: Any, source: _Source, transform: Transform) -> _Tally:
  tally = _Tally()
  for item in source.read(part):
    tally.add(item, source, transform)
  tally.flush()  # In the worker's thread: `merge` would do it in the caller's.
  return tally


def _count(
  source: _Source, transform: Transform, images: bool, num_workers: int | None
) -> _Tally:
  """Counts the parts, a few at a time, and merges them in order."""
  workers = num_workers or min(os.cpu_count() or 1, _MAX_WORKERS)
  tally = _Tally()
  if not transform.name:
    # A path has statistics even if no item has it.
    for path, leaf in source.spec.items():
      is_encoded = specs.is_encoded_image_spec(leaf) or is_video_spec(leaf)
      tally.accumulator(path, leaf, is_encoded and not images)
  waiting: collections.deque[futures.Future[_Tally]] = collections.deque()
  with futures.ThreadPoolExecutor(workers) as executor:
    try:
      for part in source.parts():
        waiting.append(executor.submit(_count_part, part, source, transform))
        if len(waiting) > workers:
          tally.merge(waiting.popleft().result())
      while waiting:
        tally.merge(waiting.popleft().result())
    finally:
      executor.shutdown(cancel_futures=True)
  return tally


@dataclasses.dataclass(frozen=True)
class _Item:
  """An episode, or a block of plain records.

  Attributes:
    values: by path, [T, ...] and context features of an episode, [B, ...] of a block.
      Absent optional paths are left out.
    skipped: number of rows by path, for byte strings, which are only counted.
    num_steps: T, the steps of the episode; None for a block.
  """

  values: Values
  skipped: dict[str, int]
  num_steps: int | None


class _Source(abc.ABC):
  """Episodes or plain records to count, with specs that are known before reading.

  Attributes:
    kind: 'records' for paths of TFRecord files, 'store', or 'episodes' for others.
    spec: flat specs by path.
    metadata: metadata of the episodes; JSON values.
    clocks: clocks of the episodes; see `Episodes.clocks`.
    is_blocks: items are blocks of plain records, not episodes.
    fingerprint: texts by name of a file or part, which change if the data does.
  """

  kind: str
  metadata: Mapping[str, Any] = types.MappingProxyType({})
  clocks: Mapping[str, str] = types.MappingProxyType({})
  is_blocks = False
  fingerprint: dict[str, str]

  def __init__(self, spec: TensorSpecStruct, images: bool, reads_bytes: bool) -> None:
    """Plans what is read.

    Args:
      spec: flat specs by path.
      images: decodes encoded images.
      reads_bytes: keeps strings and encoded images for a transform; else counts them.
    """
    self.spec = spec
    encoded = {p: s for p, s in spec.items() if specs.is_encoded_image_spec(s)}
    self._decoders = {p: _make_decoder(p, s) for p, s in encoded.items() if images}
    self._counted = {
      path
      for path, leaf in spec.items()
      if not reads_bytes
      and (path in encoded or leaf.dtype == tf.string or is_video_spec(leaf))
      and path not in self._decoders
    }
    self._reads_bytes = reads_bytes

  @abc.abstractmethod
  def parts(self) -> Iterator[Any]:
    """Yields parts of a few episodes or records; their bounds are always the same."""

  @abc.abstractmethod
  def read(self, part: Any) -> Iterator[_Item]:
    """Yields the items of a part; several threads call it at a time."""

  def _item(self, values: Values, num_steps: int | None) -> _Item:
    """Returns an item with decoded images; bytes that are only counted are skipped."""
    item: Values = {}
    skipped: dict[str, int] = {}
    for path, spec in self.spec.items():
      if path not in values:
        continue
      value = values[path]
      has_rows = self.is_blocks or spec.is_sequence
      if spec.is_sequence and not self._reads_bytes:
        value = _without_missing(spec, value)
      if path in self._counted and value.dtype == object:
        skipped[path] = len(value) if has_rows else 1
        continue
      if path in self._decoders:
        pixels = self._decoders[path](value if has_rows else value[None])
        value = pixels if has_rows else pixels[0]
      item[path] = value
    return _Item(item, skipped, num_steps)


def _without_missing(spec: ExtendedTensorSpec, rows: np.ndarray) -> np.ndarray:
  """Drops rows with a missing image, which is an empty string."""
  if not specs.is_encoded_image_spec(spec) or rows.dtype != object:
    return rows
  is_present = np.asarray(rows != b"", bool)
  return rows[is_present.all(axis=tuple(range(1, rows.ndim)))]


def _trace(function: Callable[..., Any], signature: tf.TensorSpec) -> Any:
  """Traces now: TensorFlow takes the first calls of several functions for retracing."""
  traced = tf.function(function, input_signature=[signature], autograph=False)
  return traced.get_concrete_function()


def _make_decoder(
  path: str, spec: ExtendedTensorSpec
) -> Callable[[np.ndarray], np.ndarray]:
  """Returns a function from encoded images [n, ...] to their pixels."""
  outer = [None] * (spec.shape.rank - 3 + 1)
  decode = _trace(
    lambda encoded: decode_images(encoded, spec, path),
    tf.TensorSpec(outer, tf.string),
  )

  def to_pixels(encoded: np.ndarray) -> np.ndarray:
    pixels = decode(tf.constant(encoded, tf.string)).numpy()
    return pixels.reshape(len(encoded), *spec.shape)

  return to_pixels


class _RecordSource(_Source):
  """TFRecord files: one thread reads them in order, the workers parse the records."""

  kind = "records"

  def __init__(
    self,
    patterns: FilePatterns,
    spec: TensorSpecStruct | None,
    images: bool,
    reads_bytes: bool,
    compression: str | None,
  ) -> None:
    _, self._files = get_data_format_and_filenames(patterns)
    check_file_types(self._files, compression)
    self._compression = compression
    super().__init__(self._infer() if spec is None else spec, images, reads_bytes)
    self.is_blocks = not any(leaf.is_sequence for leaf in self.spec.values())
    self.fingerprint = file_fingerprints(self._files)
    self._absent = {
      path: leaf
      for path, leaf in self.spec.items()
      if leaf.is_optional
      or (leaf.is_sequence and leaf.varlen_default_value is not None)
    }
    self._lengths = {p: f"{p}_length" for p, s in self.spec.items() if s.is_sequence}
    parse = records.create_parse_tf_example_fn(
      specs.add_sequence_length_specs(self.spec), decode_images=False
    )
    rank = [None] if self.is_blocks else []
    self._parse = _trace(parse, tf.TensorSpec(rank, tf.string))

  def _infer(self) -> TensorSpecStruct:
    # All records are inspected: a later one may have an empty list, or another length.
    summary = records.inspect_records(self._files, compression=self._compression)
    proposed = records.propose_spec(summary)
    for line in summary.describe_odd_values():
      logging.warning("%s", line)
    padded = [
      path
      for path, leaf in proposed.items()
      if leaf.varlen_default_value is not None and leaf.dtype != tf.string
    ]
    hint = (
      "Its records have different numbers of values, and padding is not data. Name it "
      "in a spec to have it count; t2r_seq doctor shows the kinds of records."
    )
    if padded and len(padded) == len(proposed):
      want = "as many values in every record"
      mismatches = [errors.Mismatch(path, want, "others", hint) for path in padded]
      raise errors.mismatch_error(f"statistics: {self._files[0]}", mismatches)
    for path in padded:
      logging.warning("No statistics of '%s'. %s", path, hint)
    return TensorSpecStruct((p, s) for p, s in proposed.items() if p not in padded)

  def parts(self) -> Iterator[tuple[str, list[bytes]]]:
    """Yields a file's name and some of its serialized records, with valid checksums."""
    for name in self._files:
      with records.explain_failures([name], self.spec, compression=self._compression):
        yield from self._file_parts(name)

  def _file_parts(self, name: str) -> Iterator[tuple[str, list[bytes]]]:
    kind = records.files.compression_type(name, self._compression)
    dataset = tf.data.TFRecordDataset(name, compression_type=kind)
    serialized: list[bytes] = []
    part_bytes = total = 0
    lengths = map(len, dataset.as_numpy_iterator())
    size = framing.batch_size(lengths, PART_BYTES)
    for batch in dataset.batch(size).as_numpy_iterator():
      serialized += batch.tolist()
      part_bytes += sum(map(len, batch)) + framing.FRAME_SIZE * len(batch)
      if part_bytes >= PART_BYTES:
        yield name, serialized
        total += part_bytes
        serialized, part_bytes = [], 0
    if not kind and total + part_bytes != tf.io.gfile.stat(name).length:
      # TensorFlow's reader ignores a damaged end; this one raises.
      collections.deque(framing.iterate_records(name), maxlen=0)
    yield name, serialized

  def read(self, part: tuple[str, list[bytes]]) -> Iterator[_Item]:
    """Parses the records; leaves out episodes without a step, as other readers do."""
    name, serialized = part
    with records.explain_failures([name], self.spec, compression=self._compression):
      if self.is_blocks:
        step = 1 if self._absent else len(serialized)
        for start in range(0, len(serialized), step):
          block = serialized[start : start + step]
          yield self._item(self._values(tf.constant(block), block), None)
        return
      num_empty = 0
      for record in serialized:
        item = self._episode(record)
        num_empty += not item.num_steps
        if item.num_steps:
          yield item
      if num_empty:
        logging.warning(
          "statistics: %s: %d episodes without a step are left out.", name, num_empty
        )

  def _episode(self, record: bytes) -> _Item:
    values = self._values(tf.constant(record), [record])
    lengths = [int(values.pop(name)) for name in self._lengths.values()]
    counts = []
    for path, length in zip(self._lengths, lengths, strict=True):
      if path in values:
        values[path] = values[path][:length]
        counts.append(length)
    return self._item(values, max(counts, default=0))

  def _values(self, tensor: tf.Tensor, serialized: Sequence[bytes]) -> Values:
    """Parses records; leaves out paths that are absent in the first of them."""
    present = present_names(serialized[0]) if self._absent else set()
    return {
      path: np.asarray(value.numpy(), object if value.dtype == tf.string else None)
      for path, value in self._parse(tensor).items()
      if path not in self._absent or self._absent[path].name in present
    }


class _EpisodesSource(_Source):
  """Whole episodes of any format.

  With random access the workers read the episodes. Otherwise one thread reads them in
  order, and the workers decode images and count.
  """

  def __init__(
    self,
    episodes: Episodes,
    requested: TensorSpecStruct | None,
    images: bool,
    reads_bytes: bool,
  ) -> None:
    """Plans what is read.

    Args:
      episodes: episodes as from `open_episodes`.
      requested: flat specs of the paths to read; None for all, without the frames of
        videos unless `images`.
      images: decodes encoded images, and videos.
      reads_bytes: keeps strings and encoded images for a transform; else counts them.
    """
    self.kind = "episodes" if episodes.rows() is None else "store"
    self.fingerprint = _fingerprint(episodes)
    if not images:
      # Whole videos are counted if they are columns; nothing is decoded.
      episodes = episodes.with_videos(VIDEO_FORMATS)
    self._episodes, self.metadata = episodes, episodes.metadata
    decoded = () if images else {*episodes.videos} - {*episodes.kept_videos}
    paths = [path for path in episodes.spec if path not in decoded]
    if requested is not None:
      _check_specs(episodes, requested)
      paths = [*requested]
    self.clocks = episodes.clocks
    spec = TensorSpecStruct(
      (path, steps_spec(leaf) if path in self.clocks else leaf)
      for path, leaf in ((path, episodes.spec[path]) for path in paths)
    )
    super().__init__(spec, images, reads_bytes)
    # Only their values show which episodes have a path, or how many stamps of a clock.
    read = {p for p in paths if spec[p].is_optional or p in self.clocks}
    self._unread = [p for p in paths if p in self._counted and p not in read]
    self._read = [path for path in paths if path not in self._unread]

  def parts(self) -> Iterator[Any]:
    """Yields ranges of episodes of about `PART_BYTES`; without random access values."""
    lengths = self._episodes.lengths
    if lengths is None:
      yield from self._groups()
      return
    row_bytes = sum(
      int(np.prod(leaf.shape.as_list())) * max(leaf.dtype.size, 1)
      for path, leaf in self.spec.items()
      if leaf.is_sequence and path not in self._counted
    )
    total = np.cumsum(lengths, dtype=np.int64) * max(row_bytes, 1)
    start = 0
    while start < len(lengths):
      before = int(total[start - 1]) if start else 0
      end = int(np.searchsorted(total, before + PART_BYTES)) + 1
      end = min(end, start + _MAX_EPISODES, len(lengths))
      yield range(start, end)
      start = end

  def _groups(self) -> Iterator[list[Values]]:
    size = 0
    group: list[Values] = []
    for episode in self._episodes:
      group.append(episode.values)
      size += num_bytes(episode.values)
      if size >= PART_BYTES or len(group) == _MAX_EPISODES:
        yield group
        group, size = [], 0
    if group:
      yield group

  def read(self, part: range | list[Values]) -> Iterator[_Item]:
    """Reads the episodes of a range, or uses those already read."""
    if not isinstance(part, range):
      for values in part:
        yield self._item(values, num_steps(values, self._episodes.spec))
      return
    lengths: Any = self._episodes.lengths
    for number in part:
      length = int(lengths[number])
      item = self._item(self._episodes.read(number, self._read), length)
      for path in self._unread:
        item.skipped[path] = length if self.spec[path].is_sequence else 1
      yield item


def _check_specs(episodes: Episodes, requested: TensorSpecStruct) -> None:
  """Raises SpecError if requested paths are missing, or have another shape or dtype."""
  mismatches = []
  for path, spec in requested.items():
    given = episodes.spec.get(path)
    if given is None:
      near = errors.nearest(path, episodes.spec)
      mismatches.append(errors.Mismatch(path, errors.describe(spec), "nothing", near))
    elif given.dtype not in (spec.dtype, spec.stored_dtype) or not (
      spec.shape.is_compatible_with(given.shape)
      or specs.is_encoded_image_spec(given)
      or added_axes(given.shape, spec.shape)
    ):
      got = errors.describe(given)
      mismatches.append(errors.Mismatch(path, errors.describe(spec), got))
  if mismatches:
    raise errors.mismatch_error(f"statistics: {episodes.path}", mismatches)


def _fingerprint(episodes: Episodes) -> dict[str, str]:
  store = episodes.rows()
  if store is not None:
    return _store_fingerprint(store)
  return {name: json.dumps(v) for name, v in episodes.fingerprint().items()}


def _store_fingerprint(opened: EpisodeStore) -> dict[str, str]:
  """Returns checksums of the specs, and of the lengths and checksums of the episodes.

  A merge of segments changes only the offsets of byte strings, which are left out.
  """
  columns = opened.columns
  names = layout.file_names(columns)
  offsets = {c.offsets_file for c in columns.values() if c.is_bytes}
  kept = [index for index, name in enumerate(names) if name not in offsets]
  crc = zlib.crc32(opened.episode_lengths.astype("<i8").tobytes())
  for segment in opened.segments:
    path = os.path.join(segment.folder, layout.CHECKSUMS)
    sums = np.fromfile(path, "<u4", len(segment) * len(names))
    crc = zlib.crc32(sums.reshape(-1, len(names))[:, kept].tobytes(), crc)
  spec_crc = zlib.crc32(opened.spec.to_json().encode())
  return {"specs": f"{spec_crc:08x}", "episodes": f"{len(opened)}-{crc:08x}"}


def _open_episodes(source: SourceName) -> Episodes | None:
  """Returns episodes; None for TFRecord files, whose records are parsed in blocks."""
  if isinstance(source, Episodes):
    return source
  if isinstance(source, (str, os.PathLike)) and registry.find_format(source).has_specs:
    return open_episodes(source)
  patterns: Any = source
  names = get_data_format_and_filenames(patterns)[1]
  # TensorFlow does not read ArrayRecord.
  return open_episodes(",".join(names)) if framing.is_array_record(names[0]) else None


def _open(
  source: SourceName,
  spec: specs.SpecStructure | None,
  transform: Transform,
  images: bool,
  compression: str | None,
) -> _Source:
  requested = None if spec is None else windows.flat_specs(spec)
  reads_bytes = bool(transform.name)
  episodes = _open_episodes(source)
  if requested is None:
    requested = transform.stored_specs(None if episodes is None else episodes.spec)
  if episodes is not None:
    return _EpisodesSource(episodes, requested, images, reads_bytes)
  patterns: Any = source
  if requested is not None:
    requested = specs.flatten_spec_structure(requested)
  return _RecordSource(patterns, requested, images, reads_bytes, compression)
