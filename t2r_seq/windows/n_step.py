"""n-step transitions: which field is what, and what up to n steps are joined to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from t2r_seq import deferred, errors
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.windows.cut import (
  DISCOUNT,
  NUM_STEPS,
  NStep,
  add_axes,
  array_module,
  own_path,
)

_NEXT = "next_"


@dataclasses.dataclass(frozen=True)
class TransitionFields:
  """The fields of transitions and what part each plays.

  A field `next_x` is `x` one step later, for branches too: `next_obs/image` goes with
  `obs/image`. It is stored with `x`.

  Attributes:
    paths: of all fields, in the order in which they were given.
    next_of: by path of a `next_` field, the path that it is the next of.
    rewards: paths of the rewards.
    rew: path of the reward, or of a branch of several, as it was declared.
    done: path of the flag of terminals.
    truncated: path of the flag of steps after which an episode was cut off, if any.
  """

  paths: tuple[str, ...]
  next_of: Mapping[str, str]
  rewards: tuple[str, ...]
  rew: str
  done: str
  truncated: str | None

  @classmethod
  def from_paths(
    cls,
    operation: str,
    paths: Iterable[str],
    rew: str = "rew",
    done: str = "done",
    truncated: str = "truncated",
    branches: tuple[str, ...] = (),
  ) -> TransitionFields:
    """Tells the fields apart.

    Args:
      operation: for the error.
      paths: of all fields.
      rew: path of the reward, or of a branch of several.
      done: path of the flag of terminals.
      truncated: path of the flag of truncations; there may be none.
      branches: first components of paths that are no part of the names of fields.
    Returns:
      The fields.
    Raises:
      SpecError: with every field that lacks its partner, and the reward or the flag of
        terminals where they are missing.
    """
    paths = tuple(paths)
    # The path of a name: that of a later branch where several have it.
    names = {own_path(path, branches): path for path in paths}
    next_of: dict[str, str] = {}
    found = [*_unpaired(names, next_of), *_missing(names, rew, done)]
    for path in paths:
      name = own_path(path, branches)
      is_part = name in (done, truncated) or _is_in(name, rew)
      if (is_part or name.startswith(_NEXT)) and names[name] != path:
        found.append(errors.Mismatch(path, "one field of its name", names[name]))
    if found:
      raise errors.mismatch_error(operation, found)
    rewards = tuple(path for name, path in names.items() if _is_in(name, rew))
    return cls(paths, next_of, rewards, rew, names[done], names.get(truncated))

  @property
  def stored(self) -> tuple[str, ...]:
    """The fields that have a column: all but those that are the next of another."""
    return tuple(path for path in self.paths if path not in self.next_of)

  @property
  def flags(self) -> tuple[str, ...]:
    """The fields that end a chain where they are set."""
    return (self.done,) if self.truncated is None else (self.done, self.truncated)


class Joining:
  """The arithmetic of joining up to n steps, for numpy arrays and tensors.

  What depends on how many steps are joined is looked up by `shift`, the steps from an
  anchor to the last one that is joined.

  Attributes:
    n: steps.
    fields: which one is what.
    after: steps after an anchor that its one-step transition shows.
  """

  def __init__(self, n_step: NStep, fields: TransitionFields, after: int = 1) -> None:
    """Prepares the joining; see the attributes."""
    self.n, self.fields, self.after = n_step.n, fields, after
    powers: np.ndarray = np.power(n_step.gamma, np.arange(self.n + 1.0))
    steps, shifts = np.arange(self.n)[:, np.newaxis], np.arange(self.n)
    self._weights: np.ndarray = np.where(steps <= shifts, powers[:-1, np.newaxis], 0.0)
    self._discounts = powers[1:].astype(np.float32)

  @property
  def later(self) -> frozenset[str]:
    """The fields that are those of the last joined step: next ones and flags."""
    return frozenset((*self.fields.next_of, *self.fields.flags))

  def shift(self, after: Any) -> Any:
    """Returns the steps to the last joined one.

    Args:
      after: steps of the episode after the anchors, int64 [] or [B]; at least those
        that a one-step transition shows.
    """
    xp = array_module(after)
    return xp.minimum(xp.maximum(after - self.after, 0), self.n - 1)

  def reward_offsets(self, shift: Any) -> Any:
    """Returns the steps whose rewards are read, int64 [n, ...]; the last again.

    The n first: so numpy adds long rows.
    """
    steps = np.arange(self.n).reshape([self.n] + [1] * len(shift.shape))
    return array_module(shift).minimum(steps, shift)

  def total(self, rewards: Any, shift: Any) -> Any:
    """Sums discounted rewards, in float64.

    Args:
      rewards: [n, ...], at the steps of `reward_offsets`.
      shift: [] or [B], the axes after the first one.
    Returns:
      [...] of the rewards' dtype; float32 for integers.
    """
    dtype = return_dtype(tf.as_dtype(rewards.dtype))
    weights = _take(self._weights, shift, 1)
    axes = "b" * len(shift.shape)
    equation = f"n{axes}...,n{axes}->{axes}..."
    if not deferred.is_tensor(rewards):
      return np.einsum(equation, rewards, weights).astype(dtype.as_numpy_dtype)
    weights = add_axes(weights, rewards.shape.rank - weights.shape.rank)
    return tf.cast(tf.reduce_sum(tf.cast(rewards, tf.float64) * weights, 0), dtype)

  def discount(self, done: Any, shift: Any) -> Any:
    """Returns the weight of the next value, float32 of the shape of `done`."""
    discounts = _take(self._discounts, shift, 0)
    if not deferred.is_tensor(done):
      goes_on = np.subtract(1, done, dtype=np.float32)
      return discounts.reshape(goes_on.shape) * goes_on
    # As done is, [B] or [B, 1]: with rewards of that shape there is no broadcasting.
    return tf.reshape(discounts, tf.shape(done)) * (1.0 - tf.cast(done, tf.float32))

  def num_steps(self, shift: Any) -> Any:
    """Returns how many steps are joined, int32."""
    if deferred.is_tensor(shift):
      return tf.cast(shift + 1, tf.int32)
    return np.asarray(shift + 1, np.int32)

  def spec(self, name: str, done: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of `DISCOUNT` or `NUM_STEPS`, given that of the flag."""
    if name == DISCOUNT:
      return tf.TensorSpec(done.shape, tf.float32)
    return tf.TensorSpec((), tf.int32)


def return_dtype(dtype: tf.DType) -> tf.DType:
  """Returns the dtype of a discounted return of such rewards."""
  return dtype if dtype.is_floating else tf.float32


def integer_rewards(flat: TensorSpecStruct, n_step: NStep) -> list[errors.Mismatch]:
  """Finds rewards that are declared as integers where specs say what is delivered.

  Args:
    flat: specs by path.
    n_step: how transitions are joined.
  Returns:
    What is wrong with each of them: their returns are floats.
  """
  hint = "Returns of n steps are floats: store the rewards as such, or read one step."
  return [
    errors.Mismatch(path, "rewards of floats", errors.describe(spec), hint)
    for path, spec in flat.items()
    if _is_in(own_path(path, n_step.branches), n_step.rew)
    and return_dtype(spec.dtype) != spec.dtype
  ]


def plan_joining(
  n_step: NStep,
  wanted: TensorSpecStruct,
  steps: Mapping[str, np.ndarray | None],
  after: int,
) -> Joining:
  """Plans how the windows of one-step transitions are joined.

  Args:
    n_step: how.
    wanted: specs of the windows that are read, by path.
    steps: that each path shows, relative to the anchor; None for a context feature.
    after: steps after an anchor that its window shows.
  Returns:
    The arithmetic.
  Raises:
    SpecError: the specs are no one-step transitions; all that is wrong is named.
  """
  names = (n_step.rew, n_step.done, n_step.truncated, n_step.branches)
  fields = TransitionFields.from_paths("n_step", steps, *names)
  found = [
    errors.Mismatch(path, "no field of the name of one that n-step adds", "one")
    for path in wanted
    if own_path(path, n_step.branches) in (DISCOUNT, NUM_STEPS)
  ]
  for path in (*fields.rewards, *fields.flags):
    shown = steps[path]
    if shown is None or shown.ndim or shown != 0:
      found.append(
        errors.Mismatch(path, "the anchor's own step, time_offsets=0", _got(shown))
      )
  for path, of in fields.next_of.items():
    shown, own = steps[path], steps[of]
    if shown is None or own is None or not np.array_equal(shown, own + 1):
      want = f"the offsets of {of}, each one step later"
      found.append(errors.Mismatch(path, want, _got(shown)))
  if found:
    raise errors.mismatch_error("n_step", found)
  return Joining(n_step, fields, after)


def check_computed(
  computed: Mapping[str, str],
  wanted: Mapping[str, ExtendedTensorSpec],
  joining: Joining,
  done: tf.TensorSpec,
) -> None:
  """Raises SpecError where a path that joining computes is declared otherwise."""
  found = [
    errors.Mismatch(path, f"{errors.describe(spec)}, as n_step gives it", got)
    for path, name in computed.items()
    if path in wanted
    for spec, got in [(joining.spec(name, done), errors.describe(wanted[path]))]
    if (wanted[path].shape, wanted[path].dtype) != (spec.shape, spec.dtype)
  ]
  if found:
    raise errors.mismatch_error("n_step", found)


def _take(table: np.ndarray, index: Any, axis: int) -> Any:
  if deferred.is_tensor(index):
    return tf.gather(table, index, axis=axis)
  return table.take(index, axis)


def _got(steps: np.ndarray | None) -> str:
  return "a feature of the episode" if steps is None else f"offsets {steps.tolist()}"


def _is_in(name: str, branch: str) -> bool:
  return name == branch or name.startswith(f"{branch}/")


def _unpaired(
  names: Mapping[str, str], next_of: dict[str, str]
) -> Iterable[errors.Mismatch]:
  """Pairs fields with their next ones; yields those that have no partner."""
  later = [name for name in names if name.startswith(_NEXT)]
  if not later:
    want = "a field and its next one, such as obs and next_obs"
    yield errors.Mismatch("the transitions", want, errors.listing(names))
  with_next = {name.removeprefix(_NEXT).split("/")[0] for name in later}
  for name, path in names.items():
    own = name.removeprefix(_NEXT)
    if name in later and own in names:
      next_of[path] = names[own]
    elif name in later:
      hint = errors.nearest(own, (other for other in names if other not in later))
      hint = hint or f"Where it is no next one, name it without '{_NEXT}'."
      yield errors.Mismatch(own, f"the field that {path} follows", "nothing", hint)
    elif name.split("/")[0] in with_next and _NEXT + name not in names:
      hint = errors.nearest(_NEXT + name, later)
      yield errors.Mismatch(_NEXT + name, f"the next of {name}", "nothing", hint)


def _missing(
  names: Mapping[str, str], rew: str, done: str
) -> Iterable[errors.Mismatch]:
  if not any(_is_in(name, rew) for name in names):
    hint = errors.nearest(rew, names) or "Name it: save_transitions(..., rew='...')."
    yield errors.Mismatch(rew, "the reward", "nothing", hint)
  if done not in names:
    hint = errors.nearest(done, names) or "Name it: save_transitions(..., done='...')."
    yield errors.Mismatch(done, "the flag of terminals", "nothing", hint)
