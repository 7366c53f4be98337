"""The benchmark of the in-process replay runs; cpprb's rows only where it is there."""

from __future__ import annotations

from benchmarks import bench_replay


def test_runs():
  works = ["transitions", "prioritized", "insert", "insert-batches"]
  text = bench_replay.main(["--quick", "--works", *works])
  for name in works:
    benchmark = bench_replay.BENCHMARKS[name]
    assert benchmark.title in text
    ours = [c.name for c in benchmark.candidates if c.role == "ours"]
    assert all(f"| {candidate} | ours |" in text for candidate in ours)
