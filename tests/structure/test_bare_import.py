"""Importing the library needs no optional package, and alone not even TensorFlow.

The imports run in processes of their own, in which optional packages cannot be
imported at all, whether they are installed or not.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

import t2r_seq

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPTIONAL = (
  "PIL",
  "ai_edge_litert",
  "gymnasium",
  "matplotlib",
  "msgpack",
  "numcodecs",
  "pybullet",
  "pybullet_data",
  "reverb",
  "tensorflow_datasets",
  "torch",
  "websockets",
  "zarr",
)
# Keras cannot do without it; that t2r_seq does is seen from who asks.
ONLY_BY_KERAS = ("h5py",)

SCRIPT = """
import builtins, importlib, json, sys

names, absent, watched = json.loads(sys.argv[1])
for name in absent:
  sys.modules[name] = None
asked = set()
original = builtins.__import__

def spy(name, globals=None, locals=None, fromlist=(), level=0):
  importer = str((globals or {}).get("__name__", ""))
  if importer.split(".")[0] == "t2r_seq" and not level:
    if name.split(".")[0] in watched:
      asked.add(f"{importer} imports {name}")
  return original(name, globals, locals, fromlist, level)

builtins.__import__ = spy
failed = []
for name in names:
  try:
    importlib.import_module(name)
  except ImportError as error:
    failed.append(f"{name}: {error!r}")
builtins.__import__ = original
loaded = sorted(name for name in sys.modules if sys.modules[name] is not None)
print("RESULT", json.dumps([sorted(asked), failed, loaded]))
"""


def import_names(names, root=ROOT, absent=OPTIONAL):
  """Imports `names` in a new process.

  Returns:
    What t2r_seq asked for of the optional packages, what failed, what is loaded.
  """
  watched = [*OPTIONAL, *ONLY_BY_KERAS]
  run = subprocess.run(
    [sys.executable, "-c", SCRIPT, json.dumps([names, absent, watched])],
    cwd=root,
    env={**os.environ, "PYTHONPATH": str(root), "TF_CPP_MIN_LOG_LEVEL": "3"},
    capture_output=True,
    text=True,
    check=False,
    stdin=subprocess.DEVNULL,
    timeout=300,
  )
  results = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
  assert run.returncode == 0 and results, run.stderr
  return json.loads(results[-1].removeprefix("RESULT "))


def packages(root=ROOT):
  """Lists all that a user may import by name: packages, faces, the command line."""
  top = root / "t2r_seq"
  folders = [path.parent for path in top.rglob("__init__.py")]
  modules = [path.with_suffix("") for path in top.glob("[a-z]*.py")]
  commands = [path.with_suffix("") for path in top.glob("cli/[a-z]*.py")]
  paths = [*folders, *modules, *commands]
  return sorted(".".join(path.relative_to(root).parts) for path in paths)


def test_every_package_imports_without_optional_packages():
  names = packages()
  asked, failed, _ = import_names(names)
  assert "t2r_seq.errors" in names
  assert asked == []
  assert failed == []


def test_top_alone_loads_no_tensorflow():
  _, failed, loaded = import_names(["t2r_seq"], absent=())
  heavy = {"tensorflow", "keras", "numpy", *OPTIONAL, *ONLY_BY_KERAS}
  assert failed == []
  assert "t2r_seq" in loaded
  assert heavy.isdisjoint(loaded)


CASES = {
  "nothing": ("import json", [], 0),
  "needed": ("import gymnasium", ["t2r_seq.a imports gymnasium"], 1),
  "guarded": (
    "try:\n  import PIL.Image\nexcept ImportError:\n  pass",
    ["t2r_seq.a imports PIL.Image"],
    0,
  ),
  "from": ("from h5py import File", ["t2r_seq.a imports h5py"], 0),
  "inside a function": ("def f():\n  import reverb\n  return reverb", [], 0),
}


@pytest.mark.parametrize("name", CASES)
def test_import_names(name, tmp_path):
  text, want_asked, want_failed = CASES[name]
  (tmp_path / "t2r_seq").mkdir()
  (tmp_path / "t2r_seq" / "__init__.py").write_text("")
  (tmp_path / "t2r_seq" / "a.py").write_text(text)
  (tmp_path / "h5py.py").write_text("File = None")
  asked, failed, _ = import_names(packages(tmp_path), root=tmp_path)
  assert asked == want_asked
  assert len(failed) == want_failed


def test_every_subpackage_is_an_attribute():
  found = {path.parent.name for path in (ROOT / "t2r_seq").glob("*/__init__.py")}
  # The command line and the formats export no names.
  assert found - {"cli", "formats"} <= {*t2r_seq.__all__}
  for name in t2r_seq.__all__:
    assert getattr(t2r_seq, name).__name__ == f"t2r_seq.{name}"
