"""`WindowPlan`: which rows of a ring windows and n-step transitions show."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from t2r_seq import errors, specs, windows
from t2r_seq.replay.ring import Lanes
from t2r_seq.transitions import NStep
from t2r_seq.transitions.fields import TransitionFields
from t2r_seq.transitions.loading import DISCOUNT, NUM_STEPS, return_dtype


class Draw(NamedTuple):
  """Items that were drawn, and where their steps are.

  Attributes:
    rows: of the anchors, int64 [B].
    marks: of these rows: 1 + the steps of their episodes after the anchors.
    ages: the steps before them; None where no window is padded.
    seen: rows that were drawn at one time, and the steps of each writer then, int64
      [N]; together they tell which steps were in the rows.
  """

  rows: np.ndarray
  marks: np.ndarray
  ages: np.ndarray | None
  seen: tuple[tuple[np.ndarray, np.ndarray], ...]

  @classmethod
  def join(cls, draws: Sequence[Draw]) -> Draw:
    """Makes one draw of several."""
    ages = [draw.ages for draw in draws if draw.ages is not None]
    return cls(
      np.concatenate([draw.rows for draw in draws]),
      np.concatenate([draw.marks for draw in draws]),
      np.concatenate(ages) if ages else None,
      tuple(seen for draw in draws for seen in draw.seen),
    )


@dataclasses.dataclass(frozen=True)
class Fetch:
  """Some paths that show the same steps.

  Attributes:
    paths: from a path of the windows to the column that it reads.
    offsets: of the steps, relative to the anchor; int64 of shape [], [K], [L], [L, K].
    is_later: relative to the last of n joined steps instead.
  """

  paths: dict[str, str]
  offsets: np.ndarray
  is_later: bool = False


class WindowPlan:
  """Turns drawn items into rows to gather; the same windows as `WindowReader`'s.

  Attributes:
    lanes: of the ring.
    fetches: what is read of steps.
    contexts: what is read of episodes: from a path of the windows to the column.
  """

  def __init__(
    self,
    reader: windows.WindowReader,
    lanes: Lanes,
    later: frozenset[str] = frozenset(),
    leave_out: frozenset[str] = frozenset(),
  ) -> None:
    """Plans the rows.

    Args:
      reader: of the windows.
      lanes: of the ring.
      later: paths that are read at the last of the joined steps.
      leave_out: paths that are not read here.
    """
    self.lanes = lanes
    self._padding = reader.cut.padding
    self.fetches: list[Fetch] = []
    self.contexts: dict[str, str] = {}
    for path, reading in reader.readings.items():
      if reading.steps is None:
        self.contexts[path] = reading.source
      elif path not in leave_out:
        self._add(path, reading, path in later)

  def _add(self, path: str, reading: windows.Reading, is_later: bool) -> None:
    steps = np.asarray(reading.steps, np.int64)
    for fetch in self.fetches:
      if fetch.is_later == is_later and np.array_equal(fetch.offsets, steps):
        fetch.paths[path] = reading.source
        return
    self.fetches.append(Fetch({path: reading.source}, steps, is_later))

  def rows(
    self, fetch: Fetch, draw: Draw, shift: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the rows of one fetch.

    Args:
      fetch: of this plan.
      draw: the items.
      shift: steps from each anchor to the last joined one, int64 [B].
    Returns:
      Rows, int64 [B] + the shape of the offsets, before they are wrapped around the
      ring; and under padding which of them are steps of the episode, bool of that
      shape.
    """
    offsets = fetch.offsets
    axes = (slice(None), *[None] * offsets.ndim)
    if fetch.is_later and shift is not None:
      offsets = offsets + shift[axes]
    elif offsets.ndim == 0 and offsets == 0:
      return draw.rows, None
    real = None
    if self._padding != "drop":
      low = 0 if draw.ages is None else -draw.ages[axes].astype(np.int64)
      clipped = np.clip(offsets, low, draw.marks[axes].astype(np.int64) - 1)
      real = clipped == offsets
      offsets = clipped
    return self.rows_at(draw, offsets, axes), real

  def rows_at(
    self, draw: Draw, offsets: np.ndarray, axes: tuple[slice | None, ...]
  ) -> np.ndarray:
    """Returns the rows of steps relative to the anchors, not wrapped."""
    # A step on is N rows on.
    num_writers = self.lanes.num_writers
    return draw.rows[axes] + (offsets if num_writers == 1 else offsets * num_writers)


class NStepReading:
  """What n steps are joined to, given one-step transitions' specs.

  Attributes:
    n: steps.
    later: paths that are read at the last of the joined steps: the next ones and flags.
    rewards: paths that become discounted returns.
    after: steps after an anchor that one-step transitions show.
    done: path of the flag of terminals.
    weights: of the n rewards, a row each, by the number of joined steps less 1; float64
      [n, n].
    discounts: of the next value, likewise, float32 [n].
    num_steps: that are joined, likewise, int32 [n].
    return_dtypes: numpy's, of the returns, by path.
  """

  def __init__(
    self,
    spec_structure: specs.TensorSpecStruct,
    reader: windows.WindowReader,
    n_step: NStep,
    rew: str,
    done: str,
    truncated: str,
  ) -> None:
    """Plans the joining.

    Args:
      spec_structure: of one-step transitions: rewards and flags of the anchor's own
        step, next observations one step later.
      reader: of these.
      n_step: steps and discount.
      rew: path of the reward, or of a branch of several.
      done: path of the flag of terminals.
      truncated: path of the flag of truncations; there may be none.
    Raises:
      SpecError: the specs are no transitions; all that is wrong with them is named.
    """
    if reader.masks:
      raise errors.SpecError(
        "n_step: masks: expected none, got masks of "
        f"{errors.listing(reader.masks.values())}. A joined transition shows no step "
        "that is not there; num_steps says how many there are."
      )
    fields = TransitionFields.from_paths("n_step", spec_structure, rew, done, truncated)
    self.n = n_step.n
    self.done = fields.done
    self.later = frozenset((*fields.next_of, *fields.flags))
    self.rewards = {path: reader.readings[path].source for path in fields.rewards}
    self.after = reader.grid.span[1]
    # What depends on how many steps are joined, by that number less 1.
    powers: np.ndarray = np.power(n_step.gamma, np.arange(n_step.n + 1.0))
    joined, steps = np.arange(n_step.n), np.arange(n_step.n)[:, None]
    self._offsets = np.minimum(steps, joined)
    self.weights: np.ndarray = np.where(steps <= joined, powers[:-1, None], 0.0)
    marks = np.arange(2 + reader.grid.span[1] + n_step.n)
    self._shifts = np.clip(marks - 1 - reader.grid.span[1], 0, n_step.n - 1)
    self.discounts = powers[1:].astype(np.float32)
    self.num_steps = np.arange(1, n_step.n + 1, dtype=np.int32)
    _check(spec_structure, reader, fields)
    self.return_dtypes = {
      path: return_dtype(spec_structure[path].dtype).as_numpy_dtype
      for path in fields.rewards
    }

  def extend_spec(self, window_spec: specs.TensorSpecStruct) -> specs.TensorSpecStruct:
    """Returns the specs of joined transitions, given those of one-step ones."""
    spec = window_spec.copy()
    for path in self.rewards:
      spec[path] = tf.TensorSpec(spec[path].shape, return_dtype(spec[path].dtype))
    spec[DISCOUNT] = tf.TensorSpec(spec[self.done].shape, tf.float32)
    spec[NUM_STEPS] = tf.TensorSpec((), tf.int32)
    return spec

  def shift(self, draw: Draw) -> np.ndarray:
    """Returns the steps from each anchor to the last that is joined, int64 [B]."""
    return self._shifts.take(draw.marks)

  def reward_offsets(self, shift: np.ndarray) -> np.ndarray:
    """Returns the n steps whose rewards are read, int64 [n, B]; the last again.

    The n first: so numpy adds long rows.
    """
    return self._offsets.take(shift, 1)

  def join(
    self,
    read: dict[str, np.ndarray],
    rewards: Mapping[str, np.ndarray],
    shift: np.ndarray,
  ) -> None:
    """Adds the returns, the discounts and the numbers of steps to what was read.

    Args:
      read: flags and the like, by path, leaves [B, ...].
      rewards: of the n steps from each anchor on, [n, B, ...], by path.
      shift: from the anchors to the last of them that counts.
    """
    weights = self.weights.take(shift, 1)
    for path, values in rewards.items():
      dtype = self.return_dtypes[path]
      read[path] = np.einsum("nb...,nb->b...", values, weights).astype(dtype)
    goes_on = np.subtract(1, read[self.done], dtype=np.float32)
    read[DISCOUNT] = self.discounts.take(shift).reshape(goes_on.shape) * goes_on
    read[NUM_STEPS] = self.num_steps.take(shift)


def _check(
  spec_structure: specs.TensorSpecStruct,
  reader: windows.WindowReader,
  fields: TransitionFields,
) -> None:
  """Checks that specs are those of one-step transitions."""
  readings = reader.readings
  found = [
    errors.Mismatch(path, "no field of the name of one that n-step adds", "one")
    for path in (DISCOUNT, NUM_STEPS)
    if path in spec_structure
  ]
  for path in (*fields.rewards, *fields.flags):
    steps = readings[path].steps
    if steps is None or steps.ndim or steps != 0:
      want = "the anchor's own step, time_offsets=0"
      got = "a feature of the episode" if steps is None else f"offsets {steps.tolist()}"
      found.append(errors.Mismatch(path, want, got))
  for path in fields.next_of:
    steps, of = readings[path].steps, fields.next_of[path]
    own = readings[of].steps
    if steps is None or own is None or not np.array_equal(steps, own + 1):
      want = f"the offsets of {of}, each one step later"
      got = "a feature of the episode" if steps is None else f"offsets {steps.tolist()}"
      found.append(errors.Mismatch(path, want, got))
  if found:
    raise errors.mismatch_error("n_step", found)
