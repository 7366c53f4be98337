"""Windows/s and memory against the shuffle's horizon: pools, and the two idioms.

Run it as `python -m benchmarks.bench_horizon [--rounds N] [--quick] [--plot PNG]`.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import bench_streaming, measure, streamed_works
from benchmarks.bench_streaming import GATHER, OURS, WINDOW
from benchmarks.measure import Figures

_NAMES = (OURS, GATHER, WINDOW)
_CANDIDATES = [c for c in bench_streaming.RAW if c.name in _NAMES]
_HORIZONS = (500, 1000, 2000, 4000, 8000)

Found = dict[int, dict[str, Figures]]


def measure_horizons(folder: str, rounds: int, quick: bool) -> Found:
  """Measures W1 shuffled among ever more windows.

  Args:
    folder: for the records.
    rounds: how often each candidate runs.
    quick: tiny sizes, all in this process.
  Returns:
    Figures by horizon, in windows, and by name.
  """
  work = bench_streaming.raw_work(folder, quick)
  if not quick:
    # Others fill their buffers before each round: that is most of the time it takes.
    work = dataclasses.replace(work, num_batches=600)
  streamed_works.write(work)
  found = {}
  for horizon in (4, 8) if quick else _HORIZONS:
    one = dataclasses.replace(work, shuffle_buffer_size=horizon)
    found[horizon] = measure.compare(_CANDIDATES, one, rounds, isolate=not quick)
  return found


def table(found: Mapping[int, Mapping[str, Figures]]) -> str:
  """Formats medians and peaks as a Markdown table, a row for each horizon."""
  lines = [
    f"| horizon, windows | {' | '.join(f'{n}: windows/s | MiB' for n in _NAMES)} |",
    f"| ---: |{' ---: | ---: |' * len(_NAMES)}",
  ]
  for horizon, figures in found.items():
    cells = []
    for name in _NAMES:
      peak = figures[name].peak_mib
      cells.append(f"{statistics.median(figures[name].rates):,.0f}")
      cells.append("-" if peak is None else f"{peak:,.0f}")
    lines.append(f"| {horizon:,} | {' | '.join(cells)} |")
  return "\n".join(lines)


def plot(path: str, found: Mapping[int, Mapping[str, Figures]]) -> None:
  """Draws rates and memory as a PNG.

  Args:
    path: of the picture.
    found: figures by horizon and name.
  """
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
  for name in _NAMES:
    of_it = [figures[name] for figures in found.values()]
    _draw_rates(left, list(found), of_it, name)
    peaks = [one.peak_mib or 0.0 for one in of_it]
    right.plot(list(found), peaks, marker="o", label=name)
  left.set(title="windows of 4 steps of 27 KB", ylabel="windows/s")
  right.set(title="peak memory of the process", ylabel="MiB")
  right.legend(frameon=False)
  for axes in (left, right):
    axes.set(
      xlabel="windows to shuffle among",
      xscale="log",
      xticks=list(found),
      xticklabels=[f"{horizon:,}" for horizon in found],
      ylim=(0, None),
    )
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  figure.savefig(path, dpi=110)
  pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table, and draws the plot."""
  options = {"--plot": {"default": None, "help": "PNG to draw the figures to"}}
  args = measure.parse_args(__doc__, argv, options)
  with tempfile.TemporaryDirectory() as folder:
    found = measure_horizons(folder, args.rounds, args.quick)
  text = table(found)
  print(text, flush=True)
  if args.plot:
    plot(args.plot, found)
  return text


def _draw_rates(
  axes: Any, horizons: list[int], figures: list[Figures], name: str
) -> None:
  """Draws medians, with the range of the rounds."""
  medians = [statistics.median(one.rates) for one in figures]
  (line,) = axes.plot(horizons, medians, marker="o", label=name)
  axes.fill_between(
    horizons,
    [min(one.rates) for one in figures],
    [max(one.rates) for one in figures],
    color=line.get_color(),
    alpha=0.15,
  )


if __name__ == "__main__":
  main()
