"""A buffer against a plain model of it, over random operations."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import replay, windows
from t2r_seq.replay import ReplayBuffer
from t2r_seq.specs import ExtendedTensorSpec as Spec
from t2r_seq.windows.reader import WindowReader


class Model:
  """Lists of steps: what a buffer ought to hold, written for clarity alone."""

  def __init__(self, reader, num_slots, num_writers):
    self._grid = reader.grid
    shown = reader.steps_shown
    self._back, self._ahead = max(0, -shown[0]), shown[1]
    self._num_slots = num_slots
    self.episodes = [[[]] for _ in range(num_writers)]
    self.counts = [0] * num_writers

  def append(self, lane, value):
    self.episodes[lane][-1].append((self.counts[lane], value))
    self.counts[lane] += 1

  def end(self, lane):
    if self.episodes[lane][-1]:
      self.episodes[lane].append([])

  def windows(self):
    """Returns the anchors of all windows, as values."""
    return sorted(
      value
      for lane, episodes in enumerate(self.episodes)
      for episode in episodes
      for value in self._anchors(lane, episode, episode is episodes[-1])
    )

  def _anchors(self, lane, episode, is_running):
    num, first = len(episode), self.counts[lane] - self._num_slots
    for number in range(int(self._grid.num_windows(num))):
      t = self._grid.start(number)
      if is_running and t + self._ahead >= num:
        continue
      count, value = episode[t]
      # A full ring lets items go as soon as a step `back` before them has died.
      if first <= 0 or count - self._back >= first:
        yield value


CASES = {
  "one writer": ({}, 1, 9),
  "padded": ({"padding": "repeat"}, 2, 7),
  "zeros": ({"padding": "zero"}, 1, 12),
  "sequences": ({"sequence_length": 3, "stride": 2}, 2, 15),
  "sequences apart, padded": (
    {"sequence_length": 2, "shift": 3, "padding": "repeat"},
    1,
    20,
  ),
}
SINGLE = {
  "x": Spec((2,), tf.int64, "x", time_offsets=(-2, 0)),
  "later": Spec((), tf.int64, "x", time_offsets=1),
  "now": Spec((), tf.int64, "x", time_offsets=0),
}
SEQUENCE = {"x": Spec((2,), tf.int64, "x", time_offsets=(-1, 0), is_sequence=True)}


@pytest.mark.parametrize("sampler", [replay.Uniform(), replay.Prioritized(1.0)])
@pytest.mark.parametrize("name", CASES)
def test_random_operations(name, sampler):
  options, num_writers, num_slots = CASES[name]
  spec = SEQUENCE if "sequence_length" in options else SINGLE
  element = {"x": tf.TensorSpec([None], tf.int64)}
  reader = WindowReader(element, spec, windows.Cut(**options))
  for seed in range(4):
    rng = np.random.default_rng(seed)
    buffer = ReplayBuffer(
      *(spec, num_slots * num_writers),
      num_writers=num_writers,
      sampler=sampler,
      seed=seed,
      **options,
    )
    model = Model(reader, num_slots, num_writers)
    writers = [buffer.writer() for _ in range(num_writers)]
    for number in range(250):
      lane = int(rng.integers(num_writers))
      if rng.random() < 0.12:
        writers[lane].end_episode()
        model.end(lane)
      else:
        writers[lane].append({"x": np.int64(number)})
        model.append(lane, number)
      want = model.windows()
      assert buffer.counters.num_items == len(want), (seed, number)
      if want and number % 5 == 0:
        info, batch = buffer.sample_with_info(40 * len(want))
        assert sorted(set(_anchors(buffer, info).tolist())) == want
        check_windows(batch, options, spec)
        buffer.update_priorities(info.key, 0.5 + rng.random(len(info.key)))
        np.testing.assert_array_equal(info.table_size, len(want))


def _anchors(buffer, info):
  """Returns the values of the first anchors."""
  keys = info.key.astype(np.int64)
  return buffer._table.ring.columns["x"][keys % buffer._table.ring.num_rows]


def check_windows(batch, options, spec):
  """Checks that values go up by their order in time, zeros aside."""
  if spec is SEQUENCE:
    values = batch["x"].reshape(len(batch["x"]), -1, 2)
    assert (values[:, :, 0] <= values[:, :, 1]).all()
    return
  now, past, later = batch["now"], batch["x"], batch["later"]
  assert (past[:, 1] == now).all()
  assert (past[:, 0] <= now).all()
  assert ((later >= now) | ((later == 0) & (options.get("padding") == "zero"))).all()
