"""Runs what README.md and docs/ show: the python blocks, and bash blocks on request.

Each page runs in a process and a fresh copy of the repository of its own, its blocks
one after the other; see snippet_runner.py.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import warm_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNNER = pathlib.Path(__file__).with_name("snippet_runner.py")
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
# What a page's commands may use; the rest of a checkout is environments and outputs.
COPIED = ("t2r_seq", "research", "docs", "README.md")
PAGE_SECONDS = 900
ENVIRONMENT = {"MPLBACKEND": "Agg", "TF_CPP_MIN_LOG_LEVEL": "3"}


def copy_repository(target: pathlib.Path) -> None:
  """Copies what the snippets may use to a new folder."""
  # With compiled modules, or each page compiles the package again.
  ignore = shutil.ignore_patterns(".*")
  target.mkdir()
  for name in COPIED:
    if (ROOT / name).is_dir():
      shutil.copytree(ROOT / name, target / name, ignore=ignore)
    elif (ROOT / name).is_file():
      shutil.copy2(ROOT / name, target / name)


def _path(*folders: str) -> str:
  """Returns where programs are found: there, then those of the environment."""
  programs = str(pathlib.Path(sys.executable).parent)
  return os.pathsep.join([*folders, programs, os.environ.get("PATH", "")])


def run_page(page: str, folder: pathlib.Path, scratch: pathlib.Path):
  """Runs the snippets of `folder / page` with `folder` as the current folder.

  Returns:
    The status, and what was printed.
  """
  run = subprocess.run(
    [sys.executable, str(RUNNER), page, str(scratch)],
    cwd=folder,
    env={
      **os.environ,
      **ENVIRONMENT,
      "PATH": _path(),
      "TF_ENABLE_ONEDNN_OPTS": "1",  # As a user has it, whatever the tests do.
    },
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    timeout=PAGE_SECONDS,
    check=False,
  )
  return run.returncode, run.stdout


def run_page_warm(page: str, folder: pathlib.Path, scratch: pathlib.Path):
  """Does the same in a process that has imported TensorFlow, as have its commands'."""
  with warm_python.programs(scratch / "programs") as programs:
    env = {**ENVIRONMENT, "PATH": _path(programs)}
    run = warm_python.run(
      *(RUNNER, page, scratch), cwd=folder, env=env, timeout=PAGE_SECONDS
    )
  return run.returncode, run.stdout + run.stderr


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_page(page, tmp_path):
  copy_repository(tmp_path / "repository")
  (tmp_path / "scratch").mkdir()
  # The first page in processes as a user has them.
  run = run_page if page == "README.md" else run_page_warm
  status, printed = run(page, tmp_path / "repository", tmp_path / "scratch")
  assert status == 0, printed


PYTHON = "```python\n{}\n```\n"
BASH = "```bash\n{}\n```\n"
# name: (page, text that the output must hold; None if the page must succeed)
CASES = {
  "no snippet": ("text\n", None),
  "one namespace": (PYTHON.format("x = 1") + PYTHON.format("assert x == 1"), None),
  "failure": (
    "# Title\n\n" + PYTHON.format("x = 1\nraise ValueError('no')"),
    "page.md:5: python snippet raises ValueError: no",
  ),
  "failure in a function of an earlier block": (
    PYTHON.format("def f():\n  return 1 / 0") + PYTHON.format("f()"),
    "page.md:6: python snippet raises ZeroDivisionError",
  ),
  "syntax": (
    "\n" + PYTHON.format("x = 1\ny = = 2"),
    "page.md:4: python snippet raises SyntaxError",
  ),
  "exit": (PYTHON.format("raise SystemExit(0)"), "page.md:2: python snippet raises"),
  "indented": ("1. item\n\n   ```python\n   if 1:\n     x = 1\n   ```\n", None),
  "other language": ("```text\nassert False\n```\n", None),
  "unmarked bash": (BASH.format("exit 3"), None),
  "marked bash": (
    "<!-- run -->\n" + BASH.format("true\nexit 3"),
    "page.md:3: bash snippet ends with status 3",
  ),
  "mark and a blank line": ("<!-- run -->\n\n" + BASH.format("exit 3"), "status 3"),
  "mark of another block": (
    "<!-- run -->\n" + BASH.format("true") + "\n" + BASH.format("exit 3"),
    None,
  ),
  "bash stops at an error": ("<!-- run -->\n" + BASH.format("false\ntrue"), "status 1"),
  "one folder": (
    "<!-- run -->\n"
    + BASH.format("echo word > file.txt")
    + PYTHON.format("assert open('file.txt').read() == 'word\\n'"),
    None,
  ),
  "environment's python": (
    "<!-- run -->\n" + BASH.format("python -c 'import gin'"),
    None,
  ),
  "source is found": (
    PYTHON.format("import inspect\ndef f():\n  return 1")
    + PYTHON.format("assert 'return 1' in inspect.getsource(f)"),
    None,
  ),
  "status of a command": (
    "<!-- run -->\n" + BASH.format("python -c 'import sys; sys.exit(7)'"),
    "page.md:3: bash snippet ends with status 7",
  ),
  "python itself": (
    "<!-- run -->\n" + BASH.format("echo 'raise SystemExit(5)' | python -"),
    "page.md:3: bash snippet ends with status 5",
  ),
  "never closed": ("\n```python\nx = 1\n", "line 2: the block is never closed"),
}


WARM = (
  *("one namespace", "failure", "exit", "marked bash", "environment's python"),
  *("status of a command", "python itself"),
)


@pytest.mark.parametrize(
  ("name", "run"),
  [*((name, run_page) for name in CASES), *((name, run_page_warm) for name in WARM)],
)
def test_runner(name, run, tmp_path):
  text, want = CASES[name]
  (tmp_path / "page.md").write_text(text, encoding="utf-8")
  (tmp_path / "scratch").mkdir()
  status, printed = run("page.md", tmp_path, tmp_path / "scratch")
  assert (status == 0) == (want is None), printed
  assert want is None or want in printed
