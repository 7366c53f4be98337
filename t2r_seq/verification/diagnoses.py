"""Finds the likely cause of a difference from the values.

Each candidate predicts the policy's values. Those that fit are ranked by their `Cost`;
the cheapest is reported, or up to three of the same cost.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import ml_dtypes
import numpy as np

from t2r_seq.verification import rotations

_MOST_LATE = 10
_OFFSETS = range(-_MOST_LATE, _MOST_LATE + 1)
_MOST_PIXELS = 8
# A fit of fewer distinct values is not evidence.
_FEWEST_TO_MAP, _FEWEST_TO_FIT = 2, 4
# Allowed error of integers, which may be rounded; and of floats, as a share of the
# largest value.
_ROUNDING, _PRECISION = 1.0, 3e-5
_FEWEST_OF_NOISE = 8
_LEAST_FACTOR = 1e-6
_MOST_VECTORS = 20_000
_MOST_ARMS = 2
# The error of an explanation as a share of the error without it.
_CLEARLY = 0.1
# More causes that fit equally well are not named.
_MOST_CAUSES = 3
Map = Callable[[np.ndarray], np.ndarray]
_ANY = (-np.inf, np.inf)
_INVERTED = "it is inverted: 1 minus training's, as a gripper that is open at 1, not 0"
# (description, map, range of training's values).
_MAPS: tuple[tuple[str, Map, tuple[float, float]], ...] = (
  ("it is divided by 255 once more than in training", lambda x: x / 255, _ANY),
  ("it is not divided by 255, as training does", lambda x: x * 255, _ANY),
  ("it is scaled from 0 ... 255 to -1 ... 1 once more than in training",
   lambda x: x / 127.5 - 1, _ANY),
  ("it is in 0 ... 255 where training has -1 ... 1",
   lambda x: (x + 1) * 127.5, (-1, 1)),
  ("it is in -1 ... 1 where training has 0 ... 1", lambda x: 2 * x - 1, (0, 1)),
  ("it is in 0 ... 1 where training has -1 ... 1", lambda x: (x + 1) / 2, (-1, 1)),
  ("it is of the other sign", np.negative, _ANY),
  (_INVERTED, lambda x: 1 - x, (0, 1)),
  ("it is inverted, in -1 ... 1 where training has 0 ... 1",
   lambda x: 1 - 2 * x, (0, 1)),
  ("it is inverted, in 0 ... 1 where training has -1 ... 1",
   lambda x: (1 - x) / 2, (-1, 1)),
  ("it is in radians where training has degrees", np.deg2rad, _ANY),
  ("it is in degrees where training has radians", np.rad2deg, _ANY),
  ("it is in other units: a thousandth of training's", lambda x: x / 1000, _ANY),
  ("it is in other units: a thousand times training's", lambda x: x * 1000, _ANY),
  ("it is in other units: a hundredth of training's", lambda x: x / 100, _ANY),
  ("it is in other units: a hundred times training's", lambda x: x * 100, _ANY),
  ("its angles are wrapped to -pi ... pi",
   lambda x: x - 2 * np.pi * np.floor((x + np.pi) / (2 * np.pi)), _ANY),
  ("its angles are wrapped to 0 ... 2 pi", lambda x: np.mod(x, 2 * np.pi), _ANY),
  ("it is rounded to whole numbers", np.round, _ANY),
  ("its fractions are cut off", np.trunc, _ANY),
  ("it has lost its sign", np.abs, _ANY),
)  # fmt: skip


class Cost(enum.IntEnum):
  """Assumptions of an explanation; fewer rank higher.

  Maps come before shifts in time, which periodic values would fit as well.
  """

  LITERAL = 0  # Recorded values of another place, or another padding.
  MAPPED = 1  # A fixed map of the values.
  FITTED = 2  # A map with a few fitted numbers.
  SHIFTED = 3  # Other times, or what looks like them.
  BY_ELEMENT = 4  # A map with two numbers for each element.
  HELD = 5  # A slower sensor: steps that repeat.
  NEAR = 6  # Small differences without a rule.


class Cause(NamedTuple):
  """A candidate that fits.

  Attributes:
    cost: cost of its assumptions.
    text: describes it.
    kind: describes all causes that differ from this one in details only; '' if none do.
  """

  cost: Cost
  text: str
  kind: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
  """A path that differs in an episode.

  Attributes:
    expected: training's values, [n, ...].
    got: the policy's values at the same steps, [n, ...].
    anchors: the steps, [n].
    is_stack: whether the second axis is time.
    offsets: offsets of the declared window; empty without one.
    frames: all steps of the path in the episode, [T, ...], if known.
    before: values of the previous episode; None without one.
    raw: the windows before preprocessing, if these are after it.
    others: training's values of other paths, by path, [n, ...].
  """

  expected: np.ndarray
  got: np.ndarray
  anchors: np.ndarray
  is_stack: bool = False
  offsets: tuple[int, ...] = ()
  frames: np.ndarray | None = None
  before: np.ndarray | None = None
  raw: np.ndarray | None = None
  others: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


def equal_rows(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
  """Returns which rows are equal to the last bit, bool [n]."""
  pairs = zip(expected, got, strict=True)
  if expected.dtype == object:  # Strings.
    return np.array([np.array_equal(a, b) for a, b in pairs], bool)
  return np.array([a.tobytes() == b.tobytes() for a, b in pairs], bool)


def find_causes(case: Case) -> list[str]:
  """Returns a list of the best explanation of a difference; empty if none fits."""
  expected, got = case.expected, case.got
  if expected.dtype != got.dtype:
    return [f"another dtype: {got.dtype} in place of {expected.dtype}"]
  if expected.shape[1:] != got.shape[1:]:
    return [f"another shape: {got.shape[1:]} in place of {expected.shape[1:]}"]
  if equal_rows(expected, got).all():
    return []
  if expected.dtype.kind == "f" and np.array_equal(expected, got):
    return ["only the sign of zeros differs"]
  if not_finite := _not_finite(case):
    return [not_finite]
  causes = [cause for find in _FINDERS for cause in find(case)]
  best = min((cause.cost for cause in causes), default=None)
  by_kind: dict[str, list[str]] = {}
  for cause in causes:
    if cause.cost == best:
      by_kind.setdefault(cause.kind or cause.text, []).append(cause.text)
  texts = [alike[0] if len({*alike}) == 1 else kind for kind, alike in by_kind.items()]
  if len(texts) > _MOST_CAUSES or not texts:
    return []
  return [texts[0] if len(texts) == 1 else f"either {', or '.join(texts)}"]


def _not_finite(case: Case) -> str | None:
  if case.expected.dtype.kind != "f":
    return None
  for whose, values, other in (
    ("it", case.got, case.expected),
    ("what is expected", case.expected, case.got),
  ):
    if count := int((~np.isfinite(values) & np.isfinite(other)).sum()):
      return f"{count} values of {whose} are not finite"
  return None


def _varies(values: np.ndarray) -> bool:
  return values.size > 0 and bool((values != values.ravel()[0]).any())


# Other data.


def _find_swapped(case: Case) -> Iterator[Cause]:
  for path, values in case.others.items():
    is_same = values.shape == case.got.shape and np.array_equal(values, case.got)
    if is_same and _varies(values):
      text = f"it is what training has as {path}: the two are swapped"
      yield Cause(Cost.LITERAL, text)


def _find_not_reset(case: Case) -> Iterator[Cause]:
  """Finds values of the previous episode in place of this one's."""
  if case.before is None:
    return
  wrong = np.flatnonzero(~equal_rows(case.expected, case.got))
  if case.frames is None:
    if all(np.array_equal(row, case.before) for row in case.got):
      yield Cause(Cost.LITERAL, "it still has the value of the episode before")
    return
  depth = -min(case.offsets, default=0)
  if not case.is_stack or case.anchors[wrong].max() >= depth:
    return
  stream = np.concatenate([case.before, case.frames])
  for row in wrong:
    steps = len(case.before) + case.anchors[row] + np.array(case.offsets)
    if (steps < 0).any() or not np.array_equal(stream[steps], case.got[row]):
      return
  yield Cause(
    Cost.LITERAL,
    "the history was not reset: the first steps of the episode show the end of the "
    "one before",
  )


def _find_padding(case: Case) -> Iterator[Cause]:
  if not case.is_stack or not case.offsets or case.frames is None:
    return
  is_past = case.anchors[:, None] + np.array(case.offsets)[None] < 0
  if not is_past.any():
    return
  same = np.array(
    [
      [np.array_equal(a, b) for a, b in zip(old, new, strict=True)]
      for old, new in zip(case.expected, case.got, strict=True)
    ]
  )
  if not same[~is_past].all():
    return
  past = case.got[is_past & ~same]
  if not past.any():
    what = "zeros stand where training repeats the first step"
  elif all(np.array_equal(row, case.frames[0]) for row in past):
    what = "the first step is repeated where training has zeros"
  else:
    what = "something else stands before the first step than in training"
  yield Cause(Cost.LITERAL, f"another padding: {what}")


def _find_raw(case: Case) -> Iterator[Cause]:
  if case.raw is None or case.raw.shape != case.got.shape:
    return
  if np.array_equal(case.raw.astype(case.got.dtype), case.got):
    yield Cause(Cost.LITERAL, "it is not preprocessed: the network gets the raw values")


# Other times.


def _find_other_steps(case: Case) -> Iterator[Cause]:
  """Finds the steps that each place of a window shows."""
  frames = case.frames
  if frames is None or not case.offsets or len(frames) < 2:
    return
  windows = case.got if case.is_stack else case.got[:, None]
  if windows.shape[2:] != frames.shape[1:]:
    return
  newest = windows[:, -1]
  if len(windows) > 2 and (newest[1:] == newest[0]).all():
    if _changes(frames):
      text = "it is the same at every step, as of a sensor that stands still"
      yield Cause(Cost.HELD, text)
    return
  places = range(len(case.offsets))
  fitting = [_fitting_offsets(case, frames, windows[:, i], i) for i in places]
  if not all(fitting):
    yield from _find_held(case, newest, frames)
    return
  steps = [offsets[0] for offsets in fitting]
  # Periodic values fit several times, and those of one step fit anything.
  is_clear = any(
    len(offsets) == 1 and offsets[0] != declared and _changes(windows[:, i])
    for i, (offsets, declared) in enumerate(zip(fitting, case.offsets, strict=True))
  )
  if not is_clear:
    return
  if len(case.offsets) > 1 and steps == [*case.offsets[::-1]]:
    text = "the stack is turned around: the newest step comes first"
    yield Cause(Cost.SHIFTED, text)
    return
  delays = np.array(case.offsets) - np.array(steps, int)
  if (delays == delays[0]).all():
    late = "late" if delays[0] > 0 else "early"
    noun = "step" if abs(delays[0]) == 1 else "steps"
    yield Cause(Cost.SHIFTED, f"it comes {abs(delays[0])} {noun} {late}")
    return
  text = f"the window shows the steps {tuple(steps)} in place of {case.offsets}"
  yield Cause(Cost.SHIFTED, text)


def _changes(frames: np.ndarray) -> bool:
  return any(not np.array_equal(frame, frames[0]) for frame in frames)


def _fitting_offsets(
  case: Case, frames: np.ndarray, values: np.ndarray, place: int
) -> list[int]:
  """Returns the possible offsets of a place of windows, the nearest first."""
  declared, fitting = case.offsets[place], []
  for offset in sorted(_OFFSETS, key=lambda o: abs(o - declared)):
    steps = case.anchors + offset
    inside = (steps >= 0) & (steps < len(frames))
    repeated = frames[np.clip(steps, 0, len(frames) - 1)]
    same = equal_rows(repeated, values)
    # A few steps at an end of the episode are not evidence.
    if inside.any() and same[inside].all() and (same.all() or inside.mean() >= 0.5):
      if offset == declared:
        return [offset]
      fitting.append(offset)
  return fitting


def _find_held(case: Case, newest: np.ndarray, frames: np.ndarray) -> Iterator[Cause]:
  """Finds newest frames that repeat earlier steps, as of a slower sensor."""
  last, repeats = -1, 0
  for row, anchor in zip(newest, case.anchors, strict=True):
    # The newest step that fits, but none before the last one: time never runs back.
    earliest = max(last, anchor - _MOST_LATE, 0)
    steps = range(anchor, earliest - 1, -1)
    step = next((s for s in steps if np.array_equal(frames[s], row)), None)
    if step is None:
      return
    repeats += step == last
    last = step
  # With fewer repeats the scene may have stood still for a moment.
  if repeats >= max(2, (len(newest) - 1) / 3):
    yield Cause(
      Cost.HELD,
      f"{repeats} of {len(newest) - 1} observations repeat the one before: a slower "
      "sensor, or steps of another period",
    )


def _find_change(case: Case) -> Iterator[Cause]:
  """Finds differences between steps in place of values."""
  frames = case.frames
  if frames is None or case.is_stack or frames.dtype.kind not in "fi":
    return
  if not _changes(frames):
    return
  if frames.shape[1:] != case.got.shape[1:] or len(case.got) < _FEWEST_TO_FIT:
    return
  before = np.concatenate([frames[:1], frames[:-1]])
  for what, base in (("the step before", before), ("the episode's start", frames[:1])):
    change = (frames - base)[case.anchors]
    if _fits(change, case.expected, case.got):
      yield Cause(Cost.MAPPED, f"it is relative to {what}, and training's is absolute")


# Maps of images.


def _is_image(case: Case) -> bool:
  frame_rank = case.expected.ndim - 1 - case.is_stack
  return frame_rank == 3 and case.expected.shape[-1] in (1, 3, 4)


def _find_rearranged_image(case: Case) -> Iterator[Cause]:
  """Finds channels, axes and directions in another order, or another crop."""
  expected, got = case.expected, case.got
  if not _is_image(case):
    return
  changes: list[tuple[str, Map]] = [
    ("it is upside down", lambda x: x[..., ::-1, :, :]),
    ("it is mirrored", lambda x: x[..., ::-1, :]),
    ("it is turned by 180 degrees", lambda x: x[..., ::-1, ::-1, :]),
  ]
  for order in itertools.permutations(range(min(3, expected.shape[-1]))):
    full = [*order, *range(len(order), expected.shape[-1])]
    text = f"its channels are in another order: {full}"
    if order == (2, 1, 0):
      text = "its channels are swapped: BGR for RGB"
    if full != sorted(full):
      changes.append((text, lambda x, full=full: x[..., full]))  # type: ignore[misc]
  if expected.shape[-2] == expected.shape[-3]:
    changes += [
      ("its rows and columns are swapped", lambda x: x.swapaxes(-2, -3)),
      (
        "it is turned by 90 degrees to the left",
        lambda x: x.swapaxes(-2, -3)[..., ::-1, :, :],
      ),
      (
        "it is turned by 90 degrees to the right",
        lambda x: x.swapaxes(-2, -3)[..., ::-1, :],
      ),
    ]
  rearrangements = [
    text for text, change in changes if np.array_equal(change(expected), got)
  ]
  if rearrangements:
    yield from (Cause(Cost.MAPPED, text) for text in rearrangements)
  else:
    yield from _find_moved(expected, got)


def _find_moved(expected: np.ndarray, got: np.ndarray) -> Iterator[Cause]:
  """Finds another crop: the same pixels at other positions."""
  height, width = expected.shape[-3:-1]
  most = min(_MOST_PIXELS, height // 2, width // 2)
  moves = [
    (dy, dx)
    for dy in range(-most, most + 1)
    for dx in range(-most, most + 1)
    if dy or dx
  ]
  for dy, dx in sorted(moves, key=lambda move: abs(move[0]) + abs(move[1])):
    rows, columns = height - abs(dy), width - abs(dx)
    ours = got[..., max(-dy, 0) :, max(-dx, 0) :, :][..., :rows, :columns, :]
    theirs = expected[..., max(dy, 0) :, max(dx, 0) :, :][..., :rows, :columns, :]
    if np.array_equal(ours, theirs) and _varies(ours):
      text = f"another crop: the image is moved by ({dy}, {dx}) pixels"
      yield Cause(Cost.FITTED, text)
      return


# Maps of numbers.


def _fits(predicted: np.ndarray, expected: np.ndarray, got: np.ndarray) -> bool:
  """Whether a prediction fits the policy's values clearly better than training's."""
  if got.dtype.kind in "iu":
    allowed = np.float64(_ROUNDING)
  else:
    precision = max(8 * float(ml_dtypes.finfo(got.dtype).eps), _PRECISION)
    allowed = precision * max(np.abs(got).max(initial=0), np.abs(predicted).max())
  got, expected = (x.astype(np.float64) for x in (got, expected))
  with np.errstate(invalid="ignore"):
    error, before = np.abs(predicted - got), np.abs(expected - got)
  is_equal = np.isnan(predicted) & np.isnan(got)
  error, before = error[~is_equal], before[~is_equal]
  if not error.size:
    return False
  return bool(error.max() <= allowed and error.mean() <= _CLEARLY * before.mean())


class _Vectors:
  """Values as vectors, and which of their elements differ.

  Attributes:
    expected: training's values, float64 [N, D].
    got: the policy's values, float64 [N, D].
    raw_got: the policy's values in their own dtype.
    wrong: numbers of the elements that differ.
    whose: begins a sentence about these.
  """

  def __init__(self, case: Case) -> None:
    is_vector = case.expected.ndim - 1 - case.is_stack >= 1
    shape = (-1, case.expected.shape[-1] if is_vector else 1)
    expected, self.raw_got = case.expected.reshape(shape), case.got.reshape(shape)
    # A sample of the pixels is enough for long episodes.
    every = -(-len(expected) // _MOST_VECTORS)
    expected, self.raw_got = expected[::every], self.raw_got[::every]
    self.expected = expected.astype(np.float64)
    self.got = self.raw_got.astype(np.float64)
    differs = (self.got != self.expected) & ~np.isnan(self.expected)
    self.wrong = np.flatnonzero(differs.any(0))
    self.whose = "it is"
    if 0 < len(self.wrong) < shape[1]:
      noun = "element" if len(self.wrong) == 1 else "elements"
      self.whose = f"its {noun} {self.wrong.tolist()}: it is"

  def of(self, text: str) -> str:
    """Adds the numbers of the elements to a text."""
    return f"{self.whose.removesuffix('it is')}{text}"

  def count(self) -> int:
    """Returns the number of distinct values in training of the elements that differ."""
    return len(np.unique(self.expected[:, self.wrong]))

  def fits(self, predicted: np.ndarray) -> bool:
    """Whether predictions, [N, wrong], fit the policy's values, by element."""
    return len(self.wrong) > 0 and all(
      _fits(predicted[:, place], self.expected[:, i], self.raw_got[:, i])
      for place, i in enumerate(self.wrong)
    )


def _find_inverted_mask(case: Case) -> Iterator[Cause]:
  is_mask = case.expected.dtype == bool and _varies(case.expected)
  if is_mask and np.array_equal(case.got, ~case.expected):
    yield Cause(Cost.MAPPED, "the mask is inverted")


def _find_maps(case: Case) -> Iterator[Cause]:
  """Finds maps of single numbers, or of vectors."""
  dtype = case.expected.dtype
  if dtype.kind not in "fiu" and dtype != ml_dtypes.bfloat16:
    return
  if not case.expected.size:
    return
  vectors = _Vectors(case)
  yield from _find_fixed(case, vectors)
  yield from _find_levels(vectors)
  yield from _find_clipped(vectors)
  yield from _find_scaled(vectors)
  if not _is_image(case):
    reordered = [*_find_reordered(case, vectors)]
    yield from reordered or _find_rotated(vectors)


def _find_fixed(case: Case, vectors: _Vectors) -> Iterator[Cause]:
  if vectors.count() < _FEWEST_TO_MAP:
    return
  expected = vectors.expected[:, vectors.wrong]
  expected_levels, levels = (
    np.unique(expected),
    np.unique(vectors.got[:, vectors.wrong]),
  )
  is_exchanged = len(expected_levels) == 2 and np.array_equal(expected_levels, levels)
  maps = [*_MAPS]
  if case.got.dtype.kind == "u":
    largest = float(np.iinfo(case.got.dtype).max)
    maps.append(("it is inverted, as a negative", lambda x: largest - x, _ANY))
  for text, change, (low, high) in maps:
    slack = 0.05 * (high - low) if high < np.inf else 0.0
    if expected.min() < low - slack or expected.max() > high + slack:
      continue
    if change in (np.round, np.trunc, np.abs) and len(levels) < 3:
      continue  # One or two values are rather a constant or a threshold.
    if vectors.fits(change(expected)):
      is_inverted = is_exchanged and (change is np.negative or text == _INVERTED)
      text = f"{text}: inverted" if is_inverted and text != _INVERTED else text
      kind = "it is inverted" if is_inverted else ""
      yield Cause(Cost.MAPPED, vectors.of(text), kind)
  for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
    if case.expected.dtype.kind == "f" and case.expected.dtype.itemsize > 2:
      with np.errstate(over="ignore"):
        rounded = case.expected.astype(dtype).astype(case.got.dtype)
      if np.array_equal(rounded, case.got, equal_nan=True):
        yield Cause(Cost.MAPPED, f"it went through {name}")


def _find_levels(vectors: _Vectors) -> Iterator[Cause]:
  """Finds two values in place of many, or of two others."""
  thresholds, are_new = [], False
  for i in vectors.wrong:
    before, after = vectors.expected[:, i], vectors.got[:, i]
    levels, levels_before = np.unique(after), np.unique(before)
    if len(levels) != 2 or len(levels_before) < 2:
      return
    low, high = (before[after == level] for level in levels)
    is_rising = low.max() < high.min()
    if not is_rising and high.max() >= low.min():
      return
    if len(levels_before) == 2:
      if len(vectors.wrong) > 1:
        return
      first, second = (levels, levels[::-1])[not is_rising]
      if np.array_equal([second, first], levels_before):
        text = f"it is inverted: {first:.4g} for {second:.4g}, as of a gripper"
        yield Cause(Cost.MAPPED, vectors.of(text), "it is inverted")
      low, high = levels_before
      text = f"it is {first:.4g} for {low:.4g}, and {second:.4g} for {high:.4g}"
      yield Cause(Cost.FITTED, vectors.of(text))
      return
    if len(levels_before) < _FEWEST_TO_FIT:
      return
    are_new = are_new or not np.isin(levels, levels_before).all()
    below, above = (low, high) if is_rising else (high, low)
    limit = (below.max() + above.min()) / 2
    first, second = levels if is_rising else levels[::-1]
    thresholds.append(f"{first:.4g} below {limit:.4g}, {second:.4g} above")
  if thresholds:
    text = f"it is thresholded: {'; '.join(thresholds[:3])}"
    # Two values of the episode may also be two of its steps.
    yield Cause(Cost.FITTED if are_new else Cost.SHIFTED, vectors.of(text))


def _find_clipped(vectors: _Vectors) -> Iterator[Cause]:
  expected, got = vectors.expected, vectors.got
  if vectors.count() < _FEWEST_TO_FIT or np.isnan(got).any():
    return
  lows, highs = got.min(0), got.max(0)
  for low, high in ((lows.min(), highs.max()), (lows, highs)):
    clipped = np.clip(expected, low, high)
    inside = (got > low) & (got < high)
    is_seen = bool(inside[:, vectors.wrong].any())
    if is_seen and np.array_equal(clipped, got):
      text = f"it is clipped to {np.min(low):.4g} ... {np.max(high):.4g}"
      yield Cause(Cost.FITTED, text, "it is clipped")
      return


def _find_scaled(vectors: _Vectors) -> Iterator[Cause]:
  """Fits got = factor * expected + offset, for all and for each element."""
  expected, got = vectors.expected, vectors.got
  if np.isnan(expected).any() or np.isnan(got).any() or not len(vectors.wrong):
    return
  x, y = expected[:, vectors.wrong], got[:, vectors.wrong]
  if len(np.unique(x)) >= _FEWEST_TO_FIT and x.std() > 1e-12:
    factor, offset = np.polyfit(x.ravel(), y.ravel(), 1)
    if abs(factor) > _LEAST_FACTOR and vectors.fits(factor * x + offset):
      yield from _describe_scale(vectors, factor, offset)
      return
  if not 1 < len(vectors.wrong) <= 64:
    return
  predicted, described = np.empty_like(x), []
  for place, i in enumerate(vectors.wrong):
    x_i, y_i = x[:, place], y[:, place]
    factor, offset = 1.0, float((y_i - x_i).mean())
    if len(np.unique(x_i)) >= _FEWEST_TO_FIT - 1:
      factor, offset = np.polyfit(x_i, y_i, 1)
      if abs(factor) < _LEAST_FACTOR:
        return
      described.append(f"[{i}] {factor:.4g} times training's, plus {offset:.4g}")
    predicted[:, place] = factor * x_i + offset
  # Any constant can be explained by an offset.
  if 2 * len(described) < len(vectors.wrong) or not vectors.fits(predicted):
    return
  more = f" and {len(described) - 3} more" if len(described) > 3 else ""
  yield Cause(
    Cost.BY_ELEMENT,
    f"it is scaled by other statistics, e.g. stale statistics: "
    f"{'; '.join(described[:3])}{more}",
  )


def _describe_scale(vectors: _Vectors, factor: float, offset: float) -> Iterator[Cause]:
  largest = np.abs(vectors.got[:, vectors.wrong]).max()
  if abs(factor - 1) < 1e-3:
    # An offset of evenly rising values looks like a delay.
    yield Cause(Cost.SHIFTED, vectors.of(f"it is off by {offset:.4g}"))
  elif abs(factor + 1) < 1e-3 and abs(offset) > 1e-3 * largest:
    text = f"it is inverted: {offset:.4g} minus training's"
    yield Cause(Cost.FITTED, vectors.of(text), "it is inverted")
  else:
    text = f"it is {factor:.4g} times training's, plus {offset:.4g}"
    yield Cause(Cost.FITTED, vectors.of(text))


class _Rotated(NamedTuple):
  """Another layout, or frame, of the rotation in a block of elements."""

  where: str
  cost: Cost
  kind: str
  text: str


def _find_rotated(vectors: _Vectors) -> Iterator[Cause]:
  """Finds other layouts of a rotation, or of one per arm, in some or all elements."""
  size = vectors.expected.shape[1]
  if not len(vectors.wrong) or np.isnan(vectors.expected).any():
    return
  for width in (3, 4, 6):
    arms: list[list[int]] = []
    for i in vectors.wrong.tolist():
      if arms and i < arms[-1][0] + width:
        arms[-1].append(i)
      else:
        arms.append([i])
    if len(arms) > _MOST_ARMS:
      continue
    rotated = [[*_find_rotated_blocks(vectors, arm, width)] for arm in arms]
    for alike in itertools.product(*rotated):
      first = alike[0]
      if any(other[1:] != first[1:] for other in alike):
        continue
      where = " and ".join(block.where for block in alike)
      where = "" if width == size else f"its elements {where}: "
      kind = first.kind if first.cost == Cost.FITTED else f"{where}{first.kind}"
      yield Cause(first.cost, f"{where}{first.text}", kind)


def _find_rotated_blocks(
  vectors: _Vectors, wrong: list[int], width: int
) -> Iterator[_Rotated]:
  """Finds rotations in blocks of `width` elements that hold all wrong ones."""
  last = vectors.expected.shape[1] - width
  for start in range(max(0, wrong[-1] - width + 1), min(wrong[0], last) + 1):
    block = slice(start, start + width)
    where = f"{start} to {block.stop - 1}"
    before, after = vectors.expected[:, block], vectors.raw_got[:, block]
    if len(np.unique(before)) < _FEWEST_TO_FIT:
      continue
    for kind, text, predicted in rotations.other_layouts(before):
      if _fits(predicted, before, after):
        yield _Rotated(where, Cost.MAPPED, kind, text)
    if width == 3 and len(np.unique(before, axis=0)) > _FEWEST_TO_FIT:
      frame = rotations.other_frame(before, vectors.got[:, block])
      if frame is not None and _fits(frame[1], before, after):
        yield _Rotated(where, Cost.FITTED, "another frame", f"it is {frame[0]}")


def _find_reordered(case: Case, vectors: _Vectors) -> Iterator[Cause]:
  """Finds elements, or the axes of a matrix, in another order."""
  if case.expected.ndim - 1 - case.is_stack == 2:
    turned = case.expected.swapaxes(-1, -2)
    if turned.shape == case.got.shape and np.array_equal(turned, case.got):
      yield Cause(Cost.MAPPED, "its rows and columns are swapped: it is transposed")
    return
  expected, got = vectors.expected, vectors.got
  size = expected.shape[1]
  order: list[int] = []
  for i in range(size):
    free = [j for j in range(size) if j not in order]
    alike = [j for j in free if np.array_equal(expected[:, j], got[:, i])]
    if not alike:
      return
    order.append(i if i in alike else alike[0])
  if order != sorted(order):
    yield Cause(Cost.MAPPED, f"its elements are in another order: {order}")


def _find_near(case: Case) -> Iterator[Cause]:
  if case.expected.dtype.kind not in "fiu":
    return
  expected, got = (np.asarray(x, np.float64) for x in (case.expected, case.got))
  is_image, error = _is_image(case), got - expected
  if not is_image:
    # Different means of the elements would dominate the correlation.
    expected = expected - expected.mean(0)
  is_number = np.isfinite(expected) & np.isfinite(error)
  expected, error = expected[is_number], error[is_number]
  if not expected.size or not expected.std() or not error.std():
    return
  if not (expected + error).std():
    return
  if is_image:
    is_near = np.corrcoef(expected, expected + error)[0, 1] >= 0.8
    why = "another resize, or a lossy compression"
  else:
    # Noise has a mean near 0, changes most values, and does not depend on them.
    is_near = (
      error.size >= _FEWEST_OF_NOISE
      and 2 * error.std() <= expected.std()
      and 2 * abs(error.mean()) <= error.std()
      and (error == 0).mean() < 0.2
      and abs(np.corrcoef(expected, error)[0, 1]) < 0.5
    )
    why = "noise, such as of a sensor"
  if is_near:
    error = np.abs(error)
    yield Cause(
      Cost.NEAR,
      f"nearly the same, off by {error.mean():.3g} on average and {error.max():.3g} at "
      f"most: {why}",
    )


_FINDERS = (
  _find_swapped,
  _find_not_reset,
  _find_padding,
  _find_raw,
  _find_other_steps,
  _find_change,
  _find_rearranged_image,
  _find_inverted_mask,
  _find_maps,
  _find_near,
)
