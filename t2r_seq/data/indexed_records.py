"""`IndexedRecordLoader`: batches from TFRecord files in any order, by their index."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gin
import tensorflow as tf
from absl import logging

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.indexed_examples import IndexedExamples
from t2r_seq.data.indexed_pools import PooledEpisodes, PooledExamples
from t2r_seq.data.indexed_windows import IndexedWindows
from t2r_seq.data.ordered_batches import batches_in_order, checkpoint_options
from t2r_seq.data.pool_order import PoolOrder, PoolSize
from t2r_seq.data.window_order import STATELESS_ORDERS, WindowOrder

ORDERS = (*STATELESS_ORDERS, "quasi_random")

# Reading records costs more than the ops of a batch: no batches are read together.
_LARGE_BATCH = 1 << 30


@gin.configurable
class IndexedRecordLoader:
  """Loads batches of windows, or of records, from TFRecord files with indices.

  The batches are a function of the arguments: the same on every machine and for any
  number of threads. What to resume from is the number of the next batch.

  Attributes:
    index: of the files.
    num_windows: in all files; of specs without time offsets, records.
    batches_per_epoch: of this shard.
    flat: specs of what is parsed, by path.
    pool_size: batches and bytes that go through memory together; None unless the order
      is 'quasi_random'.
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
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    masks: bool = False,
    memory_budget: int = 2**30,
    decode_images: bool = True,
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
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      masks: adds '<path>_mask' for every windowed path.
      memory_budget: bytes that the pools may hold, decoded; the larger, the better
        'quasi_random' mixes. Other orders have no pools.
      decode_images: gives pixels; False the strings that the records hold.
    Raises:
      SpecError: the specs do not fit the files, or these are too small for one batch,
        or the budget is.
      RecordError: an index is missing or stale, or a file is compressed.
    """
    _check(order, num_epochs)
    self.index = (
      file_patterns
      if isinstance(file_patterns, records.RecordIndex)
      else records.read_index(file_patterns)
    )
    self._num_epochs = num_epochs
    _check_any_record(self.index)
    self._source: IndexedWindows | IndexedExamples
    if windows.is_windowed(spec_structure):
      self._source = IndexedWindows(
        self.index,
        spec_structure,
        *(sequence_length, stride, shift, padding, masks, decode_images),
      )
      _check_any_window(self._source, self.index)
    else:
      _check_single(sequence_length)
      self._source = IndexedExamples(self.index, spec_structure, decode_images)
    self.num_windows = self._source.num_windows
    self.flat = self._source.flat
    self.pool_size: PoolSize | None = None
    split = (seed, shard_index, num_shards, drop_remainder)
    self._order: WindowOrder | PoolOrder
    if order == "quasi_random":
      self._order = self._plan_pools(batch_size, memory_budget, split)
    else:
      self._order = WindowOrder(self.num_windows, batch_size, order, *split)
    self.batches_per_epoch = self._order.batches_per_epoch

  def dataset(self, start_batch: int = 0) -> tf.data.Dataset:
    """Creates the dataset.

    Args:
      start_batch: batches to leave out, over all epochs. Costs nothing, but under
        'quasi_random' up to one pool.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
    Raises:
      SpecError: `start_batch` is negative.
    """
    if isinstance(start_batch, bool) or start_batch < 0:
      raise errors.SpecError(
        f"indexed_records: start_batch: expected at least 0, got {start_batch!r}."
      )
    if isinstance(self._order, PoolOrder):
      batches = self._pools.batches(self._order, self._num_epochs, start_batch)
      return batches.with_options(checkpoint_options())
    return batches_in_order(
      self._source.read, self._order, _LARGE_BATCH, self._num_epochs, start_batch
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
      with records.explain_failures(self.index.filenames, self.flat):
        raise

  def _plan_pools(
    self, batch_size: int, memory_budget: int, split: tuple[Any, ...]
  ) -> PoolOrder:
    self._pools: PooledEpisodes | PooledExamples
    if isinstance(self._source, IndexedWindows):
      self._pools = PooledEpisodes(self._source, self.index)
    else:
      self._pools = PooledExamples(self._source, self.index)
    self.pool_size = size = self._pools.fit(batch_size, memory_budget)
    logging.info(
      "%d files: pools of %d batches hold at most %d bytes of the budget of %d.",
      len(self.index.filenames),
      *(size.num_batches, size.max_bytes, memory_budget),
    )
    return PoolOrder(self._pools.counts, batch_size, size.num_batches, *split)


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


def _check(order: str, num_epochs: int | None) -> None:
  if order not in ORDERS:
    raise errors.SpecError(
      f"indexed_records: order: expected one of {', '.join(ORDERS)}, got {order!r}."
      f"{errors.nearest(str(order), ORDERS)}"
    )
  if num_epochs is not None and num_epochs < 0:
    raise errors.SpecError(
      f"indexed_records: num_epochs: expected None or at least 0, got {num_epochs!r}."
    )


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
      f"{len(index.filenames)} file(s). Pad: padding='repeat'."
    )
