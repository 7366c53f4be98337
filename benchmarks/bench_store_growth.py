"""Windows/s of the store against the number of episodes and the length of a window.

Run it as `python -m benchmarks.bench_store_growth [--rounds N] [--quick] [--plot PNG]`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import measure
from benchmarks.measure import Candidate
from benchmarks.store import limits, ours, sparse, tf_peers, works
from benchmarks.store.delivery import deliver
from benchmarks.store.works import Work
from t2r_seq import data
from t2r_seq.store import EpisodeStore

_ROW_SHAPE = (16,)
_NUM_FRAMES = 4
_OURS = "t2r_seq: global order"
_GATHER = "gather all, flatten, shuffle"
_MEMCPY = "memcpy, 2 threads"


@dataclasses.dataclass(frozen=True)
class EpisodesWork:
  """Stacks of 4 rows of 16 numbers, from one column cut to more and more episodes.

  Attributes:
    folder: where the store is.
    num_episodes: it has.
    num_rows: of all episodes together, always the same.
    batch_size: windows in a batch.
    num_batches: batches in a round.
  """

  folder: str
  num_episodes: int
  num_rows: int = 8_000_000
  batch_size: int = 256
  num_batches: int = 2000

  @property
  def store_path(self) -> str:
    """The store."""
    return os.path.join(self.folder, f"episodes_{self.num_episodes}")

  def write(self) -> None:
    """Writes the store."""
    spec = sparse.numbers_spec(_ROW_SHAPE, tf.float32, _NUM_FRAMES)
    num_steps = self.num_rows // self.num_episodes
    sparse.write_sparse_store(self.store_path, spec, self.num_episodes, num_steps)


def load_rows(work: EpisodesWork) -> tf.data.Dataset:
  """Loads windows in a global order, from a column that is in the page cache."""
  store = EpisodeStore(work.store_path)
  np.asarray(store.column("x")).sum()  # Touches every page.
  spec = sparse.numbers_spec(_ROW_SHAPE, tf.float32, _NUM_FRAMES)
  return data.StoreWindowLoader(
    store, spec, work.batch_size, seed=1, num_epochs=None, padding="drop"
  ).dataset()


def measure_episodes(
  folder: str, rounds: int, quick: bool
) -> dict[int, dict[str, measure.Figures]]:
  """Measures ever more episodes of ever fewer steps."""
  candidates = [Candidate(_OURS, "ours", functools.partial(deliver, load_rows))]
  found = {}
  for power in range(2, 5 if quick else 7):
    work = EpisodesWork(folder, 10**power)
    if quick:
      work = dataclasses.replace(work, num_rows=80_000, num_batches=2)
    work.write()
    found[10**power] = measure.compare(candidates, work, rounds, isolate=not quick)
  return found


def measure_lengths(
  folder: str, rounds: int, quick: bool
) -> dict[int, dict[str, measure.Figures]]:
  """Measures stacks of 1, 2, 4, ... frames of 48x48x3."""
  work = Work(folder, 20, 500, 48, batch_size=32, shuffle_buffer_size=500)
  if quick:
    work = Work(folder, 3, 20, 8, batch_size=4, shuffle_buffer_size=10)
  works.write(work)
  found = {}
  for power in range(3 if quick else 7):
    length = 2**power
    # As many bytes for each, but not so few batches that starting them counts.
    num_batches = 2 if quick else max(100, 4000 // length)
    one = dataclasses.replace(work, num_frames=length, num_batches=num_batches)
    found[length] = measure.compare(_LENGTHS, one, rounds, isolate=not quick)
  return found


def table(found: Mapping[int, Mapping[str, measure.Figures]], title: str) -> str:
  """Formats medians as a Markdown table, a row for each size."""
  names = list(next(iter(found.values())))
  lines = [f"| {title} | {' | '.join(names)} |", f"| ---: |{' ---: |' * len(names)}"]
  for size, figures in found.items():
    cells = [f"{statistics.median(figures[name].rates):,.0f}" for name in names]
    lines.append(f"| {size:,} | {' | '.join(cells)} |")
  return "\n".join(lines)


def plot(
  path: str,
  episodes: Mapping[int, Mapping[str, measure.Figures]],
  lengths: Mapping[int, Mapping[str, measure.Figures]],
) -> None:
  """Draws both as a PNG.

  Args:
    path: of the picture.
    episodes: figures by number of episodes.
    lengths: figures by length of a window.
  """
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
  _draw(left, episodes)
  left.set(
    title="stacks of 4 rows of 64 bytes, 8 million rows",
    xlabel="episodes in the store",
    ylabel="windows/s",
    xscale="log",
    ylim=(0, None),
  )
  _draw(right, lengths)
  right.set(
    title="stacks of frames of 48x48x3",
    xlabel="frames in a window",
    ylabel="windows/s",
    xscale="log",
    yscale="log",
    xticks=list(lengths),
    xticklabels=list(map(str, lengths)),
  )
  right.minorticks_off()
  right.legend(frameon=False)
  for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
  figure.savefig(path, dpi=110)
  pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its tables, and draws the plot."""
  options = {"--plot": {"default": None, "help": "PNG to draw the growth to"}}
  args = measure.parse_args(__doc__, argv, options)
  with tempfile.TemporaryDirectory() as folder:
    episodes = measure_episodes(folder, args.rounds, args.quick)
    lengths = measure_lengths(folder, args.rounds, args.quick)
  text = (
    f"### Windows/s against episodes\n\n{table(episodes, 'episodes')}\n\n"
    f"### Windows/s against the length of a window\n\n{table(lengths, 'frames')}\n"
  )
  print(text, flush=True)
  if args.plot:
    plot(args.plot, episodes, lengths)
  return text


_LENGTHS = [
  Candidate(_OURS, "ours", functools.partial(deliver, ours.global_order)),
  Candidate(
    _GATHER, "peer", functools.partial(deliver, tf_peers.gather_and_flatten, share=0.3)
  ),
  Candidate(_MEMCPY, "limit", functools.partial(limits.copy, num_threads=2)),
]


def _draw(axes: Any, found: Mapping[int, Mapping[str, measure.Figures]]) -> None:
  """Draws a line for every candidate, with the range of the rounds."""
  for name in next(iter(found.values())):
    rates = [figures[name].rates for figures in found.values()]
    medians = list(map(statistics.median, rates))
    (line,) = axes.plot(list(found), medians, marker="o", label=name)
    axes.fill_between(
      list(found),
      [min(one) for one in rates],
      [max(one) for one in rates],
      color=line.get_color(),
      alpha=0.15,
    )


if __name__ == "__main__":
  main()
