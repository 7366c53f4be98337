"""Finished exports on disk: `<export_dir>/<version>/`, a SavedModel with its specs."""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from t2r_seq import specs

SAVED_MODEL = "saved_model.pb"
_ASSETS = f"{specs.EXTRA_ASSETS_DIRECTORY}/{specs.T2R_ASSETS_FILENAME}"
_FILES = (SAVED_MODEL, _ASSETS)


@dataclasses.dataclass(frozen=True, order=True)
class Export:
  """One finished export.

  Attributes:
    version: the number that its folder is named by; higher is newer.
    path: the folder.
  """

  version: int
  path: str


def list_exports(export_dir: str) -> list[Export]:
  """Finds the finished exports of a folder.

  Exporters write to a temporary folder and rename it, so anything whose name is not a
  number, or that lacks the model or its specs, is not an export (yet).

  Args:
    export_dir: holds one folder per version; or is itself one export.
  Returns:
    The exports, oldest first. The version of a lone export whose folder isn't named by
    a number is 0.
  """
  return scan_exports(export_dir)[0]


def scan_exports(export_dir: str) -> tuple[list[Export], dict[str, list[str]]]:
  """Finds the finished exports of a folder, and what looks like one but is not.

  Args:
    export_dir: as in `list_exports`.
  Returns:
    The exports, oldest first; and by folder the files that are missing in it, of each
    version, and of `export_dir` itself where that has some of them.
  """
  # Not normpath: it would spoil the two slashes of a URL.
  export_dir = export_dir.rstrip("/") or "/"
  own = missing_files(export_dir)
  if not own:
    name = os.path.basename(export_dir)
    return [Export(int(name) if name.isdecimal() else 0, export_dir)], {}
  unfinished = {export_dir: own} if len(own) < len(_FILES) else {}
  if not tf.io.gfile.isdir(export_dir):
    return [], unfinished
  exports = []
  for name in sorted(tf.io.gfile.listdir(export_dir)):
    path = os.path.join(export_dir, name.rstrip("/"))
    if not name.rstrip("/").isdecimal():
      continue
    if missing := missing_files(path):
      unfinished[path] = missing
    else:
      exports.append(Export(int(name.rstrip("/")), path))
  return sorted(exports), unfinished


def assets_path(export_path: str) -> str:
  """Returns where an export keeps its specs."""
  return os.path.join(export_path, _ASSETS)


def missing_files(path: str) -> list[str]:
  """Returns which of the files that hold the model and its specs a folder lacks."""
  return [file for file in _FILES if not tf.io.gfile.exists(os.path.join(path, file))]
