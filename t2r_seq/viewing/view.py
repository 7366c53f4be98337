"""`view`: from sources to a page, a contact sheet or a recording."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from t2r_seq import convert, errors, files, policies, specs, windows
from t2r_seq.episodes.splits import EpisodeNumbers as Episodes
from t2r_seq.progress import Progress
from t2r_seq.specs import ModeKeys, TensorSpecStruct
from t2r_seq.viewing import sheets
from t2r_seq.viewing.episodes import EpisodeReader
from t2r_seq.viewing.model_side import ExportSide, ModelSide
from t2r_seq.viewing.page import MAX_BYTES, PageReport, SourcePage, write_page
from t2r_seq.viewing.survey import Survey, survey_episodes
from t2r_seq.windows.cut import DEFAULT_PADDING


@dataclasses.dataclass(frozen=True)
class View:
  """What was made.

  Attributes:
    page: the page that was written.
    surveys: of each source; `ranked` has its episodes, the most suspected first.
  """

  page: PageReport
  surveys: tuple[Survey, ...]


def view(
  sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
  output: str | os.PathLike[str],
  *,
  spec: specs.SpecStructure | None = None,
  model: Any = None,
  predictor: Any = None,
  kind: str | None = None,
  options: convert.ConversionOptions | None = None,
  episodes: Episodes | None = None,
  max_bytes: int = MAX_BYTES,
  png: str | os.PathLike[str] | None = None,
  rrd: str | os.PathLike[str] | None = None,
  progress: Progress | None = None,
) -> View:
  """Makes a page that shows episodes: one file, without a server or a network.

  It has frames, curves and language at each step; with specs or a model the windows
  that training makes there, after preprocessing in mode 'train'; with an export what it
  would have done; and the episodes in the order of suspicion, to be ticked for a
  keep-list.

  Args:
    sources: one source of whatever `convert.open_episodes` reads, or two that are shown
      side by side.
    output: the page, an HTML file in a folder that is there.
    spec: of records, flat or with time offsets; with offsets the page has windows.
    model: as it is trained: windows are those of its specs and padding, preprocessed.
    predictor: has an export of a model; asked at each step what it would do.
    kind: of the sources, where what is there doesn't tell.
    options: how they are read, and which split.
    episodes: numbers of those to look at, or a file that lists them; None for all.
    max_bytes: of the page, which holds as much as fits.
    png: a contact sheet, too, of the most suspected episodes; asks for Pillow.
    rrd: a recording for Rerun, too, of all episodes; asks for rerun-sdk.
    progress: counts the episodes that are read, and those that are drawn.
  Returns:
    What was made, and what is suspected why.
  Raises:
    SpecError: a source cannot be read, has no episodes, or lacks what the specs want.
    ImportError: what a sheet or a recording asks for is not installed.
    OSError: a file cannot be written, or would take the place of one of another kind.
  """
  names = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
  paths = [os.fspath(name) for name in names]
  if not 1 <= len(paths) <= 2:
    raise errors.SpecError(
      f"view: expected one source, or two, got {len(paths)}. Put a pattern of files in "
      "quotes."
    )
  _check_folder(output)
  for file, kind_of_file, start in (
    (output, "a page", rb"<!doctype html>.*<title>t2r_seq view<"),
    (png, "a PNG image", rb"\x89PNG"),
    (rrd, "a recording", b"RRF"),
  ):
    if file is not None:
      files.check_output("view", file, kind_of_file, start)
  sheets.check_extras(png is not None, rrd is not None)
  features, labels = _specs_of(spec, model, predictor)
  flat = None
  if features is not None:
    flat = windows.flat_specs(TensorSpecStruct({**features, **labels}))
  pages = []
  for path, name in zip(paths, _names(paths), strict=True):
    reader = EpisodeReader(path, kind, flat, options, episodes)
    side = None
    if features is not None and windows.is_windowed({**features, **labels}):
      padding = DEFAULT_PADDING if model is None else model.padding
      preprocessor = None if model is None else model.step_preprocessor
      if model is None and predictor is not None:
        record = predictor.get_policy_record()
        padding = padding if record is None else record.padding
      side = ModelSide(reader, features, labels, padding, preprocessor)
    export = None if predictor is None else ExportSide(reader, predictor)
    survey = survey_episodes(reader, export, progress)
    pages.append(SourcePage(name, survey, side, export))
  report = write_page(pages, output, max_bytes, progress)
  if png is not None:
    sheets.write_contact_sheet(pages, png, progress)
  if rrd is not None:
    sheets.write_recording(pages, rrd, progress)
  return View(report, tuple(page.survey for page in pages))


def _check_folder(output: str | os.PathLike[str]) -> None:
  """Checks, before the data is read, that the page will have a folder."""
  folder = os.path.dirname(os.path.abspath(os.fspath(output)))
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f"view: {os.fspath(output)}: expected a file in a folder that is there, got no "
      f"folder {folder}. Make it first."
    )


def _specs_of(
  spec: specs.SpecStructure | None, model: Any, predictor: Any
) -> tuple[TensorSpecStruct | None, TensorSpecStruct]:
  """Returns features and labels of what is looked at; None where nobody says."""
  nothing = TensorSpecStruct()
  if spec is not None:
    return specs.flatten_spec_structure(spec), nothing
  if model is not None:
    in_spec = model.step_preprocessor.get_in_feature_specification(ModeKeys.TRAIN)
    labels = model.step_preprocessor.get_in_label_specification(ModeKeys.TRAIN)
    return specs.flatten_spec_structure(in_spec), specs.flatten_spec_structure(labels)
  if predictor is not None:
    one_task = policies.OneTask.of(predictor)
    if one_task is not None:
      return one_task.feature_spec, one_task.label_spec
    labels = predictor.get_label_specification() or nothing
    return predictor.get_feature_specification(), specs.flatten_spec_structure(labels)
  return None, nothing


def _names(paths: Sequence[str]) -> list[str]:
  """Returns short names that differ."""
  parts = [os.path.abspath(path).rstrip("/").split("/") for path in paths]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(each[-count:]) for each in parts]
    if len(set(names)) == len(names):
      return names
  return list(paths)
