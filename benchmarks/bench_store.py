"""The episode store against its peers and the machine's limits, on four works.

Run it as `python -m benchmarks.bench_store [--works W1 W2 W3 W4] [--rounds N]`; `make
bench-setup` makes an environment with the peers. Those that are not installed are left
out, and named.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import multiprocessing
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import measure
from benchmarks.store import candidates, floors, transition_work, works
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work


@dataclasses.dataclass(frozen=True)
class Benchmark:
  """One work and all that is compared on it.

  Attributes:
    title: above its tables.
    unit: of its rates.
    work: makes the work in a folder.
    write: writes the work's files.
    candidates: all, installed or not.
    floors: what ours must reach.
  """

  title: str
  unit: str
  work: Callable[[str, bool], Any]
  write: Callable[[Any], None]
  candidates: list[measure.Candidate]
  floors: list[floors.Floor]


def windows_work(folder: str, quick: bool = False) -> Work:
  """W1: 200 episodes of 250 steps of raw frames and numbers; 1.4 GB."""
  if quick:
    return _quick(Work(folder, 3, 11, 8))
  return Work(folder, 200, 250, 96)


def encoded_work(folder: str, quick: bool = False) -> Work:
  """W2: 60 episodes of 200 JPEGs of 128x128; rounds of ten epochs.

  In shorter ones the pool that is decoded after the last batch, for nothing, counts.
  """
  if quick:
    return _quick(Work(folder, 3, 11, 16, is_jpeg=True))
  return Work(folder, 60, 200, 128, is_jpeg=True, num_batches=1850)


def transitions_work(folder: str, quick: bool = False) -> TransitionWork:
  """W3: 400 episodes of 500 transitions, joined over 3 steps."""
  if quick:
    return TransitionWork(folder, 3, 8, 3, 0.99, 4, num_batches=2, batches_per_next=2)
  return TransitionWork(folder, 400, 500)


def sequences_work(folder: str, quick: bool = False) -> Work:
  """W4: W1 in sequences of 16 stacks."""
  if quick:
    return dataclasses.replace(
      _quick(Work(folder, 3, 26, 8)), sequence_length=16, batch_size=3
    )
  return Work(folder, 200, 250, 96, sequence_length=16, num_batches=100)


def write_windows(work: Work) -> None:
  """Writes all that candidates read: the store, the records, FFCV's file."""
  works.write(work)
  if importlib.util.find_spec("ffcv") is None:
    return
  # FFCV's writer forks; TensorFlow's threads here would not survive it.
  context = multiprocessing.get_context("spawn")
  process = context.Process(target=_write_beton, args=(work,))
  process.start()
  process.join()
  if process.exitcode:
    raise RuntimeError(f"bench_store: FFCV's writer: exit code {process.exitcode}.")


BENCHMARKS = {
  "W1": Benchmark(
    "W1: windows of 4 steps of all fields, global order",
    *("windows/s", windows_work, write_windows),
    *(candidates.WINDOWS, floors.WINDOWS),
  ),
  "W2": Benchmark(
    "W2: windows of 4 JPEGs, decoded",
    *("windows/s", encoded_work, write_windows),
    *(candidates.ENCODED, floors.ENCODED),
  ),
  "W3": Benchmark(
    "W3: 3-step transitions, global order",
    *("transitions/s", transitions_work, transition_work.write),
    *(candidates.TRANSITIONS, floors.TRANSITIONS),
  ),
  "W4": Benchmark(
    "W4: sequences of 16 stacks of 4",
    *("stacked frames/s", sequences_work, works.write),
    *(candidates.SEQUENCES, floors.SEQUENCES),
  ),
}


def run(
  benchmark: Benchmark,
  rounds: int,
  quick: bool,
  more: Callable[[Mapping[str, measure.Figures]], str] | None = None,
) -> str:
  """Runs one benchmark.

  Args:
    benchmark: to run.
    rounds: how often each candidate runs.
    quick: tiny sizes, all in this process.
    more: makes a further table of the figures.
  Returns:
    Its tables, as Markdown.
  """
  there = [c for c in benchmark.candidates if c.is_installed]
  missing = [c.name for c in benchmark.candidates if not c.is_installed]
  with tempfile.TemporaryDirectory() as folder:
    work = benchmark.work(folder, quick)
    benchmark.write(work)
    figures = measure.compare(there, work, rounds, isolate=not quick)
  lines = [f"### {benchmark.title}", ""]
  extra = measure.private_column(figures)
  lines += [measure.table(there, figures, benchmark.unit, extra), ""]
  if missing:
    lines += [f"Not installed: {', '.join(missing)}.", ""]
  lines += [floors.floors_table(benchmark.floors, figures), ""]
  lines += [more(figures), ""] if more else []
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  names = list(BENCHMARKS)
  options = {"--works": {"nargs": "+", "choices": names, "default": names}}
  args = measure.parse_args(__doc__, argv, options)
  texts = []
  for name in args.works:
    texts.append(run(BENCHMARKS[name], args.rounds, args.quick))
    print(texts[-1], flush=True)
  return "\n".join(texts)


def _quick(work: Work) -> Work:
  return dataclasses.replace(work, batch_size=4, shuffle_buffer_size=10, num_batches=2)


def _write_beton(work: Work) -> None:
  from benchmarks.store import ffcv_peer

  # TensorFlow has not run in this process; FFCV's dataset cannot be pickled.
  multiprocessing.set_start_method("fork", force=True)
  ffcv_peer.write(work)


if __name__ == "__main__":
  main()
