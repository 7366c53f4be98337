"""Selects the contents of a page, and writes it: one file, no server, no network."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, files
from t2r_seq.episodes.episodes import Values, num_steps
from t2r_seq.progress import Progress
from t2r_seq.viewing.episodes import as_pixels, encode_jpegs, series_of, spread, text_of
from t2r_seq.viewing.model_side import ExportSide, ModelSide, SeenWindows
from t2r_seq.viewing.survey import SIZES, Survey

MAX_BYTES = 20_000_000
# By index into SIZES: frames per camera, windows per episode, pixels of their images.
_FRAMES = (150, 100, 72, 60, 48, 24)
_WINDOWS = (40, 30, 24, 16, 12, 8)
_WINDOW_PIXELS = (160, 144, 128, 112, 96, 64)
_MIN_SHOWN, _MOST_SHOWN, _MOST_LISTED = 24, 200, 5000
_MOST_POINTS, _MOST_IN_STRIP, _MOST_IN_WINDOW = 1500, 16, 64
_BINS = 32
_NAN = 0xFFFF
_TEMPLATE = pathlib.Path(__file__).with_name("page.html")
_PLACE = "/*DATA*/"


@dataclasses.dataclass(frozen=True)
class SourcePage:
  """Contents of a page for one source.

  Attributes:
    name: shown on the page.
    survey: survey of its episodes.
    model: cuts the windows; None shows no windows.
    export: predicts actions; None shows no predictions.
  """

  name: str
  survey: Survey
  model: ModelSide | None = None
  export: ExportSide | None = None


@dataclasses.dataclass(frozen=True)
class PageReport:
  """Describes a page that was written.

  Attributes:
    path: path of the page.
    num_bytes: size of the page, bytes.
    chosen: a sentence on the contents of each source.
  """

  path: str
  num_bytes: int
  chosen: tuple[str, ...]


def write_page(
  pages: Sequence[SourcePage],
  path: str | os.PathLike[str],
  max_bytes: int = MAX_BYTES,
  progress: Progress | None = None,
) -> PageReport:
  """Writes a page of one source, or of two side by side.

  It lists all episodes, or the 5,000 worst outliers. Up to 200 that fit in `max_bytes`
  are shown with their frames: the worst outliers, and some spread over the set.

  Raises:
    SpecError: the list of episodes alone takes more than `max_bytes`, or an image
      cannot be decoded.
    OSError: the file cannot be written.
  """
  template = _TEMPLATE.read_text(encoding="utf-8")
  ranges = _ranges(pages)
  page_bytes = (max_bytes - len(template.encode())) // max(len(pages), 1)
  described, chosen = [], []
  for page in pages:
    values, sentence = _describe(page, page_bytes, ranges, progress)
    described.append(values)
    chosen.append(sentence)
  text = json.dumps({"sources": described}, separators=(",", ":"), allow_nan=False)
  # An escaped '<' prevents that a text of the data ends the script element.
  text = template.replace(_PLACE, text.replace("<", "\\u003c"))
  data = text.encode()
  if len(data) > max_bytes:
    raise errors.SpecError(
      f"view: {os.fspath(path)}: expected a page of at most {max_bytes:,} bytes, got "
      f"{len(data):,} with the list of episodes alone. Look at fewer: --episodes."
    )
  files.write_output(path, data)
  return PageReport(os.fspath(path), len(data), tuple(chosen))


def _base64(data: bytes) -> str:
  return base64.b64encode(data).decode("ascii")


def _base64_numbers(values: np.ndarray, dtype: str) -> str:
  return _base64(np.ascontiguousarray(values, dtype).tobytes())


def _finite(values: Any) -> list[Any]:
  """Returns numbers for JSON, with 5 digits; None for NaN and infinities."""
  return [
    float(f"{value:.5g}") if np.isfinite(value) else None
    for value in np.ravel(np.asarray(values, np.float64)).tolist()
  ]


def _ranges(pages: Sequence[SourcePage]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns (minimum, maximum), [D] each, of each path over all sources."""
  ranges: dict[str, tuple[np.ndarray, np.ndarray]] = {}
  for page in pages:
    for path, measured in page.survey.statistics.items():
      low = np.nan_to_num(np.ravel(measured.measure("min")))
      high = np.nan_to_num(np.ravel(measured.measure("max")))
      if path in ranges and ranges[path][0].shape == low.shape:
        low = np.minimum(low, ranges[path][0])
        high = np.maximum(high, ranges[path][1])
      ranges[path] = low, high
  return ranges


def _describe(
  page: SourcePage,
  max_bytes: int,
  ranges: Mapping[str, tuple[np.ndarray, np.ndarray]],
  progress: Progress | None,
) -> tuple[dict[str, Any], str]:
  """Returns (a source for JSON, a sentence on it), in `max_bytes` if the list fits."""
  survey, viewer = page.survey, page.survey.viewer
  columns = viewer.columns
  ranked = survey.ranked[:_MOST_LISTED]
  measured = {each.number: each for each in survey.episodes}
  lengths = np.asarray([each.num_steps for each in survey.episodes])
  counts, edges = np.histogram(lengths, min(20, int(np.ptp(lengths)) + 1))
  values: dict[str, Any] = {
    "name": page.name,
    "path": viewer.path,
    "format": viewer.format,
    "period": viewer.period,
    "numEpisodes": len(survey.episodes),
    "numSteps": int(lengths.sum()),
    "cameras": list(columns.cameras),
    "actions": list(columns.actions),
    "unseen": list(columns.unseen),
    "series": [
      {"path": path, "low": _finite(ranges[path][0]), "high": _finite(ranges[path][1])}
      for path in _order_series(columns.series, columns.actions, columns.signals)
      if path in ranges
    ],
    "stats": [_statistics(path, survey, ranges[path]) for path in survey.statistics],
    "lengths": {"edges": _finite(edges), "counts": counts.tolist()},
    "episodes": [
      {
        "n": each.number,
        "len": measured[each.number].num_steps,
        "score": round(each.score, 2),
        "why": [[reason.what, reason.text] for reason in each.reasons],
        "text": survey.texts.get(each.number, ""),
        "error": _error(measured[each.number].error),
      }
      for each in ranked
    ],
    "unlisted": _runs([each.number for each in survey.ranked[_MOST_LISTED:]]),
    "model": page.model is not None,
    "export": None
    if page.export is None or page.export.output is None
    else {
      "output": page.export.output,
      "label": page.export.label,
      "column": page.export.column,
      "offsets": list(page.export.offsets),
    },
  }
  max_bytes -= len(json.dumps(values).encode()) + 2000
  max_bytes -= _add_thumbnails(values["episodes"], survey, max_bytes // 6)
  size_index, chosen = _choose(page, max_bytes)
  detail = _details(page, size_index, chosen, ranges, max_bytes, progress)
  values["detail"] = detail
  sentence = _sentence(page, size_index, len(detail))
  notes = [*viewer.notes]
  if page.export is not None and page.export.note:
    notes.append(page.export.note)
  if len(survey.ranked) > len(ranked):
    notes.append(
      f"The {len(ranked):,} worst outliers are listed. A keep-list includes the others."
    )
  if columns.unseen:
    notes.append(f"Not shown: {errors.listing(columns.unseen)}.")
  values["notes"] = [sentence, *notes]
  return values, sentence


def _runs(numbers: Sequence[int]) -> list[list[int]]:
  """Returns [first, last + 1] of each run of consecutive numbers."""
  rising = np.sort(np.asarray(numbers, np.int64))
  parts = np.split(rising, np.flatnonzero(np.diff(rising) != 1) + 1)
  return [[int(part[0]), int(part[-1]) + 1] for part in parts if len(part)]


def _order_series(series: Sequence[str], *first: Sequence[str]) -> list[str]:
  return list(dict.fromkeys([*(p for group in first for p in group), *series]))


def _error(error: np.ndarray | None) -> float | None:
  return None if error is None else _finite(np.sqrt(error.mean()))[0]


def _statistics(
  path: str, survey: Survey, limits: tuple[np.ndarray, np.ndarray]
) -> dict[str, Any]:
  measured = survey.statistics[path]
  samples = survey.samples.get(path, np.zeros((0, len(limits[0]))))
  histograms = []
  for dim, (low, high) in enumerate(zip(*limits, strict=True)):
    column = samples[:, dim][np.isfinite(samples[:, dim])]
    span = (low, high) if high > low else (low - 0.5, low + 0.5)
    histograms.append(np.histogram(column, _BINS, span)[0].tolist())
  return {
    "path": path,
    "dtype": measured.spec.dtype.name,
    "shape": measured.spec.shape.as_list(),
    "rows": measured.rows,
    "bad": measured.num_not_finite,
    **{name: _finite(measured.measure(name)) for name in ("mean", "std", "min", "max")},
    "q": [_finite(measured.quantiles[q]) for q in (0.01, 0.5, 0.99)],
    "low": _finite(limits[0]),
    "high": _finite(limits[1]),
    "hist": histograms,
  }


def _add_thumbnails(
  episodes: Sequence[dict[str, Any]], survey: Survey, max_bytes: int
) -> int:
  """Adds thumbnails up to `max_bytes`; returns the bytes that they take."""
  num_bytes = 0
  for each in episodes:
    if each["n"] in survey.thumbnails:
      text = _base64(survey.thumbnails[each["n"]])
      if num_bytes + len(text) > max_bytes:
        break
      each["thumb"] = text
      num_bytes += len(text) + 12
  return num_bytes


def _choose(page: SourcePage, max_bytes: int) -> tuple[int, list[int]]:
  """Returns an index of SIZES and the episodes to show, the most important first."""
  survey = page.survey
  ranked = [each.number for each in survey.ranked]
  lengths = {each.number: each.num_steps for each in survey.episodes}
  count = min(len(ranked), _MOST_SHOWN)
  evenly = spread(len(ranked), max(count // 2, 1))
  numbers = sorted(ranked)
  mixed = [
    number
    for pair in zip(ranked, [numbers[i] for i in evenly], strict=False)
    for number in pair
  ]
  order = list(dict.fromkeys([*mixed, *ranked]))[:count]
  first = order[: min(_MIN_SHOWN, len(order))]
  for size_index in range(len(SIZES)):  # The last one if no size fits.
    if sum(_estimate(page, size_index, lengths[n]) for n in first) < 0.8 * max_bytes:
      break
  chosen: list[int] = []
  num_bytes = 0.0
  for number in order:
    num_bytes += _estimate(page, size_index, lengths[number])
    if chosen and num_bytes > 0.85 * max_bytes:
      break
    chosen.append(number)
  return size_index, chosen


def _estimate(page: SourcePage, size_index: int, length: int) -> float:
  survey = page.survey
  frame_bytes = survey.frame_bytes[SIZES[size_index]]  # Of all cameras together.
  frames = min(length, _FRAMES[size_index]) * frame_bytes
  points = min(length, _MOST_POINTS)
  elements = sum(each.measure("mean").size for each in survey.statistics.values())
  curves = 2 * points * elements  # uint16.
  windows = 0.0
  if page.model is not None:
    # JPEG bytes grow more slowly than pixels.
    ratio = (_WINDOW_PIXELS[size_index] / SIZES[size_index][0]) ** 0.8
    for path, spec in page.model.spec.items():
      stack = spec.shape[0] if spec.is_stacked else 1
      is_image = page.model.column(path) in survey.viewer.columns.cameras
      image_bytes = ratio * frame_bytes / max(len(survey.viewer.columns.cameras), 1)
      size = spec.shape.num_elements() or 0
      number_bytes = 8 * size if size / max(stack, 1) <= _MOST_IN_WINDOW else 0
      windows += min(stack, _MOST_IN_STRIP) * image_bytes if is_image else number_bytes
    windows *= min(length, _WINDOWS[size_index])
  # Base64 takes 4/3; 2 kB for names and markup.
  return 4 / 3 * (frames + curves + windows) + 2000


def _sentence(page: SourcePage, size_index: int, count: int) -> str:
  """Describes which episodes, frames and pixels the page has."""
  survey = page.survey
  total = len(survey.episodes)
  which = "All" if count == total else f"{count:,} of"
  sentence = f"{which} {total:,} episodes are shown with their curves"
  if not survey.viewer.columns.cameras:
    return f"{sentence}; the source has no images."
  pixels, quality = SIZES[size_index]
  return (
    f"{sentence} and frames: at most {_FRAMES[size_index]} a camera, of at most "
    f"{pixels} pixels, JPEG of quality {quality}."
  )


def _details(
  page: SourcePage,
  size_index: int,
  chosen: Sequence[int],
  ranges: Mapping[str, tuple[np.ndarray, np.ndarray]],
  max_bytes: int,
  progress: Progress | None,
) -> dict[str, Any]:
  """Reads the chosen episodes again, as many as fit."""
  measured = {each.number: each for each in page.survey.episodes}
  starts = dict(
    zip(
      measured,
      np.cumsum([0, *(each.num_steps for each in measured.values())]).tolist(),
      strict=False,
    )
  )
  details, sizes = {}, {}
  for number, values in page.survey.viewer.episodes(chosen, progress, "draw"):
    detail = _detail(page, size_index, values, ranges, starts[number])
    detail["marks"] = [
      [mark.what, mark.path, mark.start, mark.stop] for mark in measured[number].marks
    ][:500]
    details[number], sizes[number] = detail, len(json.dumps(detail)) + 16
  kept, num_bytes = [], 0
  for number in chosen:
    if number in details and num_bytes + sizes[number] <= max_bytes:
      kept.append(number)
      num_bytes += sizes[number]
  return {str(number): details[number] for number in kept}


def _detail(
  page: SourcePage,
  size_index: int,
  values: Values,
  ranges: Mapping[str, tuple[np.ndarray, np.ndarray]],
  first_number: int,
) -> dict[str, Any]:
  survey, viewer = page.survey, page.survey.viewer
  columns, length = viewer.columns, num_steps(values, viewer.spec)
  steps = spread(length, _FRAMES[size_index])
  points = spread(length, _MOST_POINTS)
  detail: dict[str, Any] = {
    "steps": steps.tolist(),
    "frames": {
      path: [
        _base64(jpeg)
        for jpeg in encode_jpegs(viewer.frames(values, path, steps), *SIZES[size_index])
      ]
      for path in columns.cameras
      if path in values
    },
    "points": None if len(points) == length else points.tolist(),
    "series": {
      path: _quantize(series_of(values, path)[points], *ranges[path])
      for path in columns.series
      if path in values and path in ranges
    },
    "texts": {
      path: _texts(values[path], viewer.spec[path].is_sequence)
      for path in columns.texts
      if path in values
    },
    "context": {
      path: _finite(values[path]) for path in columns.contexts if path in values
    },
  }
  anchors = np.zeros(0, np.int64)
  if page.model is not None:
    anchors = page.model.anchors(length, _WINDOWS[size_index])
    seen = page.model.see(values, anchors, first_number)
    detail["windows"] = _windows(seen, _WINDOW_PIXELS[size_index], SIZES[size_index][1])
  if page.export is not None and (predicted := page.export.predict(values)) is not None:
    now = int(np.argmin(np.abs(page.export.offsets)))
    scale = survey.scale(page.export.column)
    if len(scale) != predicted.actions.shape[-1]:
      scale = np.ones(predicted.actions.shape[-1])
    chunks = np.searchsorted(predicted.anchors, anchors)
    detail["predicted"] = {
      "anchors": predicted.anchors.tolist(),
      "now": _base64_numbers(predicted.actions[:, now], "<f4"),
      "offset": page.export.offsets[now],
      "dims": predicted.actions.shape[-1],
      "error": _finite(predicted.per_step(scale)),
      "chunkAnchors": anchors.tolist(),
      "chunks": _base64_numbers(
        predicted.actions[chunks % max(len(predicted.anchors), 1)], "<f4"
      ),
    }
  return detail


def _quantize(series: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
  """Encodes numbers as uint16, 0 at `low` and 65534 at `high`; `_NAN` if not finite."""
  span = np.where(high > low, high - low, 1.0)
  with np.errstate(invalid="ignore"):
    numbers = np.clip(np.round((series - low) / span * (_NAN - 1)), 0, _NAN - 1)
  return _base64_numbers(np.where(np.isfinite(series), numbers, _NAN), "<u2")


def _texts(values: np.ndarray, is_sequence: bool) -> list[list[Any]]:
  """Returns [first step, text] of each run of equal texts."""
  texts: list[list[Any]] = []
  for step, value in enumerate(values if is_sequence else [values]):
    text = text_of(value)[:1000]
    if not texts or texts[-1][1] != text:
      texts.append([step, text])
  return texts[:200]


def _windows(seen: SeenWindows, pixels: int, quality: int) -> dict[str, Any]:
  """Describes windows: images as strips, numbers before and after preprocessing."""
  described = []
  for path in dict.fromkeys([*seen.inputs, *seen.raw]):
    raw, preprocessed = seen.raw.get(path), seen.inputs.get(path)
    shown = preprocessed if preprocessed is not None else raw
    offsets = seen.offsets.get(path)
    if shown is None or not len(shown):
      continue
    stack = len(offsets) if offsets is not None else 1
    real = seen.real.get(path)
    described_path: dict[str, Any] = {
      "path": path,
      "offsets": None if offsets is None else list(offsets),
      "unit": " s" if offsets and isinstance(offsets[0], float) else "",
      "shape": list(shown.shape[1:]),
      "dtype": shown.dtype.name,
      "real": None
      if real is None or real.all()
      else _base64_numbers(real.reshape(len(shown), -1), "u1"),
    }
    if _is_image(shown):
      frames = shown.reshape([len(shown), -1, *shown.shape[-3:]])
      places = spread(frames.shape[1], _MOST_IN_STRIP)
      described_path["places"] = places.tolist()
      described_path["images"] = _strips(frames[:, places], pixels, quality)
    elif shown.dtype.kind in "biuf":
      numbers = shown.reshape(len(shown), -1)
      if shown.shape[1:2] != (stack,) and stack > 1:
        stack = 1  # The second axis is not the stack.
      if numbers.shape[1] / stack > _MOST_IN_WINDOW:
        continue  # Too many numbers to draw.
      described_path["stack"] = stack
      described_path["preprocessed"] = _base64_numbers(numbers, "<f4")
      if raw is not None and raw.shape == shown.shape and (raw != shown).any():
        described_path["raw"] = _base64_numbers(np.asarray(raw), "<f4")
    else:
      continue
    described.append(described_path)
  return {"anchors": seen.anchors.tolist(), "paths": described}


def _is_image(values: np.ndarray) -> bool:
  return (
    values.ndim in (4, 5)
    and values.shape[-1] in (1, 3, 4)
    and min(values.shape[-3:-1]) >= 8
    and values.dtype.kind in "uif"
  )


def _strips(frames: np.ndarray, pixels: int, quality: int) -> list[str]:
  """Returns JPEGs of stacks, [n, K, h, w, c], whose images are side by side."""
  images = as_pixels(frames)
  count, stack, height, width, channels = images.shape
  strips = images.transpose(0, 2, 1, 3, 4).reshape(
    count, height, stack * width, channels
  )
  most = round(pixels / max(height, width) * max(height, stack * width))
  return [_base64(jpeg) for jpeg in encode_jpegs(strips, max(most, 1), quality)]
