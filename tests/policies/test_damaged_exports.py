"""Exports that cannot be loaded: what is logged of them, and how often."""

from __future__ import annotations

import os

import pytest

from t2r_seq import errors, policies

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
def test_a_damaged_graph_is_named(tmp_path, write_export, case):
  change, want = DAMAGES[case]
  damage(write_export(tmp_path, 1), change)
  (export,) = policies.list_exports(str(tmp_path))
  want = f"load export: .*1: saved_model.pb is damaged: {want}. Copy or export it again"
  with pytest.raises(errors.SpecError, match=want):
    policies.loaded_export.LoadedExport(export)


def test_a_damaged_graph_is_logged_once_and_on_one_line(tmp_path, write_export, caplog):
  damage(write_export(tmp_path, 1), lambda good: b"no model")
  predictor = policies.ExportedSavedModelPredictor(tmp_path, 0.01, poll_interval=0.001)
  for _ in range(3):
    assert not predictor.restore()
  (message,) = messages(caplog, "saved_model.pb")
  assert "1 cannot be loaded: load export:" in message
  assert "saved_model.pb is damaged: it cannot be parsed" in message
  assert "\n" not in message
  # What comes after it is loaded all the same.
  write_export(tmp_path, 2)
  assert predictor.restore()
  assert predictor.model_version == 2


def test_lost_weights_are_no_damage_of_the_graph(tmp_path, write_export, caplog):
  path = write_export(tmp_path, 1)
  os.remove(os.path.join(path, "variables", "variables.index"))
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  assert not predictor.restore()
  (message,) = messages(caplog, "cannot be loaded")
  assert "variables" in message
  assert "damaged" not in message


@pytest.mark.parametrize("older", [False, True], ids=["alone", "beside an older one"])
def test_a_missing_file_is_logged_once(tmp_path, write_export, caplog, older):
  if older:
    write_export(tmp_path, 1)
  write_export(tmp_path, 2, assets=False)
  predictor = policies.ExportedSavedModelPredictor(tmp_path, timeout=0)
  for _ in range(2):
    assert predictor.restore() is older
  assert messages(caplog, "t2r_assets.pbtxt") == [
    f"The folder {tmp_path}/2 is no export: assets.extra/t2r_assets.pbtxt is missing."
  ]
