"""Sinks under environments that reuse their arrays, and in runs that end too early."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import actors, errors, replay, specs, store
from t2r_seq.actors.rollouts import generate_steps


class _InPlaceEnv:
  """Writes each observation, and what it tells, over the one before."""

  def __init__(self, first=0, fails_at=None):
    self._first, self._fails_at = first, fails_at
    self._obs, self._told = np.zeros(1, np.float32), [np.zeros(1, np.float32)]

  def reset(self, seed=None, options=None):
    self._obs[:] = self._told[0][:] = self._first
    return {"obs": self._obs, "pair": (self._obs, 0)}, {"told": self._told}

  def step(self, action):
    self._obs += 1
    self._told[0] += 1
    t = int(self._obs[0]) - self._first
    if t == self._fails_at:
      raise RuntimeError("camera lost")
    pair = (self._obs, t)
    return {"obs": self._obs, "pair": pair}, 1.0, False, t == 5, {"told": self._told}

  def close(self):
    pass


class _Zeros:
  """Does nothing, in one environment or in several."""

  def reset(self):
    pass

  def sample_action(self, obs, explore_prob):
    return np.zeros(1, np.float32), None

  def sample_actions(self, observations, is_first, explore_prob):
    return [np.zeros(1, np.float32) for _ in is_first], [None for _ in is_first]


STACKS = {
  "obs": specs.ExtendedTensorSpec((2, 1), tf.float32, "obs", time_offsets=(-1, 0))
}


def _stacks(buffer):
  return np.unique(buffer.sample(300)["obs"][..., 0], axis=0).tolist()


def test_environment_may_update_its_observation_in_place(tmp_path):
  steps = list(generate_steps(_InPlaceEnv(), _Zeros(), 1))
  for t, (_, step) in enumerate(steps):
    for name, want in (("observation", t), ("next_observation", t + 1)):
      assert step[name]["obs"] == step[name]["pair"][0] == want
    assert (step["info"]["told"][0], step["next_info"]["told"][0]) == (t, t + 1)
  buffer = replay.ReplayBuffer(STACKS, 100, seed=0, padding="drop")
  with actors.ReplaySink(buffer) as sink:
    actors.run_env(_InPlaceEnv(), _Zeros(), 1, sink=sink)
  assert _stacks(buffer) == [[0, 1], [1, 2], [2, 3], [3, 4]]
  path = str(tmp_path / "store")
  with actors.StoreSink(path, STACKS) as sink:
    actors.run_env(_InPlaceEnv(), _Zeros(), 1, sink=sink)
  episode = store.EpisodeStore(path).episode(0)
  assert episode["obs"].ravel().tolist() == [0, 1, 2, 3, 4]


def test_stop_reaches_a_writer_before_it_waits_for_a_server(monkeypatch):
  buffer = replay.ReplayBuffer(STACKS, 100, padding="drop")
  stop = threading.Event()

  def connect(should_stop):
    stop.set()
    assert should_stop()
    raise errors.ReplayTimeoutError("told to stop")

  monkeypatch.setattr(buffer, "writer", connect)
  sink = actors.ReplaySink(buffer)
  sink.stop_with(stop)
  with pytest.raises(errors.ReplayTimeoutError, match="told to stop"):
    actors.run_env(_InPlaceEnv(), _Zeros(), 1, sink=sink, stop=stop)
  sink.close()


class _StopAt:
  """Stops after a number of steps."""

  def __init__(self, count):
    self._count = count

  def is_set(self):
    self._count -= 1
    return self._count <= 0


def _run_cut_short(how, sink):
  """Runs an episode from 0 that ends after its third step, by a stop or a failure."""
  if how == "stopped":
    actors.run_env(_InPlaceEnv(), _Zeros(), 1, sink=sink, stop=_StopAt(3))
  else:
    with pytest.raises(RuntimeError, match="camera lost"):
      actors.run_env(_InPlaceEnv(fails_at=4), _Zeros(), 1, sink=sink)


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_replay_ends_the_episode_of_a_run_cut_short(how):
  buffer = replay.ReplayBuffer(STACKS, 100, seed=0, padding="drop")
  with actors.ReplaySink(buffer) as sink:
    _run_cut_short(how, sink)
    actors.run_env(_InPlaceEnv(first=100), _Zeros(), 1, sink=sink)
  later = [[100 + t, 101 + t] for t in range(4)]
  assert _stacks(buffer) == [[0, 1], [1, 2], *later]


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_store_drops_the_episode_of_a_run_cut_short(how, tmp_path):
  path = str(tmp_path / "store")
  with actors.StoreSink(path, STACKS) as sink:
    _run_cut_short(how, sink)
    actors.run_env(_InPlaceEnv(first=100), _Zeros(), 1, sink=sink)
  opened = store.EpisodeStore(path)
  assert len(opened) == 1
  episode = opened.episode(0)
  assert episode["obs"].ravel().tolist() == [100, 101, 102, 103, 104]


def test_all_environments_abandon_their_episodes():
  gymnasium = pytest.importorskip("gymnasium")

  class Counting(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
      {"obs": gymnasium.spaces.Box(0, 999, (1,), np.float32)}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    first = 0

    def reset(self, *, seed=None, options=None):
      self.t = 0
      return {"obs": np.float32([self.first])}, {}

    def step(self, action):
      self.t += 1
      return {"obs": np.float32([self.first + self.t])}, 1.0, False, self.t == 4, {}

  buffer = replay.ReplayBuffer(STACKS, 100, num_writers=2, seed=0, padding="drop")
  envs = gymnasium.vector.SyncVectorEnv(
    [Counting] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED
  )
  with actors.ReplaySink(buffer) as sink:
    # Five steps of two environments: three of the one, two of the other.
    actors.run_env(envs, _Zeros(), 2, sink=sink, stop=_StopAt(5))
    Counting.first = 100
    actors.run_env(envs, _Zeros(), 2, sink=sink)
  envs.close()
  assert _stacks(buffer) == [[0, 1], [1, 2], [100, 101], [101, 102], [102, 103]]


def test_error_of_a_run_precedes_that_of_its_sink():
  class Leaving:
    def append(self, step):
      if step["obs"] == 2:
        raise errors.ReplayTimeoutError("insert")

    def end_episode(self):
      raise errors.ReplayTimeoutError("end")

  source = replay.ReplayBuffer(STACKS, 10)
  source.writer = lambda should_stop: Leaving()
  with pytest.raises(errors.ReplayTimeoutError, match=r"^insert"):
    actors.run_env(_InPlaceEnv(), _Zeros(), 1, sink=actors.ReplaySink(source))
