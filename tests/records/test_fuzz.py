"""Records and files that are damaged at random: an error with its place, or a skip."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import pathlib
import sys

import pytest

_FUZZ = pathlib.Path(__file__).parent / "fuzz.py"
# Seed, records and files: with an old TensorFlow fewer, and others.
_IS_OLD = importlib.metadata.version("tensorflow").startswith("2.15.")
_SEED, _RECORDS, _FILES = (1, 300, 75) if _IS_OLD else (0, 2000, 500)


@pytest.fixture(name="fuzz", scope="module")
def fixture_fuzz():
  """The module beside this file."""
  module_spec = importlib.util.spec_from_file_location("fuzz", _FUZZ)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  return module


def test_nothing_is_silently_wrong(fuzz, capfd):
  sizes = {"--seed": _SEED, "--records": _RECORDS, "--files": _FILES}
  num_wrong = fuzz.main([str(word) for pair in sizes.items() for word in pair])
  out = capfd.readouterr().out
  assert num_wrong == 0, out
  done = json.loads(out.splitlines()[-1])
  assert done["records"] >= _RECORDS and done["files"] >= _FILES
  found, least = done["outcomes of records"], _RECORDS // 20
  for name in ("example", "episode"):
    # Mutations that matter, and some that do not.
    assert found[f"{name} equal"] > least and found[f"{name} refused"] > least
    # The place is named all the same, with TensorFlow's reason.
    assert found[f"{name} not explained"] < 0.05 * found[f"{name} refused"]
  assert done["outcomes of files"]["damaged"] > _FILES // 2


# name: (what the process does, what is said of it)
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
def test_what_goes_wrong_is_said(name, fuzz, capfd):
  code, want = PROCESSES[name]
  assert fuzz.watch([sys.executable, "-c", code], patience=3) == 1
  assert want in capfd.readouterr().out
