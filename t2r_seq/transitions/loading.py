"""`load_transitions`: a store of chains, read as flat transitions, n-step or not."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Sequence

import gin
import numpy as np
import tensorflow as tf

from t2r_seq import data, errors, specs
from t2r_seq.store import EpisodeStore, HeldTensor, StoreColumns
from t2r_seq.transitions.fields import (
  NStep,
  TransitionFields,
  TransitionsMetadata,
  describe_n_step,
)


class ChainRows:
  """The rows of transitions in a store of chains, by number.

  A chain of T transitions has T + 1 rows. So transition i is in the row i + c, where c
  is the number of its chain, and its next observation in the row after that.
  """

  def __init__(self, episode_lengths: np.ndarray) -> None:
    """Creates the map.

    Args:
      episode_lengths: rows of each chain, int64 [chains], at least 2 each.
    """
    ends = np.cumsum(episode_lengths - 1)
    self.num_transitions = int(ends[-1])
    self.held = HeldTensor.of(ends)

  def rows(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where transitions are.

    Args:
      ids: integers of any shape, in range(num_transitions).
    Returns:
      Their rows, and the last rows of their chains, both int64 of the shape of `ids`.
    """
    ids = tf.cast(ids, tf.int64)
    ends = self.held.read_value()
    chains = tf.searchsorted(ends, tf.reshape(ids, [-1]), "right", out_type=tf.int64)
    chains = tf.reshape(chains, tf.shape(ids)) if ids.shape.rank != 1 else chains
    return ids + chains, tf.gather(ends, chains) + chains


class TransitionReading(abc.ABC):
  """Transitions by number, whatever is done to them on the way out.

  Attributes:
    path: of the store.
    spec: specs of one transition, by path, in the order of the fields.
    max_bytes: memory of the largest transition.
  """

  def __init__(
    self,
    path: str,
    spec: specs.TensorSpecStruct,
    max_bytes: int,
    held: Sequence[HeldTensor],
  ) -> None:
    """Creates the reading; see the attributes, and for `held` `store.dataset_over`."""
    self._held = held
    self.path = path
    self.spec = spec
    self.max_bytes = max_bytes

  @abc.abstractmethod
  def __len__(self) -> int:
    """The number of transitions."""

  @abc.abstractmethod
  def read(self, ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers transitions, in TensorFlow's ops alone.

    Args:
      ids: integers of any shape, in range(len(self)), in any order.
    Returns:
      The fields by path, ids.shape + the shape of one.
    """

  @abc.abstractmethod
  def n_step(self, n: int, gamma: float) -> TransitionReading:
    """Returns the same transitions, read as n-step ones; nothing is stored.

    Args:
      n: how many rewards are summed, at least 1.
      gamma: discount of one step, from 0 to 1.
    Returns:
      The reading.
    Raises:
      SpecError: they are n-step transitions already.
    """

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
    seed: int = 0,
    num_epochs: int | None = 1,
    start_batch: int = 0,
    shard_index: int = 0,
    num_shards: int = 1,
    drop_remainder: bool = True,
  ) -> tf.data.Dataset:
    """Makes a dataset of batches of transitions.

    The batches are a function of the arguments: the same on every machine and for any
    number of threads. What to resume from is the number of the next batch.

    Args:
      batch_size: B.
      order: 'sequential', or 'global': every epoch another permutation of all
        transitions, without a buffer.
      seed: of the permutations.
      num_epochs: how often every transition is shown; None for ever.
      start_batch: batches to leave out, over all epochs; costs nothing.
      shard_index: which part of each epoch to show.
      num_shards: how many disjoint parts there are.
      drop_remainder: shows full batches only, equally many in every shard.
    Returns:
      Dataset of TensorSpecStructs by path, leaves [B, ...].
    Raises:
      SpecError: an argument is wrong, or there are too few for one batch.
    """
    window_order = data.WindowOrder(
      len(self), batch_size, order, seed, shard_index, num_shards, drop_remainder
    )
    if isinstance(start_batch, bool) or start_batch < 0:
      raise errors.SpecError(
        f"dataset: start_batch: expected at least 0, got {start_batch!r}."
      )
    return data.batches_in_order(
      *(self.read, window_order, batch_size * self.max_bytes, num_epochs, start_batch),
      held=self._held,
    )

  def numpy_batches(
    self,
    batch_size: int,
    order: str = "global",
    seed: int = 0,
    num_epochs: int | None = 1,
    start_batch: int = 0,
    shard_index: int = 0,
    num_shards: int = 1,
    drop_remainder: bool = True,
  ) -> data.NumpyBatches:
    """Makes an iterator of the batches of `dataset`, as dicts of numpy arrays.

    For JAX, and for loops in Python: many batches come from one read.

    Args:
      batch_size: B; this and the others as for `dataset`.
      order: 'sequential' or 'global'.
      seed: of the permutations.
      num_epochs: how often every transition is shown; None for ever.
      start_batch: batches to leave out, over all epochs.
      shard_index: which part of each epoch to show.
      num_shards: how many disjoint parts there are.
      drop_remainder: shows full batches only, equally many in every shard.
    Returns:
      An iterator that knows its position.
    Raises:
      SpecError: an argument is wrong, or there are too few for one batch.
    """
    window_order = data.WindowOrder(
      len(self), batch_size, order, seed, shard_index, num_shards, drop_remainder
    )
    return data.numpy_batches_in_order(
      *(self.read, window_order, batch_size * self.max_bytes, num_epochs, start_batch),
      held=self._held,
    )

  def _not_again(self, done: str) -> errors.SpecError:
    return errors.SpecError(
      f"n_step: {self.path}: expected one-step transitions, got {done}. Returns of "
      "returns would be wrong: read n-step transitions as they are."
    )


DISCOUNT = "discount"
NUM_STEPS = "num_steps"


class NStepTransitions(TransitionReading):
  """Transitions over up to n steps, for n-step returns.

  Transition t joins m = min(n, steps to the end of its chain) steps:

      rew        sum of gamma^k * rew[t + k] for k < m
      next_obs   of step t + m - 1: after a truncation the last one that there was
      done       of step t + m - 1, as `truncated` if there is one
      discount   gamma^m, and 0 after a terminal; of the shape of `done`
      num_steps  m

  and has the other fields of step t. So `rew + discount * value(next_obs)` is the
  target at terminals and truncations, too.
  """

  def __init__(
    self,
    path: str,
    spec: specs.TensorSpecStruct,
    max_bytes: int,
    fields: TransitionFields,
    take: Callable[[str, tf.Tensor], tf.Tensor],
    chain_rows: ChainRows,
    n_step: NStep,
    held: Sequence[HeldTensor],
  ) -> None:
    """Creates the reading; `Transitions.n_step` does so.

    Args:
      path: of the store.
      spec: of one-step transitions.
      max_bytes: memory of the largest one.
      fields: which one is what.
      take: from a path and rows to values.
      chain_rows: where transitions are.
      n_step: what to read.
      held: the tensors that are read from; see `store.dataset_over`.
    Raises:
      SpecError: fields have the names of those that are added.
    """
    super().__init__(path, _n_step_spec(path, spec, fields), max_bytes, held)
    self.joined = n_step
    self._fields = fields
    self._take = take
    self._chain_rows = chain_rows
    self._powers = np.float64(n_step.gamma) ** np.arange(n_step.n + 1)

  def __len__(self) -> int:
    return self._chain_rows.num_transitions

  def n_step(self, n: int, gamma: float) -> TransitionReading:
    """Raises: n-step transitions are not joined again."""
    raise self._not_again(str(self.joined))

  def read(self, ids: tf.Tensor) -> specs.TensorSpecStruct:
    """Gathers n-step transitions; see `TransitionReading.read`."""
    fields, rows = self._fields, self._chain_rows.rows(ids)
    next_rows, num_steps = n_step_rows(*rows, self.joined.n)
    read = specs.TensorSpecStruct()
    for path in fields.paths:
      if path in fields.next_of:
        read[path] = self._take(fields.next_of[path], next_rows)
      elif path in fields.flags:
        read[path] = self._take(path, next_rows - 1)
      elif path in fields.rewards:
        rewards = self._take(path, reward_rows(*rows, self.joined.n))
        read[path] = discounted_return(rewards, self._powers)
      else:
        read[path] = self._take(path, rows[0])
    done = tf.cast(read[fields.done], tf.float32)
    discounts = tf.gather(tf.constant(self._powers, tf.float32), num_steps)
    # As done is, [B] or [B, 1]: with rewards of that shape there is no broadcasting.
    read[DISCOUNT] = tf.reshape(discounts, tf.shape(done)) * (1.0 - done)
    read[NUM_STEPS] = tf.cast(num_steps, tf.int32)
    return read


def n_step_rows(
  rows: tf.Tensor, last_rows: tf.Tensor, n: int
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns where the n-step next observations are.

  Args:
    rows: of the transitions, int64 of any shape.
    last_rows: the last rows of their chains, those of the last next observations.
    n: at least 1.
  Returns:
    The rows n steps later, or the last ones; and how many steps that is.
  """
  next_rows = tf.minimum(rows + n, last_rows)
  return next_rows, next_rows - rows


def reward_rows(rows: tf.Tensor, last_rows: tf.Tensor, n: int) -> tf.Tensor:
  """Returns where the rewards of n steps are.

  Args:
    rows: of the transitions, int64 [...].
    last_rows: the last rows of their chains, in which rewards are 0.
    n: at least 1.
  Returns:
    int64 [n, ...]; from the end of a chain on, its last row again and again.
  """
  steps = tf.range(n, dtype=tf.int64)
  return tf.minimum(rows + tf.reshape(steps, [n] + [1] * rows.shape.rank), last_rows)


def discounted_return(rewards: tf.Tensor, powers: np.ndarray) -> tf.Tensor:
  """Sums discounted rewards, in float64 if they are, else in float32.

  Args:
    rewards: [n, ...].
    powers: gamma^k, at least n.
  Returns:
    [...] of the rewards' dtype; float32 for integers.
  """
  dtype = return_dtype(rewards.dtype)
  exact = tf.float64 if dtype == tf.float64 else tf.float32
  num, rank = rewards.shape[0], rewards.shape.rank
  weights = tf.constant(powers[:num].reshape([num] + [1] * (rank - 1)), exact)
  return tf.cast(tf.reduce_sum(tf.cast(rewards, exact) * weights, 0), dtype)


def return_dtype(dtype: tf.DType) -> tf.DType:
  """Returns the dtype of a discounted return of such rewards."""
  return dtype if dtype.is_floating else tf.float32


def _n_step_spec(
  path: str, spec: specs.TensorSpecStruct, fields: TransitionFields
) -> specs.TensorSpecStruct:
  clashes = [
    errors.Mismatch(name, "no field of the name of one that n-step adds", "one")
    for name in (DISCOUNT, NUM_STEPS)
    if name in spec
  ]
  if clashes:
    raise errors.mismatch_error(f"n_step: {path}", clashes)
  joined = spec.copy()
  for name in fields.rewards:
    dtype = return_dtype(spec[name].dtype)
    joined[name] = specs.ExtendedTensorSpec(spec[name].shape, dtype, name)
  shape = spec[fields.done].shape
  joined[DISCOUNT] = specs.ExtendedTensorSpec(shape, tf.float32, DISCOUNT)
  joined[NUM_STEPS] = specs.ExtendedTensorSpec((), tf.int32, NUM_STEPS)
  return joined


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
