"""Tensor2Robot's listeners that export after each checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

from absl import logging

from t2r_seq import files

ExportFn = Callable[[str, int], str]
"""Exports to a folder of versions at a step; returns the new version's folder."""


class CheckpointExportListener:
  """Exports after each checkpoint, and keeps the newest versions."""

  def __init__(
    self, export_fn: ExportFn, export_dir: str, num_versions: int | None = None
  ) -> None:
    """Creates the listener, and tidies up.

    Args:
      export_fn: exports.
      export_dir: folder of the versions; made if it is missing.
      num_versions: how many are kept; None keeps all.
    """
    self._export_fn = export_fn
    self._export_dir = os.fspath(export_dir)
    self._num_versions = num_versions
    files.make_folders(self._export_dir)
    self._remove_old(self._export_dir)

  def after_save(self, session: Any, global_step: int) -> str:
    """Exports.

    Args:
      session: None; TensorFlow 2 has none.
      global_step: of the checkpoint.
    Returns:
      The new version's folder.
    """
    del session
    path = self._export_fn(self._export_dir, global_step)
    logging.info("Exported step %d to %s", global_step, path)
    self._remove_old(self._export_dir)
    return path

  def _remove_old(self, folder: str) -> None:
    if self._num_versions:
      for name in versions(folder)[: -self._num_versions]:
        shutil.rmtree(os.path.join(folder, name))


class LaggedCheckpointListener(CheckpointExportListener):
  """Keeps a second folder one version behind the first: the targets of TD3.

  Which version that is depends on the folders alone, so that a run goes on where
  another has stopped.
  """

  def __init__(
    self,
    export_fn: ExportFn,
    export_dir: str,
    lagged_export_dir: str,
    num_versions: int | None = None,
  ) -> None:
    """Creates the listener, and copies what the lagged folder lacks.

    Args:
      export_fn: exports.
      export_dir: folder of the versions.
      lagged_export_dir: folder of those that are one version behind.
      num_versions: how many are kept in each; None keeps all.
    """
    self._lagged_export_dir = os.fspath(lagged_export_dir)
    files.make_folders(self._lagged_export_dir)
    super().__init__(export_fn, export_dir, num_versions)
    newest = versions(self._export_dir)[-2:]
    if newest:
      self._copy(newest[0])

  def after_save(self, session: Any, global_step: int) -> str:
    """Exports, and copies the version before; of the first one itself."""
    before = versions(self._export_dir)[-1:]
    path = super().after_save(session, global_step)
    self._copy(before[0] if before else os.path.basename(os.path.normpath(path)))
    return path

  def _copy(self, name: str) -> None:
    source = os.path.join(self._export_dir, name)
    target = os.path.join(self._lagged_export_dir, name)
    if os.path.isdir(source) and not os.path.exists(target):
      with files.new_folder(target) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)
    self._remove_old(self._lagged_export_dir)


def versions(folder: str) -> list[str]:
  """Lists the names of a folder's versions, the oldest first; hidden ones are none."""
  names = [name for name in os.listdir(folder) if not name.startswith(".")]
  return sorted(names, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else n))
