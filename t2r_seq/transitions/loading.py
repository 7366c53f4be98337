"""`load_transitions`: a store of chains, read as flat transitions."""

from __future__ import annotations

import os

import gin
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import EpisodeStore, StoreColumns
from t2r_seq.transitions.chain_rows import ChainRows
from t2r_seq.transitions.metadata import (
  NStep,
  TransitionsMetadata,
  describe_n_step,
)
from t2r_seq.transitions.n_step import NStepTransitions
from t2r_seq.transitions.reading import TransitionReading


class Transitions(TransitionReading):
  """The transitions of a store, as they were saved and in their order.

  Columns are mapped: nothing is loaded before it is read.
  """

  def __init__(self, store: EpisodeStore, about: TransitionsMetadata) -> None:
    """Maps the columns; `load_transitions` does so.

    Args:
      store: of chains.
      about: what it says about them.
    """
    self.store = store
    self.fields = about.fields
    self.saved_n_step = about.n_step
    self._columns = StoreColumns(store)
    self._chain_rows = ChainRows(store.episode_lengths)
    columns = [self.fields.next_of.get(path, path) for path in self.fields.paths]
    max_bytes = sum(map(self._columns.max_row_bytes, columns))
    held = [*self._columns.held, self._chain_rows.held]
    super().__init__(store.path, _transition_spec(store, about), max_bytes, held)

  def __len__(self) -> int:
    return self._chain_rows.num_transitions

  def read(self, ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers transitions; see `TransitionReading.read`."""
    rows, _ = self._chain_rows.rows(ids)
    next_of = self.fields.next_of
    return specs.TensorSpecStruct(
      (path, self._columns.take(next_of[path], rows + 1))
      if path in next_of
      else (path, self._columns.take(path, rows))
      for path in self.fields.paths
    )

  def n_step(self, n: int, gamma: float) -> NStepTransitions:
    """Returns the same transitions, read as n-step ones.

    Args:
      n: how many rewards are summed, at least 1.
      gamma: discount of one step, from 0 to 1.
    Returns:
      The reading; see `NStepTransitions`.
    Raises:
      SpecError: they were n-step transitions when they were saved.
    """
    if self.saved_n_step is not None:
      raise self._not_again(str(self.saved_n_step))
    return NStepTransitions(
      self.path,
      self.spec,
      self.max_bytes,
      self.fields,
      self._columns.take,
      self._chain_rows,
      NStep(n, gamma),
      self._held,
    )


@gin.configurable
def load_transitions(
  path: str | os.PathLike[str], n_step: tuple[int, float] | NStep | None = None
) -> Transitions:
  """Opens what `save_transitions` saved.

  Args:
    path: of the store.
    n_step: (n, gamma), where the transitions had been made n-step ones before they
      were saved; None expects that they had not.
  Returns:
    The transitions; nothing is loaded yet.
  Raises:
    StoreError: no store, one of something else, a damaged, unfinished or newer one.
    SpecError: the transitions are not of the `n_step` that was expected.
  """
  expected = NStep.of(n_step)
  store = EpisodeStore(path)
  about = TransitionsMetadata.from_metadata(store.path, store.metadata)
  if about.n_step != expected:
    told = about.n_step and f"({about.n_step.n}, {about.n_step.gamma})"
    raise errors.SpecError(
      f"load_transitions: {store.path}: expected {describe_n_step(expected)}, got "
      f"{describe_n_step(about.n_step)}. Load them with n_step={told}."
    )
  _check_columns(store, about)
  return Transitions(store, about)


def _check_columns(store: EpisodeStore, about: TransitionsMetadata) -> None:
  """Checks that the store has what it says about itself."""
  want, got = set(about.fields.stored), set(store.spec)
  if want != got:
    raise errors.StoreError(
      f"load_transitions: {store.path}: expected columns {errors.listing(want)}, got "
      f"{errors.listing(got)}. The store is damaged."
    )
  num = store.num_steps - len(store)
  if num < about.num_transitions:
    raise errors.StoreError(
      f"load_transitions: {store.path}: expected {about.num_transitions} transitions, "
      f"got {num}. They were not saved to the end: remove the folder and save again."
    )
  if (store.episode_lengths < 2).any():
    raise errors.StoreError(
      f"load_transitions: {store.path}: expected chains of at least 2 rows, got one of "
      "1. The last row of a chain has its last next observation."
    )


def _transition_spec(
  store: EpisodeStore, about: TransitionsMetadata
) -> specs.TensorSpecStruct:
  stored, next_of = store.spec, about.fields.next_of
  columns = {path: stored[next_of.get(path, path)] for path in about.fields.paths}
  return specs.TensorSpecStruct(
    (path, specs.ExtendedTensorSpec(column.shape, column.dtype, path))
    for path, column in columns.items()
  )
