"""`StoreWindowLoader`: batches of windows from an EpisodeStore, in any order."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from t2r_seq import errors, records, specs, windows
from t2r_seq.data.dataset_options import bounded_options
from t2r_seq.data.loaders.decoded_columns import DecodedColumns
from t2r_seq.data.loaders.pool_order import PoolOrder
from t2r_seq.data.loaders.pooled_batches import PooledColumns
from t2r_seq.data.loaders.portable_windows import PortableWindows
from t2r_seq.data.loaders.window_loader import WindowLoader, check_plan
from t2r_seq.store import EpisodeStore, FileColumns, StoreColumns, StoreWindows


class StoreWindowLoader(WindowLoader):
  """Loads batches of windows from a store; see `WindowLoader`.

  Attributes:
    is_flat: whether steps are delivered once each, to be stacked later.
  """

  def __init__(
    self,
    store: EpisodeStore | str | os.PathLike[str],
    spec_structure: specs.SpecStructure,
    batch_size: int,
    order: str = "global",
    seed: int = 0,
    num_epochs: int | None = 1,
    shard_index: int = 0,
    num_shards: int = 1,
    drop_remainder: bool = True,
    cut: windows.Cut | None = None,
    flat: bool = False,
    memory_budget: int = 2**30,
    decode_images: records.DecodeImages = True,
    **fields: Any,
  ) -> None:
    """Plans the batches.

    Args:
      store: has episodes; or its path. One segment is fastest: `EpisodeStore.merge`.
      spec_structure: the specs of a window; see `StoreWindows`.
      batch_size: B.
      order: 'sequential'; 'global': every epoch another permutation of all windows,
        without a buffer; or 'quasi_random': the windows of a pool of episodes are
        permuted, and the episodes, so that each step is read, and each image decoded,
        once a pool. For encoded images, and for stores larger than memory.
      seed: of the permutations.
      num_epochs: how often every window is shown; None for ever.
      shard_index: which part of each epoch to show.
      num_shards: how many disjoint parts there are.
      drop_remainder: shows full batches only, equally many in every shard.
      cut: how episodes become windows; None for `windows.Cut()`.
      flat: delivers every step that a window shows once, [B, F, ...], for
        `windows.stack_windows` in the step that trains.
      memory_budget: bytes that the pools may hold, decoded; the larger, the better
        'quasi_random' mixes. Other orders have no pools.
      decode_images: gives pixels, perhaps in a way of its own: a
        `records.ImageDecoding`; False gives the strings that are stored.
      **fields: or fields of the cut: padding='repeat', ...
    Raises:
      SpecError: the store does not fit the specs, or is too small for one batch, or
        the budget is.
      StoreError: the store has no episodes.
    """
    check_plan(
      "store_windows", batch_size, order, num_epochs, memory_budget, drop_remainder
    )
    if not isinstance(store, EpisodeStore):
      store = EpisodeStore(store)
    columns: Any = StoreColumns(store)
    if decode_images or order == "quasi_random":
      columns = DecodedColumns(columns, store.spec, decode_images)
    cut = windows.Cut.of("StoreWindowLoader", cut, fields)
    self._windows = StoreWindows(columns, spec_structure, cut, flat)
    if not self._windows.num_windows:
      raise errors.SpecError(
        f"store_windows: {store.path}: expected an episode that is long enough for a "
        f"window, got {int(store.episode_lengths.max())} steps at most. Make "
        "windows shorter, or pad: padding='repeat'."
      )
    self.is_flat = flat
    self._store = store
    self._decode_images = decode_images
    super().__init__(
      f"store_windows: {store.path}",
      self._windows.read_at,
      self._windows.num_windows,
      self._windows.window_bytes,
      lambda: PooledColumns(columns, self._windows),
      *(batch_size, order, seed, num_epochs, shard_index, num_shards),
      *(drop_remainder, memory_budget, self._windows.locate, self._windows.held),
    )

  def report(self) -> windows.WindowReport:
    """Returns what an epoch of all shards holds, and which episodes are too short."""
    return windows.WindowReport.of_episodes(
      self._store.episode_lengths, self._windows.counts
    )

  def portable_dataset(self) -> tf.data.Dataset:
    """Creates the dataset as a graph that other processes can run, for tf.data service.

    The graph opens the store's files, under the names that they have here, where it
    runs; see `FileColumns`. What a service splits are the pools.

    Returns:
      Dataset of the same batches as `dataset`; it cannot be checkpointed.
    Raises:
      SpecError: the order is not 'quasi_random'.
      StoreError: somebody is writing to the store.
    """
    if not isinstance(self._order, PoolOrder):
      raise errors.SpecError(
        f"portable_dataset: order: expected 'quasi_random', got '{self._order.order}'. "
        "Other orders read from memory of this process, wherever a window lies; pools "
        "are ranges of files."
      )
    columns = DecodedColumns(
      FileColumns(self._store), self._store.spec, self._decode_images
    )
    pools = PortableWindows(columns, self._windows)
    batches = pools.batches(self._order, self._num_epochs, 0)
    return batches.with_options(bounded_options())


def store_windows(
  store: EpisodeStore | str | os.PathLike[str],
  spec_structure: specs.SpecStructure,
  batch_size: int,
  order: str = "global",
  start_batch: int = 0,
  **options: Any,
) -> tf.data.Dataset:
  """Makes a dataset of batches of windows from a store, in one call.

  Args:
    store: has episodes; or its path.
    spec_structure: the specs of a window.
    batch_size: B.
    order: 'sequential', 'global' or 'quasi_random'.
    start_batch: batches to leave out, over all epochs.
    **options: further arguments of `StoreWindowLoader`.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the store does not fit the specs, or is too small for one batch.
    StoreError: the store has no episodes.
  """
  loader = StoreWindowLoader(store, spec_structure, batch_size, order, **options)
  return loader.dataset(start_batch)
