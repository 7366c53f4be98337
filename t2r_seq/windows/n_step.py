"""n-step transitions: their fields, and the arithmetic of joining up to n steps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors, imports
from t2r_seq.specs import ExtendedTensorSpec, TensorSpecStruct
from t2r_seq.specs.names import source_paths
from t2r_seq.windows.cut import (
  DISCOUNT,
  NUM_STEPS,
  NStep,
  add_axes,
  array_module,
  own_path,
)

_NEXT = "next_"
# The observation after an episode's last row: `final_observations` of Minari,
# `final_obs/image` of robomimic.
_FINAL = "final_"
# RLDS flags the state that an episode ends with, not the transition that leads to it.
_STATE_FLAGS = ("is_terminal", "is_last")


@dataclasses.dataclass(frozen=True)
class TransitionFields:
  """The paths of a transition's fields, by role.

  A field `next_x` is `x` one step later, for branches too: `next_obs/image` goes with
  `obs/image`. It is stored with `x`.

  Attributes:
    paths: paths of all fields, in the given order.
    next_of: by path of a `next_` field, the path that it is the next of.
    rewards: paths of the rewards.
    rew: path of the reward, or of a branch of several, as it was declared.
    done: path of the flag of terminals.
    truncated: path of the flag of truncations; None without one.
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
    """Identifies the fields.

    Args:
      operation: for the error.
      paths: paths of all fields.
      rew: path of the reward, or of a branch of several.
      done: path of the flag of terminals.
      truncated: path of the flag of truncations; there may be none.
      branches: first components of paths that are not part of the names of fields.
    Raises:
      SpecError: a field lacks its partner, the reward or terminal flag is missing, or
        two branches have the same field; all are listed.
    """
    paths = tuple(paths)
    # If several branches have a name, its path is that of the last one.
    names = {own_path(path, branches): path for path in paths}
    next_of: dict[str, str] = {}
    mismatches = [*_pair_fields(names, next_of), *_missing(names, rew, done)]
    for path in paths:
      name = own_path(path, branches)
      is_part = name in (done, truncated) or _is_in(name, rew)
      if (is_part or name.startswith(_NEXT)) and names[name] != path:
        mismatches.append(errors.Mismatch(path, "one field of its name", names[name]))
    if mismatches:
      raise errors.mismatch_error(operation, mismatches)
    rewards = tuple(path for name, path in names.items() if _is_in(name, rew))
    return cls(paths, next_of, rewards, rew, names[done], names.get(truncated))

  @property
  def stored_paths(self) -> tuple[str, ...]:
    """The fields with a column: all except `next_` fields of stored ones."""
    return tuple(path for path in self.paths if path not in self.next_of)

  @property
  def flags(self) -> tuple[str, ...]:
    """The flags that end a chain."""
    return (self.done,) if self.truncated is None else (self.done, self.truncated)


class PathRead(NamedTuple):
  """Steps that one path of a transition reads.

  Attributes:
    source: the path in the episode.
    steps: the steps relative to the anchor; None for a context feature.
    name: name of the spec.
  """

  source: str
  steps: np.ndarray | None
  name: str | None


class NStepPlan:
  """The arithmetic of joining up to n steps, for numpy arrays and tensors.

  `shift` is the number of steps from an anchor to the last joined step.

  Attributes:
    n: maximum number of joined steps.
    fields: paths of rewards, flags and next observations.
    offsets: by path of a reward or flag, 0 if it is stored with the first step of the
      transition, 1 if it is stored with the state that the step leads to.
    after: rows after an anchor that its one-step transition reads.
    finals: by path of the episode, the context feature that follows its last row.
    has_finals: whether all observations have a value after the last row, so that the
      last row begins a transition, too.
    keeps_terminal: whether the last row begins a transition if it is flagged as
      terminal. Its next observation has weight 0, so the last row replaces it.
  """

  def __init__(
    self,
    n_step: NStep,
    fields: TransitionFields,
    reads: Mapping[str, PathRead],
    finals: Mapping[str, str],
  ) -> None:
    """Plans n-step transitions.

    Args:
      n_step: how transitions are joined.
      fields: paths of rewards, flags and next observations.
      reads: the steps that each path reads.
      finals: see the attributes.
    """
    self.n, self.fields, self.finals = n_step.n, fields, finals
    parts = (*fields.rewards, *fields.flags)
    self.offsets = {path: _last_step(reads[path]) for path in parts}
    lasts = {path: _last_step(reads[path]) for path in fields.next_of}
    self.after = max(0, *self.offsets.values(), *lasts.values())
    # Rewards and flags are stored with their step: only an observation is missing.
    lacks_observation = self.after == 1 and not any(self.offsets.values())
    self.has_finals = lacks_observation and all(
      reads[path].source in finals for path, last in lasts.items() if last == 1
    )
    self.keeps_terminal = lacks_observation and not self.has_finals
    self._all_steps = np.arange(self.n)
    powers: np.ndarray = np.power(n_step.gamma, np.arange(self.n + 1.0))
    steps, shifts = np.arange(self.n)[:, np.newaxis], np.arange(self.n)
    self._weights: np.ndarray = np.where(steps <= shifts, powers[:-1, np.newaxis], 0.0)
    self._discounts = powers[1:].astype(np.float32)

  @property
  def later(self) -> frozenset[str]:
    """The fields that are read at the last joined step: next ones and flags."""
    return frozenset((*self.fields.next_of, *self.fields.flags))

  @property
  def reads_beyond(self) -> bool:
    """Whether a transition may begin with an episode's last row."""
    return self.has_finals or self.keeps_terminal

  def flag_offsets(self, path: str, after: Any) -> Any:
    """Returns the steps whose flags are read, int64 [n, ...]; the last row may repeat.

    Args:
      path: path of the flag.
      after: rows of the episode after the anchors, int64 [] or [B].
    """
    steps = self._steps(after) + self.offsets[path]
    return array_module(after).minimum(steps, after)

  def shift(self, after: Any, flags: Mapping[str, Any]) -> Any:
    """Returns the steps to the last joined one: n - 1, or to the first set flag.

    Args:
      after: rows of the episode after the anchors, int64 [] or [B]; at least those
        that a one-step transition reads, except if `reads_beyond`.
      flags: by path, bool [n, ...] at `flag_offsets`; {} for n = 1.
    Returns:
      int64 [] or [B].
    """
    xp = array_module(after)
    rows = after + 1 if self.has_finals else after
    last = xp.minimum(xp.maximum(rows - self.after, 0), self.n - 1)
    for path, is_set in flags.items():
      first = self._first(is_set)
      if path == self.fields.done and self.keeps_terminal:
        # Only a terminal may be later: it needs no next observation.
        last = xp.where(first < self.n, first, last)
      else:
        last = xp.minimum(first, last)
    return last

  def _first(self, is_set: Any) -> Any:
    """Returns the first set step of [n, ...], or n; int64 [...]."""
    steps, none = self._steps(is_set[0]), np.int64(self.n)
    if imports.is_tensor(is_set):
      return tf.reduce_min(tf.where(is_set, steps, none), 0)
    return np.where(is_set, steps, none).min(0)

  def _steps(self, like: Any) -> np.ndarray:
    return self._all_steps.reshape((self.n,) + (1,) * len(like.shape))

  def reward_offsets(self, shift: Any) -> Any:
    """Returns the steps whose rewards are read, int64 [n, ...]; the last may repeat.

    The axis of n is the first one, so that numpy adds long rows.
    """
    return array_module(shift).minimum(self._steps(shift), shift)

  def total(self, rewards: Any, shift: Any) -> Any:
    """Sums discounted rewards, in float64.

    Args:
      rewards: [n, ...], at the steps of `reward_offsets`.
      shift: [] or [B], the axes after the first one.
    Returns:
      [...] of the rewards' dtype; float32 for integers.
    """
    weights = _take(self._weights, shift, 1)
    if not imports.is_tensor(rewards):
      axes = "b" * len(shift.shape)
      total = np.einsum(f"n{axes}...,n{axes}->{axes}...", rewards, weights)
      # TensorFlow's dtypes cost as much as the sum; bfloat16 is of kind 'V'.
      return total.astype(rewards.dtype if rewards.dtype.kind in "fV" else np.float32)
    dtype = discounted_return_dtype(rewards.dtype)
    weights = add_axes(weights, rewards.shape.rank - weights.shape.rank)
    return tf.cast(tf.reduce_sum(tf.cast(rewards, tf.float64) * weights, 0), dtype)

  def discount(self, done: Any, shift: Any) -> Any:
    """Returns the weight of the next value, float32 of the shape of `done`."""
    discounts = _take(self._discounts, shift, 0)
    if not imports.is_tensor(done):
      is_not_done = np.subtract(1, done, dtype=np.float32)
      return discounts.reshape(is_not_done.shape) * is_not_done
    # In the shape of `done`, [B] or [B, 1], so that rewards of it are not broadcast.
    return tf.reshape(discounts, tf.shape(done)) * (1.0 - tf.cast(done, tf.float32))

  def num_steps(self, shift: Any) -> Any:
    """Returns how many steps are joined, int32."""
    if imports.is_tensor(shift):
      return tf.cast(shift + 1, tf.int32)
    return np.asarray(shift + 1, np.int32)

  def spec(self, name: str, done: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of `DISCOUNT` or `NUM_STEPS`, given that of the flag."""
    if name == DISCOUNT:
      return tf.TensorSpec(done.shape, tf.float32)
    return tf.TensorSpec((), tf.int32)


def discounted_return_dtype(dtype: tf.DType) -> tf.DType:
  """Returns the dtype of a discounted return of such rewards."""
  return dtype if dtype.is_floating else tf.float32


def integer_rewards(flat: TensorSpecStruct, n_step: NStep) -> list[errors.Mismatch]:
  """Returns a mismatch for each integer reward: n-step returns are floats.

  Args:
    flat: specs by path.
    n_step: how transitions are joined.
  """
  hint = "Returns of n steps are floats: store the rewards as such, or read one step."
  return [
    errors.Mismatch(path, "rewards of floats", errors.describe(spec), hint)
    for path, spec in flat.items()
    if _is_in(own_path(path, n_step.branches), n_step.rew)
    and discounted_return_dtype(spec.dtype) != spec.dtype
  ]


def move_state_flags(
  window_spec: TensorSpecStruct, n_step: NStep | None, element: Mapping[str, Any]
) -> TensorSpecStruct:
  """Moves RLDS flags of states one step later, to the state after a transition.

  `is_terminal` and `is_last` flag the last step, which begins no transition.

  Args:
    window_spec: specs of the windows, by path.
    n_step: how transitions are joined; None if they are not.
    element: specs of the episode, by path, with their names in the files, if known.
  Returns:
    The specs; flags of transitions are unchanged.
  """
  if n_step is None:
    return window_spec
  moved, sources = window_spec.copy(), source_paths(window_spec, element)
  for path, spec in window_spec.items():
    if own_path(path, n_step.branches) not in (n_step.done, n_step.truncated):
      continue
    source = sources[path]
    names = [source, getattr(element.get(source), "name", None)]
    if source == path:
      names.append(spec.name)
    is_of_state = any(
      re.split("[/.]", name or "")[-1] in _STATE_FLAGS for name in names
    )
    if is_of_state and spec.time_offsets in (None, 0) and not spec.is_sequence:
      moved[path] = ExtendedTensorSpec.from_spec(spec, time_offsets=1)
  return moved


def plan_n_step(
  n_step: NStep,
  window_spec: TensorSpecStruct,
  reads: Mapping[str, PathRead],
  finals: Mapping[str, str],
  pads_front: bool,
) -> NStepPlan:
  """Plans how the windows of one-step transitions are joined.

  Args:
    n_step: the options of joining.
    window_spec: specs of the windows that are read, by path.
    reads: the steps that each path reads.
    finals: by path of the episode, the context feature that follows its last row.
    pads_front: whether stacks are padded before the first step.
  Raises:
    SpecError: the specs are not one-step transitions; all mismatches are listed.
  """
  names = (n_step.rew, n_step.done, n_step.truncated, n_step.branches)
  fields = TransitionFields.from_paths("n_step", reads, *names)
  mismatches = [
    errors.Mismatch(path, "no field with the name of one that n-step adds", "one")
    for path in window_spec
    if own_path(path, n_step.branches) in (DISCOUNT, NUM_STEPS)
  ]
  for path in (*fields.rewards, *fields.flags):
    steps = reads[path].steps
    if steps is None or steps.ndim or steps not in (0, 1):
      want = "the anchor's own step, time_offsets=0"
      hint = "time_offsets=1 reads what is stored with the state that follows."
      mismatches.append(errors.Mismatch(path, want, _got(steps), hint))
  for path, of in fields.next_of.items():
    if problem := _next_problem(path, reads[path], of, reads[of], pads_front):
      mismatches.append(problem)
  if mismatches:
    raise errors.mismatch_error("n_step", mismatches)
  return NStepPlan(n_step, fields, reads, finals)


def _next_problem(
  path: str, read: PathRead, of: str, current: PathRead, pads_front: bool
) -> errors.Mismatch | None:
  """Returns the mismatch if the steps of a next observation are wrong, or None."""
  want = f"the offsets of {of}, each one step later"
  if read.steps is None or current.steps is None:
    return errors.Mismatch(path, want, _got(read.steps))
  is_same_step = np.array_equal(read.steps, current.steps)
  is_next_step = np.array_equal(read.steps, current.steps + 1)
  parts = (read.name or "").split("/") if read.name != current.name else []
  if is_next_step and any(part.startswith(_NEXT) for part in parts):
    hint = f"{read.name} has the next observations: read it at the offsets of {of}."
    return errors.Mismatch(path, f"the offsets of {of}", _got(read.steps), hint)
  if is_same_step and read.source != current.source:
    if not read.steps.ndim or not pads_front:
      return None
    # The stack before the first row would repeat a next observation.
    hint = f"Read {current.source} one step later, or pad with ('drop', 'drop')."
    return errors.Mismatch(path, want, f"stacks of {read.source}, padded", hint)
  return None if is_next_step else errors.Mismatch(path, want, _got(read.steps))


def final_path(source: str, branches: tuple[str, ...] = ()) -> str:
  """Returns the path of the value after the last row of a path."""
  tail = own_path(source, branches)
  return f"{source.removesuffix(tail)}{_FINAL}{tail}"


def find_finals(
  readings: Mapping[str, Any],
  window_spec: TensorSpecStruct,
  element: TensorSpecStruct,
  branches: tuple[str, ...],
) -> dict[str, str]:
  """Finds the context features that have the value after an episode's last row.

  Their path or name begins with 'final_', and they have the shape and dtype of a row.

  Args:
    readings: how each path is read: with `source`, `steps` and `frame_shape`.
    window_spec: specs of these paths.
    element: specs of the episode, by path.
    branches: first components of paths that are not part of the names of fields.
  Returns:
    The path of the context feature by path of the episode.
  """
  named = {
    window_spec[path].name: reading.source
    for path, reading in readings.items()
    if reading.steps is None
  }
  finals = {}
  for path, reading in readings.items():
    source, shape, name = reading.source, reading.frame_shape, window_spec[path].name
    final = final_path(source, branches)
    if final not in element and name is not None:
      final = named.get(final_path(name), final)
    spec = element.get(final)
    if (
      reading.steps is not None
      and spec is not None
      and spec.dtype == element[source].dtype
      and spec.shape.rank == shape.rank
      and spec.shape.is_compatible_with(shape)
    ):
      finals[source] = final
  return finals


def check_computed(
  computed: Mapping[str, str],
  window_spec: Mapping[str, ExtendedTensorSpec],
  plan: NStepPlan,
  done: tf.TensorSpec,
) -> None:
  """Raises SpecError if a computed path is declared with another shape or dtype."""
  mismatches = [
    errors.Mismatch(path, f"{errors.describe(spec)}, as n_step gives it", got)
    for path, name in computed.items()
    if path in window_spec
    for spec, got in [(plan.spec(name, done), errors.describe(window_spec[path]))]
    if (window_spec[path].shape, window_spec[path].dtype) != (spec.shape, spec.dtype)
  ]
  if mismatches:
    raise errors.mismatch_error("n_step", mismatches)


def _take(table: np.ndarray, index: Any, axis: int) -> Any:
  if imports.is_tensor(index):
    return tf.gather(table, index, axis=axis)
  return table.take(index, axis)


def _last_step(read: PathRead) -> int:
  return 0 if read.steps is None else int(read.steps.max())


def _got(steps: np.ndarray | None) -> str:
  return "a feature of the episode" if steps is None else f"offsets {steps.tolist()}"


def _is_in(name: str, branch: str) -> bool:
  return name == branch or name.startswith(f"{branch}/")


def _pair_fields(
  names: Mapping[str, str], next_of: dict[str, str]
) -> Iterable[errors.Mismatch]:
  """Pairs fields with their next ones; yields fields without a partner."""
  later = [name for name in names if name.startswith(_NEXT)]
  if not later:
    want = "a field and its next one, such as obs and next_obs"
    yield errors.Mismatch("the transitions", want, errors.listing(names))
  with_next = {name.removeprefix(_NEXT).split("/")[0] for name in later}
  for name, path in names.items():
    field = name.removeprefix(_NEXT)
    if name in later and field in names:
      next_of[path] = names[field]
    elif name in later:
      hint = errors.nearest(field, (other for other in names if other not in later))
      hint = hint or f"If it is not a next one, name it without '{_NEXT}'."
      yield errors.Mismatch(field, f"the field that {path} follows", "nothing", hint)
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
