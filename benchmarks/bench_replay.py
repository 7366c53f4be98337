"""The in-process replay against cpprb and the machine's limit.

Run it as `python -m benchmarks.bench_replay [--works ...] [--rounds N]`; `make
bench-setup` makes an environment with cpprb. Without it, its rows are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import bench_store, measure
from benchmarks.bench_store import Benchmark
from benchmarks.measure import Candidate, Run
from benchmarks.replay import memory, ours
from benchmarks.replay.inserting import InsertWork
from benchmarks.store import limits, works
from benchmarks.store import ours as store_ours
from benchmarks.store.delivery import deliver
from benchmarks.store.floors import Floor
from benchmarks.store.transition_work import TransitionWork
from t2r_seq import replay

_PER = {"sampler": replay.Prioritized(0.6)}


@dataclasses.dataclass(frozen=True)
class Lazy:
  """A function of the peer's module, which is imported only where it runs.

  Attributes:
    name: of the function.
    peer: whose module it is in.
  """

  name: str
  peer: str = "cpprb"

  def __call__(self, work: Any, **kwargs: Any) -> Any:
    """Calls it."""
    module = importlib.import_module(f"benchmarks.replay.{self.peer}_peer")
    return getattr(module, self.name)(work, **kwargs)


def _ours(name: str, setup: Callable[..., Run], *args: Any, **kwargs: Any) -> Candidate:
  return Candidate(
    f"t2r_seq: {name}", "ours", functools.partial(setup, *args, **kwargs)
  )


def _cpprb(
  name: str, setup: Callable[..., Run], *args: Any, **kwargs: Any
) -> Candidate:
  partial = functools.partial(setup, *args, **kwargs)
  return Candidate(f"cpprb: {name}", "peer", partial, ("cpprb",))


def _torchrl(name: str, function: str) -> Candidate:
  setup = functools.partial(deliver, Lazy(function, "torchrl"))
  return Candidate(f"torchrl: {name}", "peer", setup, ("torchrl",))


WINDOWS = [
  _ours("dataset", deliver, ours.dataset_of_windows),
  _ours("in a tf.function", store_ours.deliver_in_graph, ours.dataset_of_windows),
  _ours("sample(), numpy", deliver, ours.sampled_windows),
  _ours("sample(), numpy, 2 threads", ours.sample_in_threads, num_threads=2),
  _cpprb("stack_compress", deliver, Lazy("stacks")),
  _torchrl("SliceSampler", "slices"),
  Candidate("memcpy, 1 thread", "limit", functools.partial(limits.copy, num_threads=1)),
  Candidate(
    "memcpy, 2 threads", "limit", functools.partial(limits.copy, num_threads=2)
  ),
]
TRANSITIONS = [
  _ours("sample(), numpy", deliver, ours.sampled_transitions),
  _ours("dataset", deliver, ours.dataset_of_transitions),
  _cpprb("3-step, joined when added", deliver, Lazy("n_step")),
  _cpprb("1-step, next_of", deliver, Lazy("next_of")),
  _torchrl("3-step, joined when added", "n_step"),
]
PRIORITIZED = [
  _ours("weights", deliver, ours.prioritized_transitions),
  _ours("weights, updates", deliver, ours.updated_transitions),
  _cpprb("weights", deliver, Lazy("prioritized")),
  _cpprb("weights, updates", deliver, Lazy("prioritized_and_updated")),
]
INSERTING = [
  _ours("a step", ours.insert_steps),
  _ours("a step, prioritized", ours.insert_steps, **_PER),
  _cpprb("a step", Lazy("insert_steps")),
  _cpprb("a step, next_of", Lazy("insert_steps"), has_next=False),
  _cpprb("a step, prioritized", Lazy("insert_steps"), is_prioritized=True),
]
INSERTING_BATCHES = [
  _ours("16 environments", ours.insert_batches),
  _ours("16 environments, prioritized", ours.insert_batches, **_PER),
  _cpprb("16 environments", Lazy("insert_batches")),
  _cpprb("16 environments, next_of", Lazy("insert_batches"), has_next=False),
  _cpprb("16 environments, prioritized", Lazy("insert_batches"), is_prioritized=True),
]
INSERTING_FRAMES = [
  _ours("a step with a frame", ours.insert_frames),
  _cpprb("a stack, stack_compress", Lazy("insert_frames")),
]

_MEMCPY = ("memcpy, 1 thread", "memcpy, 2 threads")


def _insert_work(folder: str, quick: bool = False) -> InsertWork:
  return InsertWork(2, 5, 3) if quick else InsertWork()


def _write_nothing(work: Any) -> None:
  pass


BENCHMARKS = {
  "windows": Benchmark(
    "Windows of 4 steps of all fields",
    *("windows/s", bench_store.windows_work, works.write, WINDOWS),
    [
      Floor(
        *("t2r_seq: sample(), numpy, 2 threads", _MEMCPY, 0.9),
        "memcpy, ours by `sample` in 2 threads",
      ),
      Floor("t2r_seq: sample(), numpy", _MEMCPY, 0.9, "the same in 1 thread"),
      Floor("t2r_seq: in a tf.function", _MEMCPY, 0.9, "memcpy, ours in a tf.function"),
      Floor(
        *("t2r_seq: sample(), numpy", ("cpprb: stack_compress",), 1),
        "cpprb, ours by `sample`",
      ),
      Floor("t2r_seq: dataset", _MEMCPY, 0.9, "memcpy, ours by `dataset`"),
      Floor(
        *("t2r_seq: dataset", ("cpprb: stack_compress",), 1), "cpprb, ours by `dataset`"
      ),
    ],
  ),
  "transitions": Benchmark(
    "3-step transitions",
    *("transitions/s", bench_store.transitions_work, _write_nothing, TRANSITIONS),
    [
      Floor(
        *("t2r_seq: sample(), numpy", ("cpprb: 3-step, joined when added",), 1),
        "cpprb's `sample`",
      ),
      Floor(
        *("t2r_seq: dataset", ("cpprb: 3-step, joined when added",), 1),
        "cpprb's `sample`, ours by `dataset`",
      ),
    ],
  ),
  "prioritized": Benchmark(
    "3-step transitions by priority",
    *("transitions/s", bench_store.transitions_work, _write_nothing, PRIORITIZED),
    [
      Floor("t2r_seq: weights", ("cpprb: weights",), 1, "cpprb's `sample`"),
      Floor(
        *("t2r_seq: weights, updates", ("cpprb: weights, updates",), 1),
        "cpprb's `sample` and `update_priorities`",
      ),
    ],
  ),
  "insert": Benchmark(
    "Inserting transitions, one by one",
    *("steps/s", _insert_work, _write_nothing, INSERTING),
    [
      Floor(
        *("t2r_seq: a step", ("cpprb: a step", "cpprb: a step, next_of"), 1),
        "cpprb's `add`",
      ),
      Floor(
        *("t2r_seq: a step, prioritized", ("cpprb: a step, prioritized",), 1),
        "cpprb's `add`, prioritized",
      ),
    ],
  ),
  "insert-batches": Benchmark(
    "Inserting transitions of 16 environments at once",
    *("steps/s", _insert_work, _write_nothing, INSERTING_BATCHES),
    [
      Floor(
        "t2r_seq: 16 environments",
        ("cpprb: 16 environments", "cpprb: 16 environments, next_of"),
        *(1, "cpprb's `add`"),
      ),
      Floor(
        "t2r_seq: 16 environments, prioritized",
        ("cpprb: 16 environments, prioritized",),
        *(1, "cpprb's `add`, prioritized"),
      ),
    ],
  ),
  "insert-frames": Benchmark(
    "Inserting steps with frames of 96x96x3, one by one",
    *("steps/s", bench_store.windows_work, _write_nothing, INSERTING_FRAMES),
    [
      Floor(
        *("t2r_seq: a step with a frame", ("cpprb: a stack, stack_compress",), 1),
        "cpprb's `add`",
      )
    ],
  ),
}


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  names = [*BENCHMARKS, "memory"]
  options = {"--works": {"nargs": "+", "choices": names, "default": names}}
  args = measure.parse_args(__doc__, argv, options)
  texts = []
  for name in args.works:
    if name == "memory":
      texts.append(f"### Memory of a step\n\n{_memory(args.quick)}\n")
    else:
      texts.append(bench_store.run(BENCHMARKS[name], args.rounds, args.quick))
    print(texts[-1], flush=True)
  return "\n".join(texts)


def _memory(quick: bool) -> str:
  folder = tempfile.gettempdir()
  if quick:
    return memory.memory_table(
      bench_store.windows_work(folder, True), bench_store.transitions_work(folder, True)
    )
  windows = works.Work(folder, 40, 250, 96)
  return memory.memory_table(windows, TransitionWork(folder, 1000, 1000))


if __name__ == "__main__":
  main()
