"""Writers and samplers at once: whatever is delivered is a window, whole."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, specs

Spec = specs.ExtendedTensorSpec
# Every value of a step tells which step it is: writer, episode, step in the episode.
SIZE = 256  # So large that stacks are gathered in the graph, single steps in numpy.
SPEC = {
  "frames": Spec((3, SIZE), tf.int64, time_offsets=(-2, -1, 0)),
  "next": Spec((SIZE,), tf.int64, name="frames", time_offsets=1),
  "small": Spec((2,), tf.int32, time_offsets=(-1, 1)),
  "text": Spec((), tf.string, time_offsets=0),
}
WITH_CONTEXT = {**SPEC, "task": Spec((), tf.int64)}


def identity(writer: int, episode: int, step: int) -> int:
  return (writer * 100_000 + episode) * 100 + step


def make_step(writer: int, episode: int, step: int, has_context: bool) -> dict:
  number = identity(writer, episode, step)
  values = {
    "frames": np.full(SIZE, number),
    "small": np.int32(number),
    "text": str(number),
  }
  return {**values, "task": np.int64(number // 100)} if has_context else values


def check(batch, padding: str) -> None:
  """Checks every value of every window."""
  batch = {path: np.asarray(value) for path, value in batch.items()}
  frames, following = batch["frames"], batch["next"]
  anchors = frames[:, 2, 0]
  for values, offset in ((frames, [-2, -1, 0]), (following[:, None], [1])):
    want = anchors[:, None] + np.array(offset)
    if padding == "repeat":
      first = anchors // 100 * 100
      # At an episode's end the last step stands for the one after it.
      want = np.maximum(want, first[:, None])
      is_last = (offset == [1]) & (values[:, :, 0] == anchors[:, None])
      want = np.where(is_last, anchors[:, None], want)
    np.testing.assert_array_equal(values, np.repeat(want[..., None], SIZE, -1))
  np.testing.assert_array_equal([int(t) for t in batch["text"].tolist()], anchors)
  before, after = batch["small"].T
  np.testing.assert_array_equal(before, frames[:, 1, 0])
  np.testing.assert_array_equal(after, following[:, 0])
  if "task" in batch:
    np.testing.assert_array_equal(batch["task"], anchors // 100)


class Threads:
  """Runs functions at once, again and again until the time is up or one fails."""

  def __init__(self) -> None:
    self.stop = threading.Event()
    self.failures: list[BaseException] = []
    self.threads: list[threading.Thread] = []
    self.rounds: dict[str, int] = {}

  def start(self, name: str, function) -> None:
    def run():
      try:
        while not self.stop.is_set():
          function()
          self.rounds[name] = self.rounds.get(name, 0) + 1
      except (errors.ReplayError, tf.errors.OpError) as error:
        if not self.stop.is_set():  # Or else it was closed while it waited.
          self._fail(error)
      except BaseException as error:
        self._fail(error)

    self.threads.append(threading.Thread(target=run, name=name))
    self.threads[-1].start()

  def _fail(self, error: BaseException) -> None:
    self.failures.append(error)
    self.stop.set()

  def run(self, seconds: float, buffer: replay.ReplayBuffer) -> None:
    begin = time.monotonic()
    while not self.stop.wait(0.05) and time.monotonic() < begin + 60:
      is_busy = len(self.rounds) < len(self.threads) or min(self.rounds.values()) < 3
      if not is_busy and time.monotonic() > begin + seconds:
        break
    self.stop.set()
    buffer.close()
    for thread in self.threads:
      thread.join(60)
      assert not thread.is_alive(), thread.name
    if self.failures:
      raise self.failures[0]


def episodes_of(writer, number: int, has_context: bool):
  """Returns a function that writes one more episode."""
  rng, count = np.random.default_rng(number), 0

  def write() -> None:
    nonlocal count
    count += 1
    for step in range(int(rng.integers(1, 12))):
      writer.append(make_step(number, count, step, has_context), float(rng.random()))
    writer.end_episode()

  return write


CASES = {
  "uniform": {},
  "prioritized": {"sampler": replay.Prioritized(0.6)},
  "bounded": {"max_size": 12, "remover": replay.Uniform()},
  "oldest first": {"sampler": replay.Fifo()},
  "sampled once": {"max_times_sampled": 1},
  "repeated": {"padding": "repeat"},
  "context": {"spec": WITH_CONTEXT, "padding": "repeat"},
}


@pytest.mark.parametrize("name", CASES)
def test_no_torn_windows(name):
  """The ring is hardly longer than an episode: writers overtake samplers at once."""
  case = {"spec": SPEC, "padding": "drop", **CASES[name]}
  spec, padding = case.pop("spec"), case["padding"]
  buffer = replay.ReplayBuffer(
    spec, capacity_steps=3 * 15, num_writers=3, seed=0, timeout=20.0, **case
  )
  threads = Threads()
  for number in range(3):
    write = episodes_of(buffer.writer(), number, "task" in spec)
    write()
    threads.start(f"writer {number}", write)

  def sample() -> None:
    info, batch = buffer.sample_with_info(32)
    check(batch, padding)
    buffer.update_priorities(info.key, np.ones(32))

  dataset = iter(buffer.dataset(64))
  threads.start("sampler", sample)
  threads.start("other sampler", lambda: check(buffer.sample(64), padding))
  threads.start("dataset", lambda: check(next(dataset), padding))
  threads.run(1.0, buffer)
  counters = buffer.counters
  assert min(threads.rounds.values()) > 0 and len(threads.rounds) == 6
  assert counters.num_inserts - counters.num_deletes == counters.num_items
  assert counters.num_items == np.count_nonzero(buffer._table.index.marks)


def test_items_that_go_while_a_batch_waits():
  """Some of a batch was let through; until the rest is, the ring is written over."""
  buffer = replay.ReplayBuffer(
    SPEC,
    capacity_steps=120,
    rate_limiter=replay.SampleToInsertRatio(1.0, 1, (0.0, 1000.0)),
    seed=0,
    timeout=20.0,
    padding="drop",
  )
  writer = buffer.writer()

  def write(episode: int, num_steps: int) -> None:
    for step in range(num_steps):
      writer.append(make_step(0, episode, step, False))
    writer.end_episode()

  write(0, 6)
  assert buffer.counters.num_items == 3
  batches = []
  sampler = threading.Thread(target=lambda: batches.append(buffer.sample(40)))
  sampler.start()
  while buffer.counters.num_samples < 3:
    time.sleep(0.001)
  with buffer._table.lock:
    write(1, 99)
    # Where the three items were are now steps of episodes too short to have any.
    for episode in range(2, 62):
      write(episode, 3)
    write(62, 60)
  sampler.join(20)
  (batch,) = batches
  check(batch, "drop")


def test_closing_wakes_everybody():
  buffer = replay.ReplayBuffer(SPEC, 20, rate_limiter=replay.MinSize(10))
  found = []

  def sample() -> None:
    try:
      buffer.sample(4)
    except errors.ReplayError as error:
      found.append(error)

  samplers = [threading.Thread(target=sample) for _ in range(3)]
  for sampler in samplers:
    sampler.start()
  buffer.close()
  for sampler in samplers:
    sampler.join(20)
  assert len(found) == 3


def test_checkpoint_in_the_middle(tmp_path):
  """What is saved while everything goes on is whole as well."""
  buffer = replay.ReplayBuffer(
    WITH_CONTEXT,
    3 * 15,
    num_writers=3,
    timeout=20.0,
    checkpoint_dir=str(tmp_path),
    padding="drop",
  )
  threads = Threads()
  for number in range(3):
    write = episodes_of(buffer.writer(), number, True)
    write()
    threads.start(f"writer {number}", write)
  threads.start("sampler", lambda: check(buffer.sample(16), "drop"))

  def save() -> None:
    path = buffer.checkpoint()
    again = replay.ReplayBuffer(
      WITH_CONTEXT, 3 * 15, num_writers=3, timeout=0.0, padding="drop"
    )
    again.restore(path)
    if again.counters.num_items:
      check(again.sample(64), "drop")

  threads.start("saving", save)
  threads.run(1.0, buffer)
  assert min(threads.rounds.values()) > 0 and len(threads.rounds) == 5
