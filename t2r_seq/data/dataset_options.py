"""Options of datasets: what waits in memory, and what a checkpoint has of them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_keeps_positions: contextvars.ContextVar[bool | None] = contextvars.ContextVar(
  "keeps_positions", default=None
)


@contextlib.contextmanager
def positions_kept(are_kept: bool, unless_said: bool = False) -> Iterator[None]:
  """Says whether the datasets that are made inside keep their position.

  An iterator that does brings it up to date with every element. Each time that a
  function which counts, or draws at random, has a part in that, TensorFlow (2.21) logs
  a warning, whatever the policy says: 147,000 lines in a run of the demo. So where
  nobody saves the iterator, as in a trainer that resumes from a step, it is left out.

  Args:
    are_kept: what is said.
    unless_said: says nothing where somebody has said it already, around this.
  """
  said = keeps_positions()
  token = _keeps_positions.set(said if unless_said and said is not None else are_kept)
  try:
    yield
  finally:
    _keeps_positions.reset(token)


def keeps_positions() -> bool | None:
  """Returns whether the datasets that are made here do; None where nobody said."""
  return _keeps_positions.get()


def bounded_options() -> tf.data.Options:
  """Returns the options of every dataset: no more waits in memory than is asked for.

  TensorFlow would end each pipeline with a buffer that doubles whenever a consumer has
  paused and then empties it: with batches of 7 MB, 3.5 GB after six such pauses. And it
  would make each `map` a parallel one, which keeps its results, and wakes up a thread
  for each, where it only takes a batch apart: 5 % of the rate of streamed windows.
  What else it would rewrite is not in these pipelines, and to look for it takes 0.9 s
  of the 1.4 s in which an iterator of the longest of them is made.
  """
  options = tf.data.Options()
  options.experimental_optimization.apply_default_optimizations = False
  options.experimental_optimization.inject_prefetch = False
  options.experimental_optimization.map_parallelization = False
  return options


def checkpoint_options() -> tf.data.Options:
  """Returns the options of a dataset whose state is a position."""
  options = _without_outer_state()
  if keeps_positions() is not False:
    # Without what is being read ahead, which would be part of the state otherwise.
    options.experimental_symbolic_checkpoint = True
  return options


def generator_options() -> tf.data.Options:
  """Returns the options of an input generator's dataset, beside those of its parts."""
  options = _without_outer_state()
  options.deterministic = True
  return options


def _without_outer_state() -> tf.data.Options:
  # To a checkpoint counts are a state that it cannot save. They are no reason not to
  # save the position.
  options = bounded_options()
  options.experimental_external_state_policy = (
    tf.data.experimental.ExternalStatePolicy.IGNORE
  )
  return options
