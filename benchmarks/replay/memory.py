"""Memory of a stored step, as the system counts it, beside the bytes of its values."""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import process_memory
from benchmarks.replay import ours
from benchmarks.store.transition_work import TransitionWork
from benchmarks.store.works import Work

_MIB = 2**20


def memory_table(windows: Work, transitions: TransitionWork) -> str:
  """Fills buffers in processes of their own and formats what they take.

  Args:
    windows: frames and numbers.
    transitions: numbers alone.
  Returns:
    A Markdown table. A ratio is the memory that a process has grown by, for each step,
    to the bytes of the values of one step, each counted once.
  """
  lines = [
    "| buffer | bytes a step | of them unique | ratio |",
    "| --- | ---: | ---: | ---: |",
  ]
  for name, fill, work, needs_cpprb in (
    ("t2r_seq: windows", ours.filled_with_windows, windows, False),
    ("cpprb, stack_compress", _cpprb_compressed, windows, True),
    ("cpprb, plain", _cpprb_stacks, windows, True),
    ("t2r_seq: transitions", ours.filled_with_transitions, transitions, False),
    ("cpprb, next_of", _cpprb_next_of, transitions, True),
    ("cpprb, plain, transitions", _cpprb_plain, transitions, True),
  ):
    if needs_cpprb and importlib.util.find_spec("cpprb") is None:
      lines.append(f"| {name} | not installed | | |")
      continue
    unique = _step_bytes(work)
    taken = _grown_mib(fill, work) * _MIB / (work.num_episodes * work.num_steps)
    lines.append(f"| {name} | {taken:,.1f} | {unique:,} | {taken / unique:.3f} |")
  return "\n".join(lines)


def _step_bytes(work: Work | TransitionWork) -> int:
  if isinstance(work, Work):
    return work.window_bytes // work.num_frames
  # An episode has one observation more than it has transitions.
  return 4 * (17 + 6 + 1 + 1)


def _grown_mib(fill: Callable[[Any], Any], work: Any) -> float:
  context = multiprocessing.get_context("spawn")
  here, there = context.Pipe()
  process = context.Process(target=_fill, args=(there, fill, work))
  process.start()
  there.close()
  grown = here.recv()
  process.join()
  return grown


def _fill(connection: Connection, fill: Callable[[Any], Any], work: Any) -> None:
  small = type(work)(work.folder, 1, *_sizes(work))
  fill(small)  # Imports, and what is allocated once.
  before = _used_mib()
  buffer = fill(work)
  connection.send(_used_mib() - before)
  del buffer


def _used_mib() -> float:
  process_memory.give_back_freed()
  return process_memory.memory_mib("RssAnon") or 0.0


def _sizes(work: Any) -> tuple[int, ...]:
  return (20, work.image_size) if isinstance(work, Work) else (20,)


def _cpprb_compressed(work: Work) -> Any:
  from benchmarks.replay import cpprb_peer

  return cpprb_peer.fill_with_windows(work, is_compressed=True)


def _cpprb_stacks(work: Work) -> Any:
  from benchmarks.replay import cpprb_peer

  return cpprb_peer.fill_with_windows(work, is_compressed=False)


def _cpprb_next_of(work: TransitionWork) -> Any:
  from benchmarks.replay import cpprb_peer

  return cpprb_peer.fill_with_transitions(work, has_next=False)


def _cpprb_plain(work: TransitionWork) -> Any:
  from benchmarks.replay import cpprb_peer

  return cpprb_peer.fill_with_transitions(work, has_next=True)
