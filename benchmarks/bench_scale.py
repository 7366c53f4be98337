"""What grows with cores, record files and epochs; a step of `verify`; imports.

Run it as `python -m benchmarks.bench_scale [--works ...] [--quick]`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import (
  bench_policy,
  bench_store,
  bench_streaming,
  measure,
  process_memory,
  streamed_works,
)
from benchmarks.store import delivery, ours, works
from t2r_seq import data, policies, records, specs, store, verification

_IMPORTS = ("numpy", "tensorflow", "t2r_seq", "t2r_seq.specs", "t2r_seq.cli.main")
_STEPS = {
  "state": specs.ExtendedTensorSpec((64,), tf.float32, "state", is_sequence=True)
}
_NUM_EPOCHS = 20


def _on_cores(
  num_cores: int | None, pipeline: Callable[[Any], Any], work: Any
) -> measure.Run:
  """Makes a run whose threads all have the same cores; None leaves them alone."""
  if num_cores is not None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
  return delivery.deliver(pipeline, work)


def cores_text(folder: str, quick: bool) -> str:
  """Reads windows on one core and on two."""
  lines = ["| CPU of a window, us | one core | two | two / one, windows/s |"]
  lines.append("| --- | ---: | ---: | ---: |")
  for name, work, write, pipeline in (
    (
      "W1, a store",
      bench_store.windows_work(folder, quick),
      *(works.write, ours.global_order),
    ),
    (
      "W1, streamed",
      bench_streaming.raw_work(folder, quick),
      *(streamed_works.write, streamed_works.ours),
    ),
  ):
    write(work)
    candidates = [
      measure.Candidate(f"{num}", "ours", functools.partial(_on_cores, cores, pipeline))
      for num in (1, 2)
      for cores in [None if quick else num]
    ]
    found = measure.compare(candidates, work, 1 if quick else 5, isolate=not quick)
    one, two = (float(np.median(found[f"{num}"].rates)) for num in (1, 2))
    cpu = [f"{np.median(found[f'{num}'].cpu_us):.1f}" for num in (1, 2)]
    lines.append(f"| {name} | {' | '.join(cpu)} | {two / one:.2f} |")
  return "\n".join(lines)


def files_text(folder: str, quick: bool) -> str:
  """Indexes episodes in few and in many files, and reads windows by the index."""
  num_episodes = 100 if quick else 10**4
  lines = [
    "| files | indexing, s | first batch, s | MiB | us a window |",
    "| ---: | ---: | ---: | ---: | ---: |",
  ]
  for num_files in (num_episodes // 100, num_episodes):
    place = os.path.join(folder, f"files_{num_files}")
    os.mkdir(place)
    name = os.path.join(place, "0.tfrecord")
    episodes = [{"state": np.zeros((20, 64), np.float32)}] * (num_episodes // num_files)
    records.write_records(name, _STEPS, episodes)
    for number in range(1, num_files):
      shutil.copyfile(name, os.path.join(place, f"{number}.tfrecord"))
    seen = _in_process(quick, _read_indexed, place)
    cells = [f"{seen[0]:.2f}", f"{seen[1]:.2f}", f"{seen[2]:,.0f}", f"{seen[3]:.1f}"]
    lines.append(f"| {num_files:,} | {' | '.join(cells)} |")
  return "\n".join(lines)


def _read_indexed(place: str) -> tuple[float, ...]:
  """Returns seconds of CPU to index and to the first batch, MiB, us a window."""
  pattern, num_batches = os.path.join(place, "*.tfrecord"), 200
  start = time.process_time()
  records.write_index(pattern)
  indexed, before = time.process_time(), _private_mib()
  generator = data.DefaultRecordInputGenerator(pattern, 64, index="require", seed=0)
  batches = _batches(generator)
  next(batches)
  first = time.process_time()
  for _ in range(num_batches):
    next(batches)
  each = 1e6 * (time.process_time() - first) / (64 * num_batches)
  return indexed - start, first - indexed, _private_mib() - before, each


def epochs_text(folder: str, quick: bool) -> str:
  """Reads epochs; private memory after the first ones and after the last ones."""
  rng, num_episodes = np.random.default_rng(0), 20 if quick else 1000
  episodes = [
    {"state": rng.standard_normal((50, 64), np.float32)} for _ in range(num_episodes)
  ]
  paths = os.path.join(folder, "epochs.tfrecord"), os.path.join(folder, "epochs")
  records.write_records(paths[0], _STEPS, episodes)
  with store.EpisodeStore.create(paths[1], _STEPS) as writer:
    for episode in episodes:
      writer.append_episode(episode)
  lines = [
    f"| private MiB after epoch | 2 | {_NUM_EPOCHS} |",
    "| --- | ---: | ---: |",
  ]
  for name, order in (
    *(("streamed", None), ("a store, 'global'", "global")),
    ("a store, 'quasi_random'", "quasi_random"),
  ):
    seen = _in_process(quick, _memory_of_epochs, *paths, order, num_episodes * 50 // 64)
    lines.append(f"| {name} | {seen[0]:,.0f} | {seen[1]:,.0f} |")
  return "\n".join(lines)


def _memory_of_epochs(
  record_path: str, store_path: str, order: str | None, batches_per_epoch: int
) -> tuple[float, float]:
  before = _private_mib()
  options: dict[str, Any] = {"batch_size": 64, "seed": 0, "memory_budget": 2**24}
  generator: Any = data.DefaultRecordInputGenerator(record_path, **options)
  if order is not None:
    generator = data.StoreInputGenerator(store_path, order=order, **options)
  batches = _batches(generator)
  seen = []
  for _ in range(_NUM_EPOCHS):
    for _ in range(batches_per_epoch):
      next(batches)
    seen.append(_private_mib() - before)
  return seen[1], seen[-1]


def verify_text(folder: str, quick: bool) -> str:
  """Verifies an export, and steps it alone."""
  work = bench_policy.make_work(folder, quick)
  bench_policy.export(work)
  frames = bench_policy.make_frames(work)
  path = os.path.join(folder, "verified")
  shape = frames[0].shape
  spec = {"image": specs.ExtendedTensorSpec(shape, tf.uint8, is_sequence=True)}
  with store.EpisodeStore.create(path, spec) as writer:
    for _ in range(3):
      writer.append_episode({"image": np.stack(frames)})
  predictor = policies.ExportedSavedModelPredictor(work.export_dir, timeout=0)
  predictor.restore()
  first, count = time.process_time(), 3 * len(frames)
  for t in range(count):
    predictor.step({"image": frames[t % len(frames)][None]}, t % len(frames) == 0)
  stepped = time.process_time()
  report = verification.verify(predictor, path, bench_policy.SmallModel(work))
  verified = time.process_time()
  if report.differences:
    raise RuntimeError(f"bench_scale: expected no differences, got {report}.")
  step, whole = (1e3 * each / count for each in (stepped - first, verified - stepped))
  return (
    "| CPU ms a step | `step` alone | `verify` |\n| --- | ---: | ---: |\n"
    f"| a stack of {work.num_frames} frames | {step:.2f} | {whole:.2f} |"
  )


def imports_text(folder: str, quick: bool) -> str:
  """Imports modules, each in a new process."""
  lines = ["| import | CPU s |", "| --- | ---: |"]
  code = "import time, {}; print(time.process_time())"
  for name in _IMPORTS[: 1 if quick else None]:
    seconds = []
    for _ in range(1 if quick else 5):
      command = [sys.executable, "-c", code.format(name)]
      done = subprocess.run(command, capture_output=True, text=True, check=True)
      seconds.append(float(done.stdout))
    lines.append(f"| `{name}` | {np.median(seconds):.2f} |")
  return "\n".join(lines)


WORKS = {
  "cores": cores_text,
  "files": files_text,
  "epochs": epochs_text,
  "verify": verify_text,
  "imports": imports_text,
}


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  options = {"--works": {"nargs": "+", "choices": [*WORKS], "default": [*WORKS]}}
  args = measure.parse_args(__doc__, argv, options)
  texts = []
  for name in args.works:
    with tempfile.TemporaryDirectory() as folder:
      texts.append(f"### {WORKS[name].__doc__}\n\n{WORKS[name](folder, args.quick)}\n")
    print(texts[-1], flush=True)
  return "\n".join(texts)


def _batches(generator: Any) -> Iterator[Any]:
  offsets = (-3, -2, -1, 0)
  stack = specs.ExtendedTensorSpec((4, 64), tf.float32, "state", time_offsets=offsets)
  generator.set_feature_specifications({"state": stack})
  generator.set_label_specifications({})
  return iter(generator.create_dataset("train"))


def _private_mib() -> float:
  process_memory.give_back_freed()
  return process_memory.memory_mib("RssAnon") or 0.0


def _in_process(quick: bool, function: Callable[..., Any], *args: Any) -> Any:
  """Calls a function in a new process; here if `quick`."""
  if quick:
    return function(*args)
  spawn = multiprocessing.get_context("spawn")
  with futures.ProcessPoolExecutor(1, spawn) as executor:
    return executor.submit(function, *args).result()


if __name__ == "__main__":
  main()
