"""A contact sheet as a picture, and a recording for Rerun."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from t2r_seq import errors, files, imports
from t2r_seq.episodes.episodes import num_steps
from t2r_seq.progress import Progress
from t2r_seq.viewing.episodes import encode_jpegs, series_of, spread, text_of
from t2r_seq.viewing.page import SourcePage

_ROWS, _COLUMNS = 30, 8
_HEIGHT, _GAP, _LABEL = 88, 6, 250
_MOST_WIDTH = 160
_PAPER, _INK, _SOFT, _WARN = (
  (255, 255, 255),
  (28, 30, 34),
  (99, 103, 110),
  (180, 84, 10),
)
_RRD_QUALITY, _RRD_PIXELS = 90, 1024


def check_extras(png: bool, rrd: bool) -> None:
  """Raises an ImportError that names the extra if a package is missing."""
  if png:
    imports.load_extra("PIL", "plots")
  if rrd:
    imports.load_extra("rerun", "rerun")


def write_contact_sheet(
  pages: Sequence[SourcePage],
  path: str | os.PathLike[str],
  progress: Progress | None = None,
) -> None:
  """Writes a PNG: up to 8 frames of each of the 30 worst outliers, an episode per row.

  The frames are from the camera of the first reason, or else from the first camera.
  Frozen frames have a border. Two sources have 15 rows each.

  Raises:
    SpecError: no source has a camera, or an image cannot be decoded.
    ImportError: Pillow is not installed.
    OSError: the file cannot be written.
  """
  from PIL import Image

  rows = [
    row
    for page in pages
    for row in _rows(
      page, _ROWS // len(pages), f"{page.name}: " if len(pages) > 1 else "", progress
    )
  ]
  if not rows:
    raise errors.SpecError(
      f"view: {os.fspath(path)}: expected a source with a camera for a contact sheet, "
      "got none with images. Leave --png out."
    )
  width = max(row.width for row in rows)
  height = sum(row.height + _GAP for row in rows) + _GAP
  sheet = Image.new("RGB", (width + 2 * _GAP, height), _PAPER)
  top = _GAP
  for row in rows:
    sheet.paste(row, (_GAP, top))
    top += row.height + _GAP
  buffer = io.BytesIO()
  sheet.save(buffer, "PNG", optimize=True)
  files.write_output(path, buffer.getvalue())


def _rows(
  page: SourcePage, limit: int, name: str, progress: Progress | None
) -> list[Any]:
  survey, viewer = page.survey, page.survey.viewer
  chosen = {each.number: each for each in survey.ranked[:limit]}
  marks = {each.number: each.marks for each in survey.episodes if each.number in chosen}
  by_number: dict[int, Any] = {}
  for number, values in viewer.episodes(list(chosen), progress, "contact sheet of"):
    reasons = chosen[number].reasons[:1]
    cameras = [path for path in viewer.columns.cameras if path in values]
    preferred = [each.path for each in reasons]
    camera = next((p for p in (*preferred, *cameras) if p in cameras), None)
    if camera is None:
      continue
    length = num_steps(values, viewer.spec)
    steps = spread(length, _COLUMNS)
    frames = viewer.frames(values, camera, steps)
    frozen = [
      any(m.path == camera and m.start <= step < m.stop for m in marks[number])
      for step in steps
    ]
    by_number[number] = _row(
      f"{name}Episode {number}", f"{length} steps, {camera}",
      reasons[0].text if reasons else "", frames, frozen,
    )  # fmt: skip
  return [by_number[number] for number in chosen if number in by_number]


def _row(
  title: str, facts: str, reason: str, frames: np.ndarray, is_marked: Sequence[bool]
) -> Any:
  from PIL import Image, ImageDraw, ImageFont

  height, width = frames.shape[1:3]
  size = max(1, min(round(width * _HEIGHT / height), _MOST_WIDTH)), _HEIGHT
  row = Image.new("RGB", (_LABEL + (size[0] + 3) * _COLUMNS, _HEIGHT), _PAPER)
  draw = ImageDraw.Draw(row)
  lines = [(title, 15, _INK), (facts, 12, _SOFT)]
  for text in textwrap.wrap(reason, 38)[:3]:
    lines.append((text, 12, _WARN))
  top = 0
  for text, points, ink in lines:
    draw.text((2, top), text, ink, ImageFont.load_default(points))
    top += points + 4
  sampling = Image.Resampling.NEAREST if height < _HEIGHT else Image.Resampling.BOX
  for place, frame in enumerate(frames):
    pixels = np.repeat(frame, 3, axis=-1) if frame.shape[-1] == 1 else frame
    image = Image.fromarray(np.ascontiguousarray(pixels)).resize(size, sampling)
    left = _LABEL + place * (size[0] + 3)
    row.paste(image, (left, 0))
    if is_marked[place]:
      box = (left, 0, left + size[0] - 1, size[1] - 1)
      draw.rectangle(box, outline=_WARN, width=4)
  return row


def write_recording(
  pages: Sequence[SourcePage],
  path: str | os.PathLike[str],
  progress: Progress | None = None,
) -> None:
  """Writes every step of the surveyed episodes as a Rerun recording (.rrd).

  Args:
    pages: surveys of the sources.
    path: the file to write.
    progress: counts the episodes.
  Raises:
    SpecError: an image cannot be decoded.
    ImportError: rerun-sdk is not installed.
    OSError: the file cannot be written.
  """
  rerun = imports.load_extra("rerun", "rerun")
  with files.writing_output(path) as temporary:
    recording = rerun.RecordingStream("t2r_seq_view")
    recording.save(temporary)
    for page in pages:
      _record(rerun, recording, page, progress)
    recording.flush()
    recording.disconnect()


def _record(
  rerun: Any, recording: Any, page: SourcePage, progress: Progress | None
) -> None:
  viewer = page.survey.viewer
  columns = viewer.columns
  ranked = {each.number: each for each in page.survey.ranked}
  for number, values in viewer.episodes(list(ranked), progress, "record"):
    root = f"{page.name}/episode_{number}"
    reasons = [f"- {each.text}" for each in ranked[number].reasons]
    text = "\n".join(reasons) or "no outlier"
    recording.log(f"{root}/outlier", rerun.TextDocument(text), static=True)
    length = num_steps(values, viewer.spec)
    jpegs = {
      path: encode_jpegs(
        viewer.frames(values, path, np.arange(length)), _RRD_PIXELS, _RRD_QUALITY
      )
      for path in columns.cameras
      if path in values
    }
    series = {
      path: series_of(values, path) for path in columns.series if path in values
    }
    for step in range(length):
      recording.set_time("step", sequence=step)
      if viewer.period is not None:
        recording.set_time("time", duration=step * viewer.period)
      for path, frames in jpegs.items():
        image = rerun.EncodedImage(contents=frames[step], media_type="image/jpeg")
        recording.log(f"{root}/{path}", image)
      for path, numbers in series.items():
        recording.log(f"{root}/{path}", rerun.Scalars(numbers[step]))
      for path in columns.texts:
        if path in values:
          rows = values[path] if viewer.spec[path].is_sequence else [values[path]]
          if step < len(rows):
            recording.log(f"{root}/{path}", rerun.TextLog(text_of(rows[step])))
