"""`load_transitions`: a store of chains, read as flat transitions, n-step or not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import data, errors, specs, windows
from t2r_seq.data.loaders import NumpyBatches
from t2r_seq.store import EpisodeStore
from t2r_seq.store.episode_store import StoreColumns
from t2r_seq.store.mapped import HeldTensor
from t2r_seq.transitions.metadata import TransitionsMetadata, describe_n_step
from t2r_seq.windows import NStep
from t2r_seq.windows.cut import Anchors


class Transitions:
  """The transitions of a store, as they were saved and in their order, n-step or not.

  Columns are mapped: nothing is loaded before it is read.

  A chain of T transitions has T + 1 rows, and before them what its first stacks show;
  the next observation of a transition is in the row after its own.

  Attributes:
    store: of chains.
    path: of the store.
    fields: which field is what.
    saved_n_step: how the transitions had been joined before they were saved, if at all.
    joined: how they are joined as they are read, if at all.
    spec: specs of one transition, by path, in the order of the fields.
    max_bytes: memory of the largest transition.
  """

  def __init__(
    self, store: EpisodeStore, about: TransitionsMetadata, joined: NStep | None = None
  ) -> None:
    """Maps the columns; `load_transitions` does so.

    Args:
      store: of chains.
      about: what it says about them.
      joined: how they are joined as they are read.
    Raises:
      SpecError: fields have the names of those that joining adds.
    """
    self.store = store
    self.path = store.path
    self.fields = about.fields
    self.saved_n_step = about.n_step
    self.joined = joined
    self._about = about
    self._columns = StoreColumns(store)
    # A last observation is never made up.
    cut = windows.Cut(padding=(about.padding, "drop"), n_step=joined)
    self._reader = windows.WindowReader(
      self._columns.element_spec, _window_specs(store, about), cut
    )
    self._axes = {
      path: stack.axis
      for path in self._reader.window_spec
      for stack in [about.stacks.get(about.fields.next_of.get(path, path))]
      if stack is not None and stack.axis
    }
    self.spec = specs.TensorSpecStruct(
      (path, _with_axis(spec, self._axes.get(path, 0)))
      for path, spec in self._reader.window_spec.items()
    )
    sources = [reading.source for reading in self._reader.readings.values()]
    self.max_bytes = sum(map(self._columns.max_row_bytes, sources))
    lengths, before = store.episode_lengths, about.num_before
    counts = np.maximum(lengths - 1 - before, 0)
    ends = np.cumsum(counts)
    self._num_transitions = int(ends[-1])
    self._ends = HeldTensor.of(ends)
    # Of each chain the rows before its own, and the transitions.
    rows = np.cumsum(lengths) - lengths
    self._begins = HeldTensor.of(np.stack([rows + before, ends - counts], 1))
    self._num_before = before
    self._held = [*self._columns.held, self._ends, self._begins]

  def __len__(self) -> int:
    return self._num_transitions

  def read(self, ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers transitions, in TensorFlow's ops alone.

    Args:
      ids: integers of any shape, in range(len(self)), in any order.
    Returns:
      The fields by path, ids.shape + the shape of one.
    """
    ids = tf.cast(ids, tf.int64)
    ends = self._ends.read_value()
    chains = tf.searchsorted(ends, tf.reshape(ids, [-1]), "right", out_type=tf.int64)
    chains = tf.reshape(chains, tf.shape(ids)) if ids.shape.rank != 1 else chains
    row, first = tf.unstack(tf.gather(self._begins.read_value(), chains), axis=-1)
    anchors = Anchors(
      row + ids - first, self._num_before + ids - first, tf.gather(ends, chains) - ids
    )

    def take(path: str, rows: tf.Tensor | None) -> tf.Tensor:
      return self._columns.take(path, chains if rows is None else rows)

    read = self._reader.read_at(take, anchors)
    lead = ids.shape.rank
    for path, axis in self._axes.items():
      value = read[path]
      order = list(range(value.shape.rank))
      order.insert(lead + axis, order.pop(lead))
      read[path] = tf.transpose(value, order)
    return specs.TensorSpecStruct(read)

  def n_step(self, n: int, gamma: float) -> Transitions:
    """Returns the same transitions, read as n-step ones; nothing is stored.

    Args:
      n: how many rewards are summed, at least 1.
      gamma: discount of one step, from 0 to 1.
    Returns:
      The transitions; see `windows.NStep`.
    Raises:
      SpecError: they are n-step transitions already.
    """
    for done in (self.saved_n_step, self.joined):
      if done is not None:
        raise errors.SpecError(
          f"n_step: {self.path}: expected one-step transitions, got {done}. Returns of "
          "returns would be wrong: read n-step transitions as they are."
        )
    fields = self.fields
    joined = NStep(n, gamma, fields.rew, fields.done, fields.truncated or "truncated")
    return Transitions(self.store, self._about, joined)

  def __getitem__(self, index: int) -> specs.TensorSpecStruct:
    """Returns one transition as numpy arrays; negative ones count from the end."""
    if not -len(self) <= index < len(self):
      raise IndexError(
        f"transitions: {self.path}: expected a number below {len(self)}, got {index}."
      )
    one = self.read(tf.constant(index % len(self), tf.int64))
    return specs.TensorSpecStruct((path, one[path].numpy()) for path in self.spec)

  def to_numpy(self, start: int = 0, stop: int | None = None) -> specs.TensorSpecStruct:
    """Reads transitions one after the other.

    Args:
      start: the first one.
      stop: the one after the last; None reads all that there are.
    Returns:
      Arrays [stop - start, ...] by path, in the order of the fields; as `Transitions`,
      bit for bit what was saved. Byte strings are objects.
    Raises:
      IndexError: there are not as many.
    """
    stop = len(self) if stop is None else stop
    if not 0 <= start <= stop <= len(self):
      raise IndexError(
        f"transitions: {self.path}: expected 0 <= start <= stop <= {len(self)}, got "
        f"start {start} and stop {stop}."
      )
    read = self.read(tf.range(start, stop, dtype=tf.int64))
    return specs.TensorSpecStruct((path, read[path].numpy()) for path in self.spec)

  def dataset(
    self,
    batch_size: int,
    order: str = "global",
    start_batch: int = 0,
    **fields: Any,
  ) -> tf.data.Dataset:
    """Makes a dataset of batches of transitions.

    The batches are a function of the arguments: the same on every machine and for any
    number of threads. What to resume from is the number of the next batch.

    Args:
      batch_size: B.
      order: 'sequential', or 'global': every epoch another permutation of all
        transitions, without a buffer.
      start_batch: batches to leave out, over all epochs; costs nothing.
      **fields: of a `data.Plan`: seed=1, num_epochs=None, num_shards=2, ...
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, ...].
    Raises:
      SpecError: an argument is wrong, or there are too few for one batch.
    """
    return self._loader(batch_size, order, fields).dataset(start_batch)

  def numpy_batches(
    self,
    batch_size: int,
    order: str = "global",
    start_batch: int = 0,
    **fields: Any,
  ) -> NumpyBatches:
    """Makes an iterator of the batches of `dataset`, as dicts of numpy arrays.

    For JAX, and for loops in Python: many batches come from one read. It knows its
    position. The arguments are those of `dataset`.
    """
    return self._loader(batch_size, order, fields).numpy_batches(start_batch)

  def _loader(
    self, batch_size: int, order: str, fields: Mapping[str, Any]
  ) -> data.WindowLoader:
    plan = data.Plan(
      batch_size=batch_size, order=order, where=f"transitions: {self.path}", **fields
    )
    return data.WindowLoader(
      plan.seeded(), self.read, len(self), self.max_bytes, held=self._held
    )


@gin.configurable
def load_transitions(
  path: str | os.PathLike[str], n_step: tuple[int, float] | NStep | None = None
) -> Transitions:
  """Opens what `save_transitions` saved, or `ReplayBuffer.to_store` of transitions.

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
  lengths = store.episode_lengths
  num = int(np.maximum(lengths - 1 - about.num_before, 0).sum())
  if num < about.num_transitions:
    raise errors.StoreError(
      f"load_transitions: {store.path}: expected {about.num_transitions} transitions, "
      f"got {num}. They were not saved to the end: remove the folder and save again."
    )


def _window_specs(
  store: EpisodeStore, about: TransitionsMetadata
) -> specs.TensorSpecStruct:
  """Returns the specs of transitions as windows over the rows of a chain."""
  stored, found = store.spec, specs.TensorSpecStruct()
  for path in about.fields.paths:
    source = about.fields.next_of.get(path, path)
    spec, offsets = stored[source], about.offsets(path)
    stacked = [len(offsets)] if isinstance(offsets, tuple) else []
    found[path] = specs.ExtendedTensorSpec.from_spec(
      spec,
      name=source,
      shape=[*stacked, *spec.shape],
      is_sequence=False,
      time_offsets=offsets if spec.is_sequence else None,
    )
  return found


def _with_axis(spec: tf.TensorSpec, axis: int) -> tf.TensorSpec:
  """Moves the first axis of a spec."""
  if not axis:
    return spec
  sizes = list(spec.shape)
  sizes.insert(axis, sizes.pop(0))
  return tf.TensorSpec(sizes, spec.dtype, spec.name)
