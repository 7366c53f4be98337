"""n-step transitions when they are sampled: the same as `transitions` reads them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import errors, transitions
from t2r_seq.replay import Fifo, ReplayBuffer
from t2r_seq.specs import ExtendedTensorSpec as Spec

LENGTHS = (1, 4, 2, 9)


def transition_spec(dtype=tf.float32):
  def at(shape, kind, name, offset=0):
    return Spec(shape, kind, name, time_offsets=offset)

  return {
    "obs": at((3,), tf.float32, "obs"),
    "act": at((), tf.int32, "act"),
    "rew": at((), dtype, "rew"),
    "next_obs": at((3,), tf.float32, "obs", 1),
    "done": at((), tf.float32, "done"),
    "truncated": at((), tf.bool, "truncated"),
  }


def make_episodes():
  rng = np.random.default_rng(0)
  for number, num in enumerate(LENGTHS):
    ends = np.arange(num) == num - 1
    yield {
      "obs": rng.random((num + 1, 3), np.float32),
      "act": np.arange(num, dtype=np.int32) + 100 * number,
      "rew": rng.random(num, np.float32),
      "done": (ends & (number % 2 == 0)).astype(np.float32),
      "truncated": ends & (number % 2 == 1),
    }


def write(writer, episode):
  num = len(episode["rew"])
  for t in range(num):
    writer.append({path: values[t] for path, values in episode.items()})
  last = {path: np.zeros_like(values[0]) for path, values in episode.items()}
  writer.append({**last, "obs": episode["obs"][num]})
  writer.end_episode()


@pytest.mark.parametrize("padding", ["drop", "repeat"])
@pytest.mark.parametrize("n", [1, 3, 20])
def test_joined_transitions_are_those_that_are_read_from_a_store(n, padding, tmp_path):
  episodes = list(make_episodes())
  flat = {
    path: np.concatenate([e[path] for e in episodes])
    for path in ("act", "rew", "done", "truncated")
  }
  flat["obs"] = np.concatenate([e["obs"][:-1] for e in episodes])
  flat["next_obs"] = np.concatenate([e["obs"][1:] for e in episodes])
  transitions.save_transitions(tmp_path / "store", flat)
  loaded = transitions.load_transitions(tmp_path / "store").n_step(n, 0.9)
  want = loaded.to_numpy()

  buffer = ReplayBuffer(
    transition_spec(),
    60,
    n_step=(n, 0.9),
    padding=padding,
    sampler=Fifo(),
    max_times_sampled=1,
    timeout=0,
  )
  with buffer.writer() as writer:
    for episode in episodes:
      write(writer, episode)
  got = buffer.sample(sum(LENGTHS))
  assert buffer.counters.num_items == 0
  order = np.argsort(got["act"], kind="stable")
  assert got.keys() == set(want)
  for path, values in want.items():
    assert got[path].dtype == values.dtype, path
    np.testing.assert_allclose(got[path][order], values, rtol=1e-6, err_msg=path)


def test_running_episode_waits_for_all_n_steps():
  buffer = ReplayBuffer(transition_spec(), 60, n_step=(3, 1.0))
  episode = list(make_episodes())[3]
  writer = buffer.writer()
  for t in range(5):
    writer.append({path: values[t] for path, values in episode.items()})
  assert buffer.counters.num_items == 2
  writer.end_episode()
  assert buffer.counters.num_items == 4


def test_stacks_of_frames():
  spec = {
    **transition_spec(),
    "obs": Spec((2, 3), tf.float32, "obs", time_offsets=(-1, 0)),
    "next_obs": Spec((2, 3), tf.float32, "obs", time_offsets=(0, 1)),
  }
  episode = list(make_episodes())[3]
  buffer = ReplayBuffer(spec, 60, n_step=(3, 0.5), padding="repeat", seed=0)
  write(buffer.writer(), episode)
  batch = buffer.sample(200)
  obs = episode["obs"]
  for row, t in enumerate(batch["act"] - 300):
    end = min(t + 3, 9)
    rewards = episode["rew"][t:end] * 0.5 ** np.arange(end - t)
    np.testing.assert_array_equal(batch["obs"][row], obs[[max(t - 1, 0), t]])
    np.testing.assert_array_equal(batch["next_obs"][row], obs[[end - 1, end]])
    np.testing.assert_allclose(batch["rew"][row], rewards.sum(), rtol=1e-6)
    assert batch["num_steps"][row] == end - t
  assert set(batch["act"] - 300) == set(range(9))


def test_dataset_has_the_same_fields():
  buffer = ReplayBuffer(transition_spec(tf.float64), 60, n_step=(2, 0.5), seed=0)
  write(buffer.writer(), {**list(make_episodes())[3], "rew": np.ones(9)})
  element = buffer.dataset(4).element_spec
  batch = next(iter(buffer.dataset(4)))
  assert element["rew"].dtype == tf.float64 and element["discount"].dtype == tf.float32
  assert {p: (t.shape, t.dtype) for p, t in batch.items()} == {
    p: (t.shape, t.dtype) for p, t in element.items()
  }


BAD_SPECS = {
  "no flag": ({"done": None}, "done: expected the flag of terminals, got nothing"),
  "a next one of another time": (
    {"next_obs": Spec((3,), tf.float32, "obs", time_offsets=2)},
    r"next_obs: expected the offsets of obs, each one step later, got offsets 2",
  ),
  "a reward of another time": (
    {"rew": Spec((), tf.float32, "rew", time_offsets=-1)},
    r"rew: expected the anchor's own step, time_offsets=0, got offsets -1",
  ),
  "a field that is added": (
    {"discount": Spec((), tf.float32, "discount", time_offsets=0)},
    "discount: expected no field of the name",
  ),
}


@pytest.mark.parametrize("name", BAD_SPECS)
def test_bad_specs(name):
  changes, message = BAD_SPECS[name]
  spec = {p: s for p, s in {**transition_spec(), **changes}.items() if s is not None}
  with pytest.raises(errors.SpecError, match=message):
    ReplayBuffer(spec, 60, n_step=(2, 0.9))


def test_sequences_are_not_joined():
  with pytest.raises(
    errors.SpecError, match="sequence_length: expected None with n_step, got 3"
  ):
    ReplayBuffer(
      {**transition_spec(), "s": Spec((2,), tf.float32, "s", is_sequence=True)},
      60,
      n_step=(2, 0.9),
      sequence_length=3,
    )
