"""The benchmark of videos runs, and all candidates decode what they say."""

from __future__ import annotations

from benchmarks import bench_video


def test_runs(capsys):
  text = bench_video.main(["--quick", "--rounds", "1"])
  assert text in capsys.readouterr().out
  for candidate in bench_video.CANDIDATES:
    assert f"| {candidate.name} | {candidate.role} |" in text
