"""Runs candidates in turns, each in a process of its own, and prints what they did.

The machine may be busy with other things. So candidates are run interleaved, a figure
is a median over rounds, and what is compared are ratios within one round.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import process_memory, process_time

Round = Callable[[], int]
"""Does the work and returns how many units (windows, steps) that was; is timed."""

Run = Callable[[], Round]
"""Gets a round ready; is not timed."""

_LOOK_SECONDS = 0.02


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One way to do the work.

  Attributes:
    name: in the table.
    role: 'ours', 'peer' or 'limit'.
    setup: makes the `Run` from the work; a function of a module, so that a new process
      can import it.
    needs: modules that must be installed.
    server: gives, of the work, the pid of a process that works for the candidate.
  """

  name: str
  role: str
  setup: Callable[[Any], Run]
  needs: tuple[str, ...] = ()
  server: Callable[[Any], int] | None = None

  @property
  def is_installed(self) -> bool:
    """Whether what it needs is there."""
    return all(importlib.util.find_spec(name) is not None for name in self.needs)


@dataclasses.dataclass(frozen=True)
class Figures:
  """What one candidate reached.

  Attributes:
    rates: units per second, one a round.
    cpu_us: processor time per unit, all threads together, microseconds, one a round.
    peak_mib: peak memory of its process above that after its imports; None if it had
      no process of its own.
    private_mib: the same without pages of files and of shared memory; seen fifty times
      a second. None where the system does not tell.
  """

  rates: list[float]
  cpu_us: list[float]
  peak_mib: float | None = None
  private_mib: float | None = None
  server_cpu_us: list[float] = dataclasses.field(default_factory=list)


def compare(
  candidates: Sequence[Candidate], work: Any, rounds: int, isolate: bool = True
) -> dict[str, Figures]:
  """Runs every candidate once a round, after one round that does not count.

  Args:
    candidates: ways to do the work; names differ.
    work: what `setup` takes; picklable.
    rounds: at least 1.
    isolate: one process a candidate, which is what tells its peak memory; otherwise
      all run in this process, without the first round.
  Returns:
    Figures by name, in the order of the candidates.
  """
  with contextlib.ExitStack() as stack:
    open_worker = _isolated if isolate else _in_process
    workers = [stack.enter_context(open_worker(c, work)) for c in candidates]
    if isolate:
      for worker in workers:
        worker.run()
    measured: list[list[tuple[float, float, float]]] = [[] for _ in candidates]
    for number in range(rounds):
      # Pairs of rounds start with another one, and the second goes backwards: nobody
      # always follows the same neighbour.
      turns = [(number // 2 + i) % len(workers) for i in range(len(workers))]
      for turn in turns[:: -1 if number % 2 else 1]:
        measured[turn].append(workers[turn].run())
    return {
      candidate.name: Figures(
        [rate for rate, _, _ in rounds_of_it],
        [cpu_us for _, cpu_us, _ in rounds_of_it],
        worker.peak_mib(),
        worker.private_mib(),
        [server_us for _, _, server_us in rounds_of_it],
      )
      for candidate, rounds_of_it, worker in zip(
        candidates, measured, workers, strict=True
      )
    }


def table(
  candidates: Sequence[Candidate],
  figures: Mapping[str, Figures],
  unit: str,
  extra: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
  """Formats figures as a Markdown table.

  Args:
    candidates: the rows; the first that is 'ours' is what the others are compared to.
    figures: by name.
    unit: of the rates, such as 'windows/s'.
    extra: further columns: header to cell by name.
  Returns:
    The table. A ratio is the median over the rounds of `rate / our rate in that round`.
  """
  ours = figures[next(c.name for c in candidates if c.role == "ours")]
  columns = [f"{unit}, median", "min to max", "ratio to ours", "CPU, us each"]
  columns.append("peak memory, MiB")
  lines = [["candidate", "", *columns, *(extra or {})]]
  for candidate in candidates:
    found = figures[candidate.name]
    ratios = [a / b for a, b in zip(found.rates, ours.rates, strict=True)]
    peak = "-" if found.peak_mib is None else f"{found.peak_mib:,.0f}"
    cells = [
      f"{statistics.median(found.rates):,.0f}",
      f"{min(found.rates):,.0f} to {max(found.rates):,.0f}",
      f"{statistics.median(ratios):.2f}",
      f"{statistics.median(found.cpu_us):,.1f}",
      peak,
    ]
    cells += [cell.get(candidate.name, "") for cell in (extra or {}).values()]
    lines.append([candidate.name, candidate.role, *cells])
  rule = ["---", "---", *["---:"] * (len(lines[0]) - 2)]
  return "\n".join(f"| {' | '.join(row)} |" for row in [lines[0], rule, *lines[1:]])


def private_column(figures: Mapping[str, Figures]) -> dict[str, dict[str, str]]:
  """Returns a table's column with the private memory of each candidate.

  Args:
    figures: by name.
  Returns:
    Header to cell by name.
  """
  cells = {
    name: "-" if found.private_mib is None else f"{found.private_mib:,.0f}"
    for name, found in figures.items()
  }
  return {"of it private, MiB": cells}


def parse_args(
  description: str | None,
  argv: Sequence[str] | None,
  options: Mapping[str, Mapping[str, Any]] | None = None,
) -> argparse.Namespace:
  """Parses what all benchmarks take.

  Args:
    description: of the benchmark.
    argv: arguments; None for those of the process.
    options: further ones: name to the keywords of `add_argument`.
  Returns:
    `rounds`, `quick`, and the options.
  """
  parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
  parser.add_argument("--rounds", type=int, help="times that each candidate runs")
  parser.add_argument(
    "--quick", action="store_true", help="tiny sizes: shows that it runs, no figures"
  )
  for name, keywords in (options or {}).items():
    parser.add_argument(name, **keywords)
  args = parser.parse_args(argv)
  if args.rounds is None:
    args.rounds = 1 if args.quick else 7
  if args.rounds < 1:
    parser.error(f"--rounds: expected at least 1, got {args.rounds}")
  return args


class _InProcess:
  """Runs a candidate here."""

  def __init__(self, candidate: Candidate, work: Any) -> None:
    self._run = candidate.setup(work)
    self._server = candidate.server(work) if candidate.server else None

  def run(self) -> tuple[float, float, float]:
    """Returns units per second, and microseconds per unit: its own, its server's."""
    do_round = self._run()
    starts = self._seconds()
    count = do_round()
    wall, cpu, server = (b - a for a, b in zip(starts, self._seconds(), strict=True))
    return count / wall, 1e6 * cpu / count, 1e6 * server / count

  def _seconds(self) -> tuple[float, float, float]:
    server = 0.0 if self._server is None else process_time.cpu_seconds(self._server)
    return time.perf_counter(), time.process_time(), server

  def peak_mib(self) -> None:
    return None

  def private_mib(self) -> None:
    return None


class _Isolated:
  """Runs a candidate in the process at the other end of a pipe."""

  def __init__(self, name: str, connection: Connection, pid: int) -> None:
    self._name = name
    self._connection = connection
    self._pid = pid
    self._private_mib: float | None = None

  def _ask(self, question: str) -> Any:
    try:
      self._connection.send(question)
      while not self._connection.poll(_LOOK_SECONDS):
        self._look_at_memory()
      self._look_at_memory()
      return self._connection.recv()
    except (EOFError, OSError):
      raise RuntimeError(
        f"compare: {self._name}: its process has died; see its output above."
      ) from None

  def run(self) -> tuple[float, float, float]:
    return self._ask("run")

  def peak_mib(self) -> float:
    return self._ask("peak_mib")

  def private_mib(self) -> float | None:
    imported = self._ask("imported_private_mib")
    if imported is None or self._private_mib is None:
      return None
    return self._private_mib - imported

  def _look_at_memory(self) -> None:
    # From here, because a thread over there would take time from the candidate.
    now = process_memory.memory_mib("RssAnon", self._pid)
    if now is not None:
      self._private_mib = max(now, self._private_mib or 0.0)


@contextlib.contextmanager
def _in_process(candidate: Candidate, work: Any) -> Iterator[_InProcess]:
  yield _InProcess(candidate, work)


@contextlib.contextmanager
def _isolated(candidate: Candidate, work: Any) -> Iterator[_Isolated]:
  # Not a fork: TensorFlow's threads would not survive it.
  context = multiprocessing.get_context("spawn")
  here, there = context.Pipe()
  process = context.Process(target=_serve, args=(there, candidate, work), daemon=True)
  process.start()
  there.close()
  try:
    yield _Isolated(candidate.name, here, process.pid or 0)
  finally:
    here.close()
    process.join()


def _serve(connection: Connection, candidate: Candidate, work: Any) -> None:
  """Answers questions until the pipe closes."""
  imported, imported_private = (
    process_memory.peak_mib(),
    process_memory.memory_mib("RssAnon"),
  )
  worker = _InProcess(candidate, work)
  answers: dict[str, Callable[[], Any]] = {
    "run": worker.run,
    "peak_mib": lambda: process_memory.peak_mib() - imported,
    "imported_private_mib": lambda: imported_private,
  }
  with contextlib.suppress(EOFError):
    while True:
      connection.send(answers[connection.recv()]())
