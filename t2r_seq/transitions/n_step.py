"""n-step transitions, made while one-step ones are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs
from t2r_seq.store import HeldTensor
from t2r_seq.transitions.chain_rows import ChainRows
from t2r_seq.transitions.fields import TransitionFields
from t2r_seq.transitions.metadata import NStep
from t2r_seq.transitions.reading import TransitionReading

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
