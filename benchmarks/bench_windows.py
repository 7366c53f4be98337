"""Stacks from flat episodes: windows/s, memory and disk of five ways.

Run it as `python -m benchmarks.bench_windows [--rounds N] [--quick]`.
"""

from __future__ import annotations

import functools
import itertools
import math
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import episodes, measure, pipelines
from benchmarks.episodes import Work
from t2r_seq import windows
from t2r_seq.data.pool import num_bytes_alive
from t2r_seq.data.streams import streamed_windows

Pipeline = Callable[[Work, int | None], tf.data.Dataset]
_STACKED = "stacked records"


def ours(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Shuffles (episode, anchor) pairs and gathers stacks after the shuffle."""
  cut = windows.windows(
    pipelines.decoded_episodes(work, epochs).map(lambda frames: {"image": frames}),
    episodes.window_specs(work),
    shuffle_buffer_size=work.shuffle_buffer_size,
    seed=1,
    padding="drop",
  )
  return pipelines.batches(cut, work)


def pools(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Gathers batches from pools of about as many windows as others shuffle among."""
  frame_bytes = math.prod(work.frame_shape)
  budget = num_bytes_alive(
    (work.shuffle_buffer_size + work.num_steps) * 3 // 2 * frame_bytes,
    work.num_steps * frame_bytes,
    work.batch_size * work.num_frames * frame_bytes,
  )
  batches = streamed_windows(
    lambda _: pipelines.decoded_episodes(work, 1).map(lambda frames: {"image": frames}),
    episodes.window_specs(work),
    work.batch_size,
    memory_budget=budget,
    seed=1,
    num_epochs=epochs,
    drop_remainder=True,
    padding="drop",
  )
  return batches.prefetch(tf.data.AUTOTUNE)


PIPELINES: dict[str, Pipeline] = {
  "t2r_seq: pools of episodes": pools,
  "t2r_seq: gather after the shuffle": ours,
  "`Dataset.window`": pipelines.dataset_window,
  "gather all, flatten, shuffle": pipelines.gather_all,
  _STACKED: pipelines.stacked_records,
}


def copy_only(work: Work) -> measure.Run:
  """Makes the run in which one thread copies every window once, from memory."""
  held = np.stack(list(itertools.islice(episodes.make_episodes(work), 8)))
  rng = np.random.default_rng(3)
  batch = np.empty((work.batch_size, work.num_frames, *work.frame_shape), np.uint8)

  def copy_windows() -> int:
    for _ in range(work.num_batches):
      chosen = rng.integers(len(held), size=work.batch_size)
      starts = rng.integers(work.windows_per_episode, size=work.batch_size)
      for i, (episode, start) in enumerate(zip(chosen, starts, strict=True)):
        batch[i] = held[episode, start : start + work.num_frames]
    return work.num_batches * work.batch_size

  return lambda: copy_windows


CANDIDATES = [
  measure.Candidate(
    name,
    "ours" if pipeline in (pools, ours) else "peer",
    functools.partial(pipelines.deliver, pipeline),
  )
  for name, pipeline in PIPELINES.items()
] + [
  measure.Candidate("episodes read, not cut", "limit", pipelines.deliver_episodes),
  measure.Candidate("one thread copies the windows", "limit", copy_only),
]


def make_work(folder: str, quick: bool = False) -> Work:
  """Returns 200-step episodes of 96x96x3 raw frames, or tiny ones."""
  if quick:
    return Work(
      folder, "raw", 3, 11, 8, batch_size=4, shuffle_buffer_size=10, num_batches=2
    )
  return Work(folder, "raw", num_episodes=20, num_steps=200, image_size=96)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its table."""
  args = measure.parse_args(__doc__, argv)
  with tempfile.TemporaryDirectory() as folder:
    work = make_work(folder, args.quick)
    episodes.write(work)
    figures = measure.compare(CANDIDATES, work, args.rounds, isolate=not args.quick)
    disk = episodes.disk_column(work, CANDIDATES, _STACKED)
    table = measure.table(CANDIDATES, figures, "windows/s", disk)
  print(table, flush=True)
  return table


if __name__ == "__main__":
  main()
