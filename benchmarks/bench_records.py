"""Stacks from JPEG records, end to end: each frame decoded once, or once a window.

Run it as `python -m benchmarks.bench_records [--rounds N] [--quick]`.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence

import tensorflow as tf

from benchmarks import episodes, measure, pipelines
from benchmarks.episodes import Work
from t2r_seq import data, specs

Pipeline = Callable[[Work, int | None], tf.data.Dataset]
_STACKED = "stacked records"


def ours(work: Work, epochs: int | None = None) -> tf.data.Dataset:
  """Reads windows through the input generator, as training does."""
  generator = data.DefaultRecordInputGenerator(
    work.flat_path,
    batch_size=work.batch_size,
    shuffle_buffer_size=work.shuffle_buffer_size,
    seed=1,
  )
  window_specs = episodes.window_specs(work)
  generator.set_feature_specifications(window_specs, window_specs)
  generator.set_label_specifications({}, {})
  generator.set_padding("drop")
  dataset = generator.create_dataset(specs.ModeKeys.TRAIN)
  # It repeats for ever, one whole epoch after the other.
  return (
    dataset.take(epochs * work.num_windows // work.batch_size) if epochs else dataset
  )


PIPELINES: dict[str, Pipeline] = {
  "DefaultRecordInputGenerator": ours,
  "gather all, flatten, shuffle, decode": pipelines.gather_all_encoded,
  "decode, gather all, flatten, shuffle": pipelines.gather_all,
  _STACKED: pipelines.stacked_records,
}

CANDIDATES = [
  measure.Candidate(
    name,
    "ours" if pipeline is ours else "peer",
    functools.partial(pipelines.deliver, pipeline),
  )
  for name, pipeline in PIPELINES.items()
] + [
  measure.Candidate("frames decoded once, not cut", "limit", pipelines.deliver_episodes)
]


def make_work(folder: str, quick: bool = False) -> Work:
  """Returns 30 episodes of 100 JPEGs of 128x128, or tiny ones.

  A round is ten epochs: in fewer, pools that are filled ahead count for too much.
  """
  if quick:
    return Work(
      folder, "jpeg", 3, 11, 16, batch_size=4, shuffle_buffer_size=10, num_batches=6
    )
  return Work(folder, "jpeg", 30, 100, 128, shuffle_buffer_size=1000, num_batches=454)


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
