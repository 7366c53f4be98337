"""Listeners that export after checkpoints: what is kept, and what lags."""

from __future__ import annotations

import os

import pytest

from t2r_seq import hooks


class Exports:
  """Writes folders 1, 2 and so on that stand for exports."""

  def __init__(self, number=0):
    self.number = number

  def __call__(self, export_dir, global_step):
    self.number += 1
    return make(export_dir, self.number)


def make(export_dir, number):
  path = os.path.join(export_dir, str(number))
  os.makedirs(os.path.join(path, "variables"))
  with open(os.path.join(path, "variables", "values"), "w") as f:
    f.write(f"of {number}")
  return path


def versions(folder):
  return sorted(int(name) for name in os.listdir(folder))


@pytest.fixture(name="folders")
def fixture_folders(tmp_path):
  return str(tmp_path / "export"), str(tmp_path / "lagged")


def test_exports_after_each_checkpoint_and_keeps_the_newest(folders):
  listener = hooks.CheckpointExportListener(Exports(), folders[0], num_versions=3)
  paths = [listener.after_save(None, step) for step in range(12)]
  assert paths[-1] == os.path.join(folders[0], "12")
  assert versions(folders[0]) == [10, 11, 12]
  hooks.CheckpointExportListener(Exports(12), folders[0], num_versions=1)
  assert versions(folders[0]) == [12]  # Of a run before, too.
  listener = hooks.CheckpointExportListener(Exports(12), folders[0])
  listener.after_save(None, 1)
  assert versions(folders[0]) == [12, 13]


# Versions in the folder and in the lagged one, at the start and after each save.
LAGS = {
  "empty": ([], [], [], [[1], [1], [1, 2], [1, 2, 3]]),
  "one": ([1], [], [1], [[1], [1, 2]]),
  "in step": ([1], [1], [1], [[1], [1, 2]]),
  "behind": ([1, 2], [1], [1], [[1, 2], [1, 2, 3]]),
  "far behind": ([7, 8, 9], [], [8], [[8, 9], [8, 9, 10]]),
}


@pytest.mark.parametrize("name", LAGS)
def test_lagged_folder_is_one_version_behind(folders, name):
  export_dir, lagged_dir = folders
  exported, lagged, at_start, after_saves = LAGS[name]
  for number in exported:
    make(export_dir, number)
  for number in lagged:
    make(lagged_dir, number)
  listener = hooks.LaggedCheckpointListener(
    Exports(max(exported, default=0)), export_dir, lagged_dir, num_versions=3
  )
  assert versions(lagged_dir) == at_start
  for want in after_saves:
    listener.after_save(None, 10)
    assert versions(lagged_dir) == want[-3:]
  assert len(versions(export_dir)) <= 3
  newest = versions(lagged_dir)[-1]
  with open(os.path.join(lagged_dir, str(newest), "variables", "values")) as f:
    assert f.read() == f"of {newest}"
