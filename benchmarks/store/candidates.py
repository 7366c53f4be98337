"""Who takes part in which work, and at which setting."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Candidate
from benchmarks.store import limits, ours, tf_peers, transition_work
from benchmarks.store.delivery import deliver

_STACKED_ON_HOST = "t2r_seq: stacked on the host"


@dataclasses.dataclass(frozen=True)
class Lazy:
  """A pipeline of a module that is imported only where it runs.

  Attributes:
    module: in this folder; it imports a peer.
    name: of the pipeline.
  """

  module: str
  name: str

  def __call__(self, work: Any, epochs: int | None = None) -> Any:
    """Makes the pipeline."""
    module = importlib.import_module(f"benchmarks.store.{self.module}")
    return getattr(module, self.name)(work, epochs)


def _ours(name: str, setup: Callable, *args: Any, **kwargs: Any) -> Candidate:
  return Candidate(name, "ours", functools.partial(setup, *args, **kwargs))


def _peer(
  name: str, pipeline: Callable, share: float, needs: tuple[str, ...] = ()
) -> Candidate:
  setup = functools.partial(deliver, pipeline, share=share)
  return Candidate(name, "peer", setup, needs)


def _limit(
  name: str, setup: Callable, needs: tuple[str, ...] = (), **kwargs: Any
) -> Candidate:
  return Candidate(name, "limit", functools.partial(setup, **kwargs), needs)


_FFCV = Lazy("ffcv_peer", "load")
_COPIES = [
  _limit("memcpy, 1 thread", limits.copy, num_threads=1),
  _limit("memcpy, 2 threads", limits.copy, num_threads=2),
  _limit("memcpy, 2 threads, new memory", limits.copy, num_threads=2, reuse=False),
]

WINDOWS = [
  _ours("t2r_seq: global order", deliver, ours.global_order),
  _ours(
    "t2r_seq: the same, in a tf.function", ours.deliver_in_graph, ours.global_order
  ),
  _peer("FFCV", _FFCV, 1.0, ("ffcv",)),
  _peer("torch DataLoader", Lazy("torch_peer", "batches"), 1.0, ("torch",)),
  _peer("cpprb", Lazy("cpprb_peer", "stacks"), 1.0, ("cpprb",)),
  _peer("Grain, batches of numbers", Lazy("grain_peer", "batches"), 0.5, ("grain",)),
  _peer("Grain, windows", Lazy("grain_peer", "windows"), 0.25, ("grain",)),
  _peer("gather all, flatten, shuffle", tf_peers.gather_and_flatten, 0.4),
  _peer("Octo/dlimp", tf_peers.octo, 0.25),
  _peer("RLDS `batch`", tf_peers.rlds, 0.25, ("rlds",)),
  _peer("`Dataset.window`", tf_peers.dataset_window, 0.15),
  *_COPIES,
]

ENCODED = [
  _ours("t2r_seq: quasi-random order", deliver, ours.quasi_random, from_start=True),
  _ours("t2r_seq: global order", deliver, ours.global_order, share=0.08),
  _peer("FFCV", _FFCV, 0.2, ("ffcv",)),
  _peer("gather all, flatten, shuffle", tf_peers.gather_and_flatten, 0.25),
  _peer("Octo/dlimp", tf_peers.octo, 0.1),
  _peer("RLDS `batch`", tf_peers.rlds, 0.2, ("rlds",)),
  _peer("`Dataset.window`", tf_peers.dataset_window, 0.2),
  _limit("tf.io.decode_jpeg by map_fn, 2 threads", limits.decode),
  _limit("libjpeg-turbo, 2 threads", limits.decode_by_turbojpeg, ("simplejpeg",)),
]

TRANSITIONS = [
  _ours("t2r_seq: numpy arrays, from Python", deliver, ours.n_step_arrays),
  _ours("t2r_seq: tensors, from Python", deliver, ours.n_step),
  _ours("t2r_seq: in a tf.function", ours.deliver_in_graph, ours.n_step),
  _ours(
    "t2r_seq: in a tf.function, 50 batches by one `next`",
    *(ours.deliver_in_graph, ours.n_step_reads),
    is_several=True,
  ),
  _peer("cpprb, in memory", Lazy("cpprb_peer", "n_step"), 1.0, ("cpprb",)),
  _peer("slices in memory, shuffle, batch", transition_work.slices_in_memory, 0.1),
  _peer("n-step, flatten, shuffle, batch", transition_work.n_step_and_flatten, 0.1),
  _peer("`Dataset.window`, n-step, shuffle", transition_work.dataset_window, 0.01),
]

# Stacked frames of a sequence of 16 stacks of 4: both ways, a model sees as many.
_FRAMES = {"units_per_item": 64}

SEQUENCES = [
  _ours(_STACKED_ON_HOST, deliver, ours.global_order, share=0.25, **_FRAMES),
  _ours("t2r_seq: flat", deliver, ours.flat_sequences, **_FRAMES),
  _ours(
    "t2r_seq: stacked on the host, in a tf.function",
    *(ours.deliver_in_graph, ours.global_order),
    **_FRAMES,
  ),
  _ours(
    "t2r_seq: flat, stacked in the step, on this CPU",
    *(ours.deliver_in_graph, ours.flat_sequences),
    step=ours.stack,
    **_FRAMES,
  ),
]
