"""What a loader takes of memory and of time to start, in a process of its own."""

from __future__ import annotations

import dataclasses
import multiprocessing
import threading
import time
from concurrent import futures
from typing import Any

import tensorflow as tf

from benchmarks import process_memory
from t2r_seq import data, specs
from t2r_seq.data.plan import Plan, WindowOrder
from t2r_seq.store import EpisodeStore

_LOOK_SECONDS = 0.005


@dataclasses.dataclass(frozen=True)
class Footprint:
  """What was seen.

  Attributes:
    num_windows: in the store.
    open_ms: to open the store.
    start_ms: from there to the first batch, as the first loader of its process.
    order_ms: to compute the numbers of a batch's windows, the shuffle itself.
    private_mib: peak of the memory that is the process's own, above that before.
    mapped_mib: peak of the pages of mapped files, above that before. They are the page
      cache's, and go when somebody needs the memory.
  """

  num_windows: int
  open_ms: float
  start_ms: float
  order_ms: float
  private_mib: float
  mapped_mib: float


def footprint(
  path: str,
  spec_structure: specs.SpecStructure,
  batch_size: int,
  num_batches: int,
  isolate: bool = True,
  **options: Any,
) -> Footprint:
  """Reads some batches and looks at the memory meanwhile.

  Args:
    path: of a store.
    spec_structure: the specs of the windows.
    batch_size: windows in a batch.
    num_batches: to read.
    isolate: in a new process.
    **options: of `StoreWindowLoader`.
  Returns:
    What was seen.
  """
  arguments = (path, spec_structure, batch_size, num_batches, options)
  if not isolate:
    return _look(*arguments)
  # Not a multiprocessing.Pool: it starts new processes for ever where they die.
  spawn = multiprocessing.get_context("spawn")
  with futures.ProcessPoolExecutor(1, spawn) as executor:
    return executor.submit(_look, *arguments).result()


def _look(
  path: str,
  spec_structure: specs.SpecStructure,
  batch_size: int,
  num_batches: int,
  options: dict[str, Any],
) -> Footprint:
  _load_tensorflow()
  before = _now()
  peak, stop = list(before), threading.Event()

  def look() -> None:
    while not stop.wait(_LOOK_SECONDS):
      peak[:] = map(max, peak, _now())

  looking = threading.Thread(target=look)
  looking.start()
  start = time.perf_counter()
  store = EpisodeStore(path)
  opened = time.perf_counter()
  loader = data.StoreWindowLoader(
    store, spec_structure, batch_size, num_epochs=None, padding="drop", **options
  )
  batches = iter(loader.dataset())
  next(batches)
  started = time.perf_counter()
  for _ in range(num_batches - 1):
    next(batches)
  stop.set()
  looking.join()
  private, mapped = (a - b for a, b in zip(peak, before, strict=True))
  return Footprint(
    loader.num_windows,
    *(1e3 * (opened - start), 1e3 * (started - opened)),
    *(_order_ms(loader.num_windows, batch_size), private, mapped),
  )


def _order_ms(num_windows: int, batch_size: int) -> float:
  start = time.perf_counter()
  WindowOrder(num_windows, Plan(batch_size, "global")).window_ids(
    tf.constant(0, tf.int64)
  )
  return 1e3 * (time.perf_counter() - start)


def _load_tensorflow() -> None:
  """Runs a dataset, so that what TensorFlow loads at the first one is not counted."""
  dataset = tf.data.Dataset.range(2).map(
    lambda i: tf.gather(tf.range(2), i), num_parallel_calls=tf.data.AUTOTUNE
  )
  list(dataset)


def _now() -> tuple[float, float]:
  return (
    process_memory.memory_mib("RssAnon") or 0.0,
    process_memory.memory_mib("RssFile") or 0.0,
  )
