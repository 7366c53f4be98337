"""Priorities that come with steps, and wait there for the steps' items."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay
from t2r_seq.specs import ExtendedTensorSpec as Spec

N = 3
# An item waits for two more steps.
SPEC = {"x": Spec((2,), tf.int64, "x", time_offsets=(0, 2))}


def make(**arguments):
  return replay.ReplayBuffer(
    SPEC,
    60,
    num_writers=N,
    sampler=replay.Prioritized(1.0),
    seed=0,
    **{"padding": "drop", **arguments},
  )


def priorities(buffer):
  """Returns the priority of each item by its first step."""
  info, batch = buffer.sample_with_info(2000)
  return dict(zip(batch["x"][:, 0].tolist(), info.priority.tolist(), strict=True))


def given(t):
  """Returns what comes with the steps at a time: nothing at some."""
  return None if t in (2, 6, 7) else 2.0 + t + np.arange(N) / 4


def wanted(ends):
  """Returns the priorities of steps that two more follow in their episode."""
  found = {}
  for t in range(ends[-1]):
    end = next(end for end in ends if end > t)
    if t + 2 < end:
      come = given(t)
      for lane in range(N):
        found[100 * lane + t] = 1.0 if come is None else come.item(lane)
  return found


def test_each_item_has_what_came_with_its_step():
  ends = (5, 12)
  with make() as buffer:
    writers = [buffer.writer() for _ in range(N)]
    for t in range(ends[-1]):
      x, come = 100 * np.arange(N) + t, given(t)
      for lane, writer in enumerate(writers):
        writer.append({"x": x[lane]}, None if come is None else come.item(lane))
      if t + 1 in ends:
        for writer in writers:
          writer.end_episode()
    assert priorities(buffer) == wanted(ends)


def test_checkpoint_keeps_those_that_wait(tmp_path):
  options = {"checkpoint_dir": str(tmp_path), "padding": "repeat"}
  with make(**options) as buffer:
    writer = buffer.writer()
    for t in range(4):
      writer.append({"x": np.int64(t)}, 2.0 + t)
    buffer.checkpoint()
  with make(**options) as restored:
    restored.restore(tmp_path)
    restored.writer()  # It ends the episode, which nobody goes on with.
    assert priorities(restored) == {0: 2.0, 1: 3.0, 2: 4.0, 3: 5.0}


BAD_SINGLE = {
  "a word": ("a", "append: priority: expected a number, got str 'a'"),
  "several": (
    [1.0, 2.0],
    r"priority: expected a number, got list \[1.0, 2.0\]",
  ),
  "negative": (-1, "append: priority: expected finite .* got -1"),
  "not a number": (np.float32("nan"), "append: priority: expected finite .* got nan"),
}


@pytest.mark.parametrize("name", BAD_SINGLE)
def test_bad_ones_for_a_step(name):
  wrong, message = BAD_SINGLE[name]
  with make() as buffer:
    writer = buffer.writer()
    with pytest.raises(errors.SpecError, match=message):
      writer.append({"x": 0}, wrong)
    assert buffer.counters.num_steps == 0
    for priority in (1, np.float32(2.0), np.array(3), tf.constant(4.0)):
      writer.append({"x": 0}, priority)


@pytest.mark.parametrize(
  ("keys", "wrong", "message"),
  [
    ([0], [1.0, 2.0], r"priorities: expected numbers of shape \(1,\), got list"),
    ([0], "a", r"priorities: expected numbers of shape \(1,\), got str 'a'"),
    ([0.5], [1.0], r"keys: expected integers \[n\] of at least 0, got \(1,\) float64"),
  ],
  ids=["too many", "a word", "no keys"],
)
def test_bad_updates(keys, wrong, message):
  with make() as buffer, pytest.raises(errors.SpecError, match=message):
    buffer.update_priorities(np.array(keys), wrong)
