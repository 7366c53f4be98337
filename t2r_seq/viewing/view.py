"""`view`: from sources to a page, a contact sheet or a recording."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from t2r_seq import errors, files, specs, windows
from t2r_seq.episodes import Episodes
from t2r_seq.episodes.registry import as_episodes
from t2r_seq.policies.loaded_export import OneTask
from t2r_seq.progress import Progress
from t2r_seq.specs import ModeKeys, TensorSpecStruct
from t2r_seq.viewing import sheets
from t2r_seq.viewing.episodes import EpisodeViewer
from t2r_seq.viewing.model_side import ExportSide, ModelSide
from t2r_seq.viewing.page import MAX_BYTES, PageReport, SourcePage, write_page
from t2r_seq.viewing.survey import Survey, survey_episodes
from t2r_seq.windows.cut import DEFAULT_PADDING

Source = str | os.PathLike[str] | Episodes


@dataclasses.dataclass(frozen=True)
class View:
  """Results of `view`.

  Attributes:
    page: describes the page that was written.
    surveys: survey of each source; `ranked` has its episodes, the largest score first.
  """

  page: PageReport
  surveys: tuple[Survey, ...]


def view(
  sources: Source | Sequence[Source],
  output: str | os.PathLike[str],
  *,
  spec: specs.SpecStructure | None = None,
  model: Any = None,
  predictor: Any = None,
  max_bytes: int = MAX_BYTES,
  png: str | os.PathLike[str] | None = None,
  rrd: str | os.PathLike[str] | None = None,
  progress: Progress | None = None,
) -> View:
  """Makes a page that shows episodes: one file, without a server or a network.

  It has frames, curves and language at each step, and the episodes in the order of
  their outlier scores, to be ticked for a keep-list. With specs that have time offsets
  it has training's windows; with a model these are preprocessed in mode 'train'. With
  an export it has the export's actions.

  Args:
    sources: a path, or episodes from `open_episodes`; or two of these, which are
      shown side by side.
    output: the page, an HTML file in an existing folder.
    spec: spec of records, flat or with time offsets; replaces the model's or export's.
    model: the trained model, whose specs, padding and preprocessor make the windows.
    predictor: predictor of an export, whose actions are shown; or two of these, one for
      each source, or side by side for one source.
    max_bytes: maximum bytes of the page, by default 20_000_000; it shows what fits.
    png: path of a contact sheet of the worst outliers; None writes none. Needs Pillow.
    rrd: path of a recording of all episodes for Rerun; None writes none. Needs
      rerun-sdk.
    progress: counts the episodes.
  Returns:
    What was written, and the outlier scores.
  Raises:
    SpecError: a source cannot be read, has no episodes, or lacks a path of the specs;
      there are not one or two sources or predictors; the list of episodes takes more
      than `max_bytes`; or `png` is set for sources without a camera.
    policies.predictors.NoModelError: a predictor has no model.
    ImportError: a package for a sheet or a recording is missing.
    OSError: a file cannot be written, or would replace one of another kind.
  """
  is_one = isinstance(sources, (str, os.PathLike, Episodes))
  datasets: list[Any] = [sources] if is_one else list(sources)  # type: ignore[arg-type]
  exports = list(predictor) if isinstance(predictor, (list, tuple)) else [predictor]
  for values, what in ((datasets, "source"), (exports, "export")):
    if not 1 <= len(values) <= 2:
      raise errors.SpecError(
        f"view: expected one {what}, or two, got {len(values)}. Put a pattern of files "
        "in quotes."
      )
  num_sides = max(len(datasets), len(exports))
  datasets, exports = (each * (num_sides // len(each)) for each in (datasets, exports))
  for file, kind_of_file, start in (
    (output, "a page", rb"<!doctype html>.*<title>t2r_seq view<"),
    (png, "a PNG image", rb"\x89PNG"),
    (rrd, "a recording", b"RRF"),
  ):
    if file is not None:
      _check_folder(file)
      files.check_output("view", file, kind_of_file, start)
  sheets.check_extras(png is not None, rrd is not None)
  pages = []
  sides = []
  for source, export in zip(datasets, exports, strict=True):
    features, labels = _specs_of(spec, model, export)
    flat = None
    if features is not None:
      flat = windows.flat_specs(TensorSpecStruct({**features, **labels}))
    sides.append((as_episodes(source, spec=flat), export, features, labels))
  names = _names([episodes.path for episodes, *_ in sides])
  if len(set(map(id, exports))) > 1:
    names = [
      f"{name}, {export.model_path}"
      for name, export in zip(names, exports, strict=True)
    ]
  for (episodes, predictor, features, labels), name in zip(sides, names, strict=True):
    viewer = EpisodeViewer(episodes)
    side = None
    if features is not None and windows.is_windowed({**features, **labels}):
      padding = DEFAULT_PADDING if model is None else model.padding
      preprocessor = None if model is None else model.step_preprocessor
      if model is None and predictor is not None:
        record = predictor.get_policy_record()
        padding = padding if record is None else record.padding
      side = ModelSide(viewer, features, labels, padding, preprocessor)
    export_side = None if predictor is None else ExportSide(viewer, predictor)
    survey = survey_episodes(viewer, export_side, progress)
    pages.append(SourcePage(name, survey, side, export_side))
  report = write_page(pages, output, max_bytes, progress)
  if png is not None:
    sheets.write_contact_sheet(pages, png, progress)
  if rrd is not None:
    sheets.write_recording(pages, rrd, progress)
  return View(report, tuple(page.survey for page in pages))


def _check_folder(output: str | os.PathLike[str]) -> None:
  """Raises FileNotFoundError if the folder of a file is missing."""
  folder = os.path.dirname(os.path.abspath(os.fspath(output)))
  if not os.path.isdir(folder):
    raise FileNotFoundError(
      f"view: {os.fspath(output)}: expected a file in an existing folder, got no "
      f"folder {folder}. Make it first."
    )


def _specs_of(
  spec: specs.SpecStructure | None, model: Any, predictor: Any
) -> tuple[TensorSpecStruct | None, TensorSpecStruct]:
  """Returns (feature specs, label specs); feature specs are None if unknown."""
  empty = TensorSpecStruct()
  if spec is not None:
    return specs.flatten_spec_structure(spec), empty
  if model is not None:
    in_spec = model.step_preprocessor.get_in_feature_specification(ModeKeys.TRAIN)
    labels = model.step_preprocessor.get_in_label_specification(ModeKeys.TRAIN)
    return specs.flatten_spec_structure(in_spec), specs.flatten_spec_structure(labels)
  if predictor is not None:
    # Exports of meta-learning models: use the specs of one step, not of a task batch.
    one_task = OneTask.of(predictor)
    if one_task is not None:
      return one_task.feature_spec, one_task.label_spec
    labels = predictor.get_label_specification() or empty
    return predictor.get_feature_specification(), specs.flatten_spec_structure(labels)
  return None, empty


def _names(paths: Sequence[str]) -> list[str]:
  """Returns the ends of the paths, just long enough to tell them apart."""
  parts = [os.path.abspath(path).rstrip("/").split("/") for path in paths]
  for count in range(1, max(map(len, parts)) + 1):
    names = ["/".join(each[-count:]) for each in parts]
    if len(set(names)) == len(set(paths)):
      return names
  return list(paths)
