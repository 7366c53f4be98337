"""Short training runs as processes, many at once, and the status that each ends with.

    python tests/training/exits.py --runs 60 --at_once 6

A run that has finished is status 0, and so is one that SIGTERM has stopped. Each
process ends as any Python program does, with its interpreter's own end; it is forked
from one that has imported TensorFlow and run none of it, which saves most of its time.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

_KINDS = ("records", "generator", "evaluated", "stopped in a wait")


def _examples(ends_in_wait: bool = False) -> Iterator[tuple[Any, Any]]:
  """Yields examples for ever: Python, which TensorFlow's threads are in at the end."""
  import reach_model

  for seed in itertools.count():
    for episode in reach_model.episodes(seed=seed):
      images = episode["features/state/image"]
      for t in range(2, len(images)):
        velocity = episode["features/state/velocity"][t]
        task = episode["features/task"]
        stack = images[t - 2 : t + 1]
        yield (
          {"state/image": stack, "state/velocity": velocity, "task": task},
          {"target": episode["labels/target"][t]},
        )
    if ends_in_wait and seed == 2:
      os.kill(os.getpid(), signal.SIGTERM)
      threading.Event().wait()


def train(kind: str, model_dir: str, record_path: str) -> None:
  """Trains for a few steps, and says so."""
  import reach_model

  from t2r_seq import data

  options: dict[str, Any] = {"create_exporters_fn": None}
  if kind != "evaluated":
    options["input_generator_eval"] = None
  if kind in ("generator", "stopped in a wait"):
    options["input_generator_train"] = data.GeneratorInputGenerator(
      lambda: _examples(kind != "generator"), batch_size=8, shuffle_buffer_size=20
    )
  steps = 1000 if kind == "stopped in a wait" else 3
  result = reach_model.train(model_dir, record_path, steps, **options)
  print("Trained to step", result["global_step"], flush=True)


def _start(kind: str, folder: pathlib.Path, name: str) -> int:
  """Returns the number of a process that trains; 0 in that process, when it has."""
  process = os.fork()
  if not process:
    with open(folder / f"{name}.log", "wb") as log:
      for output in (1, 2):
        os.dup2(log.fileno(), output)
    train(kind, str(folder / name), str(folder / "reach.tfrecord"))
  return process


def main(argv: list[str]) -> int:
  """Runs them; in a process that has trained, it only returns 0."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--runs", type=int, default=60)
  parser.add_argument("--at_once", type=int, default=6)
  parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=_KINDS)
  args = parser.parse_args(argv)
  import reach_model

  folder = pathlib.Path(tempfile.mkdtemp())
  if not os.fork():  # Not here: a process that has run TensorFlow must not fork.
    reach_model.write_episodes(str(folder / "reach.tfrecord"))
    return 0
  os.wait()
  kinds = itertools.islice(itertools.cycle(args.kinds), args.runs)
  waiting, running = list(enumerate(kinds)), dict[int, tuple[str, str]]()
  statuses: collections.Counter[tuple[str, int]] = collections.Counter()
  while waiting or running:
    while waiting and len(running) < args.at_once:
      number, kind = waiting.pop(0)
      process = _start(kind, folder, f"run-{number}")
      if not process:
        return 0
      running[process] = (kind, f"run-{number}")
    process, ended = os.wait()
    kind, name = running.pop(process)
    status = os.waitstatus_to_exitcode(ended)
    statuses[kind, status] += 1
    print(f"{name} ({kind}): status {status}", flush=True)
    if status:
      print((folder / f"{name}.log").read_text(errors="replace")[-2000:])
  for (kind, status), count in sorted(statuses.items()):
    print(f"{count} x {kind}: status {status}", flush=True)
  return int(any(status for _, status in statuses))


if __name__ == "__main__":
  begin = time.monotonic()
  pid = os.getpid()
  result = main(sys.argv[1:])
  if os.getpid() == pid:
    print(f"{time.monotonic() - begin:.0f} s")
  sys.exit(result)
