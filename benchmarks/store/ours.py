"""What is measured: the store's loaders."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.measure import Round, Run
from benchmarks.store import works
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work
from t2r_seq import data, transitions, windows
from t2r_seq.store import EpisodeStore

MEMORY_BUDGET = 2**28
"""Of 'quasi_random': as much as peers' buffers of 2000 windows hold, and less."""


def global_order(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """All windows, or sequences of stacks, permuted."""
  return _load(work, epochs)


def quasi_random(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Pools of episodes within a budget of memory, each frame decoded once an epoch."""
  return _load(work, epochs, order="quasi_random", memory_budget=MEMORY_BUDGET)


def flat_sequences(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """The steps of each sequence once, [B, L + K - 1, ...], to be stacked later."""
  return _load(work, epochs, flat=True)


def n_step(work: TransitionWork, epochs: int | None = None) -> tf.data.Dataset:
  """n-step transitions, read from one-step ones on disk."""
  return _n_step(work).dataset(work.batch_size, seed=1, num_epochs=epochs)


def n_step_reads(work: TransitionWork, epochs: int | None = None) -> tf.data.Dataset:
  """The same, several batches in an element."""
  batch_size = work.batches_per_next * work.batch_size
  return _n_step(work).dataset(batch_size, seed=1, num_epochs=epochs)


def n_step_arrays(
  work: TransitionWork, epochs: int | None = None
) -> Iterator[dict[str, np.ndarray]]:
  """The same as numpy arrays."""
  return _n_step(work).numpy_batches(work.batch_size, seed=1, num_epochs=epochs)


def stack(work: Work, flat: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  """Stacks flat sequences, as a model does in its step on the device.

  Args:
    work: that the sequences are of.
    flat: leaves [B, L + K - 1, ...].
  Returns:
    Leaves [B, L, K, ...].
  """
  return windows.stack_windows(
    flat, works.window_specs(work), sequence_length=work.sequence_length
  )


def deliver_in_graph(
  pipeline: Callable[[Any], Iterable[Any]],
  work: Any,
  units_per_item: int = 1,
  step: Callable[[Any, Any], Any] | None = None,
  is_several: bool = False,
) -> Run:
  """Makes the run that reads batches inside of a tf.function, as training may.

  Args:
    pipeline: makes a dataset of batches that goes on for ever.
    work: with its `num_batches` and `batch_size`.
    units_per_item: what an item of a batch counts.
    step: what is done with a batch; nothing by default.
    is_several: an element holds `batches_per_next` batches, one after the other.
  Returns:
    The run.
  """
  dataset = pipeline(work)
  per_next = work.batches_per_next if is_several else 1

  def use(batch: Mapping[str, tf.Tensor], there: tf.Tensor) -> None:
    taken = dict(batch) if step is None else step(work, dict(batch))
    # One op that takes all leaves, so that nothing is pruned, and looks at none.
    tf.raw_ops.Assert(condition=there, data=list(taken.values()))

  def use_several(batches: Mapping[str, tf.Tensor]) -> None:
    split = {
      path: tf.reshape(leaf, [per_next, work.batch_size, *leaf.shape[1:]])
      for path, leaf in batches.items()
    }
    for index in tf.range(per_next):
      use({path: leaf[index] for path, leaf in split.items()}, index >= 0)

  def run() -> Round:
    gc.collect()  # The functions of rounds before hold their iterators in cycles.
    elements = iter(dataset)

    @tf.function
    def consume(num_elements: tf.Tensor) -> None:
      for number in tf.range(num_elements):
        element = next(elements)
        if is_several:
          use_several(element)
        else:
          use(element, number >= 0)

    consume(tf.constant(1))

    def do_round() -> int:
      num_elements = work.num_batches // per_next
      consume(tf.constant(num_elements))
      return num_elements * per_next * work.batch_size * units_per_item

    return do_round

  return run


def _load(work: Work, epochs: int | None, **options: Any) -> tf.data.Dataset:
  return data.StoreWindowLoader(
    EpisodeStore(work.store_path),
    works.window_specs(work),
    work.batch_size,
    seed=1,
    num_epochs=epochs,
    sequence_length=work.sequence_length,
    padding="drop",
    **options,
  ).dataset()


def _n_step(work: TransitionWork) -> transitions.loading.Transitions:
  return transitions.load_transitions(work.store_path).n_step(work.n, work.gamma)
