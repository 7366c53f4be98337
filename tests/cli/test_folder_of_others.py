"""No command runs the code that lies in the current folder, unless it is told to.

Every module that Python, TensorFlow or this library may ask for lies there.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import records, specs

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Says that it ran, without any other module; a child process would say it as well.
PLANTED = "open(__file__ + '.ran', 'w').close()\nraise SystemExit('planted code ran')\n"
# TensorFlow as it is installed, for what happens before it is imported, in a moment.
INSTALLED = "raise SystemExit('the installed TensorFlow')\n"
SCRIPT = "import sys\nfrom t2r_seq.cli.main import main\nsys.exit(main())\n"
STARTS = {"installed": ("../bin/t2r_seq",), "module": ("-m", "t2r_seq")}
GIN = ("--gin_bindings", "import project")
COMMANDS = {
  "train": GIN,
  "evaluate": ("export", "--env", "project:Env-v0"),
  "collect": GIN,
  "collect-eval": GIN,
  "replay-server": GIN,
  "convert": ("none*.tfrecord", "store", "--spec", "project:specs"),
  "inspect": GIN,
  "doctor": ("none.tfrecord", "--spec", "project:specs"),
  "index": ("none.tfrecord", "--spec", "project:specs"),
  "stats": ("none.tfrecord", "--transform", "project:transform"),
  "data-service": ("dispatcher",),
  "predict": ("export", "--random"),
  "export": ("--lite", "export", "out"),
  "import": ("--lerobot", "checkpoint", "out"),
  "serve": ("export",),
  "verify": ("export", "none.tfrecord"),
  "view": ("none.tfrecord", "--spec", "project:specs"),
  "gin": ("Nothing*",),
  "info": (),
}


@pytest.fixture(name="names", scope="module")
def fixture_names(tmp_path_factory):
  """Names of modules; not of those that `-m` itself loads."""
  folder = tmp_path_factory.mktemp("before")
  (folder / "nothing.py").write_text("import sys; print(*sys.modules)")
  before = run_python("-m", "nothing", cwd=folder).stdout.split()
  installed = {name for path in sys.path[1:] for name in names_in(path)}
  return (set(sys.stdlib_module_names) | installed) - {*before, "t2r_seq"}


@pytest.fixture(name="folder")
def fixture_folder(tmp_path, names):
  """A folder of data that brings modules along."""
  folder = tmp_path / "unpacked"
  folder.mkdir()
  (tmp_path / "bin").mkdir()
  (tmp_path / "bin" / "t2r_seq").write_text(SCRIPT)
  for name in names:
    (folder / f"{name}.py").write_text(PLANTED)
  return folder


def names_in(path):
  """Lists the modules and packages in a folder of installed ones."""
  found = pathlib.Path(path).glob("[a-z_]*")
  return {p.name.split(".")[0] for p in found if "-" not in p.name}


def run_python(*argv, cwd, path=()):
  """Runs Python as it is started from a shell, with this library installed."""
  paths = ":".join(map(str, (*path, ROOT)))
  return subprocess.run(
    [sys.executable, *map(str, argv)],
    cwd=cwd,
    env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def ran(folder):
  return sorted(path.name for path in folder.glob("*.ran"))


def test_every_command_has_a_row(folder):
  shown = run_python("-m", "t2r_seq", "--help", cwd=folder).stdout
  listed = re.findall(r"^    ([a-z-]+)", shown, re.MULTILINE)
  assert sorted(listed) == sorted(COMMANDS), shown


# With `-m` the folder is looked through first; all commands start in one way.
@pytest.mark.parametrize(
  "command, start", [*((name, "module") for name in COMMANDS), ("train", "installed")]
)
def test_no_command_imports_what_lies_there(folder, tmp_path, start, command):
  double = tmp_path / "site"
  double.mkdir()
  (double / "tensorflow.py").write_text(INSTALLED)
  (folder / "project.py").write_text(PLANTED)
  done = run_python(
    *STARTS[start], command, *COMMANDS[command], cwd=folder, path=[double]
  )
  want = ("the installed TensorFlow\n", 1)
  assert (done.stderr, done.returncode) == want
  assert ran(folder) == []


def test_command_works_among_them(folder, tmp_path):
  spec = specs.TensorSpecStruct(
    x=specs.ExtendedTensorSpec((2,), tf.float32, "x", is_sequence=True)
  )
  path = tmp_path / "a.tfrecord"
  records.write_records(path, spec, [{"x": np.zeros((3, 2), np.float32)}])
  done = run_python(*STARTS["module"], "doctor", path, cwd=folder)
  assert (done.returncode, ran(folder)) == (0, []), done.stderr
  assert "No problems in" in done.stdout


def test_project_is_found_after_what_is_installed(folder):
  text = "import sys, json, tensorflow\nraise OSError(f'at {sys.path[-1]}')\n"
  (folder / "project.py").write_text(text)
  done = run_python("-m", "t2r_seq", "train", *GIN, cwd=folder)
  assert (done.returncode, ran(folder)) == (1, [])
  assert f"t2r_seq train: at {folder}" in done.stderr
