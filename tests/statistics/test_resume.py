"""Runs that are killed go on where they were; the file they leave is the same."""

from __future__ import annotations

import importlib
import pathlib
import signal

import numpy as np
import pytest

from t2r_seq import errors
from t2r_seq.statistics import compute_statistics, sources
from t2r_seq.statistics.compute import Tally
from tests import warm_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(name="killed_run")
def fixture_killed_run(monkeypatch):
  """The module, as the process that is killed imports it."""
  monkeypatch.syspath_prepend(FOLDER)
  module = importlib.import_module("killed_run")
  for source in (sources, sources):
    monkeypatch.setattr(source, "PART_BYTES", module.PART_BYTES)
  return module


@pytest.mark.parametrize("kind", ["packed", "store"])
def test_a_killed_run_goes_on(data, kind, tmp_path, killed_run):
  whole, killed = tmp_path / "whole.json", tmp_path / "killed.json"
  source = getattr(data, kind)
  assert killed_run.run(source, whole) == len(data.episodes)
  command = f"import killed_run; killed_run.run({source!r}, {str(killed)!r}, 20)"
  process = warm_python.run("-c", command, cwd=FOLDER)
  assert process.returncode == -signal.SIGKILL, process.stderr
  assert (tmp_path / ".killed.json.partial").exists() and not killed.exists()
  # Parts that were done are not read again.
  assert 10 <= killed_run.run(source, killed) < 20
  assert killed.read_bytes() == whole.read_bytes()
  assert not list(tmp_path.glob(".*"))


@pytest.fixture(name="interrupt")
def fixture_interrupt(monkeypatch):
  """Returns a function that lets runs stop, as by Ctrl-C, at their n-th part."""
  merge = Tally.merge
  monkeypatch.setattr(sources, "PART_BYTES", 4000)

  def arm(count):
    seen = []

    def merge_or_stop(self, other):
      seen.append(None)
      if len(seen) == count:
        raise KeyboardInterrupt
      merge(self, other)

    monkeypatch.setattr(Tally, "merge", merge_or_stop)

  yield arm


def run(data, output, **arguments):
  """Computes with one worker, all parts saved when interrupted."""
  return compute_statistics(
    data.records, output, spec=data.spec, num_workers=1, **arguments
  )


def test_an_interrupted_run_saves_its_parts(data, tmp_path, interrupt):
  want = run(data, tmp_path / "whole.json").to_json()
  interrupt(5)
  with pytest.raises(KeyboardInterrupt):
    run(data, tmp_path / "out.json")
  assert (tmp_path / ".out.json.partial").exists()
  interrupt(0)
  assert run(data, tmp_path / "out.json").to_json() == want
  assert (tmp_path / "out.json").read_text() == want


def test_another_run_starts_anew(data, tmp_path, interrupt):
  want = run(data, None, images=True).to_json()
  interrupt(5)
  with pytest.raises(KeyboardInterrupt):
    run(data, tmp_path / "out.json")
  interrupt(0)
  got = run(data, tmp_path / "out.json", images=True)
  assert got.to_json() == want


def test_a_damaged_checkpoint_is_named(data, tmp_path):
  (tmp_path / ".out.json.partial").write_bytes(b"PK no zip")
  with pytest.raises(errors.SpecError, match=r"\.out\.json\.partial: expected a check"):
    run(data, tmp_path / "out.json")


def test_a_checkpoint_is_small(data, tmp_path, interrupt):
  interrupt(9)
  with pytest.raises(KeyboardInterrupt):
    run(data, tmp_path / "out.json")
  size = (tmp_path / ".out.json.partial").stat().st_size
  num_values = sum(
    np.size(value) for episode in data.episodes for value in episode.values()
  )
  assert size < 8 * num_values
