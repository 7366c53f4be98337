"""Collecting and evaluating, round after round."""

from __future__ import annotations

import threading

import gin
import numpy as np
import pytest
import tensorflow as tf

from t2r_seq import actors, errors, policies, replay, specs
from t2r_seq.actors import collect
from t2r_seq.actors.sinks import EpisodeSink
from t2r_seq.policies.predictors import NoModelError


class _Sink(EpisodeSink):
  """Keeps what it is given."""

  def __init__(self):
    self.actions = []
    self.num_episodes = 0
    self.num_closed = 0

  def append(self, step, env=0):
    self.actions.append(float(step["action"][0]))

  def end_episode(self, env=0):
    self.num_episodes += 1

  def close(self):
    self.num_closed += 1


class _Exports:
  """What a learner has exported: training steps, one more at each look."""

  def __init__(self, *steps):
    self.left = list(steps)

  def newest(self):
    step = self.left[0]
    if len(self.left) > 1:
      self.left.pop(0)
    if step is None:
      raise NoModelError("no model")
    return step


class _Policy(policies.Policy):
  """Acts with the training step of the export in use."""

  def __init__(self, exports):
    super().__init__()
    self._exports = exports
    self._step = 0

  def restore(self):
    self._step = self._exports.newest()
    return True

  @property
  def global_step(self):
    return self._step

  def SelectAction(self, state, context, timestep):
    return np.float32([self._step, 0])


def _read_scalars(folder):
  """Returns the scalars of a folder's event files, by (tag, step)."""
  scalars = {}
  for path in sorted(folder.glob("events*")):
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
      event = tf.compat.v1.Event.FromString(record)
      for value in event.summary.value:
        scalars[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
  return scalars


def _loop(env, exports, sink=None, **kwargs):
  return actors.collect_eval_loop(
    collect_env=env,
    policy_class=lambda: _Policy(exports),
    num_collect=kwargs.pop("num_collect", 1),
    sink=sink,
    poll_interval=0.0,
    **kwargs,
  )


def test_one_round(make_env, tmp_path):
  sink, eval_env, called = _Sink(), make_env(length=2), []
  result = _loop(
    lambda: make_env(length=3),
    _Exports(7),
    sink,
    num_collect=2,
    eval_env=eval_env,
    num_eval=3,
    root_dir=str(tmp_path),
    pre_collect_eval_fn=lambda: called.append(len(sink.actions)),
  )
  assert called == [0]
  assert (sink.num_episodes, sink.num_closed) == (2, 1)
  assert sink.actions == [7.0, 7.0]
  assert (result["num_rounds"], result["num_episodes"], result["num_steps"]) == (
    1,
    2,
    2,
  )
  assert (result["global_step"], result["was_stopped"]) == (7, False)
  assert result["eval/num_episodes"] == 3
  assert not eval_env.is_closed
  collected = _read_scalars(tmp_path / "policy_collect")
  assert collected["collect/episode_reward", 7] == 1.0
  assert collected["collect/episode_length", 7] == 1.0
  assert _read_scalars(tmp_path / "eval")["eval/num_episodes", 7] == 3


def test_round_for_each_export(make_env):
  sink = _Sink()
  env, eval_env = make_env(), make_env()
  result = _loop(
    env, _Exports(1, 1, 4, 4, 4, 9, 12), sink, eval_env=eval_env, num_eval=2,
    continuous=True, max_steps=9, min_collect_eval_step=2,
  )  # fmt: skip
  assert sink.actions == [4.0, 9.0]
  assert (result["num_rounds"], result["global_step"]) == (2, 9)
  assert len(eval_env.reset_seeds) == 2 * 2


def test_collecting_on_with_the_newest_export(make_env):
  sink, eval_env = _Sink(), make_env()
  _loop(
    make_env(), _Exports(1, 1, 4, 4, 9), sink, eval_env=eval_env, num_eval=1,
    continuous=True, max_steps=9, wait_for_new_policy=False,
  )  # fmt: skip
  assert sink.actions == [1.0] * 3 + [1.0] * 3 + [4.0, 4.0, 9.0]
  assert len(eval_env.reset_seeds) == 3


def test_initial_policy_until_there_is_an_export(make_env, policy):
  sink, eval_env = _Sink(), make_env()
  result = _loop(
    make_env(), _Exports(None, None, 3), sink, eval_env=eval_env, num_eval=1,
    continuous=True, initial_policy_class=lambda: policy,
  )  # fmt: skip
  assert result["num_rounds"] == 3
  assert sink.actions[-1] == 3.0
  assert policy.num_resets == 2
  assert len(eval_env.reset_seeds) == 1


def test_no_export_and_no_initial_policy(make_env):
  sink, environments = _Sink(), []

  def make():
    environments.append(make_env())
    return environments[-1]

  with pytest.raises(NoModelError, match="no model"):
    _loop(make, _Exports(None), sink)
  assert sink.num_closed == 1
  assert environments[0].is_closed


def test_eval_policy_is_evaluated(make_env):
  seen = []
  _loop(
    make_env(), _Exports(3), eval_env=make_env(), num_eval=1,
    eval_policy_class=lambda: _Policy(_Exports(5)),
    run_agent_fn=lambda **kwargs: seen.append(kwargs) or actors.run_env(**kwargs),
  )  # fmt: skip
  assert [run["policy"].global_step for run in seen] == [3, 5]


def test_seeds(make_env):
  def run(seed):
    env, eval_env = make_env(), make_env()
    _loop(
      env, _Exports(1, 2, 3), eval_env=eval_env, num_eval=1, continuous=True,
      max_steps=3, num_collect=2, seed=seed,
    )  # fmt: skip
    return env.reset_seeds, eval_env.reset_seeds

  collected, evaluated = run(5)
  assert len(set(collected)) == len(collected) == 6
  # Each policy is evaluated in the same episodes, which are none of those collected.
  assert len(set(evaluated)) == 1
  assert not set(evaluated) & set(collected)
  assert run(5) == (collected, evaluated)
  assert not set(run(6)[0]) & set(collected)
  assert set(run(None)[0]) == {None}


class _StopAfter:
  """An environment that sets an event at its n-th step."""

  def __init__(self, env, event, num_steps):
    self._env, self._event, self._left = env, event, num_steps

  def step(self, action):
    self._left -= 1
    if not self._left:
      self._event.set()
    return self._env.step(action)

  def __getattr__(self, name):
    return getattr(self._env, name)


def test_stops_between_two_steps(make_env, policy):
  event, sink, eval_env = threading.Event(), _Sink(), make_env()
  env = _StopAfter(make_env(), event, 5)
  result = actors.collect_eval_loop(
    env, eval_env, lambda: policy, num_collect=9, sink=sink, continuous=True, stop=event
  )
  assert len(sink.actions) == 5
  assert sink.num_closed == 1
  assert result["was_stopped"]
  assert not eval_env.reset_seeds


def test_stops_while_it_waits(make_env):
  event = threading.Event()
  exports = _Exports(1)
  threading.Timer(0.2, event.set).start()
  result = actors.collect_eval_loop(
    make_env(),
    policy_class=lambda: _Policy(exports),
    num_collect=1,
    continuous=True,
    max_steps=None,
    poll_interval=60.0,
    stop=event,
  )
  assert (result["was_stopped"], result["num_rounds"]) == (True, 1)


ERRORS = {
  "nowhere": ({}, "expected a collect_env, an eval_env or both, got neither"),
  "no folder": (
    {"eval_env": object(), "record_eval_env_video": True},
    "expected an eval_env to record and a root_dir .* got an eval_env and root_dir ''",
  ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_arguments(case):
  kwargs, want = ERRORS[case]
  with pytest.raises(ValueError, match=want):
    actors.collect_eval_loop(policy_class=lambda: None, **kwargs)


class _StuckSink(_Sink):
  """Waits for a replay that takes nothing, until it is told to stop."""

  def stop_with(self, stop):
    self.stop = stop

  def append(self, step, env=0):
    self.event.set()  # As if the signal had come meanwhile.
    self.close()

  def close(self):
    if self.stop.is_set():
      raise errors.ReplayTimeoutError("told to stop")


def test_stop_ends_the_wait_for_a_blocked_replay(make_env):
  sink = _StuckSink()
  sink.event = event = threading.Event()
  result = _loop(make_env(), _Exports(1), sink, stop=event)
  assert result["was_stopped"]
  assert result["num_rounds"] == 0


def test_full_replay_is_an_error_unless_the_loop_stops(make_env):
  sink = _StuckSink()
  sink.event, sink.stop = threading.Event(), threading.Event()
  sink.stop_with = lambda stop: sink.stop.set()
  with pytest.raises(errors.ReplayTimeoutError, match="told to stop"):
    _loop(make_env(), _Exports(1), sink)


def test_gin_scopes_tell_the_two_runs_apart(make_env):
  gin.parse_config("collect/run_env.max_steps = 1\neval/run_env.max_steps = 2")
  result = _loop(
    make_env(), _Exports(0), num_collect=2, eval_env=make_env(), num_eval=3
  )
  assert result["collect/episode_length"] == 1
  assert result["eval/episode_length"] == 2


def test_users_measures_reach_tensorboard(make_env, tmp_path):
  gin.bind_parameter("run_env.episode_metrics_fn", lambda steps: {"t": len(steps) * 2})
  gin.bind_parameter("run_env.max_steps", 3)
  _loop(make_env(), _Exports(0), root_dir=str(tmp_path))
  assert _read_scalars(tmp_path / "policy_collect")["collect/t", 0] == 6


_POS = specs.TensorSpecStruct(
  pos=specs.ExtendedTensorSpec((2,), tf.float32, "pos", time_offsets=0)
)


def _collect_beside_a_learner(env, num_batches, continuous=True):
  """Collects in a thread; the learner takes batches of four steps."""
  live = replay.ReplayBuffer(
    _POS,
    capacity_steps=100,
    rate_limiter=replay.SampleToInsertRatio(1.0, 4, error_buffer=10.0),
  )
  sink = actors.ReplaySink(live, lambda step: step["observation"]["state"])
  batches = iter(live.dataset(batch_size=4))
  with actors.CollectThread(
    live,
    collect_env=env,
    policy_class=lambda: _Policy(_Exports(1)),
    num_collect=1,
    wait_for_new_policy=False,
    continuous=continuous,
    max_steps=None,
    sink=sink,
  ):
    return [next(batches).pos.shape for _ in range(num_batches)]


def test_thread_collects_until_the_learner_is_done(make_env):
  assert _collect_beside_a_learner(make_env(), 5) == [(4, 2)] * 5


def test_learner_hears_of_a_collector_that_died(make_env):
  env = make_env()
  step = env.step

  def step_or_fail(action):
    if env._t == 1:
      raise OSError("the robot is gone")
    return step(action)

  env.step = step_or_fail
  with pytest.raises(
    RuntimeError, match=r"CollectThread: .*got OSError: the robot is gone"
  ) as info:
    _collect_beside_a_learner(env, 100)
  # What the learner was told, while it waited.
  assert "replay" in str(info.value.__context__ or info.value.__cause__)


def test_learner_hears_of_a_loop_that_ended_by_itself(make_env):
  with pytest.raises(
    tf.errors.OpError, match=r"the loop ended by itself\. To keep collecting"
  ):
    _collect_beside_a_learner(make_env(), 100, continuous=False)


def test_environment_that_hangs_is_left_to_itself(make_env, monkeypatch):
  monkeypatch.setattr(collect, "_JOIN_SECONDS", 0.2)
  warned, hangs, goes_on = [], threading.Event(), threading.Event()
  monkeypatch.setattr(collect.logging, "warning", lambda *a: warned.append(a[0]))
  env = make_env()
  step, steps = env.step, []

  def step_or_hang(action):
    steps.append(action)
    if len(steps) == 5:
      hangs.set()
      goes_on.wait(60)
    return step(action)

  env.step = step_or_hang
  _collect_beside_a_learner(env, 1)
  goes_on.set()
  assert hangs.is_set() and "waits for the environment" in warned[0]
