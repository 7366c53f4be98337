"""Which folders are finished exports, and what is logged about damaged ones."""

from __future__ import annotations

import os

import pytest

from t2r_seq import errors, policies, tensorspec_utils
from t2r_seq.specs import assets


def _make_folder(root, name, model=True, assets=True):
  folder = root / name
  (folder / tensorspec_utils.EXTRA_ASSETS_DIRECTORY).mkdir(parents=True)
  if model:
    (folder / "saved_model.pb").write_bytes(b"")
  if assets:
    (
      folder
      / tensorspec_utils.EXTRA_ASSETS_DIRECTORY
      / tensorspec_utils.T2R_ASSETS_FILENAME
    ).write_text("")
  return folder


def test_versions_are_ordered_as_numbers(tmp_path):
  for name in ("10", "9", "100"):
    _make_folder(tmp_path, name)
  found = policies.list_exports(str(tmp_path))
  assert [export.version for export in found] == [9, 10, 100]
  assert [export.path for export in found] == [
    str(tmp_path / name) for name in ("9", "10", "100")
  ]


def test_missing_files_of_an_export_are_named(tmp_path):
  _make_folder(tmp_path, "1")
  _make_folder(tmp_path, "2", assets=False)
  _make_folder(tmp_path, "3", model=False)
  _make_folder(tmp_path, "temp-4", assets=False)
  _make_folder(tmp_path, "12.tmp")
  finished, unfinished = assets.scan_exports(str(tmp_path))
  assert [export.version for export in finished] == [1]
  assert unfinished == {
    str(tmp_path / "2"): ["assets.extra/t2r_assets.pbtxt"],
    str(tmp_path / "3"): ["saved_model.pb"],
  }
  # So it is in a folder that is named itself, whatever its name.
  for name in ("2", "temp-4"):
    folder = str(tmp_path / name)
    want = {folder: ["assets.extra/t2r_assets.pbtxt"]}
    assert assets.scan_exports(folder) == ([], want)


@pytest.mark.parametrize(("name", "want"), [("42", 42), ("my_policy", 0)])
def test_folder_may_be_one_export(tmp_path, name, want):
  folder = _make_folder(tmp_path, name)
  # A trailing slash must not hide the version.
  assert policies.list_exports(f"{folder}/") == [assets.Export(want, str(folder))]


def test_paths_without_exports_and_with_special_characters(tmp_path):
  assert policies.list_exports(str(tmp_path / "nowhere")) == []
  _make_folder(tmp_path / "run[1]*", "3")
  assert [e.version for e in policies.list_exports(str(tmp_path / "run[1]*"))] == [3]


DAMAGES = {
  "garbage": (lambda good: b"no model", r"it cannot be parsed, .* \(8 bytes\)"),
  "empty": (lambda good: b"", r"it holds no graph \(0 bytes\)"),
  "cut": (lambda good: good[: len(good) // 2], r"it cannot be parsed, .* bytes\)"),
}


def damage(path, change):
  file = os.path.join(path, "saved_model.pb")
  with open(file, "rb") as f:
    good = f.read()
  with open(file, "wb") as f:
    f.write(change(good))


def messages(caplog, word):
  return [r.getMessage() for r in caplog.records if word in r.getMessage()]


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_graph_is_named(tmp_path, write_export, case):
  change, want = DAMAGES[case]
  damage(write_export(tmp_path, 1), change)
  (export,) = policies.list_exports(str(tmp_path))
  want = f"load export: .*1: saved_model.pb is damaged: {want}. Copy or export it again"
  with pytest.raises(errors.SpecError, match=want):
    policies.loaded_export.LoadedExport(export)


def test_damaged_graph_is_logged_once_and_on_one_line(tmp_path, write_export, caplog):
  damage(write_export(tmp_path, 1), lambda good: b"no model")
  predictor = policies.ExportedSavedModelPredictor(tmp_path, 0.01, poll_interval=0.001)
  for _ in range(3):
    assert not predictor.restore()
  (message,) = messages(caplog, "saved_model.pb")
  assert "1 cannot be loaded: load export:" in message
  assert "saved_model.pb is damaged: it cannot be parsed" in message
  assert "\n" not in message
  # Newer exports are loaded, and stay in use when a broken one follows.
  write_export(tmp_path, 2)
  assert predictor.restore()
  damage(write_export(tmp_path, 3), lambda good: b"no model")
  late = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  for each in (predictor, late):
    assert not each.restore()
    each.assert_is_loaded()
    assert each.model_version == 2


def test_lost_weights_are_no_damage_of_the_graph(tmp_path, write_export, caplog):
  path = write_export(tmp_path, 1)
  os.remove(os.path.join(path, "variables", "variables.index"))
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  assert not predictor.restore()
  (message,) = messages(caplog, "cannot be loaded")
  assert "variables" in message
  assert "damaged" not in message


@pytest.mark.parametrize("older", [False, True], ids=["alone", "beside an older one"])
def test_missing_file_is_logged_once(tmp_path, write_export, caplog, older):
  if older:
    write_export(tmp_path, 1)
  write_export(tmp_path, 2, assets=False)
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  for _ in range(2):
    assert predictor.restore() is older
  assert messages(caplog, "t2r_assets.pbtxt") == [
    f"The folder {tmp_path}/2 is not an export: assets.extra/t2r_assets.pbtxt is "
    "missing."
  ]
