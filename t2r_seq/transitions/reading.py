"""Transitions as they are read: by number, or in batches in any order."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import tensorflow as tf

from t2r_seq import data, errors, specs
from t2r_seq.store import HeldTensor


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
