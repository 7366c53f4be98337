"""Rate limiters against Reverb's rules, item by item, and as threads wait."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest

from t2r_seq import errors
from t2r_seq.replay import options, rate_limiters
from t2r_seq.replay.rate_limiters import RateLimiter, make_rate_limiter

OPTIONS = {
  "min size": options.MinSize(4),
  "ratio": options.SampleToInsertRatio(2.0, 3, 5.0),
  "ratio below 1": options.SampleToInsertRatio(0.3, 3, 1.5),
  "bounds": options.SampleToInsertRatio(1.5, 2, (-2.0, 4.5)),
  "queue": options.Queue(3),
}
# What Reverb's own classes give to its limiter in C++.
NUMBERS = {
  "min size": (1.0, 4, -1.7976931348623157e308, 1.7976931348623157e308),
  "ratio": (2.0, 3, 1.0, 11.0),
  "ratio below 1": (0.3, 3, 0.8999999999999999 - 1.5, 0.8999999999999999 + 1.5),
  "bounds": (1.5, 2, -2.0, 4.5),
  "queue": (1.0, 1, 0.0, 3.0),
}


class Model:
  """Reverb's rules for one item, spelled out."""

  def __init__(self, name: str) -> None:
    self.ratio, self.min_size, self.low, self.high = NUMBERS[name]
    self.inserts = self.samples = self.deletes = 0

  def sample(self) -> bool:
    is_free = self.inserts - self.deletes >= self.min_size
    allowed = is_free and self.inserts * self.ratio - self.samples - 1 >= self.low
    self.samples += allowed
    return allowed

  def insert(self) -> bool:
    difference = (self.inserts + 1) * self.ratio - self.samples
    is_free = self.inserts + 1 - self.deletes <= self.min_size
    allowed = is_free or difference <= self.high
    self.inserts += allowed
    return allowed


def ask(limiter: RateLimiter, operation: str, count: int) -> int:
  """Does as much as it may."""
  wait = getattr(limiter, f"await_{operation}")
  try:
    granted = wait(count, timeout=0)
  except errors.ReplayTimeoutError:
    return 0
  getattr(limiter, f"did_{operation}")(granted)
  return granted


@pytest.mark.parametrize("name", OPTIONS)
def test_rate_limiters_equal_those_of_reverb(name):
  rng = np.random.default_rng(5)
  limiter, model = make_rate_limiter(OPTIONS[name]), Model(name)
  seen = set()
  for _ in range(3000):
    operation = rng.choice(["insert", "sample", "sample", "delete"])
    count = int(rng.integers(1, 9))
    if operation == "delete":
      count = min(limiter.size, int(rng.integers(0, 2)))
      model.deletes += count
      limiter.did_delete(count)
      continue
    want = 0
    while want < count and getattr(model, operation)():
      want += 1
    assert ask(limiter, operation, count) == want
    seen.add((operation, want == 0, want == count))
  assert limiter.num_inserts == model.inserts
  assert limiter.num_samples == model.samples
  # All of it, some of it and nothing, wherever the option can make somebody wait.
  waits = {"insert", "sample"} if name != "min size" else {"sample"}
  assert {operation for operation, is_none, _ in seen if is_none} == waits
  if name != "min size":
    assert ("sample", False, False) in seen and ("insert", False, False) in seen


TIMEOUTS = {
  "too few items": (
    options.MinSize(10),
    (3, 0),
    "sample",
    r"replay: sample: waited 0.01 s: 3 of 10 items are there. Sampling begins with",
  ),
  "too many samples": (
    options.SampleToInsertRatio(8.0, 1, 16.0),
    (10, 88),
    "sample",
    r"sample: waited 0.01 s: 10 inserts and 88 samples, for 8 samples per insert, "
    r"would be too few inserts with another sample. Append more steps",
  ),
  "too few samples": (
    options.SampleToInsertRatio(0.5, 1, 2.0),
    (5, 0),
    "insert",
    r"insert: waited 0.01 s: 5 inserts and 0 samples, for 0.5 samples per insert, "
    r"would be too few samples with another insert. Sample more",
  ),
  "full queue": (
    options.Queue(3),
    (3, 0),
    "insert",
    r"insert: waited 0.01 s: 3 inserts and 0 samples.*or size\.",
  ),
  "empty queue": (options.Queue(3), (0, 0), "sample", r"0 of 1 items are there"),
}


@pytest.mark.parametrize("name", TIMEOUTS)
def test_timeout_names_the_limit(name):
  option, (inserts, samples), operation, want = TIMEOUTS[name]
  limiter = make_rate_limiter(option)
  limiter.did_insert(inserts)
  limiter.did_sample(samples)
  with pytest.raises(errors.ReplayTimeoutError, match=want) as caught:
    getattr(limiter, f"await_{operation}")(1, timeout=0.01)
  assert isinstance(caught.value, TimeoutError)


def start(function, *args) -> queue.Queue:
  """Runs it in a thread; what it returns or raises comes out of the queue."""
  outcome: queue.Queue = queue.Queue()

  def run():
    try:
      outcome.put(function(*args))
    except errors.ReplayError as error:
      outcome.put(error)

  threading.Thread(target=run, daemon=True).start()
  return outcome


CHANGES = {
  "sample, after an insert": ("sample", (3, 0, 0), "did_insert"),
  "insert, after a sample": ("insert", (7, 3, 0), "did_sample"),
  "insert, after deletions": ("insert", (7, 3, 0), "did_delete"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_waits_until_it_may(name):
  operation, counts, change = CHANGES[name]
  limiter = make_rate_limiter(options.SampleToInsertRatio(1.0, 4, (-4.0, 4.0)))
  limiter.num_inserts, limiter.num_samples, limiter.num_deletes = counts
  assert not getattr(limiter, f"can_{operation}")()
  outcome = start(getattr(limiter, f"await_{operation}"), 1, None)
  with pytest.raises(queue.Empty):
    outcome.get(timeout=0.02)
  getattr(limiter, change)(1 if change != "did_delete" else 4)
  assert outcome.get(timeout=10) == 1


def test_endless_waits_are_logged(monkeypatch):
  told: queue.Queue = queue.Queue()
  monkeypatch.setattr(rate_limiters, "_LOG_EVERY", 0.01)
  monkeypatch.setattr(rate_limiters.logging, "warning", lambda *args: told.put(args))
  limiter = make_rate_limiter(options.MinSize(2))
  outcome = start(limiter.await_sample, 1, None)
  for _ in range(2):
    text, *values = told.get(timeout=10)
    assert "sample: waiting: 0 of 2 items are there" in text % tuple(values)
  limiter.did_insert(2)
  assert outcome.get(timeout=10) == 1


@pytest.mark.parametrize("operation", ["insert", "sample"])
def test_closing_ends_the_waiting(operation):
  limiter = make_rate_limiter(options.Queue(1))
  limiter.did_insert(operation == "insert")
  outcome = start(getattr(limiter, f"await_{operation}"), 1, None)
  limiter.close()
  assert isinstance(outcome.get(timeout=10), errors.ReplayError)
  with pytest.raises(errors.ReplayError, match=f"{operation}: expected an open replay"):
    getattr(limiter, f"await_{operation}")(1, None)


def test_shared_lock_is_released_while_waiting():
  lock = threading.RLock()
  limiter = make_rate_limiter(options.MinSize(1), lock)

  def sample():
    with lock:
      granted = limiter.await_sample(5, None)
      limiter.did_sample(granted)
      return granted

  outcome = start(sample)
  with lock:
    limiter.did_insert(1)
  assert outcome.get(timeout=10) == 5
  assert limiter.num_samples == 5


def test_queue_keeps_its_bounds_under_threads():
  lock = threading.RLock()
  limiter = make_rate_limiter(options.Queue(5), lock)
  sizes, total = [], 4000

  def work(operation: str) -> None:
    done = 0
    while done < total:
      with lock:
        count = getattr(limiter, f"await_{operation}")(min(3, total - done), 10)
        getattr(limiter, f"did_{operation}")(count)
        sizes.append(limiter.num_inserts - limiter.num_samples)
      done += count

  outcomes = [start(work, name) for name in ("insert", "sample") * 2]
  for outcome in outcomes:
    assert outcome.get(timeout=60) is None
  assert limiter.num_inserts == limiter.num_samples == 2 * total
  assert min(sizes) >= 0 and max(sizes) <= 5


NO_BUFFERS = {
  "a word": "a",
  "nothing": None,
  "three": (1, 2, 3),
  "one bound": (1,),
  "a word in a pair": ("a", 3),
  "nothing in a pair": [None, 2],
  "a flag": True,
}


@pytest.mark.parametrize("name", NO_BUFFERS)
def test_invalid_error_buffer_is_an_error(name):
  want = "Ratio: error_buffer: expected a number, or a pair of bounds, got"
  with pytest.raises(errors.SpecError, match=want):
    options.SampleToInsertRatio(2, 1, NO_BUFFERS[name])
