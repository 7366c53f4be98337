"""Shuffled batches of windows from a stream of episodes, within a memory budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import allocation, records, specs, windows
from t2r_seq.data.dataset_options import checkpoint_options
from t2r_seq.data.loaders.pool_order import GATHERS_AT_ONCE
from t2r_seq.data.streamed.episode_columns import EpisodeColumns
from t2r_seq.data.streamed.streamed_pools import PoolFiller
from t2r_seq.windows.grid import check_count

_as_it_is = tf.autograph.experimental.do_not_convert
_Pool = dict[str, Any]
MakeEpisodes = Callable[[tf.Tensor], tf.data.Dataset]


def streamed_windows(
  episodes: tf.data.Dataset | MakeEpisodes,
  spec_structure: specs.SpecStructure,
  batch_size: int,
  memory_budget: int = 2**30,
  seed: int | None = None,
  num_epochs: int | None = 1,
  drop_remainder: bool = False,
  sequence_length: int | None = None,
  stride: int = 1,
  shift: int = 1,
  padding: str = "drop",
  masks: bool = False,
  report: windows.WindowReport | None = None,
  decode_images: records.DecodeImages = True,
) -> tf.data.Dataset:
  """Shuffles the windows of episodes that come one after the other, and batches them.

  Episodes that follow each other fill a pool, until the next would exceed the budget.
  Images are decoded once a pool, the windows of a pool are permuted, and a batch is
  gathered at once. The next pool is filled meanwhile. Every window comes once an epoch;
  windows that fill no batch wait for those of the next pool. The order depends on the
  seed only. A checkpoint of the iterator holds a position, if the dataset of episodes
  can be saved as one, and no frames, but those of an episode that was larger than any
  before and came too late for its pool. A restored iterator goes on with the next
  batch, and reads its pool again.

  Args:
    episodes: dataset of episodes by path, leaves [T, ...] and context features, images
      best still encoded; or a function that makes it, given the epoch, int64 scalar.
      Parse at most four at a time: their memory is counted.
    spec_structure: the specs of a window.
    batch_size: B.
    memory_budget: bytes for two pools, the episodes on their way to them, some batches,
      and what TensorFlow takes beside them.
    seed: of the permutations; None: another order in every run.
    num_epochs: None for ever.
    drop_remainder: whether windows that fill no batch at the end are left out, so that
      B is static.
    sequence_length: L, stacks in a sequence; None for single windows.
    stride: steps between the stacks of one sequence.
    shift: stacks between the starts of two sequences.
    padding: 'drop', 'repeat' or 'zero'.
    masks: adds '<path>_mask' for every windowed path.
    report: counts; a `StreamReport` also what the pools take.
    decode_images: gives pixels where episodes hold encoded images, perhaps in a way of
      its own: a `records.ImageDecoding`; False: strings.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  Raises:
    SpecError: the episodes do not fit the specs, or a number is too small. An episode
      that is too large for the budget fails at run time, with the bytes it takes.
  """
  make: Any = episodes if callable(episodes) else lambda _: episodes
  columns = EpisodeColumns(
    make(tf.constant(0, tf.int64)).element_spec,
    spec_structure,
    decode_images=decode_images,
    sequence_length=sequence_length,
    stride=stride,
    shift=shift,
    padding=padding,
    masks=masks,
  )
  return shuffled_windows(
    lambda epoch: make(epoch).map(_as_it_is(lambda *e: columns.select(_whole(e)))),
    *(columns, batch_size, memory_budget, seed, num_epochs, drop_remainder, report),
  )


def shuffled_windows(
  select: MakeEpisodes,
  columns: EpisodeColumns,
  batch_size: int,
  memory_budget: int,
  seed: int | None,
  num_epochs: int | None,
  drop_remainder: bool,
  report: windows.WindowReport | None,
) -> tf.data.Dataset:
  """Does `streamed_windows` for episodes of which is known what is kept of them.

  Args:
    select: makes the dataset of what `columns.select` gives of the episodes of an
      epoch, given that, int64 scalar.
    columns: of the episodes.
    batch_size: B.
    memory_budget: bytes.
    seed: of the permutations; None: another order in every run.
    num_epochs: None for ever.
    drop_remainder: whether windows that fill no batch at the end are left out.
    report: counts.
  Returns:
    Dataset of TensorSpecStructs by path, leaves [B, L, K, ...].
  """
  check_count("batch_size", batch_size)
  check_count("memory_budget", memory_budget)
  if num_epochs is not None:
    check_count("num_epochs", num_epochs)
  allocation.keep_freed_memory()
  if seed is None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
  filler = PoolFiller(
    *(columns, batch_size, memory_budget, seed, num_epochs, drop_remainder, report)
  )

  @_as_it_is
  def epoch(number: tf.Tensor) -> tf.data.Dataset:
    end = tf.data.Dataset.from_tensors(0).map(_as_it_is(lambda _: columns.end()))

    def part(is_end: tf.Tensor) -> tf.data.Dataset:
      found = tf.cond(
        is_end,
        _as_it_is(lambda: tf.data.experimental.to_variant(end)),
        _as_it_is(lambda: tf.data.experimental.to_variant(select(number))),
      )
      return tf.data.experimental.from_variant(found, end.element_spec)

    # Not by `concatenate`: its state at the end of files that are read in turns can be
    # saved, and not restored (TensorFlow 2.21).
    return tf.data.Dataset.from_tensor_slices([False, True]).flat_map(_as_it_is(part))

  def shuffled() -> tf.data.Dataset:
    last = np.iinfo(np.int64).max if num_epochs is None else num_epochs
    with tf.device("CPU:0"):
      pools = filler.pools(tf.data.Dataset.range(last).flat_map(epoch))
      batches = _Batches(columns, batch_size, drop_remainder)
      # The next pool is filled while batches are gathered from this one.
      return batches.fill(pools.prefetch(1).flat_map(_as_it_is(batches.gathered)))

  # Made in a function: outside of any, TensorFlow adds what a `scan` calls to its
  # global graph and never takes it out again, 11 MB for each dataset. Not in a
  # `flat_map`: there a data service's client waits for ever for a worker that is gone.
  # Traced apart from the call: five first calls in a row look like retracing, of which
  # TensorFlow warns.
  made = tf.function(shuffled, autograph=False).get_concrete_function()()
  return made.with_options(checkpoint_options())


def _whole(episode: tuple[Any, ...]) -> Any:
  """Returns an element: tf.data calls with each part of a tuple, and else with one."""
  return episode[0] if len(episode) == 1 else episode


class _Batches:
  """Gathers the windows of pools in batches, over the borders of pools."""

  def __init__(
    self, columns: EpisodeColumns, batch_size: int, drop_remainder: bool
  ) -> None:
    self._columns = columns
    self._batch_size = batch_size
    self._drop_remainder = drop_remainder

  def gathered(self, pool: _Pool) -> tf.data.Dataset:
    """Returns a dataset of what the pool has for each batch; see `gather`."""
    num_windows = tf.shape(pool["windows"], tf.int64)[0] + pool["left"]
    numbers = tf.data.Dataset.range(-(-num_windows // self._batch_size))
    return numbers.map(
      _as_it_is(lambda number: self.gather(pool, number)),
      num_parallel_calls=GATHERS_AT_ONCE,
      deterministic=True,
    )

  def gather(self, pool: _Pool, number: tf.Tensor) -> tuple[Any, tf.Tensor, tf.Tensor]:
    """Gathers what the pool has for a batch.

    Returns:
      Windows; whether others come before them in their batch; whether it ends there.
    """
    num_windows = tf.shape(pool["windows"], tf.int64)[0]
    first = number * self._batch_size - pool["left"]
    end = first + self._batch_size
    window = self._read(pool, pool["windows"][tf.maximum(first, 0) : end])
    is_last = pool["is_last"] & (end >= num_windows) & (not self._drop_remainder)
    return dict(window), first < 0, (end <= num_windows) | is_last

  def fill(self, gathered: tf.data.Dataset) -> tf.data.Dataset:
    """Joins the end of one pool and the start of the next to a batch."""
    nothing = tf.nest.map_structure(
      lambda spec: tf.zeros([size or 0 for size in spec.shape.as_list()], spec.dtype),
      gathered.element_spec[0],
    )
    types = [value.dtype for value in tf.nest.flatten(nothing)]
    shapes = [[None, *value.shape[1:]] for value in tf.nest.flatten(nothing)]

    def join(rest: tf.Tensor, window: Any, is_full: tf.Tensor) -> Any:
      before = tf.raw_ops.OptionalGetValue(
        optional=rest, output_types=types, output_shapes=shapes
      )
      window = [tf.concat(parts, 0) for parts in zip(before, window, strict=True)]
      left = [part[: tf.where(is_full, 0, tf.shape(part)[0])] for part in window]
      return tf.raw_ops.OptionalFromValue(components=left), window

    def step(rest: tf.Tensor, part: tuple[Any, tf.Tensor, tf.Tensor]) -> Any:
      # Of most batches nothing is left: what waits is one tensor, since each that a
      # condition passes on costs some microseconds.
      structure, continues, is_full = part
      window = tf.nest.flatten(structure)
      rest, window = tf.cond(
        continues | ~is_full,
        lambda: join(rest, window, is_full),
        lambda: (tf.identity(rest), window),
      )
      return rest, (tf.nest.pack_sequence_as(structure, window), is_full)

    rest = tf.raw_ops.OptionalFromValue(components=tf.nest.flatten(nothing))
    filled = gathered.scan(rest, _as_it_is(step))
    filled = filled.filter(_as_it_is(lambda _, is_full: is_full))
    return filled.map(_as_it_is(lambda window, _: self._finish(window)))

  def _finish(self, window: dict[str, tf.Tensor]) -> specs.TensorSpecStruct:
    # Shapes are set and not checked, so that tf.data calls no function for a batch.
    size = self._batch_size if self._drop_remainder else None
    for path, spec in self._columns.reader.window_spec.items():
      window[path].set_shape([size, *spec.shape])
    return specs.TensorSpecStruct(window)

  def _read(self, pool: _Pool, chosen: tf.Tensor) -> specs.TensorSpecStruct:
    slot, start, length, first_row = tf.unstack(chosen, axis=1)
    return self._columns.reader.read_with(
      lambda path, rows: self._columns.gather(
        path, pool["rows"][path], slot if rows is None else rows
      ),
      start,
      length,
      first_row,
    )
