"""Shuffled batches of windows from a stream of episodes, within a memory budget."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import allocation, records, specs, windows
from t2r_seq.data.dataset_options import checkpoint_options
from t2r_seq.data.freed_memory import give_back_first
from t2r_seq.data.loaders.pool_order import GATHERS_AT_ONCE
from t2r_seq.data.reading.record_reading import map_in_order
from t2r_seq.data.streamed.episode_columns import EpisodeColumns
from t2r_seq.data.streamed.pool_rescue import PoolRescue
from t2r_seq.data.streamed.streamed_pools import PoolFiller, same
from t2r_seq.windows.cut import check_count

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
  is_portable: bool = False,
) -> tf.data.Dataset:
  """Shuffles the windows of episodes that come one after the other, and batches them.

  Episodes that follow each other fill a pool, until the next would exceed the budget.
  Images are decoded once a pool, the windows of a pool are permuted, and a batch is
  gathered at once. The next pool is filled meanwhile. Every window comes once an epoch;
  windows that fill no batch wait for those of the next pool. The order depends on the
  seed only. A checkpoint of the iterator holds a position, if the dataset of episodes
  can be saved as one, and no frames, but those of an episode that was larger than any
  before and came too late for its pool, and while a batch that lies across two pools is
  the last one, of its first part. A restored iterator goes on with the next batch, and
  reads its pool again.

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
    is_portable: calls no Python, so that workers of a data service can run it.
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
    is_portable=is_portable,
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
  rescue: PoolRescue | None = None,
  is_portable: bool = False,
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
    rescue: decodes images past bad ones; None: these are errors.
    is_portable: calls no Python.
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
    *(columns, batch_size, memory_budget, seed, num_epochs, drop_remainder, report),
    rescue,
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
      epochs = tf.data.Dataset.range(last)
      if not is_portable:
        epochs = give_back_first(epochs, lambda epoch: epoch == 0)
      pools = filler.pools(epochs.flat_map(epoch))
      # The next pool is filled while batches are gathered from this one.
      return _Batches(columns, batch_size, drop_remainder).of(pools.prefetch(1))

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


def _num_rows(structure: Any) -> tf.Tensor:
  return tf.shape(tf.nest.flatten(structure)[0])[0]


def _concat(first: Any, second: Any) -> Any:
  """Joins windows; of leaves of unknown size, none have others than some."""
  given = tf.stack([_num_rows(first), _num_rows(second)])
  return tf.cond(
    tf.reduce_all(given > 0),
    lambda: tf.nest.map_structure(lambda *both: tf.concat(both, 0), first, second),
    lambda: tf.cond(given[0] > 0, lambda: same(first), lambda: same(second)),
  )


class _Batches:
  """Gathers the windows of pools in batches, over the borders of pools.

  A pool has a head, which goes on with the batch that the pool before has begun; a run
  of whole batches; and a tail. Heads and tails are joined by a `scan`, each step of
  which waits for a thread. A run goes by it as a dataset, so that for a batch of it no
  function is called but the gather: of 340 us of processor time that a batch took
  beside its copies, the step had 90.
  """

  def __init__(
    self, columns: EpisodeColumns, batch_size: int, drop_remainder: bool
  ) -> None:
    self._columns = columns
    self._batch_size = batch_size
    self._drop_remainder = drop_remainder
    # A core fills the next pool. Of two, the other one gathers batches: three gathers
    # at once took turns, and wrote to more memory than the processor's cache holds.
    # One came 3 to 11 % faster.
    num_others = min(GATHERS_AT_ONCE, (os.cpu_count() or 1) - 1)
    self._num_parallel_calls = num_others if num_others > 1 else None

  def of(self, pools: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of batches."""
    parts = pools.flat_map(_as_it_is(self._parts))
    window_spec = parts.element_spec["window"]
    nothing = tf.nest.map_structure(
      lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype), window_spec
    )
    # Between batches nothing is left: no frames in the state, but while a batch that
    # has windows of two pools is the last one.
    batches = parts.scan(nothing, _as_it_is(self._join)).flat_map(
      _as_it_is(lambda some: tf.data.experimental.from_variant(some, window_spec))
    )
    batches = batches.map(_as_it_is(self._finish))
    # With a buffer of one no batch is begun before the last one is taken: the thread
    # sleeps, and waking it up takes longer than Python takes for a batch. With room for
    # two, which are seldom there, windows come 12 % faster to Python.
    return batches.prefetch(2) if self._num_parallel_calls is None else batches

  def _parts(self, pool: _Pool) -> tf.data.Dataset:
    """Returns a dataset of the head, the run and the tail."""
    size, left = self._batch_size, pool["left"]
    zero = tf.constant(0, tf.int64)
    num_windows = tf.shape(pool["windows"], tf.int64)[0]
    head = tf.where(left > 0, tf.minimum(size - left, num_windows), zero)
    num_whole = (num_windows - head) // size
    tail = head + num_whole * size
    run = map_in_order(
      tf.data.Dataset.range(head, tail, size),
      _as_it_is(lambda first: self._read(pool, first, first + size)),
      self._num_parallel_calls,
    )
    run = tf.data.experimental.to_variant(run)
    is_last = pool["is_last"] & (not self._drop_remainder)
    bounds = tf.stack([[zero, head], [head, head], [tail, num_windows]])
    is_full = tf.stack([left + head == size, False, is_last])

    def part(number: tf.Tensor) -> dict[str, Any]:
      first, end = tf.unstack(bounds[number])
      return {
        "window": self._read(pool, first, end),
        "is_full": is_full[number],
        "run": run,
        "is_run": number == 1,
      }

    return tf.data.Dataset.range(3).map(_as_it_is(part))

  def _join(self, rest: Any, part: dict[str, Any]) -> tuple[Any, tf.Tensor]:
    """Returns windows that fill no batch yet, and a dataset of those that do."""
    window = _concat(rest, part["window"])
    size = _num_rows(window)
    is_full = part["is_full"] & (size > 0)
    rest = tf.nest.map_structure(
      lambda leaf: leaf[: tf.where(is_full, 0, size)], window
    )
    joined = tf.data.Dataset.from_tensors(window).take(tf.cast(is_full, tf.int64))
    return rest, tf.cond(
      part["is_run"],
      lambda: tf.identity(part["run"]),
      lambda: tf.data.experimental.to_variant(joined),
    )

  def _finish(self, window: dict[str, tf.Tensor]) -> specs.TensorSpecStruct:
    # Shapes are set and not checked, so that tf.data calls no function for a batch.
    size = self._batch_size if self._drop_remainder else None
    for path, spec in self._columns.reader.window_spec.items():
      window[path].set_shape([size, *spec.shape])
    return specs.TensorSpecStruct(window)

  def _read(
    self, pool: _Pool, first: tf.Tensor, end: tf.Tensor
  ) -> dict[str, tf.Tensor]:
    chosen = pool["windows"][first:end]
    slot, start, length, first_row = tf.unstack(chosen, axis=1)
    window = self._columns.reader.read_with(
      lambda path, rows: self._columns.gather(
        path, pool["rows"][path], slot if rows is None else rows
      ),
      start,
      length,
      first_row,
    )
    return dict(window)
