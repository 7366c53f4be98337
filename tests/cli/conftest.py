"""Commands run in this process, and in one of their own."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from t2r_seq.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(name="run_main")
def fixture_run_main(monkeypatch, capsys):
  """Runs a command in this process: returns (status, stdout, stderr)."""
  monkeypatch.setattr(sys, "path", list(sys.path))
  monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")

  def run(*argv):
    status = main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err

  return run


@pytest.fixture(name="run_python", scope="session")
def fixture_run_python():
  """Runs Python with this package as a process of its own."""

  def run(*argv, cwd=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(
      [sys.executable, *map(str, argv)],
      cwd=cwd,
      env=environment,
      capture_output=True,
      text=True,
      timeout=300,
      check=False,
    )

  return run
