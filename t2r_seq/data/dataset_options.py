"""Options of datasets: what a checkpoint of their iterators has of them."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_keeps_positions = contextvars.ContextVar("keeps_positions", default=True)


@contextlib.contextmanager
def positions_kept(are_kept: bool) -> Iterator[None]:
  """Says whether the datasets that are made inside keep their position.

  An iterator that does brings it up to date with every element. Each time that a
  function which counts, or draws at random, has a part in that, TensorFlow (2.21) logs
  a warning, whatever the policy says: 147,000 lines in a run of the demo. So where
  nobody saves the iterator, as in a trainer that resumes from a step, it is left out.
  """
  token = _keeps_positions.set(are_kept)
  try:
    yield
  finally:
    _keeps_positions.reset(token)


def checkpoint_options() -> tf.data.Options:
  """Returns the options of a dataset whose state is a position."""
  options = _without_outer_state()
  if _keeps_positions.get():
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
  options = tf.data.Options()
  options.experimental_external_state_policy = (
    tf.data.experimental.ExternalStatePolicy.IGNORE
  )
  return options
