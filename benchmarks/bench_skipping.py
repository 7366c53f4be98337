"""What it costs to leave bad records out: both policies, several processes of each.

Run it as `python -m benchmarks.bench_skipping [--works W1 W2 ...] [--rounds N]`. Two
processes that do the same differ as much as the policies do, so a round's rate of a
policy is the median of its processes. The clock starts with the first batch; what an
iterator costs until it has one is a work of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import bench_parsing, bench_streaming, measure, parsing_works
from benchmarks import streamed_works as streamed
from benchmarks.measure import Candidate, Figures
from benchmarks.store.delivery import deliver

STREAMED = tuple(bench_streaming.BENCHMARKS)
# Of each iterator over streamed records, one batch.
FIRST = {f"{name}-first": name for name in STREAMED}
WORKS = (*STREAMED, *FIRST, *bench_parsing.TITLES)
WANTED = 0.97


def candidates(name: str, num_processes: int) -> list[list[Candidate]]:
  """Makes several candidates, named apart, that stop at bad records, then that skip."""
  if name in STREAMED or name in FIRST:
    how = {"share": 0.0, "from_start": True} if name in FIRST else {}
    pipelines = {"raise": streamed.ours, "skip": streamed.skipping}
    found = [
      Candidate(policy, "ours", functools.partial(deliver, pipeline, **how))
      for policy, pipeline in pipelines.items()
    ]
  else:
    names = bench_parsing.OURS, bench_parsing.SKIPPING
    found = [c for name in names for c in bench_parsing.CANDIDATES if c.name == name]
  return [
    [
      dataclasses.replace(candidate, name=f"{candidate.name}, process {number}")
      for number in range(num_processes)
    ]
    for candidate in found
  ]


def write(name: str, folder: str, quick: bool) -> Any:
  """Writes the records of a work, and returns it."""
  name = FIRST.get(name, name)
  if name in STREAMED:
    benchmark = bench_streaming.BENCHMARKS[name]
    work = benchmark.work(folder, quick)
    benchmark.write(work)
    return work
  works = {work.kind: work for work in bench_parsing.make_works(folder, quick)}
  parsing_works.write(works[name])
  return works[name]


def row(title: str, stopping: Sequence[Figures], skipping: Sequence[Figures]) -> str:
  """Formats a row of the table.

  Args:
    title: of the work.
    stopping: figures of the processes that stop at bad records.
    skipping: of those that leave them out.
  """
  rates = [_by_round([f.rates for f in found]) for found in (stopping, skipping)]
  cpu_us = [_by_round([f.cpu_us for f in found]) for found in (stopping, skipping)]
  ratios = [b / a for a, b in zip(*rates, strict=True)]
  ratio = statistics.median(ratios)
  alike = [statistics.median(f.rates) for f in stopping]
  cells = [
    title,
    *(f"{statistics.median(of_policy):,.0f}" for of_policy in rates),
    f"{ratio:.2f}",
    f"{min(ratios):.2f} to {max(ratios):.2f}",
    f"{statistics.median(b / a for a, b in zip(*cpu_us, strict=True)):.2f}",
    f"{min(alike) / max(alike):.2f}",
    "-" if title in FIRST else "reached" if ratio >= WANTED else "**missed**",
  ]
  return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  options = {
    "--works": {"nargs": "+", "choices": WORKS, "default": WORKS},
    "--processes": {"type": int, "default": 3, "help": "of each policy"},
  }
  args = measure.parse_args(__doc__, argv, options)
  header = ["work", "'raise', a second", "'skip', a second", "ratio", "min to max"]
  header += ["CPU", "slowest to fastest 'raise'", f"{WANTED:g} wanted"]
  lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * 6} --- |"]
  for name in args.works:
    stopping, skipping = candidates(name, args.processes)
    in_turns = [c for both in zip(stopping, skipping, strict=True) for c in both]
    with tempfile.TemporaryDirectory() as folder:
      work = write(name, folder, args.quick)
      figures = measure.compare(in_turns, work, args.rounds, isolate=not args.quick)
    lines.append(
      row(
        name, [figures[c.name] for c in stopping], [figures[c.name] for c in skipping]
      )
    )
  text = "\n".join(lines)
  print(text, flush=True)
  return text


def _by_round(of_processes: Sequence[Sequence[float]]) -> list[float]:
  """Returns the median of the processes in each round."""
  return [statistics.median(of_round) for of_round in zip(*of_processes, strict=True)]


if __name__ == "__main__":
  main()
