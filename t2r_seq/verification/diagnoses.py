"""Likely causes of a difference, computed from the values themselves."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping

import numpy as np

_OFFSETS = range(-10, 11)
_MOST_PIXELS = 8
_MOST_ELEMENTS = 6
_NAMED_FACTORS = (
  (1 / 255, "divided by 255 once more than in training"),
  (255.0, "not divided by 255, as training does"),
  (1 / 127.5, "scaled from 0 ... 255 to -1 ... 1 once more than in training"),
  (127.5, "in 0 ... 255 where training has -1 ... 1"),
  (-1.0, "of the other sign"),
  (np.pi / 180, "in radians where training has degrees"),
  (180 / np.pi, "in degrees where training has radians"),
  (1e-3, "in other units: a thousandth of training's"),
  (1e3, "in other units: a thousand times training's"),
)


@dataclasses.dataclass(frozen=True)
class Case:
  """What differs, over an episode.

  Attributes:
    expected: what training has, [n, ...].
    got: what the policy had at the same steps, [n, ...].
    anchors: the steps, [n].
    is_stack: whether the second axis is one of time.
    offsets: of the window that was declared, where this is one.
    frames: what there was to see of the path in the episode, [T, ...], if known.
    before: the same of the episode before, if there was one.
    raw: the windows before preprocessing, where this is after it.
    others: what training has of other paths, by path, [n, ...].
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
  """Returns what explains a difference, the most likely cause first; may be none."""
  expected, got = case.expected, case.got
  if expected.dtype != got.dtype:
    return [f"another dtype: {got.dtype} in place of {expected.dtype}"]
  if expected.shape[1:] != got.shape[1:]:
    return [f"another shape: {got.shape[1:]} in place of {expected.shape[1:]}"]
  for find in _FINDERS:
    cause = find(case)
    if cause:
      return [cause]
  return []


def _is_swapped(case: Case) -> str | None:
  for path, values in case.others.items():
    if values.shape == case.got.shape and np.array_equal(values, case.got):
      return f"it is what training has as {path}: the two are swapped"
  return None


def _is_not_reset(case: Case) -> str | None:
  """Frames of the episode before at the beginning of this one."""
  if case.before is None or not case.is_stack or case.frames is None:
    return None
  wrong = np.flatnonzero(~equal_rows(case.expected, case.got))
  depth = -min(case.offsets, default=0)
  if not len(wrong) or case.anchors[wrong].max() >= depth:
    return None
  stream = np.concatenate([case.before, case.frames])
  for row in wrong:
    steps = len(case.before) + case.anchors[row] + np.array(case.offsets)
    if (steps < 0).any() or not np.array_equal(stream[steps], case.got[row]):
      return None
  return (
    "the history was not reset: the first steps of the episode show the end of the "
    "one before"
  )


def _is_padded_otherwise(case: Case) -> str | None:
  if not case.is_stack or not case.offsets or case.frames is None:
    return None
  is_past = case.anchors[:, None] + np.array(case.offsets)[None] < 0
  if not is_past.any():
    return None
  same = np.array(
    [
      [np.array_equal(a, b) for a, b in zip(old, new, strict=True)]
      for old, new in zip(case.expected, case.got, strict=True)
    ]
  )
  if not same[~is_past].all():
    return None
  past = case.got[is_past & ~same]
  if not past.any():
    what = "zeros stand where training repeats the first step"
  elif all(np.array_equal(row, case.frames[0]) for row in past):
    what = "the first step is repeated where training has zeros"
  else:
    what = "something else stands before the first step than in training"
  return f"another padding: {what}"


def _shows_other_steps(case: Case) -> str | None:
  """Finds which steps each place of a window shows."""
  frames = case.frames
  if frames is None or not case.offsets or len(frames) < 2:
    return None
  windows = case.got if case.is_stack else case.got[:, None]
  if windows.shape[2:] != frames.shape[1:]:
    return None
  if len(windows) > 2 and (windows[1:, -1] == windows[0, -1]).all():
    return "it is the same at every step: a sensor that stands still"
  shown: list[int | None] = []
  for place, declared in enumerate(case.offsets):
    found = None
    for offset in sorted(_OFFSETS, key=lambda o: abs(o - declared)):
      steps = case.anchors + offset
      inside = (steps >= 0) & (steps < len(frames))
      if inside.any() and np.array_equal(frames[steps[inside]], windows[inside, place]):
        found = offset
        break
    shown.append(found)
  if None in shown:
    return _is_slow(windows, case.expected)
  if tuple(shown) == tuple(case.offsets):
    return None
  if len(case.offsets) > 1 and tuple(shown) == tuple(case.offsets[::-1]):
    return "the stack is turned around: the newest step comes first"
  delays = np.array(case.offsets) - np.array(shown, int)
  if (delays == delays[0]).all():
    late = "late" if delays[0] > 0 else "early"
    noun = "step" if abs(delays[0]) == 1 else "steps"
    return f"it comes {abs(delays[0])} {noun} {late}"
  return f"the window shows the steps {tuple(shown)} in place of {case.offsets}"


def _is_slow(windows: np.ndarray, expected: np.ndarray) -> str | None:
  """Many an observation is the one before, and in training they are not."""
  newest = windows[:, -1]
  repeats = sum(np.array_equal(a, b) for a, b in itertools.pairwise(newest))
  seen = sum(np.array_equal(a, b) for a, b in itertools.pairwise(expected))
  number = len(newest) - 1
  if number < 3 or 3 * repeats < number or seen >= repeats:
    return None
  return (
    f"{repeats} of {number} observations repeat the one before: a slower sensor, or "
    "steps of another period"
  )


def _is_inverted(case: Case) -> str | None:
  if case.expected.dtype != bool:
    return None
  if np.array_equal(case.got, ~case.expected):
    return "the mask is inverted"
  return None


def _is_not_preprocessed(case: Case) -> str | None:
  if case.raw is None or case.raw.shape != case.got.shape:
    return None
  if np.array_equal(case.raw.astype(case.got.dtype), case.got):
    return "it is not preprocessed: the network gets the raw values"
  return None


def _is_rearranged(case: Case) -> str | None:
  """Channels, axes, directions and elements in another order."""
  expected, got = case.expected, case.got
  frame_rank = expected.ndim - 1 - case.is_stack
  is_image = frame_rank == 3 and expected.shape[-1] in (1, 3, 4)
  tests: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = []
  if is_image:
    tests = [
      ("its channels are swapped: BGR for RGB", lambda x: x[..., ::-1]),
      ("it is upside down", lambda x: x[..., ::-1, :, :]),
      ("it is mirrored", lambda x: x[..., ::-1, :]),
      ("it is turned by 180 degrees", lambda x: x[..., ::-1, ::-1, :]),
    ]
    if expected.shape[-2] == expected.shape[-3]:
      tests.append(("its rows and columns are swapped", lambda x: x.swapaxes(-2, -3)))
  for what, change in tests:
    if np.array_equal(change(expected), got):
      return what
  size = expected.shape[-1] if frame_rank else 0
  if not is_image and 1 < size <= _MOST_ELEMENTS:
    for order in itertools.permutations(range(size)):
      if list(order) != sorted(order) and np.array_equal(expected[..., order], got):
        return f"its elements are in another order: {list(order)}"
  if is_image:
    return _is_moved(expected, got)
  return None


def _is_moved(expected: np.ndarray, got: np.ndarray) -> str | None:
  """Another crop: the same pixels at other places."""
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
    if np.array_equal(ours, theirs):
      return f"another crop: the image is moved by ({dy}, {dx}) pixels"
  return None


def _is_scaled(case: Case) -> str | None:
  """Fits got = factor * expected + offset, for all and for each element."""
  if case.expected.dtype in (bool, object) or not len(case.expected):
    return None
  expected, got = (np.asarray(x, np.float64) for x in (case.expected, case.got))
  for whose, values in (("it", got), ("what is expected", expected)):
    if not np.isfinite(values).all():
      return f"{int((~np.isfinite(values)).sum())} values of {whose} are not finite"
  is_integer = case.got.dtype.kind in "iu"
  fit = _fit(expected.ravel(), got.ravel(), is_integer)
  if fit is not None:
    factor, offset, _ = fit
    for known, what in _NAMED_FACTORS:
      if abs(factor / known - 1) < 1e-2 and abs(offset) < 1e-2 * np.abs(got).max():
        return f"it is {what}"
    if abs(factor - 1) > 1e-4 or abs(offset) > 1e-6:
      return f"it is {factor:.4g} times training's, plus {offset:.4g}"
  size = expected.shape[-1] if expected.ndim > 1 else 0
  if not size or size > 64:
    return None
  found = []
  for element in range(size):
    fit = _fit(expected[..., element].ravel(), got[..., element].ravel(), is_integer)
    if fit is None:
      return None
    factor, offset, _ = fit
    if abs(factor - 1) > 1e-4 or abs(offset) > 1e-6:
      found.append(f"[{element}] {factor:.4g} times training's, plus {offset:.4g}")
  if not found:
    return None
  more = f" and {len(found) - 3} more" if len(found) > 3 else ""
  return (
    f"scaled by other figures, e.g. of stale statistics: {'; '.join(found[:3])}{more}"
  )


def _fit(
  x: np.ndarray, y: np.ndarray, is_integer: bool
) -> tuple[float, float, float] | None:
  spread = x.std()
  if spread <= 1e-12:
    return (1.0, float((y - x).mean()), 0.0) if (y - x).std() < 1e-9 else None
  factor, offset = np.polyfit(x, y, 1)
  error = np.abs(factor * x + offset - y).max()
  # Of integers the rounding, but a fit of a constant explains nothing.
  allowed = 1.0 if is_integer else 1e-4 * max(np.abs(y).max(), 1e-12)
  if error > allowed or abs(factor) * spread <= 2 * error:
    return None
  return float(factor), float(offset), float(error)


def _is_rounded(case: Case) -> str | None:
  if case.expected.dtype.kind != "f":
    return None
  rounded = case.expected.astype(np.float16).astype(case.got.dtype)
  return "it went through float16" if np.array_equal(rounded, case.got) else None


def _is_clipped(case: Case) -> str | None:
  if case.expected.dtype.kind not in "fiu" or not case.got.size:
    return None
  low, high = case.got.min(), case.got.max()
  is_inside = low > case.expected.min() or high < case.expected.max()
  if is_inside and np.array_equal(np.clip(case.expected, low, high), case.got):
    return f"it is clipped to {low:.4g} ... {high:.4g}"
  return None


def _is_near(case: Case) -> str | None:
  if case.expected.dtype == bool:
    return None
  expected, got = (np.asarray(x, np.float64) for x in (case.expected, case.got))
  if not expected.std() or not got.std():
    return None
  likeness = np.corrcoef(expected.ravel(), got.ravel())[0, 1]
  if likeness < 0.8:
    return None
  error = np.abs(expected - got)
  is_image = expected.ndim - case.is_stack == 4
  why = "another resize, or a lossy compression" if is_image else "noise, or a filter"
  return (
    f"nearly the same, off by {error.mean():.3g} on average and {error.max():.3g} at "
    f"most: {why}"
  )


_FINDERS = (
  _is_swapped,
  _is_inverted,
  _is_not_reset,
  _is_padded_otherwise,
  _shows_other_steps,
  _is_rearranged,
  _is_not_preprocessed,
  _is_rounded,
  _is_clipped,
  _is_scaled,
  _is_near,
)
