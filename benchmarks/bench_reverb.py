"""Windows sampled from Reverb servers: ours, and flat and stacked by hand.

Run it as `make bench-reverb`, or `python -m benchmarks.bench_reverb [--works ...]
[--rounds N]` in the environment with Reverb. Server and client share the machine, so
the server's processor time counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import measure
from benchmarks.measure import Candidate, Figures
from benchmarks.store import floors
from benchmarks.store.delivery import deliver
from benchmarks.store.floors import Floor
from benchmarks.store.works import Work

OURS_FLAT = "t2r_seq: flat"
HAND_FLAT = "by hand: flat"
HAND_STACKED = "by hand: stacked"

FLOORS = [
  Floor(OURS_FLAT, (HAND_FLAT,), 0.95, "flat, by hand on the same server"),
  Floor(OURS_FLAT, (HAND_STACKED,), 1, "stacked, by hand"),
]


@dataclasses.dataclass(frozen=True)
class FramesWork(Work):
  """Windows of frames alone, as in Reverb's frame-stacking notebook."""

  @property
  def fields(self) -> dict[str, Any]:
    """One step."""
    return {"image": super().fields["image"]}


@dataclasses.dataclass(frozen=True)
class Lazy:
  """A function of the module that needs Reverb, imported only where it runs.

  Attributes:
    name: of the function.
  """

  name: str

  def __call__(self, served: Any, **kwargs: Any) -> Any:
    """Calls it."""
    module = importlib.import_module("benchmarks.replay.reverb_ways")
    return getattr(module, self.name)(served, **kwargs)


def make_candidates(work: Work) -> list[Candidate]:
  """Returns the candidates; a sequence counts as all windows in it."""
  num_windows = work.sequence_length or 1

  def candidate(name: str, role: str, store: str, pipeline: Callable[..., Any]) -> Any:
    setup = functools.partial(deliver, pipeline, units_per_item=num_windows)
    pid_of = functools.partial(Lazy("pid_of"), store=store)
    return Candidate(name, role, setup, ("reverb",), pid_of)

  return [
    candidate(OURS_FLAT, "ours", "flat", Lazy("ours")),
    candidate(HAND_FLAT, "peer", "flat", Lazy("flat_by_hand")),
    candidate(HAND_STACKED, "peer", "stacked", Lazy("stacked_by_hand")),
  ]


def _work(
  work_type: Callable[..., Work], sequence_length: int | None, quick: bool
) -> Work:
  length = {"sequence_length": sequence_length}
  if quick:
    return work_type("", 2, 24, 8, batch_size=4, num_batches=2, **length)
  if sequence_length is None:
    return work_type("", 8, 250, 96, num_batches=120)
  return work_type("", 8, 250, 96, batch_size=16, num_batches=60, **length)


WORKS = {
  "frames": ("Single windows of frames", FramesWork, None),
  "frames-sequences": ("Sequences of 16 windows of frames", FramesWork, 16),
  "fields": ("Single windows of all fields", Work, None),
  "fields-sequences": ("Sequences of 16 windows of all fields", Work, 16),
}


def run(name: str, rounds: int, quick: bool) -> str:
  """Runs one work.

  Args:
    name: of `WORKS`.
    rounds: how often each candidate runs.
    quick: tiny sizes, all candidates in this process.
  Returns:
    Its tables, as Markdown.
  """
  from benchmarks.replay import reverb_servers

  title, work_type, sequence_length = WORKS[name]
  work = _work(work_type, sequence_length, quick)
  candidates = make_candidates(work)
  with contextlib.ExitStack() as stack:
    servers = {
      store: stack.enter_context(reverb_servers.serve(work, store))
      for store in ("flat", "stacked")
    }
    served = reverb_servers.ServedWork(work, servers)
    figures = measure.compare(candidates, served, rounds, isolate=not quick)
  lines = [f"### Reverb: {title}", ""]
  lines += [measure.table(candidates, figures, "windows/s", server_column(figures)), ""]
  lines += [floors.floors_table(FLOORS, figures), ""]
  lines += [bytes_table(work, servers), ""]
  return "\n".join(lines)


def server_column(figures: Mapping[str, Figures]) -> dict[str, dict[str, str]]:
  """Returns a table's column with the processor time of each candidate's server."""
  cells = {
    name: f"{statistics.median(found.server_cpu_us):,.1f}"
    for name, found in figures.items()
  }
  return {"server's CPU, us each": cells}


def bytes_table(work: Work, servers: Mapping[str, Any]) -> str:
  """Formats what either way takes as a Markdown table.

  Args:
    work: that is served.
    servers: by `store`.
  Returns:
    The table: flat is to take less than half of the server's memory, and of the bytes
    of an item no more than the steps that it shows.
  """
  num_stacks = work.sequence_length or 1
  share = 1.05 * work.num_flat / (num_stacks * work.num_frames)
  flat, stacked = servers["flat"], servers["stacked"]
  lines = [
    "| | flat | stacked | wanted | got | |",
    "| --- | ---: | ---: | ---: | ---: | --- |",
  ]
  for text, mine, other, wanted in (
    ("server's memory, MiB", flat.private_mib, stacked.private_mib, 0.5),
    ("sent for an item, KiB", flat.bytes_sent / 1024, stacked.bytes_sent / 1024, share),
  ):
    got = mine / other if other else float("nan")
    verdict = "reached" if got <= wanted else "**missed**"
    cells = (f"{mine:,.1f}", f"{other:,.1f}", f"{wanted:.3f}", f"{got:.3f}", verdict)
    lines.append(f"| {' | '.join([text, *cells])} |")
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  names = list(WORKS)
  options = {"--works": {"nargs": "+", "choices": names, "default": names}}
  args = measure.parse_args(__doc__, argv, options)
  if importlib.util.find_spec("reverb") is None:
    raise SystemExit("bench_reverb: Reverb is not installed; use `make bench-reverb`.")
  texts = []
  for name in args.works:
    texts.append(run(name, args.rounds, args.quick))
    print(texts[-1], flush=True)
  return "\n".join(texts)


if __name__ == "__main__":
  main()
