"""Reverb servers in processes of their own, filled with a work."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from benchmarks import process_memory
from benchmarks.replay.byte_counter import ByteCounter
from benchmarks.store import works
from benchmarks.store.works import Work
from t2r_seq.replay.reverb import ReplayServer, ReverbReplay

TABLE = "replay"
_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Server:
  """A server that holds a work.

  Attributes:
    address: to sample from.
    pid: of its process.
    private_mib: memory that the work takes there.
    bytes_sent: on the wire, for an item.
  """

  address: str
  pid: int
  private_mib: float
  bytes_sent: float


@dataclasses.dataclass(frozen=True)
class ServedWork:
  """A work, and where it is served.

  Attributes:
    work: what is there.
    servers: by `store`.
  """

  work: Work
  servers: Mapping[str, Server]

  @property
  def batch_size(self) -> int:
    """Items in a batch."""
    return self.work.batch_size

  @property
  def num_batches(self) -> int:
    """Batches in a round."""
    return self.work.num_batches


def connect(work: Work, address: str) -> ReverbReplay:
  """Returns a client of the library's own table."""
  return ReverbReplay(
    works.window_specs(work),
    address,
    sequence_length=work.sequence_length,
    padding="drop",
  )


@contextlib.contextmanager
def serve(work: Work, store: str) -> Iterator[Server]:
  """Serves a work until the context ends.

  Args:
    work: with its episodes.
    store: 'flat', as the library does it, or 'stacked': items are windows.
  """
  # Not a fork, and not this process: Reverb's clients read the tables of their own
  # process directly, without gRPC.
  context = multiprocessing.get_context("spawn")
  here, there = context.Pipe()
  process = context.Process(target=_serve, args=(there, work, store), daemon=True)
  process.start()
  there.close()
  try:
    address, pid = here.recv(), process.pid or 0
    before = process_memory.memory_mib("RssAnon", pid) or 0.0
    if store == "flat":
      _fill(connect(work, address), work)
    else:
      _fill_with_stacks(address, work)
    taken = (process_memory.memory_mib("RssAnon", pid) or 0.0) - before
    yield Server(address, pid, taken, _bytes_sent(address, work.batch_size))
  finally:
    here.close()
    process.join()


def _serve(connection: Connection, work: Work, store: str) -> None:
  if store == "flat":
    server = ReplayServer(
      works.window_specs(work),
      sequence_length=work.sequence_length,
      padding="drop",
    )
    address, stop = server.address, server.close
  else:
    import reverb

    table = reverb.Table(
      TABLE,
      sampler=reverb.selectors.Uniform(),
      remover=reverb.selectors.Fifo(),
      max_size=1_000_000,
      rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    by_hand = reverb.Server([table])
    address, stop = f"localhost:{by_hand.port}", by_hand.stop
  connection.send(address)
  with contextlib.suppress(EOFError):
    connection.recv()
  stop()


def _fill(client: ReverbReplay, work: Work) -> None:
  with client.writer() as writer:
    for episode in works.make_episodes(work):
      for t in range(work.num_steps):
        writer.append({name: values[t] for name, values in episode.items()})
      writer.end_episode()


def _fill_with_stacks(address: str, work: Work) -> None:
  """Stacks before it sends, as the first of the ways of Reverb's notebook does.

  A sequence is an item of several stacks, which sequences share; two stacks share
  nothing.
  """
  import reverb

  num_stacks, is_sequence = work.sequence_length or 1, bool(work.sequence_length)
  client: Any = reverb.Client(address)
  with client.trajectory_writer(num_keep_alive_refs=num_stacks + 1) as writer:
    for episode in works.make_episodes(work):
      for end in range(work.num_frames, work.num_steps + 1):
        start = end - work.num_frames
        writer.append({name: values[start:end] for name, values in episode.items()})
        if start + 1 >= num_stacks:
          rows = slice(-num_stacks, None) if is_sequence else -1
          item = {name: writer.history[name][rows] for name in episode}
          writer.create_item(TABLE, 1.0, item)
        writer.flush(48)
      writer.end_episode()


def _bytes_sent(address: str, num_items: int) -> float:
  import reverb

  counter = ByteCounter(address)
  try:
    client: Any = reverb.Client(counter.address)
    before = counter.num_sent
    for _ in client.sample(TABLE, num_items, emit_timesteps=False):
      pass
    return (counter.num_sent - before) / num_items
  finally:
    counter.close()
