"""Writers, samplers and updates in threads at once: nothing torn, nothing lost."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.replay import ReplayBuffer, rate_limiters, sampling
from t2r_seq.specs import ExtendedTensorSpec as Spec

# Rows that are large take long to copy, so that writers get in between.
WIDE = 2000


def spec(wide=WIDE):
  return {
    "wide": Spec((3, wide), tf.int64, "wide", time_offsets=(-2, -1, 0)),
    "code": Spec((3,), tf.int64, "code", time_offsets=(-2, -1, 0)),
    "next": Spec((), tf.int64, "code", time_offsets=1),
  }


def step(lane, episode, t, wide=WIDE):
  code = np.int64((lane * 10_000 + episode) * 1000 + t)
  return {"wide": np.full(wide, code), "code": code}


def check(batch):
  """Checks that every window is of one episode, of steps that follow each other."""
  arrays = {path: np.asarray(values) for path, values in batch.items()}
  code = arrays["code"]
  np.testing.assert_array_equal(np.diff(code, axis=1), 1)
  np.testing.assert_array_equal(arrays["next"], code[:, 2] + 1)
  assert (arrays["wide"] == code[:, :, None]).all()
  assert (code[:, 0] // 1000 == arrays["next"] // 1000).all()


def test_queue_gives_every_item_once():
  code = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  buffer = ReplayBuffer(
    code,
    400,
    num_writers=2,
    sampler=replay.Fifo(),
    max_times_sampled=1,
    rate_limiter=replay.Queue(10),
    timeout=20,
  )
  got = []

  def write(writer, first):
    for x in range(first, first + 300):
      writer.append({"x": np.int64(x)})

  def sample():
    for _ in range(100):
      got.extend(buffer.sample(3)["x"].tolist())

  threads = [
    *(threading.Thread(target=write, args=(buffer.writer(), 1000 * i)) for i in (0, 1)),
    *(threading.Thread(target=sample) for _ in range(2)),
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(30)
  assert sorted(got) == [*range(300), *range(1000, 1300)]


def test_samples_per_insert_are_held():
  code = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  limiter = replay.SampleToInsertRatio(4.0, 10, 40.0)
  buffer = ReplayBuffer(code, 2000, rate_limiter=limiter, timeout=20, seed=0)
  writer = buffer.writer()

  def write():
    for x in range(500):
      writer.append({"x": np.int64(x)})

  def sample():
    for _ in range(240):
      buffer.sample(8)

  threads = [threading.Thread(target=target) for target in (write, sample)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
  counters = buffer.counters
  assert (counters.num_inserts, counters.num_samples) == (500, 1920)
  assert counters.samples_per_insert == 3.84


def numbers(count, **options):
  """Makes a buffer with so many numbers; returns it, and its writer."""
  spec = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  buffer = ReplayBuffer(spec, 100, seed=0, **options)
  writer = buffer.writer()
  for x in range(count):
    writer.append({"x": np.int64(x)})
  return buffer, writer


# name: how items are drawn
DRAWN = {
  "ratio": {"rate_limiter": replay.SampleToInsertRatio(1.0, 1, (0.0, 1000.0))},
  "queue": {
    "sampler": replay.Fifo(),
    "max_times_sampled": 1,
    "rate_limiter": replay.Queue(100),
  },
}


def let_go(held):
  """Lets go of an iterator, as the end of a function does; returns whether it ended."""
  thread = threading.Thread(target=held.clear, daemon=True)
  thread.start()
  thread.join(30)
  return not thread.is_alive()


def wait_until(is_so):
  for _ in range(3000):
    if is_so():
      return
    time.sleep(0.01)
  raise AssertionError("It never came to that.")


def test_waiting_iterator_can_be_released():
  """Nobody appends any more; what was taken for a batch is in the next one."""
  buffer, writer = numbers(10, timeout=60, **DRAWN["ratio"])
  held = [iter(buffer.dataset(4))]
  for _ in range(2):
    next(held[0])
  # Two of the four of the next batch were let through.
  wait_until(lambda: buffer.counters.num_samples == 10)
  is_gone = let_go(held)
  if not is_gone:
    buffer.close()
  assert is_gone
  for x in range(2):
    writer.append({"x": np.int64(x)})
  assert buffer.sample(4)["x"].shape == (4,)
  assert buffer.counters.num_samples == 12


def test_items_of_a_timed_out_batch_are_sampled_later():
  buffer, _ = numbers(5, timeout=0.1, **DRAWN["ratio"])
  with pytest.raises(errors.ReplayTimeoutError):
    buffer.sample(8)
  info, batch = buffer.sample_with_info(3)
  assert batch["x"].shape == (3,) and info.probability.shape == (3,)
  assert (info.probability == 0.2).all()
  assert buffer.sample(2)["x"].shape == (2,)
  assert buffer.counters.num_samples == 5
  with pytest.raises(errors.ReplayTimeoutError):
    buffer.sample(1)


@pytest.mark.parametrize("name", DRAWN)
def test_batch_may_come_slowly(name):
  """A timeout is of a wait, and while items come none lasts."""
  buffer, writer = numbers(0, timeout=0.8, **DRAWN[name])
  stop = threading.Event()

  def write():
    for x in range(8):
      stop.wait(0.2)
      writer.append({"x": np.int64(x)})

  batches = iter(buffer.dataset(8))
  thread = threading.Thread(target=write)
  thread.start()
  assert next(batches)["x"].shape == (8,)
  thread.join(30)


@pytest.mark.parametrize("name", DRAWN)
def test_sampler_waits_again_after_a_timeout(name):
  buffer, writer = numbers(0, timeout=0.4, **DRAWN[name])
  batches = iter(buffer.dataset(4))
  start = time.monotonic()
  for x in range(3):  # Of one that is not whole, too.
    with pytest.raises(tf.errors.OpError, match=r"waited 0\.4 s"):
      next(batches)
    writer.append({"x": np.int64(x)})
  assert time.monotonic() - start > 1.1


@pytest.mark.parametrize("with_info", [False, True])
def test_queue_items_outlive_the_sampler_that_took_them(with_info):
  code = {
    "x": Spec((), tf.int64, "x", time_offsets=0),
    "text": Spec((), tf.string, "text", time_offsets=0),
  }
  buffer = ReplayBuffer(
    code, 100, sampler=replay.Fifo(), max_times_sampled=1, rate_limiter=replay.Queue(50)
  )
  writer = buffer.writer()
  for x in range(5):
    writer.append({"x": np.int64(x), "text": str(x).encode()})
  held = [iter(buffer.dataset(3, with_info).prefetch(1))]
  next(held[0])
  wait_until(lambda: buffer.counters.num_samples == 5)
  is_gone = let_go(held)
  if not is_gone:
    buffer.close()
  assert is_gone
  writer.append({"x": np.int64(5), "text": b"5"})
  batch = next(iter(buffer.dataset(3, with_info)))
  batch = batch[1] if with_info else batch
  assert batch["x"].numpy().tolist() == [3, 4, 5]
  assert batch["text"].numpy().tolist() == [b"3", b"4", b"5"]


def test_writer_that_was_faster_is_seen(monkeypatch):
  """The rows die between the draw and the look; other windows take their place."""
  buffer = ReplayBuffer(spec(), 24, seed=0, padding="drop")
  writer = buffer.writer()
  for t in range(24):
    writer.append(step(0, 0, t))
  lock, looked, steps_to_come = buffer._table.lock, [], iter(range(24, 48))
  gather, are_alive = sampling.Sampling.gather, buffer._table.index.are_alive

  def overtaken(*args):
    batch = gather(*args)
    # Once: the next batches are drawn ahead.
    for t in steps_to_come:
      writer.append(step(0, 0, t))
    return batch

  def look(*args):
    looked.append(lock._is_owned())
    return are_alive(*args)

  monkeypatch.setattr(sampling.Sampling, "gather", overtaken)
  monkeypatch.setattr(buffer._table.index, "are_alive", look)
  batch = next(iter(buffer.dataset(8, with_info=True)))[1]
  check(batch)
  assert int(tf.reduce_min(batch["code"])) >= 24
  # Writers hold the lock, too: what they do later was not there to be gathered.
  assert looked and all(looked)


def test_batch_whose_items_are_gone_is_not_counted(monkeypatch):
  """All steps die between the draw and the look, and those after them make no item."""
  buffer = ReplayBuffer(spec(), 24, seed=0, timeout=0.1, padding="drop")
  writer = buffer.writer()
  for t in range(24):
    writer.append(step(0, 0, t))
  gather, episodes = sampling.Sampling.gather, iter(range(1, 25))

  def overtaken(*args):
    batch = gather(*args)
    for episode in episodes:
      writer.end_episode()
      writer.append(step(0, episode, 0))
    return batch

  monkeypatch.setattr(sampling.Sampling, "gather", overtaken)
  with pytest.raises(errors.ReplayTimeoutError, match="waited"):
    buffer.sample(8)
  assert buffer.counters.num_items == buffer.counters.num_samples == 0


def test_timeouts_are_kept():
  code = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  buffer = ReplayBuffer(code, 10, timeout=0.1)
  start = time.monotonic()
  with pytest.raises(errors.ReplayTimeoutError, match=r"sample: waited 0\.1 s: 0 of 1"):
    buffer.sample(1)
  with pytest.raises(TimeoutError):
    buffer.sample(1)
  assert time.monotonic() - start < 10
  # A dataset waits for a moment at a time, and for no longer in all.
  buffer = ReplayBuffer(code, 10, timeout=0.6)
  start = time.monotonic()
  with pytest.raises(tf.errors.OpError, match=r"sample: waited 0\.6 s: 0 of 1"):
    next(iter(buffer.dataset(1)))
  assert 0.6 <= time.monotonic() - start < 10


def test_long_wait_of_a_dataset_is_logged(monkeypatch):
  warned = threading.Event()
  monkeypatch.setattr(rate_limiters, "_LOG_EVERY", 0.4)
  monkeypatch.setattr(rate_limiters.logging, "warning", lambda *_: warned.set())
  buffer, _ = numbers(0)

  def read():
    with contextlib.suppress(tf.errors.OpError):
      next(iter(buffer.dataset(1)))

  thread = threading.Thread(target=read)
  thread.start()
  has_warned = warned.wait(30)
  buffer.close()
  thread.join(30)
  assert has_warned and not thread.is_alive()
