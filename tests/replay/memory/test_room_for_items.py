"""What a rate limiter waits for has to fit into the ring, and into `max_size`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.specs import ExtendedTensorSpec as Spec

X = {"x": Spec((), tf.int64, "x", time_offsets=0)}
PAIR = {"x": Spec((2,), tf.int64, "x", time_offsets=(-1, 0))}
FOUR = {"x": Spec((4,), tf.int64, "x", time_offsets=(-3, -2, -1, 0))}
AHEAD = {"x": Spec((4,), tf.int64, "x", time_offsets=(-1, 0, 1, 2))}
SEQUENCE = {"x": Spec((1,), tf.int64, "x", is_sequence=True, time_offsets=(0,))}
ONCE = {"sampler": replay.Fifo(), "max_times_sampled": 1}
RATIO = replay.SampleToInsertRatio(1.0, 10, 100.0)
QUEUE_8, QUEUE_10 = replay.Queue(8), replay.Queue(10)
MIN_10, MIN_99 = replay.MinSize(10), replay.MinSize(99)

TOO_MUCH = {
  "a queue of stacks": (
    (FOUR, {**ONCE, "capacity_steps": 10, "rate_limiter": QUEUE_10}),
    "rate_limiter: expected size of at most 7, the items that 10 steps, the part of a "
    "writer, keep while others come, got 10. Items would go before they are sampled: "
    "raise capacity_steps, or lower it.",
  ),
  "a queue, by writers": (
    (
      X,
      {**ONCE, "capacity_steps": 30, "num_writers": 4, "rate_limiter": QUEUE_8},
    ),
    "size of at most 7, the items that 7 steps,",
  ),
  "a queue with a limit": (
    (
      X,
      {**ONCE, "capacity_steps": 20, "max_size": 3, "rate_limiter": QUEUE_10},
    ),
    "size of at most 3, the items that max_size lets in, got 10. Items would go before "
    "they are sampled: raise max_size, or lower it.",
  ),
  "steps": (
    (X, {"capacity_steps": 5, "rate_limiter": MIN_10}),
    "expected min_size_to_sample of at most 5, the items that 1 x 5 steps "
    "have, got 10. Samples would wait without end: raise capacity_steps, or lower it.",
  ),
  "items": (
    (X, {"capacity_steps": 50, "max_size": 5, "rate_limiter": MIN_10}),
    "min_size_to_sample of at most 5, the items that max_size lets in, got 10.",
  ),
  "pairs of three writers": (
    (
      PAIR,
      {
        "capacity_steps": 100,
        "num_writers": 3,
        "rate_limiter": MIN_99,
        "padding": "drop",
      },
    ),
    "min_size_to_sample of at most 96, the items that 3 x 33 steps have, got 99.",
  ),
  "a ratio": (
    (PAIR, {"capacity_steps": 10, "rate_limiter": RATIO, "padding": "drop"}),
    "min_size_to_sample of at most 9, the items that 1 x 10 steps have, got 10.",
  ),
  "bytes": (
    (X, {"capacity_bytes": 100, "rate_limiter": RATIO}),
    "raise capacity_bytes, or lower it.",
  ),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_items_larger_than_the_buffer_are_refused(name):
  (spec, arguments), message = TOO_MUCH[name]
  with pytest.raises(errors.SpecError) as caught:
    replay.ReplayBuffer(spec, **arguments)
  assert message in str(caught.value)


def _steps(buffer):
  return buffer._table.index.counts.tolist()


BLOCKS = {
  # Environments; items sampled before the steps that wait; steps of each writer then.
  "no item": ({"num_writers": 2}, 2, 0, [1, 1]),
  "an item of two": ({"num_writers": 2}, 2, 1, [2, 1]),
  "with contexts": ({"num_writers": 3, "goal": True}, 3, 1, [2, 1, 1]),
  "fewer than the ring has": ({"num_writers": 4}, 3, 2, [2, 2, 1, 0]),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_environments_that_wait_in_vain_say_what_was_appended(name):
  arguments, num, num_sampled, want = BLOCKS[name]
  spec = dict(X)
  if arguments.pop("goal", False):
    spec["goal"] = Spec((), tf.int64, "goal")
  options = {**ONCE, "rate_limiter": replay.Queue(num), "timeout": 0.0}
  buffer = replay.ReplayBuffer(spec, 40, **arguments, **options)
  writers = [buffer.writer() for _ in range(num)]

  def append_all():
    for row, writer in enumerate(writers):
      writer.append(dict.fromkeys(spec, row))

  append_all()
  if num_sampled:
    buffer.sample(num_sampled)
  with pytest.raises(errors.ReplayTimeoutError, match="insert: waited 0 s"):
    append_all()
  assert _steps(buffer) == want
  assert buffer.counters.num_items == num


WINDOWS = {
  "steps": (X, {}),
  "pairs": (PAIR, {}),
  "pairs, repeated": (PAIR, {"padding": "repeat"}),
  "ahead": (AHEAD, {}),
  "ahead, zeros": (AHEAD, {"padding": "zero"}),
  "joined": (
    {
      "obs": Spec((), tf.int64, "obs", time_offsets=0),
      "next_obs": Spec((), tf.int64, "obs", time_offsets=1),
      "rew": Spec((), tf.float32, "rew", time_offsets=0),
      "done": Spec((), tf.float32, "done", time_offsets=0),
    },
    {"n_step": (3, 0.9)},
  ),
  "sequences": (SEQUENCE, {"sequence_length": 3}),
  "far apart": (SEQUENCE, {"sequence_length": 2, "shift": 4}),
  "far apart, repeated": (
    SEQUENCE,
    {"sequence_length": 3, "shift": 2, "padding": "repeat"},
  ),
}
CAPACITY = 17


def step(buffer, x):
  flat = buffer.flat_spec
  return {path: flat[path].dtype.as_numpy_dtype(x) for path in flat}


def most(name):
  """Returns the greatest minimum and the greatest queue that are let in."""
  spec, arguments = WINDOWS[name]
  found = []
  for limiter, more in ((replay.MinSize, {}), (replay.Queue, ONCE)):
    sizes = []
    for size in range(1, CAPACITY + 1):
      try:
        options = {**arguments, **more, "rate_limiter": limiter(size)}
        replay.ReplayBuffer(spec, CAPACITY, **options)
        sizes.append(size)
      except errors.SpecError:
        break
    found.append(sizes[-1])
  return found


@pytest.mark.parametrize("name", WINDOWS)
def test_minimum_is_what_can_be_held(name):
  spec, arguments = WINDOWS[name]
  seen = 0
  for length in (1, 2, 3, 4, 5, CAPACITY, 60):
    buffer = replay.ReplayBuffer(spec, CAPACITY, **arguments)
    writer = buffer.writer()
    for t in range(60):
      writer.append(step(buffer, t))
      if (t + 1) % length == 0:
        writer.end_episode()
      seen = max(seen, buffer.counters.num_items)
  assert seen == most(name)[0]


@pytest.mark.parametrize("name", WINDOWS)
def test_accepted_queue_loses_no_item(name):
  spec, arguments = WINDOWS[name]
  size = most(name)[1]
  limiter = replay.Queue(size)
  buffer = replay.ReplayBuffer(
    spec, CAPACITY, **arguments, **ONCE, rate_limiter=limiter, timeout=0.0
  )
  writer = buffer.writer()
  taken = 0
  for t in range(100):
    while True:
      try:
        writer.append(step(buffer, t))
        break
      except errors.ReplayTimeoutError:
        assert buffer.counters.num_items == size
        buffer.sample(1)
        taken += 1
  counters = buffer.counters
  assert taken == counters.num_deletes == counters.num_inserts - size
  np.testing.assert_array_less(0, taken)
