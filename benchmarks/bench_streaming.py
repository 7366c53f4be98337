"""Windows streamed from records: against parsing or decoding alone, and the idioms.

Run it as `python -m benchmarks.bench_streaming [--works W1 W2 W3 S1 S10] [--rounds N]`.
The works W are those of `benchmarks.bench_store`, written as SequenceExamples.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from benchmarks import bench_store, measure, streamed_transitions, streamed_works
from benchmarks.measure import Candidate, Figures, Run
from benchmarks.store import tf_peers
from benchmarks.store.candidates import Lazy
from benchmarks.store.delivery import deliver
from benchmarks.store.floors import Floor
from benchmarks.store.ours import deliver_in_graph
from benchmarks.streamed_works import StreamedWork

OURS = "DefaultRecordInputGenerator"
BY_INDEX = "the same, by an index"
SKIPPING = "the same, on_bad_record='skip'"
_IN_GRAPH = "the same, in a tf.function"
GATHER = "gather all, flatten, shuffle"
_GATHER_IN_GRAPH = "gather all, flatten, shuffle, in a tf.function"
_OCTO = "Octo/dlimp"
_RLDS = "RLDS `batch`"
WINDOW = "`Dataset.window`"
HAND = "a pool by hand"
_PARSE = "episodes parsed and dropped"
_DECODE = "tf.io.decode_jpeg by map_fn, 2 threads"


def _peer(name: str, pipeline: Callable, share: float, *needs: str) -> Candidate:
  setup = functools.partial(deliver, pipeline, share=share)
  return Candidate(name, "peer", setup, needs)


def _limit(name: str, setup: Callable[[StreamedWork], Run]) -> Candidate:
  return Candidate(name, "limit", setup)


_OURS = [
  Candidate(OURS, "ours", functools.partial(deliver, streamed_works.ours)),
  Candidate(SKIPPING, "ours", functools.partial(deliver, streamed_works.skipping)),
]

RAW = [
  *_OURS,
  Candidate(
    _IN_GRAPH, "ours", functools.partial(deliver_in_graph, streamed_works.ours)
  ),
  _peer(GATHER, tf_peers.gather_and_flatten, 0.5),
  Candidate(
    _GATHER_IN_GRAPH,
    "peer",
    functools.partial(deliver_in_graph, tf_peers.gather_and_flatten),
  ),
  _peer(HAND, streamed_works.pool_by_hand, 1.0),
  _peer(_OCTO, tf_peers.octo, 0.4),
  _peer(_RLDS, tf_peers.rlds, 0.4, "rlds"),
  _peer(WINDOW, tf_peers.dataset_window, 0.25),
  _peer("WebDataset", Lazy("webdataset_peer", "windows"), 0.25, "webdataset"),
  _limit(_PARSE, streamed_works.parse_and_drop),
]

ENCODED = [
  *_OURS,
  _peer(GATHER, tf_peers.gather_and_flatten, 0.3),
  _peer(_OCTO, tf_peers.octo, 0.15),
  _peer(_RLDS, tf_peers.rlds, 0.3, "rlds"),
  _peer(WINDOW, tf_peers.dataset_window, 0.3),
  _limit(_DECODE, streamed_works.decode_and_drop),
]

STATES = [
  *_OURS,
  _peer(HAND, streamed_works.pool_by_hand, 1.0),
  _limit(_PARSE, streamed_works.parse_and_drop),
]

TRANSITIONS = [
  Candidate(OURS, "ours", functools.partial(deliver, streamed_transitions.ours)),
  Candidate(
    BY_INDEX, "ours", functools.partial(deliver, streamed_transitions.by_index)
  ),
  _peer(HAND, streamed_transitions.pool_by_hand, 1.0),
]

TRANSITIONS_FLOORS = [
  Floor(OURS, (HAND,), 1, "a pool by hand"),
  Floor(BY_INDEX, (HAND,), 1, "a pool by hand, ours by an index"),
]

STATES_FLOORS = [Floor(OURS, (HAND,), 1, "a pool by hand")]

RAW_FLOORS = [
  Floor(OURS, (HAND,), 1.1, "a pool by hand"),
  Floor(OURS, (_PARSE,), 0.8, "episodes parsed and dropped"),
  Floor(_IN_GRAPH, (_PARSE,), 0.8, "the same, ours in a tf.function"),
  Floor(OURS, (GATHER,), 2, "gather, flatten, shuffle"),
  Floor(_IN_GRAPH, (_GATHER_IN_GRAPH,), 2, "the same, both in a tf.function"),
  Floor(OURS, (_OCTO,), 2, "Octo/dlimp"),
  Floor(OURS, (WINDOW,), 3, "`Dataset.window`"),
]

ENCODED_FLOORS = [
  Floor(OURS, (_DECODE,), 0.7, "frames/s of the decoder alone"),
  Floor(OURS, (_OCTO,), 3.5, "gather, flatten, shuffle, decode: Octo/dlimp"),
  Floor(OURS, (WINDOW,), 1.6, "`Dataset.window`"),
  Floor(OURS, (_RLDS,), 1.1, "RLDS"),
]


def states_work(num_paths: int, folder: str, quick: bool = False) -> StreamedWork:
  """S1, S10: 400 episodes of 500 steps of small states; windows of 2."""
  form = {"num_frames": 2, "num_paths": num_paths}
  if quick:
    return _quick(streamed_works.StatesWork(folder, 3, 9, 8, **form))
  sizes = {"batch_size": 256, "shuffle_buffer_size": 16_000, "num_batches": 3000}
  return streamed_works.StatesWork(folder, 400, 500, 96, **form, **sizes)


def raw_work(folder: str, quick: bool = False) -> StreamedWork:
  """W1: 200 episodes of 250 steps of raw frames and numbers; 1.4 GB.

  A round is two epochs, from the second batch of one on: a pool is full at its start
  and at its end, so that nothing is for free, and nothing is done for the next round.
  """
  if quick:
    return _quick(StreamedWork(folder, 3, 11, 8))
  return StreamedWork(folder, 200, 250, 96, num_batches=1544)


def encoded_work(folder: str, quick: bool = False) -> StreamedWork:
  """W2: 60 episodes of 200 JPEGs of 128x128; a round is ten epochs, as `raw_work`'s."""
  if quick:
    return _quick(StreamedWork(folder, 3, 11, 16, is_jpeg=True))
  return StreamedWork(folder, 60, 200, 128, is_jpeg=True, num_batches=1850)


BENCHMARKS = {
  "W1": bench_store.Benchmark(
    "W1: windows of 4 steps of all fields, streamed",
    *("windows/s", raw_work, streamed_works.write, RAW, RAW_FLOORS),
  ),
  "W2": bench_store.Benchmark(
    "W2: windows of 4 JPEGs, streamed and decoded",
    *("windows/s", encoded_work, streamed_works.write, ENCODED, ENCODED_FLOORS),
  ),
  "W3": bench_store.Benchmark(
    "W3: 3-step transitions, streamed",
    *("transitions/s", bench_store.transitions_work, streamed_transitions.write),
    *(TRANSITIONS, TRANSITIONS_FLOORS),
  ),
  **{
    f"S{num_paths}": bench_store.Benchmark(
      f"S{num_paths}: windows of 2 small states, {num_paths} a step",
      "windows/s",
      functools.partial(states_work, num_paths),
      *(streamed_works.write, STATES, STATES_FLOORS),
    )
    for num_paths in (1, 10)
  },
}


# Whose memory ours is compared to.
_COMPARED = {"W1": [HAND, GATHER, WINDOW], "W2": [_RLDS, WINDOW]}


def memory_table(figures: Mapping[str, Figures], names: Sequence[str]) -> str:
  """Formats what others take of private memory as a Markdown table.

  Args:
    figures: by name, of candidates that shuffle among as many windows as ours.
    names: of the others.
  Returns:
    The table; ours is to take half of what each takes.
  """
  lines = [
    "| private memory, ours to | wanted | got | |",
    "| --- | ---: | ---: | --- |",
  ]
  ours = figures[OURS].private_mib
  for name in names:
    other = figures[name].private_mib if name in figures else None
    if ours is None or other is None:
      lines.append(f"| {name} | 0.5 | - | not measured |")
      continue
    verdict = "reached" if ours <= 0.5 * other else "**missed**"
    lines.append(f"| {name} | 0.5 | {ours / other:.2f} | {verdict} |")
  return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> str:
  """Runs the benchmarks; prints and returns their tables."""
  names = list(BENCHMARKS)
  options = {"--works": {"nargs": "+", "choices": names, "default": names}}
  args = measure.parse_args(__doc__, argv, options)
  texts = []
  for name in args.works:
    compared = _COMPARED.get(name, [HAND])
    texts.append(
      bench_store.run(
        BENCHMARKS[name],
        args.rounds,
        args.quick,
        lambda figures, compared=compared: memory_table(figures, compared),
      )
    )
    print(texts[-1], flush=True)
  return "\n".join(texts)


def _quick(work: StreamedWork) -> StreamedWork:
  return dataclasses.replace(work, batch_size=4, shuffle_buffer_size=10, num_batches=2)


if __name__ == "__main__":
  main()
