"""Figures of each episode that find bad data, and the order of suspicion."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from t2r_seq.episodes.episodes import Values
from t2r_seq.viewing.episodes import Columns, same_frames, series_of

# From so many robust deviations on a figure is a reason to look.
_NOTABLE = 3.5
_MOST = 30.0
_CERTAIN = 40.0
_MAD = 1.4826


@dataclasses.dataclass(frozen=True)
class Mark:
  """Steps of an episode that something is wrong with.

  Attributes:
    what: 'frozen', 'nan' or 'gap'.
    path: that it is of.
    start: the first step.
    stop: the step after the last one.
  """

  what: str
  path: str
  start: int
  stop: int


@dataclasses.dataclass
class EpisodeFigures:
  """What is measured of one episode; per dimension where that is not said.

  Attributes:
    number: of the episode in its source.
    num_steps: T.
    mean: by path of the signals, float64 [D]; of finite values, as all of them.
    std: by path.
    edges: by path of the actions, the share of steps at the episode's own least or
      most, beyond one each, [D]; 1 where it is constant.
    jerk: by path of the signals, the root of the mean square of the third difference,
      [D].
    not_finite: NaNs and infinities, by path of all numbers.
    frozen: by camera, the share of steps that show the frame before them.
    longest_gap: seconds, by path of the time stamps.
    usual_gap: the median, likewise.
    num_backwards: time stamps that do not grow.
    marks: the steps that are meant.
    error: under an export, the mean square of each dimension; None without one.
  """

  number: int
  num_steps: int
  mean: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  std: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  edges: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  jerk: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  not_finite: dict[str, int] = dataclasses.field(default_factory=dict)
  frozen: dict[str, float] = dataclasses.field(default_factory=dict)
  longest_gap: dict[str, float] = dataclasses.field(default_factory=dict)
  usual_gap: dict[str, float] = dataclasses.field(default_factory=dict)
  num_backwards: int = 0
  marks: list[Mark] = dataclasses.field(default_factory=list)
  error: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Reason:
  """Why an episode is suspected.

  Attributes:
    what: 'length', 'frozen', 'clipped', 'constant', 'jerk', 'not finite', 'time',
      'far' or 'error'.
    text: a phrase that says it with its figures.
    score: how much; 3.5 is just notable.
    path: that it is about, of a 'frozen' camera; '' for others.
  """

  what: str
  text: str
  score: float
  path: str = ""


@dataclasses.dataclass(frozen=True)
class Suspicion:
  """How much an episode is suspected.

  Attributes:
    number: of the episode in its source.
    score: 0 for nothing notable; the largest of the reasons, and a part of the others.
    reasons: the notable ones, the largest first.
  """

  number: int
  score: float
  reasons: tuple[Reason, ...]


def measure_episode(
  number: int, num_steps: int, values: Values, columns: Columns
) -> EpisodeFigures:
  """Measures an episode.

  Args:
    number: of it.
    num_steps: of it.
    values: by path, as a source gives them.
    columns: what the paths are.
  Returns:
    Its figures, without an error under an export.
  """
  figures = EpisodeFigures(number, num_steps)
  for path in columns.series:
    if path not in values:
      continue
    series = series_of(values, path)
    finite = np.isfinite(series)
    bad = ~finite.all(axis=1)
    if bad.any():
      figures.not_finite[path] = int((~finite).sum())
      figures.marks += _runs(bad, "nan", path)
    if path in columns.times:
      _measure_times(figures, path, series[:, 0])
    if path in columns.signals:
      _measure_signal(figures, path, np.where(finite, series, np.nan), columns)
  for path in columns.contexts:
    if path in values:
      bad_values = ~np.isfinite(np.asarray(values[path]).astype(np.float64))
      if bad_values.any():
        figures.not_finite[path] = int(bad_values.sum())
  for path in columns.cameras:
    if path in values:
      same = same_frames(values[path])
      figures.frozen[path] = float(same.sum() / max(num_steps - 1, 1))
      figures.marks += [m for m in _runs(same, "frozen", path) if m.stop - m.start > 1]
  return figures


def _measure_signal(
  figures: EpisodeFigures, path: str, series: np.ndarray, columns: Columns
) -> None:
  count = np.isfinite(series).sum(axis=0)
  safe = np.maximum(count, 1)
  zeros = np.nan_to_num(series)
  mean = zeros.sum(axis=0) / safe
  centered = np.nan_to_num(series - mean)
  figures.mean[path], figures.std[path] = mean, np.sqrt((centered**2).sum(0) / safe)
  if len(series) > 3:
    third = np.nan_to_num(np.diff(series, 3, axis=0))
    figures.jerk[path] = np.sqrt((third**2).mean(axis=0))
  if path in columns.actions:
    low = np.where(np.isfinite(series), series, np.inf).min(axis=0)
    high = np.where(np.isfinite(series), series, -np.inf).max(axis=0)
    at_edge = ((series == low) | (series == high)).sum(axis=0)
    share = np.maximum(at_edge - 2, 0) / safe
    figures.edges[path] = np.where(low >= high, 1.0, share)


def _measure_times(figures: EpisodeFigures, path: str, times: np.ndarray) -> None:
  gaps = np.diff(times[np.isfinite(times)])
  if not len(gaps):
    return
  usual = float(np.median(gaps))
  figures.usual_gap[path], figures.longest_gap[path] = usual, float(gaps.max())
  figures.num_backwards += int((gaps <= 0).sum())
  wide = np.concatenate([[False], (gaps > 1.5 * usual) | (gaps <= 0)])
  figures.marks += _runs(wide, "gap", path)


def _runs(flags: np.ndarray, what: str, path: str) -> list[Mark]:
  """Returns where runs of set flags are."""
  padded = np.concatenate([[False], flags, [False]]).astype(np.int8)
  edges = np.diff(padded)
  starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
  return [
    Mark(what, path, start, stop)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
  ]


def rank_episodes(
  figures: Sequence[EpisodeFigures], scales: Mapping[str, np.ndarray] | None = None
) -> list[Suspicion]:
  """Orders episodes by how much they stand out from the others.

  Each figure is compared with that of the other episodes, in robust deviations: the
  median of the distances from the median. What is ordinary in a set, such as a camera
  that shows each frame twice, is no reason; NaN always is one.

  Args:
    figures: of all episodes.
    scales: standard deviations of the signals over the whole set, by path, [D]; None
      takes the median of those of the episodes.
  Returns:
    The most suspected first; equal ones in their order.
  """
  reasons: list[list[Reason]] = [[] for _ in figures]
  minor = np.zeros(len(figures))
  scales = dict(scales or {})
  for path in {path: None for each in figures for path in each.std}:
    usual = np.median([each.std[path] for each in figures if path in each.std], axis=0)
    scales.setdefault(path, usual)

  def judge(
    what: str,
    numbers: np.ndarray,
    floor: float,
    text: Callable[[int], str],
    weight: float = 1.0,
    both_sides: bool = False,
    path: str = "",
  ) -> None:
    """Turns a figure of each episode into reasons; NaN stands for none."""
    z = _robust(numbers, floor)
    z = weight * np.nan_to_num(np.abs(z) if both_sides else z)
    np.maximum(minor, np.minimum(z, _NOTABLE), out=minor)
    for index in np.flatnonzero(z >= _NOTABLE):
      score = float(min(z[index], _MOST))
      reasons[index].append(Reason(what, text(int(index)), score, path))

  lengths = np.asarray([each.num_steps for each in figures], np.float64)
  middle = float(np.median(lengths)) if len(lengths) else 0.0
  judge(
    "length",
    np.log(np.maximum(lengths, 1)),
    0.1,
    lambda i: f"{int(lengths[i])} steps, where {middle:.0f} are usual",
    weight=0.6,
    both_sides=True,
  )
  _judge_cameras(figures, judge)
  _judge_actions(figures, judge, reasons)
  _judge_signals(figures, scales, judge)
  _judge_times(figures, judge, reasons)
  errors = np.asarray(
    [np.nan if f.error is None else math.sqrt(float(f.error.mean())) for f in figures]
  )
  with np.errstate(divide="ignore", invalid="ignore"):
    usual_error = np.nanmedian(errors) if np.isfinite(errors).any() else np.nan
    judge(
      "error",
      np.log(np.maximum(errors, 1e-12)),
      0.1,
      lambda i: (
        f"the export is {errors[i] / usual_error:.3g} times as far off as usual"
      ),
    )
  for index, each in enumerate(figures):
    for path, count in each.not_finite.items():
      text = f"{path} has {count} NaN or infinite value{'s' * (count > 1)}"
      reasons[index].append(Reason("not finite", text, _CERTAIN))
  found = []
  for each, why, small in zip(figures, reasons, minor, strict=True):
    why.sort(key=lambda reason: -reason.score)
    score = 0.1 * float(small)
    if why:
      score = why[0].score + 0.3 * sum(reason.score for reason in why[1:])
    found.append(Suspicion(each.number, score, tuple(why)))
  return sorted(found, key=lambda each: -each.score)


_Judge = Callable[..., None]


def _robust(numbers: np.ndarray, floor: float) -> np.ndarray:
  """Returns distances from the median, in robust deviations of at least the floor."""
  known = numbers[np.isfinite(numbers)]
  if not len(known):
    return np.zeros(len(numbers))
  middle = np.median(known)
  deviation = _MAD * np.median(np.abs(known - middle))
  return (numbers - middle) / max(float(deviation), floor)


def _judge_cameras(figures: Sequence[EpisodeFigures], judge: _Judge) -> None:
  for path in {path: None for each in figures for path in each.frozen}:

    def text(index: int, path: str = path) -> str:
      each = figures[index]
      runs = [m for m in each.marks if m.what == "frozen" and m.path == path]
      longest = max(runs, key=lambda m: m.stop - m.start, default=None)
      if longest is None:
        return f"{path} shows a frame twice in {each.frozen[path]:.0%} of the steps"
      start, stop = longest.start - 1, longest.stop - 1
      return f"{path} is frozen from step {start} to {stop}"

    shares = [each.frozen.get(path, np.nan) for each in figures]
    judge("frozen", np.asarray(shares), 0.04, text, path=path)


def _judge_actions(
  figures: Sequence[EpisodeFigures], judge: _Judge, reasons: list[list[Reason]]
) -> None:
  for path in {path: None for each in figures for path in each.edges}:
    has = [index for index, each in enumerate(figures) if path in each.edges]
    edges = np.stack([figures[index].edges[path] for index in has])
    constant = edges >= 1.0
    usual = np.median(edges, axis=0)
    far = np.full(len(figures), np.nan)
    beyond = np.where(constant, 0.0, edges - usual)
    far[has] = beyond.max(axis=1)
    where = dict(zip(has, beyond.argmax(axis=1).tolist(), strict=True))

    count = edges.shape[1]

    def text(
      index: int,
      path: str = path,
      where: Mapping[int, int] = where,
      count: int = count,
    ) -> str:
      dim = where[index]
      share = figures[index].edges[path][dim]
      return f"{_element(path, dim, count)} is clipped in {share:.0%} of steps"

    judge("clipped", far, 0.04, text)
    rare = constant & (constant.mean(axis=0) < 0.2)
    for row, index in enumerate(has):
      dims = np.flatnonzero(rare[row])
      if len(dims):
        which = _element(path, int(dims[0]), count)
        if len(dims) == count:
          which = path
        more = f" and {len(dims) - 1} more" if 1 < len(dims) < count else ""
        score = 5.0 + 10.0 * len(dims) / count
        reasons[index].append(Reason("constant", f"{which}{more} is constant", score))


def _judge_signals(
  figures: Sequence[EpisodeFigures], scales: Mapping[str, np.ndarray], judge: _Judge
) -> None:
  for path in {path: None for each in figures for path in each.mean}:
    scale = np.maximum(scales[path], 1e-9)
    has = [index for index, each in enumerate(figures) if path in each.mean]
    far = np.full(len(figures), np.nan)
    means = np.stack([figures[index].mean[path] for index in has])
    middle = np.median(means, axis=0)
    spread = _MAD * np.median(np.abs(means - middle), axis=0)
    z = np.abs(means - middle) / np.maximum(spread, 0.1 * scale)
    far[has] = z.max(axis=1)
    where = dict(zip(has, z.argmax(axis=1).tolist(), strict=True))

    def far_text(
      index: int,
      path: str = path,
      where: Mapping[int, int] = where,
      middle: np.ndarray = middle,
    ) -> str:
      dim, count = where[index], len(middle)
      mean = figures[index].mean[path][dim]
      return (
        f"{_element(path, dim, count)} is {mean:.3g} on average, where "
        f"{middle[dim]:.3g} is usual"
      )

    judge("far", far, 1.0, far_text, weight=0.6)
    jerks = np.full(len(figures), np.nan)
    for index in has:
      if path in figures[index].jerk:
        ratio = figures[index].jerk[path] / scale
        jerks[index] = math.log(max(float(np.sqrt((ratio**2).mean())), 1e-9))
    usual = float(np.nanmedian(jerks)) if np.isfinite(jerks).any() else 0.0
    if usual < math.log(1e-3):
      continue  # It stands still in most episodes, as commands do: nothing is usual.

    def jerk_text(
      index: int, path: str = path, jerks: np.ndarray = jerks, usual: float = usual
    ) -> str:
      times = math.exp(min(jerks[index] - usual, 50.0))
      return f"{path} jerks {times:.3g} times as much as usual"

    judge("jerk", jerks, 0.12, jerk_text)


def _judge_times(
  figures: Sequence[EpisodeFigures], judge: _Judge, reasons: list[list[Reason]]
) -> None:
  for path in {path: None for each in figures for path in each.longest_gap}:
    usual = float(
      np.median([f.usual_gap[path] for f in figures if path in f.usual_gap])
    )
    if usual <= 0:
      continue
    longest = np.asarray([f.longest_gap.get(path, np.nan) / usual for f in figures])

    def text(index: int, path: str = path, longest: np.ndarray = longest) -> str:
      return f"{path} leaps by {longest[index]:.3g} steps at once"

    judge("time", np.log(np.maximum(longest, 1e-3)), 0.15, text)
  for index, each in enumerate(figures):
    if each.num_backwards:
      said = f"time stamps do not grow in {each.num_backwards} steps"
      reasons[index].append(Reason("time", said, 20.0))


def _element(path: str, dim: int, count: int) -> str:
  return path if count == 1 else f"{path}[{dim}]"
