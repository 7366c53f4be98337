"""One pass over a source: statistics and outlier scores of episodes, thumbnails."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import Values, num_steps
from t2r_seq.progress import Progress
from t2r_seq.statistics import accumulators
from t2r_seq.statistics.statistics import PathStatistics
from t2r_seq.viewing.episodes import (
  Columns,
  EpisodeViewer,
  encode_jpegs,
  same_frames,
  series_of,
  spread,
  text_of,
)
from t2r_seq.viewing.model_side import ExportSide

THUMBNAIL, THUMBNAIL_QUALITY = 96, 70
_ROWS_PER_EPISODE, _MOST_ROWS = 64, 200_000
# Pixels and JPEG qualities whose bytes are measured.
SIZES = ((320, 85), (256, 80), (192, 75), (160, 68), (128, 62), (96, 58))
# An episode this many robust standard deviations off the median has a reason.
NOTABLE = 3.5
# Largest score of a deviation, and score of values that are certainly wrong.
_MOST, _CERTAIN = 30.0, 40.0
# Times the median absolute deviation: the standard deviation of normal values.
_MAD = 1.4826


@dataclasses.dataclass
class Survey:
  """Results of one pass over a source.

  Attributes:
    viewer: viewer of the episodes.
    episodes: statistics of each episode, in the order of the source.
    ranked: outlier scores of the episodes, the largest first.
    statistics: statistics over all episodes, by path.
    samples: rows by path, at most 64 per episode, some 200,000 in all, float64 [n, D].
    thumbnails: JPEGs of the first camera, by number of the episode.
    texts: text of each episode, by number; '' without any.
    frame_bytes: mean JPEG bytes of a step's cameras together, by (size, quality).
  """

  viewer: EpisodeViewer
  episodes: list[EpisodeStatistics] = dataclasses.field(default_factory=list)
  ranked: list[OutlierScore] = dataclasses.field(default_factory=list)
  statistics: dict[str, PathStatistics] = dataclasses.field(default_factory=dict)
  samples: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  thumbnails: dict[int, bytes] = dataclasses.field(default_factory=dict)
  texts: dict[int, str] = dataclasses.field(default_factory=dict)
  frame_bytes: dict[tuple[int, int], float] = dataclasses.field(default_factory=dict)

  def scale(self, path: str) -> np.ndarray:
    """Returns the standard deviations of a path over the set, [D]; 1 in place of 0."""
    if path not in self.statistics:
      return np.ones(1)
    std = np.ravel(self.statistics[path].measure("std"))
    return np.where(std > 0, std, 1.0)


def survey_episodes(
  viewer: EpisodeViewer,
  export: ExportSide | None = None,
  progress: Progress | None = None,
) -> Survey:
  """Reads every episode once: statistics, outlier scores, thumbnails.

  Args:
    viewer: viewer of the episodes.
    export: export whose error in each episode is measured.
    progress: counts the episodes.
  Raises:
    SpecError: an episode cannot be read, or the set has none.
  """
  survey = Survey(viewer)
  columns = viewer.columns
  counted = {
    path: accumulators.create_accumulator(
      specs.ExtendedTensorSpec.from_spec(viewer.spec[path], is_sequence=False), False
    )
    for path in columns.series
  }
  rows: dict[str, list[np.ndarray]] = {path: [] for path in columns.series}
  num_rows = 0
  sizes: list[dict[tuple[int, int], float]] = []
  for number, values in viewer.episodes(None, progress):
    length = num_steps(values, viewer.spec)
    measured = measure_episode(number, length, values, columns)
    for path in columns.series:
      if path in values:
        counted[path].add(np.asarray(values[path]))
        if num_rows < _MOST_ROWS:
          rows[path].append(series_of(values, path)[spread(length, _ROWS_PER_EPISODE)])
    num_rows += min(length, _ROWS_PER_EPISODE)
    if export is not None and (predicted := export.predict(values)) is not None:
      measured.error = predicted.mean_square()
    survey.texts[number] = _text(values, columns.texts)
    _add_thumbnail(survey, number, values, length)
    count = len(survey.episodes)
    # Frames of the episodes 0, 1, 2, 4, 8 and 16 are measured, of all sizes.
    if count & (count - 1) == 0 and columns.cameras and len(sizes) < 6:
      sizes.append(_frame_bytes(viewer, values, length))
    survey.episodes.append(measured)
  if not survey.episodes:
    raise errors.SpecError(
      f"view: {viewer.path}: expected episodes with steps, got none."
    )
  survey.statistics = {
    path: each.finish() for path, each in counted.items() if each.rows
  }
  survey.samples = {
    path: np.concatenate(parts) for path, parts in rows.items() if parts
  }
  survey.frame_bytes = {
    size: float(np.mean([each[size] for each in sizes])) if sizes else 0.0
    for size in SIZES
  }
  _scale_errors(survey, export)
  scales = {path: survey.scale(path) for path in columns.signals if path in counted}
  survey.ranked = rank_episodes(survey.episodes, scales)
  return survey


def _scale_errors(survey: Survey, export: ExportSide | None) -> None:
  """Divides squared errors by the variances of the set, so that dimensions compare."""
  if export is None or export.output is None:
    return
  scale = survey.scale(export.column)
  for each in survey.episodes:
    if each.error is not None and len(each.error) == len(scale):
      each.error = each.error / scale**2


def _text(values: Values, paths: tuple[str, ...]) -> str:
  """Returns the longest text of an episode's first step."""
  texts = [text_of(values[path]) for path in paths if path in values]
  return max((text for text in texts if " " in text or len(text) < 60), key=len,
             default="")[:300]  # fmt: skip


def _add_thumbnail(survey: Survey, number: int, values: Values, length: int) -> None:
  camera = next((p for p in survey.viewer.columns.cameras if p in values), None)
  if camera is not None:
    image = survey.viewer.frames(values, camera, np.asarray([length // 2]))
    (survey.thumbnails[number],) = encode_jpegs(image, THUMBNAIL, THUMBNAIL_QUALITY)


def _frame_bytes(
  viewer: EpisodeViewer, values: Values, length: int
) -> dict[tuple[int, int], float]:
  """Returns the bytes of the cameras' frames of a step, by size and quality."""
  steps = np.asarray([length // 2])
  images = [
    viewer.frames(values, path, steps)
    for path in viewer.columns.cameras
    if path in values
  ]
  return {
    size: float(sum(len(encode_jpegs(image, *size)[0]) for image in images))
    for size in SIZES
  }


@dataclasses.dataclass(frozen=True)
class Mark:
  """Steps of an episode with a defect.

  Attributes:
    what: 'frozen', 'nan' or 'gap'.
    path: the path with the defect.
    start: the first step.
    stop: the step after the last one.
  """

  what: str
  path: str
  start: int
  stop: int


@dataclasses.dataclass
class EpisodeStatistics:
  """Statistics of one episode, by path; arrays have one element per dimension, [D].

  Attributes:
    number: number of the episode in its source.
    num_steps: steps of the episode.
    mean: mean of the finite values of signals.
    std: standard deviation of the finite values of signals.
    edges: for actions, the share of steps at the episode's own minimum or maximum,
      beyond one each; 1 if the element is constant.
    jerk: for signals of at least 4 steps, the root mean square of third differences.
    not_finite: number of NaNs and infinities.
    frozen: for cameras, the share of steps that show the frame before them.
    longest_gap: longest gap between time stamps, in their unit.
    usual_gap: median gap between time stamps, in their unit.
    num_backwards: number of time stamps that do not increase.
    marks: places of the defects.
    error: mean squared error of an export's actions, [D]; None without one. In a
      `Survey` in variances of the set.
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
  """Why an episode is an outlier.

  Attributes:
    what: 'length', 'frozen', 'clipped', 'constant', 'jerk', 'not finite', 'time',
      'far' or 'error'.
    text: describes it with its numbers.
    score: 3.5 or more.
    path: the camera of 'frozen'; '' for others.
  """

  what: str
  text: str
  score: float
  path: str = ""


@dataclasses.dataclass(frozen=True)
class OutlierScore:
  """Outlier score of an episode, with its reasons.

  Attributes:
    number: number of the episode in its source.
    score: the largest reason's, plus 0.3 of the others; at most 0.35 without reasons.
    reasons: the reasons, the largest score first.
  """

  number: int
  score: float
  reasons: tuple[Reason, ...]


def measure_episode(
  number: int, length: int, values: Values, columns: Columns
) -> EpisodeStatistics:
  """Returns the statistics of an episode, without an export's error."""
  measured = EpisodeStatistics(number, length)
  for path in columns.series:
    if path not in values:
      continue
    series = series_of(values, path)
    finite = np.isfinite(series)
    bad = ~finite.all(axis=1)
    if bad.any():
      measured.not_finite[path] = int((~finite).sum())
      measured.marks += _runs(bad, "nan", path)
    if path in columns.times:
      _measure_times(measured, path, series[:, 0])
    if path in columns.signals:
      _measure_signal(measured, path, np.where(finite, series, np.nan), columns)
  for path in columns.contexts:
    if path in values:
      count = int((~np.isfinite(np.asarray(values[path]).astype(np.float64))).sum())
      if count:
        measured.not_finite[path] = count
  for path in columns.cameras:
    if path in values:
      same = same_frames(values[path])
      measured.frozen[path] = float(same.sum() / max(length - 1, 1))
      measured.marks += [m for m in _runs(same, "frozen", path) if m.stop - m.start > 1]
  return measured


def _measure_signal(
  measured: EpisodeStatistics, path: str, series: np.ndarray, columns: Columns
) -> None:
  safe = np.maximum(np.isfinite(series).sum(axis=0), 1)
  mean = np.nan_to_num(series).sum(axis=0) / safe
  centered = np.nan_to_num(series - mean)
  measured.mean[path], measured.std[path] = mean, np.sqrt((centered**2).sum(0) / safe)
  if len(series) > 3:
    third = np.nan_to_num(np.diff(series, 3, axis=0))
    measured.jerk[path] = np.sqrt((third**2).mean(axis=0))
  if path in columns.actions:
    low = np.where(np.isfinite(series), series, np.inf).min(axis=0)
    high = np.where(np.isfinite(series), series, -np.inf).max(axis=0)
    at_edge = ((series == low) | (series == high)).sum(axis=0)
    share = np.maximum(at_edge - 2, 0) / safe
    measured.edges[path] = np.where(low >= high, 1.0, share)


def _measure_times(measured: EpisodeStatistics, path: str, times: np.ndarray) -> None:
  gaps = np.diff(times[np.isfinite(times)])
  if not len(gaps):
    return
  usual = float(np.median(gaps))
  measured.usual_gap[path], measured.longest_gap[path] = usual, float(gaps.max())
  measured.num_backwards += int((gaps <= 0).sum())
  wide = np.concatenate([[False], (gaps > 1.5 * usual) | (gaps <= 0)])
  measured.marks += _runs(wide, "gap", path)


def _runs(flags: np.ndarray, what: str, path: str) -> list[Mark]:
  """Returns a mark for each run of set flags."""
  edges = np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8))
  starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
  return [
    Mark(what, path, start, stop)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
  ]


def rank_episodes(
  measured: Sequence[EpisodeStatistics], scales: Mapping[str, np.ndarray] | None = None
) -> list[OutlierScore]:
  """Orders episodes by their outlier scores.

  Each statistic is compared with the median of all episodes, in robust standard
  deviations: 1.4826 times the median distance from the median. What is usual in a set,
  such as a camera that shows each frame twice, is not a reason. NaN, infinities and
  time stamps that do not increase always are.

  Args:
    measured: statistics of all episodes.
    scales: standard deviations of the signals over the whole set, by path, [D]; for a
      missing path, or None, the median of the episodes' standard deviations.
  Returns:
    Outlier scores of all episodes, the largest first; equal ones in their order.
  """
  ranking = _Ranking(measured)
  lengths = np.asarray([each.num_steps for each in measured], np.float64)
  middle = float(np.median(lengths)) if len(lengths) else 0.0
  ranking.judge(
    "length",
    np.log(np.maximum(lengths, 1)),
    0.1,
    lambda i: f"{int(lengths[i])} steps, where {middle:.0f} are usual",
    weight=0.6,
    both_sides=True,
  )
  for path in _paths(each.frozen for each in measured):
    ranking.judge_camera(path)
  for path in _paths(each.edges for each in measured):
    ranking.judge_action(path)
  for path in _paths(each.mean for each in measured):
    std = np.median([each.std[path] for each in measured if path in each.std], axis=0)
    ranking.judge_signal(path, np.maximum((scales or {}).get(path, std), 1e-9))
  for path in _paths(each.longest_gap for each in measured):
    ranking.judge_times(path)
  ranking.judge_errors()
  for reasons, each in zip(ranking.reasons, measured, strict=True):
    if each.num_backwards:
      text = f"time stamps do not increase in {each.num_backwards} steps"
      reasons.append(Reason("time", text, 20.0))
    for path, count in each.not_finite.items():
      text = f"{path} has {count} NaN or infinite value{'s' * (count > 1)}"
      reasons.append(Reason("not finite", text, _CERTAIN))
  return ranking.scores()


def _paths(parts: Iterable[Mapping[str, object]]) -> list[str]:
  return list(dict.fromkeys(path for part in parts for path in part))


class _Ranking:
  """Collects the reasons of each episode."""

  def __init__(self, measured: Sequence[EpisodeStatistics]) -> None:
    self._statistics = measured
    self.reasons: list[list[Reason]] = [[] for _ in measured]
    # Largest deviation below NOTABLE, by episode.
    self._minor = np.zeros(len(measured))

  def judge(
    self,
    what: str,
    numbers: np.ndarray,
    floor: float,
    text: Callable[[int], str],
    weight: float = 1.0,
    both_sides: bool = False,
    path: str = "",
  ) -> None:
    """Adds a reason for each episode whose statistic is an outlier.

    Args:
      what: see `Reason`.
      numbers: the statistic, [num_episodes]; NaN for episodes without it.
      floor: the least value of a robust standard deviation.
      text: describes the reason, given an episode's index.
      weight: a factor of the deviations.
      both_sides: whether small numbers are reasons, too.
      path: see `Reason`.
    """
    z = np.zeros(len(numbers))
    finite = numbers[np.isfinite(numbers)]
    if len(finite):
      middle = np.median(finite)
      deviation = _MAD * np.median(np.abs(finite - middle))
      z = (numbers - middle) / max(float(deviation), floor)
    z = weight * np.nan_to_num(np.abs(z) if both_sides else z)
    np.maximum(self._minor, np.minimum(z, NOTABLE), out=self._minor)
    for index in np.flatnonzero(z >= NOTABLE):
      score = float(min(z[index], _MOST))
      self.reasons[index].append(Reason(what, text(int(index)), score, path))

  def scores(self) -> list[OutlierScore]:
    scored = []
    for each, reasons, minor in zip(
      self._statistics, self.reasons, self._minor, strict=True
    ):
      reasons.sort(key=lambda reason: -reason.score)
      score = 0.1 * float(minor)
      if reasons:
        score = reasons[0].score + 0.3 * sum(reason.score for reason in reasons[1:])
      scored.append(OutlierScore(each.number, score, tuple(reasons)))
    return sorted(scored, key=lambda each: -each.score)

  def judge_camera(self, path: str) -> None:
    def text(index: int) -> str:
      each = self._statistics[index]
      runs = [m for m in each.marks if m.what == "frozen" and m.path == path]
      longest = max(runs, key=lambda m: m.stop - m.start, default=None)
      if longest is None:
        return f"{path} shows a frame twice in {each.frozen[path]:.0%} of the steps"
      return f"{path} is frozen from step {longest.start - 1} to {longest.stop - 1}"

    shares = [each.frozen.get(path, np.nan) for each in self._statistics]
    self.judge("frozen", np.asarray(shares), 0.04, text, path=path)

  def judge_action(self, path: str) -> None:
    has = [index for index, each in enumerate(self._statistics) if path in each.edges]
    edges = np.stack([self._statistics[index].edges[path] for index in has])
    constant, count = edges >= 1.0, edges.shape[1]
    beyond = np.where(constant, 0.0, edges - np.median(edges, axis=0))
    dims = dict(zip(has, beyond.argmax(axis=1).tolist(), strict=True))

    def text(index: int) -> str:
      share = self._statistics[index].edges[path][dims[index]]
      return f"{_element(path, dims[index], count)} is clipped in {share:.0%} of steps"

    self.judge("clipped", self._of_all(has, beyond.max(axis=1)), 0.04, text)
    rare = constant & (constant.mean(axis=0) < 0.2)
    for row, index in enumerate(has):
      still = np.flatnonzero(rare[row])
      if len(still):
        which = path if len(still) == count else _element(path, int(still[0]), count)
        more = f" and {len(still) - 1} more" if 1 < len(still) < count else ""
        score = 5.0 + 10.0 * len(still) / count
        self.reasons[index].append(
          Reason("constant", f"{which}{more} is constant", score)
        )

  def judge_signal(self, path: str, scale: np.ndarray) -> None:
    has = [index for index, each in enumerate(self._statistics) if path in each.mean]
    means = np.stack([self._statistics[index].mean[path] for index in has])
    middle = np.median(means, axis=0)
    deviation = _MAD * np.median(np.abs(means - middle), axis=0)
    z = np.abs(means - middle) / np.maximum(deviation, 0.1 * scale)
    dims = dict(zip(has, z.argmax(axis=1).tolist(), strict=True))

    def far_text(index: int) -> str:
      dim = dims[index]
      return (
        f"{_element(path, dim, len(middle))} is "
        f"{self._statistics[index].mean[path][dim]:.3g} on average; the median is "
        f"{middle[dim]:.3g}"
      )

    self.judge("far", self._of_all(has, z.max(axis=1)), 1.0, far_text, weight=0.6)
    jerks = np.full(len(self._statistics), np.nan)
    for index in has:
      if path in self._statistics[index].jerk:
        ratio = self._statistics[index].jerk[path] / scale
        jerks[index] = math.log(max(float(np.sqrt((ratio**2).mean())), 1e-9))
    median = float(np.nanmedian(jerks)) if np.isfinite(jerks).any() else 0.0
    if median < math.log(1e-3):
      return  # Most episodes stand still: any motion would be an outlier.

    def jerk_text(index: int) -> str:
      times = math.exp(min(jerks[index] - median, 50.0))
      return f"the jerk of {path} is {times:.3g} times the median"

    self.judge("jerk", jerks, 0.12, jerk_text)

  def judge_times(self, path: str) -> None:
    """Scores episodes by their longest gap, in usual gaps, on a log scale."""
    median = float(
      np.median([e.usual_gap[path] for e in self._statistics if path in e.usual_gap])
    )
    if median <= 0:
      return
    longest = np.asarray([e.longest_gap.get(path, np.nan) for e in self._statistics])
    num_steps = longest / median
    self.judge(
      "time",
      np.log(np.maximum(num_steps, 1e-3)),
      floor=0.15,
      text=lambda index: f"{path} has a gap of {num_steps[index]:.3g} usual steps",
    )

  def judge_errors(self) -> None:
    """Scores episodes by the export's RMSE, on a log scale: ratios matter."""
    rmse = np.asarray(
      [
        np.nan if each.error is None else math.sqrt(float(each.error.mean()))
        for each in self._statistics
      ]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
      median = np.nanmedian(rmse) if np.isfinite(rmse).any() else np.nan
      self.judge(
        "error",
        np.log(np.maximum(rmse, 1e-12)),
        floor=0.1,
        text=lambda i: f"the export's error is {rmse[i] / median:.3g} times the median",
      )

  def _of_all(self, has: list[int], numbers: np.ndarray) -> np.ndarray:
    """Returns numbers of the episodes `has` for all episodes; NaN for the others."""
    scores = np.full(len(self._statistics), np.nan)
    scores[has] = numbers
    return scores


def _element(path: str, dim: int, count: int) -> str:
  return path if count == 1 else f"{path}[{dim}]"
