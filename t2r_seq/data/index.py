"""Record files read in any order, by their sidecar index (`t2r_seq index`).

`RecordReads` reads records where the index says that they lie. `IndexedRecordLoader`
makes batches of the windows of episode records, or of records that are examples.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import gin
import numpy as np
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.data import arguments, pool, record_files
from t2r_seq.data.loaders import PoolReader, WindowLoader
from t2r_seq.data.plan import Plan, plan_and_cut
from t2r_seq.episodes import choose_episodes
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.records.files import FilePatterns
from t2r_seq.records.images import DecodeImages, decode_to_list
from t2r_seq.records.index import RecordIndex
from t2r_seq.records.index_file import FileIndex, index_path
from t2r_seq.store.mapped import HeldTensor
from t2r_seq.windows.cut import too_short_error

_as_it_is = tf.autograph.experimental.do_not_convert

OPTIONS = (None, "auto", "require")
# What TensorFlow's reader asks the file system for at once, at most.
_MAX_BUFFER = 1 << 18
# Bytes of examples that are read at once, as a run of records that are neighbours.
_RUN_BYTES = 1 << 16
# Records of more bytes are too large to be parsed whole for each of their windows.
_LARGE_RECORD = 1 << 20
_RECORD = "record"
_FLAGS_AT_ONCE = 1024
# Of a string in a tensor, beside those that it has.
_STRING_BYTES = 24


class RecordReads:
  """Reads runs of records that follow each other in one file.

  TensorFlow's own reader starts at the byte where the first of them lies, so checksums
  are verified, any file system will do, and no Python runs. What a read costs beside
  its bytes, 80 us, is the making of that reader.
  """

  def __init__(
    self,
    index: RecordIndex,
    run_length: int = 1,
    chosen: np.ndarray | None = None,
  ) -> None:
    """Prepares; reads nothing.

    Args:
      index: of the files, none of which is compressed.
      run_length: records that are read at once; a file's last run may be shorter, and
        so may one before a record that is not chosen.
      chosen: numbers of the records that are read, rising; None for all.
    Raises:
      RecordError: a file is compressed.
    """
    index.require_random_access()
    if chosen is None:
      chosen = np.arange(len(index))
    ends = index.record_ends
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    plan = [
      _plan_runs(file, numbers - (end - file.num_records), run_length)
      for file, numbers, end in zip(index.files, parts, ends, strict=True)
    ]
    files = np.repeat(np.arange(len(plan)), [len(counts) for counts, _, _ in plan])
    self.counts: np.ndarray = np.concatenate([counts for counts, _, _ in plan])
    offsets = np.concatenate([offsets for _, offsets, _ in plan])
    sizes = np.concatenate([sizes for _, _, sizes in plan])
    self._filenames = HeldTensor.of(np.array(index.filenames))
    self._files = HeldTensor.of(files)
    self._counts = HeldTensor.of(self.counts)
    self._offsets = HeldTensor.of(offsets)
    self._buffers = HeldTensor.of(np.minimum(sizes, _MAX_BUFFER))
    self.held = [
      *(self._filenames, self._files, self._counts, self._offsets, self._buffers)
    ]

  def dataset(self, run: tf.Tensor) -> tf.data.Dataset:
    """Reads one run.

    Args:
      run: its number, int64 scalar.
    Returns:
      Dataset of its serialized records, scalar strings.
    """
    file = _pick(self._files, run)
    dataset = tf.raw_ops.TFRecordDatasetV2(
      filenames=[_pick(self._filenames, file)],
      compression_type="",
      buffer_size=_pick(self._buffers, run),
      byte_offsets=[_pick(self._offsets, run)],
    )
    structure = tf.TensorSpec([], tf.string)
    records_on = tf.data.experimental.from_variant(dataset, structure)
    return records_on.take(_pick(self._counts, run))

  def read(self, runs: tf.Tensor) -> tf.Tensor:
    """Reads runs, one after the other.

    Args:
      runs: int64 [N], N >= 1, in any order.
    Returns:
      The serialized records of all of them, string [M].
    """
    total = tf.reduce_sum(tf.gather(self._counts.read_value(), runs))
    dataset = tf.data.Dataset.from_tensor_slices(runs).flat_map(_as_it_is(self.dataset))
    return dataset.batch(total, drop_remainder=True).get_single_element()


def _plan_runs(
  index: FileIndex, numbers: np.ndarray, run_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns records, first byte and bytes of every run of a file, int64 [runs]."""
  places = np.arange(len(numbers))
  is_first = np.diff(numbers, prepend=-2) != 1
  # Neighbours are cut into runs from the first of them on.
  since_first = places - np.maximum.accumulate(np.where(is_first, places, 0))
  starts = np.flatnonzero(since_first % run_length == 0)
  firsts = numbers[starts]
  ends = firsts + np.diff(starts, append=len(numbers))
  offsets = index.offsets[firsts]
  return ends - firsts, offsets, index.ends[ends - 1] - offsets


def _pick(values: HeldTensor, number: tf.Tensor) -> tf.Tensor:
  return tf.gather(values.read_value(), number)


class _WindowPools(PoolReader):
  """Pools of the windows that specs cut from records: each is parsed once a pool.

  Attributes:
    flat: specs of what is parsed, by path.
    episode_lengths: steps of each record, int64 [records].
  """

  def __init__(
    self,
    index: RecordIndex,
    spec_structure: specs.SpecStructure,
    cut: windows.Cut,
    decode_images: DecodeImages,
    chosen: np.ndarray | None,
    decodes_late: bool,
  ) -> None:
    """Plans the windows; reads the first record only.

    Args:
      index: of files with at least one record, none of them compressed.
      spec_structure: the specs of a window, of one dataset. Optional features that the
        first record lacks are left out.
      cut: how episodes become windows.
      decode_images: gives pixels, perhaps in a way of its own; False the strings that
        the records hold.
      chosen: numbers of the records that have windows; None for all.
      decodes_late: decodes the images that windows show, and not those of all steps
        from the first to the last of these.
    Raises:
      SpecError: the specs do not fit each other, or the index.
      RecordError: a file is compressed, or has changed.
    """
    reads = RecordReads(index)
    first = tf.constant(index.read(0))
    flat = windows.flat_specs(spec_structure, cut.n_step)
    flat = record_files.leave_out_absent(flat, first)
    flat = record_files.add_flags(flat, first)
    self.flat = specs.map_leaves(specs.ExtendedTensorSpec.to_spec, flat)
    parse_fn = records.create_parse_tf_example_fn(
      flat, decode_images=False, is_one_episode=True
    )
    element = record_files.element_spec(self.flat)
    columns = pool.PoolColumns(element, spec_structure, cut, decode_images)
    self._late_images = dict(columns.images) if decodes_late else {}
    if decodes_late:
      columns = pool.PoolColumns(element, spec_structure, cut, decode_images=False)
    self.episode_lengths: np.ndarray = index.num_steps(self.flat)
    reader = columns.reader
    last_flags = None
    if reader.end_flag is not None:
      last_flags = _last_flags(index, reader.end_flag, self.flat)
    num_rows = reader.num_rows(self.episode_lengths, last_flags)
    counts = np.asarray(reader.grid.num_windows(num_rows))
    if chosen is not None:
      counts = np.where(np.isin(np.arange(len(counts)), chosen), counts, 0)
    if not counts.any():
      lengths = self.episode_lengths
      raise too_short_error(
        f"IndexedRecordLoader: {index.filenames[0]}",
        reader.min_steps,
        len(lengths),
        int(lengths.max()),
      )
    # Strings that stay are a part of their records.
    strings = [
      path
      for path, spec in self.flat.items()
      if spec.dtype == tf.string or specs.is_encoded_image_spec(spec)
      if path not in columns.images
    ]
    of_strings = 0
    if strings:
      steps = np.maximum(self.episode_lengths, 1)
      of_strings = int(np.ceil((index.lengths / steps).max()))
      of_strings += _STRING_BYTES * len(strings)
    super().__init__(
      columns,
      counts,
      self.episode_lengths,
      step_bytes=columns.step_bytes + (3 * of_strings + 1) // 2,
      parsed_bytes=int(index.lengths.max()),
      held=reads.held,
    )
    self._columns, self._reads, self._parse = columns, reads, parse_fn
    self._decode_images = decode_images

  def read(self, window_ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Reads windows; an image that several of them show is decoded once."""
    found = super().read(window_ids)
    for path, reading in self._columns.reader.readings.items():
      spec = self._late_images.get(reading.source)
      if spec is not None:
        distinct, places = tf.unique(tf.reshape(found[path], [-1]))
        places = tf.reshape(places, tf.shape(found[path]))
        images = decode_to_list(distinct, spec, reading.source, self._decode_images)
        found[path] = images.gather(tf.ensure_shape(places, found[path].shape))
    return found

  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    timed = self._columns.encoded.timed_paths

    def keep(episode: tf.Tensor, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
      data = self._reads.dataset(episode).get_single_element()
      values = self._columns.select(self._parse(data))
      shown = {path: values[path][first : first + count] for path in timed}
      return self._columns.keep({**values, **shown})["kept"]

    # Images of one episode are decoded in parallel.
    num_calls = None if self._columns.images else pool.PARSES_AT_ONCE
    parts = tf.data.Dataset.from_tensor_slices((episodes, first_step, num_steps))
    kept = record_files.map_in_order(parts, _as_it_is(keep), num_calls)
    together = kept.batch(tf.size(episodes, tf.int64), drop_remainder=True)
    return self._columns.join(
      tf.raw_ops.TensorListFromTensor(
        tensor=together.get_single_element(), element_shape=tf.constant([], tf.int32)
      )
    )


def _last_flags(
  index: RecordIndex, path: str, flat: specs.TensorSpecStruct
) -> np.ndarray:
  """Reads whether a flag is set in the last step of each record, bool [records]."""
  parse_fn = records.create_parse_tf_example_fn({path: flat[path]})

  @_as_it_is
  def is_set(record: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any(tf.cast(parse_fn(record)[path][-1:], tf.bool))

  serialized = record_files.read_records({"": list(index.filenames)}, check=False)
  found = serialized.map(is_set, tf.data.AUTOTUNE).batch(_FLAGS_AT_ONCE)
  return np.concatenate([*found.as_numpy_iterator()])


class _ExampleRows(pool.PoolRows):
  """Rows that are records, which are parsed when they are gathered."""

  def __init__(self, parse_fn: record_files.ParseFn) -> None:
    element = {_RECORD: tf.TensorSpec([None], tf.string)}
    spec = {_RECORD: specs.ExtendedTensorSpec((), tf.string, time_offsets=0)}
    super().__init__(windows.WindowReader(element, spec), element, {})
    self._parse = parse_fn

  def read(self, rows: Any, chosen: tf.Tensor) -> specs.TensorSpecStruct:
    """Reads records, and parses them."""
    return self._parse(super().read(rows, chosen)[_RECORD])


class _ExamplePools(PoolReader):
  """Pools of records that are examples.

  Runs of records that are neighbours in a file stand for the episodes, and each record
  for a window of one step.

  Attributes:
    flat: specs of what is parsed, by path.
  """

  def __init__(
    self,
    index: RecordIndex,
    spec_structure: specs.SpecStructure,
    decode_images: DecodeImages,
    chosen: np.ndarray | None,
    run_bytes: int,
  ) -> None:
    """Plans the runs; reads the first record only.

    Args:
      index: of files with at least one record, none of them compressed.
      spec_structure: specs without time offsets, of one dataset. Optional features that
        the first record lacks are left out.
      decode_images: gives pixels, perhaps in a way of its own; False the strings that
        the records hold.
      chosen: numbers of the records to read; None for all.
      run_bytes: of a run, about.
    Raises:
      SpecError: a spec cannot be parsed.
      RecordError: a file is compressed, or has changed.
    """
    mean_bytes = max(1, int(index.lengths.mean()))
    self._reads = RecordReads(index, max(1, run_bytes // mean_bytes), chosen)
    flat = specs.flatten_spec_structure(spec_structure)
    self.flat = record_files.leave_out_absent(flat, tf.constant(index.read(0)))
    parse_fn = records.create_parse_tf_example_fn(
      self.flat, decode_images=decode_images
    )
    counts = self._reads.counts
    row_bytes = int(index.lengths.max()) + _STRING_BYTES
    super().__init__(
      _ExampleRows(parse_fn),
      counts,
      counts,
      # In pieces as they are read, and then in one.
      step_bytes=(3 * row_bytes + 1) // 2,
      held=self._reads.held,
    )

  def _read(
    self, episodes: tf.Tensor, first_step: tf.Tensor, num_steps: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    counts = tf.gather(self._episodes.read_value()[0], episodes)
    first_rows = tf.cumsum(counts, exclusive=True) + first_step
    rows = tf.ragged.range(first_rows, first_rows + num_steps).flat_values
    return {_RECORD: tf.gather(self._reads.read(episodes), rows)}


@gin.configurable
class IndexedRecordLoader(WindowLoader):
  """Loads batches of windows, or of records, from TFRecord files with indices.

  Of specs without time offsets each record is a window; see `WindowLoader`.

  Attributes:
    index: of the files.
    flat: specs of what is parsed, by path.
  """

  def __init__(
    self,
    file_patterns: FilePatterns | RecordIndex,
    spec_structure: specs.SpecStructure,
    batch_size: int | None = None,
    order: str | None = None,
    plan: Plan | None = None,
    cut: windows.Cut | None = None,
    decode_images: DecodeImages = True,
    episodes: Episodes | None = None,
    split: str | None = None,
    **fields: Any,
  ) -> None:
    """Plans the batches from the indices; reads one record.

    Args:
      file_patterns: of files that `t2r_seq index` has indexed, none compressed; or
        their index, of `records.read_index`.
      spec_structure: the specs of a window; without time offsets, of a record.
      batch_size: B.
      order: 'sequential'; 'global': every epoch another permutation of all windows,
        where a window costs the parse of its whole record, so that large records are
        refused; or 'quasi_random', the default: the windows of a pool of records are
        permuted, and the records, so that each is read, parsed and decoded once a pool.
      plan: of the batches; None for `Plan()`.
      cut: how episodes become windows; None for `windows.Cut()`.
      decode_images: gives pixels, perhaps in a way of its own: a
        `records.ImageDecoding`; False the strings that the records hold.
      episodes: numbers of the records to read, through all files, or a file that lists
        them; None for all.
      split: reads only the files that are named after it, such as 'train' of
        bridge-train.tfrecord-00000-of-00010; None for all.
      **fields: or fields of the plan and the cut: seed=1, padding='repeat', ...
    Raises:
      SpecError: the specs do not fit the files, or these are too small for one batch,
        or their records too large for the order.
      RecordError: an index is missing or stale, or a file is compressed.
    """
    fields = {"batch_size": batch_size, "order": order, **fields}
    plan, cut = plan_and_cut("IndexedRecordLoader", plan, cut, fields)
    plan = plan.seeded("quasi_random")
    self.index = (
      file_patterns
      if isinstance(file_patterns, RecordIndex)
      else records.read_index(file_patterns)
    )
    if not len(self.index):
      raise errors.RecordError(
        f"IndexedRecordLoader: {self.index.filenames[0]}: expected records, got none "
        f"in {len(self.index.filenames)} file(s)."
      )
    self._chosen = choose_episodes(
      "IndexedRecordLoader",
      len(self.index),
      episodes,
      split,
      None if split is None else splits_of(self.index),
    )
    is_global = plan.order == "global"
    self._pools: _WindowPools | _ExamplePools
    if windows.is_windowed(spec_structure):
      self._pools = _WindowPools(
        self.index, spec_structure, cut, decode_images, self._chosen, is_global
      )
      if is_global:
        _check_small_records(self._pools.counts, self.index)
    else:
      arguments.check_no_windows("IndexedRecordLoader", cut)
      run_bytes = 1 if is_global else _RUN_BYTES
      self._pools = _ExamplePools(
        self.index, spec_structure, decode_images, self._chosen, run_bytes
      )
    self.flat = self._pools.flat
    self._decode_images = decode_images
    num_windows, pools = int(self._pools.counts.sum()), self._pools
    super().__init__(plan, None, num_windows, make_pools=lambda: pools)

  def report(self) -> windows.WindowReport | None:
    """Returns what an epoch of all shards holds, and which episodes are too short.

    Returns:
      The counts; None where examples are no windows.
    """
    if not isinstance(self._pools, _WindowPools):
      return None
    chosen = slice(None) if self._chosen is None else self._chosen
    return windows.WindowReport.of_episodes(
      self._pools.episode_lengths[chosen], self._pools.counts[chosen]
    )

  @contextlib.contextmanager
  def explain_failures(self) -> Iterator[None]:
    """Says which file changed, or which record is bad, where reading fails."""
    try:
      yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
      # A file that changed while it was read is the first that comes to mind.
      try:
        records.read_index(self.index.filenames)
      except errors.RecordError as stale:
        raise stale from error
      with records.explain_failures(
        self.index.filenames, self.flat, decode_images=self._decode_images
      ):
        raise


def splits_of(index: RecordIndex) -> dict[str, np.ndarray]:
  """Returns numbers of records by the split that the names of their files tell."""
  counts = np.array([file.num_records for file in index.files], np.int64)
  return record_files.splits_of_files(list(index.filenames), counts)


def _check_small_records(counts: np.ndarray, index: RecordIndex) -> None:
  """Raises SpecError where every window would cost the parse of a large record."""
  num_bytes = int(np.average(index.lengths, weights=counts))
  per_record = counts.sum() / np.count_nonzero(counts)
  if num_bytes <= _LARGE_RECORD or per_record < 2:
    return
  raise errors.SpecError(
    f"IndexedRecordLoader: {index.filenames[0]}: order: expected 'quasi_random' for "
    f"records of more than {_LARGE_RECORD:,} bytes, got 'global': each of the "
    f"{counts.sum():,} windows would cost the read and parse of a record of "
    f"{num_bytes:,} bytes. Use order='quasi_random', or an EpisodeStore, which reads "
    "the steps that a window shows: t2r_seq convert."
  )


def check_option(where: str, option: Any) -> str | None:
  """Raises SpecError unless `option` is one of OPTIONS, and returns it."""
  if option in OPTIONS:
    return option
  raise errors.SpecError(
    f"{where}: index: expected None, 'auto' or 'require', got {option!r}."
    f"{errors.nearest(str(option), ['auto', 'require'])}"
  )


def find_index(
  option: str | None, files: record_files.FilesByKey, where: str
) -> RecordIndex | None:
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
    missing = [name for name in names if not os.path.exists(index_path(name))]
    if others or missing or any(map(records.files.compression_type, names)):
      logging.info("%s: read in order, not by an index.", where)
      return None
  index = records.read_index(names)
  index.require_random_access()
  return index
