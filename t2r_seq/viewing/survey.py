"""One pass over a source: statistics, outliers, thumbnails and sizes of frames."""

from __future__ import annotations

import dataclasses

import numpy as np

from t2r_seq import errors, specs
from t2r_seq.episodes.episodes import Values, num_steps
from t2r_seq.progress import Progress
from t2r_seq.statistics import accumulators
from t2r_seq.statistics.statistics import PathStatistics
from t2r_seq.viewing.episodes import (
  EpisodeViewer,
  encode_jpegs,
  series_of,
  spread,
  text_of,
)
from t2r_seq.viewing.model_side import ExportSide
from t2r_seq.viewing.outliers import (
  EpisodeFigures,
  OutlierScore,
  measure_episode,
  rank_episodes,
)

THUMBNAIL, THUMBNAIL_QUALITY = 96, 70
_ROWS_PER_EPISODE, _MOST_ROWS = 64, 200_000
# Pixels and JPEG qualities whose bytes are measured.
SIZES = ((320, 85), (256, 80), (192, 75), (160, 68), (128, 62), (96, 58))


@dataclasses.dataclass
class Survey:
  """Results of one pass over a source.

  Attributes:
    viewer: of the episodes.
    figures: of each episode, in the order of the source.
    ranked: the largest outlier score first.
    statistics: by path.
    samples: rows by path, at most 64 an episode, float64 [n, D].
    thumbnails: JPEGs by number, of the first camera.
    texts: by number; '' without any.
    frame_bytes: of a JPEG of all cameras together, by (size, quality).
  """

  viewer: EpisodeViewer
  figures: list[EpisodeFigures] = dataclasses.field(default_factory=list)
  ranked: list[OutlierScore] = dataclasses.field(default_factory=list)
  statistics: dict[str, PathStatistics] = dataclasses.field(default_factory=dict)
  samples: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  thumbnails: dict[int, bytes] = dataclasses.field(default_factory=dict)
  texts: dict[int, str] = dataclasses.field(default_factory=dict)
  frame_bytes: dict[tuple[int, int], float] = dataclasses.field(default_factory=dict)

  def scale(self, path: str) -> np.ndarray:
    """Returns the standard deviations of a path over the set, [D]; 1 where it has 0."""
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
    viewer: of the episodes.
    export: whose error in each episode is measured.
    progress: counts the episodes.
  Raises:
    SpecError: an episode cannot be read, or there is none.
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
    figures = measure_episode(number, length, values, columns)
    for path in columns.series:
      if path in values:
        counted[path].add(np.asarray(values[path]))
        if num_rows < _MOST_ROWS:
          rows[path].append(series_of(values, path)[spread(length, _ROWS_PER_EPISODE)])
    num_rows += min(length, _ROWS_PER_EPISODE)
    if export is not None and (predicted := export.predict(values)) is not None:
      figures.error = predicted.mean_square()
    survey.texts[number] = _text(values, columns.texts)
    _add_thumbnail(survey, number, values, length)
    count = len(survey.figures)
    if count & (count - 1) == 0 and columns.cameras and len(sizes) < 6:
      sizes.append(_frame_bytes(viewer, values, length))
    survey.figures.append(figures)
  if not survey.figures:
    raise errors.SpecError(
      f"view: {viewer.path}: expected episodes with steps, got none."
    )
  survey.statistics = {
    path: found.finish() for path, found in counted.items() if found.rows
  }
  survey.samples = {
    path: np.concatenate(found) for path, found in rows.items() if found
  }
  survey.frame_bytes = {
    size: float(np.mean([each[size] for each in sizes])) if sizes else 0.0
    for size in SIZES
  }
  _scale_errors(survey, export)
  scales = {path: survey.scale(path) for path in columns.signals if path in counted}
  survey.ranked = rank_episodes(survey.figures, scales)
  return survey


def _scale_errors(survey: Survey, export: ExportSide | None) -> None:
  """Makes errors of all dimensions comparable: in standard deviations of the set."""
  if export is None or export.output is None:
    return
  scale = survey.scale(export.column)
  for each in survey.figures:
    if each.error is not None and len(each.error) == len(scale):
      each.error = each.error / scale**2


def _text(values: Values, paths: tuple[str, ...]) -> str:
  """Returns the longest text of an episode's first step."""
  found = [text_of(values[path]) for path in paths if path in values]
  return max((text for text in found if " " in text or len(text) < 60), key=len,
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
