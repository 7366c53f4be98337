"""The episode store's files: writing, disk, memory, the start of a shuffle.

Run it as `python -m benchmarks.bench_store_files [--rounds N] [--quick]`.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks import bench_store, measure
from benchmarks.store import floors, sparse, transition_work, works, writing
from benchmarks.store.footprint import Footprint, footprint
from t2r_seq import transitions, windows
from t2r_seq.store import EpisodeStore

_GB = 10**9
_FRAME = (96, 96, 3)
_STEPS = 250


def writing_text(folder: str, rounds: int, quick: bool) -> str:
  """Writes episodes of W1 against `ndarray.tofile`."""
  episodes = bench_store.windows_work(folder, quick)
  if not quick:
    episodes = dataclasses.replace(episodes, num_episodes=100)
  work = writing.WritingWork(episodes)
  figures = measure.compare(writing.CANDIDATES, work, rounds, isolate=not quick)
  table = measure.table(writing.CANDIDATES, figures, "MB/s")
  judged = floors.floors_table(writing.FLOORS, figures)
  return f"### Writing\n\n{table}\n\n{judged}\n"


def disk_text(folder: str, quick: bool) -> str:
  """Compares the bytes of the files to those of the values."""
  rows = []
  for name, work in _disk_works(folder, quick).items():
    episodes = list(works.make_episodes(work))
    path = os.path.join(folder, f"disk_{name}")
    flat = windows.flat_specs(works.window_specs(work))
    with EpisodeStore.create(path, flat, commit_every=100) as writer:
      for episode in episodes:
        writer.append_episode(episode)
    unique = writing.unique_bytes(episodes)
    stacked = unique * work.num_frames * work.windows_per_episode / work.num_steps
    rows.append((name, unique, sparse.bytes_in_files(path), stacked))
  work = bench_store.transitions_work(folder, quick)
  flat = transition_work.flat_transitions(work)
  path = os.path.join(folder, "disk_W3")
  transitions.save_transitions(path, flat)
  with_next = sum(values.nbytes for values in flat.values())
  unique = sum(
    writing.unique_bytes([episode]) for episode in transition_work.make_episodes(work)
  )
  rows.append(("W3", unique, sparse.bytes_in_files(path), with_next))
  lines = ["### Disk", ""]
  lines += ["| work | unique bytes | files | files / unique | stacked / unique |"]
  lines += ["| --- | ---: | ---: | ---: | ---: |"]
  lines += [
    f"| {name} | {unique:,} | {files:,} | {files / unique:.4f} | {all_ / unique:.2f} |"
    for name, unique, files, all_ in rows
  ]
  return "\n".join([*lines, ""])


def memory_text(folder: str, quick: bool) -> str:
  """Reads windows of frames from ever larger stores of holes."""
  episode_bytes = _STEPS * 27648
  sizes = (10**7, 10**8) if quick else (_GB, 10 * _GB, 100 * _GB)
  num_batches = 2 if quick else 150
  spec = sparse.numbers_spec(_FRAME, tf.uint8, 4)
  lines = [
    "### Memory",
    "",
    "| store, GB | order | on disk, MB | open, ms | private, MiB | mapped, MiB |",
    "| ---: | --- | ---: | ---: | ---: | ---: |",
  ]
  for size in sizes:
    path = os.path.join(folder, f"sparse_{size}")
    sparse.write_sparse_store(path, spec, size // episode_bytes, _STEPS)
    for order, options in _ORDERS.items():
      seen = footprint(path, spec, 64, num_batches, not quick, **options)
      on_disk = sparse.bytes_on_disk(path) / 1e6
      lines.append(
        f"| {size / _GB:g} | {order} | {on_disk:.1f} | {seen.open_ms:.1f} | "
        f"{seen.private_mib:,.0f} | {seen.mapped_mib:,.0f} |"
      )
  return "\n".join([*lines, ""])


def start_text(folder: str, quick: bool) -> str:
  """Starts shuffles of ever more episodes, and of few long ones."""
  spec = sparse.numbers_spec((), tf.uint8, 4)
  lines = [
    "### Start of a shuffle",
    "",
    "| windows | episodes | open, ms | first batch, ms | order alone, ms | MiB |",
    "| ---: | ---: | ---: | ---: | ---: | ---: |",
  ]
  sizes = [(1000, 10**6 + 3), *((10**p, 1003) for p in range(2, 4 if quick else 7))]
  for number, (episodes, steps) in enumerate(sizes):
    path = os.path.join(folder, f"start_{number}")
    sparse.write_sparse_store(path, spec, episodes, steps)
    seen = _best_start(path, spec, quick)
    lines.append(
      f"| {seen.num_windows:,} | {episodes:,} | {seen.open_ms:.1f} | "
      f"{seen.start_ms:.1f} | {seen.order_ms:.1f} | {seen.private_mib:,.0f} |"
    )
  return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  args = measure.parse_args(__doc__, argv)
  texts = []
  with tempfile.TemporaryDirectory() as folder:
    for text in (
      lambda: writing_text(folder, args.rounds, args.quick),
      lambda: disk_text(folder, args.quick),
      lambda: memory_text(folder, args.quick),
      lambda: start_text(folder, args.quick),
    ):
      texts.append(text())
      print(texts[-1], flush=True)
  return "\n".join(texts)


_ORDERS: dict[str, dict[str, Any]] = {
  "global": {},
  "quasi-random, 256 MiB": {"order": "quasi_random", "memory_budget": 2**28},
}


def _disk_works(folder: str, quick: bool) -> dict[str, works.Work]:
  raw = bench_store.windows_work(folder, quick)
  if not quick:
    raw = dataclasses.replace(raw, num_episodes=20)
  return {"W1": raw, "W2": bench_store.encoded_work(folder, quick)}


def _best_start(path: str, spec: Any, quick: bool) -> Footprint:
  """Returns the fastest of a few starts: the machine may be busy with other things."""
  starts = [footprint(path, spec, 64, 2, not quick) for _ in range(1 if quick else 3)]
  return min(starts, key=lambda seen: seen.start_ms)


if __name__ == "__main__":
  main()
