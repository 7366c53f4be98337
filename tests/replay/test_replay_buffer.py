"""The in-process engine: the contract of all engines, and what is its own."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, replay, windows
from t2r_seq.specs import ExtendedTensorSpec as Spec
from tests.replay.engine_contract import EngineContract


@pytest.fixture
def make_replay():
  made = []

  def make(spec_structure, **arguments):
    arguments.setdefault("capacity_steps", 200)
    made.append(replay.ReplayBuffer(spec_structure, seed=1, **arguments))
    return made[-1]

  yield make
  for buffer in made:
    buffer.close()


class TestReplayBuffer(EngineContract):
  """The contract."""


@pytest.mark.parametrize("sampler", [replay.Fifo(), replay.Uniform()])
def test_queue_is_not_prefetched(sampler):
  spec = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  with replay.ReplayBuffer(spec, 10, sampler=sampler, max_times_sampled=1) as buffer:
    with buffer.writer() as writer:
      for x in range(6):
        writer.append({"x": np.int64(x)})
    dataset = buffer.dataset(1)
    # The first reader would wait without end for a sixth item and a seventh.
    got = [int(batch["x"][0]) for batch in dataset.take(5)]
    assert buffer.counters.num_samples == 5
    got += [int(batch["x"][0]) for batch in dataset.take(1)]
    assert (got if sampler == replay.Fifo() else sorted(got)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("is_dataset", [False, True])
def test_sample_in_vain_takes_nothing_out_of_a_queue(is_dataset):
  spec = {
    "x": Spec((), tf.int64, "x", time_offsets=0),
    "wide": Spec((2000,), tf.int64, "wide", time_offsets=0),
  }
  with replay.ReplayBuffer(
    spec, 10, sampler=replay.Fifo(), max_times_sampled=1, timeout=0.05
  ) as buffer:
    writer = buffer.writer()

    def append(*values):
      for x in values:
        writer.append({"x": x, "wide": np.full(2000, x)})

    def sample():
      if is_dataset:
        return {p: v.numpy() for p, v in next(iter(buffer.dataset(5))).items()}
      return buffer.sample_with_info(5)[1]

    append(0, 1, 2)
    for _ in range(2):
      with pytest.raises((errors.ReplayTimeoutError, tf.errors.OpError), match="0 of"):
        sample()
    append(3)
    with pytest.raises((errors.ReplayTimeoutError, tf.errors.OpError), match="0 of"):
      sample()
    # What was taken is not written over.
    append(*range(4, 14))
    for want in ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]):
      batch = sample()
      assert batch["x"].tolist() == want
      assert batch["wide"][:, -1].tolist() == want


def test_wait_for_windows_logs_the_steps_that_they_need():
  spec = {"x": Spec((4,), tf.int64, "x", time_offsets=(-2, -1, 0, 1))}
  with replay.ReplayBuffer(spec, 10, timeout=0.01, padding="drop") as buffer:
    writer = buffer.writer()
    for x in range(3):
      writer.append({"x": np.int64(x)})
    with pytest.raises(
      errors.ReplayTimeoutError,
      match=r"There are 3 steps, and the first item takes 4 of one episode\.$",
    ):
      buffer.sample(1)
    writer.append({"x": np.int64(3)})
    assert buffer.sample(1)["x"].tolist() == [[0, 1, 2, 3]]


def test_stopped_writer_does_not_wait():
  spec = {"x": Spec((), tf.int64, "x", time_offsets=0)}
  limiter = replay.SampleToInsertRatio(1.0, 1, 2.0)
  with replay.ReplayBuffer(spec, 10, rate_limiter=limiter) as buffer:
    writer = buffer.writer()
    writer.should_stop = lambda: True
    with pytest.raises(errors.ReplayTimeoutError, match="insert: stopped while"):
      for x in range(9):
        writer.append({"x": np.int64(x)})


def _full_of_an_episode(**arguments):
  """Returns a buffer that took 3 of an episode's 5 items, and its writer."""
  spec = {"x": Spec((2,), tf.int64, "x", time_offsets=(0, 2))}
  limiter = replay.SampleToInsertRatio(1.0, 1, 2.0)
  buffer = replay.ReplayBuffer(
    spec, 10, rate_limiter=limiter, padding="repeat", seed=0, **arguments
  )
  writer = buffer.writer()
  for x in range(5):
    writer.append({"x": np.int64(x)})
  assert buffer.counters.num_inserts == 3
  return buffer, writer


@pytest.mark.parametrize("end", ["end_episode", "close"])
def test_stopped_writer_ends_its_episode_without_waiting(end):
  buffer, writer = _full_of_an_episode()
  with buffer:
    writer.should_stop = lambda: True
    with pytest.raises(errors.ReplayTimeoutError, match="insert: stopped while"):
      getattr(writer, end)()
    writer.close()
    assert buffer.writer()  # The only one, given back.


def test_end_that_waited_in_vain_is_an_end():
  buffer, writer = _full_of_an_episode(timeout=0.01)
  with buffer:
    with pytest.raises(errors.ReplayTimeoutError, match="insert: waited"):
      writer.end_episode()
    buffer.sample(2)
    # The next step begins another, and windows never cross from one to the other.
    writer.append({"x": np.int64(10)})
    writer.end_episode()
    assert buffer.counters.num_inserts == 4
    assert buffer.counters.num_episodes == 2


def test_replays_warn_of_invented_steps(caplog):
  spec = {
    "obs": Spec((1,), tf.float32, "obs", time_offsets=0),
    "next": Spec((1,), tf.float32, "obs", time_offsets=1),
  }
  masked = windows.add_mask_specs(spec)
  with caplog.at_level(logging.WARNING, logger="absl"):
    for padding in ("drop", ("repeat", "drop")):
      replay.ReplayBuffer(spec, 10, padding=padding)
    replay.ReplayBuffer(masked, 10)
    replay.ReplayBuffer({"obs": spec["obs"]}, 10)
    assert not caplog.messages
    replay.ReplayBuffer(spec, 10)
  assert "[next] look ahead and are padded ('repeat') at the end" in caplog.messages[0]
