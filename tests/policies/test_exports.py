"""Which folders count as finished exports."""

from __future__ import annotations

import pytest

from t2r_seq import policies, tensorspec_utils


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


@pytest.mark.parametrize(
  ("name", "model", "assets"),
  [
    ("temp-12", True, True),
    ("12.tmp", True, True),
    ("12", False, True),
    ("12", True, False),
  ],
)
def test_unfinished_folders_are_no_exports(tmp_path, name, model, assets):
  _make_folder(tmp_path, name, model, assets)
  assert policies.list_exports(str(tmp_path)) == []


def test_what_is_missing_is_named(tmp_path):
  _make_folder(tmp_path, "1")
  _make_folder(tmp_path, "2", assets=False)
  _make_folder(tmp_path, "3", model=False)
  _make_folder(tmp_path, "temp-4", assets=False)
  finished, unfinished = policies.loaded_export.scan_exports(str(tmp_path))
  assert [export.version for export in finished] == [1]
  assert unfinished == {
    str(tmp_path / "2"): ["assets.extra/t2r_assets.pbtxt"],
    str(tmp_path / "3"): ["saved_model.pb"],
  }
  # So it is in a folder that is named itself, whatever its name.
  for name in ("2", "temp-4"):
    folder = str(tmp_path / name)
    want = {folder: ["assets.extra/t2r_assets.pbtxt"]}
    assert policies.loaded_export.scan_exports(folder) == ([], want)


@pytest.mark.parametrize(("name", "want"), [("42", 42), ("my_policy", 0)])
def test_a_folder_may_be_one_export(tmp_path, name, want):
  folder = _make_folder(tmp_path, name)
  # A trailing slash must not hide the version.
  assert policies.list_exports(f"{folder}/") == [
    policies.loaded_export.Export(want, str(folder))
  ]


def test_no_folder_no_exports(tmp_path):
  assert policies.list_exports(str(tmp_path / "nowhere")) == []


def test_special_characters_in_the_path(tmp_path):
  _make_folder(tmp_path / "run[1]*", "3")
  assert [e.version for e in policies.list_exports(str(tmp_path / "run[1]*"))] == [3]
