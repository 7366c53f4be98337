"""`IndexedRecordLoader`: batches from TFRecord files in any order, by their index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gin
import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.dataset_options import positions_kept
from t2r_seq.data.indexed.indexed_examples import IndexedExamples
from t2r_seq.data.indexed.indexed_pools import PooledEpisodes, PooledExamples
from t2r_seq.data.indexed.indexed_windows import IndexedWindows
from t2r_seq.data.loaders.pooled_batches import PooledWindows
from t2r_seq.data.loaders.window_loader import WindowLoader, check_plan

# Reading records costs more than the ops of a batch: no batches are read together.
_LARGE_WINDOW = 1 << 30


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
    file_patterns: records.FilePatterns | records.RecordIndex,
    spec_structure: specs.SpecStructure,
    batch_size: int,
    order: str = "quasi_random",
    seed: int = 0,
    num_epochs: int | None = 1,
    shard_index: int = 0,
    num_shards: int = 1,
    drop_remainder: bool = True,
    cut: windows.Cut | None = None,
    memory_budget: int = 2**30,
    decode_images: records.DecodeImages = True,
    is_checkpointed: bool = False,
    **fields: Any,
  ) -> None:
    """Plans the batches from the indices; reads one record.

    Args:
      file_patterns: of files that `t2r_seq index` has indexed, none compressed; or
        their index, of `records.read_index`.
      spec_structure: the specs of a window; without time offsets, of a record.
      batch_size: B.
      order: 'sequential'; 'global': every epoch another permutation of all windows,
        where a window costs the parse of its whole record; or 'quasi_random': the
        windows of a pool of records are permuted, and the records, so that each is
        read, parsed and decoded once a pool.
      seed: of the permutations.
      num_epochs: how often every window is shown; None for ever.
      shard_index: which part of each epoch to show.
      num_shards: how many disjoint parts there are.
      drop_remainder: shows full batches only, equally many in every shard.
      cut: how episodes become windows; None for `windows.Cut()`.
      memory_budget: bytes that the pools may hold, decoded; the larger, the better
        'quasi_random' mixes. Other orders have no pools.
      decode_images: gives pixels, perhaps in a way of its own: a
        `records.ImageDecoding`; False the strings that the records hold.
      is_checkpointed: has iterators keep their position, for a tf.train.Checkpoint of
        one; TensorFlow then logs a line or two with every batch. An iterator that does
        not is saved with all that it has read ahead. `start_batch` needs neither.
      **fields: or fields of the cut: padding='repeat', ...
    Raises:
      SpecError: the specs do not fit the files, or these are too small for one batch,
        or the budget is.
      RecordError: an index is missing or stale, or a file is compressed.
    """
    check_plan(
      "indexed_records", batch_size, order, num_epochs, memory_budget, drop_remainder
    )
    self.index = (
      file_patterns
      if isinstance(file_patterns, records.RecordIndex)
      else records.read_index(file_patterns)
    )
    _check_any_record(self.index)
    cut = windows.Cut.of("IndexedRecordLoader", cut, fields)
    self._source: IndexedWindows | IndexedExamples
    if windows.is_windowed(spec_structure):
      self._source = IndexedWindows(self.index, spec_structure, cut, decode_images)
      _check_any_window(self._source, self.index)
    else:
      _check_single(cut.sequence_length)
      self._source = IndexedExamples(self.index, spec_structure, decode_images)
    self.flat = self._source.flat
    self._decode_images = decode_images
    self._is_checkpointed = is_checkpointed
    super().__init__(
      f"indexed_records: {len(self.index.filenames)} files",
      self._source.read,
      self._source.num_windows,
      _LARGE_WINDOW,
      self._make_pools,
      *(batch_size, order, seed, num_epochs, shard_index, num_shards),
      *(drop_remainder, memory_budget),
      held=self._source.held,
    )

  def report(self) -> windows.WindowReport | None:
    """Returns what an epoch of all shards holds, and which episodes are too short.

    Returns:
      The counts; None where examples are no windows.
    """
    if not isinstance(self._source, IndexedWindows):
      return None
    return windows.WindowReport.of_episodes(
      self._source.episode_lengths, self._source.counts
    )

  def dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Creates the dataset; see `WindowLoader.dataset`."""
    with positions_kept(self._is_checkpointed, unless_said=True):
      return super().dataset(start_batch)

  def portable_dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Creates the same dataset for tf.data service: it calls no Python."""
    with positions_kept(self._is_checkpointed, unless_said=True):
      return self._make(start_batch, is_portable=True)

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

  def _make_pools(self) -> PooledWindows:
    if isinstance(self._source, IndexedWindows):
      return PooledEpisodes(self._source, self.index)
    return PooledExamples(self._source, self.index)


def indexed_records(
  file_patterns: records.FilePatterns,
  spec_structure: specs.SpecStructure,
  batch_size: int,
  order: str = "quasi_random",
  start_batch: int = 0,
  **options: Any,
) -> tf.data.Dataset:
  """Makes a dataset of batches from TFRecord files with indices, in one call.

  Args:
    file_patterns: of files that `t2r_seq index` has indexed.
    spec_structure: the specs of a window; without time offsets, of a record.
    batch_size: B.
    order: 'sequential', 'global' or 'quasi_random'.
    start_batch: batches to leave out, over all epochs.
    **options: further arguments of `IndexedRecordLoader`.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the specs do not fit the files, or these are too small for one batch.
    RecordError: an index is missing or stale, or a file is compressed.
  """
  loader = IndexedRecordLoader(
    file_patterns, spec_structure, batch_size, order, **options
  )
  return loader.dataset(start_batch)


def _check_single(sequence_length: int | None) -> None:
  if sequence_length is not None:
    raise errors.SpecError(
      "indexed_records: sequence_length: expected None for specs without time "
      f"offsets, got {sequence_length}. Give the specs that are to be cut "
      "time_offsets=0."
    )


def _check_any_record(index: records.RecordIndex) -> None:
  if not len(index):
    raise errors.RecordError(
      f"indexed_records: {index.filenames[0]}: expected records, got none in "
      f"{len(index.filenames)} file(s)."
    )


def _check_any_window(source: IndexedWindows, index: records.RecordIndex) -> None:
  if not source.num_windows:
    raise errors.SpecError(
      f"indexed_records: {index.filenames[0]}: expected an episode that is long enough "
      f"for a window, got {int(source.episode_lengths.max())} steps at most in "
      f"{len(index.filenames)} file(s). Make windows shorter, or pad: padding='repeat'."
    )
