"""Finished exports on disk: `<export_dir>/<version>/`, a SavedModel with its specs."""

from __future__ import annotations

import dataclasses
import os

import tensorflow as tf

from t2r_seq import specs

_SAVED_MODEL = "saved_model.pb"


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
  # Not normpath: it would spoil the two slashes of a URL.
  export_dir = export_dir.rstrip("/") or "/"
  if is_finished(export_dir):
    name = os.path.basename(export_dir)
    return [Export(int(name) if name.isdecimal() else 0, export_dir)]
  if not tf.io.gfile.isdir(export_dir):
    return []
  names = [name.rstrip("/") for name in tf.io.gfile.listdir(export_dir)]
  paths = {name: os.path.join(export_dir, name) for name in names}
  return sorted(
    Export(int(name), path)
    for name, path in paths.items()
    if name.isdecimal() and is_finished(path)
  )


def assets_path(export_path: str) -> str:
  """Returns where an export keeps its specs."""
  return os.path.join(
    export_path, specs.EXTRA_ASSETS_DIRECTORY, specs.T2R_ASSETS_FILENAME
  )


def is_finished(path: str) -> bool:
  """Whether a folder holds a model and its specs."""
  return tf.io.gfile.exists(os.path.join(path, _SAVED_MODEL)) and tf.io.gfile.exists(
    assets_path(path)
  )
