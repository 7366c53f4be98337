"""Windows of an EpisodeStore in batches, gathered from its mapped columns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.data.window_order import WindowOrder
from t2r_seq.store import EpisodeStore

_as_it_is = tf.autograph.experimental.do_not_convert


class StoreWindows:
  """The windows that a spec structure cuts from a store, by number.

  Columns are read where they lie, in pages of the files that the kernel keeps; a batch
  costs one copy of what it delivers. The store must be one segment (see
  `EpisodeStore.merge`).
  """

  def __init__(
    self,
    store: EpisodeStore,
    spec_structure: specs.SpecStructure,
    sequence_length: int | None = None,
    stride: int = 1,
    shift: int = 1,
    padding: str = "drop",
    masks: bool = False,
  ) -> None:
    """Maps the columns that the windows read.

    Args:
      store: of one segment.
      spec_structure: the specs of a window. A path without time offsets is the anchor's
        own step where the store has a row per step for it, and else a context feature.
        Optional paths that some episode lacks are left out.
      sequence_length: L, stacks in a sequence; None for single windows.
      stride: steps between the stacks of one sequence.
      shift: stacks between the starts of two sequences.
      padding: 'drop', 'repeat' or 'zero'.
      masks: adds '<path>_mask' for every windowed path.
    Raises:
      SpecError: the store does not fit the specs; every path is named.
      StoreError: the store has several segments, or no episodes.
    """
    element = _element_spec(store)
    self._reader = windows.WindowReader(
      element, spec_structure, sequence_length, stride, shift, padding, masks
    )
    lengths = store.episode_lengths
    counts = np.asarray(
      self._reader.grid.num_windows(tf.constant(lengths, tf.int64)), np.int64
    )
    ends = np.cumsum(counts)
    self.num_windows = int(ends[-1]) if len(ends) else 0
    with tf.device("CPU:0"):
      self._window_ends = _variable(tf.constant(ends, tf.int64))
      self._episode_ends = _variable(tf.constant(store.episode_ends, tf.int64))
    paths = self._reader.select(element)
    self._takers = {path: _make_taker(store, path) for path in paths}

  def read(self, window_ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers windows.

    Args:
      window_ids: int64 [B], in range(num_windows), in any order.
    Returns:
      Windows by path, [B, L, K, ...]; byte strings and encoded images as strings.
    """
    # Not tf.gather(variable): that makes the memory the variable's own first.
    window_ends = self._window_ends.read_value()
    episode_ends = self._episode_ends.read_value()
    episodes = tf.searchsorted(window_ends, window_ids, "right", out_type=tf.int64)
    first_windows = _before(window_ends, episodes)
    first_rows = _before(episode_ends, episodes)
    starts = self._reader.grid.start(window_ids - first_windows)
    num_steps = tf.gather(episode_ends, episodes) - first_rows

    def take(path: str, index: tf.Tensor | None) -> tf.Tensor:
      if index is None:
        return self._takers[path](episodes)
      shape = [-1] + [1] * (index.shape.rank - 1)
      return self._takers[path](index + tf.reshape(first_rows, shape))

    return self._reader.read_with(take, starts, num_steps)


def store_windows(
  store: EpisodeStore,
  spec_structure: specs.SpecStructure,
  batch_size: int,
  order: str = "global",
  seed: int = 0,
  num_epochs: int | None = 1,
  start_batch: int = 0,
  shard_index: int = 0,
  num_shards: int = 1,
  drop_remainder: bool = True,
  sequence_length: int | None = None,
  stride: int = 1,
  shift: int = 1,
  padding: str = "drop",
  masks: bool = False,
) -> tf.data.Dataset:
  """Makes a dataset of batches of windows from a store.

  The batches are a function of the arguments: the same on every machine and for any
  number of threads. What to resume from is the number of the next batch.

  Args:
    store: of one segment.
    spec_structure: the specs of a window; see `StoreWindows`.
    batch_size: B.
    order: 'sequential', or 'global': every epoch another permutation of all windows,
      without a buffer.
    seed: of the permutations.
    num_epochs: how often every window is shown; None for ever.
    start_batch: batches to leave out, over all epochs; costs nothing.
    shard_index: which part of each epoch to show.
    num_shards: how many disjoint parts there are.
    drop_remainder: shows full batches only, equally many in every shard.
    sequence_length: L, stacks in a sequence; None for single windows.
    stride: steps between the stacks of one sequence.
    shift: stacks between the starts of two sequences.
    padding: 'drop', 'repeat' or 'zero'.
    masks: adds '<path>_mask' for every windowed path.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the store does not fit the specs, or is too small for one batch.
    StoreError: the store has several segments, or no episodes.
  """
  reader = StoreWindows(
    store, spec_structure, sequence_length, stride, shift, padding, masks
  )
  if not reader.num_windows:
    longest = int(store.episode_lengths.max())
    raise errors.SpecError(
      f"store_windows: {store.path}: expected an episode that is long enough for a "
      f"window, got {longest} steps at most. Pad: padding='repeat'."
    )
  window_order = WindowOrder(
    reader.num_windows,
    batch_size,
    order,
    seed,
    shard_index,
    num_shards,
    drop_remainder,
  )
  if isinstance(start_batch, bool) or start_batch < 0:
    raise errors.SpecError(
      f"store_windows: start_batch: expected at least 0, got {start_batch!r}."
    )
  end = np.iinfo(np.int64).max
  if num_epochs is not None:
    end = num_epochs * window_order.batches_per_epoch
  batches = tf.data.Dataset.range(start_batch, max(start_batch, end))
  dataset = batches.map(
    _as_it_is(lambda batch: reader.read(window_order.window_ids(batch))),
    num_parallel_calls=tf.data.AUTOTUNE,
    deterministic=True,
  )
  options = tf.data.Options()
  # To a checkpoint the columns' variables are a state that it cannot save; they never
  # change, so the position is all that there is to save.
  options.experimental_external_state_policy = (
    tf.data.experimental.ExternalStatePolicy.IGNORE
  )
  return dataset.with_options(options)


def _element_spec(store: EpisodeStore) -> specs.TensorSpecStruct:
  """Describes the store's episodes as the windows' reader takes them."""
  element = specs.TensorSpecStruct()
  for path, spec in store.spec.items():
    if spec.is_optional and not store.is_present(path).all():
      continue
    shape, dtype = spec.shape, spec.dtype
    if specs.is_encoded_image_spec(spec):
      shape, dtype = shape[:-3], tf.string
    if spec.is_sequence:
      shape = tf.TensorShape([None]).concatenate(shape)
    element[path] = tf.TensorSpec(shape, dtype)
  return element


def _variable(tensor: tf.Tensor) -> tf.Variable:
  # A dataset copies the tensors that it captures; a variable it only refers to.
  return tf.Variable(tensor, trainable=False)


def _before(ends: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
  """Returns where the intervals with these ends start."""
  return tf.where(index > 0, tf.gather(ends, tf.maximum(index - 1, 0)), 0)


def _make_taker(store: EpisodeStore, path: str) -> Callable[[tf.Tensor], tf.Tensor]:
  """Returns a function from row numbers of any shape to the rows."""
  spec = store.spec[path]
  with tf.device("CPU:0"):
    if spec.dtype == tf.string or specs.is_encoded_image_spec(spec):
      data, offsets = map(_variable, store.bytes_tensors(path))
      shape = spec.shape if spec.dtype == tf.string else spec.shape[:-3]
      return lambda rows: _take_strings(data, offsets, shape.as_list(), rows)
    column = _variable(store.tensor(path))

  def take(rows: tf.Tensor) -> tf.Tensor:
    taken = tf.gather(column.read_value(), rows)
    return tf.cast(taken, tf.bool) if spec.dtype == tf.bool else taken

  return take


def _take_strings(
  data: tf.Variable, offsets: tf.Variable, shape: list[int], rows: tf.Tensor
) -> tf.Tensor:
  count = int(np.prod(shape, dtype=np.int64))
  items = rows[..., tf.newaxis] * count + tf.range(count, dtype=tf.int64)
  all_bytes, all_offsets = data.read_value(), offsets.read_value()

  def take_one(item: tf.Tensor) -> tf.Tensor:
    part = all_bytes[all_offsets[item] : all_offsets[item + 1]]
    # A string is the end of the serialized tensor of its bytes.
    size = tf.size(part)
    return tf.strings.substr(tf.io.serialize_tensor(part), -size, size)

  taken = tf.map_fn(take_one, tf.reshape(items, [-1]), fn_output_signature=tf.string)
  taken = tf.reshape(
    taken, tf.concat([tf.shape(rows), tf.constant(shape, tf.int32)], 0)
  )
  taken.set_shape(rows.shape.concatenate(shape))
  return taken
