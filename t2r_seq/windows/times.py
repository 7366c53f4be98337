"""Finds steps at times in seconds, for numpy and TensorFlow alike.

Stamps are compared as integers of nanoseconds. Two of them are equal if they differ by
no more than the precision of their dtype.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from t2r_seq import errors, imports
from t2r_seq.imports import tf
from t2r_seq.specs.seconds import Seconds, check_stamps
from t2r_seq.stamps import NANOSECONDS, SLACK, precision, to_nanoseconds
from t2r_seq.windows.cut import Anchors, Cut, add_axes, array_module

Take = Callable[[str, Any], Any]

# Nanoseconds between steps; stamps with other intervals are in another unit.
_LEAST_PERIOD, _MOST_PERIOD = 5e4, 1e12
# Rows around an anchor that are compared at once: fewer ops than a search.
_MOST_COMPARED = 48
# Iterations of a search in an episode of unknown length: up to 16 million steps.
_MOST_ITERATIONS = 24


@dataclasses.dataclass(frozen=True)
class TimedFetch:
  """Paths that show the same times.

  Attributes:
    paths: from a path of the windows to that of the episode.
    masks: the paths of their masks.
    seconds: their time offsets.
    anchors: steps of the stacks' anchors from the first anchor, int64 [] or [L].
  """

  paths: dict[str, str]
  masks: list[str]
  seconds: Seconds
  anchors: np.ndarray


class Moments(NamedTuple):
  """The rows at times, all of the shape of the anchors + [L, K].

  Attributes:
    rows: int64; of the values, or of the earlier neighbors.
    later: rows of the later neighbors; None if values are not interpolated.
    weights: weights of the later neighbors, float32.
    real: whether the values are real, and not padding.
    shown: whether the values are shown, and not zeros; None if all are.
    counts: numbers of events, int64, in place of values.
  """

  rows: Any
  later: Any | None
  weights: Any | None
  real: Any
  shown: Any | None
  counts: Any | None = None


def rows_path(clock: str) -> str:
  """Returns the path of the rows of another clock at each step, int64 [T, 3].

  These are the row of the last stamp at or before the step's, the number of rows before
  it, and the number after it. Rows before that of the first step are not counted: a
  policy has not seen them. Readers of windows add the path to an episode, with the
  values of `clock_rows`.

  Args:
    clock: the path of the time stamps.
  """
  return f"{clock}#rows"


def clock_rows(steps: Any, stamps: Any, first_row: Any = 0, begin: Any = None) -> Any:
  """Finds the rows of another clock at each step; see `rows_path`.

  Args:
    steps: time stamps of the steps, [T] or [T, 1], of numpy or TensorFlow.
    stamps: time stamps of the other clock, [R] or [R, 1].
    first_row: row of the first one of `stamps`.
    begin: index in `stamps` of the newest one at the episode's first step; None if
      `steps` begin with that step.
  Returns:
    int64 [T, 3].
  """
  xp = array_module(steps)
  step_times, others = (nanoseconds(xp.reshape(each, [-1])) for each in (steps, stamps))
  times = step_times + _slack(xp.reshape(steps, [-1]), 0)
  if imports.is_tensor(step_times):
    rows = tf.searchsorted(others, times, "right", tf.int64) - 1
    count = tf.shape(others, tf.int64)[0]
  else:
    rows, count = np.searchsorted(others, times, "right") - 1, len(others)
  begin = xp.maximum(rows[:1], 0) if begin is None else begin
  return xp.stack([rows + first_row, rows - begin, count - 1 - rows], -1)


@dataclasses.dataclass
class TimedSteps:
  """Finds the steps at times, by the stamps of episodes or a regular clock.

  Attributes:
    cut: how episodes become windows; it has the clock of the anchors.
    paths: the path in the episode of each clock by its name.
    reach: the first and the last step that windows show, from their anchor; None if it
      is unknown.
    reaches: the same by other clock, in its rows from the row at the anchor.
    has_repeats: whether two steps may have the same stamp.
  """

  cut: Cut
  paths: Mapping[str, str]
  reach: tuple[int, int] | None = None
  reaches: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
  has_repeats: bool = True

  @property
  def period(self) -> float | None:
    """Nanoseconds from a step to the next one; None for time stamps."""
    period = self.cut.period
    return None if period is None else period * NANOSECONDS

  def clocks(self, seconds: Seconds) -> tuple[str, ...]:
    """Returns the paths of the stamps of anchors and of values; () if regular."""
    cut_clock = self.cut.clock if isinstance(self.cut.clock, str) else None
    if seconds.clock is None and cut_clock is None:
      return ()
    names = cut_clock or seconds.clock, seconds.clock or cut_clock
    return tuple(self.paths[str(name)] for name in names)

  def other_clock(self, seconds: Seconds) -> str | None:
    """Returns the path of the values' stamps if their clock is not the anchors'."""
    clock = self.paths.get(seconds.clock or "")
    return clock if clock in {*self.cut.clocks.values()} else None

  def find(self, take: Take, anchors: Anchors, fetch: TimedFetch) -> Moments:
    """Finds the steps that windows show.

    Args:
      take: see `WindowReader.read_at`.
      anchors: places of the windows.
      fetch: the paths and time offsets to read.
    """
    seconds, is_stack = fetch.seconds, fetch.seconds.is_stack
    num_axes = fetch.anchors.ndim + is_stack
    first_row = add_axes(anchors.rows, num_axes)
    first, last = -add_axes(anchors.before, num_axes), add_axes(anchors.after, num_axes)
    offsets = nanoseconds(seconds.array)
    xp = array_module(first_row)
    given = add_axes(fetch.anchors, int(is_stack))
    # An anchor after the end has no time.
    anchor = xp.minimum(xp.zeros_like(last) + given, last) if given.any() else given
    clocks, reach, present = self.clocks(seconds), self.reach, anchor
    stride, of_anchor = anchors.stride, None

    def stamps(clock: str, steps: Any, axes: int = 0) -> Any:
      rows = _rows(add_axes(first_row, axes), steps, stride)
      values = take(clock, rows)
      return values if len(values.shape) == len(rows.shape) else values[..., 0]

    if clocks:
      of_anchor = stamps(clocks[0], anchor)
    if (other := self.other_clock(seconds)) is not None:
      # The same arithmetic around the row of the other clock at the anchor.
      rows = take(rows_path(other), _rows(first_row, anchor, stride))
      first_row, first, last = rows[..., 0], -rows[..., 1], rows[..., 2]
      present, stride, reach = xp.zeros_like(first), 1, self.reaches.get(other)
    end = last
    # At the anchor, a policy does not have later steps yet.
    last = xp.where(seconds.array <= 0, xp.zeros_like(last) + present, last)
    if other is not None:  # Perhaps there is no value yet.
      last = xp.maximum(last, first)
    if clocks:
      slack = _slack(of_anchor, offsets)
      times = nanoseconds(of_anchor) + offsets

      def at(steps: Any) -> Any:
        return nanoseconds(stamps(clocks[1], steps))

      low, high = first, last
      if reach is not None:
        low = xp.maximum(first, reach[0] + xp.zeros_like(first))
        high = xp.minimum(last, reach[1] + xp.zeros_like(last))
      if other is not None:
        high = xp.maximum(high, low)

      def find_last(times: Any) -> Any:
        if reach is not None and reach[1] - reach[0] < _MOST_COMPARED:
          steps = np.arange(reach[0], reach[1] + 1)
          inside = [add_axes(each, 1) for each in (first, end, low, high)]
          probe = xp.maximum(xp.minimum(steps, inside[1]), inside[0])
          is_before = nanoseconds(stamps(clocks[1], probe, 1)) <= add_axes(times, 1)
          is_before &= (steps >= inside[2]) & (steps <= inside[3])
          return low - 1 + _count(is_before)
        return search(at, times, low, high, _iterations(reach, low, high))
    else:
      period = self.period
      assert period is not None
      slack = SLACK
      times = _round(anchor, period) + offsets
      times = xp.zeros_like(first) + times

      def at(steps: Any) -> Any:
        return _round(steps, period)

      def find_last(times: Any) -> Any:
        steps = xp.floor((_cast(times, np.float64) + 0.5) / period)
        return xp.maximum(xp.minimum(_cast(steps, np.int64), last), first - 1)

    before = find_last(times + slack)
    has_repeats = self.period is None and self.has_repeats
    later = find_last if has_repeats else None
    if seconds.select == "event":
      starts = times + nanoseconds(seconds.starts) - offsets
      counts = before - find_last(starts + slack)
      # An episode may have no event.
      counts = xp.where(xp.zeros_like(counts) + end < first, 0 * counts, counts)
      real = xp.equal(xp.zeros_like(counts) + anchor, given)
      return Moments(_rows(first_row, before, stride), None, None, real, None, counts)
    selected = select(seconds, before, times, slack, at, first, last, later)
    earlier, later, weights, real = selected
    if given.any():
      real &= xp.equal(anchor, given)
    return Moments(
      _rows(first_row, earlier, stride),
      None if later is None else _rows(first_row, later, stride),
      weights,
      real,
      self._shown(seconds, real),
    )

  def bound(self, fetches: Iterable[TimedFetch], rate: float) -> None:
    """Sets `reach`, given the highest rate of the stamps.

    Args:
      fetches: fetches of all windows.
      rate: steps per second, at most.
    """
    spans = [(*fetch.seconds.extent, int(fetch.anchors.max())) for fetch in fetches]
    if self.period is None and spans:
      firsts, lasts, anchors = zip(*spans, strict=True)
      first, last = min(0.0, *firsts), max(0.0, *lasts)
      most = max(anchors) + math.ceil(last * rate) + 2
      self.reach = math.floor(first * rate) - 2, most

  def reach_of(self, fetch: TimedFetch) -> tuple[int, int]:
    """Returns the first and last step that windows may show, from their anchor.

    Raises:
      SpecError: they are unknown until the episodes are read.
    """
    if self.reach is not None:
      return self.reach
    if self.period is None:
      raise errors.SpecError(
        f"windows: {errors.listing(fetch.paths)}: expected steps that are known before "
        f"the episodes, got {fetch.seconds}. Use time offsets in steps; or the period "
        "of a regular clock, clock=0.1; or the highest rate of stamps, max_rate=60."
      )
    first, last = (t * NANOSECONDS / self.period for t in fetch.seconds.extent)
    return math.floor(first) - 1, math.ceil(last) + 1 + int(fetch.anchors.max())

  def _shown(self, seconds: Seconds, real: Any) -> Any | None:
    """Returns where a value or repeated padding is shown, not zeros; None for all."""
    front, end = (word == "zero" for word in (self.cut.front, self.cut.end))
    is_zero = np.where(seconds.array > 0, end, front)
    if not is_zero.any():
      return None
    return real if is_zero.all() else real | ~is_zero

  def survey(
    self,
    fetches: Iterable[TimedFetch],
    episodes: Iterable[tuple[str, Mapping[str, np.ndarray]]],
  ) -> None:
    """Checks the stamps of all episodes, and sets how far windows reach.

    Args:
      fetches: fetches of all windows.
      episodes: the place of each for errors, and its stamps by path.
    Raises:
      SpecError: stamps are not finite, fall, are equal for events, or have another
        unit; or a tolerance is below half a period.
    """
    fetches, reach, repeats = list(fetches), [0, 0], False
    reaches: dict[str, list[int]] = {}
    gaps: dict[str, list[np.ndarray]] = {}
    for place, given in episodes:
      stamps, slack = {}, SLACK
      for path, values in given.items():
        check_stamps(f"windows: {place}: {path}", values)
        flat = np.asarray(values).reshape(len(values))
        stamps[path] = nanoseconds(flat)
        slack = max(slack, 2 * int(_slack(flat, 0).max(initial=0)))
        gap = np.diff(stamps[path])
        repeats = repeats or not gap.all()
        gaps.setdefault(path, []).append(gap[gap > 0])
      for fetch in fetches:
        step_times, of_values = (stamps[path] for path in self.clocks(fetch.seconds))
        other, steps = self.other_clock(fetch.seconds), np.arange(len(step_times))
        bounds = reach if other is None else reaches.setdefault(other, [0, 0])
        offsets = nanoseconds(np.array(fetch.seconds.extent))
        if fetch.seconds.select == "event" and not np.diff(of_values).all():
          raise errors.SpecError(
            f"windows: {place}: {self.clocks(fetch.seconds)[1]}: expected time stamps "
            "of events that rise, got two that are equal. A policy counts them once."
          )
        # A sequence reads around its last anchor, too.
        most = int(fetch.anchors.max())
        for anchor in {0, most}:
          times = step_times[np.minimum(steps + anchor, len(step_times) - 1)]
          low = np.searchsorted(of_values, times + offsets.min() - slack, "left") - 1
          high = np.searchsorted(of_values, times + offsets.max() + slack, "right")
          if repeats:  # A neighbor is the last step of its stamp.
            of_later = of_values[np.minimum(high, len(of_values) - 1)]
            high = np.searchsorted(of_values, of_later, "right")
          before, after = steps, steps
          if other is not None:
            before, after = (
              np.searchsorted(of_values, times + late, "right") - 1
              for late in (slack, 0)
            )
          bounds[0] = min(bounds[0], int((low - before).min(initial=0)) - 1)
          bounds[1] = max(bounds[1], int((high - after).max(initial=0)) + 1)
    self.reach, self.has_repeats = (reach[0], reach[1]), repeats
    self.reaches = {clock: (low, high) for clock, (low, high) in reaches.items()}
    periods = {path: _median(each) for path, each in gaps.items()}
    for path, period in periods.items():
      if period is not None and not _LEAST_PERIOD <= period <= _MOST_PERIOD:
        raise errors.SpecError(
          f"windows: {path}: expected time stamps as floats of seconds or integers of "
          f"nanoseconds, got a step of {period / NANOSECONDS:.3g} s. Convert them."
        )
    for fetch in fetches:
      check_tolerance(fetch.seconds, periods.get(self.clocks(fetch.seconds)[1]))


def select(
  seconds: Seconds,
  before: Any,
  times: Any,
  slack: Any,
  at: Callable[[Any], Any],
  first: Any,
  last: Any,
  find_last: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any | None, Any | None, Any]:
  """Selects steps at times among those of a clock.

  Args:
    seconds: time offsets, with `select` and `tolerance`.
    before: the last step at or before each time; first - 1 without one.
    times: nanoseconds, int64.
    slack: nanoseconds by which equal stamps may differ.
    at: maps steps to their stamps, int64 nanoseconds.
    first, last: steps of the episode that may be shown.
    find_last: maps a stamp to its last step; None if stamps do not repeat.
  Returns:
    The steps of the values; those of later neighbors and their weights, None without
    interpolation; whether the values are real.
  """
  xp = array_module(before)
  low = xp.maximum(before, first)
  of_low = at(low)
  is_after = xp.greater_equal(before, first)
  later = weights = None
  tolerance = seconds.tolerance
  if seconds.select != "hold":
    later = xp.minimum(before + 1, last)
    of_later = at(later)
    if find_last is not None:
      later = xp.minimum(xp.maximum(find_last(of_later), later), last)
      low = xp.where(is_after, low, later)
  # LiteRT has no absolute value of int64.
  passed = xp.maximum(times - of_low, of_low - times)
  if seconds.select == "nearest":
    ahead = xp.maximum(of_later - times, times - of_later)
    is_later = ahead + 2 * slack < passed
    low = xp.where(is_later, later, low)
    of_low, later = xp.where(is_later, of_later, of_low), None
    passed = xp.where(is_later, ahead, passed)
  elif later is not None:
    is_between = (passed > slack) & (of_later > of_low)
    span = xp.where(is_between, of_later - of_low, xp.ones_like(of_low))
    part = xp.where(is_between, passed, xp.zeros_like(passed))
    weights = _cast(part, np.float32) / _cast(span, np.float32)
    ahead = xp.maximum(of_later - times, times - of_later)
    passed = xp.where(is_between, xp.maximum(passed, ahead), passed)
  if tolerance is None:
    # After the anchor's time, the last step is real at its own stamp only.
    real = is_after
    if (seconds.array > 0).any():
      is_known = xp.less(before, last) | xp.less_equal(passed, slack)
      real &= is_known | (seconds.array <= 0)
  else:
    real = xp.less_equal(passed, nanoseconds(np.asarray(tolerance)) + slack)
    real = real & is_after if seconds.select == "hold" else real
  return low, later, weights, real


def search(
  at: Callable[[Any], Any], times: Any, first: Any, last: Any, iterations: int
) -> Any:
  """Returns the last steps whose stamps are at or before times; first - 1 for none.

  Args:
    at: maps steps to their stamps, which never fall from first to last.
    times: int64.
    first, last: the steps to search; int64 that broadcasts with times.
    iterations: bits of the largest number of steps.
  """
  xp = array_module(times, first)
  low, high = xp.zeros_like(times) + first, xp.zeros_like(times) + last + 1
  for _ in range(iterations):
    middle = (low + high) // 2
    is_open = low < high
    is_before = at(xp.minimum(middle, last)) <= times
    low = xp.where(is_open & is_before, middle + 1, low)
    high = xp.where(is_open & ~is_before, middle, high)
  return low - 1


def interpolate(select: str, earlier: Any, later: Any, weights: Any) -> Any:
  """Interpolates between neighbors.

  Args:
    select: 'linear' or 'slerp'.
    earlier: floats, weights.shape + [...].
    later: the same.
    weights: weights of the later ones, from 0 to 1.
  """
  is_tensor = imports.is_tensor(earlier)
  xp = tf if is_tensor else np
  weights = tf.cast(weights, earlier.dtype) if is_tensor else weights
  weights = add_axes(weights, len(earlier.shape) - len(weights.shape))
  if not is_tensor:
    weights = np.asarray(weights, earlier.dtype)
  if select == "linear":
    return earlier + (later - earlier) * weights
  total = tf.reduce_sum if is_tensor else np.sum
  sign = xp.sign(total(earlier * later, axis=-1, keepdims=True))
  later = later * xp.where(sign < 0, -xp.ones_like(sign), xp.ones_like(sign))
  norm = [
    xp.sqrt(total(xp.square(each), axis=-1, keepdims=True))
    for each in (later - earlier, later + earlier)
  ]
  half = xp.atan2(*norm) if is_tensor else np.arctan2(*norm)
  angle = 2 * half
  is_small = angle < 1e-4
  sine = xp.sin(xp.where(is_small, xp.ones_like(angle), angle))
  parts = [
    xp.where(is_small, linear, xp.sin(linear * angle) / sine)
    for linear in (1 - weights, weights)
  ]
  mixed = parts[0] * earlier + parts[1] * later
  return xp.where(weights > 0, mixed, earlier)


def nanoseconds(stamps: Any) -> Any:
  """Converts stamps: floats are seconds, integers are nanoseconds."""
  if not imports.is_tensor(stamps):
    return to_nanoseconds(stamps)
  if not stamps.dtype.is_floating:
    return tf.cast(stamps, tf.int64)
  return tf.cast(tf.round(tf.cast(stamps, tf.float64) * NANOSECONDS), tf.int64)


def assert_stamps(
  path: str, stamps: tf.Tensor, tolerance: float | None = None
) -> list[tf.Operation]:
  """Returns ops that fail unless the stamps are finite and never fall.

  None in eager mode, where they fail at once; see `check_stamps`.

  Args:
    path: path of the stamps.
    stamps: time stamps of an episode.
    tolerance: the smallest one of the windows, which must be at least half the median
      interval; None for no check.
  """
  flat = tf.reshape(stamps, [-1])
  is_good = tf.reduce_all(flat[1:] >= flat[:-1])
  if flat.dtype.is_floating:
    is_good &= tf.reduce_all(tf.math.is_finite(flat))
  want = "finite time stamps that never fall. Repair the data, or choose another clock"
  checks = [(is_good, want)]
  if tolerance is not None:
    times = nanoseconds(flat)
    gaps = times[1:] - times[:-1]
    gaps = tf.sort(tf.boolean_mask(gaps, gaps > 0))
    middle = gaps[tf.size(gaps) // 2 :][:1]  # Empty for an episode of one step.
    least = 0.49 * tf.cast(middle, tf.float64)
    want = f"a tolerance of at least half a period of the clock, got {tolerance:g} s"
    checks.append((tf.reduce_all(least <= tolerance * NANOSECONDS), want))
  # The raw op: tf.debugging.Assert builds a tf.cond around it, for each episode.
  return [
    tf.raw_ops.Assert(
      condition=is_good,
      data=[f"windows: {path}: expected {want}. The stamps are", flat],
    )
    for is_good, want in checks
  ]


def stamps_error(error: Exception) -> errors.SpecError | None:
  """Returns a SpecError if an error of TensorFlow is from `assert_stamps`, or None."""
  match = re.search(r"(windows: [^\[\]]*)\. The stamps are", str(error))
  return None if match is None else errors.SpecError(f"{match[1]}.")


def check_tolerance(seconds: Seconds, period: float | None) -> None:
  """Raises SpecError if a tolerance leaves gaps between the values of a clock.

  Args:
    seconds: the time offsets.
    period: nanoseconds from a value to the next one; None if it is unknown.
  """
  tolerance = seconds.tolerance
  if tolerance is None or period is None or seconds.select == "event":
    return
  if tolerance * NANOSECONDS < 0.49 * period:  # A little less than half: clocks jitter.
    half = period / 2 / NANOSECONDS
    raise errors.SpecError(
      f"windows: {seconds}: tolerance: expected at least half a period of the clock, "
      f"{half:.4g} s, got {tolerance:g}. A smaller one pads times inside of episodes."
    )


def check_seconds(
  timed: Mapping[str, Seconds], cut: Cut, element: Mapping[str, Any], is_flat: bool
) -> dict[str, str]:
  """Finds the clocks of time offsets in seconds; checks that a cut allows such offsets.

  Args:
    timed: the offsets by path of the windows.
    cut: cut of the windows.
    element: specs of the episode by path.
    is_flat: whether windows are stacked later.
  Returns:
    The path of each clock by its name, which may lack the branch of the path.
  Raises:
    SpecError: a clock is missing or unknown, a tolerance is below half a period, or the
      cut allows only steps: n-step, stacking later, or padding 'drop'.
  """
  paths: dict[str, str] = {}
  for path, seconds in timed.items():
    where, offsets = f"windows: {path}: time_offsets", seconds.array
    if cut.n_step is not None or is_flat:
      use = "windows that are stacked later" if is_flat else "n_step"
      raise errors.SpecError(
        f"{where}: expected steps for {use}, got {seconds}. Name steps, or a period of "
        "which the offsets are multiples: clock=0.1."
      )
    is_dropped = not cut.pads_front and offsets.min() < 0
    if is_dropped or (not cut.pads_end and offsets.max() > 0):
      raise errors.SpecError(
        f"{where}: expected padding 'repeat' or 'zero' for {seconds}, got "
        f"{cut.padding!r}. Mask what is padded: windows.add_mask_specs."
      )
    if cut.period is not None and seconds.clock is not None:
      raise errors.SpecError(
        f"{where}: clock: expected the time stamps of the anchors, too, got a period "
        f"of {cut.period:g} s. Name their path: windows.Cut(clock='timestamp')."
      )
    if cut.period is not None:
      check_tolerance(seconds, cut.period * NANOSECONDS)
    if cut.clock in {*cut.clocks.values()}:
      raise errors.SpecError(
        f"{where}: clock: expected the time stamps of the steps, at which windows are "
        f"cut, got '{cut.clock}' of {errors.listing(cut.clocks)}."
      )
    clocks = [each for each in (cut.clock, seconds.clock) if each is not None]
    if not clocks:
      raise errors.SpecError(
        f"{where}: expected a clock for {seconds}, got data without a control period "
        "and without one column of time stamps. Name the clock: clock='timestamp' of "
        "the input generator, of verify, of windows.Cut or of Seconds."
      )
    for clock in clocks:
      if isinstance(clock, str):
        paths[clock] = _find_clock(where, clock, element)
  return paths


def _find_clock(where: str, clock: str, element: Mapping[str, Any]) -> str:
  below = [path for path in element if path.endswith(f"/{clock}")]
  path = below[0] if clock not in element and len(below) == 1 else clock
  leaf: Any = element.get(path)
  is_number = leaf is not None and (leaf.dtype.is_floating or leaf.dtype.is_integer)
  if not is_number or not leaf.shape.rank or leaf.shape[1:].num_elements() != 1:
    got = "no such path" if leaf is None else errors.describe(leaf)
    raise errors.SpecError(
      f"{where}: clock: expected a time stamp for each step at '{clock}', got {got}."
      f"{errors.nearest(clock, element)}"
    )
  return path


def _iterations(reach: tuple[int, int] | None, low: Any, high: Any) -> int:
  """Returns the bits of the largest number of steps to search."""
  if not imports.is_tensor(low):
    return int(np.max(high - low, initial=0) + 1).bit_length()
  return _MOST_ITERATIONS if reach is None else (reach[1] - reach[0] + 1).bit_length()


def _rows(first_row: Any, steps: Any, stride: int) -> Any:
  return first_row + (steps if stride == 1 else steps * stride)


def _slack(stamps: Any, offsets: Any) -> Any:
  """Returns the nanoseconds by which equal stamps at offsets may differ."""
  of_stamps = array_module(stamps).abs(nanoseconds(stamps))
  return precision(stamps.dtype.name, of_stamps + np.abs(offsets).max())


def _round(steps: Any, period: float) -> Any:
  times = _cast(steps, np.float64) * period
  return _cast(array_module(steps).round(times), np.int64)


def _cast(values: Any, dtype: Any) -> Any:
  if imports.is_tensor(values):
    return tf.cast(values, dtype)
  return np.asarray(values, dtype)


def _count(flags: Any) -> Any:
  """Counts in the last axis, int64."""
  if imports.is_tensor(flags):
    return tf.reduce_sum(tf.cast(flags, tf.int64), -1)
  return flags.sum(-1)


def _median(gaps: list[np.ndarray]) -> float | None:
  joined = np.concatenate(gaps)
  return float(np.median(joined)) if len(joined) else None
