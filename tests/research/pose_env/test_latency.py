"""The study of a slow network runs on next to no data."""

from __future__ import annotations

import pytest

pytest.importorskip("pybullet")
pytest.importorskip("gymnasium")

from research.pose_env import latency


def test_latency_study_has_a_row_for_each_mode(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  # A wide limit of errors: every episode of an untrained policy succeeds.
  monkeypatch.setattr(latency, "_MAX_ERROR", 10.0)
  arguments = ["--episodes", "24", "--steps", "1", "--fresh", "1", "--out", "out"]
  assert latency.main(arguments) == 0
  rows = (tmp_path / "out" / "table.md").read_text(encoding="utf-8").splitlines()[2:]
  assert [row.split("|")[1].strip() for row in rows] == [
    "`synchronous`",
    "`asynchronous`",
  ]
  assert all(row.count("100 % (") == len(latency.PERIODS) for row in rows)
