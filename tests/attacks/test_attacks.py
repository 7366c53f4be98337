"""A short form of the attacks but trainers and exits; `make attack` runs all."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys

import pytest

from t2r_seq import files
from t2r_seq.store import files as store_files
from t2r_seq.store import writer
from tests.attacks import __main__ as attacks
from tests.attacks import stores, watching

# With an old TensorFlow fewer, and others.
_IS_OLD = importlib.metadata.version("tensorflow").startswith("2.15.")
_SEED = 1 if _IS_OLD else 0
# name: (cases, what has to be among the outcomes). Trainers are killed in
# tests/training, and a run of them takes a minute.
CASES = {
  "kills": (20, {"killed"}),
  "power": (4, {"power cuts"}),
  "disks": (20, {"full"}),
  "damage": (40, {"found", "whole"}),
  "conversions": (4, {"killed"}),
  "threads": (2, {"windows"}),
  "devices": (30, {"refused", "written"}),
}
if importlib.util.find_spec("mcap_ros2"):
  CASES["clocks"] = (40, {"refused", "converted"})
if importlib.util.find_spec("websockets") and importlib.util.find_spec("msgpack"):
  CASES["connections"] = (4, {"servers"})
if importlib.util.find_spec("ai_edge_litert"):
  CASES |= {"nan": (20, {"refused"}), "bits": (40, {"found"})}
_RECORDS, _FILES = 80, 30


def test_attacked_data_is_read_correctly_or_refused(capfd):
  """In one process, as each imports TensorFlow."""
  cases = {name: count for name, (count, _) in CASES.items()}
  cases |= {"records": _RECORDS, "files": _FILES}
  num_wrong = attacks.run([*cases], _SEED, cases=[*cases.values()])
  out = capfd.readouterr().out
  assert num_wrong == 0, out
  reports = json.loads(out.splitlines()[-1])
  for name, (count, want) in CASES.items():
    assert reports[name]["cases"] >= count
    assert want <= reports[name]["outcomes"].keys(), reports[name]
  assert reports["files"]["outcomes"]["damaged"] > _FILES // 2
  found, least = reports["records"]["outcomes"], _RECORDS // 20
  for name in ("example", "episode"):
    # Mutations that matter, and some that do not.
    assert found[f"{name} equal"] > least and found[f"{name} refused"] > least
    # The place is named all the same, with TensorFlow's reason.
    assert found[f"{name} not explained"] < 0.05 * found[f"{name} refused"]


# What is left out of the store: what then has to be found.
@pytest.mark.parametrize("name", ["sync of a column", "sync of a folder"])
def test_power_cut_finds_what_was_not_synced(name, tmp_path, monkeypatch):
  if name == "sync of a column":
    monkeypatch.setattr(store_files.AppendFile, "sync", store_files.AppendFile._spill)
  else:
    monkeypatch.setattr(files, "sync_folder", lambda path: None)
    monkeypatch.setattr(writer, "sync_folder", lambda path: None)
  printed = []
  attack = stores.PowerAttack(0, str(tmp_path), lambda *words: printed.append(words))
  attack.run(0, 3)
  assert "wrong" in dict(printed)


# name: (what the process does, the report)
PROCESSES = {
  "a crash": (
    "import os, signal; print('at a case', flush=True); "
    "os.kill(os.getpid(), signal.SIGSEGV)",
    "stopped with status -11 at: a case",
  ),
  "a hang": (
    "import signal; print('at a case', flush=True); signal.pause()",
    "silent for 3 s\nstopped with status -9 at: a case",
  ),
  "an exception": ("print('at a case', flush=True); 1 / 0", "ZeroDivisionError"),
  "wrong data": ("print('wrong: x'); print('wrong x'); print('done')", "wrong: x"),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_watch_reports_failures_of_a_process(name, capfd):
  code, want = PROCESSES[name]
  assert watching.watch([sys.executable, "-c", code], patience=3) == 1
  assert want in capfd.readouterr().out
