"""Records as examples against pipelines by hand; first batches; a shuffle's memory.

Run it as `python -m benchmarks.bench_parsing [--rounds N] [--quick]`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from benchmarks import measure, parsing_works
from benchmarks.measure import Candidate, Round, Run
from benchmarks.parsing_works import ParsingWork
from benchmarks.store.floors import Floor, floors_table
from t2r_seq import data, records, specs

OURS, BY_HAND, SKIPPING = "t2r_seq", "by hand", "t2r_seq, on_bad_record='skip'"
WANTED = {"raw": 0.97, "jpeg": 0.97, "state": 0.9}
TITLES = {
  "raw": "Stacks of four 96x96 frames in one Example, raw, batches of 16",
  "jpeg": "Stacks of four 128x128 JPEGs in one Example, batches of 16",
  "state": "States of 17 and actions of 6 floats, batches of 256",
}
Spec = specs.ExtendedTensorSpec
STEP = {
  "observation": Spec((17,), tf.float32, "observation", is_sequence=True),
  "action": Spec((6,), tf.float32, "action", is_sequence=True),
}
BUDGET, BATCH_SIZE = 2**30, 4096


def _ours(work: ParsingWork) -> Run:
  dataset = parsing_works.make_generator(work).create_dataset("train")
  return parsing_works.deliver(dataset, work.num_batches)


def _skipping(work: ParsingWork) -> Run:
  generator = parsing_works.make_generator(work, on_bad_record="skip")
  return parsing_works.deliver(generator.create_dataset("train"), work.num_batches)


def _by_hand(work: ParsingWork) -> Run:
  return parsing_works.deliver(parsing_works.by_hand(work), work.num_batches)


CANDIDATES = [
  Candidate(OURS, "ours", _ours),
  Candidate(SKIPPING, "ours", _skipping),
  Candidate(BY_HAND, "peer", _by_hand),
]


def make_works(folder: str, quick: bool = False) -> list[ParsingWork]:
  """Returns the works of a table each."""
  if quick:
    return [ParsingWork(folder, kind, 2, 20, 4, 3, 10) for kind in TITLES]
  return [
    ParsingWork(folder, "raw", 8, 500, 16, 500),
    ParsingWork(folder, "jpeg", 8, 200, 16, 60),
    ParsingWork(folder, "state", 8, 20_000, 256, 2000, 10_000),
  ]


def compare_with_by_hand(work: ParsingWork, rounds: int, isolate: bool) -> str:
  """Returns the tables of one work."""
  parsing_works.write(work)
  figures = measure.compare(CANDIDATES, work, rounds, isolate)
  floors = [
    Floor(OURS, (BY_HAND,), WANTED[work.kind], f"{work.kind}: as fast as by hand")
  ]
  table = measure.table(CANDIDATES, figures, "records/s")
  return f"### {TITLES[work.kind]}\n\n{table}\n\n{floors_table(floors, figures)}"


def first_batch(work: ParsingWork) -> Run:
  """Makes the run that creates a dataset over many files and draws one batch."""

  def draw() -> int:
    dataset = parsing_works.make_generator(work).create_dataset("train")
    return len(tf.nest.flatten(next(iter(dataset)))[0])

  return lambda: draw


@dataclasses.dataclass(frozen=True)
class ShuffleWork:
  """Episodes of states, an anchor each step.

  Attributes:
    folder: of the file.
    num_episodes: of 1,000 steps each.
    memory_budget: bytes.
  """

  folder: str
  num_episodes: int
  memory_budget: int

  @property
  def path(self) -> str:
    """Of the file."""
    return os.path.join(self.folder, "episodes.tfrecord")

  @property
  def num_windows(self) -> int:
    """One each step."""
    return 1000 * self.num_episodes


def write_episodes(work: ShuffleWork) -> None:
  """Writes one episode as often as there are to be."""
  rng = np.random.default_rng(0)
  episode = {
    path: rng.normal(size=(1000, *spec.shape)).astype(np.float32)
    for path, spec in STEP.items()
  }
  serialized = records.encode_example(STEP, episode)
  with tf.io.TFRecordWriter(work.path) as writer:
    for _ in range(work.num_episodes):
      writer.write(serialized)
  records.write_index(work.path)


def shuffle_an_epoch(work: ShuffleWork, index: str | None) -> Run:
  """Makes the run that shuffles the windows of all episodes, once."""
  window = {
    path: Spec(spec.shape, spec.dtype, spec.name, time_offsets=0)
    for path, spec in STEP.items()
  }
  generator = data.DefaultRecordInputGenerator(
    work.path, BATCH_SIZE, seed=1, index=index, memory_budget=work.memory_budget
  )
  generator.set_feature_specifications(window, window)
  generator.set_label_specifications({}, {})
  num_batches = work.num_windows // BATCH_SIZE
  dataset = generator.create_dataset("train").take(num_batches)

  def run() -> Round:
    return lambda: sum(BATCH_SIZE for _ in dataset)

  return run


SHUFFLES = [
  Candidate(
    "t2r_seq: streamed", "ours", functools.partial(shuffle_an_epoch, index=None)
  ),
  Candidate(
    "t2r_seq: by an index", "ours", functools.partial(shuffle_an_epoch, index="require")
  ),
]


def _compare(folder: str, rounds: int, quick: bool, kind: str) -> str:
  (work,) = [work for work in make_works(folder, quick) if work.kind == kind]
  return compare_with_by_hand(work, rounds, isolate=not quick)


def _first_batch(folder: str, rounds: int, quick: bool) -> str:
  work = ParsingWork(folder, "state", 10 if quick else 1000, 50, 16, 1)
  parsing_works.write(work)
  seconds = []
  for _ in range(rounds):
    start = time.perf_counter()
    first_batch(work)()()
    seconds.append(time.perf_counter() - start)
  return (
    f"### Time to the first batch of {work.num_files} files\n\n"
    f"{np.median(seconds):.2f} s, median of {rounds}; 2 s are wanted."
  )


def _shuffle(folder: str, rounds: int, quick: bool) -> str:
  del rounds  # An epoch is long.
  work = (
    ShuffleWork(folder, 20, 2**23) if quick else ShuffleWork(folder, 10_000, BUDGET)
  )
  write_episodes(work)
  figures = measure.compare(SHUFFLES, work, 1, isolate=not quick)
  table = measure.table(SHUFFLES, figures, "windows/s", measure.private_column(figures))
  budget = work.memory_budget / 2**20
  title = (
    f"### A shuffle of {work.num_windows:,} anchors, a budget of {budget:,.0f} MiB"
  )
  return f"{title}\n\n{table}"


PARTS: dict[str, Callable[[str, int, bool], str]] = {
  **{kind: functools.partial(_compare, kind=kind) for kind in TITLES},
  "first": _first_batch,
  "shuffle": _shuffle,
}


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmark; prints and returns its tables."""
  args = measure.parse_args(__doc__, argv, {"--only": {"choices": list(PARTS)}})
  parts = []
  for name, make in PARTS.items():
    if args.only in (None, name):
      with tempfile.TemporaryDirectory() as folder:
        parts.append(make(folder, args.rounds, args.quick))
      print(f"{parts[-1]}\n", flush=True)
  return "\n\n".join(parts)


if __name__ == "__main__":
  main()
